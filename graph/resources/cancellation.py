"""Cancellation of long kernels when their step ends.

It works as TensorFlow's CancellationManager. A step whose programs may run for any time has a `Cancellation`. The thread that runs such
a program makes it the thread's active cancellation. A kernel that iterates over a data set calls `check_cancelled` at each element. A
kernel that waits registers a callback that wakes it. If the step ends early (a closed session, a deadline, an error elsewhere, a stopped
server), any thread may cancel it. Work that outlives a step, such as a prefetch thread, has its own `Cancellation`.

The steps of functions that a kernel calls are cancelled with the kernel's step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..core.errors import CancelledError, OpError

T = TypeVar("T")
_lock = threading.Lock()  # protects the callbacks and errors of all cancellations


class Cancellation:
    """The state of some work: whether it was cancelled, and callbacks for its cancellation.

    Attributes:
        error: the error with which the work ends. None if it was not cancelled.
    """

    __slots__ = ("_callbacks", "error")

    def __init__(self) -> None:
        self.error: OpError | None = None
        self._callbacks: dict[object, Callable[[], None]] | None = None  # made when needed

    def cancel(self, error: OpError | None = None) -> None:
        """Cancel the work, and call the callbacks in this thread. The first error is stored, by default a CancelledError."""
        with _lock:
            if self.error is not None:
                return
            self.error = error or CancelledError.of("The work was cancelled")
            callbacks = list((self._callbacks or {}).values())
        for callback in callbacks:
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
        with _lock:
            callbacks = self._callbacks = {} if self._callbacks is None else self._callbacks
            callbacks[key] = callback
            is_late = self.error is not None
        try:
            if is_late:
                callback()
            yield
        finally:
            with _lock:
                del callbacks[key]

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
