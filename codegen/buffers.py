"""Memory of large results, used again.

A fresh array of many megabytes costs more than the arithmetic that fills it: the operating system hands out each page when it is
first touched, and clears it before. So the memory of large results is kept and given to the next one that has room in it, as
soon as nobody holds the old result any more: nobody refers to the array under it but this module, which Python's reference counts
tell. Whoever keeps a result, a user or a message that is being sent, keeps its memory, too.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np

LARGE = 1 << 20  # bytes; below, the C library's allocator reuses memory itself
KEPT = 1 << 29  # bytes that are kept at most for results to come

_FREE = 2  # references to an array that only the list below, and the call that asks, hold


class Buffers:
    """Memory that results share one after the other. Safe to use from several threads."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._all: list[np.ndarray[Any, Any]] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array whose content is undefined, like `np.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE:
            return np.empty(shape, dtype)
        with self._lock:
            found = self._free(size)
            if found is None:
                return np.empty(shape, dtype)
            return found[:size].view(dtype).reshape(shape)

    def _free(self, size: int) -> np.ndarray[Any, Any] | None:
        """The smallest free piece of memory with room, unless it is far too large; else a new one, if one more may be kept."""
        best = -1
        for i in range(len(self._all)):
            fits = sys.getrefcount(self._all[i]) == _FREE and size <= self._all[i].size <= 2 * size
            if fits and (best < 0 or self._all[i].size < self._all[best].size):
                best = i
        if best >= 0:
            return self._all[best]
        if sum(b.size for b in self._all) + size > self._kept:
            # What is free but has no room for this is of no use any more.
            self._all = [self._all[i] for i in range(len(self._all)) if sys.getrefcount(self._all[i]) > _FREE]
            if sum(b.size for b in self._all) + size > self._kept:
                return None
        self._all.append(np.empty(size, np.uint8))
        return self._all[-1]


buffers = Buffers()
"""Those of this process."""
