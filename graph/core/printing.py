"""Graphs as text with one line per node, graphs for networkx, and the differences of two graphs.

    v/read = Identity(v) : float32 (2, 3) @/job:ps/task:0 loc:v
    add = AddV2(v/read, x:1, ^init) : float32 (2, 3)

`name = Op(inputs) {attrs} : types and shapes @device loc:groups`. An input `n` is node n's first output,
`n:1` its second; `^n` must have run before. A large array is printed as its type, shape and a checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import DType
from .graph import Graph, Node, Tensor
from .hooks import hooks
from .shape import text as shape_text

_SHOWN = 8  # elements of an array that are shown in full


def format_graph(graph: Graph) -> str:
    """One line per node, in order of creation."""
    return "\n".join(format_node(n) for n in graph.nodes)


def format_node(node: Node) -> str:
    """The node's line."""
    inputs = [format_input(t) for t in node.inputs] + [f"^{c.name}" for c in node.controls]
    parts = [f"{node.name} = {node.type}({', '.join(inputs)})"]
    if node.attrs:
        parts.append("{" + ", ".join(f"{k}={format_attr(v)}" for k, v in sorted(node.attrs.items())) + "}")
    if node.outputs:
        parts.append(": " + ", ".join(f"{t.dtype.name} {shape_text(t.dims)}" for t in node.outputs))
    if node.device:
        parts.append(f"@{node.device}")
    if node.colocation:
        parts.append("loc:" + ",".join(node.colocation))
    if node.container:
        parts.append(f"container:{node.container}")
    return " ".join(parts)


def format_input(tensor: Tensor) -> str:
    """`n` for a node's first output, `n:1` for its second."""
    return tensor.op.name if tensor.value_index == 0 else tensor.name


def format_attr(value: Any) -> str:
    """An attr's value, on one line: equal values give equal text, other values other text."""
    if isinstance(value, DType):
        return value.name
    if isinstance(value, np.ndarray):
        kind = f"{'string' if value.dtype == object else value.dtype.name}{list(value.shape)}"
        if value.size <= _SHOWN:
            return f"{kind} {value.tolist()!r}"
        raw = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
        return f"{kind} crc32={zlib.crc32(raw):08x}"
    if isinstance(value, (tuple, list)):
        inner = ", ".join(format_attr(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def to_networkx(graph: Graph) -> Any:
    """A `networkx.MultiDiGraph`: one vertex per node name, one edge per data or control input.

    Vertices carry `op`, `device`, `index` and `node`; edges carry `kind` ("data" or "control"), and data
    edges `output`, `input` (numbers) and `tensor` (name).
    """
    import networkx

    found: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
    for node in graph.nodes:
        found.add_node(node.name, op=node.type, device=node.device, index=node.index, node=node)
    for node in graph.nodes:
        for i, t in enumerate(node.inputs):
            found.add_edge(t.op.name, node.name, kind="data", output=t.value_index, input=i, tensor=t.name)
        for c in node.controls:
            found.add_edge(c.name, node.name, kind="control")
    return found


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """The differences between two graphs, node by node, by name.

    Attributes:
        removed: lines of nodes that only the first has.
        added: lines of nodes that only the second has.
        changed: pairs of lines of nodes that both have but that differ.
    """

    removed: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.changed)

    def __str__(self) -> str:
        return "\n".join(self._lines()) or "no differences"

    def _lines(self) -> Iterator[str]:
        for line in self.removed:
            yield f"- {line}"
        for before, after in self.changed:
            yield f"- {before}"
            yield f"+ {after}"
        for line in self.added:
            yield f"+ {line}"


def diff(a: Graph, b: Graph) -> GraphDiff:
    """The differences between two graphs. Nodes are matched by name; the order of creation does not matter."""
    theirs = {n.name for n in b.nodes}
    removed = [format_node(n) for n in a.nodes if n.name not in theirs]
    added = [format_node(n) for n in b.nodes if n.name not in a]
    changed = []
    for node in a.nodes:
        if node.name in theirs:
            before, after = format_node(node), format_node(b.get_operation_by_name(node.name))
            if before != after:
                changed.append((before, after))
    return GraphDiff(tuple(removed), tuple(added), tuple(changed))


hooks.format_graph, hooks.to_networkx = format_graph, to_networkx
