"""Rows for rows that belong together: segments, partitions, masks, distinct values."""

from __future__ import annotations

import array_ops as a
import numpy as np
from op_table import NUMBERS, OpCase, index, real, whole

from dovetail.graph.core.dtypes import as_dtype, int64

STRINGS = np.array([[b"a", b"bc"], [b"", b"def"]], object)


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

CASES = [
    OpCase(
        "UnsortedSegmentSum",
        lambda x, i: a.unsorted_segment_sum(x, i, 4),
        [real(5, 2), MIXED],
        _segments(np.add, 0),
        NUMBERS,
        True,
    ),
    OpCase(
        "UnsortedSegmentSum",
        lambda x, i: a.unsorted_segment_sum(x, i, 4),
        [real(2, 2, 3), index([[0, 3], [3, -1]])],
        _segments(np.add, 0),
        grad=True,
        label="matrix-of-ids",
    ),
    OpCase(
        "UnsortedSegmentSum",
        a.unsorted_segment_sum,
        [real(5), MIXED, index(4)],
        lambda x, i, n: _segments(np.add, 0)(x, i),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "UnsortedSegmentSum",
        lambda x, i: a.unsorted_segment_sum(x, i, 2),
        [real(0, 2), np.zeros(0, np.int32)],
        lambda x, i: np.zeros((2, 2)),
        label="empty",
    ),
    OpCase(
        "UnsortedSegmentMax",
        lambda x, i: a.unsorted_segment_max(x, i, 3),
        [real(5, 2), MIXED],
        lambda x, i: _segments(np.maximum, _lowest)(x, i, 3),
        ("float32", "int32"),
    ),
    OpCase(
        "UnsortedSegmentMax",
        lambda x, i: a.unsorted_segment_max(x, i, 2),
        [real(5, 2), index(1, 0, -1, 1, 0)],
        lambda x, i: _segments(np.maximum, _lowest)(x, i, 2),
        grad=True,
        label="full",
    ),
    OpCase(
        "UnsortedSegmentMin",
        lambda x, i: a.unsorted_segment_min(x, i, 2),
        [real(5), index(1, 0, -1, 1, 0)],
        lambda x, i: _segments(np.minimum, _highest)(x, i, 2),
        ("float32", "bfloat16"),
        True,
    ),
    OpCase(
        "UnsortedSegmentProd",
        lambda x, i: a.unsorted_segment_prod(x, i, 4),
        [real(5, 2), MIXED],
        _segments(np.multiply, 1),
        grad=True,
    ),
    OpCase(
        "UnsortedSegmentSum",
        lambda x, i: a.unsorted_segment_mean(x, i, 4),
        [real(5, 2), MIXED],
        _means,
        ("float32", "bfloat16"),
        True,
        label="mean",
    ),
    OpCase(
        "SegmentSum",
        a.segment_sum,
        [real(5, 2), SORTED],
        _segments(np.add, 0),
        ("float32", "bfloat16", "int64"),
        True,
        dynamic=True,
    ),
    OpCase(
        "SegmentMean",
        a.segment_mean,
        [real(5, 2), SORTED],
        _means,
        ("float32", "float16"),
        True,
        dynamic=True,
    ),
    OpCase(
        "SegmentMean",
        a.segment_mean,
        [np.array([2**60 + 1, 2**60 + 4, -7, 4, -7]), SORTED],
        lambda x, ids: np.array([2**60 + 2, -7, 0, -1]),
        dynamic=True,
        label="integers",
    ),
    OpCase("SegmentMax", a.segment_max, [real(5, 2), SORTED], _segments(np.maximum, 0), grad=True, dynamic=True),
    OpCase("SegmentMin", a.segment_min, [real(5), SORTED], _segments(np.minimum, 0), grad=True, dynamic=True),
    OpCase(
        "SegmentProd",
        a.segment_prod,
        [real(5), SORTED],
        lambda x, i: np.where(np.arange(4) == 2, 1, _segments(np.multiply, 1)(x, i)),
        grad=True,
        dynamic=True,
    ),
    OpCase(
        "DynamicPartition",
        lambda x, p: a.dynamic_partition(x, p, 3),
        [real(4, 2), index(2, 0, 2, 0)],
        lambda x, p: [x[p == i] for i in range(3)],
        ("float32", "bfloat16", "int8"),
        True,
        dynamic=True,
    ),
    OpCase(
        "DynamicStitch",
        lambda x, y: a.dynamic_stitch([[0, 4], [1, 2, 3]], [x, y]),
        [real(2, 3), real(3, 3)],
        _stitched,
        ("float32", "bfloat16", "int32"),
        True,
    ),
    OpCase(
        "DynamicStitch",
        lambda i, x: a.dynamic_stitch([i], [x]),
        [index([[2, 0], [1, 3]]), real(2, 2, 3)],
        lambda i, x: x.reshape(4, 3)[[1, 2, 0, 3]],
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase(
        "ParallelDynamicStitch",
        lambda x, y: a.parallel_dynamic_stitch([[0, 4], [1, 2, 3]], [x, y]),
        [real(2), real(3)],
        _stitched,
        grad=True,
    ),
    OpCase(
        "GatherV2",
        lambda x, m: a.boolean_mask(x, m),
        [real(3, 2), np.array([True, False, True])],
        lambda x, m: x[m],
        ("float32", "bfloat16"),
        True,
        unknown=("dims",),
        dynamic=True,
        label="boolean-mask",
    ),
    OpCase(
        "GatherV2",
        lambda x: a.boolean_mask(x, [0.5, 0.0, -1.0]),
        [real(3, 2)],
        lambda x: x[[0, 2]],
        grad=True,
        unknown=("dims",),
        dynamic=True,
        label="boolean-mask-of-floats",
    ),
    OpCase(
        "GatherV2",
        lambda x, m: a.boolean_mask(x, m),
        [real(2, 2, 3), np.array([[True, False], [True, True]])],
        lambda x, m: x[m],
        grad=True,
        unknown=("dims",),
        dynamic=True,
        label="boolean-mask-2d",
    ),
    OpCase(
        "GatherV2",
        lambda x, m: a.boolean_mask(x, m, axis=1),
        [real(2, 3), np.array([True, False, True])],
        lambda x, m: x[:, m],
        grad=True,
        unknown=("dims",),
        dynamic=True,
        label="boolean-mask-axis",
    ),
    OpCase(
        "Unique",
        a.unique,
        [whole(9, low=0, high=4)],
        lambda x: _same_order_unique(x)[:2],
        ("float32", "int32", "bfloat16"),
        dynamic=True,
    ),
    OpCase(
        "Unique",
        lambda x: a.unique(x, int64),
        [STRINGS.ravel()[[0, 1, 0, 3]]],
        lambda x: [x[[0, 1, 3]], np.array([0, 1, 0, 2])],
        dynamic=True,
        label="text",
    ),
    OpCase(
        "UniqueWithCounts",
        a.unique_with_counts,
        [whole(9, low=0, high=4)],
        _same_order_unique,
        ("int64",),
        dynamic=True,
    ),
]
