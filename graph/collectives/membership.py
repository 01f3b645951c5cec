"""What a task knows of the groups in which its sessions take part: memberships, and what waits in them.

What is done with it is told in `coordinator.py`.

Tallies: how members of a group find out that a message between them was lost.

Theory of operation. A connection may break and come back, and what was on its way is gone; both ends live, and answer each
other. So either end counts what it has sent within a membership, and what has come. A task that has waited for another one for
`COUNT_S` asks it to `count`, and again every `COUNT_S`; the answer (`counted`) comes on the connection on which parts come, behind them.
What was counted and has not come by the next answer is lost, and so is the membership.

By the next answer, not at once: a part counts as sent a moment before it is handed to the connection's owner.

The question says which membership of the other task is meant. One that is gone, or has failed, is told so again: the `end` was
lost. One that the asker does not know yet introduces itself again: the `join` was lost.

Signs of life between the tasks of collectives: who is waited for, who was heard when, and who hears nothing.

Theory of operation. A task that is waited for is asked for a sign of life every half second, and answers. One of which nothing has come
for too long is dead, stopped or cut off. One that goes on saying that it hears nothing of us, though we answer it, is cut off in that
direction only, and cannot go on either. One that answers as another process than before was restarted.

Nothing here knows what waits, or what is to be done about it; time is an event.
"""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ..core.errors import OpError
from ..resources.async_request import Request
from .algorithms import Array, Exchange
from .shared_buffer import Board
from .shared_memory_algorithms import Sharing

__all__ = [
    "COUNTED",
    "COUNT_S",
    "DEAF_S",
    "Group",
    "HEARTBEAT_S",
    "Key",
    "MEETING",
    "MOST_KNOWN",
    "Member",
    "Membership",
    "Signs",
    "Table",
    "Tally",
    "Turn",
]

COUNT_S: Final = 1.0
COUNTED: Final = frozenset({"part", "end"})  # what must not be lost; whom a poke does not reach looks by himself


class Tally:
    """What one membership and another task have said to each other.

    >>> tally = Tally()
    >>> tally.came += 2
    >>> tally.lacks(3), tally.lacks(3)  # the third may be on its way; but not for so long
    (False, True)
    """

    __slots__ = ("_due", "asked", "came", "sent")

    def __init__(self) -> None:
        self.sent = self.came = 0
        self.asked = float("-inf")  # when it was asked last
        self._due = 0  # what should have come by now

    def lacks(self, sent: int) -> bool:
        """Whether something is lost, now that the other end says that it has sent so many."""
        if self.came < self._due:
            return True
        self._due = sent
        return False


MOST_KNOWN = 16  # joins of one task that are remembered
MEETING = -1  # the run in which members come to a board
Key = tuple[str, int, int]
"""(instance, run, rank) of an exchange."""


class Member(Request):
    """One member's wait for its result."""

    __slots__ = ("exchange", "finish", "key", "membership", "signature")

    def __init__(
        self,
        what: str,
        membership: Membership,
        key: Key,
        exchange: Exchange,
        signature: str,
        finish: Callable[[Any], Any],
    ) -> None:
        super().__init__(what)
        self.membership, self.key, self.exchange = membership, key, exchange
        self.signature, self.finish = signature, finish

    def finished(self, value: Any) -> Any:
        """The kernel's result."""
        return self.finish(value)

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that keep it waiting."""
        return _awaited(self)

    def expects(self) -> set[int]:
        """Ranks for which it waits."""
        return self.exchange.expects()


class Turn(Request):
    """One member's wait for its turn on a board, and for the others there.

    Attributes:
        has_begun: whether it has had its turn. exchange: makes what is done where there is no board.
        go_on: makes the kernel's result, or a request for what to wait for next.
    """

    __slots__ = ("exchange", "finish", "go_on", "has_begun", "key", "membership", "sharing", "signature", "table")

    def __init__(
        self, what: str, membership: Membership, key: Key, exchange: Callable[[], Exchange], signature: str,
        finish: Callable[[Any], Any], sharing: Sharing, table: Table, go_on: Callable[[Turn], Any],
    ) -> None:  # fmt: skip
        super().__init__(what)
        self.membership, self.key, self.exchange = membership, key, exchange
        self.signature, self.finish, self.sharing, self.table, self.go_on = signature, finish, sharing, table, go_on
        self.has_begun = False

    def waits_for(self) -> str:
        """As `Request.waits_for`, with the members that keep it waiting."""
        return _awaited(self)

    def expects(self) -> set[int]:
        """Ranks for which it waits."""
        return self.sharing.expects()

    def again(self) -> Turn:
        """The same turn, to be waited for once more."""
        made = Turn(
            self.what, self.membership, self.key, self.exchange, self.signature, self.finish, self.sharing, self.table, self.go_on
        )  # fmt: skip
        made.has_begun = self.has_begun
        return made

    def finished(self, value: Any) -> Any:
        """The kernel's result, or what to wait for next."""
        return self.go_on(self)


class Table:
    """Where the runs of one instance meet.

    Attributes:
        is_known: whether it has turned out if there is a board. current: who has the turn. line: who waits for it.
    """

    def __init__(self) -> None:
        self.board: Board | None = None
        self.is_known = False
        self.current: Turn | None = None
        self.line: list[Turn] = []


class Membership:
    """What one session of this task has to do with one group.

    Attributes:
        group: the group's name. ranks: task -> its ranks. token: what tells it from all others.
        peers: other task -> its token; None until it has joined. is_spread: whether each member has a task of its own.
        error: why it has failed. left: tasks that take part no longer -> why; those of them
            that are `closed` have done all that they had begun. tallies: what was sent to each other task, and came from it.
    """

    def __init__(self, group: str, task_of: Sequence[str], here: str) -> None:
        self.group = group
        self.task_of = tuple(task_of)
        self.token = secrets.randbits(62)
        self.is_spread = len(task_of) == len(set(task_of)) > 1
        self.peers: dict[str, int | None] = {t: None for t in dict.fromkeys(task_of) if t != here}
        self.error: OpError | None = None
        self.left: dict[str, str] = {}
        self.closed: set[str] = set()
        self.tallies = {task: Tally() for task in self.peers}
        self.waiting: dict[Key, Member] = {}
        self.turns: dict[Key, Turn] = {}
        self.tables: dict[str, Table] = {}  # by instance
        self.early: dict[Key, list[tuple[int, int, str, Array]]] = {}

    @property
    def requests(self) -> list[Member | Turn]:
        """All that waits."""
        return [*self.waiting.values(), *self.turns.values()]

    @property
    def missing(self) -> list[str]:
        """Tasks that have not joined."""
        return [t for t, token in self.peers.items() if token is None]


class Group:
    """What is known of a group without any session's doing."""

    def __init__(self) -> None:
        self.unused: dict[str, int] = {}  # task -> the token of its latest join that no membership has taken
        self.latest: dict[str, int] = {}  # task -> the token of its latest join
        self.known: dict[str, deque[int]] = {}  # task -> the tokens of its last joins
        self.memberships: weakref.WeakSet[Membership] = weakref.WeakSet()
        self.early: OrderedDict[tuple[str, int], list[dict[str, Any]]] = OrderedDict()
        self.kept = 0
        self.lost: set[tuple[str, int]] = set()  # (task, token) of which a part could not be kept

    def knows(self, task: str, token: int) -> bool:
        """Whether a task has joined with this token."""
        return token in self.known.get(task, ())


def _awaited(request: Member | Turn) -> str:
    """What a member waits for: the collective, and those without whom it cannot go on."""
    membership, (instance, _, rank) = request.membership, request.key
    assert request._desk is not None
    with request._desk._lock:
        absent = membership.missing
        ranks = {r for r, task in enumerate(membership.task_of) if task in absent}
        if not ranks:
            ranks = request.expects()
            meeting = membership.waiting.get((instance, MEETING, rank))
            if meeting is not None:  # it has no turn before all have met
                ranks = ranks | meeting.expects()
    if not ranks:
        return request.what
    members = ", ".join(f"member {r}" + (f" ({t})" if (t := membership.task_of[r]) else "") for r in sorted(ranks))
    return f"{request.what}: {'not joined by' if absent else 'awaiting'} {members}"


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
