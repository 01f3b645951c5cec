"""Signs of life between the tasks of collectives: who is waited for, who was heard when, and who hears nothing.

Theory of operation. A task that is waited for is asked for a sign of life every half second, and answers. One of which nothing has come
for too long is dead, stopped or cut off. One that goes on saying that it hears nothing of us, though we answer it, is cut off in that
direction only, and cannot go on either. One that answers as another process than before was restarted.

Nothing here knows what waits, or what is to be done about it; time is an event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

HEARTBEAT_S = 0.5
DEAF_S = 2.0  # a task that says for so long that it hears nothing is cut off in that direction


class Signs:
    """What one task knows of the lives of others.

    Args:
        patience_s: a task that gives no sign of life for so long is taken for dead ...
        lives: ... unless its process is known to have run since then: a kernel may keep it from answering.

    Attributes:
        now: the time of the last tick.
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
        """Something has come from a task."""
        self._heard[task] = self.now, self._heard.get(task, (0.0, 0))[1]

    def has_heard(self, task: str) -> bool:
        """Whether anything has ever come from a task."""
        return task in self._heard

    def gave_sign(self, task: str, incarnation: int) -> bool:
        """A task has asked for a sign of life, or given one; whether it was restarted since the last."""
        before = self._heard.get(task, (0.0, 0))[1]
        self._heard[task] = self.now, incarnation
        return before not in (0, incarnation)

    def is_cut_off(self, task: str, is_deaf: bool) -> bool:
        """A task says whether it has heard anything of this one lately; whether it has gone on saying no for too long."""
        if not is_deaf:
            self._deaf.pop(task, None)
            return False
        return self.now - self._deaf.setdefault(task, self.now) >= DEAF_S

    # --- time ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has passed."""
        if now - self.now > DEAF_S / 2:
            self._deaf.clear()  # this process was stopped: who heard nothing meanwhile was right
        self.now = now

    def wait_for(self, tasks: Iterable[str]) -> None:
        """These are waited for now, and no others."""
        self.awaited = {t: self.awaited.get(t, self.now) for t in tasks}

    def to_ask(self) -> list[tuple[str, bool]]:
        """Who is to be asked for a sign of life now, and whether nothing has been heard of him for too long."""
        if not self.awaited or self.now - self._asked < HEARTBEAT_S:
            return []
        self._asked = self.now
        return [
            (t, self.now - max(self._heard.get(t, (0.0, 0))[0], since) > self._patience_s)
            for t, since in self.awaited.items()
        ]

    def silent(self) -> list[tuple[str, float]]:
        """Who was heard once, and has given no sign for too long while he was waited for: for how many seconds."""
        found = []
        for task, since in self.awaited.items():
            last = self._heard.get(task)
            if last is not None:
                seconds = self.now - max(last[0], since)
                if seconds > self._patience_s and not self._lives(task, max(last[0], since)):
                    found.append((task, seconds))
        return found


__all__ = ["DEAF_S", "HEARTBEAT_S", "Signs"]
