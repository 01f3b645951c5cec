"""Softmax and cross entropies.

The losses take logits and not probabilities, because log(softmax(x)) can be computed exactly where softmax(x) rounds to 0. Their ops also
return the gradient with respect to the logits, which TensorFlow calls `backprop`: it is cheap once the exponentials are computed. All ops
work along the last axis.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import Grads, TensorLike, apply, convert, make
from ...core.dtypes import FLOATS, Array, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define
from ...core.shape import merge
from ..array.creation import zeros_like
from ..array.identity_and_placeholders import stop_gradient
from ..array.shapes import expand_dims, reshape, shape, transpose
from ..math.arithmetic import absolute, add, multiply, negative, subtract
from ..math.cast import cast
from ..math.common import allowed, input_cost, same_type
from ..math.compare import greater_equal, where_v2
from ..math.elementwise import exp, log1p
from ..math.reduce import reduce_sum
from ..math.static_operands import need_index, need_rank_at_least, normal_axis, one_of, op_scope
from .activations import relu

_SOFTMAX_FLOPS = 14.0  # an exp (10), maximum, difference, sum, quotient


# --- softmax ----------------------------------------------------------------------------------------------------------


def _log_softmax(x: Array) -> Array:
    """log(softmax(x)) in float32 or wider."""
    x = widened(x)
    shifted = x - x.max(-1, keepdims=True, initial=-np.inf)  # the largest exponential is 1: none overflows
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _softmax(x: Array) -> Array:
    x = widened(x)
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _rounded(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda logits: function(logits).astype(logits.dtype, copy=False)


def _softmax_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    need_rank_at_least(x.dims, 1, "logits")
    return [(allowed(x.dtype.base, FLOATS), x.dims)]


def _softmax_cost(node: Node) -> Cost:
    return default_cost(node, _SOFTMAX_FLOPS)


def _softmax_gradient(node: Node, grad: Tensor) -> Grads:
    y = node.outputs[0]
    return [multiply(subtract(grad, reduce_sum(multiply(grad, y), -1, keepdims=True)), y)]


define("Softmax", _softmax_rule, _rounded(_softmax), gradient=_softmax_gradient, cost=_softmax_cost)
define(
    "LogSoftmax",
    _softmax_rule,
    _rounded(_log_softmax),
    gradient=lambda node, grad: [subtract(grad, multiply(reduce_sum(grad, -1, keepdims=True), exp(node.outputs[0])))],
    cost=_softmax_cost,
)


def softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis: probabilities from logits.

    Args:
        logits: floats, of rank 1 or more.
        axis: the axis of the classes. None means the last.
        name: name of the node.
        dim: old name of `axis`.

    Raises:
        ValueError: there is no such axis, or it is not the last and the rank is unknown.

    >>> softmax([[0.0, 0.0], [0.0, 1000.0]])   # [[0.5, 0.5], [0, 1]]
    """
    return _along("Softmax", logits, _one_axis(axis, dim), name)


def log_softmax(logits: TensorLike, axis: int | None = None, name: str | None = None, dim: int | None = None) -> Tensor:
    """log(softmax(x)), exact where softmax(x) rounds to 0. Arguments as for `softmax`."""
    return _along("LogSoftmax", logits, _one_axis(axis, dim), name)


def _one_axis(axis: int | None, dim: int | None) -> int:
    found = one_of(axis, dim, "axis", "dim")
    return -1 if found is None else int(found)


def _along(op: str, logits: TensorLike, axis: int, name: str | None) -> Tensor:
    """Apply an op that works along the last axis along any axis, with transposes."""
    if isinstance(logits, Tensor) and axis == -1:
        return apply(op, (logits,), None, name)
    with op_scope(name, op, logits) as scope:
        x = convert(logits, name="logits")
        order = _axis_last(x, axis)
        if order is None:
            return apply(op, (x,), None, scope)
        back = [order.index(i) for i in range(len(order))]
        return transpose(apply(op, (transpose(x, order),)), back, name=scope)


def _axis_last(x: Tensor, axis: int) -> list[int] | None:
    """The permutation that moves `axis` to the end. None if it is already there."""
    if axis == -1:
        return None
    if x.dims is None:
        raise ValueError(f"The rank of {x!r} must be known for axis {axis}: use set_shape, or axis=-1")
    at = normal_axis(axis, len(x.dims))
    if at == len(x.dims) - 1:
        return None
    return [*(i for i in range(len(x.dims)) if i != at), at]


# --- cross entropies over classes -------------------------------------------------------------------------------------


def _dense_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    logits, labels = inputs
    dtype = allowed(same_type(inputs), FLOATS)
    need_rank_at_least(logits.dims, 1, "logits")
    need_rank_at_least(labels.dims, 1, "labels")
    dims = merge(logits.dims, labels.dims)
    return [(dtype, None if dims is None else dims[:-1]), (dtype, dims)]


_SWAPPED = (
    "softmax_cross_entropy: the rows of the logits are probabilities (not negative, with a sum of 1), and those of the labels are not: "
    "are the two swapped? The labels come first"
)


def _are_probabilities(x: Array, sums: Array | None = None) -> bool:
    """Whether the elements of each row are not negative and add up to about 1. Half-precision sums differ from 1 by up to 0.01."""
    # max() first, so that no sum overflows.
    if x.size == 0 or x.shape[-1] == 1 or not x.min() >= 0 or (sums is None and not x.max() < 1.01):
        return False
    return bool((abs((x.sum(-1, dtype=np.float64) if sums is None else sums) - 1) < 0.01).all())


def _dense(logits: Array, labels: Array) -> tuple[Array, Array]:
    if logits.shape != labels.shape:
        raise ValueError("logits and labels must have one shape")
    log_p = _log_softmax(logits)
    y = labels.astype(log_p.dtype)
    sums = y.sum(-1, keepdims=True)
    if not _are_probabilities(y, sums) and _are_probabilities(logits):
        warnings.warn(_SWAPPED, stacklevel=2)  # a warning and not an error, because TensorFlow accepts any labels
    # A class of probability 0 contributes 0, also if its logit is -inf.
    loss = -np.where(y == 0, 0, y * log_p).sum(-1)
    # TensorFlow returns softmax - labels, which is the gradient only if the labels sum to 1.
    backprop = np.exp(log_p) * sums - y
    return loss.astype(logits.dtype), backprop.astype(logits.dtype)


def _sparse_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    logits, labels = inputs
    dtype = allowed(logits.dtype.base, FLOATS)
    need_rank_at_least(logits.dims, 1, "logits")
    if logits.dims is None:
        need_index(labels, "labels")
        return [(dtype, labels.dims), (dtype, None if labels.dims is None else (*labels.dims, None))]
    if labels.dims is not None and len(labels.dims) != len(logits.dims) - 1:
        raise ValueError(
            f"labels must have one dimension less than logits, which have rank {len(logits.dims)}; they have "
            f"rank {len(labels.dims)}. For one probability per class use softmax_cross_entropy_with_logits"
        )
    need_index(labels, "labels")
    outer = merge(logits.dims[:-1], labels.dims) or ()
    return [(dtype, outer), (dtype, (*outer, logits.dims[-1]))]


def _sparse(logits: Array, labels: Array) -> tuple[Array, Array]:
    if logits.shape[:-1] != np.shape(labels):
        raise ValueError("labels must have the shape of logits without its last dimension")
    classes = logits.shape[-1]
    flat = np.ravel(labels)
    if flat.size and (flat.min() < 0 or flat.max() >= classes):
        bad = int(flat[(flat < 0) | (flat >= classes)][0])
        raise invalid(f"Received a label value of {bad} which is outside the valid range of [0, {classes}).")
    log_p = _log_softmax(logits).reshape(flat.size, classes)
    at = np.arange(flat.size), flat
    loss = -log_p[at]
    backprop = np.exp(log_p)
    backprop[at] -= 1
    dtype = logits.dtype
    return (
        loss.reshape(np.shape(labels)).astype(dtype, copy=False),
        backprop.reshape(logits.shape).astype(dtype, copy=False),
    )


def _loss_gradient(node: Node, grad_loss: Tensor | None, grad_backprop: Tensor | None) -> tuple[Any, Any]:
    """The gradient with respect to the logits, and softmax(logits) or None.

    The output `backprop` is s * p - labels, where p is the softmax and s the sum of the labels (1 for sparse labels).
    """
    total: Tensor | None = None
    if grad_loss is not None:
        total = multiply(expand_dims(grad_loss, -1), node.outputs[1])
    if grad_backprop is None:
        return total, None
    p = softmax(node.inputs[0])
    curved = multiply(subtract(grad_backprop, reduce_sum(multiply(grad_backprop, p), -1, keepdims=True)), p)
    if node.type == "SoftmaxCrossEntropyWithLogits":
        curved = multiply(curved, reduce_sum(node.inputs[1], -1, keepdims=True))
    return curved if total is None else add(total, curved), p


def _dense_gradient(node: Node, grad_loss: Tensor | None, grad_backprop: Tensor | None) -> Grads:
    for_logits, p = _loss_gradient(node, grad_loss, grad_backprop)
    for_labels: Tensor | None = None
    if grad_loss is not None:
        for_labels = negative(multiply(expand_dims(grad_loss, -1), log_softmax(node.inputs[0])))
    if grad_backprop is not None:
        more = subtract(reduce_sum(multiply(grad_backprop, p), -1, keepdims=True), grad_backprop)
        for_labels = more if for_labels is None else add(for_labels, more)
    return [for_logits, for_labels]


_loss_cost = input_cost(_SOFTMAX_FLOPS + 6)
define("SoftmaxCrossEntropyWithLogits", _dense_rule, _dense, gradient=_dense_gradient, cost=_loss_cost)
define(
    "SparseSoftmaxCrossEntropyWithLogits",
    _sparse_rule,
    _sparse,
    gradient=lambda node, grad_loss, grad_backprop: [_loss_gradient(node, grad_loss, grad_backprop)[0], None],
    cost=_loss_cost,
)


def _need_both(function: str, sentinel: Any, labels: Any, logits: Any) -> None:
    if sentinel is not None:
        raise ValueError(f"Only call `{function}` with named arguments (labels=..., logits=..., ...)")
    if labels is None or logits is None:
        raise ValueError("Both labels and logits must be provided.")


def checked_logits(function: str, labels: TensorLike, logits: TensorLike) -> Tensor:
    """The logits as a tensor.

    Raises:
        TypeError: they are not of a floating type. If the labels are, the error asks whether the two are swapped.
    """
    x = convert(logits, name="logits")
    if not x.dtype.is_floating:
        y = convert(labels, name="labels")
        swapped = (
            f", and the labels are {y.dtype.base.name}: are the two swapped? The labels come first"
            * y.dtype.is_floating
        )
        raise TypeError(f"{function}: logits must be of a floating type, not {x.dtype.base.name}{swapped}")
    return x


def softmax_cross_entropy_with_logits(
    _sentinel: Any = None,
    labels: TensorLike = None,
    logits: TensorLike = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """`softmax_cross_entropy_with_logits_v2` without a gradient with respect to the labels."""
    _need_both("softmax_cross_entropy_with_logits", _sentinel, labels, logits)
    with op_scope(name, "softmax_cross_entropy_with_logits_sg", logits, labels) as scope:
        fixed = stop_gradient(convert(labels, name="labels"), name="labels_stop_gradient")
        return softmax_cross_entropy_with_logits_v2(fixed, logits, axis=dim if axis is None else axis, name=scope)


def softmax_cross_entropy_with_logits_v2(
    labels: TensorLike,
    logits: TensorLike,
    axis: int | None = None,
    name: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """The softmax cross entropy `-sum(labels * log(softmax(logits)))` along an axis.

    Args:
        labels: the true probabilities of the classes, in the shape of the logits or with as many elements in another rank. They are cast to
            the type of the logits.
        logits: unnormalized log probabilities, floats.
        axis: the axis of the classes. None means the last.
        name: name of the node.
        dim: old name of `axis`.

    Returns:
        The losses, in the shape of the logits without the axis.

    Raises:
        TypeError: the logits are not of a floating type.
        ValueError: the shapes do not fit.
    """
    _need_both("softmax_cross_entropy_with_logits_v2", None, labels, logits)
    with op_scope(name, "softmax_cross_entropy_with_logits", logits, labels) as scope:
        x = checked_logits("softmax_cross_entropy_with_logits", labels, logits)
        y = cast(convert(labels, name="labels"), x.dtype)
        if x.dims and y.dims is not None and y.dims == x.dims[:-1] and x.dims[-1] != 1:
            raise ValueError(
                f"softmax_cross_entropy_with_logits: labels of shape {y.shape} are not one probability per class, as logits of shape "
                f"{x.shape} need. For the numbers of the true classes use sparse_softmax_cross_entropy_with_logits"
            )
        order = _axis_last(x, _one_axis(axis, dim))
        if order is not None:
            x, y = transpose(x, order), transpose(y, order)
        if x.dims is not None and y.dims is not None and len(x.dims) != len(y.dims):
            y = reshape(y, shape(x))  # TensorFlow makes matrices of both
        return make("SoftmaxCrossEntropyWithLogits", (x, y), None, scope).outputs[0]


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: Any = None, labels: TensorLike = None, logits: TensorLike = None, name: str | None = None
) -> Tensor:
    """The softmax cross entropy of classes, `-log(softmax(logits))[label]`.

    Args:
        labels: the true classes, int32 or int64 in [0, classes), in the shape of the logits without the last axis.
        logits: unnormalized log probabilities, floats, with the classes along the last axis.
        name: name of the node.

    Returns:
        The losses, in the shape of the labels and the type of the logits.

    Raises:
        ValueError: the ranks do not fit.
        InvalidArgumentError: in a step, a label is out of range.

    >>> loss = sparse_softmax_cross_entropy_with_logits(labels=[1], logits=[[0.0, 0.0]])   # [log 2]
    """
    function = "sparse_softmax_cross_entropy_with_logits"
    _need_both(function, _sentinel, labels, logits)
    default = "SparseSoftmaxCrossEntropyWithLogits"
    with op_scope(name, default, labels, logits):
        y = convert(labels, name="labels")
        x = checked_logits(function, y, logits)
        return make(default, (x, y), None, name).outputs[0]


# --- sigmoid cross entropies ------------------------------------------------------------------------------------------


def sigmoid_cross_entropy_with_logits(
    _sentinel: Any = None, labels: TensorLike = None, logits: TensorLike = None, name: str | None = None
) -> Tensor:
    """The sigmoid cross entropy, element by element: `max(x, 0) - x * z + log(1 + exp(-|x|))` for logit x and label z.

    Args:
        labels: the true probabilities, in [0, 1].
        logits: floats of the same shape.
        name: name of the result's node.

    Returns:
        The losses, in the shape and type of the logits.

    Raises:
        ValueError: the shapes differ.
    """
    _need_both("sigmoid_cross_entropy_with_logits", _sentinel, labels, logits)
    with op_scope(name, "logistic_loss", logits, labels) as scope:
        x, z = _one_shape(checked_logits("sigmoid_cross_entropy_with_logits", labels, logits), labels)
        zeros = zeros_like(x)
        positive = greater_equal(x, zeros)
        # where_v2 instead of relu and abs, so that the gradients of both terms at 0 are from the same side
        above = where_v2(positive, x, zeros)
        minus_abs = where_v2(positive, negative(x), x)
        return add(subtract(above, multiply(x, z)), log1p(exp(minus_abs)), name=scope)


def weighted_cross_entropy_with_logits(
    labels: TensorLike = None,
    logits: TensorLike = None,
    pos_weight: TensorLike = None,
    name: str | None = None,
    targets: TensorLike = None,
) -> Tensor:
    """`sigmoid_cross_entropy_with_logits` that multiplies the loss of positive labels by `pos_weight`.

    Args:
        labels: the true probabilities, in [0, 1], in the shape and type of the logits.
        logits: floats.
        pos_weight: the weight of positive labels, which broadcasts against them.
        name: name of the result's node.
        targets: old name of `labels`.
    """
    labels = one_of(labels, targets, "labels", "targets")
    _need_both("weighted_cross_entropy_with_logits", None, labels, logits)
    if pos_weight is None:
        raise ValueError("pos_weight must be provided.")
    with op_scope(name, "logistic_loss", logits, labels) as scope:
        x, z = _one_shape(checked_logits("weighted_cross_entropy_with_logits", labels, logits), labels)
        extra = subtract(convert(pos_weight, x.dtype, name="pos_weight"), 1)
        weight = add(1, multiply(extra, z))
        softplus_of_minus_x = add(log1p(exp(negative(absolute(x)))), relu(negative(x)))
        return add(multiply(subtract(1, z), x), multiply(weight, softplus_of_minus_x), name=scope)


def _one_shape(logits: TensorLike, labels: TensorLike) -> tuple[Tensor, Tensor]:
    x = convert(logits, name="logits")
    z = labels if isinstance(labels, Tensor) else convert(labels, x.dtype, name="labels")
    try:
        merge(z.dims, x.dims)
    except ValueError:
        raise ValueError(f"logits and labels must have the same shape: {x!r} and {z!r}") from None
    return x, z
