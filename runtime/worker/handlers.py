"""Handlers of the requests that clients and masters send to a worker.

`StepHandlers` starts and aborts parts of steps for clients, and reports their end.

`WorkerHandlers` handles requests of the masters of this and other servers: register programs, close sessions, publish variables for
one-sided access.
"""

from __future__ import annotations

import logging
import time
from functools import partial

from ...codegen.ir.partition import RecvTensor, SendTensor
from ...graph.core.errors import OpError, invalid
from ...graph.core.settings import setting
from ...placer.partition.partitioned_graph import task_of
from ..observability.step_notes import Recorder
from ..rpc.dispatch import Limit, RequestExecutor, Responder
from ..timeouts import SILENT_S
from ..wire.messages import Message
from .executor import Outcome
from .registration import Registration
from .worker import Worker

logger = logging.getLogger(__name__)


class StepHandlers:
    """The parts of steps that clients have asked for. They start on the I/O thread, and end on any thread.

    Attributes:
        running: step -> the connection of its client, whose step it is, and the bytes fed to it, which count towards that one's limits.
    """

    def __init__(self, worker: Worker, responder: Responder) -> None:
        self.responder = responder
        self._most_steps = Limit(setting("DOVETAIL_CLIENT_STEPS"), "running steps", "DOVETAIL_CLIENT_STEPS")
        most = setting("DOVETAIL_CLIENT_MB") << 20
        self._most_bytes = Limit(most, "bytes fed to running steps", "DOVETAIL_CLIENT_MB")
        self.running: dict[int, tuple[bytes, str | bytes, int]] = {}
        self._worker = worker

    def on_run(self, peer: bytes, message: Message) -> None:
        fields, tensors = message.fields, message.tensors
        step, request, program, names = fields["step"], fields["request"], fields["program"], fields["feeds"]
        self.responder.heard[peer] = time.monotonic()
        if not self._worker.is_new(step):
            return
        if len(names) != len(tensors):
            self.responder.refuse(peer, request, invalid(f"{len(names)} feeds named, {len(tensors)} values sent"))
            return
        feeds = dict(zip(names, tensors, strict=True))
        recorder = Recorder() if fields.get("trace") else None
        size = sum([tensor.nbytes for tensor in tensors])
        if self.running or size > self._most_bytes.most:  # otherwise it is within the limits
            try:
                self._check_limits(self._client_of(peer, program), size)
            except OpError as e:
                self.responder.refuse(peer, request, e)
                return
        outcome = self._worker.run_inline(step, program, feeds) if recorder is None else None
        if outcome is not None:
            self.answer(peer, request, outcome)
            return
        self.running[step] = peer, self._client_of(peer, program), size
        # No closure: its variables would be cells, which inline steps, too, would pay for.
        finish = partial(self._finish, peer, request, step, recorder)
        self._worker.start(step, program, feeds, finish, recorder=recorder, client=(fields.get("client_task"), peer))

    def _client_of(self, peer: bytes, program: str) -> str | bytes:
        return self.responder.endpoint.owner(peer) or self._worker.client_of(program) or peer

    def _check_limits(self, client: str | bytes, size: int) -> None:
        """ResourceExhaustedError: a client may not run another step that is fed so many bytes."""
        fed = [n for _, owner, n in list(self.running.values()) if owner == client]
        self._most_steps.check(len(fed), 1)
        self._most_bytes.check(sum(fed), size)

    def _finish(self, peer: bytes, request: int, step: int, recorder: Recorder | None, outcome: Outcome) -> None:
        self.running[step] = peer, b"", 0  # it counts no more when its client starts the next step
        try:
            if recorder is not None:
                notes = recorder.finished().pack()
                self.responder.reply(peer, Message("trace", {"request": request, "notes": notes}))
            self.answer(peer, request, outcome)
        finally:  # if there is no answer, a pong tells the client
            self.running.pop(step, None)

    def answer(self, peer: bytes, request: int, outcome: Outcome) -> None:
        if isinstance(outcome, OpError):
            self.responder.refuse(peer, request, outcome)
        else:
            fields = {"request": request, "fetches": tuple(outcome)}
            self.responder.reply(peer, Message("done", fields, tuple(outcome.values())))

    def on_abort(self, peer: bytes, message: Message) -> None:
        self._worker.abort(message.fields["step"], message.fields["reason"], message.fields["code"])

    def runs(self, peer: bytes, step: int) -> bool:
        """Whether a part of a step runs here for the client at `peer`."""
        return step in self.running and self.running[step][0] == peer

    def end_abandoned(self, now: float) -> None:
        """Abort the steps of clients that have been silent for `SILENT_S`, so that no step waits here forever."""
        for step, (peer, _, _) in list(self.running.items()):
            if self.responder.is_silent(peer, now):
                why = f"The client has been silent for {SILENT_S:.0f} s"
                logger.warning("%s: ending step %d: %s", self.responder.task, step, why)
                self._worker.abort(step, why)


class WorkerHandlers:
    """The messages of masters. A thread pool compiles programs and publishes variables."""

    def __init__(self, worker: Worker, executor: RequestExecutor, responder: Responder) -> None:
        self._worker = worker
        self._executor = executor
        self._responder = responder

    def on_request(self, peer: bytes, message: Message) -> None:
        """Do at once what a master asks for."""
        self._responder.reply(peer, self._answer(message))

    on_reset_containers = on_expose_memory = on_map_memory = on_request

    def on_slow_request(self, peer: bytes, message: Message) -> None:
        """Have the pool do what a master asks for."""
        work = self._register if message.kind == "register" else self._answer
        self._executor.answer(self._executor.worker, peer, message, work)

    on_register = on_publish = on_slow_request

    def on_forget_session(self, peer: bytes, message: Message) -> None:
        self._worker.close_session(message.fields["session"])

    def _answer(self, message: Message) -> Message:
        fields = {name: value for name, value in message.fields.items() if name != "request"}
        return message.reply(**getattr(self._worker, message.kind)(**fields))

    def _register(self, message: Message) -> Message:
        worker, task = self._worker, self._responder.task
        registration = Registration.from_fields(message.fields)
        known = {str(d.name) for d in worker.devices}
        for partition in registration.partitions:
            if partition.device not in known:
                raise invalid(f"{partition.device} is no device of {task}; it has {', '.join(sorted(known))}")
        steps = [step for partition in registration.partitions for step in partition.steps]
        partners = {task_of(step.destination) for step in steps if isinstance(step, SendTensor)}
        partners |= {task_of(step.source) for step in steps if isinstance(step, RecvTensor)}
        strangers = sorted(partners - self._responder.addresses.keys())
        if strangers:
            raise invalid(
                f"{task} is to exchange tensors with {', '.join(strangers)}, and was started with a cluster that has no such task. "
                "Start all tasks with the same cluster",
            )  # fmt: skip
        return message.reply(**worker.register(registration))
