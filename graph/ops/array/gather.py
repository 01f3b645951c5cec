"""Selection by index: gather, gather_nd, one_hot, reverse.

The gradient of a gather is a scatter-add. The gradient of a gather along the first axis is `IndexedSlices`, which hold only the gathered
rows. So the cost of a step with a large embedding table depends on the batch and not on the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, to_array
from ...core.dtypes import INTEGERS, Array, DType, as_dtype, float32
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import Dims, compatible, merge, text
from ..math.common import allowed, same_type
from ..math.static_operands import (
    Index,
    apply_op,
    dims_of,
    index_operand,
    move_cost,
    need_index,
    need_rank,
    need_rank_at_least,
    normal_axis,
    op_scope,
    pick_cost,
    static_int,
    static_ints,
    write_cost,
)
from .concat_stack import concat
from .ranges import range as range_
from .shapes import broadcast_to, reshape, shape

# --- gather -------------------------------------------------------------------------------------------------


def check_indices(indices: Array, limit: int, name: str = "indices") -> None:
    """InvalidArgumentError unless all indices are in [0, limit). The error names the first that is not."""
    wrong = (indices < 0) | (indices >= limit)
    if wrong.any():
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise invalid(f"{name}{at or ''} = {int(indices[tuple(at)])} is not in [0, {limit})")


def _gather_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    params, indices, axis_input = inputs
    need_index(indices, "indices")
    need_index(axis_input, "axis")
    need_rank_at_least(params.dims, 1, "params")
    batch = typed_attr(attrs, "batch_dims", int)
    axis = static_int(axis_input)
    if params.dims is None or indices.dims is None:
        return [(params.dtype.base, None)]
    if not -len(indices.dims) <= batch <= len(indices.dims):
        raise ValueError(f"batch_dims {batch} exceeds the rank {len(indices.dims)} of indices")
    if batch < 0:
        batch += len(indices.dims)
    if axis is None:
        return [(params.dtype.base, (None,) * (len(params.dims) + len(indices.dims) - batch - 1))]
    at = normal_axis(axis, len(params.dims))
    if batch > at:
        raise ValueError(f"batch_dims {batch} must not exceed axis {at}")
    if not compatible(params.dims[:batch], indices.dims[:batch]):
        raise ValueError(
            f"the first {batch} sizes are batches and must agree: {text(params.dims)} against {text(indices.dims)}"
        )
    batches = merge(params.dims[:batch], indices.dims[:batch]) or ()
    return [(params.dtype.base, (*batches, *params.dims[batch:at], *indices.dims[batch:], *params.dims[at + 1 :]))]


def _gather(params: Array, indices: Array, axis: Array, *, batch_dims: int) -> Array:
    at = normal_axis(int(np.reshape(axis, ())), params.ndim)
    batch = batch_dims + indices.ndim if batch_dims < 0 else batch_dims
    check_indices(indices, params.shape[at])
    if batch == 0:
        return np.asarray(np.take(params, indices, at), params.dtype)  # np.take of one string does not return an array
    if params.shape[:batch] != indices.shape[:batch]:  # NumPy would broadcast, or ignore the last batches
        raise invalid(
            f"The first {batch} sizes of params {text(params.shape)} and indices {text(indices.shape)} differ"
        )
    # One open grid per batch dimension pairs each batch's indices with its own params.
    front = np.moveaxis(params, at, batch)
    grid = np.ogrid[tuple(slice(d) for d in indices.shape[:batch])]
    picked = front[(*(g.reshape(g.shape + (1,) * (indices.ndim - batch)) for g in grid), indices)]
    # Now [batches, indices, between, after]: move the picked dimensions after those between batches and axis.
    count = indices.ndim - batch
    return np.moveaxis(picked, range(batch, batch + count), range(at, at + count))


define("GatherV2", _gather_rule, _gather, cost=pick_cost)


def gather(
    params: TensorLike,
    indices: TensorLike,
    validate_indices: bool | None = None,
    name: str | None = None,
    axis: TensorLike = None,
    batch_dims: int | None = 0,
) -> Tensor:
    """Slices of `params` along an axis, selected by index.

    Args:
        params: a tensor of rank 1 or more. Of a resource variable only the selected rows are read if `axis` is 0.
        indices: int32 or int64 of any shape, each in [0, params.shape[axis]).
        validate_indices: accepted without effect. Indices are always checked.
        name: name of the node.
        axis: the axis of `params` that `indices` select from. None means `batch_dims`.
        batch_dims: the number of leading dimensions that are batches in both operands. None means all dimensions of `indices` but the last.

    Returns:
        Shape `params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1:]`.

    Raises:
        InvalidArgumentError: in a step, an index is out of range.

    >>> gather([10, 20, 30], [2, 0])   # evaluates to [30, 10]
    """
    if batch_dims is None:
        known = indices.dims if isinstance(indices, Tensor) else np.shape(indices)
        if known is None:
            raise ValueError("batch_dims=None needs to know the rank of indices; use set_shape")
        batch_dims = len(known) - 1
    if axis is None:
        axis = batch_dims
    sparse_read = getattr(params, "sparse_read", None)
    if sparse_read is not None and isinstance(axis, int) and axis == batch_dims == 0:
        found: Tensor = sparse_read(indices, name=name)
        return found
    attrs = {"batch_dims": int(batch_dims)}
    return apply_op("GatherV2", name, attrs, params=params, indices=Index(indices), axis=Index(axis))


def gather_densely(params: TensorLike, indices: TensorLike, axis: int = 0) -> Tensor:
    """`gather` whose gradient is a dense tensor and not `IndexedSlices`, for functions with a dense gradient in TensorFlow.

    Optimizers distinguish the two. They leave rows that `IndexedSlices` lack unchanged, but apply momentum to rows of zeros.
    """
    x = convert(params, name="params")
    # The gradient of the reshape takes a dense tensor, so the IndexedSlices become one.
    return gather(reshape(x, shape(x)) if axis == 0 else x, indices, axis=axis)


# --- gather by coordinates ----------------------------------------------------------------------------------


def coordinates_of(dims: Dims, indices: Tensor) -> tuple[int | None, Dims, Dims]:
    """(numbers per coordinate, shape of the array of coordinates, shape of the slice that one addresses), as far as known."""
    need_index(indices, "indices")
    need_rank_at_least(indices.dims, 1, "indices")
    if indices.dims is None:
        return None, None, None
    depth = indices.dims[-1]
    if depth is None or dims is None:
        return depth, indices.dims[:-1], None
    if depth > len(dims):
        raise ValueError(
            f"a coordinate of {depth} numbers cannot address a tensor of rank {len(dims)}, shape {text(dims)}"
        )
    return depth, indices.dims[:-1], dims[depth:]


def _gather_nd_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    params, indices = inputs
    _, outer, inner = coordinates_of(params.dims, indices)
    return [(params.dtype.base, None if outer is None or inner is None else outer + inner)]


def flat_places(dims: Sequence[int], indices: Array) -> tuple[Array, int, tuple[int, ...]]:
    """The slices of an array of shape `dims` that coordinates address: their numbers, how many there are, and their shape.

    InvalidArgumentError if a coordinate is out of bounds.
    """
    depth = indices.shape[-1]
    outer, inner = tuple(dims[:depth]), tuple(dims[depth:])
    count = math.prod(outer)
    if not depth or not indices.size:
        return np.zeros(indices.shape[:-1], np.intp), count, inner
    try:
        return np.ravel_multi_index(tuple(np.moveaxis(indices, -1, 0)), outer), count, inner
    except ValueError:
        wrong = ((indices < 0) | (indices >= np.array(outer, np.int64))).any(axis=-1)
        at = [int(i) for i in np.argwhere(wrong)[0]]
        raise invalid(
            f"indices{at or ''} = {indices[tuple(at)].tolist()} does not index into shape {text(tuple(dims))}"
        ) from None


def _gather_nd(params: Array, indices: Array) -> Array:
    if indices.shape[-1] == 0:
        return np.broadcast_to(params, (*indices.shape[:-1], *params.shape))
    places, count, inner = flat_places(params.shape, indices)
    if not places.size:
        return np.empty((*places.shape, *inner), params.dtype)
    return params.reshape(count, *inner).take(places, axis=0)


define("GatherNd", _gather_nd_rule, _gather_nd, cost=pick_cost)


def gather_nd(params: TensorLike, indices: TensorLike, name: str | None = None, batch_dims: int = 0) -> Tensor:
    """Elements or slices of `params`, selected by coordinates.

    Args:
        params: a tensor.
        indices: int32 or int64. The last dimension holds coordinates into the leading dimensions of `params`.
        name: name of the node.
        batch_dims: the number of leading dimensions that are batches in both operands.

    Returns:
        Shape `indices.shape[:-1] + params.shape[batch_dims + indices.shape[-1]:]`.

    >>> gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]])   # evaluates to [2, 3]
    """
    with op_scope(name, "GatherNd", params, indices) as scope:
        x, coordinates = convert(params, name="params"), index_operand(indices, "indices")
        if isinstance(batch_dims, Tensor) or batch_dims:
            known = static_int(batch_dims) if isinstance(batch_dims, Tensor) else batch_dims
            if known is None:
                raise ValueError(f"batch_dims must be known before the graph runs: {batch_dims!r}")
            coordinates = _with_batch_coordinates(coordinates, int(known))
        return apply("GatherNd", (x, coordinates), None, scope)


def _with_batch_coordinates(indices: Tensor, batch: int) -> Tensor:
    """Coordinates with those of their batch, their position in the leading dimensions, prepended."""
    if batch < 0 or (indices.dims is not None and batch >= len(indices.dims)):
        rank = "unknown" if indices.dims is None else len(indices.dims)
        raise ValueError(f"batch_dims {batch} must not be negative, and less than the rank {rank} of indices")
    sizes = shape(indices, out_type=indices.dtype.base)
    one_each = concat([sizes[:-1], [1]], 0)
    ones = 0 * one_each + 1
    grids = []
    for i in range(batch):
        steps = reshape(range_(sizes[i]), concat([ones[:i], [-1], ones[i + 1 :]], 0))
        grids.append(broadcast_to(steps, one_each))
    return concat([*grids, indices], -1)


# --- one_hot ------------------------------------------------------------------------------------------------


def _one_hot_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    indices, depth, on_value, off_value = inputs
    allowed(indices.dtype.base, INTEGERS)
    need_index(depth, "depth")
    for t, what in ((depth, "depth"), (on_value, "on_value"), (off_value, "off_value")):
        need_rank(t.dims, 0, what)
    dtype = same_type((on_value, off_value))
    axis = typed_attr(attrs, "axis", int)
    if indices.dims is None:
        return [(dtype, None)]
    count = static_int(depth)
    if count is not None and count < 0:
        raise ValueError(f"depth must not be negative: {count}")
    at = normal_axis(axis, len(indices.dims) + 1)
    return [(dtype, (*indices.dims[:at], count, *indices.dims[at:]))]


def _one_hot(indices: Array, depth: Array, on_value: Array, off_value: Array, *, axis: int) -> Array:
    if depth < 0:
        raise invalid(f"depth must not be negative: {int(depth)}")
    hot = np.expand_dims(indices, axis)
    at = normal_axis(axis, hot.ndim)
    classes = np.arange(int(depth)).reshape([-1 if i == at else 1 for i in range(hot.ndim)])
    return np.where(hot == classes, on_value, off_value)


define("OneHot", _one_hot_rule, _one_hot, cost=write_cost)


def one_hot(
    indices: TensorLike,
    depth: TensorLike,
    on_value: TensorLike = None,
    off_value: TensorLike = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """One-hot vectors: `on_value` at the index and `off_value` elsewhere, along a new dimension.

    Args:
        indices: integers. Those outside [0, depth) give a vector of `off_value`.
        depth: the size of the new dimension.
        on_value: the value at the index. None means 1.
        off_value: the value elsewhere. None means 0.
        axis: the position of the new dimension. None means the last.
        dtype: element type. None means that of `on_value` or `off_value`, or else float32.
        name: name of the node.

    >>> one_hot([0, 2], 3)   # evaluates to [[1, 0, 0], [0, 0, 1]]
    """
    with op_scope(name, "one_hot", indices, depth, on_value, off_value) as scope:
        like = as_dtype(dtype).base if dtype is not None else _first_type(on_value, off_value)
        for value, what in ((on_value, "on_value"), (off_value, "off_value")):
            if isinstance(value, (np.ndarray, np.generic)) and as_dtype(value.dtype) is not like:
                raise TypeError(
                    f"dtype {as_dtype(value.dtype).name} of {what} does not match dtype parameter {like.name}"
                )
        on = convert(np.ones((), like.np) if on_value is None else on_value, like)
        off = convert(np.zeros((), like.np) if off_value is None else off_value, like)
        operands = (index_operand(indices, "indices"), index_operand(depth, "depth"), on, off)
        return apply("OneHot", operands, {"axis": -1 if axis is None else int(axis)}, scope)


def _first_type(*values: TensorLike) -> DType:
    """The type of the first value that is not None. float32 if all are None."""
    given = next((v for v in values if v is not None), None)
    if given is None:
        return float32
    return given.dtype.base if isinstance(given, Tensor) else as_dtype(to_array(given).dtype)


# --- reverse ------------------------------------------------------------------------------------------------


def _reverse_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, axes = inputs
    need_index(axes, "axis", 1)
    known = static_ints(axes)
    if known is not None and x.dims is not None:
        normal = [normal_axis(a, len(x.dims)) for a in known]
        if len(set(normal)) != len(normal):
            raise ValueError(f"axis {known} names a dimension twice")
    return [(x.dtype.base, x.dims)]


define(
    "ReverseV2",
    _reverse_rule,
    lambda x, axes: np.flip(x, tuple(dims_of(axes))),
    gradient=lambda node, grad: [reverse(grad, node.inputs[1]), None],
    cost=move_cost,
)


def reverse(tensor: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """The elements in reverse order along each dimension in `axis`."""
    axes = axis if isinstance(axis, Tensor) else np.atleast_1d(np.asarray(axis))
    return apply_op("ReverseV2", name, tensor=tensor, axis=Index(axes))
