"""Rows for slices: every way of writing one that NumPy knows, with numbers and with tensors."""

from __future__ import annotations

import array_ops as a
import numpy as np
from op_table import OpCase, ScriptCase, index, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import apply, constant, placeholder
from dovetail.graph.ops.array.slicing import MASKS, python_index

newaxis = a.newaxis

KEYS = {
    "first": np.s_[0],
    "last": np.s_[-1],
    "two": np.s_[1, -2],
    "all": np.s_[1, 2, 3],
    "range": np.s_[1:3],
    "open": np.s_[1:],
    "to": np.s_[:2],
    "negative": np.s_[-3:-1],
    "step": np.s_[::2],
    "backwards": np.s_[::-1],
    "backwards-from": np.s_[2:0:-1],
    "backwards-step": np.s_[:, ::-2],
    "beyond": np.s_[1:99],
    "none-left": np.s_[3:1],
    "everything": np.s_[:],
    "ellipsis": np.s_[..., 1],
    "ellipsis-middle": np.s_[1, ..., 2:],
    "ellipsis-alone": np.s_[...],
    "ellipsis-nothing": np.s_[1, 2, ..., 3],
    "newaxis": np.s_[newaxis],
    "newaxis-last": np.s_[..., newaxis],
    "newaxis-between": np.s_[1:, newaxis, -1, newaxis],
    "mixed": np.s_[-2:, 1, ..., ::2],
    "empty-tuple": (),
}


def _like_numpy(key):
    return OpCase("StridedSlice", lambda x: x[key], [real(4, 3, 4)], lambda x: x[key], grad=True)


def _named(case, label, **changes):
    return OpCase(case.op, case.build, case.inputs, case.oracle, label=label, **{"grad": case.grad, **changes})


STRIDED = [
    *(_named(_like_numpy(key), label) for label, key in KEYS.items()),
    OpCase(
        "StridedSlice",
        lambda x: x[1:, 0],
        [real(3, 2)],
        lambda x: x[1:, 0],
        ("float16", "bfloat16", "int8", "uint64", "bool"),
        label="types",
    ),
    OpCase(
        "StridedSlice",
        lambda x: [x[1], x[:1], x[0, 1]],
        [np.array([[b"a", b"b"], [b"c", b"d"]], object)],
        lambda x: [x[1], x[:1], x[0, 1]],
        label="text",
    ),
    OpCase(
        "StridedSlice",
        lambda x, i: x[i],
        [real(4, 3), index(2)],
        lambda x, i: x[2],
        grad=True,
        label="tensor-index",
    ),
    OpCase(
        "StridedSlice",
        lambda x, i: x[i],
        [real(4, 3), index(-1)],
        lambda x, i: x[-1],
        grad=True,
        label="tensor-negative",
    ),
    OpCase(
        "StridedSlice",
        lambda x, i: x[i:, ::i, 1],
        [real(4, 4, 2), index(2)],
        lambda x, i: x[2:, ::2, 1],
        grad=True,
        dynamic=True,
        label="tensor-ends",
    ),
    OpCase(
        "StridedSlice",
        lambda x, i: x[1:3, :i],
        [real(4, 3), np.array(2, np.int64)],
        lambda x, i: x[1:3, :2],
        grad=True,
        dynamic=True,
        label="tensor-int64",
    ),
    OpCase(
        "StridedSlice",
        lambda x, i: x[i],
        [real(4), np.array(3, np.uint8)],
        lambda x, i: x[3],
        grad=True,
        label="tensor-uint8",
    ),
    OpCase(
        "StridedSlice",
        lambda x, b, e, s: a.strided_slice(x, b, e, s),
        [real(4, 3), index(3, 0), index(0, 3), index(-2, 1)],
        lambda x, b, e, s: x[3:0:-2, 0:3],
        grad=True,
        dynamic=True,
        label="vectors",
    ),
    OpCase(
        "StridedSlice",
        lambda x: a.strided_slice(x, [1, 0], [3, 2]),
        [real(4, 3)],
        lambda x: x[1:3, :2],
        grad=True,
        label="no-strides",
    ),
    OpCase(
        "StridedSliceGrad",
        lambda x: _grad_of(x),
        [real(2, 2)],
        lambda x: _scattered(x),
        ("float32", "bfloat16", "int32"),
        True,
    ),
    OpCase(
        "GatherV2",
        lambda x: x[constant([True, False, True])],
        [real(3, 2)],
        lambda x: x[[True, False, True]],
        grad=True,
        dynamic=True,
        label="mask",
    ),
]


def _grad_of(x):
    masks = {**dict.fromkeys(MASKS, 0), "end_mask": 2, "shrink_axis_mask": 4}
    return apply(
        "StridedSliceGrad",
        (constant([4, 3, 2]), constant([0, 1, 1]), constant([4, 0, 2]), constant([2, 1, 1]), x),
        masks,
    )


def _scattered(x):
    out = np.zeros((4, 3, 2), x.dtype)
    out[0:4:2, 1:, 1] = x
    return out


# --- begin and size -----------------------------------------------------------------------------------------

BLOCKS = [
    OpCase(
        "Slice",
        lambda x: a.slice(x, [1, 0], [2, 2]),
        [real(4, 3)],
        lambda x: x[1:3, :2],
        ("float32", "bfloat16", "int8"),
        True,
    ),
    OpCase(
        "Slice",
        lambda x: a.slice(x, [1, 2], [-1, 1]),
        [real(4, 3)],
        lambda x: x[1:, 2:],
        grad=True,
        label="rest",
    ),
    OpCase("Slice", lambda x: a.slice(x, [2], [0]), [real(2)], lambda x: x[2:], grad=True, label="nothing"),
    OpCase(
        "Slice",
        a.slice,
        [real(4, 3), index(1, 1), index(2, -1)],
        lambda x, b, s: x[1:3, 1:],
        grad=True,
        dynamic=True,
        label="computed",
    ),
]

# --- what is known before running ---------------------------------------------------------------------------


def _static_sizes():
    """Sizes that do not depend on unknown ones are inferred."""
    x = placeholder("float32", [None, 5, 6])
    i = placeholder("int32", [])
    assert x[1:].dims == (None, 5, 6)
    assert x[0].dims == (5, 6)
    assert x[:, 1:3, ::2].dims == (None, 2, 3)
    assert x[:, i].dims == (None, 6)
    assert x[:, 1:3, i:].dims == (None, 2, None)
    assert x[..., newaxis, -1].dims == (None, 5, 1)
    assert x[3:1].dims == (0, 5, 6)
    assert a.slice(x, [0, 1, 0], [-1, 2, i]).dims == (None, 2, None)


def _names():
    x = placeholder("float32", [4, 4], name="x")
    i = placeholder("int32", [], name="i")
    x[1:]
    x[i, 2]
    names = {n.name: n.type for n in x.graph.nodes}
    assert names["strided_slice"] == names["strided_slice_1"] == "StridedSlice"
    assert [names[f"strided_slice/{n}"] for n in ("stack", "stack_1", "stack_2")] == ["Const"] * 3
    assert names["strided_slice_1/stack"] == "Pack" and names["strided_slice_1/stack/1"] == "Const"


def _iterates():
    x = placeholder("float32", [2, 3])
    first, second = x
    values = Interpreter(x.graph).run([first, second], {x: [[1, 2, 3], [4, 5, 6]]})
    np.testing.assert_array_equal(values, [[1, 2, 3], [4, 5, 6]])


def _precedence():
    """Where several masks say something about one spec, the ellipsis wins, then the new axis."""
    assert python_index([0, 5], [0, 5], [1, 1], {"ellipsis_mask": 1, "new_axis_mask": 3, "shrink_axis_mask": 3}) == (
        ...,
        None,
    )
    assert python_index([2], [0], [1], {"shrink_axis_mask": 1, "begin_mask": 1}) == (2,)


CASES = [
    *STRIDED,
    *BLOCKS,
    ScriptCase(("StridedSlice", "Slice"), _static_sizes, label="static-sizes"),
    ScriptCase(("StridedSlice",), _names, label="slice-names"),
    ScriptCase(("StridedSlice",), _iterates, label="iteration"),
    ScriptCase((), _precedence, label="slice-precedence"),
]
