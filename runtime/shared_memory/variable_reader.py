"""Published variables, the reader's side: consistent copies of other processes' variables. `variable_publisher.py` has the theory."""

from __future__ import annotations

import math
import os
import select
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ...graph.core.interpreter_state import process_id
from ...graph.resources.buffer_pool import buffers
from ...placer.partition.one_sided_access import MOST_BYTES
from .record_layout import (
    MOST_DIMS,
    NUMBER,
    PAGE,
    RECORD_BYTES,
    SEQUENCE,
    SPARE,
    TURN,
    TYPES,
    VERSION,
    WHERE,
    RecordAddress,
    words_of,
)
from .segment import Mapper, MappingError, Reference

Array = np.ndarray[Any, Any]

SPINS: Final = 20  # attempts to read a changing value before the reader sleeps
NAPS: Final = 20
NAP_S: Final = 50e-6


class ProcessHandle:
    """A process whose variables are read here; shows whether it lives."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        self._is_us = pid == process_id()
        if not self._is_us:
            try:
                self._fd = os.pidfd_open(pid)
            except OSError as e:
                raise MappingError(f"process {pid}: {e.strerror}") from None

    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        if self._is_us:
            return True
        poll = select.poll()  # a poller per call: several threads may call this
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class SeqlockReader:
    """Reads a value that other processes change. The copy is consistent, and cached as long as the value does not change."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._last: tuple[int, int, Array] | None = None  # sequence number, turn, and the copy

    def places(self) -> Sequence[Array] | None:
        """The value in shared memory: the buffers of even and of odd turns; None: there is none."""
        raise NotImplementedError

    def read(self) -> Array | None:
        """A read-only copy of the value; None: there is no value, or it kept changing."""
        words = self._words
        for attempt in range(SPINS + NAPS):
            sequence = words[SEQUENCE]
            if not sequence & 1:
                turn = words[TURN]
                last = self._last
                if last is not None and last[0] == sequence and last[1] == turn:
                    return last[2]
                places = self.places()
                found = None
                if places is not None:
                    there = places[turn & 1]
                    found = buffers.empty(there.shape, there.dtype)
                    np.copyto(found, there)
                if words[TURN] == turn and words[SEQUENCE] == sequence:
                    if found is None:
                        self.forget()
                    else:
                        found.flags.writeable = False
                        self._last = sequence, turn, found
                    return found
            if attempt >= SPINS:
                time.sleep(NAP_S)  # also releases the GIL for other threads of this process
        return None

    def forget(self) -> None:
        """Drop the cached copy."""
        self._last = None


class _Layout(NamedTuple):
    """A decoded record: its version, both buffers of the value, and whether the variable is shared."""

    version: int
    places: tuple[Array, Array]
    is_opened: bool


class VariableReader(SeqlockReader):
    """Reads one published variable of another process, or of this one.

    Args:
        place: the address of its record.
        dtype: the element type that the value must have.

    Raises:
        MappingError: this process cannot or should not read the memory.
    """

    def __init__(self, place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> None:
        self.place = place
        self.owner = _owner(place.pid)  # before the memory, so that both are the same process
        memory = borrower.map(Reference(place.pid, place.fd, place.segment, 0, place.offset))
        if place.offset < PAGE or place.offset % 8 or place.offset + RECORD_BYTES > len(memory):
            raise MappingError("a record beyond its segment")
        super().__init__(words_of(memory, place.offset))
        self._dtype = dtype
        self._borrower = borrower
        self._look: _Layout | None = None

    @property
    def words(self) -> memoryview:
        """The record."""
        return self._words

    def places(self) -> Sequence[Array] | None:
        """As `SeqlockReader.places`. Only valid if the sequence number is still the same afterwards."""
        look = self._seen()
        return None if look is None else look.places

    def opened(self) -> Sequence[Array] | None:
        """The buffers of a shared variable; None: it is not there, or not shared."""
        look = self._seen()
        return look.places if look is not None and look.is_opened else None

    def _seen(self) -> _Layout | None:
        words, look = self._words, self._look
        version = words[VERSION]
        if version == 0 or words[NUMBER] != self.place.number:
            return None
        if look is None or look.version != version:
            spare, described = words[SPARE], words[WHERE:].tolist()
            if words[VERSION] != version:
                return None
            try:
                look = _Layout(version, self._found(described, spare), spare > 0)
            except MappingError:
                return None
            self._look = look
        return look

    def _found(self, described: Sequence[int], spare: int) -> tuple[Array, Array]:
        """The buffers of the value, after a check of everything in the record."""
        fd, segment, offset, size, code, rank, *dims = described
        if code >= len(TYPES) or TYPES[code].np != self._dtype or rank > MOST_DIMS:
            raise MappingError("a value of another type")
        shape = tuple(dims[:rank])
        memory = self._borrower.map(Reference(self.owner.pid, fd, segment, 0, offset))
        if size > MOST_BYTES or math.prod(shape) * self._dtype.itemsize != size:
            raise MappingError("a value whose size is not that of its shape")
        if offset < PAGE or offset + spare + size > len(memory) or 0 < spare < size or spare % 8:
            raise MappingError("a value beyond its segment")
        first = np.ndarray(shape, self._dtype, memory, offset)
        return first, np.ndarray(shape, self._dtype, memory, offset + spare) if spare else first

    def forget(self) -> None:
        """Drop all references to the owner's memory but the record."""
        super().forget()
        self._look = None


class Readable(Protocol):
    """An item that `VariableReaders` reads: a variable's value, or a variable that is changed remotely."""

    owner: ProcessHandle

    def read(self) -> Any:
        """The value or variable; None if there is none."""

    def forget(self) -> None:
        """Release what belongs to the owner: its process has ended."""


class VariableReaders:
    """Several published variables, read together before a program starts.

    >>> values = VariableReaders([reader])()
    """

    def __init__(self, readers: Iterable[Readable | None]) -> None:
        self._readers_in_order = tuple(readers)
        self._owners = tuple(
            {found.owner.pid: found.owner for found in self._readers_in_order if found is not None}.values()
        )

    def __call__(self) -> list[Any]:
        """The values; None where a value cannot be read, or its process has ended."""
        dead = [owner.pid for owner in self._owners if not owner.is_alive()]
        if not dead:
            return [None if found is None else found.read() for found in self._readers_in_order]
        values: list[Any] = []
        for found in self._readers_in_order:
            if found is not None and found.owner.pid in dead:
                found.forget()
                found = None
            values.append(None if found is None else found.read())
        return values


_owners: weakref.WeakValueDictionary[int, ProcessHandle] = weakref.WeakValueDictionary()
_readers: weakref.WeakValueDictionary[tuple[RecordAddress, np.dtype[Any]], VariableReader] = (
    weakref.WeakValueDictionary()
)
_opening = threading.Lock()


def _owner(pid: int) -> ProcessHandle:
    """The handle of a process, shared by all readers; a new one if that process has ended."""
    found = _owners.get(pid)
    if found is None or not found.is_alive():
        found = _owners[pid] = ProcessHandle(pid)
    return found


def reader_of(place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> VariableReader:
    """The reader of a record, shared by all programs of this process. MappingError: as `VariableReader`."""
    with _opening:
        key = place, dtype
        found = _readers.get(key)
        if found is None:
            found = _readers[key] = VariableReader(place, dtype, borrower)
        return found


__all__ = ["VariableReader", "VariableReaders", "ProcessHandle", "Readable", "SeqlockReader", "reader_of"]
