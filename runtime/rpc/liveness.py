"""A server's view of its clients: the leases of their sessions. No sockets, no clocks.

A client ends its session by a message. A killed client sends none, and its session would stay forever. So a session has a lease, which
each message that names the session renews. When the lease has expired, the connection of the last such message is checked. While it is
up, the client lives, and the lease is renewed as well. A client that runs steps without the master renews the lease every
`TOUCH_S` (`touch`). C. Gray, D. Cheriton: Leases, an efficient fault-tolerant mechanism for
distributed file cache consistency, 1989.
"""

from __future__ import annotations

from collections.abc import Callable, Collection


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
