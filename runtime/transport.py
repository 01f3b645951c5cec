"""The transport: messages between processes, over ZeroMQ. This is the server's end.

A server has one `Endpoint`: a ROUTER socket that anybody may connect to, and one DEALER socket to each peer
it sends to on its own account. All of them belong to one thread, the I/O thread, since ZeroMQ's sockets may
not be shared. Whatever arrives is decoded there and handed to `on_message` there; a server that answers from
inside `on_message` does so without any hand-over between threads. Other threads put their messages in a queue
and wake the I/O thread through a socket pair.

A client has `Connections` (connections.py): one DEALER per server that it talks to, opened when first needed. They belong to
whoever holds them and are used by one thread at a time; there is no thread behind them.

Processes of one machine that can read each other's memory go over to a `Lane` as soon as they have met: a stream without
ZeroMQ's threads, into which any thread may write without a hand-over. ZeroMQ's connection stays beside it: for its signs of life,
and to go back to when the lane ends.

Peers are named by bytes. The name of a client is made by the ROUTER and good for one connection; the name of
a peer that was connected to is `_DIALLED` and its address. A client that gives itself such a name is ignored,
so none can make a reply go elsewhere.

What a peer can do to this process is bounded: how many messages wait for a slow one (`HIGH_WATER` in ZeroMQ,
`MAX_BACKLOG` here) and how many bytes (`backlog.py`), how large a frame may be, how many broken messages it may
send before it is no longer listened to.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

import zmq

from ..graph.settings import setting
from .address import all_loopback, resolve, split_address
from .backlog import Backlog
from .curve import Door
from .faults import link_faults
from .keys import Keys
from .lane import Landing, Lane, connect
from .parcels import SIGN, SIGN_EVERY, Inbox, Outbox, is_large, is_part
from .security import Gate
from .sharing import UNREADABLE, Sharing, borrow, first_words
from .sockets import (
    LINGER_MS,
    MAX_FRAME_BYTES,
    MAX_FRAMES,
    RETRY_MS,
    AddressInUse,
    Socket,
    descriptor,
    dial,
    dialled_host,
    new_context,
    new_poller,
    new_socket,
    receive_frames,
    send_frames,
    url_of,
)
from .streams import StreamLanding, connect_stream
from .wire import Frame, Message, UnreadableError, WireError, decode, encode

logger = logging.getLogger(__name__)

TICK_S = 0.25  # how often `on_tick` is called, about
MAX_BACKLOG = 10_000  # messages to one peer that are kept here, beyond those
MAX_STRIKES = 16  # broken messages after which a peer is no longer listened to
WATCH_S = 150e-6
"""So long the I/O thread looks out for an answer that is expected at once before it sleeps: about what another task takes to do a small
stretch and to send. To sleep and to be woken costs the two ends 30 µs together, and more where a virtual processor has to be started."""
CROWDED_S = 15e-6  # the processor was another's for so long when it was offered: others need it, so it is time to sleep
PROBE_S = 1.0  # a peer that leaves messages waiting in its lane is looked for on ZeroMQ's connection so often
_DIALLED = b"\0dialled:"  # no name that ROUTER makes can start so: those have 5 bytes


@dataclass(slots=True)
class Counters:
    """What an endpoint has seen since it was made."""

    received: int = 0
    sent: int = 0
    malformed: int = 0  # messages that `decode` refused
    ignored: int = 0  # messages of peers that sent too many malformed ones, or took another's name
    gone: int = 0  # messages to clients that had left
    dropped: int = 0  # messages to peers that took none for too long


class Endpoint:
    """A server's sockets and the thread that owns them.

    `on_message(peer, message)` and `on_tick()` are called on that thread, so they must not wait for anything.
    An exception in them is logged; a request whose handler raised is answered with an `error`.

    Large tensors of sent messages are borrowed until they have left (see `wire.BORROW_BYTES`).

    Args:
        address: `host:port` to listen on; port 0 picks a free one.
        on_message: takes what arrives. `peer` is good for `reply`.
        on_tick: called about every `TICK_S` seconds.
        insecure: allow an address that other machines can reach, though there are no keys.
        keys: let in only who proves a key that these allow, and prove one to others.

    Raises:
        AddressInUse: somebody else listens there.
        PermissionError: other machines could reach the address, there are no keys, and `insecure` was not said.
        OSError: the address is not one of this machine's.
        ValueError: the address is not `host:port`.

    >>> echo = Endpoint("localhost:0", lambda peer, message: echo.reply(peer, message))
    >>> with Connection(echo.address) as connection:
    ...     connection.send(Message("ping", {"seq": 1}))
    ...     connection.recv(5.0)
    Message('ping', seq=1)
    >>> echo.close()
    """

    def __init__(
        self,
        address: str,
        on_message: Callable[[bytes, Message], None],
        *,
        on_tick: Callable[[], None] | None = None,
        insecure: bool = False,
        keys: Keys | None = None,
    ) -> None:
        host, port = split_address(address)
        ip = _bindable(address, host, insecure or keys is not None)
        self._keys = keys
        self._gate = None if keys is None else Gate(keys, address)
        self._door: Door | None = None
        self.counters = Counters()
        self._faults = link_faults()
        self._on_message = on_message
        self._on_tick = on_tick
        self._pid = os.getpid()
        # A context of its own: ending it waits until the last replies have left, without waiting for other
        # sockets.
        self._context = new_context()
        try:
            self._router = self._bind(address, ip, port)
        except OSError:
            if self._door is not None:
                self._door.close()
            self._context.term()
            raise
        endpoint = self._router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        bound = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        self._dialled: dict[str, bytes] = {}  # names of the peers that something was sent to, by their addresses
        self._peers: dict[bytes, Socket] = {}  # sockets that were dialled, by the peer's name
        self._names: dict[Socket, bytes] = {}  # the same, the other way round
        self._backlog: dict[bytes, Outbox] = {}  # what ZeroMQ was not given yet, by the peer's name
        self._inboxes: dict[bytes, Inbox] = {}  # peers that have sent large messages
        self._waiting_bytes = Backlog(int(setting("DOVETAIL_BACKLOG_MB")) << 20)
        self._strikes: OrderedDict[bytes, int] = OrderedDict()  # malformed messages per peer, latest last
        self._sharing = Sharing()
        self._landing = Landing(MAX_FRAMES, MAX_FRAME_BYTES)
        self._streams = StreamLanding(ip, MAX_FRAMES, MAX_FRAME_BYTES) if keys is None else None
        self._lanes: dict[bytes, Lane] = {}  # peers that are written to on a lane
        self._lane_of: dict[int, tuple[bytes, Lane]] = {}  # the same and their peers, by descriptor
        self._queued: dict[
            bytes, int
        ] = {}  # messages for a peer that are in the queue: later ones must not overtake them
        self._next_probe = 0.0
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # what enters the queue before `_closing` is set will run; nothing enters it afterwards
        self._woken = False
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._poller = new_poller()
        self._by_fd: dict[int, Socket] = {}
        self._unsettled: set[Socket] = (
            set()
        )  # ZeroMQ sockets that may have messages though their descriptors do not say so
        self._watch(self._router)
        self._poller.register(self._wake_in.fileno(), select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"dovetail-io-{self.address}", daemon=True)
        self._io_thread = 0
        self._expects = False  # whether an answer to what has just been sent is probably near
        self._thread.start()

    def _bind(self, address: str, ip: str, port: int) -> Socket:
        router = new_socket(self._context, zmq.ROUTER)
        router.set(zmq.IPV6, ":" in ip)
        # Without this ROUTER drops what a slow client has no room for, and says nothing.
        router.set(zmq.ROUTER_MANDATORY, 1)
        if self._gate is not None:
            self._door = Door(self._context, router, self._gate, self._expel)
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

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Called from any thread.

    def reply(self, peer: bytes, message: Message, compressed: bool = False) -> None:
        """Send `message` to the peer that `on_message` named; if it has left, the message is dropped.

        Args:
            compressed: make large tensors smaller where that helps, unless the peer reads this process's memory.

        Raises:
            WireError: the message cannot travel.
            ResourceExhaustedError: the peer takes nothing, and too many bytes wait for it (`DOVETAIL_BACKLOG_MB`).
        """
        lend = self._sharing.lender(peer) if message.tensors else None
        frames = encode(message, lend, compressed and lend is None)
        if len(frames) > 1:
            lane = self._lanes.get(peer)
            self._waiting_bytes.enter(peer, _name(peer), frames, 0 if lane is None else lane.waiting_bytes)
        if self._faults is None:
            self._hand_over(peer, frames)
        else:
            to = peer.removeprefix(_DIALLED).decode() if peer.startswith(_DIALLED) else None
            self._faults.carry(("to", peer), frames, lambda: self._hand_over(peer, frames), to)

    def _hand_over(self, peer: bytes, frames: list[Frame]) -> None:
        """Give one message to the peer's lane, or to the I/O thread."""
        lane = self._lanes.get(peer)
        is_behind = peer in self._queued and not self.on_io_thread()
        if lane is not None and not is_behind and self._write(peer, lane, frames):
            return
        if self.on_io_thread():
            self._post_apart(peer, frames)
            return
        with self._lock:
            if self._closing:
                return
            self._queued[peer] = self._queued.get(peer, 0) + 1
            self._queue.append(lambda: self._post_queued(peer, frames))
        self._wake()

    def send(self, address: str, message: Message, compressed: bool = False) -> None:
        """Send `message` to the server at `address`, connecting when needed.

        Nobody needs to listen there yet. What the server answers comes to `on_message`. Messages of one
        thread to one peer arrive in order.

        Raises:
            WireError, ResourceExhaustedError: as `reply`.
            ValueError: the address is not `host:port`.
        """
        peer = self._dialled.get(address)
        if peer is None:
            split_address(address)
            peer = self._dialled[address] = _DIALLED + address.encode()
        self.reply(peer, message, compressed)

    def expect(self) -> None:
        """An answer to what the calling thread has sent is probably near. Of no effect on other threads than the I/O thread."""
        if get_ident() == self._io_thread:
            self._expects = hasattr(os, "sched_yield")

    def is_near(self, address: str) -> bool:
        """Whether the server at `address` reads this process's memory, so that large tensors cost little on the way there."""
        peer = _DIALLED + address.encode()
        return peer in self._lanes and self._sharing.lends(peer)

    def bytes_left(self, address: str) -> int:
        """A number that grows while large tensors leave for the server at `address`. For the I/O thread."""
        peer = _DIALLED + address.encode()
        lane = self._lanes.get(peer)
        if lane is not None:
            return lane.bytes_left()
        outbox, inbox = self._backlog.get(peer), self._inboxes.get(peer)
        pieces = 0 if outbox is None else outbox.bytes_left()
        signs = 0 if inbox is None else inbox.signs
        return self._waiting_bytes.left(peer) + pieces + signs

    def forget(self, address: str) -> None:
        """Close the connection to `address` and drop what it has not sent: the peer is gone, or replaced."""
        peer = _DIALLED + address.encode()
        if self.on_io_thread():
            self._hang_up(peer)
        else:
            self.call_soon(lambda: self._hang_up(peer))

    def owner(self, peer: bytes) -> str:
        """The public key under which a peer was let in; nothing where there are no keys."""
        return "" if self._gate is None else self._gate.owner(peer)

    @property
    def refused(self) -> int:
        """How many connections were not let in."""
        return 0 if self._gate is None else self._gate.refused

    def _expel(self, peers: list[bytes]) -> None:
        """Drop what there is for peers whose connections have been ended."""
        for peer in peers:
            self.call_soon(partial(self._hang_up, peer))

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Run `function` on the I/O thread; False if the endpoint is closed and it will never run."""
        with self._lock:
            if self._closing:
                return False
            self._queue.append(function)
        self._wake()
        return True

    def on_io_thread(self) -> bool:
        """Whether the caller runs on the I/O thread."""
        return get_ident() == self._io_thread

    def close(self) -> None:
        """Send what is queued, close the sockets, end the thread.

        Closing twice, or in a forked child, does nothing.
        """
        if os.getpid() != self._pid:
            return  # the thread and the sockets are the parent's
        with self._lock:
            self._closing = True
        self._wake()
        if not self.on_io_thread():
            self._thread.join()

    # Called on the I/O thread only.

    def _run(self) -> None:
        self._io_thread = get_ident()
        next_tick = time.monotonic() + TICK_S
        try:
            while not self._closing:
                patience = self._patience(next_tick)
                events = self._watch_out() if self._expects and patience else None
                for fd, event in events or self._poller.poll(patience):
                    lane = self._lane_of.get(fd)
                    if lane is not None:
                        self._attend(*lane, event)
                    elif fd in self._by_fd:
                        self._unsettled.add(self._by_fd[fd])
                    else:
                        self._drain_wakes()
                # One message per socket and turn: nobody can starve the others.
                if self._unsettled:
                    for sock in list(self._unsettled):
                        if not self._take(sock):
                            self._unsettled.discard(sock)
                if self._queue:
                    self._run_queue()
                if self._backlog:
                    self._retry()
                if self._on_tick is not None and time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_S
                    self._guard(self._on_tick)
                    self._guard(self._sharing.tidy)
                    self._guard(self._probe)
                    self._guard(self._waiting_bytes.tidy)
        except Exception:
            logger.exception("the I/O thread of %s ends", self.address)
        finally:
            with self._lock:
                self._closing = True
            self._shut()

    def _watch_out(self) -> list[tuple[int, int]] | None:
        """Look for something to happen without sleeping, for a moment, and only as long as nobody else wants the processor."""
        self._expects = False
        poll, clock, offer = self._poller.poll, time.perf_counter, os.sched_yield
        now = clock()
        end = now + WATCH_S
        while now < end:
            events = poll(0)
            if events:
                return events
            before = clock()
            offer()
            now = clock()
            if now - before > CROWDED_S:
                break
        return None

    def _patience(self, next_tick: float) -> float:
        """Seconds until something is to be done even if nothing arrives; -1 for never."""
        if self._queue or self._unsettled:
            return 0
        if self._backlog and any(outbox.is_refused for outbox in self._backlog.values()):
            return RETRY_MS / 1000
        if self._on_tick is None:
            return -1
        return max(0.0, next_tick - time.monotonic() + 0.001)

    def _watch(self, sock: Socket) -> None:
        fd = descriptor(sock)
        self._by_fd[fd] = sock
        self._unsettled.add(sock)
        self._poller.register(fd, select.POLLIN)

    def _take(self, sock: Socket) -> bool:
        """Receive one message and handle it; False if there is none.

        A socket is asked until it has no more, and again after everything that it was used for: see `descriptor`.
        """
        from_client = sock is self._router
        peer = b"" if from_client else self._names.get(sock, b"")
        if not from_client and not peer:
            return False  # hung up earlier in this turn
        try:
            if from_client:
                if self._door is None:
                    peer = sock.recv(zmq.NOBLOCK)
                else:  # a guest without a right to be heard is treated like one that takes another's name
                    peer = self._door.guest(sock.recv(zmq.NOBLOCK, copy=False)) or _DIALLED
                if peer.startswith(_DIALLED):
                    self.counters.ignored += 1
                    with contextlib.suppress(WireError):
                        receive_frames(sock, zmq.NOBLOCK)
                    return True
            frames = receive_frames(sock, zmq.NOBLOCK)
        except zmq.Again:
            return False
        except WireError as error:
            self._refuse(peer, error)
            return True
        if is_part(frames[0]):
            self._take_part(peer, frames)
        else:
            self._handle(peer, frames)
        return True

    def _take_part(self, peer: bytes, frames: list[Frame]) -> None:
        """Deal with a piece of a large message, or with a sign that pieces arrive."""
        if self._strikes and self._strikes.get(peer, 0) >= MAX_STRIKES:
            self.counters.ignored += 1
            return
        dialled = peer.startswith(_DIALLED)
        inbox = self._inboxes.get(peer)
        if inbox is None:
            inbox = self._inboxes[peer] = Inbox(MAX_FRAMES, MAX_FRAME_BYTES)
        try:
            whole = inbox.take(frames)
        except WireError as error:
            self._refuse(peer, error)
            return
        if whole is not None:
            self._handle(peer, whole)
        elif not dialled and inbox.is_open() and (now := time.monotonic()) >= inbox.next_sign:
            inbox.next_sign = now + SIGN_EVERY
            self._give(peer, [SIGN])

    def _handle(self, peer: bytes, frames: list[Frame]) -> None:
        """Deal with one message, unless a fault that was asked for loses it, or not yet."""
        if self._faults is None:
            self._open(peer, frames)
            return

        def arrive() -> None:
            if self.on_io_thread():
                self._open(peer, frames)
            else:
                self.call_soon(lambda: self._open(peer, frames))

        self._faults.carry(("from", peer), frames, arrive)

    def _open(self, peer: bytes, frames: list[Frame]) -> None:
        """Deal with one message."""
        if self._strikes and self._strikes.get(peer, 0) >= MAX_STRIKES:
            self.counters.ignored += 1
            return
        try:
            message = decode(frames, borrow)
        except WireError as error:
            if isinstance(error, UnreadableError):
                self._post(peer, encode(UNREADABLE))
            self._refuse(peer, error)
            return
        if message.kind == "hello":
            self._greet(peer, message)
            return
        self.counters.received += 1
        if self._faults is not None:
            self._faults.arrived(message.kind)
        try:
            self._on_message(peer, message)
        except Exception as error:
            logger.exception("%s: handling %r failed", self.address, message.kind)
            request = message.fields.get("request")
            if request is not None and not peer.startswith(_DIALLED):
                text = f"{self.address}: {message.kind!r} failed: {type(error).__name__}: {error}"
                self._post_error(peer, request, "INTERNAL", text)

    def _refuse(self, peer: bytes, error: WireError) -> None:
        self.counters.malformed += 1
        strikes = self._strikes.pop(peer, 0) + 1
        self._strikes[peer] = strikes
        if len(self._strikes) > 4_096:  # whoever reconnects has a new name: keep the latest
            self._strikes.popitem(last=False)
        logger.warning("%s: refused a message of %s: %s", self.address, _name(peer), error)
        if peer.startswith(_DIALLED):
            return  # answering an answer could go on for ever
        text = f"{self.address} refused a message: {error}"
        if strikes == MAX_STRIKES:
            text += f"; it was the {strikes}th, and no more are read from this connection"
        self._post_error(peer, error.request, "INVALID_ARGUMENT", text)

    def _post_error(self, peer: bytes, request: int, code: str, text: str) -> None:
        self._post(peer, encode(Message("error", {"request": request, "code": code, "message": text[:4_096]})))

    def _post_queued(self, peer: bytes, frames: list[Frame]) -> None:
        try:
            self._post(peer, frames)
        finally:
            with self._lock:
                left = self._queued.pop(peer) - 1
                if left:
                    self._queued[peer] = left

    def _post(self, peer: bytes, frames: list[Frame]) -> None:
        """Give one message to the peer's lane, to ZeroMQ, or to the backlog."""
        lane = self._lanes.get(peer)
        if lane is None or not self._write(peer, lane, frames):
            self._post_apart(peer, frames)

    def _post_apart(self, peer: bytes, frames: list[Frame]) -> None:
        """Give one message to ZeroMQ, or to the backlog."""
        outbox = self._backlog.get(peer)
        if outbox is None:
            if not is_large(frames) and self._give(peer, frames):
                return
            outbox = self._backlog[peer] = Outbox(self._wake)
        if len(outbox) >= MAX_BACKLOG:
            self._drop(peer, len(outbox))
            return
        outbox.put(frames)
        outbox.pump(partial(self._give, peer))

    def _drop(self, peer: bytes, waiting: int) -> None:
        if not self.counters.dropped:
            logger.error("%s: %s takes no messages, %d wait: dropping", self.address, _name(peer), waiting)
        self.counters.dropped += 1

    def _give(self, peer: bytes, frames: list[Frame]) -> bool:
        """Whether the message is off our hands: sent, or its receiver is gone."""
        try:
            if peer.startswith(_DIALLED):
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
            self.counters.gone += 1
            return True
        self.counters.sent += 1
        return True

    def _retry(self) -> None:
        for peer, outbox in list(self._backlog.items()):
            outbox.pump(partial(self._give, peer))
            if outbox.is_done():
                del self._backlog[peer]

    def _dial(self, peer: bytes) -> Socket:
        sock = dial(self._context, peer.removeprefix(_DIALLED).decode(), self._keys)
        self._peers[peer] = sock
        self._names[sock] = peer
        self._watch(sock)
        hello = first_words(self._sharing, peer, self._keys)
        if hello is not None:
            send_frames(sock, encode(hello), zmq.NOBLOCK)
        return sock

    def _hang_up(self, peer: bytes) -> None:
        self._backlog.pop(peer, None)
        self._inboxes.pop(peer, None)
        self._waiting_bytes.forget(peer)
        self._strikes.pop(peer, None)
        sock = self._peers.pop(peer, None)
        if sock is not None:
            del self._names[sock]
            self._unsettled.discard(sock)
            fd = descriptor(sock)
            del self._by_fd[fd]
            self._poller.unregister(fd)
            sock.close(linger=0)
        lane = self._lanes.get(peer)
        if lane is not None:
            self._leave(peer, lane)
        self._sharing.forget(peer)

    # Lanes.

    def _greet(self, peer: bytes, hello: Message) -> None:
        """What peers of one machine say to each other, in order: see `sharing.py`, then `lane.py`."""
        answer = self._sharing.heard(peer, hello)
        said = hello.fields.get("lane") or [""]
        dialled = peer.startswith(_DIALLED)
        if said[0] == "open":
            if dialled and peer in self._lanes:
                self._lanes[peer].is_open = True
                self._await(peer, self._lanes[peer])
        elif said[0] == "taken":
            lane = None if dialled else self._landing.accept(peer, said[-1])
            if lane is None and not dialled and self._streams is not None:
                lane = self._streams.accept(peer, said[-1])
            if lane is not None:
                self._change_over(peer, lane, ["open"])
        elif said[0] == "at" and len(said) == 3 and dialled and answer is not None and peer not in self._lanes:
            lane = connect(said[1], said[2], MAX_FRAMES, MAX_FRAME_BYTES)
            if lane is not None and self._change_over(peer, lane, ["taken", said[2]]):
                return
        elif said[0] == "tcp" and len(said) == 3 and dialled and self._keys is None:
            connecting = threading.Thread(target=self._connect_stream, args=(peer, *said[1:]), daemon=True)
            connecting.start()  # it may take a second
        elif said[0] in ("", "tcp?") and answer is not None and answer.fields["readable"] and not dialled:
            answer.fields["lane"] = self._landing.offer(peer)
        elif said[0] == "tcp?" and not dialled and self._streams is not None:
            offer = self._streams.offer(peer)
            if offer is not None:
                answer = answer or Message("hello", {"memory": None, "readable": False})
                answer.fields["lane"] = offer
        if answer is not None:
            self._post(peer, encode(answer))

    def _connect_stream(self, peer: bytes, port: Any, token: Any) -> None:
        """Connect a lane over TCP. In a thread of its own."""
        host = dialled_host(peer.removeprefix(_DIALLED).decode())
        lane = connect_stream(host, port, token, MAX_FRAMES, MAX_FRAME_BYTES)
        if lane is None:
            return

        def take() -> None:
            if peer not in self._peers or peer in self._lanes:
                lane.close()
            else:
                self._change_over(peer, lane, ["taken", token])

        if not self.call_soon(take):
            lane.close()

    def _change_over(self, peer: bytes, lane: Lane, words: list[str]) -> bool:
        """Say the last words on ZeroMQ's connection, and go over to the lane; False if they cannot leave now."""
        last = Message("hello", {"memory": None, "readable": self._sharing.reads(peer), "lane": words})
        if self._backlog.get(peer) or not self._give(peer, encode(last)):
            lane.close()
            return False
        self._lanes[peer] = lane
        self._lane_of[lane.fd] = peer, lane
        lane.is_open = words == ["open"]
        self._poller.register(lane.fd, lane.events())
        return True

    def _write(self, peer: bytes, lane: Lane, frames: list[Frame]) -> bool:
        """Whether the lane has taken the message (or has had to drop it). Any thread may call this."""
        try:
            waiting = lane.send(frames, MAX_BACKLOG)
        except ConnectionError:
            self.call_soon(lambda: self._leave(peer, lane))
            return False
        if waiting < 0:
            self._drop(peer, MAX_BACKLOG)
        elif waiting == 1:
            self.call_soon(lambda: self._await(peer, lane))
        self.counters.sent += 1
        return True

    def _await(self, peer: bytes, lane: Lane) -> None:
        if self._lanes.get(peer) is lane:
            self._poller.modify(lane.fd, lane.events())

    def _attend(self, peer: bytes, lane: Lane, event: int) -> None:
        """Something has happened on a lane."""
        try:
            if event & select.POLLOUT and not lane.flush():
                self._await(peer, lane)
            if event & ~select.POLLOUT:
                take = self._open if self._faults is None else self._handle
                for frames in lane.receive():
                    take(peer, frames)
        except ConnectionError:
            self._leave(peer, lane)
        except WireError as error:
            self._leave(peer, lane)
            self._refuse(peer, error)

    def _leave(self, peer: bytes, lane: Lane) -> None:
        """Go back to ZeroMQ's connection: the lane has ended."""
        if self._lanes.get(peer) is not lane:
            return
        del self._lanes[peer], self._lane_of[lane.fd]
        self._poller.unregister(lane.fd)
        lane.close()
        self._sharing.forget(peer)
        if peer in self._peers:
            hello = first_words(self._sharing, peer, self._keys)
            if hello is not None:
                self._post(peer, encode(hello))

    def _probe(self) -> None:
        """See whether those who leave messages waiting in their lanes, or do not end one, are still there: ZeroMQ knows, by its
        signs of life."""
        now = time.monotonic()
        if now < self._next_probe:
            return
        self._next_probe = now + PROBE_S
        for peer, lane in list(self._lanes.items()):
            if lane.waiting() and not peer.startswith(_DIALLED) and self.is_gone(peer):
                self._leave(peer, lane)
        for peer, inbox in list(self._inboxes.items()):
            dialled = peer.startswith(_DIALLED)
            if inbox.taken == inbox.seen and not dialled and (not inbox.is_open() or self.is_gone(peer)):
                del self._inboxes[peer]
            inbox.seen = inbox.taken

    def is_gone(self, peer: bytes) -> bool:
        """Whether a client has closed its connection, or died. For the I/O thread."""
        gone = self.counters.gone
        said = Message("hello", {"memory": None, "readable": self._sharing.reads(peer), "lane": ["here"]})
        self._give(peer, encode(said))
        return self.counters.gone > gone

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return sum(map(len, self._backlog.values())) + sum(lane.waiting() for lane in list(self._lanes.values()))

    def _guard(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            logger.exception("%s: a call on the I/O thread failed", self.address)

    def _run_queue(self) -> None:
        for _ in range(len(self._queue)):  # what these calls queue in turn waits for the next round
            self._guard(self._queue.popleft())

    def _wake(self) -> None:
        # One byte wakes for all that was queued before it is read. The flag is cleared before the queue is
        # read, so whoever finds it set knows that the queue will still be read. A full pipe wakes, too; a
        # closed one has nobody left to wake.
        if not self._woken:
            self._woken = True
            with contextlib.suppress(OSError):
                self._wake_out.send(b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_in.recv(4_096)
        self._woken = False

    def _shut(self) -> None:
        """Send what is queued and close everything; waits at most about twice `LINGER_MS`."""
        self._run_queue()
        deadline = time.monotonic() + LINGER_MS / 1000
        while self.waiting() and time.monotonic() < deadline:
            self._retry()
            for lane in self._lanes.values():
                with contextlib.suppress(ConnectionError):
                    lane.flush()
            time.sleep(RETRY_MS / 1000)
        for lane in self._lanes.values():
            lane.close()
        self._landing.close()
        if self._streams is not None:
            self._streams.close()
        for sock in [self._router, *self._peers.values()]:
            sock.close(linger=LINGER_MS)
        if self._door is not None:
            self._door.close()
        self._context.term()
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()


def _bindable(address: str, host: str, insecure: bool) -> str:
    """The IP to bind for `host`."""
    try:
        ips = resolve(host)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot listen on {address}: the name {host!r} does not resolve: {error.strerror}"
        ) from None
    if not insecure and not all_loopback(ips):
        raise PermissionError(
            f"refusing to listen on {address}: other machines can reach it, and there are no keys by which to know who may. Make "
            "some (`dovetail keys new`) and name their folder, by keys=... or DOVETAIL_KEYS; or listen on localhost; or say "
            "insecure=True if every machine that can reach this address may run programs here"
        )
    return ips[0]


def _name(peer: bytes) -> str:
    return peer.removeprefix(_DIALLED).decode() if peer.startswith(_DIALLED) else f"client {peer.hex()}"
