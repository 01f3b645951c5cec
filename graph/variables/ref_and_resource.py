"""The two kinds of variables, and their nodes.

A variable is a few nodes with a common name scope. Their names are TensorFlow 1's. A *reference* variable `v` is

    v/initial_value   its initial value         v/Assign   its initializer
    v                 the reference             v/read     its value, the input of all nodes that use `v`

and a *resource* variable (`use_resource=True`) is

    v/Initializer/initial_value   its initial value       v/Assign                 its initializer
    v                             the handle              v/Read/ReadVariableOp    its value, for fetches
    v/IsInitialized/VarIsInitializedOp

and each use adds a `ReadVariableOp`. Device blocks around a reference variable apply to its initial value, unless a function makes
it. All other nodes above are colocated with the variable: initial values made by a function, those of resource variables, the
Assign, and a reference variable's read. The placer colocates ops that take a resource variable's handle with the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..core.build import TensorLike, apply, convert
from ..core.dtypes import DType
from ..core.graph import Graph, Node, Tensor
from ..ops.array.gather import gather
from ..ops.state import scatter_state, variables
from .variable import Variable, variable_kinds

_REFERENCE_CHANGES: dict[str, Callable[..., Any]] = {
    "AssignAdd": variables.assign_add,
    "AssignSub": variables.assign_sub,
}


class RefVariable(Variable):
    """A reference variable, TensorFlow 1's default kind. `Variable(...)` makes one."""

    _snapshot: Tensor

    def _build(
        self,
        graph: Graph,
        scope: str,
        initial_value: Any,
        dtype: DType | None,
        validate_shape: bool,
        caching_device: Any,
        expected: Any,
    ) -> None:
        if callable(initial_value):
            with _initializer_scope(graph, scope):
                value = convert(initial_value(), dtype, name="initial_value")
        else:
            value = convert(initial_value, dtype, name="initial_value")
        dims = self._checked_initial(value, validate_shape, expected, scope)
        self._initial_value = value
        self._handle = variables.variable_op_v2(dims, value.dtype, scope)
        safe = _without_uninitialized(value, self._handle.op.name)
        self._initializer = variables.assign(self._handle, safe, validate_shape=validate_shape).op
        with graph.colocate_with(self._handle.op) if caching_device is None else graph.device(caching_device):
            self._snapshot = apply("Identity", (self._handle,), None, "read")

    @property
    def dtype(self) -> DType:
        """The element type, as a reference type."""
        return self._handle.dtype

    def set_shape(self, shape: Any) -> None:
        """Refine the static shape. ValueError if `shape` is not compatible with it."""
        self._handle.set_shape(shape)
        self._snapshot.set_shape(shape)

    def value(self) -> Tensor:
        """The value as a tensor: the output of `<name>/read`."""
        return self._snapshot

    def read_value(self) -> Tensor:
        """A new node that reads the value. It follows the nodes of `control_dependencies` blocks."""
        return apply("Identity", (self._handle,), None, "read")

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        if op == "Assign":
            changed = variables.assign(self._handle, value, validate_shape=not self._may_change_shape, name=name)
        else:
            changed = _REFERENCE_CHANGES[op](self._handle, value, name=name)
        return changed if read_value else changed.op


class ResourceVariable(Variable):
    """A resource variable. `Variable(..., use_resource=True)` makes one."""

    _element: Tensor
    _is_initialized: Tensor
    _cached: Tensor | None

    def _build(
        self,
        graph: Graph,
        scope: str,
        initial_value: Any,
        dtype: DType | None,
        validate_shape: bool,
        caching_device: Any,
        expected: Any,
    ) -> None:
        with _initializer_scope(graph, scope):
            value = convert(initial_value() if callable(initial_value) else initial_value, dtype, name="initial_value")
        dims = self._checked_initial(value, validate_shape, expected, scope)
        self._initial_value = value
        handle = self._handle = variables.var_handle_op(dims, value.dtype, shared_name=scope[:-1], name=scope)
        with graph.name_scope("IsInitialized"):
            self._is_initialized = variables.is_variable_initialized(handle)
        safe = _without_uninitialized(value, handle.op.name)
        with graph.colocate_with(None, ignore_existing=True), graph.device(handle.device):
            self._initializer = variables.change_resource("AssignVariableOp", handle, safe, "Assign")
        with graph.name_scope("Read"), graph.device(handle.device):
            self._element = variables.read_variable(handle)
        self._cached = None
        if caching_device is not None:
            with graph.colocate_with(None, ignore_existing=True), graph.device(caching_device):
                self._cached = apply("Identity", (self._element,), None, None)

    @property
    def dtype(self) -> DType:
        """The element type."""
        dtype: DType = self._handle.op.attrs["dtype"]
        return dtype

    def _as_graph_element(self) -> Tensor:
        return self._element

    def _after(self, change: Node) -> Variable:
        return _Changed(self, change)

    def is_initialized(self, name: str | None = None) -> Tensor:
        """A bool scalar tensor: whether the variable has a value."""
        return variables.is_variable_initialized(self._handle, name)

    def value(self) -> Tensor:
        """The value as a tensor: the output of a new `ReadVariableOp`, or the cached value."""
        if self._cached is not None:
            return self._cached
        with self.graph.colocate_with(None, ignore_existing=True):
            return variables.read_variable(self._handle)

    def read_value(self) -> Tensor:
        """A new node that reads the value. It follows the nodes of `control_dependencies` blocks."""
        with self.graph.name_scope("Read"):
            value = variables.read_variable(self._handle)
        return apply("Identity", (value,), None, None)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Read rows of the value, without reading the other rows. The shape is `indices.shape + shape[1:]`."""
        return scatter_state.resource_gather(self._handle, indices, name)

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        node = variables.change_resource(f"{op}VariableOp", self._handle, value, name, not self._may_change_shape)
        return self._after(node) if read_value else node


class _Changed(ResourceVariable):
    """A resource variable after a change. Each read of it waits for the change."""

    def __init__(self, variable: ResourceVariable, change: Node) -> None:
        self.__dict__.update(variable.__dict__)
        self._node = change
        self._cached = None
        with self.graph.control_dependencies([change]):
            self._element = variables.read_variable(self._handle)

    @property
    def op(self) -> Node:
        """The node that changes the variable."""
        return self._node

    def value(self) -> Tensor:
        """The value after the change."""
        with self.graph.control_dependencies([self._node]):
            return super().value()

    def read_value(self) -> Tensor:
        """A new node that reads the value after the change."""
        with self.graph.control_dependencies([self._node]):
            return super().read_value()

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Read rows of the value after the change."""
        with self.graph.control_dependencies([self._node]):
            return super().sparse_read(indices, name)

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        with self.graph.control_dependencies([self._node]):
            return super()._change(op, value, name, read_value)


@contextmanager
def _initializer_scope(graph: Graph, scope: str) -> Iterator[None]:
    """A block whose nodes ignore device blocks and are colocated with the variable of name `scope`, which is not made yet."""
    start = len(graph)
    with graph.name_scope("Initializer") as prefix, graph.device(None):
        yield
    for node in graph.nodes[start:]:
        if not node.colocation and node.name.startswith(prefix):
            node.colocation = (scope[:-1],)


def _without_uninitialized(value: Tensor, variable: str) -> Tensor:
    """An initial value in which reads of other variables are replaced by their `initialized_value()`.

    All initializers run in one step in any order, so another variable may not have a value yet. Nodes on the paths from the
    variables are copied as `<node>_<variable>`.
    """
    found: dict[Node, None] = {}
    todo = [value.op]
    while todo:
        node = todo.pop()
        if node not in found:
            found[node] = None
            if node.type not in ("InitializedValue", "IsVariableInitialized", "VarIsInitializedOp"):
                todo.extend(t.op for t in node.inputs)
    if not any(n.type in ("VariableV2", "VarHandleOp") for n in found):
        return value
    graph = value.graph
    kept = [v for key in ("variables", "local_variables") for v in graph.get_collection(key)]
    holders = {v.op: v for v in kept if isinstance(v, Variable)}
    safe: dict[Tensor, Tensor] = {}
    for node in sorted(found, key=lambda n: n.index):
        first = node.inputs[0] if node.inputs else None
        if first is not None and first.op in holders and node.type in ("Identity", "ReadVariableOp"):
            safe[node.outputs[0]] = holders[first.op].initialized_value()
        elif first is not None and first.op in holders and node.type == "ResourceGather":
            at = safe.get(node.inputs[1], node.inputs[1])
            safe[node.outputs[0]] = gather(holders[first.op].initialized_value(), at)
        elif any(t in safe for t in node.inputs):
            inputs = [safe.get(t, t) for t in node.inputs]
            copy = graph.create(node.opdef, inputs, node.attrs, f"{node.name}_{variable}", origin=node._origin)
            safe.update(zip(node.outputs, copy.outputs, strict=True))
    return safe.get(value, value)


variable_kinds["reference"], variable_kinds["resource"] = RefVariable, ResourceVariable
