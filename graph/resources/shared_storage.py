"""Where large values lie: in this process's own memory, or where a runtime lets other processes read them.

A server's variables are read by other processes, and so are results that are sent to them. If a value lies where those can read
it, nothing has to be copied for them (`runtime/shared_memory/pool.py`). This layer knows no processes: a runtime says where there is
such memory (`use`). `resource_manager.py` asks for it, and whether what lies there may be changed now; kernels ask for it where
their result is sent to another task (`to_send`). It is given back when nobody holds an array over it any more.

Where others want to read a variable without asking for its value each time, the runtime gives it a `Post`, which is told of each
change.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]


class Memory(Protocol):
    """Memory that others may read.

    Attributes:
        is_read: whether there are others who read it.
    """

    is_read: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any], small: bool = False) -> Array | None:
        """An array of undefined content, which refers to a `base` of its own; None: there is no room, or it is small.

        With `small` it may be of any size.
        """

    def holds(self, value: Array) -> bool:
        """Whether a contiguous array lies in this memory."""

    def may_change(self, base: Any) -> bool:
        """Whether `base` is that of an array which this has made, and nobody else reads it now."""


class Post(Protocol):
    """Where others look for a variable's value. Who holds the variable's lock calls it."""

    def change(self) -> None:
        """The value is about to change, or to go elsewhere: nobody may read it until `changed` or `show`."""

    def changed(self) -> None:
        """The value has changed, where it was."""

    def show(self, value: Array | None) -> None:
        """From now on this is the value; None: there is none. One that does not lie in shared memory is not shown to others."""


class Opened(Protocol):
    """A variable's value where other processes change it, too: two places, of which one has it, and a lock between processes.

    Attributes:
        key: by which everybody orders the variables that he takes together.
        is_there: whether there is a value.
    """

    key: tuple[int, ...]

    @property
    def is_there(self) -> bool: ...

    def read(self) -> Array | None:
        """A snapshot of the value, not to be changed; None: it cannot be read now by who has not acquired it."""

    def gone(self) -> Exception:
        """What to raise where it is not there any more."""

    def acquire(self) -> None:
        """Let nobody else change it. Who calls this holds the variable's own lock.

        Raises:
            UnavailableError: somebody else does not let go of it. AbortedError: it is not there any more.
        """

    def release(self) -> None:
        """Let others change it. It does no harm where it has not been acquired."""

    def fits(self, value: Array) -> bool:
        """Whether it may get this value; for those who have acquired it, as what follows."""

    def begin(self, copied: bool = True) -> Array:
        """Where its next value is to be written, with a copy of what it is now."""

    def both(self) -> tuple[Array, Array]:
        """What it is now, and where its next value is to be written."""

    def end(self) -> None:
        """The next value has been written: it is the value from now on."""

    def close(self) -> Array:
        """Let no other process change it from now on: the value. It may have been acquired or not.

        Raises:
            AbortedError: it is another process's.
        """

    def closed(self) -> None:
        """Its post says so now."""


class OpenedSum(Opened, Protocol):
    """The state of an accumulator, opened for others to add to (`shared_accumulator.py`).

    Attributes:
        wanted: how many gradients its task waits for; 0: for none. Who has added looks at it when he has let go of the lock.
    """

    wanted: int

    def glance(self) -> Array | None:
        """What it is about now, without a lock: it may be changing; None: it is not there any more."""

    def ring(self, bell: tuple[int, int]) -> None:
        """Wake its task, which said by what."""


class Postable:
    """What may be posted: a resource that others reach where it lies."""

    __slots__ = ()

    def post(self, post: Post | None) -> None:
        """Tell this post of each change from now on; None: nobody any more, and nobody else reaches it."""
        raise NotImplementedError


_used: list[Memory] = []


def use(memory: Memory) -> None:
    """Let the values of variables lie in this memory from now on."""
    _used[:] = [memory]


def kept_copy(value: Array, posted: bool = False) -> Array:
    """A contiguous copy for a variable to keep, at the best place that there is; for one with a post, also where it is small."""
    if _used and value.dtype.kind != "O":
        found = _used[0].empty(value.shape, value.dtype, posted)
        if found is not None:
            np.copyto(found, value)
            return found
    return np.array(value, order="C")


def shared_empty(size: int) -> Array | None:
    """So many bytes that other processes may write into as well; None: there is no such memory, or no room."""
    return _used[0].empty((size,), np.dtype(np.uint8), True) if _used else None


def to_send(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """An array of undefined content for a result that another process will read where it lies.

    Whoever has written the result makes it read-only: it is no longer this process's alone. None: nobody reads this process's memory,
    there is no room in what is shared, or the result is small. Any memory will do then.
    """
    return _used[0].empty(shape, dtype) if _used and _used[0].is_read else None


def may_change(value: Array) -> bool:
    """Whether an array that nobody else refers to may be written into: its memory is its own, and no other process reads it."""
    return value.base is None or any(memory.may_change(value.base) for memory in _used)


def is_shared(value: Array) -> bool:
    """Whether a contiguous array lies where others can read it."""
    return any(memory.holds(value) for memory in _used)


def shared(value: Array) -> Array:
    """An array for a variable with a post to keep: itself if others can read it where it lies, else a copy that they can.

    Itself, too, where there is no room.
    """
    if not _used or value.dtype.kind == "O" or is_shared(value):
        return value
    found = _used[0].empty(value.shape, value.dtype, True)
    if found is None:
        return value
    np.copyto(found, value)
    return found
