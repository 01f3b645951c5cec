"""Rows for tensors out of nothing."""

from __future__ import annotations

import array_ops as a
import numpy as np
import pytest
from op_table import OpCase, ScriptCase, index, real, whole
from reference_interpreter import Interpreter

from dovetail.graph.core.build import apply, placeholder


def run(fetches, feeds=None):
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return Interpreter(first.graph, check=True).run(fetches, feeds)


def _constants_and_fills():
    """Small ones are constants, large ones are filled when the graph runs, as TensorFlow names them."""
    small = a.zeros([2, 3])
    assert small.op.type == "Const" and small.op.name == "zeros" and small.dtype.name == "float32"
    large = a.ones([100, 100], "int64")
    assert large.op.type == "Fill" and large.dims == (100, 100)
    assert [t.op.name for t in large.op.inputs] == ["ones/shape_as_tensor", "ones/Const"]
    assert (run(large) == 1).all() and run(large).dtype == np.int64
    np.testing.assert_array_equal(run(a.zeros([2], "string")), [b"", b""])
    np.testing.assert_array_equal(run(a.zeros([], "bool")), False)
    x = placeholder("float16", [None])
    assert a.zeros_like(x).op.type == "ZerosLike" and a.ones_like(x).op.type == "OnesLike"
    computed = a.ones([a.shape(x)[0], 2])
    assert computed.dims == (None, 2)
    assert run(computed, {x: np.zeros(3)}).shape == (3, 2)
    assert run(a.ones_like(x, "int32"), {x: np.zeros(3)}).dtype == np.int32
    assert a.zeros_like(np.zeros((2, 2))).op.type == "Const"
    with pytest.raises(ValueError, match="complete shape"):
        a.zeros([None, 2])


CASES = [
    ScriptCase(("Fill", "ZerosLike", "OnesLike"), _constants_and_fills),
    OpCase(
        "Fill",
        lambda x: a.fill([2, 3], x),
        [real()],
        lambda x: np.full((2, 3), x),
        ("float32", "bfloat16", "bool", "int8"),
        True,
    ),
    OpCase(
        "Fill",
        lambda s, x: a.fill(s, x),
        [index(2, 3), real()],
        lambda s, x: np.full((2, 3), x),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "ZerosLike",
        lambda x: apply("ZerosLike", (x,)),
        [real(2, 3)],
        np.zeros_like,
        ("float32", "bfloat16", "int8"),
    ),
    OpCase(
        "OnesLike",
        lambda x: apply("OnesLike", (x,)),
        [real(2, 3)],
        np.ones_like,
        ("float32", "bfloat16", "bool"),
    ),
    OpCase("Range", lambda: a.range(2, 11, 3), [], lambda: np.arange(2, 11, 3)),
    OpCase("Range", lambda: a.range(5), [], lambda: np.arange(5), label="limit"),
    OpCase("Range", lambda: a.range(0.0, 1, 0.25), [], lambda: np.arange(0, 1, 0.25), label="float"),
    OpCase("Range", lambda: a.range(0.0, 0.3, 0.1), [], lambda: np.array([0, 0.1, 0.2]), label="counted in float32"),
    OpCase("Range", lambda: a.range(3, -1, -2), [], lambda: np.arange(3, -1, -2), label="down"),
    OpCase("Range", lambda: a.range(3, dtype="int64"), [], lambda: np.arange(3), label="int64"),
    OpCase(
        "Range",
        lambda n: a.range(n, delta=2),
        [index(7)],
        lambda n: np.arange(0, 7, 2),
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "Range",
        a.range,
        [whole(low=1, high=2), whole(low=6, high=7)],
        np.arange,
        ("float16", "bfloat16", "int32"),
        dynamic=True,
        unknown=("rank",),
        label="types",
    ),
    OpCase(
        "LinSpace",
        lambda x, y: a.linspace(x, y, 4),
        [real(), real(seed=1)],
        lambda x, y: np.linspace(x, y, 4),
        ("float32", "bfloat16"),
        True,
    ),
    OpCase("LinSpace", lambda: a.linspace(0.0, 1, 5), [], lambda: np.linspace(0, 1, 5), label="numbers"),
    OpCase("Const", lambda: a.eye(3, 4, dtype="int32"), [], lambda: np.eye(3, 4).astype(int), label="eye"),
    OpCase(
        "MatrixBandPart",
        lambda: a.eye(40, batch_shape=[2]),
        [],
        lambda: np.stack([np.eye(40)] * 2),
        label="eye",
    ),
    OpCase(
        "MatrixBandPart",
        lambda n: a.eye(n, 3),
        [index(2)],
        lambda n: np.eye(2, 3),
        dynamic=True,
        label="eye-computed",
    ),
]
