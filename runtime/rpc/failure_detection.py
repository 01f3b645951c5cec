"""Detection of failures: silent or restarted tasks, and messages between workers that were lost.

Nothing here has sockets or a clock: time is an event, and the caller decides what follows from a failure.

**Tasks** (`FailureDetector`, of callers in `pending_call.py` and of the members of collectives). A task that is waited for is asked for a
heartbeat every `PING_S`, and answers. One that has sent nothing for longer than the patience is dead, stopped or cut off; except when
its process has run since then (`transport/zmq_sockets.py`): a kernel may hold its GIL. A task that answers with another incarnation was
restarted. A connection may be cut in one direction only: a task that keeps reporting that it hears nothing of this one, despite the
answers, is unreachable as well. T. Chandra, S. Toueg: Unreliable failure detectors for reliable distributed systems, 1996.

**Tensors of steps** (`LossDetector`). A step's client watches the tasks that owe it a reply, but not the links between tasks. A link may
be cut while the client reaches both ends. A broken connection loses the messages under way, even if it is up again at once. So a task
whose step has waited for a tensor for `ASK_S` (or half the session's peer timeout, if shorter) sends the producer a `missing`, repeatedly.

- `coming` is the immediate reply, on the connection of the `missing`: the producer lives, and knows the step. Without it for the
  peer timeout, the producer is dead or the link is cut, and the step fails. The exception is a connection that is up: then a kernel
  holds the producer's GIL. Where a task reads the producer's memory and its process has ended, `ASK_S` is enough: it has lost all, and
  if it was started again, its answer to the request for the variable says so.
- `accounted` comes on the connection of the tensors, behind them, and lists the sent channels. A tensor that is still missing when it is
  listed for the second time, `CONFIRM_S` later, is lost, and the step fails.
- The link of the tensors may be cut while that of `coming` works: a firewall may block one direction. Then `accounted` does not
  arrive either. So `coming` also lists the sent channels, and has a number that grows while bytes move to the asking task. If a sent
  tensor does not arrive, and the number stays, for the peer timeout (at least `STUCK_LINK_S`), the link is cut and the step fails. A
  large tensor on a slow link does not fail: its bytes leave a stream, and over ZeroMQ the asking task acknowledges its chunks.

Why twice: a tensor counts as sent a moment before the thread of the connection gets it. A cut is confirmed twice as well: a task that
was stopped for a while reads old replies first, and the tensors a moment later.

**Messages of collectives** (`LossCounter`). Both ends count the messages that they sent and received within a membership. A task that
waits for another asks for its count every `PING_S`. The answer comes on the connection of the parts, behind them. A counted message
that has not arrived by the next answer is lost, and the membership fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ..timeouts import ASK_S, CONFIRM_S, DEAF_S, PING_S, STUCK_LINK_S
from ..wire.messages import ChannelKey


class AwaitedTensors(NamedTuple):
    """The tensors that one step on this task waits for from other tasks."""

    peer_timeout_s: float
    channels: Mapping[str, Sequence[ChannelKey]]  # producing task -> channels
    # Producing tasks whose processes have ended: they answer only if they were started again.
    ended: Collection[str] = ()


class Ask(NamedTuple):
    """A question to a task about a step's tensors."""

    step: int
    task: str
    channels: Sequence[ChannelKey]


class Lost(NamedTuple):
    """The error that ends a step."""

    step: int
    task: str
    waited_s: float
    why: str


SILENT: Final = "does not answer: it is dead, stopped, or cut off from"
BROKEN: Final = "has sent it, and it never came: the connection broke meanwhile to"
CUT: Final = "has sent it, and it does not come, though the task answers: nothing gets through on the connection that it opens to"


@dataclass(slots=True)
class _Wait:
    """One step's wait for one task."""

    since: float
    heard: float  # time of the task's last answer, or the start of the wait
    asked: float = -1.0
    is_unknown: bool = False  # whether the task answered that it does not know the step
    said_sent: dict[ChannelKey, float] = field(default_factory=dict)  # channel -> when `accounted` first listed it
    under_way: dict[ChannelKey, float] = field(default_factory=dict)  # channel -> since when it counts as sent
    left: int = -1  # bytes that had left for this task ...
    left_at: float = 0.0  # ... and when that number last changed
    is_still: bool = False  # whether the link seemed cut at the last answer


class LossDetector:
    """A task's waits for tensors of other tasks."""

    def __init__(self) -> None:
        self._cases: dict[tuple[int, str], _Wait] = {}

    def look(
        self, now: float, steps: Mapping[int, AwaitedTensors],
        lives: Callable[[str, float], bool] = lambda task, since: False,
    ) -> tuple[list[Ask], list[Lost]]:  # fmt: skip
        """The questions and failures that are due now, at a time in seconds.

        Args:
            steps: the waiting steps.
            lives: whether a task's process has run since a given time, even if it does not answer.
        """
        asks, lost = [], []
        cases: dict[tuple[int, str], _Wait] = {}
        for step, waiting in steps.items():
            for task, channels in waiting.channels.items():
                case = cases[step, task] = self._cases.get((step, task)) or _Wait(now, now)
                patience_s = min(ASK_S, waiting.peer_timeout_s) if task in waiting.ended else waiting.peer_timeout_s
                is_silent = case.asked >= 0.0 and now - case.heard > patience_s
                if is_silent and (case.is_unknown or not lives(task, case.heard)):
                    lost.append(Lost(step, task, now - case.since, SILENT))
                elif now - max(case.since, case.asked) >= min(ASK_S, patience_s / 2):
                    case.asked = now
                    asks.append(Ask(step, task, channels))
        self._cases = cases
        return asks, lost

    def coming(
        self, now: float, step: int, task: str, known: bool, sent: Iterable[ChannelKey], left: int,
        waiting: AwaitedTensors | None,
    ) -> Lost | None:  # fmt: skip
        """Handle a `coming`: whether the task knows the step, the sent tensors, and the bytes that have left it for this task so far.

        `waiting`: the tensors that the step waits for now.
        """
        case = self._cases.get((step, task))
        if case is None or waiting is None:
            return None
        case.is_unknown = not known
        if not known:
            return None
        case.heard = now
        missed = set(sent).intersection(waiting.channels.get(task, ()))
        case.under_way = {channel: case.under_way.get(channel, now) for channel in missed}
        if left != case.left:
            case.left, case.left_at = left, now
        was_still, patience_s = case.is_still, max(waiting.peer_timeout_s, STUCK_LINK_S)
        case.is_still = any(now - max(since, case.left_at) > patience_s for since in case.under_way.values())
        return Lost(step, task, now - case.since, CUT) if was_still and case.is_still else None

    def accounted(
        self, now: float, step: int, task: str, sent: Iterable[ChannelKey], waiting: AwaitedTensors | None
    ) -> Lost | None:
        """Handle an `accounted`: the sent tensors. `waiting`: the tensors that the step waits for now."""
        case = self._cases.get((step, task))
        if case is None or waiting is None:
            return None
        missed = set(sent).intersection(waiting.channels.get(task, ()))
        case.said_sent = {channel: case.said_sent.get(channel, now) for channel in missed}
        is_lost = any(now - first >= CONFIRM_S for first in case.said_sent.values())
        return Lost(step, task, now - case.since, BROKEN) if is_lost else None


class LossCounter:
    """Counts the messages between one membership and another task.

    >>> counter = LossCounter()
    >>> counter.received += 2
    >>> counter.lacks(3), counter.lacks(3)  # the third may be under way, but not for so long
    (False, True)
    """

    __slots__ = ("_due", "received", "sent")

    def __init__(self) -> None:
        self.sent = self.received = 0
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
        self._heard = self.awaited.copy()  # task -> time of its last message
        self._incarnations = dict(expected or ())
        self._deaf: dict[str, float] = {}  # task -> since when it reports that it hears nothing of this one

    # --- received messages -----------------------------------------------------------------------------------------

    def heard(self, task: str) -> None:
        self._heard[task] = self.now

    def heartbeat(self, task: str, incarnation: int) -> bool:
        """Record a task's heartbeat, or its request for one. Whether it was restarted since the last."""
        self._heard[task] = self.now
        before, self._incarnations[task] = self._incarnations.get(task, 0), incarnation
        return before not in (0, incarnation)

    def is_cut_off(self, task: str, is_deaf: bool) -> bool:
        """Record whether a task hears nothing of this one. Whether it has reported that for too long."""
        if not is_deaf:
            self._deaf.pop(task, None)
            return False
        return self.now - self._deaf.setdefault(task, self.now) >= DEAF_S

    # --- ticks -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if now - self.now > DEAF_S / 2:
            self._deaf.clear()  # this process was stopped, so the others rightly heard nothing
        self.now = now

    def wait_for(self, tasks: Iterable[str]) -> None:
        self.awaited = {t: self.awaited.get(t, self.now) for t in tasks}

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
        waits = [(task, self.silence(task)) for task in self.awaited if task in self._heard]
        return [(task, s) for task, s in waits if s > self._patience_s and not lives(task, self.now - s)]

    def silence(self, task: str) -> float:
        """Seconds since an awaited task was heard, or since it is awaited."""
        return self.now - max(self._heard.get(task, 0.0), self.awaited[task])
