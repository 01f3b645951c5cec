"""One-sided access: which tasks of a cluster use the variables of others in their memory, and the passes of a plan that ask for it.

`one_sided_reads.py`, `one_sided_updates.py` and `one_sided_accumulates.py` find the reads, updates and additions of a step that *could*
be done in another task's memory. Whether they are depends on the tasks: a `MemoryAccess` says which memory each can map. That of a running
cluster's master queries the tasks (`runtime/master/master.py`); without one, `AssumedAccess` derives it from the cluster's description. A
plan keeps the answers (`OneSidedAccess`), since it is valid only with them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from ...graph.core.graph import Node, Tensor
from ...graph.core.settings import setting
from ...graph.core.shape import element_count
from ...graph.ops.state.accumulators import ACCUMULATOR
from ..cluster.spec import Cluster
from .insert_channels import is_copied
from .one_sided_accumulates import added, direct_additions
from .one_sided_reads import VARIABLES, Place, bare_reader, direct_reads, place_at, read_directly
from .one_sided_updates import DirectUpdate, direct_updates, moved
from .partitioned_graph import Partition, Partitioned, task_of

T = TypeVar("T")

MOST_BYTES: Final = 1 << 20
"""The largest value that is used in another task's memory. Larger ones are sent: copying them costs more than two messages."""

SHARED: Final = VARIABLES | {ACCUMULATOR}
"""Ops that hold values which other tasks may use in memory."""

_VALUES = frozenset(("VariableV2", "ReadVariableOp", "Identity"))

SharedNode: TypeAlias = tuple[Node, Place]
"""A variable or accumulator, or the node that reads a variable, and the place of its value."""


class MemoryAccess(Protocol):
    """Says which memory of other tasks a task can map, and what is published in it."""

    @property
    def found(self) -> bool:
        """Whether running tasks were queried; False: the answers are assumptions."""
        ...

    def reaches(self, task: str, owner: str) -> bool:
        """Whether `task` can map the memory of `owner`."""
        ...

    def publishes(self, owner: str, shared: Sequence[SharedNode], writable: bool) -> Sequence[bool]:
        """Whether `owner` lets others read each of these, or also change it if `writable`."""
        ...


@dataclass(frozen=True, slots=True)
class AssumedAccess:
    """The access that is assumed from the description of a cluster.

    Attributes:
        cluster: the description.
        shared_memory: whether tasks share memory; None: those of one host do (`Cluster.same_host`).
    """

    cluster: Cluster
    shared_memory: bool | None = None
    found = False

    def reaches(self, task: str, owner: str) -> bool:
        """As `MemoryAccess.reaches`."""
        if self.shared_memory is not None:
            return self.shared_memory
        return bool(setting("DOVETAIL_SHARED_MEMORY_MB")) and self.cluster.same_host(task, owner)

    def publishes(self, owner: str, shared: Sequence[SharedNode], writable: bool) -> Sequence[bool]:
        """As `MemoryAccess.publishes`. Variables that may lie in a GPU's memory, or are kept twice, are changed by their task alone."""
        on_gpu = any(d.name.device_type == "GPU" and not d.emulated for d in self.cluster.devices_of(owner))
        kept_twice = setting("DOVETAIL_PS_REPLICAS") > 1 and owner.startswith("/job:ps/")
        return [not (writable and (on_gpu or (kept_twice and node.type != ACCUMULATOR))) for node, _ in shared]


class Refusal(NamedTuple):
    """A task that does not use the memory of another one, although the step would allow it.

    Attributes:
        task: the task that would. owner: the task with the memory.
        variable: the variable or accumulator that the owner does not publish; empty: the task does not reach the memory at all.
    """

    task: str
    owner: str
    variable: str = ""


@dataclass(frozen=True, slots=True)
class OneSidedAccess:
    """What a plan assumes, or what was found, of tasks that use each other's memory: only where its step has use for it.

    Attributes:
        found: whether running tasks were queried; False: it is assumed from the cluster's description.
        used: (task, owner) of each task that uses the memory of another one.
        refused: what could not be used.
    """

    found: bool = False
    used: tuple[tuple[str, str], ...] = ()
    refused: tuple[Refusal, ...] = ()

    @property
    def how(self) -> str:
        """`found` or `assumed`."""
        return "found" if self.found else "assumed"

    def refusals(self, owner: str, name: str) -> list[Refusal]:
        """What kept other tasks from the memory of `owner`, or from its variable of that name."""
        return [r for r in self.refused if r.owner == owner and r.variable in ("", name)]


class OneSidedPasses:
    """The passes of one plan that let tasks use each other's memory. They ask each question once, and keep the answers.

    Args:
        access: what answers. feeds: tensors that the client gives to the step.
    """

    def __init__(self, access: MemoryAccess, feeds: Collection[Tensor]) -> None:
        self._access, self._feeds = access, feeds
        self._reached: dict[tuple[str, str], bool] = {}
        self._refused: dict[Refusal, None] = {}
        self._used: dict[tuple[str, str], None] = {}

    def updates(
        self, nodes: Sequence[Node], device_of: Callable[[Node], str], cluster: Cluster
    ) -> Callable[[Node], str]:
        """The device that runs each node of a step, with the updates and additions that other tasks than the owner do."""
        is_on = setting("DOVETAIL_ONE_SIDED_READS") and setting("DOVETAIL_ONE_SIDED_UPDATES")
        if not is_on or len(cluster.tasks) < 2:
            return device_of
        additions = self._possible(
            direct_additions(nodes, device_of, cluster, self._feeds, MOST_BYTES),
            lambda a: (task_of(a.by), a.place[0]),
            lambda a: (a.accumulator, a.place),
            writable=True,
        )
        device_of = added(additions, device_of) if additions else device_of
        answers: dict[DirectUpdate, bool] = {}
        staying: set[str] = set()
        while True:  # if a part cannot move from its task, parts that exchange tensors with it may have to stay, too
            updates = direct_updates(nodes, device_of, cluster, self._feeds, MOST_BYTES, staying)
            for update in updates:
                if update not in answers:
                    answers[update] = all(
                        self._publishes(task_of(update.by), update.task, update.variables, writable=True)
                    )
            failed = {u.task for u in updates if not answers[u]}
            if not failed:
                break
            staying |= failed
        self._used.update(((task_of(u.by), u.task), None) for u in updates)
        return moved(updates, device_of) if updates else device_of

    def reads(
        self,
        cut: Partitioned,
        nodes: Sequence[Node],
        home: Callable[[Node], str],
        keep: Collection[Node],
        bypassed: Mapping[Node, tuple[Node, ...]],
    ) -> Partitioned:
        """The same step with the values read in place that can be; the arguments are those of `direct_reads` and `read_directly`."""
        if not setting("DOVETAIL_ONE_SIDED_READS") or len(set(map(task_of, cut.partitions))) < 2:
            return cut
        reads = self._possible(
            direct_reads(cut, nodes, self._feeds, MOST_BYTES, home),
            lambda r: (task_of(r.channel.destination), task_of(r.channel.source)),
            lambda r: (r.reader, r.place),
            writable=False,
        )
        return read_directly(cut, reads, keep, bypassed)

    def _possible(
        self,
        accesses: Iterable[T],
        way_of: Callable[[T], tuple[str, str]],
        shared_by: Callable[[T], SharedNode],
        *,
        writable: bool,
    ) -> list[T]:
        """Those of the accesses that can be done in the owners' memory; `way_of` gives (task, owner). They are recorded as used."""
        ways: dict[tuple[str, str], list[T]] = {}
        for access in accesses:
            ways.setdefault(way_of(access), []).append(access)
        possible: list[T] = []
        for way, some in ways.items():
            answers = self._publishes(*way, [shared_by(a) for a in some], writable=writable)
            if any(answers):
                possible += compress(some, answers)
                self._used[way] = None
        return possible

    def _publishes(self, task: str, owner: str, shared: Sequence[SharedNode], *, writable: bool) -> Sequence[bool]:
        way = task, owner
        if way not in self._reached:
            self._reached[way] = self._access.reaches(task, owner)
        if not self._reached[way]:
            self._refused[Refusal(task, owner)] = None
            return [False] * len(shared)
        answers = self._access.publishes(owner, shared, writable)
        refused = (place[2] for (_, place), answer in zip(shared, answers, strict=True) if not answer)
        self._refused.update((Refusal(task, owner, name), None) for name in refused)
        return answers

    @property
    def result(self) -> OneSidedAccess:
        """The answers so far."""
        return OneSidedAccess(self._access.found, tuple(self._used), tuple(self._refused))


def at_hand(
    nodes: Iterable[Node], cluster: Cluster, access: MemoryAccess, feeds: Collection[Tensor], variables: bool = True
) -> set[Tensor]:
    """The values that no plan of a step sends to another task, wherever their nodes are placed: a search charges no transfer.

    These are small constants, which each task makes for itself, and values of `variables` if all tasks are on CPUs and map each other's
    memory. For a running cluster that is assumed from its description, since a search runs before the tasks are queried.
    """
    found = {n.outputs[0] for n in nodes if is_copied(n)}
    if not isinstance(access, AssumedAccess):
        access = AssumedAccess(cluster)
    tasks = dict.fromkeys(d.name.task_name for d in cluster.devices)
    if (
        variables
        and setting("DOVETAIL_ONE_SIDED_READS")
        and all(d.name.device_type == "CPU" for d in cluster.devices)
        and all(access.reaches(a, b) for a in tasks for b in tasks if a != b)
    ):
        found.update(t for n in nodes if n.type in _VALUES for t in n.outputs if _is_read_in_place(t, feeds))
    return found


def _is_read_in_place(value: Tensor, feeds: Collection[Tensor]) -> bool:
    dtype, count = value.dtype.base, element_count(value.dims)
    if dtype.np.kind == "O" or not count or count * dtype.size > MOST_BYTES:
        return False
    # An Identity that may be on another device than the variable has a copy of the value, which is sent.
    if value.op.type == "Identity" and not value.op.colocation:
        return False
    return bare_reader(value, feeds) is not None


def remote_places(part: Partition, device_of: Callable[[Node], str]) -> dict[Node, Place]:
    """The variables and accumulators of other tasks that a partition changes; `device_of`: where each is placed."""
    here = task_of(part.device)
    return {
        node: place_at(node, device_of(node))
        for node in part.nodes
        if node.type in SHARED and task_of(device_of(node)) != here
    }


__all__ = [
    "MOST_BYTES", "SHARED", "AssumedAccess", "MemoryAccess", "OneSidedAccess", "OneSidedPasses", "Refusal", "SharedNode", "at_hand",
    "remote_places",
]  # fmt: skip
