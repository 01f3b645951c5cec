"""One step of a session on a cluster: the messages of the caller's thread, and the answers that it waits for.

Theory of operation. The caller's thread sends one `run` message to each task that takes part and waits for one answer from each. No
other thread is involved. The caller calls a task in this process directly (`worker/colocated.py`).

While it waits, the caller pings all tasks. A task that sends no heartbeat within the peer timeout counts as dead; a task whose process
has been restarted is recognised by its incarnation (`rpc/pending_call.py`). In both cases, and when a task reports an error, the caller
aborts the step on the other tasks and raises one error that names the task. So a step always ends.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

from ...graph.core.errors import OpError
from ..master.session_state import TaskPart
from ..observability.step_notes import Gathered, Notes, Recorder
from ..rpc.pending_call import PendingReplies, error_of, from_task
from ..shared_memory.segment import make_own
from ..transport.client import Connections
from ..wire.messages import Message
from ..worker.worker import Worker

ColocatedPart: TypeAlias = tuple[Worker, str, TaskPart]
"""A part of a step whose server is in this process: the server's worker, its address, the part."""
_Outcomes: TypeAlias = deque[tuple[str, Mapping[str, Any] | OpError, Recorder | None]]


class StepCall:
    """One step.

    Args:
        connections: the connections, which only this step uses.
        remote: the parts in other processes, by address.
        colocated: the parts in this process, by task.
        peer_timeout_s: seconds of silence after which a task counts as dead.
        limit_s: seconds after which the step fails; None: no limit.
        gathered: collects the trace of a traced step; None: it is not traced.
    """

    __slots__ = (
        "_colocated", "_connections", "_gathered", "_number", "_outcomes", "_owing", "_pending", "_tasks", "_values",
    )  # fmt: skip

    def __init__(
        self, connections: Connections, number: int, remote: dict[str, TaskPart], colocated: dict[str, ColocatedPart],
        peer_timeout_s: float, limit_s: float | None, gathered: Gathered | None = None,
    ) -> None:  # fmt: skip
        self._connections = connections
        self._number = number
        self._owing = remote  # the remote parts that have not ended
        self._colocated = colocated  # the colocated parts that have not ended
        self._gathered = gathered
        self._tasks = {address: part.task for address, part in remote.items()}
        self._values: dict[str, Any] = {}
        self._outcomes: _Outcomes = deque()  # of colocated parts, from whichever threads end them
        self._pending = PendingReplies(
            self._tasks, peer_timeout_s, limit_s, "step", {a: part.incarnation for a, part in remote.items()}, number,
            partial(_waits_of, number, colocated, self._outcomes) if colocated else tuple,
        )  # fmt: skip

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step, and return the values of its fetches by name. OpError: it failed, and was aborted on all tasks."""
        try:
            self._start(feeds)
            while self._owing or self._colocated:
                if self._outcomes:
                    self._take_outcome()
                    continue
                for address, reply in self._pending.messages(self._connections):
                    if reply.fields.get("request") == self._number:
                        self._take(address, reply)
        except BaseException as e:  # also Ctrl-C: anything that ends the wait must abort the step on all tasks
            self._abort(e)
            raise
        return self._values

    def _start(self, feeds: Mapping[str, Any]) -> None:
        """Send the `run` messages, and start the parts in this process."""
        number = self._number
        for address, part in self._owing.items():
            fields = {"request": number, "step": number, "program": part.program, "feeds": part.feeds}
            if self._gathered is not None:
                fields["trace"] = True
            message = Message("run", fields, tuple([feeds[n] for n in part.feeds]))
            self._pending.send(self._connections, address, message)
        if self._colocated:
            self._start_colocated(feeds)

    def _start_colocated(self, feeds: Mapping[str, Any]) -> None:
        outcomes, wake, this_thread = self._outcomes, self._connections.waker(), get_ident()
        for worker, _, part in list(self._colocated.values()):
            recorder = None if self._gathered is None else Recorder()

            def finish(
                result: Mapping[str, Any] | OpError, task: str = part.task, recorder: Recorder | None = recorder
            ) -> None:
                outcomes.append((task, result, recorder))
                if get_ident() != this_thread:
                    wake()

            inputs = {n: feeds[n] for n in part.feeds}
            worker.start(self._number, part.program, inputs, finish, recorder=recorder, waiter=this_thread)

    def _take_outcome(self) -> None:
        """Handle the end of a part in this process: its fetched values, its trace, or the error that ends the step."""
        task, result, recorder = self._outcomes.popleft()
        del self._colocated[task]
        if self._gathered is not None and recorder is not None:
            self._gathered.add(task, recorder.finished())
        if isinstance(result, OpError):
            raise from_task(result, result.task or task)
        self._values.update(result)

    def _take(self, address: str, reply: Message) -> None:
        """Handle a task's answer: its fetched values, its trace, or the error that ends the step."""
        if reply.kind == "done":
            self._owing.pop(address, None)
            self._pending.settled(address)
            for tensor in reply.tensors:
                make_own(tensor)
            self._values.update(zip(reply.fields["fetches"], reply.tensors, strict=True))
        elif reply.kind == "error":
            self._owing.pop(address, None)
            raise error_of(reply)
        elif reply.kind == "trace" and self._gathered is not None:
            self._gathered.add(self._tasks[address], Notes.unpack(reply.fields["notes"]))

    def _abort(self, error: BaseException) -> None:
        """Abort the step on the tasks that have not ended their parts."""
        reason = "The client was interrupted"
        if isinstance(error, OpError):
            reason = f"{type(error).__name__} in another part of the step: {error.summary}"
        for worker, _, _ in self._colocated.values():
            worker.abort(self._number, reason)
        message = Message("abort", {"step": self._number, "code": "CANCELLED", "reason": reason})
        for address in self._owing:
            with contextlib.suppress(OSError):  # an unreachable task has nothing to abort
                self._connections.send(address, message)


def _waits_of(
    number: int, colocated: Mapping[str, ColocatedPart], outcomes: _Outcomes
) -> list[tuple[str, str, list[str]]]:
    """The waits of the parts in this process that have not ended: (task, address, descriptions)."""
    ended = {task for task, _, _ in list(outcomes)}
    return [(task, at, worker.waits_for(number)) for task, (worker, at, _) in colocated.items() if task not in ended]
