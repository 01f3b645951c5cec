"""Variables as old programs make them: templates, parts of one variable, and the names that collections had before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from ....graph.core.default_graph import GraphKeys, get_default_graph
from ....graph.core.dtypes import float32
from ....graph.core.graph import Node
from ....graph.core.shape import as_dims, text
from ....graph.ops.array.identity_and_placeholders import group
from ....graph.variables.scope import VariableScope, get_variable, variable_scope
from ....graph.variables.store import (
    VariableStore,
    global_variables,
    global_variables_initializer,
    local_variables,
    local_variables_initializer,
    variables_initializer,
)


def variable_op_scope(
    values: Sequence[Any],
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    **defaults: Any,
) -> Any:
    """Old spelling of `variable_scope(name_or_scope, default_name, values)`."""
    return variable_scope(name_or_scope, default_name, values, **defaults)


def get_local_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = False,
    collections: Sequence[str] | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """`get_variable` for a variable of this client alone: in the local variables and in `collections`, not trained."""
    kept = [*(collections or ()), GraphKeys.LOCAL_VARIABLES]
    return get_variable(name, shape, dtype, initializer, regularizer, False, kept, *args, **kwargs)


def no_regularizer(_: Any) -> None:
    """A regularizer that says: none, whatever the scopes around say."""


def create_partitioned_variables(
    shape: Any,
    slicing: Sequence[int],
    initializer: Any,
    dtype: Any = float32,
    trainable: bool = True,
    collections: Sequence[str] | None = None,
    name: str | None = None,
    reuse: Any = None,
) -> list[Any]:
    """The parts of a new variable, each a variable `<name>/part_k`.

    Args:
        shape: shape of the whole; at least rank 1.
        slicing: number of parts along each axis, at most one of them above 1.
        initializer: a value of that shape, or an initializer.
        dtype, trainable, collections: as for `get_variable`.
        name: variable scope of the parts; None: `PartitionedVariable`, made unique.
        reuse: as for `variable_scope`.

    Raises:
        ValueError: a variable of this shape cannot be cut so.

    >>> parts = create_partitioned_variables([10, 4], [3, 1], dt.zeros_initializer())   # 4, 3 and 3 rows
    """
    dims = as_dims(shape)
    if dims is not None and len(dims) != len(slicing):
        raise ValueError(
            "The 'shape' and 'slicing' of a partitioned Variable must have the length: "
            f"shape: {text(dims)}, slicing: {list(slicing)}"
        )
    if not dims:
        raise ValueError(f"A partitioned Variable must have rank at least 1: shape: {text(dims)}")
    with variable_scope(name, "PartitionedVariable", reuse=reuse) as scope:
        store = VariableStore.of(get_default_graph())
        with get_default_graph().name_scope(None):
            parts = store.get(
                scope.name,
                shape=dims,
                dtype=dtype,
                initializer=initializer,
                regularizer=scope.regularizer,
                reuse=scope.reuse,
                trainable=trainable,
                collections=collections,
                caching_device=scope.caching_device,
                partitioner=lambda **_: list(slicing),
                use_resource=scope.use_resource,
                constraint=scope.constraint,
            )
    return list(parts)


class Template:
    """A function whose variables are made at its first call; see `make_template`."""

    def __init__(self, name: str, function: Callable[..., Any], unique_name: str | None, custom_getter: Any) -> None:
        self.name = name
        self.func = function
        self._unique_name, self._custom_getter = unique_name, custom_getter
        self._scope: VariableScope | None = None
        self._was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trainable = get_default_graph().get_collection_ref(GraphKeys.TRAINABLE_VARIABLES)
        with self.open_scope():
            before = len(trainable)
            found = self.func(*args, **kwargs)
            if self._was_called and len(trainable) > before:
                raise ValueError(
                    f"A call of the template '{self.name}' that is not the first made trainable variables, with Variable instead of "
                    f"get_variable: {[v.name for v in trainable[before:]]}"
                )
            self._was_called = True
            return found

    @contextmanager
    def open_scope(self, name_scope: bool = True) -> Iterator[None]:
        """A block in its variable scope, which is made at the first time; with a name scope of that name."""
        opened = (
            variable_scope(
                self._unique_name,
                self.name,
                custom_getter=self._custom_getter,
                auxiliary_name_scope=name_scope,
            )
            if self._scope is None
            else variable_scope(self._scope, reuse=True if self._was_called else None)
        )
        with opened as scope:
            if self._scope is None:
                self._scope = scope
            yield

    @property
    def variable_scope(self) -> VariableScope | None:
        """The scope of its variables; None before there is one."""
        return self._scope

    @property
    def variable_scope_name(self) -> str | None:
        """The name of that scope, with a slash at the end."""
        return None if self._scope is None else f"{self._scope.name.removesuffix('/')}/" if self._scope.name else ""

    @property
    def global_variables(self) -> list[Any]:
        """Its variables that are global."""
        return [] if self._scope is None else self._scope.global_variables()

    @property
    def local_variables(self) -> list[Any]:
        """Its variables that are local."""
        return [] if self._scope is None else self._scope.local_variables()

    @property
    def variables(self) -> list[Any]:
        """Its variables."""
        return self.global_variables + self.local_variables

    @property
    def trainable_variables(self) -> list[Any]:
        """Its variables that optimizers change."""
        return [] if self._scope is None else self._scope.trainable_variables()

    @property
    def non_trainable_variables(self) -> list[Any]:
        """Its other variables."""
        trainable = self.trainable_variables
        return [v for v in self.variables if not any(v is t for t in trainable)]

    weights = variables
    trainable_weights = trainable_variables
    non_trainable_weights = non_trainable_variables


def make_template(
    name_: str,
    func_: Callable[..., Any],
    create_scope_now_: bool = False,
    unique_name_: str | None = None,
    custom_getter_: Any = None,
    **kwargs: Any,
) -> Template:
    """A function whose variables are made at its first call, and used again by all others.

    Args:
        name_: name of the variable scope, made unique.
        func_: the function; it makes variables by `get_variable`.
        create_scope_now_: whether the name is made unique now, not at the first call.
        unique_name_: a name that is used unchanged.
        custom_getter_: as of `variable_scope`.
        kwargs: arguments for `func_`.

    Raises:
        ValueError: a later call makes a variable that the first one did not.

    Returns:
        the function, with the attributes `variables`, `trainable_variables` and the like, and `variable_scope`.

    >>> scale = dt.make_template("scale", lambda x: x * dt.get_variable("w", []))
    >>> y, z = scale(a), scale(b)   # one variable, 'scale/w'
    """
    if name_ is None:
        raise ValueError("name cannot be None.")
    template = Template(name_, partial(func_, **kwargs) if kwargs else func_, unique_name_, custom_getter_)
    if create_scope_now_:
        with template.open_scope(name_scope=False):
            pass
    return template


def all_variables() -> list[Any]:
    """Old spelling of `global_variables()`."""
    return global_variables()


def model_variables(scope: str | None = None) -> list[Any]:
    """The variables that a model needs for inference; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def initialize_variables(var_list: Iterable[Any], name: str = "init") -> Node:
    """Old spelling of `variables_initializer`."""
    return variables_initializer(var_list, name)


def initialize_all_variables() -> Node:
    """Old spelling of `global_variables_initializer`."""
    return global_variables_initializer()


def initialize_local_variables() -> Node:
    """Old spelling of `local_variables_initializer`."""
    return local_variables_initializer()


def assert_variables_initialized(var_list: Sequence[Any] | None = None) -> Node | None:
    """A node that fails with FailedPreconditionError while one of the variables has no value.

    Args:
        var_list: variables to ask; None: all global and local ones. Where there are none, the result is None.
    """
    if var_list is None:
        var_list = [*global_variables(), *local_variables()]
    if not var_list:
        return None
    reads = []
    for v in var_list:
        with v.graph.colocate_with(v):
            reads.append(v.read_value().op)
    node: Node = group(*reads, name="assert_variables_initialized")
    return node
