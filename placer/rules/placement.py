"""A placement: the device of every node, and the decision behind each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ...graph.core.device import matches, parse_strict
from ...graph.core.graph import Graph, Node
from ..cluster.spec import Cluster
from ..render.text import listed
from .diagnostics import SHOWN, describe
from .provenance import Reasons

Ints = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]
UNPLACED = -1
GROUP_SHOWN = 4  # members of a colocation group that an explanation names


class Rule(IntEnum):
    """The rule that assigned a node its device."""

    NONE = 0
    FIRST = 1
    ONLY = 2
    ASSIGNED = 3
    GROUP = 4
    METADATA = 5
    IDENTITY = 6
    CONSUMERS = 7
    SEARCHED = 8

    @property
    def text(self) -> str:
        """The rule in words."""
        return _RULES[self]


_RULES = {
    Rule.NONE: "not placed",
    Rule.FIRST: "the first candidate (the master's task first, then tasks by name; within a task the best device type)",
    Rule.ONLY: "the only candidate",
    Rule.ASSIGNED: "stateful, so it keeps its device from earlier steps",
    Rule.GROUP: "colocated with the first placed node of its group",
    Rule.METADATA: "colocated with its input, of which it reads only the shape",
    Rule.IDENTITY: "colocated with its input, which it only forwards",
    Rule.CONSUMERS: "a constant, placeholder or handle, colocated with all its consumers",
    Rule.SEARCHED: "selected by the search among the candidates, by predicted step time",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """An excluded device, and the `reason`."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision that assigned a device to one node.

    Attributes:
        node: its name.
        requested: its requested device in canonical form; '' if it requests none.
        required: the constraint of its colocation group: the merged requests of the members.
        group: names of the nodes in its colocation group, including itself.
        candidates: the devices that satisfy the constraint, best first.
        rejected: the other devices of the cluster, each with the first reason that excludes it.
        chosen: the assigned device.
        rule: the rule that selected among the candidates.
        overruled: the requests of the group that were relaxed, as text.
    """

    node: str
    requested: str
    required: str
    group: tuple[str, ...]
    candidates: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    chosen: str
    rule: Rule
    overruled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """A request that the placement does not satisfy, because soft placement or a reference edge relaxed it.

    Attributes:
        node: the name of the node. requested: its request. chosen: the assigned device. reason: why, as text.
    """

    node: str
    requested: str
    chosen: str
    reason: str


class Placement:
    """Node -> device, with the decision behind each. Immutable.

    Attributes:
        graph: the graph; nodes added later are not placed.
        cluster: the available devices.
        soft: whether soft placement was allowed.
        index: per node (by `node.index`) the number of its device in `cluster.devices`, or -1.
        rules: per node the rule (`Rule`) that assigned its device.
    """

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        soft: bool,
        nodes: Sequence[Node],
        index: Ints,
        rules: npt.NDArray[np.uint8],
        reasons: Callable[[], Reasons],
    ) -> None:
        self.graph, self.cluster, self.soft, self.index, self.rules = graph, cluster, soft, index, rules
        index.flags.writeable = rules.flags.writeable = False
        self._nodes, self._find_reasons = nodes, reasons
        self._names = tuple(str(d.name) for d in cluster.devices)

    @cached_property
    def reasons(self) -> Reasons:
        """The provenance: constraints, colocation groups, relaxed requests."""
        return self._find_reasons()

    @cached_property
    def told_rules(self) -> npt.NDArray[np.uint8]:
        """`rules` as they are told: a node whose group has one candidate has no other choice."""
        single = np.array([*(len(d.candidates) == 1 for d in self.reasons.demands), False])  # the last one: not placed
        return np.where((self.rules == Rule.GROUP) & single[self.reasons.demand_of], np.uint8(Rule.ONLY), self.rules)

    @cached_property
    def _placed(self) -> list[int]:
        """`index` as a list, of which single items are quicker to get."""
        return self.index.tolist()  # type: ignore[no-any-return]

    @property
    def devices(self) -> tuple[str, ...]:
        """Complete names of the cluster's devices, in the order that `index` refers to."""
        return self._names

    def device_of(self, node: Node | str) -> str:
        """The complete name of a node's device. KeyError when it was not placed."""
        return self._names[self._placed[self._index_of(node)]]

    def all_on(self, device: str) -> Placement:
        """The same nodes, all on one device of the cluster, regardless of their requests."""
        index = np.where(self.index == UNPLACED, self.index, self._names.index(device)).astype(self.index.dtype)
        return Placement(self.graph, self.cluster, self.soft, self._nodes, index, self.rules, self._find_reasons)

    def _index_of(self, node: Node | str) -> int:
        if isinstance(node, str):
            node = self.graph.get_operation_by_name(node)
        if node not in self:
            raise KeyError(f"'{node.name}' was not placed: it is of another graph, was added later, or is not needed")
        return node.index

    def __contains__(self, node: Node) -> bool:
        i, placed = node.index, self._placed
        return node.graph is self.graph and i < len(placed) and placed[i] != UNPLACED

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def as_dict(self) -> dict[str, str]:
        """Node name -> complete device name, in order of creation."""
        names = self._names
        return {
            n.name: names[d]
            for n, d in zip(self._nodes, self.index[[n.index for n in self._nodes]].tolist(), strict=True)
        }

    def decision(self, node: Node | str) -> Decision:
        """The decision behind a node's device. KeyError when it was not placed."""
        i = self._index_of(node)
        all_nodes, reasons, names = self.graph.nodes, self.reasons, self._names
        demand = reasons.demand(i)
        overruled = [note.text for note in reasons.notes_of(i)]
        if demand.dropped:
            overruled.append(demand.dropped)
        return Decision(
            node=all_nodes[i].name,
            requested=all_nodes[i].device,
            required=demand.required,
            group=tuple(all_nodes[j].name for j in reasons.members(i)),
            candidates=tuple(names[d] for d in demand.candidates),
            rejected=tuple(Rejection(names[d], why) for d, why in demand.against(len(names)).items()),
            chosen=names[int(self.index[i])],
            rule=Rule(int(self.told_rules[i])),
            overruled=tuple(overruled),
        )

    def explain(self, node: Node | str) -> str:
        """Why a node is on its device: request, device blocks, colocation group, candidates, excluded devices, the rule."""
        i = self._index_of(node)
        return _described(self.decision(self.graph.nodes[i]), self.graph)

    @property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """Each request that is not satisfied, and each colocation that was ignored, in order of creation."""
        if not self.reasons.notes and not any(demand.dropped for demand in self.reasons.demands):
            return ()  # then all requests were met, and a large graph need not be searched
        all_nodes, names, placed = self.graph.nodes, self._names, self.index.tolist()

        def relaxation(node: Node, reason: str) -> Relaxation:
            return Relaxation(node.name, node.device, names[placed[node.index]], reason)

        out = [
            (note.node, relaxation(all_nodes[note.node], note.text))
            for note in self.reasons.notes
            if note.kind == "ignored"
        ]
        meets: dict[tuple[str, int], bool] = {}
        for node in self._nodes:
            if not node.device:
                continue
            key = (node.device, placed[node.index])
            met = meets.get(key)
            if met is None:
                met = meets[key] = _meets(node.device, self.cluster, key[1])
            if not met:
                out.append((node.index, relaxation(node, self._why_relaxed(node.index))))
        return tuple(r for _, r in sorted(out, key=lambda pair: pair[0]))

    def _why_relaxed(self, i: int) -> str:
        notes = [note for note in self.reasons.notes_of(i) if note.kind != "ignored"]
        found = [note.text for note in notes if note.node == i] or [note.text for note in notes]
        dropped = self.reasons.demand(i).dropped
        found += [dropped] if dropped else []
        return "; ".join(dict.fromkeys(found)) or Rule(int(self.rules[i])).text

    def __repr__(self) -> str:
        used = len(np.unique(self.index[self.index >= 0]))
        return f"<dt.Placement of {len(self._nodes)} nodes on {used} of {len(self._names)} devices>"


def _meets(request: str, cluster: Cluster, device: int) -> bool:
    return matches(parse_strict(request), cluster.devices[device].name)


def _described(decision: Decision, graph: Graph) -> str:
    """The text of `Placement.explain`."""
    lines = [f"{decision.node} -> {decision.chosen}", describe(graph.get_operation_by_name(decision.node))]
    if len(decision.group) > 1:
        lines.append(f"  colocation group: {_members(decision, graph)}")
    if decision.required != decision.requested:
        lines.append(f"  group constraint: '{decision.required}'" if decision.required else "  group constraint: none")
    lines += [f"  relaxed: {text}" for text in decision.overruled]
    lines.append(f"  candidate devices, best first: {listed(decision.candidates, SHOWN) or 'none'}")
    by_reason: dict[str, list[str]] = {}
    for r in decision.rejected:
        by_reason.setdefault(r.reason, []).append(r.device)
    lines += [f"  excluded: {listed(devices, SHOWN)}: {reason}" for reason, devices in by_reason.items()]
    lines.append(f"  assigned: {decision.chosen}, {decision.rule.text}")
    return "\n".join(lines)


def _members(decision: Decision, graph: Graph) -> str:
    """The other nodes of a colocation group: first those that request a device, then the state, and a count of the rest."""
    nodes = [graph.get_operation_by_name(n) for n in decision.group if n != decision.node]
    nodes.sort(key=lambda n: (not n.device, bool(n.inputs) or not n.opdef.is_stateful))
    text = listed((n.name for n in nodes), GROUP_SHOWN)
    return f"{text} (all: plan.decisions.decision({decision.node!r}).group)" if len(nodes) > GROUP_SHOWN else text
