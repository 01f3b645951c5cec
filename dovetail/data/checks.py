"""Checks of the arguments of data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.core.build import convert, to_array
from ..graph.core.dtypes import as_dtype, int64, string, variant
from ..graph.core.graph import Tensor
from ..graph.core.shape import Dimension, Dims, TensorShape, as_dims, compatible
from ..graph.ops.array.concat_stack import stack
from .runtime_values import IntInput, static_int, static_value_or_tensor
from .spec import Component, Element, as_array, flatten, pack

AUTOTUNE = -1
"""A parameter value that lets the runtime choose a number for the machine."""


def positive(name: str, value: int) -> None:
    """Raises ValueError unless a size is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")


def at_least_one(name: str, number: IntInput) -> None:
    """Raises ValueError if a number is known and less than 1."""
    value = static_int(number)
    if value is not None:
        positive(name, value)


def need_tensors(components: Sequence[Component], what: str) -> None:
    """Raises TypeError if elements hold data sets, as those of `window` do."""
    if any(c.dtype is variant for c in components):
        raise TypeError(
            f"{what}: the elements hold data sets (windows), not tensors. Convert them to tensors with flat_map first"
        )


def dims_of_shape(shape: Any, late: list[Tensor], dims: Dims) -> Any:
    """Returns a padded shape: sizes, with None for the largest size in the batch.

    If only a step can compute the shape, returns "given" and appends the tensor to `late`.

    Args:
        shape: the user's argument.
        late: receives the tensor.
        dims: shape of the component.

    Raises:
        TypeError: the sizes are not integers.
        ValueError: the shape is not 1-D, or elements of shape `dims` do not fit.
    """
    found = _sizes(shape, late)
    rank = late[-1].dims if found == "given" else None
    check_padded(dims, found if rank is None or rank[0] is None else (None,) * rank[0])
    return found


def _sizes(shape: Any, late: list[Tensor]) -> Any:
    if isinstance(shape, TensorShape):
        return shape.dims_tuple
    if isinstance(shape, (list, tuple)):
        shape = [n.value if isinstance(n, Dimension) else n for n in shape]
        if not any(isinstance(n, Tensor) for n in shape):
            return _whole(shape, shape)
        shape = stack([convert(n, dtype=int64) if not isinstance(n, Tensor) else n for n in shape])
    if shape is None:
        return None
    found = static_value_or_tensor(shape)
    if isinstance(found, Tensor):
        if found.dtype.base is not int64 or (found.dims is not None and len(found.dims) != 1):
            raise TypeError(
                f"Padded shape {shape} must be a 1-D tensor of tf.int64 values, but its element type is {found.dtype.name}"
            )
        late.append(found)
        return "given"
    return _whole(shape, found)


def _whole(shape: Any, sizes: Any) -> Dims:
    if None not in sizes:
        array = np.asarray(sizes)
        if array.ndim != 1:
            raise ValueError(
                f"Padded shape {shape} must be a 1-D tensor of tf.int64 values, but its shape was {array.shape}."
            )
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(
                f"Padded shape {shape} must be a 1-D tensor of tf.int64 values, but its element type was {array.dtype}."
            )
    if any(n is not None and int(n) < -1 for n in sizes):
        raise ValueError(f"Padded shape {shape} must have sizes of at least 0, or -1")
    return tuple([None if n is None or int(n) == -1 else int(n) for n in sizes])


def check_padded(dims: Dims, padded: Any) -> None:
    """Raises ValueError if elements of shape `dims` cannot be padded to shape `padded`."""
    if dims is None or padded is None or padded == "given":
        return
    fits = len(dims) == len(padded) and all(n is None or m is None or n <= m for n, m in zip(dims, padded, strict=True))
    if not fits:
        raise ValueError(
            f"The padded shape {TensorShape(padded)} is not compatible with the corresponding input component shape {TensorShape(dims)}."
        )


def padding(value: Any, component: Component) -> Any:
    """Returns the padding value of a component. TypeError: its type differs. ValueError: it is not a scalar."""
    if value is None:
        return np.array(b"", object) if component.dtype is string else np.zeros((), component.dtype.np)
    found = static_value_or_tensor(value)
    if isinstance(found, Tensor):
        dtype, dims = found.dtype.base, found.dims
    else:
        if not isinstance(value, Tensor) and not isinstance(found, (np.ndarray, np.generic)):
            found = to_array(found, component.dtype)
        found = as_array(found)
        dtype, dims = as_dtype(found.dtype), found.shape
    if dims is not None and dims != ():
        raise ValueError(f"Padding value should be a scalar, but is not: {value!r}.")
    if dtype is not component.dtype:
        raise TypeError(f"Padding value tensor ({value!r}) does not match output type: {component.dtype.name}")
    return found


def shapes_for(shapes: Any, structure: Any) -> list[Any]:
    """Returns the shapes, flattened like `structure`. A shape may itself be a list or a tuple."""
    if isinstance(structure, tuple) and isinstance(shapes, tuple):
        if len(structure) != len(shapes):
            raise TypeError(f"The structures differ: there are {len(structure)} parts, but the shapes are {shapes}")
        return [s for part, inner in zip(shapes, structure, strict=True) for s in shapes_for(part, inner)]
    if isinstance(structure, dict) and isinstance(shapes, dict):
        return [s for key in sorted(structure) for s in shapes_for(shapes[key], structure[key])]
    return [shapes]


def element_spec(output_types: Any, output_shapes: Any = None) -> tuple[Any, list[Component]]:
    """Returns the structure and the components of elements, from their types and shapes; None: unknown shapes."""
    types = [as_dtype(t) for t in flatten(output_types)]
    structure = pack(output_types, [0] * len(types))
    shapes = (
        [None] * len(types) if output_shapes is None else [as_dims(s) for s in shapes_for(output_shapes, structure)]
    )
    if len(shapes) != len(types):
        raise TypeError(f"The structures differ: there are {len(types)} types, but the shapes are {output_shapes}")
    return structure, [Component(t, dims) for t, dims in zip(types, shapes, strict=True)]


def _parts(structure: Any, element: Any) -> list[Any]:
    """Flattens an element like `structure`. TypeError: its nesting or its keys differ."""
    if isinstance(structure, Mapping):
        if isinstance(element, Mapping) and set(element) == set(structure):
            return [part for key in sorted(structure) for part in _parts(structure[key], element[key])]
    elif isinstance(structure, tuple):
        if isinstance(element, (tuple, list)) and len(element) == len(structure):
            return [part for s, e in zip(structure, element, strict=True) for part in _parts(s, e)]
    else:
        return [element]
    components = len(flatten(structure))
    keys = f" with the keys {sorted(structure)}" if isinstance(structure, Mapping) else ""
    raise TypeError(f"`generator` yielded {element!r} where {components} components{keys} were expected")


def checked(element: Any, structure: Any, components: Sequence[Component]) -> Element:
    """Converts a generator's element to arrays. TypeError: it does not match `structure` and `components`."""
    values = _parts(structure, element)
    arrays = []
    for value, c in zip(values, components, strict=True):
        try:
            array = as_array(value, c.dtype)
        except (TypeError, ValueError, OverflowError) as e:
            raise TypeError(
                "`generator` yielded an element that could not be converted to the expected type. The expected type was "
                f"{c.dtype.name}, but the yielded element was {value!r}: {e}"
            ) from None
        if not compatible(array.shape, c.dims):
            raise TypeError(
                f"`generator` yielded an element of shape {array.shape} where an element of shape {TensorShape(c.dims)} was expected."
            )
        arrays.append(array)
    return arrays
