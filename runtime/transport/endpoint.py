"""A server's end of the transport: messages between processes.

A server has one `Endpoint`. Its sockets belong to one thread, the I/O thread (`event_loop.py`), since ZeroMQ's sockets may not be
shared. The I/O thread decodes messages and calls `on_message`. A server that answers inside `on_message` needs no hand-over between
threads. Other threads queue their messages and wake the I/O thread, or write into a stream directly.

    zmq_router.py       the ZeroMQ sockets: for clients, and for peers that this process connected to
    server_streams.py   streams, which peers upgrade to after the ZeroMQ handshake. The ZeroMQ connection stays open together with
                        the stream: for its heartbeats, and as the fallback when the stream ends
    client_set.py       the client's end: one DEALER per server, used by one thread at a time, without a thread of its own

The load that a peer can cause is bounded: messages that wait for a slow peer (`HIGH_WATER` in ZeroMQ, `MAX_BACKLOG` here), their
bytes (`SendQueueBytes`), the size of a frame, and the number of malformed messages before a peer is ignored (`MAX_STRIKES`).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from functools import partial

from ...graph.core.errors import ResourceExhaustedError
from ...graph.core.settings import setting
from ..logs import Throttle
from ..shared_memory.pool import borrow
from ..wire.codec import decode, encode
from ..wire.messages import BORROW_BYTES, Frame, InconsistentMessageError, Message, UnmappedTensorError, WireError
from ..wire.reassembly import TooLargeError
from .access_control import AccessControl
from .address import all_loopback, resolve, split_address
from .connection_upgrade import STOP_LENDING, MemoryNegotiation
from .event_loop import EventLoop
from .fault_injection import break_connections, link_faults
from .file_descriptors import DescriptorReserve
from .keys import Keys
from .server_streams import ServerStreams
from .zmq_router import Counters, ZmqRouter, address_of, dialled_name, is_dialled, name_of
from .zmq_sockets import LINGER_MS, RETRY_MS

SETTING = "DOVETAIL_SEND_QUEUE_MB"
MOST_IDLE = 4_096  # peers whose counts of sent bytes are kept


class SendQueueBytes:
    """Counts the bytes of large frames that wait for each peer, and enforces a limit. Any thread may use it.

    Nothing reports that a frame has left. Its holder, a queue or ZeroMQ, drops it then, which weak references show. A stream splits
    frames and counts its bytes itself.

    Args:
        most: bytes that may wait for one peer; 0: no limit. A message to a peer with an empty queue may exceed it.

    >>> backlog = SendQueueBytes(1 << 20)
    >>> frame = memoryview(bytes(1 << 20))
    >>> backlog.enter(b"peer", "the peer", [frame])
    >>> backlog.enter(b"peer", "the peer", [frame])
    Traceback (most recent call last):
    ...
    ResourceExhaustedError: 1048576 bytes cannot be sent to the peer: 1048576 bytes wait for it already ...
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._waiting: dict[bytes, deque[tuple[weakref.ref[memoryview], int]]] = {}
        self._entered: dict[bytes, int] = {}  # bytes entered since the peer is known
        self._lock = threading.Lock()

    def enter(self, peer: bytes, name: str, frames: Sequence[Frame], ahead: int = 0) -> None:
        """Add frames to a peer's queue, behind `ahead` bytes that its stream has accepted.

        Raises:
            ResourceExhaustedError: the queue would exceed the limit; nothing is added.
        """
        large = [f for f in frames if type(f) is memoryview and len(f) >= BORROW_BYTES]
        if not large:
            return
        size = sum(map(len, large))
        with self._lock:
            waiting = ahead + self._count(peer)
            if self.most and waiting and waiting + size > self.most:
                raise ResourceExhaustedError(
                    None, None,
                    f"{size} bytes cannot be sent to {name}: {waiting} bytes wait for it already, and more would be over the limit of "
                    f"{self.most} ({SETTING} of this process). It takes nothing, or too slowly for what it is sent: see whether it "
                    "runs, send less at once, or raise the limit",
                )  # fmt: skip
            self._entered[peer] = self._entered.get(peer, 0) + size
            self._waiting.setdefault(peer, deque()).extend((weakref.ref(f), len(f)) for f in large)

    def waiting(self, peer: bytes) -> int:
        """Bytes of large frames that still wait for a peer."""
        with self._lock:
            return self._count(peer)

    def left(self, peer: bytes) -> int:
        """Bytes of large frames for a peer that have left."""
        with self._lock:
            return self._entered.get(peer, 0) - self._count(peer)

    def _count(self, peer: bytes) -> int:
        frames = self._waiting.get(peer)
        if frames is None:
            return 0
        while frames and frames[0][0]() is None:  # frames mostly leave in order
            frames.popleft()
        if not frames:
            del self._waiting[peer]
        return sum(size for frame, size in frames if frame() is not None)

    def tidy(self) -> None:
        """Forget peers with an empty queue."""
        with self._lock:
            for peer in list(self._waiting):
                self._count(peer)
            if len(self._entered) > MOST_IDLE:
                self._entered = {peer: size for peer, size in self._entered.items() if peer in self._waiting}

    def forget(self, peer: bytes) -> None:
        """Forget a peer that is gone."""
        with self._lock:
            self._waiting.pop(peer, None)
            self._entered.pop(peer, None)


logger = logging.getLogger(__name__)
MAX_STRIKES = 16  # malformed messages after which a peer is ignored
LOOK_S = 1.0  # interval of the search for peers that are gone; their queues and partial messages are dropped


class Endpoint:
    """A server's sockets and the thread that owns them.

    `on_message(peer, message)` and `on_tick()` are called on that thread, so they must not block.
    An exception in them is logged; a request whose handler raised is answered with an `error`.

    Large tensors of sent messages are borrowed until they have left (see `wire.BORROW_BYTES`).

    Args:
        address: `host:port` to listen on; port 0 picks a free one.
        on_message: handles a message. `peer` is valid for `reply`.
        on_tick: called about every `TICK_S` seconds.
        insecure: allow an address that other machines can reach, even without keys.
        keys: admit only peers with an allowed key, and prove the own key to others.

    Raises:
        AddressInUse: another socket listens there.
        PermissionError: other machines could reach the address, there are no keys, and `insecure` is false.
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
        self._access = None if keys is None else AccessControl(keys, address)
        self.counters = Counters()
        self._faults = link_faults()
        self._on_message = on_message
        self._on_tick = on_tick
        self._pid = os.getpid()
        _endpoints.add(self)
        self._next_look = 0.0
        self._dialled: dict[str, bytes] = {}  # address -> name of a peer that this endpoint connected to
        self._waiting_bytes = SendQueueBytes(int(setting("DOVETAIL_SEND_QUEUE_MB")) << 20)
        self._strikes: OrderedDict[bytes, int] = OrderedDict()  # malformed messages per peer, latest last
        self._throttle = Throttle()
        self._is_listening = True
        self._reserve = DescriptorReserve()
        self._reserve.look()
        self._sharing = MemoryNegotiation()
        self._queued: dict[
            bytes, int
        ] = {}  # messages per peer in the I/O thread's queue: later ones must not overtake them
        self._queued_lock = threading.Lock()
        self._io = EventLoop()
        take = self._open if self._faults is None else self._handle
        try:
            self._router = ZmqRouter(
                address, ip, port, io=self._io, keys=keys, access=self._access, counters=self.counters, sharing=self._sharing,
                take=take, refuse=self._refuse, is_ignored=self._is_ignored,
                emptied=lambda peer: self._streams.go_on(peer), expel=self._expel,
            )  # fmt: skip
        except OSError:
            self._io.close()
            raise
        self._streams = ServerStreams(
            self._io, self._router, ip=ip, keys=keys, counters=self.counters, sharing=self._sharing, post=self._post,
            take=take, refuse=self._refuse,
        )  # fmt: skip
        self.address = f"[{host}]:{self._router.port}" if ":" in host else f"{host}:{self._router.port}"
        self._io.start(self.address, self._router, None if on_tick is None else self._tick, self._end)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- called from any thread ------------------------------------------------------------------------------------

    def reply(self, peer: bytes, message: Message, compressed: bool = False) -> None:
        """Send `message` to the peer that `on_message` named. If the peer is gone, the message is dropped.

        Args:
            compressed: compress large tensors where that helps, unless the peer maps this process's memory.

        Raises:
            WireError: the message cannot travel.
            ResourceExhaustedError: too many bytes wait for the peer (`DOVETAIL_SEND_QUEUE_MB`).
        """
        lend = self._sharing.lender(peer) if message.tensors else None
        frames = encode(message, lend, compressed and lend is None)
        if len(frames) > 1:
            stream = self._streams.by_peer.get(peer)
            self._waiting_bytes.enter(peer, name_of(peer), frames, 0 if stream is None else stream.waiting_bytes)
        if self._faults is None:
            self._hand_over(peer, frames)
        else:
            to = address_of(peer) if is_dialled(peer) else None
            self._faults.carry(("to", peer), frames, lambda: self._hand_over(peer, frames), to)

    def _hand_over(self, peer: bytes, frames: list[Frame]) -> None:
        """Pass one message to the peer's stream, or to the I/O thread."""
        stream = self._streams.by_peer.get(peer)
        is_behind = peer in self._queued and not self.on_io_thread()
        if stream is not None and not is_behind and self._streams.write(peer, stream, frames):
            return
        if self.on_io_thread():
            self._router.post(peer, frames)
            return
        with self._queued_lock:
            self._queued[peer] = self._queued.get(peer, 0) + 1
        self._io.call_soon(lambda: self._post_queued(peer, frames))

    def send(self, address: str, message: Message, compressed: bool = False) -> None:
        """Send `message` to the server at `address`. Connects if needed.

        The server need not be listening yet. Its answers go to `on_message`. Messages of one thread to one peer arrive in order.

        Raises:
            WireError, ResourceExhaustedError: as `reply`.
            ValueError: the address is not `host:port`.
        """
        peer = self._dialled.get(address)
        if peer is None:
            split_address(address)
            peer = self._dialled[address] = dialled_name(address)
        self.reply(peer, message, compressed)

    def is_near(self, address: str) -> bool:
        """Whether the server at `address` maps this process's memory, which makes sending large tensors cheap."""
        peer = dialled_name(address)
        return peer in self._streams.by_peer and self._sharing.lends(peer)

    def lives(self, address: str, since: float) -> bool:
        """Whether the server's process at `address` has run since then, even if it does not answer. For the I/O thread."""
        if self._faults is not None and self._faults.cuts(address):
            return False
        return self._router.lives(dialled_name(address), since)

    def bytes_left(self, address: str) -> int:
        """A number that grows as large tensors for the server at `address` leave. For the I/O thread."""
        peer = dialled_name(address)
        stream = self._streams.by_peer.get(peer)
        if stream is not None:
            return stream.bytes_left()
        return self._waiting_bytes.left(peer) + self._router.moved(peer)

    def forget(self, address: str) -> None:
        """Close the connection to `address` and drop its unsent messages: the peer is gone, or was replaced."""
        peer = dialled_name(address)
        if self.on_io_thread():
            self._hang_up(peer)
        else:
            self.call_soon(lambda: self._hang_up(peer))

    def owner(self, peer: bytes) -> str:
        """The public key of an admitted peer; empty where there are no keys."""
        return "" if self._access is None else self._access.owner(peer)

    @property
    def refused(self) -> int:
        """How many connections were refused."""
        return 0 if self._access is None else self._access.refused

    def _expel(self, peers: list[bytes]) -> None:
        """Drop the state of peers whose connections were ended."""
        for peer in peers:
            self.call_soon(partial(self._hang_up, peer))

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Run `function` on the I/O thread; False if the endpoint is closed and it will never run."""
        return self._io.call_soon(function)

    def on_io_thread(self) -> bool:
        """Whether the caller runs on the I/O thread."""
        return self._io.is_current()

    def close(self) -> None:
        """Send what is queued, close the sockets, and end the thread.

        A second call, or one in a forked child, does nothing.
        """
        if os.getpid() != self._pid:
            return  # the thread and the sockets belong to the parent
        self._io.close()

    def flush(self) -> None:
        """Let queued messages leave; waits for up to `LINGER_MS`."""
        deadline = time.monotonic() + LINGER_MS / 1000
        done = threading.Event()
        if os.getpid() == self._pid and self.call_soon(done.set) and done.wait(LINGER_MS / 1000):
            while self.waiting() and time.monotonic() < deadline:
                time.sleep(RETRY_MS / 1000)

    # --- what the I/O thread does ----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._on_tick is not None:
            self._io.guard(self._on_tick)
        self._io.guard(self._sharing.tidy)
        self._io.guard(self._waiting_bytes.tidy)
        self._io.guard(self._keep_reserve)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            if self._faults is not None and self._faults.cuts():
                break_connections()
            self._io.guard(lambda: self._streams.tidy(self.is_gone))
            self._io.guard(lambda: self._router.tidy(self.is_gone))

    def _keep_reserve(self) -> None:
        """Stop accepting connections while few descriptors are left."""
        on = not self._reserve.look()
        if on != self._is_listening and self._router.listen(on):
            self._is_listening = on
            self._streams.listen(on)
            if not on:
                self._warn(
                    "few file descriptors are left (ulimit -n): no connections are accepted until there are more"
                )

    def _end(self) -> None:
        """Send queued messages and close everything; takes up to about 2 * `LINGER_MS`."""
        deadline = time.monotonic() + LINGER_MS / 1000
        while self.waiting() and time.monotonic() < deadline:
            self._router.send_waiting()
            self._streams.flush()
            time.sleep(RETRY_MS / 1000)
        self._reserve.close()
        self._streams.close()
        self._router.close()

    # --- what comes, on the I/O thread -----------------------------------------------------------------------------

    def _handle(self, peer: bytes, frames: list[Frame]) -> None:
        """Handle one message, unless fault injection drops or delays it."""
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
        """Decode and handle one message."""
        if self._strikes and self._is_ignored(peer):
            self.counters.ignored += 1
            return
        try:
            message = decode(frames, borrow)
        except WireError as error:
            if isinstance(error, UnmappedTensorError):
                self._post(peer, encode(STOP_LENDING))
            self._refuse(peer, error)
            return
        except (MemoryError, OSError) as error:
            why = f"there is no memory for what it holds: {error or type(error).__name__}"
            self._refuse_large(peer, TooLargeError(why, frames[0]))
            return
        if message.kind == "hello":
            self._streams.greet(peer, message)
            return
        self.counters.received += 1
        if self._faults is not None:
            self._faults.arrived(message.kind)
        try:
            self._on_message(peer, message)
        except InconsistentMessageError as error:
            self._refuse(peer, error)
        except Exception as error:
            if (more := self._throttle.more(time.monotonic())) is not None:
                logger.exception("%s: handling %r failed%s", self.address, message.kind, more)
            request = message.fields.get("request")
            if request is not None and not is_dialled(peer):
                text = f"{self.address}: {message.kind!r} failed: {type(error).__name__}: {error}"
                code = "RESOURCE_EXHAUSTED" if isinstance(error, MemoryError) else "INTERNAL"
                self._post_error(peer, request, code, text)

    def _is_ignored(self, peer: bytes) -> bool:
        """Whether a peer has sent so many malformed messages that it is ignored."""
        return self._strikes.get(peer, 0) >= MAX_STRIKES

    def _refuse(self, peer: bytes, error: WireError) -> None:
        if isinstance(error, TooLargeError):
            self._refuse_large(peer, error)
            return
        self.counters.malformed += 1
        strikes = self._strikes.pop(peer, 0) + 1
        self._strikes[peer] = strikes
        if len(self._strikes) > 4_096:  # a reconnecting peer has a new name: keep the latest
            self._strikes.popitem(last=False)
        self._warn("refused a message of %s: %s", name_of(peer), error)
        if is_dialled(peer):
            return  # an error about an error could repeat forever
        text = f"{self.address} refused a message: {error}"
        if strikes == MAX_STRIKES:
            text += f"; it was the {strikes}th, and no more are read from this connection"
        self._post_error(peer, error.request, "INVALID_ARGUMENT", text)

    def _warn(self, text: str, *arguments: object) -> None:
        """Log a peer's misbehaviour, rate-limited."""
        more = self._throttle.more(time.monotonic())
        if more is not None:
            logger.warning("%s: " + text + "%s", self.address, *arguments, more)

    def _refuse_large(self, peer: bytes, error: TooLargeError) -> None:
        """Refuse a message that is too large: its request or step ends with an error."""
        self.counters.too_large += 1
        text = f"{self.address}: {error}"
        self._warn("refused a message of %s: %s", name_of(peer), error)
        if error.kind == "tensors":
            fields = {"step": error.step, "code": error.code, "reason": text}
            self._on_message(peer, Message("abort", fields))
        elif not is_dialled(peer):
            self._post_error(peer, error.request, error.code, text)

    def _post_error(self, peer: bytes, request: int, code: str, text: str) -> None:
        self._post(peer, encode(Message("error", {"request": request, "code": code, "message": text[:4_096]})))

    # --- what leaves ------------------------------------------------------------------------------------------------

    def _post_queued(self, peer: bytes, frames: list[Frame]) -> None:
        try:
            self._post(peer, frames)
        finally:
            with self._queued_lock:
                left = self._queued.pop(peer) - 1
                if left:
                    self._queued[peer] = left

    def _post(self, peer: bytes, frames: list[Frame]) -> None:
        """Pass one message to the peer's stream, to ZeroMQ, or to the backlog."""
        stream = self._streams.by_peer.get(peer)
        if stream is None or not self._streams.write(peer, stream, frames):
            self._router.post(peer, frames)

    def _hang_up(self, peer: bytes) -> None:
        self._router.hang_up(peer)
        self._waiting_bytes.forget(peer)
        self._strikes.pop(peer, None)
        self._streams.hang_up(peer)
        self._sharing.forget(peer)

    def is_gone(self, peer: bytes) -> bool:
        """Whether a client has closed its connection, or has died. For the I/O thread."""
        gone = self.counters.gone
        said = Message("hello", {"memory": None, "readable": self._sharing.reads(peer), "stream": ["probe"]})
        self._router.give(peer, encode(said))
        return self.counters.gone > gone

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return self._router.waiting() + self._streams.waiting()


_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


@atexit.register
def _flush() -> None:
    """At exit, let a serving process send the answers that its peers wait for."""
    for endpoint in list(_endpoints):
        endpoint.flush()


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
