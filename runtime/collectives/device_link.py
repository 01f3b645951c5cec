"""The agreement of members before a collective on device links, such as NCCL's.

A link runs the collectives of one group on the devices themselves. Unlike messages, it has two requirements: every member must
start the same collective before the next one, and a wait for a missing member happens on the device, where only the link can end it.
So before each run the members agree (`LinkAgreement`). Each sends rank 0 its link's identity (`READY`). When all have, rank 0 sends
the start and the run's number in the group's order of runs (`GO`). Until then only the step waits, as in other
collectives. From then on a member waits for all others until its link reports the end of the run. If a member dies, the others detect it,
and stop the link.

    READY   the identity of the member's link, and its number of rows
    GO      the run's number, or the reason for a refusal; rows of each member; the data by which members connect

If one member cannot use its link, all members get its rank and the reason, and do without the link: the result is `LinkRefused`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.resources.collective_context import DeviceLink, LinkIdentity
from .algorithms import Array, MessageAlgorithm, Part


class RefusalReason(enum.IntEnum):
    """Why a group cannot use its links."""

    MISSING = -1
    VERSIONS = -2
    SAME_DEVICE = -3


@dataclass(frozen=True, slots=True)
class LinkRefused:
    """The result when the members agree that this rank has no usable link."""

    why: RefusalReason
    rank: int


NO_LINK = LinkIdentity(0, (0, 0))


class LinkAgreement(MessageAlgorithm):
    """One member's share of one run on a link: the agreement, and the wait for the link's result.

    Args:
        link: the member's link. None: it has none.
        job: what the link is to run.
        rows: how many rows the member contributes. All members get the number.

    Attributes:
        tell: called with the link's result, on any thread. The executor sets it.
        is_under_way: whether the link has started.
    """

    READY, GO = range(2)
    tell: Callable[[Any], None]

    def __init__(self, rank: int, size: int, link: DeviceLink | None, job: Any, rows: int = 0) -> None:
        super().__init__(rank, size)
        self._link, self._job, self._rows = link, job, rows
        self._ready: dict[int, tuple[LinkIdentity, int]] = {}

    def begin(self) -> list[Part]:
        identity = NO_LINK if self._link is None else self._link.identity
        if self.rank == 0:
            self._ready[0] = identity, self._rows
            return self._decide()
        return [(0, self.READY, np.array([identity.version, *identity.device, self._rows], np.int64))]

    def receive(self, sender: int, tag: int, array: Array) -> list[Part]:
        if array.dtype != np.int64 or array.ndim != 1:
            return []
        if tag == self.READY and self.rank == 0 and len(array) == 4:
            version, first, second, rows = (int(x) for x in array)
            self._ready[sender] = LinkIdentity(version, (first, second)), rows
            return self._decide()
        if tag == self.GO and sender == 0 != self.rank and len(array) >= 2 + self.size:
            self._go(array)
        return []

    def _decide(self) -> list[Part]:
        """When all members are ready: start, or send the reason for a refusal."""
        if len(self._ready) < self.size:
            return []
        identities, rows = zip(*(self._ready[r] for r in range(self.size)), strict=True)
        refused = _refusal(identities)
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
            known = number in RefusalReason.__members__.values()
            self.finish(LinkRefused(RefusalReason(number) if known else RefusalReason.MISSING, rank % self.size))
            return
        self.is_under_way = True
        rows = [int(x) for x in said[2 : 2 + self.size]]
        self._link.start(number, said[2 + self.size :].tobytes(), self._job, rows, lambda result: self.tell(result))

    def stop(self) -> None:
        if self._link is not None:
            self._link.stop()

    def expects(self) -> set[int]:
        if self.is_done:
            return set()
        if self.is_under_way:
            return set(range(self.size)) - {self.rank}
        return set(range(self.size)) - self._ready.keys() if self.rank == 0 else {0}


def _refusal(identities: Sequence[LinkIdentity]) -> LinkRefused | None:
    seen: set[tuple[int, int]] = set()
    for rank, identity in enumerate(identities):
        if not identity.version:
            return LinkRefused(RefusalReason.MISSING, rank)
        if identity.version != identities[0].version:
            return LinkRefused(RefusalReason.VERSIONS, rank)
        if identity.device in seen:
            return LinkRefused(RefusalReason.SAME_DEVICE, rank)
        seen.add(identity.device)
    return None


_REASONS = {
    RefusalReason.MISSING: "has no NCCL, or no GPU of its own: it needs pip install 'dovetail[nccl]' and NVIDIA's library",
    RefusalReason.VERSIONS: "has another version of NCCL than the first member: install the same one everywhere",
    RefusalReason.SAME_DEVICE: "shares its GPU with another member: each member needs one of its own",
}


def refusal_text(refused: LinkRefused, members: Sequence[str]) -> str:
    return f"member {refused.rank} ({members[refused.rank]}) {_REASONS[refused.why]}"
