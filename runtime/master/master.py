"""The master service: it turns a session's run signatures into programs on tasks.

Every server has one; a session talks to the one at its target. The master keeps each session's graph and places it. For each run
signature (fetches, targets, feeds) it prunes the graph, partitions it, and registers every task's part with that task's worker. It
takes no part in the steps: the client sends each step directly to the tasks that take part, and they answer it directly.

It uses no sockets. It reaches the tasks through `Workers`.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from ...codegen.ir.partition import PartitionGraph
from ...graph.core.errors import AbortedError, invalid
from ...graph.core.graph import Graph
from ...graph.core.interpreter_state import collector_paused
from ...placer.cluster.spec import Cluster
from ...placer.cost.profile import as_profile
from ...placer.partition.one_sided_access import SharedNode
from ...placer.partition.one_sided_reads import Place
from ...placer.partition.partitioned_graph import task_of
from ...placer.partition.prune import named
from ...placer.pipeline import Kept, PlanOptions, objective_of, plan_step
from ...placer.plan import Plan
from ...placer.rules.placement import Placement
from ..config import ConfigProto
from ..shared_memory.remote_variables import name_of
from ..wire.messages import Message
from ..worker.registration import Registration
from .lowering import Published, lower_partitions
from .workers import Workers

logger = logging.getLogger(__name__)

Signature: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""What identifies a kind of step: the names of the tensors to return, of the nodes to run, and of the tensors that are fed."""


@dataclass(frozen=True, slots=True)
class TaskPart:
    """The client's description of one task's part of a run signature.

    Attributes:
        task: `/job:ps/replica:0/task:0`.
        incarnation: incarnation of the task's process when the part was registered.
        feeds: names of the values that are fed to it.
        fetches: names of the values that it returns, in order.
    """

    task: str
    incarnation: int
    program: str
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]


@dataclass(slots=True)
class MasterSession:
    """The master's state of one session."""

    handle: str
    config: ConfigProto
    cluster: Cluster
    graph: Graph
    seed: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    client: str = ""  # the name of the process that opened it
    owner: str = ""  # the key of that process
    heard: tuple[bytes, float] = b"", math.inf  # the connection and time of the client's last message
    # The last plan, which has placed the whole graph; None where only the nodes that a run needs are placed.
    placed: Plan | None = None
    assigned: dict[str, str] = field(default_factory=dict)  # devices of stateful nodes
    plans: dict[str, Plan] = field(default_factory=dict)  # handle -> its plan
    # (owner, reader) -> whether the reader can read the owner's memory.
    reachable: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def kept(self) -> Kept:
        """What earlier steps have decided. The whole graph is placed again when it has grown; stateful nodes keep their devices."""
        if self.config.graph_options.place_pruned_graph:
            return Kept(assigned=self.assigned, pruned=True)
        if self.placed is not None and len(self.placed.decisions) == self.graph.version:
            return Kept(self.placed.decisions, self.placed.solution)
        return Kept(assigned=self.assigned, later_steps=True)

    def keep(self, plan: Plan) -> None:
        """Store what a plan has decided."""
        if not self.config.graph_options.place_pruned_graph:
            self.placed = plan
        self.assigned.update((n.name, plan.decisions.device_of(n)) for n in plan.decisions if n.opdef.is_stateful)


class Master:
    """The sessions of one server, or the one session in this process."""

    def __init__(self, task: str, workers: Workers) -> None:
        self.task = task
        self._workers = workers
        self._sessions: dict[str, MasterSession] = {}
        self._lock = threading.Lock()

    def create_session(
        self, config: ConfigProto, graph: Graph | None = None, *, on_missing: Callable[[Sequence[str]], None] | None = None,
        is_abandoned: Callable[[], bool] | None = None, client: str = "", owner: str = "",
    ) -> MasterSession:  # fmt: skip
        """Open a session on all devices that `config.device_filters` admit.

        `graph` is the client's own graph when client and master share a process and the graph; else the session has a copy
        that `extend` keeps up to date. `on_missing` and `is_abandoned` are those of `Workers.devices`; `client` and `owner` are the name
        and the key of the process that opens the session.
        """
        cluster = self._workers.devices(config, on_missing, is_abandoned)
        handle, seed = secrets.token_hex(8), secrets.randbits(63)
        graph = Graph() if graph is None else graph
        session = MasterSession(handle, config, cluster, graph, seed, client=client, owner=owner)
        with self._lock:
            self._sessions[session.handle] = session
        return session

    def sessions(self) -> list[MasterSession]:
        return list(self._sessions.values())

    def find(self, handle: str | None) -> MasterSession | None:
        """A session by its handle; None: it does not exist or is closed."""
        return self._sessions.get(handle) if handle is not None else None

    def session(self, handle: str) -> MasterSession:
        """A session by its handle; AbortedError: it does not exist or is closed."""
        found = self._sessions.get(handle)
        if found is None:
            raise AbortedError.of(
                f"Session {handle} is not found at {self.task}: the server was restarted, or the session was closed or reset. "
                "Make a new session."
            )
        return found

    @contextmanager
    def _planning(self, handle: str) -> Iterator[MasterSession]:
        """A session, locked, for a call that uses its tasks. If the session is closed meanwhile, they forget what the call has made."""
        session = self.session(handle)
        with session.lock:
            try:
                yield session
            finally:
                if handle not in self._sessions:
                    self._forget(session)

    def prepare(
        self, handle: str, signature: Signature, warm: bool = False, deterministic: bool = False
    ) -> list[TaskPart]:
        """Register the programs of one signature with the tasks that take part, and return the tasks' parts.

        Args:
            warm: compile all kernels before this returns.
            deterministic: see `KernelOptions`.

        Raises:
            InvalidArgumentError: a node cannot be placed; a placeholder is needed and not fed; a name is unknown.
            UnavailableError: a task that takes part cannot be reached.
        """
        with self._planning(handle) as session, collector_paused():
            plan, published = self._plan(session, signature)
            if session.config.log_device_placement:
                self._log_placement(session, plan.decisions)
            session.keep(plan)
            by_task: dict[str, list[PartitionGraph]] = {}
            for partition in lower_partitions(plan.partitioned, session.graph, plan.decisions.device_of, published):
                by_task.setdefault(task_of(partition.device), []).append(partition)
            program, config = secrets.token_hex(8), session.config
            registrations = {
                task: Registration(
                    program, handle, tuple(partitions), session.seed, config.isolate_session_state,
                    config.kernel_options(warm, deterministic), config.peer_timeout_s, session.client,
                )
                for task, partitions in by_task.items()
            }  # fmt: skip
            incarnations = self._workers.register(registrations, config.peer_timeout_s)
            session.plans[program] = plan
            return [
                TaskPart(
                    task, incarnations[task], program,
                    tuple(dict.fromkeys(name for p in partitions for name, _ in p.feeds)),
                    tuple(dict.fromkeys(name for p in partitions for name, _ in p.fetches)),
                )
                for task, partitions in by_task.items()
            ]  # fmt: skip

    def plan(self, handle: str, signature: Signature, program: str = "") -> Plan:
        """The plan that a signature would get if it were prepared now, or the plan of the prepared `program`.

        It has no side effects: a later `prepare` gives the same plan.

        Raises:
            InvalidArgumentError: as `prepare`; or `program` is not prepared, or is released.
        """
        with self._planning(handle) as session:
            if not program:
                return self._plan(session, signature)[0]
            found = session.plans.get(program)
            if found is None:
                raise invalid(f"No program {program} is prepared in session {handle}")
            return found

    def _plan(self, session: MasterSession, signature: Signature) -> tuple[Plan, Published]:
        """The plan of a signature, and the published variables that it uses in other tasks' memory."""
        graph, config = session.graph, session.config
        fetches, targets, feeds = signature
        try:
            fetched, run = named(graph, fetches, targets)
            fed, _ = named(graph, feeds, ())
            costs = as_profile(config.placement_costs)
            options = PlanOptions(
                allow_soft_placement=bool(config.allow_soft_placement),
                strategy=config.placement_strategy,
                enable_bfloat16_sendrecv=bool(config.graph_options.enable_bfloat16_sendrecv),
                enable_recv_scheduling=bool(config.graph_options.enable_recv_scheduling),
                costs=costs,
                objective=objective_of(costs),
            )
        except (KeyError, ValueError, TypeError) as e:
            raise invalid(str(e)) from None
        access = FoundAccess(self._workers, session)
        plan = plan_step(
            graph, session.cluster, options, access, fetches=fetched, targets=run, feeds=fed, kept=session.kept
        )
        return plan, access.published

    def _log_placement(self, session: MasterSession, placement: Placement) -> None:
        """Log the devices of newly placed nodes, and the device requests that are not met."""
        known = 0 if session.placed is None else len(session.placed.decisions)
        for node in placement:
            if node.index >= known:
                logger.warning("%s: (%s): %s", node.name, node.type, placement.device_of(node))
        for r in placement.relaxations:
            if session.graph.get_operation_by_name(r.node).index >= known:
                logger.warning("%s requested '%s', assigned %s: %s", r.node, r.requested, r.chosen, r.reason)

    def close_session(self, handle: str) -> None:
        """Forget a session here and on all its tasks. Closing an unknown session does nothing."""
        with self._lock:
            session = self._sessions.pop(handle, None)
        if session is not None:
            self._forget(session)

    def _forget(self, session: MasterSession) -> None:
        for task in session.cluster.tasks:
            self._workers.close_session(task, session.handle)

    def reset(self, containers: Iterable[str], config: ConfigProto) -> None:
        """Clear containers on all tasks that the config admits, and close all sessions of this master."""
        cluster = self._workers.devices(config)
        names, sessions = list(containers), list(self._sessions)
        messages = {
            task: Message("reset_containers", {"containers": names, "sessions": sessions}) for task in cluster.tasks
        }
        self._workers.call_all(messages, config.peer_timeout_s)
        for handle in sessions:
            self.close_session(handle)


class FoundAccess:
    """Tells the placer, for one plan, which one-sided reads, updates and additions are possible: its `MemoryAccess`.

    It asks the tasks whether one reaches the memory of the other, and at which addresses the variables are published
    (`shared_memory/remote_variables.py` answers). Other variables are sent, or updated by their own task.

    Attributes:
        published: the incarnation of the owner's process and the address of the record, for each place that is published.
    """

    found = True

    def __init__(self, workers: Workers, session: MasterSession) -> None:
        self._workers, self._session = workers, session
        self._asked: dict[tuple[Place, bool], bool] = {}  # (place, writable) -> whether it is published so
        self.published: dict[Place, tuple[int, tuple[int, ...]]] = {}

    def reaches(self, task: str, owner: str) -> bool:
        """Whether a task can read the memory of another one; remembered for the session."""
        reachable, pair = self._session.reachable, (owner, task)
        if pair not in reachable:
            call, patience = self._workers.call, self._session.config.peer_timeout_s
            page = call(owner, "expose_memory", patience)["page"]
            reachable[pair] = page is not None and call(task, "map_memory", patience, page=page)["readable"]
        return reachable[pair]

    def publishes(self, owner: str, wanted: Sequence[SharedNode], writable: bool) -> Sequence[bool]:
        """Whether the owner publishes each of these, for changes by others if `writable`."""
        new = {place: node for node, place in wanted if (place, writable) not in self._asked}
        if new:
            session, config = self._session, self._session.config
            found = self._workers.call(
                owner, "publish", config.peer_timeout_s, session=session.handle, seed=session.seed, changed=writable,
                isolated=config.isolate_session_state, names=[name_of(node, *place[1:]) for place, node in new.items()],
            )  # fmt: skip
            for place, address in zip(new, found["places"], strict=True):
                self._asked[place, writable] = address is not None
                if address is not None:
                    self.published[place] = found["incarnation"], tuple(address)
        return [self._asked[place, writable] for _, place in wanted]
