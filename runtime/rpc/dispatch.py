"""A server's side of requests: replies, thread pools for slow ones, and limits per client.

A request over its client's limit fails with ResourceExhaustedError. What a client uses is what runs for it; nothing else counts it. A
client is identified by its key. Without keys it is a process, with all connections of its threads. It sends its name when it opens a
session. Steps belong to programs, and programs to sessions.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ...graph.core.errors import AbortedError, InternalError, OpError, ResourceExhaustedError, UnavailableError
from ...graph.core.settings import setting
from ..timeouts import SILENT_S
from ..transport.endpoint import Endpoint
from ..wire.messages import Message
from ..wire.schema import WireError


class Responder:
    """Sends a server's replies, errors, and messages to other tasks. Any thread may use it.

    Attributes:
        task: the server's task.
        addresses: of the cluster's tasks: `/job:worker/replica:0/task:1` -> `host:port`.
        endpoint: set before it handles the first message.
        heard: connection of a client -> time of its last sign of life: a `run`, a call for a session, or a `ping`. For the I/O thread.
        is_stopping: whether the server is stopping. It sends nothing to other tasks then.
    """

    endpoint: Endpoint

    def __init__(self, task: str, addresses: Mapping[str, str] | None = None) -> None:
        self.task = task
        self.addresses = dict(addresses or {})
        self.heard: dict[bytes, float] = {}
        self.is_stopping = False

    def is_silent(self, peer: bytes, now: float) -> bool:
        """Whether a client has given no sign of life for `SILENT_S`."""
        return now - self.heard.get(peer, -math.inf) > SILENT_S

    def tidy(self, now: float) -> None:
        """Forget the clients that are silent."""
        self.heard = {peer: at for peer, at in list(self.heard.items()) if now - at <= SILENT_S}

    def reply(self, peer: bytes, message: Message) -> None:
        """Send a reply. If it cannot be encoded, send the error instead: a client waits as long as its request is not answered."""
        try:
            self.endpoint.reply(peer, message)
        except (WireError, ResourceExhaustedError, MemoryError) as e:
            why = InternalError.of(f"The answer cannot travel: {type(e).__name__}: {e}")
            self.endpoint.reply(peer, self.error(message.fields["request"], e if isinstance(e, OpError) else why))

    def refuse(self, peer: bytes, request: int, error: OpError) -> None:
        """Reply with an error."""
        self.reply(peer, self.error(request, error))

    def error(self, request: int, error: OpError) -> Message:
        fields = {"request": request, "code": error.code, "message": error.summary, "node": error.node_name}
        return Message("error", fields | {"task": error.task or self.task})

    def send(self, task: str, message: Message) -> None:
        """Send a message to another task.

        Raises:
            AbortedError: the server is stopping. KeyError: the cluster has no such task.
        """
        if self.is_stopping:
            raise AbortedError.of(f"The server of {self.task} is stopping")
        self.endpoint.send(self.addresses[task], message)

    def notify(self, task: str, message: Message) -> None:
        """Send a message that may be lost: unknown tasks are ignored."""
        if task in self.addresses:
            self.endpoint.send(self.addresses[task], message)

    def reader_of(self, task: str) -> int:
        """The process of a task if it maps this one's memory, which makes sending large tensors cheap; else 0."""
        return self.endpoint.reader_of(self.addresses[task])

    def lives(self, task: str, since: float) -> bool:
        """Whether a task's process has run since then, even if it does not answer. For the I/O thread."""
        return task in self.addresses and self.endpoint.lives(self.addresses[task], since)

    def collective(self, task: str, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """Send a message of the coordinator of collectives. Raises as `send` does."""
        rest = dict(fields)
        self.send(task, Message(f"collective_{rest.pop('event')}", rest, tuple(tensors)))


NAME_CHARS = 64  # of a client's name
_names: dict[int, str] = {}  # process -> its name; a forked child is another client


def this_client() -> str:
    """This process's client name. It is random, so it is unique."""
    return _names.get(os.getpid()) or _names.setdefault(os.getpid(), secrets.token_hex(8))


class Limit(NamedTuple):
    """The limit of one resource per client.

    Attributes:
        most: the limit; 0: no limit.
        what: the resource, for the error: "running steps".
        setting: the setting of the limit.
        remedy: what the client can do.

    >>> Limit(1, "running steps", "DOVETAIL_CLIENT_STEPS").check(1, 1)
    Traceback (most recent call last):
    ...
    ResourceExhaustedError: This client has 1 running steps at this server, and 1 more would be over the limit of 1 ...
    """

    most: int
    what: str
    setting: str
    remedy: str = "Wait until some have ended"

    def check(self, has: int, more: int) -> None:
        """ResourceExhaustedError: a client that has so much asks for more, and the sum exceeds the limit."""
        if self.most and has + more > self.most:
            raise ResourceExhaustedError.of(
                f"This client has {has} {self.what} at this server, and {more} more would be over the limit of "
                f"{self.most} ({self.setting} of the server). {self.remedy}"
            )


logger = logging.getLogger(__name__)


class RequestExecutor:
    """Runs slow requests in thread pools, and counts them per client.

    There are three pools. A master waits for workers, also of other servers. With one pool it could hold the last thread that the
    worker needs (deadlock). Copies of variables must not wait for a compilation.

    Attributes:
        master: the pool for the master's requests.
        worker: the pool for the worker's requests other than steps: compilation.
        copies: the thread that keeps the values of other tasks' variables.
    """

    def __init__(self, responder: Responder) -> None:
        self.master = ThreadPoolExecutor(8, thread_name_prefix="dovetail-master")
        self.worker = ThreadPoolExecutor(2, thread_name_prefix="dovetail-compile")
        self.copies = ThreadPoolExecutor(1, thread_name_prefix="dovetail-copies")
        self._responder = responder
        self._limit = Limit(setting("DOVETAIL_CLIENT_STEPS"), "unanswered calls", "DOVETAIL_CLIENT_STEPS")
        self._open: dict[tuple[bytes, int], str | bytes] = {}  # (connection, request) -> the client that it counts for

    def answer(
        self, pool: ThreadPoolExecutor, peer: bytes, message: Message, work: Callable[[Message], Message],
        client: str = "",
    ) -> None:  # fmt: skip
        """Reply with the result of `work`, computed in a pool. Errors become error replies. For the I/O thread.

        It counts for `client`, with connection `peer`; calls of other servers count per connection.
        """
        responder, request, owner = self._responder, message.fields["request"], client or peer
        call = peer, request
        try:
            self._limit.check(list(self._open.values()).count(owner), 1)
        except OpError as e:
            responder.refuse(peer, request, e)
            return

        def answer() -> None:
            try:
                reply = work(message)
            except OpError as e:
                reply = responder.error(request, e)
            except Exception as e:
                logger.exception("%s: while serving %s", responder.task, message.kind)
                reply = responder.error(request, InternalError.of(f"{type(e).__name__}: {e}"))
            self._open[call] = b""  # it counts no more when its client asks again
            try:
                responder.reply(peer, reply)
            finally:  # if there is no answer, a pong tells the client
                self._open.pop(call, None)

        self._open[call] = owner
        try:
            pool.submit(answer)
        except RuntimeError:  # the pool is shut down: the server is stopping
            self._open.pop(call, None)
            responder.refuse(peer, request, UnavailableError.of(f"The server of {responder.task} is stopping"))

    def works_on(self, peer: bytes, request: int) -> bool:
        """Whether a request has no reply yet."""
        return (peer, request) in self._open

    def close(self) -> None:
        """Accept no more requests."""
        for pool in (self.master, self.worker, self.copies):
            pool.shutdown(wait=False, cancel_futures=True)
