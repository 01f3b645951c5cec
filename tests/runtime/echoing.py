"""What tests of the transport say to each other, and how they wait."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dovetail.runtime.transport.client import Connections
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.keys import Keys
from dovetail.runtime.transport.peer import Peer
from dovetail.runtime.transport.stream import Stream
from dovetail.runtime.wire.messages import Message

WAIT_S = 60.0  # far beyond what anything here takes; only a failure waits so long


def ping(seq: int = 1) -> Message:
    """A small message."""
    return Message("ping", {"seq": seq})


def until(true: Callable[[], bool], what: str) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.005)


def streams_of(end: Endpoint) -> list[Stream]:
    """The streams on which a server's end sends."""
    return [peer.stream for peer in list(end._peers.by_name.values()) if peer.stream is not None]


class Connection:
    """A client's connection to one server."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self.address = address
        self.all = Connections(keys)
        self.all.peer(address)
        self._come: deque[Message] = deque()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def peer(self) -> Peer:
        """The states of the connection."""
        return self.all.peer(self.address)

    @property
    def socket(self) -> Any:
        """Its ZeroMQ socket."""
        return self.all._peers.links._peers[self.peer.name][0]

    def send(self, message: Message) -> None:
        """Send a message."""
        self.all.send(self.address, message)

    def give(self, frames: list[Any]) -> None:
        """Send over ZeroMQ what need not be a message."""
        self.all._peers.links.give(self.peer.name, frames)

    def recv(self, timeout_s: float | None) -> Message | None:
        """The next message; None: none came in time."""
        if not self._come:
            self._come.extend(message for _, message in self.all.poll(timeout_s))
        return self._come.popleft() if self._come else None

    def close(self) -> None:
        """Close it."""
        self.all.close()
