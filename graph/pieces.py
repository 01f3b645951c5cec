"""Several arrays as one: what travels together is not copied together first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .exchanges import Array


class Pieces:
    """Arrays of one type, one behind the other, as a flat array that nobody makes.

    Attributes:
        size, dtype, nbytes: of all of them together.
    """

    __slots__ = ("_arrays", "dtype", "nbytes", "size")

    def __init__(self, values: Sequence[Array]) -> None:
        self._arrays = [np.ascontiguousarray(v).reshape(-1) for v in values]
        self.dtype = self._arrays[0].dtype
        self.size = sum([a.size for a in self._arrays])
        self.nbytes = self.size * self.dtype.itemsize

    def between(self, begin: int, end: int) -> Iterator[tuple[int, Array]]:
        """The elements from `begin` to before `end`: parts of the arrays, each with its distance from `begin`."""
        at = 0
        for array in self._arrays:
            first, last = max(begin - at, 0), min(end - at, array.size)
            if first < last:
                yield at + first - begin, array if last - first == array.size else array[first:last]
            at += array.size
            if at >= end:
                return

    def copy_to(self, place: Array, begin: int) -> None:
        """Copy the elements from `begin` on to a flat array, until it is full."""
        for at, part in self.between(begin, begin + place.size):
            np.copyto(place[at : at + part.size], part)


__all__ = ["Pieces"]
