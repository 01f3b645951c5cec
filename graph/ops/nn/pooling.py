"""Pooling: the maximum or the mean of a window, for each channel.

The gradient of the maximum goes to the first maximal pixel of each window (`MaxPoolGrad`). The gradient of that op gathers from these
pixels (`MaxPoolGradGrad`), so the two are each other's transpose. Compilers make two ops of `MaxPoolGrad`: `MaxPoolChoice` gives the tap
that each window chooses, and `MaxPoolChoiceGrad` sends gradients there. The mean does not count padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import Derivative, Grads, TensorLike, apply, convert
from ...core.constant_value import static_dims
from ...core.dtypes import FLOATS, NUMBERS, Array, DType, int32
from ...core.errors import UnimplementedError
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size
from ...core.shape import Dims, merge
from ..array.shapes import reshape, shape, sizes_of
from ..math.common import allowed, same_type
from ..math.static_operands import dims_of, need_index, op_scope
from .conv_geometry import (
    Window,
    as_layout,
    channels_last,
    four,
    height_and_width,
    image_dims,
    in_layout,
    layout,
    nhwc,
    overlay,
    padding_attrs,
    patches,
    window_of,
)

# --- rules --------------------------------------------------------------------------------------------------


def _window(attrs: Attrs) -> Window:
    window = window_of(attrs, height_and_width(attrs, "ksize"))
    for axis in (0, 1):
        if max(window.explicit[axis]) >= window.taps[axis]:
            raise ValueError(
                f"padding {window.explicit[axis]} must be smaller than the window, {window.taps[axis]}: "
                "otherwise a window covers nothing but padding"
            )
    return window


def _pooled_dims(x: Tensor, attrs: Attrs) -> Dims:
    window, data_format = _window(attrs), layout(attrs)
    n, h, w, c = image_dims(x, data_format, "the image")
    return in_layout((n, window.positions(0, h), window.positions(1, w), c), data_format)


def _pool_rule(types: tuple[DType, ...]) -> Any:
    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        (x,) = inputs
        return [(allowed(x.dtype.base, types), _pooled_dims(x, attrs))]

    return infer


def _max_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, y, grad = inputs
    dtype = allowed(same_type(inputs), NUMBERS)
    merge(merge(_pooled_dims(x, attrs), y.dims), grad.dims)
    return [(dtype, x.dims if x.dims is not None else (None,) * 4)]


def _max_grad_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, y, grad = inputs
    dtype = allowed(same_type(inputs), NUMBERS)
    merge(x.dims, grad.dims)
    return [(dtype, merge(_pooled_dims(x, attrs), y.dims))]


def _choice_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    allowed(x.dtype.base, NUMBERS)
    return [(int32, _pooled_dims(x, attrs))]


def _choice_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    sizes, choice, grad = inputs
    allowed(choice.dtype.base, (int32,))
    return [(allowed(grad.dtype.base, NUMBERS), _image_of((sizes, choice), attrs))]


def _avg_grad_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    return [(allowed(inputs[1].dtype.base, FLOATS), _image_of(inputs, attrs))]


def _image_of(inputs: Sequence[Tensor], attrs: Attrs) -> Dims:
    """The sizes of an image, from a vector that holds them, and from a tensor like the pooled image."""
    sizes, grad = inputs
    need_index(sizes, "orig_input_shape", 1)
    window, data_format = _window(attrs), layout(attrs)
    dims = static_dims(sizes)
    if dims is None:
        dims = (None,) * 4
    if len(dims) != 4:
        raise ValueError(f"orig_input_shape must hold four sizes, not {len(dims)}")
    n, h, w, c = nhwc(dims, data_format)
    expected = in_layout((n, window.positions(0, h), window.positions(1, w), c), data_format)
    n, _, _, c = nhwc(merge(expected, grad.dims), data_format)
    return in_layout((n, h, w, c), data_format)


# --- references ---------------------------------------------------------------------------------------------


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _seen(x: Array, attrs: Attrs) -> Array:
    """The pixels of each window: `[n, rows, columns, c, taps]`. Padding has the least value of the type."""
    found = patches(channels_last(x, attrs["data_format"]), _window(attrs), _lowest(x.dtype))
    return found.reshape(*found.shape[:4], found.shape[4] * found.shape[5])


def _first_largest(x: Array, attrs: Attrs) -> Array:
    """The tap of each window that holds its first largest pixel, `[n, rows, columns, c, 1]`. NaN counts as the largest."""
    seen, (height, width) = _seen(x, attrs), channels_last(x, attrs["data_format"]).shape[1:3]
    # A pixel may equal the padding, so taps outside the image are masked.
    inside = patches(np.ones((1, height, width, 1), np.bool_), _window(attrs), False)
    largest = (seen == seen.max(-1, keepdims=True)) | (seen != seen)
    found = largest & inside.reshape(*inside.shape[:4], seen.shape[4])
    return np.asarray(np.expand_dims(found.argmax(-1), -1))


def _max_pool_grad(x: Array, y: Array, grad: Array, **attrs: Any) -> Array:
    return _choice_grad(np.array(x.shape), _choice(x, **attrs), grad, **attrs)


def _choice(x: Array, **attrs: Any) -> Array:
    return as_layout(_first_largest(x, attrs)[..., 0], attrs["data_format"]).astype(np.int32)


def _choice_grad(sizes: Array, choice: Array, grad: Array, **attrs: Any) -> Array:
    data_format, window = attrs["data_format"], _window(attrs)
    where, g = channels_last(choice, data_format)[..., None], channels_last(grad, data_format)
    _, height, width, _ = (d or 0 for d in nhwc(tuple(dims_of(sizes)), data_format))
    if where.shape[:4] != g.shape:
        raise ValueError("the gradient has another shape than the pooled image")
    # A pixel may be the largest of several windows. Their gradients are added in float32 or wider.
    wide = np.float32 if grad.itemsize < 4 and grad.dtype.kind not in "iu" else grad.dtype
    parts = np.zeros((*g.shape, window.taps[0] * window.taps[1]), wide)
    np.put_along_axis(parts, where, g[..., None].astype(wide), -1)
    out = overlay(parts.reshape(*g.shape, *window.taps), height, width, window)
    return as_layout(out, data_format).astype(grad.dtype, copy=False)


def _max_pool_grad_grad(x: Array, y: Array, grad: Array, **attrs: Any) -> Array:
    if grad.shape != x.shape:
        raise ValueError("the gradient has another shape than the image")
    g = patches(channels_last(grad, attrs["data_format"]), _window(attrs))
    picked = np.take_along_axis(g.reshape(*g.shape[:4], g.shape[4] * g.shape[5]), _first_largest(x, attrs), -1)
    return as_layout(picked[..., 0], attrs["data_format"])


def _counts(height: int, width: int, window: Window, dtype: Any) -> Array:
    """The number of pixels inside the image that each window covers, `[1, rows, columns, 1]`."""
    return np.asarray(patches(np.ones((1, height, width, 1), dtype), window).sum((4, 5)))


def _avg_pool(x: Array, **attrs: Any) -> Array:
    image, window = channels_last(x, attrs["data_format"]), _window(attrs)
    wide = np.promote_types(np.float32, x.dtype) if x.itemsize >= 4 else np.dtype(np.float32)
    total = patches(image.astype(wide, copy=False), window).sum((4, 5))
    mean = total / _counts(image.shape[1], image.shape[2], window, wide)
    return as_layout(mean, attrs["data_format"]).astype(x.dtype, copy=False)


def _avg_pool_grad(sizes: Array, grad: Array, **attrs: Any) -> Array:
    data_format, window = attrs["data_format"], _window(attrs)
    g = channels_last(grad, data_format)
    n, height, width, c = (d or 0 for d in nhwc(tuple(dims_of(sizes)), data_format))
    if g.shape != (n, window.positions(0, height), window.positions(1, width), c):
        raise ValueError(f"the gradient has another shape than the pooled image of shape {dims_of(sizes)}")
    wide = np.float32 if grad.itemsize < 4 else grad.dtype
    share = g.astype(wide, copy=False) / _counts(height, width, window, wide)
    parts = np.broadcast_to(share[..., None, None], (*g.shape, *window.taps))
    return as_layout(overlay(parts, height, width, window), data_format).astype(grad.dtype, copy=False)


# --- definitions --------------------------------------------------------------------------------------------


def _transposed(op: str) -> Callable[[Node, Tensor], Grads]:
    """The gradient rule of an op that is linear in its third operand: its transpose `op`. The first two operands only select pixels."""
    return lambda node, grad: [Derivative.ZERO, Derivative.ZERO, apply(op, (*node.inputs[:2], grad), dict(node.attrs))]


def _cost(pooled: Any) -> Any:
    """A cost of one flop per tap and pooled element."""

    def of(node: Node) -> Cost:
        height, width = _window(node.attrs).taps
        return default_cost(node)._replace(flops=float(size(pooled(node)) * height * width))

    return of


define(
    "MaxPool",
    _pool_rule(NUMBERS),
    lambda x, **attrs: as_layout(_seen(x, attrs).max(-1), attrs["data_format"]),
    gradient=lambda node, grad: [apply("MaxPoolGrad", (node.inputs[0], node.outputs[0], grad), dict(node.attrs))],
    cost=_cost(lambda node: node.outputs[0]),
)
define(
    "MaxPoolGrad",
    _max_grad_rule,
    _max_pool_grad,
    gradient=_transposed("MaxPoolGradGrad"),
    cost=_cost(lambda node: node.inputs[2]),
)
define("MaxPoolChoice", _choice_rule, _choice, cost=_cost(lambda node: node.outputs[0]))
define("MaxPoolChoiceGrad", _choice_grad_rule, _choice_grad, cost=_cost(lambda node: node.inputs[1]))
define(
    "MaxPoolGradGrad",
    _max_grad_grad_rule,
    _max_pool_grad_grad,
    gradient=_transposed("MaxPoolGrad"),
    cost=_cost(lambda node: node.outputs[0]),
)
define(
    "AvgPool",
    _pool_rule(FLOATS),
    _avg_pool,
    gradient=lambda node, grad: [apply("AvgPoolGrad", (shape(node.inputs[0]), grad), dict(node.attrs))],
    cost=_cost(lambda node: node.outputs[0]),
)
define(
    "AvgPoolGrad",
    _avg_grad_rule,
    _avg_pool_grad,
    gradient=lambda node, grad: [None, apply("AvgPool", (grad,), dict(node.attrs))],
    cost=_cost(lambda node: node.inputs[1]),
)


# --- public functions ---------------------------------------------------------------------------------------


def max_pool(
    value: TensorLike = None,
    ksize: Any = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
) -> Tensor:
    """The maximum of each window.

    Args:
        value: numbers `[batch, height, width, channels]`, or `[batch, channels, height, width]` for "NCHW".
        ksize: the size of the window: one number, (height, width), or one number per axis of the image.
        strides: the step of the window, in the forms of `ksize`.
        padding: "SAME", "VALID", or pairs as for `conv2d`. Padding is never the maximum.
        data_format: "NHWC" or "NCHW".
        name: name of the node.
        input: newer name of `value`.

    Raises:
        ValueError: the window does not fit the image, or extends over batches.
        UnimplementedError: the window extends over channels as well as over height or width, or its size along the channels is not the
            stride or does not divide their number.
    """
    return _pool("MaxPool", value, ksize, strides, padding, data_format, name, input)


def avg_pool(
    value: TensorLike = None,
    ksize: Any = None,
    strides: Any = None,
    padding: Any = None,
    data_format: str = "NHWC",
    name: str | None = None,
    input: TensorLike = None,
) -> Tensor:
    """The mean of each window, without padding. Arguments as for `max_pool`."""
    return _pool("AvgPool", value, ksize, strides, padding, data_format, name, input)


def _pool(
    op: str,
    value: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str,
    name: str | None,
    input: TensorLike,
) -> Tensor:
    images = input if value is None else value
    for argument, given in (("value", images), ("ksize", ksize), ("strides", strides), ("padding", padding)):
        if given is None:
            raise ValueError(f"{argument} must be given")
    attrs = {
        "ksize": four(ksize, "ksize", data_format),
        "strides": four(strides, "strides", data_format),
        **padding_attrs(padding),
        "data_format": data_format,
    }
    with op_scope(name, op, images) as scope:
        x = convert(images, name="value")
        size, steps, last = attrs["ksize"], attrs["strides"], 1 if data_format == "NCHW" else 3
        if op == "MaxPool" and size[last] > 1:
            return _max_over_channels(x, size, steps, last, scope)
        return apply(op, (x,), attrs, scope)


def _max_over_channels(
    x: Tensor, size: tuple[int, ...], steps: tuple[int, ...], last: int, scope: str | None
) -> Tensor:
    """Max pooling over channels: the pixels become the rows of an image whose columns are the channels."""
    window, channels = size[last], x.dims[last] if x.dims is not None else None
    if last == 1 or any(n != 1 for n in (*size[:last], *steps[:last])):
        raise UnimplementedError.of(
            f"MaxPooling supports exactly one of pooling across depth or pooling across width/height: {size}"
        )
    if steps[last] != window:
        raise UnimplementedError.of(
            f"Depthwise max pooling requires the depth window to equal the depth stride: {window} and {steps[last]}"
        )
    if channels is None or channels % window:
        raise UnimplementedError.of(
            f"Depthwise max pooling requires the depth window to evenly divide the input depth: {window} and {channels}"
        )
    n, height, width, _ = sizes_of(x)
    rows = reshape(x, [n, -1, channels, 1])
    found = max_pool(rows, [1, window], [1, window], "VALID")
    return reshape(found, [n, height, width, channels // window], name=scope)
