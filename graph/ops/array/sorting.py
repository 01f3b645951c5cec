"""Sorting: top k, sort, argsort, membership in the top k, binary search."""

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

_LOG_SIZE = 10.0  # comparisons per element that sorting is taken to cost, log2 of a thousand


# --- the k largest ------------------------------------------------------------------------------------------


class TopK(NamedTuple):
    """The k largest entries of each row, and their indices in it."""

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
    """Positions along the last axis from the largest entry to the smallest; equal ones in index order."""
    # A stable ascending sort of the reversed row, read backwards.
    backwards = np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    return np.asarray(x.shape[-1] - 1 - backwards)


def _top_k(x: Array, k: Array, *, sorted: bool) -> tuple[Array, Array]:
    if not 0 <= k <= x.shape[-1]:
        raise invalid(f"k is {int(k)}, but the last dimension of {text(x.shape)} has {x.shape[-1]} entries")
    at = _descending(x)[..., : int(k)]
    return np.take_along_axis(x, at, -1), at.astype(np.int32)


def _top_k_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # In the flattened rows, entry i of row r came from index r * length + indices[r, i].
    x, _ = node.inputs
    grad, indices = grads[0], node.outputs[1]
    if grad is None:
        return [None, None]
    sizes = shape(x)
    rows, length = reduce_prod(sizes[:-1]), sizes[-1]
    by_row = reshape(indices, stack([rows, shape(indices)[-1]]))
    places = by_row + reshape(range_(rows) * length, [-1, 1])
    flat = unsorted_segment_sum(reshape(grad, [-1]), reshape(places, [-1]), rows * length)
    return [reshape(flat, sizes), None]


define("TopKV2", _top_k_rule, _top_k, gradient=_top_k_gradient, cost=input_cost(_LOG_SIZE))


def top_k(input: TensorLike, k: TensorLike = 1, sorted: bool = True, name: str | None = None) -> TopK:
    """The `k` largest entries along the last dimension, and their places (int32). Of equal entries the first
    comes first.

    Args:
        sorted: False allows any order; here the order is the same.

    Raises:
        ValueError: `k` exceeds the last dimension (InvalidArgumentError when only the running graph can know).
    """
    return TopK(*apply_op("TopKV2", name, {"sorted": bool(sorted)}, input=input, k=Index(k)).op.outputs)


# --- sorting ------------------------------------------------------------------------------------------------


def _direction(direction: str) -> bool:
    """Whether to sort descending."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"direction must be ASCENDING or DESCENDING, not {direction!r}")
    return direction == "DESCENDING"


def _flipped(x: Tensor) -> Tensor:
    """Values whose order is the reverse of x's; twice gives x back.

    Integers have no room for -min, so they use -1 - x.
    """
    dtype = x.dtype.base
    if dtype.is_unsigned:
        return constant(np.array(dtype.max, dtype.np)) - x
    return -x if not dtype.is_integer else constant(np.array(-1, dtype.np)) - x


def _sorted_by_top_k(values: TensorLike, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Values along `axis` in order, and the positions that they had."""
    x = convert(values, name="values")
    if x.dims is None and axis != -1:
        raise ValueError(f"Sorting along axis {axis} needs to know the rank of {x!r}; use set_shape")
    dims = (None,) if x.dims is None else x.dims  # for the last axis, one is enough to know
    if not dims:
        raise ValueError("A scalar cannot be sorted")
    rank = len(dims)
    at = normal_axis(int(axis), rank)
    perm = list(range(rank))
    perm[at], perm[-1] = perm[-1], perm[at]
    last = x if at == rank - 1 else transpose(x, perm)
    length = dims[at] if dims[at] is not None else shape(x)[at - rank]
    found, places = top_k(last if descending else _flipped(last), length)
    if not descending:
        found = _flipped(found)
    return (found, places) if at == rank - 1 else (transpose(found, perm), transpose(places, perm))


def sort(values: TensorLike, axis: int = -1, direction: str = "ASCENDING", name: str | None = None) -> Tensor:
    """The entries along `axis` in order. `direction` is "ASCENDING" or "DESCENDING"."""
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
    """The positions (int32) that put the entries along `axis` in order.

    Always stable: equal entries keep their order.
    """
    descending = _direction(direction)
    with op_scope(name, "argsort", values):
        return _sorted_by_top_k(values, axis, descending)[1]


# --- membership in the top k --------------------------------------------------------------------------------


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
    if len(predictions) != len(targets):  # NumPy would repeat a single one
        raise invalid(f"predictions have {len(predictions)} rows, targets {len(targets)} entries")
    classes = predictions.shape[1]
    inside = (targets >= 0) & (targets < classes)
    if not classes:
        return np.asarray(inside)
    own = predictions[np.arange(len(targets)), np.where(inside, targets, 0)]
    better = (predictions > own[:, None]).sum(1)
    # As in TensorFlow: a row with an entry that is not finite is False.
    return np.asarray(inside & (better < k) & np.isfinite(predictions.astype(np.float64)).all(1))


define("InTopKV2", _in_top_k_rule, _in_top_k)


def in_top_k(predictions: TensorLike, targets: TensorLike, k: TensorLike, name: str | None = None) -> Tensor:
    """For each row of `predictions` (batch, classes), whether fewer than `k` classes score higher than the
    target class.

    Args:
        targets: class of each row, int32 or int64, shape (batch,). One outside of the classes is never in the top k.

    Returns:
        bool, shape (batch,). False for a row that holds an infinity or a NaN.
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
    """Where each value would have to be inserted to keep its row sorted.

    Args:
        sorted_sequence: shape (..., n), each row ascending.
        values: shape (..., m), the same leading dimensions.
        side: "left": before equal entries; "right": after them.

    Returns:
        `out_type` (int32 or int64), the shape of `values`.
    """
    if side not in ("left", "right"):
        raise ValueError(f"side must be 'left' or 'right', not {side!r}")
    op = "LowerBound" if side == "left" else "UpperBound"
    with op_scope(name, "searchsorted", sorted_sequence, values):
        row = convert(sorted_sequence, name="sorted_sequence")
        wanted = convert(values, name="values", prefer=row.dtype.base)
        flat = [reshape(t, stack([-1, shape(t)[-1]])) for t in (row, wanted)]
        return reshape(apply(op, flat, {"out_type": as_dtype(out_type)}), shape(wanted))
