"""Variables: values that live from step to step, as users hold them.

A variable is a few nodes under one name, TensorFlow 1's names. A *reference* variable `v` is

    v/initial_value   what it starts with       v/Assign   its initializer
    v                 the place                 v/read     its value, which everything that uses `v` takes

and a *resource* variable (`use_resource=True`) is

    v/Initializer/initial_value   what it starts with     v/Assign                 its initializer
    v                             the place               v/Read/ReadVariableOp    its value, for fetches
    v/IsInitialized/VarIsInitializedOp

where each use adds its own `ReadVariableOp`. A reference variable's plain initial value is made under the device
blocks around it; what a function makes of it, and a resource variable's in any case, is colocated with the
variable, and so are the Assign, and a reference variable's read. Who uses a resource variable's place is brought
to it by the placer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .aggregation import VariableAggregation, VariableSynchronization
from .build import TensorLike, apply, convert
from .default_graph import get_default_graph
from .dtypes import DType, as_dtype
from .errors import UnimplementedError
from .graph import Graph
from .graph_keys import GraphKeys
from .node import Node, Tensor, TensorOperators
from .ops import scatter_state, state
from .partitioned import SaveSliceInfo as _SaveSliceInfo
from .shape import TensorShape, as_dims, compatible, is_static, text

_resource_by_default = [False]  # what `use_resource=None` means; in a list so that it can be switched


def enable_resource_variables() -> None:
    """Make variables resource variables from now on, where `use_resource` is not given."""
    _resource_by_default[0] = True


def disable_resource_variables() -> None:
    """Make variables reference variables from now on, where `use_resource` is not given (TF1's default)."""
    _resource_by_default[0] = False


def resource_variables_enabled() -> bool:
    """Whether variables are resource variables where `use_resource` is not given."""
    return _resource_by_default[0]


class _Creation(type):
    """What `Variable(...)` does: it asks the functions of the open `variable_creator_scope` blocks, innermost first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Variable:
            return super().__call__(*args, **kwargs)
        wanted = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        creators = get_default_graph().scopes.creators
        create = partial(_create, partial(super().__call__))
        for creator in creators:
            create = partial(creator, create)
        return create(**wanted)


_ARGUMENTS = (
    "initial_value", "trainable", "collections", "validate_shape", "caching_device", "name", "variable_def", "dtype",
    "expected_shape", "import_scope", "constraint", "use_resource", "synchronization", "aggregation",
)  # fmt: skip


def _create(make: Callable[..., Any], **kwargs: Any) -> Any:
    """The innermost creator: a variable. How its copies are kept equal is of interest only where there are copies."""
    synchronization = VariableSynchronization(kwargs.pop("synchronization", None) or VariableSynchronization.AUTO)
    aggregation = VariableAggregation(kwargs.pop("aggregation", None) or VariableAggregation.NONE)
    if kwargs.get("trainable") is None and synchronization is VariableSynchronization.ON_READ:
        kwargs["trainable"] = False
    variable = make(**kwargs)
    variable.synchronization, variable.aggregation = synchronization, aggregation
    return variable


@contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """A block in which `variable_creator(next_creator, **kwargs)` makes the variables.

    `kwargs` are `Variable`'s arguments by name; `next_creator(**kwargs)` makes the variable as it would be made otherwise. The
    innermost block is asked first.

    >>> def on_ps(next_creator, **kwargs):
    ...     with dt.device("/job:ps"):
    ...         return next_creator(**kwargs)
    >>> with variable_creator_scope(on_ps):
    ...     v = Variable(1.0)
    """
    scopes = get_default_graph().scopes
    saved, scopes.creators = scopes.creators, (*scopes.creators, variable_creator)
    try:
        yield
    finally:
        scopes.creators = saved


class Variable(TensorOperators, metaclass=_Creation):
    """A value that lives from step to step, on one device. It stands for its value wherever a tensor may
    stand.

    Args:
        initial_value: what the initializer assigns: anything that stands for a tensor, or a function that
            makes it. Its static shape must be complete unless `validate_shape` is False.
        trainable: whether optimizers change it by default (None: yes).
        collections: collections that it joins; None: the global variables.
        validate_shape: whether its shape is fixed to the initial value's.
        caching_device: a device that keeps the value read in a step, for all readers of the step.
        name: name of its node (None: `Variable`), made unique.
        variable_def: not supported; here because TensorFlow 1 has it in this position.
        dtype: element type; None: the initial value's.
        expected_shape: a shape that the initial value must fit.
        import_scope: not supported; here because TensorFlow 1 has it in this position.
        constraint: function that optimizers apply to the value after each update.
        use_resource: whether it is a resource variable; None: see `enable_resource_variables`.
        synchronization, aggregation: how its copies are kept, where a distribution strategy makes several.

    Raises:
        ValueError: no initial value, one of unknown shape, or a wrong argument.

    >>> w = Variable([[1.0, 2.0]], name="w")
    >>> y = w * 2.0
    """

    SaveSliceInfo = _SaveSliceInfo
    """Which slice of a partitioned variable a part is."""

    synchronization = VariableSynchronization.AUTO
    """When copies of it, where there are any, are made equal."""

    aggregation = VariableAggregation.NONE
    """What becomes of values that several replicas assign to it."""

    save_slice_info: _SaveSliceInfo | None = None
    """For a part of a partitioned variable: which slice of it this is."""

    _initial_value: Tensor
    _initializer: Node
    _starts_by: Node | None = None
    _handle: Tensor
    _constraint: Callable[[Any], Any] | None
    _trainable: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Variable:
        if cls is Variable:
            use_resource = args[11] if len(args) > 11 else kwargs.get("use_resource")
            cls = (
                ResourceVariable if (_resource_by_default[0] if use_resource is None else use_resource) else RefVariable
            )
        return object.__new__(cls)

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        expected_shape: Any = None,
        import_scope: str | None = None,
        constraint: Callable[[Any], Any] | None = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
    ) -> None:
        if variable_def is not None or import_scope is not None:
            raise UnimplementedError(
                None, None, "variable_def and import_scope are not supported; load a saved graph instead"
            )
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if collections is not None and not isinstance(collections, (list, tuple, set)):
            raise ValueError(
                "collections argument to Variable constructor must be a list, tuple, or set. "
                f"Got {collections!r} of type {type(collections).__name__}"
            )
        if constraint is not None and not callable(constraint):
            raise ValueError("The `constraint` argument must be a callable.")
        self._trainable = trainable is not False
        self._constraint = constraint
        graph = get_default_graph()
        with graph.init_scope(), graph.name_scope(name or "Variable") as scope:
            wanted = None if dtype is None else as_dtype(dtype).base
            expected = as_dims(expected_shape)
            self._build(graph, scope, initial_value, wanted, validate_shape, caching_device, expected)
        names = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if self._trainable and GraphKeys.TRAINABLE_VARIABLES not in names:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        graph.add_to_collections(names, self)

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
        raise NotImplementedError

    def _checked_initial(self, value: Tensor, validate_shape: bool, expected: Any, scope: str) -> Any:
        """The shape that the variable gets: the initial value's, complete if it is validated."""
        if not compatible(value.dims, expected):
            raise ValueError(
                f"Variable '{scope[:-1]}': the initial value has shape {text(value.dims)}, "
                f"expected_shape is {text(expected)}"
            )
        if not validate_shape:
            return None
        if not is_static(value.dims):
            raise ValueError(
                f"initial_value must have a shape specified: {value!r}. "
                "Give a value of known shape, or validate_shape=False for a variable of any shape."
            )
        return value.dims

    # --- what it is -----------------------------------------------------------------------------------------

    @property
    def handle(self) -> Tensor:
        """The tensor that gives out its place."""
        return self._handle

    @property
    def op(self) -> Node:
        """The node that holds its place."""
        return self._handle.op

    @property
    def name(self) -> str:
        """`<node>:0`, such as `w:0`."""
        return self._handle.name

    @property
    def _shared_name(self) -> str:
        return self._handle.op.name

    @property
    def dtype(self) -> DType:
        """Its element type; a reference type for a reference variable, as in TensorFlow 1."""
        raise NotImplementedError

    @property
    def shape(self) -> TensorShape:
        """The static shape of its value."""
        return TensorShape(state.place_of(self._handle)[1])

    def get_shape(self) -> TensorShape:
        """The static shape of its value (TF1's spelling)."""
        return self.shape

    @property
    def device(self) -> str:
        """What its node asks for: a canonical, possibly partial device name, or ''."""
        return self._handle.device

    @property
    def graph(self) -> Graph:
        """The graph it belongs to."""
        return self._handle.graph

    @property
    def trainable(self) -> bool:
        """Whether optimizers change it by default."""
        return self._trainable

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The function that optimizers apply to its value after each update."""
        return self._constraint

    @property
    def initializer(self) -> Node:
        """The node that gives it its initial value."""
        return self._initializer if self._starts_by is None else self._starts_by

    def initialize_by(self, node: Node) -> None:
        """Let `initializer` be another node, which gives the variable its first value in another way: from a checkpoint."""
        self._starts_by = node

    @property
    def initial_value(self) -> Tensor:
        """What the initializer assigns."""
        return self._initial_value

    def _set_save_slice_info(self, save_slice_info: _SaveSliceInfo) -> None:
        self.save_slice_info = save_slice_info

    def _get_save_slice_info(self) -> _SaveSliceInfo | None:
        return self.save_slice_info

    # --- what the graph asks of it --------------------------------------------------------------------------

    def _place(self) -> Tensor:
        return self._handle

    def _ref(self) -> Tensor:
        return self._handle

    def _as_tensor(self) -> Tensor:
        return self.value()

    def _as_graph_element(self) -> Tensor:
        return self._handle

    def _colocation_node(self) -> Node:
        return self._handle.op

    def _single(self) -> Variable:
        """The variable of its own nodes that it is, or stands for."""
        return self

    def _control_element(self) -> Node:
        return self.op

    # --- reading --------------------------------------------------------------------------------------------

    def value(self) -> Tensor:
        """Its value as a tensor."""
        raise NotImplementedError

    def read_value(self) -> Tensor:
        """A new node that reads its value; under `control_dependencies`, after those."""
        raise NotImplementedError

    def initialized_value(self) -> Tensor:
        """Its value, or its initial value where it has none yet: for initializers that build on others."""
        with self.graph.control_dependencies(None), self.graph.colocate_with(self.op):
            return apply(
                "InitializedValue",
                (self._handle, self._initializer.inputs[1]),
                None,
                f"{self.op.name}/initialized_value",
            )

    def eval(self, session: Any = None) -> Any:
        """Run the default (or given) session for its value."""
        return self.graph.session_for(session, "eval").run(self)

    def load(self, value: Any, session: Any = None) -> None:
        """Give it a value now, in the default (or given) session, without adding a node."""
        self.graph.session_for(session, "load").run(self._initializer, {self._initializer.inputs[1]: value})

    # --- changing -------------------------------------------------------------------------------------------

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that stores `value`; with `read_value` something that stands for the value after it."""
        raise NotImplementedError

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that adds `delta`, atomically; result as of `assign`."""
        raise NotImplementedError

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that subtracts `delta`, atomically; result as of `assign`."""
        raise NotImplementedError

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Add `IndexedSlices` to rows; each occurrence of an index counts."""
        return scatter_state.scatter_add(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtract `IndexedSlices` from rows; each occurrence of an index counts."""
        return scatter_state.scatter_sub(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Set rows to `IndexedSlices`."""
        return scatter_state.scatter_update(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Multiply rows by `IndexedSlices`; each occurrence of an index counts."""
        return scatter_state.scatter_mul(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Keep the smaller of rows and `IndexedSlices`."""
        return scatter_state.scatter_min(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Keep the larger of rows and `IndexedSlices`."""
        return scatter_state.scatter_max(self, sparse_delta.indices, sparse_delta.values, name=name)

    def count_up_to(self, limit: int) -> Tensor:
        """See `dt.count_up_to`."""
        return state.count_up_to(self, limit)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "'Variable' object is not iterable; iterate over variable.value() where its first size is known"
        )

    def __repr__(self) -> str:
        return f"<dt.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"


class RefVariable(Variable):
    """A reference variable, TensorFlow 1's default kind. Made by `Variable(...)`."""

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
        self._handle = state.variable_op_v2(dims, value.dtype, scope)
        safe = _without_uninitialized(value, self._handle.op.name)
        self._initializer = state.assign(self._handle, safe, validate_shape=validate_shape).op
        with graph.colocate_with(self._handle.op) if caching_device is None else graph.device(caching_device):
            self._snapshot = apply("Identity", (self._handle,), None, "read")

    @property
    def dtype(self) -> DType:
        """Its element type, as a reference type."""
        return self._handle.dtype

    def set_shape(self, shape: Any) -> None:
        """Add what you know about the static shape; ValueError when it contradicts what is known."""
        self._handle.set_shape(shape)
        self._snapshot.set_shape(shape)

    def value(self) -> Tensor:
        """Its value as a tensor: the output of `<name>/read`."""
        return self._snapshot

    def read_value(self) -> Tensor:
        """A new node that reads its value; under `control_dependencies`, after those."""
        return apply("Identity", (self._handle,), None, "read")

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that stores `value`: its tensor, or with `read_value=False` the node."""
        changed = state.assign(self._handle, value, name=name)
        return changed if read_value else changed.op

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that adds `delta`, atomically: its tensor, or with `read_value=False` the node."""
        changed = state.assign_add(self._handle, delta, name=name)
        return changed if read_value else changed.op

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that subtracts `delta`, atomically: its tensor, or with `read_value=False` the node."""
        changed = state.assign_sub(self._handle, delta, name=name)
        return changed if read_value else changed.op


class ResourceVariable(Variable):
    """A resource variable. Made by `Variable(..., use_resource=True)`."""

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
        handle = self._handle = state.var_handle_op(dims, value.dtype, shared_name=scope[:-1], name=scope)
        with graph.name_scope("IsInitialized"):
            self._is_initialized = state.is_variable_initialized(handle)
        safe = _without_uninitialized(value, handle.op.name)
        with graph.colocate_with(None, ignore_existing=True), graph.device(handle.device):
            self._initializer = state.change_resource("AssignVariableOp", handle, safe, "Assign")
        with graph.name_scope("Read"), graph.device(handle.device):
            self._element = state.read_variable(handle)
        self._cached = None
        if caching_device is not None:
            with graph.colocate_with(None, ignore_existing=True), graph.device(caching_device):
                self._cached = apply("Identity", (self._element,), None, None)

    @property
    def dtype(self) -> DType:
        """Its element type."""
        dtype: DType = self._handle.op.attrs["dtype"]
        return dtype

    def _as_graph_element(self) -> Tensor:
        return self._element

    def _after(self, change: Node) -> Variable:
        return _Changed(self, change)

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Scalar bool: whether it has a value."""
        return state.is_variable_initialized(self._handle, name)

    def value(self) -> Tensor:
        """Its value as a tensor: a new `ReadVariableOp`, or the cached read."""
        if self._cached is not None:
            return self._cached
        with self.graph.colocate_with(None, ignore_existing=True):
            return state.read_variable(self._handle)

    def read_value(self) -> Tensor:
        """A new node that reads its value; under `control_dependencies`, after those."""
        with self.graph.name_scope("Read"):
            value = state.read_variable(self._handle)
        return apply("Identity", (value,), None, None)

    def sparse_read(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Rows of its value: shape `indices.shape + shape[1:]`. Only these rows are read."""
        return state_gather(self._handle, indices, name)

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that stores `value`: the variable after it, or (`read_value=False`) the node."""
        return self._change("AssignVariableOp", value, name, read_value)

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that adds `delta`, atomically: the variable after it, or (`read_value=False`) the node."""
        return self._change("AssignAddVariableOp", delta, name, read_value)

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """A node that subtracts `delta`, atomically; result as of `assign_add`."""
        return self._change("AssignSubVariableOp", delta, name, read_value)

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        node = state.change_resource(op, self._handle, value, name)
        return self._after(node) if read_value else node


state_gather = scatter_state.resource_gather


class _Changed(ResourceVariable):
    """A resource variable as it is after one change: every read of it waits for the change."""

    def __init__(self, variable: ResourceVariable, change: Node) -> None:
        self.__dict__.update(variable.__dict__)
        self._node = change
        self._cached = None
        with self.graph.control_dependencies([change]):
            self._element = state.read_variable(self._handle)

    @property
    def op(self) -> Node:
        """The node that changes it."""
        return self._node

    def value(self) -> Tensor:
        """Its value after the change."""
        with self.graph.control_dependencies([self._node]):
            return super().value()

    def read_value(self) -> Tensor:
        """A new node that reads its value after the change."""
        with self.graph.control_dependencies([self._node]):
            return super().read_value()

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        with self.graph.control_dependencies([self._node]):
            return super()._change(op, value, name, read_value)


@contextmanager
def _initializer_scope(graph: Graph, scope: str) -> Iterator[None]:
    """Nodes made here stand with a variable yet to come: no device blocks, and its colocation group."""
    start = len(graph)
    with graph.name_scope("Initializer") as prefix, graph.device(None):
        yield
    for node in graph.nodes[start:]:
        if not node.colocation and node.name.startswith(prefix):
            node.colocation = (scope[:-1],)


def _without_uninitialized(value: Tensor, variable: str) -> Tensor:
    """`value` with every variable that it builds on replaced by that variable's `initialized_value()`.

    All initializers run in one step, in no particular order, so the value of another variable may not be
    there yet. Nodes between are copied as `<node>_<variable>`.
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
        elif any(t in safe for t in node.inputs):
            inputs = [safe.get(t, t) for t in node.inputs]
            copy = graph.create(node.opdef, inputs, node.attrs, f"{node.name}_{variable}", origin=node._origin)
            safe.update(zip(node.outputs, copy.outputs, strict=True))
    return safe.get(value, value)
