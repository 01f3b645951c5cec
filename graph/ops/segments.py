"""Rows that belong together: sums by segment, dealing rows out and collecting them again, masks, distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..build import TensorLike, apply, convert, make
from ..dtypes import NUMBERS, as_dtype, bool_, int32
from ..errors import InvalidArgumentError
from ..node import Node, Tensor
from ..opdef import Attrs, Cost, Output, define
from ..opdef import size as static_size
from ..shape import Dims, compatible, merge, text
from ..static_value import static_value
from .common import allowed, same_type
from .creation import ones, ones_like, zeros_like
from .gathering import gather
from .joining import concat, filled_grads
from .operands import (
    Array,
    index_operand,
    index_type_attr,
    int_attr,
    move_cost,
    need_index,
    need_rank,
    need_rank_at_least,
    normal_axis,
    op_scope,
    static_int,
)
from .shapes import rank, reshape, shape, squeeze

# --- sums by segment -----------------------------------------------------------------------------------------------


class _Combiner(NamedTuple):
    """How rows of one segment become one row."""

    ufunc: np.ufunc
    empty: Callable[[Any], Any]
    """What a segment without rows holds, for an element type."""


_COMBINERS = {
    "Sum": _Combiner(np.add, lambda dtype: 0),
    "Prod": _Combiner(np.multiply, lambda dtype: 1),
    "Max": _Combiner(np.maximum, lambda dtype: as_dtype(dtype).min),
    "Min": _Combiner(np.minimum, lambda dtype: as_dtype(dtype).max),
}


def combine_rows(data: Array, ids: Array, count: int, kind: str, empty: Any = None) -> Array:
    """Rows with one id combined, for ids 0 to count-1; rows with a negative id are left out.

    Equal ids are brought together by a stable sort, so that one `reduceat` does the work. Narrow floats add up in float32.
    """
    combiner = _COMBINERS[kind]
    inner = data.shape[ids.ndim :]
    rows = data.reshape(ids.size, *inner) if ids.ndim != 1 else data
    flat = ids.ravel()
    out = np.full((count, *inner), combiner.empty(data.dtype) if empty is None else empty, data.dtype)
    order = np.argsort(flat, kind="stable")
    order = order[np.searchsorted(flat, 0, sorter=order) :]
    if not order.size:
        return out
    sorted_ids = flat[order]
    if sorted_ids[-1] >= count:
        raise InvalidArgumentError(None, None, f"segment id {int(sorted_ids[-1])} is not in [0, {count})")
    starts = np.flatnonzero(np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]]))
    picked = rows[order]
    if as_dtype(data.dtype).is_floating and data.dtype.itemsize < 4:
        picked = picked.astype(np.float32)
    out[sorted_ids[starts]] = combiner.ufunc.reduceat(picked, starts, axis=0)
    return out


def _unsorted_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, ids, count_input = inputs
    dtype = allowed(data.dtype.base, NUMBERS)
    need_index(ids, "segment_ids")
    need_index(count_input, "num_segments")
    need_rank(count_input.dims, 0, "num_segments")
    count = static_int(count_input)
    if count is not None and count < 0:
        raise ValueError(f"num_segments must not be negative: {count}")
    if data.dims is None or ids.dims is None:
        return [(dtype, None)]
    if not compatible(data.dims[: len(ids.dims)], ids.dims):
        raise ValueError(f"the shape of data, {text(data.dims)}, must begin with that of segment_ids, {text(ids.dims)}")
    return [(dtype, (count, *data.dims[len(ids.dims) :]))]


def _check_prefix(data: Array, ids: Array) -> None:
    if data.shape[: ids.ndim] != ids.shape:
        raise InvalidArgumentError(
            None, None, f"The shape of data, {text(data.shape)}, must begin with that of segment_ids, {text(ids.shape)}"
        )


def _unsorted_reference(kind: str) -> Callable[..., Array]:
    def reference(data: Array, ids: Array, count: Array) -> Array:
        _check_prefix(data, ids)
        return combine_rows(data, ids, int(count), kind)

    return reference


def _with_trailing_ones(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor with dimensions of size 1 behind its own, so that it has the rank of `like`."""
    if tensor.dims is not None and like.dims is not None:
        tail: Any = np.ones(len(like.dims) - len(tensor.dims), np.int32)
        if not tail.size:
            return tensor
    else:
        tail = ones(reshape(rank(like) - rank(tensor), [1]), int32)
    return reshape(tensor, concat([shape(tensor), tail], 0))


def _gather_kept(rows: Tensor, ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """(`rows[ids]` with zeros where an id is negative; which ids are not negative, with the rank of `like`)."""
    from .arithmetic import maximum
    from .compare import greater_equal, where_v2

    picked = gather(rows, maximum(ids, 0))
    kept = _with_trailing_ones(greater_equal(ids, 0), like)
    return where_v2(kept, picked, zeros_like(picked)), kept


def _unsorted_sum_gradient(node: Node, grad: Any) -> Sequence[Any]:
    data, ids, _ = node.inputs
    return [_gather_kept(convert(grad), ids, data)[0], None, None]


def _unsorted_extreme_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Rows that tie for a segment's extreme share its gradient.
    from .cast import cast
    from .compare import equal, where_v2
    from .logic import logical_and

    data, ids, count = node.inputs
    winners, kept = _gather_kept(node.outputs[0], ids, data)
    is_winner = logical_and(equal(data, winners), kept)
    ties = unsorted_segment_sum(cast(is_winner, grad.dtype.base), ids, count)
    shared, _ = _gather_kept(grad / ties, ids, data)
    return [where_v2(is_winner, shared, zeros_like(shared)), None, None]


def _one_flop_per_row_element(node: Node) -> Cost:
    return Cost(float(static_size(node.inputs[0])), move_cost(node).bytes)


for _kind, _gradient in (
    ("Sum", _unsorted_sum_gradient),
    ("Max", _unsorted_extreme_gradient),
    ("Min", _unsorted_extreme_gradient),
    ("Prod", None),
):
    define(
        f"UnsortedSegment{_kind}",
        infer=_unsorted_rule,
        reference=_unsorted_reference(_kind),
        gradient=_gradient,
        cost=_one_flop_per_row_element,
    )


def _unsorted(op: str, data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None) -> Tensor:
    with op_scope(name, op, data, segment_ids, num_segments) as scope:
        operands = (
            convert(data, name="data"),
            index_operand(segment_ids, "segment_ids"),
            index_operand(num_segments, "num_segments"),
        )
        return apply(op, operands, None, scope)


def unsorted_segment_sum(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Sums of the rows with one id; zeros for an id that no row has.

    Args:
        data: numbers, shape `segment_ids.shape + row shape`.
        segment_ids: int32 or int64, below `num_segments`, in any order; rows with a negative id are left out.
        num_segments: number of rows of the result.

    Raises:
        InvalidArgumentError: an id is not below `num_segments`.
    """
    return _unsorted("UnsortedSegmentSum", data, segment_ids, num_segments, name)


def unsorted_segment_max(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Largest of the rows with one id; the type's smallest number for an id that no row has. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentMax", data, segment_ids, num_segments, name)


def unsorted_segment_min(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Smallest of the rows with one id; the type's largest number for an id that no row has. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentMin", data, segment_ids, num_segments, name)


def unsorted_segment_prod(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Product of the rows with one id; ones for an id that no row has. No gradient. See `unsorted_segment_sum`."""
    return _unsorted("UnsortedSegmentProd", data, segment_ids, num_segments, name)


def unsorted_segment_mean(
    data: TensorLike, segment_ids: TensorLike, num_segments: TensorLike, name: str | None = None
) -> Tensor:
    """Means of the rows with one id; zeros for an id that no row has. See `unsorted_segment_sum`."""
    from .arithmetic import maximum

    with op_scope(name, "UnsortedSegmentMean", data, segment_ids, num_segments):
        rows, ids = convert(data, name="data"), index_operand(segment_ids, "segment_ids")
        total = unsorted_segment_sum(rows, ids, num_segments)
        counts = maximum(unsorted_segment_sum(ones_like(ids, rows.dtype.base), ids, num_segments), 1)
        return total / _with_trailing_ones(counts, total)


# Segments whose ids are sorted: their number is the last id + 1, and an id that no row has gets zeros.


def _segment_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, ids = inputs
    dtype = allowed(data.dtype.base, NUMBERS)
    need_index(ids, "segment_ids")
    need_rank(ids.dims, 1, "segment_ids")
    need_rank_at_least(data.dims, 1, "data")
    if data.dims is None:
        return [(dtype, None)]
    if ids.dims is not None and not compatible(data.dims[:1], ids.dims):
        raise ValueError(f"data has {data.dims[0]} rows, segment_ids {ids.dims[0]} ids")
    known = static_value(ids)
    count = int(known[-1]) + 1 if known is not None and len(known) else None
    return [(dtype, (count, *data.dims[1:]))]


def _segment_reference(kind: str) -> Callable[..., Array]:
    def reference(data: Array, ids: Array) -> Array:
        _check_prefix(data, ids)
        if ids.size and (ids[0] < 0 or (np.diff(ids) < 0).any()):
            raise InvalidArgumentError(None, None, f"segment_ids must be sorted and not negative: {ids.tolist()[:20]}")
        count = int(ids[-1]) + 1 if ids.size else 0
        if kind != "Mean":
            return combine_rows(data, ids, count, kind, empty=1 if kind == "Prod" else 0)
        total = combine_rows(data, ids, count, "Sum")
        sizes = np.maximum(np.bincount(ids, minlength=count), 1).astype(data.dtype)
        return (total / sizes.reshape(-1, *[1] * (data.ndim - 1))).astype(data.dtype)

    return reference


def _segment_mean_gradient(node: Node, grad: Any) -> Sequence[Any]:
    from .arithmetic import maximum

    grad = convert(grad)
    ids = node.inputs[1]
    counts = maximum(segment_sum(ones_like(ids, grad.dtype.base), ids), 1)
    return [gather(grad / _with_trailing_ones(counts, grad), ids), None]


def _segment_extreme_gradient(node: Node, grad: Any) -> Sequence[Any]:
    from .cast import cast
    from .compare import equal, where_v2

    grad = convert(grad)
    data, ids = node.inputs
    is_winner = equal(data, gather(node.outputs[0], ids))
    ties = segment_sum(cast(is_winner, grad.dtype.base), ids)
    shared = gather(grad / ties, ids)
    return [where_v2(is_winner, shared, zeros_like(shared)), None]


_segment_gradients: dict[str, Callable[..., Sequence[Any]] | None] = {
    "Sum": lambda node, grad: [gather(grad, node.inputs[1]), None],
    "Mean": _segment_mean_gradient,
    "Max": _segment_extreme_gradient,
    "Min": _segment_extreme_gradient,
    "Prod": None,
}
for _kind, _rule in _segment_gradients.items():
    define(
        f"Segment{_kind}",
        infer=_segment_rule,
        reference=_segment_reference(_kind),
        gradient=_rule,
        cost=_one_flop_per_row_element,
    )


def _segment(op: str, data: TensorLike, segment_ids: TensorLike, name: str | None) -> Tensor:
    with op_scope(name, op, data, segment_ids) as scope:
        return apply(op, (convert(data, name="data"), index_operand(segment_ids, "segment_ids")), None, scope)


def segment_sum(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Sums of neighbouring rows with one id. `segment_ids` is a sorted vector, one id per row; the result has last id + 1 rows."""
    return _segment("SegmentSum", data, segment_ids, name)


def segment_mean(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Means of neighbouring rows with one id. See `segment_sum`."""
    return _segment("SegmentMean", data, segment_ids, name)


def segment_max(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Largest of neighbouring rows with one id. See `segment_sum`."""
    return _segment("SegmentMax", data, segment_ids, name)


def segment_min(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Smallest of neighbouring rows with one id. See `segment_sum`."""
    return _segment("SegmentMin", data, segment_ids, name)


def segment_prod(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
    """Products of neighbouring rows with one id; no gradient. See `segment_sum`."""
    return _segment("SegmentProd", data, segment_ids, name)


# --- dealing rows out and collecting them --------------------------------------------------------------------------


def _dynamic_partition_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, partitions = inputs
    if partitions.dtype.base is not int32:
        raise TypeError(f"partitions must be int32, not {partitions.dtype.base.name}")
    num = int_attr(attrs, "num_partitions")
    if num < 1:
        raise ValueError(f"num_partitions must be at least 1, not {num}")
    dims: Dims = None
    if data.dims is not None and partitions.dims is not None:
        if not compatible(data.dims[: len(partitions.dims)], partitions.dims):
            raise ValueError(f"the shape of data, {text(data.dims)}, must begin with that of partitions, {text(partitions.dims)}")
        dims = (None, *data.dims[len(partitions.dims) :])
    return [(data.dtype.base, dims)] * num


def _dynamic_partition(data: Array, partitions: Array, *, num_partitions: int) -> Any:
    _check_prefix(data, partitions)
    wrong = (partitions < 0) | (partitions >= num_partitions)
    if wrong.any():
        raise InvalidArgumentError(None, None, f"partition {int(partitions[wrong].flat[0])} is not in [0, {num_partitions})")
    parts = tuple(data[partitions == i] for i in range(num_partitions))
    return parts[0] if num_partitions == 1 else parts


def _dynamic_partition_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # Deal out the positions in the same way; they say where each row of the gradients belongs.
    from .creation import range as range_
    from .shapes import size

    data, partitions = node.inputs
    count = node.attrs["num_partitions"]
    positions = reshape(range_(size(partitions)), shape(partitions))
    places = dynamic_partition(positions, partitions, count)
    rows = dynamic_stitch(places, filled_grads(node, grads))
    return [reshape(rows, shape(data)), None]


define(
    "DynamicPartition",
    infer=_dynamic_partition_rule,
    reference=_dynamic_partition,
    gradient=_dynamic_partition_gradient,
    cost=move_cost,
)


def dynamic_partition(
    data: TensorLike, partitions: TensorLike, num_partitions: int, name: str | None = None
) -> list[Tensor]:
    """Deal rows out to `num_partitions` lists, in order.

    Args:
        data: shape `partitions.shape + row shape`.
        partitions: int32, for each row the list it goes to, in [0, num_partitions).
    """
    with op_scope(name, "DynamicPartition", data, partitions) as scope:
        operands = (convert(data, name="data"), index_operand(partitions, "partitions"))
        return list(make("DynamicPartition", operands, {"num_partitions": int(num_partitions)}, scope).outputs)


def _stitch_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    half = len(inputs) // 2
    if not half or len(inputs) % 2:
        raise ValueError(f"as many lists of indices as of data are needed, not {len(inputs)} inputs")
    places, rows = inputs[:half], inputs[half:]
    dtype = same_type(rows)
    inner: Dims = None
    known: list[Any] = []
    for at, row in zip(places, rows, strict=True):
        if at.dtype.base is not int32:
            raise TypeError(f"indices must be int32, not {at.dtype.base.name}")
        known.append(static_value(at))
        if at.dims is None or row.dims is None:
            continue
        if not compatible(row.dims[: len(at.dims)], at.dims):
            raise ValueError(f"the shape of {row.name}, {text(row.dims)}, must begin with that of its indices, {text(at.dims)}")
        inner = merge(inner, row.dims[len(at.dims) :])
    if inner is None:
        return [(dtype, None)]
    count = None if any(k is None for k in known) else max((int(k.max()) + 1 for k in known if k.size), default=0)
    return [(dtype, (count, *inner))]


def _stitch(*operands: Array) -> Array:
    half = len(operands) // 2
    places, rows = operands[:half], operands[half:]
    for at, row in zip(places, rows, strict=True):
        _check_prefix(row, at)
        if at.size and at.min() < 0:
            raise InvalidArgumentError(None, None, f"index {int(at.min())} is negative")
    count = max((int(at.max()) + 1 for at in places if at.size), default=0)
    inner = rows[0].shape[places[0].ndim :]
    out = np.zeros((count, *inner), rows[0].dtype)
    for at, row in zip(places, rows, strict=True):
        out[at] = row
    return out


def _stitch_gradient(node: Node, grad: Any) -> Sequence[Any]:
    half = len(node.inputs) // 2
    return [*[None] * half, *(gather(grad, at) for at in node.inputs[:half])]


for _name in ("DynamicStitch", "ParallelDynamicStitch"):
    define(_name, infer=_stitch_rule, reference=_stitch, gradient=_stitch_gradient, cost=move_cost)


def dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """Collect rows from several lists: row `r` of `data[m]` becomes row `indices[m][r]`. The inverse of `dynamic_partition`.

    Where an index occurs twice the later row wins; a gap stays zero.
    """
    with op_scope(name, "DynamicStitch", *indices, *data) as scope:
        places = [index_operand(at, f"indices_{i}") for i, at in enumerate(indices)]
        rows = [convert(row, name=f"data_{i}") for i, row in enumerate(data)]
        return apply("DynamicStitch", (*places, *rows), None, scope)


def parallel_dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """`dynamic_stitch` for indices that occur once only."""
    with op_scope(name, "ParallelDynamicStitch", *indices, *data) as scope:
        places = [index_operand(at, f"indices_{i}") for i, at in enumerate(indices)]
        rows = [convert(row, name=f"data_{i}") for i, row in enumerate(data)]
        return apply("ParallelDynamicStitch", (*places, *rows), None, scope)


# --- masks ---------------------------------------------------------------------------------------------------------


def boolean_mask(tensor: TensorLike, mask: TensorLike, name: str | None = "boolean_mask", axis: int | None = None) -> Tensor:
    """The elements (or slices) where the mask is true, one after another.

    Args:
        mask: bool, of known rank; its shape agrees with that of `tensor` from `axis` on.
        axis: the first dimension that the mask covers; 0 by default.

    Returns:
        shape `tensor.shape[:axis] + [number of trues] + tensor.shape[axis + mask rank:]`.
    """
    from .compare import where

    with op_scope(name, "boolean_mask", tensor, mask):
        x, chosen = convert(tensor, name="tensor"), convert(mask, bool_, name="mask")
        if not chosen.dims:
            raise ValueError(f"The mask must have a known rank, at least 1: {chosen!r}")
        first = 0 if axis is None else int(axis)
        if first < 0 and x.dims is not None:
            first = normal_axis(first, len(x.dims))
        behind = first + len(chosen.dims)
        if x.dims is not None and not compatible(x.dims[first:behind], chosen.dims):
            raise ValueError(f"The mask has shape {text(chosen.dims)}, the tensor {text(x.dims)}: they must agree from dimension {first} on")
        sizes = shape(x)
        flat = reshape(x, concat([sizes[:first], [-1], sizes[behind:]], 0)) if len(chosen.dims) > 1 else x
        places = squeeze(where(reshape(chosen, [-1])), [1])
        return gather(flat, places, axis=first)


# --- distinct values -----------------------------------------------------------------------------------------------


class Unique(NamedTuple):
    """Distinct values `y` in order of first appearance, and for each element of `x` the place of its value in `y`."""

    y: Tensor
    idx: Tensor


class UniqueWithCounts(NamedTuple):
    """`Unique`, and how often each value occurs."""

    y: Tensor
    idx: Tensor
    count: Tensor


def _unique_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    need_rank(x.dims, 1, "x")
    return [(x.dtype.base, (None,)), (index_type_attr(attrs, "out_idx"), x.dims)]


def _unique_with_counts(x: Array, *, out_idx: Any) -> tuple[Array, Array, Array]:
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return values[order], place[inverse.reshape(x.shape)].astype(out_idx.np), counts[order].astype(out_idx.np)


define(
    "Unique",
    infer=_unique_rule,
    reference=lambda x, *, out_idx: _unique_with_counts(x, out_idx=out_idx)[:2],
    device_types=("CPU",),
)
define(
    "UniqueWithCounts",
    infer=lambda inputs, attrs: [*_unique_rule(inputs, attrs), (index_type_attr(attrs, "out_idx"), (None,))],
    reference=_unique_with_counts,
    device_types=("CPU",),
)


def unique(x: TensorLike, out_idx: Any = int32, name: str | None = None) -> Unique:
    """Distinct values of a vector in order of first appearance, and where each element's value stands among them.

    >>> unique([3, 1, 3])   # y = [3, 1], idx = [0, 1, 0]
    """
    with op_scope(name, "Unique", x) as scope:
        return Unique(*make("Unique", (convert(x, name="x"),), {"out_idx": as_dtype(out_idx)}, scope).outputs)


def unique_with_counts(x: TensorLike, out_idx: Any = int32, name: str | None = None) -> UniqueWithCounts:
    """`unique`, and how often each value occurs."""
    with op_scope(name, "UniqueWithCounts", x) as scope:
        return UniqueWithCounts(*make("UniqueWithCounts", (convert(x, name="x"),), {"out_idx": as_dtype(out_idx)}, scope).outputs)
