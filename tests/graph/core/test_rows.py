"""Rows that are combined by their numbers are as NumPy's `ufunc.at` makes them, whether short, long or none, of any type."""

import ml_dtypes
import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.core.rows import combine_each, sum_rows

TYPES = [np.int8, np.uint64, np.int32, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64]
SHAPES = [(0,), (0, 3), (5,), (4000,), (300, 2), (70, 0), (40, 3, 30)]


def _rows(shape, dtype):
    """Small whole numbers, whose sums are exact."""
    return np.random.default_rng(0).integers(0, 3, shape).astype(dtype)


def _numbers(count, below):
    return np.random.default_rng(1).integers(0, below, count)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES)
def test_sums(dtype, shape):
    rows, numbers = _rows(shape, dtype), _numbers(shape[0], 7)
    expected = np.zeros((9, *shape[1:]), np.int64)
    np.add.at(expected, numbers, rows.real.astype(np.int64))
    total = sum_rows(rows, numbers, 9)
    assert total.dtype == dtype
    np.testing.assert_array_equal(total, expected.astype(dtype))


def test_sums_of_narrow_floats_are_made_in_float32():
    rows = np.ones((5000, 2), np.float16)
    assert (sum_rows(rows, np.zeros(5000, np.int32), 1) == 5000).all()  # in float16, 2048 + 1 is 2048


def test_infinities_stay_in_their_rows():
    total = sum_rows(np.array([[np.inf] * 100, [1] * 100], np.float32), np.array([2, 0]), 3)
    assert np.isinf(total[2]).all()
    assert (total[:2] == [[1], [0]]).all()


@pytest.mark.parametrize("ufunc", [np.add, np.subtract, np.maximum, np.minimum])
@pytest.mark.parametrize("shape", [(0, 3), (50,), (50, 3), (50, 8, 30)], ids=str)
def test_each_row_is_combined(shape, ufunc):
    rows, numbers = np.random.default_rng(2).random(shape), _numbers(shape[0], 7)
    out = np.random.default_rng(3).random((7, *shape[1:]))
    expected = out.copy()
    ufunc.at(expected, numbers, rows)
    combine_each(out, numbers, rows, ufunc)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_segments_of_long_rows(op):
    """Rows of more elements than the cases of the ops' table have."""
    x, ids = np.random.default_rng(4).random((60, 90)).astype(np.float32), _numbers(60, 12)
    ids[::9] = -1
    ufunc, empty = {
        "sum": (np.add, 0),
        "max": (np.maximum, np.finfo(np.float32).min),
        "min": (np.minimum, np.finfo(np.float32).max),
        "prod": (np.multiply, 1),
    }[op]
    expected = np.full((14, 90), empty, np.float32)
    ufunc.at(expected, ids[ids >= 0], x[ids >= 0])
    with dt.Session() as session:
        found, in_order = session.run(
            [
                getattr(dt.math, f"unsorted_segment_{op}")(x, ids, 14),
                getattr(dt.math, f"segment_{op}")(x, np.sort(np.abs(ids))),
            ]
        )
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    sorted_ids = np.sort(np.abs(ids))
    for i in set(sorted_ids):
        np.testing.assert_allclose(in_order[i], ufunc.reduce(x[sorted_ids == i]), rtol=1e-6)
    assert set(in_order[[i not in sorted_ids for i in range(len(in_order))]].flat) <= {float(op == "prod")}


@pytest.mark.parametrize("low", [0, -3, 2**31 - 40, -(2**31)])
@pytest.mark.parametrize("span", [1, 30, 10**6])
def test_distinct_integers(low, span):
    x = (np.random.default_rng(5).integers(0, min(span, 2**31 - 1 - low), 200) + low).astype(np.int32)
    with dt.Session() as session:
        y, at, counts = session.run(dt.unique_with_counts(x))
    assert y.tolist() == list(dict.fromkeys(x.tolist()))
    np.testing.assert_array_equal(y[at], x)
    assert counts.tolist() == [(x == v).sum() for v in y]


def test_distinct_integers_of_all_of_a_narrow_type():
    x = np.arange(-128, 128).astype(np.int8)[::-1]
    with dt.Session() as session:
        y, at = session.run(dt.unique(x))
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(at, np.arange(256))
