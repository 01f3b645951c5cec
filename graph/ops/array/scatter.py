"""Scatter by coordinates: into zeros (scatter_nd), or into a tensor (tensor_scatter_nd_*).

Several updates of one element are applied in order. The gradient of a scatter is a gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.dtypes import Array, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, GradientRule, Output, define, nbytes, set_gradient
from ...core.rows import combine_each
from ...core.shape import Dims, compatible, text
from ...tensors.indexed_slices import IndexedSlices
from ..math.cast import cast
from ..math.common import same_type
from ..math.compare import equal
from ..math.static_operands import dims_of, index_operand, move_cost, need_rank, op_scope
from .creation import has_tensor, zeros_like
from .gather import coordinates_of, flat_places, gather_nd
from .segments import combine_rows
from .shapes import shape, squeeze


def updates_fit(dims: Dims, indices: Tensor, updates: Tensor) -> None:
    """ValueError unless the static shape of `updates` has one slice of a target of shape `dims` for each coordinate."""
    _, outer, inner = coordinates_of(dims, indices)
    if outer is None or updates.dims is None:
        return
    if len(updates.dims) < len(outer) or not compatible(outer, updates.dims[: len(outer)]):
        raise ValueError(
            f"updates of shape {text(updates.dims)} must begin with {text(outer)}, the shape of the list of coordinates"
        )
    if inner is not None and not compatible(inner, updates.dims[len(outer) :]):
        raise ValueError(
            f"updates must have shape {text(outer + inner)} (indices.shape[:-1] + the rest of {text(dims)}), "
            f"not {text(updates.dims)}"
        )


def _scatter_nd_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    indices, updates, wanted = inputs
    same_type((indices, wanted))
    need_rank(wanted.dims, 1, "shape")
    dims = static_dims(wanted)
    updates_fit(dims, indices, updates)
    return [(updates.dtype.base, dims)]


def _places_of(dims: tuple[int, ...], indices: Array, updates: Array) -> tuple[Array, int, tuple[int, ...]]:
    """See `flat_places`. InvalidArgumentError unless the updates fit."""
    wanted = (*indices.shape[:-1], *dims[indices.shape[-1] :])
    if indices.shape[-1] > len(dims) or updates.shape != wanted:
        raise invalid(
            f"updates must have shape {text(wanted)} for indices {text(indices.shape)} into {text(dims)}, "
            f"not {text(updates.shape)}"
        )
    return flat_places(dims, indices)


def combine_at(out: Array, indices: Array, updates: Array, ufunc: np.ufunc | None) -> None:
    """Apply updates to `out` at coordinates, in order. A `ufunc` of None assigns. InvalidArgumentError unless they fit."""
    places, count, inner = _places_of(out.shape, indices, updates)
    # ufuncs do not support bfloat16, and float16 would lose precision
    total = out if ufunc is None else widened(out)
    slices = total.reshape(count, *inner)
    rows = updates.reshape(places.size, *inner)
    if ufunc is None:
        slices[places.ravel()] = rows
    else:
        combine_each(slices, places.ravel(), rows.astype(total.dtype, copy=False), ufunc)
    if not np.may_share_memory(slices, out):
        out[...] = slices.reshape(out.shape)


def _scatter_nd(indices: Array, updates: Array, wanted: Array) -> Array:
    dims = tuple(dims_of(wanted))
    if updates.dtype == object:
        out = np.full(dims, b"", object)
        combine_at(out, indices, updates, np.add)
        return out
    places, count, _ = _places_of(dims, indices, updates)
    kind = "Max" if updates.dtype == np.bool_ else "Sum"  # of truth values: whether one is true
    return combine_rows(updates, places, count, kind, empty=0).reshape(dims)


define(
    "ScatterNd",
    _scatter_nd_rule,
    _scatter_nd,
    gradient=lambda node, grad: [None, gather_nd(grad, node.inputs[0]), None],
    cost=lambda node: Cost(float(nbytes(node.inputs[1]) // max(node.outputs[0].dtype.size, 1)), move_cost(node).bytes),
)


def scatter_nd(indices: TensorLike, updates: TensorLike, shape: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of zeros to which slices are added at coordinates. Slices at the same coordinates add up. Strings are concatenated.

    Args:
        indices: int32 or int64. The last dimension holds coordinates.
        updates: the slices, of shape `indices.shape[:-1] + shape[indices.shape[-1]:]`.
        shape: shape of the result.
        name: name of the node.

    >>> scatter_nd([[1], [1]], [10, 20], [3])   # evaluates to [0, 30, 0]
    """
    with op_scope(name, "ScatterNd", indices, updates, shape) as scope:
        at = index_operand(indices, "indices")
        wanted = shape if isinstance(shape, Tensor) or has_tensor(shape) else np.asarray(shape, at.dtype.np)
        return apply("ScatterNd", (at, convert(updates, name="updates"), index_operand(wanted, "shape")), None, scope)


def _tensor_scatter_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    tensor, indices, updates = inputs
    dtype = same_type((tensor, updates))
    updates_fit(tensor.dims, indices, updates)
    return [(dtype, tensor.dims)]


def _tensor_scatter(ufunc: np.ufunc | None, tensor: Array, indices: Array, updates: Array) -> Array:
    out = tensor.copy()
    combine_at(out, indices, updates, ufunc)
    return out


def _scatter_update_gradient(node: Node, grad: Any) -> Sequence[Any]:
    _, indices, updates = node.inputs
    grad = convert(grad)
    return [tensor_scatter_nd_update(grad, indices, zeros_like(updates)), None, gather_nd(grad, indices)]


def _scatter_extreme_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # The old elements and the updates that equal the result share its gradient, as in TensorFlow.
    tensor, indices, updates = node.inputs
    grad = convert(grad)
    dtype = tensor.dtype.base
    result = node.outputs[0]
    is_old = cast(equal(tensor, result), dtype)
    is_update = cast(equal(updates, gather_nd(result, indices)), dtype)
    grad = grad / tensor_scatter_nd_add(is_old, indices, is_update)
    return [grad * is_old, None, gather_nd(grad, indices) * is_update]


_SCATTERS: dict[str, tuple[np.ufunc | None, GradientRule]] = {
    "Update": (None, _scatter_update_gradient),
    "Add": (np.add, lambda node, grad: [grad, None, gather_nd(grad, node.inputs[1])]),
    "Sub": (np.subtract, lambda node, grad: [grad, None, -gather_nd(grad, node.inputs[1])]),
    "Min": (np.minimum, _scatter_extreme_gradient),
    "Max": (np.maximum, _scatter_extreme_gradient),
}
for _kind, (_ufunc, _gradient) in _SCATTERS.items():
    _reference = partial(_tensor_scatter, _ufunc)
    define(f"TensorScatter{_kind}", _tensor_scatter_rule, _reference, gradient=_gradient, cost=move_cost)


def scatter_into(op: str, tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None) -> Tensor:
    """Add a node of one of the ops `TensorScatter...`. Its operands are converted in its name scope."""
    with op_scope(name, op, tensor, indices, updates) as scope:
        x, at = convert(tensor, name="tensor"), index_operand(indices, "indices")
        return apply(op, (x, at, convert(updates, name="updates", prefer=x.dtype.base)), None, scope)


def tensor_scatter_nd_update(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with slices replaced at coordinates. Of several slices at the same coordinates, the last is used.

    Args:
        tensor: the old values.
        indices: int32 or int64. The last dimension holds coordinates.
        updates: the slices, of shape `indices.shape[:-1] + tensor.shape[indices.shape[-1]:]`.
        name: name of the node.

    >>> tensor_scatter_nd_update([1, 2, 3], [[0], [2]], [10, 30])   # evaluates to [10, 2, 30]
    """
    return scatter_into("TensorScatterUpdate", tensor, indices, updates, name)


def tensor_scatter_nd_add(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with slices added at coordinates. Arguments as for `tensor_scatter_nd_update`."""
    return scatter_into("TensorScatterAdd", tensor, indices, updates, name)


def tensor_scatter_nd_min(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with the minimum of old values and updates at coordinates. Arguments as for `tensor_scatter_nd_update`."""
    return scatter_into("TensorScatterMin", tensor, indices, updates, name)


def tensor_scatter_nd_max(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with the maximum of old values and updates at coordinates. Arguments as for `tensor_scatter_nd_update`."""
    return scatter_into("TensorScatterMax", tensor, indices, updates, name)


def _gather_nd_gradient(node: Node, grad: Any) -> Sequence[Any]:
    params, indices = node.inputs
    whole = shape(params, out_type=indices.dtype.base)
    if indices.dims is not None and len(indices.dims) == 2 and indices.dims[-1] == 1:
        return [IndexedSlices(grad, squeeze(indices, -1), whole), None]
    return [scatter_nd(indices, grad, whole), None]


set_gradient("GatherNd", _gather_nd_gradient)
