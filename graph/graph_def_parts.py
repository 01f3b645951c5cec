"""Parts of a `GraphDef`: what nodes need, and a graph without some of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any


def node_of(text: str) -> str:
    """The name of the node that an input names: `x` of `x:1` and of `^x`."""
    return text.removeprefix("^").partition(":")[0]


def without(graph_def: Any, is_left_out: Callable[[Any], bool], needed: Collection[str] = frozenset()) -> Any:
    """A graph without some nodes, and without those that need them; but with all of `needed`, by name."""
    takers: dict[str, list[str]] = {}
    for node in graph_def.node:
        for source in {node_of(i) for i in node.input}:
            takers.setdefault(source, []).append(node.name)
    todo = [node.name for node in graph_def.node if is_left_out(node)]
    gone: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in gone:
            gone.add(name)
            todo += takers.get(name, ())
    out = type(graph_def)()
    out.CopyFrom(graph_def)
    del out.node[:]
    out.node.extend([node for node in graph_def.node if node.name in needed or node.name not in gone])
    return out


def needed_by(graph_def: Any, names: Iterable[str]) -> set[str]:
    """The names of nodes that these need, and theirs; those that are not in the graph among them."""
    nodes = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += map(node_of, nodes[name].input) if name in nodes else ()
    return found


__all__ = ["needed_by", "node_of", "without"]
