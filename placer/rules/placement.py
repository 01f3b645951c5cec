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
from .diagnostics import SHOWN, story
from .provenance import Reasons

Ints = npt.NDArray[np.signedinteger[Any]]
Flags = npt.NDArray[np.bool_]
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
    SEARCHED = 8

    @property
    def text(self) -> str:
        """The rule in words."""
        return _RULES[self]


_RULES = {
    Rule.NONE: "not placed",
    Rule.FIRST: ("first candidate: the master's task comes first, then tasks by name; in a task the best device type"),
    Rule.ONLY: "the only candidate",
    Rule.ASSIGNED: "it holds state, and keeps the device that it had in earlier steps",
    Rule.GROUP: "with the member of its colocation group that was placed first",
    Rule.METADATA: "it looks only at the shape of its input, so it is where its input is",
    Rule.IDENTITY: "it only passes its input on, so it is where its input is",
    Rule.CONSUMERS: "it is a constant, placeholder or handle, and all its consumers are there",
    Rule.SEARCHED: "the search chose it among the candidates, by the predicted time of the step",
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
        rules: per node the rule (`Rule`) that chose its device.
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
        """What stands behind it: demands, groups, overruled requests."""
        return self._find_reasons()

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
        """The same nodes, all on one device of the cluster, whatever they ask for."""
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
        if demand.given_up:
            overruled.append(demand.given_up)
        return Decision(
            node=all_nodes[i].name,
            requested=all_nodes[i].device,
            required=demand.required,
            group=tuple(all_nodes[j].name for j in reasons.members(i)),
            candidates=tuple(names[d] for d in demand.candidates),
            rejected=tuple(Rejection(names[d], why) for d, why in demand.against(len(names)).items()),
            chosen=names[int(self.index[i])],
            rule=Rule(int(self.rules[i])),
            overruled=tuple(overruled),
        )

    def explain(self, node: Node | str) -> str:
        """Why a node is where it is: request, blocks, group, candidates, what dropped others, the choice."""
        i = self._index_of(node)
        return _described(self.decision(self.graph.nodes[i]), self.graph)

    @property
    def relaxations(self) -> tuple[Relaxation, ...]:
        """Each request that is not met, and each colocation that was ignored, in order of creation."""
        if not self.reasons.notes and not any(demand.given_up for demand in self.reasons.demands):
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
        found = [note.text for note in self.reasons.notes_of(i) if note.kind != "ignored"]
        given_up = self.reasons.demand(i).given_up
        found += [given_up] if given_up else []
        return "; ".join(dict.fromkeys(found)) or Rule(int(self.rules[i])).text

    def __repr__(self) -> str:
        used = len(np.unique(self.index[self.index >= 0]))
        return f"<dt.Placement of {len(self._nodes)} nodes on {used} of {len(self._names)} devices>"


def _meets(request: str, cluster: Cluster, device: int) -> bool:
    return matches(parse_strict(request), cluster.devices[device].name)


def _described(decision: Decision, graph: Graph) -> str:
    """The text of `Placement.explain`."""
    lines = [f"{decision.node} -> {decision.chosen}", story(graph.get_operation_by_name(decision.node))]
    if len(decision.group) > 1:
        lines.append(f"  shares its device with {listed((n for n in decision.group if n != decision.node), SHOWN)}")
    if decision.required != decision.requested:
        lines.append(
            f"  required of the group: '{decision.required}'"
            if decision.required
            else "  required of the group: nothing"
        )
    lines += [f"  overruled: {text}" for text in decision.overruled]
    lines.append(f"  candidates, best first: {listed(decision.candidates, SHOWN) or 'none'}")
    by_reason: dict[str, list[str]] = {}
    for r in decision.rejected:
        by_reason.setdefault(r.reason, []).append(r.device)
    lines += [f"  not {listed(devices, SHOWN)}: {reason}" for reason, devices in by_reason.items()]
    lines.append(f"  chosen: {decision.chosen}, {decision.rule.text}")
    return "\n".join(lines)
