"""Links: collectives that go another way than by messages, such as NCCL between GPUs.

Theory of operation. A link runs the collectives of one group on the devices themselves. It has two demands that messages do not have:
every member must start the same collective before the next one, and one that is missing is waited for on the device, where nothing
else can end the wait. So before each run the members agree (`Linked`), as they come to it: each tells the first one what it can
(`READY`), and when all are there, that one tells them to start, and as which in the order of all runs of the group (`GO`). Until
then nobody waits but the step, as in other collectives. From then on a member waits for all others, until its link says that the run has
ended: so a member that dies is noticed, and the link is stopped.

    READY   the member's card, and how many rows it brings
    GO      the run's number, or why there is none; rows of each member; what members need to find each other

Where one of them cannot, all hear which, and why, and do without: `Refused` is their result.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .algorithms import Array, Exchange, Part


@dataclass(frozen=True, slots=True)
class Card:
    """What a member says of itself.

    Attributes:
        version: of the library; 0: it has none.
        device: what tells its device from all others, as two whole numbers.
    """

    version: int
    device: tuple[int, int]


class Why(enum.IntEnum):
    """Why members cannot use a link."""

    MISSING = -1
    VERSIONS = -2
    SAME_DEVICE = -3


@dataclass(frozen=True, slots=True)
class Refused:
    """The members have found that they cannot: because of this rank."""

    why: Why
    rank: int


class Link(Protocol):
    """One member's side of a link. Only `start` and what it leads to may take long, in a thread of the link's own."""

    card: Card

    def invitation(self) -> bytes:
        """What the members need to find each other: made by the first one, the same each time. A multiple of 8 bytes."""
        ...

    def next_number(self) -> int:
        """The number of the next run, for the first member: 0, 1, 2..."""
        ...

    def start(self, number: int, invitation: bytes, job: Any, rows: Sequence[int], tell: Callable[[Any], None]) -> None:
        """Run a job when those with lower numbers have been started. `tell` gets its result, or an OpError, in another thread."""
        ...

    def stop(self) -> None:
        """End all that runs, with errors: another member is gone. The link is of no use any more."""
        ...


_unlinked: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def unlinked(session: Any) -> set[Any]:
    """The groups and instances of a session that have found that they have no link."""
    return _unlinked.setdefault(session, set())


NO_CARD = Card(0, (0, 0))


class Linked(Exchange):
    """One member's share of one run on a link.

    Args:
        link: the member's; None: it has none.
        job: what the link is to do.
        rows: how many the member brings; all hear of it.

    Attributes:
        tell: takes the link's answer, from any thread; set by whoever runs the exchange.
        is_under_way: whether the link has been told to start.
    """

    READY, GO = range(2)
    tell: Callable[[Any], None]

    def __init__(self, rank: int, size: int, link: Link | None, job: Any, rows: int = 0) -> None:
        super().__init__(rank, size)
        self._link, self._job, self._rows = link, job, rows
        self._ready: dict[int, tuple[Card, int]] = {}
        self.is_under_way = False

    def begin(self) -> list[Part]:
        """As `Exchange.begin`."""
        card = NO_CARD if self._link is None else self._link.card
        if self.rank == 0:
            self._ready[0] = card, self._rows
            return self._decide()
        return [(0, self.READY, np.array([card.version, *card.device, self._rows], np.int64))]

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        """As `Exchange.receive`."""
        if array.dtype != np.int64 or array.ndim != 1:
            return []
        if tag == self.READY and self.rank == 0 and len(array) == 4:
            version, first, second, rows = (int(x) for x in array)
            self._ready[sender] = Card(version, (first, second)), rows
            return self._decide()
        if tag == self.GO and sender == 0 != self.rank and len(array) >= 2 + self.size:
            self._go(array)
        return []

    def _decide(self) -> list[Part]:
        """When all are there: go, or say why not."""
        if len(self._ready) < self.size:
            return []
        cards, rows = zip(*(self._ready[r] for r in range(self.size)), strict=True)
        refused = _objection(cards)
        go = [0, 0, *rows]
        if refused is None:
            assert self._link is not None
            go[0] = self._link.next_number()
            go += np.frombuffer(self._link.invitation(), np.int64).tolist()
        else:
            go[:2] = refused.why, refused.rank
        said = np.array(go, np.int64)
        self._go(said)
        return [(r, self.GO, said) for r in range(1, self.size)]

    def _go(self, said: Array) -> None:
        number, rank = int(said[0]), int(said[1])
        if number < 0 or self._link is None:
            self._finish(Refused(Why(number) if number in Why.__members__.values() else Why.MISSING, rank % self.size))
            return
        self.is_under_way = True
        rows = [int(x) for x in said[2 : 2 + self.size]]
        self._link.start(number, said[2 + self.size :].tobytes(), self._job, rows, lambda result: self.tell(result))

    def ended(self, result: Any) -> None:
        """The link has done it."""
        self._finish(result)

    def stop(self) -> None:
        """The others are gone, or the step is: nothing will come of it."""
        if self._link is not None:
            self._link.stop()

    def expects(self) -> set[int]:
        """As `Exchange.expects`."""
        if self.is_done:
            return set()
        if self.is_under_way:
            return set(range(self.size)) - {self.rank}
        return set(range(self.size)) - self._ready.keys() if self.rank == 0 else {0}


def _objection(cards: Sequence[Card]) -> Refused | None:
    seen: set[tuple[int, int]] = set()
    for rank, card in enumerate(cards):
        if not card.version:
            return Refused(Why.MISSING, rank)
        if card.version != cards[0].version:
            return Refused(Why.VERSIONS, rank)
        if card.device in seen:
            return Refused(Why.SAME_DEVICE, rank)
        seen.add(card.device)
    return None


_REASONS = {
    Why.MISSING: "has no NCCL, or no GPU of its own: it needs pip install 'dovetail[nccl]' and NVIDIA's library",
    Why.VERSIONS: "has another version of NCCL than the first member: install the same one everywhere",
    Why.SAME_DEVICE: "shares its GPU with another member: each member needs one of its own",
}


def told(refused: Refused, members: Sequence[str]) -> str:
    """Why there is no link, in words."""
    return f"member {refused.rank} ({members[refused.rank]}) {_REASONS[refused.why]}"


__all__ = ["NO_CARD", "Card", "Link", "Linked", "Refused", "Why", "told", "unlinked"]
