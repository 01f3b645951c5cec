"""Sorting: top_k, sort, argsort, in_top_k, binary search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core.build import TensorLike, apply, constant, convert
from ...core.dtypes import FLOATS, NUMBERS, Array, as_dtype, bool_, float32, int32
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, define, size as static_size, typed_attr
from ...core.shape import compatible, merge, text
from ..math.common import allowed, input_cost, same_type
from ..math.reduce import reduce_prod
from ..math.static_operands import (
    Index,
    apply_op,
    index_operand,
    index_type_attr,
    move_cost,
    need_index,
    need_rank,
    need_rank_at_least,
    normal_axis,
    op_scope,
    static_int,
)
from .concat_stack import stack
from .ranges import range as range_
from .segments import unsorted_segment_sum
from .shapes import reshape, shape, transpose

_LOG_SIZE = 10.0  # assumed comparisons per element when sorting: log2 of a thousand


# --- top_k --------------------------------------------------------------------------------------------------


class TopK(NamedTuple):
    """The k largest entries of each row, and their indices in the row."""

    values: Tensor
    indices: Tensor


def _top_k_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, k_input = inputs
    dtype = allowed(x.dtype.base, NUMBERS)
    need_rank_at_least(x.dims, 1, "input")
    need_index(k_input, "k", 0)
    typed_attr(attrs, "sorted", bool)
    k = static_int(k_input)
    if k is not None and k < 0:
        raise ValueError(f"k must not be negative: {k}")
    if x.dims is None:
        return [(dtype, None), (int32, None)]
    length = x.dims[-1]
    if k is not None and length is not None and k > length:
        raise ValueError(f"k is {k}, but the last dimension has only {length} entries")
    dims = (*x.dims[:-1], k)
    return [(dtype, dims), (int32, dims)]


def _descending(x: Array) -> Array:
    """Indices along the last axis that sort the entries in descending order. Equal entries keep their order."""
    # A stable ascending sort of the reversed row, in reverse.
    backwards = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.asarray(x.shape[-1] - 1 - backwards)


def _top_k(x: Array, k: Array, *, sorted: bool) -> tuple[Array, Array]:
    if not 0 <= k <= x.shape[-1]:
        raise invalid(f"k is {int(k)}, but the last dimension of {text(x.shape)} has {x.shape[-1]} entries")
    at = _descending(x)[..., : int(k)]
    return np.take_along_axis(x, at, -1), at.astype(np.int32)


def _top_k_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # Entry i of row r comes from the flat index r * length + indices[r, i].
    x, _ = node.inputs
    grad, indices = grads[0], node.outputs[1]
    if grad is None:
        return [None, None]
    sizes = shape(x)
    rows, length = reduce_prod(sizes[:-1]), sizes[-1]
    by_row = reshape(indices, stack([rows, shape(indices)[-1]]))
    sources = by_row + reshape(range_(rows) * length, [-1, 1])
    flat = unsorted_segment_sum(reshape(grad, [-1]), reshape(sources, [-1]), rows * length)
    return [reshape(flat, sizes), None]


define("TopKV2", _top_k_rule, _top_k, gradient=_top_k_gradient, cost=input_cost(_LOG_SIZE))


def top_k(input: TensorLike, k: TensorLike = 1, sorted: bool = True, name: str | None = None) -> TopK:
    """The `k` largest entries along the last dimension in descending order, and their indices (int32). Equal entries keep their order.

    Args:
        input: numbers, of rank 1 or more.
        k: how many, a scalar.
        sorted: accepted without effect. The entries are always sorted.
        name: name of the node.

    Raises:
        ValueError: `k` exceeds the last dimension. InvalidArgumentError if only the step knows.

    >>> top_k([1, 7, 3], 2)   # evaluates to values [7, 3] and indices [1, 2]
    """
    return TopK(*apply_op("TopKV2", name, {"sorted": bool(sorted)}, input=input, k=Index(k)).op.outputs)


# --- sort and argsort ---------------------------------------------------------------------------------------


def _direction(direction: str) -> bool:
    """Whether a direction is descending. ValueError if it is unknown."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be ASCENDING or DESCENDING, not {direction!r}")
    return direction == "DESCENDING"


def _flipped(x: Tensor) -> Tensor:
    """An order-reversing map of the values, which is its own inverse: -x for floats, -1 - x for signed integers, max - x for unsigned."""
    dtype = x.dtype.base
    if dtype.is_unsigned:
        return constant(np.array(dtype.max, dtype.np)) - x
    return -x if not dtype.is_integer else constant(np.array(-1, dtype.np)) - x


def _sorted_by_top_k(values: TensorLike, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """The values along `axis` in order, and the indices that they had."""
    x = convert(values, name="values")
    if x.dims is None and axis != -1:
        raise ValueError(f"Sorting along axis {axis} needs to know the rank of {x!r}; use set_shape")
    dims = (None,) if x.dims is None else x.dims  # along the last axis, any rank is sorted in the same way
    if not dims:
        raise ValueError("A scalar cannot be sorted")
    rank = len(dims)
    at = normal_axis(int(axis), rank)
    perm = list(range(rank))
    perm[at], perm[-1] = perm[-1], perm[at]
    last = x if at == rank - 1 else transpose(x, perm)
    length = dims[at] if dims[at] is not None else shape(x)[at - rank]
    found, indices = top_k(last if descending else _flipped(last), length)
    if not descending:
        found = _flipped(found)
    return (found, indices) if at == rank - 1 else (transpose(found, perm), transpose(indices, perm))


def sort(values: TensorLike, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor:
    """Sort the entries along an axis.

    Args:
        values: numbers, of rank 1 or more.
        axis: the axis. The rank must be known unless it is -1.
        direction: "ASCENDING" or "DESCENDING".
        name: name scope of the nodes.

    Raises:
        ValueError: an unknown direction, or an axis that does not exist.
    """
    descending = _direction(direction)
    with op_scope(name, "sort", values):
        return _sorted_by_top_k(values, axis, descending)[0]


def argsort(
    values: TensorLike,
    axis: int = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """The indices (int32) that sort the entries along an axis. Equal entries keep their order. Arguments as for `sort`."""
    descending = _direction(direction)
    with op_scope(name, "argsort", values):
        return _sorted_by_top_k(values, axis, descending)[1]


# --- in_top_k -----------------------------------------------------------------------------------------------


def _in_top_k_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    predictions, targets, k = inputs
    allowed(predictions.dtype.base, FLOATS)
    need_index(targets, "targets")
    need_index(k, "k", 0)
    need_rank(predictions.dims, 2, "predictions")
    need_rank(targets.dims, 1, "targets")
    if predictions.dims is not None and not compatible(predictions.dims[:1], targets.dims):
        raise ValueError(
            f"predictions have {predictions.dims[0]} rows, targets {targets.dims[0] if targets.dims else '?'} entries"
        )
    return [(bool_, merge((None,) if predictions.dims is None else predictions.dims[:1], targets.dims))]


def _in_top_k(predictions: Array, targets: Array, k: Array) -> Array:
    if len(predictions) != len(targets):  # NumPy would broadcast a single row
        raise invalid(f"predictions have {len(predictions)} rows, targets {len(targets)} entries")
    classes = predictions.shape[1]
    inside = (targets >= 0) & (targets < classes)
    if not classes:
        return np.asarray(inside)
    own = predictions[np.arange(len(targets)), np.where(inside, targets, 0)]
    better = np.bitwise_count(np.packbits(predictions > own[:, None], axis=1)).sum(1)
    # As in TensorFlow, the result is False if an entry of the row is not finite.
    return np.asarray(inside & (better < k) & np.isfinite(predictions).all(1))


define("InTopKV2", _in_top_k_rule, _in_top_k)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: TensorLike, name: str | None = None) -> Tensor:
    """Whether the target class of each row is among its `k` highest scores.

    Args:
        predictions: scores, floats `[batch, classes]`.
        targets: the class of each row, int32 or int64 `[batch]`. An unknown class is never in the top k.
        k: a scalar.
        name: name scope of the nodes.

    Returns:
        bool `[batch]`. False for a row with an infinity or a NaN.
    """
    with op_scope(name, "in_top_k", predictions, targets, k):
        scores = convert(predictions, name="predictions", prefer=float32)
        wanted = index_operand(targets, "targets")
        limit = k if isinstance(k, Tensor) else constant(np.array(k, wanted.dtype.np), name="k")
        return apply("InTopKV2", (scores, wanted, limit))


# --- binary search ------------------------------------------------------------------------------------------


def _bound_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    row, values = inputs
    allowed(same_type(inputs), NUMBERS)
    need_rank(row.dims, 2, "sorted_inputs")
    need_rank(values.dims, 2, "values")
    if row.dims is not None and values.dims is not None and not compatible(row.dims[:1], values.dims[:1]):
        raise ValueError(f"sorted_inputs has {row.dims[0]} rows, values {values.dims[0]}")
    return [(index_type_attr(attrs, "out_type"), values.dims)]


def _bound(side: Any, row: Array, values: Array, *, out_type: Any) -> Array:
    if len(row) != len(values):
        raise invalid(f"sorted_inputs has {len(row)} rows, values {len(values)}")
    out = np.empty(values.shape, out_type.np)
    for i, (r, v) in enumerate(zip(row, values, strict=True)):
        out[i] = np.searchsorted(r, v, side)
    return out


def _bound_cost(node: Node) -> Cost:
    return Cost(_LOG_SIZE * static_size(node.inputs[1]), move_cost(node).bytes)


define("LowerBound", _bound_rule, partial(_bound, "left"), cost=_bound_cost)
define("UpperBound", _bound_rule, partial(_bound, "right"), cost=_bound_cost)


def searchsorted(
    sorted_sequence: TensorLike,
    values: TensorLike,
    side: str = "left",
    out_type: Any = int32,
    name: str | None = None,
) -> Tensor:
    """Binary search: the index at which each value could be inserted and its row stay sorted.

    Args:
        sorted_sequence: shape (..., n), each row in ascending order.
        values: shape (..., m), with the same leading dimensions.
        side: "left" for an index before equal entries, "right" for one after them.
        out_type: int32 or int64.
        name: name scope of the nodes.

    Returns:
        Indices of type `out_type`, in the shape of `values`.

    >>> searchsorted([1, 3, 5], [3, 4])   # evaluates to [1, 2]
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    op = "LowerBound" if side == "left" else "UpperBound"
    with op_scope(name, "searchsorted", sorted_sequence, values):
        row = convert(sorted_sequence, name="sorted_sequence")
        wanted = convert(values, name="values", prefer=row.dtype.base)
        flat = [reshape(t, stack([-1, shape(t)[-1]])) for t in (row, wanted)]
        return reshape(apply(op, flat, {"out_type": as_dtype(out_type)}), shape(wanted))
