"""Published variables, the reader's side: whole copies of other processes' variables. `variable_publisher.py` has the theory."""

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
from .record_layout import (
    MOST_BYTES,
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

SPINS: Final = 20  # looks at a value that changes before the reader lets others have the core
NAPS: Final = 20
NAP_S: Final = 50e-6


class ProcessHandle:
    """A process whose variables are read: whether it is still there."""

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
        poll = select.poll()  # one of its own: several threads may ask
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class SeqlockReader:
    """Reads a value that others change: a copy that is whole, and the same array again as long as it has not changed."""

    def __init__(self, words: memoryview) -> None:
        self._words = words
        self._last: tuple[int, int, Array] | None = None  # sequence number, turn, and what was read then

    def places(self) -> Sequence[Array] | None:
        """The value as it lies there: where it is in even turns, and in odd ones; None: there is none."""
        raise NotImplementedError

    def read(self) -> Array | None:
        """A snapshot of the value, not to be changed; None: there is nothing that could be read."""
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
                time.sleep(NAP_S)  # also lets another thread of this process have the interpreter
        return None

    def forget(self) -> None:
        """Keep no value."""
        self._last = None


class _Layout(NamedTuple):
    """What a record said: its version, and the value as it lies there, in both places."""

    version: int
    places: tuple[Array, Array]
    is_opened: bool


class VariableReader(SeqlockReader):
    """Reads one post of another process, or of this one.

    Args:
        place: where the post is.
        dtype: element type that the value must have.

    Raises:
        Unreadable: this process cannot or should not read what is there.
    """

    def __init__(self, place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> None:
        self.place = place
        self.owner = _owner(place.pid)  # before the memory, which then is this process's, and no later one's
        memory = borrower.map(Reference(place.pid, place.fd, place.segment, 0, place.offset))
        if place.offset < PAGE or place.offset % 8 or place.offset + RECORD_BYTES > len(memory):
            raise MappingError("a post beyond its segment")
        super().__init__(words_of(memory, place.offset))
        self._dtype = dtype
        self._borrower = borrower
        self._look: _Layout | None = None

    @property
    def words(self) -> memoryview:
        """The record."""
        return self._words

    def places(self) -> Sequence[Array] | None:
        """As `Snapshots.places`, if the sequence number is still the same afterwards; it may be anything otherwise."""
        look = self._seen()
        return None if look is None else look.places

    def opened(self) -> Sequence[Array] | None:
        """The places of an opened variable; None: it is not there, or not opened."""
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
        """The value as it lies there; nothing that a record says is believed."""
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
        """Keep nothing of the owner's memory but the record."""
        super().forget()
        self._look = None


class Readable(Protocol):
    """What `VariableReaders` reads: a variable's value, or its place."""

    owner: ProcessHandle

    def read(self) -> Any:
        """It, or None."""

    def forget(self) -> None:
        """Its owner has gone."""


class VariableReaders:
    """Several posts, read together: what a program reads before it begins.

    >>> values = VariableReaders([reader])()
    """

    def __init__(self, readers: Iterable[Readable | None]) -> None:
        self._readers_in_order = tuple(readers)
        self._owners = tuple({found.owner.pid: found.owner for found in self._readers_in_order if found is not None}.values())

    def __call__(self) -> list[Any]:
        """The values; None: that one cannot be read, or its process has ended."""
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
    """One for each process, as long as somebody reads there; another one where that has ended."""
    found = _owners.get(pid)
    if found is None or not found.is_alive():
        found = _owners[pid] = ProcessHandle(pid)
    return found


def reader_of(place: RecordAddress, dtype: np.dtype[Any], borrower: Mapper) -> VariableReader:
    """What reads a post: the same for all programs of this process. Unreadable: as `VariableReader`."""
    with _opening:
        key = place, dtype
        found = _readers.get(key)
        if found is None:
            found = _readers[key] = VariableReader(place, dtype, borrower)
        return found


__all__ = ["VariableReader", "VariableReaders", "ProcessHandle", "Readable", "SeqlockReader", "reader_of"]
