"""The arguments and results of a call of a compiled function: arguments become arrays to feed, results become fetches.

Arguments and results are structures of lists, tuples, named tuples and dicts. A leaf of the arguments is either fed or a constant of the
trace. Any other leaf, such as an iterator or a tensor of a graph, raises a TypeError before the function is traced. A leaf of the results
is fetched if it is an element of the graph. Any other leaf of the results is returned as it is.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, TypeAlias

import numpy as np

from .api import nest
from .distribute.values import PerReplica
from .graph.core.dtypes import native
from .graph.core.graph import Node, Tensor
from .graph.ops.array.concat_stack import concat
from .graph.tensors.indexed_slices import IndexedSlices
from .graph.tensors.sparse_tensor import SparseTensor
from .graph.variables.partitioned import PartitionedVariable, cut_axis

Array: TypeAlias = np.ndarray[Any, Any]

FETCHED = (Tensor, Node, IndexedSlices, SparseTensor)
"""Types of the leaves that a session fetches. `returned` replaces variables by tensors before."""
TEXTS = (str, bytes)


# --- arguments ----------------------------------------------------------------------------------------------


def is_constant(leaf: Any) -> bool:
    """Whether an argument is a constant of the trace rather than fed."""
    return leaf is None or isinstance(leaf, str | bytes | bool) or callable(leaf)


def constants_of(structure: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """A hashable key of what all calls of one trace share: the structure of the arguments, and the leaves that are constants."""
    functions = [leaf for leaf in leaves if callable(leaf)]
    # A constant is represented by its repr, because the string "array" itself would equal the placeholder of an array.
    forms = ["function" if callable(leaf) else repr(leaf) if is_constant(leaf) else "array" for leaf in leaves]
    # The key holds functions themselves: the repr of a new function may equal that of a deleted one at the same address.
    return repr(nest.pack_sequence_as(structure, forms)), *(f if f.__hash__ else f.__call__ for f in functions)


def as_array(leaf: Any) -> Array | None:
    """An argument as an array in native byte order, or None if it cannot be fed.

    Python numbers become int32 and float32, as in `dt.constant`.
    """
    if isinstance(leaf, int) and -(2**31) <= leaf < 2**31:
        return np.asarray(leaf, np.int32)
    if isinstance(leaf, float) and not isinstance(leaf, np.float64):  # np.float64 is a subclass of float
        return np.asarray(leaf, np.float32)
    if hasattr(leaf, "_as_graph_element") or isinstance(leaf, FETCHED):
        return None
    try:
        array = np.asarray(leaf)
    except (TypeError, ValueError):
        return None
    kind = array.dtype.kind
    if kind == "O" and not all(isinstance(x, TEXTS) for x in array.flat):
        return None
    return None if kind in "mM" or array.dtype.names else native(array)


def refusal(function: str, name: str, leaf: Any) -> str:
    """The text of the TypeError for an argument that cannot be fed. It says what to pass instead.

    Args:
        function: name of the compiled function.
        name: name of the argument.
        leaf: the argument.
    """
    kind = type(leaf).__name__
    text = f"argument `{name}` of {function} is of the type {kind}"
    if hasattr(leaf, "_as_graph_element") or isinstance(leaf, FETCHED):
        made = "dt.get_variable" if hasattr(leaf, "read_value") else "ops"
        return f"{text}, which is part of a graph and has no value yet: make it inside {function}, with {made}, or pass an array"
    if hasattr(leaf, "__array__") and not isinstance(leaf, np.ndarray | np.generic):
        try:
            leaf = np.asarray(leaf)
        except (TypeError, ValueError) as e:
            return f"{text}, and cannot be made an array: {e}"
    if isinstance(leaf, np.ndarray | np.generic):
        return f"{text}, and holds {leaf.dtype}, which tensors cannot hold: convert it with astype"
    text += ", which is neither an array nor a dict, list or tuple"
    if dataclasses.is_dataclass(leaf) or hasattr(type(leaf), "__attrs_attrs__"):
        return f"{text}: pass a dict or a named tuple of its fields"
    if isinstance(leaf, Iterable):
        return f"{text}: call {function} once for each batch, `for batch in batches: {function}(batch)`"
    return f"{text}: pass arrays, numbers, or structures of them. Strings, booleans, None and functions are constants of the trace"


def names_of(bound: inspect.BoundArguments) -> list[str]:
    """A name for each leaf of the arguments: the name of the parameter and the keys that lead to the leaf, such as `batch_images`."""
    named: list[tuple[str, Any]] = []
    for parameter in bound.signature.parameters.values():
        value = bound.arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            named += [(f"{parameter.name}_{i}", v) for i, v in enumerate(value)]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            named.append((parameter.name, value))
    named += sorted(bound.kwargs.items())
    return [re.sub("[^A-Za-z0-9_.-]", "_", name) for prefix, value in named for name in _leaf_names(prefix, value)]


def _leaf_names(prefix: str, value: Any) -> list[str]:
    if not nest.is_nested(value):
        return [prefix]
    keys = sorted(value) if isinstance(value, Mapping) else getattr(value, "_fields", range(len(value)))
    parts = [value[key] for key in keys] if isinstance(value, Mapping) else value
    return [name for key, part in zip(keys, parts, strict=True) for name in _leaf_names(f"{prefix}_{key}", part)]


# --- results ------------------------------------------------------------------------------------------------


def returned(function: str, results: Any) -> Any:
    """The results of a function, with a new read op in place of each variable. It reads the value after all changes by the function.

    Args:
        function: name of the function, for errors.
        results: what the function returned.

    Raises:
        TypeError: a step cannot return a leaf, such as a set of tensors.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, FETCHED):
            return leaf
        if isinstance(leaf, PartitionedVariable):
            return concat([part.read_value() for part in leaf], cut_axis(leaf.get_partitions()))
        if (read := getattr(leaf, "read_value", None)) is not None:
            return read()
        if (element := getattr(leaf, "_as_graph_element", None)) is not None:
            return element()
        if isinstance(leaf, Set | Iterator):
            raise TypeError(f"{function} returns a {type(leaf).__name__}: return a list, a tuple or a dict of tensors")
        if isinstance(leaf, PerReplica):
            raise TypeError(
                f"{function} returns the values of all replicas: return strategy.reduce(...) of them, or a list"
            )
        if hasattr(leaf, "_flow_parts"):
            raise TypeError(f"{function} returns a {type(leaf).__name__}: return its tensor, stack()")
        return leaf

    return _mapped(results, one)


def fetches(results: Any) -> list[Any]:
    """The leaves of a function's results that a session fetches, in order."""
    found: list[Any] = []
    _mapped(results, lambda leaf: found.append(leaf) if isinstance(leaf, FETCHED) else None)
    return found


def with_values(results: Any, values: Sequence[Any]) -> Any:
    """The results of a function, with fetched values in place of the leaves that `fetches` lists."""
    rest = iter(values)
    return _mapped(results, lambda leaf: next(rest) if isinstance(leaf, FETCHED) else leaf)


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """A structure with `change(leaf)` in place of each leaf. A dataclass counts as a structure of its fields."""

    def one(leaf: Any) -> Any:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, FETCHED) and not isinstance(leaf, type):
            fields = {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if f.init}
            return dataclasses.replace(leaf, **{name: _mapped(value, change) for name, value in fields.items()})
        return change(leaf)

    return nest.map_structure(one, structure)
