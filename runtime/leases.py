"""Sessions whose clients have vanished: when they may be forgotten.

A client that closes its session says so; one that is killed says nothing, and its session would stay for ever. So a session has a
lease. Whenever the client mentions it, the lease begins anew. When it has run out, the connection on which the session was mentioned last
is looked at: as long as that is open, the client lives, however long it has nothing to say, and the lease begins anew, too.
A client that runs steps without needing the master mentions its session now and then (`touch`).

It knows neither sockets nor clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

LEASE_S: Final = 300.0
TOUCH_S: Final = 60.0  # a client that runs steps mentions its session so often: well below the lease


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
