"""All orders of the loads and stores of two members in a shared buffer: the code of `shared_buffer.py` and `shared_memory_algorithms.py`
itself, with threads that take turns at each access of a word that the other one writes or reads, and between data and its counter.

What is shown, for each mode of an all-reduce and for a gather: every member gets the right values, whatever the order, at the end of its
run and afterwards, and none waits for ever: no wake-up is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import pytest
from interleavings import Choices, Turns, explore

from dovetail.runtime.collectives import shared_memory_algorithms
from dovetail.runtime.collectives.shared_buffer import TAKEN, BufferLayout, SharedBuffer
from dovetail.runtime.collectives.shared_memory_algorithms import SharedMemoryAllReduce, SharedMemoryGather
from dovetail.runtime.shared_memory.segment import PAGE

MEMBERS = 2
LABEL = b"sum".ljust(232, b"\0")


class Words:
    """A member's view of the buffer's words. Its own counters are no turn to load: nobody else writes them."""

    def __init__(self, turns: Turns, words: memoryview, row: int) -> None:
        self._turns, self._words, self._row = turns, words, row

    def __getitem__(self, i: int) -> int:
        if not self._row <= i <= self._row + TAKEN:
            self._turns.point()
        self._turns.saw((i, self._words[i]))
        return self._words[i]

    def __setitem__(self, i: int, word: int) -> None:
        self._turns.point()
        self._turns.saw((i, word))
        self._words[i] = word


class Buffer(SharedBuffer):
    """A member's view of the buffer, which notes what it reads of the other's values."""

    turns: Turns

    def staging(self, slot: int, rank: int, dtype: Any, start: int, count: int) -> Any:
        found = super().staging(slot, rank, dtype, start, count)
        if rank != self.rank:
            self.turns.saw(found.tobytes())
        return found

    def read_label(self, rank: int) -> Any:
        found = super().read_label(rank)
        self.turns.saw(found)
        return found


class World:
    """A buffer, and two members that run a collective in it."""

    def __init__(self, case: Case, choices: Choices, known: set[Hashable]) -> None:
        self.case = case
        self.turns = Turns(choices, known)
        self.layout = BufferLayout(MEMBERS, 256, case.areas, PAGE if case.areas else 0)
        self.memory = memoryview(bytearray(self.layout.bytes))
        self.buffers = [self.member(rank) for rank in range(MEMBERS)]
        self.told = [False] * MEMBERS  # by a message

    def member(self, rank: int) -> SharedBuffer:
        found = Buffer(lambda: False, self.memory, self.layout, rank, self.tell)
        found.turns = self.turns
        found.words = Words(self.turns, found.words, found.rows[rank])  # type: ignore[assignment]
        return found

    def tell(self, rank: int) -> None:
        self.told[rank] = True

    def run(self, rank: int) -> tuple[Any, list[float]]:
        """One run of one member, as the executor runs it: the result, and what was in it at the end of the run."""
        algorithm = self.case.make(np.full(2, rank + 1.0))
        algorithm.start(self.buffers[rank], 0, LABEL)
        is_done = algorithm.drive(lambda: False)
        while not is_done:
            self.turns.saw("waits")
            self.turns.point(lambda: self.told[rank])
            self.turns.saw("told")
            self.told[rank] = False
            if algorithm.look():
                self.buffers[rank].set_notify(False)
                is_done = algorithm.drive(lambda: False)
        return algorithm.result, list(algorithm.result)


class Case(NamedTuple):
    """What the members run, what each gets, and in which buffer."""

    make: Callable[[Any], SharedMemoryAllReduce]
    expected: list[float]
    flat: bool = True
    areas: int = 0


def all_reduce(value: Any) -> SharedMemoryAllReduce:
    return SharedMemoryAllReduce(value, "sum")


CASES = {
    "flat": Case(all_reduce, [3.0, 3.0]),
    "copied": Case(all_reduce, [3.0, 3.0], flat=False),
    "common": Case(all_reduce, [3.0, 3.0], flat=False, areas=1),
    "gather": Case(SharedMemoryGather, [1.0, 1.0, 2.0, 2.0]),
}


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[[Case], int]:
    def play_all(case: Case) -> int:
        known: set[Hashable] = set()
        if not case.flat:
            monkeypatch.setattr(shared_memory_algorithms, "FLAT_BYTES", 0)

        def play(choices: Choices) -> None:
            world = World(case, choices, known)
            found: list[tuple[Any, list[float]]] = [([], [])] * MEMBERS

            def work(rank: int) -> None:
                found[rank] = world.run(rank)

            for rank in range(MEMBERS):
                world.turns.add(lambda rank=rank: work(rank))
            world.turns.play(lambda: (bytes(world.memory), tuple(world.told)))
            for result, at_its_end in found:
                assert list(result) == at_its_end == case.expected

        assert explore(play, limit=1_000_000) > 0
        return len(known)

    return play_all


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if CASES[name].flat else pytest.mark.slow) for name in CASES]
)
def test_every_order_of_a_run(played: Callable[[Case], int], name: str) -> None:
    assert played(CASES[name]) > 1_000


def test_a_member_that_does_not_wake_the_other_is_found(
    played: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A counter that changes without waking anybody: the test above could not pass."""

    def advance(self: SharedBuffer, counter: int, value: int) -> None:
        self.words[self.rows[self.rank] + counter] = value

    monkeypatch.setattr(SharedBuffer, "advance", advance)
    with pytest.raises(AssertionError, match="waits forever"):
        played(CASES["flat"])


def test_a_counter_that_changes_before_its_data_is_found(
    played: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage(self: Any, buffer: SharedBuffer) -> None:
        self._has_staged(buffer)
        np.copyto(buffer.staging(0, buffer.rank, self._value.dtype, 0, self._value.size), self._value)

    monkeypatch.setattr(SharedMemoryAllReduce, "_stage_round", stage)
    with pytest.raises(AssertionError):
        played(CASES["flat"])
