"""`verify` checks the invariants of a graph between passes, and lists those that are broken.

It runs in tests and if DOVETAIL_CHECK is set. A failure is a bug in Dovetail, not in the user's program: the
graph refuses invalid nodes when they are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .errors import InternalError
from .graph import Graph, Node
from .shape import compatible, text


def verify(graph: Graph) -> None:
    """Raise InternalError that lists all broken invariants of a graph, if there are any."""
    faults = list(find_faults(graph))
    if faults:
        shown = "\n  ".join(faults[:20]) + (f"\n  and {len(faults) - 20} more" if len(faults) > 20 else "")
        raise InternalError.of(f"The graph breaks {len(faults)} invariants:\n  {shown}")


def find_faults(graph: Graph) -> Iterator[str]:
    """One line for each broken invariant.

    Names are unique and can be looked up; nodes are numbered in order; inputs are made earlier, in the same graph;
    each node's outputs match its op's shape rule; edges, including control edges, form no cycle.
    """
    names: dict[str, Node] = {}
    for index, node in enumerate(graph.nodes):
        what = f"'{node.name}' ({node.type}, created at {node.source})"
        if node.name in names:
            yield f"{what} has the name of node {names[node.name].index}"
        names[node.name] = node
        if node.name not in graph or graph.get_operation_by_name(node.name) is not node:
            yield f"{what} is not found by its name"
        if node.index != index:
            yield f"{what} is number {index} but calls itself {node.index}"
        if node.graph is not graph:
            yield f"{what} belongs to another graph"
        for i, t in enumerate(node.inputs):
            if t.op.graph is not graph:
                yield f"input {i} of {what} is {t.name} of another graph"
            elif t.op.index >= index and t.op is not node.back_edge:
                yield f"input {i} of {what} is {t.name}, which is made later"
            elif t.value_index >= len(t.op.outputs) or t.op.outputs[t.value_index] is not t:
                yield f"input {i} of {what} is {t.name}, which its node does not put out"
        for c in node.controls:
            if c.graph is not graph:
                yield f"a control input of {what} is '{c.name}' of another graph"
        yield from _output_faults(node, what)
    cycle = find_cycle(graph.nodes)
    if cycle:
        yield "edges close a cycle: " + " -> ".join(n.name for n in cycle)


def _output_faults(node: Node, what: str) -> Iterator[str]:
    try:
        signature = list(node.opdef.infer(node.inputs, node.attrs))
    except (TypeError, ValueError, KeyError) as e:
        yield f"{what} has inputs or attrs that its op refuses: {e}"
        return
    if len(signature) != len(node.outputs):
        yield f"{what} has {len(node.outputs)} outputs; its op makes {len(signature)}"
        return
    for t, (dtype, dims) in zip(node.outputs, signature, strict=True):
        if t.dtype is not dtype:
            yield f"{t.name} has type {t.dtype.name}; the op of {what} makes {dtype.name}"
        if not compatible(t.dims, dims):
            yield f"{t.name} has shape {text(t.dims)}; the op of {what} makes {text(dims)}"


def find_cycle(nodes: Sequence[Node]) -> list[Node]:
    """A cycle of data and control edges among these nodes, or []. Back edges of loops are ignored.

    Each node of the list is an input of the next one, and the first node is repeated at the end. Time and memory are linear in nodes and
    edges.
    """
    # Depth-first search along inputs. A node is open while its inputs are being visited. An edge to an open node closes a cycle.
    closed: set[Node] = set()
    for start in nodes:
        if start in closed:
            continue
        path: dict[Node, Iterator[Node]] = {start: iter(start.before)}  # the open nodes, in order
        while path:
            node, rest = next(reversed(path.items()))
            for before in rest:
                if before in path:
                    opened = list(path)
                    return [before, *reversed(opened[opened.index(before) :])]
                if before not in closed:
                    path[before] = iter(before.before)
                    break
            else:
                path.popitem()
                closed.add(node)
    return []
