"""Lanes over TCP: what two processes that cannot read each other's memory use beside the ZeroMQ connection on which they met.

ZeroMQ copies a large message once more than is needed, into memory that is new each time, which the kernel has to clear first. A
lane reads it from the socket into memory that has been used before. It takes fewer threads, too: see `lane.py`, also for
how the two change over. Only the meeting differs:

    who calls         ["tcp?"]               a lane over TCP is welcome: in the first message
    who was called    ["tcp", port, token]   connect to this port of the address that you have called, and say this token there
                                             (a byte comes back, which says that it is known)

A lane proves and hides nothing. So there is none where there are keys: there everything stays with ZeroMQ, which encrypts it.

A connection that breaks without a word, because a cable or a machine does, is noticed by the kernel: what is not acknowledged for
`SILENT_MS`, or an idle peer that gives no sign of life for so long, ends the lane. Then both are back on ZeroMQ.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from collections import OrderedDict
from typing import Any, Final

from .arrivals import Arrivals
from .lane import Lane

SILENT_MS: Final = 4_000  # as long as ZeroMQ waits for a sign of life
CONNECT_S: Final = 1.0  # for connecting, and for the first words of who has connected
_TOKEN_BYTES: Final = 16
_MOST_OFFERS: Final = 4_096
_KNOWN: Final = b"\1"


class StreamLanding:
    """Where the lanes of a server's peers on other machines come in. A thread of its own takes their first words.

    Args:
        ip: the address to listen on, at a port of its own.
        most_frames, most_bytes: the largest message that lanes take.

    Attributes:
        is_full: whether nobody who connects is taken: there are too few descriptors.
    """

    def __init__(self, ip: str, most_frames: int, most_bytes: int) -> None:
        self._ip = ip
        self._limits = most_frames, most_bytes
        self._listener: socket.socket | None = None
        self._offers: OrderedDict[bytes, str] = OrderedDict()  # peer -> the token that it was given; each gets one
        self._arrived = Arrivals()
        self._lock = threading.Lock()
        self._closed = False
        self.is_full = False

    def offer(self, peer: bytes) -> list[str] | None:
        """What to say to a peer that asks for a lane; None: nothing, where none can be or it was told before."""
        if peer in self._offers or self._closed:
            return None
        if self._listener is None:
            family = socket.AF_INET6 if ":" in self._ip else socket.AF_INET
            try:
                self._listener = socket.create_server((self._ip, 0), family=family, backlog=1024)
            except OSError:
                return None
            threading.Thread(target=self._take, args=(self._listener,), name="dovetail-lanes", daemon=True).start()
        token = secrets.token_hex(_TOKEN_BYTES)
        with self._lock:
            self._offers[peer] = token
            if len(self._offers) > _MOST_OFFERS:
                self._offers.popitem(last=False)
        return ["tcp", str(self._listener.getsockname()[1]), token]

    def accept(self, peer: bytes, token: Any) -> Lane | None:
        """The lane of a peer that says it has connected; None if it has not."""
        with self._lock:
            if not token or self._offers.get(peer) != token:
                return None
            self._offers[peer] = ""
            found = self._arrived.take(token)
        return None if found is None else Lane(found, *self._limits)

    def tidy(self) -> None:
        """Close what has connected and hung up again."""
        with self._lock:
            self._arrived.tidy()

    def _take(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                sock, _ = listener.accept()
            except OSError:  # closed; or no descriptor is left, and the peer stays with ZeroMQ
                if self._closed:
                    return
                time.sleep(CONNECT_S)  # it would be told again and again
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
                        self._arrived.put(said, sock)
                if not known:
                    sock.close()
            except OSError:
                sock.close()

    def close(self) -> None:
        """Take no more."""
        with self._lock:
            self._closed = True
            self._arrived.close()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread's `accept`
            self._listener.close()


def connect_stream(host: str, port: Any, token: Any, most_frames: int, most_bytes: int) -> Lane | None:
    """The lane to where a server says that it takes one; None if that cannot be. Takes up to twice `CONNECT_S`."""
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
    return Lane(sock, most_frames, most_bytes)


def prepare(sock: socket.socket) -> None:
    """Send at once, and notice within `SILENT_MS` that the other side cannot be reached any more."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    seconds = max(1, SILENT_MS // 4_000)
    for name, value in (
        ("TCP_USER_TIMEOUT", SILENT_MS),
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", seconds),
        ("TCP_KEEPCNT", 3),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
