"""Rows for rolling, repeating, grids and masks, and what several tensors have in common."""

from __future__ import annotations

import numpy as np
import pytest
from op_table import FLOATS, INTEGERS, OpCase, ScriptCase, index, real, whole
from reference_interpreter import Interpreter

from dovetail.compat.tf1.ops import arrays
from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.array import sequences as a
from dovetail.graph.ops.array.identity_and_placeholders import identity_n
from dovetail.graph.ops.array.shapes import broadcast_to
from dovetail.graph.ops.math.broadcasting import broadcast_dynamic_shape

X = real(3, 4)


def run(fetches, feeds=None):
    return Interpreter(get_default_graph(), check=True).run(fetches, feeds)


ROLL = [
    OpCase(
        "Roll",
        lambda x, shift=shift, axis=axis: arrays.roll(x, shift, axis),
        [X],
        lambda x, shift=shift, axis=axis: np.roll(x, shift, axis),
        (*FLOATS, "int32", "bool") if shift == 2 else ("float32",),
        True,
        label=f"{shift} {axis}",
    )
    for shift, axis in ((2, 0), (-1, 1), (9, -1), ([1, 2], [0, 1]), ([1, 2], [1, 1]), (0, 0))
] + [
    OpCase(
        "Roll",
        arrays.roll,
        [X, index(3, -1), index(1, 0)],
        lambda x, s, axis: np.roll(x, s, axis),
        grad=True,
        label="computed",
    ),
    OpCase("Roll", lambda x: arrays.roll(x, 2, 0), [real(0, 2)], lambda x: x, label="empty"),
]

REPEAT = [
    *(
        OpCase(
            op,
            lambda x, n=n, axis=axis: a.repeat(x, n, axis),
            [X],
            lambda x, n=n, axis=axis: np.repeat(x, n, axis),
            ("float32", "int32", "bool"),
            True,
            unknown=("dims",) if axis is not None else ("dims", "rank"),
            dynamic=op == "GatherV2" and axis is None,
            label=f"repeat {n} {axis}",
        )
        for op, n, axis in (
            ("Tile", 3, 0),
            ("Tile", 2, 1),
            ("Tile", 2, -1),
            ("Tile", 2, None),
            ("Tile", 0, 0),
            ("Tile", [2], 1),
            ("GatherV2", [2, 0, 3], 0),
            ("GatherV2", [1, 2, 3, 0], 1),
        )
    ),
    OpCase(
        "GatherV2",
        lambda x, n: a.repeat(x, n, 0),
        [X, index(2, 0, 3)],
        lambda x, n: np.repeat(x, n, 0),
        grad=True,
        unknown=("dims",),
        dynamic=True,
        label="repeat computed",
    ),
    OpCase(
        "Tile",
        lambda x, n: a.repeat(x, n, 1),
        [X, np.array(2, np.int64)],
        lambda x, n: np.repeat(x, n, 1),
        grad=True,
        unknown=("dims",),
        dynamic=True,
        label="repeat computed number",
    ),
]

A, B, C = real(3), real(2, seed=1), real(4, seed=2)
GRIDS = [
    OpCase(
        "BroadcastTo" if len(axes) > 1 else "Reshape",
        lambda *x, indexing=indexing: arrays.meshgrid(*x, indexing=indexing),
        axes,
        lambda *x, indexing=indexing: list(np.meshgrid(*x, indexing=indexing)),
        ("float32", "int32"),
        True,
        label=f"meshgrid {indexing} {len(axes)}",
    )
    for indexing in ("xy", "ij")
    for axes in ([A], [A, B], [A, B, C])
] + [
    OpCase(
        "BroadcastTo",
        arrays.meshgrid,
        [real(2, 2), real(3)],
        lambda x, y: list(np.meshgrid(x, y)),
        grad=True,
        label="meshgrid flat",
    )
]


def _mask(lengths, maxlen=None):
    longest = max(lengths.max(initial=0), 0) if maxlen is None else maxlen
    return np.arange(longest) < lengths[..., None]


MASKS = [
    *(
        OpCase(
            "Less",
            lambda n, maxlen=maxlen: a.sequence_mask(n, maxlen),
            [n],
            lambda n, maxlen=maxlen: _mask(n, maxlen),
            dynamic=True,
            label=f"sequence_mask {label} {maxlen}",
        )
        for label, n in (
            ("vector", index(1, 3, 2)),
            ("matrix", index([[0, 2], [5, 1]])),
            ("int64", np.array([2, 4])),
            ("scalar", np.array(3, np.int32)),
            ("bytes", np.array([1, 3], np.int8)),
            ("negative", index(-2, -1)),
        )
        for maxlen in (None, 4)
    ),
    OpCase(
        "Cast",
        lambda n: a.sequence_mask(n, 3, "float32"),
        [index(1, 3)],
        lambda n: _mask(n, 3).astype(np.float32),
        label="sequence_mask numbers",
    ),
]


SHAPES = [
    OpCase(
        "BroadcastArgs",
        broadcast_dynamic_shape,
        [np.array(x, dtype), np.array(y, dtype)],
        lambda x, y: np.array(np.broadcast_shapes(tuple(x), tuple(y)), x.dtype),
        label=f"{x} {y}",
        unknown=("dims", "rank"),
    )
    for x, y, dtype in (
        ([2, 1], [3], np.int32),
        ([4, 1, 3], [2, 1], np.int64),
        ([1], [0], np.int32),
        ([2, 3], [2, 3], np.int64),
    )
]


def _static_shapes():
    known = broadcast_dynamic_shape([2, 1], [3])
    x = broadcast_to(constant(1.0), known)
    assert x.dims == (2, 3)  # what is known of the shape is known of what it shapes
    with pytest.raises(ValueError, match="broadcast"):
        broadcast_dynamic_shape([2], [3])
    computed = placeholder("int32", [1])
    with pytest.raises(InvalidArgumentError, match=r"Shapes \(2,\) and \(3,\) do not broadcast"):
        run(broadcast_dynamic_shape(computed, [3]), {computed: [2]})


def _identities():
    x, n = constant([1.0, 2.0]), constant(3)
    y, m, v = identity_n([x, n, 5.0])
    assert y.op is m.op is v.op and y.op.name == "IdentityN"
    assert [t.dims for t in (y, m, v)] == [(2,), (), ()]
    one, two, three = run([y, m, v])
    assert (one.tolist(), int(two), float(three)) == ([1, 2], 3, 5)
    (alone,) = identity_n([x])
    assert run(alone).tolist() == [1, 2]
    assert gradients(v * 2.0, [x]) == [None]  # an output that nobody uses brings none
    with pytest.raises(ValueError, match="at least one input"):
        identity_n([])


def _errors():
    x, unknown = constant(X.astype(np.float32)), placeholder("float32")
    for call, words in (
        (lambda: arrays.roll(1.0, 1, 0), "at least rank 1"),
        (lambda: arrays.roll(x, 1, 2), "axis 2 does not exist"),
        (lambda: arrays.roll(x, [1, 2], 0), "must have the same shape"),
        (lambda: arrays.roll(x, [[1]], [[0]]), "must be a number or a vector"),
        (lambda: a.repeat(x, [1, 2], 0), "repeats has 2 numbers, the axis 0 of the input 3"),
        (lambda: a.repeat(x, [[1], [2]], 0), "a number or a vector"),
        (lambda: a.repeat(x, 2, 5), "axis 5"),
        (lambda: a.repeat(unknown, 2, 1), "needs to know the input's rank"),
        (lambda: arrays.meshgrid(x, x, indexing="yx"), "must be either 'xy' or 'ij', got 'yx'"),
        (lambda: a.sequence_mask([1], [2, 3]), "maxlen must be scalar"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="lengths must be integers"):
        a.sequence_mask([1.0])
    axis = placeholder("int32", [])
    with pytest.raises(InvalidArgumentError, match=r"axis \[7\] does not exist in shape \(3, 4\)"):
        run(arrays.roll(x, 1, axis), {axis: 7})
    assert arrays.meshgrid() == []


CASES = [
    *ROLL,
    *REPEAT,
    *GRIDS,
    *MASKS,
    *SHAPES,
    OpCase("IdentityN", lambda x, y: identity_n([x, y]), [X, whole(2)], lambda x, y: [x, y],
           (*FLOATS, *INTEGERS), True),
    ScriptCase(("BroadcastArgs",), _static_shapes, "broadcast_dynamic_shape"),
    ScriptCase(("IdentityN",), _identities, "identity_n"),
    ScriptCase(("Roll",), _errors, "arranging errors"),
]  # fmt: skip
