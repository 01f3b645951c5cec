"""Sockets that have connected for a lane, until who made them says so on the connection on which it was offered.

Most are fetched within a moment. What keeps one waiting for ever is a peer that died in between, or whose word was refused: its end
of the socket closes with its process, or its connection.
"""

from __future__ import annotations

import select
import socket
from collections import OrderedDict
from typing import Final

_MOST: Final = 256  # that wait at a time; of more, those are closed that came first


class Arrivals:
    """The sockets, by the token that was said on each. Used by one thread at a time.

    >>> arrivals, (ours, theirs) = Arrivals(), socket.socketpair()
    >>> arrivals.put("token", ours)
    >>> theirs.close()
    >>> arrivals.tidy(), len(arrivals), arrivals.tidy(), len(arrivals)
    (None, 1, None, 0)
    """

    def __init__(self) -> None:
        self._sockets: OrderedDict[str, socket.socket] = OrderedDict()
        self._ended: set[str] = set()  # whose other end was closed at the last look

    def __len__(self) -> int:
        return len(self._sockets)

    def put(self, token: str, sock: socket.socket) -> None:
        """A socket on which a token was said. Whoever says it again takes the place of the first."""
        self._drop(token)
        self._sockets[token] = sock
        if len(self._sockets) > _MOST:
            self._sockets.popitem(last=False)[1].close()

    def take(self, token: str) -> socket.socket | None:
        """The socket of a token; None if there is none."""
        return self._sockets.pop(token, None)

    def tidy(self) -> None:
        """Close those whose other end was closed at the last look already: what was said before that, on the other connection, has
        had the time between two looks to arrive."""
        poller = select.poll()
        tokens = {sock.fileno(): token for token, sock in self._sockets.items()}
        for fd in tokens:
            poller.register(fd, select.POLLRDHUP)
        ended = {tokens[fd] for fd, _ in poller.poll(0)} if tokens else set()
        for token in ended & self._ended:
            self._drop(token)
        self._ended = ended - self._ended

    def _drop(self, token: str) -> None:
        found = self.take(token)
        if found is not None:
            found.close()

    def close(self) -> None:
        """Close all."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()


__all__ = ["Arrivals"]
