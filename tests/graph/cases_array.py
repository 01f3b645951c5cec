"""Rows for shapes, joining, padding, gathering, segments, creation, passing on, sorting."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import numpy as np
import pytest
from op_table import FLOATS, INTEGERS, NUMBERS, OpCase, ScriptCase, index, real, whole

from dovetail.graph.build import apply, constant, placeholder
from dovetail.graph.dtypes import as_dtype, int64
from dovetail.graph.errors import InvalidArgumentError
from dovetail.graph.gradients import gradients
from dovetail.graph.indexed_slices import IndexedSlices
from dovetail.graph.interpret import Interpreter
from dovetail.graph.ops import array as a

STRINGS = np.array([[b"a", b"bc"], [b"", b"def"]], object)


def run(fetches, feeds=None):
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return Interpreter(first.graph, check=True).run(fetches, feeds)


# --- shapes --------------------------------------------------------------------------------------------------------


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


SHAPES = [
    ScriptCase(("Shape", "Size", "Rank"), _shape_questions),
    OpCase("Reshape", lambda x: a.reshape(x, [3, 2]), [real(2, 3)], lambda x: x.reshape(3, 2), ("float32", "bfloat16", "int8"), True),
    OpCase("Reshape", lambda x: a.reshape(x, [-1]), [real(2, 3)], lambda x: x.ravel(), grad=True, label="flat"),
    OpCase("Reshape", lambda x: a.reshape(x, []), [real(1, 1)], lambda x: x.reshape(()), grad=True, label="scalar"),
    OpCase("Reshape", lambda x, s: a.reshape(x, s), [real(2, 3), index(6, 1)], lambda x, s: x.reshape(6, 1), grad=True, dynamic=True, label="computed"),
    OpCase("Reshape", lambda x: a.reshape(x, [a.shape(x)[0], -1]), [real(2, 3, 2)], lambda x: x.reshape(2, 6), grad=True, label="kept-batch"),
    OpCase("Reshape", lambda x: a.reshape(x, [0, 3]), [real(0, 3)], lambda x: x, label="empty"),
    OpCase("Reshape", lambda x: a.reshape(x, [4]), [STRINGS], lambda x: x.ravel(), label="text"),
    OpCase("ExpandDims", lambda x: a.expand_dims(x, 1), [real(2, 3)], lambda x: x[:, None], ("float32", "float16"), True),
    OpCase("ExpandDims", lambda x: a.expand_dims(x, -1), [real(2, 3)], lambda x: x[..., None], grad=True, label="last"),
    OpCase("ExpandDims", lambda x: a.expand_dims(x, dim=0), [real()], lambda x: x[None], grad=True, label="scalar"),
    OpCase("ExpandDims", a.expand_dims, [real(2, 3), index(0)], lambda x, d: x[None], grad=True, dynamic=True, label="computed"),
    OpCase("Squeeze", a.squeeze, [real(1, 3, 1)], lambda x: x.squeeze(), ("float32", "int32"), True),
    OpCase("Squeeze", lambda x: a.squeeze(x, [0, -1]), [real(1, 1, 3, 1)], lambda x: x[0, :, :, 0], grad=True, label="some"),
    OpCase("Squeeze", lambda x: a.squeeze(x, squeeze_dims=1), [real(2, 1)], lambda x: x[:, 0], grad=True, label="old-name"),
    OpCase("BroadcastTo", lambda x: a.broadcast_to(x, [4, 2, 3]), [real(2, 1)], lambda x: np.broadcast_to(x, (4, 2, 3)), ("float32", "bool"), True),
    OpCase("BroadcastTo", lambda x: a.broadcast_to(x, [2, 2]), [real()], lambda x: np.full((2, 2), x), grad=True, label="scalar"),
    OpCase("BroadcastTo", a.broadcast_to, [real(3), index(2, 3)], lambda x, s: np.broadcast_to(x, (2, 3)), grad=True, dynamic=True, label="computed"),
    OpCase("EnsureShape", lambda x: a.ensure_shape(x, [2, None]), [real(2, 3)], lambda x: x, grad=True),
    OpCase("Transpose", a.transpose, [real(2, 3, 4)], lambda x: x.T, ("float32", "bfloat16", "uint8"), True),
    OpCase("Transpose", lambda x: a.transpose(x, [1, 2, 0]), [real(2, 3, 4)], lambda x: x.transpose(1, 2, 0), grad=True, label="cycle"),
    OpCase("Transpose", a.transpose, [real(2, 3), index(1, 0)], lambda x, p: x.T, grad=True, dynamic=True, label="computed"),
    OpCase("Transpose", a.transpose, [real()], lambda x: x, grad=True, label="scalar"),
    OpCase("InvertPermutation", a.invert_permutation, [index(2, 0, 3, 1)], np.argsort),
]

# --- joining, padding ----------------------------------------------------------------------------------------------


def _cut(x, *places, axis=0):
    return np.split(x, places, axis)


JOINING = [
    OpCase("ConcatV2", lambda x, y: a.concat([x, y], 0), [real(2, 3), real(1, 3)], lambda x, y: np.concatenate([x, y]), ("float32", "bfloat16", "int64"), True),
    OpCase("ConcatV2", lambda x, y, z: a.concat([x, y, z], -1), [real(2, 1), real(2, 0), real(2, 3)], lambda *v: np.concatenate(v, 1), grad=True, label="last"),
    OpCase("ConcatV2", lambda x, y: a.concat([x, y], 1), [STRINGS, STRINGS], lambda x, y: np.concatenate([x, y], 1), label="text"),
    OpCase("ConcatV2", lambda x, y, d: a.concat([x, y], d), [real(2, 3), real(2, 3), index(1)], lambda x, y, d: np.concatenate([x, y], 1), grad=True, dynamic=True, label="computed"),
    OpCase("ConcatV2", lambda x: a.concat([x, np.ones((1, 3), np.float64)], 0), [real(2, 3)], lambda x: np.concatenate([x, np.ones((1, 3))]), ("float64",), grad=True, label="constant"),
    OpCase("Identity", lambda x: a.concat([x], 0), [real(2)], lambda x: x, grad=True, label="concat-of-one"),
    OpCase("Split", lambda x: a.split(x, 3, axis=1), [real(2, 6)], lambda x: np.split(x, 3, 1), ("float32", "bfloat16", "uint16"), True),
    OpCase("Split", lambda x: a.split(x, 2, -1)[1:], [real(2, 6)], lambda x: np.split(x, 2, 1)[1:], grad=True, label="one-used"),
    OpCase("Split", lambda x: a.split(x, 1), [real(2)], lambda x: [x], grad=True, label="one"),
    OpCase("Split", lambda x, d: a.split(x, 2, d), [real(2, 4), index(1)], lambda x, d: np.split(x, 2, 1), grad=True, dynamic=True, label="computed"),
    OpCase("SplitV", lambda x: a.split(x, [1, 2, 3], axis=1), [real(2, 6)], lambda x: _cut(x, 1, 3, axis=1), ("float32", "float16"), True),
    OpCase("SplitV", lambda x: a.split(x, [1, -1, 0]), [real(4)], lambda x: _cut(x, 1, 4), grad=True, label="rest"),
    OpCase("SplitV", lambda x, s: a.split(x, s, num=2), [real(4), index(1, 3)], lambda x, s: _cut(x, 1), grad=True, dynamic=True, label="computed"),
    OpCase("Pack", lambda x, y: a.stack([x, y]), [real(2, 3), real(2, 3, seed=1)], lambda x, y: np.stack([x, y]), ("float32", "bfloat16", "int8"), True),
    OpCase("Pack", lambda x, y: a.stack([x, y], axis=-1), [real(2, 3), real(2, 3, seed=1)], lambda x, y: np.stack([x, y], -1), grad=True, label="last"),
    OpCase("Pack", lambda x: a.stack([[x, 1.0], [2.0, x]]), [real()], lambda x: np.array([[x, 1], [2, x]]), ("float64", "float16"), grad=True, label="nested"),
    OpCase("Unpack", lambda x: a.unstack(x, 2), [real(2, 3)], list, ("float32", "bfloat16", "int16"), True),
    OpCase("Unpack", lambda x: a.unstack(x, 3, axis=-1)[::2], [real(2, 3)], lambda x: [x[:, 0], x[:, 2]], grad=True, label="some-used"),
    OpCase("Unpack", lambda x: a.unstack(x, 1), [real(1, 2)], list, grad=True, label="one"),
    OpCase("Tile", lambda x: a.tile(x, [2, 3]), [real(2, 1)], lambda x: np.tile(x, (2, 3)), ("float32", "bfloat16", "int32"), True, unknown=("dims",)),
    OpCase("Tile", lambda x: a.tile(x, [2, 0]), [real(2, 1)], lambda x: np.tile(x, (2, 0)), label="none"),
    OpCase("Tile", a.tile, [real(2), index([3])], lambda x, m: np.tile(x, 3), grad=True, dynamic=True, unknown=("dims",), label="computed"),
    OpCase("Pad", lambda x: a.pad(x, [[1, 0], [2, 3]]), [real(2, 3)], lambda x: np.pad(x, ((1, 0), (2, 3))), ("float32", "bfloat16", "int32"), True),
    OpCase("Pad", a.pad, [real(2), index([[1, 2]])], lambda x, p: np.pad(x, (1, 2)), grad=True, dynamic=True, label="computed"),
    OpCase("PadV2", lambda x: a.pad(x, [[1, 1]], constant_values=7), [real(3)], lambda x: np.pad(x, 1, constant_values=7), ("float32", "bfloat16"), True),
    OpCase("PadV2", lambda x, v: a.pad(x, [[1, 2]], constant_values=v), [real(3), real()], lambda x, v: np.pad(x, (1, 2), constant_values=v), grad=True, label="value"),
    OpCase("MirrorPad", lambda x: a.pad(x, [[1, 2], [0, 1]], "REFLECT"), [real(3, 2)], lambda x: np.pad(x, ((1, 2), (0, 1)), "reflect"), ("float32", "bfloat16", "int32"), True),
    OpCase("MirrorPad", lambda x: a.pad(x, [[1, 2], [0, 1]], "symmetric"), [real(3, 2)], lambda x: np.pad(x, ((1, 2), (0, 1)), "symmetric"), grad=True, label="symmetric"),
    OpCase("MirrorPadGrad", lambda x: gradients(a.pad(x, [[1, 2]], "REFLECT") ** 2, [x]), [real(3)],
           lambda x: [2 * x * np.array([2, 3, 1])], grad=True, unknown=("dims",)),
]  # fmt: skip

# --- gathering -----------------------------------------------------------------------------------------------------


def _batched(params, indices, axis):
    return np.stack([np.take(p, i, axis - 1) for p, i in zip(params, indices, strict=True)])


def _hot(ids, depth, on, off):
    out = np.full((*ids.shape, depth), off, np.float64)
    for at in np.ndindex(ids.shape):
        if 0 <= ids[at] < depth:
            out[(*at, ids[at])] = on
    return out


def _scattered(indices, updates, shape):
    out = np.zeros(shape, updates.dtype)
    for at in np.ndindex(indices.shape[:-1]):
        out[tuple(indices[at])] += updates[at]
    return out


def _updated(x, indices, updates, change):
    x = x.copy()
    for at in np.ndindex(indices.shape[:-1]):
        place = tuple(indices[at])
        x[place] = change(x[place], updates[at])
    return x


def _sparse_gradient():
    """Along the first axis the gradient holds only the rows that were looked at."""
    table, ids = placeholder("float32", [5, 2]), constant([[1, 3], [1, 0]])
    rows = a.gather(table, ids)
    assert rows.op.name == "GatherV2" and rows.op.inputs[2].op.name == "GatherV2/axis"
    (grad,) = gradients(rows, [table])
    assert isinstance(grad, IndexedSlices)
    assert grad.values.dims == (4, 2) and grad.indices.dims == (4,) and grad.shape == [5, 2]
    dense = run(grad._as_tensor(), {table: np.zeros((5, 2))})
    np.testing.assert_array_equal(dense, [[1, 1], [2, 2], [0, 0], [1, 1], [0, 0]])


PLACES = index([[0, 2], [1, 0], [0, 2]])
DISTINCT = index([[0, 2], [1, 0], [1, 1]])

GATHERING = [
    ScriptCase(("GatherV2",), _sparse_gradient, label="sparse-gradient"),
    OpCase("GatherV2", a.gather, [real(4, 3), index(3, 0, 3)], lambda x, i: x[i], ("float32", "bfloat16", "int8"), True),
    OpCase("GatherV2", a.gather, [real(4, 3), index(2)], lambda x, i: x[i], grad=True, label="one"),
    OpCase("GatherV2", lambda x, i: a.gather(x, i, axis=1), [real(2, 4, 3), index([[0, 3], [3, 3]])], lambda x, i: x[:, i], grad=True, unknown=("dims",), label="axis-1"),
    OpCase("GatherV2", lambda x, i: a.gather(x, i, axis=-1), [real(2, 4), index(1, 1)], lambda x, i: x[:, i], grad=True, unknown=("dims",), label="last"),
    OpCase("GatherV2", lambda x, i: a.gather(x, i, batch_dims=1), [real(2, 4, 3), index([[0, 3, 0], [1, 1, 2]])], lambda x, i: _batched(x, i, 1), grad=True, unknown=("dims",), label="batch"),
    OpCase("GatherV2", lambda x, i: a.gather(x, i, axis=2, batch_dims=1), [real(2, 3, 4, 2), index([[[0, 3], [1, 0]], [[1, 1], [2, 3]]])],
           lambda x, i: _batched(x, i, 2), grad=True, unknown=("dims",), label="batch-between"),
    OpCase("GatherV2", lambda x, i, d: a.gather(x, i, axis=d), [real(3, 3), index(0, 0), index(1)], lambda x, i, d: x[:, i], dynamic=True, label="computed"),
    OpCase("GatherNd", a.gather_nd, [real(2, 3), PLACES], lambda x, i: x[i[:, 0], i[:, 1]], ("float32", "bfloat16", "int64"), True),
    OpCase("GatherNd", a.gather_nd, [real(2, 3), index([[1], [0], [1]])], lambda x, i: x[i[:, 0]], grad=True, label="rows"),
    OpCase("GatherNd", a.gather_nd, [real(2, 3), np.zeros((2, 0), np.int32)], lambda x, i: np.stack([x, x]), grad=True, label="whole"),
    OpCase("GatherNd", lambda x, i: a.gather_nd(x, i, batch_dims=1), [real(2, 3), index([[2], [0]])], lambda x, i: x[[0, 1], [2, 0]], grad=True, unknown=("dims",), label="batch"),
    OpCase("ScatterNd", lambda i, u: a.scatter_nd(i, u, [2, 3]), [PLACES, real(3)], lambda i, u: _scattered(i, u, (2, 3)), ("float32", "bfloat16", "float16", "int32"), True),
    OpCase("ScatterNd", lambda i, u: a.scatter_nd(i, u, [4, 2]), [index([[1], [3], [1]]), real(3, 2)], lambda i, u: _scattered(i, u, (4, 2)), grad=True, label="rows"),
    OpCase("ScatterNd", a.scatter_nd, [index([[1], [3]]), real(2), index([4])], lambda i, u, s: _scattered(i, u, (4,)), grad=True, dynamic=True, label="computed"),
    OpCase("TensorScatterUpdate", a.tensor_scatter_nd_update, [real(2, 3), DISTINCT, real(3)], lambda x, i, u: _updated(x, i, u, lambda o, n: n), ("float32", "bfloat16"), True),
    OpCase("TensorScatterUpdate", a.tensor_scatter_nd_update, [whole(4), index([[1], [1]]), whole(2, seed=3)], lambda x, i, u: _updated(x, i, u, lambda o, n: n), ("int32",), label="last-wins"),
    OpCase("TensorScatterAdd", a.tensor_scatter_nd_add, [real(2, 3), PLACES, real(3)], lambda x, i, u: _updated(x, i, u, np.add), ("float32", "bfloat16", "float16", "int16"), True),
    OpCase("TensorScatterSub", a.tensor_scatter_nd_sub, [real(2, 3), PLACES, real(3)], lambda x, i, u: _updated(x, i, u, np.subtract), grad=True),
    OpCase("TensorScatterMin", a.tensor_scatter_nd_min, [real(2, 3), PLACES, real(3)], lambda x, i, u: _updated(x, i, u, np.minimum), ("float32", "bfloat16"), True),
    OpCase("TensorScatterMax", a.tensor_scatter_nd_max, [real(2, 3), PLACES, real(3)], lambda x, i, u: _updated(x, i, u, np.maximum), grad=True),
    OpCase("OneHot", lambda i: a.one_hot(i, 3), [index([[0, 2], [-1, 5]])], lambda i: _hot(i, 3, 1, 0)),
    OpCase("OneHot", lambda i: a.one_hot(i, 3, on_value=5, off_value=-1, axis=0), [index(0, 2)], lambda i: _hot(i, 3, 5, -1).T, label="axis-0"),
    OpCase("OneHot", lambda i: a.one_hot(i, 4, dtype="bfloat16"), [index(0, 2)], lambda i: _hot(i, 4, 1, 0), label="bfloat16"),
    OpCase("OneHot", lambda i: a.one_hot(i, 2, True, False), [np.array([1, 0], np.uint8)], lambda i: _hot(i, 2, 1, 0).astype(bool), label="bool"),
    OpCase("ReverseV2", lambda x: a.reverse(x, [0, -1]), [real(2, 3, 2)], lambda x: x[::-1, :, ::-1], ("float32", "bfloat16", "int8"), True),
    OpCase("ReverseV2", a.reverse, [real(2, 3), index([1])], lambda x, d: x[:, ::-1], grad=True, label="computed"),
]  # fmt: skip

# --- segments ------------------------------------------------------------------------------------------------------


def _segments(ufunc, empty):
    def oracle(x, ids, count=4):
        out = np.full((count, *x.shape[ids.ndim :]), empty(x.dtype) if callable(empty) else empty, x.dtype)
        seen = set()
        for at in np.ndindex(ids.shape):
            if ids[at] >= 0:
                out[ids[at]] = ufunc(out[ids[at]], x[at]) if ids[at] in seen else x[at]
                seen.add(ids[at])
        return out

    return oracle


def _means(x, ids, count=4):
    total = _segments(np.add, 0)(x, ids, count)
    sizes = np.array([max(1, (ids == i).sum()) for i in range(count)])
    return total / sizes.reshape(-1, *[1] * (total.ndim - 1))


def _lowest(dtype):
    return as_dtype(dtype).min


def _highest(dtype):
    return as_dtype(dtype).max


def _stitched(x, y):
    out = np.zeros((5, *x.shape[1:]), x.dtype)
    out[[0, 4]], out[[1, 2, 3]] = x, y
    return out


def _same_order_unique(x):
    y, idx = [], []
    for v in x.tolist():
        if v not in y:
            y.append(v)
        idx.append(y.index(v))
    return [np.array(y, x.dtype), np.array(idx), np.array([x.tolist().count(v) for v in y])]


MIXED, SORTED = index(2, 0, -1, 2, 0), index(0, 0, 1, 3, 3)

SEGMENTS = [
    OpCase("UnsortedSegmentSum", lambda x, i: a.unsorted_segment_sum(x, i, 4), [real(5, 2), MIXED], _segments(np.add, 0), NUMBERS, True),
    OpCase("UnsortedSegmentSum", lambda x, i: a.unsorted_segment_sum(x, i, 4), [real(2, 2, 3), index([[0, 3], [3, -1]])], _segments(np.add, 0), grad=True, label="matrix-of-ids"),
    OpCase("UnsortedSegmentSum", a.unsorted_segment_sum, [real(5), MIXED, index(4)], lambda x, i, n: _segments(np.add, 0)(x, i), grad=True, dynamic=True, label="computed"),
    OpCase("UnsortedSegmentSum", lambda x, i: a.unsorted_segment_sum(x, i, 2), [real(0, 2), np.zeros(0, np.int32)], lambda x, i: np.zeros((2, 2)), label="empty"),
    OpCase("UnsortedSegmentMax", lambda x, i: a.unsorted_segment_max(x, i, 3), [real(5, 2), MIXED], lambda x, i: _segments(np.maximum, _lowest)(x, i, 3), ("float32", "int32")),
    OpCase("UnsortedSegmentMax", lambda x, i: a.unsorted_segment_max(x, i, 2), [real(5, 2), index(1, 0, -1, 1, 0)], lambda x, i: _segments(np.maximum, _lowest)(x, i, 2), grad=True, label="full"),
    OpCase("UnsortedSegmentMin", lambda x, i: a.unsorted_segment_min(x, i, 2), [real(5), index(1, 0, -1, 1, 0)], lambda x, i: _segments(np.minimum, _highest)(x, i, 2), ("float32", "bfloat16"), True),
    OpCase("UnsortedSegmentProd", lambda x, i: a.unsorted_segment_prod(x, i, 4), [real(5, 2), MIXED], _segments(np.multiply, 1)),
    OpCase("UnsortedSegmentSum", lambda x, i: a.unsorted_segment_mean(x, i, 4), [real(5, 2), MIXED], _means, ("float32", "bfloat16"), True, label="mean"),
    OpCase("SegmentSum", a.segment_sum, [real(5, 2), SORTED], _segments(np.add, 0), ("float32", "bfloat16", "int64"), True, dynamic=True),
    OpCase("SegmentMean", a.segment_mean, [real(5, 2), SORTED], _means, ("float32", "float16"), True, dynamic=True),
    OpCase("SegmentMax", a.segment_max, [real(5, 2), SORTED], _segments(np.maximum, 0), grad=True, dynamic=True),
    OpCase("SegmentMin", a.segment_min, [real(5), SORTED], _segments(np.minimum, 0), grad=True, dynamic=True),
    OpCase("SegmentProd", a.segment_prod, [real(5), SORTED], lambda x, i: np.where(np.arange(4) == 2, 1, _segments(np.multiply, 1)(x, i)), dynamic=True),
    OpCase("DynamicPartition", lambda x, p: a.dynamic_partition(x, p, 3), [real(4, 2), index(2, 0, 2, 0)], lambda x, p: [x[p == i] for i in range(3)], ("float32", "bfloat16", "int8"), True, dynamic=True),
    OpCase("DynamicStitch", lambda x, y: a.dynamic_stitch([[0, 4], [1, 2, 3]], [x, y]), [real(2, 3), real(3, 3)], _stitched, ("float32", "bfloat16", "int32"), True),
    OpCase("DynamicStitch", lambda i, x: a.dynamic_stitch([i], [x]), [index([[2, 0], [1, 3]]), real(2, 2, 3)], lambda i, x: x.reshape(4, 3)[[1, 2, 0, 3]], grad=True, dynamic=True, label="computed"),
    OpCase("ParallelDynamicStitch", lambda x, y: a.parallel_dynamic_stitch([[0, 4], [1, 2, 3]], [x, y]), [real(2), real(3)], _stitched, grad=True),
    OpCase("GatherV2", lambda x, m: a.boolean_mask(x, m), [real(3, 2), np.array([True, False, True])], lambda x, m: x[m], ("float32", "bfloat16"), True, unknown=("dims",), dynamic=True, label="boolean-mask"),
    OpCase("GatherV2", lambda x, m: a.boolean_mask(x, m), [real(2, 2, 3), np.array([[True, False], [True, True]])], lambda x, m: x[m], grad=True, unknown=("dims",), dynamic=True, label="boolean-mask-2d"),
    OpCase("GatherV2", lambda x, m: a.boolean_mask(x, m, axis=1), [real(2, 3), np.array([True, False, True])], lambda x, m: x[:, m], grad=True, unknown=("dims",), dynamic=True, label="boolean-mask-axis"),
    OpCase("Unique", a.unique, [whole(9, low=0, high=4)], lambda x: _same_order_unique(x)[:2], ("float32", "int32", "bfloat16"), dynamic=True),
    OpCase("Unique", lambda x: a.unique(x, int64), [STRINGS.ravel()[[0, 1, 0, 3]]], lambda x: [x[[0, 1, 3]], np.array([0, 1, 0, 2])], dynamic=True, label="text"),
    OpCase("UniqueWithCounts", a.unique_with_counts, [whole(9, low=0, high=4)], _same_order_unique, ("int64",), dynamic=True),
]  # fmt: skip

# --- creation ------------------------------------------------------------------------------------------------------


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


CREATION = [
    ScriptCase(("Fill", "ZerosLike", "OnesLike"), _constants_and_fills),
    OpCase("Fill", lambda x: a.fill([2, 3], x), [real()], lambda x: np.full((2, 3), x), ("float32", "bfloat16", "bool", "int8"), True),
    OpCase("Fill", lambda s, x: a.fill(s, x), [index(2, 3), real()], lambda s, x: np.full((2, 3), x), grad=True, dynamic=True, label="computed"),
    OpCase("ZerosLike", lambda x: apply("ZerosLike", (x,)), [real(2, 3)], np.zeros_like, ("float32", "bfloat16", "int8")),
    OpCase("OnesLike", lambda x: apply("OnesLike", (x,)), [real(2, 3)], np.ones_like, ("float32", "bfloat16", "bool")),
    OpCase("Range", lambda: a.range(2, 11, 3), [], lambda: np.arange(2, 11, 3)),
    OpCase("Range", lambda: a.range(5), [], lambda: np.arange(5), label="limit"),
    OpCase("Range", lambda: a.range(0.0, 1, 0.25), [], lambda: np.arange(0, 1, 0.25), label="float"),
    OpCase("Range", lambda: a.range(3, -1, -2), [], lambda: np.arange(3, -1, -2), label="down"),
    OpCase("Range", lambda: a.range(3, dtype="int64"), [], lambda: np.arange(3), label="int64"),
    OpCase("Range", lambda n: a.range(n, delta=2), [index(7)], lambda n: np.arange(0, 7, 2), dynamic=True, label="computed"),
    OpCase("Range", a.range, [whole(low=1, high=2), whole(low=6, high=7)], np.arange, ("float16", "bfloat16", "int32"), dynamic=True, unknown=("rank",), label="types"),
    OpCase("LinSpace", lambda x, y: a.linspace(x, y, 4), [real(), real(seed=1)], lambda x, y: np.linspace(x, y, 4), ("float32", "bfloat16"), True),
    OpCase("LinSpace", lambda: a.linspace(0.0, 1, 5), [], lambda: np.linspace(0, 1, 5), label="numbers"),
    OpCase("Const", lambda: a.eye(3, 4, dtype="int32"), [], lambda: np.eye(3, 4).astype(int), label="eye"),
    OpCase("MatrixBandPart", lambda: a.eye(40, batch_shape=[2]), [], lambda: np.stack([np.eye(40)] * 2), label="eye"),
    OpCase("MatrixBandPart", lambda n: a.eye(n, 3), [index(2)], lambda n: np.eye(2, 3), dynamic=True, label="eye-computed"),
]

# --- passing on ----------------------------------------------------------------------------------------------------


def _gates():
    x = placeholder("float32", [2])
    assert gradients(a.stop_gradient(x) * x, [x]) is not None
    stopped = a.stop_gradient(x) * x
    (grad,) = gradients(stopped, [x])
    np.testing.assert_array_equal(run([stopped, grad], {x: [3, 4]}), [[9, 16], [3, 4]])
    with pytest.raises(LookupError, match="no second derivative"):
        gradients(a.prevent_gradient(x, "no second derivative") ** 2, [x])


def _default_or_fed():
    x = placeholder("float32", [2])
    y = a.placeholder_with_default(x * 2, [None])
    assert y.dims == (None,)
    np.testing.assert_array_equal(run(y, {x: [1, 2]}), [2, 4])
    np.testing.assert_array_equal(run(y, {y: [1, 2, 3]}), [1, 2, 3])
    (grad,) = gradients(y, [x])
    np.testing.assert_array_equal(run(grad, {x: [1, 2]}), [2, 2])
    with pytest.raises(ValueError, match="does not fit"):
        a.placeholder_with_default(x, [3])


def _groups():
    x, y = constant(1.0, name="x"), constant(2.0, name="y")
    both = a.group(x, [y.op])
    assert both.name == "group_deps" and both.control_inputs == (x.op, y.op) and both.type == "NoOp"
    with both.graph.device("/job:ps/task:1"):
        z = constant(3.0, name="z")
    spread = a.group(x, z, name="all")
    assert [(n.name, n.device) for n in spread.control_inputs] == [("all/NoOp", ""), ("all/NoOp_1", "/job:ps/task:1")]
    assert [n.control_inputs for n in spread.control_inputs] == [(x.op,), (z.op,)]
    assert spread.device == "" and a.group().control_inputs == ()
    first, none, second = a.tuple([x, None, y])
    assert none is None and {n.name for n in first.op.control_inputs} == {"tuple/group_deps"} == {n.name for n in second.op.control_inputs}
    assert run([first, second]) == [1.0, 2.0]
    with pytest.raises(TypeError, match="group takes nodes"):
        a.group(3)


def _prints():
    x = placeholder("float32", [4])
    shown = a.Print(x, [x, constant("text"), constant([True])], "values: ", first_n=2)
    assert gradients(shown, [x])[0] is not None
    told = io.StringIO()
    session = Interpreter(x.graph)
    with redirect_stderr(told):
        for _ in range(3):
            np.testing.assert_array_equal(session.run(shown, {x: [1, 2, 3, 4]}), [1, 2, 3, 4])
    assert told.getvalue() == "values: [1.0 2.0 3.0...][text][1]\n" * 2


def _asserts():
    x = placeholder("float32", [])
    check = a.Assert(x > 0, [x, constant("is not positive")])
    session = Interpreter(x.graph)
    assert session.run(check, {x: 1.0}) is None
    with pytest.raises(InvalidArgumentError, match=r"assertion failed: \[-1.0\] \[is not positive\]"):
        session.run(check, {x: -1.0})
    with pytest.raises(TypeError):
        a.Assert(x, [x])


PASSING = [
    OpCase("Identity", a.identity, [real(2, 3)], lambda x: x, ("float32", "bfloat16", "bool", "int8"), True),
    ScriptCase(("StopGradient", "PreventGradient"), _gates),
    ScriptCase(("PlaceholderWithDefault",), _default_or_fed),
    ScriptCase(("NoOp",), _groups),
    ScriptCase(("Print",), _prints),
    ScriptCase(("Assert",), _asserts),
]

# --- Python functions ----------------------------------------------------------------------------------------------


def _python_functions():
    x = placeholder("float32", [2])

    def twice(v):
        v *= 2  # its own copy
        return v

    y = a.py_func(twice, [x], "float32")
    session = Interpreter(x.graph)
    fed = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(session.run(y, {x: fed}), [2, 4])
    np.testing.assert_array_equal(fed, [1, 2])
    total, count = a.numpy_function(lambda v: (v.sum(), 2), [x], ["float32", "int64"], stateful=False)
    assert session.run([total, count], {x: fed}) == [3, 2]
    eager = a.py_function(lambda v: v.numpy().max(), [x], "float32")
    assert session.run(eager, {x: fed}) == 2
    with pytest.raises(LookupError, match="has no gradient"):
        gradients(eager, [x])
    seen = []
    effect = a.py_func(seen.append, [x], [])
    session.run(effect, {x: fed})
    assert len(seen) == 1
    wrong = a.py_func(lambda v: v.astype(np.float64), [x], "float32")
    with pytest.raises(InvalidArgumentError, match="0-th value returned by the Python function is float64, but expects float32"):
        session.run(wrong, {x: fed})


def _functions_stay_at_home():
    x = placeholder("float32", [2])
    y = a.py_func(lambda v: v, [x], "float32")
    attrs = {**y.op.attrs, "process": "another"}
    stranger = apply(y.op.type, (x,), attrs)
    with pytest.raises(InvalidArgumentError, match="only in the client's own process"):
        run(stranger, {x: [1, 2]})


PYTHON = [
    ScriptCase(("PyFunc", "PyFuncStateless", "EagerPyFunc"), _python_functions),
    ScriptCase(("PyFunc",), _functions_stay_at_home, label="PyFunc-elsewhere"),
]

# --- sorting -------------------------------------------------------------------------------------------------------


def _top(x, k):
    at = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, at, -1), at]


SORTING = [
    OpCase("TopKV2", lambda x: a.top_k(x, 2), [real(2, 5)], lambda x: _top(x, 2), FLOATS, True),
    OpCase("TopKV2", lambda x: a.top_k(x, 3), [whole(3, 6, low=0, high=4)], lambda x: _top(x, 3), INTEGERS, label="ties"),
    OpCase("TopKV2", a.top_k, [real(5), index(2)], lambda x, k: _top(x, 2), grad=True, dynamic=True, label="computed"),
    OpCase("TopKV2", lambda x: a.top_k(x, 0), [real(2, 3)], lambda x: _top(x, 0), grad=True, label="none"),
    OpCase("TopKV2", a.sort, [real(2, 5)], np.sort, ("float32", "bfloat16", "int8", "uint8"), True, unknown=("dims",), label="sort"),
    OpCase("TopKV2", lambda x: a.sort(x, 0, "DESCENDING"), [real(4, 2)], lambda x: np.sort(x, 0)[::-1], grad=True, unknown=("dims",), label="sort-down"),
    OpCase("TopKV2", a.sort, [np.array([-128, 127, 0, -127], np.int8)], np.sort, unknown=("dims",), label="sort-extremes"),
    OpCase("TopKV2", lambda x: a.argsort(x, axis=0), [whole(5, 3, low=0, high=3)], lambda x: np.argsort(x, 0, kind="stable"), ("float32", "int32"), unknown=("dims",), label="argsort"),
    OpCase("TopKV2", lambda x: a.argsort(x, direction="DESCENDING"), [whole(9, low=0, high=3)], lambda x: np.argsort(-x, kind="stable"), unknown=("dims",), label="argsort-down"),
    OpCase("InTopKV2", lambda p, t: a.in_top_k(p, t, 2), [np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.3], [0.9, np.inf, 0.0], [0.1, 0.2, 0.3]]), index(2, 0, 0, 7)],
           lambda p, t: np.array([True, True, False, False]), ("float32", "bfloat16")),
    OpCase("LowerBound", a.searchsorted, [np.sort(real(2, 6)), real(2, 4, seed=5)], lambda r, v: np.stack([np.searchsorted(i, j) for i, j in zip(r, v, strict=True)]), unknown=()),
    OpCase("LowerBound", a.searchsorted, [index(1, 3, 3, 5), index(3, 0, 9)], np.searchsorted, label="vector"),
    OpCase("UpperBound", lambda r, v: a.searchsorted(r, v, "right", int64), [index(1, 3, 3, 5), index(3, 0, 9)], lambda r, v: np.searchsorted(r, v, "right")),
]  # fmt: skip

CASES = [*SHAPES, *JOINING, *GATHERING, *SEGMENTS, *CREATION, *PASSING, *PYTHON, *SORTING]
