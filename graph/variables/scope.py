"""Sharing variables by name: `variable_scope` and `get_variable`.

`get_variable("w")` inside `variable_scope("layer")` makes or finds the variable `layer/w`, depending on `reuse`. A variable scope
is a prefix of variables' names. It also opens a name scope, a prefix of other nodes' names. `get_variable` ignores name scopes.
Each thread has its own open scopes. Variables belong to the graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from ..core.argument_names import explains_arguments
from ..core.build import convert, graph_of
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.dtypes import DType, as_dtype, float32
from ..core.graph import Graph
from .store import AUTO_REUSE, VariableStore
from .variable import VariableAggregation, VariableSynchronization

_KEY = "__varscope"  # the collection that holds the graph's open scopes, TensorFlow's name


class VariableScope:
    """A prefix of names, whether to reuse variables, and defaults for the arguments of `get_variable`.

    Attributes:
        name: the prefix of names, without a slash at the end. '' for the root scope.
        reuse: False to make variables, True to find existing ones, or AUTO_REUSE to find or make them.
        original_name_scope: the name scope that the scope opened first, with a slash at the end.
        initializer, regularizer, caching_device, partitioner, custom_getter, dtype, use_resource, constraint: defaults.
    """

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        regularizer: Any = None,
        caching_device: Any = None,
        partitioner: Any = None,
        custom_getter: Any = None,
        name_scope: str = "",
        dtype: Any = float32,
        use_resource: bool | None = None,
        constraint: Any = None,
    ) -> None:
        self.reuse = reuse
        self.name = name
        self.initializer = initializer
        self.regularizer = regularizer
        self.caching_device = caching_device
        self.partitioner = partitioner
        self.custom_getter = custom_getter
        self.original_name_scope = name_scope
        self.dtype: DType = as_dtype(dtype)
        self.use_resource = use_resource
        self.constraint = constraint

    def reuse_variables(self) -> None:
        """From now on, only find existing variables in this scope."""
        self.reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Set the default initializer."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Set the default regularizer."""
        self.regularizer = regularizer

    def set_dtype(self, dtype: Any) -> None:
        """Set the default element type."""
        self.dtype = as_dtype(dtype)

    def set_use_resource(self, use_resource: bool) -> None:
        """Set whether new variables are resource variables by default."""
        self.use_resource = use_resource

    def set_caching_device(self, caching_device: Any) -> None:
        """Set the default caching device."""
        self.caching_device = caching_device

    def set_custom_getter(self, custom_getter: Any) -> None:
        """Set the default custom getter."""
        self.custom_getter = custom_getter

    def set_partitioner(self, partitioner: Any) -> None:
        """Set the default partitioner."""
        self.partitioner = partitioner

    def get_collection(self, name: str) -> list[Any]:
        """The items of a collection whose names start with this scope's name."""
        return get_default_graph().get_collection(name, self.name + "/" if self.name else "")

    def global_variables(self) -> list[Any]:
        """The global variables in this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Any]:
        """The local variables in this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Any]:
        """The trainable variables in this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)


class _Open(threading.local):
    """The open scope of a thread, and how often each name was opened, for unique default names."""

    def __init__(self) -> None:
        self.scope = VariableScope(False)
        self.counts: dict[str, int] = {}


def _open(graph: Graph) -> _Open:
    kept = graph.get_collection_ref(_KEY)
    if not kept:
        kept.append(_Open())
    found: _Open = kept[0]
    return found


def get_variable_scope() -> VariableScope:
    """The innermost open variable scope, or the root scope."""
    return _open(get_default_graph()).scope


@contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Sequence[Any] | None = None,
    initializer: Any = None,
    regularizer: Any = None,
    caching_device: Any = None,
    partitioner: Any = None,
    custom_getter: Any = None,
    reuse: Any = None,
    dtype: Any = None,
    use_resource: bool | None = None,
    constraint: Any = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """A block that prefixes the names of variables and other nodes, and sets defaults for `get_variable`.

    Args:
        name_or_scope: a name, relative to the open scope, or a scope object to enter again.
        default_name: a name for `name_or_scope=None`, which is made unique: `dense`, `dense_1`, ...
        values: tensors whose graph is used.
        initializer: default initializer.
        regularizer: default regularizer.
        caching_device: default caching device.
        partitioner: default partitioner.
        custom_getter: default custom getter.
        reuse: True, False, AUTO_REUSE, or None to inherit. False does not turn off the reuse of an outer scope.
        dtype: default element type.
        use_resource: whether new variables are resource variables by default.
        constraint: default constraint.
        auxiliary_name_scope: whether to open a name scope, too.

    Raises:
        TypeError: an argument has a wrong type, or there is no name.
        ValueError: `reuse` has another value, or is True without `name_or_scope`.

    >>> with variable_scope("layer"):
    ...     w = get_variable("w", [3, 4])
    >>> w.name
    'layer/w:0'
    """
    if default_name is None and name_or_scope is None:
        raise TypeError("If default_name is None then name_or_scope is required")
    if reuse not in (True, False, None, AUTO_REUSE):
        raise ValueError(f"The reuse parameter must be True, False, AUTO_REUSE or None, not {reuse!r}.")
    if name_or_scope is None and reuse:
        raise ValueError("reuse cannot be True without a name_or_scope")
    if name_or_scope is not None and not isinstance(name_or_scope, (str, VariableScope)):
        raise TypeError(f"name_or_scope must be a string or a VariableScope, not {name_or_scope!r}")
    if not isinstance(auxiliary_name_scope, bool):
        raise TypeError(f"The auxiliary_name_scope must be True or False, not {auxiliary_name_scope!r}")
    for function, what in ((partitioner, "Partitioner"), (custom_getter, "custom_getter")):
        if function is not None and not callable(function):
            raise ValueError(f"{what} must be callable, but received: {function}")
    graph = graph_of(*(values or ()))
    open_ = _open(graph)
    outer, counts = open_.scope, open_.counts
    source = name_or_scope if isinstance(name_or_scope, VariableScope) else outer
    with _name_scope(graph, name_or_scope, default_name, auxiliary_name_scope) as opened:
        if isinstance(name_or_scope, VariableScope):
            name = name_or_scope.name
            opened = name_or_scope.original_name_scope
        else:
            part = _unique(counts, outer.name, default_name or "") if name_or_scope is None else name_or_scope
            name = f"{outer.name}/{part}" if outer.name else part
        open_.scope = VariableScope(
            reuse or source.reuse,
            name,
            source.initializer if initializer is None else initializer,
            source.regularizer if regularizer is None else regularizer,
            source.caching_device if caching_device is None else caching_device,
            source.partitioner if partitioner is None else partitioner,
            _composed(custom_getter, source.custom_getter),
            opened,
            source.dtype if dtype is None else dtype,
            source.use_resource if use_resource is None else use_resource,
            source.constraint if constraint is None else constraint,
        )
        counts[name] = counts.get(name, 0) + 1
        before = dict(counts)
        try:
            opened_scope = open_.scope
            yield opened_scope
        finally:
            if open_.scope is not opened_scope:
                raise RuntimeError(f"Improper nesting of variable_scope: '{name}' is left before a scope inside it")
            # A scope that is opened by name again numbers the default names inside it from the start, so that they are found. A scope
            # object may be entered while the scope is open. The scope then continues with its own numbers.
            if not isinstance(name_or_scope, VariableScope):
                before = {k: n for k, n in open_.counts.items() if not k.startswith(name + "/")}
            open_.counts = before
            open_.scope = outer


def _name_scope(graph: Graph, name_or_scope: Any, default_name: str | None, auxiliary: bool) -> Any:
    if not auxiliary:
        return nullcontext(graph.scopes.name + "/" if graph.scopes.name else "")
    if name_or_scope is None:
        return graph.name_scope(default_name)
    last = (name_or_scope if isinstance(name_or_scope, str) else name_or_scope.name).split("/")[-1]
    wanted = name_or_scope if isinstance(name_or_scope, str) else last
    return graph.name_scope(wanted) if wanted else nullcontext(graph.scopes.name + "/" if graph.scopes.name else "")


def _unique(counts: dict[str, int], outer: str, wished: str) -> str:
    full = f"{outer}/{wished}" if outer else wished
    if not counts.get(full):
        return wished
    number = 1
    while counts.get(f"{full}_{number}"):
        number += 1
    return f"{wished}_{number}"


def _composed(inner: Any, outer: Any) -> Any:
    """A getter that calls `inner` with `outer` as its getter."""
    if inner is None or outer is None:
        return outer if inner is None else inner

    def ask(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return inner(partial(outer, getter), *args, **kwargs)

    return ask


@explains_arguments
def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    partitioner: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Any = None,
    constraint: Any = None,
    synchronization: Any = None,
    aggregation: Any = None,
) -> Any:
    """Find or make a variable in the open variable scope, depending on the scope's `reuse`.

    Args:
        name: name relative to the scope.
        shape: fully defined shape of a new variable. Omit it if `initializer` is a value.
        dtype: element type. If it is None, the scope's, which is float32 for the root scope.
        initializer: an initializer object or class, a function of (shape, dtype), or a value. If it is None, the
            scope's, or else `glorot_uniform_initializer` for floating types and zeros for integers and bool.
        regularizer: function of the variable. Its result is added to the regularization losses.
        trainable: as for `Variable`.
        collections: as for `Variable`.
        caching_device: as for `Variable`.
        partitioner: function of (shape, dtype) that returns the number of parts along each axis, such as
            `fixed_size_partitioner(3)`. If it is None, the scope's, or else the variable has one part. Scalars are never partitioned.
        validate_shape: as for `Variable`.
        use_resource: as for `Variable`.
        custom_getter: function to call instead, as `custom_getter(getter, name=..., shape=..., ...)`.
        constraint: as for `Variable`.
        synchronization: as for `Variable`.
        aggregation: as for `Variable`.

    Raises:
        ValueError: the variable exists but may not be reused, does not exist but must be reused, or exists with another shape or dtype.
        TypeError: sizes are given as separate arguments.

    >>> w = get_variable("w", [3, 4])
    """
    if isinstance(shape, int) and isinstance(dtype, int):
        raise TypeError(
            f"get_variable takes the sizes of a shape as one list: dt.get_variable({name!r}, [{shape}, {dtype}])"
        )
    scope = get_variable_scope()
    full_name = f"{scope.name}/{name}" if scope.name else name
    if dtype is not None and initializer is not None and not callable(initializer):
        given = (
            convert(initializer).dtype.base if not hasattr(initializer, "dtype") else as_dtype(initializer.dtype).base
        )
        if given is not as_dtype(dtype).base:
            raise ValueError(
                f"Initializer type '{given.name}' and explicit dtype '{as_dtype(dtype).name}' don't match."
            )
    arguments = {
        "shape": shape,
        "dtype": as_dtype(scope.dtype if dtype is None else dtype).base,
        "initializer": scope.initializer if initializer is None else initializer,
        "regularizer": scope.regularizer if regularizer is None else regularizer,
        "reuse": scope.reuse,
        "trainable": trainable,
        "collections": collections,
        "caching_device": scope.caching_device if caching_device is None else caching_device,
        "partitioner": scope.partitioner if partitioner is None else partitioner,
        "validate_shape": validate_shape,
        "use_resource": scope.use_resource if use_resource is None else use_resource,
        "constraint": scope.constraint if constraint is None else constraint,
        "synchronization": VariableSynchronization.AUTO if synchronization is None else synchronization,
        "aggregation": VariableAggregation.NONE if aggregation is None else aggregation,
    }
    if custom_getter is not None and not callable(custom_getter):
        raise ValueError(f"custom_getter must be callable, but received: {custom_getter}")
    getter = _composed(custom_getter, scope.custom_getter)
    graph = get_default_graph()
    get = VariableStore.of(graph).get
    # Name scopes do not apply to variables' names.
    with graph.name_scope(None):
        return get(full_name, **arguments) if getter is None else getter(get, name=full_name, **arguments)
