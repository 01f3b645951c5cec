"""Interfaces by which a runtime keeps the values of resources where other processes reach them.

A server's variables are read by other processes, and so are results that are sent to them. A value that lies in shared memory is not
copied for them. Nothing in graph/ knows processes: the runtime installs its memory (`use`), and variables and kernels ask for room in
it (`kept_copy`, `to_send`). Memory is given back when nothing refers to an array over it.

A variable that others read without asking each time has a `PublishedValue`, which is told of each change. One that others also write is
kept in a `SharedValue`. `runtime/shared_memory/` has the implementations.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class ValueMemory(Protocol):
    """Memory that other processes may read.

    Attributes:
        is_read: whether other processes read it.
    """

    is_read: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], small: bool = False) -> Array | None:
        """An array of undefined content, which refers to a `base` of its own; None: there is no room, or it is small.

        With `small` it may be of any size.
        """

    def holds(self, value: Array) -> bool:
        """Whether a contiguous array lies in this memory."""

    def may_change(self, base: Any) -> bool:
        """Whether `base` belongs to an array of this memory, and no other process reads it now."""


class PublishedValue(Protocol):
    """Where other processes read a variable's value. Called with the variable's lock held."""

    def change(self) -> None:
        """The value is about to change or to move: nothing may read it until `changed` or `show`."""

    def changed(self) -> None:
        """The value has changed in place."""

    def show(self, value: Array | None) -> None:
        """From now on this is the value; None: there is none. One that does not lie in shared memory is not shown to others."""


class SharedValue(Protocol):
    """A variable's value that other processes change, too: double-buffered, guarded by a lock between processes.

    Attributes:
        key: the order in which all processes lock several variables.
        is_there: whether there is a value.
    """

    key: tuple[int, ...]

    @property
    def is_there(self) -> bool: ...

    def read(self) -> Array | None:
        """A read-only snapshot of the value. None: it can be read only with the lock held."""

    def gone(self) -> Exception:
        """The error to raise where it does not exist any more."""

    def acquire(self) -> None:
        """Take the lock between processes. The caller holds the variable's own lock.

        Raises:
            UnavailableError: another process does not release it. AbortedError: the value does not exist any more.
        """

    def release(self) -> None:
        """Release the lock. Does nothing where it is not held."""

    def fits(self, value: Array) -> bool:
        """Whether it has room for this value. This and what follows are called with the lock held."""

    def begin(self, copied: bool = True) -> Array:
        """The buffer for its next value, with a copy of the current one."""

    def both(self) -> tuple[Array, Array]:
        """The current value, and the buffer for the next one."""

    def end(self) -> None:
        """The next value is written: switch the buffers."""

    def close(self) -> Array:
        """End the sharing and give the value. The lock may be held or not.

        Raises:
            AbortedError: it belongs to another process.
        """

    def closed(self) -> None:
        """The published value says so now."""


class SharedSumValue(SharedValue, Protocol):
    """The state of an accumulator, to which other processes add (`shared_accumulator.py`).

    Attributes:
        wanted: how many gradients its task waits for; 0: none. A process looks at it after it has added and released the lock.
    """

    wanted: int

    def glance(self) -> Array | None:
        """The state without a lock: it may be changing. None: it does not exist any more."""

    def ring(self, bell: tuple[int, int]) -> None:
        """Wake its task by its doorbell."""


class Publishable:
    """A resource that can be published: other processes reach it in shared memory."""

    __slots__ = ()

    def post(self, post: PublishedValue | None) -> None:
        """Tell this published value of each change from now on. None: end publishing and sharing."""
        raise NotImplementedError


_used: list[ValueMemory] = []


def use(memory: ValueMemory) -> None:
    """Keep the values of variables in this memory from now on."""
    _used[:] = [memory]


def kept_copy(value: Array, posted: bool = False) -> Array:
    """A contiguous copy for a variable to keep, in shared memory if possible.

    `posted`: the variable is published, so also if it is small.
    """
    if _used and value.dtype.kind != "O":
        found = _used[0].empty(value.shape, value.dtype, posted)
        if found is not None:
            np.copyto(found, value)
            return found
    return np.array(value, order="C")


def shared_empty(size: int) -> Array | None:
    """So many bytes that other processes may write, too. None: there is no such memory, or no room."""
    return _used[0].empty((size,), np.dtype(np.uint8), True) if _used else None


def to_send(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array of undefined content for a result that another process will read where it lies.

    The caller writes the result and makes it read-only. None: no process reads this process's memory, it has no room, or the result is
    small. Any memory will do then.
    """
    return _used[0].empty(shape, dtype) if _used and _used[0].is_read else None


def may_change(value: Array) -> bool:
    """Whether an array with no other reference may be overwritten: it owns its memory, and no other process reads it."""
    return value.base is None or any(memory.may_change(value.base) for memory in _used)


def is_shared(value: Array) -> bool:
    """Whether a contiguous array lies where others can read it."""
    return any(memory.holds(value) for memory in _used)


def shared(value: Array) -> Array:
    """An array for a published variable to keep: itself if it lies in shared memory, else a copy there.

    Itself, too, where there is no room.
    """
    if not _used or value.dtype.kind == "O" or is_shared(value):
        return value
    found = _used[0].empty(value.shape, value.dtype, True)
    if found is None:
        return value
    np.copyto(found, value)
    return found
