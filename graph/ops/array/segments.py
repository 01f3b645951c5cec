"""Segment reductions: the sum, mean, product, maximum or minimum of the rows that have the same segment id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_value
from ...core.dtypes import NUMBERS, Array, as_dtype, int32, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.hooks import hooks
from ...core.opdef import Attrs, Output, define, set_gradient
from ...core.rows import LONG_ROW, sum_rows
from ...core.shape import Dims, compatible, text
from ...tensors.indexed_slices import IndexedSlices
from ..math.arithmetic import floormod, maximum, multiply, sqrt, subtract
from ..math.cast import cast
from ..math.common import allowed, input_cost
from ..math.compare import equal, greater_equal, logical_and, where_v2
from ..math.reduce import reduce_prod
from ..math.static_operands import (
    Index,
    apply_op,
    index_operand,
    need_index,
    need_rank_at_least,
    normal_axis,
    op_scope,
    static_int,
)
from .concat_stack import concat
from .creation import ones, ones_like, zeros_like
from .gather import check_indices, gather
from .ranges import range as range_
from .shapes import rank, reshape, shape, size, transpose
from .slicing import slice as slice_

# --- unsorted segment ids -----------------------------------------------------------------------------------


class _Combiner(NamedTuple):
    """How the rows of a segment are combined to one row."""

    ufunc: np.ufunc
    empty: Callable[[Any], Any]
    """Element type -> the value of a segment without rows."""


_COMBINERS = {
    "Sum": _Combiner(np.add, lambda dtype: 0),
    "Prod": _Combiner(np.multiply, lambda dtype: 1),
    "Max": _Combiner(np.maximum, lambda dtype: as_dtype(dtype).min),
    "Min": _Combiner(np.minimum, lambda dtype: as_dtype(dtype).max),
}


def combine_rows(data: Array, ids: Array, count: int, kind: str, empty: Any = None) -> Array:
    """The rows of each segment 0 to count - 1 combined to one row, in order. Rows with a negative id are ignored.

    Narrow floats are added in float32.

    Args:
        data: the rows, of shape `ids.shape + row shape`.
        ids: the segment of each row.
        count: number of segments.
        kind: a key of `_COMBINERS`.
        empty: the value of segments without rows. None means that of the combiner.
    """
    combiner = _COMBINERS[kind]
    inner = data.shape[ids.ndim :]
    rows, flat = data.reshape(ids.size, *inner), ids.ravel()
    if flat.size and flat.min() < 0:
        rows, flat = rows[flat >= 0], flat[flat >= 0]
    if flat.size and flat.max() >= count:
        check_indices(np.maximum(ids, 0), count, "segment_ids")
    if kind == "Sum":
        return sum_rows(rows, flat, count)
    out = np.full((count, *inner), combiner.empty(data.dtype) if empty is None else empty, data.dtype)
    if not rows.size:
        return out
    order = np.argsort(flat, kind="stable")
    sorted_ids = flat[order]
    starts = np.flatnonzero(np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]]))
    if rows[0].size < LONG_ROW:
        out[sorted_ids[starts]] = combiner.ufunc.reduceat(widened(rows[order]), starts, axis=0)
        return out
    total, in_order = widened(out), widened(rows[order])
    for number, some in zip(sorted_ids[starts].tolist(), np.split(in_order, starts[1:]), strict=True):
        combiner.ufunc.reduce(some, axis=0, out=total[number])
    return total.astype(data.dtype, copy=False)


def _unsorted_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, ids, count_input = inputs
    dtype = allowed(data.dtype.base, NUMBERS)
    need_index(ids, "segment_ids")
    need_index(count_input, "num_segments", 0)
    count = static_int(count_input)
    if count is not None and count < 0:
        raise ValueError(f"num_segments must not be negative: {count}")
    row = need_prefix(data.dims, ids.dims, "data", "segment_ids")
    return [(dtype, None if row is None else (count, *row))]


def need_prefix(dims: Dims, prefix: Dims, what: str, of: str) -> Dims:
    """The sizes of `dims` after those of `prefix`, None if unknown. ValueError unless `dims`, the shape of `what`, begins with `prefix`."""
    if dims is None or prefix is None:
        return None
    if not compatible(dims[: len(prefix)], prefix):
        raise ValueError(f"the shape of {what}, {text(dims)}, must begin with that of {of}, {text(prefix)}")
    return dims[len(prefix) :]


def check_prefix(data: Array, ids: Array) -> None:
    """InvalidArgumentError unless the shape of `data` begins with that of `ids`."""
    if data.shape[: ids.ndim] != ids.shape:
        raise invalid(f"The shape of data, {text(data.shape)}, must begin with that of segment_ids, {text(ids.shape)}")


def _unsorted_reference(kind: str, data: Array, ids: Array, count: Array) -> Array:
    check_prefix(data, ids)
    return combine_rows(data, ids, int(count), kind)


def _with_trailing_ones(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor with trailing dimensions of size 1, so that it has the rank of `like`."""
    if tensor.dims is not None and like.dims is not None:
        tail: Any = np.ones(len(like.dims) - len(tensor.dims), np.int32)
        if not tail.size:
            return tensor
    else:
        tail = ones(reshape(rank(like) - rank(tensor), [1]), int32)
    return reshape(tensor, concat([shape(tensor), tail], 0))


def _gather_kept(rows: Tensor, ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """`rows[ids]` with zeros where an id is negative, and a mask of the ids that are not, with the rank of `like`."""
    picked = gather(rows, maximum(ids, 0))
    kept = _with_trailing_ones(greater_equal(ids, 0), like)
    return where_v2(kept, picked, zeros_like(picked)), kept


def _unsorted_sum_gradient(node: Node, grad: Any) -> Sequence[Any]:
    data, ids, _ = node.inputs
    return [_gather_kept(convert(grad), ids, data)[0], None, None]


def _unsorted_extreme_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Elements that equal their segment's maximum (or minimum) share its gradient.
    data, ids, count = node.inputs
    extremes, kept = _gather_kept(node.outputs[0], ids, data)
    hits = logical_and(equal(data, extremes), kept)
    ties = unsorted_segment_sum(cast(hits, grad.dtype.base), ids, count)
    shared, _ = _gather_kept(grad / ties, ids, data)
    return [where_v2(hits, shared, zeros_like(shared)), None, None]


def _product_gradient(node: Node, grad: Any) -> Sequence[Any]:
    """For sorted and unsorted ids. The derivative is the product of the segment's other elements, which is 0 if one of them is 0."""
    data, ids, *count = node.inputs
    is_zero = equal(data, 0)
    rest = where_v2(is_zero, 1, data)
    products = apply(node.type, (rest, ids, *count))
    zeros = apply(node.type.replace("Prod", "Sum"), (cast(is_zero, int32), ids, *count))
    other_zeros = subtract(_gather_kept(zeros, ids, data)[0], cast(is_zero, int32))
    factors = _gather_kept(multiply(convert(grad), products), ids, data)[0] / rest
    return [where_v2(equal(other_zeros, 0), factors, 0), *[None] * (1 + len(count))]


def _define(prefix: str, rule: Any, reference: Any, **gradients: Any) -> None:
    """Define one op per kind, `<prefix><kind>`."""
    for kind, gradient in gradients.items():
        define(f"{prefix}{kind}", rule, partial(reference, kind), gradient=gradient, cost=input_cost(1.0))


_define(
    "UnsortedSegment", _unsorted_rule, _unsorted_reference, Sum=_unsorted_sum_gradient, Max=_unsorted_extreme_gradient,
    Min=_unsorted_extreme_gradient, Prod=_product_gradient,
)  # fmt: skip


def _unsorted(op: str, data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None) -> Tensor:
    return apply_op(op, name, data=data, segment_ids=Index(segment_ids), num_segments=Index(num_segments))


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The sum of the rows of each segment. Segments without rows are 0.

    Args:
        data: numbers, of shape `segment_ids.shape + row shape`.
        segment_ids: the segment of each row, int32 or int64 below `num_segments`, in any order. Rows with a negative id are ignored.
        num_segments: number of segments, the rows of the result.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, an id is not below `num_segments`.

    >>> unsorted_segment_sum([1, 2, 3], [1, 0, 1], 2)   # evaluates to [2, 4]
    """
    return _unsorted("UnsortedSegmentSum", data, segment_ids, num_segments, name)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The maximum over the rows of each segment. Segments without rows have the type's least value. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentMax", data, segment_ids, num_segments, name)


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The minimum over the rows of each segment. Segments without rows have the type's greatest value. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentMin", data, segment_ids, num_segments, name)


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The product of the rows of each segment. Segments without rows are 1. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentProd", data, segment_ids, num_segments, name)


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The mean of the rows of each segment. Segments without rows are 0. See `unsorted_segment_sum`."""
    with op_scope(name, "UnsortedSegmentMean", data, segment_ids, num_segments):
        total, counts = _sums_and_counts(data, segment_ids, num_segments)
        return total / counts


def unsorted_segment_sqrt_n(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """The sum of the rows of each segment divided by the square root of their number. See `unsorted_segment_sum`."""
    with op_scope(name, "UnsortedSegmentSqrtN", data, segment_ids, num_segments):
        total, counts = _sums_and_counts(data, segment_ids, num_segments)
        return total / sqrt(counts)


def _sums_and_counts(data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike) -> tuple[Tensor, Tensor]:
    """The sum of the rows of each segment, and max(number of rows, 1), which broadcasts against it."""
    rows, ids = convert(data, name="data"), index_operand(segment_ids, "segment_ids")
    total = unsorted_segment_sum(rows, ids, num_segments)
    counts = maximum(unsorted_segment_sum(ones_like(ids, rows.dtype.base), ids, num_segments), 1)
    return total, _with_trailing_ones(counts, total)


# --- sorted segment ids ---------------------------------------------------------------------------------------
# The number of segments is the last id plus 1. Segments without rows are 0.


def _segment_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, ids = inputs
    dtype = allowed(data.dtype.base, NUMBERS)
    need_index(ids, "segment_ids", 1)
    need_rank_at_least(data.dims, 1, "data")
    if data.dims is None:
        return [(dtype, None)]
    if ids.dims is not None and not compatible(data.dims[:1], ids.dims):
        raise ValueError(f"data has {data.dims[0]} rows, segment_ids {ids.dims[0]} ids")
    known = static_value(ids)
    count = int(known[-1]) + 1 if known is not None and len(known) else None
    return [(dtype, (count, *data.dims[1:]))]


def _segment_reference(kind: str, data: Array, ids: Array) -> Array:
    check_prefix(data, ids)
    if ids.size and (ids[0] < 0 or (np.diff(ids) < 0).any()):
        raise invalid(f"segment_ids must be sorted and not negative: {ids.tolist()[:20]}")
    count = int(ids[-1]) + 1 if ids.size else 0
    if kind != "Mean":
        return combine_rows(data, ids, count, kind, empty=1 if kind == "Prod" else 0)
    total = combine_rows(data, ids, count, "Sum")
    kind = data.dtype.kind
    sizes = np.maximum(np.bincount(ids, minlength=count), 1).reshape(-1, *[1] * (data.ndim - 1))
    sizes = sizes.astype({"i": np.int64, "u": np.uint64}.get(kind, data.dtype))
    if kind in "iu":  # rounded towards zero, without the floating numbers that int64 does not fit in
        return np.asarray((total - np.fmod(total, sizes)) // sizes, data.dtype)
    return np.asarray(total / sizes, data.dtype)


def _segment_mean_gradient(node: Node, grad: Any) -> Sequence[Any]:
    grad = convert(grad)
    ids = node.inputs[1]
    counts = maximum(segment_sum(ones_like(ids, grad.dtype.base), ids), 1)
    return [gather(grad / _with_trailing_ones(counts, grad), ids), None]


def _segment_extreme_gradient(node: Node, grad: Any) -> Sequence[Any]:
    grad = convert(grad)
    data, ids = node.inputs
    hits = equal(data, gather(node.outputs[0], ids))
    ties = segment_sum(cast(hits, grad.dtype.base), ids)
    shared = gather(grad / ties, ids)
    return [where_v2(hits, shared, zeros_like(shared)), None]


_define(
    "Segment", _segment_rule, _segment_reference, Sum=lambda node, grad: [gather(grad, node.inputs[1]), None],
    Mean=_segment_mean_gradient, Max=_segment_extreme_gradient, Min=_segment_extreme_gradient, Prod=_product_gradient,
)  # fmt: skip


def _segment(op: str, data: TensorLike, segment_ids: TensorLike, name: str | None) -> Tensor:
    return apply_op(op, name, data=data, segment_ids=Index(segment_ids))


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The sum of the rows of each segment. Segments without rows are 0.

    Args:
        data: numbers, `[rows, ...]`.
        segment_ids: the segment of each row, a sorted vector of int32 or int64.
        name: name of the node.

    Returns:
        `[last id + 1, ...]`.

    Raises:
        InvalidArgumentError: in a step, the ids are negative or not sorted.
    """
    return _segment("SegmentSum", data, segment_ids, name)


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The mean of the rows of each segment. See `segment_sum`."""
    return _segment("SegmentMean", data, segment_ids, name)


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The maximum over the rows of each segment. See `segment_sum`."""
    return _segment("SegmentMax", data, segment_ids, name)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The minimum over the rows of each segment. See `segment_sum`."""
    return _segment("SegmentMin", data, segment_ids, name)


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """The product of the rows of each segment. See `segment_sum`."""
    return _segment("SegmentProd", data, segment_ids, name)


# --- the gradient of GatherV2 is a segment sum ----------------------------------------------------------------


def _gather_gradient(node: Node, grad: Any) -> Sequence[Any]:
    params, indices, axis_input = node.inputs
    grad = convert(grad)
    axis = static_int(axis_input)
    batch = node.attrs["batch_dims"]
    with node.graph.colocate_with(params):
        whole = shape(params, out_type=indices.dtype.base)
    if axis == 0 and not batch:
        count = reshape(size(indices), [1])
        tail = slice_(shape(params), [1], [-1])
        rows = reshape(grad, concat([count, tail], 0))
        return [IndexedSlices(rows, reshape(indices, count), whole), None, None]
    if params.dims is None or indices.dims is None or axis is None:
        if batch:
            raise ValueError(
                f"The gradient of gather '{node.name}' with batch_dims needs to know the axis and the ranks of {params!r} "
                f"and {indices!r}; use set_shape"
            )
        return [_gather_gradient_of_any_rank(params, indices, whole, axis_input, grad), None, None]
    at = normal_axis(axis, len(params.dims))
    if batch < 0:
        batch += len(indices.dims)
    return [_dense_gather_gradient(params, indices, whole, at, batch, grad), None, None]


def _dense_gather_gradient(
    params: Tensor, indices: Tensor, whole: Tensor, axis: int, batch: int, grad: Tensor
) -> Tensor:
    """The dense gradient along any axis: transpose the gathered dimensions to the front, sum by index, and transpose back."""
    assert params.dims is not None and indices.dims is not None
    rank, picked = len(params.dims), len(indices.dims) - batch
    # grad is [batches, between, picked..., after]
    batches = list(range(batch))
    between = list(range(batch, axis))
    at = list(range(axis, axis + picked))
    after = list(range(axis + picked, rank + picked - 1))
    front = transpose(grad, [*batches, *at, *between, *after])
    length = whole[axis]
    ids = indices
    segments = length
    if batch:
        # Batch b's index i becomes segment b * length + i.
        count = reduce_prod(whole[:batch])
        offsets = range_(count) * length
        sizes = shape(indices, out_type=indices.dtype.base)
        ids = reshape(indices, concat([[-1], sizes[batch:]], 0)) + reshape(offsets, [-1, *[1] * picked])
        segments = count * length
        flat = concat([[-1], shape(front, out_type=indices.dtype.base)[batch:]], 0)
        front = reshape(front, flat)
    summed = unsorted_segment_sum(front, ids, segments)
    order = [*batches, axis, *between, *range(axis + 1, rank)]
    restored = reshape(summed, gather(whole, order))
    back = [order.index(i) for i in range(rank)]
    return transpose(restored, back)


def _gather_gradient_of_any_rank(params: Tensor, indices: Tensor, whole: Tensor, axis: Tensor, grad: Tensor) -> Tensor:
    """`_dense_gather_gradient` without batches, for ranks or an axis that only the step knows."""
    at = floormod(cast(reshape(axis, []), int32), rank(params))
    end = at + rank(indices)
    front = transpose(grad, concat([range_(at, end), range_(at), range_(end, rank(grad))], 0))
    summed = unsorted_segment_sum(front, indices, gather(whole, at))
    made = transpose(summed, concat([range_(1, at + 1), [0], range_(at + 1, rank(params))], 0))
    made.set_shape(params.dims)
    return made


set_gradient("GatherV2", _gather_gradient)


hooks.sum_rows = unsorted_segment_sum
