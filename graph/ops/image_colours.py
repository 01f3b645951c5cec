"""Colours of pictures: brightness, contrast, hue, saturation, shades of grey; and numbers of other types for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..build import TensorLike, convert
from ..dtypes import DType, as_dtype, float32
from ..node import Tensor
from .arithmetic import (
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
from .cast import cast, saturate_cast
from .compare import equal, greater, where_v2
from .einsum import tensordot
from .images import picture
from .joining import stack, unstack
from .operands import op_scope
from .padding import tile
from .random import random_uniform
from .reduce import reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum
from .shapes import expand_dims, shape

GREY = (0.2989, 0.5870, 0.1140)  # how bright red, green and blue look: TensorFlow's numbers


def convert_image_dtype(image: TensorLike, dtype: Any, saturate: bool = False, name: str | None = None) -> Tensor:
    """As another type: floats go from 0 to 1, integers from 0 to their largest. `saturate`: what the type cannot hold is cut off."""
    with op_scope(name, "convert_image", image):
        x, target = convert(image), as_dtype(dtype).base
        source = x.dtype.base
        put: Callable[[Tensor, DType], Tensor] = saturate_cast if saturate else cast
        if source is target:
            return x
        if source.is_floating and target.is_floating:
            return put(x, target)
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

    def change(x: Tensor) -> Tensor:
        mean = reduce_mean(x, [-3, -2], keepdims=True)
        return add(multiply(subtract(x, mean), cast(convert(contrast_factor), x.dtype.base)), mean)

    return _as_floats(picture(images), change, "adjust_contrast")


def adjust_gamma(image: TensorLike, gamma: float = 1.0, gain: float = 1.0) -> Tensor:
    """`gain * x ** gamma` of values from 0 to 1; the type stays. ValueError: gamma is negative."""
    if gamma < 0:
        raise ValueError("Gamma should be a non-negative real number.")
    return _as_floats(image, lambda x: multiply(power(x, gamma), gain), "adjust_gamma")


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """RGB pictures whose saturation (of hue, saturation and value) is multiplied by a factor, and at most 1. The type stays."""

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = unstack(rgb_to_hsv(x), 3, axis=-1)
        stronger = minimum(maximum(multiply(saturation, saturation_factor), 0.0), 1.0)
        return hsv_to_rgb(stack([hue, stronger, value], -1))

    return _as_floats(image, change, name or "adjust_saturation")


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """RGB pictures whose hues are turned by `delta` of the colour circle, from -1 to 1. The type stays."""

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


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """`[..., 3]` to `[..., 1]`: brightness, as 0.2989, 0.587 and 0.114 of red, green and blue. The type stays."""
    return _as_floats(
        images, lambda x: tensordot(x, np.array(GREY, x.dtype.base.np)[:, None], 1), name or "rgb_to_grayscale"
    )


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """`[..., 1]` to `[..., 3]`: the one channel as red, green and blue."""
    with op_scope(name, "grayscale_to_rgb", images):
        x = convert(images)
        return tile(x, [1] * (len(x.shape) - 1) + [3])


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
        own = x.dtype.base
        floats = cast(x, own if own.is_floating else float32)
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


__all__ = [
    "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation", "convert_image_dtype",
    "grayscale_to_rgb", "hsv_to_rgb", "per_image_standardization", "random_brightness", "random_contrast", "random_hue",
    "random_saturation", "rgb_to_grayscale", "rgb_to_hsv", "total_variation",
]  # fmt: skip
