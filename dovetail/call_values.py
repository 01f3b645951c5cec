"""What a call of a compiled function takes and returns: arguments become arrays to feed, what the function returns becomes fetches.

Arguments and results are structures: lists, tuples, named tuples and dicts. A leaf of the arguments is fed, or is a constant of the trace.
A leaf that is neither (an iterator, a tensor of a graph) is refused before anything is traced. A leaf of the results is fetched if it is
of the graph, and is a constant otherwise.
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
"""What a session fetches, once variables are read."""
TEXTS = (str, bytes)


# --- arguments ----------------------------------------------------------------------------------------------


def is_constant(leaf: Any) -> bool:
    """Whether an argument is a constant of the trace, and is not fed."""
    return leaf is None or isinstance(leaf, str | bytes | bool) or callable(leaf)


def constants_of(structure: Any, leaves: Sequence[Any]) -> tuple[Any, ...]:
    """What of the arguments is the same in all calls of a trace: the structure, and the leaves that are constants; hashable.

    Functions are in it themselves: another one may print alike, also at the address of one that is gone.
    """
    functions = [leaf for leaf in leaves if callable(leaf)]
    # A constant stands there as its text: as itself, the text "array" would be taken for an array.
    forms = ["function" if callable(leaf) else repr(leaf) if is_constant(leaf) else "array" for leaf in leaves]
    return repr(nest.pack_sequence_as(structure, forms)), *(f if f.__hash__ else f.__call__ for f in functions)


def as_array(leaf: Any) -> Array | None:
    """An argument as an array in this machine's byte order; Python's numbers become int32 and float32, as in `dt.constant`.

    None: it is nothing that can be fed.
    """
    if isinstance(leaf, int) and -(2**31) <= leaf < 2**31:
        return np.asarray(leaf, np.int32)
    if isinstance(leaf, float) and not isinstance(leaf, np.float64):  # NumPy's number is a float, too
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
    """The text of the TypeError for an argument that cannot be fed, with what to pass instead.

    Args:
        function, name: what the function and the argument are called.
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
    text += ", which is no array and no dict, list or tuple"
    if dataclasses.is_dataclass(leaf) or hasattr(type(leaf), "__attrs_attrs__"):
        return f"{text}: pass a dict or a named tuple of its fields"
    if isinstance(leaf, Iterable):
        return f"{text}: call {function} once for each batch, `for batch in batches: {function}(batch)`"
    return f"{text}: pass arrays, numbers, or structures of them. Texts, booleans, None and functions are constants of the trace"


def names_of(bound: inspect.BoundArguments) -> list[str]:
    """A name for each leaf of the arguments, made of the parameter's name and the keys that lead to the leaf: `batch_images`."""
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
    """What a function returned, with a new read of its value in place of each variable: after all changes that the function made.

    Raises:
        TypeError: a leaf holds tensors that no step can return, such as a set of them.
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
    """The leaves of what a function returned that a session fetches, in order."""
    found: list[Any] = []
    _mapped(results, lambda leaf: found.append(leaf) if isinstance(leaf, FETCHED) else None)
    return found


def with_values(results: Any, values: Sequence[Any]) -> Any:
    """What a function returned, with values in place of the leaves that `fetches` lists."""
    rest = iter(values)
    return _mapped(results, lambda leaf: next(rest) if isinstance(leaf, FETCHED) else leaf)


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """A structure with `change(leaf)` in place of each leaf. The fields of a dataclass are looked into."""

    def one(leaf: Any) -> Any:
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, FETCHED) and not isinstance(leaf, type):
            fields = {f.name: getattr(leaf, f.name) for f in dataclasses.fields(leaf) if f.init}
            return dataclasses.replace(leaf, **{name: _mapped(value, change) for name, value in fields.items()})
        return change(leaf)

    return nest.map_structure(one, structure)
