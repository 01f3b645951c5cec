"""Gradients of reductions, and of `Fill` and `LinSpace`.

They are in a module of their own because they use ops of modules that import `reduce`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import constant
from ...core.constant_value import static_value
from ...core.dtypes import int32
from ...core.graph import Node, Tensor
from ...core.opdef import set_gradient
from ...core.shape import is_static
from ..array.concat_stack import concat
from ..array.dynamic_partition import setdiff1d
from ..array.gather import one_hot
from ..array.ranges import linspace, range as range_
from ..array.shapes import broadcast_to, invert_permutation, rank, reshape, shape, size, transpose
from .arithmetic import floordiv, floormod, maximum, multiply, real_divide
from .cast import cast
from .compare import equal
from .reduce import normal_axes, reduce_prod, reduce_sum
from .scan import cumprod


def _axis_mask(node: Node) -> Any:
    """An int vector with 1 at the reduced axes of the node's input and 0 elsewhere. A NumPy array if it is known statically."""
    x, axes = node.inputs
    known = static_value(axes)
    if known is not None and x.dims is not None:
        mask = np.zeros(len(x.dims), np.int32)
        mask[list(normal_axes(known, len(x.dims)))] = 1
        return mask
    ndims = rank(x)
    axes = cast(axes, int32)
    if axes.dims is None or len(axes.dims) != 1:
        axes = reshape(axes, [-1])
    return reduce_sum(one_hot((axes + ndims) % ndims, ndims, dtype=int32), 0)


def _kept_shape(node: Node) -> Any:
    """The input's shape with size 1 at the reduced axes, as an int vector."""
    x = node.inputs[0]
    mask = _axis_mask(node)
    if isinstance(mask, np.ndarray) and is_static(x.dims):
        return np.where(mask == 1, 1, np.array(x.dims, np.int32)).astype(np.int32)
    return shape(x) * (1 - mask) + mask


def _broadcastable(node: Node, t: Tensor) -> Tensor:
    """A tensor of the output's shape, reshaped so that it broadcasts against the input."""
    return t if node.attrs["keep_dims"] else reshape(t, _kept_shape(node))


def _full(node: Node, t: Tensor) -> Tensor:
    """A tensor of the output's shape, broadcast to the input's shape."""
    x = node.inputs[0]
    target = constant(np.array(x.dims, np.int32), name="Shape") if is_static(x.dims) else shape(x)
    # A scalar broadcasts without a reshape.
    return broadcast_to(t if t.dims == () else _broadcastable(node, t), target)


def _mean_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    x, y = node.inputs[0], node.outputs[0]
    if is_static(x.dims) and is_static(y.dims):
        count = int(np.prod(x.dims)) // max(int(np.prod(y.dims)), 1)  # type: ignore[arg-type]
        return [real_divide(_full(node, grad), max(count, 1)), None]
    factor = floordiv(size(x), maximum(size(y), 1))
    return [real_divide(_full(node, grad), cast(factor, grad.dtype.base)), None]


def _extreme_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    """The gradient goes to the elements that equal the maximum (or minimum), in equal shares."""
    x, axes = node.inputs
    hits = cast(equal(_broadcastable(node, node.outputs[0]), x), grad.dtype.base)
    count = reduce_sum(hits, axes, keepdims=True)
    return [multiply(real_divide(hits, count), _broadcastable(node, grad)), None]


def _prod_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    """The product of all other elements, by cumulative products from both ends. A division by the element would fail at 0."""
    x, axes = node.inputs
    known = static_value(axes)
    order: Any
    back: Any
    reduced: Any  # number of reduced axes
    if known is None or x.dims is None:
        total = rank(x)
        over = reshape(floormod(cast(axes, int32), total), [-1])
        order = concat([over, setdiff1d(range_(total), over)[0]], 0)
        back, reduced = invert_permutation(order), size(over)
    else:
        first = normal_axes(known, len(x.dims))
        order = (*first, *(i for i in range(len(x.dims)) if i not in first))
        back, reduced = np.argsort(order).astype(np.int32), len(first)
    moved = transpose(x, order)
    moved_shape = shape(moved)
    count = reduce_prod(moved_shape[:reduced])
    flat = reshape(moved, [count, reduce_prod(moved_shape[reduced:])])  # -1 would be ambiguous for an empty tensor
    others = multiply(cumprod(flat, 0, exclusive=True), cumprod(flat, 0, exclusive=True, reverse=True))
    return [multiply(_broadcastable(node, grad), transpose(reshape(others, moved_shape), back)), None]


def _linspace_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Element i is start + (stop - start) * share[i], and share runs from 0 to 1.
    dtype = node.outputs[0].dtype.base
    share = linspace(constant(0, dtype), constant(1, dtype), node.inputs[2])
    to_stop = reduce_sum(grad * share)
    return [reduce_sum(grad) - to_stop, to_stop, None]


for _op, _rule in {
    "Sum": lambda node, grad: [_full(node, grad), None],
    "Mean": _mean_gradient,
    "Prod": _prod_gradient,
    "Max": _extreme_gradient,
    "Min": _extreme_gradient,
    "Fill": lambda node, grad: [None, reduce_sum(grad)],
    "LinSpace": _linspace_gradient,
}.items():
    set_gradient(_op, _rule)
