"""Image quality: PSNR, SSIM, total variation, image gradients."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import reduce

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert
from ....graph.core.default_graph import control_dependencies
from ....graph.core.dtypes import float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat, stack
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.array.identity_and_placeholders import Assert, identity
from ....graph.ops.array.padding import pad, tile
from ....graph.ops.array.shapes import reshape, shape
from ....graph.ops.math.arithmetic import add, divide, multiply, power, square, squared_difference, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import greater_equal
from ....graph.ops.math.elementwise import log
from ....graph.ops.math.reduce import reduce_all, reduce_mean
from ....graph.ops.math.static_operands import op_scope
from ....graph.ops.nn.activations import relu
from ....graph.ops.nn.conv import depthwise_conv2d
from ....graph.ops.nn.pooling import avg_pool
from .colour import convert_image_dtype

_SCALES = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)  # of Wang, Simoncelli and Bovik, 2003


def _pair(a: TensorLike, b: TensorLike, max_val: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """Both pictures and the largest value, as floats. ValueError: their last three axes differ."""
    x, y = convert(a, name="img1"), convert(b, name="img2")
    for t in (x, y):
        if t.dims is not None and len(t.dims) < 3:
            raise ValueError(f"Pictures need at least three axes, height, width and channels, not shape {t.shape}")
    if x.dims is not None and y.dims is not None and not x.shape[-3:].is_compatible_with(y.shape[-3:]):
        raise ValueError(f"Two images are not compatible: {x.shape} and {y.shape}")
    most = convert_image_dtype(cast(max_val, x.dtype.base), float32)
    return convert_image_dtype(x, float32), convert_image_dtype(y, float32), most


def psnr(a: TensorLike, b: TensorLike, max_val: TensorLike, name: str | None = None) -> Tensor:
    """The peak signal-to-noise ratio in decibels, one number for each picture; infinite for equal ones.

    Args:
        a: `[..., height, width, channels]` of one type and shape.
        b: `[..., height, width, channels]` of one type and shape.
        max_val: the largest value that there can be: 255 for bytes.
    """
    with op_scope(name, "PSNR", a, b):
        x, y, most = _pair(a, b, max_val)
        error = reduce_mean(squared_difference(x, y), [-3, -2, -1])
        return subtract(20 / math.log(10) * log(most), 10 / math.log(10) * log(error), name="psnr")


def _blurred(x: Tensor, size: int, sigma: float) -> Tensor:
    """Each pixel that a window fits around, as the mean of the window by a bell curve: down, and then along rows."""
    at = np.arange(size) - (size - 1) / 2
    bell = np.exp(-0.5 * (at / sigma) ** 2)
    known = None if x.dims is None else x.dims[-1]
    channels = shape(x)[-1] if known is None else known
    taps = tile(convert((bell / bell.sum())[:, None, None, None], x.dtype.base), stack([1, 1, channels, 1]))
    sizes = shape(x)
    y = depthwise_conv2d(reshape(x, concat([[-1], sizes[-3:]], 0)), taps, [1, 1, 1, 1], "VALID")
    y = depthwise_conv2d(y, reshape(taps, stack([1, size, channels, 1])), [1, 1, 1, 1], "VALID")
    return reshape(y, concat([sizes[:-3], shape(y)[1:]], 0))


def _similarity(
    x: Tensor, y: Tensor, most: Tensor, size: int, sigma: float, k1: float, k2: float
) -> tuple[Tensor, Tensor]:
    """The index, and contrast and structure alone: one number for each channel of each picture."""
    fits = [reduce_all(greater_equal(shape(t)[-3:-1], size)) for t in (x, y)]
    text = f"Pictures must be as large as the filter, {size}"
    with control_dependencies([Assert(f, [text, shape(t)]) for f, t in zip(fits, (x, y), strict=True)]):
        x = identity(x)
    c1, c2 = square(k1 * most), square(k2 * most)
    mean_x, mean_y = _blurred(x, size, sigma), _blurred(y, size, sigma)
    both, each = 2.0 * mean_x * mean_y, add(square(mean_x), square(mean_y))
    light = divide(both + c1, each + c1)
    together = 2.0 * _blurred(multiply(x, y), size, sigma)
    apart = _blurred(add(square(x), square(y)), size, sigma)
    contrast = divide(together - both + c2, apart - each + c2)
    return reduce_mean(multiply(light, contrast), [-3, -2]), reduce_mean(contrast, [-3, -2])


def ssim(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity of pictures, one number up to 1 for each (Wang, Bovik, Sheikh and Simoncelli, 2004).

    Args:
        img1: `[..., height, width, channels]` of one type; axes before these three broadcast.
        img2: `[..., height, width, channels]` of one type; axes before these three broadcast.
        max_val: the largest value that there can be.
        filter_size: of the window, a bell curve.
        filter_sigma: of the window, a bell curve.
        k1: small numbers that keep the quotients away from 0 / 0.
        k2: small numbers that keep the quotients away from 0 / 0.
    """
    x, y, most = _pair(img1, img2, max_val)
    return reduce_mean(_similarity(x, y, most, filter_size, filter_sigma, k1, k2)[0], [-1])


def ssim_multiscale(
    img1: TensorLike,
    img2: TensorLike,
    max_val: TensorLike,
    power_factors: Sequence[float] = _SCALES,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """`ssim` at several scales, each half of the one before, multiplied; `power_factors`: the exponent for each scale."""
    with op_scope(None, "MS-SSIM", img1, img2):
        x, y, most = _pair(img1, img2, max_val)
        factors = []
        for k in range(len(power_factors)):
            if k:
                x, y = _halved(x), _halved(y)
            whole, contrast = _similarity(x, y, most, filter_size, filter_sigma, k1, k2)
            factors.append(power(relu(whole if k == len(power_factors) - 1 else contrast), power_factors[k]))
        return reduce_mean(reduce(multiply, factors), [-1])


def _halved(x: Tensor) -> Tensor:
    """At half of the size: means of four pixels. At an odd size, the last row or column is repeated."""
    sizes = shape(x)
    flat = reshape(x, concat([[-1], sizes[-3:]], 0))
    odd = sizes[-3:-1] % 2
    flat = pad(flat, stack([[0, 0], stack([0, odd[0]]), stack([0, odd[1]]), [0, 0]]), "SYMMETRIC")
    small = avg_pool(flat, 2, 2, "VALID")
    return reshape(small, concat([sizes[:-3], shape(small)[1:]], 0))


def image_gradients(image: TensorLike) -> tuple[Tensor, Tensor]:
    """(dy, dx): each pixel taken from the one below it, and from the one to its right; 0 at the edge.

    Args:
        image: `[batch, height, width, channels]`. ValueError: it has another rank.
    """
    x = convert(image, name="image")
    if x.dims is None or len(x.dims) != 4:
        raise ValueError(f"image_gradients expects a 4D tensor [batch_size, h, w, d], not {x.shape}.")
    down, across = subtract(x[:, 1:], x[:, :-1]), subtract(x[:, :, 1:], x[:, :, :-1])
    found = concat([down, zeros_like(x[:, :1])], 1), concat([across, zeros_like(x[:, :, :1])], 2)
    for each in found:
        each.set_shape(x.dims)
    return found


def sobel_edges(image: TensorLike) -> Tensor:
    """Sobel's derivatives of pictures, `[batch, height, width, channels, 2]`: down, and across."""
    x = convert(image, name="image")
    if x.dims is None or len(x.dims) != 4:
        raise ValueError(f"sobel_edges expects [batch, height, width, channels], not {x.shape}")
    down = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    kernels = np.stack([down, down.T], -1)[:, :, None]
    channels = shape(x)[3] if x.dims[3] is None else x.dims[3]
    taps = tile(convert(kernels.astype(np.float32), x.dtype.base), stack([1, 1, channels, 1]))
    around = pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    found = reshape(depthwise_conv2d(around, taps, [1, 1, 1, 1], "VALID"), concat([shape(x), [2]], 0))
    found.set_shape([*x.dims, 2])
    return found


explain_members(sys.modules[__name__])
