"""The structure of elements: nested tuples and dictionaries, and the type and shape of each component."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.core.build import convert, to_array
from ..graph.core.dtypes import DType, as_dtype, int64
from ..graph.core.graph import Tensor
from ..graph.core.nest import flatten as leaves
from ..graph.core.shape import Dims, TensorShape
from ..graph.tensors.sparse_tensor import SparseTensor, SparseTensorValue, is_sparse

Array = np.ndarray[Any, Any]
Element = Sequence[Array]
"""The arrays of one element, in the order of `flatten`."""


@dataclass(frozen=True, slots=True)
class Component:
    """The element type and static shape of one component."""

    dtype: DType
    dims: Dims


def flatten(structure: Any) -> list[Any]:
    """Returns the components of a structure, in order. Dictionaries are ordered by key. A sparse tensor has three components."""
    if isinstance(structure, SparseTensor):
        return list(structure._tensors())
    if isinstance(structure, SparseTensorValue):
        return [_whole(structure.indices), structure.values, _whole(structure.dense_shape)]
    if isinstance(structure, tuple):
        return [c for item in structure for c in flatten(item)]
    if isinstance(structure, Mapping):
        return [c for key in sorted(structure) for c in flatten(structure[key])]
    return [structure]


def _whole(value: Any) -> Any:
    """Converts the indices or the shape of a sparse array to int64, if they are a list or an array."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in leaves(value)):
        return convert(value, int64)
    return np.asarray(value, np.int64) if isinstance(value, (list, tuple, np.ndarray)) else value


def sparse_starts(structure: Any) -> tuple[int, ...]:
    """Returns the index of the first of the three components of each sparse tensor."""
    marks: list[bool] = flatten(_marked(structure))
    return tuple([i for i, is_first in enumerate(marks) if is_first])


def row_components(components: Sequence[Component], sparse: Sequence[int]) -> list[Component]:
    """Returns the components of one row of an element. `sparse`: the result of `sparse_starts`."""
    rows = [Component(c.dtype, None if c.dims is None else c.dims[1:]) for c in components]
    for i in sparse:
        sizes = components[i + 2].dims
        rank = None if sizes is None or sizes[0] is None else max(0, sizes[0] - 1)
        rows[i : i + 3] = sparse_components(components[i : i + 3], rank)
    return rows


def sparse_components(three: Sequence[Component], rank: int | None) -> list[Component]:
    """Returns the components of a sparse tensor (indices, values, dense shape) with another rank; None: unknown."""
    return [Component(c.dtype, dims) for c, dims in zip(three, ((None, rank), (None,), (rank,)), strict=True)]


def _marked(item: Any) -> Any:
    if is_sparse(item):
        return (True, False, False)
    if isinstance(item, tuple):
        return tuple([_marked(part) for part in item])
    if isinstance(item, Mapping):
        return {key: _marked(part) for key, part in item.items()}
    return False


def pack(structure: Any, components: Sequence[Any]) -> Any:
    """Returns `structure` with other components. Inverse of `flatten`."""
    left = iter(components)

    def build(item: Any) -> Any:
        if is_sparse(item):
            three = [next(left) for _ in SparseTensorValue._fields]
            return SparseTensor(*three) if isinstance(three[0], Tensor) else SparseTensorValue(*three)
        if isinstance(item, tuple):
            parts = [build(i) for i in item]
            return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
        if isinstance(item, Mapping):
            built = {key: build(item[key]) for key in sorted(item)}
            return {key: built[key] for key in item}
        return next(left)

    return build(structure)


def same_structure(a: Any, b: Any) -> bool:
    """Whether two structures have the same nesting. Elements that are data sets must have the same components."""
    if isinstance(a, Structured) or isinstance(b, Structured):
        return (
            isinstance(a, Structured) and isinstance(b, Structured)
            and a._components == b._components and same_structure(a._structure, b._structure)
        )  # fmt: skip
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sorted(a) == sorted(b) and all(same_structure(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_structure, a, b))
    if is_sparse(a) or is_sparse(b):
        return True
    return not isinstance(a, (tuple, Mapping)) and not isinstance(b, (tuple, Mapping))


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """Converts a value to an array by the rules of `to_array`. Floats with integer values may become integers.

    Raises:
        TypeError: no element type fits, or `dtype` cannot hold the value.
        ValueError: the value is None, or has lists of unequal lengths.
    """
    if dtype is None or dtype.np == np.dtype(object):
        return to_array(value, dtype)
    return to_array(np.asarray(value), dtype)


def component_of(array: Array) -> Component:
    """Returns the type and shape of an array."""
    return Component(as_dtype(array.dtype), array.shape)


def bytes_element(text: bytes) -> Element:
    """Returns an element with one component, a scalar string."""
    out = np.empty((), object)
    out[()] = text
    return [out]


class Structured:
    """Base of data sets and iterators, whose elements have one structure.

    Attributes:
        _structure: structure of an element.
        _components: types and shapes of an element, in the order of `flatten`.
    """

    _structure: Any
    _components: tuple[Component, ...]

    @property
    def output_types(self) -> Any:
        """Element types, in the structure of an element."""
        return pack(self._structure, [c.dtype for c in self._components])

    @property
    def output_shapes(self) -> Any:
        """Static shapes, in the structure of an element."""
        return pack(self._structure, [TensorShape(c.dims) for c in self._components])

    @property
    def output_classes(self) -> Any:
        """`Tensor` for each component, in the structure of an element."""
        return pack(self._structure, [Tensor] * len(self._components))
