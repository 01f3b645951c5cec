"""What masters, of this server and of others, ask of its worker: to take programs, to forget, to let variables be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..codegen.ir.partition import RecvTensor, SendTensor, Unit
from ..graph.core.errors import InvalidArgumentError
from ..placer.partition.partitioned_graph import task_of
from .calls import Calls
from .mail import Mail
from .registration import Registration
from .wire import Message
from .worker import Worker


class WorkerCalls:
    """These calls. Compiling programs, and posting variables, which may move them, are left to a pool.

    Args:
        incarnation: of the task.
    """

    def __init__(self, worker: Worker, calls: Calls, mail: Mail, incarnation: int) -> None:
        self._worker = worker
        self._calls = calls
        self._mail = mail
        self._incarnation = incarnation

    def on_register(self, peer: bytes, message: Message) -> None:
        """Take the programs of a run signature."""
        self._calls.answer(self._calls.worker, peer, message, self._register)

    def _register(self, message: Message) -> Message:
        registration = Registration.from_fields(message.fields)
        known = {str(d.name) for d in self._worker.devices}
        for unit in registration.units:
            if unit.device not in known:
                task, has = self._mail.task, ", ".join(sorted(known))
                raise InvalidArgumentError(None, None, f"{unit.device} is no device of {task}; it has {has}")
        strangers = sorted({t for t in _partners(registration.units) if not self._mail.peers.knows(t)})
        if strangers:
            raise InvalidArgumentError(
                None, None,
                f"{self._mail.task} is to exchange tensors with {', '.join(strangers)}, and was started with a cluster that has no such "
                "task. Start all tasks with the same cluster",
            )  # fmt: skip
        self._worker.register(registration)
        return Message("registered", {"request": message.fields["request"], "incarnation": self._incarnation})

    def on_release(self, peer: bytes, message: Message) -> None:
        """Forget programs."""
        self._worker.release([p for p in message.fields["programs"] if isinstance(p, str)])

    def on_forget_session(self, peer: bytes, message: Message) -> None:
        """Forget a session."""
        self._worker.close_session(message.fields["session"])
        self._closed(peer, message)

    def on_reset_containers(self, peer: bytes, message: Message) -> None:
        """Clear containers, and forget sessions."""
        fields = message.fields
        named = ([n for n in fields.get(what) or () if isinstance(n, str)] for what in ("containers", "sessions"))
        self._worker.reset(*named)
        self._closed(peer, message)

    def _closed(self, peer: bytes, message: Message) -> None:
        self._mail.reply(peer, Message("closed", {"request": message.fields["request"]}))

    # --- variables that are read where they lie: see `direct_reads.py` ----------------------------------------------

    def on_page(self, peer: bytes, message: Message) -> None:
        """Say where others can try to read this process's memory."""
        page = self._worker.direct.page()
        self._mail.reply(peer, Message("paged", {"request": message.fields["request"], "page": page}))

    def on_sees(self, peer: bytes, message: Message) -> None:
        """Try to read another one's."""
        readable = self._worker.direct.sees(message.fields["page"])
        self._mail.reply(peer, Message("seen", {"request": message.fields["request"], "readable": readable}))

    def on_post(self, peer: bytes, message: Message) -> None:
        """Let others read variables, or change them."""
        self._calls.answer(self._calls.worker, peer, message, self._post)

    def _post(self, message: Message) -> Message:
        fields = message.fields
        names = fields["names"]
        lengths = (2, 5) if fields.get("changed") else (2,)  # an accumulator has its kind with it
        if not all(isinstance(n, list) and len(n) in lengths and all(isinstance(x, str) for x in n) for n in names):
            raise InvalidArgumentError(None, None, "A post message names variables by container and name")
        places = self._worker.post(
            fields["session"], fields["seed"], fields["isolated"], names, bool(fields.get("changed"))
        )
        posted = {"incarnation": self._incarnation, "places": [p if p is None else list(p) for p in places]}
        return Message("posted", {"request": fields["request"], **posted})


def _partners(units: Iterable[Unit]) -> Iterator[str]:
    """The tasks from which something comes, and those to which something goes."""
    for unit in units:
        for step in unit.steps:
            if isinstance(step, SendTensor):
                yield task_of(step.destination)
            elif isinstance(step, RecvTensor):
                yield task_of(step.source)


__all__ = ["WorkerCalls"]
