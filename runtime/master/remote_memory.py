"""One-sided access planning: which of a session's tasks read and update variables in each other's memory.

The placer determines which reads, updates and additions could be one-sided (`placer/partition/one_sided_*.py`). When a signature is
prepared, this module asks the tasks whether one reaches the memory of the other (once in a session), and at which addresses the
variables are published (`shared_memory/remote_variables.py` answers). Other variables are sent, or updated by their own task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ...codegen.ir.partition import Posted
from ...graph.core.graph import Node, Tensor
from ...graph.core.settings import setting
from ...graph.resources.accumulator import AccumulatorKind
from ...placer.partition.one_sided_accumulates import DirectAddition, added, direct_additions
from ...placer.partition.one_sided_reads import DirectRead
from ...placer.partition.one_sided_updates import DirectUpdate, direct_updates, moved
from ...placer.partition.partitioned_graph import task_of
from ..shared_memory.record_layout import MOST_BYTES
from ..shared_memory.remote_variables import accumulator_name, kind_of
from .lowering import RemoteUpdates
from .session_state import MasterSession
from .worker_clients import WorkerClients


class OneSidedAccess:
    """Asks tasks about each other's memory, for a master."""

    def __init__(self, workers: WorkerClients) -> None:
        self._workers = workers

    def published(self, session: MasterSession, reads: Iterable[DirectRead]) -> dict[int, Posted]:
        """The published variables, by channel, that the reading task can read in the memory of their task."""
        by_task: dict[str, list[DirectRead]] = {}
        for read in reads:
            task = task_of(read.channel.source)
            if self._sees(session, task_of(read.channel.destination), task):
                by_task.setdefault(task, []).append(read)
        found = {}
        for task, wanted in by_task.items():
            incarnation, places = self._post(session, task, [r.place[1:] for r in wanted], False)
            for read, at in zip(wanted, places, strict=True):
                if at is not None:
                    node, name = read.reader, read.place[1:]
                    op = node.type if node.inputs else "Read"
                    found[read.channel.id] = Posted(tuple(at), incarnation, *name, node.name, op, str(node.source))
        return found

    def updates(
        self, session: MasterSession, nodes: Sequence[Node], device_of: Callable[[Node], str], fed: Collection[Tensor]
    ) -> tuple[Callable[[Node], str], RemoteUpdates]:
        """The device of each node of a step, and the variables and accumulators that a task other than their own updates."""
        if not (setting("DOVETAIL_ONE_SIDED_READS") and setting("DOVETAIL_ONE_SIDED_UPDATES")):
            return device_of, {}
        home = device_of
        device_of, reached = self._added(session, nodes, home, fed)
        opened: dict[tuple[str, str], dict[Node, Posted]] = {}
        staying: set[str] = set()
        while True:  # if a part cannot move from its task, parts that exchange tensors with it may have to stay, too
            updates = direct_updates(nodes, device_of, session.cluster, fed, MOST_BYTES, staying)
            for update in updates:
                pair = update.task, update.by
                if pair not in opened:
                    opened[pair] = self._opened(session, update)
            failed = {u.task for u in updates if not opened[u.task, u.by]}
            if not failed:
                break
            staying |= failed
        reached |= {node: (home(node), at) for u in updates for node, at in opened[u.task, u.by].items()}
        return (moved(updates, device_of) if updates else device_of), reached

    def _added(
        self, session: MasterSession, nodes: Sequence[Node], device_of: Callable[[Node], str], fed: Collection[Tensor]
    ) -> tuple[Callable[[Node], str], dict[Node, tuple[str, Posted]]]:
        """The same for accumulators to which a task other than their own adds."""
        additions = [
            a
            for a in direct_additions(nodes, device_of, session.cluster, fed, MOST_BYTES)
            if self._sees(session, task_of(a.by), a.task)
        ]
        by_task: dict[str, list[DirectAddition]] = {}
        for addition in additions:
            by_task.setdefault(addition.task, []).append(addition)
        done, reached = [], {}
        for task, wanted in by_task.items():
            names = []
            for a in wanted:
                kind = kind_of(a.accumulator)
                assert isinstance(kind, AccumulatorKind)
                name = a.accumulator.attrs["shared_name"] or a.accumulator.name
                names.append(accumulator_name(a.accumulator.container, name, kind))
            incarnation, places = self._post(session, task, names, True)
            for a, name, at in zip(wanted, names, places, strict=True):
                if at is not None:
                    node = a.accumulator
                    posted = Posted(tuple(at), incarnation, name[0], name[1], node.name, node.type, str(node.source))
                    reached[node] = device_of(node), posted
                    done.append(a)
        return (added(done, device_of) if done else device_of), reached

    def _opened(self, session: MasterSession, update: DirectUpdate) -> dict[Node, Posted]:
        """The published records of a part's variables, writable for another task; empty if one of them cannot be published."""
        if not self._sees(session, task_of(update.by), update.task):
            return {}
        incarnation, places = self._post(session, update.task, [place[1:] for _, place in update.variables], True)
        found = {}
        for (node, place), at in zip(update.variables, places, strict=True):
            if at is None:
                return {}
            found[node] = Posted(tuple(at), incarnation, *place[1:], node.name, node.type, str(node.source))
        return found

    def _sees(self, session: MasterSession, task: str, owner: str) -> bool:
        """Whether a task can read the memory of another one; cached for the session."""
        pair = owner, task
        if pair not in session.near:
            session.near[pair] = self._workers.sees(task, owner, session.config.peer_timeout_s)
        return session.near[pair]

    def _post(
        self, session: MasterSession, task: str, names: Sequence[Sequence[str]], changed: bool
    ) -> tuple[int, Sequence[Sequence[int] | None]]:
        config = session.config
        return self._workers.post(
            task, session.handle, session.seed, config.isolate_session_state, names, config.peer_timeout_s, changed
        )


__all__ = ["OneSidedAccess"]
