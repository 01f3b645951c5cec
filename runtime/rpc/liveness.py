"""A server's view of its clients: session leases, and the registry of clients whose steps run here. No sockets, no clocks.

A client ends its session by a message. A killed client sends none, and its session would stay forever. So a session has a lease, which
each message that names the session renews. When the lease has expired, the connection of the last such message is checked. While it is
up, the client lives, and the lease is renewed as well. A client that runs steps without the master renews the lease every
`TOUCH_S` (`touch`). C. Gray, D. Cheriton: Leases, an efficient fault-tolerant mechanism for
distributed file cache consistency, 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..timeouts import FORGET_S


class Leases:
    """The leases of one master's sessions. Any thread may call `seen`.

    >>> leases = Leases(300.0)
    >>> leases.seen("s", b"client", 0.0)
    >>> leases.look(299.0, ["s"], is_gone=lambda client: True)
    []
    >>> leases.look(300.0, ["s"], is_gone=lambda client: True)
    ['s']
    """

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[bytes, float]] = {}  # session -> connection and time of the latest message

    def seen(self, session: str, client: bytes, now: float) -> None:
        """Renew a session's lease. The session need not exist."""
        self._seen[session] = client, now

    def look(self, now: float, sessions: Collection[str], is_gone: Callable[[bytes], bool]) -> list[str]:
        """Return the open sessions whose lease has expired and whose client is gone; forget their leases."""
        ended = []
        for session, (client, since) in list(self._seen.items()):
            if session not in sessions:
                del self._seen[session]
            elif now - since >= self._lease_s:
                if is_gone(client):
                    ended.append(session)
                    del self._seen[session]
                else:
                    self._seen[session] = client, now
        return ended


class RegisteredClient:
    """One connection of a client whose steps run here.

    Attributes:
        peer: the connection.
        owner: the key of the connection; empty where there are no keys.
        heard: time of its last message.
        there: time when the connection was last known to be up.
    """

    __slots__ = ("heard", "owner", "peer", "there")

    def __init__(self, peer: bytes, owner: str, now: float) -> None:
        self.peer = peer
        self.owner = owner
        self.heard = self.there = now


class ClientRegistry:
    """The clients of one task.

    Args:
        is_gone: whether a connection is gone. Not cheap.
        owner: the key of a connection.

    >>> registry = ClientRegistry(is_gone=lambda peer: True)
    >>> registry.heard(b"peer", 7.0).heard
    7.0
    """

    def __init__(self, is_gone: Callable[[bytes], bool], owner: Callable[[bytes], str] = lambda peer: "") -> None:
        self._is_gone = is_gone
        self._owner = owner
        self._at: dict[bytes, RegisteredClient] = {}

    def heard(self, peer: bytes, now: float) -> RegisteredClient:
        """Record a request on a connection."""
        caller = self._at.get(peer)
        if caller is None:
            caller = self._at[peer] = RegisteredClient(peer, self._owner(peer), now)
        caller.heard = caller.there = now
        return caller

    def lives(self, peer: bytes, now: float) -> None:
        """Record a sign of life on a connection."""
        caller = self._at.get(peer)
        if caller is not None:
            caller.heard = now

    def tidy(self, now: float, busy: Collection[RegisteredClient]) -> None:
        """Forget clients that are gone, except those with running steps."""
        for caller in list(self._at.values()):
            if now - caller.there >= FORGET_S and caller not in busy:
                if self._is_gone(caller.peer):
                    del self._at[caller.peer]
                else:
                    caller.there = now
