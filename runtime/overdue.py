"""Tensors that are overdue: a task that waits for one asks the task that makes it.

Theory of operation. A step's client watches the tasks that owe it an answer, but not the ways between tasks: one may be cut while
the client reaches both its ends, and what was on its way when a connection broke is lost, though it works again a moment later. So a
task whose step has waited for a tensor for `ASK_S` sends its producer a `missing`, and again every `ASK_S`; after half of
the session's peer timeout where that is less.

- `coming` comes back at once, on the connection on which was asked: the producer lives, and knows the step. None for as long as the
  session's peer timeout, from the beginning of the wait: it is dead, or the way there is cut, and the step fails with an error that
  names it.
- `accounted` comes on the connection on which tensors come, behind them: these channels have been sent. If one of them is still
  waited for when that is said for the second time, its tensor is lost, and so is the step.

Twice, because a tensor counts as sent a moment before it is handed to the connection's owner.

`Overdue` knows neither sockets nor clocks: it is told the time, and says what to ask and which steps fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from .step import ChannelKey

ASK_S: Final = 1.0


class Waiting(NamedTuple):
    """What one step waits for on this task, from others."""

    peer_timeout_s: float
    channels: Mapping[str, Sequence[ChannelKey]]  # by the task that makes them


class Ask(NamedTuple):
    """Ask a task for these tensors of a step."""

    step: int
    task: str
    channels: Sequence[ChannelKey]


class Lost(NamedTuple):
    """A step has to end: this task does not answer, or what it sent never came."""

    step: int
    task: str
    waited_s: float
    silent: bool


@dataclass(slots=True)
class _Case:
    """One step's wait for one task."""

    since: float
    heard: float  # when the task has answered last, or the wait began
    asked: float = -1.0
    said_sent: dict[ChannelKey, int] = field(default_factory=dict)  # channel -> how often, while it was waited for


class Overdue:
    """The waits of one task's steps for tensors of other tasks."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, str], _Case] = {}

    def look(self, now: float, steps: Mapping[int, Waiting]) -> tuple[list[Ask], list[Lost]]:
        """What is to be done at this time, in seconds; `steps` are those that wait."""
        asks, lost = [], []
        cases: dict[tuple[int, str], _Case] = {}
        for step, waiting in steps.items():
            for task, channels in waiting.channels.items():
                case = cases[step, task] = self._cases.get((step, task)) or _Case(now, now)
                if case.asked >= 0.0 and now - case.heard > waiting.peer_timeout_s:
                    lost.append(Lost(step, task, now - case.since, True))
                elif now - max(case.since, case.asked) >= min(ASK_S, waiting.peer_timeout_s / 2):
                    case.asked = now
                    asks.append(Ask(step, task, channels))
        self._cases = cases
        return asks, lost

    def coming(self, now: float, step: int, task: str, known: bool) -> None:
        """A task has answered: it knows the step, or does not."""
        case = self._cases.get((step, task))
        if case is not None and known:
            case.heard = now

    def accounted(
        self, now: float, step: int, task: str, sent: Iterable[ChannelKey], waiting: Waiting | None
    ) -> Lost | None:
        """A task says that it has sent these; `waiting` is what the step waits for now."""
        case = self._cases.get((step, task))
        if case is None or waiting is None:
            return None
        missed = set(sent).intersection(waiting.channels.get(task, ()))
        case.said_sent = {channel: case.said_sent.get(channel, 0) + 1 for channel in missed}
        if any(times >= 2 for times in case.said_sent.values()):
            return Lost(step, task, now - case.since, False)
        return None
