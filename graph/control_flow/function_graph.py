"""`FunctionGraph`: the graph of a function that is traced once and called many times, such as the functions of data sets.

It has the collections of the outer graph and shares its variable scopes. Variables of the function are made in the outer graph.

The function may use nodes of the outer graph. They are *captured*:

- References and handles of state (variables, tables, queues) are made again under the same names, so that each call uses the current
  state. The function must run in the task that has the state.
- Constants are copied.
- Any other tensor becomes a placeholder. The caller feeds its value with each call (`captured`).

While the function is traced, nodes that would be added to the outer graph are added to the function's graph. For example, `v + 1` with
an outer variable `v` belongs to the function.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..core.build import placeholder
from ..core.graph import Graph, Node, Tensor
from ..core.opdef import OpDef, Trait
from ..core.source_location import Origin

VARIABLE_STORE, VARIABLE_SCOPE = "__variable_store", "__varscope"  # TensorFlow's names of these collections


class FunctionGraph(Graph):
    """A graph that captures tensors of an outer graph.

    Args:
        outer: the outer graph, until `finished` is called.
        by_value: whether to copy the nodes that compute an outer tensor. Otherwise the caller feeds its value.

    Attributes:
        captured: tensor of the outer graph -> its placeholder.
        state_nodes: nodes of the outer graph whose state the function uses.
    """

    def __init__(self, outer: Graph, by_value: bool = False) -> None:
        super().__init__()
        self.outer: Graph | None = outer
        self.captured: dict[Tensor, Tensor] = {}
        self.state_nodes: list[Node] = []
        self._by_value = by_value
        self._copies: dict[Node, Node] = {}
        self._collections.lists.update({key: list(items) for key, items in outer._collections.lists.items()})
        self._inherited = {key: len(items) for key, items in self._collections.lists.items()}
        for shared in (VARIABLE_STORE, VARIABLE_SCOPE):
            self._collections.lists[shared] = outer.get_collection_ref(shared)
        outer.functions += 1
        if (
            outer.seed is not None
        ):  # functions draw different numbers, but each the same numbers in each run of the program
            self.seed = (outer.seed + 0x9E3779B1 * outer.functions) % (2**31 - 1)

    @property
    def outermost(self) -> Graph:
        """The outermost graph, which is not a function's graph."""
        return self if self.outer is None else self.outer.outermost

    def finished(self) -> None:
        """End tracing, and drop the reference to the outer graph."""
        for shared in (VARIABLE_STORE, VARIABLE_SCOPE):
            del self._collections.lists[shared]
        for key, count in self._inherited.items():
            del self._collections.lists.get(key, [])[:count]
        self.outer, self.captured, self.state_nodes, self._copies = None, {}, [], {}

    def encloses(self, graph: Graph) -> bool:
        """Whether `graph` is an outer graph of this one."""
        around: Graph | None = self.outer
        while around is not None:
            if around is graph:
                return True
            around = around.outer if isinstance(around, FunctionGraph) else None
        return False

    def own(self, tensor: Tensor) -> Tensor:
        """Capture a tensor of an outer graph. A tensor of another graph is returned unchanged."""
        node = tensor.op
        if node.graph is self or not self.encloses(node.graph):
            return tensor
        if node.graph is not self.outer and isinstance(self.outer, FunctionGraph):
            tensor = self.outer.own(tensor)
            node = tensor.op
        found = self.captured.get(tensor)
        if found is not None:
            return found
        with self.control_dependencies(None):
            if self._by_value or node.type == "Const" or Trait.STATE_HANDLE in node.opdef.traits:
                return self._copy(node).outputs[tensor.value_index]
            found = self.captured[tensor] = placeholder(tensor.dtype.base, tensor.dims, "captured")
        return found

    def _copy(self, node: Node) -> Node:
        found = self._copies.get(node)
        if found is not None:
            return found
        attrs, is_state = dict(node.attrs), Trait.STATE_HANDLE in node.opdef.traits
        if self._by_value:
            if node.type in ("Placeholder", "PlaceholderWithDefault"):
                raise ValueError(f"Cannot capture a placeholder (name:{node.name}, type:{node.type}) by value")
            if node.opdef.is_stateful or is_state or node.back_edge is not None:
                raise ValueError(f"Cannot capture a stateful node (name:{node.name}, type:{node.type}) by value")
        if is_state:
            if attrs.get("shared_name") == "":
                attrs["shared_name"] = node.name
            self.state_nodes.append(node)
        inputs = [self.own(t) for t in node.inputs]
        found = self._copies[node] = self.create(node.opdef, inputs, attrs, node.opdef.name, origin=node._origin)
        found.container = node.container
        for mine, theirs in zip(found.outputs, node.outputs, strict=True):
            if theirs.dims is not None:
                mine.set_shape(theirs.shape)
        return found

    def create(
        self,
        op: OpDef | str,
        inputs: Sequence[Tensor] = (),
        attrs: dict[str, Any] | None = None,
        name: str | None = None,
        *,
        origin: Origin | None = None,
    ) -> Node:
        """As `Graph.create`, with captured inputs. Device blocks do not apply, because the function runs on the caller's device."""
        node = super().create(op, [self.own(t) for t in inputs], attrs, name, origin=origin)
        node.device = ""
        return node

    def colocate_with(self, op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
        """A block without effect, because a function runs on one device."""
        return nullcontext()

    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
        """As `Graph.control_dependencies`. Outer nodes are ignored, because they run before the function."""
        if control_inputs is None:
            return super().control_dependencies(None)
        elements = [getattr(c, "_control_element", lambda c=c: c)() for c in control_inputs]
        inside = [e for e in elements if not isinstance(e, (Tensor, Node)) or e.graph is self]
        return super().control_dependencies(inside)
