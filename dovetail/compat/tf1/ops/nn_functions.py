"""Layers, losses, windows and moments under names that only TensorFlow 1 has."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert
from ....graph.core.dtypes import bfloat16, float16, float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.array.gather import gather
from ....graph.ops.array.shapes import shape, squeeze
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import add, divide, multiply, square, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.common import need_floats
from ....graph.ops.math.compare import greater_equal, less_equal, logical_and, where_v2
from ....graph.ops.math.elementwise import exp, log
from ....graph.ops.math.reduce import reduce_prod, reduce_sum
from ....graph.ops.math.static_operands import index_operand, one_of, op_scope
from ....graph.ops.nn.activations import relu
from ....graph.ops.nn.conv import conv2d, conv2d_transpose, conv_attrs, one_filter
from ....graph.ops.nn.dense import bias_add
from ....graph.ops.nn.normalization import batch_normalization
from ....graph.ops.nn.spatial import conv1d_transpose, conv3d_transpose


def xw_plus_b(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """matmul(x, weights) + biases: x `[n, in]`, weights `[in, out]`, biases `[out]`."""
    with op_scope(name, "xw_plus_b", x, weights, biases) as scope:
        product = matmul(convert(x, name="x"), convert(weights, name="weights"))
        return bias_add(product, convert(biases, name="biases"), name=scope)


def relu_layer(x: TensorLike, weights: TensorLike, biases: TensorLike, name: str | None = None) -> Tensor:
    """relu(matmul(x, weights) + biases)."""
    with op_scope(name, "relu_layer", x, weights, biases) as scope:
        return relu(xw_plus_b(x, weights, biases), name=scope)


def log_poisson_loss(
    targets: TensorLike, log_input: TensorLike, compute_full_loss: bool = False, name: str | None = None
) -> Tensor:
    """exp(log_input) - log_input * targets: the Poisson loss for the logarithm of a prediction.

    Args:
        targets: of one shape.
        log_input: of one shape.
        compute_full_loss: with log(targets!) by Stirling's formula, for targets above 1.
    """
    with op_scope(name, "log_poisson_loss", log_input, targets) as scope:
        z = convert(log_input, name="log_input")
        true = convert(targets, z.dtype.base, name="targets")
        if not true.shape.is_compatible_with(z.shape):
            raise ValueError(f"log_input and targets must have the same shape ({z.shape} vs {true.shape})")
        loss = subtract(exp(z), multiply(z, true), name=None if compute_full_loss else scope)
        if not compute_full_loss:
            return loss
        small = logical_and(greater_equal(true, 0), less_equal(true, 1))
        # Its logarithm is finite, so the gradient of the branch not taken is finite, too.
        safe = where_v2(small, 1, true)
        stirling = true * log(safe) - true + 0.5 * log(2 * math.pi * safe)
        return add(loss, where_v2(small, 0, stirling), name=scope)


def atrous_conv2d(value: TensorLike, filters: TensorLike, rate: int, padding: Any, name: str | None = None) -> Tensor:
    """`conv2d` of NHWC images with taps `rate` pixels apart."""
    return conv2d(value, filters, 1, padding, dilations=rate, name=name or "atrous_conv2d")


def conv2d_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike = None,
    out_backprop: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """The gradient of `conv2d` for its input, which has the sizes `input_sizes`."""
    kernel = one_filter(filter, filters)
    with op_scope(name, "Conv2DBackpropInput", input_sizes, kernel, out_backprop) as scope:
        operands = (
            index_operand(input_sizes, "input_sizes"),
            convert(kernel, name="filter"),
            convert(out_backprop, name="out_backprop"),
        )
        return apply("Conv2DBackpropInput", operands, conv_attrs(strides, padding, data_format, dilations), scope)


def conv2d_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The gradient of `conv2d` for its filter, which has the sizes `filter_sizes`."""
    with op_scope(name, "Conv2DBackpropFilter", input, filter_sizes, out_backprop) as scope:
        operands = (
            convert(input, name="input"),
            index_operand(filter_sizes, "filter_sizes"),
            convert(out_backprop, name="out_backprop"),
        )
        return apply("Conv2DBackpropFilter", operands, conv_attrs(strides, padding, data_format, dilations), scope)


def depthwise_conv2d_native_backprop_input(
    input_sizes: TensorLike,
    filter: TensorLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` for its input, which has the sizes `input_sizes`."""
    with op_scope(name, "DepthwiseConv2dNativeBackpropInput", input_sizes, filter, out_backprop) as scope:
        operands = index_operand(input_sizes, "input_sizes"), convert(filter), convert(out_backprop)
        attrs = conv_attrs(strides, padding, data_format, dilations)
        return apply("DepthwiseConv2dNativeBackpropInput", operands, attrs, scope)


def depthwise_conv2d_native_backprop_filter(
    input: TensorLike,
    filter_sizes: TensorLike,
    out_backprop: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The gradient of `depthwise_conv2d_native` for its filter, which has the sizes `filter_sizes`."""
    with op_scope(name, "DepthwiseConv2dNativeBackpropFilter", input, filter_sizes, out_backprop) as scope:
        operands = convert(input), index_operand(filter_sizes, "filter_sizes"), convert(out_backprop)
        attrs = conv_attrs(strides, padding, data_format, dilations)
        return apply("DepthwiseConv2dNativeBackpropFilter", operands, attrs, scope)


def batch_norm_with_global_normalization(
    t: TensorLike = None,
    m: TensorLike = None,
    v: TensorLike = None,
    beta: TensorLike = None,
    gamma: TensorLike = None,
    variance_epsilon: float = 0.0,
    scale_after_normalization: bool = True,
    name: str | None = None,
    input: TensorLike = None,
    mean: TensorLike = None,
    variance: TensorLike = None,
) -> Tensor:
    """The older form of `batch_normalization`; without `scale_after_normalization`, gamma is not used."""
    x, middle, spread = (new if old is None else old for old, new in ((t, input), (m, mean), (v, variance)))
    scale = gamma if scale_after_normalization else None
    return batch_normalization(x, middle, spread, beta, scale, variance_epsilon, name)


def sufficient_statistics(
    x: TensorLike,
    axes: Sequence[int],
    shift: TensorLike = None,
    keep_dims: bool | None = None,
    name: str | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What mean and variance over axes follow from, by `normalize_moments`.

    Args:
        shift: near the mean, so that less is lost by rounding; broadcasts to x.
        keep_dims: keep the axes, with size 1.

    Returns:
        (how many elements each sum has, the sum of x - shift, the sum of its squares, shift).
    """
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    with op_scope(name, "sufficient_statistics", x, shift):
        values = convert(x, name="x")
        over = sorted(set(axes))
        count = reduce_prod(cast(gather(shape(values), over), values.dtype.base), name="count")
        if shift is None:
            return count, reduce_sum(values, over, keep), reduce_sum(square(values), over, keep), None
        near = convert(shift, values.dtype.base, name="shift")
        apart = subtract(values, near)
        return count, reduce_sum(apart, over, keep), reduce_sum(square(apart), over, keep), near


def normalize_moments(
    counts: TensorLike, mean_ss: TensorLike, variance_ss: TensorLike, shift: TensorLike, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """(mean, variance) of what `sufficient_statistics` gave, or of sums of several of those. shift: None where there was none."""
    with op_scope(name, "normalize", counts, mean_ss, variance_ss, shift):
        mean = divide(mean_ss, counts)
        variance = subtract(divide(variance_ss, counts), square(mean), name="variance")
        return (mean if shift is None else add(mean, shift, name="mean")), variance


def weighted_moments(
    x: TensorLike,
    axes: Any,
    frequency_weights: TensorLike,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance over axes, each element counted as often as its weight says; weights broadcast to x. Other arguments and the
    result as of `moments`.
    """
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    with op_scope(name, "weighted_moments", x, frequency_weights, axes):
        given = convert(x, name="x")
        need_floats(given, "x", "weighted_moments")
        values = cast(given, float32) if given.dtype.base in (float16, bfloat16) else given
        weights = add(cast(frequency_weights, values.dtype.base), zeros_like(values))
        total = reduce_sum(weights, axes, keepdims=True)
        mean = divide(reduce_sum(multiply(weights, values), axes, keepdims=True), total)
        squares = multiply(weights, square(subtract(values, mean)))
        found = mean, divide(reduce_sum(squares, axes, keepdims=True), total)
        if not keep:
            found = squeeze(found[0], axes), squeeze(found[1], axes)
        return cast(found[0], given.dtype.base), cast(found[1], given.dtype.base)


def conv_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    strides: Any,
    padding: str = "SAME",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The transpose of a convolution: `conv1d_transpose`, `conv2d_transpose` or `conv3d_transpose`, by the length of `output_shape`."""
    if not isinstance(output_shape, (Tensor, Sequence, np.ndarray)):
        raise ValueError("output_shape must be a tensor or sized collection.")
    length = output_shape.shape[0] if isinstance(output_shape, Tensor) else len(output_shape)
    n = int(length) - 2
    if not 1 <= n <= 3:
        raise ValueError(f"output_shape must be of length 3, 4 or 5 but was {n + 2}.")
    with op_scope(name, "conv_transpose", input, filters, output_shape) as scope:
        if n == 1:
            return conv1d_transpose(input, filters, output_shape, strides, padding, data_format, dilations, scope)
        transposed = conv2d_transpose if n == 2 else conv3d_transpose
        layout = data_format or ("NHWC" if n == 2 else "NDHWC")
        return transposed(input, filters, output_shape, strides, padding, layout, scope, dilations=dilations)


def atrous_conv2d_transpose(
    value: TensorLike, filters: TensorLike, output_shape: TensorLike, rate: int, padding: str, name: str | None = None
) -> Tensor:
    """The transpose of `atrous_conv2d`: filters `[taps high, taps wide, out, in]`, taps `rate` pixels apart."""
    name = name or "atrous_conv2d_transpose"
    return conv2d_transpose(value, filters, output_shape, 1, padding, dilations=rate, name=name)


explain_members(sys.modules[__name__])
