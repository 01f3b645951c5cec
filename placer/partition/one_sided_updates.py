"""One-sided updates: a task runs another task's part of a step in its memory, without a message.

A parameter server's part of a training step often only reads and changes variables. A worker that exchanges values with it can run that
part itself if it can map the server's memory: then no gradient and no acknowledgement is sent, and no thread wakes up for it.

    ps       w ── Identity ── send ──┐                 receive ── Apply ...            ps       (w)
    worker                   receive ┴── MatMul ... ── send                            worker   w ── MatMul ... ── Apply ...

Nothing that a step computes may depend on it, so parts are moved as they are, and whole. A part can be moved

- whose nodes are variables, what reads them and passes their values on, updates by a dense gradient, assignments, and small arithmetic in
  which nothing is random: no queues, accumulators, tables, Python functions, nothing sparse; one of them changes a variable;
- where each value has a known size that can be read directly;
- of a task with nothing on a GPU, in a step without loops and branches.

Tasks that exchange values with each other are moved together, to the one other task that they exchange values with. If there are several
such tasks, the parts stay: none of those could run all of them without messages. The placement does not change: variables stay where
they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...graph.core.dtypes import resource
from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import OpDef, Trait
from ...graph.core.shape import element_count
from ...graph.ops.state.training import RULES, update_op
from ...graph.ops.state.variables import type_and_dims
from ..cluster.spec import Cluster
from .control_edges import bypassed_noops, without_bypassed
from .insert_channels import COPIED_BYTES, is_copied
from .one_sided_reads import VARIABLES, Place, place_at
from .partitioned_graph import Partition, task_of

_ACCUMULATES = frozenset(f"Assign{how}{kind}" for how in ("Add", "Sub") for kind in ("", "VariableOp"))
_UPDATES = _ACCUMULATES | {
    update_op(rule, is_ref=is_ref, is_sparse=False) for rule in RULES for is_ref in (False, True)
}
_ASSIGNS = frozenset(("Assign", "AssignVariableOp"))
_HANDS_ON = frozenset(("Identity", "ReadVariableOp", "NoOp", "Const"))


@dataclass(frozen=True, slots=True)
class DirectUpdate:
    """A task's part of a step that another task could run.

    Attributes:
        task: whose part it is. by: the device that could run it.
        variables: what it would have to map for that: nodes with their places.
    """

    task: str
    by: str
    variables: tuple[tuple[Node, Place], ...]


def direct_updates(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    cluster: Cluster,
    feeds: Collection[Tensor],
    most_bytes: int,
    staying: Collection[str] = (),
) -> list[DirectUpdate]:
    """The parts of a step that other tasks could run if they can map the owners' memory.

    Args:
        nodes: what the step runs, inputs first. device_of: where each is placed.
        feeds: tensors that the client gives.
        most_bytes: most of a variable.
        staying: tasks whose parts stay where they are.
    """
    if not any(n.type in _UPDATES for n in nodes) or has_control_flow(nodes):
        return []
    device = {n: device_of(n) for n in nodes}
    parts: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        parts[task_of(device[node])].append(node)
    moving = {task for task, part in parts.items() if task not in staying and _can_move(part, device, most_bytes)}
    if not moving:
        return []
    found: list[DirectUpdate] = []
    # A group on another task that is passed over may be what makes that task the only one besides: then all is done there.
    for bypassed in (bypassed_noops(nodes, device_of), {}):
        neighbours, possible = _exchanges(nodes, device, feeds, bypassed), []
        for group in _groups(moving, neighbours):
            others = {other for task in group for other in neighbours[task]} - group
            if len(others) != 1 or not any(n.type in _UPDATES for task in group for n in parts[task]):
                continue
            (other,) = others
            here = cpu_of(other, {device[n] for n in parts[other]}, cluster)
            if here is not None:
                possible += [
                    DirectUpdate(task, here, tuple(_variables(parts[task], device))) for task in parts if task in group
                ]
        found = max(found, possible, key=len)
        if len(found) == len(moving) or not bypassed:
            break
    return found


def _can_move(part: Sequence[Node], device: Mapping[Node, str], most_bytes: int) -> bool:
    holds = False
    for node in part:
        if "/device:CPU:" not in device[node]:
            return False
        if node.type in VARIABLES:
            dtype, dims = node.attrs["dtype"], node.attrs["shape"]
            count = element_count(dims)
            if dtype.np.kind == "O" or not count or count * dtype.size > most_bytes:
                return False
            holds = True
        elif node.type in _UPDATES or node.type in _ASSIGNS:
            _, dims = type_and_dims(node.inputs[0])
            if dims is None or node.attrs.get("validate_shape") is False:
                return False
        elif node.type not in _HANDS_ON and not _is_small(node):
            return False
    return holds


def _is_small(node: Node) -> bool:
    """Whether a node is arithmetic of a few numbers."""
    op: OpDef = node.opdef
    if (
        op.traits & (Trait.STATEFUL | Trait.BLOCKING | Trait.COLLECTIVE | Trait.HOST_ONLY | Trait.STATE_HANDLE)
        or op.ref_inputs
    ):
        return False
    for t in (*node.inputs, *node.outputs):
        dtype, count = t.dtype.base, element_count(t.dims)
        if dtype is resource or dtype.np.kind == "O" or count is None or count * dtype.size > COPIED_BYTES:
            return False
    return True


def _exchanges(
    nodes: Sequence[Node],
    device: Mapping[Node, str],
    feeds: Collection[Tensor],
    bypassed: Mapping[Node, tuple[Node, ...]],
) -> dict[str, set[str]]:
    """Task -> the tasks that it exchanges messages with. `bypassed`: as `control_edges.bypassed_noops` gives it."""
    neighbours: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if node in bypassed:
            continue
        here = task_of(device[node])
        for before in (*(t.op for t in node.inputs if t not in feeds), *without_bypassed(node.controls, bypassed)):
            there = task_of(device[before]) if before in device else here
            if there != here and not is_copied(before):
                neighbours[here].add(there)
                neighbours[there].add(here)
    return neighbours


def _groups(tasks: Collection[str], neighbours: Mapping[str, Collection[str]]) -> Iterator[set[str]]:
    """These tasks, grouped by who exchanges messages with whom, directly or through others of them."""
    left = set(tasks)
    while left:
        group: set[str] = set()
        todo = [min(left)]
        while todo:
            task = todo.pop()
            if task not in group:
                group.add(task)
                todo += [t for t in neighbours.get(task, ()) if t in left]
        left -= group
        yield group


def cpu_of(task: str, devices: Collection[str], cluster: Cluster) -> str | None:
    """The device on which a task would run what is moved to it: its CPU; None: its own part is on GPUs, too."""
    if any("/device:CPU:" not in d for d in devices):
        return None
    here = f"{task}/device:CPU:0"
    return here if here in cluster else None


def _variables(part: Sequence[Node], device: Mapping[Node, str]) -> Iterator[tuple[Node, Place]]:
    for node in part:
        if node.type in VARIABLES:
            yield node, place_at(node, device[node])


def moved(updates: Sequence[DirectUpdate], device_of: Callable[[Node], str]) -> Callable[[Node], str]:
    """Where nodes run, with these parts moved."""
    by = {u.task: u.by for u in updates}

    def runs_on(node: Node) -> str:
        home = device_of(node)
        return by.get(task_of(home), home)

    return runs_on


def moved_parts(partitions: Mapping[str, Partition], device_of: Callable[[Node], str]) -> dict[str, str]:
    """The tasks whose parts of a step others run, each with the device that does."""
    found = {}
    for device, part in partitions.items():
        for node in part.nodes:
            if node.type in VARIABLES:
                home = task_of(device_of(node))
                if home != task_of(device):
                    found[home] = device
    return found


def moved_updates(partitions: Mapping[str, Partition], device_of: Callable[[Node], str]) -> dict[Node, int]:
    """The updates that tasks do in the memory of others -> the bytes of the variable that each changes."""
    found = {}
    for device, part in partitions.items():
        for node in part.nodes:
            if (node.type in _UPDATES or node.type in _ASSIGNS) and task_of(device_of(node)) != task_of(device):
                dtype, dims = type_and_dims(node.inputs[0])
                found[node] = (element_count(dims) or 0) * dtype.size
    return found


__all__ = ["DirectUpdate", "cpu_of", "direct_updates", "moved", "moved_parts", "moved_updates"]
