"""Gradients of broadcasts.

If `x` was repeated along an axis to match `y`, each element of `x` contributes to several results, and its gradient is the sum of theirs.
The static sizes mostly determine these axes when the graph is built. They do not if a size is unknown and the other one is not 1. Then
`BroadcastGradientArgs` computes the axes in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.constant_value import static_dims
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, set_gradient
from ...core.shape import Dims, broadcast, text
from ..array.shapes import reshape, shape
from .common import same_type
from .reduce import reduce_sum
from .static_operands import Index, apply_op, need_index


def _args_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    for t in inputs:
        need_index(t, "a shape", 1)
    return [(same_type(inputs), (None,))] * 2


def _args_reference(s0: Any, s1: Any) -> tuple[Any, Any]:
    rank = max(len(s0), len(s1))
    # An axis where both sizes are 1 is listed for both, as in TensorFlow. A sum over it changes nothing.
    return _axes_of_one(s0, rank), _axes_of_one(s1, rank)


def _axes_of_one(sizes: Any, rank: int) -> Any:
    """The axes where a tensor of this shape, extended to `rank` by leading axes, has size 1."""
    missing = rank - len(sizes)
    axes = [*range(missing), *(missing + i for i, size in enumerate(sizes.tolist()) if size == 1)]
    return np.array(axes, sizes.dtype)


define("BroadcastGradientArgs", _args_rule, _args_reference)


def _shape_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    ((dtype, _), _) = _args_rule(inputs, attrs)
    broadcast(static_dims(inputs[0]), static_dims(inputs[1]))
    known = [t.dims[0] for t in inputs if t.dims is not None and t.dims[0] is not None]
    return [(dtype, (max(known) if len(known) == 2 else None,))]


def _shape_reference(s0: Any, s1: Any) -> Any:
    try:
        return np.array(broadcast(tuple(s0.tolist()), tuple(s1.tolist())), s0.dtype)
    except ValueError:
        raise invalid(f"Shapes {text(tuple(s0.tolist()))} and {text(tuple(s1.tolist()))} do not broadcast") from None


define("BroadcastArgs", _shape_rule, _shape_reference)


def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """The shape that two shapes broadcast to, computed in the step.

    Args:
        shape_x: a shape, an int32 or int64 vector.
        shape_y: another one, of the same type.

    Returns:
        A vector of the same type.

    Raises:
        ValueError: the static shapes do not broadcast.
        InvalidArgumentError: in a step, the shapes do not broadcast.
    """
    return apply_op("BroadcastArgs", None, s0=Index(shape_x), s1=Index(shape_y))


def repeated_axes(x: Dims, y: Dims) -> tuple[list[int], list[int]] | None:
    """The axes of `broadcast(x, y)` over which to sum the gradients of x and of y. None if unknown sizes leave them open.

    >>> repeated_axes((None, 10), (10,))
    ([], [0])
    """
    if x is None or y is None:
        return None
    rank = max(len(x), len(y))
    missing_x, missing_y = rank - len(x), rank - len(y)
    sum_x: list[int] = []
    sum_y: list[int] = []
    for axis in range(rank):
        a = 1 if axis < missing_x else x[axis - missing_x]
        b = 1 if axis < missing_y else y[axis - missing_y]
        if axis < missing_x or (a == 1 and b != 1):
            sum_x.append(axis)
        elif axis < missing_y or (b == 1 and a != 1):
            sum_y.append(axis)
        elif a is None or b is None:
            return None
    return sum_x, sum_y


def unbroadcast(
    x: Tensor, y: Tensor, grad_x: Tensor | None, grad_y: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """Sum gradients of the broadcast shape down to the shapes of x and y."""
    if x is y:
        return grad_x, grad_y
    if x.dims is None and y.dims == ():
        return grad_x, None if grad_y is None else reduce_sum(grad_y)
    if y.dims is None and x.dims == ():
        return None if grad_x is None else reduce_sum(grad_x), grad_y
    axes = repeated_axes(x.dims, y.dims)
    if axes is not None:
        assert x.dims is not None
        assert y.dims is not None
        rank = max(len(x.dims), len(y.dims))
        return _sum_over(grad_x, axes[0], rank - len(x.dims)), _sum_over(grad_y, axes[1], rank - len(y.dims))
    shape_x, shape_y = shape(x), shape(y)
    axes_x, axes_y = make("BroadcastGradientArgs", (shape_x, shape_y)).outputs
    return (
        None if grad_x is None else reshape(reduce_sum(grad_x, axes_x), shape_x),
        None if grad_y is None else reshape(reduce_sum(grad_y, axes_y), shape_y),
    )


def _sum_over(grad: Tensor | None, axes: list[int], missing: int) -> Tensor | None:
    """The sum over `axes`. The first `missing` axes are removed, the others stay with size 1."""
    if grad is None or not axes:
        return grad
    kept = [a for a in axes if a >= missing]
    if kept:
        grad = reduce_sum(grad, kept, keepdims=True)
    if missing:
        grad = reduce_sum(grad, list(range(missing)))
    return grad


def _broadcast_to_gradient(node: Node, grad: Any) -> Sequence[Any]:
    grad = convert(grad)
    return [unbroadcast(node.inputs[0], grad, grad, None)[0], None]


set_gradient("BroadcastTo", _broadcast_to_gradient)
