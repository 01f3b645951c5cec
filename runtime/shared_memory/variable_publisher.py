"""Publishes a task's variables and accumulators: other processes of the machine read and change them without a message.

A published variable has a record, at an address that does not change. While its value can be shared, the record's
`OwnSharedVariable` holds it (`shared_variable.py`). The record is empty if the variable has no value, if the value is larger than
`MOST_BYTES` or outside of shared memory (the pool is full), and after variable, session or server are gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from ...graph.core.interpreter_state import process_id
from ...graph.resources.accumulator import Accumulator, AccumulatorKind, DenseAccumulator
from ...graph.resources.resource_manager import Resources
from ...graph.resources.shared_storage import Publishable
from .segment import MappingError, new_segment
from .shared_variable import (
    NUMBER,
    PAGE,
    RECORD_BYTES,
    RECORDS,
    LockFile,
    OwnSharedVariable,
    RecordAddress,
    can_publish,
    words_of,
)


class VariablePublisher:
    """All published variables of one task. Each belongs to the sessions that requested it. Thread-safe."""

    def __init__(self) -> None:
        self._shared: weakref.WeakSet[DenseAccumulator] = weakref.WeakSet()  # accumulators that are, or were, shared
        self._fresh: Iterator[_Record] = iter(())  # unused records of the latest segment
        self._free: list[_Record] = []  # records for reuse
        self._segments: list[tuple[int, LockFile]] = []  # descriptors
        self._posts: dict[tuple[int, str, str], _Published] = {}
        self._closed = False
        self._pid = process_id()
        self._lock = threading.Lock()

    def post(
        self, session: str, resources: Resources, container: str, name: str, what: str = "variable"
    ) -> RecordAddress | None:
        """Publish the variable of that name, which need not exist yet; None: that is impossible."""
        key = id(resources), container, name
        with self._lock:
            if self._closed:
                return None
            found = self._posts.get(key)
            if found is None:
                record = self._record()
                if record is None:
                    return None
                place = record.place._replace(number=secrets.randbits(62) | 1)
                value = OwnSharedVariable(place, record.words, f"The {what} '{name}' of this task", record.lock_file)
                found = self._posts[key] = _Published(value, resources, record, set())
                resources.publish(container, name, value.share)
            found.sessions.add(session)
            return found.value.place

    def open(self, session: str, resources: Resources, container: str, name: str) -> RecordAddress | None:
        """Publish a variable for changes by others; None: it has no value that can be shared."""
        place = self.post(session, resources, container, name)
        return place if self._is_shared(resources, container, name) else None

    def open_accumulator(
        self, session: str, resources: Resources, container: str, name: str, kind: AccumulatorKind
    ) -> RecordAddress | None:
        """Publish the accumulator of that name for additions by others, and make it if needed; None: that is impossible.

        Raises:
            InvalidArgumentError: the name belongs to another resource, or the accumulator is of another kind.
        """
        if not can_publish() or kind.dtype.np.hasobject:  # no memory can hold Python's objects for others
            return None
        found = resources.get_or_create(container, name, Accumulator, lambda: DenseAccumulator(name, kind))
        found.kind.check_same(kind, name)
        if not isinstance(found, DenseAccumulator):
            return None
        place = self.post(session, resources, container, name, "accumulator")
        if not self._is_shared(resources, container, name):
            return None
        with self._lock:
            self._shared.add(found)
        return place

    def _is_shared(self, resources: Resources, container: str, name: str) -> bool:
        """Whether a published resource is shared, if need be from now on."""
        resource = resources.find(container, name)
        if not isinstance(resource, Publishable):
            return False
        with self._lock:
            found = self._posts.get((id(resources), container, name))
            if found is not None and not resource.is_shared:  # the reason why it could not be may be gone
                resources.publish(container, name, found.value.share)
            return found is not None and resource.is_shared

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
            for key, found in list(self._posts.items()):
                found.sessions.discard(session)
                if not found.sessions:
                    self._withdraw(key)

    def close(self) -> None:
        """Withdraw all variables: none can be read from now on."""
        with self._lock:
            self._closed = True
            for key in list(self._posts):
                self._withdraw(key)
            for fd, lock_file in self._segments:
                if self._pid == process_id():
                    lock_file.close()
                    with contextlib.suppress(OSError):
                        os.close(fd)
            self._segments.clear()
            self._free.clear()
            self._fresh = iter(())

    def __len__(self) -> int:
        return len(self._posts)

    def _withdraw(self, key: tuple[int, str, str]) -> None:
        found = self._posts.pop(key)
        found.resources.publish(key[1], key[2], None)
        found.record.words[NUMBER] = 0
        if not found.value.is_stuck:
            self._free.append(found.record)

    def _record(self) -> _Record | None:
        if self._free:
            return self._free.pop()
        found = next(self._fresh, None)
        if found is None and can_publish():
            try:
                made = new_segment(RECORD_BYTES, RECORDS)
                place = RecordAddress(process_id(), made.fd, made.number, 0, 0)
                lock_file = LockFile(*place[:3])
            except (OSError, MappingError):
                return None
            self._segments.append((made.fd, lock_file))
            self._fresh = (
                _Record(words_of(made.memory, at), place._replace(offset=at), lock_file)
                for at in range(PAGE, PAGE + RECORDS * RECORD_BYTES, RECORD_BYTES)
            )
            found = next(self._fresh)
        return found


@dataclass(slots=True)
class _Record:
    """A record, its address without a number, and the owner's lock file of its segment."""

    words: memoryview
    place: RecordAddress
    lock_file: LockFile


@dataclass(slots=True)
class _Published:
    """A published variable and the sessions that it belongs to."""

    value: OwnSharedVariable
    resources: Resources
    record: _Record
    sessions: set[str]
