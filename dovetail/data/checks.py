"""Checks of what a user hands to a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.dtypes import as_dtype
from ..graph.shape import TensorShape, as_dims, compatible
from .spec import Component, Element, as_array, flatten, pack

AUTOTUNE = -1
"""In place of a number: one that suits the machine."""


def positive(name: str, value: int) -> None:
    """ValueError unless a size is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def shapes_for(shapes: Any, structure: Any) -> list[Any]:
    """The shapes for a structure: a shape may itself be a list or a tuple."""
    if isinstance(structure, tuple) and isinstance(shapes, tuple):
        return [s for part, inner in zip(shapes, structure, strict=True) for s in shapes_for(part, inner)]
    if isinstance(structure, dict) and isinstance(shapes, dict):
        return [s for key in sorted(structure) for s in shapes_for(shapes[key], structure[key])]
    return [shapes]


def described(output_types: Any, output_shapes: Any = None) -> tuple[Any, list[Component]]:
    """A structure and its components, from their types and shapes; None: any shapes."""
    types = [as_dtype(t) for t in flatten(output_types)]
    structure = pack(output_types, [0] * len(types))
    shapes = (
        [None] * len(types) if output_shapes is None else [as_dims(s) for s in shapes_for(output_shapes, structure)]
    )
    return structure, [Component(t, dims) for t, dims in zip(types, shapes, strict=True)]


def checked(element: Any, structure: Any, components: Sequence[Component]) -> Element:
    """A generator's element as arrays; TypeError where it is not what was promised."""
    if isinstance(structure, tuple) and isinstance(element, list):
        element = tuple(element)
    values = flatten(element) if isinstance(structure, (tuple, dict)) else [element]
    if len(values) != len(components):
        raise TypeError(
            f"the generator gave {len(values)} components where {len(components)} are promised: {element!r}"
        )
    arrays = [as_array(v, c.dtype) for v, c in zip(values, components, strict=True)]
    for a, c in zip(arrays, components, strict=True):
        if not compatible(a.shape, c.dims):
            raise TypeError(f"the generator gave an array of shape {a.shape} where {TensorShape(c.dims)} is promised")
    return arrays
