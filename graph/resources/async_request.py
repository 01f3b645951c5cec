"""Asynchronous requests, by which a step waits for another step without holding a thread.

A kernel that may have to wait (a dequeue, a take of gradients) passes a `Request` to the resource, an `AsyncResource`. If the resource can
answer at once, the kernel returns the result. Otherwise it returns the request itself. The executor then suspends the program and
registers a callback (`when_settled`). A later event at the same resource (another step's enqueue, a close) settles the request and calls
the callback.

A request has one of these states:

    waiting  --answer-->  answered  --result-->  taken          the step continues with the value
    waiting  --refuse-->  refused   --result-->  taken          the step fails with the error
    waiting  --cancel-->  cancelled                             the step has ended, and the resource takes back the request's elements
    answered --cancel-->  cancelled                             the step has ended, and the resource takes back the unused value

The rules of a resource (`_admit`, `_serve`, `_withdraw`, `_take_back`) are functions of its state, called under its lock. Callbacks run
after the lock is released. No thread, clock or socket is involved, so tests can produce any order of events.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ..core.errors import CancelledError, OpError, ResourceExhaustedError

MAX_WAITING = 10_000  # maximum number of waiting requests at one resource


class RequestState(enum.Enum):
    """The state of a request."""

    WAITING = enum.auto()
    ANSWERED = enum.auto()
    REFUSED = enum.auto()
    TAKEN = enum.auto()
    CANCELLED = enum.auto()


class Request:
    """A request to a resource.

    Attributes:
        what: a description of what it waits for.
        state: its state (see the module).
    """

    __slots__ = ("_resource", "_outcome", "_callback", "state", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.state = RequestState.WAITING
        self._resource: AsyncResource[Any] | None = None
        self._outcome: Any = None
        self._callback: Callable[[], None] | None = None

    def waits_for(self) -> str:
        """A description of what it waits for, with the current state."""
        return self.what

    # --- for the rules of a resource, under its lock -------------------------------------------------------------------

    def answer(self, value: Any = ()) -> None:
        """Settle it. `finished` makes the result of `value`."""
        self._settle(RequestState.ANSWERED, value)

    def refuse(self, error: OpError) -> None:
        """Settle it with an error."""
        self._settle(RequestState.REFUSED, error)

    def _settle(self, state: RequestState, outcome: Any) -> None:
        assert self.state is RequestState.WAITING and self._resource is not None
        self.state, self._outcome = state, outcome
        if self._callback is not None:
            self._resource._callbacks.append(self._callback)
            self._callback = None

    def finished(self, value: Any) -> Any:
        """Make the kernel's result from the answer. Called without the lock, because it may copy much data."""
        return value

    # --- for the executor -------------------------------------------------------------------------------

    def when_settled(self, callback: Callable[[], None]) -> bool:
        """Register a callback that is called once, from any thread. Returns False if the request is settled already."""
        assert self._resource is not None
        with self._resource.lock:
            if self.state is not RequestState.WAITING:
                return False
            self._callback = callback
            return True

    def result(self) -> Any:
        """The kernel's result. Raises the error of a refused request, or CancelledError if it was cancelled."""
        assert self._resource is not None
        with self._resource.lock:
            assert self.state is not RequestState.WAITING
            state, outcome = self.state, self._outcome
            if state is not RequestState.CANCELLED:
                self.state = RequestState.TAKEN
            self._outcome = None
        if state is RequestState.CANCELLED:
            raise CancelledError.of(f"The wait for {self.what} was cancelled")
        if state is RequestState.REFUSED:
            raise outcome
        return self.finished(outcome)

    def cancel(self) -> None:
        """Cancel the request, because its step has ended. The resource takes back its elements. No effect after `result`."""
        assert self._resource is not None
        self._resource._cancel(self)


R = TypeVar("R", bound=Request)


class AsyncResource(Generic[R]):
    """A resource that answers requests, at once or later. Subclasses define the rules."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    # --- rules, called under the lock ------------------------------------------------------------------------------

    def _admit(self, request: R) -> None:
        """Append a request to its queue. OpError if it is refused."""
        raise NotImplementedError

    def _serve(self) -> None:
        """Settle the requests that can be settled now."""
        raise NotImplementedError

    def _withdraw(self, request: R) -> None:
        """Remove a waiting request from its queue, and take back the elements that it holds."""
        raise NotImplementedError

    def _take_back(self, request: R, value: Any) -> None:
        """Take back an unused answer. An answer that cannot be taken back is lost with its step."""

    def _waiting(self) -> Iterable[R]:
        """All waiting requests."""
        raise NotImplementedError

    # --- events ----------------------------------------------------------------------------------------------------

    def ask(self, request: R) -> Any:
        """Submit a request. Returns its result if it can be answered at once, else the request itself."""
        request._resource = self

        def event() -> None:
            self._admit(request)
            self._serve()

        self.perform(event)
        return request if request.state is RequestState.WAITING else request.result()

    def drop(self) -> None:
        """Refuse all waiting requests with CancelledError, because the resource is deleted."""

        def event() -> None:
            for request in list(self._waiting()):
                self._withdraw(request)
                request.refuse(CancelledError.of(f"{request.what}: its container was cleared"))

        self.perform(event)

    def _cancel(self, request: R) -> None:
        def event() -> None:
            if request.state is RequestState.WAITING:
                self._withdraw(request)
            elif request.state is RequestState.ANSWERED:
                self._take_back(request, request._outcome)
            elif request.state is not RequestState.REFUSED:
                return
            request.state, request._outcome, request._callback = RequestState.CANCELLED, None, None
            self._serve()

        self.perform(event)

    def perform(self, event: Callable[[], None]) -> None:
        """Apply an event under the lock, then call the callbacks of the requests that it settled, in the order of settlement."""
        with self.lock:
            event()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def check_room(line: deque[Any], what: str) -> None:
    """ResourceExhaustedError if a queue of waiting requests is full."""
    if len(line) >= MAX_WAITING:
        raise ResourceExhaustedError.of(
            f"{MAX_WAITING} requests wait for {what} already: the steps that should answer them do not run, or are too slow",
        )
