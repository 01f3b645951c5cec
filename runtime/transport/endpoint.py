"""A server's end of the transport: messages between processes.

A server has one `Endpoint`. Its sockets belong to one thread, the I/O thread (`event_loop.py`), since ZeroMQ's sockets may not be
shared. The I/O thread decodes messages and calls `on_message`. A server that answers inside `on_message` needs no hand-over between
threads. Other threads queue their messages and wake the I/O thread, or write into a stream directly.

The load that a peer can cause is bounded: messages that wait for a slow peer (`HIGH_WATER` in ZeroMQ, `MAX_BACKLOG` here), their
bytes (`Peer.check_room`), the size of a frame, and the number of malformed messages before a peer is ignored (`MAX_STRIKES`).

Each connection takes a file descriptor, and peers decide how many connections there are. A process without a free descriptor can open no
file. If it still listens it spins, since the connection that it cannot accept is reported again and again. So an endpoint keeps a few
descriptors in reserve (`DescriptorReserve`). When all others are taken it stops listening, then closes the reserve for its own use, and
listens again when enough descriptors are free.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

from ...graph.core.settings import setting
from ..logs import Throttle
from ..shared_memory.pool import pool_of_process
from ..wire.messages import InconsistentMessageError, Message, encode
from ..wire.reassembly import TooLargeError
from ..wire.schema import WireError
from ..wire.tensors import Frame
from .access_control import AccessControl
from .address import all_loopback, resolve, set_location, split_address
from .event_loop import EventLoop
from .fault_injection import break_connections
from .keys import Keys
from .peer import MAX_STRIKES, SETTING, Peer
from .peers import Peers
from .zmq_links import address_of, dialled_name, name_of
from .zmq_sockets import LINGER_MS, RETRY_MS, new_context

logger = logging.getLogger(__name__)
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
        listens: called with the endpoint before it handles the first message.

    Raises:
        AddressInUse: another socket listens there.
        PermissionError: other machines could reach the address, there are no keys, and `insecure` is false.
        OSError: the address is not one of this machine's.
        ValueError: the address is not `host:port`.

    >>> echo = Endpoint("localhost:0", lambda peer, message: echo.reply(peer, message))
    >>> with Connections() as connections:
    ...     connections.send(echo.address, Message("ping", {"seq": 1}))
    ...     [message for _, message in connections.poll(5.0)]
    [Message('ping', seq=1)]
    >>> echo.close()
    """

    def __init__(
        self, address: str, on_message: Callable[[bytes, Message], None], *, on_tick: Callable[[], None] = lambda: None,
        insecure: bool = False, keys: Keys | None = None, listens: Callable[[Endpoint], None] = lambda endpoint: None,
    ) -> None:  # fmt: skip
        host, port = split_address(address)
        ip = _bindable(address, host, insecure or keys is not None)
        self._access = None if keys is None else AccessControl(keys, address)
        self._on_message = on_message
        self._on_tick = on_tick
        self._pid = os.getpid()
        _endpoints.add(self)
        self._next_look = 0.0
        self._throttle = Throttle()
        self._is_listening = True
        self._reserve = DescriptorReserve()
        self._reserve.look()
        self._queued_lock = threading.Lock()  # guards `Peer.queued` and `queued_bytes`
        self._io = EventLoop()
        # A context of its own: terminating it waits until the last replies have left, but for no other sockets.
        self._peers = Peers(
            self._io, new_context(), keys=keys, most_bytes_waiting=int(setting(SETTING)) << 20,
            refuse=self._refuse, take=self._take,
        )  # fmt: skip
        self.counters = self._peers.counters
        try:
            port = self._peers.listen(address, ip, port, self._access, self._expel)
        except OSError:
            self._peers.close()
            self._io.close()
            raise
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        listens(self)
        self._io.start(self.address, self._tick, self._end)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- called from any thread ------------------------------------------------------------------------------------

    def reply(self, peer: bytes, message: Message) -> None:
        """Send `message` to the peer that `on_message` named. If the peer is gone, the message is dropped.

        Raises:
            WireError: the message cannot travel.
            ResourceExhaustedError: too many bytes wait for the peer (`DOVETAIL_SEND_QUEUE_MB`).
        """
        to = self._peers.by_name.get(peer) or self._peers.get(peer)
        frames = encode(message, to.lend if message.tensors else None)
        if len(frames) > 1:
            to.check_room(name_of(peer), frames)
        if self._peers.faults is None:
            self._hand_over(to, frames)
        else:
            address = address_of(peer) if to.is_caller else None
            self._peers.faults.carry(("to", peer), frames, lambda: self._hand_over(to, frames), address)
        if message.kind == "done":  # nothing comes back for tensors that this part has sent
            self._io.expect_event(False)

    def _hand_over(self, peer: Peer, frames: list[Frame]) -> None:
        """Pass one message to the peer's stream, or to the I/O thread; behind those that wait for the I/O thread already."""
        stream = peer.stream
        if stream is not None and not peer.queued and self._peers.write(peer, stream, frames):
            return
        on_io_thread = self.on_io_thread()
        if on_io_thread and not peer.queued:
            self._peers.post(peer, frames)
            return
        size = sum(map(len, frames))
        with self._queued_lock:
            peer.queued += 1
            peer.queued_bytes += size
        if not self._io.call_soon(lambda: self._post_queued(peer, frames)) and on_io_thread:  # the endpoint is closing
            self._post_queued(peer, frames)

    def _post_queued(self, peer: Peer, frames: list[Frame]) -> None:
        try:
            self._peers.post(self._peers.get(peer.name), frames)  # another one if the connection was made again
        finally:
            with self._queued_lock:
                peer.queued -= 1
                peer.queued_bytes -= sum(map(len, frames))

    def send(self, address: str, message: Message) -> None:
        """Send `message` to the server at `address`. Connects if needed.

        The server need not be listening yet. Its answers go to `on_message`. Messages to one peer arrive in order: one that is sent
        after a call of any thread has returned arrives after that call's message.

        Raises:
            WireError, ResourceExhaustedError: as `reply`.
            ValueError: the address is not `host:port`.
        """
        peer = dialled_name(address)
        if peer not in self._peers.by_name:
            split_address(address)
        self.reply(peer, message)
        if message.kind == "tensors":  # what the other task computes from them comes back soon
            self._io.expect_event()

    def reader_of(self, address: str) -> int:
        """The process of the server at `address` if it maps this one's memory, which makes sending large tensors cheap; else 0."""
        peer = self._peers.by_name.get(dialled_name(address))
        return 0 if peer is None or peer.stream is None or peer.lend is None else peer.pid

    def lives(self, address: str, since: float) -> bool:
        """Whether the server's process at `address` has run since then, even if it does not answer. For the I/O thread."""
        return self._peers.lives(address, since)

    def bytes_left(self, address: str) -> int:
        """A number that grows as large tensors leave for the server at `address`, or arrive there. For the I/O thread."""
        peer = self._peers.get(dialled_name(address))
        return (0 if peer.stream is None else peer.stream.bytes_left()) + peer.moved()

    def forget(self, address: str) -> None:
        """Close the connection to `address` and drop its unsent messages: the peer is gone, or was replaced."""
        peer = dialled_name(address)
        if self.on_io_thread():
            self._peers.hang_up(peer)
        else:
            self.call_soon(lambda: self._peers.hang_up(peer))

    def owner(self, peer: bytes) -> str:
        """The public key of an admitted peer; empty where there are no keys."""
        return "" if self._access is None else self._access.owner(peer)

    @property
    def refused(self) -> int:
        return 0 if self._access is None else self._access.refused

    def _expel(self, peers: list[bytes]) -> None:
        """Drop the state of peers whose connections were ended."""
        for peer in peers:
            self.call_soon(partial(self._peers.hang_up, peer))

    def call_soon(self, function: Callable[[], None]) -> bool:
        """Run `function` on the I/O thread; False if the endpoint is closed and it will never run."""
        return self._io.call_soon(function)

    def on_io_thread(self) -> bool:
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
        self._io.guard(self._on_tick)
        pool = pool_of_process()
        if pool is not None:
            self._io.guard(pool.tidy)
        self._io.guard(self._keep_reserve)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_S
            if self._peers.faults is not None and self._peers.faults.cuts():
                break_connections()
            self._io.guard(self._peers.tidy)

    def _keep_reserve(self) -> None:
        """Stop accepting connections while few descriptors are left."""
        on = not self._reserve.look()
        if on != self._is_listening and self._peers.accept(on):
            self._is_listening = on
            if not on:
                self._warn(
                    "few file descriptors are left (ulimit -n): no connections are accepted until there are more"
                )

    def _end(self) -> None:
        """Send queued messages and close everything; takes up to about 2 * `LINGER_MS`."""
        self._reserve.close()
        self._peers.close()

    # --- what comes, on the I/O thread -----------------------------------------------------------------------------

    def _take(self, peer: Peer, message: Message) -> None:
        self.counters.received += 1
        if self._peers.faults is not None:
            self._peers.faults.arrived(message.kind)
        try:
            self._on_message(peer.name, message)
        except InconsistentMessageError as error:
            self._refuse(peer, error)
        except Exception as error:
            if (more := self._throttle.more(time.monotonic())) is not None:
                logger.exception("%s: handling %r failed%s", self.address, message.kind, more)
            request = message.fields.get("request")
            if request is not None and not peer.is_caller:
                text = f"{self.address}: {message.kind!r} failed: {type(error).__name__}: {error}"
                code = "RESOURCE_EXHAUSTED" if isinstance(error, MemoryError) else "INTERNAL"
                self._post_error(peer, request, code, text)

    def _refuse(self, peer: Peer, error: WireError) -> None:
        """Refuse a message: its request or step ends with an error. A malformed one is a strike against its sender."""
        self._warn("refused a message of %s: %s", name_of(peer.name), error)
        if isinstance(error, TooLargeError):
            self.counters.too_large += 1
            text = f"{self.address}: {error}"
            if error.kind == "tensors":
                self._on_message(peer.name, Message("abort", {"step": error.step, "code": error.code, "reason": text}))
                return
        else:
            self.counters.malformed += 1
            peer.strikes += 1
            text = f"{self.address} refused a message: {error}"
            if peer.strikes == MAX_STRIKES:
                text += f"; it was the {MAX_STRIKES}th, and no more are read from this connection"
        if not peer.is_caller:  # an error about an error could repeat forever
            self._post_error(peer, error.request, error.code, text)

    def _warn(self, text: str, *arguments: object) -> None:
        """Log a peer's misbehaviour, rate-limited."""
        more = self._throttle.more(time.monotonic())
        if more is not None:
            logger.warning("%s: " + text + "%s", self.address, *arguments, more)

    def _post_error(self, peer: Peer, request: int, code: str, text: str) -> None:
        self._peers.do(peer, [Message("error", {"request": request, "code": code, "message": text[:4_096]})])

    def is_gone(self, peer: bytes) -> bool:
        """Whether a client has closed its connection, or has died. For the I/O thread."""
        return self._peers.is_gone(self._peers.get(peer))

    def waiting(self) -> int:
        """How many messages wait for slow peers."""
        return self._peers.waiting()


_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def relocate(address: str, location: str) -> None:
    """Tell this process that the task at `address` listens at `location` from now on: it was started again elsewhere.

    Connections to the address are made there from now on; those that exist are closed.

    Args:
        address: what clusters and targets call the task, `host:port`.
        location: `host:port`; the address itself when the task is back there.

    Raises:
        ValueError: the location is not `host:port`.
    """
    split_address(location)
    if set_location(address, location):
        for endpoint in list(_endpoints):
            endpoint.forget(address)


@atexit.register
def _flush() -> None:
    """At exit, let a serving process send the answers that its peers wait for."""
    for endpoint in list(_endpoints):
        endpoint.flush()


def _bindable(address: str, host: str, insecure: bool) -> str:
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


RESERVE = 32
"""Size of the reserve; smaller where the process may have only a few hundred. Accepting resumes when twice as many are free."""


class DescriptorReserve:
    """Descriptors that this process keeps in reserve. One thread uses it.

    Attributes:
        is_used: whether the process needs the reserve itself. No peer may be accepted then.
    """

    def __init__(self) -> None:
        self.is_used = False
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._size = RESERVE if limit == resource.RLIM_INFINITY else min(RESERVE, limit // 8)
        self._reserved: list[int] = []

    def look(self) -> bool:
        """Count the free descriptors and take or release the reserve; returns `is_used`."""
        if self._reserved and self.is_used:  # the server has stopped accepting, so waiting peers cannot take them
            self.close()
            return True
        wanted = 1 if self._reserved else 2 * self._size
        found = _taken(wanted)
        self.is_used = len(found) < wanted
        keep = 0 if self._reserved or self.is_used else self._size
        self._reserved += found[:keep]
        _let_go(found[keep:])
        return self.is_used

    def close(self) -> None:
        _let_go(self._reserved)
        self._reserved = []


def _taken(count: int) -> list[int]:
    """Open that many descriptors, or fewer if there are no more."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        while len(found) < count:
            found.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return found


def _let_go(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)
