"""Converts users' fetches and feeds to names, and the fetched values back to the users' structure.

A fetch is a tensor, a node, a name, a variable, or any nesting of lists, tuples, dicts, namedtuples, dataclasses and attrs classes of
those. The result has the same structure, with None for a node, an `IndexedSlicesValue` for `IndexedSlices`, and a `SparseTensorValue`
for a `SparseTensor`. A feed is a dict from tensors (or names, variables' values) to values.
"""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...graph.core.build import to_array
from ...graph.core.constant_value import static_dims
from ...graph.core.dtypes import string
from ...graph.core.graph import Graph, Node, Tensor
from ...graph.core.shape import compatible, text
from ...graph.tensors.indexed_slices import IndexedSlices
from ...graph.tensors.sparse_tensor import SparseTensor

Values = Mapping[str, Any]
Rebuild = Callable[[Values], Any]


@dataclass(frozen=True, slots=True)
class Fetches:
    """The fetches of one `run`: tensors by name, nodes by name, and a function that builds the result."""

    tensors: tuple[str, ...]
    targets: tuple[str, ...]
    rebuild: Rebuild


def parse_fetches(graph: Graph, fetches: Any) -> Fetches:
    """Parse a user's fetches.

    Raises:
        TypeError: a fetch is no graph element. ValueError: an unknown name, an element of another graph, or one that may
            not be fetched.
    """
    tensors: dict[str, None] = {}
    targets: dict[str, None] = {}

    def several(inside: Iterable[Any], make: Callable[[list[Any]], Any]) -> Rebuild:
        parts = [one(f) for f in inside]
        return lambda v: make([p(v) for p in parts])

    def one(fetch: Any) -> Rebuild:
        if fetch is None:
            raise TypeError(
                "Fetch argument None has invalid type: fetch tensors, operations, names, or lists and dicts of those. "
                "dt.gradients gives None where nothing depends on x"
            )
        kind: Any = type(fetch)
        if isinstance(fetch, tuple) and hasattr(fetch, "_fields"):
            return several(fetch, lambda found: kind(*found))
        if isinstance(fetch, (list, tuple)):
            return several(fetch, kind)
        if isinstance(fetch, collections.abc.Mapping):
            keys = list(fetch)
            return several(fetch.values(), lambda found: kind(zip(keys, found, strict=True)))
        if isinstance(fetch, (IndexedSlices, SparseTensor)):
            made: Any = fetch._value
            return several(fetch._tensors(), lambda found: made(*found))
        if dataclasses.is_dataclass(fetch) and not isinstance(fetch, type) and not hasattr(fetch, "_as_graph_element"):
            names = [f.name for f in dataclasses.fields(fetch) if f.init]
            inside = [getattr(fetch, name) for name in names]
            return several(inside, lambda found: dataclasses.replace(fetch, **dict(zip(names, found, strict=True))))
        if hasattr(kind, "__attrs_attrs__"):  # of the package `attrs`
            attrs = [a for a in kind.__attrs_attrs__ if a.init]
            names = [getattr(a, "alias", None) or a.name.lstrip("_") for a in attrs]
            inside = [getattr(fetch, a.name) for a in attrs]
            return several(inside, lambda found: kind(**dict(zip(names, found, strict=True))))
        element = _element(graph, fetch, "fetch")
        if not graph.is_fetchable(element):
            raise ValueError(f"Operation '{element.name}' has been marked as not fetchable.")
        if isinstance(element, Node):
            targets[element.name] = None
            return lambda v: None
        name = element.name
        tensors[name] = None
        return lambda v: v[name]

    rebuild = one(fetches)
    return Fetches(tuple(tensors), tuple(targets), rebuild)


def _element(graph: Graph, obj: Any, what: str) -> Tensor | Node:
    try:
        return graph.as_graph_element(obj)
    except TypeError:
        raise TypeError(
            f"Fetch argument {obj!r} has invalid type {type(obj).__name__}, must be a Tensor, Operation, variable or name. "
            if what == "fetch"
            else f"Cannot interpret feed_dict key as Tensor: {obj!r} is a {type(obj).__name__}"
        ) from None
    except KeyError as e:
        raise ValueError(f"Cannot interpret {what} {obj!r}: {e.args[0]}") from None
    except ValueError as e:
        raise ValueError(f"Cannot interpret {what} {obj!r}: {str(e).replace(repr(obj), 'it', 1)}") from None


def parse_feeds(graph: Graph, feed_dict: Mapping[Any, Any] | None) -> dict[str, Any]:
    """The values fed, by tensor name, as arrays of the tensors' types.

    Raises:
        TypeError: a key is no tensor, or a value is a tensor.
        ValueError: a value has the wrong shape; a key is of another graph.
    """
    if not feed_dict:
        return {}
    if not isinstance(feed_dict, collections.abc.Mapping):
        raise TypeError(f"feed_dict must be a dict from tensors to values, not {type(feed_dict).__name__}")
    out: dict[str, Any] = {}
    for key, value in feed_dict.items():
        if isinstance(key, IndexedSlices):
            pairs: Sequence[tuple[Any, Any]] = _fed_rows(key, value)
        elif isinstance(key, SparseTensor):
            pairs = _fed_elements(key, value)
        elif isinstance(key, tuple):
            pairs = list(_leaves(key, value))
        else:
            pairs = [(key, value)]
        for k, v in pairs:
            known = isinstance(key, Tensor) and key.op.graph is graph and graph.is_feedable(key)
            tensor = key if known else fed_tensor(graph, k)
            out[tensor.name] = feed_value(tensor, v)
    return out


def _leaves(key: tuple[Any, ...], value: Any) -> Iterator[tuple[Any, Any]]:
    """The pairs of a tuple of keys, which may hold tuples, and its values."""
    for k, v in zip(key, value, strict=True):
        if isinstance(k, tuple):
            yield from _leaves(k, v)
        else:
            yield k, v


def _fed_rows(key: IndexedSlices, value: Any) -> list[tuple[Any, Any]]:
    """Values and indices, and the dense shape if the graph has one and a value for it is given."""
    given = tuple(value)
    if len(given) not in (2, 3):
        raise ValueError(
            f"IndexedSlices are fed with (values, indices) or (values, indices, dense_shape), not {len(given)} values"
        )
    if key.dense_shape is None or len(given) == 2 or given[2] is None:
        return [(key.values, given[0]), (key.indices, given[1])]
    return [(key.values, given[0]), (key.indices, given[1]), (key.dense_shape, given[2])]


def _fed_elements(key: SparseTensor, value: Any) -> list[tuple[Any, Any]]:
    given = tuple(value) if isinstance(value, (tuple, list)) else ()
    if len(given) == 2 and (dims := static_dims(key.dense_shape)) is not None and None not in dims:
        given = (*given, dims)
    if len(given) != 3:
        raise ValueError(
            f"A SparseTensor is fed with a SparseTensorValue or (indices, values, dense_shape), not {value!r}"
        )
    # The values stay as they are: an array of NumPy's own text type would lose bytes of 0 at the ends.
    indices, values, dense_shape = given
    if not isinstance(indices, Tensor) and not np.size(indices):
        indices = np.zeros((0, np.size(dense_shape)), np.int64)  # an empty list has no second axis
    return list(zip(key._tensors(), (indices, values, dense_shape), strict=True))


def fed_tensor(graph: Graph, key: Any) -> Tensor:
    """The tensor that a key of `feed_dict` stands for. Raises as `parse_feeds`."""
    element = _element(graph, key, "feed_dict key") if key is not None else None
    if not isinstance(element, Tensor):
        hint = ""
        if isinstance(element, Node) and element.outputs:
            hint = f", it is a node; its output is {element.outputs[0].name!r}"
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {key!r} is not a tensor{hint}")
    if not graph.is_feedable(element):
        raise ValueError(f"Tensor {element.name} may not be fed.")
    return element


def feed_value(tensor: Tensor, value: Any) -> Any:
    """One fed value as an array of the tensor's type; an array of the right type is not copied."""
    if isinstance(value, Tensor):
        raise TypeError(
            f"The value of a feed cannot be a Tensor ({value!r} for {tensor.name}): feed arrays, numbers or lists; to connect tensors, "
            "build the graph with them"
        )
    dtype = tensor.dtype.base
    if isinstance(value, np.ndarray) and value.dtype == dtype.np and dtype is not string:
        array = value
    elif type(value) is float and dtype.is_floating:
        array = np.array(value, dtype.np)
    else:
        try:
            own = isinstance(value, (np.ndarray, np.generic)) and (dtype is string or value.dtype.kind not in "biufcO")
            array = np.asarray(to_array(value, None if own else dtype))
        except (TypeError, ValueError) as e:
            raise type(e)(f"Cannot feed Tensor '{tensor.name}' (created at {tensor.op.source}): {e}") from None
        if array.dtype != dtype.np:
            if (array.dtype == object) != (dtype is string) and array.size:
                raise TypeError(
                    f"Cannot feed a value of type {array.dtype} for Tensor '{tensor.name}' of type {dtype.name} (created at "
                    f"{tensor.op.source})"
                )
            array = array.astype(dtype.np)
    if not compatible(array.shape, tensor.dims):
        advice = ". One row is value[None]" if compatible((1, *array.shape), tensor.dims) else ""
        raise ValueError(
            f"Cannot feed value of shape {text(array.shape)} for Tensor '{tensor.name}', which has shape "
            f"{text(tensor.dims)} (created at {tensor.op.source}){advice}"
        )
    return array


def given_back(values: Mapping[str, Any], held: Collection[Any]) -> dict[str, Any]:
    """Fetched values in the form for the user: NumPy scalars for rank 0, bytes for scalar strings, else arrays that the user owns.

    What has another holder is copied, so that a change of one array does not change another: a read-only array (shared with a variable, a
    constant, a message), one in the memory of an array of `held` (the feeds), and one in that of an earlier fetched value.
    """
    parts: dict[int, list[Any]] | None = None  # the arrays in the memory of each array that has some of its own
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            if value.ndim == 0:
                value = value[()]
            elif not value.flags.writeable:
                value = value.copy()
            elif len(values) > 1 or value.base is not None or id(value) in map(id, held):
                if parts is None:
                    parts = {}
                    for array in held:
                        if isinstance(array, np.ndarray):
                            parts.setdefault(_owner(array), []).append(array)
                others = parts.setdefault(_owner(value), [])
                if others and any(np.may_share_memory(value, other) for other in others):
                    value = value.copy()
                else:
                    others.append(value)
        found[name] = value
    return found


def _owner(array: Any) -> int:
    """Identifies the object whose memory an array is a view of."""
    while getattr(array, "base", None) is not None:  # the base of what `as_strided` makes is no array, but has a base
        array = array.base
    return id(array)
