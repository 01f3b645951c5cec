"""One-sided accumulates: a worker adds gradients to the accumulators of a parameter server, in its memory, without a message.

In synchronous training a worker's part of a step on a parameter server adds gradients to accumulators, and on the server of the global
step it then waits for a token. The additions alone can be done by the worker, where it reaches that memory: then no gradient
travels, and the parameter servers have nothing to do before all are there.

    ps       AccumulatorApplyGradient ── Dequeue      ps                                   ┌─ Dequeue
    worker   ... gradient ┘                           worker   ... gradient ── Apply... ───┘

An accumulator's additions are moved to where their gradients are made

- if this step does nothing else with it: another step takes from it;
- if all that they take and wait for comes from one task, or is a constant that every task can make for itself;
- if the sum has a known size that can be mapped, and is on a CPU, as that task's part of the step is; in a step without
  loops and branches.

A placement does not change by this, as with one-sided updates (`one_sided_updates.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ...graph.core.frames import has_control_flow
from ...graph.core.graph import Node, Tensor
from ...graph.ops.state.accumulators import ACCUMULATOR, ADDITION
from ...graph.resources.shared_accumulator import state_bytes
from ..cluster.spec import Cluster
from .insert_channels import is_copied
from .one_sided_reads import Place, place_at
from .one_sided_updates import cpu_of
from .partitioned_graph import Partition, task_of


@dataclass(frozen=True, slots=True)
class DirectAddition:
    """An accumulator to which another task than its own could add.

    Attributes:
        accumulator: the node that makes it. additions: those that add to it.
        place: where the sum is. by: the device that could add.
    """

    accumulator: Node
    additions: tuple[Node, ...]
    place: Place
    by: str


def direct_additions(
    nodes: Sequence[Node],
    device_of: Callable[[Node], str],
    cluster: Cluster,
    feeds: Collection[Tensor],
    most_bytes: int,
) -> list[DirectAddition]:
    """The accumulators to which other tasks could add if they can map the owners' memory.

    Args:
        nodes: what the step runs, inputs first. device_of: where each is placed.
        feeds: tensors that the client gives.
        most_bytes: most of a state.
    """
    makers = [n for n in nodes if n.type == ACCUMULATOR]
    if not makers or has_control_flow(nodes):
        return []
    running = set(nodes)
    takers: dict[Node, list[Node]] = defaultdict(list)
    devices: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        device = device_of(node)
        devices[task_of(device)].add(device)
        for before in dict.fromkeys((*(t.op for t in node.inputs), *node.controls)):
            if before.type == ACCUMULATOR:
                takers[before].append(node)
    found = []
    for maker in makers:
        home, additions = device_of(maker), takers[maker]
        size = state_bytes(maker.attrs["shape"], maker.attrs["dtype"].np)
        if (
            "/device:CPU:" not in home or size is None or size > most_bytes
            or maker.controls or maker.outputs[0] in feeds or not additions
            or any(n.type != ADDITION or device_of(n) != home or maker in n.controls for n in additions)
        ):  # fmt: skip
            continue
        from_tasks = {
            task_of(device_of(before))
            for addition in additions
            for before in (*(t.op for t in addition.inputs[1:] if t not in feeds), *addition.controls)
            if before in running and not is_copied(before)
        }
        if len(from_tasks) != 1 or any(t in feeds for n in additions for t in n.inputs):
            continue
        (task,) = from_tasks
        by = cpu_of(task, devices[task], cluster)
        if by is not None and task != task_of(home):
            found.append(DirectAddition(maker, tuple(additions), place_at(maker, home), by))
    return found


def added(additions: Sequence[DirectAddition], device_of: Callable[[Node], str]) -> Callable[[Node], str]:
    """Where nodes run, with these additions moved."""
    by = {node: a.by for a in additions for node in (a.accumulator, *a.additions)}

    def runs_on(node: Node) -> str:
        return by.get(node) or device_of(node)

    return runs_on


def added_to(partitions: Mapping[str, Partition], device_of: Callable[[Node], str]) -> dict[Node, str]:
    """The accumulators to which other tasks than their own add, and these additions, each with the device that does."""
    return {
        node: device
        for device, part in partitions.items()
        for node in part.nodes
        if node.type in (ACCUMULATOR, ADDITION) and task_of(device_of(node)) != task_of(device)
    }


__all__ = ["DirectAddition", "added", "added_to", "direct_additions"]
