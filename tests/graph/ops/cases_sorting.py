"""Rows for the k largest, sorting and searching."""

from __future__ import annotations

import array_ops as a
import numpy as np
from op_table import FLOATS, INTEGERS, OpCase, index, real, whole

from dovetail.graph.core.dtypes import int64


def _top(x, k):
    at = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, at, -1), at]


CASES = [
    OpCase("TopKV2", lambda x: a.top_k(x, 2), [real(2, 5)], lambda x: _top(x, 2), FLOATS, True),
    OpCase(
        "TopKV2",
        lambda x: a.top_k(x, 3),
        [whole(3, 6, low=0, high=4)],
        lambda x: _top(x, 3),
        INTEGERS,
        label="ties",
    ),
    OpCase(
        "TopKV2",
        a.top_k,
        [real(5), index(2)],
        lambda x, k: _top(x, 2),
        grad=True,
        dynamic=True,
        label="computed",
    ),
    OpCase("TopKV2", lambda x: a.top_k(x, 0), [real(2, 3)], lambda x: _top(x, 0), grad=True, label="none"),
    OpCase(
        "TopKV2",
        a.sort,
        [real(2, 5)],
        np.sort,
        ("float32", "bfloat16", "int8", "uint8"),
        True,
        label="sort",
    ),
    OpCase(
        "TopKV2",
        lambda x: a.sort(x, 0, "DESCENDING"),
        [real(4, 2)],
        lambda x: np.sort(x, 0)[::-1],
        grad=True,
        unknown=("dims",),
        label="sort-down",
    ),
    OpCase(
        "TopKV2",
        a.sort,
        [np.array([-128, 127, 0, -127], np.int8)],
        np.sort,
        label="sort-extremes",
    ),
    OpCase(
        "TopKV2",
        lambda x: a.argsort(x, axis=0),
        [whole(5, 3, low=0, high=3)],
        lambda x: np.argsort(x, 0, kind="stable"),
        ("float32", "int32"),
        unknown=("dims",),
        label="argsort",
    ),
    OpCase(
        "TopKV2",
        lambda x: a.argsort(x, direction="DESCENDING"),
        [whole(9, low=0, high=3)],
        lambda x: np.argsort(-x, kind="stable"),
        label="argsort-down",
    ),
    OpCase(
        "InTopKV2",
        lambda p, t: a.in_top_k(p, t, 2),
        [
            np.array([[0.1, 0.5, 0.4], [0.3, 0.3, 0.3], [0.9, np.inf, 0.0], [0.1, 0.2, 0.3]]),
            index(2, 0, 0, 7),
        ],
        lambda p, t: np.array([True, True, False, False]),
        ("float32", "bfloat16"),
    ),
    OpCase(
        "LowerBound",
        a.searchsorted,
        [np.sort(real(2, 6)), real(2, 4, seed=5)],
        lambda r, v: np.stack([np.searchsorted(i, j) for i, j in zip(r, v, strict=True)]),
        unknown=(),
    ),
    OpCase("LowerBound", a.searchsorted, [index(1, 3, 3, 5), index(3, 0, 9)], np.searchsorted, label="vector"),
    OpCase(
        "UpperBound",
        lambda r, v: a.searchsorted(r, v, "right", int64),
        [index(1, 3, 3, 5), index(3, 0, 9)],
        lambda r, v: np.searchsorted(r, v, "right"),
    ),
]
