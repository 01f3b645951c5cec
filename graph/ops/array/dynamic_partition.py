"""Rows by group: dynamic_partition and dynamic_stitch, boolean_mask, unique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.build import TensorLike, apply, convert, make
from ...core.constant_value import static_value
from ...core.dtypes import Array, as_dtype, bool_, int32, text_array
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import Dims, compatible, merge, text
from ..math.common import same_type
from ..math.compare import where
from ..math.static_operands import (
    apply_op,
    as_bytes,
    index_operand,
    index_type_attr,
    move_cost,
    need_rank,
    normal_axis,
    op_scope,
)
from .concat_stack import concat, filled_grads
from .gather import check_indices, gather, gather_densely
from .ranges import range as range_
from .segments import check_prefix
from .shapes import reshape, shape, size, squeeze

# --- dealing rows out and collecting them -------------------------------------------------------------------


def _dynamic_partition_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, partitions = inputs
    if partitions.dtype.base is not int32:
        raise TypeError(f"partitions must be int32, not {partitions.dtype.base.name}")
    num = typed_attr(attrs, "num_partitions", int)
    if num < 1:
        raise ValueError(f"num_partitions must be at least 1, not {num}")
    dims: Dims = None
    if data.dims is not None and partitions.dims is not None:
        if not compatible(data.dims[: len(partitions.dims)], partitions.dims):
            raise ValueError(
                f"the shape of data, {text(data.dims)}, must begin with that of partitions, {text(partitions.dims)}"
            )
        dims = (None, *data.dims[len(partitions.dims) :])
    return [(data.dtype.base, dims)] * num


def _dynamic_partition(data: Array, partitions: Array, *, num_partitions: int) -> Any:
    check_prefix(data, partitions)
    check_indices(partitions, num_partitions, "partitions")
    parts = tuple(data[partitions == i] for i in range(num_partitions))
    return parts[0] if num_partitions == 1 else parts


def _dynamic_partition_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # Deal out the positions in the same way; they say where each row of the gradients belongs.
    data, partitions = node.inputs
    count = node.attrs["num_partitions"]
    positions = reshape(range_(size(partitions)), shape(partitions))
    places = dynamic_partition(positions, partitions, count)
    rows = dynamic_stitch(places, filled_grads(node, grads))
    return [reshape(rows, shape(data)), None]


define(
    "DynamicPartition",
    _dynamic_partition_rule,
    _dynamic_partition,
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
            raise ValueError(
                f"the shape of {row.name}, {text(row.dims)}, must begin with that of its indices, {text(at.dims)}"
            )
        inner = merge(inner, row.dims[len(at.dims) :])
    if inner is None:
        return [(dtype, None)]
    count = None if any(k is None for k in known) else max((int(k.max()) + 1 for k in known if k.size), default=0)
    return [(dtype, (count, *inner))]


def _stitch(*operands: Array) -> Array:
    half = len(operands) // 2
    places, rows = operands[:half], operands[half:]
    for at, row in zip(places, rows, strict=True):
        check_prefix(row, at)
        if at.size and at.min() < 0:
            raise invalid(f"index {int(at.min())} is negative")
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
    define(_name, _stitch_rule, _stitch, gradient=_stitch_gradient, cost=move_cost)


def dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """Collect rows from several lists: row `r` of `data[m]` becomes row `indices[m][r]`. The inverse of
    `dynamic_partition`.

    Where an index occurs twice the later row wins; a gap stays zero.
    """
    return _stitched("DynamicStitch", indices, data, name)


def parallel_dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """`dynamic_stitch` for indices that occur once only."""
    return _stitched("ParallelDynamicStitch", indices, data, name)


def _stitched(op: str, indices: Any, data: Any, name: str | None) -> Tensor:
    with op_scope(name, op, *indices, *data) as scope:
        places = [index_operand(at, f"indices_{i}") for i, at in enumerate(indices)]
        rows = [convert(row, name=f"data_{i}") for i, row in enumerate(data)]
        return apply(op, (*places, *rows), None, scope)


# --- masks --------------------------------------------------------------------------------------------------


def boolean_mask(
    tensor: TensorLike, mask: TensorLike, name: str | None = "boolean_mask", axis: int | None = None
) -> Tensor:
    """The elements (or slices) where the mask is true, one after another.

    Args:
        mask: bool, of known rank; its shape agrees with that of `tensor` from `axis` on.
        axis: the first dimension that the mask covers; 0 by default.

    Returns:
        shape `tensor.shape[:axis] + [number of trues] + tensor.shape[axis + mask rank:]`.
    """
    with op_scope(name, "boolean_mask", tensor, mask):
        x, chosen = convert(tensor, name="tensor"), convert(mask, bool_, name="mask")
        if not chosen.dims:
            raise ValueError(f"The mask must have a known rank, at least 1: {chosen!r}")
        first = 0 if axis is None else int(axis)
        if first < 0 and x.dims is not None:
            first = normal_axis(first, len(x.dims))
        behind = first + len(chosen.dims)
        if x.dims is not None and not compatible(x.dims[first:behind], chosen.dims):
            raise ValueError(
                f"The mask has shape {text(chosen.dims)}, the tensor {text(x.dims)}: they must agree from "
                f"dimension {first} on"
            )
        sizes = shape(x)
        flat = reshape(x, concat([sizes[:first], [-1], sizes[behind:]], 0)) if len(chosen.dims) > 1 else x
        places = squeeze(where(reshape(chosen, [-1])), [1])
        return gather_densely(flat, places, axis=first)


# --- distinct values ----------------------------------------------------------------------------------------


class Unique(NamedTuple):
    """Distinct values `y` in order of first appearance; for each element of `x` its value's index in `y`."""

    y: Tensor
    idx: Tensor


def unique_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The outputs of `Unique`: the distinct values, and an index for each element."""
    (x,) = inputs
    need_rank(x.dims, 1, "x")
    return [(x.dtype.base, (None,)), (index_type_attr(attrs, "out_idx"), x.dims)]


def _unique_texts(x: Array, dtype: Any) -> tuple[Array, Array, Array]:
    """The same of text: not sorted, which would keep other threads from the interpreter until it is done."""
    places: dict[bytes, int] = {}
    inverse = np.fromiter((places.setdefault(as_bytes(item), len(places)) for item in x), dtype, x.size)
    return text_array(places), inverse, np.bincount(inverse, minlength=len(places)).astype(dtype)


def uniques(x: Array, *, out_idx: Any) -> tuple[Array, Array, Array]:
    """The distinct values of a vector, the index of each element's value among them, and how often each occurs."""
    if x.ndim != 1:
        raise invalid(f"unique expects a vector, not a value of shape {text(x.shape)}")
    if x.dtype == object:
        return _unique_texts(x, out_idx.np)
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    return values[order], place[inverse.reshape(x.shape)].astype(out_idx.np), counts[order].astype(out_idx.np)


define("Unique", unique_rule, lambda x, *, out_idx: uniques(x, out_idx=out_idx)[:2], device_types=("CPU",))


def unique(x: TensorLike, out_idx: Any = int32, name: str | None = None) -> Unique:
    """Distinct values of a vector in order of first appearance, and the index of each element's value among them.

    >>> unique([3, 1, 3])   # y = [3, 1], idx = [0, 1, 0]
    """
    return Unique(*apply_op("Unique", name, {"out_idx": as_dtype(out_idx)}, x=x).op.outputs)


class ListDiff(NamedTuple):
    """The values of one list that another has not, and their places in it."""

    out: Tensor
    idx: Tensor


def _list_diff_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, y = inputs
    for t, what in ((x, "x"), (y, "y")):
        need_rank(t.dims, 1, what)
    return [(same_type((x, y)), (None,)), (index_type_attr(attrs, "out_idx"), (None,))]


def _list_diff(x: Array, y: Array, *, out_idx: Any) -> tuple[Array, Array]:
    if x.dtype == object:
        known = set(y.tolist())
        kept = np.array([v not in known for v in x.tolist()], bool)
    else:
        kept = ~np.isin(x, y)
    return x[kept], np.flatnonzero(kept).astype(out_idx.np)


define("ListDiff", _list_diff_rule, _list_diff, device_types=("CPU",))


def setdiff1d(x: TensorLike, y: TensorLike, index_dtype: Any = int32, name: str | None = None) -> ListDiff:
    """The values of a vector that another has not, in order, and their places (int32 or int64).

    >>> setdiff1d([1, 2, 3, 4], [1, 3])   # out = [2, 4], idx = [1, 3]
    """
    with op_scope(name, "ListDiff", x, y) as scope:
        a = convert(x, name="x")
        operands = (a, convert(y, a.dtype.base, name="y"))
        return ListDiff(*make("ListDiff", operands, {"out_idx": as_dtype(index_dtype)}, scope).outputs)
