"""Waiting for answers, with signs of life.

Whoever waits for a message from a task goes on asking it for a sign of life. A task that gives none for the peer timeout is taken
for dead: it crashed, was stopped, or cannot be reached. A task that answers with another incarnation than expected was restarted
and has lost what was asked of it. So no wait lasts longer than the thing it waits for lives, whatever limits the user sets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping

from ..graph.errors import AbortedError, DeadlineExceededError, OpError, UnavailableError, from_code
from .transport import Connections
from .wire import Message, WireError

PING_S = 0.5  # while waiting, tasks are asked for a sign of life this often


class ConnectionPool:
    """Sets of connections to servers. Each call borrows one for its own use, so any number of threads may call at once."""

    def __init__(self) -> None:
        self._idle: list[Connections] = []  # `append` and `pop` are atomic
        self._closed = False

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Connections]:
        """A set of connections that nobody else uses meanwhile."""
        try:
            connections = self._idle.pop()
        except IndexError:
            connections = Connections()
        try:
            yield connections
        finally:
            if self._closed:
                connections.close()
            else:
                self._idle.append(connections)

    def close(self) -> None:
        """Close those that are idle now, and the others when they are given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def call(
    connections: Connections,
    address: str,
    name: str,
    message: Message,
    answer: str,
    peer_timeout_s: float,
    limit_s: float | None,
) -> Message:
    """Send a request and wait for its answer, which has kind `answer`.

    Without a limit it waits as long as the other side shows signs of life: placing a large graph may take a while.

    Raises:
        UnavailableError: no sign of life. DeadlineExceededError: the limit ran out. OpError: what the other side reports.
    """
    request = message.fields["request"]
    wait = Wait({address: name}, peer_timeout_s, limit_s, f"{message.kind} call")
    wait.send(connections, address, message)
    while True:
        for _, reply in wait.messages(connections):
            if reply.fields.get("request") != request:
                continue  # the late answer to a call that was given up
            if reply.kind == "error":
                raise error_of(reply)
            if reply.kind == answer:
                return reply


class Wait:
    """Waiting for answers from tasks, with signs of life: who owes one, and when each was last heard.

    `messages` gives what came; it raises UnavailableError, AbortedError or DeadlineExceededError when waiting has become pointless.
    """

    def __init__(
        self,
        owing: dict[str, str],
        peer_timeout_s: float,
        limit_s: float | None,
        what: str,
        incarnations: Mapping[str, int] | None = None,
    ) -> None:
        self._owing = dict(owing)
        self._peer_timeout_s = peer_timeout_s
        self._limit_s = limit_s
        self._what = what
        self._incarnations = dict(incarnations or {})
        self._began = self._last_ping = time.monotonic()
        self._heard = dict.fromkeys(owing, self._began)

    def send(self, connections: Connections, address: str, message: Message) -> None:
        """Send, turning a full or broken connection into the error that it means."""
        try:
            connections.send(address, message)
        except OSError as e:  # TimeoutError and ConnectionError among them, and a host name that nobody knows
            connections.forget(address)
            raise UnavailableError(
                None, None, f"{_who(self._owing.get(address, 'The server'), address)} cannot be reached: {e}"
            ) from None

    def settled(self, address: str) -> None:
        """This one has answered."""
        self._owing.pop(address, None)

    def messages(self, connections: Connections) -> list[tuple[str, Message]]:
        """Wait for messages, at most until it is time to look for signs of life; pongs are dealt with here."""
        now = time.monotonic()
        limit = PING_S if self._limit_s is None else max(0.0, min(PING_S, self._began + self._limit_s - now))
        try:
            arrived = connections.poll(limit)
        except WireError as e:
            raise UnavailableError(None, None, f"What came from a server is no message of this version: {e}") from None
        now = time.monotonic()
        out = []
        for address, message in arrived:
            self._heard[address] = now
            if message.kind == "pong":
                self._check_incarnation(address, message.fields["incarnation"])
            else:
                out.append((address, message))
        if not out:
            self._check_life(connections, now)
        return out

    def _check_life(self, connections: Connections, now: float) -> None:
        for address, task in self._owing.items():
            silent = now - self._heard[address]
            if silent > self._peer_timeout_s:
                connections.forget(address)  # so that the next call starts with a fresh connection
                raise UnavailableError(
                    None, None,
                    f"{_who(task, address)} has not answered for {silent:.1f} s while this {self._what} waited for it: "
                    "it is dead, stopped, cut off or not started. Start it again, or make a session whose device_filters leave it out.",
                )  # fmt: skip
        if self._limit_s is not None and now - self._began >= self._limit_s:
            owing = ", ".join(_who(t, a) for a, t in self._owing.items())
            waited = now - self._began
            raise DeadlineExceededError(
                None, None, f"Operation timed out: this {self._what} waited {waited:.1f} s for {owing}"
            )
        if now - self._last_ping >= PING_S:
            self._last_ping = now
            for address in self._owing:
                self.send(connections, address, Message("ping", {"seq": 0}))

    def _check_incarnation(self, address: str, incarnation: int) -> None:
        expected = self._incarnations.get(address)
        if expected is not None and incarnation != expected and address in self._owing:
            raise AbortedError(
                None, None,
                f"{_who(self._owing[address], address)} was restarted during this {self._what}: its variables are lost. "
                "Initialise or restore them and run again.",
            )  # fmt: skip


def error_of(reply: Message) -> OpError:
    """The error that a message reports."""
    fields = reply.fields
    text = fields["message"]
    if fields.get("task"):
        text = f"From {fields['task']}:\n{text}"
    return from_code(fields["code"], text, fields.get("node"))


def _who(name: str, address: str) -> str:
    """A task and where it is; one that is only known by its address names it already."""
    return name if address in name else f"{name} at {address}"
