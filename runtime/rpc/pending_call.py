"""A client's side of requests: waiting for replies, with pings as a failure detector.

A caller pings the tasks that it waits for (`failure_detection.py`). So no call waits longer than its task lives, whatever limits the user
sets.

A pong also says whether the task works on the request. If it does not, and no reply arrives, the request or the reply was lost with a
connection. One pong does not prove that: when a stream ends, what comes over ZeroMQ may be read before the last reply of the stream. Nor
do several: a task that was busy answers them all at once. So the proof is a second such pong, to a ping that was sent after the first pong
had arrived. Pings have numbers for this. A reply that arrives together with pongs counts, whatever they say.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from ...graph.core.errors import (
    AbortedError,
    DeadlineExceededError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    from_code,
)
from ..shared_memory.pool import mapper
from ..timeouts import ADMISSION_S, AGAIN_S, LOOKS, PING_S, REASONS_TIMEOUT_S
from ..transport.client import Connections
from ..transport.keys import Keys
from ..wire.messages import Message
from ..wire.reassembly import TooLargeError
from ..wire.schema import KINDS, WireError
from .failure_detection import FailureDetector

logger = logging.getLogger(__name__)

child_processes: dict[str, Callable[[], str]] = {}
"""Address of a task whose process this process started -> `how_it_ended`. Silence proves its end only after the peer timeout."""


def how_it_ended(code: int | None) -> str:
    """A process's exit status as text; "" while it has none."""
    return "" if code is None else f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"


class ConnectionPool:
    """Sets of connections to servers. Each call borrows one for itself, so any number of threads may call at once.

    With `keys`, servers must prove their keys. `patience_s`: see `Connections`.
    """

    def __init__(self, keys: Keys | None = None, patience_s: float | None = None) -> None:
        self._keys = keys
        self._patience_s = patience_s
        self._idle: list[Connections] = []  # `append` and `pop` are atomic
        self._closed = False

    @contextlib.contextmanager
    def borrow(self) -> Iterator[Connections]:
        """A context manager with an exclusive set of connections."""
        connections = self.take()
        try:
            yield connections
        finally:
            self.give_back(connections)

    def take(self) -> Connections:
        """An exclusive set of connections, until `give_back`. ResourceExhaustedError: this process can open no more files."""
        try:
            return self._idle.pop() if self._idle else Connections(self._keys, self._patience_s)
        except IndexError:  # another thread was faster
            return self.take()
        except OSError as e:
            raise ResourceExhaustedError.of(
                f"This process can open no connection: {e.strerror}. Each of its threads that runs a step has some: run fewer at once, "
                "close files and sessions, or raise the limit (ulimit -n)"
            ) from None

    def give_back(self, connections: Connections) -> None:
        self._idle.append(connections)
        if self._closed:
            self.close()

    def close(self) -> None:
        """Close the idle connections now, and the others when they are returned."""
        self._closed = True
        with contextlib.suppress(IndexError):  # another thread may close some of them
            while True:
                self._idle.pop().close()
        mapper.let_go()


_REMEDY = "Start it, and restore or initialise its variables; or make a session on another task, with device_filters that leave it out."
_PURPOSES = {"create_session": "request for a session"} | dict.fromkeys(
    ("extend", "prepare", "register", "expose_memory", "map_memory", "publish"), "preparation of a step"
)
_numbers = itertools.count(1)
"""The numbers of this process's calls, inquiries and pings: they tell an answer from a late one to an earlier request."""


def call(
    connections: Connections, address: str, message: Message, peer_timeout_s: float, limit_s: float | None,
    on_progress: Callable[[Message], None] | None = None,
) -> Message:  # fmt: skip
    """Send a request to one server and wait for its reply. `on_progress` gets other messages about it that come earlier.

    Without a limit it waits as long as the other side shows signs of life: placing a large graph may take a while. Raises as `call_all`.
    """
    requests = {address: (f"the server at {address}", message)}
    return call_all(connections, requests, peer_timeout_s, limit_s, on_progress)[address]


def call_all(
    connections: Connections, requests: Mapping[str, tuple[str, Message]], peer_timeout_s: float, limit_s: float | None,
    on_progress: Callable[[Message], None] | None = None, meanwhile: Callable[[], None] | None = None,
) -> dict[str, Message]:  # fmt: skip
    """Send requests of one kind to several servers at once, and wait for all replies; see `call`.

    Args:
        requests: address -> the name of the server, for errors, and its request, which gets its number here.
        meanwhile: what to do while the servers work. The limit counts from its end.

    Raises:
        UnavailableError: no sign of life. DeadlineExceededError: the limit ran out. OpError: what another side reports.
    """
    replies: dict[str, Message] = {}
    request, kind = next(_numbers), next(iter(requests.values()))[1].kind
    servers = {address: Server(name) for address, (name, _) in requests.items()}
    what = _PURPOSES.get(kind, f"{kind} request")
    pending = partial(PendingReplies, servers, peer_timeout_s, limit_s, what, request=request)
    wait = pending()
    for address, (_, message) in requests.items():
        message.fields["request"] = request
        wait.send(connections, address, message)
    if meanwhile is not None:
        meanwhile()
        wait = pending()  # nobody listened meanwhile, so the servers' silence means nothing
    while wait.owing:
        for address, reply in wait.messages(connections):
            if reply.fields.get("request") != request:
                continue  # the late reply to an abandoned call
            if reply.kind == "error":
                raise error_of(reply)
            if reply.kind == KINDS[kind].reply:
                replies[address] = reply
                wait.settled(address)
            elif on_progress is not None:
                on_progress(reply)
    return replies


class Inquiry:
    """A question to several servers, which need not have started: those that have not answered are asked again and again.

    Attributes:
        waiting: address of each server that is asked -> when to ask it next. The caller removes those that have answered.
    """

    def __init__(self, connections: Connections, addresses: Iterable[str], kind: str) -> None:
        self.waiting = dict.fromkeys(addresses, 0.0)
        self._connections = connections
        self._message = Message(kind, {"request": next(_numbers)})

    def look(self, seconds: float) -> dict[str, Message]:
        """The answers that have come, after up to `seconds`: of a server that answers several questions at once, the last.

        UnavailableError: a server has another version.
        """
        now = time.monotonic()
        for address in [a for a, due in self.waiting.items() if now >= due]:
            self.waiting[address] = now + AGAIN_S
            try:
                self._connections.send(address, self._message)
            except OSError as e:  # it cannot be reached
                self._connections.forget(address)
                logger.info("%s: %s", address, e)
        request, reply = self._message.fields["request"], KINDS[self._message.kind].reply
        try:
            arrived = self._connections.poll(seconds)
        except WireError as e:
            if e.request not in (0, request):
                return {}
            raise _not_ours(e) from None
        return {a: m for a, m in arrived if a in self.waiting and (m.kind, m.fields.get("request")) == (reply, request)}


class Awaited(Protocol):
    """A task that owes a reply: its name, and the incarnation that it must have; 0: any."""

    @property
    def task(self) -> str: ...
    @property
    def incarnation(self) -> int: ...


class Server(NamedTuple):
    """A task that any process may answer for."""

    task: str
    incarnation: int = 0


class PendingReplies:
    """The outstanding replies to a request: the tasks that owe one, and when each was last heard.

    `messages` receives. It raises UnavailableError, AbortedError or DeadlineExceededError when waiting has become pointless.

    Attributes:
        owing: the tasks that owe a reply, by address.
    """

    _detector: FailureDetector | None = None  # made at the first wait that brings no message: most replies come at once

    def __init__(
        self, owing: Mapping[str, Awaited], peer_timeout_s: float, limit_s: float | None, what: str,
        request: int | None = None,
        colocated: Callable[[], Iterable[tuple[str, str, Sequence[str]]]] | None = None,
    ) -> None:  # fmt: skip
        self._colocated = colocated  # a step's parts in this process: task, address, what it waits for
        self.owing = dict(owing)
        self._patience_s = peer_timeout_s
        self._limit_s = limit_s
        self._what = what
        self._request = request
        self._first = self._last = next(_numbers)  # later numbers are those of pings about this request
        self._began = self._heard = self._checked = time.monotonic()

    def send(self, connections: Connections, address: str, message: Message) -> None:
        """Send; a full queue or a broken connection raises the matching error."""
        try:
            connections.send(address, message)
        except OSError as e:  # also TimeoutError, ConnectionError, and an unknown host name
            locked = connections.why_silent(address)  # ZeroMQ accepts nothing for a server that refused the connection
            connections.forget(address)
            if locked is not None:
                raise PermissionDeniedError.of(locked) from None
            who = _who(self.owing[address].task if address in self.owing else "The server", address)
            raise UnavailableError.of(f"{who} cannot be reached: {e}") from None

    def settled(self, address: str) -> None:
        self.owing.pop(address, None)
        if self._detector is not None:
            self._detector.awaited.pop(address, None)

    def _detect(self, now: float) -> FailureDetector:
        """The failure detector, at this time."""
        if self._detector is None:
            expected = {address: task.incarnation for address, task in self.owing.items()}
            self._detector = FailureDetector(self._patience_s, self._heard, expected)
            self._forgotten: dict[str, int] = {}  # task that has no such request -> the last ping before it said so
            self._moved: dict[str, int] = {}  # progress of large messages at the last check
        self._detector.now = now
        return self._detector

    def messages(self, connections: Connections) -> list[tuple[str, Message]]:
        """Wait for messages, at most until the next liveness check. Handles pongs itself."""
        limit = min(PING_S, self._patience_s / LOOKS)
        if self._limit_s is not None:
            limit = max(0.0, min(limit, self._began + self._limit_s - time.monotonic()))
        only = next(iter(self.owing)) if len(self.owing) == 1 else None
        try:
            arrived = connections.poll(limit, only)
        except WireError as e:
            if e.request not in (0, self._request):
                return []  # the late reply to an abandoned request: the memory that it lies in may be gone
            if isinstance(e, TooLargeError):
                raise ResourceExhaustedError.of(f"The answer to this {self._what}: {e}") from None
            raise _not_ours(e) from None
        now = time.monotonic()
        if not arrived:
            if now - self._checked >= limit / 2:  # else a part in this process has ended the wait
                self._checked = now
                self._check_life(connections, now)
            return []
        self._heard = now
        out, pongs = [], []
        for address, message in arrived:
            if message.kind == "pong":
                if message.fields["seq"] <= self._first:
                    continue  # it is about an earlier request, and may be of a process that has ended since
                restarted = self._detect(now).heartbeat(address, message.fields["incarnation"])
                if restarted and address in self.owing and self.owing[address].incarnation:
                    raise AbortedError.of(
                        f"{_who(self.owing[address].task, address)} was restarted during this {self._what}. What it held is lost. "
                        "If it held variables, restore or initialise them; then run again."
                    )
                pongs.append((address, message.fields))
            else:
                if self._detector is not None:
                    self._detect(now).heard(address)
                out.append((address, message))
        for address, fields in pongs:
            if all(address != replied for replied, _ in out):  # else the reply may be among these messages
                self._check_memory(address, fields["seq"], fields.get("working"))
        if not out:
            self._check_life(connections, now)
        return out

    def _check_life(self, connections: Connections, now: float) -> None:
        detector = self._detect(now)
        for address in self.owing:
            if how := child_processes.get(address, str)():
                connections.forget(address)
                raise UnavailableError.of(
                    f"The process of {_who(self.owing[address].task, address)} {how} while this {self._what} waited for it. "
                    f"What it held is lost. {_REMEDY}"
                )
            moved = connections.moved(address)
            if moved != self._moved.setdefault(address, moved):  # progress of chunks counts as a sign of life
                self._moved[address] = moved
                detector.heard(address)
                self._forgotten.pop(address, None)
        for address, silent in detector.silent(connections.lives):
            if silent < ADMISSION_S and connections.awaits_admission(address):
                continue
            locked = connections.why_silent(address)
            connections.forget(address)  # the next call starts with a fresh connection
            if locked is not None:
                raise PermissionDeniedError.of(locked)
            raise UnavailableError.of(
                f"{_who(self.owing[address].task, address)} has not answered for {silent:.1f} s while this {self._what} waited for it: "
                f"it is dead, stopped, cut off or not started. {_REMEDY}"
            )
        if self._limit_s is not None and now - self._began >= self._limit_s:
            waited, owing = now - self._began, ", ".join(_who(t.task, a) for a, t in self.owing.items())
            if self._colocated is not None:
                owing = self._why(connections)
            unsure = [a for a in self.owing if connections.awaits_admission(a)]
            locked = next(filter(None, map(connections.why_silent, unsure)), None)
            owing += f". It is busy, or: {locked}" if locked else ""
            raise DeadlineExceededError.of(f"Operation timed out: this {self._what} waited {waited:.1f} s for {owing}")
        for address, _ in detector.to_ask():
            self.send(connections, address, self._ping())

    def _ping(self, **more: bool) -> Message:
        self._last = next(_numbers)
        return Message("ping", {"seq": self._last, "request": self._request, **more})

    def _why(self, connections: Connections) -> str:
        """The tasks that have not finished their part of a step, each with what it waits for."""
        said = self._ask_why(connections)
        detector = self._detect(time.monotonic())
        parts = []
        for address, owing in self.owing.items():
            task = owing.task
            working, reasons = said.get(address, (None, []))
            if reasons:
                state = _reasons(task, reasons)
            elif working is None:
                state = f", which has been silent for {detector.silence(address):.1f} s"
            elif working:
                state = ", which is at work"
            else:
                state = ", which has not begun, or has just ended"
            parts.append(_who(task, address) + state)
        for task, address, waits in self._colocated() if self._colocated is not None else ():
            parts.append(_who(task, address) + (_reasons(task, waits) if waits else ", which is at work"))
        return ",\n  and for ".join(parts) or "the tasks' answers"

    def _ask_why(self, connections: Connections) -> dict[str, tuple[bool, list[str]]]:
        """Ask the tasks that owe a reply whether they work on their part of a step, and what they wait for."""
        silent = dict.fromkeys(self.owing)
        for address in silent:
            with contextlib.suppress(OSError):
                connections.send(address, self._ping(waits=True))
        said: dict[str, tuple[bool, list[str]]] = {}
        until = time.monotonic() + REASONS_TIMEOUT_S
        while silent and (left := until - time.monotonic()) > 0:
            try:
                arrived = connections.poll(left, next(iter(silent)) if len(silent) == 1 else None)
            except WireError:
                break
            for address, message in arrived:
                self._detect(time.monotonic()).heard(address)
                waits = message.fields.get("waits")
                if message.kind == "pong" and waits is not None and message.fields["seq"] > self._first:
                    said[address] = bool(message.fields.get("working")), [str(what) for what in waits]
                    silent.pop(address, None)
        return said

    def _check_memory(self, address: str, ping: int, working: bool | None) -> None:
        """Fail when a task has said that it does not work on the request, and says so again to a ping that was sent after that."""
        if working is not False or address not in self.owing:
            self._forgotten.pop(address, None)
        elif ping > self._forgotten.setdefault(address, self._last):
            waited = time.monotonic() - self._began
            raise UnavailableError.of(
                f"{_who(self.owing[address].task, address)} does not work on this {self._what} (any more), after {waited:.1f} s: the "
                "connection broke, and the request or its answer was lost. Whether it was done is not known. Run it again."
            )


def _not_ours(error: WireError) -> UnavailableError:
    return UnavailableError.of(f"What came from a server is no message of this version: {error}")


def error_of(reply: Message) -> OpError:
    fields = reply.fields
    return from_task(fields["code"], fields["message"], fields.get("node"), fields.get("task"))


def from_task(code: str, text: str, node: str | None, task: str | None) -> OpError:
    """The error of a task. If its text names processes that this one started and that have ended, it tells how they ended."""
    if code == UnavailableError.code:
        of = [a for a in list(child_processes) if re.search(rf"\b{re.escape(a)}\b", text)]
        text += "".join(f" The process at {a} {how}." for a in of if (how := child_processes.get(a, str)()))
    return from_code(code, f"From {task}:\n{text}" if task else text, node)


def _reasons(task: str, waits: Sequence[str]) -> str:
    """What a task's devices wait for, without repeating the task's name."""
    return ": " + "; ".join(what.removeprefix(f"{task}/device:") for what in waits)


def _who(name: str, address: str) -> str:
    """A task and its address. Without a task name, the text names the address already."""
    return name if address in name else f"{name} at {address}"
