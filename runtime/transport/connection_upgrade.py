"""Who of our peers can read this process's shared memory, and whose we can read.

Two processes find out by trying. The one that connects says where it has a page of shared memory (`hello`); the other one tries to read
it, and answers with whether it could and with a page of its own; the first one tries that, and answers in turn. From then on, large
tensors to a peer that could read our page are lent instead of sent. A peer on another machine, of another user, or in a container of
its own cannot, and gets them in messages.

A peer that meets a reference which it cannot read after all (its machine was exchanged behind the same address) says hello with
`readable` false, and is sent tensors from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.core.interpreter_state import process_id
from ..shared_memory.pool import Pool, borrow, pool_of_process
from ..shared_memory.segment import Reference
from ..wire.messages import Lend, Message
from .keys import Keys

MOST_PEERS = 4_096  # whoever reconnects has a new name: the latest are remembered

STOP_LENDING = Message("hello", {"memory": None, "readable": False})
"""What to say to a peer that lent us what we cannot read."""


@dataclass(slots=True)
class _Peer:
    """A peer: its process number (0: not known), what lends to it, if it can read our memory, whether it was told where that is."""

    pid: int = 0
    lend: Lend | None = None
    told: bool = False


class MemoryNegotiation:
    """What is known about the peers of one socket, or of several."""

    def __init__(self) -> None:
        self._pool = pool_of_process()
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()

    def hello(self, peer: bytes) -> Message | None:
        """What to say first on a connection that we made; None: nothing."""
        if self._pool is None:
            return None
        self._known(peer).told = True
        return Message("hello", {"memory": self._pool.page().to_fields(), "readable": False})

    def heard(self, peer: bytes, hello: Message) -> Message | None:
        """What to answer to a peer's hello, if anything."""
        if self._pool is None:
            return None
        known, place = self._known(peer), hello.fields.get("memory")
        readable = False
        if place is not None:
            try:
                reference = Reference.from_fields(place)
                borrow(reference, 1)
            except ValueError:
                pass
            else:
                readable, known.pid = True, reference.pid
        known.lend = _lender(self._pool, known.pid) if hello.fields["readable"] and known.pid > 0 else None
        if known.lend is not None and known.pid != process_id():
            self._pool.is_read = True
        if place is None:
            return None
        page = None if known.told else self._pool.page().to_fields()
        known.told = True
        return Message("hello", {"memory": page, "readable": readable})

    def lender(self, peer: bytes) -> Lend | None:
        """What lends tensors to a peer; None if it cannot read our memory."""
        known = self._peers.get(peer)
        return None if known is None else known.lend

    def lends(self, peer: bytes) -> bool:
        """Whether a peer can read our memory."""
        return self.lender(peer) is not None

    def reads(self, peer: bytes) -> bool:
        """Whether we can read a peer's memory."""
        known = self._peers.get(peer)
        return known is not None and known.pid > 0

    def forget(self, peer: bytes) -> None:
        """The connection to a peer is closed."""
        self._peers.pop(peer, None)

    def tidy(self) -> None:
        """Take back what the dead hold, let go of what nobody has used for long."""
        if self._pool is not None:
            self._pool.tidy()

    def _known(self, peer: bytes) -> _Peer:
        found = self._peers.get(peer)
        if found is None:
            found = self._peers[peer] = _Peer()
            if len(self._peers) > MOST_PEERS:
                self._peers.popitem(last=False)
        return found


def _lender(pool: Pool, pid: int) -> Lend:
    def lend(array: np.ndarray[Any, Any], alone: bool) -> Reference | None:
        return pool.lend(array, pid, alone)

    return lend


def first_hello(sharing: MemoryNegotiation, peer: bytes, keys: Keys | None) -> Message | None:
    """What to say first on a connection that we made: where our memory is, and whether a stream over TCP is welcome."""
    hello = sharing.hello(peer)
    if keys is None:
        hello = hello or Message("hello", {"memory": None, "readable": False})
        hello.fields["stream"] = ["tcp?"]
    return hello
