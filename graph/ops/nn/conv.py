"""Convolutions of images, dense and depthwise, and their gradient ops.

A convolution is linear in the image and in the filter, so three ops are closed under differentiation:

    y  = Conv2D(x, w)                        sum over taps and input channels
    dx = Conv2DBackpropInput(shape, w, dy)   its transpose in x, which `conv2d_transpose` applies
    dw = Conv2DBackpropFilter(x, shape, dy)  its transpose in w

A depthwise convolution applies filters to each channel: result channel c * multiplier + m is channel c under its filter m.

The dense references copy the window at each position into a row of a matrix and compute one matrix product ("im2col"; Chellapilla, Puri and
Simard, 2006). Narrow types are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...core.build import Grads, TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.dtypes import FLOATS, Array, DType, widened
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size
from ...core.shape import Dims, text
from ..array.shapes import expand_dims, shape, squeeze
from ..math.common import allowed, layout_of, same_type
from ..math.static_operands import dims_of, index_operand, need_index, need_rank, op_scope
from .conv_geometry import (
    Window,
    as_layout,
    channels_last,
    four,
    image_dims,
    in_layout,
    layout,
    nhwc,
    overlay,
    padding_attrs,
    patches,
    window_of,
)

Sizes: TypeAlias = tuple[int | None, ...]


# --- shape rules --------------------------------------------------------------------------------------------


def _same(a: int | None, b: int | None, what: str) -> int | None:
    """The size that two axes share. ValueError, with the text `what`, if they differ."""
    if a is not None and b is not None and a != b:
        raise ValueError(f"{what}: {a} against {b}")
    return b if a is None else a


def _result_channels(x: Sizes, w: Sizes, depthwise: bool) -> int | None:
    """The number of channels of the result, from the sizes of an image and a filter."""
    channels = _same(x[3], w[2], "the image's channels and the filter's input channels must agree")
    if not depthwise:
        return w[3]
    return None if channels is None or w[3] is None else channels * w[3]


def _result_dims(x: Sizes, w: Sizes, attrs: Attrs, depthwise: bool) -> Sizes:
    """The shape (n, rows, columns, channels) of the convolution of an image and a filter of these shapes."""
    window = window_of(attrs, (w[0], w[1]))
    return (x[0], window.positions(0, x[1]), window.positions(1, x[2]), _result_channels(x, w, depthwise))


def _check_result(y: Sizes, x: Sizes, w: Sizes, attrs: Attrs, depthwise: bool) -> None:
    """ValueError unless the gradient `y` has the shape of the convolution's result."""
    expected = _result_dims(x, w, attrs, depthwise)
    for got, wanted in zip(y, expected, strict=True):
        if got is not None and wanted is not None and got != wanted:
            raise ValueError(
                f"the gradient has shape {text(y)}, the convolution gives {text(expected)} "
                "(batch, height, width, channels)"
            )


def _float_type(tensors: Sequence[Tensor]) -> DType:
    return allowed(same_type(tensors), FLOATS)


def _filter_dims(w: Tensor) -> Sizes:
    need_rank(w.dims, 4, "the filter")
    return w.dims if w.dims is not None else (None,) * 4


def _operand_dims(sizes: Tensor, what: str) -> Sizes:
    """The four sizes in an operand, as far as they are known statically."""
    need_index(sizes, what, 1)
    dims = static_dims(sizes)
    if dims is not None and len(dims) != 4:
        raise ValueError(f"{what} must hold four sizes, not {len(dims)}")
    return dims if dims is not None else (None,) * 4


def _forward_rule(depthwise: bool, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, w = inputs
    data_format = layout(attrs)
    y = _result_dims(image_dims(x, data_format, "the image"), _filter_dims(w), attrs, depthwise)
    return [(_float_type(inputs), in_layout(y, data_format))]


def _input_rule(depthwise: bool, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    sizes, w, grad = inputs
    data_format = layout(attrs)
    dims: Dims = _operand_dims(sizes, "input_sizes")
    wanted, y = nhwc(dims, data_format), image_dims(grad, data_format, "out_backprop")
    _check_result(y, wanted, _filter_dims(w), attrs, depthwise)
    n, h, width, c = wanted
    known = _same(n, y[0], "batches"), h, width, _same(c, _filter_dims(w)[2], "channels")
    return [(_float_type(inputs[1:]), in_layout(known, data_format))]


def _filter_rule(depthwise: bool, inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, sizes, grad = inputs
    data_format = layout(attrs)
    w, y = _operand_dims(sizes, "filter_sizes"), image_dims(grad, data_format, "out_backprop")
    image = image_dims(x, data_format, "the image")
    _check_result(y, image, w, attrs, depthwise)
    inner = _same(w[2], image[3], "channels")
    outer = w[3] if depthwise else _same(w[3], y[3], "channels of the result")
    return [(_float_type((x, grad)), (w[0], w[1], inner, outer))]


# --- references ---------------------------------------------------------------------------------------------


def _rows(x: Array, window: Window) -> Array:
    """The window at each position, one per row: `[n * rows * columns, taps * channels]`, taps in the filter's order."""
    seen = np.moveaxis(patches(x, window), 3, 5)
    return seen.reshape(math.prod(seen.shape[:3]), math.prod(seen.shape[3:]))


def _conv(depthwise: bool, x: Array, w: Array, **attrs: Any) -> Array:
    image, kernel = widened(channels_last(x, attrs["data_format"])), widened(w)
    window = window_of(attrs, w.shape[:2])
    dims = _result_dims(image.shape, w.shape, attrs, depthwise)
    if depthwise:
        y = np.einsum("nrschw,hwcm->nrscm", patches(image, window), kernel, optimize=True)
    else:
        y = _rows(image, window) @ kernel.reshape(-1, w.shape[3])
    return as_layout(y.reshape(dims), attrs["data_format"]).astype(x.dtype, copy=False)


def _conv_input(depthwise: bool, sizes: Array, w: Array, grad: Array, **attrs: Any) -> Array:
    y, kernel = widened(channels_last(grad, attrs["data_format"])), widened(w)
    n, height, width, c = (d or 0 for d in nhwc(tuple(dims_of(sizes)), attrs["data_format"]))
    _check_result(y.shape, (n, height, width, c), w.shape, attrs, depthwise)
    if depthwise:
        parts = np.einsum("nrscm,hwcm->nrschw", y.reshape(*y.shape[:3], *w.shape[2:]), kernel, optimize=True)
    else:
        rows = y.reshape(-1, w.shape[3]) @ kernel.reshape(-1, w.shape[3]).T
        parts = np.moveaxis(rows.reshape(*y.shape[:3], *w.shape[:3]), 5, 3)
    x = overlay(parts, height, width, window_of(attrs, w.shape[:2]))
    return as_layout(x, attrs["data_format"]).astype(grad.dtype, copy=False)


def _conv_filter(depthwise: bool, x: Array, sizes: Array, grad: Array, **attrs: Any) -> Array:
    image, y = (widened(channels_last(a, attrs["data_format"])) for a in (x, grad))
    w = tuple(dims_of(sizes))
    _check_result(y.shape, image.shape, w, attrs, depthwise)
    window = window_of(attrs, (w[0], w[1]))
    if depthwise:
        pairs = patches(image, window), y.reshape(*y.shape[:3], *w[2:])
        found: Any = np.einsum("nrschw,nrscm->hwcm", *pairs, optimize=True)
    else:
        found = (_rows(image, window).T @ y.reshape(math.prod(y.shape[:3]), y.shape[3])).reshape(w)
    return np.asarray(found).astype(x.dtype, copy=False)


# --- gradients, costs, definitions --------------------------------------------------------------------------


def _define_family(forward: str, backprop_input: str, backprop_filter: str, depthwise: bool) -> None:
    def of_input(node: Node, sizes_of: Tensor, w: Tensor, grad: Tensor) -> Tensor:
        return apply(backprop_input, (shape(sizes_of), w, grad), dict(node.attrs))

    def of_filter(node: Node, x: Tensor, sizes_of: Tensor, grad: Tensor) -> Tensor:
        return apply(backprop_filter, (x, shape(sizes_of), grad), dict(node.attrs))

    def result(node: Node, x: Tensor, w: Tensor) -> Tensor:
        return apply(forward, (x, w), dict(node.attrs))

    def gradient(node: Node, grad: Tensor) -> Grads:
        x, w = node.inputs
        return [of_input(node, x, w, grad), of_filter(node, x, w, grad)]

    def input_gradient(node: Node, grad: Tensor) -> Grads:
        _, w, y = node.inputs
        return [None, of_filter(node, grad, w, y), result(node, grad, w)]

    def filter_gradient(node: Node, grad: Tensor) -> Grads:
        x, _, y = node.inputs
        return [of_input(node, x, grad, y), None, result(node, x, grad)]

    def macs(y: Tensor, w: Tensor) -> float:
        """The number of multiply-adds: one per element of the result and tap, and in a dense convolution per input channel."""
        taps_high, taps_wide, channels, _ = (d or 1 for d in w.dims or (1, 1, 1, 1))
        return float(size(y)) * taps_high * taps_wide * (1 if depthwise else channels)

    for name, rule, reference, derivative, result_and_filter in (
        (forward, _forward_rule, _conv, gradient, lambda n: (n.outputs[0], n.inputs[1])),
        (backprop_input, _input_rule, _conv_input, input_gradient, lambda n: (n.inputs[2], n.inputs[1])),
        (backprop_filter, _filter_rule, _conv_filter, filter_gradient, lambda n: (n.inputs[2], n.outputs[0])),
    ):

        def cost(node: Node, parts: Any = result_and_filter) -> Cost:
            return default_cost(node)._replace(flops=2 * macs(*parts(node)))

        define(name, partial(rule, depthwise), partial(reference, depthwise), gradient=derivative, cost=cost)


_define_family("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", depthwise=False)
_define_family(
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
    depthwise=True,
)


# --- public functions ---------------------------------------------------------------------------------------


def conv_attrs(strides: Any, padding: Any, data_format: str | None, dilations: Any) -> dict[str, Any]:
    """The attributes of a convolution's node."""
    data_format = "NHWC" if data_format is None else data_format
    return {
        "strides": four(1 if strides is None else strides, "strides", data_format),
        **padding_attrs(padding),
        "data_format": data_format,
        "dilations": four(1 if dilations is None else dilations, "dilations", data_format),
    }


def one_filter(filter: TensorLike, filters: TensorLike) -> TensorLike:
    """The filter, an argument with two names. ValueError unless exactly one is given."""
    if (filter is None) == (filters is None):
        raise ValueError("Give the filter once, as `filter` or as `filters`")
    return filters if filter is None else filter


def conv2d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """The convolution of images with filters (mathematically, a cross-correlation).

    Args:
        input: floats `[batch, height, width, in]`, or `[batch, in, height, width]` for "NCHW".
        filter: `[filter height, filter width, in, out]`.
        strides: the step of the window: one number, (height, width), or one number per axis of the image.
        padding: "SAME" for ceil(size / stride) positions and zeros around the image, "VALID" for positions inside the image, or a pair
            [before, after] for each axis of the image.
        use_cudnn_on_gpu: accepted without effect.
        data_format: "NHWC" or "NCHW".
        dilations: the distance between neighbouring taps, in the forms of `strides`.
        name: name of the node.
        filters: newer name of `filter`.

    Returns:
        `[batch, rows, columns, out]`, or `[batch, out, rows, columns]` for "NCHW".

    Raises:
        ValueError: the sizes do not fit each other.
        TypeError: input and filter have different element types.

    >>> conv2d(images, kernel, strides=[1, 1, 1, 1], padding="SAME")
    """
    if padding is None:
        raise ValueError("padding must be given: 'SAME', 'VALID' or a list of paddings")
    kernel = one_filter(filter, filters)
    with op_scope(name, "Conv2D", input, kernel) as scope:
        x = convert(input, name="input")
        w = convert(kernel, x.dtype.base if not isinstance(kernel, Tensor) else None, name="filter")
        return apply("Conv2D", (x, w), conv_attrs(strides, padding, data_format, dilations), scope)


def conv2d_transpose(
    value: TensorLike = None,
    filter: TensorLike = None,
    output_shape: TensorLike = None,
    strides: Any = None,
    padding: Any = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose of `conv2d` ("deconvolution"), which computes its gradient with respect to the input.

    Args:
        value: images with `in` channels, of the shape that the convolution gives.
        filter: `[filter height, filter width, out, in]`.
        output_shape: the shape of the result. It must be given because a convolution maps several input sizes to the same output size.
        strides: the strides of the convolution.
        padding: the padding of the convolution.
        data_format: "NHWC" or "NCHW".
        name: name of the node.
        input: newer name of `value`.
        filters: newer name of `filter`.
        dilations: the dilations of the convolution.
    """
    images = input if value is None else value
    kernel = one_filter(filter, filters)
    if images is None or output_shape is None:
        raise ValueError("conv2d_transpose needs images and an output_shape")
    with op_scope(name, "conv2d_transpose", images, kernel, output_shape) as scope:
        sizes, w = index_operand(output_shape, "output_shape"), convert(kernel, name="filter")
        attrs = conv_attrs(strides, padding, data_format, dilations)
        return apply("Conv2DBackpropInput", (sizes, w, convert(images, name="value")), attrs, scope)


def conv1d(
    value: TensorLike = None,
    filters: TensorLike = None,
    stride: Any = None,
    padding: Any = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str | None = None,
    name: str | None = None,
    input: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The convolution of sequences: `conv2d` of images of height 1.

    Args:
        value: `[batch, width, in]`, or `[batch, in, width]` for "NCW".
        filters: `[filter width, in, out]`.
        stride: the step of the window.
        padding: "SAME" or "VALID", or three pairs [before, after].
        use_cudnn_on_gpu: accepted without effect.
        data_format: "NWC" (also "NHWC" or None) or "NCW" (also "NCHW").
        name: name of the result's node.
        input: newer name of `value`.
        dilations: the distance between neighbouring taps.
    """
    sequences = input if value is None else value
    if sequences is None or filters is None or padding is None:
        raise ValueError("conv1d needs sequences, filters and padding")
    images = layout_of("NWC" if data_format is None else data_format, 1)
    axis = 2 if images == "NCHW" else 1
    pads = padding if isinstance(padding, str) else [*padding[:axis], [0, 0], *padding[axis:]]
    step, gap = (1 if v is None else _middle(v, axis) for v in (stride, dilations))
    with op_scope(name, "conv1d", sequences, filters) as scope:
        x = expand_dims(convert(sequences, name="value"), axis)
        w = expand_dims(convert(filters, name="filters"), 0)
        y = conv2d(x, w, [1, step], pads, data_format=images, dilations=[1, gap])
        return squeeze(y, [axis], name=scope)


def _middle(value: Any, axis: int) -> int:
    """A stride or dilation along the spatial axis, from one number or one per axis."""
    if not isinstance(value, Sequence):
        return int(value)
    return int(value[axis] if len(value) == 3 else value[0])


def depthwise_conv2d_native(
    input: TensorLike,
    filter: TensorLike,
    strides: Any,
    padding: Any,
    data_format: str = "NHWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The depthwise convolution: each channel is convolved with filters of its own. Other arguments as for `conv2d`.

    Args:
        input: images with `channels` channels.
        filter: `[filter height, filter width, channels, multiplier]`.

    Returns:
        Images with `channels * multiplier` channels. Channel `c * multiplier + m` is channel c convolved with its filter m.
    """
    with op_scope(name, "DepthwiseConv2dNative", input, filter) as scope:
        x = convert(input, name="input")
        w = convert(filter, x.dtype.base if not isinstance(filter, Tensor) else None, name="filter")
        return apply("DepthwiseConv2dNative", (x, w), conv_attrs(strides, padding, data_format, dilations), scope)


def depthwise_conv2d(
    input: TensorLike,
    filter: TensorLike,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """`depthwise_conv2d_native` with an older name of `dilations`, `rate`."""
    gaps = rate if dilations is None else dilations
    with op_scope(name, "depthwise", input, filter) as scope:
        return depthwise_conv2d_native(input, filter, strides, padding, data_format or "NHWC", gaps, scope)


def separable_conv2d(
    input: TensorLike,
    depthwise_filter: TensorLike,
    pointwise_filter: TensorLike,
    strides: Any,
    padding: Any,
    rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """A depthwise convolution followed by a 1 x 1 convolution. Other arguments are those of `depthwise_conv2d`.

    Args:
        input: images with `channels` channels.
        depthwise_filter: `[filter height, filter width, channels, multiplier]`.
        pointwise_filter: `[1, 1, channels * multiplier, out]`.
    """
    with op_scope(name, "separable_conv2d", input, depthwise_filter, pointwise_filter) as scope:
        mixed = convert(pointwise_filter, name="pointwise_filter")
        if mixed.dims is not None and any(d not in (1, None) for d in mixed.dims[:2]):
            raise ValueError(f"pointwise_filter must have one tap, [1, 1, in, out], not {text(mixed.dims)}")
        y = depthwise_conv2d(input, depthwise_filter, strides, padding, rate, "depthwise", data_format, dilations)
        return conv2d(y, mixed, 1, "VALID", data_format=data_format or "NHWC", name=scope)
