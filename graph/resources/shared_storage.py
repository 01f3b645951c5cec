"""Interfaces by which a runtime keeps the values of resources in memory that other processes can access.

Other processes read a server's variables and the results that are sent to them. A value in shared memory need not be copied. Code in
graph/ does not use processes. The runtime installs its memory (`use`), and variables and kernels allocate from it (`kept_copy`,
`to_send`). Memory is freed when nothing refers to an array in it.

A published variable has a `SharedValue`, which other processes also read and write. `runtime/shared_memory/` has the implementations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..core.dtypes import Array


class ValueMemory(Protocol):
    """Memory that other processes may read.

    Attributes:
        is_read: whether other processes read it.
    """

    is_read: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], small: bool = False) -> Array | None:
        """An array of undefined content, with a `base`. None if there is no room. Also None if it is small, unless `small` is set."""

    def holds(self, value: Array) -> bool:
        """Whether a contiguous array is in this memory."""

    def may_change(self, base: Any) -> bool:
        """Whether `base` belongs to an array of this memory, and no other process reads it now."""


class SharedValue(Protocol):
    """A variable's value that other processes read and change, too. It is double-buffered, and has a lock between processes.

    Attributes:
        key: a sort key. All processes lock several variables in its order.
        is_there: whether there is a value.
    """

    key: tuple[int, ...]

    @property
    def is_there(self) -> bool: ...

    def read(self) -> Array | None:
        """A read-only snapshot of the value. None if it can be read only with the lock held."""

    def gone(self) -> Exception:
        """The error to raise if the value no longer exists."""

    def acquire(self) -> None:
        """Take the lock between processes. The caller holds the variable's own lock.

        Raises:
            UnavailableError: another process does not release the lock.
            AbortedError: the value no longer exists.
        """

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""

    def fits(self, value: Array) -> bool:
        """Whether there is room for a value. This method and the next three are called with the lock held."""

    def begin(self, copied: bool = True) -> Array:
        """The buffer for the next value. With `copied`, it has a copy of the current value."""

    def both(self) -> tuple[Array, Array]:
        """The current value, and the buffer for the next one."""

    def end(self) -> None:
        """Switch the buffers, after the next value was written."""

    def close(self) -> Array:
        """End the sharing, release the lock and return the value. The lock may be held or not.

        Raises:
            AbortedError: the value belongs to another process.
        """


class SharedSumValue(SharedValue, Protocol):
    """The state of an accumulator, to which other processes add (`shared_accumulator.py`).

    Attributes:
        wanted: number of gradients for which the accumulator's task waits, or 0. A process reads it after it has added a gradient and
            released the lock.
    """

    wanted: int

    def glance(self) -> Array | None:
        """The state, read without the lock while it may be changing. None if it no longer exists."""

    def wake(self) -> None:
        """Wake the accumulator's task."""


Share: TypeAlias = Callable[[Array], "SharedValue | None"]
"""A function that shares a copy of a value. It returns None if the value is too large or there is no memory for it."""


class Publishable:
    """A resource that can be published, so that other processes access it in shared memory."""

    __slots__ = ()

    @property
    def is_shared(self) -> bool:
        """Whether other processes can access its value now."""
        raise NotImplementedError

    def publish(self, share: Callable[[Array], Any] | None) -> None:
        """Share each value in the `SharedValue` that `share` makes. End the sharing if `share` is None."""
        raise NotImplementedError


_used: list[ValueMemory] = []


def use(memory: ValueMemory) -> None:
    """From now on, keep the values of variables in this memory."""
    _used[:] = [memory]


def kept_copy(value: Array) -> Array:
    """A contiguous copy for a variable. It is in shared memory if there is room and the value is not small."""
    if _used and value.dtype.kind != "O":
        found = _used[0].empty(value.shape, value.dtype)
        if found is not None:
            np.copyto(found, value)
            return found
    return np.array(value, order="C")


def shared_empty(size: int) -> Array | None:
    """An array of `size` bytes that other processes may also write. None if there is no such memory or no room."""
    return _used[0].empty((size,), np.dtype(np.uint8), True) if _used else None


def to_send(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array of undefined content for a result that another process will read in this memory.

    The caller writes the result and makes it read-only. Returns None if no process reads this process's memory, there is no room, or the
    result is small. The caller may then use any other memory.
    """
    return _used[0].empty(shape, dtype) if _used and _used[0].is_read else None


def may_change(value: Array) -> bool:
    """Whether an array without other references may be overwritten: it owns its memory, or no other process reads it."""
    return value.base is None or any(memory.may_change(value.base) for memory in _used)


def is_shared(value: Array) -> bool:
    """Whether a contiguous array is in memory that other processes can read."""
    return any(memory.holds(value) for memory in _used)
