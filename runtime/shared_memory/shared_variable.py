"""Shared variables: double-buffered variables that several processes change in place, each guarded by a cross-process file lock.

Theory of operation. The owner of a variable *shares* it (`variable_publisher.py`): its value gets two adjacent buffers in shared
memory, and the record's *turn* says which of them holds the value. To change the variable, the owner or another process

    takes the variable's lock in its own process, and then the file lock,
    writes the new value into the other buffer, computed from the current one,
    increments the turn, which is one store and makes the new value visible,
    releases the locks.

So one buffer always holds a complete value, whichever process dies at whichever point. A killed process leaves nothing to repair: before
the store nothing has changed, after it everything has. Readers copy the current buffer and check the turn again. They never
wait, not even for a process that was stopped during a change.

The file lock is an open-file-description lock (`F_OFD_SETLK`) on the record's bytes of the segment's file. Lock and unlock are two
system calls, together 1 µs, and the kernel releases it when its holder ends. Each process has its own file description for it. A process
that cannot get the lock retries for `LOCK_TIMEOUT_S`, then fails with UnavailableError: the holder was stopped. Several variables are
locked in the order of their addresses, which is the same in all processes.

Only the record names the buffers, and it is read again under the lock. So an owner that ends the sharing (for a new
shape, or a closed session) needs the lock once, and then changes the record. If a stopped process holds the lock, the memory
that it may still write is kept until it releases the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import DType
from ...graph.core.errors import AbortedError, FailedPreconditionError, UnavailableError
from ...graph.core.interpreter_state import process_id
from ...graph.resources import shared_storage
from ...graph.resources.accumulator import AccumulatorKind, RemoteAccumulator
from ...graph.resources.shared_accumulator import state_bytes
from ...graph.resources.variable import VariableState
from ...placer.partition.one_sided_access import MOST_BYTES
from ..timeouts import CLOSE_LOCK_TIMEOUT_S, LOCK_TIMEOUT_S
from .record_layout import HOLDER, RECORD_BYTES, TURN, WANTED, RecordAddress, can_publish
from .segment import Mapper, MappingError
from .variable_reader import ProcessHandle, SeqlockReader, VariableReader, reader_of

Array = np.ndarray[Any, Any]

_FIRST_NAP_S, _LAST_NAP_S = 20e-6, 1e-3
_SETLK = 37  # F_OFD_SETLK
_FLOCK = "hhqqi4x"  # type, whence, start, length, 0
_LINE = 64


def can_share() -> bool:
    """Whether this machine and system support shared variables."""
    return can_publish() and platform.machine() in ("x86_64", "AMD64") and hasattr(fcntl, "F_WRLCK")


class LockFile:
    """This process's own file description of a segment, for file locks. Closed with its last user.

    Raises:
        MappingError: it cannot be opened, or is another segment.
    """

    def __init__(self, pid: int, fd: int, segment: int) -> None:
        self.fd = -1
        path = f"/proc/{pid}/fd/{fd}"
        try:
            self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            number = int.from_bytes(os.pread(self.fd, 8, 0), sys.byteorder)
        except OSError as e:
            raise MappingError(f"{path}: {e.strerror}") from None
        if number != segment:
            raise MappingError(f"{path} is another segment than the one meant")
        _lock_files.add(self)

    def close(self) -> None:
        """Close the file description, which releases its locks."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close


_lock_files: weakref.WeakSet[LockFile] = weakref.WeakSet()


def _forked() -> None:
    """Drop inherited file descriptions in a forked child: they would keep the locks of a killed parent."""
    for door in list(_lock_files):
        door.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class SharedVariable:
    """A shared variable, as one process sees it; implements `SharedSumValue`. The caller holds the variable's lock.

    Args:
        place: the address of the record.
        words: the record.
        door: the file description for its lock.
        label: the variable in error messages.
        wake: wakes the task that it belongs to, if that is another one.
    """

    def __init__(
        self,
        place: RecordAddress,
        words: memoryview,
        door: LockFile,
        snapshots: SeqlockReader,
        label: str,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.key: tuple[int, ...] = place[:4]
        self.label = label
        self._words, self._door, self._snapshots = words, door, snapshots
        at = place.offset
        self._taking, self._leaving = (
            struct.pack(_FLOCK, kind, os.SEEK_SET, at, RECORD_BYTES, 0) for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK)
        )
        self._pid = process_id()
        self._wake = wake
        self._places: Sequence[Array] = ()  # valid while the lock is held

    def places(self) -> Sequence[Array] | None:
        """Both buffers, for the holder of the cross-process lock; None: the variable is not shared any more."""
        raise NotImplementedError

    @property
    def is_there(self) -> bool:
        """As `SharedValue.is_there`."""
        return True

    def read(self) -> Array | None:
        """As `SharedValue.read`."""
        return self._snapshots.read()

    def acquire(self) -> None:
        """As `SharedValue.acquire`."""
        self._lock(LOCK_TIMEOUT_S)
        places = self.places()
        if places is None:
            self._unlock()
            raise self.gone()
        self._places = places

    def release(self) -> None:
        """As `SharedValue.release`."""
        self._places = ()
        self._unlock()

    def fits(self, value: Array) -> bool:
        """As `SharedValue.fits`."""
        return bool(value.shape == self._places[0].shape)

    def begin(self, copied: bool = True) -> Array:
        """As `SharedValue.begin`."""
        old, new = self.both()
        if copied:
            np.copyto(new, old)
        return new

    def both(self) -> tuple[Array, Array]:
        """As `SharedValue.both`."""
        turn = self._words[TURN] & 1
        return self._places[turn], self._places[1 - turn]

    def end(self) -> None:
        """As `SharedValue.end`."""
        self._words[TURN] += 1

    @property
    def wanted(self) -> int:
        """As `SharedSumValue.wanted`."""
        return self._words[WANTED]

    @wanted.setter
    def wanted(self, count: int) -> None:
        self._words[WANTED] = count

    def glance(self) -> Array | None:
        """As `SharedSumValue.glance`."""
        places = self.places()
        return None if places is None else places[self._words[TURN] & 1]

    def wake(self) -> None:
        """As `SharedSumValue.wake`."""
        self._wake()

    def close(self) -> Array:
        """As `SharedValue.close`."""
        raise AbortedError(None, None, f"{self.label} can be given another shape by the task alone that it belongs to")

    def closed(self) -> None:
        """As `SharedValue.closed`."""

    # --- the cross-process lock ------------------------------------------------------------------------------------

    def _lock(self, patience_s: float) -> None:
        if self._pid != process_id():
            raise FailedPreconditionError(
                None,
                None,
                f"{self.label} belongs to the process from which this one was forked, and is not its to change",
            )
        if not self._tries():
            until, nap = time.monotonic() + patience_s, _FIRST_NAP_S
            while True:
                time.sleep(nap)
                if self._tries():
                    break
                if time.monotonic() > until:
                    raise UnavailableError(
                        None, None,
                        f"{self.label} is being changed by process {self._words[HOLDER]}, which has not let go of it for "
                        f"{patience_s:g} s. Has it been stopped?",
                    )  # fmt: skip
                nap = min(2 * nap, _LAST_NAP_S)
        self._words[HOLDER] = self._pid

    def _tries(self) -> bool:
        """Try to take the cross-process lock."""
        fd = self._door.fd
        if fd < 0:  # the owner is gone
            raise self.gone()
        try:
            fcntl.fcntl(fd, _SETLK, self._taking)
        except OSError as e:
            if e.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise self.gone() from None
        return True

    def _unlock(self) -> None:
        if self._door.fd >= 0:  # closed in a forked child, or where the owner is gone
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._door.fd, _SETLK, self._leaving)

    def gone(self) -> AbortedError:
        """As `SharedValue.gone`."""
        return AbortedError(
            None, None,
            f"{self.label} is not any more where this step found it: it was made anew or given another shape, or its session was closed "
            "there. Run again.",
        )  # fmt: skip


# --- the owner's side ------------------------------------------------------------------------------------------------


class _OwnReader(SeqlockReader):
    """Reads a shared variable of this process."""

    def __init__(self, words: memoryview, places: Sequence[Array]) -> None:
        super().__init__(words)
        self._places = places

    def places(self) -> Sequence[Array]:
        return self._places


class OwnSharedVariable(SharedVariable):
    """A shared variable of this process.

    Args:
        value: its current value, which is copied. The record is not changed yet.

    Raises:
        MemoryError: no shared memory is left.
    """

    def __init__(self, place: RecordAddress, words: memoryview, door: LockFile, value: Array, label: str) -> None:
        self.spare = -(-value.nbytes // _LINE) * _LINE
        block = shared_storage.shared_empty(2 * self.spare) if 0 < value.nbytes <= MOST_BYTES else None
        if block is None:
            raise MemoryError
        first, second = (block[at : at + value.nbytes].view(value.dtype).reshape(value.shape) for at in (0, self.spare))
        np.copyto(first, value)
        self.first = first
        super().__init__(place, words, door, _OwnReader(words, (first, second)), label)
        self._both = first, second
        self.is_stuck = False

    def places(self) -> Sequence[Array]:
        """As `SharedVariable.places`."""
        return self._both

    def close(self) -> Array:
        """As `SharedValue.close`. From now on only the current lock holder can change the value.

        The record is changed before `closed` releases the cross-process lock.
        """
        if not self._places:
            try:
                self._lock(0.0 if _stuck else CLOSE_LOCK_TIMEOUT_S)
            except UnavailableError:
                self.is_stuck = True  # a stopped process may write there when it continues
                _stuck.append(self)
        self._places = ()
        return shared_storage.kept_copy(self._both[self._words[TURN] & 1], posted=True)

    def closed(self) -> None:
        """As `SharedValue.closed`."""
        if not self.is_stuck:
            self._unlock()

    def try_to_settle(self) -> bool:
        """Whether no process holds the lock any more."""
        try:
            self._lock(0.0)
        except UnavailableError:
            return False
        self._unlock()
        self.is_stuck = False
        return True


_stuck: list[OwnSharedVariable] = []


def release_stuck() -> None:
    """Release memory that stopped processes could have written to."""
    if _stuck:
        _stuck[:] = [opened for opened in list(_stuck) if not opened.try_to_settle()]


# --- the side of other processes -------------------------------------------------------------------------------------


class _RemoteSharedVariable(SharedVariable):
    """A shared variable of another process."""

    def __init__(self, found: VariableReader, door: LockFile, label: str, wake: Callable[[], None]) -> None:
        super().__init__(found.place, found.words, door, found, label, wake)
        self._lookout = found

    def places(self) -> Sequence[Array] | None:
        """As `SharedVariable.places`."""
        return self._lookout.opened()

    @property
    def is_there(self) -> bool:
        """As `SharedValue.is_there`."""
        return self._lookout.opened() is not None


class RemoteVariable:
    """A variable or accumulator of another task that is changed in place. A program looks it up before it starts.

    Args:
        kind: a variable's element type, or an accumulator's kind.
        wake: wakes the task, which waits for gradients.

    Raises:
        MappingError: this process cannot or should not map it.
    """

    def __init__(
        self,
        place: RecordAddress,
        kind: DType | AccumulatorKind,
        name: str,
        task: str,
        borrower: Mapper,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        is_variable = isinstance(kind, DType)
        self._lookout = reader_of(place, kind.np if isinstance(kind, DType) else _BYTES, borrower)
        self.owner: ProcessHandle = self._lookout.owner
        with _reaching:
            door = _segments.get(place[:3])
            if door is None:
                door = _segments[place[:3]] = LockFile(*place[:3])
            state = _states.get((place, kind))
            if state is None:
                label = f"The {'variable' if is_variable else 'accumulator'} '{name}' of {task}"
                state = _states[place, kind] = _state(name, kind, _RemoteSharedVariable(self._lookout, door, label, wake))
        self._state, self._door = state, door
        self._bytes = None if isinstance(kind, DType) else state_bytes(kind.shape, kind.dtype.np)

    def read(self) -> VariableState | RemoteAccumulator | None:
        """The variable or accumulator; None: it is not shared now, or has no value."""
        there = self._lookout.opened()
        return None if there is None or self._bytes not in (None, there[0].nbytes) else self._state

    def forget(self) -> None:
        """Release it: its owner is gone."""
        self._lookout.forget()
        self._door.close()


def _state(
    name: str, kind: DType | AccumulatorKind, opened: _RemoteSharedVariable
) -> VariableState | RemoteAccumulator:
    if isinstance(kind, AccumulatorKind):
        return RemoteAccumulator(name, kind, opened)
    state = VariableState(name, kind)
    state.reach(opened)
    return state


_BYTES = np.dtype(np.uint8)
_states: weakref.WeakValueDictionary[
    tuple[RecordAddress, DType | AccumulatorKind], VariableState | RemoteAccumulator
] = weakref.WeakValueDictionary()
_segments: weakref.WeakValueDictionary[tuple[int, ...], LockFile] = weakref.WeakValueDictionary()
_reaching = threading.Lock()


__all__ = ["LockFile", "SharedVariable", "OwnSharedVariable", "RemoteVariable", "can_share", "release_stuck"]
