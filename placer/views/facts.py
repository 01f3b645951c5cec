"""Facts that reports and warnings derive from a plan: predicted times, device blocks, between-graph replication.

Times are predicted with the costs that `simulate` uses. They are not used if sizes are unknown (`is_exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...graph.core.device import DeviceSpec
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ...graph.core.scopes import DeviceBlock
from ..cost.profile import Profile
from ..cost.static import state_bytes
from ..partition.partitioned_graph import task_of
from ..plan_data import PlanData
from ..rules.placement import Rule
from ..rules.replica_device_setter import SETTER
from ..search import bounds
from ..search.from_graph import link_between
from ..search.jit import FEW, interpreted
from ..search.memory_penalty import ROUNDING
from ..search.memory_profile import check_assignment
from ..search.problem import InfeasibleError, Objective, Problem
from ..search.types import Ints
from ..simulate import LAUNCHED, Timeline, is_exact, one_sided_reads, plan_timeline, read_in_place, seconds_of, step_of

SLOWER = 1.1
"""A plan is called slower than one device from this ratio on: predictions are not so good that less would mean anything."""
PREDICTED = 100_000
"""Nodes of plans up to which tables and pages say what is predicted; checks that are asked for always do."""

UNCALIBRATED = " (uncalibrated: `dovetail calibrate` measures this machine)"
"""After a predicted time that rests on typical machines."""


def is_measured(plan: PlanData) -> bool:
    """Whether predicted times use the machine's profile or described speeds, instead of those of a typical machine."""
    cluster = plan.cluster
    return cluster.calibration is not None or bool(cluster.links) or any(d.flops is not None for d in cluster.devices)


@dataclass(frozen=True, slots=True)
class OneWorker:
    """A plan of one worker's step in between-graph replication. `task`: the worker. `others`: the tasks that run the same program."""

    task: str
    others: tuple[str, ...]


class Facts:
    """Facts about a plan, computed on first access."""

    def __init__(self, plan: PlanData) -> None:
        self.plan = plan

    @cached_property
    def device_of(self) -> dict[Node, str]:
        """Each node that the step runs -> the device that runs it; a copied constant: one of them."""
        return {n: device for device, part in self.plan.partitions.items() for n in part.nodes}

    @property
    def nodes(self) -> int:
        """The nodes that devices run in the step; a copied constant counts for each of them."""
        return sum(r.nodes for r in self.plan.loads)

    @property
    def time_source(self) -> str:
        """After a predicted time: in parentheses, what it rests on."""
        if self.plan.cluster.calibration is not None:
            return f" (by the profile of {self.plan.cluster.calibration})"
        return " (by the described speeds)" if is_measured(self.plan) else UNCALIBRATED

    @cached_property
    def state(self) -> dict[Node, str]:
        """Each node in the graph that owns state -> its device."""
        decisions = self.plan.decisions
        return {n: decisions.device_of(n) for n in decisions if Trait.STATE_HANDLE in n.opdef.traits}

    @cached_property
    def is_exact(self) -> bool:
        """Whether times and bytes depend on no unknown size."""
        return is_exact(self.plan)

    @cached_property
    def is_searched(self) -> bool:
        """Whether a search, which compares devices by predicted time, placed nodes."""
        return self.plan.solution is not None or bool((self.plan.decisions.rules == Rule.SEARCHED).any())

    @cached_property
    def one_worker(self) -> OneWorker | None:
        """The worker whose step this is, where `replica_device_setter` made its program between-graph and there are other workers."""
        servers = {job_of(d) for n, d in self.state.items() if setter_block(n) is not None and overriding(n) is None}
        workers = {
            task_of(d) for n, d in self.device_of.items() if setter_block(n) is not None and job_of(d) not in servers
        }
        if len(workers) != 1 or not servers:
            return None
        (task,) = workers
        others = tuple(t for t in self.plan.cluster.tasks if job_of(t) not in servers and t != task)
        return OneWorker(task, others) if others else None

    @cached_property
    def idle_tasks(self) -> tuple[str, ...]:
        """The tasks without nodes and state of the step, except those that run the same program."""
        busy = {task_of(r.device) for r in self.plan.loads}
        busy.update(() if self.one_worker is None else self.one_worker.others)
        return tuple(t for t in self.plan.cluster.tasks if t not in busy)

    @cached_property
    def problem(self) -> tuple[Problem, Ints, list[str], tuple[str, ...]] | None:
        """The step as a problem (`simulate.step_of`); None when nothing runs."""
        return step_of(self.plan) if self.device_of else None

    @cached_property
    def timeline(self) -> Timeline | None:
        """The predicted step; None when nothing runs."""
        return None if self.problem is None else plan_timeline(self.plan, *self.problem)

    @property
    def fits(self) -> bool:
        """Whether the step is predicted to fit into the memory of all devices, including copies of one-sided reads."""
        room = [
            np.inf if d.memory_bytes is None else d.memory_bytes * (1 + ROUNDING) for d in self.plan.cluster.devices
        ]
        if np.isinf(room).all() or self.timeline is None:
            return True
        return bool((np.array(self.timeline.peak) <= room).all())

    def peak(self, device: str) -> int:
        """The most bytes that the step is predicted to need on a device at once; 0 if there is no prediction."""
        if self.timeline is None:
            return 0
        return round(self.timeline.peak[self.timeline.devices.index(device)])

    @cached_property
    def seconds(self) -> float:
        """The predicted time of the step."""
        return 0.0 if self.problem is None else seconds_of(*self.problem[:2], in_order=True)

    @cached_property
    def lower_bound(self) -> float:
        """Seconds: no placement of the step's nodes is predicted to be faster. 0 if there is no prediction."""
        known = self.seconds if self.slower_than is None else self.slower_than[1]
        if self.problem is None:
            return 0.0
        return bounds.lower_bound(self.problem[0], known=known)

    @cached_property
    def link(self) -> Callable[[str, str], tuple[float, float]]:
        """Latency, and seconds per byte, from task to task."""
        return link_between(self.plan.cluster, calibrated=True)

    def bytes_of(self, tensor: Tensor) -> int:
        """The bytes of a tensor; an unknown size counts as 1."""
        return self.plan.sizes.bytes(tensor)

    @property
    def bytes_between_tasks(self) -> int:
        """The bytes that are sent between tasks in one step."""
        return sum(c.bytes for c in self.plan.channels if c.crosses_tasks and not c.direct)

    @cached_property
    def slower_than(self) -> tuple[str, float] | None:
        """(device, seconds) of the fastest device that could run the whole step, if it is predicted to be faster than the plan.

        None for a plan that was searched for throughput, whose steps overlap. If other workers run the same program, the device must be
        faster than all of them together.
        """
        if not self.is_exact or self.problem is None or not self.seconds or minimizes_load(self.plan):
            return None
        alone = fastest_alone(self.problem[0], self.problem[2], self.plan)
        steps = 1 if self.one_worker is None else 1 + len(self.one_worker.others)
        return None if alone is None or steps * alone[1] * SLOWER > self.seconds else alone


def minimizes_load(plan: PlanData) -> bool:
    """Whether a plan was searched for throughput: steps overlap, and a single one may take longer."""
    return plan.solution is not None and plan.solution.minimized is Objective.THROUGHPUT


def fastest_alone(
    problem: Problem, names: Sequence[str], plan: PlanData, costs: Profile | None = None, client: bool = False
) -> tuple[str, float] | None:
    """(name, seconds) of the device that runs the whole step fastest by itself; None if no device can.

    The time is that of `plan.all_on(device)`, whose kernels are fused across the plan's partitions, and which has no transfers. Nodes of
    a large plan count one by one in any case, and this plan is not made.

    Args:
        problem: the plan's step. names: its nodes.
        costs: the costs of the problem, as in `step_of`.
        client: as in `step_of`.
    """
    kinds = set.intersection(*({*n.opdef.device_types} for n in plan.partitioned.nodes))
    work = problem.seconds.sum(axis=1)[problem.device_class]  # without transfers a device works all the time
    state = sum(state_bytes(place)[0] for place in read_in_place(plan))  # it would be there, too
    problem = replace(problem, capacity=problem.capacity - state) if state else problem
    tried: set[tuple[int, float]] = set()
    for d in np.argsort(work, kind="stable").tolist():
        like = int(problem.device_class[d]), float(problem.capacity[d])
        if like in tried or plan.cluster.devices[d].name.device_type not in kinds:
            continue
        tried.add(like)
        whole = np.full(problem.nodes, d, np.int32)
        if fits(problem, whole):
            name = str(plan.cluster.devices[d].name)
            if problem.nodes > LAUNCHED and costs is None and not client:
                once = list(dict(zip(names, range(problem.nodes), strict=True)).values())
                return name, float(problem.seconds[like[0], once].sum()) - sum(one_sided_reads(plan).values())
            if set(plan.partitions) != {name}:
                problem, whole, *_ = step_of(plan.all_on(name), costs=costs, client=client)
            return name, seconds_of(problem, whole, in_order=True)
    return None


def without_compiling(plan: PlanData) -> AbstractContextManager[None]:
    """A context in which loops over a small plan run as Python, which takes less time than compiling them."""
    return interpreted(sum(len(p.steps) for p in plan.partitions.values()) <= FEW)


def fits(problem: Problem, assignment: Ints) -> bool:
    """Whether a step fits into the devices' memory at all times."""
    try:
        check_assignment(problem, assignment)
    except InfeasibleError:
        return False
    return True


def blocks_of(node: Node) -> Iterator[DeviceBlock]:
    """The device blocks around a node, the innermost first."""
    block = node.blocks
    while block is not None:
        yield block
        block = block.outer


def setter_block(node: Node) -> DeviceBlock | None:
    """The innermost block of a `replica_device_setter` around a node, hidden or not."""
    return next((b for b in blocks_of(node) if SETTER in b.describe()), None)


def overriding(node: Node) -> DeviceBlock | None:
    """The block inside a setter's block that names a job or clears devices, and so overrides the setter for the node."""
    if setter_block(node) is None:
        return None
    for block in blocks_of(node):
        if SETTER in block.describe():
            return None
        if block.clears or (block.spec is not None and DeviceSpec.from_string(block.spec).job is not None):
            return block
    return None


def job_of(name: str) -> str:
    """The job's part of a device's or task's name."""
    return name.partition("/replica:")[0].partition("/task:")[0]
