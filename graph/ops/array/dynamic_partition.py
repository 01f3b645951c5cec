"""Rows by group: dynamic_partition and dynamic_stitch, boolean_mask, unique, set difference."""

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
from ..math.compare import not_equal, where
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
from .segments import check_prefix, need_prefix
from .shapes import reshape, shape, size, squeeze

# --- partition and stitch -----------------------------------------------------------------------------------


def _dynamic_partition_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    data, partitions = inputs
    if partitions.dtype.base is not int32:
        raise TypeError(f"partitions must be int32, not {partitions.dtype.base.name}")
    num = typed_attr(attrs, "num_partitions", int)
    if num < 1:
        raise ValueError(f"num_partitions must be at least 1, not {num}")
    row = need_prefix(data.dims, partitions.dims, "data", "partitions")
    return [(data.dtype.base, None if row is None else (None, *row))] * num


def _dynamic_partition(data: Array, partitions: Array, *, num_partitions: int) -> Any:
    check_prefix(data, partitions)
    check_indices(partitions, num_partitions, "partitions")
    parts = tuple(data[partitions == i] for i in range(num_partitions))
    return parts[0] if num_partitions == 1 else parts


def _dynamic_partition_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # The row numbers, partitioned in the same way, are the rows of `data` to which the gradients belong.
    data, partitions = node.inputs
    count = node.attrs["num_partitions"]
    numbers = reshape(range_(size(partitions)), shape(partitions))
    rows = dynamic_stitch(dynamic_partition(numbers, partitions, count), filled_grads(node, grads))
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
    """Distribute rows to `num_partitions` tensors. Within each, rows keep their order.

    Args:
        data: the rows, of shape `partitions.shape + row shape`.
        partitions: for each row the tensor that it goes to, int32 in [0, num_partitions).
        num_partitions: number of tensors.
        name: name of the node.

    >>> dynamic_partition([10, 20, 30], [1, 0, 1], 2)   # evaluates to [20] and [10, 30]
    """
    with op_scope(name, "DynamicPartition", data, partitions) as scope:
        operands = (convert(data, name="data"), index_operand(partitions, "partitions"))
        return list(make("DynamicPartition", operands, {"num_partitions": int(num_partitions)}, scope).outputs)


def _stitch_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    half = len(inputs) // 2
    if not half or len(inputs) % 2:
        raise ValueError(f"as many lists of indices as of data are needed, not {len(inputs)} inputs")
    indices, rows = inputs[:half], inputs[half:]
    dtype = same_type(rows)
    inner: Dims = None
    known: list[Any] = []
    for at, row in zip(indices, rows, strict=True):
        if at.dtype.base is not int32:
            raise TypeError(f"indices must be int32, not {at.dtype.base.name}")
        known.append(static_value(at))
        inner = merge(inner, need_prefix(row.dims, at.dims, row.name, "its indices"))
    if inner is None:
        return [(dtype, None)]
    count = None if any(k is None for k in known) else max((int(k.max()) + 1 for k in known if k.size), default=0)
    return [(dtype, (count, *inner))]


def _stitch(*operands: Array) -> Array:
    half = len(operands) // 2
    indices, rows = operands[:half], operands[half:]
    for at, row in zip(indices, rows, strict=True):
        check_prefix(row, at)
        if at.size and at.min() < 0:
            raise invalid(f"index {int(at.min())} is negative")
    count = max((int(at.max()) + 1 for at in indices if at.size), default=0)
    inner = rows[0].shape[indices[0].ndim :]
    out = np.zeros((count, *inner), rows[0].dtype)
    for at, row in zip(indices, rows, strict=True):
        out[at] = row
    return out


def _stitch_gradient(node: Node, grad: Any) -> Sequence[Any]:
    half = len(node.inputs) // 2
    return [*[None] * half, *(gather(grad, at) for at in node.inputs[:half])]


for _name in ("DynamicStitch", "ParallelDynamicStitch"):
    define(_name, _stitch_rule, _stitch, gradient=_stitch_gradient, cost=move_cost)


def dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """Merge rows of several tensors into one: `out[indices[m][i]] = data[m][i]`. The inverse of `dynamic_partition`.

    If an index occurs twice, the later row is used. Rows without an index are zero.

    Args:
        indices: a list of int32 tensors.
        data: a list of as many tensors. `data[m]` has the shape `indices[m].shape + row shape`.
        name: name of the node.
    """
    return _stitched("DynamicStitch", indices, data, name)


def parallel_dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Tensor:
    """`dynamic_stitch` for indices that occur only once."""
    return _stitched("ParallelDynamicStitch", indices, data, name)


def _stitched(op: str, indices: Any, data: Any, name: str | None) -> Tensor:
    with op_scope(name, op, *indices, *data) as scope:
        operands = [index_operand(at, f"indices_{i}") for i, at in enumerate(indices)]
        operands += [convert(row, name=f"data_{i}") for i, row in enumerate(data)]
        return apply(op, operands, None, scope)


# --- masks --------------------------------------------------------------------------------------------------


def boolean_mask(
    tensor: TensorLike, mask: TensorLike, name: str | None = "boolean_mask", axis: int | None = None
) -> Tensor:
    """The elements or slices of a tensor where a mask is true, in row-major order.

    Args:
        tensor: the tensor.
        mask: bool, or floats that are true unless they are 0, of known rank. Its shape equals that of `tensor` from `axis` on.
        name: name scope of the nodes.
        axis: the first dimension that the mask covers. None means 0.

    Returns:
        Shape `tensor.shape[:axis] + [number of true elements] + tensor.shape[axis + mask rank:]`.

    >>> boolean_mask([10, 20, 30], [True, False, True])   # evaluates to [10, 30]
    """
    with op_scope(name, "boolean_mask", tensor, mask):
        x, chosen = convert(tensor, name="tensor"), convert(mask, name="mask")
        chosen = not_equal(chosen, 0) if chosen.dtype.base.is_floating else convert(chosen, bool_, name="mask")
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
        return gather_densely(flat, squeeze(where(reshape(chosen, [-1])), [1]), axis=first)


# --- distinct values ----------------------------------------------------------------------------------------


class Unique(NamedTuple):
    """The distinct values `y` of a vector in order of first appearance, and the index in `y` of each element."""

    y: Tensor
    idx: Tensor


def unique_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The outputs of `Unique`: the distinct values, and an index for each element."""
    (x,) = inputs
    need_rank(x.dims, 1, "x")
    return [(x.dtype.base, (None,)), (index_type_attr(attrs, "out_idx"), x.dims)]


def _unique_texts(x: Array, dtype: Any) -> tuple[Array, Array, Array]:
    """`uniques` of strings. A dictionary, because sorting an object array would hold the interpreter lock until it is done."""
    numbers: dict[bytes, int] = {}
    inverse = np.fromiter((numbers.setdefault(as_bytes(item), len(numbers)) for item in x), dtype, x.size)
    return text_array(numbers), inverse, np.bincount(inverse, minlength=len(numbers)).astype(dtype)


def _unique_numbers(x: Array, span: int, dtype: Any) -> tuple[Array, Array, Array]:
    """`uniques` of integers that span few numbers: tables with an element for each of these, instead of sorting."""
    low = x.min()
    at = (x - low).view(f"u{x.itemsize}").astype(np.intp)  # a difference may be too large for the signed type
    first = np.full(span, x.size)
    first[at[::-1]] = np.arange(x.size)[::-1]  # of elements at the same place the last one stays, which is the first
    places = np.flatnonzero(first < x.size)
    places = places[np.argsort(first[places])]
    number = np.empty(span, dtype)
    number[places] = np.arange(places.size)
    return x[first[places]], number[at], np.bincount(at, minlength=span)[places].astype(dtype)


def uniques(x: Array, *, out_idx: Any) -> tuple[Array, Array, Array]:
    """The distinct values of a vector, the index of each element's value among them, and how often each occurs."""
    if x.ndim != 1:
        raise invalid(f"unique expects a vector, not a value of shape {text(x.shape)}")
    if x.dtype == object:
        return _unique_texts(x, out_idx.np)
    if x.size and x.dtype.kind in "iu" and (span := int(x.max()) - int(x.min()) + 1) <= 4 * x.size:
        return _unique_numbers(x, span, out_idx.np)
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(order.size)
    return values[order], number[inverse.reshape(x.shape)].astype(out_idx.np), counts[order].astype(out_idx.np)


define("Unique", unique_rule, lambda x, *, out_idx: uniques(x, out_idx=out_idx)[:2], device_types=("CPU",))


def unique(x: TensorLike, out_idx: Any = int32, name: str | None = None) -> Unique:
    """Distinct values of a vector in order of first appearance, and the index of each element's value among them.

    >>> unique([3, 1, 3])   # y = [3, 1], idx = [0, 1, 0]
    """
    return Unique(*apply_op("Unique", name, {"out_idx": as_dtype(out_idx)}, x=x).op.outputs)


class ListDiff(NamedTuple):
    """The values of one vector that another does not have, and their indices in the first."""

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
    """The values of `x` that `y` does not have, in order, and their indices in `x`, of type `index_dtype` (int32 or int64).

    >>> setdiff1d([1, 2, 3, 4], [1, 3])   # out = [2, 4], idx = [1, 3]
    """
    with op_scope(name, "ListDiff", x, y) as scope:
        a = convert(x, name="x")
        operands = (a, convert(y, a.dtype.base, name="y"))
        return ListDiff(*make("ListDiff", operands, {"out_idx": as_dtype(index_dtype)}, scope).outputs)
