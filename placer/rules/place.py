"""Placing: one device for every node, by TensorFlow's rules.

The pass has five parts, each near-linear in nodes and edges:

1. `form_groups` sums up what each colocation group demands (`colocation.py`);
2. each distinct constraint gets its candidate devices, best first;
3. nodes get devices in order of creation: the first candidate, except that a node which only looks at its
   input's shape, or only passes it on, stays with its input. A group goes with its first member;
4. constants, placeholders and handles come last: they go where all
   their consumers are;
5. nodes that an earlier search has placed (`Graph.searched`) go to that device, if their group may have it.

Nothing is balanced and nothing is random: the same graph gets the same devices on any machine. Only nodes
that share a group or stay with their input depend on each other; all others are placed as arrays, class by
class.

What follows for an unpinned node: the best device of the master's task. For `/job:ps/task:0`: the best
device of that task. For `/job:ps`: of its first task, or of the master's own task if that is in the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ...graph.core.graph import Graph, Node
from ...graph.core.opdef import OpDef, Trait
from ..cluster.spec import Cluster
from .colocation import Groups, form_groups
from .constraints import Candidates, is_generator
from .diagnostics import cannot_assign, unplaceable
from .placement import UNPLACED, Flags, Ints, Placement, Rule
from .provenance import reasons_of

Search: TypeAlias = "Callable[[Sequence[Node], Groups, Ints], tuple[Ints, Flags]]"
"""From the nodes, their groups and the devices by the rules: the device of each, and whether it was chosen."""


def place(
    graph: Graph,
    cluster: Cluster,
    *,
    assigned: Mapping[str, str] | None = None,
    allow_soft_placement: bool = False,
    nodes: Sequence[Node] | None = None,
    search: Search | None = None,
) -> Placement:
    """Give every node a device.

    Args:
        graph: the graph; it is not changed.
        cluster: the devices, and the master's task.
        assigned: complete device names from earlier steps, by node name; stateful nodes keep them.
        allow_soft_placement: give up a device type or index that cannot be had; never a job or task.
        nodes: place only these (nodes of the graph, in order of creation), with what they need among them.
        search: chooses among the candidates in place of the rules, which then only say what it starts from.

    Raises:
        InvalidArgumentError: a request is malformed, has no device, or contradicts another; the text names
            the node, the requests with their source lines, and the devices that exist.
    """
    nodes = list(graph.nodes) if nodes is None else nodes
    size = max((n.index for n in nodes), default=-1) + 1
    assigned = assigned or {}
    groups, contradiction = form_groups(nodes, size, cluster, assigned, allow_soft_placement)
    if contradiction is not None:
        raise unplaceable(contradiction, graph, groups)
    work = _Pass(graph, nodes, size, groups, assigned)
    work.run()
    if graph.searched:
        work.follow(graph.searched, cluster)
    if search is not None:
        found, searched = search(nodes, groups, work.device)
        at = np.array([n.index for n in nodes], np.int32)
        work.device[at] = found
        work.rule[at[searched]] = Rule.SEARCHED
    return Placement(graph, cluster, allow_soft_placement, nodes, work.device, work.rule, lambda: reasons_of(groups))


class _Edges:
    """All edges between placed nodes, data and control, as arrays of node indices."""

    def __init__(self, nodes: Sequence[Node], size: int) -> None:
        at = np.array([n.index for n in nodes], np.int32)
        data = np.array([t.op.index for n in nodes for t in n.inputs], np.int32)
        control = np.array([c.index for n in nodes for c in n.controls], np.int32)
        to_data = np.repeat(at, [len(n.inputs) for n in nodes])
        to_control = np.repeat(at, [len(n.controls) for n in nodes])
        src, dst = np.concatenate([data, control]), np.concatenate([to_data, to_control])
        inside = np.zeros(size + 1, bool)  # the last entry stands for all higher indices
        inside[at] = True
        kept = inside[np.minimum(src, size)]
        self.src, self.dst = src[kept], dst[kept]
        self.out_degree = np.bincount(self.src, minlength=size)
        self.in_degree = np.bincount(self.dst, minlength=size)
        self.a_consumer = np.full(size, -1, np.int32)  # one of each node's consumers, so the only one if it is
        self.a_consumer[self.src] = self.dst


class _Pass:
    """Parts 2 to 5. `device` and `rule` hold the result, by node index."""

    def __init__(
        self, graph: Graph, nodes: Sequence[Node], size: int, groups: Groups, assigned: Mapping[str, str]
    ) -> None:
        self.graph, self.nodes, self.groups, self.assigned = graph, nodes, groups, assigned
        self.edges = _Edges(nodes, size)
        self.device = np.full(size, UNPLACED, np.int32)
        self.rule = np.zeros(size, np.uint8)
        self.chosen: dict[int, int] = {}  # root of a group that several nodes share -> its device

    def run(self) -> None:
        """Place all nodes; raise at the first, in TensorFlow's order, that cannot be placed."""
        number = np.array(self.groups.number, np.int32)
        dependent, late = self._sort_out()
        present = number >= 0
        alone = np.flatnonzero(present & ~dependent & ~late)
        failed = self._by_class(alone, number[alone])
        self._in_order(np.flatnonzero(present & dependent & ~late), failed)
        if failed is not None:
            raise cannot_assign(self.graph.nodes[failed], self.graph, self.groups)
        self._with_consumers(np.flatnonzero(present & late))

    def follow(self, searched: Mapping[Node, str], cluster: Cluster) -> None:
        """Give the groups of nodes that a search has placed their devices; the first node of a group decides."""
        number = {str(d.name): i for i, d in enumerate(cluster.devices)}
        of_group: dict[int, int] = {}
        for node in self.nodes:
            d, root = number.get(searched.get(node, ""), UNPLACED), self.groups.find(node.index)
            found = self._candidates(node.index, root)
            if len(found.devices) > 1 and d in found.as_set:
                of_group.setdefault(root, d)
        at = [(n.index, of_group[root]) for n in self.nodes if (root := self.groups.find(n.index)) in of_group]
        for i, d in at:
            self.device[i], self.rule[i] = d, Rule.SEARCHED

    def _sort_out(self) -> tuple[Flags, Flags]:
        """Find the nodes whose device depends on their group or input, and those that are placed last."""
        dependent, late = np.zeros(len(self.device), bool), np.zeros(len(self.device), bool)
        dependent[self.groups.shared] = True
        stays: dict[OpDef, bool] = {}
        for node in self.nodes:
            opdef = node.opdef
            if not node.inputs:
                late[node.index] = is_generator(node)
                continue
            stay = stays.get(opdef)
            if stay is None:
                stay = stays[opdef] = Trait.METADATA in opdef.traits or opdef.name == "Identity"
            if stay:
                dependent[node.index] = True
        if self.assigned:
            kept = [n.index for n in self.nodes if self._is_kept(n)]
            dependent[kept], late[kept] = True, False
        return dependent, late

    def _is_kept(self, node: Node) -> bool:
        return node.opdef.is_stateful and node.name in self.assigned

    def _by_class(self, alone: Ints, classes: Ints) -> int | None:
        """Place nodes that depend on no other; returns the first that cannot be placed."""
        failed: list[int] = []
        first = np.zeros(int(classes.max(initial=-1)) + 1, np.int32)
        rule = np.zeros(len(first), np.uint8)
        used, where = np.unique(classes, return_index=True)
        for c, i in zip(used.tolist(), where.tolist(), strict=True):
            found = self.groups.constraints.candidates(c)
            if found.devices:
                first[c], rule[c] = found.first, _plain_rule(found)
            else:
                failed.append(int(alone[i]))
        self.device[alone] = first[classes]
        self.rule[alone] = rule[classes]
        return min(failed, default=None)

    def _in_order(self, indices: Ints, stop: int | None) -> None:
        """Place nodes that depend on their group or their input, in order of creation, up to `stop`."""
        for i in indices.tolist():
            if stop is not None and i > stop:
                return
            node = self.graph.nodes[i]
            root = self.groups.find(i)
            d, rule = self.chosen.get(root, UNPLACED), Rule.GROUP
            if d == UNPLACED:
                found = self._candidates(i, root)
                d, rule = found.first, _plain_rule(found)
                if self._is_kept(node):
                    rule = Rule.ASSIGNED
                elif len(found.devices) > 1 and (stays := self._stays_with_input(node)):
                    input_device = int(self.device[node.inputs[0].op.index])
                    if input_device in found.as_set:
                        d, rule = input_device, stays
                if i in self.groups:
                    self.chosen[root] = d
            self.device[i], self.rule[i] = d, rule

    def _candidates(self, i: int, root: int) -> Candidates:
        found = self.groups.constraints.candidates(self.groups.number[root])
        if not found.devices:
            raise cannot_assign(self.graph.nodes[i], self.graph, self.groups)
        return found

    def _stays_with_input(self, node: Node) -> Rule | None:
        if not node.inputs:
            return None
        if Trait.METADATA in node.opdef.traits:
            return Rule.METADATA
        i, edges = node.index, self.edges
        if node.device or node.opdef.name != "Identity" or edges.in_degree[i] != 1 or edges.out_degree[i] > 1:
            return None
        after = self.graph.nodes[edges.a_consumer[i]].device if edges.out_degree[i] else ""
        return Rule.IDENTITY if node.inputs[0].op.device == after else None

    def _with_consumers(self, indices: Ints) -> None:
        """Place constants, placeholders and handles where their consumers are, if that is one device."""
        device, size = self.device, len(self.device)
        is_late = np.zeros(size, bool)
        is_late[indices] = True
        ends = is_late[self.edges.src]
        src, dst = self.edges.src[ends], self.edges.dst[ends]
        # Lowest and highest device among the consumers: equal when there is one. A consumer that is late
        # itself is nowhere yet (-1); the few nodes that have such ones are looked at again at their turn.
        low, high = np.full(size, np.iinfo(np.int32).max, np.int32), np.full(size, UNPLACED, np.int32)
        np.minimum.at(low, src, device[dst])
        np.maximum.at(high, src, device[dst])
        has_late_consumer = set(src[is_late[dst]].tolist())
        by_source = np.argsort(src, kind="stable")
        src, dst = src[by_source], dst[by_source]
        together = np.where(low == high, low, UNPLACED).tolist()
        for i in indices.tolist():
            root = self.groups.find(i)
            d, rule = self.chosen.get(root, UNPLACED), Rule.GROUP
            if d == UNPLACED:
                found = self._candidates(i, root)
                d, rule = found.first, _plain_rule(found)
                if i in has_late_consumer:
                    begin, end = np.searchsorted(src, (i, i + 1))
                    places = set(device[dst[begin:end]].tolist())
                    together[i] = places.pop() if len(places) == 1 else UNPLACED
                if len(found.devices) > 1 and together[i] in found.as_set:
                    d, rule = together[i], Rule.CONSUMERS
                if i in self.groups:
                    self.chosen[root] = d
            self.device[i], self.rule[i] = d, rule


def _plain_rule(found: Candidates) -> Rule:
    return Rule.ONLY if len(found.devices) == 1 else Rule.FIRST
