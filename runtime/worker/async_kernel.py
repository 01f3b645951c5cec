"""A kernel that runs beside its program: begun at one instruction, awaited at a later one.

Theory of operation. A collective has what it takes long before the program needs its result. So a program only begins it, and goes on;
the collective itself is driven by whichever thread has time. What it does next (the kernel, or the result of a request that was
settled) is done once, by who comes first: a thread of the pool, or, if none has come to it, the program itself, when it waits.

    READY    --run-->      RUNNING                 a thread does what is next
    RUNNING  --request-->  WAITING                 it waits for other members
    WAITING  --settled-->  READY                   the program goes on with it if it waits already, else a thread is asked for
    RUNNING  --result-->   DONE                    the program takes the result, now or when it comes to it
    RUNNING  --error-->    DONE                    the step fails, without waiting for the program to come to it
    any      --cancel-->   CANCELLED               the step ended first: an open request is cancelled

Nothing here knows threads or clocks: `aside` is given, and any order of events can be played through in a test.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ...graph.resources.async_request import Request

W = TypeVar("W")


class State(enum.Enum):
    """Where a run stands."""

    READY = enum.auto()
    RUNNING = enum.auto()
    WAITING = enum.auto()
    DONE = enum.auto()
    CANCELLED = enum.auto()


class AsyncKernel(Generic[W]):
    """One run of a kernel beside its program.

    Args:
        what: the node, in words.
        kernel, inputs: what is to run. The inputs are let go of when the kernel has taken them.
        offload: takes work for another thread; or does it.
        resume: takes the waiter, which can go on.
        ended: told once that it is done, with the result, or the error; not when it was cancelled.

    Attributes:
        waiter: who has come to its end before it.
        error: of what is done.
    """

    def __init__(
        self,
        what: str,
        kernel: Callable[..., Any],
        inputs: Sequence[Any],
        *,
        offload: Callable[[Callable[[], None]], None],
        resume: Callable[[W], None],
        ended: Callable[[AsyncKernel[W], Any, Exception | None], None],
    ) -> None:
        self.what = what
        self.waiter: W | None = None
        self._offload, self._resume, self._ended = offload, resume, ended
        self._lock = threading.Lock()
        self._now = State.READY
        self._next: Callable[[], Any] | None = lambda: kernel(*inputs)
        self._request: Request | None = None
        self._outcome: Any = None
        self.error: Exception | None = None

    def start(self) -> None:
        """Have it run by whoever has time."""
        self._offload(self.run)

    def run(self) -> None:
        """Do what is to be done now; nothing if somebody else does."""
        with self._lock:
            if self._now is not State.READY:
                return
            self._now = State.RUNNING
            following, self._next = self._next, None
        assert following is not None
        try:
            with np.errstate(all="ignore"):
                result = following()
                del following  # and the inputs with it
                while isinstance(result, Request):  # one wait may lead to another
                    if not self._has_settled(result):
                        return
                    result = result.result()
        except Exception as e:
            self._finish(None, e)
        else:
            self._finish(result, None)

    def awaited(self, waiter: W) -> bool:
        """Whether the result is there. If not, the waiter is resumed when it may be; then it asks again."""
        while True:
            with self._lock:
                if self._now is State.DONE:
                    return True
                if self._now is not State.READY:
                    self.waiter = waiter  # of what was cancelled, nobody resumes it
                    return False
            self.run()

    def result(self) -> Any:
        """The kernel's result, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def waits_for(self) -> str:
        """What keeps it from going on, in words."""
        request = self._request
        return self.what if request is None else request.waits_for()

    def cancel(self) -> None:
        """Nobody waits any more: what it has asked for is cancelled."""
        with self._lock:
            if self._now is State.DONE:
                return
            self._now = State.CANCELLED
            request, self._request, self._next, self.waiter = self._request, None, None, None
        if request is not None:
            request.cancel()

    # --- where it stands -------------------------------------------------------------------------------------------

    def _has_settled(self, request: Request) -> bool:
        """Wait for a request; False when somebody else goes on with this, now or later."""
        with self._lock:
            cancelled = self._now is State.CANCELLED
            if not cancelled:
                self._now, self._request = State.WAITING, request
        if cancelled:
            request.cancel()
            return False
        if request.when_settled(lambda: self._settled(request)):
            return False
        with self._lock:
            if self._now is State.CANCELLED:
                return False
            self._now, self._request = State.RUNNING, None
            return True

    def _settled(self, request: Request) -> None:
        """What it waited for has come."""
        with self._lock:
            if self._now is not State.WAITING:
                return
            self._now, self._request, self._next = State.READY, None, request.result
            waiter, self.waiter = self.waiter, None
        if waiter is None:
            self._offload(self.run)
        else:
            self._resume(waiter)

    def _finish(self, result: Any, error: Exception | None) -> None:
        with self._lock:
            if self._now is State.CANCELLED:
                return
            self._now, self._outcome, self.error = State.DONE, result, error
            waiter, self.waiter = self.waiter, None
        self._ended(self, result, error)
        if error is None and waiter is not None:
            self._resume(waiter)


__all__ = ["AsyncKernel", "State"]
