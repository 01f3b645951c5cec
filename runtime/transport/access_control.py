"""Decides which clients may talk to a server, and explains refusals. Events in, decisions out: `zmq_sockets.py` has the sockets.

Theory of operation. A server with keys requires a proof of a key (CurveZMQ) from each client before it reads a byte of a message.
ZeroMQ checks the proof, and asks `AccessControl` whether the key is allowed (ZAP, RFC 27). A client without an allowed key gets no
answer at all. After the handshake each message carries the key of its connection. Revoking a key ends its connections.

Shared memory and streams are negotiated inside such a connection only, so they need no access control of their own.

Refused connections are logged, at most every `LOG_EVERY_S` for each host.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..logs import Throttle
from .address import location_of, split_address
from .keys import Keys

logger = logging.getLogger(__name__)

LOG_EVERY_S = 10.0
LOOK_EVERY_S = 1.0  # how soon a key that was allowed or revoked is noticed
MAX_REFUSED_HOSTS = 256  # hosts for which the time of the last log line is kept
GREETING_S = 0.3  # for a server's greeting, by which a client that gets no answer learns whether it has keys
UNKNOWN_HOST = "a host that has hung up"
MAX_ADMITTED = 16_384  # as many as a socket can have; a forgotten peer is authenticated again

_ZAP_VERSION = b"1.0"
_LATER = b"300"  # after 400 ("denied") ZeroMQ's client never retries; the key may be allowed in a moment
_GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03"  # start of a ZMTP 3 greeting; nothing is agreed on
_MECHANISM = slice(12, 32)  # where the other side's greeting names its mechanism
_GREETING_BYTES = 64


@dataclass(frozen=True, slots=True)
class _AdmittedPeer:
    """An admitted connection: its key, and its TCP endpoints, so that it can be ended."""

    key: str
    descriptor: int
    end: object


class AccessControl:
    """Decides which peers may talk to one server. ZeroMQ's authentication thread calls `answer`, `happened`, `look` and `expel`. The
    I/O thread calls `enter`.

    Args:
        address: the server's address, for the log.
        clock: seconds; tests give their own.
    """

    def __init__(self, keys: Keys, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.keys = keys
        self.refused = 0  # connections that were not let in
        self._address = address
        self._clock = clock
        self._allowed = keys.allowed()
        self._next_look = clock() + LOOK_EVERY_S
        self._changed = False  # since the last `expel`
        self._opening: dict[int, str] = {}  # descriptor -> host of the connecting peer
        self._failed = ""  # why the connection fails whose end the monitor reports next
        self._refused_hosts: OrderedDict[tuple[str, bool], Throttle] = OrderedDict()
        self._admitted: OrderedDict[bytes, _AdmittedPeer] = OrderedDict()
        self._lock = threading.Lock()  # guards changes of the admitted peers

    def enter(self, peer: bytes, key: str, descriptor: int) -> bool:
        """Record the first message of a connection and its key. Whether the message may be read."""
        end = peer_of(descriptor)
        with self._lock:
            if key in self._allowed:
                self._admitted[peer] = _AdmittedPeer(key, descriptor, end)
                if len(self._admitted) > MAX_ADMITTED:
                    self._admitted.popitem(last=False)
                return True
        end_connection(descriptor, end)
        return False

    def owner(self, peer: bytes) -> str:
        """The key of an admitted connection; empty if it is not known."""
        admitted = self._admitted.get(peer)
        return "" if admitted is None else admitted.key

    def expel(self) -> list[bytes]:
        """End the connections of revoked keys; returns their names."""
        if not self._changed:
            return []
        self._changed = False
        with self._lock:
            revoked = {peer: admitted for peer, admitted in self._admitted.items() if admitted.key not in self._allowed}
            for peer in revoked:
                del self._admitted[peer]
        for admitted in revoked.values():
            end_connection(admitted.descriptor, admitted.end)
        return list(revoked)

    def look(self) -> None:
        """Reload the key files when it is time. If they cannot be read, nothing changes."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY_S
        try:
            allowed = self.keys.allowed()
        except (OSError, ValueError) as e:
            logger.error(
                "%s: the keys in %s cannot be read, the old ones still hold: %s", self._address, self.keys.folder, e
            )
            return
        before, self._allowed = self._allowed, allowed
        for said, keys in (("now allowed", allowed.keys() - before), ("revoked", before.keys() - allowed)):
            if keys:
                self._changed = True
                names = ", ".join(sorted((allowed | before)[k] for k in keys))
                logger.warning("%s: %s: %s", self._address, said, names)

    def answer(self, request: Sequence[bytes]) -> list[bytes]:
        """Answer ZeroMQ's question whether a key is allowed. Takes the frames of a ZAP request, returns those of the reply.

        ZeroMQ alone asks, within this process, and only about keys that are proved: the server's socket knows no mechanism but CURVE.
        """
        host, key = request[3].decode("ascii", "replace"), request[6].hex()
        self._next_look = 0.0  # reload at once: a key that was just allowed should not need a second try
        self.look()
        if key not in self._allowed:
            self._tell(host, f"the key {key or '(none)'} is not allowed: `dovetail keys allow` allows it", has_key=True)
            return [_ZAP_VERSION, request[1], _LATER, b"not allowed", b"", b""]
        return [_ZAP_VERSION, request[1], b"200", b"", key.encode(), b""]

    def happened(self, event: str, value: int) -> None:
        """Handle an event of the monitor of the server's socket: its name and its value, mostly a descriptor."""
        if event == "ACCEPTED":
            self._opening[value] = _host_of(value)
        elif event == "HANDSHAKE_FAILED_PROTOCOL":
            self._failed = "it has no key, or expects another key of this server"
        elif event == "HANDSHAKE_FAILED_NO_DETAIL":
            self._failed = "it hung up without having proved a key: it has none, or expects another key of this server"
        elif event == "DISCONNECTED":
            host = self._opening.pop(value, UNKNOWN_HOST)
            if self._failed:
                self._tell(host, self._failed, has_key=False)
            self._failed = ""

    def _tell(self, host: str, why: str, has_key: bool) -> None:
        """Log a refusal, unless one of the same host, with or without a key, was logged within `LOG_EVERY_S`."""
        self.refused += 1
        throttle = self._refused_hosts.pop((host, has_key), None) or Throttle(1, LOG_EVERY_S)
        self._refused_hosts[host, has_key] = throttle
        if (more := throttle.more(self._clock())) is not None:
            logger.warning("%s: refused a connection from %s: %s%s", self._address, host, why, more)
        if len(self._refused_hosts) > MAX_REFUSED_HOSTS:
            self._refused_hosts.popitem(last=False)


# --- the client's side -------------------------------------------------------------------------------------------------


def why_silent(address: str, keys: Keys | None, is_in: bool) -> str | None:
    """Why a server does not answer, if keys are the reason; else None. `is_in`: whether the server admitted the connection."""
    mechanism = "" if is_in else mechanism_of(address, GREETING_S)
    if mechanism == "CURVE" and keys is None:
        return (
            f"The server at {address} lets in only whom it knows by key, and this process has no keys: name a folder of keys by "
            "ConfigProto(keys=...) or DOVETAIL_KEYS. `dovetail keys new` makes one; the server's owner lets it in by "
            "`dovetail keys allow`"
        )
    if mechanism == "NULL" and keys is not None:
        return (
            f"The server at {address} has no keys, and this process, with those in {keys.folder}, talks only to servers that prove "
            "who they are: start the server with keys, or this process without DOVETAIL_KEYS and ConfigProto(keys=...)"
        )
    if mechanism == "CURVE" and keys is not None:
        return (
            f"The server at {address} does not let in {keys.name!r} (public key {keys.pair.public[:8]}..., from {keys.folder}), or is not "
            f"the server {keys.server(address).name!r} whose key is expected there. Its log says which: its owner lets a client in by "
            "`dovetail keys allow`, with the file ending in .pub beside the client's key"
        )
    return None


def mechanism_of(address: str, patience_s: float) -> str:
    """The ZMTP mechanism of the server at an address (`NULL`, `CURVE`); empty if no ZeroMQ server answers there.

    `patience_s`: for the connection, and for each piece of the greeting, which are a few.
    """
    with contextlib.suppress(OSError, ValueError):
        with (
            socket.create_connection(split_address(location_of(address)), patience_s) as sock,
            sock.makefile("rb") as file,
        ):
            sock.sendall(_GREETING)
            got = file.read(_GREETING_BYTES)
        if len(got) == _GREETING_BYTES and got[0] == 0xFF and got[9] == 0x7F:
            return got[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")
    return ""


@contextlib.contextmanager
def _same_socket(descriptor: int) -> Iterator[socket.socket]:
    """A socket over a copy of the descriptor of another object. OSError: it is closed, or no socket: the number may have been reused."""
    copy = os.dup(descriptor)
    try:
        # A name of this family is long enough for all.
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, fileno=copy)
    except OSError:
        os.close(copy)
        raise
    with sock:
        yield sock


def peer_of(descriptor: int) -> object:
    """The remote address of a TCP connection that another object owns; None if it is closed, or no connection."""
    with contextlib.suppress(OSError), _same_socket(descriptor) as sock:
        return sock.getpeername()
    return None


def end_connection(descriptor: int, end: object) -> None:
    """End the TCP connection of a descriptor if it still has that remote end."""
    with contextlib.suppress(OSError), _same_socket(descriptor) as sock:
        if end is not None and sock.getpeername() == end:
            sock.shutdown(socket.SHUT_RDWR)


def _host_of(descriptor: int) -> str:
    peer = peer_of(descriptor)
    return str(peer[0]) if isinstance(peer, tuple) else UNKNOWN_HOST
