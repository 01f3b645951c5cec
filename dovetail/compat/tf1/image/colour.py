"""Colours of images: brightness, contrast, hue, saturation, greyscale; conversion of element types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert
from ....graph.core.dtypes import DType, as_dtype, float32
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat, stack, unstack
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.shapes import ensure_shape, expand_dims, shape
from ....graph.ops.math.arithmetic import (
    absolute,
    add,
    divide,
    floordiv,
    floormod,
    maximum,
    minimum,
    multiply,
    power,
    rsqrt,
    sqrt,
    square,
    subtract,
)
from ....graph.ops.math.cast import cast
from ....graph.ops.math.clip import saturate_cast
from ....graph.ops.math.compare import equal, greater, where_v2
from ....graph.ops.math.reduce import reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum
from ....graph.ops.math.static_operands import op_scope
from ....graph.ops.nn.resize import picture
from ....graph.ops.random.random import random_uniform
from .geometry import checked

GREY = (0.2989, 0.5870, 0.1140)  # how bright red, green and blue look: TensorFlow's numbers


def convert_image_dtype(image: TensorLike, dtype: Any, saturate: bool = False, name: str | None = None) -> Tensor:
    """As another type: floats go from 0 to 1, integers from 0 to their largest. `saturate`: what integers cannot hold is cut off."""
    with op_scope(name, "convert_image", image):
        x, target = convert(image), as_dtype(dtype).base
        source = x.dtype.base
        put: Callable[[Tensor, DType], Tensor] = saturate_cast if saturate else cast
        if source is target:
            same: Tensor = identity(x)
            return same
        if source.is_floating and target.is_floating:
            converted: Tensor = cast(x, target)
            return converted
        if source.is_floating:
            return put(multiply(x, convert(float(target.max) + 0.5, source)), target)
        if target.is_floating:
            return multiply(cast(x, target), convert(1.0 / float(source.max), target))
        large, small = int(source.max) + 1, int(target.max) + 1
        if large > small:
            return put(floordiv(x, convert(large // small, source)), target)
        return put(multiply(put(x, target), convert(small // large, target)), target)


def _as_floats(image: TensorLike, change: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """A change of the picture as float32, back in its own type."""
    with op_scope(None, name, image):
        x = convert(image, name="images")
        own: DType = x.dtype.base
        floats = x if own.is_floating else convert_image_dtype(x, float32)
        return convert_image_dtype(change(floats), own, saturate=True)


def adjust_brightness(image: TensorLike, delta: TensorLike) -> Tensor:
    """A picture with `delta` added to every value, on the scale from 0 to 1. Integers are scaled to it and back, and saturate."""
    return _as_floats(image, lambda x: add(x, cast(convert(delta), x.dtype.base)), "adjust_brightness")


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """`(x - mean) * contrast_factor + mean`, with the mean of each channel of each picture. The type stays; integers saturate."""

    x, factor = convert(images, name="images"), convert(contrast_factor, name="contrast_factor")
    if x.dims is not None and len(x.dims) < 3:
        raise ValueError(f"'images' must have at least 3 dimensions, its shape is {x.shape}")
    if factor.dims:
        raise ValueError(f"Shape must be rank 0 but is rank {len(factor.dims)}: of contrast_factor")

    def change(x: Tensor) -> Tensor:
        mean = reduce_mean(x, [-3, -2], keepdims=True)
        return add(multiply(subtract(x, mean), cast(factor, x.dtype.base)), mean)

    return _as_floats(x, change, "adjust_contrast")


def adjust_gamma(image: TensorLike, gamma: TensorLike = 1.0, gain: TensorLike = 1.0) -> Tensor:
    """`gain * x ** gamma` of values from 0 to 1; the type stays. ValueError: gamma is negative."""
    exponent = checked(gamma, lambda g: g >= 0, "Gamma should be a non-negative real number.")
    return _as_floats(
        image, lambda x: multiply(power(x, cast(exponent, x.dtype.base)), cast(gain, x.dtype.base)), "adjust_gamma"
    )


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """RGB pictures whose saturation (of hue, saturation and value) is multiplied by a factor, and at most 1. The type stays."""

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = unstack(rgb_to_hsv(x), 3, axis=-1)
        stronger = minimum(maximum(multiply(saturation, saturation_factor), 0.0), 1.0)
        return hsv_to_rgb(stack([hue, stronger, value], -1))

    return _as_floats(image, change, name or "adjust_saturation")


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """RGB pictures whose hues are rotated by `delta` of the colour circle, from -1 to 1. The type stays."""

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = unstack(rgb_to_hsv(x), 3, axis=-1)
        return hsv_to_rgb(stack([floormod(add(hue, delta), 1.0), saturation, value], -1))

    return _as_floats(image, change, name or "adjust_hue")


def _between(low: float, high: float, seed: int | None) -> Tensor:
    return random_uniform([], low, high, seed=seed)


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by a number drawn from [-max_delta, max_delta). ValueError: `max_delta` is negative."""
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_brightness(image, _between(-max_delta, max_delta, seed))


def random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_contrast` by a factor drawn from [lower, upper). ValueError: not 0 <= lower < upper."""
    _check_range(lower, upper)
    return adjust_contrast(image, _between(lower, upper, seed))


def random_saturation(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_saturation` by a factor drawn from [lower, upper). ValueError: not 0 <= lower < upper."""
    _check_range(lower, upper)
    return adjust_saturation(image, _between(lower, upper, seed))


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_hue` by a number drawn from [-max_delta, max_delta). ValueError: `max_delta` is not from 0 to 0.5."""
    if not 0 <= max_delta <= 0.5:
        raise ValueError("max_delta must be from 0 to 0.5.")
    return adjust_hue(image, _between(-max_delta, max_delta, seed))


def _check_range(lower: float, upper: float) -> None:
    if upper <= lower:
        raise ValueError("upper must be > lower.")
    if lower < 0:
        raise ValueError("lower must be non-negative.")


def _of_channels(x: Tensor, count: int, name: str) -> Tensor:
    """`x`, checked to have so many channels: arithmetic would repeat a single one, and concat take more of them."""
    if x.dims is None:
        return x
    if not x.dims or x.dims[-1] not in (count, None):
        raise ValueError(f"{name} takes pictures of {count} channel{'s' * (count > 1)}, not of shape {x.shape}")
    return ensure_shape(x, [*x.dims[:-1], count])


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """`[..., 3]` to `[..., 1]`: brightness, as 0.2989, 0.587 and 0.114 of red, green and blue. The type stays."""
    return _mixed(images, np.array(GREY)[:, None], name or "rgb_to_grayscale")


def _mixed(images: TensorLike, weights: Any, name: str) -> Tensor:
    """Each channel as a weighted sum of the three that there are: `weights` is `[3, channels]`. The type stays."""

    def change(x: Tensor) -> Tensor:
        x = _of_channels(x, 3, name)
        channels = [reduce_sum(multiply(x, column.astype(x.dtype.base.np)), -1) for column in weights.T]
        return stack(channels, -1)

    found = _as_floats(images, change, name)
    if found.dims is not None:
        found.set_shape([*found.dims[:-1], weights.shape[1]])
    return found


def _mixing(weights: Any, name: str, doc: str) -> Callable[..., Tensor]:
    def mix(images: TensorLike) -> Tensor:
        return _mixed(images, np.array(weights), name)

    mix.__name__ = mix.__qualname__ = name
    mix.__doc__ = doc
    return mix


rgb_to_yiq = _mixing(
    [[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]],
    "rgb_to_yiq", "Brightness, and two numbers of colour of NTSC, of red, green and blue: `[..., 3]`.",
)  # fmt: skip
yiq_to_rgb = _mixing(
    [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]],
    "yiq_to_rgb", "The inverse of `rgb_to_yiq`.",
)  # fmt: skip
rgb_to_yuv = _mixing(
    [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]],
    "rgb_to_yuv", "Brightness, and two numbers of colour of PAL, of red, green and blue: `[..., 3]`.",
)  # fmt: skip
yuv_to_rgb = _mixing(
    [[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]],
    "yuv_to_rgb", "The inverse of `rgb_to_yuv`.",
)  # fmt: skip


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """`[..., 1]` to `[..., 3]`: the one channel as red, green and blue."""
    with op_scope(name, "grayscale_to_rgb", images):
        x = convert(images)
        if x.dims is not None and len(x.dims) < 2:
            raise ValueError(f"A grayscale image must be at least two-dimensional, its shape is {x.shape}")
        x = _of_channels(x, 1, "grayscale_to_rgb")
        return concat([x, x, x], -1)


def rgb_to_hsv(images: TensorLike, name: str | None = None) -> Tensor:
    """Hue, saturation and value, from 0 to 1, of red, green and blue, from 0 to 1."""
    with op_scope(name, "RGBToHSV", images):
        x = convert(images, prefer=float32)
        red, green, blue = unstack(x, 3, axis=-1)
        value, least = reduce_max(x, -1), reduce_min(x, -1)
        spread = subtract(value, least)
        safe = where_v2(greater(spread, 0.0), spread, 1.0)
        by_blue = add(divide(subtract(red, green), safe), 4.0)
        by_green = add(divide(subtract(blue, red), safe), 2.0)
        by_red = divide(subtract(green, blue), safe)
        sixth = where_v2(equal(value, red), by_red, where_v2(equal(value, green), by_green, by_blue))
        hue = where_v2(greater(spread, 0.0), floormod(divide(sixth, 6.0), 1.0), 0.0)
        saturation = where_v2(greater(value, 0.0), divide(spread, where_v2(greater(value, 0.0), value, 1.0)), 0.0)
        return stack([hue, saturation, value], -1)


def hsv_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """Red, green and blue of hue, saturation and value; all from 0 to 1."""
    with op_scope(name, "HSVToRGB", images):
        hue, saturation, value = unstack(convert(images, prefer=float32), 3, axis=-1)
        sixth = multiply(hue, 6.0)
        red = subtract(absolute(subtract(sixth, 3.0)), 1.0)
        green = subtract(2.0, absolute(subtract(sixth, 2.0)))
        blue = subtract(2.0, absolute(subtract(sixth, 4.0)))
        strong = minimum(maximum(stack([red, green, blue], -1), 0.0), 1.0)
        whiter = add(multiply(subtract(strong, 1.0), expand_dims(saturation, -1)), 1.0)
        return multiply(whiter, expand_dims(value, -1))


def per_image_standardization(image: TensorLike) -> Tensor:
    """Each picture with mean 0 and variance 1, float32; a picture of one colour becomes 0.

    Divided by the standard deviation, or by 1 / sqrt(number of values) where that is larger.
    """
    with op_scope(None, "per_image_standardization", image):
        x = picture(image)
        floats = x if x.dtype.is_floating else cast(x, float32)
        count = reduce_prod(shape(x)[-3:])
        mean = reduce_mean(floats, [-3, -2, -1], keepdims=True)
        variance = reduce_mean(square(subtract(floats, mean)), [-3, -2, -1], keepdims=True)
        least = rsqrt(cast(count, floats.dtype.base))
        return divide(subtract(floats, mean), maximum(sqrt(variance), least))


def total_variation(images: TensorLike, name: str | None = None) -> Tensor:
    """How much neighbours differ: the sum of absolute differences, one number per picture."""
    with op_scope(name, "total_variation", images):
        x = picture(images)
        if len(x.shape) == 3:
            down, across, axes = subtract(x[1:], x[:-1]), subtract(x[:, 1:], x[:, :-1]), None
            return add(reduce_sum(absolute(down), axes), reduce_sum(absolute(across), axes))
        down, across = subtract(x[:, 1:], x[:, :-1]), subtract(x[:, :, 1:], x[:, :, :-1])
        return add(reduce_sum(absolute(down), [1, 2, 3]), reduce_sum(absolute(across), [1, 2, 3]))


explain_members(sys.modules[__name__])
