"""Snapshots of large variables that are read chunk by chunk, while the variable is changed in place.

A plain snapshot is a reference to the variable's array, so the first change while it exists must copy the whole array. The reader of a
chunked snapshot takes a few rows at a time, with the variable's lock. A change first copies the rows that it overwrites, if they were
neither read nor copied before. So the reader gets the value of one moment, a change copies at most the rows that it changes, and no
thread waits longer than for the copy of a chunk. A change of all rows copies the rows that were not read. If another array replaces the
value, the old array belongs to its snapshots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

from ..core.dtypes import Array

CHUNK_BYTES: Final = 1 << 16  # a copy takes about 10 us
SMALLEST_BYTES: Final = 4 << 20  # smaller values are copied as a whole, in about the time of a step


class ChunkedSnapshot:
    """The value of a variable at one moment. It can be read once.

    Args:
        value: the variable's value, contiguous, of rank 1 or more and without Python objects.
        lock: the variable's lock, which the caller holds.
        current: returns the variable's value. Called with the lock held.

    Attributes:
        dtype: the element type.
        shape: the shape of the value.
        nbytes: the size of the value in bytes.
    """

    __slots__ = (
        "__weakref__",
        "_at",
        "_count",
        "_current",
        "_first",
        "_index",
        "_kept",
        "_lock",
        "_rest",
        "_step",
        "dtype",
        "nbytes",
        "shape",
    )

    def __init__(self, value: Array, lock: AbstractContextManager[Any], current: Callable[[], Array | None]) -> None:
        self.dtype, self.shape, self.nbytes = value.dtype, value.shape, value.nbytes
        self._lock, self._current = lock, current
        self._step = max(1, CHUNK_BYTES * len(value) // value.nbytes)  # rows of a chunk
        self._at = 0  # the first row that has not been read
        # The copied rows, in the order of their changes, and for each row 1 + its index among the copies, or 0. Both arrays are large,
        # but the operating system allocates only the pages that are written.
        self._kept, self._count = np.empty_like(value), 0
        self._index = np.zeros(len(value), np.intp)
        self._rest: Array | None = None  # the rows from `_first` on, once the variable may change them
        self._first = 0

    def chunks(self) -> Iterator[Array]:
        """The rows from the first to the last, some at a time. An array is valid until the next one is requested."""
        count = self.shape[0]
        buffer = np.empty((min(self._step, count), *self.shape[1:]), self.dtype)
        while self._at < count:
            with self._lock:
                begin, end = self._at, min(self._at + self._step, count)
                chunk = buffer[: end - begin]
                source = self._current() if self._rest is None else self._rest
                assert source is not None
                np.copyto(chunk, source[begin - self._first : end - self._first])
                del source  # a reference would keep the variable from being changed in place
                self._at = end
            index = self._index[begin:end]  # no longer changes
            if (rows := np.flatnonzero(index)).size:
                chunk[rows] = self._kept[index[rows] - 1]
            yield chunk

    def keep(self, value: Array, rows: Array | None) -> None:
        """Copy rows that will change in place. The lock is held.

        Args:
            value: the variable's value.
            rows: indices of the rows, which may be out of range. None means all rows.
        """
        if self._rest is not None:
            return
        if rows is None:
            self._rest, self._first = value[self._at :].copy(), self._at
            return
        rows = np.unique(rows)
        rows = rows[(rows >= self._at) & (rows < len(value))].astype(np.intp, copy=False)
        rows = rows[self._index[rows] == 0]
        begin, self._count = self._count, self._count + rows.size
        self._kept[begin : self._count] = value[rows]
        self._index[rows] = np.arange(begin + 1, self._count + 1)

    def leave(self, value: Array) -> None:
        """Take over the variable's value, which no longer changes. The lock is held."""
        if self._rest is None:
            self._rest, self._first = value, 0


__all__ = ["CHUNK_BYTES", "SMALLEST_BYTES", "ChunkedSnapshot"]
