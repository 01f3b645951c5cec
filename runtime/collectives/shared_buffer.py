"""Shared buffers: memory in which the members on one machine run a collective without sending parts.

All members of an instance map the same buffer. Each member has a row of words, which only it writes, and `SLOTS` staging areas for its
values. Result areas may follow. Counters in the rows show the members' progress (`shared_memory_algorithms.py`).
They only grow, over all runs.

An idle member looks at the counters from time to time, or returns its thread and asks for a wake-up message, by a word of its row
(`NOTIFY`).

Several processes write this memory without locks. A counter changes after the data that it counts, and `_fence` keeps that order.

Before an instance's first run its members agree on a buffer (the handshake in `executors.py`).

The memory (`CollectiveMemory`) is a segment like the pool's (`shared_memory/segment.py`): a sealed memfd, which other processes of the same
user open through /proc, and which is freed with the last process that maps it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from sys import getrefcount
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.reference_counts import ONLY_ITEM
from ...graph.core.settings import setting
from ..shared_memory.segment import PAGE, MappingError, Reference, is_available, map_segment, new_segment
from .algorithms import Array

FLAT_BYTES = 128 << 10  # below, each member reduces everything; above, a second wait costs less
# Of one member in one round: fits into the caches, and is large enough that counters cost little.
STAGING_BYTES = 512 << 10
MIN_STAGING_BYTES = 64 << 10
SLOTS = 4  # rounds under way: with more, a running member waits later for the others
AREAS = 2  # result areas: while one is read, the next is written

LINE = 64  # bytes of a cache line
_ROW = 1024  # bytes: words, then the labels of two runs
STAGED, REDUCED, TAKEN, NOTIFY = (i * LINE // 8 for i in range(4))  # in words of 8 bytes
_LABELS, _LABEL_BYTES = 512, 256
_LABEL_HEAD = 24  # the run's number, a bit for each free area, and the length of the value

_order = threading.Lock()


def _fence() -> None:
    """A memory fence: other cores see earlier writes before all later reads and writes."""
    with _order:
        pass
    with _order:
        pass


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """The layout of a shared buffer's memory.

    Attributes:
        size: number of members. staging_bytes: per member and round. areas, area_bytes: number and size of the result areas.
    """

    size: int
    staging_bytes: int
    areas: int
    area_bytes: int

    @property
    def staging_offset(self) -> int:
        """Offset of the staging areas, in bytes."""
        return self.size * _ROW

    @property
    def areas_offset(self) -> int:
        """Offset of the result areas, in bytes."""
        return -(-(self.staging_offset + SLOTS * self.size * self.staging_bytes) // PAGE) * PAGE

    @property
    def bytes(self) -> int:
        """Size of the whole buffer, in bytes."""
        return self.areas_offset + self.areas * self.area_bytes

    def is_possible(self) -> bool:
        """Whether the numbers are plausible: another process sent them."""
        return (
            0 < self.staging_bytes <= max(STAGING_BYTES, self.size * LINE)
            and 0 <= self.areas <= AREAS
            and self.area_bytes >= 0
        )


Mapped: TypeAlias = tuple[memoryview, BufferLayout]
"""A buffer's memory as this process maps it, and its layout."""


class _Area(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a result area. All arrays over it refer to it, so its reference count shows whether it is in use."""


class SharedBuffer:
    """A shared buffer, as one member sees it.

    Args:
        may_sleep: whether the calling thread may block for a moment.
        memory: shared with the other members. layout: its layout. wake: wakes a rank by a message.
    """

    def __init__(
        self, may_sleep: Callable[[], bool], memory: memoryview, layout: BufferLayout, rank: int, wake: Callable[[int], None]
    ) -> None:  # fmt: skip
        self.may_sleep, self.memory, self.layout, self.rank = may_sleep, memory, layout, rank
        self.size = size = layout.size
        self.areas = [
            _Area(layout.area_bytes, np.uint8, memory, layout.areas_offset + i * layout.area_bytes)
            for i in range(layout.areas)
        ]
        self.words = memory.cast("q")
        self.rows = [r * _ROW // 8 for r in range(size)]
        self._labels = [b"", b""]  # the latest labels
        self.rounds = self.runs = 0  # counts of this member
        self._wake = wake
        self._others = [r for r in range(size) if r != rank]

    def staging(self, slot: int, rank: int, dtype: np.dtype[Any], start: int, count: int) -> Array:
        """Part of a member's staging area: `count` elements from element `start`."""
        layout = self.layout
        offset = layout.staging_offset + (slot * self.size + rank) * layout.staging_bytes + start * dtype.itemsize
        return np.ndarray(count, dtype, self.memory, offset)

    def advance(self, counter: int, value: int) -> None:
        """Increase one of this member's counters, and wake the members that have asked for it."""
        words = self.words
        _fence()
        words[self.rows[self.rank] + counter] = value
        _fence()
        for r in self._others:
            at = self.rows[r] + NOTIFY
            if words[at]:
                words[at] = 0
                self._wake(r)

    def behind(self, counter: int, value: int) -> list[int]:
        """Ranks whose counter is below `value`."""
        words = self.words
        return [r for r, row in enumerate(self.rows) if words[row + counter] < value]

    def set_notify(self, wanted: bool) -> None:
        """Publish whether this member is to be woken by a message."""
        self.words[self.rows[self.rank] + NOTIFY] = wanted
        _fence()

    def write_label(self, run: int, label: bytes, length: int = 0) -> None:
        """Publish this member's run, its signature, the result areas that it has released, and the length of its value."""
        parity = self.runs % 2
        at = self.rank * _ROW + _LABELS + parity * _LABEL_BYTES
        self.words[at // 8] = run
        free = 0
        for i in range(len(self.areas)):
            if getrefcount(self.areas[i]) == ONLY_ITEM:
                free |= 1 << i
        self.words[at // 8 + 1] = free
        self.words[at // 8 + 2] = length
        if self._labels[parity] != label:
            self._labels[parity] = label
            self.memory[at + _LABEL_HEAD : at + _LABEL_BYTES] = label

    def read_label(self, rank: int) -> tuple[int, int, int, bytes]:
        """A member's run, free result areas as bits, length and signature. Valid once the member has staged data in this run."""
        at = rank * _ROW + _LABELS + self.runs % 2 * _LABEL_BYTES
        run, areas, length = (self.words[at // 8 + i] for i in range(3))
        return run, areas, length, bytes(self.memory[at + _LABEL_HEAD : at + _LABEL_BYTES])


@lru_cache(1_000)
def label_of(signature: str) -> bytes:
    """A signature, fitted to a label. A long one is truncated, and ends with its hash."""
    data = signature.encode()
    most = _LABEL_BYTES - _LABEL_HEAD
    if len(data) > most:
        data = data[: most - 40] + b"... " + hashlib.blake2s(data, digest_size=16).hexdigest().encode()
    return data.ljust(most, b"\0")


def make_buffer(
    memory: CollectiveMemory | None, size: int, value_bytes: int, areas: bool
) -> tuple[Mapped | None, list[int]]:
    """A buffer for so many members, with as many result areas as memory allows, and the numbers by which others open it."""
    whole = -(-value_bytes // PAGE) * PAGE
    staging_bytes = max(min(STAGING_BYTES, max(MIN_STAGING_BYTES, whole)), size * LINE)
    for count in range(AREAS if areas and value_bytes > FLAT_BYTES else 0, -1, -1):
        layout = BufferLayout(size, staging_bytes, count, whole if count else 0)
        made = None if memory is None else memory.make(layout.bytes)
        if made is not None:
            return (made[1], layout), [staging_bytes, count, layout.area_bytes, *made[0]]
    return None, []


def open_buffer(memory: CollectiveMemory | None, size: int, numbers: Sequence[int]) -> Mapped | None:
    """The buffer that another member has made; None: it has made none, or this process cannot map it."""
    layout = BufferLayout(size, *numbers[:3]) if len(numbers) > 3 else None
    if memory is None or layout is None or not layout.is_possible():
        return None
    found = memory.open(numbers[3:], layout.bytes)
    return None if found is None else (found, layout)


_made: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()  # of this process's live buffers
_lock = threading.Lock()


class CollectiveMemory:
    """Memory that the processes of a machine share.

    Args:
        may_sleep: whether the calling thread may block for a moment.
    """

    def __init__(self, may_sleep: Callable[[], bool]) -> None:
        self.may_sleep = may_sleep

    def make(self, size: int) -> tuple[Sequence[int], memoryview] | None:
        """Numbers by which others open the memory, and the memory: `size` bytes, all zero.

        None: there is no room; the limit is DOVETAIL_SHARED_MEMORY_MB, separate from the pool's.
        """
        with _lock:
            if not is_available() or sum(map(len, _made)) + size > int(setting("DOVETAIL_SHARED_MEMORY_MB")) << 20:
                return None
            try:
                segment = new_segment(-(-size // PAGE) * PAGE, 1)
            except OSError:  # no descriptors or no memory left
                return None
            _made.add(segment.memory)
        whole = memoryview(segment.memory)
        # Other processes open the file during the handshake. It stays open until the mapping is freed.
        weakref.finalize(segment.memory, os.close, segment.fd)
        reference = Reference(os.getpid(), segment.fd, segment.number, 0, PAGE)
        return reference, whole[PAGE : PAGE + size]

    def open(self, place: Sequence[int], size: int) -> memoryview | None:
        """The memory that another process made. None: this process cannot or must not map it."""
        if setting("DOVETAIL_SHARED_MEMORY_MB") <= 0:
            return None
        try:
            memory = map_segment(Reference(*place)).memory
        except (MappingError, TypeError):
            return None
        return memoryview(memory)[PAGE : PAGE + size] if len(memory) >= PAGE + size else None
