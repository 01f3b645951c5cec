"""Boards: memory in which the members of one machine reduce, instead of sending parts to each other.

Theory of operation. A board is memory that all members of a group map. Each has a row of words, which it alone writes, and
`SLOTS` places for values; there may be areas for results beside them. What a member has done is told by counters in its row, which
only grow, over all runs; what is done with them is told in `shared_memory_algorithms.py`.

Who has nothing to do sleeps until another one wakes it (`ASLEEP`), or sets its step aside and asks for a message (`POKE`). A word of
the row tells the others which.

Memory is written by several processes here, with no locks: a counter moves after what it counts is written. Locks of the process
stand where the order of writing matters (`_fence`).

Before they use a board, members meet: the first one makes it and tells the others where it is (`Meeting`).
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

from .algorithms import Array, Exchange, Part

FLAT_BYTES = 128 << 10  # up to here every member reduces everything: beyond, that costs more than a second wait
PLACE_BYTES = 512 << 10  # of one member in one round: small enough for the caches, large enough to make words cheap
LEAST_PLACE_BYTES = 64 << 10
SLOTS = 4  # with more, a member that has a processor goes on longer before it needs the others
AREAS = 2  # for results: while one is read, the next is written

LINE = 64  # bytes that processors exchange at once
_ROW = 1024  # bytes: words, then what each of two runs is about
STAGED, REDUCED, TAKEN, SLEEP = (i * LINE // 8 for i in range(4))  # in words of 8 bytes
_LABELS, _LABEL_BYTES = 512, 256
_LABEL_HEAD = 24  # the run's number, a bit for each free area, and the length of the value
_PAGE = 4096

AWAKE, ASLEEP, POKE = 0, 1, 2


class Machine(Protocol):
    """What a process has to meet others of its machine in memory."""

    def make(self, size: int) -> tuple[Sequence[int], memoryview] | None:
        """Memory of so many bytes, all zero, and numbers that tell others where it is; None: there is none."""
        ...

    def open(self, place: Sequence[int], size: int) -> memoryview | None:
        """The memory at such a place; None: this process cannot read it, or should not."""
        ...

    def may_sleep(self) -> bool:
        """Whether the calling thread may wait for others for a moment."""
        ...

    def sleep(self, word: memoryview, value: int, seconds: float) -> None:
        """Wait while the word has this value, until somebody wakes it; or less."""
        ...

    def wake(self, word: memoryview) -> None:
        """Wake whoever sleeps at the word."""
        ...


_order = threading.Lock()


def _fence() -> None:
    """What was written before is seen by other processors before what is written, or read, after."""
    with _order:
        pass
    with _order:
        pass


@dataclass(frozen=True, slots=True)
class Layout:
    """How a board's memory is used.

    Attributes:
        size: how many members. place_bytes: of one member in one round. areas, area_bytes: for results.
    """

    size: int
    place_bytes: int
    areas: int
    area_bytes: int

    @property
    def at_places(self) -> int:
        """Where the places begin."""
        return self.size * _ROW

    @property
    def at_areas(self) -> int:
        """Where the areas begin."""
        return -(-(self.at_places + SLOTS * self.size * self.place_bytes) // _PAGE) * _PAGE

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.at_areas + self.areas * self.area_bytes

    def is_possible(self) -> bool:
        """Whether a member could have meant it: it comes from another process."""
        return (
            0 < self.place_bytes <= max(PLACE_BYTES, self.size * LINE)
            and 0 <= self.areas <= AREAS
            and self.area_bytes >= 0
        )


class _Area(np.ndarray[Any, np.dtype[np.uint8]]):
    """The memory of an area. All arrays over it refer to it, so their number is known; views of a plain array would not."""


class Board:
    """A board as one member sees it.

    Args:
        memory: shared with the other members. layout: how it is used. poke: asks a rank for its attention by a message.
    """

    def __init__(
        self, machine: Machine, memory: memoryview, layout: Layout, rank: int, poke: Callable[[int], None]
    ) -> None:
        self.machine, self.memory, self.layout, self.rank = machine, memory, layout, rank
        self.size = size = layout.size
        self.areas = [
            _Area(layout.area_bytes, np.uint8, memory, layout.at_areas + i * layout.area_bytes)
            for i in range(layout.areas)
        ]
        self._unused = [sys.getrefcount(self.areas[i]) for i in range(layout.areas)]
        self.words = memory.cast("q")
        self.rows = [r * _ROW // 8 for r in range(size)]
        self.sleeps = [memory[r * _ROW + SLEEP * 8 :][:4] for r in range(size)]
        self._labels = [b"", b""]  # those written last
        self.rounds = self.runs = 0  # of this member, so far
        self._poke = poke
        self._others = [r for r in range(size) if r != rank]

    def area(self, number: int, size: int, dtype: np.dtype[Any]) -> Array:
        """A flat array in an area."""
        return np.ndarray(size, dtype, self.areas[number])

    def place(self, slot: int, rank: int, dtype: np.dtype[Any], start: int, count: int) -> Array:
        """Part of a member's place: `count` elements from element `start`."""
        layout = self.layout
        offset = layout.at_places + (slot * self.size + rank) * layout.place_bytes + start * dtype.itemsize
        return np.ndarray(count, dtype, self.memory, offset)

    def count(self, counter: int, value: int) -> None:
        """Move one of this member's counters, and tell those who sleep."""
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
                    self.machine.wake(self.sleeps[r])
                else:
                    self._poke(r)

    def behind(self, counter: int, value: int) -> list[int]:
        """Ranks whose counter has not got there."""
        words = self.words
        return [r for r, row in enumerate(self.rows) if words[row + counter] < value]

    def state(self, how: int) -> None:
        """Tell the others how this member is to be woken."""
        self.words[self.rows[self.rank] + SLEEP] = how
        _fence()

    def write_label(self, run: int, label: bytes, length: int = 0) -> None:
        """Say what this member's run is about, which areas it does not use, and the length of its value."""
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
        """A member's run, its free areas, and what the run is about; good once it has staged something in it."""
        at = rank * _ROW + _LABELS + self.runs % 2 * _LABEL_BYTES
        return self.words[at // 8], self.words[at // 8 + 1], bytes(self.memory[at + _LABEL_HEAD : at + _LABEL_BYTES])

    def read_length(self, rank: int) -> int:
        """The length of a member's value; good when its label is."""
        return self.words[(rank * _ROW + _LABELS + self.runs % 2 * _LABEL_BYTES) // 8 + 2]


@lru_cache(1_000)
def label_of(signature: str) -> bytes:
    """A signature in the bytes that a label has: a long one is cut, and told from others by its hash."""
    data = signature.encode()
    most = _LABEL_BYTES - _LABEL_HEAD
    if len(data) > most:
        data = data[: most - 40] + b"... " + hashlib.blake2s(data, digest_size=16).hexdigest().encode()
    return data.ljust(most, b"\0")


class Meeting(Exchange):
    """How members come to a board: the first makes it and says where, the others open it, and all hear whether all could.

    The result is the memory and its layout; None: they cannot, and send parts to each other.
    """

    OFFER, OPENED, AGREED = range(3)

    def __init__(self, rank: int, size: int, machine: Machine | None, value_bytes: int, areas: bool = True) -> None:
        super().__init__(rank, size)
        self._machine, self._value_bytes = machine, value_bytes
        self._areas = AREAS if areas and value_bytes > FLAT_BYTES else 0
        self._found: tuple[memoryview, Layout] | None = None
        self._opened: dict[int, bool] = {}

    def begin(self) -> list[Part]:
        """As `Exchange.begin`."""
        if self.rank != 0:
            return []
        numbers = self._make()
        if not numbers:
            self._finish(None)
        offer = np.array(numbers, np.int64)
        return [(r, self.OFFER, offer) for r in range(1, self.size)]

    def _make(self) -> list[int]:
        """Make a board, with as many areas as there is memory for; the numbers that tell others of it."""
        whole = -(-self._value_bytes // _PAGE) * _PAGE
        place_bytes = max(min(PLACE_BYTES, max(LEAST_PLACE_BYTES, whole)), self.size * LINE)
        for areas in range(self._areas, -1, -1):
            layout = Layout(self.size, place_bytes, areas, whole if areas else 0)
            made = None if self._machine is None else self._machine.make(layout.bytes)
            if made is not None:
                self._found = made[1], layout
                return [place_bytes, areas, layout.area_bytes, *made[0]]
        return []

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        """As `Exchange.receive`."""
        if tag == self.OFFER and sender == 0 != self.rank:
            numbers = [int(x) for x in array]
            if len(numbers) < 3:
                self._finish(None)
                return []
            layout = Layout(self.size, *numbers[:3])
            if self._machine is not None and layout.is_possible():
                memory = self._machine.open(numbers[3:], layout.bytes)
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
        """As `Exchange.expects`."""
        if self.is_done:
            return set()
        return set(range(1, self.size)) - self._opened.keys() if self.rank == 0 else {0}


__all__ = [
    "AREAS", "ASLEEP", "AWAKE", "FLAT_BYTES", "LINE", "POKE", "REDUCED", "SLOTS", "STAGED", "TAKEN", "Board", "Layout", "Machine",
    "Meeting", "label_of",
]  # fmt: skip
