"""Sharing variables by name: `variable_scope` and `get_variable`.

`get_variable("w")` inside `variable_scope("layer")` means the variable `layer/w`: it makes it, or finds it
again, as `reuse` says. Variable scopes prefix the names of variables and, by opening a name scope too, of
other nodes; name scopes do not prefix the names of variables made here. The open scopes belong to a thread,
the variables to the graph.
"""

from __future__ import annotations

import enum
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from .build import convert, graph_of
from .dtypes import DType, as_dtype, float32
from .errors import UnimplementedError
from .graph import Graph, GraphKeys, get_default_graph
from .shape import as_dims, compatible, is_static, text
from .variables import Variable

_STORE = "__variable_store"  # the collection that holds the graph's one `_Store`, TensorFlow's name


class _Reuse(enum.Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE
"""For `reuse`: find the variable if it exists, else make it."""


class VariableScope:
    """What `get_variable` uses where its arguments do not say: a name prefix, whether to reuse, and defaults.

    Attributes:
        name: the prefix of names, without a slash at the end; '' at the root.
        reuse: False: make; True: find; AUTO_REUSE: find or make.
        original_name_scope: the name scope that was opened with it first, with a slash at the end.
        initializer, regularizer, caching_device, custom_getter, dtype, use_resource, constraint: defaults.
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
        _no_partitioner(partitioner)
        self.reuse = reuse
        self.name = name
        self.initializer = initializer
        self.regularizer = regularizer
        self.caching_device = caching_device
        self.partitioner = None
        self.custom_getter = custom_getter
        self.original_name_scope = name_scope
        self.dtype: DType = as_dtype(dtype)
        self.use_resource = use_resource
        self.constraint = constraint

    def reuse_variables(self) -> None:
        """Find variables in this scope from now on, and make none."""
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
        """Set which kind of variable is made by default."""
        self.use_resource = use_resource

    def set_caching_device(self, caching_device: Any) -> None:
        """Set the default caching device."""
        self.caching_device = caching_device

    def set_custom_getter(self, custom_getter: Any) -> None:
        """Set the function that is asked for variables."""
        self.custom_getter = custom_getter

    def set_partitioner(self, partitioner: Any) -> None:
        """Only None is supported for now."""
        _no_partitioner(partitioner)

    def get_collection(self, name: str) -> list[Any]:
        """The part of a collection whose names start with this scope's."""
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
    """The open scope of a thread, and how often each name has been opened: for unique default names."""

    def __init__(self) -> None:
        self.scope = VariableScope(False)
        self.counts: dict[str, int] = {}


class _Store:
    """The variables of a graph that `get_variable` made, and the scopes that are open."""

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.open = _Open()

    @staticmethod
    def of(graph: Graph) -> _Store:
        """The graph's store."""
        kept = graph.get_collection_ref(_STORE)
        if not kept:
            kept.append(_Store())
        store: _Store = kept[0]
        return store


def _no_partitioner(partitioner: Any) -> None:
    if partitioner is not None:
        raise UnimplementedError(
            None,
            None,
            "Partitioned variables are not supported yet: leave partitioner out, or make one per part",
        )


def get_variable_scope() -> VariableScope:
    """The innermost open variable scope; the root scope when none is open."""
    return _Store.of(get_default_graph()).open.scope


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
    """A block that prefixes the names of variables, and of the other nodes made in it.

    Args:
        name_or_scope: a name, added to the open scope's; or a scope object, which is entered again wherever
            one is.
        default_name: a name for `name_or_scope=None`, made unique: `dense`, `dense_1`, ...
        values: tensors whose graph is meant.
        initializer, regularizer, caching_device, custom_getter, dtype, use_resource, constraint: defaults in
            the block.
        partitioner: only None is supported for now.
        reuse: True, False, AUTO_REUSE, or None to inherit. Reuse that is on outside cannot be turned off by
            False.
        auxiliary_name_scope: whether a name scope is opened as well.

    Raises:
        TypeError, ValueError: a wrong argument.

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
    _no_partitioner(partitioner)
    graph = graph_of(*(values or ()))
    store = _Store.of(graph)
    outer, counts = store.open.scope, store.open.counts
    source = name_or_scope if isinstance(name_or_scope, VariableScope) else outer
    with _name_scope(graph, name_or_scope, default_name, auxiliary_name_scope) as opened:
        if isinstance(name_or_scope, VariableScope):
            name = name_or_scope.name
            reuse = name_or_scope.reuse if reuse is None else reuse
            opened = name_or_scope.original_name_scope
            counts_after = dict(counts)
        else:
            part = _unique(counts, outer.name, default_name or "") if name_or_scope is None else name_or_scope
            name = f"{outer.name}/{part}" if outer.name else part
            reuse = reuse or outer.reuse
            counts_after = counts
        store.open.scope = VariableScope(
            reuse,
            name,
            source.initializer if initializer is None else initializer,
            source.regularizer if regularizer is None else regularizer,
            source.caching_device if caching_device is None else caching_device,
            None,
            _composed(custom_getter, source.custom_getter),
            opened,
            source.dtype if dtype is None else dtype,
            source.use_resource if use_resource is None else use_resource,
            source.constraint if constraint is None else constraint,
        )
        counts[name] = counts.get(name, 0) + 1
        try:
            yield store.open.scope
        finally:
            # Left and entered again, a scope numbers the default names inside it from the start, so that they
            # are found.
            store.open.counts = {k: n for k, n in counts_after.items() if not k.startswith(name + "/")}
            store.open.scope = outer


def _name_scope(graph: Graph, name_or_scope: Any, default_name: str | None, auxiliary: bool) -> Any:
    if not auxiliary:
        return nullcontext(graph.scopes.name + "/" if graph.scopes.name else "")
    if name_or_scope is None:
        return graph.name_scope(default_name)
    last = (name_or_scope if isinstance(name_or_scope, str) else name_or_scope.name).split("/")[-1]
    wanted = name_or_scope if isinstance(name_or_scope, str) else last
    return (
        graph.name_scope(wanted)
        if wanted
        else nullcontext(graph.scopes.name + "/" if graph.scopes.name else "")
    )


def _unique(counts: dict[str, int], outer: str, wished: str) -> str:
    full = f"{outer}/{wished}" if outer else wished
    if not counts.get(full):
        return wished
    number = 1
    while counts.get(f"{full}_{number}"):
        number += 1
    return f"{wished}_{number}"


def _composed(inner: Any, outer: Any) -> Any:
    """The getter that asks `inner` first; what that calls its getter is `outer`."""
    if inner is None or outer is None:
        return outer if inner is None else inner

    def ask(getter: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return inner(partial(outer, getter), *args, **kwargs)

    return ask


def variable_op_scope(
    values: Sequence[Any],
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    **defaults: Any,
) -> Any:
    """Old spelling of `variable_scope(name_or_scope, default_name, values)`."""
    return variable_scope(name_or_scope, default_name, values, **defaults)


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
) -> Any:
    """The variable of that name in the open variable scope: found or made, as the scope's `reuse` says.

    Args:
        name: its name inside the scope.
        shape: its shape, complete for a new variable; left out when `initializer` is a value.
        dtype: element type; None: the scope's, float32 at the root.
        initializer: an initializer object or class, a function of (shape, dtype), or a value. None: the
            scope's, or else `glorot_uniform_initializer` for floating types and zeros for ints and bools.
        regularizer: function of the variable whose result joins the regularization losses.
        trainable, collections, caching_device, validate_shape, use_resource, constraint: as for `Variable`.
        partitioner: only None is supported for now.
        custom_getter: function that is called as `custom_getter(getter, name, ...)` instead.

    Raises:
        ValueError: it exists and may not be reused, or the other way round, or shape or dtype differ from
            what exists.

    >>> w = get_variable("w", [3, 4])
    """
    scope = get_variable_scope()
    _no_partitioner(partitioner)
    full_name = f"{scope.name}/{name}" if scope.name else name
    if dtype is not None and initializer is not None and not callable(initializer):
        given = (
            convert(initializer).dtype.base
            if not hasattr(initializer, "dtype")
            else as_dtype(initializer.dtype).base
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
        "validate_shape": validate_shape,
        "use_resource": scope.use_resource if use_resource is None else use_resource,
        "constraint": scope.constraint if constraint is None else constraint,
    }
    getter = _composed(custom_getter, scope.custom_getter)
    # Variables are named by variable scopes alone, so the name scope is left meanwhile.
    with get_default_graph().name_scope(None):
        return _get(full_name, **arguments) if getter is None else getter(_get, full_name, **arguments)


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """`get_variable` for a variable of this client alone: in the local variables, not trained."""
    kwargs |= {"trainable": False, "collections": [GraphKeys.LOCAL_VARIABLES]}
    return get_variable(name, *args, **kwargs)


def no_regularizer(_: Any) -> None:
    """A regularizer that says: none, whatever the scopes around say."""


def _get(
    name: str,
    shape: Any = None,
    dtype: Any = float32,
    initializer: Any = None,
    regularizer: Any = None,
    reuse: Any = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    caching_device: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    constraint: Any = None,
    partitioner: Any = None,
) -> Variable:
    """Find or make the variable with this full name. Custom getters get this function as their `getter`."""
    _no_partitioner(partitioner)
    graph = get_default_graph()
    variables = _Store.of(graph).variables
    dims, wanted = as_dims(shape), as_dtype(dtype).base
    from_value = initializer is not None and not callable(initializer)
    if shape is not None and from_value:
        raise ValueError(f"Variable {name}: if initializer is a constant, do not specify shape.")
    found = variables.get(name)
    if found is not None:
        return _shared(found, name, dims, wanted, reuse)
    if reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). "
            "Did you mean to set reuse=tf.AUTO_REUSE in VarScope?"
        )
    if initializer is None:
        initializer = _default_initializer(name, wanted)
    if not from_value:
        initializer, wanted_or_any = _bound(initializer, name, dims, shape, wanted)
    else:
        wanted_or_any = None
    variable = Variable(
        initializer,
        trainable,
        collections,
        validate_shape,
        caching_device,
        name,
        dtype=wanted_or_any,
        constraint=constraint,
        use_resource=use_resource,
    )
    variables[name] = variable
    if regularizer is not None:
        with graph.colocate_with(variable.op), graph.name_scope(name + "/Regularizer/"):
            loss = regularizer(variable)
        if loss is not None:
            graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
    return variable


def _shared(found: Variable, name: str, dims: Any, dtype: DType, reuse: Any) -> Variable:
    if reuse is False or reuse is None:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            f"reuse=tf.AUTO_REUSE in VarScope? "
            f"Originally defined at:\n\n  {found.op.source}\n    {found.op.source.text}"
        )
    if not compatible(dims, found.shape.dims_tuple):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {text(dims)} "
            f"and found shape {found.shape}."
        )
    if dtype is not found.dtype.base:
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {dtype.name} "
            f"and found dtype {found.dtype.base.name}."
        )
    return found


def _default_initializer(name: str, dtype: DType) -> Any:
    from . import initializers

    if dtype.is_floating:
        return initializers.glorot_uniform_initializer()
    if dtype.is_integer or dtype.is_bool:
        return initializers.zeros_initializer()
    raise ValueError(f"An initializer for variable {name} of {dtype.name} is required")


def _bound(
    initializer: Any, name: str, dims: Any, shape: Any, dtype: DType
) -> tuple[Callable[[], Any], DType | None]:
    """The initializer as a function without arguments, and the element type to insist on (None: its own)."""
    if inspect.isclass(initializer):
        initializer = initializer()
    if shape is not None and is_static(dims):
        return partial(initializer, list(dims), dtype=dtype), dtype
    if shape is None and not _required_arguments(initializer):
        return initializer, None
    raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was {text(dims)}.")


def _required_arguments(function: Any) -> list[str]:
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
