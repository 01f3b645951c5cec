"""A client's connection to one server, and the poller that waits for several of them.

A `Connection` has a ZeroMQ DEALER and, after the upgrade (`peer.py`), a stream as well. One thread uses it at a time.
`ConnectionPoller` waits for the descriptors of all connections of one client and collects their messages.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections import deque
from collections.abc import Sequence

import zmq

from ..shared_memory.pool import borrow
from ..wire.chunking import is_large
from ..wire.codec import decode, encode
from ..wire.messages import MAX_FRAMES, Message, UnmappedTensorError
from ..wire.reassembly import most_bytes
from ..wire.schema import WireError
from ..wire.tensors import Frame
from .access_control import why_silent
from .address import location_of
from .fault_injection import link_faults
from .keys import Keys
from .peer import HANDSHAKE, STOP_LENDING, Command, Connect, Peer, Read
from .stream import Stream
from .stream_listener import connect_stream
from .zmq_sockets import (
    HIGH_WATER,
    LINGER_MS,
    RETRY_MS,
    descriptor,
    dial,
    dialled_host,
    open_connections,
    receive_frames,
    send_frames,
    shared_context,
)

SEND_ON_MS = 1.0  # interval at which sending of a large message is tried again


class ConnectionPoller:
    """Waits for several connections and collects their messages.

    Attributes:
        arrived: messages and malformed messages, each with its connection.
        unsettled: connections whose ZeroMQ sockets may have messages that their descriptors do not report.
        sending: connections that have more of a large message to send.
    """

    def __init__(self) -> None:
        self.poller = select.poll()
        self.arrived: deque[tuple[Connection, Message | WireError]] = deque()
        self.unsettled: set[Connection] = set()
        self.sending: set[Connection] = set()
        self._owners: dict[int, Connection | None] = {}

    def add(self, fd: int, owner: Connection | None, events: int = select.POLLIN) -> None:
        """Watch a descriptor. The descriptor of a waker has no owner."""
        self._owners[fd] = owner
        self.poller.register(fd, events)

    def remove(self, fd: int) -> None:
        """Stop watching a descriptor."""
        if fd in self._owners:
            del self._owners[fd]
            self.poller.unregister(fd)

    def wait(self, deadline: float | None) -> bool:
        """Wait until an event or the deadline; False at the deadline. Many events bring no message."""
        if self.unsettled:
            self._settle()
            if self.arrived:
                return True
        patience = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        events = self._send_on(patience) if self.sending else self.poller.poll(patience)
        woken = False
        for fd, event in events:
            owner = self._owners.get(fd)
            if owner is not None:
                owner.attend(fd, event)
            elif fd in self._owners:
                woken = True
                with contextlib.suppress(OSError):
                    os.read(fd, 4_096)
        if self.unsettled:
            self._settle()
        return bool(events) and not (woken and not self.arrived)

    def _send_on(self, patience: float | None) -> list[tuple[int, int]]:
        """Wait up to `patience` milliseconds for an event, and send meanwhile as there is room."""
        while True:
            for connection in list(self.sending):
                connection.pump()
            self._settle()  # sending may have consumed the edge-triggered event of a message
            if self.arrived or not self.sending:
                return [] if self.arrived else self.poller.poll(patience)
            turn = SEND_ON_MS if patience is None else min(SEND_ON_MS, patience)
            events = self.poller.poll(turn)
            if patience is not None:
                patience -= turn
            if events or patience == 0:
                return events

    def _settle(self) -> None:
        while self.unsettled:
            self.unsettled.pop().settle()


SEND_TIMEOUT_S = 5.0


class Connection:
    """A client's connection to one server. One thread uses it at a time.

    The constructor never waits. It connects as soon as a server listens at `address`, and reconnects after the server was away.

    Attributes:
        location: where it connects to: the address, unless its task was moved.
        closed: whether `close` was called, or a call was interrupted in the middle of a message.
        peer: the states of the connection.

    >>> with Connection("localhost:2222") as connection:   # doctest: +SKIP
    ...     connection.send(Message("status", {"request": 1}))
    ...     answer = connection.recv(5.0)
    """

    def __init__(
        self, address: str, watch: ConnectionPoller | None = None, keys: Keys | None = None,
        patience_s: float | None = None,
    ) -> None:  # fmt: skip
        self.address = address
        self.location = location_of(address)
        self.closed = False
        self._keys = keys
        self._watch = watch or ConnectionPoller()
        self._socket, self._link = dial(shared_context(), address, keys, patience_s)
        self._socket.set(zmq.SNDTIMEO, int(SEND_TIMEOUT_S * 1000))
        open_connections.add(self)
        self._fd = descriptor(self._socket)
        self._watch.add(self._fd, self)
        self._watch.unsettled.add(self)
        self.peer = Peer(b"", True, keys is None)
        self._faults = link_faults()
        self._greet()

    def _greet(self) -> None:
        for message in self.peer.greeting():
            self._send(encode(message))

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def send(self, message: Message) -> None:
        """Send `message`. The server need not be listening yet.

        Raises:
            WireError: the message cannot travel.
            TimeoutError: `HIGH_WATER` messages wait, and the server has taken none for too long.
            ConnectionError: the connection is closed.
        """
        frames = encode(message, self.peer.lend)
        if self._faults is not None and not self._faults.passes(self.address):
            return
        stream = self.peer.stream
        if stream is not None:
            try:
                if stream.send(frames):
                    self._wait_for_room(stream)
                return
            except ConnectionError:
                self._leave()
            except TimeoutError:
                raise
            except BaseException:  # an interrupt: an unknown part of the message was sent
                self._leave()
                raise
        self._send(frames)

    def _send(self, frames: list[Frame]) -> None:
        if self.peer.sender is None and not is_large(frames):
            self._give(frames, 0)
            return
        if not self.peer.post(frames, self._has_given, HIGH_WATER):
            raise TimeoutError(self._takes_nothing())
        self._watch.sending.add(self)

    def pump(self) -> None:
        """Send more of what waits, as far as there is room."""
        self.peer.pump(self._has_given)
        if self.peer.sender is None:
            self._watch.sending.discard(self)

    def _has_given(self, frames: list[Frame]) -> bool:
        try:
            self._give(frames, zmq.NOBLOCK)
        except TimeoutError:
            return False
        return True

    def moved(self) -> int:
        """A number that changes while large messages are sent or received: the server makes progress."""
        return self.peer.moved()

    def _give(self, frames: list[Frame], flags: int) -> None:
        self._watch.unsettled.add(self)
        try:
            send_frames(self._socket, frames, flags)
        except zmq.Again:
            raise TimeoutError(self._takes_nothing()) from None
        except zmq.ZMQError as error:
            raise self._failed(error) from None
        except BaseException:  # an interrupt: half of the message may be sent, and the next would be read as its rest
            self._shut(0)
            raise

    def _takes_nothing(self) -> str:
        return f"{self.address} takes no messages: {HIGH_WATER} wait, none left in {SEND_TIMEOUT_S:g} s; is it running?"

    def recv(self, timeout_s: float | None) -> Message | None:
        """The next message, or None if there is none within `timeout_s` seconds (None waits forever).

        Not for a connection that belongs to `Connections`.

        Raises:
            WireError: what arrived is not a message. The next one may be.
            ConnectionError: the connection is closed.
        """
        if self.closed:
            raise ConnectionError(f"the connection to {self.address} is closed")
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._watch.arrived:
            if not self._watch.wait(deadline) and not self._watch.arrived:
                return None
        _, message = self._watch.arrived.popleft()
        if isinstance(message, WireError):
            raise message
        return message

    def settle(self) -> None:
        """Receive until ZeroMQ has no more: only then does its descriptor report the next message."""
        try:
            while True:
                frames = self.peer.whole(receive_frames(self._socket, zmq.NOBLOCK))
                if frames is not None:
                    self._handle(frames)
        except zmq.Again:
            return
        except zmq.ZMQError as error:
            raise self._failed(error) from None
        except WireError as error:
            self._watch.arrived.append((self, error))
            self._watch.unsettled.add(self)
        except BaseException:  # an interrupt; after half a message, the next would be read as its rest
            if not self.closed and self._socket.get(zmq.RCVMORE):
                self._shut(0)
            self._watch.unsettled.add(self)
            raise

    def attend(self, fd: int, event: int) -> None:
        """Handle an event of one of this connection's descriptors."""
        stream = self.peer.stream
        if fd == self._fd or stream is None:
            self._watch.unsettled.add(self)
            return
        self._use_stream(stream, event & select.POLLOUT, 0.0 if event & ~select.POLLOUT else None)

    def waits_on_stream(self, seconds: float) -> bool:
        """Wait up to `seconds` on the stream alone; False if that is impossible."""
        stream = self.peer.stream
        if stream is None or not stream.is_open or stream.waiting():
            return False
        self._use_stream(stream, 0, seconds)
        return True

    def _use_stream(self, stream: Stream, flushes: int, seconds: float | None) -> None:
        """Flush the stream if asked. Then receive, waiting up to `seconds`; None: do not receive."""
        try:
            if flushes and not stream.flush():
                self._watch.poller.modify(stream.fd, stream.events())
            if seconds is not None:
                for frames in stream.receive_within(seconds) if seconds else stream.receive():
                    self._handle(frames)
                if stream.refused is not None:
                    self._watch.arrived.append((self, stream.refused))
                    stream.refused = None
        except ConnectionError:
            self._leave()
        except WireError as error:
            self._leave()
            self._watch.arrived.append((self, error))
        except BaseException:  # an interrupt: what was read may be lost
            self._leave()
            raise

    def _handle(self, frames: list[Frame]) -> None:
        if self._faults is not None and not self._faults.passes():
            return
        try:
            message = decode(frames, borrow)
        except UnmappedTensorError as error:
            self.send(STOP_LENDING)
            self._watch.arrived.append((self, error))
            return
        except WireError as error:
            self._watch.arrived.append((self, error))
            return
        if message.kind in HANDSHAKE:
            self._do(self.peer.heard(message))
        else:
            self._watch.arrived.append((self, message))

    def _do(self, commands: Sequence[Command]) -> None:
        """Do what the peer asks for."""
        for command in commands:
            if isinstance(command, Message):
                self.send(command)
            elif isinstance(command, Connect):
                stream = connect_stream(command, dialled_host(self.address), MAX_FRAMES, most_bytes())
                if stream is not None:
                    self._upgrade(stream, command.token)
            elif isinstance(command, Read) and self.peer.stream is not None:
                self._watch.poller.modify(self.peer.stream.fd, self.peer.stream.events())

    def _upgrade(self, stream: Stream, token: str) -> None:
        if not self.peer.upgrade(stream, token, self._has_given, HIGH_WATER):
            stream.close()
            return
        if self.peer.sender is not None:
            self._watch.sending.add(self)
        stream.keeps_gil = True
        self._watch.add(stream.fd, self, stream.events())

    def _wait_for_room(self, stream: Stream) -> None:
        """Limit what waits in the stream: above the limit, send some now. The rest leaves during the next `poll` or `recv`."""
        self._watch.poller.modify(stream.fd, stream.events())
        if stream.waiting() < HIGH_WATER:
            return
        room = select.poll()
        room.register(stream.fd, select.POLLOUT)
        if not room.poll(SEND_TIMEOUT_S * 1000):
            raise TimeoutError(self._takes_nothing())
        stream.flush()

    def _leave(self) -> None:
        """Fall back to the ZeroMQ connection: the stream has ended."""
        stream = self.peer.stream
        if stream is not None:
            self._watch.remove(stream.fd)
            stream.close()
            self.peer.stream_ended()
            if not self.closed:
                self._greet()

    def close(self) -> None:
        """Close. Messages that were sent still leave. A second call does nothing."""
        stream, self.peer.stream = self.peer.stream, None
        if stream is not None:
            self._watch.remove(stream.fd)
            deadline = time.monotonic() + LINGER_MS / 1000
            with contextlib.suppress(ConnectionError):
                while stream.waiting() and time.monotonic() < deadline and stream.flush():
                    time.sleep(RETRY_MS / 1000)
            stream.close()
        if self._fd >= 0:
            self._watch.remove(self._fd)
            self._fd = -1
        self._watch.unsettled.discard(self)
        self._watch.sending.discard(self)
        if self.peer.sender is not None and not self.closed:
            self.peer.sender.pump(self._has_given, window=most_bytes())
        self.peer.sender = self.peer.reassembler = None
        self._shut(LINGER_MS)

    def _shut(self, linger_ms: int) -> None:
        self.closed = True
        self._link.close()
        self._socket.close(linger=linger_ms)

    def __del__(self) -> None:
        if hasattr(self, "_link") and not self.closed:
            self._link.close()  # must be closed before its socket: see `zmq_liveness.py`

    def why_silent(self) -> str | None:
        """Why the server has not answered, if keys are the reason. Probes the server for a moment."""
        return why_silent(self.address, self._keys, not self.closed and self._link.is_up())

    def awaits_admission(self) -> bool:
        """Whether the server may still be checking this process's key: it has accepted the connection."""
        return self._keys is not None and not self.closed and self._link.awaits_admission()

    def lives(self, since: float) -> bool:
        """Whether the server's process has run since then, even if it does not answer: see `zmq_liveness.py`."""
        is_cut = self._faults is not None and self._faults.cuts(self.address)
        return not self.closed and self._link.was_up_since(since) and not is_cut

    def _failed(self, error: zmq.ZMQError) -> ConnectionError:
        if self.closed:
            return ConnectionError(f"the connection to {self.address} is closed")
        self._shut(0)
        return ConnectionError(f"the connection to {self.address} failed: {error.strerror}")
