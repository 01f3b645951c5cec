"""A kernel that runs asynchronously to its program: started by one instruction (Begin), awaited by a later one (Await).

Theory of operation. The inputs of a collective are available long before the program needs its result. So the program only starts it
and continues. Each piece of its work (the kernel, or what follows a settled request) is done once. The first thread that reaches it
does it: a thread of the pool, or the program's thread when it awaits the result.

    READY    --run-->      RUNNING                 a thread does the next piece of work
    RUNNING  --request-->  WAITING                 it waits for other members of the collective
    WAITING  --settled-->  READY                   the program is resumed if it awaits the result, else the pool gets the work
    RUNNING  --result-->   DONE                    the program takes the result, now or when it comes to the Await
    RUNNING  --error-->    DONE                    the step fails, without waiting for the program to come to the Await
    any      --cancel-->   CANCELLED               the step ended first: an open request is cancelled

The module uses neither threads nor clocks: the caller passes `offload`, so a test can play any order of events.
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
    """The state of a run."""

    READY = enum.auto()
    RUNNING = enum.auto()
    WAITING = enum.auto()
    DONE = enum.auto()
    CANCELLED = enum.auto()


class AsyncKernel(Generic[W]):
    """One asynchronous run of a kernel.

    Args:
        what: the node's description, for error texts.
        kernel, inputs: what is run. The inputs are released when the kernel has taken them.
        offload: runs work in another thread; or at once.
        resume: called with the waiter when it can continue.
        ended: called once with the result or the error; not after `cancel`.

    Attributes:
        waiter: the program that awaits the result.
        error: the error of a failed run that is DONE.
    """

    def __init__(
        self, what: str, kernel: Callable[..., Any], inputs: Sequence[Any], *,
        offload: Callable[[Callable[[], None]], None], resume: Callable[[W], None],
        ended: Callable[[AsyncKernel[W], Any, Exception | None], None],
    ) -> None:  # fmt: skip
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
        self._offload(self.run)

    def run(self) -> None:
        """Do the next piece of work; nothing if another thread does it."""
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
        """Whether the result is available. If not, the waiter is resumed later and asks again."""
        while True:
            with self._lock:
                if self._now is State.DONE:
                    return True
                if self._now is not State.READY:
                    self.waiter = waiter  # it is never resumed if the run was cancelled
                    return False
            self.run()

    def result(self) -> Any:
        """The kernel's result, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def waits_for(self) -> str:
        request = self._request
        return self.what if request is None else request.waits_for()

    def cancel(self) -> None:
        """The step has ended: cancel the request that it waits for."""
        with self._lock:
            if self._now is State.DONE:
                return
            self._now = State.CANCELLED
            request, self._request, self._next, self.waiter = self._request, None, None, None
        if request is not None:
            request.cancel()

    # --- transitions ---------------------------------------------------------------------------------------------

    def _has_settled(self, request: Request) -> bool:
        """Wait for a request; False: another thread continues, now or later."""
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
