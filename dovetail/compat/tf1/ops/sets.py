"""Sets along the last axis: size, union, intersection, difference.

A row of a tensor, or of a sparse tensor, is a set: equal elements count once. TensorFlow: `tf.sets`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert, make
from ....graph.core.constant_value import static_dims
from ....graph.core.dtypes import Array, as_dtype, int8, int16, int32, int64, string, uint8, uint16
from ....graph.core.errors import invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define, typed_attr
from ....graph.core.shape import compatible, text
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.shapes import reshape, shape, size as size_
from ....graph.ops.math.common import allowed, same_type
from ....graph.ops.math.static_operands import dims_of, op_scope, write_cost
from ....graph.ops.sparse.arrange import unravel_indices
from ....graph.tensors.sparse_tensor import SparseTensor, is_sparse

_ELEMENTS = (int8, int16, int32, int64, uint8, uint16, string)
_OPERATIONS: dict[str, Callable[[set[Any], set[Any]], set[Any]]] = {
    "a-b": set.difference,
    "intersection": set.intersection,
    "union": set.union,
}


def _checked(attrs: Attrs) -> None:
    typed_attr(attrs, "validate_indices", bool)


def _sets_of(indices: Array, values: Array, whole: Array, validate: bool) -> dict[tuple[int, ...], set[Any]]:
    """The sets by the coordinates of their rows. InvalidArgumentError: coordinates outside, or out of order."""
    rank = len(whole)
    if rank < 2 or indices.shape[1] != rank:
        raise invalid(
            f"Sets are rows of at least two axes, not of shape {whole.tolist()} with indices {list(indices.shape)}"
        )
    if validate:
        if ((indices < 0) | (indices >= whole)).any():
            raise invalid(f"Sparse index is out of bounds for shape {whole.tolist()}")
        for before, after in zip(indices[:-1].tolist(), indices[1:].tolist(), strict=True):
            if before >= after:
                raise invalid(f"Sparse index {after} is out of order or repeated (see sparse_reorder)")
    found: dict[tuple[int, ...], set[Any]] = {}
    for at, value in zip(indices[:, :-1].tolist(), values.tolist(), strict=True):
        found.setdefault(tuple(at), set()).add(value)
    return found


# --- size -------------------------------------------------------------------------------------------------------------


def _size_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _, values, whole = inputs
    allowed(values.dtype.base, _ELEMENTS)
    _checked(attrs)
    dims = static_dims(whole)
    return [(int32, None if dims is None else dims[:-1])]


def _set_size(indices: Array, values: Array, whole: Array, *, validate_indices: bool) -> Array:
    out = np.zeros(dims_of(whole[:-1]), np.int32)
    for at, found in _sets_of(indices, values, whole, validate_indices).items():
        out[at] = len(found)
    return out


define("SetSize", _size_rule, _set_size, cost=write_cost, device_types=("CPU",))


def set_size(a: SparseTensor, validate_indices: bool = True) -> Tensor:
    """How many different elements each row has.

    Args:
        a: a sparse tensor `[d1, ..., dn]` of whole numbers or text.
        validate_indices: refuse coordinates out of order.

    Returns:
        int32 `[d1, ..., dn-1]`.
    """
    sets = convert_to_tensor_or_sparse_tensor(a, name="a")
    if not isinstance(sets, SparseTensor):
        raise TypeError(f"Expected SparseTensor, got {a!r}.")
    return apply("SetSize", sets._tensors(), {"validate_indices": bool(validate_indices)})


# --- two sets ---------------------------------------------------------------------------------------------------------


def _operation_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    a, b = inputs[:3], inputs[3:]
    dtype = allowed(same_type((a[1], b[1])), _ELEMENTS)
    _checked(attrs)
    if attrs.get("set_operation") not in _OPERATIONS:
        raise ValueError(f"set_operation must be one of {', '.join(_OPERATIONS)}, not {attrs.get('set_operation')!r}")
    wholes = [static_dims(t[2]) for t in (a, b)]
    known = [w for w in wholes if w is not None]
    if any(len(w) < 2 for w in known):
        raise ValueError(f"sets are rows of at least two axes, not of shape {text(known[0])}")
    if len(known) == 2 and not compatible(known[0][:-1], known[1][:-1]):
        raise ValueError(f"the rows of {text(known[0])} and {text(known[1])} do not match")
    rank = len(known[0]) if known else None
    return [(int64, (None, rank)), (dtype, (None,)), (int64, (rank,))]


def _set_operation(*parts: Array, set_operation: str, validate_indices: bool) -> tuple[Array, Array, Array]:
    whole, other = parts[2], parts[5]
    if whole[:-1].tolist() != other[:-1].tolist():
        raise invalid(f"The rows of sets of shapes {whole.tolist()} and {other.tolist()} do not match")
    a, b = (_sets_of(parts[i], parts[i + 1], parts[i + 2], validate_indices) for i in (0, 3))
    combine = _OPERATIONS[set_operation]

    def rows() -> Iterator[tuple[tuple[int, ...], list[Any]]]:
        for at in sorted({*a, *b}):
            yield at, sorted(combine(a.get(at, set()), b.get(at, set())))

    found = list(rows())
    indices = [(*at, i) for at, row in found for i in range(len(row))]
    values = np.empty(len(indices), parts[1].dtype)
    values[:] = [v for _, row in found for v in row]
    largest = max((len(row) for _, row in found), default=0)
    shape_of = np.array([*whole[:-1], largest], np.int64)
    return np.array(indices, np.int64).reshape(len(indices), len(whole)), values, shape_of


define("SetOperation", _operation_rule, _set_operation, cost=write_cost, device_types=("CPU",))


def convert_to_tensor_or_sparse_tensor(value: Any, dtype: Any = None, name: str | None = None) -> Tensor | SparseTensor:
    """A `SparseTensor` for one, or for a `SparseTensorValue`; a tensor for anything else.

    Raises:
        RuntimeError: a sparse one has another element type than asked for.
    """
    if not is_sparse(value):
        return convert(value, dtype, name)
    sparse = SparseTensor.from_value(value)
    if dtype is not None and as_dtype(dtype).base is not sparse.dtype.base:
        raise RuntimeError(f"Sparse dtype: requested = {as_dtype(dtype).name}, actual = {sparse.dtype.name}")
    return sparse


def _elements(value: Any, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Indices, elements and shape of a sparse tensor, or of all that a dense one has."""
    given = convert_to_tensor_or_sparse_tensor(value, name=name)
    if given.dtype.base not in _ELEMENTS:
        raise TypeError(
            f"'{name}' invalid dtype {given.dtype.name}: sets are of {', '.join(t.name for t in _ELEMENTS)}"
        )
    if isinstance(given, SparseTensor):
        return given._tensors()
    whole = shape(given, out_type=int64)
    return unravel_indices(range_(size_(given, out_type=int64)), whole), reshape(given, [-1]), whole


def _combined(a: Any, b: Any, operation: str, validate_indices: bool) -> SparseTensor:
    with op_scope(None, "SetOperation", a, b) as scope:
        operands = (*_elements(a, "a"), *_elements(b, "b"))
        attrs = {"set_operation": operation, "validate_indices": bool(validate_indices)}
        return SparseTensor(*make("SetOperation", operands, attrs, scope).outputs)


def set_intersection(a: TensorLike, b: TensorLike, validate_indices: bool = True) -> SparseTensor:
    """What the sets of two tensors have in common, row by row.

    Args:
        a: tensors or sparse tensors of one type, whole numbers or text, with the same sizes but for the last axis.
        b: see `a`.
        validate_indices: refuse coordinates of sparse tensors that are out of order or bounds, in a step.

    Returns:
        a sparse tensor of rank n, whose rows hold the elements in order.

    >>> set_intersection([[1, 2, 3]], [[3, 1, 5]]).values   # evaluates to [1, 3]
    """
    return _combined(a, b, "intersection", validate_indices)


def set_difference(a: TensorLike, b: TensorLike, aminusb: bool = True, validate_indices: bool = True) -> SparseTensor:
    """What the sets of `a` have and those of `b` do not, row by row; without `aminusb` the other way round.

    Arguments and result as of `set_intersection`.
    """
    return _combined(*((a, b) if aminusb else (b, a)), "a-b", validate_indices)


def set_union(a: TensorLike, b: TensorLike, validate_indices: bool = True) -> SparseTensor:
    """What the sets of two tensors have together, row by row. Arguments and result as of `set_intersection`."""
    return _combined(a, b, "union", validate_indices)


explain_members(sys.modules[__name__])
difference, intersection, size, union = set_difference, set_intersection, set_size, set_union

__all__ = [
    "difference", "intersection", "set_difference", "set_intersection", "set_size", "set_union", "size", "union",
]  # fmt: skip
