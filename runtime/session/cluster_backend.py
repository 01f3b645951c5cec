"""A session's target on a cluster of servers.

Control calls go to the target's master; each step goes straight to the tasks that take part, and their answers come straight back.

Theory of a step. The caller's own thread sends one message per task and waits for one answer from each, but for those whose end
follows from another one's (`lowering.py`); no other thread is involved. Tasks that are started by the tensors that come to them
(`lowering.py`) are told only when they have not answered after a while. While it waits it pings all of them. A task that gives no sign
of life within the peer timeout is taken for dead; a task whose process has been restarted since is recognised by its
incarnation. Either way, and when any task reports an error, the others are told to abort the step, and the caller gets one error
that names the task. So a step always ends.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...graph.core.errors import CancelledError, OpError, UnavailableError
from ...graph.core.graph import Graph
from ...graph.io.serialize import graph_to_bytes
from ...placer.plan import Plan
from ...placer.serialize.read import parts_of
from ..config import ConfigProto
from ..master.session_state import TaskPart
from ..observability.step_notes import Gathered, Notes, Recorder
from ..observability.trace import offsets
from ..rpc.dispatch import this_client
from ..rpc.liveness import TOUCH_S
from ..rpc.pending_call import ConnectionPool, PendingReplies, call, error_of, from_task
from ..shared_memory.segment import make_own
from ..transport.client_set import Connections
from ..transport.keys import client_keys
from ..wire.codec import HeaderTemplate
from ..wire.messages import Message
from ..worker.colocated import CallerThread, ColocatedServer, find_colocated
from ..worker.registration import device_from_fields

logger = logging.getLogger(__name__)

MOST_FORMS = 256  # signatures of which it is remembered how their steps are asked for
CLOSE_S = 1.0  # closing a session waits no longer for its master: a dead one has lost the session anyway


class ClusterBackend:
    """A session on a cluster of servers, reached through the server at `address`.

    Raises:
        UnavailableError: nobody answers there, or tasks of the cluster are missing.
        PermissionDeniedError: the server lets in only whom it knows. OSError, ValueError: there are no keys where they should be.
    """

    is_local = False

    def __init__(self, address: str, config: ConfigProto) -> None:
        self._address = address
        self._config = config
        self._limit_s = config.operation_timeout_in_ms / 1e3 or None
        self._connections = ConnectionPool(client_keys(config.keys), config.peer_timeout_s)
        self._requests = itertools.count(1)
        # A step's number is drawn once per client and counted on: unique without asking anybody.
        self._numbers = itertools.count(secrets.randbits(62) & ~0xFFFFFF)
        self._addresses: dict[str, str] = {}
        self._sent_version = 0
        self._touch_at = time.monotonic() + TOUCH_S
        self._closed = False
        wait = config.wait_for_cluster_s + config.peer_timeout_s
        try:
            reply = self._call(
                Message("create_session", {"request": 0, "config": config.to_fields(), "client": this_client()}),
                "session_created",
                wait,
                _say_missing,
            )
        except BaseException:  # nobody will have this object to close it
            self._connections.close()
            raise
        self._handle: str = reply.fields["session"]
        self._limit_s = reply.fields["limit_ms"] / 1e3 or None  # the server may have said what the config does not
        self._config = replace(config, peer_timeout_s=reply.fields["peer_timeout_s"])
        self.devices = tuple(device_from_fields(d) for d in reply.fields["devices"])

    # --- control calls to the master -------------------------------------------------------------------------------

    def extend(self, graph: Graph) -> None:
        """As `Target.extend`: sends the nodes that the master does not have yet."""
        version = graph.version
        if version > self._sent_version:
            data = graph_to_bytes(graph, self._sent_version)
            self._call(
                Message(
                    "extend", {"request": 0, "session": self._handle, "from_version": self._sent_version, "graph": data}
                ),
                "extended",
            )
            self._sent_version = version

    def prepare(
        self,
        fetches: Sequence[str],
        targets: Sequence[str],
        feeds: Sequence[str],
        warm: bool = False,
        deterministic: bool = False,
    ) -> list[TaskPart]:
        """As `Target.prepare`."""
        fields = {
            "request": 0, "session": self._handle, "fetches": list(fetches), "targets": list(targets), "feeds": list(feeds),
            "warm": warm, "deterministic": deterministic,
        }  # fmt: skip
        reply = self._call(Message("prepare", fields), "prepared")
        parts = []
        for p in reply.fields["parts"]:
            self._addresses[p["task"]] = p["address"]
            parts.append(
                TaskPart(
                    p["task"],
                    p["incarnation"],
                    p["program"],
                    tuple(p["feeds"]),
                    tuple(p["fetches"]),
                    p["reports"],
                    p["carried"],
                )  # fmt: skip
            )
        return parts

    def plan(
        self, graph: Graph, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str], program: str
    ) -> Plan:
        """As `Target.plan`. The master's answer refers to nodes by number, and this process has the same ones."""
        fields = {
            "request": 0, "session": self._handle, "fetches": list(fetches), "targets": list(targets), "feeds": list(feeds),
            "program": program,
        }  # fmt: skip
        text = bytes(self._call(Message("plan", fields), "planned").fields["plan"]).decode("utf-8", "replace")
        return Plan(*parts_of(text.splitlines(), graph))

    def _call(
        self,
        message: Message,
        answer: str,
        timeout_s: float | None = None,
        told: Callable[[Message], None] | None = None,
    ) -> Message:
        """Send a request to the master and wait for its answer.

        Without a limit it waits as long as the master shows signs of life: placing a large graph may take a while.
        """
        with self._connections.borrow() as connections:
            message.fields["request"] = next(self._requests)
            name = f"the server at {self._address}"
            return call(
                connections,
                self._address,
                name,
                message,
                answer,
                self._config.peer_timeout_s,
                self._limit(timeout_s),
                told,
            )

    def _limit(self, timeout_s: float | None) -> float | None:
        if timeout_s is None or self._limit_s is None:
            return self._limit_s if timeout_s is None else timeout_s
        return min(timeout_s, self._limit_s)

    # --- steps -----------------------------------------------------------------------------------------------------

    def run(
        self,
        parts: Sequence[TaskPart],
        feeds: Mapping[str, Any],
        timeout_s: float | None,
        gathered: Gathered | None = None,
    ) -> dict[str, Any]:
        """As `Target.run`."""
        if len(parts) == 1 and gathered is None and parts[0].reports:
            address = self._addresses[parts[0].task]
            if find_colocated(address, parts[0].incarnation) is None:
                return self._run_one(parts[0], address, feeds, self._limit(timeout_s))
        number = next(self._numbers)
        owing: dict[str, TaskPart] = {}
        names: dict[str, str] = {}
        incarnations: dict[str, int] = {}
        quiet: set[str] = set()  # addresses of those that answer only with an error
        here: dict[str, tuple[ColocatedServer, TaskPart]] = {}  # by task: those whose server is in this process
        for part in parts:
            address = self._addresses[part.task]
            server = find_colocated(address, part.incarnation)
            if server is None:
                owing[address] = part
                names[address], incarnations[address] = part.task, part.incarnation
                if not part.reports and gathered is None:  # notes are part of an answer
                    quiet.add(address)
            else:
                here[part.task] = server, part
        limit = self._limit(timeout_s)
        values: dict[str, Any] = {}

        def waits_of() -> list[tuple[str, str, list[str]]]:
            ended = {task for task, _, _ in outcomes}
            return [(t, self._addresses[t], s.waits_of(number)) for t, (s, _) in here.items() if t not in ended]

        outcomes: deque[tuple[str, Mapping[str, Any] | OpError, Recorder | None]] = deque()
        connections = self._connections.take()
        try:
            if gathered is not None:
                gathered.offsets.update(offsets(connections, {p.task: a for a, p in owing.items()}))
                gathered.begin()
            wait = PendingReplies(names, self._config.peer_timeout_s, limit, "step", incarnations, number, quiet, waits_of)
            self._touch(connections)
            try:
                started = {}  # those that tensors start: messages for them if those do not come
                client, told = 0 if gathered is not None else connections.name, connections.told
                for address, part in owing.items():
                    message = _run_message(connections, number, part, feeds, address in quiet, gathered is not None)
                    if part.data_triggered and client and told.get(address) == (part.incarnation, client):
                        started[address] = message
                        continue
                    wait.send(connections, address, message)
                    if client:
                        told[address] = part.incarnation, client
                if started:
                    wait.before_asking = started
                caller_thread = CallerThread(connections.waker()) if here else None
                for server, part in list(here.values()):
                    recorder = None if gathered is None else Recorder()

                    def finish(
                        result: Mapping[str, Any] | OpError, task: str = part.task, recorder: Recorder | None = recorder
                    ) -> None:
                        outcomes.append((task, result, recorder))
                        if caller_thread is not None:
                            caller_thread.notify()

                    # A thread that runs a program itself cannot look at the clock.
                    server.start_step(
                        number, part.program, {n: feeds[n] for n in part.feeds}, finish,
                        caller_thread=caller_thread if limit is None else None, recorder=recorder, client=client,
                    )  # fmt: skip
                while len(owing) > len(quiet) or here:
                    if outcomes:
                        task, result, recorder = outcomes.popleft()
                        del here[task]
                        if gathered is not None and recorder is not None:
                            gathered.add(task, recorder.finished())
                        if isinstance(result, OpError):
                            raise from_task(result, result.task or task)
                        values.update(result)
                        continue
                    if caller_thread is not None and caller_thread.work():
                        wait.was_away()
                        continue
                    for address, reply in wait.messages(connections):
                        if reply.fields.get("request") != number:
                            continue
                        kind = reply.kind
                        if kind == "error":
                            owing.pop(address, None)
                            quiet.discard(address)
                            raise error_of(reply)
                        if kind == "trace" and gathered is not None:
                            gathered.add(names[address], Notes.unpack(reply.fields["notes"]))
                        if kind == "done":
                            part = owing.pop(address)
                            wait.settled(address)
                            for tensor in reply.tensors:
                                make_own(tensor)
                            values.update(zip(reply.fields["fetches"], reply.tensors, strict=True))
            except BaseException as e:  # also Ctrl-C: whatever ends the wait must end the step everywhere
                for server, _ in here.values():
                    server.abort_step(number, _reason(e))
                _abort(connections, owing, number, e)
                raise
        finally:
            self._connections.give_back(connections)
        return values

    def _run_one(self, part: TaskPart, address: str, feeds: Mapping[str, Any], limit: float | None) -> dict[str, Any]:
        """The same, of a step that one other process does."""
        number = next(self._numbers)
        connections = self._connections.take()
        try:
            wait = PendingReplies(
                {address: part.task}, self._config.peer_timeout_s, limit, "step", {address: part.incarnation}, number,
                here=tuple,
            )  # fmt: skip
            self._touch(connections)
            owing: tuple[str, ...] = (address,)
            try:
                wait.send(connections, address, _run_message(connections, number, part, feeds))
                if address not in connections.told:
                    connections.told[address] = part.incarnation, connections.name
                while True:
                    for _, reply in wait.messages(connections):
                        if reply.fields.get("request") != number:
                            continue
                        if reply.kind == "done":
                            for tensor in reply.tensors:
                                make_own(tensor)
                            return dict(zip(reply.fields["fetches"], reply.tensors, strict=True))
                        if reply.kind == "error":
                            owing = ()
                            raise error_of(reply)
            except BaseException as e:
                _abort(connections, owing, number, e)
                raise
        finally:
            self._connections.give_back(connections)

    def repeat(self, parts: Sequence[TaskPart], until: Callable[[], bool]) -> bool:
        """As `Target.repeat`: each task begins its part again by itself, so no message is needed as long as nothing fails."""
        at = {self._addresses[p.task]: p for p in parts}
        if self._limit_s is not None or any(
            p.feeds or p.fetches or find_colocated(address, p.incarnation) is not None for address, p in at.items()
        ):
            return False
        number = secrets.randbits(62) & ~0xFFFFFFFF  # and as many after it
        connections = self._connections.take()
        try:
            names = {address: p.task for address, p in at.items()}
            incarnations = {address: p.incarnation for address, p in at.items()}
            wait = PendingReplies(names, self._config.peer_timeout_s, None, "step", incarnations, number)
            try:
                for address, part in at.items():
                    fields = {"request": number, "step": number, "program": part.program, "feeds": (), "again": True}
                    wait.send(connections, address, Message("run", fields))
                while not until():
                    self._touch(connections)
                    for address, reply in wait.messages(connections):
                        if reply.fields.get("request") != number:
                            continue
                        if reply.kind == "error":
                            del at[address]
                            raise error_of(reply)
                        if reply.kind == "done":  # the task has forgotten the program
                            del at[address]
                            return True
            finally:
                _abort(connections, at, number, CancelledError(None, None, "It is not repeated any more"))
        finally:
            self._connections.give_back(connections)
        return True

    def _touch(self, connections: Connections) -> None:
        """Let the master hear of this client from time to time: it may not otherwise."""
        now = time.monotonic()
        if now >= self._touch_at:
            self._touch_at = now + TOUCH_S
            with contextlib.suppress(OSError):
                connections.send(self._address, Message("touch", {"session": self._handle}))

    def close(self) -> None:
        """As `Target.close`. A master that is gone is no error: the session went with it."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OpError):
            self._call(Message("close_session", {"request": 0, "session": self._handle}), "closed", CLOSE_S)
        self._connections.close()


def _run_message(
    connections: Connections,
    number: int,
    part: TaskPart,
    feeds: Mapping[str, Any],
    quiet: bool = False,
    traced: bool = False,
) -> Message:
    """What starts a part of a step. One that is traced starts no others: it belongs to no client."""
    key = part.program, part.task, quiet, 0 if traced else connections.name
    form = connections.forms.get(key)
    if form is None:
        fields: dict[str, Any] = {"program": part.program, "feeds": part.feeds}
        fields |= {"trace": True} if traced else {"client": connections.name}
        if quiet:
            fields["quiet"] = True
        if len(connections.forms) >= MOST_FORMS:
            connections.forms.clear()
        form = connections.forms[key] = HeaderTemplate("run", fields)
    return Message("run", {"request": number, "step": number}, tuple([feeds[n] for n in part.feeds]), form)


def _reason(error: BaseException) -> str:
    """Why a step is ended everywhere."""
    if isinstance(error, OpError):
        return f"{type(error).__name__} in another part of the step: {error.summary}"
    return "The client was interrupted"


def _abort(connections: Connections, owing: Iterable[str], number: int, error: BaseException) -> None:
    """Tell those who have not done their part of a step that it has ended."""
    message = Message("abort", {"step": number, "code": "CANCELLED", "reason": _reason(error)})
    for address in owing:
        with contextlib.suppress(OSError):  # one that cannot be reached has nothing to abort
            connections.send(address, message)


def connect(address: str, config: ConfigProto, wait_s: float = 0.0) -> ClusterBackend:
    """The cluster of the server at `address`, for which it waits so long if it does not answer. Raises as `ClusterBackend` does."""
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
        message = Message("reset", {"request": 1, "containers": list(containers), "config": config.to_fields()})
        limit = config.operation_timeout_in_ms / 1e3 or None
        call(connections, address, f"the server at {address}", message, "closed", config.peer_timeout_s, limit)
