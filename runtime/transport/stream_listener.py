"""Listeners that accept streams from connected ZeroMQ peers: Unix sockets on one machine, TCP between machines.

The server offers a listener and a random token. The peer connects and sends the token first (`connection_upgrade.py` has the
messages). So each stream belongs to the process at the other end of the ZeroMQ connection.

Unix: the name is a random abstract address, not a file. Both ends must belong to the same user, according to the kernel
(`SO_PEERCRED`). TCP: a thread accepts connections, reads their tokens, and answers a known token with one byte. A TCP stream neither
authenticates nor encrypts, so it is not used with keys. The kernel ends a TCP stream when data stays unacknowledged, or an idle
peer does not answer keep-alive probes, for `STREAM_SILENCE_MS`.

Accepted sockets wait in an `AcceptBacklog` until the peer's ZeroMQ message says that it has connected.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import socket
import struct
import threading
import time
from collections import OrderedDict
from typing import Any, Final

from ..timeouts import STREAM_SILENCE_MS
from .stream import Stream

__all__ = ["AcceptBacklog"]

_MOST: Final = 256  # waiting sockets; beyond that, the oldest are closed


class AcceptBacklog:
    """Accepted sockets, by token. Used by one thread at a time.

    >>> backlog, (ours, theirs) = AcceptBacklog(), socket.socketpair()
    >>> backlog.put("token", ours)
    >>> theirs.close()
    >>> backlog.tidy(), len(backlog), backlog.tidy(), len(backlog)
    (None, 1, None, 0)
    """

    def __init__(self) -> None:
        self._sockets: OrderedDict[str, socket.socket] = OrderedDict()
        self._ended: set[str] = set()  # tokens whose other end was closed at the last `tidy`

    def __len__(self) -> int:
        return len(self._sockets)

    def put(self, token: str, sock: socket.socket) -> None:
        """Add a socket that sent a token. It replaces an earlier socket with the same token."""
        self._drop(token)
        self._sockets[token] = sock
        if len(self._sockets) > _MOST:
            self._sockets.popitem(last=False)[1].close()

    def take(self, token: str) -> socket.socket | None:
        """Remove and return the socket of a token; None if there is none."""
        return self._sockets.pop(token, None)

    def tidy(self) -> None:
        """Close sockets whose other end was closed at the previous `tidy` already. The interval gives the peer's ZeroMQ message time to
        arrive."""
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


_MOST_OFFERS: Final = 4_096
_TOKEN_BYTES: Final = 16
_NAME: Final = re.compile(r"dovetail-[0-9a-f]{32}")
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


class UnixListener:
    """Accepts the Unix streams of a server's peers. Used by one thread.

    Args:
        most_frames, most_bytes: the largest message that the streams accept.
    """

    def __init__(self, most_frames: int, most_bytes: int) -> None:
        self._limits = most_frames, most_bytes
        self._listener: socket.socket | None = None
        self._name = ""
        self._offers: OrderedDict[bytes, str] = OrderedDict()  # peer -> its token; a peer gets one
        self._backlog = AcceptBacklog()

    def offer(self, peer: bytes) -> list[str] | None:
        """The offer to a peer that can map our memory; None: Unix streams are not available, or the peer has an offer."""
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

    def accept(self, peer: bytes, token: Any) -> Stream | None:
        """The stream of a peer that reports a connection; None if there is none."""
        if not token or self._offers.get(peer) != token:
            return None
        self._offers[peer] = ""
        while self._listener is not None:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # none is left; or no descriptor is free, and the peer finds the stream closed
                break
            said = _first_words(sock)
            if said is None:
                sock.close()
                continue
            self._backlog.put(said, sock)
        found = self._backlog.take(token)
        return Stream(found, *self._limits) if found is not None else None

    def tidy(self) -> None:
        """Close sockets whose peers have disconnected."""
        self._backlog.tidy()

    def close(self) -> None:
        """Stop accepting."""
        self._backlog.close()
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def connect_unix(name: Any, token: Any, most_frames: int, most_bytes: int) -> Stream | None:
    """The stream to an offered Unix socket; None if connecting fails, or it belongs to another user."""
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
    return Stream(sock, most_frames, most_bytes)


def _first_words(sock: socket.socket) -> str | None:
    """The token that a process of our own user has sent first."""
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


CONNECT_S: Final = 1.0  # for connecting, and for the token of a connected peer
_KNOWN: Final = b"\1"


class TcpListener:
    """Accepts the TCP streams of a server's peers on other machines. A thread of its own reads their tokens.

    Args:
        ip: the address to listen on, at a port that the kernel chooses.
        most_frames, most_bytes: the largest message that the streams accept.

    Attributes:
        is_full: whether connections are refused because few descriptors are left.
    """

    def __init__(self, ip: str, most_frames: int, most_bytes: int) -> None:
        self._ip = ip
        self._limits = most_frames, most_bytes
        self._listener: socket.socket | None = None
        self._offers: OrderedDict[bytes, str] = OrderedDict()  # peer -> its token; a peer gets one
        self._backlog = AcceptBacklog()
        self._lock = threading.Lock()
        self._closed = False
        self.is_full = False

    def offer(self, peer: bytes) -> list[str] | None:
        """The offer to a peer that asks for a stream; None: TCP streams are not available, or the peer has an offer."""
        if peer in self._offers or self._closed:
            return None
        if self._listener is None:
            family = socket.AF_INET6 if ":" in self._ip else socket.AF_INET
            try:
                self._listener = socket.create_server((self._ip, 0), family=family, backlog=1024)
            except OSError:
                return None
            threading.Thread(target=self._take, args=(self._listener,), name="dovetail-streams", daemon=True).start()
        token = secrets.token_hex(_TOKEN_BYTES)
        with self._lock:
            self._offers[peer] = token
            if len(self._offers) > _MOST_OFFERS:
                self._offers.popitem(last=False)
        return ["tcp", str(self._listener.getsockname()[1]), token]

    def accept(self, peer: bytes, token: Any) -> Stream | None:
        """The stream of a peer that reports a connection; None if there is none."""
        with self._lock:
            if not token or self._offers.get(peer) != token:
                return None
            self._offers[peer] = ""
            found = self._backlog.take(token)
        return None if found is None else Stream(found, *self._limits)

    def tidy(self) -> None:
        """Close sockets whose peers have disconnected."""
        with self._lock:
            self._backlog.tidy()

    def _take(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                sock, _ = listener.accept()
            except OSError:  # closed; or no descriptor is free, and the peer stays with ZeroMQ
                if self._closed:
                    return
                time.sleep(CONNECT_S)  # `accept` would fail again at once
                continue
            if self.is_full:
                sock.close()
                continue
            try:
                sock.settimeout(CONNECT_S)
                said = sock.recv(_TOKEN_BYTES, socket.MSG_WAITALL).hex()
                with self._lock:
                    known = not self._closed and said != "" and said in self._offers.values()
                    if known:
                        prepare(sock)
                        sock.sendall(_KNOWN)
                        self._backlog.put(said, sock)
                if not known:
                    sock.close()
            except OSError:
                sock.close()

    def close(self) -> None:
        """Stop accepting."""
        with self._lock:
            self._closed = True
            self._backlog.close()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the `accept` of the thread
            self._listener.close()


def connect_tcp(host: str, port: Any, token: Any, most_frames: int, most_bytes: int) -> Stream | None:
    """The stream to an offered TCP port; None if connecting fails. Takes up to 2 * `CONNECT_S`."""
    if type(port) is not str or type(token) is not str or not port.isdecimal() or len(token) != 2 * _TOKEN_BYTES:
        return None
    sock = None
    try:
        sock = socket.create_connection((host, int(port)), CONNECT_S)
        prepare(sock)
        sock.sendall(bytes.fromhex(token))
        if sock.recv(1) != _KNOWN:
            raise OSError("not who we meant")
    except (OSError, ValueError, OverflowError):
        if sock is not None:
            sock.close()
        return None
    return Stream(sock, most_frames, most_bytes)


def prepare(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect an unreachable peer within `STREAM_SILENCE_MS`."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, STREAM_SILENCE_MS // 4_000)
    for name, value in (
        ("TCP_USER_TIMEOUT", STREAM_SILENCE_MS),
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", seconds),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
