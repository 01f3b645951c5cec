"""Control edges that make TensorFlow compute all gradients of a step before it changes a reference variable.

The value of a reference variable is its memory. In TensorFlow, an op that reads `v/read` may run after an update of `v`, and sees the
new value. In Dovetail, a step's reads are before its updates. TensorFlow's optimizers add such edges, too (`GATE_OP`). Resource
variables do not need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core.graph import Graph, Node

_REFERENCES = frozenset(("RefEnter", "RefSwitch"))
"""Ops that forward a reference."""
_ALIASES = frozenset(("Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient"))
"""Ops whose output may share the memory of their input."""


def order_updates(graph: Graph, protos: Mapping[str, Any]) -> None:
    """Add the edges to the nodes of a `GraphDef` of a whole graph. `protos` has the nodes by name."""
    takers: dict[Node, list[Node]] = {}
    updates = []
    for node in graph.nodes:
        for before in (*dict.fromkeys([t.op for t in node.inputs]), *node.controls):
            takers.setdefault(before, []).append(node)
        if "Apply" in node.type and node.inputs[0].dtype.is_ref:
            updates.append(node)
    for group in _together(updates, takers):
        needed = _reached(group, lambda n: [*(t.op for t in n.inputs), *n.controls])
        later = _reached(group, lambda n: () if n.type == "NextIteration" else takers.get(n, ()))
        for update in group:
            variable = update.inputs[0].op
            while variable.type in _REFERENCES:
                variable = variable.inputs[0].op
            for reader in _readers(variable, takers):
                is_beside = graph.flow.of(reader) is graph.flow.of(update)
                if reader in needed and reader not in later and is_beside:
                    edge = f"^{reader.name}"
                    if edge not in protos[update.name].input:
                        protos[update.name].input.append(edge)


def _together(updates: Sequence[Node], takers: Mapping[Node, Sequence[Node]]) -> list[list[Node]]:
    """The updates in groups, each of which one NoOp runs."""
    groups: dict[Node, list[Node]] = {}
    for update in updates:
        last, node = update, update
        while True:  # to the last NoOp that depends on it
            following = [n for n in takers.get(node, ()) if n.type == "NoOp"]
            if not following:
                break
            node = last = following[-1]
        groups.setdefault(last, []).append(update)
    return list(groups.values())


def _reached(start: Iterable[Node], following: Any) -> set[Node]:
    """The nodes that are reached from `start`."""
    found: set[Node] = set()
    todo = list(start)
    while todo:
        for node in following(todo.pop()):
            if node not in found:
                found.add(node)
                todo.append(node)
    return found


def _readers(variable: Node, takers: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """The nodes that read a variable's memory, except its updates."""
    found: dict[Node, None] = {}
    todo = [variable]
    while todo:
        memory = todo.pop()
        for node in takers.get(memory, ()):
            if not any(t.op is memory for t in node.inputs) or node in found:
                continue
            if node.type in _REFERENCES:
                todo.append(node)
            elif not any(t.dtype.is_ref for t in node.outputs):
                found[node] = None
                todo += [node] if node.type in _ALIASES else []
    return list(found)
