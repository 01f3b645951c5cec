"""A dense tensor from coordinates and elements: `sparse_to_dense`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.dtypes import Array
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ..array.concat_stack import stack
from ..array.gather import gather_nd
from ..array.shapes import reshape, size
from ..math.cast import cast
from ..math.common import same_type
from ..math.reduce import reduce_sum
from ..math.static_operands import dims_of, index_operand, move_cost, need_index, need_rank, op_scope


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    indices, whole, values, default = inputs
    need_index(indices, "sparse_indices")
    same_type((indices, whole))
    need_rank(whole.dims, 1, "output_shape")
    typed_attr(attrs, "validate_indices", bool)
    return [(same_type((values, default)), static_dims(whole))]


def _sparse_to_dense(indices: Array, whole: Array, values: Array, default: Array, *, validate_indices: bool) -> Array:
    if indices.ndim > 2:
        raise invalid(f"sparse_indices should be a scalar, vector, or matrix, got shape {list(indices.shape)}")
    at = indices if indices.ndim == 2 else indices.reshape(-1, 1)
    count, rank = at.shape
    if rank != len(whole):
        raise invalid(f"output_shape has incorrect number of elements: {len(whole)} should be: {rank}")
    if values.shape not in ((), (count,)):
        raise invalid(f"sparse_values has incorrect shape {list(values.shape)}, should be [] or [{count}]")
    if default.ndim:
        raise invalid("default_value should be a scalar")
    outside = np.flatnonzero(((at < 0) | (at >= whole)).any(axis=1))
    if outside.size:
        first = outside[0]
        raise invalid(f"indices[{first}] = {at[first].tolist()} is out of bounds: need 0 <= index < {whole.tolist()}")
    strides = np.append(np.cumprod(whole[:0:-1], dtype=np.int64)[::-1], 1)[:rank]
    places = at @ strides if rank else np.zeros(count, np.int64)
    if validate_indices:
        steps = np.diff(places)
        wrong = np.flatnonzero(steps <= 0)
        if wrong.size:
            first = wrong[0] + 1
            problem = (
                "out of order. Many sparse ops require sorted indices: use sparse_reorder"
                if steps[wrong[0]]
                else "repeated"
            )
            raise invalid(f"indices[{first}] = {at[first].tolist()} is {problem}")
    out = np.full(dims_of(whole), default, values.dtype)
    out.reshape(-1)[places] = values
    return out


def _gradient(node: Node, grad: Any) -> Sequence[Any]:
    indices, whole, values, _ = node.inputs
    if values.dims is None:
        raise ValueError("The gradient of SparseToDense needs to know the rank of sparse_values; use set_shape")
    at = reshape(indices, stack([-1, size(whole)]))
    taken = gather_nd(grad, at)
    inside = reduce_sum(taken)
    return [None, None, taken if values.dims else inside, reduce_sum(grad) - inside]


define("SparseToDense", infer=_rule, reference=_sparse_to_dense, gradient=_gradient, cost=move_cost)


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: TensorLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A tensor with some elements set and the others at a default.

    Args:
        sparse_indices: coordinates: `[n, rank]`; `[n]` for a vector; a scalar for one element of one.
        output_shape: shape of the result. sparse_values: the elements, `[n]`, or one for all.
        default_value: what the others are; text needs one.
        validate_indices: refuse coordinates out of order or given twice, in each step.

    Raises:
        InvalidArgumentError: in a step, for such coordinates, for ones outside of the result, and if the numbers of elements
            and coordinates differ. Without the check, the last of several elements with equal coordinates counts.

    >>> sparse_to_dense([[0, 1], [1, 2]], [2, 3], [5, 6])   # evaluates to [[0, 5, 0], [0, 0, 6]]
    """
    with op_scope(name, "SparseToDense", sparse_indices, output_shape, sparse_values) as scope:
        at = index_operand(sparse_indices, "sparse_indices")
        whole = cast(index_operand(output_shape, "output_shape"), at.dtype.base)
        values = convert(sparse_values, name="sparse_values")
        default = convert(default_value, values.dtype.base, name="default_value")
        return apply("SparseToDense", (at, whole, values, default), {"validate_indices": bool(validate_indices)}, scope)
