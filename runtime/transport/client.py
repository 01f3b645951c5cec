"""A client's end of the transport: its connections to servers, opened at first use. One thread uses them at a time.

It has what an endpoint has (`peers.py`, `event_loop.py`), without listeners and without a thread of its own: the loop runs in the
thread that waits for messages.
"""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections import deque
from collections.abc import Callable

from ...graph.core.interpreter_state import process_id
from ..wire.messages import Message, encode
from ..wire.reassembly import TooLargeError
from ..wire.schema import WireError
from .access_control import why_silent
from .address import location_of, locations, split_address
from .event_loop import EventLoop
from .keys import Keys
from .peer import Peer
from .peers import Peers
from .zmq_links import dialled_name
from .zmq_sockets import ConnectionMonitor, Context, new_context

MANY_THREADS = 8  # so many sets of connections show that many threads wait for servers (`Stream.keeps_gil`)


class Connections:
    """Connections to several servers, opened at first use. One thread uses them at a time.

    A connection is made as soon as a server listens at its address, and again after the server was away. What interrupts a call (Ctrl-C, or
    an exception of a signal handler) may leave half of a message sent or read, so it closes all connections; those that are used again
    are made again.

    Args:
        keys: servers must prove their keys.
        patience_s: a server that is silent for this long counts as gone; see `ZmqLinks`.

    Attributes:
        closed: whether `close` was called, or nothing was opened.

    >>> connections = Connections()
    >>> connections.send("localhost:2222", Message("ping", {"seq": 1}))
    >>> connections.poll(0.0)
    []
    >>> connections.close()
    """

    closed = True

    def __init__(self, keys: Keys | None = None, patience_s: float | None = None) -> None:
        self._keys = keys
        self._io = EventLoop()
        self._peers = Peers(
            self._io, shared_context(), keys=keys, take=self._take, refuse=self._refuse,
            patience_s=patience_s, keeps_gil=len(open_connections) >= MANY_THREADS,
        )  # fmt: skip
        self._known: dict[str, tuple[str, Peer]] = {}  # address -> where it was connected to, and the server there
        self._arrived: list[tuple[str, Message]] = []
        self._refused: deque[tuple[str, WireError]] = deque()
        self._has_waker = self._is_woken = False
        self._process = process_id()
        self.closed = False
        open_connections.add(self)

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def peer(self, address: str) -> Peer:
        """The server at `address`, with a connection to it. OSError, ValueError: as `ZmqLinks.dial`."""
        known = self._known.get(address)
        if known is not None and known[0] == locations.get(address, address):
            return known[1]
        if self.closed:
            raise ConnectionError(f"the connection to {address} is closed")
        self.forget(address)  # the task was moved
        split_address(address)
        peer = self._peers.get(dialled_name(address))
        self._known[address] = location_of(address), peer
        try:
            self._peers.links.dial(peer.name)
        except BaseException:
            self.forget(address)
            raise
        return peer

    def send(self, address: str, message: Message) -> None:
        """Send `message` to the server at `address`, which need not be listening yet. It is dropped if `MAX_BACKLOG` others wait.

        Raises:
            WireError: the message cannot travel.
            OSError: the connection cannot be made, or `close` was called. ValueError: the address is malformed.
        """
        peer = self.peer(address)
        frames = encode(message, peer.lend)
        if self._peers.faults is not None and not self._peers.faults.passes(address):
            return
        try:
            self._peers.post(peer, frames)
        except BaseException:
            self._interrupted()
            raise

    def waker(self) -> Callable[[], None]:
        """A function that ends the current `poll`, or the next one. Any thread may call it, at any time."""
        self._has_waker = True
        return self._wake

    def _wake(self) -> None:
        self._is_woken = True
        self._io.wake()

    def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        """Received messages, each with its server's address. Waits up to `timeout_s` seconds for the first, or for a `waker`.

        With `only`, the caller waits for the server at that address. Messages of other servers may then come later.

        Raises:
            WireError: one server sent a malformed message. The messages of the others are in the next
            call's result.
        """
        if self.closed:
            raise ConnectionError("these connections are closed")
        if not (self._arrived or self._refused):
            try:
                known = self._known.get(only) if only and not self._has_waker else None
                if not (timeout_s and known and self._peers.wait_on_stream(known[1], timeout_s)):
                    self._wait(timeout_s)
                elif not self._arrived:
                    self._wait(0.0)  # something else may have come
            except BaseException:
                self._interrupted()
                raise
        if self._refused and not self._arrived:
            address, error = self._refused.popleft()
            raise error if isinstance(error, TooLargeError) else WireError(f"{address}: {error}", error.request)
        arrived, self._arrived = self._arrived, []
        return arrived

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for a message, or for a `waker`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (self._arrived or self._refused):
            if self._is_woken:
                self._is_woken = False
                return
            self._io.turn(-1 if deadline is None else max(0.0, deadline - time.monotonic()))
            if deadline is not None and time.monotonic() >= deadline:
                return

    def _take(self, peer: Peer, message: Message) -> None:
        self._arrived.append((peer.address, message))

    def _refuse(self, peer: Peer, error: WireError) -> None:
        self._refused.append((peer.address, error))

    def _interrupted(self) -> None:
        """Close all connections: half of a message may have been sent or read."""
        for address in list(self._known):
            self.forget(address)

    # --- the state of a connection -----------------------------------------------------------------------------------

    def moved(self, address: str) -> int:
        """A number that changes while large messages to or from the server at `address` move: it makes progress."""
        return self._known[address][1].moved() if address in self._known else 0

    def _link(self, address: str) -> ConnectionMonitor | None:
        return self._peers.links.link(dialled_name(address))

    def lives(self, address: str, since: float) -> bool:
        """Whether the server's process at `address` has run since then, even if it does not answer; see `zmq_sockets.py`."""
        return self._peers.lives(address, since)

    def awaits_admission(self, address: str) -> bool:
        """Whether the server at `address` may still be checking this process's key: it has accepted the connection."""
        link = self._link(address)
        return self._keys is not None and link is not None and link.awaits_admission()

    def why_silent(self, address: str) -> str | None:
        """Why the server at `address` has not answered, if keys are the reason. Probes the server for a moment."""
        link = self._link(address)
        return why_silent(address, self._keys, link is not None and link.is_up())

    def forget(self, address: str) -> None:
        """Close the connection to `address`, if there is one, and drop what waits for it."""
        known = self._known.pop(address, None)
        if known is not None:
            self._peers.hang_up(known[1].name)

    def close(self) -> None:
        """Close all connections. Messages that were sent still leave. A second call does nothing."""
        if not self.closed and self._process == process_id():  # a forked child shares the descriptors with its parent
            self.closed = True
            self._known.clear()
            self._io.close()
            self._peers.close()

    def __del__(self) -> None:
        if not self.closed and self._process == process_id():
            self._peers.links.stop_monitors()
            self._io.close()


_contexts: dict[int, Context] = {}
open_connections: weakref.WeakSet[Connections] = weakref.WeakSet()


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


def _flush_shared_context() -> None:
    """At exit, give the last messages of closed connections up to `LINGER_MS` to leave.

    Terminating a context blocks while its sockets are open. In that case it does not wait.
    """
    context = _contexts.get(os.getpid())
    if context is not None and all(connection.closed for connection in open_connections):
        context.term()
