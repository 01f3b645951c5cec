"""The blocks that a user opens with `with`: devices, colocation, control dependencies, names, containers, and what is the default of
a thread. What they leave open is in `scopes`; the methods of `Blocks`, which are a `Graph`'s, say what they mean.

Those that open at every node are classes, because a generator would cost three times as much per block.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from .node import Node, Tensor
from .node_table import Contents
from .scopes import ControlBlock, DeviceBlock, Scopes, awaited_by, checked_name
from .source_location import caller

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

    def __init__(self, graph: Blocks, request: Any) -> None:
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

    def __init__(self, graph: Blocks, name: str | None) -> None:
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
        scopes.name = (
            name[:-1] if name[-1] == "/" else self._graph.unique_name(checked_name(name, scopes.name, "scope"))
        )
        return scopes.name + "/"

    def __exit__(self, *exc: object) -> None:
        self._graph.scopes.name = self._outer


class OpContext(NameContext):
    """`with graph.op_scope(...)`."""

    __slots__ = ()
    _graph: Graph

    def __enter__(self) -> str:
        scope = super().__enter__()
        open_blocks.graphs.append(self._graph)
        return scope

    def __exit__(self, *exc: object) -> None:
        open_blocks.graphs.pop()
        super().__exit__(*exc)


@contextmanager
def colocated(graph: Blocks, op: Any, ignore_existing: bool) -> Iterator[None]:
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


def _colocation_node(graph: Blocks, op: Any) -> Node | None:
    if op is None:
        return None
    handle = getattr(op, "_colocation_node", None)  # a variable names the node that holds its state
    if handle is not None:
        op = handle()
    element = graph.as_graph_element(op)
    return element.op if isinstance(element, Tensor) else element


@contextmanager
def outside_the_step(graph: Blocks) -> Iterator[None]:
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
def waiting_for(graph: Blocks, control_inputs: Iterable[Any] | None) -> Iterator[None]:
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
def in_container(graph: Blocks, container_name: str) -> Iterator[str]:
    """`with graph.container(...)`."""
    scopes = graph.scopes
    saved, scopes.container = scopes.container, container_name
    try:
        yield container_name
    finally:
        scopes.container = saved


class Blocks(Contents):
    """The part of a `Graph` that keeps which blocks are open, and names what is made in them."""

    def __init__(self) -> None:
        super().__init__()
        self._names_in_use: dict[str, int] = {}
        self._scopes = Scopes()
        self._thread_scopes: threading.local | None = None
        self.functions = 0
        """How many functions were traced inside this graph (`FunctionGraph`)."""

    def encloses(self, graph: Blocks) -> bool:
        """Whether a graph is around this one: only around those of functions."""
        return False

    @property
    def outermost(self) -> Any:
        """The graph in which sessions run what is made here: itself, or of a function the one around it."""
        return self

    def _traced(self) -> Graph | None:
        """The graph of the function inside this graph that this thread traces now; None: it traces none."""
        graphs = open_blocks.graphs
        if not self.functions or not graphs or graphs[-1] is self:
            return None
        return graphs[-1] if graphs[-1].encloses(self) else None

    @property
    def scopes(self) -> Scopes:
        """The open blocks, of this thread if the graph keeps them per thread."""
        return self._scopes if self._thread_scopes is None else self._current_scopes()

    def switch_to_thread_local(self) -> None:
        """Keep the open blocks per thread from now on; each thread starts from a copy of what is open now."""
        if self._thread_scopes is None:
            self._thread_scopes = threading.local()

    def _current_scopes(self) -> Scopes:
        local = self._thread_scopes
        found: Scopes | None = getattr(local, "scopes", None)
        if found is None:
            found = self._scopes.copy()
            local.scopes = found  # type: ignore[union-attr]
        return found

    def device(self, device_name_or_function: Any) -> AbstractContextManager[None]:
        """A block whose nodes ask for a device: text, DeviceSpec, function of the node, or None to clear.

        Blocks nest; fields of inner blocks win. `requested_device` (scopes.py) has the rules.

        Raises:
            ValueError: malformed text, at entry. RuntimeError: blocks left in the wrong order.
        """
        return DeviceContext(self._traced() or self, device_name_or_function)

    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> AbstractContextManager[None]:
        """A block whose nodes of these ops have other gradients.

        Args:
            op_type_map: op -> the name under which `RegisterGradient` has the rule.

        Raises:
            TypeError: no such dictionary. LookupError: no gradient of that name.
        """
        from ..gradients.custom import gradient_override_map

        return gradient_override_map(self, op_type_map)

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """A block whose nodes share the device of `op` (a node, tensor or variable). Device blocks around it do not apply inside.

        `ignore_existing=True` also hides outer `colocate_with` blocks; only then may `op` be None.
        """
        traced = self._traced()
        return colocated(self, op, ignore_existing) if traced is None else traced.colocate_with(op, ignore_existing)

    def init_scope(self) -> AbstractContextManager[None]:
        """A block for what outlives a step, such as a variable: no control edges from the blocks around it.

        Directly inside `colocate_with`, the device blocks that this hides apply again, as in TensorFlow.
        """
        return outside_the_step(self._traced() or self)

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
        """A block whose nodes run after the given nodes, tensors or variables.

        None hides the blocks around it, and the branches and loops: what is made inside is outside all of them.
        """
        traced = self._traced()
        return waiting_for(self, control_inputs) if traced is None else traced.control_dependencies(control_inputs)

    def name_scope(self, name: str | None) -> AbstractContextManager[str]:
        """A block whose nodes' names start with `<name>/`. Gives the scope's name with a slash at the end.

        A name that ends in '/' is taken as it stands (re-entering a scope); None or '' leaves all scopes.
        """
        return NameContext(self._traced() or self, name)

    def get_name_scope(self) -> str:
        """Name of the open scopes, without a slash at the end; '' outside of all."""
        return self.scopes.name

    def container(self, container_name: str) -> AbstractContextManager[str]:
        """A block whose stateful nodes keep their state in this container."""
        return in_container(self, container_name)

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """A name in the current scope that no node has: `add`, `add_1`, ... Case does not distinguish, as in TensorFlow."""
        scope = self.scopes.name
        if scope:
            name = f"{scope}/{name}"
        key = name.lower()
        in_use = self._names_in_use
        count = in_use.get(key, 0)
        if mark_as_used:
            in_use[key] = count + 1
        if count:
            base = key
            while key in in_use:
                key = f"{base}_{count}"
                count += 1
            if mark_as_used:
                in_use[key] = 1
            name = f"{name}_{count - 1}"
        return name
