"""List scheduling by critical path (upward rank), for steps that rules placed.

A node's *urgency* is the longest way from it to the end of the step: its own time and that of all that hangs on it, transfers included
(the upward rank of HEFT: Topcuoglu et al., 2002, doi:10.1109/71.993206). A device that may choose runs the most urgent node that is
ready. So what another device needs for a long computation is made, and sent, before what only matters here; and of a
value that goes to several devices, the one with the most to do gets it first.

    by creation     task 0   [ local work          ][ s ]                  by urgency   task 0   [ s ][ local work          ]
                    task 1                             [ what needs s ]                 task 1      [ what needs s ]

Times are the analytic ones of the searches (`search/from_graph.py`), and no better than what is known of shapes. So the order
of creation is kept unless a step is predicted to be clearly shorter in the other one, by the clock of programs that run one
node after the other.

Kept in any case is the order of nodes that a user can tell apart: those that use the same state of which one changes it, and those
with effects on one device. Steps with loops or branches, or with nodes that may wait for other steps, keep the order that they have; so
do steps of more than `MOST` nodes, which should not take longer to start for it: ask for a search there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from ...graph.core.frames import is_steered
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait, nbytes
from ..cluster.spec import Cluster
from ..partition.partitioned_graph import Channel, Partition, Partitioned, Step, task_of
from ..search.from_graph import links_of, speed_of
from .from_search import changes_state, kept_pairs

MOST = 5_000  # nodes: some 10 us for each
WORTH = 0.03  # the share of the step's time that another order must save


@dataclass(frozen=True, slots=True)
class Urgency:
    """The nodes of a step in the order in which they should run.

    Attributes:
        nodes: all of them. behind: node -> seconds from its start to the end of the step; empty where nothing is known.
    """

    nodes: list[Node]
    behind: Mapping[Node, float]

    def sends_first(self, cut: Partitioned) -> Partitioned:
        """The same partitions, where sends that follow each other are in the order of what hangs on them."""
        behind = self.behind
        if not behind or len(cut.channels) < 2:
            return cut
        hangs: dict[tuple[Tensor | Node, str], float] = defaultdict(
            float
        )  # (value, task) -> the most that waits for it there
        crossing = set(cut.values)
        for device, part in cut.partitions.items():
            task = task_of(device)
            for node in part.nodes:
                for value in (*node.inputs, *node.controls):
                    if value in crossing:
                        hangs[value, task] = max(hangs[value, task], behind.get(node, 0.0))

        def hanging(step: Step) -> float:
            channel = step[1]
            assert isinstance(channel, Channel)
            return -hangs[cut.values[channel.id], task_of(channel.destination)]

        return replace(
            cut, partitions={device: _sorted_sends(part, hanging) for device, part in cut.partitions.items()}
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
            first = sorted(run, key=key)  # (stable: what is equally urgent stays as it is)
            changed = changed or first != run
            run = first
        out += run
        run = []
        if step is not None:
            out.append(step)
    return replace(part, steps=tuple(out)) if changed else part


def urgent_first(
    nodes: Sequence[Node], device_of: Callable[[Node], str], cluster: Cluster, feeds: Collection[Tensor] = ()
) -> Urgency:
    """The order in which a step that was placed by rules should run.

    Args:
        nodes: in an order in which inputs come first (`needed`). device_of: complete device name of each.
        feeds: tensors that the client gives.
    """
    nodes = list(nodes)
    unknown = Urgency(nodes, {})
    if not 2 < len(nodes) <= MOST:
        return unknown
    names = [device_of(n) for n in nodes]
    if len(set(names)) < 2 or is_steered(nodes) or any(n.opdef.is_blocking for n in nodes):
        return unknown
    step = _Step(nodes, names, cluster, frozenset(feeds))
    behind = step.urgencies()
    order = step.in_order_of(behind)
    usual = step.takes(range(len(nodes)))
    if step.takes(order) < usual * (1 - WORTH):
        nodes = [nodes[i] for i in order]
    return Urgency(nodes, dict(zip(step.nodes, behind, strict=True)))


class _Step:
    """Nodes by number, in lists: what each takes, and what follows whom how much later."""

    def __init__(self, nodes: list[Node], names: list[str], cluster: Cluster, fed: frozenset[Tensor]) -> None:
        self.nodes = nodes
        numbers = {str(device.name): d for d, device in enumerate(cluster.devices)}
        speeds = [speed_of(device) for device in cluster.devices]
        latency, per_byte = (table.tolist() for table in links_of(cluster))
        self.device = device = [numbers[name] for name in names]
        self.seconds: list[float] = []
        seconds = self.seconds
        self.after: list[list[tuple[int, float]]] = [[] for _ in nodes]  # node -> what it leads to, and how much later
        self.before: list[list[tuple[int, float]]] = [[] for _ in nodes]
        number = {node: i for i, node in enumerate(nodes)}
        for i, node in enumerate(nodes):
            speed = speeds[device[i]]
            if Trait.STATE_HANDLE in node.opdef.traits or node.opdef.name in ("Placeholder", "Const"):
                seconds.append(0.0)
            else:
                flops, moved = node.opdef.cost_of(node)
                seconds.append(speed.overhead + max(flops / speed.flops, moved / speed.bandwidth))
            here = device[i]
            for t in node.inputs:
                a = number.get(t.op)
                if a is not None and t not in fed:
                    there = device[a]
                    self._join(a, i, 0.0 if there == here else latency[there][here] + nbytes(t) * per_byte[there][here])
            for c in node.controls:
                a = number.get(c)
                if a is not None:
                    self._join(a, i, latency[device[a]][here])
        for first, second in kept_pairs(nodes):
            self._join(number[first], number[second], 0.0)
        last: dict[int, int] = {}  # device -> the last node there with an effect
        for i, node in enumerate(nodes):
            if changes_state(node):
                if device[i] in last:
                    self._join(last[device[i]], i, 0.0)
                last[device[i]] = i

    def _join(self, a: int, b: int, later: float) -> None:
        self.after[a].append((b, later))
        self.before[b].append((a, later))

    def urgencies(self) -> list[float]:
        """The longest way from the start of each node to the end."""
        behind = list(self.seconds)
        for i in range(len(behind) - 1, -1, -1):
            behind[i] += max((later + behind[b] for b, later in self.after[i]), default=0.0)
        return behind

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

    def in_order_of(self, behind: Sequence[float]) -> list[int]:
        """The nodes in the order in which they start, when each device takes the most urgent one that is ready."""
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
                    heappush(ready[self.device[i]], (-behind[i], i))
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


__all__ = ["MOST", "Urgency", "urgent_first"]
