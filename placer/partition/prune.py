"""Pruning: the nodes that one step runs, in one global order; and those that only initialize variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter

from ...graph.core.frames import in_order
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.opdef import Trait


def named(graph: Graph, tensors: Iterable[str], nodes: Iterable[str]) -> tuple[list[Tensor], list[Node]]:
    """The tensors and nodes of these names. KeyError, ValueError: as `Graph.get_tensor_by_name`."""
    return [graph.get_tensor_by_name(t) for t in tensors], [graph.get_operation_by_name(n) for n in nodes]


def needed(
    graph: Graph, fetches: Iterable[Tensor] = (), targets: Iterable[Node] = (), feeds: Iterable[Tensor] = ()
) -> list[Node]:
    """The nodes that one step runs, in the global order: what fetches and targets depend on, up to feeds.

    The order is that of creation; where control edges were added against it later, the closest order that
    they allow. What may have to wait for another step (a dequeue) comes as late as it can, with all that needs
    it: the rest is not delayed, and what only this step itself can put into a queue is put there first. A node is
    not run when all its outputs that are used are fed. A placeholder that is fed
    satisfies the control edges from it.
    """
    fed = set(feeds)
    seen = bytearray(len(graph.nodes))
    todo = [t.op for t in fetches if t not in fed]
    todo += (n for n in targets if not _is_fed_placeholder(n, fed))
    found: list[Node] = []
    while todo:
        node = todo.pop()
        if seen[node.index]:
            continue
        seen[node.index] = 1
        found.append(node)
        for t in node.inputs:
            if not (fed and t in fed) and not seen[t.op.index]:
                todo.append(t.op)
        for c in node.controls:
            if not seen[c.index] and not (fed and _is_fed_placeholder(c, fed)):
                todo.append(c)
    found.sort(key=attrgetter("index"))
    if any(c.index > n.index for n in found if n.controls for c in n.controls):
        inside = set(found)
        found = in_order(found, lambda n: [b for b in n.before if b in inside])
    if any(op.is_blocking for op in {n.opdef for n in found}):
        found = _waiting_last(found)
    return found


def initializers(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that only serve to give variables their first values.

    These are the assignments that variables are made with, the nodes that group them, and all that nothing else takes.

    Args:
        nodes: nodes of one graph, inputs first.
    """
    found: set[Node] = set()
    for n in nodes:
        op = n.opdef.name
        if op in ("Assign", "AssignVariableOp"):
            if n.name == f"{n.inputs[0].op.name}/Assign":
                found.add(n)
        elif op == "NoOp" and n.controls and found.issuperset(n.controls):
            found.add(n)
    serving: set[Node] = set()  # what they take, directly or not
    todo = list(found)
    while todo:
        for b in todo.pop().before:
            if b not in serving and b not in found and Trait.STATE_HANDLE not in b.opdef.traits:
                serving.add(b)
                todo.append(b)
    todo = [n for n in nodes if n not in found and n not in serving] if serving else []
    while todo:  # what others take, too, serves more
        n = todo.pop()
        for b in (*[t.op for t in n.inputs], *n.controls):
            if b in serving:
                serving.remove(b)
                todo.append(b)
    return found | serving


def _waiting_last(nodes: list[Node]) -> list[Node]:
    """Nodes in waves: those that depend on no node that may wait, then those nodes, then what depends on one of them, ...

    Of the nodes of one wave that may wait, those that only give (they have no outputs) come first.
    """
    wave: dict[Node, tuple[int, int]] = {}
    for node in nodes:
        number = max((wave[b][0] + (wave[b][1] > 0) for b in node.before if b in wave), default=0)
        waits = node.opdef.is_blocking
        wave[node] = number, (2 if node.outputs else 1) if waits else 0
    return sorted(nodes, key=wave.__getitem__)


def _is_fed_placeholder(node: Node, fed: set[Tensor]) -> bool:
    return node.type == "Placeholder" and node.outputs[0] in fed
