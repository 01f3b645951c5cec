"""The variables of a graph by name, for `get_variable`, and lists of variables.

A name belongs to a variable or to a partitioned variable, not to both. The parts of `v` are variables with the names `v/part_0` and
so on. They are stored, too.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..core.build import apply, convert, graph_of, to_array
from ..core.default_graph import GraphKeys, get_default_graph
from ..core.dtypes import DType, as_dtype, float32, string
from ..core.graph import Graph, Node, Tensor
from ..core.shape import Dims, TensorShape, as_dims, compatible, is_static, merge, static_sizes, text
from ..core.source_location import at_caller
from ..ops.array.identity_and_placeholders import group
from ..ops.array.slicing import slice as slice_
from ..ops.state import variables
from . import initializers
from .partitioned import PartitionedVariable, PartitionInfo, SaveSliceInfo, checked_partitions, slices
from .variable import Variable

_KEY = "__variable_store"  # the collection that holds the graph's one store, TensorFlow's name


class _Reuse(enum.Enum):
    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE
"""A value for `reuse`: find the variable if it exists, else make it."""


class VariableStore:
    """The variables of one graph that `get_variable` made.

    Attributes:
        variables: name -> variable.
        partitioned: name -> partitioned variable.
        regularizations: regularization loss -> its variable, and a function that computes the loss again.
        of_copies: regularization losses of copies of the variables.
    """

    def __init__(self) -> None:
        self.variables: dict[str, Variable] = {}
        self.partitioned: dict[str, PartitionedVariable] = {}
        self.regularizations: dict[Tensor, tuple[Variable, Callable[[], Any]]] = {}
        self.of_copies: set[Any] = set()

    @staticmethod
    def of(graph: Graph) -> VariableStore:
        """The graph's store."""
        kept = graph.get_collection_ref(_KEY)
        if not kept:
            kept.append(VariableStore())
        store: VariableStore = kept[0]
        return store

    def get(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = float32,
        initializer: Any = None,
        regularizer: Any = None,
        reuse: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        caching_device: Any = None,
        partitioner: Any = None,
        validate_shape: bool = True,
        use_resource: bool | None = None,
        constraint: Any = None,
        synchronization: Any = None,
        aggregation: Any = None,
    ) -> Any:
        """Find or make the variable of a full name. Custom getters take this as their `getter`."""
        if partitioner is not None and not callable(partitioner):
            raise ValueError(f"Partitioner must be callable, but received: {partitioner}")
        more = {
            "trainable": trainable,
            "collections": collections,
            "caching_device": caching_device,
            "validate_shape": validate_shape,
            "use_resource": use_resource,
            "constraint": constraint,
            "synchronization": synchronization,
            "aggregation": aggregation,
        }
        dims, wanted = as_dims(shape), as_dtype(dtype).base
        if partitioner is not None:
            if initializer is not None and not callable(initializer):
                initializer = _value(initializer)
                dims, wanted = merge(dims, _value_dims(initializer)), as_dtype(initializer.dtype).base
            if dims != ():  # a scalar cannot be split
                return self._in_parts(name, dims, wanted, initializer, regularizer, reuse, partitioner, more)
        if name in self.partitioned and reuse:  # its partitioner need not be given again
            return _shared_parts(self.partitioned[name], name, dims, wanted, None, reuse)
        if f"{name}/part_0" in self.variables:
            raise ValueError(
                "No partitioner was provided, but a partitioned version of the variable was found: "
                f"{name}/part_0. Perhaps a variable of the same name was already created with partitioning?"
            )
        return self._single(name, shape, wanted, initializer, regularizer, reuse, more)

    def _single(
        self,
        name: str,
        shape: Any,
        dtype: DType,
        initializer: Any,
        regularizer: Any,
        reuse: Any,
        more: dict[str, Any],
        part: PartitionInfo | None = None,
    ) -> Variable:
        dims = as_dims(shape)
        from_value = initializer is not None and not callable(initializer)
        if shape is not None and from_value:
            raise ValueError(f"Variable {name}: if initializer is a constant, do not specify shape.")
        found = self.variables.get(name)
        if found is not None:
            return _shared(found, name, dims, dtype, reuse)
        if reuse is True:
            raise ValueError(
                f"Variable {name} does not exist, or was not created with tf.get_variable(). "
                f"Did you mean to set reuse=tf.AUTO_REUSE in VarScope?{at_caller()}"
            )
        if initializer is None:
            initializer = _default_initializer(name, dtype)
        insist: DType | None = None
        if not from_value:
            initializer, insist = _bound(initializer, name, dims, shape, dtype, part)
        variable = Variable(initializer, name=name, dtype=insist, **more)
        self.variables[name] = variable
        if regularizer is not None:
            self._regularize(variable, name, regularizer)
        return variable

    def _regularize(self, variable: Variable, name: str, regularizer: Callable[[Any], Any]) -> None:
        graph = variable.graph

        def regularized() -> Any:
            with graph.colocate_with(variable.op), graph.name_scope(name + "/Regularizer/"):
                return regularizer(variable)

        loss = regularized()
        if loss is not None:
            graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
        if isinstance(loss, Tensor):
            self.regularizations[loss] = variable, regularized

    def _in_parts(
        self,
        name: str,
        dims: Dims,
        dtype: DType,
        initializer: Any,
        regularizer: Any,
        reuse: Any,
        partitioner: Any,
        more: dict[str, Any],
    ) -> PartitionedVariable:
        if name in self.variables:
            raise ValueError(
                "A partitioner was provided, but an unpartitioned version of the variable was found: "
                f"{name}. Perhaps a variable of the same name was already created without partitioning?"
            )
        error = f"Shape of a new partitioned variable ({name}) must be fully defined, but instead was {{}}."
        full_shape = static_sizes(dims, error)
        partitions = checked_partitions(partitioner(shape=TensorShape(full_shape), dtype=dtype), full_shape)
        found = self.partitioned.get(name)
        if found is not None:
            return _shared_parts(found, name, dims, dtype, partitions, reuse)
        if reuse is True:
            raise ValueError(
                f"PartitionedVariable {name} does not exist, or was not created with tf.get_variable(). "
                "Did you mean to set reuse=False or reuse=tf.AUTO_REUSE in VarScope?"
            )
        cut = list(slices(full_shape, partitions))
        self._check_parts(name, len(cut))
        if initializer is None:
            initializer = _default_initializer(name, dtype)
        parts = []
        for i, (offset, shape) in enumerate(cut):
            full_name = f"{name}/part_{i}"
            info = PartitionInfo(full_shape, offset)
            if callable(initializer):
                part = self._single(full_name, shape, dtype, initializer, regularizer, reuse, more, info)
            else:
                value = _slice_of(initializer, offset, shape, full_name)
                part = self._single(full_name, None, dtype, value, regularizer, reuse, more, info)
            part.save_slice_info = SaveSliceInfo(name, full_shape, offset, shape)
            parts.append(part)
        whole = PartitionedVariable(name, full_shape, parts[0].dtype.base, parts, partitions)
        self.partitioned[name] = whole
        return whole

    def _check_parts(self, name: str, count: int) -> None:
        """ValueError if parts exist that were made separately, and their number is not `count`."""
        if f"{name}/part_0" not in self.variables:
            return
        last, behind = f"{name}/part_{count - 1}", f"{name}/part_{count}"
        if last not in self.variables:
            problem = f"shard {name}/part_0 was found, but {last} was not."
        elif behind in self.variables:
            problem = f"extra shard {behind} was found."
        else:
            return
        raise ValueError(
            "Partitioner returned a different partitioning than what was already found. "
            f"Partitioner returned {count} shards, and {problem}"
        )


# --- existing variables -------------------------------------------------------------------------------------


def _shared(found: Variable, name: str, dims: Any, dtype: DType, reuse: Any) -> Variable:
    if not reuse:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            f"reuse=tf.AUTO_REUSE in VarScope? "
            f"Originally defined at:\n\n  {found.op.source}\n    {found.op.source.text}"
        )
    _check_same("share variable", name, found, dims, dtype)
    return found


def _shared_parts(
    found: PartitionedVariable, name: str, dims: Dims, dtype: DType, partitions: list[int] | None, reuse: Any
) -> PartitionedVariable:
    if not reuse:
        made = list(found)[0].op.source
        raise ValueError(
            f"Partitioned variable with name {name} already exists. Did you mean to set reuse=True or "
            f"reuse=tf.AUTO_REUSE in VarScope? Originally defined at:\n\n  {made}\n    {made.text}"
        )
    _check_same("reuse partitioned variable", name, found, dims, dtype)
    if partitions is not None and partitions != found.get_partitions():
        raise ValueError(
            f"Trying to reuse partitioned variable {name}, but specified partitions {partitions} "
            f"and found partitions {found.get_partitions()}."
        )
    return found


def _check_same(doing: str, name: str, found: Any, dims: Dims, dtype: DType) -> None:
    if not compatible(dims, found.shape.dims_tuple):
        raise ValueError(
            f"Trying to {doing} {name}, but specified shape {text(dims)} and found shape {found.shape}.{_made(found)}"
        )
    if dtype is not found.dtype.base:
        raise ValueError(
            f"Trying to {doing} {name}, but specified dtype {dtype.name} and found dtype {found.dtype.base.name}."
            f"{_made(found)}"
        )


def _made(found: Any) -> str:
    source = (found if isinstance(found, Variable) else list(found)[0]).op.source
    return (
        f" It was first created at {source}: {source.text}\n"
        f"Ask for the same, or use another name or variable_scope{at_caller()}"
    )


# --- initial values -----------------------------------------------------------------------------------------


def _value(initializer: Any) -> Any:
    """The initial value of an initializer that is not a function, as a tensor or an array."""
    if isinstance(initializer, (Tensor, list, tuple)) or hasattr(initializer, "_as_tensor"):
        return convert(initializer)
    return to_array(initializer)


def _value_dims(value: Any) -> Dims:
    return value.dims if isinstance(value, Tensor) else value.shape


def _slice_of(initializer: Any, offset: list[int], shape: list[int], part_name: str) -> Any:
    """The slice of an initial value for one part. Of an array, only the slice is added to the graph."""
    if isinstance(initializer, np.ndarray):
        return initializer[tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))]
    with get_default_graph().name_scope(part_name + "/PartitionedInitializer"):
        return slice_(initializer, offset, shape)


def _default_initializer(name: str, dtype: DType) -> Any:
    if dtype.is_floating:
        return initializers.glorot_uniform_initializer()
    if dtype.is_integer or dtype.is_bool or dtype is string:
        return initializers.zeros_initializer()
    raise ValueError(f"An initializer for variable {name} of {dtype.name} is required")


def _bound(
    initializer: Any, name: str, dims: Any, shape: Any, dtype: DType, part: PartitionInfo | None
) -> tuple[Callable[[], Any], DType | None]:
    """The initializer as a function without arguments, and the element type of the variable, or None for that of the result."""
    if inspect.isclass(initializer):
        initializer = initializer()
    if shape is not None and is_static(dims):
        extra = {"partition_info": part} if _takes_partition_info(initializer) else {}
        return partial(initializer, list(dims), dtype=dtype, **extra), dtype
    if shape is None and not _required_arguments(initializer):
        return initializer, None
    raise ValueError(
        f"Shape of a new variable ({name}) must be fully defined, but instead was {text(dims)}. "
        f"Pass shape=[...] without None, or a value as initializer{at_caller()}"
    )


def _takes_partition_info(function: Any) -> bool:
    try:
        return "partition_info" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a C function without a signature
        return False


def _required_arguments(function: Any) -> list[str]:
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind in kinds]


# --- lists of variables, and their initialization ---------------------------------------------------------------------


def global_variables(scope: str | None = None) -> list[Any]:
    """The variables that all tasks share. `scope` is a regular expression that the start of their names must match."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Any]:
    """The variables that each client has for itself. `scope` is as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Any]:
    """The variables that optimizers change by default. `scope` is as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Any]:
    """The variables that have a moving average. `scope` is as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Iterable[Any] | None, name: str = "init") -> Node:
    """One node that initializes these variables."""
    node: Node = group(*[v.initializer for v in var_list or ()], name=name)
    return node


def global_variables_initializer() -> Node:
    """One node that initializes all global variables that exist.

    >>> v = dt.Variable([1.0, 2.0])
    >>> with dt.Session() as session:
    ...     session.run(dt.global_variables_initializer())
    """
    return variables_initializer(global_variables())


def local_variables_initializer() -> Node:
    """One node that initializes all local variables that exist."""
    return variables_initializer(local_variables())


def report_uninitialized_variables(
    var_list: Sequence[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """The names of the variables that are not initialized, as a string vector.

    Args:
        var_list: variables. If it is None, all global and local variables.
        name: scope of the nodes.
    """
    if var_list is None:
        var_list = [*global_variables(), *local_variables()]
    with graph_of(*[variables.as_ref_or_handle(v) for v in var_list]).name_scope(name):
        flags = [variables.is_variable_initialized(v) for v in var_list]
        # Only CPUs hold strings.
        with graph_of(*flags).device("/cpu:0"):
            return apply("UninitializedNames", flags, {"names": tuple([v.op.name for v in var_list])})


is_variable_initialized = variables.is_variable_initialized
