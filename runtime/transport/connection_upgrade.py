"""What two peers tell each other when they have connected: whose shared memory each can read, and the steps from ZeroMQ to a stream.

**Shared memory.** Two processes find out by trying. The one that connected names a page of its shared memory in a `hello`. The other
tries to map it, and answers with whether it could (`readable`) and with a page of its own; the first one tries that, and answers in turn.
From then on, large tensors to a peer that could map our page are lent instead of sent. A peer on another machine, of another user, or in
another container cannot, and gets its tensors in messages. A peer that later meets a reference which it cannot map (its machine was
exchanged behind the same address) says `hello` with `readable` false, and is sent tensors from then on.

**Stream.** The field `stream` of a `hello` is a list: a word, then its arguments.

    called end    ["at", name, token]     you read my memory: connect to this Unix socket, and send this token there
    caller        ["tcp?"]                a stream over TCP is welcome; in the first message
    called end    ["tcp", port, token]    connect to this port of the address that you called, and send this token there
    caller        ["taken", token]        I have connected; this is my last message here, what follows comes on the stream
    called end    ["open"]                this is my last message here, too
    called end    ["here"]                nothing: only asks ZeroMQ whether the peer is still connected

Each end begins to read the stream when it has read the other's last message, so no message overtakes another. When the stream ends,
both ends fall back to ZeroMQ, and may upgrade again.
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

MOST_PEERS = 4_096  # a peer that reconnects has a new name: the latest are remembered

STOP_LENDING = Message("hello", {"memory": None, "readable": False})
"""The answer to a peer that lent us memory which we cannot map."""


@dataclass(slots=True)
class _Peer:
    """A peer: its process number (0: not known), what lends to it, if it can read our memory, whether it was told where that is."""

    pid: int = 0
    lend: Lend | None = None
    told: bool = False


class MemoryNegotiation:
    """Which peers of one socket, or of several, can map our memory, and whose we can map."""

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
