"""A pool of the memory of large results.

A new array of many megabytes costs more than the arithmetic that fills it: the operating system provides and clears each page when it is
first touched. So the memory of large results is reused for the next result that fits, as soon as the reference count shows that nothing
outside this module refers to the underlying array. A result that a user or an outgoing message still refers to keeps its memory.

A result is aligned to a cache line: an unaligned vector of 64 bytes takes two accesses, and two threads that write to one line cause
false sharing. Alignment makes matrix products 5 to 12 % faster.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from sys import getrefcount
from typing import Any

import numpy as np

from ..core.reference_counts import ONLY_ITEM

LARGE = 1 << 16  # bytes from which results are pooled; the C library reuses smaller memory itself
KEPT = 1 << 29  # maximum size of the pool in bytes

_SIZES = 1024  # maximum number of cached sizes
_LINE = 64  # bytes of a cache line


class Buffers:
    """Memory that successive results reuse. Thread-safe.

    Attributes:
        kept_bytes: size of the pool in bytes, in use or free.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.kept_bytes = 0
        self._kept = kept
        self._pieces: dict[int, list[np.ndarray[Any, Any]]] = {}  # by size
        # By requested size: the list where a free piece is likely.
        self._alike: dict[int, list[np.ndarray[Any, Any]]] = {}
        self._begins: dict[int, int] = {}  # id of a piece -> its first byte that is aligned to a cache line
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array whose content is undefined, like `np.empty`."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE:
            return np.empty(shape, dtype)
        with self._lock:
            found = _unused(self._alike.get(size, ()))
            if found is None:
                found = self._free(size)
                if found is None:
                    return np.empty(shape, dtype)
            return np.ndarray(shape, dtype, found, self._begins[id(found)])

    def is_own(self, memory: object) -> bool:
        """Whether `memory` is the base of a result from this pool."""
        return id(memory) in self._begins

    def _free(self, size: int) -> np.ndarray[Any, Any] | None:
        """A free piece of memory of a suitable size, or a new one. None if the pool is full."""
        rounded = self._rounded(size)
        found = self._left_over(size, rounded)
        if found is not None:
            return found
        if self.kept_bytes + rounded > self._kept:
            self._drop_unused()  # free pieces too small for this result are no longer useful
            if self.kept_bytes + rounded > self._kept:
                return None
        piece = np.empty(rounded + _LINE, np.uint8)
        self._keep(piece, size, rounded)
        return piece

    def _rounded(self, size: int) -> int:
        """The size rounded up by at most an eighth, so that nearly equal sizes share memory."""
        step = 1 << max(0, size.bit_length() - 4)
        return -(-size // step) * step

    def _left_over(self, size: int, rounded: int) -> np.ndarray[Any, Any] | None:
        """A free piece of memory of at most twice the size, or None."""
        found = _unused(self._pieces.get(rounded, ()))
        if found is not None:
            self._remember(size, rounded)
            return found
        for other in sorted(self._pieces):
            if size <= other <= 2 * size:
                found = _unused(self._pieces[other])
                if found is not None:
                    return found
        return None

    def _keep(self, piece: np.ndarray[Any, Any], size: int, rounded: int) -> None:
        self.kept_bytes += rounded
        self._pieces.setdefault(rounded, []).append(piece)
        self._begins[id(piece)] = -piece.ctypes.data % _LINE
        self._remember(size, rounded)

    def _remember(self, size: int, rounded: int) -> None:
        if len(self._alike) >= _SIZES:
            self._alike.clear()
        self._alike[size] = self._pieces[rounded]

    def _drop_unused(self) -> None:
        self._alike.clear()
        for size, pieces in list(self._pieces.items()):
            held = [pieces[i] for i in range(len(pieces)) if getrefcount(pieces[i]) > ONLY_ITEM]
            self.kept_bytes -= size * (len(pieces) - len(held))
            for gone in {id(p) for p in pieces} - {id(p) for p in held}:
                del self._begins[gone]
            if held:
                self._pieces[size] = held
            else:
                del self._pieces[size]


def _unused(pieces: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
    for i in range(len(pieces)):
        if getrefcount(pieces[i]) == ONLY_ITEM:
            return pieces[i]
    return None


buffers = Buffers()
"""The pool of this process."""
