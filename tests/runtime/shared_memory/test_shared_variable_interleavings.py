"""All orders of the loads and stores of small examples of shared variables: the code of `shared_variable.py` itself, with threads that
take turns at each access of shared memory. What commutes with all that others do is no turn: loads of the owner and of the lock's
holder, and the lock itself where one process alone takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from interleavings import Choices, Turns, explore

from dovetail.graph.core.errors import AbortedError
from dovetail.runtime.shared_memory import shared_variable, variable_reader
from dovetail.runtime.shared_memory.segment import PAGE
from dovetail.runtime.shared_memory.shared_variable import (
    NUMBER,
    RECORD_BYTES,
    TURN,
    VERSION,
    WHERE,
    RecordAddress,
    can_publish,
)

pytestmark = pytest.mark.skipif(not can_publish(), reason="another kind of machine")

OFFSET = WHERE + 2
PLACE = RecordAddress(1, 1, 1, PAGE, 7)
BLOCK = 128  # bytes of both buffers of a value of two numbers
GARBAGE = -1


class Words:
    """The words of a record, whose accesses are turns."""

    def __init__(self, world: World, words: memoryview) -> None:
        self._world, self._words = world, words

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            self._world.access()
            return self._words[i]
        if i in (TURN, VERSION):
            self._world.access()
        return self._words[i]

    def __setitem__(self, i: int, word: int) -> None:
        if i in (TURN, VERSION, OFFSET):
            self._world.turns.point()
        self._words[i] = word
        self._world.note()


class World:
    """A record and its value of two numbers, always the same, in memory with places for two values."""

    def __init__(self, choices: Choices, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = Turns(choices)
        self.memory = np.zeros(PAGE + RECORD_BYTES + 2 * BLOCK, np.uint8)
        self.raw = memoryview(self.memory)[PAGE : PAGE + RECORD_BYTES].cast("Q")
        self.free = [PAGE + RECORD_BYTES, PAGE + RECORD_BYTES + BLOCK]
        self.holder: Any = None  # of the lock
        self.is_contended = False  # whether several processes take the lock
        self.history: list[int | None] = [None]
        world = self

        class Owner(shared_variable.OwnSharedVariable):
            def _lock(self, patience_s: float) -> None:
                world.lock(self)

            def _unlock(self) -> None:
                world.unlock(self)

        class Remote(variable_reader.RemoteSharedVariable):
            _lock, _unlock = Owner._lock, Owner._unlock

        monkeypatch.setattr(shared_variable, "_READ_ATTEMPTS", 1)
        monkeypatch.setattr(variable_reader, "words_of", lambda memory, offset: Words(self, self.raw))
        monkeypatch.setattr(variable_reader, "_owner", lambda pid: None)
        segment = SimpleNamespace(fd=1, number=1)
        monkeypatch.setattr(shared_variable, "place_of", lambda block: (segment, 0, self.at(block)))
        monkeypatch.setattr(shared_variable, "np", SimpleNamespace(copyto=self.copy, ndarray=np.ndarray))
        monkeypatch.setattr(shared_variable.shared_storage, "shared_empty", self.empty)
        self.owner = Owner(PLACE, Words(self, self.raw), "v", SimpleNamespace(fd=1))
        self._remote = lambda: Remote(
            PLACE, np.dtype(np.int64), SimpleNamespace(map=lambda _: SimpleNamespace(memory=self.memory))
        )

    def remote(self, knows: bool) -> Any:
        """Another process; `knows`: it has read the record already."""
        made = self._remote()
        made.owner = SimpleNamespace(pid=1)
        if knows:
            made.layout()
        return made

    # --- the machine -------------------------------------------------------------------------------------------------

    def lock(self, process: Any) -> None:
        if self.is_contended:
            self.turns.point(lambda: self.holder is None)
        assert self.holder is None
        self.holder = process

    def unlock(self, process: Any) -> None:
        if self.holder is process:
            if self.is_contended:
                self.turns.point()
            self.holder = None

    def access(self) -> None:
        """A load."""
        me = getattr(self.turns._mine, "me", None)
        if me is not None and me not in (getattr(self.holder, "thread", None), getattr(self.owner, "thread", None)):
            self.turns.point()

    def copy(self, to: Any, value: Any) -> None:
        """Element by element, as a processor may."""
        for i in range(value.size):
            self.turns.point()
            to[i] = value[i]

    def empty(self, size: int) -> Any:
        at = self.free.pop(0)
        return self.memory[at : at + size]

    def at(self, block: Any) -> int:
        return int(block.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0])

    def buffer(self, at: int) -> Any:
        """All numbers of a block."""
        return self.memory[at : at + BLOCK].view(np.int64)

    def note(self) -> None:
        """Note the value that a reader would have to see now."""
        now = self.value()
        if now != self.history[-1]:
            self.history.append(now)

    def value(self) -> int | None:
        if self.raw[VERSION] & 1 or not self.raw[VERSION]:
            return None
        at = self.raw[OFFSET] + (self.raw[TURN] & 1) * self.raw[OFFSET + 1]
        first, second = self.memory[at : at + 16].view(np.int64)
        assert first == second
        return int(first)

    # --- what processes do -------------------------------------------------------------------------------------------

    def change(self, process: Any) -> None:
        """Add 1."""
        process.thread = self.turns._mine.me
        process.acquire()
        try:
            old, new = process.both()
            for i in range(2):
                self.turns.point()
                new[i] = old[i] + 1
            process.end()
        finally:
            process.release()

    def read(self, process: Any, times: int = 1) -> None:
        """What is read was the value at some moment of the call."""
        for _ in range(times):
            began = len(self.history) - 1
            found = process.read()
            seen = self.history[began:]
            if found is None:
                assert None in seen or len(seen) > 1  # it kept changing
            else:
                assert found[0] == found[1] and found[0] in seen, (found, seen)

    def renew(self, value: int) -> None:
        """The owner ends the sharing, its memory is used otherwise, and it shares another value elsewhere."""
        self.owner.thread = self.turns._mine.me
        at = self.raw[OFFSET]
        self.owner.close()
        self.buffer(at)[:] = GARBAGE
        assert self.owner.share(np.full(2, value)) is self.owner
        assert (self.buffer(at) == GARBAGE).all()


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    def play_all(scenario: Callable[[World], None], after: Callable[[World], None] = lambda world: None) -> int:
        def play(choices: Choices) -> None:
            with monkeypatch.context() as patch:
                world = World(choices, patch)
                assert world.owner.share(np.full(2, 10)) is world.owner
                scenario(world)
                world.turns.play()
                assert world.holder is None
                after(world)

        return explore(play)

    return play_all


def test_who_reads_during_changes_sees_whole_values(played):
    def scenario(world: World) -> None:
        reader, writer = world.remote(True), world.remote(True)
        world.turns.add(lambda: world.read(reader))
        world.turns.add(lambda: [world.change(writer) for _ in range(2)])

    assert played(scenario, lambda world: world.read(world.owner)) > 100


def test_what_is_kept_of_a_value_is_not_given_for_the_next(played):
    def scenario(world: World) -> None:
        reader, writer = world.remote(True), world.remote(True)
        world.read(reader)
        world.turns.add(lambda: world.read(reader, 2))
        world.turns.add(lambda: world.change(writer))

    assert played(scenario) > 100


@pytest.mark.parametrize("knows", [False, True])
def test_who_reads_while_the_owner_moves_it_sees_whole_values(played, knows):
    def scenario(world: World) -> None:
        reader = world.remote(knows)
        if knows:
            world.read(reader)
        world.turns.add(lambda: world.read(reader))
        world.turns.add(lambda: world.renew(20))

    assert played(scenario) > 100


def test_no_change_is_lost(played):
    def scenario(world: World) -> None:
        world.is_contended = True
        for process in (world.remote(True), world.owner):
            world.turns.add(lambda process=process: world.change(process))

    def after(world: World) -> None:
        assert world.value() == 12

    assert played(scenario, after) > 2


def test_a_change_goes_where_the_owner_has_moved_it(played):
    def scenario(world: World) -> None:
        writer = world.remote(True)
        world.is_contended = True

        def change() -> None:
            try:
                world.change(writer)
            except AbortedError:  # it came while there was no value
                assert None in world.history[1:]

        world.turns.add(change)
        world.turns.add(lambda: world.renew(20))

    def after(world: World) -> None:
        assert world.value() in (20, 21)

    assert played(scenario, after) > 10


def test_a_record_that_is_used_for_another_variable_is_not_read_as_the_old_one(played):
    def scenario(world: World) -> None:
        reader = world.remote(True)

        def reuse() -> None:
            at = world.raw[OFFSET]
            world.owner.thread = world.turns._mine.me
            world.owner.close()
            world.buffer(at)[:] = GARBAGE
            other = type(world.owner)(PLACE._replace(number=8), Words(world, world.raw), "w", world.owner.lock_file)
            other.share(np.full(2, 30))

        def read() -> None:
            found = reader.read()
            assert found is None or list(found) == [10, 10]

        world.turns.add(read)
        world.turns.add(reuse)

    def after(world: World) -> None:
        assert world.raw[NUMBER] == 8 and world.remote(False).read() is None

    assert played(scenario, after) > 100
