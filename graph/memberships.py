"""What a task knows of the groups in which its sessions take part: memberships, and what waits in them.

What is done with it is told in `collectives.py`.
"""

from __future__ import annotations

import secrets
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from .boards import Board
from .errors import OpError
from .exchanges import Array, Exchange
from .requests import Request
from .sharing import Sharing
from .tallies import Tally

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


__all__ = ["MEETING", "MOST_KNOWN", "Group", "Key", "Member", "Membership", "Table", "Turn"]
