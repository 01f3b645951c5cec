"""Published variables, the owner's side: other processes of the machine read a task's variables without a message.

Theory of operation. A *published variable* has a record in shared memory (`record_layout.py`). It says where the value lies, and has a
*sequence number* (a seqlock, as in Linux), which is odd while the value changes or moves. The owner keeps the record (`PublishedVariable`,
called by `graph/resources/resource_manager.py`). A reader (`variable_reader.py`) reads the number, copies the value, and reads the number
again. If it is even and the same, the copy is consistent. Otherwise the reader tries again, and after some time requests the value
as a tensor.

The record is empty if the variable has no value, if the value is larger than `MOST_BYTES` or outside of shared memory (the pool is full,
or it is on a GPU), and after variable, session or server are gone. A record may be reused for another variable, with another number.
Memory may be overwritten or reused while a reader copies it: then the sequence number has changed. Memory that a
reader has mapped stays readable.

The memory of a process that has ended stays with the processes that mapped it, with stale values. So a reader checks before
each read that the owner lives, which costs 1 µs (`pidfd_open`). Variables of a stopped process (SIGSTOP) are readable, unless
it was stopped during a change.

A variable that other processes may also change is *shared* (`shared_variable.py`). Its value then has two buffers, and a turn counter
shows changes instead of the sequence number. The same holds for accumulators (`graph/resources/shared_accumulator.py`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.interpreter_state import process_id
from ...graph.resources.accumulator import Accumulator, AccumulatorKind, DenseAccumulator
from ...graph.resources.resource_manager import Resources
from ...graph.resources.variable import VariableState
from ...placer.partition.one_sided_access import MOST_BYTES
from .pool import address_of
from .record_layout import (
    CODES,
    MOST_DIMS,
    NUMBER,
    PAGE,
    RECORD_BYTES,
    RECORDS,
    SEQUENCE,
    SPARE,
    VERSION,
    RecordAddress,
    words_of,
)
from .segment import MappingError, Reference, new_segment
from .shared_variable import LockFile, OwnSharedVariable, can_share, release_stuck

Array = np.ndarray[Any, Any]


class PublishedVariable:
    """The record of one published variable, on the owner's side. The caller holds the variable's lock."""

    __slots__ = ("_pid", "_sequence", "_there", "_version", "_words", "place")

    def __init__(self, words: memoryview, place: RecordAddress) -> None:
        self._words, self.place = words, place
        self._pid = place.pid
        self._sequence = words[SEQUENCE] & ~1  # a reused record goes on counting
        self._version = words[VERSION]
        self._there: tuple[int, ...] | None = None
        self.change()
        words[NUMBER] = place.number
        words[VERSION] = 0
        self.show(None)

    def change(self) -> None:
        """As `PublishedValue.change`."""
        if not self._sequence & 1 and self._pid == process_id():  # a forked child must not change its parent's memory
            self._sequence += 1
            self._words[SEQUENCE] = self._sequence

    def changed(self) -> None:
        """As `PublishedValue.changed`."""
        if self._sequence & 1 and self._pid == process_id():
            self._sequence += 1
            self._words[SEQUENCE] = self._sequence

    def show(self, value: Array | None, spare: int = 0) -> None:
        """As `PublishedValue.show`. `spare`: bytes from the value to its second buffer, if it is shared."""
        if self._pid != process_id():
            return
        there = None if value is None else _there(value, spare)
        words = self._words
        if not self._sequence & 1:
            self._sequence += 1
            words[SEQUENCE] = self._sequence
        if there != self._there:
            self._there = there
            if there is None:
                words[VERSION] = 0
            else:
                for i, word in enumerate(there, SPARE):
                    words[i] = word
                self._version += 1
                words[VERSION] = self._version
        self._sequence += 1
        words[SEQUENCE] = self._sequence


def _there(value: Array, spare: int) -> tuple[int, ...] | None:
    """The words of a record for a value, from `spare` on; None: it cannot be published."""
    code = CODES.get(value.dtype)
    if code is None or value.nbytes > MOST_BYTES or value.ndim > MOST_DIMS:
        return None
    found = address_of(value)
    return None if found is None else (spare, 0, 0, 0, *found, value.nbytes, code, value.ndim, *value.shape)


class VariablePublisher:
    """All published variables of one task. Each belongs to the sessions that requested it. Thread-safe."""

    def __init__(self) -> None:
        self._shared: weakref.WeakSet[DenseAccumulator] = weakref.WeakSet()  # accumulators that are, or were, shared
        self._fresh: Iterator[tuple[memoryview, Reference]] = iter(())  # unused records of the latest segment
        self._free: list[tuple[memoryview, Reference]] = []  # records for reuse
        self._segments: list[tuple[int, int]] = []  # descriptors, and the process that made them
        self._posts: dict[tuple[int, str, str], _Owned] = {}
        self._closed = False
        self._lock = threading.Lock()

    def post(self, session: str, resources: Resources, container: str, name: str) -> RecordAddress | None:
        """Publish the variable of that name, which need not exist yet; None: that is impossible."""
        key = id(resources), container, name
        with self._lock:
            if self._closed:
                return None
            owned = self._posts.get(key)
            if owned is None:
                found = self._record()
                if found is None:
                    return None
                words, at = found
                place = RecordAddress(at.pid, at.fd, at.number, at.offset, secrets.randbits(62) | 1)
                owned = self._posts[key] = _Owned(PublishedVariable(words, place), resources, found, set())
                resources.post(container, name, owned.post)
            owned.sessions.add(session)
            return owned.post.place

    def open(
        self, session: str, resources: Resources, container: str, names: Sequence[str]
    ) -> list[RecordAddress] | None:
        """Share variables of a container that have values, for changes by others; None: not all of them can be shared."""
        release_stuck()
        if not can_share():
            return None
        places = []
        for name in names:
            state, place = resources.find(container, name), self.post(session, resources, container, name)
            if not isinstance(state, VariableState) or place is None:
                return None
            with self._lock:
                owned = self._posts.get((id(resources), container, name))
                if owned is None or not state.open(partial(owned.opened, f"The variable '{name}'")):
                    return None
            places.append(place)
        return places

    def open_accumulator(
        self, session: str, resources: Resources, container: str, name: str, kind: AccumulatorKind
    ) -> RecordAddress | None:
        """Share the accumulator of that name for additions by others, and make it if needed; None: that is impossible.

        Raises:
            InvalidArgumentError: the name belongs to another resource, or the accumulator is of another kind.
        """
        release_stuck()
        if not can_share():
            return None
        found = resources.get_or_create(container, name, Accumulator, lambda: DenseAccumulator(name, kind))
        found.kind.check_same(kind, name)
        place = self.post(session, resources, container, name)
        if not isinstance(found, DenseAccumulator) or place is None:
            return None
        with self._lock:
            owned = self._posts.get((id(resources), container, name))
            if owned is None or not found.open(partial(owned.opened, f"The accumulator '{name}'")):
                return None
            self._shared.add(found)
        return place

    def look(self) -> None:
        """Complete waiting gradient requests for which others have added enough gradients."""
        if self._shared:
            with self._lock:
                shared = list(self._shared)
            for accumulator in shared:
                accumulator.look()

    def close_session(self, session: str) -> None:
        """Withdraw the variables that only this session has requested."""
        with self._lock:
            for key, owned in list(self._posts.items()):
                owned.sessions.discard(session)
                if not owned.sessions:
                    self._take_down(key)

    def close(self) -> None:
        """Withdraw all variables: none can be read from now on."""
        with self._lock:
            self._closed = True
            for key in list(self._posts):
                self._take_down(key)
            for fd, pid in self._segments:
                if pid == process_id():
                    with contextlib.suppress(OSError):
                        os.close(fd)
            self._segments.clear()
            self._free.clear()
            self._fresh = iter(())

    def __len__(self) -> int:
        return len(self._posts)

    def _take_down(self, key: tuple[int, str, str]) -> None:
        owned = self._posts.pop(key)
        owned.resources.post(key[1], key[2], None)
        owned.record[0][NUMBER] = 0
        if not owned.is_stuck:
            self._free.append(owned.record)

    def _record(self) -> tuple[memoryview, Reference] | None:
        if self._free:
            return self._free.pop()
        found = next(self._fresh, None)
        if found is None:
            try:
                made = new_segment(RECORD_BYTES, RECORDS)
            except OSError:
                return None
            self._segments.append((made.fd, process_id()))
            self._fresh = (
                (words_of(made.memory, at), Reference(process_id(), made.fd, made.number, 0, at))
                for at in range(PAGE, PAGE + RECORDS * RECORD_BYTES, RECORD_BYTES)
            )
            found = next(self._fresh)
        return found


@dataclass(slots=True)
class _Owned:
    """A published variable and the sessions that it belongs to."""

    post: PublishedVariable
    resources: Resources
    record: tuple[memoryview, Reference]
    sessions: set[str]
    door: LockFile | None = None
    last: OwnSharedVariable | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether a stopped process may still write to the record's value."""
        return self.last is not None and self.last.is_stuck

    def opened(self, what: str, value: Array) -> OwnSharedVariable | None:
        """Share the variable, or state of an accumulator, with this value; None: that is impossible."""
        place = self.post.place
        if self.is_stuck:
            return None
        try:
            if self.door is None:
                self.door = LockFile(*place[:3])
            opened = OwnSharedVariable(place, self.record[0], self.door, value, f"{what} of this task")
        except (MemoryError, MappingError):
            return None
        self.post.show(opened.first, opened.spare)
        if not self.record[0][VERSION]:
            self.post.show(value)
            return None
        self.last = opened
        return opened


__all__ = ["PublishedVariable", "VariablePublisher"]
