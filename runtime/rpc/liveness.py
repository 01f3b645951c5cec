"""Clients, as a server sees them: leases of sessions, and the registry of clients whose steps run here. No sockets, no clocks.

A client that closes its session says so. One that is killed says nothing, and its session would stay for ever. So a session has a lease,
which begins anew whenever the client mentions the session. When the lease has run out, the connection on which the session was
mentioned last is checked: while it is up the client lives, and the lease begins anew as well. A client that runs steps without needing
the master mentions its session every `TOUCH_S` (`touch`). C. Gray, D. Cheriton: Leases, an efficient fault-tolerant mechanism for
distributed file cache consistency, 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..timeouts import FORGET_S, RECHECK_S

__all__ = ["ClientRegistry", "Leases", "RegisteredClient"]


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
        self._seen: dict[
            str, tuple[bytes, float]
        ] = {}  # session -> on which connection it was mentioned last, and when

    def seen(self, session: str, client: bytes, now: float) -> None:
        """A client has mentioned a session, which need not exist."""
        self._seen[session] = client, now

    def look(self, now: float, sessions: Collection[str], is_gone: Callable[[bytes], bool]) -> list[str]:
        """Which of the sessions that are open can be forgotten: nobody has mentioned them for long, and their client is gone."""
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
        owner: the key under which it was let in; nothing where there are no keys.
        name: what the client calls its connections (`lowering.py`), or 0.
        heard: when it was heard last.
        there: when it was last known that the connection is there.
    """

    __slots__ = ("heard", "name", "owner", "peer", "there")

    def __init__(self, peer: bytes, owner: str, now: float) -> None:
        self.peer = peer
        self.owner = owner
        self.name = 0
        self.heard = self.there = now


class ClientRegistry:
    """The callers of one task.

    Args:
        is_gone: whether a connection is not there any more. Not cheap.
        owner: the key under which a connection was let in.

    >>> registry = ClientRegistry(is_gone=lambda peer: True)
    >>> _ = registry.heard(b"peer", 7, 0.0)
    >>> registry.find(7, 0.5).peer
    b'peer'
    >>> registry.find(7, 60.0)
    """

    def __init__(self, is_gone: Callable[[bytes], bool], owner: Callable[[bytes], str] = lambda peer: "") -> None:
        self._is_gone = is_gone
        self._owner = owner
        self._at: dict[bytes, RegisteredClient] = {}
        self._named: dict[int, RegisteredClient] = {}

    def heard(self, peer: bytes, name: int, now: float) -> RegisteredClient:
        """A client has asked for something on a connection, and said its name if that is not 0."""
        caller = self._at.get(peer)
        if caller is None:
            caller = self._at[peer] = RegisteredClient(peer, self._owner(peer), now)
        caller.heard = caller.there = now
        if name and name != caller.name:
            self._forget_name(caller)
            caller.name = name
            self._named[name] = caller
        return caller

    def lives(self, peer: bytes, now: float) -> None:
        """A sign of life has come on a connection."""
        caller = self._at.get(peer)
        if caller is not None:
            caller.heard = now

    def find(self, name: int, now: float) -> RegisteredClient | None:
        """The client of this name, if it is known and there."""
        caller = self._named.get(name)
        if caller is not None and now - caller.there >= RECHECK_S:
            if self._is_gone(caller.peer):
                self._forget(caller)
                return None
            caller.there = now
        return caller

    def tidy(self, now: float, busy: Collection[RegisteredClient]) -> None:
        """Forget those that are gone; not those whose steps run."""
        for caller in list(self._at.values()):
            if now - caller.there >= FORGET_S and caller not in busy:
                if self._is_gone(caller.peer):
                    self._forget(caller)
                else:
                    caller.there = now

    def _forget(self, caller: RegisteredClient) -> None:
        self._at.pop(caller.peer, None)
        self._forget_name(caller)

    def _forget_name(self, caller: RegisteredClient) -> None:
        if self._named.get(caller.name) is caller:
            del self._named[caller.name]
