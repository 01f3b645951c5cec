"""Interfaces by which a runtime keeps the values of resources in memory that other processes can access.

Other processes read a server's variables and the results that are sent to them. A value in shared memory is not copied for them. Code
in graph/ does not use processes: the runtime installs its memory (`use`), and variables and kernels allocate from it (`kept_copy`,
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
        """An array of undefined content, which refers to a `base` of its own; None: there is no room, or it is small.

        With `small` it may be of any size.
        """

    def holds(self, value: Array) -> bool:
        """Whether a contiguous array lies in this memory."""

    def may_change(self, base: Any) -> bool:
        """Whether `base` belongs to an array of this memory, and no other process reads it now."""


class SharedValue(Protocol):
    """A variable's value that other processes read and change, too: double-buffered, guarded by a lock between processes.

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
        """The error to raise if it does not exist any more."""

    def acquire(self) -> None:
        """Take the lock between processes. The caller holds the variable's own lock.

        Raises:
            UnavailableError: another process does not release it.
            AbortedError: the value does not exist any more.
        """

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""

    def fits(self, value: Array) -> bool:
        """Whether it has room for this value. This and what follows are called with the lock held."""

    def begin(self, copied: bool = True) -> Array:
        """The buffer for its next value, with a copy of the current one."""

    def both(self) -> tuple[Array, Array]:
        """The current value, and the buffer for the next one."""

    def end(self) -> None:
        """The next value is written: switch the buffers."""

    def close(self) -> Array:
        """End the sharing, release the lock and return the value. The lock may be held or not.

        Raises:
            AbortedError: it belongs to another process.
        """


class SharedSumValue(SharedValue, Protocol):
    """The state of an accumulator, to which other processes add (`shared_accumulator.py`).

    Attributes:
        wanted: number of gradients that its task waits for; 0: none. A process reads it after it has added one and released the lock.
    """

    wanted: int

    def glance(self) -> Array | None:
        """The state without a lock: it may be changing. None: it does not exist any more."""

    def wake(self) -> None:
        """Wake its task."""


Share: TypeAlias = Callable[[Array], "SharedValue | None"]
"""Shares a copy of a value. None: it is too large, or there is no memory for it."""


class Publishable:
    """A resource that can be published: other processes reach it in shared memory."""

    __slots__ = ()

    @property
    def is_shared(self) -> bool:
        """Whether other processes reach its value now."""
        raise NotImplementedError

    def publish(self, share: Callable[[Array], Any] | None) -> None:
        """Share each value in the `SharedValue` that this makes of it. None: end the sharing."""
        raise NotImplementedError


_used: list[ValueMemory] = []


def use(memory: ValueMemory) -> None:
    """Keep the values of variables in this memory from now on."""
    _used[:] = [memory]


def kept_copy(value: Array) -> Array:
    """A contiguous copy for a variable to keep, in shared memory if possible and if it is not small."""
    if _used and value.dtype.kind != "O":
        found = _used[0].empty(value.shape, value.dtype)
        if found is not None:
            np.copyto(found, value)
            return found
    return np.array(value, order="C")


def shared_empty(size: int) -> Array | None:
    """An array of `size` bytes that other processes may also write. None: there is no such memory, or no room."""
    return _used[0].empty((size,), np.dtype(np.uint8), True) if _used else None


def to_send(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array of undefined content for a result that another process will read in this memory.

    The caller writes the result and makes it read-only. None: no process reads this process's memory, it has no room, or the result is
    small; any other memory may be used then.
    """
    return _used[0].empty(shape, dtype) if _used and _used[0].is_read else None


def may_change(value: Array) -> bool:
    """Whether an array with no other reference may be overwritten: it owns its memory, and no other process reads it."""
    return value.base is None or any(memory.may_change(value.base) for memory in _used)


def is_shared(value: Array) -> bool:
    """Whether a contiguous array is in memory that other processes can read."""
    return any(memory.holds(value) for memory in _used)
