"""Cancellation of kernels that run long: how one learns that its step has ended.

Theory of operation, as of TensorFlow's CancellationManager. A step whose programs may run for any time has a `Cancellation`. The thread
that runs such a program makes it the thread's active one. A kernel that walks a data set calls `check_cancelled` at each element, and a
kernel that waits registers a callback that wakes it. What ends the step (a closed session, a deadline, an error elsewhere, a stopped
server) cancels it, from any thread. Work that outlives a step, such as a prefetch thread, has a `Cancellation` of its own.

A kernel that calls functions needs no further measure: their steps are cancelled with the step that is active where they are called.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ..core.errors import CancelledError, OpError

T = TypeVar("T")
_lock = threading.Lock()  # of the callbacks and errors of all: held for moments, and rarely needed


class Cancellation:
    """Whether some work was cancelled, and what to call when it is.

    Attributes:
        error: with which the work ends; None: it was not cancelled.
    """

    __slots__ = ("_callbacks", "error")

    def __init__(self) -> None:
        self.error: OpError | None = None
        self._callbacks: dict[object, Callable[[], None]] | None = None  # none yet: most work only looks

    def cancel(self, error: OpError | None = None) -> None:
        """Cancel the work, and call the callbacks in this thread. The first error counts; None: CancelledError."""
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
            raise type(error)(error.node_def, error.op, error.message)  # a new one: several threads may raise it

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within the block, `cancel` calls `callback`; if the work was cancelled before, it is called now."""
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
        """`work(*arguments)`, with this as the active one of the thread."""
        outer, _thread.active = _thread.active, self
        try:
            return work(*arguments)
        finally:
            _thread.active = outer


class _Thread(threading.local):
    active: Cancellation | None = None


_thread = _Thread()


def active_cancellation() -> Cancellation | None:
    """That of the work that this thread does; None: it cannot be cancelled."""
    return _thread.active


def is_cancelled() -> bool:
    """Whether the work that this thread does was cancelled."""
    return _thread.active is not None and _thread.active.error is not None


def check_cancelled() -> None:
    """Raise the error of the work that this thread does if it was cancelled."""
    active = _thread.active
    if active is not None and active.error is not None:
        active.check()


def unless_cancelled(value: T) -> T:
    """The value; or the error, as for `check_cancelled`. To be mapped over a walk."""
    active = _thread.active
    if active is not None and active.error is not None:
        active.check()
    return value


def wait_for(changed: threading.Condition, predicate: Callable[[], object]) -> None:
    """Wait, with a condition that the caller does not hold, until `predicate` holds; raise the error if the work is cancelled."""
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
