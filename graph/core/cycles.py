"""Cycles of data and control edges: finding one, and seeing that a new edge would close one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .node import Node


def find_cycle(nodes: Sequence[Node]) -> list[Node]:
    """A cycle of data and control edges among these nodes, first node repeated at the end; [] when there is
    none. The edges that lead from one iteration of a loop to the next are no part of any.

    Each node of the list is an input of the one after it. Time and memory are linear in nodes and edges.
    """
    # Depth first along inputs: a node is open while its inputs are being walked; an edge to an open node
    # closes a cycle.
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


def path_between(start: Node, goal: Node) -> list[Node] | None:
    """A path goal -> ... -> start along edges, if `goal` feeds `start`; found by walking inputs back from `start`."""
    came_from: dict[Node, Node | None] = {start: None}
    todo = [start]
    while todo:
        node = todo.pop()
        if node is goal:
            path: list[Node] = []
            step: Node | None = node
            while step is not None:
                path.append(step)
                step = came_from[step]
            return path
        for before in node.before:
            if before not in came_from:
                came_from[before] = node
                todo.append(before)
    return None
