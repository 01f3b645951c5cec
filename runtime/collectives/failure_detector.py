"""Failure detection between the tasks of collectives: dead tasks, broken connections, and lost messages.

**Heartbeats** (`FailureDetector`). An awaited task is asked for a heartbeat every `HEARTBEAT_S`, and answers. A task that has
sent nothing for longer than the patience is dead, stopped or cut off. A connection may be cut in one direction only: a task that keeps
reporting that it hears nothing of this one, despite the answers, is unreachable and fails as well. A task that answers with another
incarnation was restarted.

**Loss counters** (`LossCounter`). A connection may break and come back: both ends live, but messages under way are lost. So both
ends count the messages that they sent and received within a membership. A task that has waited for another for `COUNT_S` asks for its
count, and again every `COUNT_S`. The answer comes on the connection of the parts, behind them. A counted message that has not arrived
by the next answer is lost, and the membership fails. The first answer does not suffice: a part counts as sent a moment before the thread of
the connection gets it.

The caller decides what waits, and what follows from a failure. Time is an event. T. Chandra, S. Toueg: Unreliable failure
detectors for reliable distributed systems, 1996.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ..timeouts import DEAF_S, HEARTBEAT_S

COUNTED: Final = frozenset({"part", "end"})
"""Events that must not be lost. Wake-ups are not counted: a sleeping member polls from time to time."""


class LossCounter:
    """Counts the messages between one membership and another task.

    >>> counter = LossCounter()
    >>> counter.received += 2
    >>> counter.lacks(3), counter.lacks(3)  # the third may be under way, but not for so long
    (False, True)
    """

    __slots__ = ("_due", "asked", "received", "sent")

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.asked = float("-inf")  # time of the last `count` to the other end
        self._due = 0  # messages that should have arrived by now

    def lacks(self, sent: int) -> bool:
        """Whether a message is lost, given the other end's count of sent messages."""
        if self.received < self._due:
            return True
        self._due = sent
        return False


class FailureDetector:
    """One task's view of the liveness of others.

    Args:
        patience_s: a task that sends nothing for this long counts as dead, in seconds ...
        lives: ... except when its process has run since then: a long kernel may keep it from answering.

    Attributes:
        now: the time of the last tick, in seconds.
        awaited: task -> start of the wait for it.
    """

    def __init__(self, patience_s: float, lives: Callable[[str, float], bool] = lambda task, since: False) -> None:
        self.now = 0.0
        self.awaited: dict[str, float] = {}
        self._patience_s = patience_s
        self._lives = lives
        self._heard: dict[str, tuple[float, int]] = {}  # task -> time of its last message, and its incarnation
        self._deaf: dict[str, float] = {}  # task -> since when it reports that it hears nothing of this one
        self._asked = 0.0

    # --- received messages -----------------------------------------------------------------------------------------

    def heard(self, task: str) -> None:
        """Record a message from a task."""
        self._heard[task] = self.now, self._heard.get(task, (0.0, 0))[1]

    def has_heard(self, task: str) -> bool:
        """Whether any message has arrived from a task."""
        return task in self._heard

    def heartbeat(self, task: str, incarnation: int) -> bool:
        """Record a task's heartbeat, or its request for one. Whether it was restarted since the last."""
        before = self._heard.get(task, (0.0, 0))[1]
        self._heard[task] = self.now, incarnation
        return before not in (0, incarnation)

    def is_cut_off(self, task: str, is_deaf: bool) -> bool:
        """Record whether a task hears nothing of this one. Whether it has reported that for too long."""
        if not is_deaf:
            self._deaf.pop(task, None)
            return False
        return self.now - self._deaf.setdefault(task, self.now) >= DEAF_S

    # --- ticks -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Set the time."""
        if now - self.now > DEAF_S / 2:
            self._deaf.clear()  # this process was stopped, so the others rightly heard nothing
        self.now = now

    def wait_for(self, tasks: Iterable[str]) -> None:
        """Set the awaited tasks."""
        self.awaited = {t: self.awaited.get(t, self.now) for t in tasks}

    def to_ask(self) -> list[tuple[str, bool]]:
        """The tasks to ask for a heartbeat now, each with whether it has been silent for too long."""
        if not self.awaited or self.now - self._asked < HEARTBEAT_S:
            return []
        self._asked = self.now
        return [
            (t, self.now - max(self._heard.get(t, (0.0, 0))[0], since) > self._patience_s)
            for t, since in self.awaited.items()
        ]

    def silent(self) -> list[tuple[str, float]]:
        """Awaited tasks that were heard before and are silent for too long; with the seconds."""
        found = []
        for task, since in self.awaited.items():
            last = self._heard.get(task)
            if last is not None:
                seconds = self.now - max(last[0], since)
                if seconds > self._patience_s and not self._lives(task, max(last[0], since)):
                    found.append((task, seconds))
        return found
