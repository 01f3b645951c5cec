"""Posts: a task's variables, where other processes of its machine can read them without asking.

Theory of operation. A *post* is a record in shared memory that says where the value of one variable lies, and how often it has
changed. Its owner, the task that has the variable, keeps it (`Post`, told by `graph/state.py`); others copy the value from where it
lies (`Lookout`), without a message to anybody. The record begins with a *sequence number* (a seqlock, as in Linux): it is odd while
the value changes or moves. Who reads looks at the number, copies, and looks again: where it is even and the same, the copy is a value
that the variable had in between; else he tries again, and after some time gives up, and has the value sent as any tensor.

    record     sequence number | the post's number | version of the rest; 0: there is nothing to read
               descriptor and number of the segment, offset, bytes, element type, dimensions

It says that there is nothing where the variable has no value, where that is larger than `MOST_BYTES` or lies elsewhere (the pool has
no room, or it is on a GPU), and when variable, session or server have gone. A record may be used again for another post: that
has another number. A value may be overwritten while somebody copies it, and memory that it was in may be used for something
else: then the sequence number has changed. Memory that was mapped stays readable as long as it is mapped.

The order of stores and loads matters. Each is a call of its own here, so compilers keep it; processors do where loads are not
exchanged with loads nor stores with stores: on x86, but not on ARM, where there are no posts therefore.

A process that has ended leaves its memory to those who have mapped it, with values that nobody changes any more. So before each
reading the owner is asked for, which costs a microsecond (a file descriptor that stands for its process, `pidfd_open`). One that is
only stopped (SIGSTOP) has its variables read; unless it was stopped while it changed one.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import platform
import secrets
import select
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ..codegen.buffers import buffers
from ..graph import dtypes
from ..graph.process import process_id
from ..graph.state import Resources
from .shared_memory import Borrower, Reference, Unreadable, new_segment, where

Array = np.ndarray[Any, Any]

MOST_BYTES: Final = 1 << 20
"""Larger values are better lent: a copy of them costs more than two messages."""

_PAGE: Final = 4096
_BYTES: Final = 128  # of a record: two cache lines
_RECORDS: Final = 512  # in a segment
_SEQUENCE, _NUMBER, _VERSION, _WHERE = 0, 1, 2, 3  # words of 64 bits
_HEAD: Final = 6  # words of `_WHERE` before the dimensions: descriptor, segment, offset, bytes, type, rank
_MOST_DIMS: Final = _BYTES // 8 - _WHERE - _HEAD

_TYPES: Final = tuple(t for t in dtypes.ALL if t.np.kind != "O" and t is not dtypes.resource)
_CODES: Final = {t.np: i for i, t in enumerate(_TYPES)}

_ORDERED: Final = frozenset(("x86_64", "AMD64", "i686", "i386"))
"""Machines whose processors keep the order of stores, and that of loads."""

SPINS: Final = 20  # looks at a value that changes before the reader lets others have the core
NAPS: Final = 20
NAP_S: Final = 50e-6


def can_post() -> bool:
    """Whether this machine and system have what posts need."""
    return platform.machine() in _ORDERED and hasattr(os, "pidfd_open")


class Place(NamedTuple):
    """Where a post is: its record, as a reference to shared memory names it, and its number."""

    pid: int
    fd: int
    segment: int
    offset: int
    number: int

    @classmethod
    def from_fields(cls, fields: Any) -> Place:
        """From a message's plain data. ValueError: it is malformed."""
        if (
            type(fields) not in (list, tuple)
            or len(fields) != 5
            or any(type(x) is not int or not 0 <= x < 1 << 63 for x in fields)
        ):
            raise ValueError(f"not the place of a post: {fields!r:.80}")
        return cls(*fields)


def _words(memory: mmap.mmap, offset: int) -> memoryview:
    return memoryview(memory)[offset : offset + _BYTES].cast("Q")


# --- the owner's side ------------------------------------------------------------------------------------------------


class Post:
    """A variable's record, for the task that has the variable. Its calls are made by who holds the variable's lock."""

    __slots__ = ("_pid", "_sequence", "_there", "_version", "_words", "place")

    def __init__(self, words: memoryview, place: Place) -> None:
        self._words, self.place = words, place
        self._pid = place.pid
        self._sequence = words[_SEQUENCE] & ~1  # a record that is used again goes on counting
        self._version = words[_VERSION]
        self._there: tuple[int, ...] | None = None
        self.change()
        words[_NUMBER] = place.number
        words[_VERSION] = 0
        self.show(None)

    def change(self) -> None:
        """As `memory.Post.change`."""
        if not self._sequence & 1 and self._pid == process_id():  # a forked child has the memory, but it is not its own
            self._sequence += 1
            self._words[_SEQUENCE] = self._sequence

    def changed(self) -> None:
        """As `memory.Post.changed`."""
        if self._sequence & 1 and self._pid == process_id():
            self._sequence += 1
            self._words[_SEQUENCE] = self._sequence

    def show(self, value: Array | None) -> None:
        """As `memory.Post.show`."""
        if self._pid != process_id():
            return
        there = None if value is None else _there(value)
        words = self._words
        if not self._sequence & 1:
            self._sequence += 1
            words[_SEQUENCE] = self._sequence
        if there != self._there:
            self._there = there
            if there is None:
                words[_VERSION] = 0
            else:
                for i, word in enumerate(there, _WHERE):
                    words[i] = word
                self._version += 1
                words[_VERSION] = self._version
        self._sequence += 1
        words[_SEQUENCE] = self._sequence


def _there(value: Array) -> tuple[int, ...] | None:
    """What a record says of a value; None: it cannot be read."""
    code = _CODES.get(value.dtype)
    if code is None or value.nbytes > MOST_BYTES or value.ndim > _MOST_DIMS:
        return None
    found = where(value)
    return None if found is None else (*found, value.nbytes, code, value.ndim, *value.shape)


class Posts:
    """All posts of one task. Each belongs to the sessions that have asked for it. Safe to use from several threads."""

    def __init__(self) -> None:
        self._fresh: Iterator[tuple[memoryview, Reference]] = iter(())  # records of the latest segment
        self._free: list[tuple[memoryview, Reference]] = []  # that have been used
        self._segments: list[tuple[int, int]] = []  # descriptors, and the process that made them
        self._posts: dict[tuple[int, str, str], _Owned] = {}
        self._closed = False
        self._lock = threading.Lock()

    def post(self, session: str, resources: Resources, container: str, name: str) -> Place | None:
        """Have the variable of that name posted, which need not be there yet; None: that cannot be done."""
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
                place = Place(at.pid, at.fd, at.number, at.offset, secrets.randbits(62) | 1)
                owned = self._posts[key] = _Owned(Post(words, place), resources, found, set())
                resources.post(container, name, owned.post)
            owned.sessions.add(session)
            return owned.post.place

    def close_session(self, session: str) -> None:
        """Forget what only this session has asked for."""
        with self._lock:
            for key, owned in list(self._posts.items()):
                owned.sessions.discard(session)
                if not owned.sessions:
                    self._take_down(key)

    def close(self) -> None:
        """Take all down: nothing can be read from now on."""
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
        owned.record[0][_NUMBER] = 0
        self._free.append(owned.record)

    def _record(self) -> tuple[memoryview, Reference] | None:
        if self._free:
            return self._free.pop()
        found = next(self._fresh, None)
        if found is None:
            try:
                made = new_segment(_BYTES, _RECORDS)
            except OSError:
                return None
            self._segments.append((made.fd, process_id()))
            self._fresh = (
                (_words(made.memory, at), Reference(process_id(), made.fd, made.number, 0, at))
                for at in range(_PAGE, _PAGE + _RECORDS * _BYTES, _BYTES)
            )
            found = next(self._fresh)
        return found


@dataclass(slots=True)
class _Owned:
    """A post, and whose it is."""

    post: Post
    resources: Resources
    record: tuple[memoryview, Reference]
    sessions: set[str]


# --- the readers' side -----------------------------------------------------------------------------------------------


class Owner:
    """A process whose variables are read: whether it is still there."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        self._is_us = pid == process_id()
        if not self._is_us:
            try:
                self._fd = os.pidfd_open(pid)
            except OSError as e:
                raise Unreadable(f"process {pid}: {e.strerror}") from None

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


class _Look(NamedTuple):
    """What a record said: its version, and the value as it lies there."""

    version: int
    value: Array


class Lookout:
    """Reads one post of another process, or of this one.

    Args:
        place: where the post is.
        dtype: element type that the value must have.

    Raises:
        Unreadable: this process cannot or should not read what is there.
    """

    def __init__(self, place: Place, dtype: np.dtype[Any], borrower: Borrower) -> None:
        self._dtype = dtype
        self._number = place.number
        self._borrower = borrower
        self.owner = _owner(
            place.pid
        )  # before the memory: what is found there then is this process's, and no later one's
        memory = borrower.map(Reference(place.pid, place.fd, place.segment, 0, place.offset))
        if place.offset < _PAGE or place.offset % 8 or place.offset + _BYTES > len(memory):
            raise Unreadable("a post beyond its segment")
        self._words = _words(memory, place.offset)
        self._look: _Look | None = None
        self._last: tuple[int, Array] | None = None  # what was read last, and with which sequence number

    def read(self) -> Array | None:
        """A snapshot of the value, not to be changed; None: there is nothing that could be read.

        It gives the same array again as long as the value has not changed.
        """
        words = self._words
        for attempt in range(SPINS + NAPS):
            sequence = words[_SEQUENCE]
            if not sequence & 1:
                last = self._last
                if last is not None and last[0] == sequence:
                    return last[1]
                found = self._copy(words)
                if words[_SEQUENCE] == sequence:
                    if found is None:
                        self._look = self._last = None
                    else:
                        found.flags.writeable = False
                        self._last = sequence, found
                    return found
            if attempt >= SPINS:
                time.sleep(NAP_S)  # also lets another thread of this process have the interpreter
        return None

    def _copy(self, words: memoryview) -> Array | None:
        """The value, if the sequence number is still the same afterwards; it may be anything otherwise."""
        version, look = words[_VERSION], self._look
        if version == 0 or words[_NUMBER] != self._number:
            return None
        if look is None or look.version != version:
            described = words[_WHERE:].tolist()
            if words[_VERSION] != version:
                return None
            try:
                look = _Look(version, self._found(described))
            except Unreadable:
                return None
            self._look = look
        there = look.value
        value = buffers.empty(there.shape, there.dtype)
        np.copyto(value, there)
        return value

    def _found(self, described: Sequence[int]) -> Array:
        """The value as it lies there; nothing that a record says is believed."""
        fd, segment, offset, size, code, rank, *dims = described
        if code >= len(_TYPES) or _TYPES[code].np != self._dtype or rank > _MOST_DIMS:
            raise Unreadable("a value of another type")
        shape = tuple(dims[:rank])
        memory = self._borrower.map(Reference(self.owner.pid, fd, segment, 0, offset))
        if size > MOST_BYTES or math.prod(shape) * self._dtype.itemsize != size:
            raise Unreadable("a value whose size is not that of its shape")
        if offset < _PAGE or offset + size > len(memory):
            raise Unreadable("a value beyond its segment")
        return np.ndarray(shape, self._dtype, memory, offset)

    def forget(self) -> None:
        """Keep nothing of the owner's memory but the record."""
        self._look = self._last = None


class Lookouts:
    """Several posts, read together: what a program reads before it begins.

    >>> values = Lookouts([lookout])()
    """

    def __init__(self, lookouts: Iterable[Lookout | None]) -> None:
        self._lookouts = tuple(lookouts)
        self._owners = tuple({found.owner.pid: found.owner for found in self._lookouts if found is not None}.values())

    def __call__(self) -> list[Array | None]:
        """The values; None: that one cannot be read, or its process has ended."""
        dead = [owner.pid for owner in self._owners if not owner.is_alive()]
        if not dead:
            return [None if found is None else found.read() for found in self._lookouts]
        values: list[Array | None] = []
        for found in self._lookouts:
            if found is not None and found.owner.pid in dead:
                found.forget()
                found = None
            values.append(None if found is None else found.read())
        return values


_owners: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()
_lookouts: weakref.WeakValueDictionary[tuple[Place, np.dtype[Any]], Lookout] = weakref.WeakValueDictionary()
_opening = threading.Lock()


def _owner(pid: int) -> Owner:
    """One for each process, as long as somebody reads there; another one where that has ended."""
    found = _owners.get(pid)
    if found is None or not found.is_alive():
        found = _owners[pid] = Owner(pid)
    return found


def lookout(place: Place, dtype: np.dtype[Any], borrower: Borrower) -> Lookout:
    """What reads a post: the same for all programs of this process. Unreadable: as `Lookout`."""
    with _opening:
        key = place, dtype
        found = _lookouts.get(key)
        if found is None:
            found = _lookouts[key] = Lookout(place, dtype, borrower)
        return found


__all__ = ["MOST_BYTES", "Lookout", "Lookouts", "Owner", "Place", "Post", "Posts", "can_post", "lookout"]
