"""Other processes' variables: reading them, and using them like variables of this process. `shared_variable.py` has the theory.

The memory of a process that has ended stays with the processes that mapped it, with stale values. So a reader checks before
each read that the owner lives, which costs 1 µs (`pidfd_open`). Variables of a stopped process (SIGSTOP) are readable. Nothing that a
record says is believed unchecked.
"""

from __future__ import annotations

import math
import os
import select
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import Array, DType
from ...graph.resources.accumulator import AccumulatorKind, RemoteAccumulator
from ...graph.resources.shared_accumulator import state_bytes
from ...graph.resources.variable import VariableState
from ...placer.partition.one_sided_access import MOST_BYTES
from .segment import PAGE, Mapper, MappingError, Reference
from .shared_variable import (
    MOST_DIMS,
    NUMBER,
    RECORD_BYTES,
    TYPES,
    VERSION,
    WHERE,
    Layout,
    LockFile,
    RecordAddress,
    SharedVariable,
    words_of,
)


class ProcessHandle:
    """A process whose variables are read here; shows whether it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._fd = os.pidfd_open(pid)
        except (OSError, OverflowError) as e:
            raise MappingError(f"process {pid}: {e}") from None
        weakref.finalize(self, os.close, self._fd)

    def is_alive(self) -> bool:
        poll = select.poll()  # a poller per call: several threads may call this
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)


class RemoteSharedVariable(SharedVariable):
    """The end of a record in another process than its owner's, or in another part of that one.

    Args:
        dtype: the element type that the value must have.

    Raises:
        MappingError: this process cannot or should not read the memory.
    """

    def __init__(self, place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> None:
        self.owner = _owner(place.pid)  # before the memory, so that both are the same process
        memory = borrower.map(Reference(place.pid, place.fd, place.segment, 0, place.offset)).memory
        if place.offset < PAGE or place.offset % 8 or place.offset + RECORD_BYTES > len(memory):
            raise MappingError("a record beyond its segment")
        super().__init__(place, words_of(memory, place.offset), "A variable of another task")
        self._dtype = dtype
        self._borrower = borrower
        self._layout: Layout | None = None

    def layout(self) -> Layout | None:
        words, layout = self.words, self._layout
        version = words[VERSION]
        if version & 1 or words[NUMBER] != self.place.number:
            return None
        if layout is None or layout.version != version:
            try:  # what an owner writes meanwhile goes under a later version
                layout = self._layout = Layout(version, self._found(words[WHERE:].tolist()))
            except MappingError:
                return None
        return layout

    def _found(self, described: Sequence[int]) -> tuple[Array, Array]:
        """The buffers of the value, after a check of everything in the record."""
        fd, segment, offset, spare, size, code, rank, *dims = described
        if code >= len(TYPES) or TYPES[code].np != self._dtype or rank > MOST_DIMS:
            raise MappingError("a value of another type")
        shape = tuple(dims[:rank])
        memory = self._borrower.map(Reference(self.owner.pid, fd, segment, 0, offset)).memory
        if size > MOST_BYTES or math.prod(shape) * self._dtype.itemsize != size:
            raise MappingError("a value whose size is not that of its shape")
        if offset < PAGE or offset + spare + size > len(memory) or not size <= spare or spare % 8:
            raise MappingError("a value beyond its segment")
        first, second = (np.ndarray(shape, self._dtype, memory, at) for at in (offset, offset + spare))
        return first, second

    def forget(self) -> None:
        """Drop all references to the owner's memory but the record: its process has ended."""
        self._last = self._layout = None
        if self.lock_file is not None:
            self.lock_file.close()


class RemoteVariable:
    """A variable or accumulator of another task that is changed in place. A program looks it up before it starts.

    Args:
        kind: a variable's element type, or an accumulator's kind.
        wake: wakes the task, which waits for gradients.

    Raises:
        MappingError: this process cannot or should not map it.
    """

    def __init__(
        self, place: RecordAddress, kind: DType | AccumulatorKind, name: str, task: str, borrower: Mapper,
        wake: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.value = reader_of(place, kind.np if isinstance(kind, DType) else _BYTES, borrower)
        self.owner = self.value.owner
        self._bytes = None if isinstance(kind, DType) else state_bytes(kind.shape, kind.dtype.np)
        with _opening:
            if self.value.lock_file is None:
                segment = place[:3]
                self.value.lock_file = _lock_files.get(segment) or _lock_files.setdefault(segment, LockFile(*segment))
                self.value.on_full = wake
                self.value.label = f"The {'variable' if isinstance(kind, DType) else 'accumulator'} '{name}' of {task}"
            state = _states.get((place, kind))
            if state is None:
                if isinstance(kind, DType):
                    state = VariableState(name, kind)
                    state.reach(self.value)
                else:
                    state = RemoteAccumulator(name, kind, self.value)
                _states[place, kind] = state
        self._state = state

    def read(self) -> VariableState | RemoteAccumulator | None:
        """The variable or accumulator; None: it is not shared now, or has no value."""
        layout = self.value.layout()
        return None if layout is None or self._bytes not in (None, layout.buffers[0].nbytes) else self._state

    def forget(self) -> None:
        """Release it: its owner is gone."""
        self.value.forget()


class VariableReaders:
    """Several published variables, read together before a program starts.

    >>> values = VariableReaders([reader])()
    """

    def __init__(self, readers: Iterable[RemoteSharedVariable | RemoteVariable | None]) -> None:
        self._readers = tuple(readers)
        self._owners = tuple({r.owner.pid: r.owner for r in self._readers if r is not None}.values())

    def __call__(self) -> list[Any]:
        """The values; None where a value cannot be read, or its process has ended."""
        dead = {owner.pid for owner in self._owners if not owner.is_alive()}
        values: list[Any] = []
        for found in self._readers:
            if found is not None and found.owner.pid in dead:
                found.forget()
                found = None
            values.append(None if found is None else found.read())
        return values


_BYTES = np.dtype(np.uint8)
_owners: weakref.WeakValueDictionary[int, ProcessHandle] = weakref.WeakValueDictionary()
_readers: weakref.WeakValueDictionary[tuple[RecordAddress, np.dtype[Any]], RemoteSharedVariable] = (
    weakref.WeakValueDictionary()
)
_states: weakref.WeakValueDictionary[
    tuple[RecordAddress, DType | AccumulatorKind], VariableState | RemoteAccumulator
] = weakref.WeakValueDictionary()
_lock_files: weakref.WeakValueDictionary[tuple[int, ...], LockFile] = weakref.WeakValueDictionary()  # by segment
_opening = threading.Lock()


def _owner(pid: int) -> ProcessHandle:
    """The handle of a process, shared by all readers; a new one if that process has ended."""
    found = _owners.get(pid)
    if found is None or not found.is_alive():
        found = _owners[pid] = ProcessHandle(pid)
    return found


def reader_of(place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> RemoteSharedVariable:
    """The end of a record that all programs of this process share. MappingError: as `RemoteSharedVariable`."""
    with _opening:
        key = place, dtype
        found = _readers.get(key)
        if found is None:
            found = _readers[key] = RemoteSharedVariable(place, dtype, borrower)
        return found
