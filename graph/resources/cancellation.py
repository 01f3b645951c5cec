"""Cancellation of long kernels when their step ends.

It works as TensorFlow's CancellationManager. A step whose programs may run for any time has a `Cancellation`. The thread that runs such
a program makes it the thread's active cancellation. A kernel that iterates over a data set calls `check_cancelled` at each element. A
kernel that waits registers a callback that wakes it. If the step ends early (a closed session, a deadline, an error elsewhere, a stopped
server), any thread may cancel it. Work that outlives a step, such as a prefetch thread, has its own `Cancellation`.

The steps of functions that a kernel calls are cancelled with the kernel's step.

There is no lock: the garbage collector may end an iterator, which cancels its work, wherever a thread allocates memory, so also where the
thread would hold the lock. Each change is one operation of a list or a dictionary, which no other thread sees half done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..core.errors import CancelledError, OpError

T = TypeVar("T")


class Cancellation:
    """The state of some work: whether it was cancelled, and callbacks for its cancellation.

    Attributes:
        error: the error with which the work ends. None if it was not cancelled.
    """

    __slots__ = ("_callbacks", "_errors", "error")

    def __init__(self) -> None:
        self.error: OpError | None = None
        self._errors: list[OpError] = []
        self._callbacks: dict[object, Callable[[], None]] = {}

    def cancel(self, error: OpError | None = None) -> None:
        """Cancel the work, and call the callbacks in this thread. The first error is stored, by default a CancelledError."""
        self._errors.append(error or CancelledError.of("The work was cancelled"))
        self.error = self._errors[0]
        for key in list(self._callbacks):
            self._call(key)

    def _call(self, key: object) -> None:
        """Call a callback if no other thread has done so."""
        callback = self._callbacks.pop(key, None)
        if callback is not None:
            callback()

    def check(self) -> None:
        """Raise the error if the work was cancelled."""
        error = self.error
        if error is not None:
            raise type(error)(
                error.node_def, error.op, error.message
            )  # a new object, because several threads may raise it

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """A block in which `cancel` calls `callback`. If the work was cancelled before, `callback` is called at once."""
        key = object()
        self._callbacks[key] = callback
        try:
            if self.error is not None:
                self._call(key)
            yield
        finally:
            self._callbacks.pop(key, None)

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return `work(*arguments)`, with this as the thread's active cancellation."""
        outer, _thread.active = _thread.active, self
        try:
            return work(*arguments)
        finally:
            _thread.active = outer


class _Thread(threading.local):
    active: Cancellation | None = None


_thread = _Thread()


def active_cancellation() -> Cancellation | None:
    """The active cancellation of this thread. None if its work cannot be cancelled."""
    return _thread.active


def is_cancelled() -> bool:
    """Whether the work of this thread was cancelled."""
    return _thread.active is not None and _thread.active.error is not None


def check_cancelled() -> None:
    """Raise the error of the active cancellation if the work of this thread was cancelled."""
    active = _thread.active
    if active is not None and active.error is not None:
        active.check()


def unless_cancelled(value: T) -> T:
    """`check_cancelled`, then return the value. For use with `map`."""
    active = _thread.active
    if active is not None and active.error is not None:
        active.check()
    return value


def wait_for(changed: threading.Condition, predicate: Callable[[], object]) -> None:
    """Wait until `predicate` is true, with a condition that the caller does not hold. Raises the error if the work is cancelled."""
    active = _thread.active
    if active is None:
        with changed:
            changed.wait_for(predicate)
        return

    def wake() -> None:
        with changed:
            changed.notify_all()

    with active.calling(wake):
        with changed:
            changed.wait_for(lambda: active.error is not None or predicate())
        active.check()


__all__ = ["Cancellation", "active_cancellation", "check_cancelled", "is_cancelled", "unless_cancelled", "wait_for"]
