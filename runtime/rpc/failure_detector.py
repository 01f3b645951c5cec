"""The detector of failed tasks: for callers (`pending_call.py`), and for the members of collectives.

A task that is waited for is asked for a heartbeat every `PING_S`, and answers. One that has sent nothing for longer than the patience is
dead, stopped or cut off; except when its process has run since then (`transport/zmq_liveness.py`): a kernel may hold its GIL. A task
that answers with another incarnation was restarted. A connection may be cut in one direction only: a task that keeps reporting that it
hears nothing of this one, despite the answers, is unreachable as well.

The caller decides what follows from a failure. Time is an event: nothing here has a clock. T. Chandra, S. Toueg: Unreliable failure
detectors for reliable distributed systems, 1996.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..timeouts import DEAF_S, PING_S


class FailureDetector:
    """One task's view of the liveness of others.

    Args:
        patience_s: a task that sends nothing for this long counts as dead, in seconds.
        expected: tasks that are awaited as if they had been heard just now, with their incarnations; 0: any.

    Attributes:
        now: the time of the last tick, in seconds.
        awaited: task -> start of the wait for it.
    """

    def __init__(self, patience_s: float, now: float = 0.0, expected: Mapping[str, int] | None = None) -> None:
        self.now = self._asked = now
        self.awaited: dict[str, float] = dict.fromkeys(expected or (), now)
        self._patience_s = patience_s
        self._heard: dict[str, tuple[float, int]] = {}  # task -> time of its last message, and its incarnation
        if expected is not None:
            for task in expected:
                self._heard[task] = now, expected[task]
        self._deaf: dict[str, float] = {}  # task -> since when it reports that it hears nothing of this one

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

    def was_away(self, now: float) -> None:
        """Set the time, and restart all silences: this process did not listen for a while."""
        self.now = now
        self._heard = {task: (now, incarnation) for task, (_, incarnation) in self._heard.items()}

    def wait_for(self, tasks: Iterable[str]) -> None:
        """Set the awaited tasks."""
        self.awaited = {t: self.awaited.get(t, self.now) for t in tasks}

    def until_silent(self) -> float:
        """Seconds until the first awaited task has been silent for too long; negative: one has."""
        first = self.now
        for task in self.awaited:
            first = min(first, self._heard[task][0])
        return first + self._patience_s - self.now

    def to_ask(self) -> list[tuple[str, bool]]:
        """The tasks to ask for a heartbeat now, each with whether it has been silent for too long."""
        if not self.awaited or self.now - self._asked < PING_S:
            return []
        self._asked = self.now
        return [(task, self.silence(task) > self._patience_s) for task in self.awaited]

    def silent(self, lives: Callable[[str, float], bool] = lambda task, since: False) -> list[tuple[str, float]]:
        """Awaited tasks that were heard before and are silent for too long; with the seconds.

        Args:
            lives: whether a task's process has run since a given time, even if it does not answer.
        """
        return [
            (task, seconds)
            for task in self.awaited
            if task in self._heard
            and (seconds := self.silence(task)) > self._patience_s
            and not lives(task, self.now - seconds)
        ]

    def silence(self, task: str) -> float:
        """Seconds since an awaited task was heard, or since it is awaited."""
        return self.now - max(self._heard.get(task, (0.0, 0))[0], self.awaited[task])
