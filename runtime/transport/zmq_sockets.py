"""The transport's ZeroMQ sockets: limits, options, and sending and receiving whole messages."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Sequence
from typing import Protocol

import zmq

from ..timeouts import HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS
from ..wire.chunking import CHUNK_BYTES
from ..wire.messages import MAX_FRAMES
from ..wire.schema import WireError
from ..wire.tensors import BORROW_BYTES, Frame
from .address import location_of, split_address
from .keys import Keys
from .zmq_auth import prove
from .zmq_liveness import ConnectionMonitor, Context, Socket

HIGH_WATER = 1_000  # messages to one peer that ZeroMQ keeps before `MAX_BACKLOG` starts to fill
MAX_FRAME_BYTES = 2 * CHUNK_BYTES  # ZeroMQ allocates a whole frame when its size arrives; larger messages are chunked
LINGER_MS = 1_000  # how long a closed socket may go on sending
RETRY_MS = 5  # retry interval while messages wait for a slow peer


class AddressInUse(OSError):  # noqa: N818  (the name says it)
    """Another socket listens on the address."""


class Closable(Protocol):
    """A connection that shows whether it was closed."""

    closed: bool


_contexts: dict[int, Context] = {}
open_connections: weakref.WeakSet[Closable] = weakref.WeakSet()


def shared_context() -> Context:
    """The context of this process's client sockets.

    After a fork the child makes its own, since the parent's threads do not exist there. It uses no lock: a fork
    could leave it locked. If two threads come first at the same time, one of their contexts is kept.
    """
    context = _contexts.get(os.getpid())
    if context is None:
        context = _contexts.setdefault(os.getpid(), new_context())
        if len(_contexts) == 1:
            atexit.register(_flush_shared_context)
    return context


def url_of(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def new_context() -> Context:
    context: Context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 16_384)
    return context


def _flush_shared_context() -> None:
    """At exit, give the last messages of closed connections up to `LINGER_MS` to leave.

    Terminating a context blocks while its sockets are open. In that case it does not wait.
    """
    context = _contexts.get(os.getpid())
    if context is not None and all(connection.closed for connection in open_connections):
        context.term()


def new_socket(context: Context, kind: int) -> Socket:
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


def dialled_host(address: str) -> str:
    host = split_address(location_of(address))[0]
    return "127.0.0.1" if host == "localhost" else host


def dial(
    context: Context, address: str, keys: Keys | None, patience_s: float | None = None
) -> tuple[Socket, ConnectionMonitor]:
    """A DEALER that connects to the location of `address` as soon as a server listens there, and its connection monitor.

    A peer counts as gone when it is silent for `patience_s`, or for `HEARTBEAT_TIMEOUT_MS` if that is less.
    """
    host, port = dialled_host(address), split_address(location_of(address))[1]
    sock = new_socket(context, zmq.DEALER)
    sock.set(zmq.IPV6, ":" in host)
    if patience_s is not None and patience_s * 1000 < HEARTBEAT_MS + HEARTBEAT_TIMEOUT_MS:
        sock.set(zmq.HEARTBEAT_IVL, max(50, int(patience_s * 100)))
        sock.set(zmq.HEARTBEAT_TIMEOUT, max(350, int(patience_s * 700)))  # detected before the patience ends
    link = ConnectionMonitor(sock)
    try:
        if keys is not None:
            prove(sock, keys, address)
        sock.connect(url_of(host, port))
    except BaseException as error:
        link.close()
        sock.close(linger=0)
        if isinstance(error, zmq.ZMQError):
            raise OSError(error.errno, f"cannot connect to {address}: {error.strerror}") from None
        raise
    return sock, link


def descriptor(sock: Socket) -> int:
    """The descriptor for `poll`. It is edge-triggered: it reports once that the socket's state changed, not that a message waits."""
    fd = sock.get(zmq.FD)
    assert isinstance(fd, int)
    return fd


def send_frames(sock: Socket, frames: Sequence[Frame], flags: int) -> None:
    """Send one message. ZeroMQ takes all of it or, raising `zmq.Again`, nothing."""
    last = len(frames) - 1
    for i, frame in enumerate(frames):
        sock.send(frame, flags | zmq.SNDMORE if i < last else flags, copy=len(frame) < BORROW_BYTES)


def receive_frames(sock: Socket, flags: int) -> list[Frame]:
    """Receive the frames of one message. Frames beyond `MAX_FRAMES` are read and dropped."""
    part = sock.recv(flags, copy=False)
    frames: list[Frame] = [part.buffer]
    while part.more:
        part = sock.recv(flags, copy=False)
        if len(frames) <= MAX_FRAMES:
            frames.append(part.buffer)
    if len(frames) > MAX_FRAMES:
        raise WireError(f"a message of more than {MAX_FRAMES} frames")
    return frames
