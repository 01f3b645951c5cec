"""Rows of an array that are combined by their numbers, as segments, scatters and sparse gradients need it.

`numpy.ufunc.at` and `numpy.ufunc.reduceat` take up to fifty times as long on rows as what is done here. Results are as if the rows were
combined one after the other.
"""

from __future__ import annotations

import numpy as np

from .dtypes import Array, widened

# Elements of a row from which on a call of a ufunc for each row is faster than `ufunc.at` and `ufunc.reduceat`.
LONG_ROW = 64


def sum_rows(rows: Array, numbers: Array, count: int) -> Array:
    """The sums of the rows that have the same number. Narrow floats are added in float32.

    Args:
        rows: of any shape but a scalar's, of a numeric type.
        numbers: a number from 0 to count - 1 for each row.
        count: rows of the result. Those whose number no row has are 0.

    >>> sum_rows(np.array([1, 2, 3]), np.array([1, 0, 1]), 3)
    array([2, 4, 0])
    """
    shape = (count, *rows.shape[1:])
    if not rows.size or not count:
        return np.zeros(shape, rows.dtype)
    from scipy.sparse import csc_array  # a heavy library

    wide = widened(rows)
    # A sparse matrix of ones, times the rows.
    places = csc_array((np.ones(len(rows), wide.dtype), numbers, np.arange(len(rows) + 1)), (count, len(rows)))
    found: Array = places @ wide.reshape(len(rows), -1)
    return found.reshape(shape).astype(rows.dtype, copy=False)


def combine_each(out: Array, numbers: Array, rows: Array, ufunc: np.ufunc) -> None:
    """Combine each row with that of `out` which has its number, in place and in order, as `ufunc.at` does."""
    if rows.dtype == object or rows[:1].size < LONG_ROW:
        ufunc.at(out, numbers, rows)
        return
    for number, row in zip(numbers.tolist(), rows, strict=True):
        ufunc(out[number], row, out=out[number])
