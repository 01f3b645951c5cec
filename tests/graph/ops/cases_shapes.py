"""Rows for asking for shapes and changing them."""

from __future__ import annotations

import array_ops as a
import numpy as np
from op_table import OpCase, ScriptCase, index, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import placeholder
from dovetail.graph.core.dtypes import int64

STRINGS = np.array([[b"a", b"bc"], [b"", b"def"]], object)


def run(fetches, feeds=None):
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return Interpreter(first.graph, check=True).run(fetches, feeds)


def _shape_questions():
    """Known shapes are constants; unknown ones are asked for when the graph runs."""
    x = placeholder("float32", [None, 3])
    fed = {x: np.zeros((5, 3))}
    for ask, value in ((a.shape, [5, 3]), (a.size, 15), (a.rank, 2)):
        np.testing.assert_array_equal(run(ask(x), fed), value)
    assert a.shape(x).op.type == "Shape" and a.shape(x, out_type=int64).dtype is int64
    assert a.shape(np.zeros((2, 3))).op.type == "Const"
    assert a.rank(x).op.type == "Const"
    assert a.rank(placeholder("float32")).op.type == "Rank"
    assert [t.op.type for t in a.shape_n([x, np.zeros(2)])] == ["Shape", "Const"]


CASES = [
    ScriptCase(("Shape", "Size", "Rank"), _shape_questions),
    OpCase(
        "Reshape",
        lambda x: a.reshape(x, [3, 2]),
        [real(2, 3)],
        lambda x: x.reshape(3, 2),
        ("float32", "bfloat16", "int8"),
        True,
    ),
    OpCase("Reshape", lambda x: a.reshape(x, [-1]), [real(2, 3)], lambda x: x.ravel(), grad=True, label="flat"),
    OpCase(
        "Reshape",
        lambda x: a.reshape(x, []),
        [real(1, 1)],
        lambda x: x.reshape(()),
        grad=True,
        label="scalar",
    ),
    OpCase(
        "Reshape",
        lambda x, s: a.reshape(x, s),
        [real(2, 3), index(6, 1)],
        lambda x, s: x.reshape(6, 1),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "Reshape",
        lambda x: a.reshape(x, [a.shape(x)[0], -1]),
        [real(2, 3, 2)],
        lambda x: x.reshape(2, 6),
        grad=True,
        label="kept-batch",
    ),
    OpCase("Reshape", lambda x: a.reshape(x, [0, 3]), [real(0, 3)], lambda x: x, label="empty"),
    OpCase("Reshape", lambda x: a.reshape(x, [4]), [STRINGS], lambda x: x.ravel(), label="text"),
    OpCase(
        "ExpandDims",
        lambda x: a.expand_dims(x, 1),
        [real(2, 3)],
        lambda x: x[:, None],
        ("float32", "float16"),
        True,
    ),
    OpCase(
        "ExpandDims",
        lambda x: a.expand_dims(x, -1),
        [real(2, 3)],
        lambda x: x[..., None],
        grad=True,
        label="last",
    ),
    OpCase(
        "ExpandDims",
        lambda x: a.expand_dims(x, dim=0),
        [real()],
        lambda x: x[None],
        grad=True,
        label="scalar",
    ),
    OpCase(
        "ExpandDims",
        a.expand_dims,
        [real(2, 3), index(0)],
        lambda x, d: x[None],
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase("Squeeze", a.squeeze, [real(1, 3, 1)], lambda x: x.squeeze(), ("float32", "int32"), True),
    OpCase(
        "Squeeze",
        lambda x: a.squeeze(x, [0, -1]),
        [real(1, 1, 3, 1)],
        lambda x: x[0, :, :, 0],
        grad=True,
        label="some",
    ),
    OpCase(
        "Squeeze",
        lambda x: a.squeeze(x, squeeze_dims=1),
        [real(2, 1)],
        lambda x: x[:, 0],
        grad=True,
        label="old-name",
    ),
    OpCase(
        "BroadcastTo",
        lambda x: a.broadcast_to(x, [4, 2, 3]),
        [real(2, 1)],
        lambda x: np.broadcast_to(x, (4, 2, 3)),
        ("float32", "bool"),
        True,
    ),
    OpCase(
        "BroadcastTo",
        lambda x: a.broadcast_to(x, [2, 2]),
        [real()],
        lambda x: np.full((2, 2), x),
        grad=True,
        label="scalar",
    ),
    OpCase(
        "BroadcastTo",
        a.broadcast_to,
        [real(3), index(2, 3)],
        lambda x, s: np.broadcast_to(x, (2, 3)),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase("EnsureShape", lambda x: a.ensure_shape(x, [2, None]), [real(2, 3)], lambda x: x, grad=True),
    OpCase("Transpose", a.transpose, [real(2, 3, 4)], lambda x: x.T, ("float32", "bfloat16", "uint8"), True),
    OpCase(
        "Transpose",
        lambda x: a.transpose(x, [1, 2, 0]),
        [real(2, 3, 4)],
        lambda x: x.transpose(1, 2, 0),
        grad=True,
        label="cycle",
    ),
    OpCase(
        "Transpose",
        a.transpose,
        [real(2, 3), index(1, 0)],
        lambda x, p: x.T,
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase("Transpose", a.transpose, [real()], lambda x: x, grad=True, label="scalar"),
    OpCase("InvertPermutation", a.invert_permutation, [index(2, 0, 3, 1)], np.argsort),
]
