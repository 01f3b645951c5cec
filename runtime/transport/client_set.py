"""A client's connections: one for each server, opened at first use. One thread uses the set at a time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable

from ..wire.messages import Message
from ..wire.reassembly import TooLargeError
from ..wire.schema import WireError
from .access_control import why_silent
from .address import location_of
from .client import Connection, ConnectionPoller
from .keys import Keys


class Connections:
    """Connections to several servers, opened at first use. One thread uses them at a time.

    With `keys`, servers must prove their keys. `patience_s`: a server that is silent for this long counts as gone; see `dial`.

    >>> connections = Connections()
    >>> connections.send("localhost:2222", Message("ping", {"seq": 1}))
    >>> connections.poll(0.0)
    []
    >>> connections.close()
    """

    def __init__(self, keys: Keys | None = None, patience_s: float | None = None) -> None:
        self._keys = keys
        self._patience_s = patience_s
        self._connections: dict[str, Connection] = {}
        self._watch = ConnectionPoller()
        self._wake: socket.socket | None = None
        self._woken: socket.socket | None = None

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def get(self, address: str) -> Connection:
        """The connection to `address`."""
        connection = self._connections.get(address)
        if connection is not None and not connection.closed and connection.location == location_of(address):
            return connection
        self.forget(address)  # an interrupt closed it, or the task was moved
        connection = self._connections[address] = Connection(address, self._watch, self._keys, self._patience_s)
        return connection

    def send(self, address: str, message: Message) -> None:
        """Send `message` to the server at `address`; raises as `Connection.send` does."""
        self.get(address).send(message)

    def waker(self) -> Callable[[], None]:
        """A function that ends the current `poll`, or the next one. Any thread may call it, at any time."""
        if self._wake is None:
            self._wake, self._woken = socket.socketpair()
            for end in (self._wake, self._woken):
                end.setblocking(False)
            self._watch.add(self._woken.fileno(), None)
        wake = self._wake

        def function() -> None:
            with contextlib.suppress(OSError):  # a full pipe wakes anyway; a closed one has no reader
                wake.send(b"\0")

        return function

    def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        """Received messages, each with its server's address. Waits up to `timeout_s` seconds for the first, or for a `waker`.

        With `only`, the caller waits for the server at that address. Messages of other servers may then come later.

        Raises:
            WireError: one server sent a malformed message. The messages of the others are in the next
            call's result.
        """
        watch = self._watch
        is_idle = not (watch.arrived or watch.unsettled or watch.sending)
        if only is not None and timeout_s and is_idle and self._wake is None:
            connection = self._connections.get(only)
            if connection is not None and connection.waits_on_stream(timeout_s):
                timeout_s = 0.0  # collect the rest without waiting
        if not watch.arrived:
            self._wait(timeout_s)
        arrived: list[tuple[str, Message]] = []
        while watch.arrived:
            connection, message = watch.arrived[0]
            if isinstance(message, WireError):
                if arrived:
                    break
                watch.arrived.popleft()
                if isinstance(message, TooLargeError):
                    raise message
                raise WireError(f"{connection.address}: {message}", message.request)
            watch.arrived.popleft()
            arrived.append((connection.address, message))
        return arrived

    def _wait(self, timeout_s: float | None) -> None:
        """Wait for a message, or for a `waker`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._watch.arrived:
            try:
                if not self._watch.wait(deadline):
                    return
            except ConnectionError:  # an interrupt closed one
                for connection in [c for c in self._connections.values() if c.closed]:
                    self.forget(connection.address)

    def moved(self, address: str) -> int:
        """A number that changes while large messages to or from the server at `address` move; see `Connection.moved`."""
        connection = self._connections.get(address)
        return 0 if connection is None else connection.moved()

    def lives(self, address: str, since: float) -> bool:
        """Whether the server's process at `address` has run since then, even if it does not answer; see `zmq_liveness.py`."""
        connection = self._connections.get(address)
        return connection is not None and connection.lives(since)

    def awaits_admission(self, address: str) -> bool:
        """Whether the server at `address` may still be checking this process's key."""
        connection = self._connections.get(address)
        return connection is not None and connection.awaits_admission()

    def why_silent(self, address: str) -> str | None:
        """Why the server at `address` has not answered, if keys are the reason; see `Connection.why_silent`."""
        connection = self._connections.get(address)
        return why_silent(address, self._keys, False) if connection is None else connection.why_silent()

    def forget(self, address: str) -> None:
        """Close the connection to `address`, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self.forget(address)
        if self._wake is not None and self._woken is not None:
            self._watch.remove(self._woken.fileno())
            self._wake.close()
            self._woken.close()
            self._wake = self._woken = None
