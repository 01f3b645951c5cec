"""Where lanes begin: how two processes of one machine go over to one from the ZeroMQ connection on which they met.

They change over when each can read the other's memory (`sharing.py`); what they say about it are `hello` messages with a field `lane`:

    who was called    ["at", name, token]    connect to this name, and say this token there
    the caller        ["taken", token]       I have; this is my last message here, what follows comes on the lane
    who was called    ["open"]               my last message here, too

Each begins to read the lane when it has read that message, so no message overtakes another. The name is one of the kernel's, of
no folder (an abstract address), and drawn by chance, as is the token; both ends must belong to the same user, as the
kernel tells it. So a lane leads only to the process that was met. When it ends, both go back to ZeroMQ.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
from collections import OrderedDict
from typing import Any, Final

from .arrivals import Arrivals
from .lane import Lane

_MOST_OFFERS: Final = 4_096
_TOKEN_BYTES: Final = 16
_NAME: Final = re.compile(r"dovetail-[0-9a-f]{32}")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


class Landing:
    """Where the lanes of a server's peers come in. Used by one thread.

    Args:
        most_frames, most_bytes: the largest message that lanes take.
    """

    def __init__(self, most_frames: int, most_bytes: int) -> None:
        self._limits = most_frames, most_bytes
        self._listener: socket.socket | None = None
        self._name = ""
        self._offers: OrderedDict[bytes, str] = OrderedDict()  # peer -> the token that it was given; each gets one
        self._arrived = Arrivals()

    def offer(self, peer: bytes) -> list[str] | None:
        """What to say to a peer that can read our memory; None: nothing, where there are no such sockets or it was told before."""
        if peer in self._offers or not hasattr(socket, "SO_PEERCRED"):
            return None
        if self._listener is None:
            name = f"dovetail-{secrets.token_hex(16)}"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(f"\0{name}")
                listener.listen(1024)
                listener.setblocking(False)
            except OSError:
                listener.close()
                return None
            self._listener, self._name = listener, name
        token = self._offers[peer] = secrets.token_hex(_TOKEN_BYTES)
        if len(self._offers) > _MOST_OFFERS:
            self._offers.popitem(last=False)
        return ["at", self._name, token]

    def accept(self, peer: bytes, token: Any) -> Lane | None:
        """The lane of a peer that says it has connected; None if it has not."""
        if not token or self._offers.get(peer) != token:
            return None
        self._offers[peer] = ""
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # all have been accepted; or there is no descriptor left, and the peer will find it closed
                break
            said = _first_words(sock)
            if said is None:
                sock.close()
                continue
            self._arrived.put(said, sock)
        found = self._arrived.take(token)
        return Lane(found, *self._limits) if found is not None else None

    def tidy(self) -> None:
        """Close what has connected and hung up again."""
        self._arrived.tidy()

    def close(self) -> None:
        """Take no more."""
        self._arrived.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def connect(name: Any, token: Any, most_frames: int, most_bytes: int) -> Lane | None:
    """The lane to where a server says that it takes one; None if that cannot be, or is another user's."""
    if type(name) is not str or type(token) is not str or not _NAME.fullmatch(name):
        return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sock.connect(f"\0{name}")
        if not _is_ours(sock) or sock.send(bytes.fromhex(token)) != _TOKEN_BYTES:
            raise OSError("not who we meant")
    except (OSError, ValueError):
        sock.close()
        return None
    return Lane(sock, most_frames, most_bytes)


def _first_words(sock: socket.socket) -> str | None:
    """The token that a process of our own user has said first."""
    sock.setblocking(False)
    try:
        if _is_ours(sock):
            said = sock.recv(_TOKEN_BYTES)
            return said.hex() if len(said) == _TOKEN_BYTES else None
    except OSError:
        pass
    return None


def _is_ours(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
