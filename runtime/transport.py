"""The transport: messages between processes, over ZeroMQ. The only module that imports `zmq`.

A server has one `Endpoint`: a ROUTER socket that anybody may connect to, and one DEALER socket to each peer
it sends to on its own account. All of them belong to one thread, the I/O thread, since ZeroMQ's sockets may
not be shared. Whatever arrives is decoded there and handed to `on_message` there; a server that answers from
inside `on_message` does so without any hand-over between threads. Other threads put their messages in a queue
and wake the I/O thread through a socket pair.

A client has `Connections`: one DEALER per server that it talks to, opened when first needed. They belong to
whoever holds them and are used by one thread at a time; there is no thread behind them.

Peers are named by bytes. The name of a client is made by the ROUTER and good for one connection; the name of
a peer that was connected to is `_DIALLED` and its address. A client that gives itself such a name is ignored,
so none can make a reply go elsewhere.

What a peer can do to this process is bounded: how many messages wait for a slow one (`HIGH_WATER` in ZeroMQ,
`MAX_BACKLOG` here), how large a frame may be, how many broken messages it may send before it is no longer
listened to.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import socket
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import zmq

from .address import all_loopback, is_loopback, resolve, split_address
from .wire import BORROW_BYTES, MAX_TENSORS, Frame, Message, WireError, decode, encode

__all__ = [
    "AddressInUse", "Connection", "Connections", "Counters", "Endpoint", "is_loopback", "split_address",
]  # fmt: skip

logger = logging.getLogger(__name__)

TICK_S = 0.25  # how often `on_tick` is called, about
HIGH_WATER = 1_000  # messages to one peer that ZeroMQ keeps before `MAX_BACKLOG` starts to fill
MAX_BACKLOG = 10_000  # messages to one peer that are kept here, beyond those
MAX_FRAME_BYTES = 1 << 34  # 16 GiB: larger than any tensor we know, small enough to stop a forged length
MAX_FRAMES = MAX_TENSORS + 8  # the header, the tensors and the fields that travel beside the header
MAX_STRIKES = 16  # broken messages after which a peer is no longer listened to
LINGER_MS = 1_000  # how long a closed socket may go on sending what was given to it
HEARTBEAT_MS = 1_000
HEARTBEAT_TIMEOUT_MS = 4_000  # a peer that is silent for so long is gone: below the 5 s in which every call must end
SEND_TIMEOUT_S = 5.0
_RETRY_MS = 5  # while messages wait for a slow peer
_DIALLED = b"\0dialled:"  # no name that ROUTER makes can start so: those have 5 bytes

_Socket: TypeAlias = "zmq.Socket[bytes]"


class AddressInUse(OSError):  # noqa: N818  (the name says it)
    """Another socket listens on the address."""


# Sockets

_contexts: dict[int, zmq.Context[_Socket]] = {}
_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _shared_context() -> zmq.Context[_Socket]:
    """The context of this process's client sockets.

    After a fork the child makes its own: the parent's has no threads there. There is no lock, which a fork
    could leave locked: of two threads that come first at the same time, one wins.
    """
    context = _contexts.get(os.getpid())
    if context is None:
        context = _contexts.setdefault(os.getpid(), _new_context())
        if len(_contexts) == 1:
            atexit.register(_flush_shared_context)
    return context


def _url(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _new_context() -> zmq.Context[_Socket]:
    context: zmq.Context[_Socket] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 16_384)
    return context


def _flush_shared_context() -> None:
    """At exit, give what closed connections sent last up to `LINGER_MS` to leave.

    A context with an open socket would wait for its owner to close it; then nothing is waited for.
    """
    context = _contexts.get(os.getpid())
    if context is not None and all(connection.closed for connection in _connections):
        context.term()


def _new_socket(context: zmq.Context[_Socket], kind: int) -> _Socket:
    sock = context.socket(kind)
    sock.set(zmq.LINGER, LINGER_MS)
    sock.set(zmq.SNDHWM, HIGH_WATER)
    sock.set(zmq.RCVHWM, HIGH_WATER)
    sock.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    sock.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    sock.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    sock.set(zmq.RECONNECT_IVL, 50)  # ms; a restarted task is found again soon ...
    sock.set(zmq.RECONNECT_IVL_MAX, 1_000)  # ms; ... and a missing one costs little
    return sock


def _dial(context: zmq.Context[_Socket], address: str) -> _Socket:
    """A DEALER that connects to `address` as soon as somebody listens there."""
    host, port = split_address(address)
    if host == "localhost":
        host = "127.0.0.1"
    sock = _new_socket(context, zmq.DEALER)
    sock.set(zmq.IPV6, ":" in host)
    try:
        sock.connect(_url(host, port))
    except zmq.ZMQError as error:
        sock.close(linger=0)
        raise OSError(error.errno, f"cannot connect to {address}: {error.strerror}") from None
    return sock


def _send(sock: _Socket, frames: Sequence[Frame], flags: int) -> None:
    """Send one message. ZeroMQ takes all of it or, raising `zmq.Again`, nothing."""
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        sock.send(frame, flags | zmq.SNDMORE if i < last else flags, copy=len(frame) < BORROW_BYTES)


def _receive(sock: _Socket, flags: int) -> list[Frame]:
    """The frames of one message. What goes beyond `MAX_FRAMES` is read and forgotten."""
    part = sock.recv(flags, copy=False)
    frames: list[Frame] = [part.buffer]
    while part.more:
        part = sock.recv(flags, copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(part.buffer)
    if len(frames) > MAX_FRAMES:
        raise WireError(f"a message of more than {MAX_FRAMES} frames")
    return frames


# The server's side


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
        insecure: allow an address that other machines can reach, though peers are not authenticated.

    Raises:
        AddressInUse: somebody else listens there.
        PermissionError: other machines could reach the address, and `insecure` was not said.
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
    ) -> None:
        host, port = split_address(address)
        ip = _bindable(address, host, insecure)
        self.counters = Counters()
        self._on_message = on_message
        self._on_tick = on_tick
        self._pid = os.getpid()
        # A context of its own: ending it waits until the last replies have left, without waiting for other
        # sockets.
        self._context = _new_context()
        try:
            self._router = self._bind(address, ip, port)
        except OSError:
            self._context.term()
            raise
        endpoint = self._router.get(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        bound = int(endpoint.rstrip(b"\0").rpartition(b":")[2])
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        self._peers: dict[bytes, _Socket] = {}  # sockets that were dialled, by the peer's name
        self._names: dict[_Socket, bytes] = {}  # the same, the other way round
        self._backlog: dict[bytes, deque[list[Frame]]] = {}  # what ZeroMQ did not take yet, by the peer's name
        self._strikes: OrderedDict[bytes, int] = OrderedDict()  # malformed messages per peer, latest last
        self._queue: deque[Callable[[], None]] = deque()
        self._lock = (
            threading.Lock()
        )  # what enters the queue before `_closing` is set will run; nothing enters it afterwards
        self._woken = False
        self._closing = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._wake_in.fileno(), zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"dovetail-io-{self.address}", daemon=True)
        self._thread.start()

    def _bind(self, address: str, ip: str, port: int) -> _Socket:
        router = _new_socket(self._context, zmq.ROUTER)
        router.set(zmq.IPV6, ":" in ip)
        # Without this ROUTER drops what a slow client has no room for, and says nothing.
        router.set(zmq.ROUTER_MANDATORY, 1)
        try:
            router.bind(_url(ip, port))
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

    def reply(self, peer: bytes, message: Message) -> None:
        """Send `message` to the peer that `on_message` named; if it has left, the message is dropped.

        Raises:
            WireError: the message cannot travel.
        """
        frames = encode(message)
        if self.on_io_thread():
            self._post(peer, frames)
        else:
            self.call_soon(lambda: self._post(peer, frames))

    def send(self, address: str, message: Message) -> None:
        """Send `message` to the server at `address`, connecting when needed.

        Nobody needs to listen there yet. What the server answers comes to `on_message`. Messages of one
        thread to one peer arrive in order.

        Raises:
            WireError: the message cannot travel.
            ValueError: the address is not `host:port`.
        """
        peer = _DIALLED + address.encode()
        if peer not in self._peers:
            split_address(address)
        self.reply(peer, message)

    def forget(self, address: str) -> None:
        """Close the connection to `address` and drop what it has not sent: the peer is gone, or replaced."""
        peer = _DIALLED + address.encode()
        if self.on_io_thread():
            self._hang_up(peer)
        else:
            self.call_soon(lambda: self._hang_up(peer))

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
        return threading.current_thread() is self._thread

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
        next_tick = time.monotonic() + TICK_S
        try:
            while not self._closing:
                for sock, _ in self._poller.poll(self._patience(next_tick)):
                    # One message per socket and turn: nobody can starve the others.
                    if isinstance(sock, int):
                        self._drain_wakes()
                    else:
                        self._take(sock)
                self._run_queue()
                if self._backlog:
                    self._retry()
                if self._on_tick is not None and time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_S
                    self._guard(self._on_tick)
        except Exception:
            logger.exception("the I/O thread of %s ends", self.address)
        finally:
            with self._lock:
                self._closing = True
            self._shut()

    def _patience(self, next_tick: float) -> int:
        """Milliseconds until something is to be done even if nothing arrives; -1 for never."""
        if self._queue:
            return 0
        if self._backlog:
            return _RETRY_MS
        if self._on_tick is None:
            return -1
        return max(0, int((next_tick - time.monotonic()) * 1000) + 1)

    def _take(self, sock: _Socket) -> None:
        """Receive one message and handle it."""
        from_client = sock is self._router
        peer = b"" if from_client else self._names.get(sock, b"")
        if not from_client and not peer:
            return  # hung up earlier in this turn
        try:
            if from_client:
                peer = sock.recv(zmq.NOBLOCK)
                if peer.startswith(_DIALLED) or self._strikes.get(peer, 0) >= MAX_STRIKES:
                    self.counters.ignored += 1
                    with contextlib.suppress(WireError):
                        _receive(sock, zmq.NOBLOCK)
                    return
            message = decode(_receive(sock, zmq.NOBLOCK))
        except zmq.Again:
            return
        except WireError as error:
            self._refuse(peer, error)
            return
        self.counters.received += 1
        try:
            self._on_message(peer, message)
        except Exception as error:
            logger.exception("%s: handling %r failed", self.address, message.kind)
            request = message.fields.get("request")
            if from_client and request is not None:
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

    def _post(self, peer: bytes, frames: list[Frame]) -> None:
        """Give one message to ZeroMQ, or to the backlog."""
        waiting = self._backlog.get(peer)
        if waiting is None:
            if self._give(peer, frames):
                return
            waiting = self._backlog[peer] = deque()
        if len(waiting) >= MAX_BACKLOG:
            if not self.counters.dropped:
                logger.error("%s: %s takes no messages, %d wait: dropping", self.address, _name(peer), len(waiting))
            self.counters.dropped += 1
            return
        waiting.append(frames)

    def _give(self, peer: bytes, frames: list[Frame]) -> bool:
        """Whether the message is off our hands: sent, or its receiver is gone."""
        try:
            if peer.startswith(_DIALLED):
                _send(self._peers.get(peer) or self._dial(peer), frames, zmq.NOBLOCK)
            else:
                self._router.send(peer, zmq.NOBLOCK | zmq.SNDMORE)
                _send(self._router, frames, zmq.NOBLOCK)
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
        for peer, waiting in list(self._backlog.items()):
            while waiting and self._give(peer, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._backlog[peer]

    def _dial(self, peer: bytes) -> _Socket:
        sock = _dial(self._context, peer.removeprefix(_DIALLED).decode())
        self._peers[peer] = sock
        self._names[sock] = peer
        self._poller.register(sock, zmq.POLLIN)
        return sock

    def _hang_up(self, peer: bytes) -> None:
        self._backlog.pop(peer, None)
        self._strikes.pop(peer, None)
        sock = self._peers.pop(peer, None)
        if sock is not None:
            del self._names[sock]
            self._poller.unregister(sock)
            sock.close(linger=0)

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
        while self._backlog and time.monotonic() < deadline:
            self._retry()
            time.sleep(_RETRY_MS / 1000)
        for sock in [self._router, *self._peers.values()]:
            sock.close(linger=LINGER_MS)
        self._context.term()
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
            f"refusing to listen on {address}: other machines can reach it, and peers beyond this machine "
            "are not authenticated yet. Listen on localhost, or say insecure=True if every machine that can "
            "reach this address may run programs here"
        )
    return ips[0]


def _name(peer: bytes) -> str:
    return peer.removeprefix(_DIALLED).decode() if peer.startswith(_DIALLED) else f"client {peer.hex()}"


# The client's side


class Connection:
    """A client's connection to one server. One thread uses it at a time.

    Making one never waits: it connects as soon as a server listens at `address`, and again when the server
    has been away.

    >>> with Connection("localhost:2222") as connection:   # doctest: +SKIP
    ...     connection.send(Message("status", {"request": 1}))
    ...     answer = connection.recv(5.0)
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = _dial(_shared_context(), address)
        self._socket.set(zmq.SNDTIMEO, int(SEND_TIMEOUT_S * 1000))
        _connections.add(self)
        self._patience = -2  # what RCVTIMEO was set to last; -2 is never a timeout

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or a call was interrupted in the middle of a message."""
        return bool(self._socket.closed)

    def send(self, message: Message) -> None:
        """Send `message`, which nobody needs to be there to take yet.

        Raises:
            WireError: the message cannot travel.
            TimeoutError: the server has taken nothing for long, and `HIGH_WATER` messages wait.
            ConnectionError: the connection is closed.
        """
        frames = encode(message)
        try:
            _send(self._socket, frames, 0)
        except zmq.Again:
            raise TimeoutError(
                f"{self.address} takes no messages: {HIGH_WATER} wait, none left in {SEND_TIMEOUT_S:g} s; "
                "is it running?"
            ) from None
        except zmq.ZMQError as error:
            raise self._failed(error) from None
        except BaseException:  # an interrupt: half of the message may be sent, and the next would be taken for its rest
            self._socket.close(linger=0)
            raise

    def recv(self, timeout_s: float | None) -> Message | None:
        """The next message, or None if there is none within `timeout_s` seconds (None waits for ever).

        Raises:
            WireError: what arrived is not a message. The next one may be.
            ConnectionError: the connection is closed.
        """
        patience = -1 if timeout_s is None else max(0, int(timeout_s * 1000))
        try:
            if patience != self._patience:
                self._socket.set(zmq.RCVTIMEO, patience)
                self._patience = patience
            frames = _receive(self._socket, 0)
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            raise self._failed(error) from None
        except WireError:
            raise
        except BaseException:  # an interrupt; after half a message, its rest would be taken for the next one
            if not self.closed and self._socket.get(zmq.RCVMORE):
                self._socket.close(linger=0)
            raise
        return decode(frames)

    def close(self) -> None:
        """Close; what was sent still leaves. Closing twice does nothing."""
        self._socket.close(linger=LINGER_MS)

    def _failed(self, error: zmq.ZMQError) -> ConnectionError:
        if self.closed:
            return ConnectionError(f"the connection to {self.address} is closed")
        self._socket.close(linger=0)
        return ConnectionError(f"the connection to {self.address} failed: {error.strerror}")


class Connections:
    """Connections to several servers, opened when first used. One thread uses them at a time.

    >>> connections = Connections()
    >>> connections.send("localhost:2222", Message("ping", {"seq": 1}))
    >>> connections.poll(0.0)
    []
    >>> connections.close()
    """

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._by_socket: dict[Any, Connection] = {}
        self._poller = zmq.Poller()
        self._failure: WireError | None = None

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, address: str) -> Connection:
        """The connection to `address`."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed:
            return connection
        self.forget(address)  # closed by an interrupt
        connection = self._connections[address] = Connection(address)
        self._by_socket[connection._socket] = connection
        self._poller.register(connection._socket, zmq.POLLIN)
        return connection

    def send(self, address: str, message: Message) -> None:
        """Send `message` to the server at `address`; raises as `Connection.send` does."""
        self.get(address).send(message)

    def poll(self, timeout_s: float | None) -> list[tuple[str, Message]]:
        """What has arrived, each with where it came from; waits up to `timeout_s` seconds for the first.

        Raises:
            WireError: what arrived from one server is not a message; what came from the others is in the next
            call's result.
        """
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        arrived: list[tuple[str, Message]] = []
        patience = -1 if timeout_s is None else max(0, int(timeout_s * 1000))
        for connection in [c for c in self._connections.values() if c.closed]:  # by an interrupt
            self.forget(connection.address)
        for sock, _ in self._poller.poll(patience):
            connection = self._by_socket[sock]
            try:
                message = connection.recv(0)
            except WireError as error:
                self._failure = WireError(f"{connection.address}: {error}", error.request)
                continue
            if message is not None:
                arrived.append((connection.address, message))
        if not arrived and self._failure is not None:
            return self.poll(0)
        return arrived

    def forget(self, address: str) -> None:
        """Close the connection to `address`, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            self._by_socket.pop(connection._socket, None)
            self._poller.unregister(connection._socket)
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self.forget(address)
