"""What each thread of a worker is doing: which programs it runs next, and what the one that it runs has put out.

Programs are not run where they become ready, inside one another, but one after the other in the thread's *turn*, so the stack stays
flat however long a chain between two devices is.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .execution import ChannelKey, Execution
    from .loaded import Stretch
    from .running import Running


class Turn:
    """What one thread is doing.

    Attributes:
        ready: what it is to run next; None while it runs nothing.
        last: what is done when nothing is left to run.
        outbox: task -> what the program that it runs has put out, and has not sent yet.
        since: the same -> when the first of that was put out that the receiver may be waiting for.
        sent, sent_at: the channel that was put out last, and when.
    """

    __slots__ = ("last", "outbox", "ready", "sent", "sent_at", "since")

    def __init__(self) -> None:
        self.ready: deque[tuple[Running, Execution, Stretch]] | None = None
        self.last: list[Callable[[], None]] = []
        self.outbox: dict[str, dict[ChannelKey, Any]] = {}
        self.since: dict[str, float] = {}
        self.sent: ChannelKey | None = None
        self.sent_at = 0.0

    def take(self, first: Callable[..., None], *arguments: Any) -> None:
        """Do `first(*arguments)`, then run whatever small stretches it made ready, in order, until none is left."""
        if self.ready is not None:  # already inside a turn of this thread
            first(*arguments)
            return
        ready = self.ready = deque()
        try:
            first(*arguments)
            while ready:
                running, execution, stretch = ready.popleft()
                running.run(execution, stretch)
        finally:
            self.ready = None
            if self.last:
                self._end()

    def _end(self) -> None:
        """Do what was put off, all of it, whatever it raises."""
        last, self.last = self.last, []
        with contextlib.ExitStack() as stack:
            for do in reversed(last):
                stack.callback(do)

    def at_end(self, do: Callable[[], None]) -> None:
        """Do something that nobody is in a hurry for, when the turn has run what is ready: at once, if there is no turn."""
        if self.ready:
            self.last.append(do)
        else:
            do()


class Turns(threading.local):
    """The calling thread's turn."""

    def __init__(self) -> None:
        self.mine = Turn()


__all__ = ["Turn", "Turns"]
