"""Accepts and connects streams between connected ZeroMQ peers: Unix sockets on one machine, TCP between machines.

The server offers a listener and a random token. The peer connects and sends the token, and the server answers a known one with one byte
(`peer.py` has the messages). So each stream belongs to the process at the other end of the ZeroMQ connection.

Unix: the name is a random abstract address, not a file. Both ends must belong to the same user, according to the kernel
(`SO_PEERCRED`).

TCP: a stream neither authenticates nor encrypts, so it is not used with keys. The kernel ends it when data stays unacknowledged, or an
idle peer does not answer keep-alive probes, for `STREAM_SILENCE_MS`.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Final

from ..timeouts import STREAM_ANSWER_S, STREAM_SILENCE_MS
from .event_loop import EventLoop
from .peer import Connect, Peer
from .stream import Stream

CONNECT_S: Final = 1.0
TOKEN_BYTES: Final = 16
_NAME: Final = re.compile(r"dovetail-[0-9a-f]{32}")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_KNOWN: Final = b"\1"  # the answer to a known token


class StreamListener:
    """Accepts the streams of a server's peers. The I/O thread uses it.

    Args:
        offered: the peer that was offered a stream with a token; None: none was.
        ip: the address to listen on for TCP, at a port that the kernel chooses; None: a Unix socket.

    Attributes:
        is_full: whether connections are refused because few descriptors are left.
    """

    def __init__(self, io: EventLoop, offered: Callable[[str], Peer | None], ip: str | None = None) -> None:
        self._io = io
        self._offered = offered
        self._ip = ip
        self._listener: socket.socket | None = None
        self._name = ""  # or the port
        self._silent: dict[int, socket.socket] = {}  # those whose tokens have not come, by descriptor
        self._were_silent: set[int] = set()  # the same at the last `tidy`
        self._is_watched = False
        self.is_full = False

    def offer(self, token: str) -> Connect | None:
        """The offer with a token; None: such streams are not available."""
        try:
            if self._listener is None:
                self._listen()
        except OSError:
            return None
        return Connect("unix" if self._ip is None else "tcp", self._name, token)

    def _listen(self) -> None:
        if self._ip is None:
            self._name = f"dovetail-{secrets.token_hex(16)}"
            listener = socket.socket(socket.AF_UNIX)
        else:
            listener = socket.socket(socket.AF_INET6 if ":" in self._ip else socket.AF_INET)
        try:
            listener.bind(f"\0{self._name}" if self._ip is None else (self._ip, 0))
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        if self._ip is not None:
            self._name = str(listener.getsockname()[1])
        listener.setblocking(False)
        self._listener = listener
        self._watch(True)

    def _watch(self, on: bool) -> None:
        if self._listener is not None and on != self._is_watched:
            self._is_watched = on
            if on:
                self._io.watch(self._listener.fileno(), lambda event: self._accept())
            else:
                self._io.unwatch(self._listener.fileno())

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is free: the peer stays with ZeroMQ
                self._watch(False)  # until the next `tidy`: it would be called again at once
                return
            if self.is_full:
                sock.close()
            else:
                sock.setblocking(False)
                self._silent[sock.fileno()] = sock
                self._io.watch(sock.fileno(), lambda event, sock=sock: self._hear(sock))  # type: ignore[misc]

    def _hear(self, sock: socket.socket) -> None:
        """Give a peer that has sent its token its stream, and close any other socket."""
        del self._silent[sock.fileno()]
        self._io.unwatch(sock.fileno())
        try:
            peer = self._offered(sock.recv(TOKEN_BYTES).hex())
            if peer is None:
                raise OSError("not one that we meant")
            _set_up(sock)
            sock.send(_KNOWN)
        except OSError:
            sock.close()
        else:
            peer.token, peer.accepted = "", Stream(sock)

    def tidy(self) -> None:
        """Close sockets that have been silent since the last call."""
        self._watch(True)
        for fd in self._were_silent & self._silent.keys():
            self._io.unwatch(fd)
            self._silent.pop(fd).close()
        self._were_silent = set(self._silent)

    def close(self) -> None:
        listener, self._listener = self._listener, None
        for sock in (*self._silent.values(), *(() if listener is None else (listener,))):
            sock.close()


def connect_stream(offer: Connect, host: str) -> Stream | None:
    """The stream to what a server at a host offers; None: the offer is malformed, or connecting fails. Takes up to `STREAM_ANSWER_S`."""
    way, name, token = offer
    sock = None
    try:
        data = bytes.fromhex(token)
        if len(data) != TOKEN_BYTES or (way == "unix" and not _NAME.fullmatch(name)):
            raise ValueError("not an offer")
        if way == "unix":
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(CONNECT_S)
            sock.connect(f"\0{name}")
        else:
            sock = socket.create_connection((host, int(name)), CONNECT_S)
        _set_up(sock)
        sock.sendall(data)
        sock.settimeout(STREAM_ANSWER_S)
        if sock.recv(1) != _KNOWN:
            raise OSError("not the one that we meant")
    except (OSError, ValueError, OverflowError):
        if sock is not None:
            sock.close()
        return None
    return Stream(sock)


def _set_up(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect an unreachable peer within `STREAM_SILENCE_MS`.

    OSError: the other end of a Unix socket belongs to another user.
    """
    if sock.family == socket.AF_UNIX:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
            raise OSError("not one of our user")
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, STREAM_SILENCE_MS // 4_000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STREAM_SILENCE_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
