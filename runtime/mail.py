"""How the parts of a server answer clients and write to other tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..graph.core.errors import AbortedError, InternalError, OpError, ResourceExhaustedError
from .transport import Endpoint
from .wire import Message, WireError

if TYPE_CHECKING:
    from .peers import ServerPeers


class Mail:
    """A server's endpoint, as its parts use it. Any thread may.

    Attributes:
        task: the server's.
        peers: where the other tasks are.
        endpoint: None before the server listens.
        is_stopping: whether the server is being stopped: then nothing is sent to other tasks.
    """

    __slots__ = ("endpoint", "is_stopping", "peers", "task")

    peers: ServerPeers

    def __init__(self, task: str) -> None:
        self.task = task
        self.endpoint: Endpoint | None = None
        self.is_stopping = False

    def reply(self, peer: bytes, message: Message) -> None:
        """Answer; if the answer cannot travel, with the error that says so."""
        endpoint = self.endpoint
        if endpoint is None:
            return
        try:
            endpoint.reply(peer, message)
        except WireError as e:
            error = InternalError(None, None, f"The answer cannot travel: {e}")
            endpoint.reply(peer, self.error(message.fields["request"], error))
        except ResourceExhaustedError as e:
            endpoint.reply(peer, self.error(message.fields["request"], e))

    def refuse(self, peer: bytes, request: int, error: OpError) -> None:
        """Answer with an error."""
        self.reply(peer, self.error(request, error))

    def error(self, request: int, error: OpError) -> Message:
        """The message that reports an error."""
        node = error.op if isinstance(error.op, str) else getattr(error.op, "name", None)
        fields = {
            "request": request, "code": error.code, "message": error.summary, "node": node, "task": error.task or self.task
        }  # fmt: skip
        return Message("error", fields)

    def send(self, task: str, message: Message, compressed: bool = False) -> None:
        """Write to another task.

        Raises:
            AbortedError: the server is stopping. KeyError: the cluster has no such task.
        """
        endpoint = self.endpoint
        if endpoint is None or self.is_stopping:
            raise AbortedError(None, None, f"The server of {self.task} is stopping")
        endpoint.send(self.peers.address(task), message, compressed)

    def tell(self, task: str, message: Message) -> None:
        """The same, of what nobody misses: to a task that may not exist, by a server that may be stopping."""
        if self.endpoint is not None and self.peers.knows(task):
            self.endpoint.send(self.peers.address(task), message)

    def is_near(self, task: str) -> bool:
        """Whether a task reads this one's memory, so that large tensors cost little on the way there."""
        return self.endpoint is not None and self.endpoint.is_near(self.peers.address(task))

    def lives(self, task: str, since: float) -> bool:
        """Whether a task's process has run since then, though it does not answer. For the I/O thread."""
        return self.endpoint is not None and self.peers.knows(task) and self.endpoint.lives(self.peers.address(task), since)

    def expect(self) -> None:
        """The calling thread has sent something, the answer to which is probably near."""
        if self.endpoint is not None:
            self.endpoint.expect()

    def is_gone(self, peer: bytes) -> bool:
        """Whether a client's connection is not there any more. For the I/O thread."""
        return self.endpoint is None or self.endpoint.is_gone(peer)

    def owner(self, peer: bytes) -> str:
        """The key under which a client was let in; nothing where there are no keys."""
        return "" if self.endpoint is None else self.endpoint.owner(peer)

    def may_sleep(self) -> bool:
        """Whether the calling thread may wait for other processes: not the one that hears of all of them."""
        return self.endpoint is not None and not self.endpoint.on_io_thread()

    def collective(self, task: str, fields: Mapping[str, Any], tensors: Sequence[Any]) -> None:
        """Send a message about a collective. Raises as `send` does."""
        self.send(task, Message("collective", dict(fields), tuple(tensors)))


__all__ = ["Mail"]
