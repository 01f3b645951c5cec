"""Accepts and connects streams between connected ZeroMQ peers: Unix sockets on one machine, TCP between machines.

The server offers a listener and a random token. The peer connects and sends the token first (`peer.py` has the messages). So each
stream belongs to the process at the other end of the ZeroMQ connection.

Unix: the name is a random abstract address, not a file. Both ends must belong to the same user, according to the kernel
(`SO_PEERCRED`). Connecting never blocks, and the token is there when the peer says that it has connected.

TCP: the server answers a known token with one byte, and the peer waits for it. A TCP stream neither authenticates nor encrypts, so it
is not used with keys. The kernel ends it when data stays unacknowledged, or an idle peer does not answer keep-alive probes, for
`STREAM_SILENCE_MS`.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import struct
from collections import OrderedDict
from typing import Final

from ..timeouts import STREAM_SILENCE_MS
from .event_loop import EventLoop
from .peer import Connect
from .stream import Stream

CONNECT_S: Final = 1.0  # for connecting, and for the answer to the token
_MOST_ACCEPTED: Final = 256  # sockets that wait for their peers' messages; beyond that, the oldest are closed
_MOST_OFFERS: Final = 4_096
_TOKEN_BYTES: Final = 16
_NAME: Final = re.compile(r"dovetail-[0-9a-f]{32}")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
_KNOWN: Final = b"\1"  # the answer to a known token


class StreamListener:
    """Accepts the streams of a server's peers. The I/O thread uses it.

    Args:
        ip: the address to listen on for TCP, at a port that the kernel chooses; None: a Unix socket.

    Attributes:
        is_full: whether TCP connections are refused because few descriptors are left.
    """

    def __init__(self, io: EventLoop, ip: str | None = None) -> None:
        self._io = io
        self._ip = ip
        self._listener: socket.socket | None = None
        self._name = ""  # or the port
        self._offers: OrderedDict[bytes, str] = OrderedDict()  # peer -> its token; a peer gets one
        self._accepted: OrderedDict[str, socket.socket] = OrderedDict()  # by token, until their peers' messages arrive
        self._ended: set[str] = set()  # tokens of those whose other end was closed at the last `tidy`
        self._silent: dict[int, socket.socket] = {}  # those whose tokens have not come, by descriptor
        self._were_silent: set[int] = set()  # the same at the last `tidy`
        self._is_watched = False
        self.is_full = False

    def offer(self, peer: bytes) -> Connect | None:
        """The offer to a peer; None: such streams are not available, or the peer has an offer."""
        if peer in self._offers:
            return None
        if self._listener is None:
            try:
                self._listen()
            except OSError:
                return None
        token = self._offers[peer] = secrets.token_hex(_TOKEN_BYTES)
        if len(self._offers) > _MOST_OFFERS:
            self._offers.popitem(last=False)
        return Connect("unix" if self._ip is None else "tcp", self._name, token)

    def _listen(self) -> None:
        if self._ip is not None:
            family = socket.AF_INET6 if ":" in self._ip else socket.AF_INET
            self._listener = socket.create_server((self._ip, 0), family=family, backlog=1024)
            self._name = str(self._listener.getsockname()[1])
        else:
            self._name = f"dovetail-{secrets.token_hex(16)}"
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(f"\0{self._name}")
                listener.listen(1024)
            except OSError:
                listener.close()
                raise
            self._listener = listener
        self._listener.setblocking(False)
        self._watch(True)

    def _watch(self, on: bool) -> None:
        """Accept at once, or only when a peer says that it has connected, as on a Unix socket."""
        if self._ip is not None and self._listener is not None and on != self._is_watched:
            self._is_watched = on
            if on:
                self._io.watch(self._listener.fileno(), lambda event: self._accept())
            else:
                self._io.unwatch(self._listener.fileno())

    def claim(self, peer: bytes, token: str) -> Stream | None:
        """The stream of a peer that says that it has connected; None if there is none."""
        if not token or self._offers.get(peer) != token:
            return None
        if self._ip is None:
            self._accept()
        self._offers[peer] = ""
        found = self._accepted.pop(token, None)
        return None if found is None else Stream(found)

    def _accept(self) -> None:
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor is free: the peer stays with ZeroMQ, or finds the stream closed
                self._watch(False)  # until the next `tidy`: it would be called again at once
                return
            sock.setblocking(False)
            if self._ip is None:
                self._hear(sock)
            elif self.is_full:
                sock.close()
            else:
                self._silent[sock.fileno()] = sock
                self._io.watch(sock.fileno(), lambda event, sock=sock: self._hear(sock))  # type: ignore[misc]

    def _hear(self, sock: socket.socket) -> None:
        """Keep the socket of a process that has sent a known token, and close any other."""
        if self._silent.pop(sock.fileno(), None) is not None:
            self._io.unwatch(sock.fileno())
        try:
            token = sock.recv(_TOKEN_BYTES).hex() if self._ip is not None or _is_ours(sock) else ""
            if not token or token not in self._offers.values():
                raise OSError("not one that we meant")
            if self._ip is not None:
                _set_up(sock)
                sock.send(_KNOWN)
        except OSError:
            sock.close()
            return
        self._drop(token)
        self._accepted[token] = sock
        if len(self._accepted) > _MOST_ACCEPTED:
            self._accepted.popitem(last=False)[1].close()

    def tidy(self) -> None:
        """Close sockets that have been silent, or whose other end was closed, since the last call.

        The interval gives a peer's token, or its ZeroMQ message, time to arrive.
        """
        self._watch(True)
        for fd in self._were_silent & self._silent.keys():
            self._io.unwatch(fd)
            self._silent.pop(fd).close()
        self._were_silent = set(self._silent)
        tokens = {sock.fileno(): token for token, sock in self._accepted.items()}
        poller = select.poll()
        for fd in tokens:
            poller.register(fd, select.POLLRDHUP)
        ended = {tokens[fd] for fd, _ in poller.poll(0)} if tokens else set()
        for token in ended & self._ended:
            self._drop(token)
        self._ended = ended - self._ended

    def _drop(self, token: str) -> None:
        found = self._accepted.pop(token, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        for sock in (*self._accepted.values(), *self._silent.values(), *(() if listener is None else (listener,))):
            sock.close()


def connect_stream(offer: Connect, host: str) -> Stream | None:
    """The stream to what a server at a host offers; None: the offer is malformed, or connecting fails. TCP takes up to 2 * `CONNECT_S`."""
    way, name, token = offer
    sock = None
    try:
        data = bytes.fromhex(token)
        if len(data) != _TOKEN_BYTES:
            raise ValueError("not a token")
        if way == "tcp":
            sock = socket.create_connection((host, int(name)), CONNECT_S)
            _set_up(sock)
            sock.sendall(data)
            if sock.recv(1) != _KNOWN:
                raise OSError("not the one that we meant")
        elif _NAME.fullmatch(name):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.connect(f"\0{name}")
            if not _is_ours(sock) or sock.send(data) != _TOKEN_BYTES:
                raise OSError("not the one that we meant")
    except (OSError, ValueError, OverflowError):
        if sock is not None:
            sock.close()
        return None
    return None if sock is None else Stream(sock)


def _is_ours(sock: socket.socket) -> bool:
    """Whether the other end of a Unix socket belongs to the same user."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


def _set_up(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect an unreachable peer within `STREAM_SILENCE_MS`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, STREAM_SILENCE_MS // 4_000)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STREAM_SILENCE_MS)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
