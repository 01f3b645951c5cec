"""Shared buffers: memory in which the members on one machine run a collective instead of sending parts to each other.

All members of an instance map the same buffer. Each member has a row of words, which it alone writes, and `SLOTS` staging areas for its
values. There may be result areas behind them. Counters in the rows say what the members have done (`shared_memory_algorithms.py`).
They only grow, over all runs.

A member that has nothing to do sleeps until another wakes it (`ASLEEP`, by a futex), or gives its thread back and asks to be woken by a
message (`NOTIFY`). A word of its row tells the others which.

Several processes write this memory without locks: a counter moves after what it counts was written. `_fence` keeps that order.

Before an instance's first run its members agree on a buffer (`BufferHandshake`): rank 0 makes it and tells the others where it is.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from .algorithms import Array, MessageAlgorithm, Part

FLAT_BYTES = 128 << 10  # up to here every member reduces everything; for more, a second wait costs less
STAGING_BYTES = (
    512 << 10
)  # of one member in one round: small enough for the caches, large enough to make counters cheap
MIN_STAGING_BYTES = 64 << 10
SLOTS = 4  # rounds under way: with more, a member that has a core goes on longer before it needs the others
AREAS = 2  # for results: while one is read, the next is written

LINE = 64  # bytes of a cache line
_ROW = 1024  # bytes: words, then what each of two runs is about
STAGED, REDUCED, TAKEN, SLEEP = (i * LINE // 8 for i in range(4))  # in words of 8 bytes
_LABELS, _LABEL_BYTES = 512, 256
_LABEL_HEAD = 24  # the run's number, a bit for each free area, and the length of the value
_PAGE = 4096

AWAKE, ASLEEP, NOTIFY = 0, 1, 2


class SharedMemory(Protocol):
    """Memory that the processes of a machine share, and how their threads wait for each other."""

    def make(self, size: int) -> tuple[Sequence[int], memoryview] | None:
        """Numbers that tell others where the memory is, and the memory: `size` bytes, all zero. None: there is no room."""
        ...

    def open(self, place: Sequence[int], size: int) -> memoryview | None:
        """The memory that another process made. None: this process cannot map it, or must not."""
        ...

    def may_sleep(self) -> bool:
        """Whether the calling thread may block for a moment."""
        ...

    def sleep(self, word: memoryview, value: int, seconds: float) -> None:
        """Block while the word has this value, at most for so many seconds. It may return earlier."""
        ...

    def wake(self, word: memoryview) -> None:
        """Wake a thread that sleeps at the word."""
        ...


_order = threading.Lock()


def _fence() -> None:
    """A memory fence: other cores see what was written before earlier than what is written or read after."""
    with _order:
        pass
    with _order:
        pass


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """How a shared buffer's memory is used.

    Attributes:
        size: how many members. staging_bytes: of one member in one round. areas, area_bytes: number and size of the result areas.
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
        return -(-(self.staging_offset + SLOTS * self.size * self.staging_bytes) // _PAGE) * _PAGE

    @property
    def bytes(self) -> int:
        """Size of the whole buffer, in bytes."""
        return self.areas_offset + self.areas * self.area_bytes

    def is_possible(self) -> bool:
        """Whether the numbers are plausible: they come from another process."""
        return (
            0 < self.staging_bytes <= max(STAGING_BYTES, self.size * LINE)
            and 0 <= self.areas <= AREAS
            and self.area_bytes >= 0
        )


class _Area(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of a result area. All arrays over it hold a reference to it, so the area's reference count tells whether it is in use."""


class SharedBuffer:
    """A shared buffer as one member sees it.

    Args:
        memory: shared with the other members. layout: how it is used. wake: wakes a rank by a message.
    """

    def __init__(
        self,
        shared_memory: SharedMemory,
        memory: memoryview,
        layout: BufferLayout,
        rank: int,
        wake: Callable[[int], None],
    ) -> None:
        self.shared_memory, self.memory, self.layout, self.rank = shared_memory, memory, layout, rank
        self.size = size = layout.size
        self.areas = [
            _Area(layout.area_bytes, np.uint8, memory, layout.areas_offset + i * layout.area_bytes)
            for i in range(layout.areas)
        ]
        self._unused = [sys.getrefcount(self.areas[i]) for i in range(layout.areas)]
        self.words = memory.cast("q")
        self.rows = [r * _ROW // 8 for r in range(size)]
        self.sleeps = [memory[r * _ROW + SLEEP * 8 :][:4] for r in range(size)]
        self._labels = [b"", b""]  # those written last
        self.rounds = self.runs = 0  # of this member, so far
        self._wake = wake
        self._others = [r for r in range(size) if r != rank]

    def area(self, number: int, size: int, dtype: np.dtype[Any]) -> Array:
        """A flat array in a result area."""
        return np.ndarray(size, dtype, self.areas[number])

    def staging(self, slot: int, rank: int, dtype: np.dtype[Any], start: int, count: int) -> Array:
        """Part of a member's staging area: `count` elements from element `start`."""
        layout = self.layout
        offset = layout.staging_offset + (slot * self.size + rank) * layout.staging_bytes + start * dtype.itemsize
        return np.ndarray(count, dtype, self.memory, offset)

    def advance(self, counter: int, value: int) -> None:
        """Move one of this member's counters, and wake the members that sleep."""
        words = self.words
        _fence()
        words[self.rows[self.rank] + counter] = value
        _fence()
        for r in self._others:
            at = self.rows[r] + SLEEP
            how = words[at]
            if how:
                words[at] = AWAKE
                if how == ASLEEP:
                    self.shared_memory.wake(self.sleeps[r])
                else:
                    self._wake(r)

    def behind(self, counter: int, value: int) -> list[int]:
        """Ranks whose counter is below `value`."""
        words = self.words
        return [r for r, row in enumerate(self.rows) if words[row + counter] < value]

    def set_sleep_state(self, how: int) -> None:
        """Tell the others how this member is to be woken."""
        self.words[self.rows[self.rank] + SLEEP] = how
        _fence()

    def write_label(self, run: int, label: bytes, length: int = 0) -> None:
        """Publish this member's run, its signature, the result areas that it does not use, and the length of its value."""
        parity = self.runs % 2
        at = self.rank * _ROW + _LABELS + parity * _LABEL_BYTES
        self.words[at // 8] = run
        free = 0
        for i, unused in enumerate(self._unused):
            if sys.getrefcount(self.areas[i]) == unused:
                free |= 1 << i
        self.words[at // 8 + 1] = free
        self.words[at // 8 + 2] = length
        if self._labels[parity] != label:
            self._labels[parity] = label
            self.memory[at + _LABEL_HEAD : at + _LABEL_BYTES] = label

    def read_label(self, rank: int) -> tuple[int, int, bytes]:
        """A member's run, its free result areas as bits, and its signature. Valid once the member has staged something in this run."""
        at = rank * _ROW + _LABELS + self.runs % 2 * _LABEL_BYTES
        return self.words[at // 8], self.words[at // 8 + 1], bytes(self.memory[at + _LABEL_HEAD : at + _LABEL_BYTES])

    def read_length(self, rank: int) -> int:
        """The length of a member's value. Valid when its label is."""
        return self.words[(rank * _ROW + _LABELS + self.runs % 2 * _LABEL_BYTES) // 8 + 2]


@lru_cache(1_000)
def label_of(signature: str) -> bytes:
    """A signature in the bytes that a label has. A long one is cut, and ends with its hash."""
    data = signature.encode()
    most = _LABEL_BYTES - _LABEL_HEAD
    if len(data) > most:
        data = data[: most - 40] + b"... " + hashlib.blake2s(data, digest_size=16).hexdigest().encode()
    return data.ljust(most, b"\0")


class BufferHandshake(MessageAlgorithm):
    """The members' agreement on a buffer: rank 0 makes it and says where, the others map it, and all hear whether all could.

    The result is the memory and its layout. None: the members have no common memory, and go by messages.
    """

    OFFER, OPENED, AGREED = range(3)

    def __init__(self, rank: int, size: int, memory: SharedMemory | None, value_bytes: int, areas: bool = True) -> None:
        super().__init__(rank, size)
        self._memory, self._value_bytes = memory, value_bytes
        self._areas = AREAS if areas and value_bytes > FLAT_BYTES else 0
        self._found: tuple[memoryview, BufferLayout] | None = None
        self._opened: dict[int, bool] = {}

    def begin(self) -> list[Part]:
        """As `MessageAlgorithm.begin`."""
        if self.rank != 0:
            return []
        numbers = self._make()
        if not numbers:
            self._finish(None)
        offer = np.array(numbers, np.int64)
        return [(r, self.OFFER, offer) for r in range(1, self.size)]

    def _make(self) -> list[int]:
        """Make a buffer with as many result areas as there is memory for. Gives the numbers that tell others of it."""
        whole = -(-self._value_bytes // _PAGE) * _PAGE
        staging_bytes = max(min(STAGING_BYTES, max(MIN_STAGING_BYTES, whole)), self.size * LINE)
        for areas in range(self._areas, -1, -1):
            layout = BufferLayout(self.size, staging_bytes, areas, whole if areas else 0)
            made = None if self._memory is None else self._memory.make(layout.bytes)
            if made is not None:
                self._found = made[1], layout
                return [staging_bytes, areas, layout.area_bytes, *made[0]]
        return []

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        """As `MessageAlgorithm.receive`."""
        if tag == self.OFFER and sender == 0 != self.rank:
            numbers = [int(x) for x in array]
            if len(numbers) < 3:
                self._finish(None)
                return []
            layout = BufferLayout(self.size, *numbers[:3])
            if self._memory is not None and layout.is_possible():
                memory = self._memory.open(numbers[3:], layout.bytes)
                self._found = None if memory is None else (memory, layout)
            return [(0, self.OPENED, np.array([self._found is not None]))]
        if tag == self.OPENED and self.rank == 0:
            self._opened[sender] = bool(array.all())
            if len(self._opened) < self.size - 1:
                return []
            agreed = all(self._opened.values())
            self._finish(self._found if agreed else None)
            return [(r, self.AGREED, np.array([agreed])) for r in range(1, self.size)]
        if tag == self.AGREED and sender == 0:
            self._finish(self._found if array.all() else None)
        return []

    def expects(self) -> set[int]:
        """As `MessageAlgorithm.expects`."""
        if self.is_done:
            return set()
        return set(range(1, self.size)) - self._opened.keys() if self.rank == 0 else {0}


__all__ = [
    "AREAS", "ASLEEP", "AWAKE", "FLAT_BYTES", "LINE", "NOTIFY", "REDUCED", "SLOTS", "STAGED", "TAKEN", "BufferHandshake", "BufferLayout",
    "SharedBuffer", "SharedMemory", "label_of",
]  # fmt: skip
