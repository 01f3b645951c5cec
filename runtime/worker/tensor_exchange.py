"""The messages between workers during steps: tensors, lent GPU memory, requests for lost tensors and for variables."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...codegen.gpu.driver.api import CudaError
from ...codegen.gpu.driver.ipc import Outgoing
from ...graph.core.errors import InternalError, OpError, UnavailableError
from ...graph.resources.resource_manager import DEAD
from ..observability.metrics import Traffic
from ..rpc.dispatch import RequestExecutor, Responder
from ..rpc.failure_detection import LossDetector, Lost
from ..shared_memory.cuda_ipc import CudaIpc
from ..shared_memory.remote_variables import Want
from ..wire.messages import ChannelKey, InconsistentMessageError, Message
from .worker import Worker


class TensorExchange:
    """One task's side of the exchange. `push` and `want` may be called from any thread; the `on_` methods take messages for `worker`.

    Args:
        executor: its pool sends tensors that must first be copied from a GPU.
        gpus: numbers of its GPUs.

    Attributes:
        traffic: counts what is sent and received.
        loans: the GPU memory that is lent to other tasks.
    """

    worker: Worker

    def __init__(self, responder: Responder, executor: RequestExecutor, gpus: Sequence[int]) -> None:
        self.traffic = Traffic()
        self.loans = CudaIpc(responder.task, gpus, responder.reader_of, self._tell, self._send_otherwise)
        self._responder = responder
        self._executor = executor
        self._overdue = LossDetector()

    def _tell(self, task: str, kind: str, fields: dict[str, Any]) -> None:
        self._responder.notify(task, Message(kind, fields))

    # --- tensors -----------------------------------------------------------------------------------------------------

    def push(self, task: str, step: int, values: Mapping[ChannelKey, Any], client: bytes = b"") -> None:
        """Send tensors of one step to a task, or to a `client` in its process. Control edges and dead values are sent without a tensor."""
        channels, tensors, without, loans, size = [], [], [], [], 0
        for channel, value in values.items():
            if type(value) is Outgoing:
                loan = self.loans.lend(channel, value)
                if loan is not None:
                    loans.append(loan)
                    size += value.nbytes
                    continue
                value = value.on_host()
            if value is None or value is DEAD:
                without.append((channel, value is DEAD))
            else:
                channels.append(channel)
                tensors.append(value)
                size += value.nbytes
        self.traffic.sent(task, size)
        fields = {"step": step, "channels": tuple(channels), "without": tuple(without)}
        message = Message("tensors", fields, tuple(tensors))
        if client:
            self._responder.reply(client, message)
        elif channels or without:
            self._responder.send(task, message)
        if loans:
            self._tell(task, "gpu_loans", {"step": step, "task": self._responder.task, "loans": loans})

    def on_tensors(self, peer: bytes, message: Message) -> None:
        fields, tensors = message.fields, message.tensors
        if len(fields["channels"]) != len(tensors):
            raise InconsistentMessageError(
                f"message 'tensors': its channels are not those of its tensors: {len(fields['channels'])}, and {len(tensors)} tensors"
            )
        arrived: dict[ChannelKey, Any] = dict(zip(fields["channels"], tensors, strict=True))
        for channel, dead in fields["without"]:
            arrived[channel] = DEAD if dead else None
        self.traffic.received(sum([tensor.nbytes for tensor in tensors]))
        self.worker.deliver(fields["step"], arrived)

    # --- tensors in GPU memory: see `cuda_ipc.py` -------------------------------------------------------------------

    def on_gpu_loans(self, peer: bytes, message: Message) -> None:
        arrived = self.loans.take(message.fields)
        if arrived:
            self.traffic.received(sum(value.nbytes for value in arrived.values()))
            self.worker.deliver(message.fields["step"], arrived)

    def _send_otherwise(self, task: str, step: int, tensors: Mapping[ChannelKey, Outgoing]) -> None:
        """Send lent tensors that the receiver could not read, through host memory; in a pool, since copying waits for the GPU."""
        self.worker.not_sent(step, tensors)

        def send() -> None:
            try:
                self.worker.send(task, step, {channel: lent.on_host() for channel, lent in tensors.items()})
            except OpError as e:
                self.worker.fail(step, e)
            except CudaError as e:
                self.worker.fail(step, InternalError.of(f"A tensor cannot be copied to the host: {e}"))

        with contextlib.suppress(RuntimeError):  # the server is stopping
            self._executor.worker.submit(send)

    # --- loss detection: see `failure_detection.py` ----------------------------------------------------------------------------

    def ask_for_overdue(self, now: float) -> None:
        """Ask for tensors that are overdue, and end steps whose tensors are lost."""
        asks, lost = self._overdue.look(now, self.worker.waiting(), self._responder.lives)
        for step, task, channels in asks:
            if task in self._responder.addresses:
                self._tell(task, "missing", {"step": step, "task": self._responder.task, "channels": list(channels)})
                self.worker.want_again(step, channels)
        for one in lost:
            self._lose(one)

    def _lose(self, lost: Lost | None) -> None:
        if lost is not None:
            mine, who = self._responder.task, f"{lost.task} at {self._responder.addresses[lost.task]}"
            waits = [
                x.partition(" waits for ")[2] for x in self.worker.waits_for(lost.step) if f" from {lost.task}/" in x
            ]
            what = ", ".join(waits[:3] + ["..."] * (len(waits) > 3)) or "a tensor of this step"
            error = UnavailableError.of(
                f"{mine} waited {lost.waited_s:.1f} s for {what}. {who} {lost.why} {mine}. If it has ended, start it again, and restore "
                "or initialise its variables. Then run the step again."
            )
            self.worker.fail(lost.step, error)

    def on_missing(self, peer: bytes, message: Message) -> None:
        step, task = message.fields["step"], message.fields["task"]
        try:
            known, sent = self.worker.account(step, message.fields["channels"])
        except ValueError:  # not a channel key
            return
        responder, endpoint = self._responder, self._responder.endpoint
        if task not in responder.addresses:
            return
        left = endpoint.bytes_left(responder.addresses[task])
        fields = {"step": step, "task": responder.task, "known": known, "channels": sent, "left": left}
        responder.reply(peer, Message("coming", fields))
        if sent:
            answer = Message("accounted", {"step": step, "task": responder.task, "channels": sent})
            # After the tensors that other threads have queued.
            endpoint.call_soon(lambda: responder.notify(task, answer))

    def on_coming(self, peer: bytes, message: Message) -> None:
        """The first answer, which comes at once: the tensors that another task has sent."""
        fields = message.fields
        step, task, sent = fields["step"], fields["task"], fields["channels"]
        now, waiting = time.monotonic(), self.worker.waiting().get(step)
        self._lose(self._overdue.coming(now, step, task, fields["known"], sent, fields["left"], waiting))

    def on_accounted(self, peer: bytes, message: Message) -> None:
        """The second answer, which follows the tensors on the same connection."""
        step, task = message.fields["step"], message.fields["task"]
        sent, waiting = message.fields["channels"], self.worker.waiting().get(step)
        self._lose(self._overdue.accounted(time.monotonic(), step, task, sent, waiting))

    # --- one-sided access: see `shared_memory/remote_variables.py` ----------------------------------------------------

    def want(self, task: str, incarnation: int, step: int, session: str, wants: Sequence[Want]) -> None:
        """Request variables of another task that could not be read in its memory. Raises as `Responder.send`."""
        mine = self._responder.task
        fields = {"step": step, "task": mine, "session": session, "incarnation": incarnation, "wants": list(wants)}
        self._responder.send(task, Message("want", fields))

    def on_want(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        step, task, wants = fields["step"], fields["task"], fields["wants"]
        if task not in self._responder.addresses:
            return
        try:
            session = fields["session"] if fields["incarnation"] == self.worker.incarnation else ""
            self.worker.send(task, step, self.worker.values(session, wants))
        except OpError as e:
            channels = [w["channel"] for w in wants]
            self._tell(task, "denied", {"step": step, "channels": channels, "code": e.code, "message": e.summary})

    def on_denied(self, peer: bytes, message: Message) -> None:
        fields = message.fields
        self.worker.denied(fields["step"], fields["channels"], fields["code"], fields["message"])

    def wake(self, task: str) -> None:
        """Tell a task that its accumulators have gradients for which it waits."""
        self._tell(task, "accumulated", {})

    def on_accumulated(self, peer: bytes, message: Message) -> None:
        """Another task has added gradients for which this one waits."""
        self.worker.look()
