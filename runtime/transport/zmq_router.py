"""A server's ZeroMQ sockets: a ROUTER that clients connect to, and one DEALER to each peer that the server connected to.

Bytes name a peer. ROUTER makes the name of a client, which is valid for one connection. The name of a peer that this server
connected to is a prefix and its address. A client that gives itself such a name is ignored, so it cannot redirect replies.

The I/O thread owns all of it. Messages that ZeroMQ does not accept wait in the peer's bounded `ChunkedSender`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import zmq

from ..wire.chunking import ACK_EVERY_S, PROGRESS_ACK, ChunkedSender, Reassembler, is_chunk, is_large
from ..wire.codec import encode
from ..wire.messages import Frame, WireError
from ..wire.reassembly import most_bytes
from .access_control import AccessControl
from .connection_upgrade import MemoryNegotiation, first_hello
from .event_loop import EventLoop
from .keys import Keys
from .zmq_auth import ZapHandler
from .zmq_liveness import ConnectionMonitor
from .zmq_sockets import (
    LINGER_MS,
    MAX_FRAMES,
    RETRY_MS,
    AddressInUse,
    Socket,
    descriptor,
    dial,
    new_context,
    new_socket,
    receive_frames,
    send_frames,
    url_of,
)

logger = logging.getLogger(__name__)

MAX_BACKLOG = 10_000  # messages to one peer that wait here, in addition to `HIGH_WATER`
_DIALLED = b"\0dialled:"  # ROUTER's own names have 5 bytes and never start like this


def dialled_name(address: str) -> bytes:
    """The name of the peer at an address that this process connected to."""
    return _DIALLED + address.encode()


def is_dialled(peer: bytes) -> bool:
    """Whether this process connected to the peer."""
    return peer.startswith(_DIALLED)


def address_of(peer: bytes) -> str:
    """The address in a `dialled_name`."""
    return peer.removeprefix(_DIALLED).decode()


def name_of(peer: bytes) -> str:
    """A peer's name for log lines. Clients choose their names, so a long one is shortened."""
    return address_of(peer) if is_dialled(peer) else f"client {peer[:16].hex()}{'...' if len(peer) > 16 else ''}"


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


class ZmqRouter:
    """The ZeroMQ sockets of an endpoint.

    Args:
        address, ip, port: where to listen, as the user wrote it and as it is bound.
        io: the event loop that watches the sockets.
        keys, access: access control, where there are keys.
        counters: the endpoint's counters.
        sharing: makes the first message of a new connection.
        take: takes whole messages, each with the name of its sender.
        refuse: takes malformed messages in the same way.
        is_ignored: whether a peer's messages are ignored.
        emptied: called with the names of peers whose queue has become empty.
        expel: called with the names of peers whose connections were ended. From any thread.

    Attributes:
        port: the bound port.
        reassemblers: peers that have sent large messages.

    Raises:
        AddressInUse: another socket listens there. OSError: the address is not one of this machine's.
    """

    def __init__(
        self,
        address: str,
        ip: str,
        port: int,
        *,
        io: EventLoop,
        keys: Keys | None,
        access: AccessControl | None,
        counters: Counters,
        sharing: MemoryNegotiation,
        take: Callable[[bytes, list[Frame]], None],
        refuse: Callable[[bytes, WireError], None],
        is_ignored: Callable[[bytes], bool],
        emptied: Callable[[bytes], None],
        expel: Callable[[list[bytes]], None],
    ) -> None:
        self._io = io
        self._keys = keys
        self._counters = counters
        self._sharing = sharing
        self._on_message = take
        self._refuse = refuse
        self._is_ignored = is_ignored
        self._emptied = emptied
        self._zap: ZapHandler | None = None
        # A context of its own: terminating it waits until the last replies have left, but for no other
        # sockets.
        self._context = new_context()
        try:
            self._router = self._bind(address, ip, port, access, expel)
        except OSError:
            if self._zap is not None:
                self._zap.close()
            self._context.term()
            raise
        endpoint = self._router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.port = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        self._url = url_of(ip, self.port)
        self._peers: dict[bytes, Socket] = {}  # peer's name -> socket that this server connected
        self._links: dict[bytes, ConnectionMonitor] = {}  # their connection monitors
        self._names: dict[Socket, bytes] = {}  # the inverse of `_peers`
        self._backlog: dict[bytes, ChunkedSender] = {}  # peer's name -> sender of what ZeroMQ did not accept yet
        self.reassemblers: dict[bytes, Reassembler] = {}
        self._unsettled: set[Socket] = (
            set()
        )  # ZeroMQ sockets that may have messages though their descriptors do not say so
        self._watch(self._router)

    def _bind(
        self, address: str, ip: str, port: int, access: AccessControl | None, expel: Callable[[list[bytes]], None]
    ) -> Socket:
        router = new_socket(self._context, zmq.ROUTER)
        router.set(zmq.IPV6, ":" in ip)
        # Without this ROUTER silently drops messages to a slow client.
        router.set(zmq.ROUTER_MANDATORY, 1)
        if access is not None:
            self._zap = ZapHandler(self._context, router, access, expel)
        try:
            router.bind(url_of(ip, port))
        except zmq.ZMQError as error:
            router.close(linger=0)
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse(
                    errno.EADDRINUSE,
                    f"cannot listen on {address}: another socket already does. Stop its process (see "
                    f"`ss -ltnp 'sport = :{port}'`), choose another port, or let port 0 pick a free one",
                ) from None
            raise OSError(
                error.errno,
                f"cannot listen on {address}: {error.strerror}. Is it an address of this machine?",
            ) from None
        return router

    def listen(self, on: bool) -> bool:
        """Start or stop accepting connections; existing ones stay. Whether that succeeded."""
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
        """Receive messages, and send waiting ones."""
        # One message per socket and iteration, so that no peer starves the others.
        if self._unsettled:
            for sock in list(self._unsettled):
                if not self._take(sock):
                    self._unsettled.discard(sock)
        if self._backlog:
            self.send_waiting()

    def patience(self) -> float:
        """Seconds that the next iteration may wait for an event; -1: without limit."""
        if self._unsettled:
            return 0
        if self._backlog and any(sender.is_refused for sender in self._backlog.values()):
            return RETRY_MS / 1000
        return -1

    def _watch(self, sock: Socket) -> None:
        self._unsettled.add(sock)
        self._io.watch(descriptor(sock), lambda event: self._unsettled.add(sock))

    # --- what comes ------------------------------------------------------------------------------------------------

    def _take(self, sock: Socket) -> bool:
        """Receive one message and handle it; False if there is none.

        Called until the socket has no more messages, and again after each use of the socket: see `descriptor`.
        """
        from_client = sock is self._router
        peer = b"" if from_client else self._names.get(sock, b"")
        if not from_client and not peer:
            return False  # closed earlier in this iteration
        try:
            if from_client:
                if self._zap is None:
                    peer = sock.recv(zmq.NOBLOCK)
                else:  # a guest without a right to be heard is treated like one that takes another's name
                    peer = self._zap.admit(sock.recv(zmq.NOBLOCK, copy=False)) or _DIALLED
                if peer.startswith(_DIALLED):
                    self._counters.ignored += 1
                    with contextlib.suppress(WireError):
                        receive_frames(sock, zmq.NOBLOCK)
                    return True
            frames = receive_frames(sock, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except WireError as error:
            self._refuse(peer, error)
            return True
        if is_chunk(frames[0]):
            self._take_chunk(peer, frames)
        else:
            self._on_message(peer, frames)
        return True

    def _take_chunk(self, peer: bytes, frames: list[Frame]) -> None:
        """Handle a chunk of a large message, or a progress acknowledgement."""
        if self._is_ignored(peer):
            self._counters.ignored += 1
            return
        reassembler = self.reassemblers.get(peer)
        if reassembler is None:
            reassembler = self.reassemblers[peer] = Reassembler(MAX_FRAMES, most_bytes())
        try:
            whole = reassembler.take(frames)
        except WireError as error:
            self._refuse(peer, error)
            return
        if whole is not None:
            self._on_message(peer, whole)
        elif not is_dialled(peer) and reassembler.is_open() and (now := time.monotonic()) >= reassembler.next_ack:
            reassembler.next_ack = now + ACK_EVERY_S
            self.give(peer, [PROGRESS_ACK])

    def lives(self, peer: bytes, since: float) -> bool:
        """Whether the process of a peer that this server connected to has run since then: see `zmq_liveness.py`."""
        link = self._links.get(peer)
        return link is not None and link.was_up_since(since)

    def tidy(self, is_gone: Callable[[bytes], bool]) -> None:
        """Check the connections, and drop partial messages of peers that are gone."""
        for link in self._links.values():
            link.is_up()
        for peer, reassembler in list(self.reassemblers.items()):
            if (
                reassembler.received == reassembler.received_before
                and not is_dialled(peer)
                and (not reassembler.is_open() or is_gone(peer))
            ):
                del self.reassemblers[peer]
            reassembler.received_before = reassembler.received

    # --- what leaves -----------------------------------------------------------------------------------------------

    def post(self, peer: bytes, frames: list[Frame]) -> None:
        """Pass one message to ZeroMQ, or to the peer's `ChunkedSender`."""
        sender = self._backlog.get(peer)
        if sender is None:
            if not is_large(frames) and self.give(peer, frames):
                return
            sender = self._backlog[peer] = ChunkedSender(self._io.wake)
        if len(sender) >= MAX_BACKLOG:
            self.drop(peer, len(sender))
            return
        sender.put(frames)
        sender.pump(partial(self.give, peer))

    def drop(self, peer: bytes, waiting: int) -> None:
        """Count a dropped message; `waiting` messages wait. Any thread may call this."""
        if not self._counters.dropped:
            logger.error("%s: %s takes no messages, %d wait: dropping", self._io.name, name_of(peer), waiting)
        self._counters.dropped += 1

    def give(self, peer: bytes, frames: list[Frame]) -> bool:
        """Whether the message is done: it is sent, or its receiver is gone."""
        try:
            if is_dialled(peer):
                sock = self._peers.get(peer) or self._dial(peer)
                self._unsettled.add(sock)
                send_frames(sock, frames, zmq.NOBLOCK)
            else:
                self._unsettled.add(self._router)
                self._router.send(peer, zmq.NOBLOCK | zmq.SNDMORE)
                send_frames(self._router, frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self._counters.gone += 1
            return True
        self._counters.sent += 1
        return True

    def send_waiting(self) -> None:
        """Send waiting messages, as far as ZeroMQ accepts them."""
        for peer, sender in list(self._backlog.items()):
            sender.pump(partial(self.give, peer))
            if sender.is_done():
                del self._backlog[peer]
                self._emptied(peer)

    def _dial(self, peer: bytes) -> Socket:
        sock, self._links[peer] = dial(self._context, address_of(peer), self._keys)
        self._peers[peer] = sock
        self._names[sock] = peer
        self._watch(sock)
        hello = first_hello(self._sharing, peer, self._keys)
        if hello is not None:
            send_frames(sock, encode(hello), zmq.NOBLOCK)
        return sock

    # --- the state of peers ----------------------------------------------------------------------------------------

    def has_dialled(self, peer: bytes) -> bool:
        """Whether this server has a connection that it made to the peer."""
        return peer in self._peers

    def waits(self, peer: bytes) -> bool:
        """Whether messages wait for a peer."""
        return bool(self._backlog.get(peer))

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return sum(map(len, self._backlog.values()))

    def moved(self, peer: bytes) -> int:
        """A number that grows as chunks of large messages leave for a peer, or acknowledgements of them arrive."""
        sender, reassembler = self._backlog.get(peer), self.reassemblers.get(peer)
        return (0 if sender is None else sender.bytes_left()) + (0 if reassembler is None else reassembler.acks)

    def hang_up(self, peer: bytes) -> None:
        """Close the connection to a peer, and drop its waiting messages."""
        self._backlog.pop(peer, None)
        self.reassemblers.pop(peer, None)
        sock = self._peers.pop(peer, None)
        if sock is not None:
            del self._names[sock]
            self._unsettled.discard(sock)
            self._io.unwatch(descriptor(sock))
            self._links.pop(peer).close()
            sock.close(linger=0)

    def close(self) -> None:
        """Close all sockets. Messages that ZeroMQ has accepted still leave, for up to `LINGER_MS`."""
        for link in self._links.values():
            link.close()
        for sock in [self._router, *self._peers.values()]:
            sock.close(linger=LINGER_MS)
        if self._zap is not None:
            self._zap.close()
        self._context.term()
