"""The backend of a session on a cluster of servers.

Control calls (create, extend, prepare, plan, close) go to the master at the session's target.

A step (`StepCall`): the caller's thread sends one `run` message to each task that takes part and waits for one answer from each. No
other thread is involved. The caller calls a task in this process directly (`find_colocated`). When a task is dead or restarted
(`rpc/pending_call.py`) or reports an error, the caller aborts the step on the other tasks and raises one error that names the task. So a
step always ends.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any, TypeAlias

import msgspec

from ...graph.core.errors import OpError, UnavailableError
from ...graph.core.graph import Graph
from ...graph.io.serialization import graph_to_bytes
from ...graph.ops.io.iterators import attrs_at
from ...placer.plan import Plan
from ...placer.serialize.read import parts_of
from ..config import ConfigProto
from ..master.master import Signature, TaskPart
from ..observability.step_notes import Gathered, Notes, Recorder
from ..observability.trace import offset_of
from ..rpc.dispatch import this_client
from ..rpc.pending_call import ConnectionPool, PendingReplies, call, error_of, from_task
from ..shared_memory.segment import make_own
from ..timeouts import CLOSE_S, TOUCH_S
from ..transport.client import Connections
from ..transport.keys import client_keys
from ..wire.messages import Message
from ..worker.executor import Outcome
from ..worker.registration import device_from_fields
from ..worker.worker import Worker, closed, find_colocated, servers
from .prepared_steps import Backend

logger = logging.getLogger(__name__)


class ClusterBackend(Backend):
    """A session on a cluster of servers, reached through the server at `address`.

    Raises:
        UnavailableError: no server answers there, or tasks of the cluster are missing.
        PermissionDeniedError: the server accepts known keys only. OSError, ValueError: the keys are missing or unreadable.
    """

    is_local = False

    def __init__(self, address: str, config: ConfigProto) -> None:
        self._address = address
        self.config = config
        self._limit_s = config.operation_timeout_in_ms / 1e3 or None
        self._connections = ConnectionPool(client_keys(config.keys), config.peer_timeout_s)
        # A client draws its first step number at random and counts up from it: numbers are unique without coordination.
        self._numbers = itertools.count(secrets.randbits(62) & ~0xFFFFFF)
        self._tasks: dict[str, dict[str, TaskPart]] = {}  # prepared program -> the addresses and parts of its tasks
        self._sent_version = 0
        self._extending = threading.Lock()
        self._touch_at = time.monotonic() + TOUCH_S
        self.is_closed = False
        wait = config.wait_for_cluster_s + config.peer_timeout_s
        try:
            fields = {"config": config.to_fields(), "client": this_client()}
            reply = self._call(Message("create_session", fields), wait, _say_missing)
        except BaseException:  # the caller has no object to close
            self._connections.close()
            raise
        self._handle: str = reply.fields["session"]
        self._limit_s = reply.fields["limit_ms"] / 1e3 or None  # the server may have a default for it
        self.config = replace(config, peer_timeout_s=reply.fields["peer_timeout_s"])
        self.is_replicated = bool(reply.fields.get("is_replicated"))
        self.devices = tuple(device_from_fields(d) for d in reply.fields["devices"])

    # --- control calls to the master -------------------------------------------------------------------------------

    def extend(self, graph: Graph) -> None:
        """Send the nodes that the master does not have yet."""
        with self._extending:
            found = servers.get(self._address)
            attrs = None if found is None else partial(attrs_at, task=found[1].task)
            while graph.version > self._sent_version:
                data = graph_to_bytes(graph, self._sent_version, attrs)
                fields = {"session": self._handle, "from_version": self._sent_version, "graph": data}
                # What the master has: more if another thread has added nodes meanwhile, or the answer to an earlier request was lost.
                self._sent_version = self._call(Message("extend", fields)).fields["version"]

    def prepare(self, signature: Signature, warm: bool = False, deterministic: bool = False) -> list[TaskPart]:
        reply = self._call(self._about("prepare", signature, warm=warm, deterministic=deterministic))
        parts = msgspec.convert(reply.fields["parts"], list[TaskPart])
        addresses = [p["address"] for p in reply.fields["parts"]]
        self._tasks[parts[0].program] = dict(zip(addresses, parts, strict=True))
        return parts

    def plan(self, graph: Graph, signature: Signature, program: str) -> Plan:
        """The master's answer refers to nodes by number; this process has the same numbers."""
        reply = self._call(self._about("plan", signature, program=program))
        text = bytes(reply.fields["plan"]).decode("utf-8", "replace")
        return Plan(**parts_of(text.splitlines(), graph)._asdict())

    def _about(self, kind: str, signature: Signature, **fields: Any) -> Message:
        fetches, targets, feeds = map(list, signature)
        return Message(kind, fields | {"session": self._handle, "fetches": fetches, "targets": targets, "feeds": feeds})

    def _call(
        self, message: Message, timeout_s: float | None = None, on_progress: Callable[[Message], None] | None = None
    ) -> Message:
        """Send a request to the master and wait for its answer.

        Without a limit it waits as long as the master sends heartbeats: placing a large graph may take a while.
        """
        with self._connections.borrow() as connections:
            silence_s, limit_s = self.config.peer_timeout_s, _least(timeout_s, self._limit_s)
            return call(connections, self._address, message, silence_s, limit_s, on_progress)

    # --- steps -----------------------------------------------------------------------------------------------------

    def run(
        self, parts: Sequence[TaskPart], feeds: Mapping[str, Any], timeout_s: float | None,
        gathered: Gathered | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        remote, colocated = self._tasks[parts[0].program], {}
        if servers:
            found = {a: find_colocated(a, p.incarnation) for a, p in remote.items()}
            colocated = {remote[a].task: (worker, a, remote[a]) for a, worker in found.items() if worker is not None}
            remote = {a: p for a, p in remote.items() if found[a] is None}
        connections = self._connections.take()
        try:
            if time.monotonic() >= self._touch_at:
                self._touch(connections)
            if gathered is not None:
                gathered.offsets.update((p.task, offset_of(connections, a)) for a, p in remote.items())
                gathered.begin()
            limit_s = self._limit_s if timeout_s is None else _least(timeout_s, self._limit_s)
            return StepCall(self, connections, next(self._numbers), remote, colocated, limit_s, gathered).run(feeds)
        finally:
            self._connections.give_back(connections)

    def _touch(self, connections: Connections) -> None:
        """Renew the session's lease at the master from time to time: steps do not involve the master."""
        self._touch_at = time.monotonic() + TOUCH_S
        with contextlib.suppress(OSError):
            connections.send(self._address, Message("touch", {"session": self._handle}))

    def close(self) -> None:
        """A master that has ended is no error: its sessions have ended too."""
        self.is_closed = True
        with contextlib.suppress(OpError):
            self._call(Message("close_session", {"session": self._handle}), CLOSE_S)
        self._connections.close()


def _least(a: float | None, b: float | None) -> float | None:
    return a if b is None else b if a is None else min(a, b)


def connect(address: str, config: ConfigProto, wait_s: float = 0.0) -> ClusterBackend:
    """The cluster of the server at `address`; waits up to `wait_s` for the server to answer. Raises as `ClusterBackend` does."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return ClusterBackend(address, config)
        except UnavailableError:
            left = end - time.monotonic()
            if left <= 0:
                raise
            logger.warning(
                "Waiting for the server at %s, which does not answer: not started, or cannot be reached", address
            )
            config = replace(config, wait_for_cluster_s=left)


def _say_missing(message: Message) -> None:
    if message.kind == "waiting":
        logger.warning("Waiting for %s", ", ".join(str(task) for task in message.fields["tasks"]))


def reset_cluster(address: str, containers: Sequence[str], config: ConfigProto) -> None:
    """Ask the master at `address` to clear containers on its cluster and to close its sessions."""
    with Connections(client_keys(config.keys)) as connections:
        message = Message("reset", {"containers": list(containers), "config": config.to_fields()})
        limit = config.operation_timeout_in_ms / 1e3 or None
        call(connections, address, message, config.peer_timeout_s, limit)


ColocatedPart: TypeAlias = tuple[Worker, str, TaskPart]
"""A part of a step whose server is in this process: the server's worker, its address, the part."""
_Outcomes: TypeAlias = deque[tuple[str, Outcome, Recorder | None]]


class StepCall:
    """One step.

    Attributes:
        backend: of the session. If it is closed, its master tells the tasks, unless the master has ended.
        connections: the connections, which only this step uses.
        remote: the parts in other processes, by address.
        colocated: the parts in this process that have not ended, by task.
        gathered: collects the trace of a traced step; None: it is not traced.
        values: the values of fetches that have come, by name.
        outcomes: of colocated parts, from whichever threads end them.
        pending: the replies that the tasks owe.
    """

    def __init__(
        self, backend: ClusterBackend, connections: Connections, number: int, remote: dict[str, TaskPart],
        colocated: dict[str, ColocatedPart], limit_s: float | None, gathered: Gathered | None,
    ) -> None:  # fmt: skip
        self.backend = backend
        self.connections = connections
        self.number = number
        self.remote = remote
        self.colocated = colocated
        self.gathered = gathered
        self.values: dict[str, Any] = {}
        self.outcomes: _Outcomes = deque()
        waits = partial(_waits_of, number, colocated, self.outcomes) if colocated else tuple
        self.pending = PendingReplies(remote, backend.config.peer_timeout_s, limit_s, "step", number, waits)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the step, and return the values of its fetches by name. OpError: it failed, and was aborted on all tasks."""
        try:
            self._start(feeds)
            while self.pending.owing or self.colocated:
                if self.outcomes:
                    self._take_outcome()
                    continue
                messages = self.pending.messages(self.connections)
                if not messages and self.backend.is_closed:
                    raise closed()
                for address, reply in messages:
                    if reply.fields.get("request") == self.number and address in self.pending.owing:
                        self._take(address, reply)
                    elif reply.kind == "tensors" and reply.fields["step"] == self.number:
                        for worker, *_ in list(self.colocated.values()):
                            worker.on_tensors(b"", reply)
        except BaseException as e:  # also Ctrl-C: anything that ends the wait must abort the step on all tasks
            self._abort(e)
            raise
        return self.values

    def _start(self, feeds: Mapping[str, Any]) -> None:
        """Send the `run` messages, and start the parts in this process."""
        number = self.number
        for address, part in self.remote.items():
            fields = {"request": number, "step": number, "program": part.program, "feeds": part.feeds}
            if self.gathered is not None:
                fields["trace"] = True
            if len(self.colocated) == 1:
                fields["client_task"] = next(iter(self.colocated))
            message = Message("run", fields, tuple(map(feeds.__getitem__, part.feeds)))
            self.pending.send(self.connections, address, message)
        if not self.colocated:
            return
        outcomes, wake, this_thread = self.outcomes, self.connections.waker(), get_ident()
        for worker, _, part in list(self.colocated.values()):
            recorder = None if self.gathered is None else Recorder()

            def finish(result: Outcome, task: str = part.task, recorder: Recorder | None = recorder) -> None:
                outcomes.append((task, result, recorder))
                if get_ident() != this_thread:
                    wake()

            inputs = {n: feeds[n] for n in part.feeds}
            worker.start(number, part.program, inputs, finish, recorder=recorder, waiter=this_thread)

    def _take_outcome(self) -> None:
        """Handle the end of a part in this process: its fetched values, its trace, or the error that ends the step."""
        task, result, recorder = self.outcomes.popleft()
        del self.colocated[task]
        if self.gathered is not None and recorder is not None:
            self.gathered.add(task, recorder.finished())
        if isinstance(result, OpError):
            raise from_task(result.code, result.message, result.node_name, result.task or task)
        self.values.update(result)

    def _take(self, address: str, reply: Message) -> None:
        """Handle a task's answer: its fetched values, its trace, or the error that ends the step."""
        if reply.kind == "done":
            self.pending.settled(address)
            for tensor in reply.tensors:
                make_own(tensor)
            self.values.update(zip(reply.fields["fetches"], reply.tensors, strict=True))
        elif reply.kind == "error":
            self.pending.settled(address)
            raise error_of(reply)
        elif reply.kind == "trace" and self.gathered is not None:
            self.gathered.add(self.pending.owing[address].task, Notes.unpack(reply.fields["notes"]))

    def _abort(self, error: BaseException) -> None:
        """Abort the step on the tasks that have not ended their parts."""
        reason = "The client was interrupted"
        if isinstance(error, OpError):
            reason = f"{type(error).__name__} in another part of the step: {error.summary}"
        for worker, _, _ in self.colocated.values():
            worker.abort(self.number, reason)
        message = Message("abort", {"step": self.number, "code": "CANCELLED", "reason": reason})
        for address in self.pending.owing:
            with contextlib.suppress(OSError):  # an unreachable task has nothing to abort
                self.connections.send(address, message)


def _waits_of(
    number: int, colocated: Mapping[str, ColocatedPart], outcomes: _Outcomes
) -> list[tuple[str, str, list[str]]]:
    """The waits of the parts in this process that have not ended: (task, address, descriptions)."""
    ended = {task for task, _, _ in list(outcomes)}
    return [(task, at, worker.waits_for(number)) for task, (worker, at, _) in colocated.items() if task not in ended]
