"""What an element of a data set is made of: a nested structure, and a type and a shape for each component."""

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
    """Type and shape of one component."""

    dtype: DType
    dims: Dims


def flatten(structure: Any) -> list[Any]:
    """The components of nested tuples and dictionaries, in order; the keys of dictionaries are sorted. A sparse tensor has three."""
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
    """Coordinates of a sparse array that were given as a list."""
    if isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in leaves(value)):
        return convert(value, int64)
    return np.asarray(value, np.int64) if isinstance(value, (list, tuple, np.ndarray)) else value


def sparse_starts(structure: Any) -> tuple[int, ...]:
    """The numbers of the components with which sparse tensors begin; each has three."""
    marks: list[bool] = flatten(_marked(structure))
    return tuple([i for i, is_first in enumerate(marks) if is_first])


def _marked(item: Any) -> Any:
    if is_sparse(item):
        return (True, False, False)
    if isinstance(item, tuple):
        return tuple([_marked(part) for part in item])
    if isinstance(item, Mapping):
        return {key: _marked(part) for key, part in item.items()}
    return False


def pack(structure: Any, components: Sequence[Any]) -> Any:
    """The same structure with these components."""
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


def same_form(a: Any, b: Any) -> bool:
    """Whether two structures nest alike. Elements that are data sets must have the same components."""
    if isinstance(a, Structured) or isinstance(b, Structured):
        return (
            isinstance(a, Structured) and isinstance(b, Structured)
            and a._components == b._components and same_form(a._structure, b._structure)
        )  # fmt: skip
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return sorted(a) == sorted(b) and all(same_form(a[k], b[k]) for k in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_form, a, b))
    if is_sparse(a) or is_sparse(b):
        return True
    return not isinstance(a, (tuple, Mapping)) and not isinstance(b, (tuple, Mapping))


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """A value as an array of a graph's element types, by the rules of `to_array`; whole floats may become integers.

    Raises:
        TypeError: no type fits, or `dtype` cannot hold the value. ValueError: None, or lists of unequal lengths.
    """
    if dtype is None or dtype.np == np.dtype(object):
        return to_array(value, dtype)
    return to_array(np.asarray(value), dtype)


def component_of(array: Array) -> Component:
    """Type and shape of an array."""
    return Component(as_dtype(array.dtype), array.shape)


def text_element(text: bytes) -> Element:
    """An element of one text."""
    out = np.empty((), object)
    out[()] = text
    return [out]


class Structured:
    """What has elements of one structure: a data set, an iterator.

    Attributes:
        _structure: of an element. _components: of an element, its tensors in order.
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
        """`Tensor` in the structure of an element; a sparse tensor has three."""
        return pack(self._structure, [Tensor] * len(self._components))
