"""Shared variables: double-buffered values that several processes read and change in place, guarded by a cross-process file lock.

Theory of operation. The owner of a variable, or of an accumulator, *publishes* it (`remote_variables.py`): its value gets two adjacent
buffers in shared memory, and a record of 192 bytes says where they are. The record's *turn* says which of them holds the
value. To change it, the owner or another process

    takes the variable's lock in its own process, and then the file lock,
    writes the new value into the other buffer, computed from the current one,
    increments the turn, which is one store and makes the new value visible,
    releases the locks.

So one buffer always holds a complete value, whichever process dies at whichever point. A killed process leaves nothing to repair: before
the store nothing has changed, after it everything has.

To read it, a process reads version and turn, copies the current buffer, and reads both again. If they are the same, no change has
begun to write that buffer meanwhile, and the copy is consistent. Otherwise it tries again. Readers take no lock. They never wait, not
even for a process that was stopped during a change.

Only the record names the buffers. If the owner ends the sharing (for a new shape, a value that cannot be shared, or a closed session),
it takes the lock and makes the version odd. Then the memory may be reused: a reader that still copies finds the version
changed, and a process that waits for the lock reads the record again. The owner sets the buffers of the next value while the version
is odd. Version and turn never decrease, also where a record is used again for another variable.

The file lock is an open-file-description lock (`F_OFD_SETLK`) on the record's bytes of the segment's file. Lock and unlock are two
system calls, together 1 µs, and the kernel releases it when its holder ends. Each process has its own file description for it. A process
that cannot get the lock retries for `LOCK_TIMEOUT_S`, then fails with UnavailableError: the holder was stopped. Several variables are
locked in the order of their addresses, which is the same in all processes. If a stopped process holds the lock of a variable that its
owner withdraws, the memory that it may still write, twice `MOST_BYTES` at most, and the record are not used again.

The words of a record have 64 bits each:

    version    odd: there is no value, and the words behind may change; even: they hold
    number     the record's number: a record is used again for another variable, with another number
    turn       how many changes the value has had; if odd, it is in the second buffer
    holder     the process that holds the lock, for error messages
    wanted     for an accumulator: how many gradients the task waits for (graph/resources/shared_accumulator.py)
    descriptor and number of the segment, offset of the first buffer, distance to the second one, bytes, element type, rank, dimensions

The order of stores and loads matters. Each is a call of its own here, so compilers keep it. Processors keep it if they reorder neither
loads with loads nor stores with stores. x86 keeps it, ARM does not, so variables are not published on ARM.

`tests/runtime/shared_memory/test_shared_variable_interleavings.py` plays all orders of the loads and stores of small examples.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import platform
import struct
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...graph.core import dtypes
from ...graph.core.dtypes import Array
from ...graph.core.errors import AbortedError, FailedPreconditionError, UnavailableError
from ...graph.core.interpreter_state import process_id
from ...graph.resources import shared_storage
from ...graph.resources.buffer_pool import buffers
from ...placer.partition.one_sided_access import MOST_BYTES
from ..timeouts import CLOSE_LOCK_TIMEOUT_S, LOCK_TIMEOUT_S
from .pool import place_of
from .segment import MappingError, open_memory

_READ_ATTEMPTS: Final = 20  # others would have to change the value twice during each of them
# For so long a process that waits for the lock only yields: most changes take less, and waking up from a nap takes as long.
_YIELD_S, _LONGEST_NAP_S = 100e-6, 1e-3
_SETLK = 37  # F_OFD_SETLK
_FLOCK = "hhqqi4x"  # type, whence, start, length, 0
_LINE = 64


class LockFile:
    """This process's own file description of a segment, for file locks. Closed with its last user.

    Raises:
        MappingError: it cannot be opened, or is another segment.
    """

    def __init__(self, pid: int, fd: int, segment: int) -> None:
        self.fd = -1
        path, self.fd = open_memory(pid, fd)
        try:
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
    for lock_file in list(_lock_files):
        lock_file.close()


os.register_at_fork(after_in_child=_forked)


class Layout(NamedTuple):
    """The buffers of a value: those of even and of odd turns, and the version of the record that names them."""

    version: int
    buffers: tuple[Array, Array]


class SharedVariable(shared_storage.SharedSumValue):
    """A shared variable, as one process sees it. Writers hold the variable's lock in their process.

    Args:
        label: the variable in error messages.

    Attributes:
        lock_file: the file description for its lock; None: it is only read.
        on_full: wakes the task that it belongs to, if that is another one.
    """

    def __init__(self, place: RecordAddress, words: memoryview, label: str, lock_file: LockFile | None = None) -> None:
        self.place = place
        self.words = words
        self.label = label
        self.lock_file = lock_file
        self.on_full: Callable[[], None] = lambda: None
        self.key: tuple[int, ...] = place[:4]
        self._taking, self._leaving = (
            struct.pack(_FLOCK, kind, os.SEEK_SET, place.offset, RECORD_BYTES, 0)
            for kind in (fcntl.F_WRLCK, fcntl.F_UNLCK)
        )
        self._pid = process_id()
        self._locked: Sequence[Array] = ()  # the buffers, while the lock is held
        self._last: tuple[int, int, Array] | None = None  # version, turn, and the copy

    def layout(self) -> Layout | None:
        """The buffers that the record names now; None: there is no value. Valid as long as the version is the same."""
        raise NotImplementedError

    @property
    def is_there(self) -> bool:
        return self.layout() is not None

    def read(self) -> Array | None:
        """A read-only copy of the value, cached until it changes. None: there is no value, or it kept changing."""
        words, last = self.words, self._last
        # The turn first: an older version could have had it, a later one cannot be followed by the cached one.
        if last is not None and words[TURN] == last[1] and words[VERSION] == last[0]:
            return last[2]
        for _ in range(_READ_ATTEMPTS):
            layout = self.layout()
            if layout is None:
                break
            turn = words[TURN]
            there = layout.buffers[turn & 1]
            found = buffers.empty(there.shape, there.dtype)
            np.copyto(found, there)
            if words[TURN] == turn and words[VERSION] == layout.version:
                found.flags.writeable = False
                self._last = layout.version, turn, found
                return found
        self._last = None
        return None

    # --- changing it -------------------------------------------------------------------------------------------------

    def acquire(self) -> None:
        self._lock(LOCK_TIMEOUT_S)
        layout = self.layout()
        if layout is None:
            self._unlock()
            raise self.gone()
        self._locked = layout.buffers

    def release(self) -> None:
        self._locked = ()
        self._unlock()

    def fits(self, value: Array) -> bool:
        return bool(value.shape == self._locked[0].shape)

    def begin(self, copied: bool = True) -> Array:
        old, new = self.both()
        if copied:
            np.copyto(new, old)
        return new

    def both(self) -> tuple[Array, Array]:
        turn = self.words[TURN] & 1
        return self._locked[turn], self._locked[1 - turn]

    def end(self) -> None:
        self.words[TURN] += 1

    def close(self) -> Array:
        raise AbortedError.of(f"{self.label} can be given another shape by the task alone that it belongs to")

    def gone(self) -> AbortedError:
        return AbortedError.of(
            f"{self.label} is not any more where this step found it: it was made anew or given another shape, or its session was closed "
            "there. Run again."
        )

    # --- accumulators ------------------------------------------------------------------------------------------------

    @property
    def wanted(self) -> int:
        return self.words[WANTED]

    @wanted.setter
    def wanted(self, count: int) -> None:
        self.words[WANTED] = count

    def glance(self) -> Array | None:
        layout = self.layout()
        return None if layout is None else layout.buffers[self.words[TURN] & 1]

    def wake(self) -> None:
        self.on_full()

    # --- the cross-process lock --------------------------------------------------------------------------------------

    def _lock(self, patience_s: float) -> None:
        began = None
        while True:
            fd = -1 if self.lock_file is None else self.lock_file.fd
            if fd < 0 and self._pid != process_id():
                raise FailedPreconditionError.of(
                    f"{self.label} belongs to the process from which this one was forked, and is not its to change",
                )
            if fd < 0:  # the owner is gone
                raise self.gone()
            try:
                fcntl.fcntl(fd, _SETLK, self._taking)
                break
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EACCES):
                    raise self.gone() from None
            now = time.monotonic()
            began = began or now
            waited = now - began
            if waited > patience_s:
                raise UnavailableError.of(
                    f"{self.label} is being changed by process {self.words[HOLDER]}, which has not let go of it for "
                    f"{patience_s:g} s. Has it been stopped?"
                )
            if waited < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(min(waited / 4, _LONGEST_NAP_S))
        self.words[HOLDER] = self._pid

    def _unlock(self) -> None:
        lock_file = self.lock_file
        if lock_file is not None and lock_file.fd >= 0:  # closed in a forked child, or where the owner is gone
            try:  # `contextlib.suppress` takes longer than the call
                fcntl.fcntl(lock_file.fd, _SETLK, self._leaving)
            except OSError:
                return


class OwnSharedVariable(SharedVariable):
    """The owner's end of a record: it shares one value after the other.

    Attributes:
        is_stuck: whether a stopped process may still write to the last value's memory; then it shares no other one.
    """

    def __init__(self, place: RecordAddress, words: memoryview, label: str, lock_file: LockFile) -> None:
        super().__init__(place, words, label, lock_file)
        self.is_stuck = False
        self._layout: Layout | None = None
        words[VERSION] |= 1
        words[NUMBER] = place.number

    def layout(self) -> Layout | None:
        return self._layout

    def share(self, value: Array) -> SharedVariable | None:
        """Share a copy of this value from now on; this object, or None: that is impossible. There is no value before the call.

        It is impossible without shared memory, for values over `MOST_BYTES` or without elements, and while `is_stuck`.
        """
        code = CODES.get(value.dtype)
        if code is None or not 0 < value.nbytes <= MOST_BYTES or value.ndim > MOST_DIMS:
            return None
        if self.is_stuck or self._pid != process_id():
            return None
        spare = -(-value.nbytes // _LINE) * _LINE
        block = shared_storage.shared_empty(2 * spare)
        place = None if block is None else place_of(block)
        if block is None or place is None:
            return None
        segment, _, offset = place
        first, second = (block[at : at + value.nbytes].view(value.dtype).reshape(value.shape) for at in (0, spare))
        words = self.words
        np.copyto(second if words[TURN] & 1 else first, value)
        where = segment.fd, segment.number, offset, spare, value.nbytes, code, value.ndim, *value.shape
        for i, word in enumerate((0, *where), WANTED):
            words[i] = word
        version = words[VERSION] + 1
        self._layout = Layout(version, (first, second))
        words[VERSION] = version
        return self

    def close(self) -> Array:
        # Only a stopped process that holds the lock can change the memory afterwards.
        layout = self._layout
        assert layout is not None
        if self._pid == process_id():
            if not self._locked:
                holder = self.words[HOLDER]
                try:
                    self._lock(0.0 if holder in _stuck else CLOSE_LOCK_TIMEOUT_S)
                except UnavailableError:
                    self.is_stuck = True
                    _stuck.setdefault(holder, []).append(layout)
            self.words[VERSION] = layout.version + 1
        value = shared_storage.kept_copy(layout.buffers[self.words[TURN] & 1])
        self._locked, self._layout = (), None
        if not self.is_stuck:
            self._unlock()
        return value


_stuck: dict[int, list[Layout]] = {}
"""Memory that stopped processes may still write to, by process."""

RECORD_BYTES: Final = 192  # three cache lines
RECORDS: Final = 512  # per segment
VERSION, NUMBER, TURN, HOLDER, WANTED, WHERE = range(6)
_HEAD: Final = 7  # words of `WHERE` before the dimensions
MOST_DIMS: Final = RECORD_BYTES // 8 - WHERE - _HEAD

TYPES: Final = tuple(t for t in dtypes.ALL if t.np.kind != "O" and t is not dtypes.resource)
CODES: Final = {t.np: i for i, t in enumerate(TYPES)}


def can_publish() -> bool:
    """Whether this machine supports published variables: its processors keep the order of stores and loads."""
    return platform.machine() in ("x86_64", "AMD64")


class RecordAddress(NamedTuple):
    """The address of a record: a reference to shared memory, and the record's number."""

    pid: int
    fd: int
    segment: int
    offset: int
    number: int


def words_of(memory: mmap.mmap, offset: int) -> memoryview:
    """The words of a record in a mapped segment."""
    return memoryview(memory)[offset : offset + RECORD_BYTES].cast("Q")
