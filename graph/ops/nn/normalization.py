"""Normalization: norms, moments, batch, layer and local response normalization.

`FusedBatchNormV3` computes in one node what `moments` and `batch_normalization` compute in a dozen. If x is of half precision, its scale,
offset and statistics are float32, and so is the computation. Local response normalization is that of AlexNet (Krizhevsky et al., NIPS
2012, section 3.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.build import Grads, TensorLike, constant, convert, make
from ...core.dtypes import FLOATS, Array, DType, bfloat16, float16, float32, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.hooks import hooks
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import Dims, element_count, merge, text
from ..array.shapes import broadcast_to, reshape, shape, size as size_of, squeeze
from ..linalg.linalg import matmul
from ..math.arithmetic import (
    add,
    divide,
    maximum,
    multiply,
    negative,
    power,
    rsqrt,
    sqrt,
    square,
    squared_difference,
    subtract,
)
from ..math.cast import cast
from ..math.common import allowed, input_cost, layout_of, need_floats
from ..math.reduce import reduce_mean, reduce_sum
from ..math.static_operands import apply_op, need_rank, one_of, op_scope

# --- norms and moments ---------------------------------------------------------------------------------------------


def _l2_loss(x: Array) -> Array:
    w = widened(x)
    return np.asarray(np.sum(w * w) / 2).astype(x.dtype)


define(
    "L2Loss",
    lambda inputs, attrs: [(allowed(inputs[0].dtype.base, FLOATS), ())],
    _l2_loss,
    gradient=lambda node, grad: [multiply(node.inputs[0], grad)],
    cost=input_cost(2.0),
)


def l2_loss(t: TensorLike, name: str | None = None) -> Tensor:
    """sum(t ** 2) / 2, a scalar."""
    return apply_op("L2Loss", name, t=t)


def l2_normalize(
    x: TensorLike, axis: Any = None, epsilon: float = 1e-12, name: str | None = None, dim: Any = None
) -> Tensor:
    """x scaled to an L2 norm of 1: `x / sqrt(max(sum(x ** 2), epsilon))`.

    Args:
        x: floats.
        axis: the axis or axes over which the norm is computed. None means all.
        epsilon: lower bound of the squared norm.
        name: name of the result's node.
        dim: old name of `axis`.
    """
    axis = one_of(axis, dim, "axis", "dim")
    with op_scope(name, "l2_normalize", x) as scope:
        values = convert(x, name="x")
        squares = reduce_sum(square(values), axis, keepdims=True)
        return multiply(values, rsqrt(maximum(squares, epsilon)), name=scope)


def moments(
    x: TensorLike,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """The mean and the population variance over axes.

    Args:
        x: floats. float16 and bfloat16 are summed in float32.
        axes: the axis or axes to reduce: [0] for batch normalization of vectors, [0, 1, 2] for images.
        shift: accepted without effect.
        name: name scope of the nodes.
        keep_dims: old name of `keepdims`.
        keepdims: keep the reduced axes with size 1.

    Returns:
        (mean, variance), of the type of x.
    """
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    with op_scope(name, "moments", x):
        values = convert(x, name="x")
        need_floats(values, "x", "moments")
        y = cast(values, float32) if values.dtype.base in (float16, bfloat16) else values
        mean = reduce_mean(y, axes, keepdims=True, name="mean")
        # TensorFlow stops the gradient through the mean here. It is 0, but the second derivative is not.
        variance = reduce_mean(squared_difference(y, mean), axes, keepdims=True, name="variance")
        if not keep:
            which = None if axes is None else axes if isinstance(axes, (list, tuple)) else [axes]
            mean, variance = squeeze(mean, which), squeeze(variance, which)
        if y is not values:
            mean, variance = cast(mean, values.dtype), cast(variance, values.dtype)
        return mean, variance


# --- batch and layer normalization ------------------------------------------------------------------------------------
def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike,
    scale: TensorLike,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """`scale * (x - mean) / sqrt(variance + variance_epsilon) + offset` (Ioffe and Szegedy, 2015).

    Args:
        x: floats.
        mean: the mean, which broadcasts against x.
        variance: the variance, which broadcasts against x.
        offset: what is added, which broadcasts against x. None means 0.
        scale: the factor, which broadcasts against x. None means 1.
        variance_epsilon: a small number that avoids a division by 0.
        name: name scope of the nodes.
    """
    with op_scope(name, "batchnorm", x, mean, variance, offset, scale):
        values = convert(x, name="x")
        need_floats(values, "x", "batch_normalization")
        factor = rsqrt(add(variance, variance_epsilon, name="add"))
        if scale is not None:
            factor = multiply(factor, scale, name="mul")
        shift = multiply(mean, factor, name="mul")
        shift = negative(shift) if offset is None else subtract(offset, shift, name="sub")
        scaled = multiply(values, _as_type(factor, values.dtype), name="mul")
        return add(scaled, _as_type(shift, values.dtype), name="add")


def _as_type(x: Tensor, dtype: DType) -> Tensor:
    return x if x.dtype.base is dtype.base else cast(x, dtype)


def layer_norm(
    x: TensorLike,
    gain: TensorLike = None,
    bias: TensorLike = None,
    axis: Any = -1,
    epsilon: float = 1e-5,
    name: str | None = None,
) -> Tensor:
    """Normalize each example by the mean and variance of its features (Ba, Kiros and Hinton, 2016).

    Args:
        x: floats.
        gain: the factor, which broadcasts against x. None means 1.
        bias: what is added, which broadcasts against x. None means 0.
        axis: the axis or axes of the features.
        epsilon: a small number that avoids a division by 0.
        name: name scope of the nodes.

    >>> layer_norm([[1.0, 3.0]])   # about [[-1, 1]]
    """
    with op_scope(name, "layer_norm", x, gain, bias):
        values = convert(x, name="x")
        mean, variance = moments(values, axis, keepdims=True)
        return batch_normalization(values, mean, variance, bias, gain, epsilon)


# --- fused batch normalization ----------------------------------------------------------------------------------------
class FusedBatchNorm(NamedTuple):
    """The result of `fused_batch_norm`."""

    y: Tensor
    batch_mean: Tensor
    batch_variance: Tensor


def _channel_axis(data_format: str) -> int:
    return 1 if data_format == "NCHW" else 3


def _other_axes(data_format: str) -> tuple[int, ...]:
    return (0, 2, 3) if data_format == "NCHW" else (0, 1, 2)


def _check_batch_norm_attrs(attrs: Attrs) -> None:
    layout_of(attrs.get("data_format"))
    typed_attr(attrs, "epsilon", float)
    typed_attr(attrs, "is_training", bool)


def _wide_type(dtype: DType) -> DType:
    """The type of scale, offset and statistics."""
    return float32 if dtype in (float16, bfloat16) else dtype


def _batch_norm_dims(x: Tensor, vectors: Sequence[Tensor], attrs: Attrs) -> tuple[Dims, Dims]:
    """The shapes of x and of the vectors, merged: the channels of one are those of the other."""
    need_rank(x.dims, 4, "x")
    dims: Dims = x.dims if x.dims is not None else (None,) * 4
    assert dims is not None
    axis = _channel_axis(attrs["data_format"])
    channels: Dims = (dims[axis],)
    wide = _wide_type(x.dtype.base)
    for v in vectors:
        if v.dtype.base is not wide:
            raise TypeError(f"scale, offset, mean and variance must be {wide.name}, not {v.dtype.base.name}")
        need_rank(v.dims, 1, v.name)
        channels = merge(channels, v.dims)
    assert channels is not None
    return (*dims[:axis], channels[0], *dims[axis + 1 :]), channels


def _fused_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check_batch_norm_attrs(attrs)
    typed_attr(attrs, "exponential_avg_factor", float)
    x, scale, offset, mean, variance = inputs
    dtype = allowed(x.dtype.base, FLOATS)
    needs_statistics = not attrs["is_training"] or attrs["exponential_avg_factor"] != 1.0
    given = (mean, variance) if needs_statistics else ()
    dims, channels = _batch_norm_dims(x, (scale, offset, *given), attrs)
    wide = _wide_type(dtype)
    return [(dtype, dims), *[(wide, channels)] * 4, (wide, (0,))]


def _spread(v: Array, data_format: str) -> Array:
    return v.reshape(-1, 1, 1) if data_format == "NCHW" else v


def _fused(
    x: Array,
    scale: Array,
    offset: Array,
    mean: Array,
    variance: Array,
    *,
    epsilon: float,
    data_format: str,
    is_training: bool,
    exponential_avg_factor: float,
) -> tuple[Array, ...]:
    dtype = scale.dtype
    wide = x.astype(dtype)
    given = (scale, offset) if is_training else (scale, offset, mean, variance)
    if any(v.shape != (x.shape[1 if data_format == "NCHW" else -1],) for v in given):
        shapes = ", ".join(text(v.shape) for v in given)
        raise invalid(
            f"An image of shape {text(x.shape)} ({data_format}) takes one number for each channel, not {shapes}"
        )
    if is_training:
        axes = _other_axes(data_format)
        if x.size:
            used_mean = wide.mean(axes, dtype=dtype)
            used_variance = np.square(wide - _spread(used_mean, data_format)).mean(axes, dtype=dtype)
        else:
            used_mean = used_variance = np.full(len(scale), np.nan, dtype)
        count = x.size // max(len(used_mean), 1)
        keep = dtype.type(1 - exponential_avg_factor)
        # The returned variance is the unbiased estimate, divided by n - 1.
        new_mean, new_variance = used_mean, used_variance * dtype.type(count / max(count - 1, 1))
        if keep:
            new_mean = keep * mean + (1 - keep) * new_mean
            new_variance = keep * variance + (1 - keep) * new_variance
    else:
        used_mean = new_mean = mean
        used_variance = new_variance = variance
    inverse = 1 / np.sqrt(used_variance + dtype.type(epsilon))
    y = (wide - _spread(used_mean, data_format)) * _spread(inverse * scale, data_format) + _spread(offset, data_format)
    return y.astype(x.dtype), new_mean, new_variance, used_mean, inverse, np.zeros(0, dtype)


# While training, inputs 3 and 4 of the gradient are outputs 3 and 4 of `FusedBatchNormV3`: the batch's mean and 1 / standard deviation.
# Otherwise they are its inputs mean and variance, as in TensorFlow.


def _fused_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    _check_batch_norm_attrs(attrs)
    grad, x, scale, mean, spread, _ = inputs
    dtype = allowed(x.dtype.base, FLOATS)
    if grad.dtype.base is not dtype:
        raise TypeError(f"y_backprop must be {dtype.name}, not {grad.dtype.base.name}")
    dims, channels = _batch_norm_dims(x, (scale, mean, spread), attrs)
    wide = _wide_type(dtype)
    return [(dtype, merge(dims, grad.dims)), *[(wide, channels)] * 2, *[(wide, (0,))] * 2]


def _fused_grad(
    grad: Array,
    x: Array,
    scale: Array,
    mean: Array,
    spread: Array,
    unused: Array,
    *,
    epsilon: float,
    data_format: str,
    is_training: bool,
) -> tuple[Array, ...]:
    dtype = scale.dtype
    inverse = spread if is_training else 1 / np.sqrt(spread + dtype.type(epsilon))
    axes = _other_axes(data_format)
    g = grad.astype(dtype)
    normal = (x.astype(dtype) - _spread(mean, data_format)) * _spread(inverse, data_format)
    for_offset = g.sum(axes, dtype=dtype)
    for_scale = (g * normal).sum(axes, dtype=dtype)
    if is_training:
        # The mean and the variance depend on x: subtract the gradients that flow through them.
        count = dtype.type(max(x.size // max(len(scale), 1), 1))
        g = g - _spread(for_offset / count, data_format) - normal * _spread(for_scale / count, data_format)
    for_x = g * _spread(scale * inverse, data_format)
    empty = np.zeros(0, dtype)
    return for_x.astype(x.dtype), for_scale, for_offset, empty, empty


def _along_channels(v: Tensor, data_format: str) -> Tensor:
    return reshape(v, [-1, 1, 1]) if data_format == "NCHW" else v


def _count_of(x: Tensor, vector: Tensor, dtype: DType) -> Tensor:
    """The number of elements per channel, as a scalar of that type."""
    total, channels = element_count(x.dims), element_count(vector.dims)
    if total is not None and channels:
        return constant(total // channels, dtype)
    return divide(cast(size_of(x), dtype), cast(size_of(vector), dtype))


def _fused_gradient(node: Node, *grads: Tensor | None) -> Grads:
    x, scale, offset, mean, variance = node.inputs
    y_grad, mean_grad, variance_grad = grads[:3]
    used_mean, inverse = node.outputs[3], node.outputs[4]
    statistics = (used_mean, inverse) if node.attrs["is_training"] else (mean, variance)
    attrs = {k: node.attrs[k] for k in ("epsilon", "data_format", "is_training")}
    wide, data_format = scale.dtype.base, attrs["data_format"]
    for_x = for_scale = for_offset = for_mean = for_variance = None
    if y_grad is not None:
        operands = (y_grad, x, scale, *statistics, node.outputs[5])
        for_x, for_scale, for_offset = make("FusedBatchNormGradV3", operands, attrs).outputs[:3]
    if not attrs["is_training"]:
        # y = (x - mean) * inverse * scale + offset, and the statistics are passed through.
        if for_scale is not None and for_offset is not None:
            for_mean = negative(multiply(multiply(for_offset, scale), inverse))
            for_variance = multiply(multiply(-0.5, multiply(for_scale, scale)), square(inverse))
        return [for_x, for_scale, for_offset, _plus(for_mean, mean_grad), _plus(for_variance, variance_grad)]
    factor = node.attrs["exponential_avg_factor"]
    if mean_grad is not None or variance_grad is not None:
        count = _count_of(x, scale, wide)
        if mean_grad is not None:
            share = _along_channels(divide(multiply(mean_grad, factor), count), data_format)
            for_x = _plus(for_x, cast(broadcast_to(share, shape(x)), x.dtype))
        if variance_grad is not None:
            centered = subtract(cast(x, wide), _along_channels(used_mean, data_format))
            share = divide(multiply(variance_grad, 2 * factor), maximum(subtract(count, 1), 1))
            for_x = _plus(for_x, cast(multiply(centered, _along_channels(share, data_format)), x.dtype))
    if factor != 1.0:
        for_mean = None if mean_grad is None else multiply(mean_grad, 1 - factor)
        for_variance = None if variance_grad is None else multiply(variance_grad, 1 - factor)
    return [for_x, for_scale, for_offset, for_mean, for_variance]


def _plus(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else add(a, b)


def _fused_grad_gradient(node: Node, *grads: Tensor | None) -> Grads:
    """The second derivative: express the gradient in elementary ops, and differentiate those."""
    y_grad, x, scale, mean, spread, _ = node.inputs
    data_format, wide = node.attrs["data_format"], scale.dtype.base
    axes = list(_other_axes(data_format))
    sources = [y_grad, x, scale]
    g, values = cast(y_grad, wide), cast(x, wide)
    if node.attrs["is_training"]:
        mean, variance = moments(values, axes)
    else:
        variance = spread
        sources += [mean, spread]
    inverse = rsqrt(add(variance, node.attrs["epsilon"]))
    normal = multiply(subtract(values, _along_channels(mean, data_format)), _along_channels(inverse, data_format))
    for_offset, for_scale = reduce_sum(g, axes), reduce_sum(multiply(g, normal), axes)
    if node.attrs["is_training"]:
        share = reduce_mean(g, axes, keepdims=True), reduce_mean(multiply(g, normal), axes, keepdims=True)
        g = subtract(subtract(g, share[0]), multiply(normal, share[1]))
    for_x = cast(multiply(g, _along_channels(multiply(scale, inverse), data_format)), x.dtype)
    used = [(y, w) for y, w in zip((for_x, for_scale, for_offset), grads, strict=False) if w is not None]
    # stop_gradients, for partial derivatives: y_grad and scale may depend on x.
    found = hooks.gradients([y for y, _ in used], sources, grad_ys=[w for _, w in used], stop_gradients=sources)
    return [*found, *[None] * (len(node.inputs) - len(found))]


define("FusedBatchNormV3", _fused_rule, _fused, gradient=_fused_gradient, cost=input_cost(8.0))
define(
    "FusedBatchNormGradV3",
    _fused_grad_rule,
    _fused_grad,
    gradient=_fused_grad_gradient,
    cost=input_cost(12.0),
)


def fused_batch_norm(
    x: TensorLike,
    scale: TensorLike,
    offset: TensorLike,
    mean: TensorLike = None,
    variance: TensorLike = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> FusedBatchNorm:
    """Batch normalization of images, in one node.

    Args:
        x: floats `[batch, height, width, channels]`, or `[batch, channels, height, width]` for "NCHW".
        scale: the factor of each channel. float32 if x is of half precision.
        offset: what is added to each channel, of the same type.
        mean: the mean of each channel. Required if not training, or with an `exponential_avg_factor` below 1.
        variance: the variance of each channel. Required as `mean` is.
        epsilon: a small number that avoids a division by 0, at least 1.001e-5.
        data_format: "NHWC" or "NCHW".
        is_training: normalize by the statistics of the batch instead of `mean` and `variance`.
        name: name of the node.
        exponential_avg_factor: the weight f of the batch in the returned statistics, `(1 - f) * given + f * batch`.

    Returns:
        (y, mean, variance). While training, the statistics of the batch, with the variance divided by n - 1. Otherwise the given ones.

    Raises:
        ValueError: `mean` or `variance` is missing but required, or the shapes do not fit.
        TypeError: the types do not fit.
    """
    training = bool(is_training)
    if (mean is None or variance is None) and not (training and exponential_avg_factor == 1.0):
        raise ValueError(
            f"mean and variance are needed when is_training={training} and exponential_avg_factor="
            f"{exponential_avg_factor}"
        )
    with op_scope(name, "FusedBatchNorm", x, scale, offset, mean, variance) as scope:
        values = convert(x, name="input")
        wide = _wide_type(values.dtype.base)
        nothing = np.zeros(0, wide.np)
        operands = (
            values,
            convert(scale, wide, name="scale"),
            convert(offset, wide, name="offset"),
            convert(nothing if mean is None else mean, wide, name="mean"),
            convert(nothing if variance is None else variance, wide, name="variance"),
        )
        attrs = {
            "epsilon": max(float(epsilon), 1.001e-5),
            "data_format": data_format,
            "is_training": training,
            "exponential_avg_factor": float(exponential_avg_factor),
        }
        return FusedBatchNorm(*make("FusedBatchNormV3", operands, attrs, scope).outputs[:3])


def _inverse_power(x: Tensor, exponent: float) -> Tensor:
    """x ** -exponent; for the usual exponents by roots, which take a fraction of the time."""
    if exponent == 0.5:
        return rsqrt(x)
    if exponent == 0.75:
        root = rsqrt(x)
        return multiply(root, sqrt(root))
    return power(x, -exponent)


def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Local response normalization, over neighbouring channels: `x / (bias + alpha * sum(x ** 2)) ** beta`.

    Args:
        input: floats `[batch, height, width, channels]`. The number of channels must be known statically.
        depth_radius: the number of channels on either side over which the sum is computed.
        bias: see the formula.
        alpha: see the formula.
        beta: see the formula.
        name: name scope of the nodes.

    Returns:
        A tensor of the shape and type of `input`.

    Raises:
        ValueError: the rank is not 4, or the number of channels is unknown.
        TypeError: the input is not of a floating type.

    >>> norm = dt.nn.lrn(pool, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)
    """
    with op_scope(name, "LRN", input):
        x = convert(input, name="input")
        dtype = allowed(x.dtype.base, FLOATS)
        need_rank(x.dims, 4, "input")
        channels = None if x.dims is None else x.dims[3]
        if channels is None:
            raise ValueError(f"the number of channels of {x!r} must be known")
        # The sum over a window of channels is a product with a band matrix of ones.
        apart = np.abs(np.subtract.outer(np.arange(channels), np.arange(channels)))
        band = constant((apart <= depth_radius).astype(np.float32), dtype)
        squares = matmul(reshape(square(x), [-1, channels]), band)
        around = reshape(squares, x.dims if x.dims is not None and None not in x.dims else shape(x))
        result = multiply(x, _inverse_power(bias + alpha * around, beta))
        result.set_shape(x.dims)
        return result
