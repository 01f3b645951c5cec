"""List scheduling by critical path (upward rank), for steps that rules placed.

A node's *upward rank* is the longest path from its start to the end of the step: its own time and that of all its successors,
transfers included (HEFT: Topcuoglu et al., 2002, doi:10.1109/71.993206). A device that may choose runs the ready node of the
highest rank. So a value that another device needs for a long computation is made, and sent, before values that only this device
needs; and of several devices that need one value, the one with the longest remaining path gets it first.

    by creation     task 0   [ local work          ][ s ]                  by rank      task 0   [ s ][ local work          ]
                    task 1                             [ what needs s ]                 task 1      [ what needs s ]

Times are the analytic ones of the searches (`search/from_graph.py`), and no better than what is known of shapes. So the order
of creation is kept unless a step is predicted to be clearly shorter in the other one, by the clock of programs that run one
node after the other.

The order of nodes that a user can tell apart is always kept: those that use the same state of which one changes it, and those
with effects on one device. Steps with loops or branches, or with nodes that may block until another step runs, keep the order
of creation. So do steps of more than `MOST` nodes, because ordering them would delay the first step: use a search there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from ...graph.core.frames import has_control_flow
from ...graph.core.gpu_models import work_of
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait, nbytes
from ..cluster.spec import Cluster
from ..partition.partitioned_graph import Channel, Partition, Partitioned, Step, task_of
from ..search.from_graph import link_between, speed_of
from .from_search import kept_pairs

MOST = 5_000  # nodes: some 10 us for each
WORTH = 0.03  # the share of the step's time that another order must save


@dataclass(frozen=True, slots=True)
class RankedOrder:
    """The nodes of a step in the order in which they should run.

    Attributes:
        nodes: all of them. upward_rank: node -> seconds from its start to the end of the step; empty where no time is known.
    """

    nodes: list[Node]
    upward_rank: Mapping[Node, float]

    def sends_first(self, cut: Partitioned) -> Partitioned:
        """The same partitions; sends that follow each other are in the order of their receivers' upward ranks."""
        ranks = self.upward_rank
        if not ranks or len(cut.channels) < 2:
            return cut
        # (value, task) -> the highest rank of its users there.
        highest: dict[tuple[Tensor | Node, str], float] = defaultdict(float)
        crossing = set(cut.values)
        for device, part in cut.partitions.items():
            task = task_of(device)
            for node in part.nodes:
                values: tuple[Tensor | Node, ...] = (*node.inputs, *node.controls)
                for value in values:
                    if value in crossing:
                        highest[value, task] = max(highest[value, task], ranks.get(node, 0.0))

        def by_rank(step: Step) -> float:
            channel = step[1]
            assert isinstance(channel, Channel)
            return -highest[cut.values[channel.id], task_of(channel.destination)]

        return replace(
            cut, partitions={device: _sorted_sends(part, by_rank) for device, part in cut.partitions.items()}
        )


def _sorted_sends(part: Partition, key: Callable[[Step], float]) -> Partition:
    """The same part; each run of sends in its steps sorted."""
    out: list[Step] = []
    run: list[Step] = []
    changed = False
    for step in (*part.steps, None):
        if step is not None and step[0] == "send":
            run.append(step)
            continue
        if len(run) > 1:
            first = sorted(run, key=key)  # (stable: sends of equal rank keep their order)
            changed = changed or first != run
            run = first
        out += run
        run = []
        if step is not None:
            out.append(step)
    return replace(part, steps=tuple(out)) if changed else part


def order_by_rank(
    nodes: Sequence[Node], device_of: Callable[[Node], str], cluster: Cluster, feeds: Collection[Tensor] = ()
) -> RankedOrder:
    """The order in which a step that was placed by rules should run.

    Args:
        nodes: in an order in which inputs come first (`needed`). device_of: complete device name of each.
        feeds: tensors that the client gives.
    """
    nodes = list(nodes)
    unknown = RankedOrder(nodes, {})
    if not 2 < len(nodes) <= MOST:
        return unknown
    names = [device_of(n) for n in nodes]
    if len(set(names)) < 2 or has_control_flow(nodes) or any(n.opdef.is_blocking for n in nodes):
        return unknown
    step = _Step(nodes, names, cluster, frozenset(feeds))
    ranks = step.upward_ranks()
    order = step.in_order_of(ranks)
    usual = step.takes(range(len(nodes)))
    if step.takes(order) < usual * (1 - WORTH):
        nodes = [nodes[i] for i in order]
    return RankedOrder(nodes, dict(zip(step.nodes, ranks, strict=True)))


class _Step:
    """The step as lists by the nodes' numbers: seconds of each node, its successors and predecessors with the delays between them."""

    def __init__(self, nodes: list[Node], names: list[str], cluster: Cluster, fed: frozenset[Tensor]) -> None:
        self.nodes = nodes
        numbers = {str(device.name): d for d, device in enumerate(cluster.devices)}
        speeds = [speed_of(device) for device in cluster.devices]
        link = link_between(cluster)
        self.device = device = [numbers[name] for name in names]
        task = [task_of(name) for name in names]
        self.seconds: list[float] = []
        seconds = self.seconds
        # Node -> its successors, each with its delay in seconds.
        self.after: list[list[tuple[int, float]]] = [[] for _ in nodes]
        self.before: list[list[tuple[int, float]]] = [[] for _ in nodes]
        number = {node: i for i, node in enumerate(nodes)}
        for i, node in enumerate(nodes):
            speed = speeds[device[i]]
            if Trait.STATE_HANDLE in node.opdef.traits or node.opdef.name in ("Placeholder", "Const"):
                seconds.append(0.0)
            else:
                flops, moved = node.opdef.cost_of(node)
                seconds.append(speed.seconds(work_of(node), flops, moved))
            here = device[i]
            for t in node.inputs:
                a = number.get(t.op)
                if a is not None and t not in fed:
                    later = 0.0
                    if device[a] != here:
                        latency, per_byte = link(task[a], task[i])
                        later = latency + nbytes(t) * per_byte
                    self._join(a, i, later)
            for c in node.controls:
                a = number.get(c)
                if a is not None:
                    self._join(a, i, link(task[a], task[i])[0] if device[a] != here else 0.0)
        for first, second in kept_pairs(nodes):
            self._join(number[first], number[second], 0.0)
        last: dict[int, int] = {}  # device -> the last node there with an effect
        for i, node in enumerate(nodes):
            if node.opdef.changes_state:
                if device[i] in last:
                    self._join(last[device[i]], i, 0.0)
                last[device[i]] = i

    def _join(self, a: int, b: int, later: float) -> None:
        self.after[a].append((b, later))
        self.before[b].append((a, later))

    def upward_ranks(self) -> list[float]:
        """The longest path from the start of each node to the end of the step, in seconds."""
        ranks = list(self.seconds)
        for i in range(len(ranks) - 1, -1, -1):
            ranks[i] += max((later + ranks[b] for b, later in self.after[i]), default=0.0)
        return ranks

    def takes(self, order: Iterable[int]) -> float:
        """Seconds of the step, when each device runs its nodes in this order and waits where a value has not come."""
        free: dict[int, float] = defaultdict(float)
        ends = [0.0] * len(self.nodes)
        for i in order:
            at = free[self.device[i]]
            for a, later in self.before[i]:
                at = max(at, ends[a] + later)
            free[self.device[i]] = ends[i] = at + self.seconds[i]
        return max(ends)

    def in_order_of(self, ranks: Sequence[float]) -> list[int]:
        """The nodes in the order in which they start, when each device takes the ready one of the highest rank."""
        waiting = [len(before) for before in self.before]
        comes = [0.0] * len(waiting)  # when all that a node needs is there
        events = [(0.0, 0, i) for i, count in enumerate(waiting) if not count]  # (when, 0: ready or 1: has run, node)
        ready: dict[int, list[tuple[float, int]]] = {d: [] for d in self.device}
        busy = dict.fromkeys(self.device, False)
        heapify(events)
        order: list[int] = []
        while events:
            now = events[0][0]
            touched = set()
            while events and events[0][0] <= now:
                _, has_run, i = heappop(events)
                touched.add(self.device[i])
                if not has_run:
                    heappush(ready[self.device[i]], (-ranks[i], i))
                    continue
                busy[self.device[i]] = False
                for b, later in self.after[i]:
                    comes[b] = max(comes[b], now + later)
                    waiting[b] -= 1
                    if not waiting[b]:
                        heappush(events, (comes[b], 0, b))
            for d in touched:
                if ready[d] and not busy[d]:
                    i = heappop(ready[d])[1]
                    busy[d] = True
                    order.append(i)
                    heappush(events, (now + self.seconds[i], 1, i))
        return order


__all__ = ["MOST", "RankedOrder", "order_by_rank"]
