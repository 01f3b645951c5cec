"""Variables: values that persist between steps.

`Variable` is the base class of reference and resource variables (`ref_and_resource`). This module also has the default kind,
`variable_creator_scope`, and enums for the copies of a variable that a distribution strategy makes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..core.argument_names import explains_arguments
from ..core.build import TensorLike, apply
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.dtypes import DType, as_dtype
from ..core.graph import Graph, Node, Tensor
from ..core.hooks import hooks
from ..core.operators import TensorOperators
from ..core.scopes import open_blocks
from ..core.shape import TensorShape, as_dims, compatible, is_static, text
from ..ops.array.gather import gather_nd
from ..ops.state import scatter_state, variables
from .partitioned import SaveSliceInfo as _SaveSliceInfo


class VariableSynchronization(enum.Enum):
    """When the copies of a variable are made equal."""

    AUTO = 0
    """The strategy chooses. All strategies choose ON_WRITE."""
    NONE = 1
    """Never. There is one copy."""
    ON_WRITE = 2
    """At each change, so that all copies are always equal."""
    ON_READ = 3
    """At a read. Each replica changes its own copy. A read outside the replicas returns the aggregated value."""


class VariableAggregation(enum.Enum):
    """How the values that replicas assign to a variable are combined."""

    NONE = 0
    """Not at all. An assignment by replicas is an error."""
    SUM = 1
    """Their sum is assigned."""
    MEAN = 2
    """Their mean is assigned."""
    ONLY_FIRST_REPLICA = 3
    """The value of the first replica is assigned."""
    ONLY_FIRST_TOWER = ONLY_FIRST_REPLICA
    """TensorFlow's older name of ONLY_FIRST_REPLICA."""


_resource_by_default = [False]  # the meaning of `use_resource=None`


def enable_resource_variables() -> None:
    """From now on, variables are resource variables unless `use_resource` is given."""
    _resource_by_default[0] = True


def disable_resource_variables() -> None:
    """From now on, variables are reference variables unless `use_resource` is given, as TensorFlow 1's default is."""
    _resource_by_default[0] = False


def resource_variables_enabled() -> bool:
    """Whether variables are resource variables if `use_resource` is not given."""
    return _resource_by_default[0]


class Creation(type):
    """The metaclass of `Variable`. `Variable(...)` calls the functions of the open `variable_creator_scope` blocks, innermost first."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if isinstance(cls.__base__, Creation):  # the program names the kind itself: no creators are called
            return super().__call__(*args, **kwargs)
        graph = get_default_graph()
        if graph.outermost is not graph:  # a variable that a function makes belongs to the graph around it
            with graph.outermost.as_default():
                return cls(*args, **kwargs)
        wanted = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        creators = graph.scopes.creators
        create = partial(_create, partial(super().__call__))
        for creator in creators:
            create = partial(creator, create)
        return create(**wanted)


_ARGUMENTS = (
    "initial_value", "trainable", "collections", "validate_shape", "caching_device", "name", "variable_def", "dtype",
    "expected_shape", "import_scope", "constraint", "use_resource", "synchronization", "aggregation", "shape",
)  # fmt: skip


def _create(make: Callable[..., Any], **kwargs: Any) -> Any:
    """The innermost creator, which makes the variable. Only a variable with copies uses `synchronization` and `aggregation`."""
    synchronization, aggregation = kwargs.pop("synchronization", None), kwargs.pop("aggregation", None)
    synchronization = VariableSynchronization(synchronization) if synchronization else VariableSynchronization.AUTO
    aggregation = VariableAggregation(aggregation) if aggregation else VariableAggregation.NONE
    if kwargs.get("trainable") is None and synchronization is VariableSynchronization.ON_READ:
        kwargs["trainable"] = False
    variable = make(**kwargs)
    if kwargs.get("variable_def") is not None:
        return variable
    variable.synchronization, variable.aggregation = synchronization, aggregation
    return variable


@contextmanager
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Iterator[None]:
    """A block in which `variable_creator(next_creator, **kwargs)` makes the variables.

    The creator of the innermost block is called first.

    Args:
        variable_creator: function that returns a variable. `kwargs` are `Variable`'s arguments by name. `next_creator(**kwargs)`
            makes the variable without this block.

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


@contextmanager
def without_creators(which: Callable[[Any], bool] = lambda creator: True) -> Iterator[None]:
    """A block without those functions of outer `variable_creator_scope` blocks for which `which` is true."""
    scopes = get_default_graph().scopes
    saved, scopes.creators = scopes.creators, tuple(c for c in scopes.creators if not which(c))
    try:
        yield
    finally:
        scopes.creators = saved


def _defined(variable_def: Any, import_scope: str | None) -> Variable:
    """The variable in the default graph that a `VariableDef` describes."""
    nodes = {node.name: node for node in get_default_graph().nodes}
    found: Variable = hooks.variable_from_def(
        variable_def, nodes, f"{import_scope.strip('/')}/" if import_scope else ""
    )
    return found


variable_kinds: dict[str, type[Variable]] = {}
"""Kind -> class of the variables. `ref_and_resource` adds "reference" and "resource"."""


class Variable(TensorOperators[Tensor], metaclass=Creation):
    """A tensor that persists between steps, on one device. It can be used in place of a tensor.

    Args:
        initial_value: the value that the initializer assigns: anything convertible to a tensor, or a function that
            returns it. Its static shape must be fully defined unless `validate_shape` is False.
        trainable: whether optimizers change it by default. None means True.
        collections: collections to add the variable to. If it is None, the global variables.
        validate_shape: whether all values must have the shape of the initial value.
        caching_device: a device that caches the value for all reads in a step.
        name: name of its node, which is made unique. `Variable` by default.
        variable_def: a result of `to_proto`, to refer to existing nodes. Other arguments, except `import_scope`, are ignored.
        dtype: element type. If it is None, that of the initial value.
        expected_shape: a shape that the initial value must fit.
        import_scope: the scope into which the nodes of `variable_def` were imported.
        constraint: function that optimizers apply to the value after each update.
        use_resource: whether it is a resource variable. If it is None, `enable_resource_variables` decides.
        synchronization: when the copies that a distribution strategy makes are made equal, a `VariableSynchronization`.
        aggregation: how the values that replicas assign are combined, a `VariableAggregation`.
        shape: the static shape of all values. If it is None, that of the initial value. `TensorShape(None)` allows any shape.

    Raises:
        ValueError: there is no initial value, its shape is unknown, or an argument is wrong.

    >>> w = Variable([[1.0, 2.0]], name="w")
    >>> y = w * 2.0
    """

    SaveSliceInfo = _SaveSliceInfo
    """The type of `save_slice_info`."""

    synchronization = VariableSynchronization.AUTO
    """When the copies of the variable are made equal."""

    aggregation = VariableAggregation.NONE
    """How the values that replicas assign are combined."""

    save_slice_info: _SaveSliceInfo | None = None
    """The slice of a partitioned variable that this part is. None if it is not a part."""

    _initial_value: Tensor
    _initializer: Node
    _starts_by: Node | None = None
    _handle: Tensor
    _constraint: Callable[[Any], Any] | None
    _trainable: bool
    _given_shape: TensorShape | None = None

    def __new__(cls, *args: Any, use_resource: bool | None = None, variable_def: Any = None, **kwargs: Any) -> Variable:
        if cls is Variable:  # `Creation` passes all arguments by name
            is_resource = resource_variables_enabled() if use_resource is None else use_resource
            if variable_def is not None:
                is_resource = variable_def.is_resource
            cls = variable_kinds["resource" if is_resource else "reference"]
        return object.__new__(cls)

    @explains_arguments
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
        shape: Any = None,
    ) -> None:
        if variable_def is not None:
            if initial_value is not None:
                raise ValueError("variable_def and initial_value are mutually exclusive.")
            self.__dict__.update(_defined(variable_def, import_scope).__dict__)
            return
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
        self._given_shape = None if shape is None else TensorShape(shape)
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
        """The static shape of the variable. ValueError if the shape of the initial value is unknown or not compatible."""
        if not compatible(value.dims, expected):
            raise ValueError(
                f"Variable '{scope[:-1]}': the initial value has shape {text(value.dims)}, "
                f"expected_shape is {text(expected)}"
            )
        if self._given_shape is not None:
            if not compatible(value.dims, self._given_shape.dims_tuple):
                raise ValueError(
                    f"Variable '{scope[:-1]}': the initial value's shape {text(value.dims)} is not compatible with the explicitly "
                    f"supplied `shape` argument {text(self._given_shape.dims_tuple)}"
                )
            return self._given_shape.dims_tuple
        if not validate_shape:
            return None
        if not is_static(value.dims):
            raise ValueError(
                f"initial_value must have a shape specified: {value!r}. "
                "Pass a value of known shape, or validate_shape=False for a variable of any shape."
            )
        return value.dims

    # --- properties -----------------------------------------------------------------------------------------

    @property
    def handle(self) -> Tensor:
        """The tensor of the reference or handle."""
        return self._handle

    @property
    def op(self) -> Node:
        """The node that holds the state."""
        return self._handle.op

    @property
    def name(self) -> str:
        """The name of the reference or handle, such as `w:0`."""
        return self._handle.name

    @property
    def _shared_name(self) -> str:
        return self._handle.op.name

    @property
    def dtype(self) -> DType:
        """The element type. A reference type for a reference variable, as in TensorFlow 1."""
        raise NotImplementedError

    @property
    def shape(self) -> TensorShape:
        """The static shape of the value."""
        return TensorShape(variables.type_and_dims(self._handle)[1])

    def get_shape(self) -> TensorShape:
        """As `shape` (TensorFlow 1's spelling)."""
        return self.shape

    @property
    def device(self) -> str:
        """The device that its node requests: a canonical, possibly partial device name, or ''."""
        return self._handle.device

    @property
    def graph(self) -> Graph:
        """The graph of its nodes."""
        return self._handle.graph

    @property
    def trainable(self) -> bool:
        """Whether optimizers change it by default."""
        return self._trainable

    @property
    def constraint(self) -> Callable[[Any], Any] | None:
        """The function that optimizers apply to the value after each update."""
        return self._constraint

    @property
    def initializer(self) -> Node:
        """The node that assigns the initial value."""
        return self._initializer if self._starts_by is None else self._starts_by

    def initialize_by(self, node: Node, value: Tensor) -> None:
        """Replace `initializer` by a node that assigns another initial value, such as one from a checkpoint."""
        self._starts_by, self._initial_value = node, value

    @property
    def initial_value(self) -> Tensor:
        """The value that the initializer assigns."""
        return self._initial_value

    def to_proto(self, export_scope: str | None = None) -> Any:
        """The names of its nodes, as TensorFlow's `VariableDef`. None if the variable is not in `export_scope`."""
        one: Any = self._single()
        found = hooks.variable_def_of(one)
        scope = f"{export_scope.strip('/')}/" if export_scope else ""
        if not found.variable_name.startswith(scope):
            return None
        for name in ("variable_name", "initializer_name", "snapshot_name", "initial_value_name"):
            setattr(found, name, getattr(found, name).removeprefix(scope))
        return found

    @classmethod
    def from_proto(cls, variable_def: Any, import_scope: str | None = None) -> Variable:
        """The variable in the default graph that a `VariableDef` describes."""
        return _defined(variable_def, import_scope)

    def _set_save_slice_info(self, save_slice_info: _SaveSliceInfo) -> None:
        self.save_slice_info = save_slice_info

    def _get_save_slice_info(self) -> _SaveSliceInfo | None:
        return self.save_slice_info

    # --- interface for the graph ----------------------------------------------------------------------------

    def _ref_or_handle(self) -> Tensor:
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
        """The variable itself. A variable with copies returns one of them."""
        return self

    def _control_element(self) -> Node:
        return self.op

    # --- reading --------------------------------------------------------------------------------------------

    def value(self) -> Tensor:
        """The value as a tensor."""
        raise NotImplementedError

    def read_value(self) -> Tensor:
        """A new node that reads the value. It follows the nodes of `control_dependencies` blocks."""
        raise NotImplementedError

    def initialized_value(self) -> Tensor:
        """The value, or the initial value if the variable is not initialized. For initializers that use other variables."""
        with self.graph.control_dependencies(None), self.graph.colocate_with(self.op):
            return apply(
                "InitializedValue",
                (self._handle, self._initializer.inputs[1] if self._starts_by is None else self._initial_value),
                None,
                f"{self.op.name}/initialized_value",
            )

    def eval(self, session: Any = None) -> Any:
        """Return the value as an array, from the given or default session."""
        return open_blocks.session_for(self.graph, session, "eval").run(self)

    def load(self, value: Any, session: Any = None) -> None:
        """Assign a value now, in the given or default session, without a new node."""
        open_blocks.session_for(self.graph, session, "load").run(
            self._initializer, {self._initializer.inputs[1]: value}
        )

    # --- changing -------------------------------------------------------------------------------------------

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Make a node that stores `value`.

        Args:
            value: the new value.
            use_locking: accepted for compatibility with TensorFlow.
            name: name of the node.
            read_value: whether to return the value after the assignment. Otherwise the node is returned.

        >>> change = v.assign(v * 2.0)
        """
        return self._change("Assign", value, name, read_value)

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Make a node that adds `delta` atomically, with the result of `assign`."""
        return self._change("AssignAdd", delta, name, read_value)

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Make a node that subtracts `delta` atomically, with the result of `assign`."""
        return self._change("AssignSub", delta, name, read_value)

    @property
    def _may_change_shape(self) -> bool:
        return self._given_shape is not None and not self._given_shape.is_fully_defined()

    def _change(self, op: str, value: TensorLike, name: str | None, read_value: bool) -> Any:
        raise NotImplementedError

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Add `IndexedSlices` to rows. Rows of repeated indices are all added."""
        return scatter_state.scatter_add(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Subtract `IndexedSlices` from rows. Rows of repeated indices are all subtracted."""
        return scatter_state.scatter_sub(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Set rows to `IndexedSlices`."""
        return scatter_state.scatter_update(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_mul(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Multiply rows by `IndexedSlices`. Repeated indices multiply several times."""
        return scatter_state.scatter_mul(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_div(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Divide rows by `IndexedSlices`. Repeated indices divide several times."""
        return scatter_state.scatter_div(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_min(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Set rows to the elementwise minimum of rows and `IndexedSlices`."""
        return scatter_state.scatter_min(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_max(self, sparse_delta: Any, use_locking: bool = False, name: str | None = None) -> Any:
        """Set rows to the elementwise maximum of rows and `IndexedSlices`."""
        return scatter_state.scatter_max(self, sparse_delta.indices, sparse_delta.values, name=name)

    def scatter_nd_update(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """See `dt.scatter_nd_update`."""
        return scatter_state.scatter_nd_update(self, indices, updates, name=name)

    def scatter_nd_add(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """See `dt.scatter_nd_add`."""
        return scatter_state.scatter_nd_add(self, indices, updates, name=name)

    def scatter_nd_sub(self, indices: TensorLike, updates: TensorLike, name: str | None = None) -> Any:
        """See `dt.scatter_nd_sub`."""
        return scatter_state.scatter_nd_sub(self, indices, updates, name=name)

    def gather_nd(self, indices: TensorLike, name: str | None = None) -> Tensor:
        """Elements or slices of the value, by index vectors. See `dt.gather_nd`."""
        return gather_nd(self, indices, name)

    def count_up_to(self, limit: int) -> Tensor:
        """See `dt.count_up_to`."""
        return variables.count_up_to(self, limit)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(
            "'Variable' object is not iterable; iterate over variable.value() where its first size is known"
        )

    def __repr__(self) -> str:
        return f"<dt.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"
