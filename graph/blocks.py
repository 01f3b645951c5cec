"""The blocks that a user opens with `with`: devices, colocation, control dependencies, names, containers, and what is the default of
a thread. What they leave open is in `scopes`; `Graph`'s methods say what they mean.

Those that open at every node are classes, because a generator would cost three times as much per block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .node import Node, Tensor
from .scopes import ControlBlock, DeviceBlock, awaited_by
from .source import caller

if TYPE_CHECKING:
    from .graph import Graph


class OpenBlocks(threading.local):
    """The default graphs and sessions of a thread, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.sessions: list[Any] = []


open_blocks = OpenBlocks()


@contextmanager
def pushed(stack: list[Any], item: Any) -> Iterator[Any]:
    """A context in which an item is the innermost of a stack."""
    stack.append(item)
    try:
        yield item
    finally:
        if stack and stack[-1] is item:
            stack.pop()
        else:  # left in the wrong order: remove the right one, do not corrupt the others
            stack.remove(item)


class DeviceContext:
    """`with graph.device(...)`."""

    __slots__ = ("_block", "_graph", "_outer", "_request")

    def __init__(self, graph: Graph, request: Any) -> None:
        self._graph = graph
        self._request = request
        self._outer: DeviceBlock | None = None
        self._block: DeviceBlock | None = None

    def __enter__(self) -> None:
        if self._block is not None:
            raise RuntimeError(f"The device block {self._block.describe()} is open already")
        scopes = self._graph.scopes
        self._outer = scopes.device
        self._block = scopes.device = DeviceBlock(scopes.device, self._request, caller())

    def __exit__(self, *exc: object) -> None:
        scopes, block = self._graph.scopes, self._block
        self._block = None
        if block is not None and scopes.device is block:
            scopes.device = DeviceBlock.still_open(self._outer)
            return
        # Those inside it that are still open are left with it; one that was left so before changes nothing.
        open_ = scopes.device
        while open_ is not None and open_ is not block:
            open_ = open_.outer
        if open_ is not None:
            scopes.device = self._outer
        elif block is not None:
            block.left = True
        raise RuntimeError("Exiting device scope without proper scope nesting.")


class NameContext:
    """`with graph.name_scope(...)`."""

    __slots__ = ("_graph", "_name", "_outer")

    def __init__(self, graph: Graph, name: str | None) -> None:
        self._graph = graph
        self._name = name
        self._outer = ""

    def __enter__(self) -> str:
        scopes = self._graph.scopes
        self._outer = scopes.name
        name = self._name
        if not name:
            scopes.name = ""
            return ""
        scopes.name = name[:-1] if name[-1] == "/" else self._graph.unique_name(name)
        return scopes.name + "/"

    def __exit__(self, *exc: object) -> None:
        self._graph.scopes.name = self._outer


class OpContext(NameContext):
    """`with graph.op_scope(...)`."""

    __slots__ = ()

    def __enter__(self) -> str:
        scope = super().__enter__()
        open_blocks.graphs.append(self._graph)
        return scope

    def __exit__(self, *exc: object) -> None:
        open_blocks.graphs.pop()
        super().__exit__(*exc)


@contextmanager
def colocated(graph: Graph, op: Any, ignore_existing: bool) -> Iterator[None]:
    """`with graph.colocate_with(...)`."""
    node = _colocation_node(graph, op)
    if node is None and not ignore_existing:
        raise ValueError("colocate_with(None) makes sense only with ignore_existing=True")
    scopes = graph.scopes
    saved = scopes.device, scopes.colocation
    depth = scopes.colocated
    if not depth:
        scopes.hidden = scopes.device
    scopes.colocated = depth + 1
    scopes.device = None
    kept = () if ignore_existing else scopes.colocation
    inside = scopes.colocation = kept if node is None else (*kept, node)
    try:
        yield
    finally:
        in_order = scopes.colocated == depth + 1 and scopes.colocation is inside and scopes.device is None
        if scopes.colocated > depth:  # else it went with one around it that was left too early
            scopes.device, scopes.colocation = DeviceBlock.still_open(saved[0]), saved[1]
            scopes.colocated = depth
        if not in_order:
            raise RuntimeError("Exiting colocation scope without proper scope nesting.")


def _colocation_node(graph: Graph, op: Any) -> Node | None:
    if op is None:
        return None
    handle = getattr(op, "_colocation_node", None)  # a variable names the node that holds its state
    if handle is not None:
        op = handle()
    element = graph.as_graph_element(op)
    return element.op if isinstance(element, Tensor) else element


@contextmanager
def outside_the_step(graph: Graph) -> Iterator[None]:
    """`with graph.init_scope()`."""
    scopes = graph.scopes
    saved = scopes.device
    if saved is None and scopes.colocated:
        scopes.device = scopes.hidden
    try:
        with graph.control_dependencies(None):
            yield
    finally:
        scopes.device = saved


@contextmanager
def waiting_for(graph: Graph, control_inputs: Iterable[Any] | None) -> Iterator[None]:
    """`with graph.control_dependencies(...)`."""
    scopes = graph.scopes
    saved, flow = scopes.control, scopes.flow
    if control_inputs is None:
        scopes.control = scopes.flow = None
    else:
        awaited = set(awaited_by(saved))  # an inner block does not ask again for what an outer one asks for
        nodes: dict[Node, None] = {}
        for c in control_inputs:
            element = graph.as_graph_element(getattr(c, "_control_element", lambda c=c: c)())
            node = element.op if isinstance(element, Tensor) else element
            if node not in awaited:
                nodes[node] = None
        scopes.control = ControlBlock(saved, tuple(nodes))
    try:
        yield
    finally:
        scopes.control, scopes.flow = saved, flow


@contextmanager
def in_container(graph: Graph, container_name: str) -> Iterator[str]:
    """`with graph.container(...)`."""
    scopes = graph.scopes
    saved, scopes.container = scopes.container, container_name
    try:
        yield container_name
    finally:
        scopes.container = saved
