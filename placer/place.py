"""Placing: one device for every node, by TensorFlow's rules.

The pass has four parts, each near-linear in nodes and edges:

1. `form_groups` sums up what each colocation group demands (constraints.py);
2. each distinct constraint gets its candidate devices, best first;
3. nodes get devices in order of creation: the first candidate, except that a node which only looks at its input's shape, or
   only passes it on, stays with its input. The first member of a group to be placed decides for the group;
4. nodes that make a value out of nothing (constants, placeholders, handles) come last: they go where all their consumers are.

Nothing is balanced and nothing is random: the same graph gets the same devices on any machine. Only nodes that share a
group or stay with their input depend on each other; all others are placed as arrays, class by class.

What follows for an unpinned node: the best device of the master's task. For `/job:ps/task:0`: the best device of that
task. For `/job:ps`: of its first task, or of the master's own task if that is in the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.opdef import OpDef, Trait
from .cluster import Cluster
from .constraints import Candidates, Groups, form_groups, is_generator
from .explain import cannot_assign, describe, unplaceable

Ints = npt.NDArray[np.int32]
UNPLACED = -1


class Rule(IntEnum):
    """Why a node got its device."""

    NONE = 0
    FIRST = 1
    ONLY = 2
    ASSIGNED = 3
    GROUP = 4
    METADATA = 5
    IDENTITY = 6
    CONSUMERS = 7

    @property
    def text(self) -> str:
        """The rule in words."""
        return _RULES[self]


_RULES = {
    Rule.NONE: "not placed",
    Rule.FIRST: "first candidate: the master's task comes first, then tasks by name; in a task the best device type",
    Rule.ONLY: "the only candidate",
    Rule.ASSIGNED: "it holds state, and keeps the device that it had in earlier steps",
    Rule.GROUP: "with the member of its colocation group that was placed first",
    Rule.METADATA: "it looks only at the shape of its input, so it is where its input is",
    Rule.IDENTITY: "it only passes its input on, so it is where its input is",
    Rule.CONSUMERS: "it makes a value out of nothing, and all its consumers are there",
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a device was no candidate (`reason`)."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Everything behind one node's device.

    Attributes:
        node: its name.
        requested: what it asked for, canonical; '' when it asked for nothing.
        required: what its colocation group demands together.
        group: names of the nodes that share its device, itself among them.
        candidates: devices that met all demands, best first.
        rejected: the other devices of the cluster, each with the first reason against it.
        chosen: the device it got.
        rule: the rule that chose among the candidates.
        overruled: requests of the group that could not be met, in words.
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
    """A request that the placement does not meet, as soft placement or a reference edge allows.

    Attributes:
        node: whose request. requested: the request. chosen: the device it got instead. reason: why, in words.
    """

    node: str
    requested: str
    chosen: str
    reason: str


class Placement:
    """node -> device, with the decision behind each. A value: nothing changes it.

    Attributes:
        graph: the graph, of which nodes that are added later are not placed.
        cluster: the devices there were.
        soft: whether soft placement was allowed.
        index: per node (by `node.index`) the number of its device in `cluster.devices`, or -1.
    """

    __slots__ = ("_groups", "_names", "_nodes", "_rules", "cluster", "graph", "index", "soft")

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        soft: bool,
        nodes: Sequence[Node],
        index: Ints,
        rules: Any,
        groups: Groups,
    ) -> None:
        self.graph, self.cluster, self.soft, self.index = graph, cluster, soft, index
        index.flags.writeable = False
        self._nodes, self._rules, self._groups = nodes, rules, groups
        self._names = tuple(str(d.name) for d in cluster.devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """Complete names of the cluster's devices, in the order that `index` refers to."""
        return self._names

    def device_of(self, node: Node | str) -> str:
        """The complete name of a node's device. KeyError when it was not placed."""
        i = self._index_of(node)
        return self._names[int(self.index[i])]

    def _index_of(self, node: Node | str) -> int:
        if isinstance(node, str):
            node = self.graph.get_operation_by_name(node)
        if (
            node.graph is not self.graph
            or node.index >= len(self.index)
            or self.index[node.index] == UNPLACED
        ):
            raise KeyError(
                f"'{node.name}' was not placed: it is of another graph, was added later, or is not needed"
            )
        return node.index

    def __contains__(self, node: Node) -> bool:
        return (
            node.graph is self.graph and node.index < len(self.index) and self.index[node.index] != UNPLACED
        )

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
        all_nodes, groups = self.graph.nodes, self._groups
        members = groups.members(i)
        root = groups.number[groups.find(i)]
        constraint, found = groups.constraints[root], groups.constraints.candidates(root)
        chosen = int(self.index[i])
        rejected = tuple(
            Rejection(name, groups.constraints.why_not(d, constraint) or "only soft placement would take it")
            for d, name in enumerate(self._names)
            if d not in found.devices
        )
        overruled = [note.text for note in groups.notes if note.node in members] + (
            [found.given_up] if found.given_up else []
        )
        return Decision(
            node=all_nodes[i].name,
            requested=all_nodes[i].device,
            required=str(constraint.requested),
            group=tuple(all_nodes[j].name for j in members),
            candidates=tuple(self._names[d] for d in found.devices),
            rejected=rejected,
            chosen=self._names[chosen],
            rule=Rule(int(self._rules[i])),
            overruled=tuple(overruled),
        )

    def explain(self, node: Node | str) -> str:
        """Why a node is where it is: request, blocks, group, candidates, what dropped each other device, the choice."""
        i = self._index_of(node)
        return describe(self.decision(self.graph.nodes[i]), self.graph)

    @property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """Each request that is not met, in order of creation, and each colocation that soft placement ignored."""
        groups, all_nodes = self._groups, self.graph.nodes
        notes: dict[int, list[str]] = {}
        for note in groups.notes:
            if note.kind != "ignored":
                notes.setdefault(groups.find(note.node), []).append(note.text)
        out: list[tuple[int, Relaxation]] = [
            (
                note.node,
                Relaxation(
                    all_nodes[note.node].name,
                    all_nodes[note.node].device,
                    self._names[self.index[note.node]],
                    note.text,
                ),
            )
            for note in groups.notes
            if note.kind == "ignored"
        ]
        meets: dict[tuple[str, int], bool] = {}
        placed = self.index.tolist()
        for node in self._nodes:
            if not node.device:
                continue
            key = (node.device, placed[node.index])
            met = meets.get(key)
            if met is None:
                met = meets[key] = _meets(node.device, self.cluster, key[1])
            if not met:
                found = groups.constraints.candidates(groups.number[groups.find(node.index)])
                reasons = notes.get(groups.find(node.index), []) + (
                    [found.given_up] if found.given_up else []
                )
                reason = "; ".join(dict.fromkeys(reasons)) or _RULES[Rule(int(self._rules[node.index]))]
                out.append((node.index, Relaxation(node.name, node.device, self._names[key[1]], reason)))
        return tuple(r for _, r in sorted(out, key=lambda pair: pair[0]))

    def __repr__(self) -> str:
        return f"<dt.Placement of {len(self._nodes)} nodes on {len(np.unique(self.index[self.index >= 0]))} of {len(self._names)} devices>"


def _meets(request: str, cluster: Cluster, device: int) -> bool:
    from ..graph.device import matches, parse_strict

    return matches(parse_strict(request), cluster.devices[device].name)


def place(
    graph: Graph,
    cluster: Cluster,
    *,
    assigned: Mapping[str, str] | None = None,
    allow_soft_placement: bool = False,
    nodes: Sequence[Node] | None = None,
) -> Placement:
    """Give every node a device.

    Args:
        graph: the graph; it is not changed.
        cluster: the devices, and the master's task.
        assigned: complete device names that nodes had in earlier steps, by node name; those that hold state keep them.
        allow_soft_placement: give up a device type or index that cannot be had; never a job or task.
        nodes: place only these (nodes of the graph, in order of creation), with what they need among them.

    Raises:
        InvalidArgumentError: a request is malformed, has no device, or contradicts another; the text names the node, the
            requests with their source lines, and the devices that exist.
    """
    nodes = list(graph.nodes) if nodes is None else nodes
    size = max((n.index for n in nodes), default=-1) + 1
    assigned = assigned or {}
    groups, contradiction = form_groups(nodes, size, cluster, assigned, allow_soft_placement)
    if contradiction is not None:
        raise unplaceable(contradiction, graph, groups)
    index, rules = _assign(graph, nodes, size, groups, assigned)
    return Placement(graph, cluster, allow_soft_placement, nodes, index, rules, groups)


def _assign(
    graph: Graph, nodes: Sequence[Node], size: int, groups: Groups, assigned: Mapping[str, str]
) -> tuple[Ints, Any]:
    """Parts 2 to 4: the device and the rule of every node."""
    number = np.array(groups.number, np.int32)
    device = np.full(size, UNPLACED, np.int32)
    rules = np.zeros(size, np.uint8)
    edges = _Edges(nodes, size)

    late = np.zeros(size, bool)
    special = np.zeros(size, bool)  # what needs to be looked at one by one
    special[[i for i in groups.shared if i < size]] = True
    stays: dict[OpDef, bool] = {}
    for node in nodes:
        opdef = node.opdef
        if not node.inputs:
            late[node.index] = is_generator(node)
        elif opdef not in stays:
            stays[opdef] = Trait.METADATA in opdef.traits or opdef.name == "Identity"
        if node.inputs and stays[opdef]:
            special[node.index] = True
    if assigned:
        for node in nodes:
            if node.opdef.is_stateful and node.name in assigned:
                special[node.index], late[node.index] = True, False

    present = number >= 0
    alone = np.flatnonzero(present & ~special & ~late)
    failed = _assign_by_class(alone, number, groups, device, rules)
    chosen: dict[int, int] = {}
    one_by_one = np.flatnonzero(present & special & ~late)
    _assign_in_order(one_by_one, graph, groups, edges, assigned, device, rules, chosen, stop=failed)
    if failed is not None:
        raise cannot_assign(graph.nodes[failed], graph, groups)
    _assign_generators(np.flatnonzero(present & late), graph, groups, edges, device, rules, chosen)
    return device, rules


class _Edges:
    """All edges, data and control, as arrays of node indices; an edge to a node that is not placed is left out."""

    def __init__(self, nodes: Sequence[Node], size: int) -> None:
        at = np.array([n.index for n in nodes], np.int32)
        data = np.array([t.op.index for n in nodes for t in n.inputs], np.int32)
        control = np.array([c.index for n in nodes for c in n.control_inputs], np.int32)
        src = np.concatenate([data, control])
        dst = np.concatenate([
            np.repeat(at, [len(n.inputs) for n in nodes]), np.repeat(at, [len(n.control_inputs) for n in nodes]),
        ])  # fmt: skip
        inside = np.zeros(size, bool)
        inside[at] = True
        kept = (src < size) & inside[np.minimum(src, size - 1)] if size else np.zeros(0, bool)
        self.src, self.dst = src[kept], dst[kept]
        self.out_degree = np.bincount(self.src, minlength=size)
        self.in_degree = np.bincount(self.dst, minlength=size)
        self.a_consumer = np.full(
            size, -1, np.int32
        )  # one consumer of each node; all there is when it has only one
        self.a_consumer[self.src] = self.dst


def _assign_by_class(alone: Any, number: Ints, groups: Groups, device: Ints, rules: Any) -> int | None:
    """Place nodes that depend on no other; returns the first that cannot be placed."""
    failed: int | None = None
    classes = number[alone]
    first = np.zeros(int(classes.max(initial=-1)) + 1, np.int32)
    rule = np.zeros(len(first), np.uint8)
    for c in np.unique(classes).tolist():
        found = groups.constraints.candidates(c)
        if found.devices:
            first[c], rule[c] = found.first, _plain_rule(found)
        else:
            here = int(alone[np.flatnonzero(classes == c)[0]])
            failed = here if failed is None else min(failed, here)
    device[alone] = first[classes]
    rules[alone] = rule[classes]
    return failed


def _plain_rule(found: Candidates) -> Rule:
    return Rule.ONLY if len(found.devices) == 1 else Rule.FIRST


def _assign_in_order(
    indices: Any, graph: Graph, groups: Groups, edges: _Edges, assigned: Mapping[str, str], device: Ints, rules: Any, chosen: dict[int, int],
    stop: int | None,
) -> None:  # fmt: skip
    """Place nodes that depend on their group or their input, in order of creation."""
    all_nodes = graph.nodes
    for i in indices.tolist():
        if stop is not None and i > stop:
            return
        node = all_nodes[i]
        root = groups.find(i)
        d, rule = chosen.get(root, UNPLACED), Rule.GROUP
        if d == UNPLACED:
            found = groups.constraints.candidates(groups.number[root])
            if not found.devices:
                raise cannot_assign(node, graph, groups)
            d, rule = found.first, _plain_rule(found)
            if node.name in assigned and node.opdef.is_stateful:
                rule = Rule.ASSIGNED
            elif len(found.devices) > 1 and (stays := _stays_with_input(node, all_nodes, edges)):
                beside = int(device[node.inputs[0].op.index])
                if beside in found.devices:
                    d, rule = beside, stays
            if i in groups:
                chosen[root] = d
        device[i], rules[i] = d, rule


def _stays_with_input(node: Node, all_nodes: Sequence[Node], edges: _Edges) -> Rule | None:
    if not node.inputs:
        return None
    if Trait.METADATA in node.opdef.traits:
        return Rule.METADATA
    i = node.index
    if node.device or node.opdef.name != "Identity" or edges.in_degree[i] != 1 or edges.out_degree[i] > 1:
        return None
    after = all_nodes[edges.a_consumer[i]].device if edges.out_degree[i] else ""
    return Rule.IDENTITY if node.inputs[0].op.device == after else None


def _assign_generators(
    indices: Any,
    graph: Graph,
    groups: Groups,
    edges: _Edges,
    device: Ints,
    rules: Any,
    chosen: dict[int, int],
) -> None:
    """Place nodes that make a value out of nothing with their consumers, if those are all in one place."""
    size = len(device)
    # Lowest and highest device among the consumers: equal when there is one. Another generator, which is not placed yet, counts as
    # nowhere (-1); the few generators that have such consumers are looked at again when their turn comes.
    low, high = (
        np.full(size, len(groups.constraints.cluster.devices), np.int32),
        np.full(size, UNPLACED, np.int32),
    )
    is_late = np.zeros(size, bool)
    is_late[indices] = True
    ends = is_late[edges.src]
    src, dst = edges.src[ends], edges.dst[ends]
    np.minimum.at(low, src, device[dst])
    np.maximum.at(high, src, device[dst])
    to_late: dict[int, list[int]] = {}
    for s, t in zip(src[is_late[dst]].tolist(), dst[is_late[dst]].tolist(), strict=True):
        to_late.setdefault(s, []).append(t)
    lows, highs = low.tolist(), high.tolist()
    number, find, candidates = groups.number, groups.find, groups.constraints.candidates
    for i in indices.tolist():
        root = find(i)
        d, rule = chosen.get(root, UNPLACED), Rule.GROUP
        if d == UNPLACED:
            found = candidates(number[root])
            if not found.devices:
                raise cannot_assign(graph.nodes[i], graph, groups)
            d, rule = found.first, _plain_rule(found)
            if len(found.devices) > 1:
                one = lows[i] == highs[i]
                if i in to_late:
                    one = len(set(device[dst[src == i]].tolist())) == 1
                    highs[i] = int(device[to_late[i][0]])
                if one and highs[i] in found.devices:
                    d, rule = highs[i], Rule.CONSUMERS
            if i in groups:
                chosen[root] = d
        device[i], rules[i] = d, rule
