"""Requests that a resource may answer later: how a step waits for another step without holding a thread.

Theory of operation. A kernel that may have to wait (a dequeue, a take of gradients) puts a `Request` to the resource, the
`Desk`. What can be answered at once is. Otherwise the kernel gives back the request itself as its result, and whoever
runs the kernel sets the program aside, having left word whom to tell (`when_settled`). Some later event at the same desk
(another step's enqueue, a close) settles the request, and its waiter is told; that is all the waking there is.

A request has one of these fates:

    waiting  --answer-->  answered  --result-->  taken          the step goes on with the value
    waiting  --refuse-->  refused   --result-->  taken          the step fails with the error
    waiting  --cancel-->  cancelled                             the step ended first; what the request held goes back
    answered --cancel-->  cancelled                             the same: nobody has seen the value, so nothing is lost

The rules of a desk (`_admit`, `_serve`, `_withdraw`, `_take_back`) are plain functions of its state, called with its one
lock held; waiters are told after the lock is let go. No thread, clock or socket is involved, so any order of events can be
played through in a test.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ..core.errors import CancelledError, OpError, ResourceExhaustedError

MAX_WAITING = 10_000  # requests that wait at one desk: beyond it somebody starts steps and never looks at their ends


class Fate(enum.Enum):
    """Where a request stands."""

    WAITING = enum.auto()
    ANSWERED = enum.auto()
    REFUSED = enum.auto()
    TAKEN = enum.auto()
    CANCELLED = enum.auto()


class Request:
    """Something asked of a desk.

    Attributes:
        what: what is waited for, in words.
        fate: where it stands.
    """

    __slots__ = ("_desk", "_outcome", "_tell", "fate", "what")

    def __init__(self, what: str) -> None:
        self.what = what
        self.fate = Fate.WAITING
        self._desk: Desk[Any] | None = None
        self._outcome: Any = None
        self._tell: Callable[[], None] | None = None

    def waits_for(self) -> str:
        """What is waited for, in words, with what is known of it at this moment."""
        return self.what

    # --- for the rules of a desk, under its lock -------------------------------------------------------------------

    def answer(self, value: Any = ()) -> None:
        """It can be done; `value` is what `finished` makes the result of."""
        self._settle(Fate.ANSWERED, value)

    def refuse(self, error: OpError) -> None:
        """It will never be done."""
        self._settle(Fate.REFUSED, error)

    def _settle(self, fate: Fate, outcome: Any) -> None:
        assert self.fate is Fate.WAITING and self._desk is not None
        self.fate, self._outcome = fate, outcome
        if self._tell is not None:
            self._desk._told.append(self._tell)
            self._tell = None

    def finished(self, value: Any) -> Any:
        """The kernel's result, made from the answer; without the lock, because it may copy a lot."""
        return value

    # --- for whoever runs the kernel -------------------------------------------------------------------------------

    def when_settled(self, tell: Callable[[], None]) -> bool:
        """Leave word: True when `tell` will be called once, from some thread; False when it is settled already."""
        assert self._desk is not None
        with self._desk._lock:
            if self.fate is not Fate.WAITING:
                return False
            self._tell = tell
            return True

    def result(self) -> Any:
        """The kernel's result. Raises what the request was refused with, or CancelledError."""
        assert self._desk is not None
        with self._desk._lock:
            assert self.fate is not Fate.WAITING
            fate, outcome = self.fate, self._outcome
            if fate is not Fate.CANCELLED:
                self.fate = Fate.TAKEN
            self._outcome = None
        if fate is Fate.CANCELLED:
            raise CancelledError(None, None, f"The wait for {self.what} was cancelled")
        if fate is Fate.REFUSED:
            raise outcome
        return self.finished(outcome)

    def cancel(self) -> None:
        """Nobody waits any more: what it holds goes back. Does nothing once the result was taken."""
        assert self._desk is not None
        self._desk._cancel(self)


class Followed(Request):
    """A request after whose answer there is something to do: its result is `then(result)`, which may be another request."""

    __slots__ = ("_first", "_then")

    def __init__(self, first: Request, then: Callable[[Any], Any]) -> None:
        super().__init__(first.what)
        self._first, self._then = first, then

    def waits_for(self) -> str:
        """As the first one says."""
        return self._first.waits_for()

    def when_settled(self, tell: Callable[[], None]) -> bool:
        """When the first one is settled."""
        return self._first.when_settled(tell)

    def result(self) -> Any:
        """What follows from the first one's result."""
        return self._then(self._first.result())

    def cancel(self) -> None:
        """The first one's answer goes back."""
        self._first.cancel()


R = TypeVar("R", bound=Request)


class Desk(Generic[R]):
    """A resource that answers requests, some of them later. Subclasses give the rules."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[Callable[[], None]] = []

    # --- the rules, under the lock ---------------------------------------------------------------------------------

    def _admit(self, request: R) -> None:
        """Put a request into its line; an OpError says that there is no place for it."""
        raise NotImplementedError

    def _serve(self) -> None:
        """Settle what can be settled now."""
        raise NotImplementedError

    def _withdraw(self, request: R) -> None:
        """Take a waiting request out of its line, and what it holds back."""
        raise NotImplementedError

    def _take_back(self, request: R, value: Any) -> None:
        """Take an answer back that nobody has seen. What cannot be taken back is lost with its step."""

    def _waiting(self) -> Iterable[R]:
        """All requests that wait."""
        raise NotImplementedError

    # --- events ----------------------------------------------------------------------------------------------------

    def ask(self, request: R) -> Any:
        """The result of a request that can be answered at once; else the request itself."""
        request._desk = self

        def event() -> None:
            self._admit(request)
            self._serve()

        self._do(event)
        return request if request.fate is Fate.WAITING else request.result()

    def drop(self) -> None:
        """The resource is cleared away: all that waits is cancelled."""

        def event() -> None:
            for request in list(self._waiting()):
                self._withdraw(request)
                request.refuse(CancelledError(None, None, f"{request.what}: its container was cleared"))

        self._do(event)

    def _cancel(self, request: R) -> None:
        def event() -> None:
            if request.fate is Fate.WAITING:
                self._withdraw(request)
            elif request.fate is Fate.ANSWERED:
                self._take_back(request, request._outcome)
            elif request.fate is not Fate.REFUSED:
                return
            request.fate, request._outcome, request._tell = Fate.CANCELLED, None, None
            self._serve()

        self._do(event)

    def _do(self, event: Callable[[], None]) -> None:
        """Let an event happen, then tell those whose requests it settled, in the order in which it did."""
        with self._lock:
            event()
            told, self._told = self._told, []
        for tell in told:
            tell()


def check_room(line: deque[Any], what: str) -> None:
    """ResourceExhaustedError when a line of waiting requests has reached its bound."""
    if len(line) >= MAX_WAITING:
        raise ResourceExhaustedError(
            None, None,
            f"{MAX_WAITING} requests wait for {what} already: whatever should answer them does not run, or is too slow",
        )  # fmt: skip


__all__ = ["MAX_WAITING", "Desk", "Fate", "Followed", "Request", "check_room"]
