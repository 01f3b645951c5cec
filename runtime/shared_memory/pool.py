"""Lends large tensors between processes of one machine: written once, and read in place.

Theory of operation. A process has a `Pool` of blocks. It allocates data for others, such as variables, in a block (`empty`). To send such
a tensor to a process of the same machine, it lends the block. It marks a word as taken, and sends a `Reference`, which names the bytes
and the word, instead of the bytes. Other large tensors are copied into a block first. The receiver maps the block and makes an array
over it. When the last array over it is freed, the receiver clears the word. So there is at most one copy, no page fault once the pool
is warm, and no message to return a block.

A block may be lent to several processes at once, with one word per loan. It is free when its maker has released it and no word
is taken. Its content does not change while it is lent (`may_change`), except by the borrower of a private copy (`lend(...,
alone=True)`).

The pool reclaims loans of dead processes when it is full, and from time to time. Without room, `lend` returns None, and
the message carries the tensor. `segment.py` has the memory layout and the borrower's side.

`pool_of_process()` and `mapper` are the only ones of this process.
"""

from __future__ import annotations

import math
import os
import threading
import time
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ...graph.core.interpreter_state import process_id
from ...graph.core.settings import setting
from ...graph.resources import shared_storage
from ..wire.tensors import SHARE_BYTES
from .segment import PAGE, RETIRED, Block, Mapper, Reference, Segment, is_available, new_segment

_SLAB_BYTES = 4 << 20  # small blocks share a segment of about this size
_IDLE_S = 30.0  # a segment that is unused for this long is freed


def place_of(array: np.ndarray[Any, Any]) -> tuple[Segment, int, int] | None:
    """Where a contiguous array lies in this process's pool: segment, number of its block, offset. None: elsewhere."""
    base: Any = array.base
    while type(base) is np.ndarray:
        base = base.base
    segment = base.segment if type(base) is Block else None
    if segment is None or segment.is_retired or segment.pid != process_id() or not array.flags.c_contiguous:
        return None
    offset = PAGE + base.number * segment.block_bytes
    return segment, base.number, offset if array.base is base else offset + array.ctypes.data - base.ctypes.data


class Pool:
    """The memory that a process lends. Thread-safe.

    Args:
        limit: total bytes of all segments.

    Attributes:
        bytes: total of all segments. is_read: whether another process has reported that it can map this one's memory.

    >>> pool = Pool(1 << 30)
    >>> reference = pool.lend(np.ones(1 << 20, np.float32), os.getpid())
    >>> Mapper().borrow(reference, 4 << 20).view(np.float32)[:2]
    array([1., 1.], dtype=float32)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.is_read = False
        self._pid = process_id()
        self._segments: dict[int, list[Segment]] = {}  # block size -> segments
        self._page: Reference | None = None
        self._tidied = time.monotonic()
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], small: bool = False) -> np.ndarray[Any, Any] | None:
        """An uninitialized array in a block of its own, which `lend` need not copy.

        None: the array is smaller than `SHARE_BYTES` (unless `small`), or the pool would be more than half full. The rest is for lending
        copies.
        """
        size = math.prod(shape) * dtype.itemsize
        if size < (1 if small else SHARE_BYTES) or dtype.kind == "O" or self._pid != process_id():
            return None
        return self._empty(size, shape, dtype, self.limit // 2)

    def _empty(
        self, size: int, shape: tuple[int, ...], dtype: np.dtype[Any], limit: int
    ) -> np.ndarray[Any, Any] | None:
        """An array in a free block, or a new one if all segments then have at most `limit` bytes."""
        block_bytes = _block_bytes(size)
        with self._lock:
            segments = self._segments.setdefault(block_bytes, [])
            block = next((b for s in segments if (b := s.free()) is not None), None)
            if block is None:
                made = self._make(block_bytes, limit)
                if made is None:
                    return None
                segments.append(made)
                block = made.free()
            assert block is not None and block.segment is not None
            block.segment.used = time.monotonic()
            return np.ndarray(shape, dtype, block)  # this reference marks the block as used

    def holds(self, value: np.ndarray[Any, Any]) -> bool:
        """Whether a contiguous array lies in a block of this process."""
        return place_of(value) is not None

    def may_change(self, base: Any) -> bool:
        """Whether `base` is the base of an array from `empty` that no other process reads now."""
        return (
            type(base) is Block
            and base.segment is not None
            and base.segment.pid == process_id()
            and not base.segment.is_lent(base.number)
        )

    def lend(self, array: np.ndarray[Any, Any], holder: int, alone: bool = False) -> Reference | None:
        """Let process `holder` read an array: in place if it lies in a block, else a copy. None: there is no room.

        Args:
            alone: always lend a copy, so that the holder may write into it.
        """
        now = time.monotonic()
        if now - self._tidied > _IDLE_S:
            self.tidy()
        place = None if alone else place_of(array)
        if place is None:
            made = self._empty(array.nbytes, array.shape, array.dtype, self.limit)
            if made is None:
                return None
            np.copyto(made, array)  # outside of the lock: it may take long
            place = place_of(made)
            assert place is not None
        segment, number, offset = place
        with self._lock:
            if segment.is_retired:
                return None
            loan = segment.mark(number, holder)
            if loan < 0:
                return None
            segment.used = now
        return Reference(self._pid, segment.fd, segment.number, loan, offset)

    def page(self) -> Reference:
        """A page that other processes map to test whether they can read this process's memory. It is never freed."""
        with self._lock:
            if self._page is None:
                made = new_segment(PAGE, 1)
                self._page = Reference(self._pid, made.fd, made.number, 0, PAGE)
            return self._page

    def lent(self) -> int:
        """The number of loans."""
        with self._lock:
            every = [s for segments in self._segments.values() for s in segments]
            for s in every:
                s.settle()
            return sum(len(s.loans) for s in every)

    def tidy(self) -> None:
        """Reclaim the loans of dead processes, and free segments that are unused for long."""
        self._tidied = time.monotonic()
        with self._lock:
            self._drop_idle(self._tidied - _IDLE_S)

    def close(self) -> None:
        """Release everything. Borrowers keep the memory of their blocks."""
        with self._lock:
            for segments in self._segments.values():
                for s in segments:
                    self._drop(s)
            self._segments.clear()

    def _make(self, block_bytes: int, limit: int) -> Segment | None:
        blocks = max(1, _SLAB_BYTES // block_bytes)
        size = PAGE + blocks * block_bytes
        if self.bytes + size > limit:
            self._drop_idle(math.inf)
            if self.bytes + size > limit:
                return None
        try:
            made = new_segment(block_bytes, blocks)
        except OSError:  # no descriptors or no memory left: the message carries the tensor
            return None
        self.bytes += size
        return made

    def _drop_idle(self, since: float) -> None:
        """Reclaim the loans of dead processes, and free the segments that were not used since then."""
        for segments in self._segments.values():
            for s in list(segments):
                s.reclaim()
                if s.used < since and s.is_idle():
                    segments.remove(s)
                    self._drop(s)

    def _drop(self, segment: Segment) -> None:
        segment.words[RETIRED] = 1
        segment.is_retired = True
        segment.blocks.clear()
        os.close(segment.fd)
        self.bytes -= len(segment.memory)


@lru_cache(4096)
def _block_bytes(size: int) -> int:
    """The block size for `size` bytes: eighths of powers of two, so that at most an eighth is wasted."""
    step = max(PAGE, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


_pools: dict[int, Pool] = {}
mapper: Final = Mapper()
"""This process's mapper of other processes' memory."""


def pool_of_process() -> Pool | None:
    """This process's pool; None where memory cannot be shared, or sharing is off.

    A forked child has its own pool: it must not reclaim its parent's loans.
    """
    pool = _pools.get(process_id())
    if pool is None:
        limit = int(setting("DOVETAIL_SHARED_MEMORY_MB")) << 20
        if limit <= 0 or not is_available():
            return None
        pool = _pools.setdefault(process_id(), Pool(limit))
    return pool


def share_variables() -> None:
    """Place this process's variables where other processes of the machine can read them."""
    pool = pool_of_process()
    if pool is not None:
        shared_storage.use(pool)
