"""Failure detection between the tasks of collectives: dead tasks, broken connections, and lost messages.

**Heartbeats** (`FailureDetector`). A task that is waited for is asked for a heartbeat every `HEARTBEAT_S`, and answers. A task that has
sent nothing for longer than the patience is dead, stopped or cut off. A connection may be cut in one direction only: a task that keeps
saying that it hears nothing of this one, though it is answered, cannot be reached and fails as well. A task that answers with another
incarnation was restarted.

**Loss counters** (`LossCounter`). A connection may break and come back, and messages under way are lost though both ends live. So both
ends count the messages that they sent and received within a membership. A task that has waited for another for `COUNT_S` asks it for its
count, and again every `COUNT_S`. The answer comes on the connection of the parts, behind them. A message that was counted and has not come
by the next answer is lost, and the membership fails. Not at the first answer: a part counts as sent a moment before it is handed
to the connection's owner.

Nothing here knows what waits, or what follows from a failure. Time is given as an event. T. Chandra, S. Toueg: Unreliable failure
detectors for reliable distributed systems, 1996.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ..timeouts import DEAF_S, HEARTBEAT_S

COUNTED: Final = frozenset({"part", "end"})
"""Events that must not be lost. A wake-up is not counted: the sleeper looks by itself from time to time."""


class LossCounter:
    """How many messages one membership and another task have exchanged.

    >>> counter = LossCounter()
    >>> counter.received += 2
    >>> counter.lacks(3), counter.lacks(3)  # the third may be under way, but not for so long
    (False, True)
    """

    __slots__ = ("_due", "asked", "received", "sent")

    def __init__(self) -> None:
        self.sent = self.received = 0
        self.asked = float("-inf")  # when the other end was last asked for its count
        self._due = 0  # how many should have come by now

    def lacks(self, sent: int) -> bool:
        """Whether a message is lost, now that the other end says that it has sent so many."""
        if self.received < self._due:
            return True
        self._due = sent
        return False


class FailureDetector:
    """What one task knows of the liveness of others.

    Args:
        patience_s: a task that sends nothing for so long is taken for dead ...
        lives: ... unless its process is known to have run since then: a long kernel may keep it from answering.

    Attributes:
        now: the time of the last tick, in seconds.
        awaited: task -> since when it is waited for.
    """

    def __init__(self, patience_s: float, lives: Callable[[str, float], bool] = lambda task, since: False) -> None:
        self.now = 0.0
        self.awaited: dict[str, float] = {}
        self._patience_s = patience_s
        self._lives = lives
        self._heard: dict[str, tuple[float, int]] = {}  # task -> when it was last heard, and its incarnation
        self._deaf: dict[str, float] = {}  # task -> since when it says that it hears nothing of this one
        self._asked = 0.0

    # --- what comes ------------------------------------------------------------------------------------------------

    def heard(self, task: str) -> None:
        """A message has come from a task."""
        self._heard[task] = self.now, self._heard.get(task, (0.0, 0))[1]

    def has_heard(self, task: str) -> bool:
        """Whether any message has ever come from a task."""
        return task in self._heard

    def heartbeat(self, task: str, incarnation: int) -> bool:
        """A task has asked for a heartbeat, or sent one. Whether it was restarted since the last."""
        before = self._heard.get(task, (0.0, 0))[1]
        self._heard[task] = self.now, incarnation
        return before not in (0, incarnation)

    def is_cut_off(self, task: str, is_deaf: bool) -> bool:
        """A task says whether it hears nothing of this one. Whether it has said so for too long."""
        if not is_deaf:
            self._deaf.pop(task, None)
            return False
        return self.now - self._deaf.setdefault(task, self.now) >= DEAF_S

    # --- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now - self.now > DEAF_S / 2:
            self._deaf.clear()  # this process was stopped: others were right to hear nothing
        self.now = now

    def wait_for(self, tasks: Iterable[str]) -> None:
        """These tasks are waited for now, and no others."""
        self.awaited = {t: self.awaited.get(t, self.now) for t in tasks}

    def to_ask(self) -> list[tuple[str, bool]]:
        """The tasks to ask for a heartbeat now, each with whether nothing has been heard of it for too long."""
        if not self.awaited or self.now - self._asked < HEARTBEAT_S:
            return []
        self._asked = self.now
        return [
            (t, self.now - max(self._heard.get(t, (0.0, 0))[0], since) > self._patience_s)
            for t, since in self.awaited.items()
        ]

    def silent(self) -> list[tuple[str, float]]:
        """Tasks that were heard once and have sent nothing for too long while they were waited for: for how many seconds."""
        found = []
        for task, since in self.awaited.items():
            last = self._heard.get(task)
            if last is not None:
                seconds = self.now - max(last[0], since)
                if seconds > self._patience_s and not self._lives(task, max(last[0], since)):
                    found.append((task, seconds))
        return found


__all__ = ["COUNTED", "FailureDetector", "LossCounter"]
