"""The handshake of two connected peers: which shared memory each can map, and the upgrade from ZeroMQ to a stream.

**Shared memory.** Each process tries to map the other's memory. The connecting peer names a page of its shared memory in a `hello`.
The other maps it, and answers whether that worked (`readable`), with a page of its own. The first peer does the same with that page.
Large tensors to a peer that mapped our page are then lent instead of sent. A peer on another machine, of another user, or in another
container cannot map it, and gets its tensors in messages. If a peer later cannot map a reference (another machine took over the
address), it sends `hello` with `readable` false, and tensors to it are sent again.

**Stream.** The field `stream` of a `hello` is a list: a keyword and its arguments.

    called end    ["unix", name, token]   you can map my memory: connect to this Unix socket and send this token
    caller        ["request"]             requests a stream over TCP; in the first message
    called end    ["tcp", port, token]    connect to this port of the address that you called, and send this token
    caller        ["connected", token]    this is my last message here, the next ones come on the stream
    called end    ["open"]                this is my last message here as well
    called end    ["probe"]               no message: ZeroMQ reports whether the peer is still connected

Each end reads the stream only after the other's last ZeroMQ message, so no message overtakes another. When the stream ends,
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

MOST_PEERS = 4_096  # a reconnecting peer has a new name: only the latest are kept

STOP_LENDING = Message("hello", {"memory": None, "readable": False})
"""The answer to a peer whose reference we cannot map."""


@dataclass(slots=True)
class _Peer:
    """A peer: its process number (0: not known), the lender for it if it can map our memory, whether our page was sent to it."""

    pid: int = 0
    lend: Lend | None = None
    told: bool = False


class MemoryNegotiation:
    """Which peers of one or several sockets can map our memory, and whose memory we can map."""

    def __init__(self) -> None:
        self._pool = pool_of_process()
        self._peers: OrderedDict[bytes, _Peer] = OrderedDict()

    def hello(self, peer: bytes) -> Message | None:
        """The first message on a connection that we made; None: send nothing."""
        if self._pool is None:
            return None
        self._known(peer).told = True
        return Message("hello", {"memory": self._pool.page().to_fields(), "readable": False})

    def heard(self, peer: bytes, hello: Message) -> Message | None:
        """The answer to a peer's hello, if any."""
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
        """The lender of tensors to a peer; None if it cannot map our memory."""
        known = self._peers.get(peer)
        return None if known is None else known.lend

    def lends(self, peer: bytes) -> bool:
        """Whether a peer can map our memory."""
        return self.lender(peer) is not None

    def reads(self, peer: bytes) -> bool:
        """Whether we can map a peer's memory."""
        known = self._peers.get(peer)
        return known is not None and known.pid > 0

    def forget(self, peer: bytes) -> None:
        """Forget a peer whose connection is closed."""
        self._peers.pop(peer, None)

    def tidy(self) -> None:
        """Reclaim memory that dead processes hold, and release memory that is unused for long."""
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
    """The first message on a connection that we made: our shared-memory page, and the request for a stream over TCP."""
    hello = sharing.hello(peer)
    if keys is None:
        hello = hello or Message("hello", {"memory": None, "readable": False})
        hello.fields["stream"] = ["request"]
    return hello
