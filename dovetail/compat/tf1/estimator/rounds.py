"""Batches for replicas that each take one of their own, in rounds: the last round is filled up with batches of no rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....data.dataset import Dataset
from ....data.spec import Component, flatten, pack
from ....graph.core.graph import Tensor
from ....graph.core.nest import flatten as leaves
from ....graph.ops.array.shapes import shape
from ....graph.tensors.sparse_tensor import SparseTensorValue, is_sparse


def in_whole_rounds(dataset: Dataset, replicas: int) -> Dataset:
    """The batches of a dataset, and then as many of no rows as it takes to have one for each replica in the last round.

    So no batch is left over. Elements that are no batches, since a part of them is a scalar, stay as they are.
    """
    structure = dataset._structure
    if replicas == 1 or any(c.dims == () for c in dataset._components):
        return dataset

    components = _changed(structure, dataset._components, _any_rows, _any_elements)
    size = dataset._size
    if size is not None and size != float("inf"):
        size = -(-size // replicas) * replicas
    marks = _changed(structure, [False] * len(components), lambda part: part, lambda parts: (False, False, True))
    shapes = tuple([i for i, is_shape in enumerate(marks) if is_shape])
    return Dataset("in_whole_rounds", structure, components, (dataset,), size, replicas=replicas, shapes=shapes)


def rows_of(batch: Any) -> Tensor:
    """How many rows a batch has: a scalar of the graph."""
    first = next(leaf for leaf in leaves(batch) if isinstance(leaf, Tensor) or is_sparse(leaf))
    dims: Tensor = first.dense_shape if is_sparse(first) else shape(first)
    return dims[0]


def _changed(structure: Any, parts: Any, dense: Callable[[Any], Any], sparse: Callable[[Any], Any]) -> list[Any]:
    """Components with what functions make of those that are arrays, and of the three of a sparse tensor."""

    def change(item: Any) -> Any:
        if isinstance(item, SparseTensorValue):
            return sparse(item)
        if isinstance(item, tuple):
            return tuple(map(change, item))
        if isinstance(item, Mapping):
            return {key: change(value) for key, value in item.items()}
        return dense(item)

    return flatten(change(pack(structure, parts)))


def _any_rows(part: Component) -> Component:
    return part if part.dims is None else Component(part.dtype, (None, *part.dims[1:]))


def _any_elements(parts: SparseTensorValue) -> tuple[Component, ...]:
    return _any_rows(parts.indices), _any_rows(parts.values), parts.dense_shape
