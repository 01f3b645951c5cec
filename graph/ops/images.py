"""Pictures as tensors, `[height, width, channels]` or a batch of these: turned, cut, resized, and their colours changed.

All is made of other ops, so it is fused with what stands around it, and has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..build import TensorLike, convert
from ..control_flow import cond
from ..dtypes import DType, as_dtype, float32, int32
from ..node import Tensor
from ..static_value import static_value
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
from .compare import equal, greater, less, where, where_v2
from .creation import range as range_
from .einsum import tensordot
from .gathering import gather, reverse
from .joining import stack, unstack
from .math import floor, round as round_
from .operands import op_scope
from .padding import pad, tile
from .random import random_uniform
from .reduce import reduce_max, reduce_mean, reduce_min, reduce_prod, reduce_sum
from .shapes import expand_dims, reshape, shape, transpose
from .slicing import slice as slice_

GREY = (0.2989, 0.5870, 0.1140)  # how bright red, green and blue look: TensorFlow's numbers


class ResizeMethod:
    """Ways to resize."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def _picture(value: TensorLike, ranks: Sequence[int] = (3, 4)) -> Tensor:
    """A tensor that is a picture, or a batch. ValueError: it has another number of axes, or an unknown one."""
    x = convert(value, name="image")
    if x.dims is None or len(x.dims) not in ranks:
        raise ValueError(f"'image' must have {' or '.join(map(str, ranks))} dimensions, its shape is {x.shape}")
    return x


def _size(x: Tensor, axis: int) -> Any:
    """A size: a number where it is known, else a scalar."""
    assert x.dims is not None
    known = x.dims[axis]
    return known if known is not None else shape(x)[axis]


# --- turned -----------------------------------------------------------------------------------------------------------


def flip_left_right(image: TensorLike) -> Tensor:
    """Left and right changed."""
    x = _picture(image)
    return reverse(x, [len(x.shape) - 2])


def flip_up_down(image: TensorLike) -> Tensor:
    """Up and down changed."""
    x = _picture(image)
    return reverse(x, [len(x.shape) - 3])


def transpose_image(image: TensorLike, name: str | None = None) -> Tensor:
    """Rows and columns changed."""
    x = _picture(image)
    return transpose(x, [1, 0, 2] if len(x.shape) == 3 else [0, 2, 1, 3], name=name)


def rot90(image: TensorLike, k: int = 1, name: str | None = None) -> Tensor:
    """Turned to the left by 90 degrees, `k` times."""
    with op_scope(name, "rot90", image):
        x = _picture(image)
        turns: dict[int, Callable[[Tensor], Tensor]] = {
            0: lambda t: t,
            1: lambda t: flip_up_down(transpose_image(t)),
            2: lambda t: flip_up_down(flip_left_right(t)),
            3: lambda t: transpose_image(flip_up_down(t)),
        }
        return turns[int(k) % 4](x)


def _by_chance(image: TensorLike, seed: int | None, flip: Callable[[TensorLike], Tensor], name: str) -> Tensor:
    """Flipped, each picture with probability a half."""
    with op_scope(None, name, image):
        x = _picture(image)
        if len(x.shape) == 3:
            one: Tensor = cond(less(random_uniform([], seed=seed), 0.5), lambda: flip(x), lambda: x)
            return one
        chosen = less(random_uniform(shape(x)[:1], seed=seed), 0.5)
        return where(chosen, flip(x), x)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_left_right`, or not: each picture of a batch for itself."""
    return _by_chance(image, seed, flip_left_right, "random_flip_left_right")


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_up_down`, or not: each picture of a batch for itself."""
    return _by_chance(image, seed, flip_up_down, "random_flip_up_down")


# --- cut --------------------------------------------------------------------------------------------------------------


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """A part of it. InvalidArgumentError in a step: it is not inside."""
    with op_scope(None, "crop_to_bounding_box", image):
        x = _picture(image)
        batch = [] if len(x.shape) == 3 else [0]
        begin = [*batch, offset_height, offset_width, 0]
        size = [*([-1] if batch else []), target_height, target_width, -1]
        return slice_(x, stack(begin), stack(size))


def pad_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """With zeros around it, so that it begins at an offset in a picture of the target's size."""
    with op_scope(None, "pad_to_bounding_box", image):
        x = _picture(image)
        rows, columns = len(x.shape) - 3, len(x.shape) - 2
        below = subtract(subtract(target_height, offset_height), _size(x, rows))
        right = subtract(subtract(target_width, offset_width), _size(x, columns))
        around = [[0, 0]] * rows + [[offset_height, below], [offset_width, right], [0, 0]]
        padded = pad(x, stack([stack([convert(a, int32), convert(b, int32)]) for a, b in around]))
        if all(isinstance(n, int) for n in (target_height, target_width)):
            assert x.dims is not None
            padded.set_shape([*x.dims[:rows], target_height, target_width, x.dims[-1]])
        return padded


def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """The middle of it. ValueError: the fraction is not above 0 and at most 1."""
    if not 0.0 < central_fraction <= 1.0:
        raise ValueError(f"central_fraction must be within (0, 1], not {central_fraction}")
    x = _picture(image)
    if central_fraction == 1.0:
        return x
    with op_scope(None, "central_crop", x):
        starts, sizes = [], []
        for axis in (len(x.shape) - 3, len(x.shape) - 2):
            whole = _size(x, axis)
            if isinstance(whole, int):
                start: Any = int((whole - whole * central_fraction) / 2)
            else:
                length = cast(whole, float32)
                start = cast(divide(subtract(length, multiply(length, central_fraction)), 2.0), int32)
            starts.append(start)
            sizes.append(whole - 2 * start)
        return crop_to_bounding_box(x, *starts, *sizes)


def resize_image_with_crop_or_pad(image: TensorLike, target_height: int, target_width: int) -> Tensor:
    """Its middle, or it in the middle of zeros, so that it has that size."""
    with op_scope(None, "resize_image_with_crop_or_pad", image):
        x = _picture(image)
        for axis, target in ((len(x.shape) - 3, target_height), (len(x.shape) - 2, target_width)):
            whole = _size(x, axis)
            more = target - whole
            cut, fill, kept = _not_below_0(-more // 2), _not_below_0(more // 2), target - _not_below_0(more)
            rank = len(x.shape)
            assert x.dims is not None
            dims = [*x.dims[:axis], target, *x.dims[axis + 1 :]]
            begin = [cut if a == axis else 0 for a in range(rank)]
            size = [kept if a == axis else -1 for a in range(rank)]
            cropped = slice_(x, stack(begin), stack(size))
            around = [[fill, subtract(subtract(target, fill), kept)] if a == axis else [0, 0] for a in range(rank)]
            x = pad(cropped, stack([stack([convert(p, int32), convert(q, int32)]) for p, q in around]))
            x.set_shape(dims)
        return x


def _not_below_0(size: Any) -> Any:
    return max(size, 0) if isinstance(size, int) else maximum(size, 0)


resize_with_crop_or_pad = resize_image_with_crop_or_pad


# --- resized ----------------------------------------------------------------------------------------------------------


def resize_images(
    images: TensorLike,
    size: TensorLike,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """In another size.

    Args:
        images: a picture or a batch. size: height and width, two int32.
        method: `ResizeMethod.BILINEAR` (float32 comes out) or `NEAREST_NEIGHBOR`; or their names, "bilinear" and "nearest".
        align_corners: the middles of the pixels in the corners fall on each other; else, as TensorFlow 1 has it, pixel i of the
            result is at i * old / new.
        preserve_aspect_ratio: as large as fits into `size`, with its own proportions.

    Raises:
        ValueError: another method, or no picture.
    """
    method = {"bilinear": 0, "nearest": 1}.get(method, method) if isinstance(method, str) else method
    if method not in (ResizeMethod.BILINEAR, ResizeMethod.NEAREST_NEIGHBOR):
        raise ValueError(f"Resize method is not implemented: {method}; BILINEAR and NEAREST_NEIGHBOR are")
    with op_scope(name, "resize", images):
        x = _picture(images)
        rows, columns = len(x.shape) - 3, len(x.shape) - 2
        height, width = unstack(convert(size, int32), 2)
        if preserve_aspect_ratio:
            old = [cast(shape(x)[a], float32) for a in (rows, columns)]
            scale = minimum(divide(cast(height, float32), old[0]), divide(cast(width, float32), old[1]))
            height, width = (cast(round_(multiply(scale, n)), int32) for n in old)
        elif all(_is(new, x.dims[a]) for new, a in ((height, rows), (width, columns))):  # type: ignore[index]
            return x
        if method == ResizeMethod.NEAREST_NEIGHBOR:
            for axis, new in ((rows, height), (columns, width)):
                at = _positions(x, axis, new, align_corners)
                nearest = floor(add(at, 0.5)) if align_corners else floor(at)
                x = gather(x, minimum(cast(nearest, int32), _size(x, axis) - 1), axis=axis)
            return x
        x = cast(x, float32)
        for axis, new in ((rows, height), (columns, width)):
            at = _positions(x, axis, new, align_corners)
            low = floor(at)
            first = cast(low, int32)
            share = reshape(subtract(at, low), [-1] + [1] * (len(x.shape) - 1 - axis))
            before = gather(x, first, axis=axis)
            after = gather(x, minimum(add(first, 1), _size(x, axis) - 1), axis=axis)
            x = add(before, multiply(subtract(after, before), share))
        return x


resize = resize_images


def _is(new: Tensor, old: int | None) -> bool:
    known = static_value(new)
    return known is not None and old is not None and int(known) == old


def _positions(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """Where in the old picture the pixels of the new one are, along an axis."""
    old, count = cast(convert(_size(x, axis)), float32), cast(new, float32)
    whole = divide(old, count)
    if align:
        whole = where(greater(new, 1), divide(subtract(old, 1.0), maximum(subtract(count, 1.0), 1.0)), whole)
    return multiply(cast(range_(new), float32), whole)


def resize_bilinear(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` by the bilinear method; float32 comes out."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.BILINEAR, align_corners, name=name), float32)
    return resized


def resize_nearest_neighbor(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` by the nearest pixels."""
    return resize_images(images, size, ResizeMethod.NEAREST_NEIGHBOR, align_corners, name=name)


# --- colours ----------------------------------------------------------------------------------------------------------


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
    """Brighter by `delta`, of values from 0 to 1."""
    return _as_floats(image, lambda x: add(x, cast(convert(delta), x.dtype.base)), "adjust_brightness")


def adjust_contrast(images: TensorLike, contrast_factor: TensorLike) -> Tensor:
    """Each channel as much further from its mean."""

    def change(x: Tensor) -> Tensor:
        mean = reduce_mean(x, [-3, -2], keepdims=True)
        return add(multiply(subtract(x, mean), cast(convert(contrast_factor), x.dtype.base)), mean)

    return _as_floats(_picture(images), change, "adjust_contrast")


def adjust_gamma(image: TensorLike, gamma: float = 1.0, gain: float = 1.0) -> Tensor:
    """`gain * value ** gamma`. ValueError: gamma is negative."""
    if gamma < 0:
        raise ValueError("Gamma should be a non-negative real number.")
    return _as_floats(image, lambda x: multiply(power(x, gamma), gain), "adjust_gamma")


def adjust_saturation(image: TensorLike, saturation_factor: TensorLike, name: str | None = None) -> Tensor:
    """Colours of red, green and blue as much stronger."""

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = unstack(rgb_to_hsv(x), 3, axis=-1)
        stronger = minimum(maximum(multiply(saturation, saturation_factor), 0.0), 1.0)
        return hsv_to_rgb(stack([hue, stronger, value], -1))

    return _as_floats(image, change, name or "adjust_saturation")


def adjust_hue(image: TensorLike, delta: TensorLike, name: str | None = None) -> Tensor:
    """Colours turned by `delta` of the circle, from -1 to 1."""

    def change(x: Tensor) -> Tensor:
        hue, saturation, value = unstack(rgb_to_hsv(x), 3, axis=-1)
        return hsv_to_rgb(stack([floormod(add(hue, delta), 1.0), saturation, value], -1))

    return _as_floats(image, change, name or "adjust_hue")


def _between(low: float, high: float, seed: int | None) -> Tensor:
    return random_uniform([], low, high, seed=seed)


def random_brightness(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by up to `max_delta` in both directions. ValueError: it is negative."""
    if max_delta < 0:
        raise ValueError("max_delta must be non-negative.")
    return adjust_brightness(image, _between(-max_delta, max_delta, seed))


def random_contrast(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_contrast` by a factor between two. ValueError: not 0 <= lower < upper."""
    _check_range(lower, upper)
    return adjust_contrast(image, _between(lower, upper, seed))


def random_saturation(image: TensorLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_saturation` by a factor between two. ValueError: not 0 <= lower < upper."""
    _check_range(lower, upper)
    return adjust_saturation(image, _between(lower, upper, seed))


def random_hue(image: TensorLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_hue` by up to `max_delta`. ValueError: it is not from 0 to 0.5."""
    if not 0 <= max_delta <= 0.5:
        raise ValueError("max_delta must be from 0 to 0.5.")
    return adjust_hue(image, _between(-max_delta, max_delta, seed))


def _check_range(lower: float, upper: float) -> None:
    if upper <= lower:
        raise ValueError("upper must be > lower.")
    if lower < 0:
        raise ValueError("lower must be non-negative.")


def rgb_to_grayscale(images: TensorLike, name: str | None = None) -> Tensor:
    """One channel of brightness for red, green and blue."""
    return _as_floats(
        images, lambda x: tensordot(x, np.array(GREY, x.dtype.base.np)[:, None], 1), name or "rgb_to_grayscale"
    )


def grayscale_to_rgb(images: TensorLike, name: str | None = None) -> Tensor:
    """One channel three times."""
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
        x = _picture(image)
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
        x = _picture(images)
        if len(x.shape) == 3:
            down, across, axes = subtract(x[1:], x[:-1]), subtract(x[:, 1:], x[:, :-1]), None
            return add(reduce_sum(absolute(down), axes), reduce_sum(absolute(across), axes))
        down, across = subtract(x[:, 1:], x[:, :-1]), subtract(x[:, :, 1:], x[:, :, :-1])
        return add(reduce_sum(absolute(down), [1, 2, 3]), reduce_sum(absolute(across), [1, 2, 3]))


__all__ = [
    "ResizeMethod", "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation", "central_crop",
    "convert_image_dtype", "crop_to_bounding_box", "flip_left_right", "flip_up_down", "grayscale_to_rgb", "hsv_to_rgb",
    "pad_to_bounding_box", "per_image_standardization", "random_brightness", "random_contrast", "random_flip_left_right",
    "random_flip_up_down", "random_hue", "random_saturation", "resize", "resize_bilinear", "resize_image_with_crop_or_pad",
    "resize_images", "resize_nearest_neighbor", "resize_with_crop_or_pad", "rgb_to_grayscale", "rgb_to_hsv", "rot90",
    "total_variation", "transpose_image",
]  # fmt: skip
