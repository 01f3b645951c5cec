"""Pictures as tensors, `[height, width, channels]` or a batch of these: turned, cut, resized.

All is made of other ops, so it is fused with what stands around it, and has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..build import TensorLike, convert
from ..control_flow import cond
from ..dtypes import float32, int32
from ..node import Tensor
from ..static_value import static_value
from .arithmetic import (
    add,
    divide,
    maximum,
    minimum,
    multiply,
    subtract,
)
from .cast import cast
from .compare import greater, less, where
from .creation import range as range_
from .gathering import gather, reverse
from .joining import stack, unstack
from .math import floor, round as round_
from .operands import op_scope
from .padding import pad
from .random import random_uniform
from .shapes import reshape, shape, transpose
from .slicing import slice as slice_


class ResizeMethod:
    """How `resize_images` finds a new pixel: from the four around it, or the nearest one.

    `BICUBIC` and `AREA` have names, for old programs, but `resize_images` refuses them.
    """

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def picture(value: TensorLike, ranks: Sequence[int] = (3, 4)) -> Tensor:
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
    """The picture mirrored left to right. `image`: `[height, width, channels]`, or a batch of those."""
    x = picture(image)
    return reverse(x, [len(x.shape) - 2])


def flip_up_down(image: TensorLike) -> Tensor:
    """The picture mirrored top to bottom. `image`: `[height, width, channels]`, or a batch of those."""
    x = picture(image)
    return reverse(x, [len(x.shape) - 3])


def transpose_image(image: TensorLike, name: str | None = None) -> Tensor:
    """Rows and columns of a picture, or of each in a batch, exchanged: `[width, height, channels]`."""
    x = picture(image)
    return transpose(x, [1, 0, 2] if len(x.shape) == 3 else [0, 2, 1, 3], name=name)


def rot90(image: TensorLike, k: int = 1, name: str | None = None) -> Tensor:
    """The picture turned counter-clockwise by `k` times 90 degrees; a batch is turned picture by picture."""
    with op_scope(name, "rot90", image):
        x = picture(image)
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
        x = picture(image)
        if len(x.shape) == 3:
            one: Tensor = cond(less(random_uniform([], seed=seed), 0.5), lambda: flip(x), lambda: x)
            return one
        chosen = less(random_uniform(shape(x)[:1], seed=seed), 0.5)
        return where(chosen, flip(x), x)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_left_right` with probability 1/2; each picture of a batch is drawn for by itself."""
    return _by_chance(image, seed, flip_left_right, "random_flip_left_right")


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_up_down` with probability 1/2; each picture of a batch is drawn for by itself."""
    return _by_chance(image, seed, flip_up_down, "random_flip_up_down")


# --- cut --------------------------------------------------------------------------------------------------------------


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """The part of a picture, or of each in a batch, that begins at an offset and has the target's size, in pixels.

    InvalidArgumentError, when it runs: the part reaches beyond the picture.
    """
    with op_scope(None, "crop_to_bounding_box", image):
        x = picture(image)
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
    """A picture, or each in a batch, surrounded by zeros: it begins at an offset in a picture of the target's size, in pixels."""
    with op_scope(None, "pad_to_bounding_box", image):
        x = picture(image)
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
    x = picture(image)
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
        x = picture(image)
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
        x = picture(images)
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


__all__ = [
    "ResizeMethod", "central_crop", "crop_to_bounding_box", "flip_left_right", "flip_up_down", "pad_to_bounding_box",
    "random_flip_left_right", "random_flip_up_down", "resize", "resize_bilinear", "resize_image_with_crop_or_pad",
    "resize_images", "resize_nearest_neighbor", "resize_with_crop_or_pad", "rot90", "transpose_image",
]  # fmt: skip
