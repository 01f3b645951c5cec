"""The ZeroMQ sockets of an endpoint or of a client: one DEALER to each peer that it connected to, and a server's ROUTER for its clients.

Bytes name a peer. ROUTER makes the name of a client, which is valid for one connection. The name of a peer that this end
connected to is a prefix and its address. A client that gives itself such a name is ignored, so it cannot redirect replies.

The thread of the event loop owns all of it. What ZeroMQ does not accept waits in the `Peer`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from ..timeouts import ENDING_S, HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
from ..wire.chunking import CHUNK_BYTES
from ..wire.messages import MAX_FRAMES
from ..wire.schema import WireError
from ..wire.tensors import BORROW_BYTES, Frame
from .access_control import AccessControl
from .address import location_of, split_address
from .event_loop import EventLoop
from .keys import Keys
from .zmq_sockets import HIGH_WATER, LINGER_MS, ConnectionMonitor, Context, Socket, ZapHandler, dialled_host, prove

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 2 * CHUNK_BYTES  # ZeroMQ allocates a whole frame when its size arrives; larger messages are chunked
_DIALLED = b"\0dialled:"  # ROUTER's own names have 5 bytes and never start like this


def dialled_name(address: str) -> bytes:
    """The name of the peer at an address that this process connected to."""
    return _DIALLED + address.encode()


def is_dialled(peer: bytes) -> bool:
    return peer.startswith(_DIALLED)


def address_of(peer: bytes) -> str:
    return peer.removeprefix(_DIALLED).decode()


def name_of(peer: bytes) -> str:
    """A peer's name for log lines. Clients choose their names, so a long one is shortened."""
    return address_of(peer) if is_dialled(peer) else f"client {peer[:16].hex()}{'...' if len(peer) > 16 else ''}"


class AddressInUse(OSError):  # noqa: N818  (the name says it)
    """Another socket listens on the address."""


@dataclass(slots=True)
class Counters:
    """What an endpoint has counted since its start."""

    received: int = 0
    sent: int = 0
    malformed: int = 0  # messages that `decode` refused
    too_large: int = 0  # messages over the size limit
    ignored: int = 0  # messages of ignored peers, and of clients that took another peer's name
    gone: int = 0  # messages to clients that had left
    dropped: int = 0  # messages to peers with a full queue


class ZmqLinks:
    """The ZeroMQ sockets of one end.

    Args:
        patience_s: a peer that is silent for this long counts as gone, or for `HEARTBEAT_TIMEOUT_MS` if that is less.
        take: takes what comes, each with the name of its sender: the frames of a message or chunk, or an error.
        dialled: called with the name of a peer to which a connection was made, before anything is sent on it.

    Attributes:
        unsettled: ZeroMQ sockets that may have messages though their descriptors do not say so, and their peers' names; none for the
            router.
    """

    def __init__(
        self, io: EventLoop, context: Context, keys: Keys | None, patience_s: float | None, counters: Counters,
        take: Callable[[bytes, list[Frame] | WireError], None], dialled: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        self._io = io
        self._context = context
        self._keys = keys
        self._patience_s = patience_s
        self._counters = counters
        self._received = take
        self._dialled = dialled
        self._router: Socket | None = None
        self._zap: ZapHandler | None = None
        # The connections that this end made, by the peer's name.
        self._peers: dict[bytes, tuple[Socket, ConnectionMonitor]] = {}
        self.unsettled: dict[Socket, bytes] = {}

    def bind(
        self, address: str, ip: str, port: int, access: AccessControl | None, expel: Callable[[list[bytes]], None]
    ) -> int:
        """Listen for clients; returns the port.

        Args:
            address, ip, port: where to listen, as the user wrote it and as it is bound.
            expel: called with the names of peers whose connections were ended. From any thread.

        Raises:
            AddressInUse: another socket listens there. OSError: the address is not one of this machine's.
        """
        self._router = router = new_socket(self._context, zmq.ROUTER)
        router.set(zmq.IPV6, ":" in ip)
        # Without this ROUTER silently drops messages to a slow client.
        router.set(zmq.ROUTER_MANDATORY, 1)
        if access is not None:
            self._zap = ZapHandler(self._context, router, access, expel)
        try:
            router.bind(url_of(ip, port))
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    errno.EADDRINUSE,
                    f"cannot listen on {address}: another socket already does. Stop its process (see "
                    f"`ss -ltnp 'sport = :{port}'`), choose another port, or let port 0 pick a free one",
                ) from None
            raise OSError(
                error.errno, f"cannot listen on {address}: {error.strerror}. Is it an address of this machine?"
            ) from None
        endpoint = router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        port = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        self._url = url_of(ip, port)
        self._watch(router, b"")
        return port

    def accept(self, on: bool) -> bool:
        """Start or stop accepting connections; existing ones stay. Whether that succeeded."""
        assert self._router is not None
        try:
            if on:
                self._router.bind(self._url)
            else:
                self._router.unbind(self._url)
        except zmq.ZMQError as error:  # the address is in use: by the just closed socket, or another process
            logger.warning("%s: cannot listen again: %s", self._io.name, error.strerror)
            return False
        return True

    # --- event loop ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        # One message per socket and iteration, so that no peer starves the others.
        if self.unsettled:
            for sock, peer in list(self.unsettled.items()):
                # If it is not there any more, it was closed earlier in this iteration.
                if sock in self.unsettled and not self._take(sock, peer):
                    self.unsettled.pop(sock, None)

    def _watch(self, sock: Socket, peer: bytes) -> None:
        self.unsettled[sock] = peer
        self._io.watch(descriptor(sock), lambda event: self.unsettled.update({sock: peer}))

    # --- what comes ------------------------------------------------------------------------------------------------

    def _take(self, sock: Socket, peer: bytes) -> bool:
        """Receive one message and handle it; False if there is none.

        Called until the socket has no more messages, and again after each use of the socket: see `descriptor`.
        """
        try:
            if sock is self._router:
                if self._zap is None:
                    peer = sock.recv(zmq.NOBLOCK)
                else:  # a guest without a right to be heard is treated like one that takes another's name
                    peer = self._zap.admit(sock.recv(zmq.NOBLOCK, copy=False)) or _DIALLED
                if peer.startswith(_DIALLED):
                    self._counters.ignored += 1
                    with contextlib.suppress(WireError):
                        receive_frames(sock)
                    return True
            frames = receive_frames(sock)
        except zmq.Again:
            return False
        except WireError as error:
            self._received(peer, error)
            return True
        self._received(peer, frames)
        return True

    def link(self, peer: bytes) -> ConnectionMonitor | None:
        """The state of the connection that this end made to a peer; None if it made none."""
        return self._peers[peer][1] if peer in self._peers else None

    def tidy(self) -> None:
        for _, link in self._peers.values():
            link.is_up()

    # --- what leaves -----------------------------------------------------------------------------------------------

    def give(self, peer: bytes, frames: list[Frame]) -> bool:
        """Whether the message is done: it is sent, or its receiver is gone. Raises as `dial`."""
        try:
            if is_dialled(peer):
                sock = self._peers[peer][0] if peer in self._peers else self.dial(peer)
                self.unsettled[sock] = peer
                sock.send_multipart(frames, zmq.NOBLOCK, copy=False)
            elif self._router is not None:
                self.unsettled[self._router] = b""
                self._router.send_multipart([peer, *frames], zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._counters.gone += 1
            return True
        self._counters.sent += 1
        return True

    def dial(self, peer: bytes) -> Socket:
        """Connect to the location of a peer's address, as soon as a server listens there.

        Raises:
            OSError, ValueError: the address is malformed or unknown, or the key that it must have.
        """
        address = address_of(peer)
        host, port = dialled_host(address), split_address(location_of(address))[1]
        sock = new_socket(self._context, zmq.DEALER)
        sock.set(zmq.IPV6, ":" in host)
        patience_s = self._patience_s
        if patience_s is not None and patience_s * 1000 < HEARTBEAT_MS + HEARTBEAT_TIMEOUT_MS:
            sock.set(zmq.HEARTBEAT_IVL, max(50, int(patience_s * 100)))
            sock.set(zmq.HEARTBEAT_TIMEOUT, max(350, int(patience_s * 700)))  # detected before the patience ends
        link = ConnectionMonitor(sock)
        try:
            if self._keys is not None:
                prove(sock, self._keys, address)
            sock.connect(url_of(host, port))
        except BaseException as error:
            link.close()
            sock.close(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise OSError(error.errno, f"cannot connect to {address}: {error.strerror}") from None
            raise
        self._peers[peer] = sock, link
        self._watch(sock, peer)
        self._dialled(peer)
        return sock

    def hang_up(self, peer: bytes) -> None:
        """Close the connection that this end made to a peer."""
        if peer in self._peers:
            sock, link = self._peers.pop(peer)
            self.unsettled.pop(sock, None)
            self._io.unwatch(descriptor(sock))
            link.close()
            sock.close(linger=0)

    def stop_monitors(self) -> None:
        """Close the connection monitors, which must be closed before their sockets: see `zmq_sockets.py`."""
        for _, link in self._peers.values():
            link.close()

    def close(self) -> None:
        """Close all sockets. Messages that ZeroMQ has accepted still leave, for up to `LINGER_MS`; none waits for a peer that has gone."""
        links, until = dict(self._peers.values()), time.monotonic() + ENDING_S
        while self._router is not None and not all(x.has_ended() for x in links.values()) and time.monotonic() < until:
            time.sleep(ENDING_S / 20)
        lingers = {sock: 0 if link.has_ended() else LINGER_MS for sock, link in links.items()}
        self.stop_monitors()
        for sock, linger in lingers.items():
            sock.close(linger=linger)
        self._peers.clear()
        if self._router is not None:  # the context is the server's own: the last replies leave
            self._router.close(linger=LINGER_MS)
            self._context.term()


def url_of(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def new_socket(context: Context, kind: int) -> Socket:
    sock = context.socket(kind)
    sock.copy_threshold = BORROW_BYTES  # smaller frames are copied
    sock.set(zmq.LINGER, LINGER_MS)
    sock.set(zmq.SNDHWM, HIGH_WATER)
    sock.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    sock.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    sock.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.RECONNECT_IVL, 50)  # ms; a restarted task is found again soon ...
    sock.set(zmq.RECONNECT_IVL_MAX, 1_000)  # ms; ... and a missing one costs little
    return sock


def descriptor(sock: Socket) -> int:
    """The descriptor for `poll`. It is edge-triggered: it reports once that the socket's state changed, not that a message waits."""
    fd = sock.get(zmq.FD)
    assert isinstance(fd, int)
    return fd


def receive_frames(sock: Socket) -> list[Frame]:
    """Receive the frames of one message; zmq.Again if there is none. Frames beyond `MAX_FRAMES` are read and dropped."""
    part = sock.recv(zmq.NOBLOCK, copy=False)
    frames: list[Frame] = [part.buffer]
    while part.more:
        part = sock.recv(zmq.NOBLOCK, copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(part.buffer)
    if len(frames) > MAX_FRAMES:
        raise WireError(f"a message of more than {MAX_FRAMES} frames")
    return frames
