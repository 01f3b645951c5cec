"""Geometry of images, `[height, width, channels]` or batches of them: flips, rotations, crops, padding.

All of them are made of other ops, so they are fused with the ops around them and have gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, convert
from ....graph.core.constant_value import static_value
from ....graph.core.default_graph import control_dependencies
from ....graph.core.dtypes import float32, float64, int32
from ....graph.core.graph import Node, Tensor
from ....graph.core.hooks import hooks
from ....graph.ops.array.concat_stack import stack
from ....graph.ops.array.gather import reverse
from ....graph.ops.array.identity_and_placeholders import Assert, identity
from ....graph.ops.array.padding import pad
from ....graph.ops.array.shapes import shape, size_of, transpose
from ....graph.ops.array.slicing import slice as slice_
from ....graph.ops.math.arithmetic import divide, floormod, maximum, multiply, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, less, where
from ....graph.ops.math.elementwise import floor
from ....graph.ops.math.reduce import reduce_all
from ....graph.ops.math.static_operands import op_scope
from ....graph.ops.nn.resize import ResizeMethod, picture, resize_images
from ....graph.ops.random.random import random_uniform


def _need(condition: Any, text: str) -> list[Node]:
    """The assertions that check a condition at run time; none if it is known to hold. ValueError: it is known to be false."""
    known = static_value(condition) if isinstance(condition, Tensor) else condition
    if known is None:
        return [Assert(condition, [text])]
    if not known:
        raise ValueError(text)
    return []


def _with_pixels(x: Tensor) -> list[Node]:
    if x.dims is not None and None not in x.dims[-3:]:
        return []
    return [Assert(reduce_all(greater(shape(x)[-3:], 0)), ["all dims of 'image.shape' must be > 0", shape(x)])]


def _number(size: Any) -> Any:
    """A size or an offset in pixels: an int where it is known, else a scalar of int32."""
    known = static_value(size) if isinstance(size, Tensor) else size
    return int(known) if known is not None else cast(size, int32)


def _checked(x: Tensor, *checks: list[Node]) -> Tensor:
    """The picture, once the checks hold."""
    wanted = [node for nodes in checks for node in nodes]
    if not wanted:
        return x
    with control_dependencies(wanted):
        passed: Tensor = identity(x)
        return passed


def checked(value: TensorLike, holds: Callable[[Any], Any], text: str) -> TensorLike:
    """The number, once it is known to hold. ValueError: it does not; InvalidArgumentError: the same, when the graph runs."""
    if not isinstance(value, Tensor):
        _need(holds(value), text)
        return value
    return _checked(value, [Assert(holds(value), [text])])


def flip_left_right(image: TensorLike) -> Tensor:
    """The picture mirrored left to right. `image`: `[height, width, channels]`, or a batch of those."""
    with op_scope(None, "flip_left_right", image):
        x = picture(image)
        return reverse(x, [len(x.shape) - 2])


def flip_up_down(image: TensorLike) -> Tensor:
    """The picture mirrored top to bottom. `image`: `[height, width, channels]`, or a batch of those."""
    with op_scope(None, "flip_up_down", image):
        x = picture(image)
        return reverse(x, [len(x.shape) - 3])


def transpose_image(image: TensorLike, name: str | None = None) -> Tensor:
    """Rows and columns of a picture, or of each in a batch, exchanged: `[width, height, channels]`."""
    with op_scope(name, "transpose_image", image):
        x = picture(image)
        return transpose(x, [1, 0, 2] if len(x.shape) == 3 else [0, 2, 1, 3])


def rot90(image: TensorLike, k: TensorLike = 1, name: str | None = None) -> Tensor:
    """The picture turned counter-clockwise by `k` times 90 degrees; a batch is turned picture by picture."""
    with op_scope(name, "rot90", image):
        x = picture(image)
        turns: dict[int, Callable[[Tensor], Tensor]] = {
            0: lambda t: t,
            1: lambda t: flip_up_down(transpose_image(t)),
            2: lambda t: flip_up_down(flip_left_right(t)),
            3: lambda t: transpose_image(flip_up_down(t)),
        }
        known = static_value(k) if isinstance(k, Tensor) else k
        if known is not None:
            return turns[int(known) % 4](x)
        left = floormod(cast(k, int32), 4)
        found: Tensor = hooks.case(
            [(equal(left, n), partial(turn, x)) for n, turn in turns.items() if n], partial(turns[0], x)
        )
        found.set_shape([*(x.dims or ())[:-3], None, None, (x.dims or ())[-1]])
        return found


def _by_chance(image: TensorLike, seed: int | None, flip: Callable[[TensorLike], Tensor], name: str) -> Tensor:
    """Flipped, each picture with probability a half."""
    with op_scope(None, name, image):
        x = picture(image)
        if len(x.shape) == 3:
            one: Tensor = hooks.cond(less(random_uniform([], seed=seed), 0.5), lambda: flip(x), lambda: x)
            return one
        chosen = less(random_uniform(shape(x)[:1], seed=seed), 0.5)
        return where(chosen, flip(x), x)


def random_flip_left_right(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_left_right` with probability 1/2, independently for each picture of a batch."""
    return _by_chance(image, seed, flip_left_right, "random_flip_left_right")


def random_flip_up_down(image: TensorLike, seed: int | None = None) -> Tensor:
    """`flip_up_down` with probability 1/2, independently for each picture of a batch."""
    return _by_chance(image, seed, flip_up_down, "random_flip_up_down")


def crop_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """The part of a picture, or of each in a batch, that begins at an offset and has the target's size, in pixels.

    Raises:
        ValueError: the part is empty, or reaches beyond the picture; InvalidArgumentError: the same, when the graph runs.
    """
    with op_scope(None, "crop_to_bounding_box", image):
        x = picture(image)
        batch = [] if len(x.shape) == 3 else [0]
        top, left, height, width = (_number(n) for n in (offset_height, offset_width, target_height, target_width))
        x = _checked(
            x,
            _with_pixels(x),
            _need(left >= 0, "offset_width must be >= 0."),
            _need(top >= 0, "offset_height must be >= 0."),
            _need(width > 0, "target_width must be > 0."),
            _need(height > 0, "target_height must be > 0."),
            _need(size_of(x, -2) >= width + left, "width must be >= target + offset."),
            _need(size_of(x, -3) >= height + top, "height must be >= target + offset."),
        )
        return slice_(x, stack([*batch, top, left, 0]), stack([*(-1 for _ in batch), height, width, -1]))


def pad_to_bounding_box(
    image: TensorLike,
    offset_height: TensorLike,
    offset_width: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
) -> Tensor:
    """A picture, or each in a batch, surrounded by zeros: it begins at an offset in a picture of the target's size, in pixels.

    Raises:
        ValueError: it does not fit there; InvalidArgumentError: the same, when the graph runs.
    """
    with op_scope(None, "pad_to_bounding_box", image):
        x = picture(image)
        assert x.dims is not None
        rows = len(x.shape) - 3
        top, left, height, width = (_number(n) for n in (offset_height, offset_width, target_height, target_width))
        below, right = height - top - size_of(x, -3), width - left - size_of(x, -2)
        x = _checked(
            x,
            _with_pixels(x),
            _need(top >= 0, "offset_height must be >= 0"),
            _need(left >= 0, "offset_width must be >= 0"),
            _need(right >= 0, "width must be <= target - offset"),
            _need(below >= 0, "height must be <= target - offset"),
        )
        around = [[0, 0]] * rows + [[top, below], [left, right], [0, 0]]
        padded = pad(x, stack([stack([convert(a, int32), convert(b, int32)]) for a, b in around]))
        known = [n if isinstance(n, int) else None for n in (height, width)]
        padded.set_shape([*(x.dims or ())[:rows], *known, (x.dims or ())[-1]])
        return padded


def central_crop(image: TensorLike, central_fraction: float) -> Tensor:
    """The middle of it. ValueError: the fraction is not above 0 and at most 1."""
    if not 0.0 < central_fraction <= 1.0:
        raise ValueError(f"central_fraction must be within (0, 1], not {central_fraction}")
    with op_scope(None, "central_crop", image):
        x = picture(image)
        if central_fraction == 1.0:
            return x
        starts, sizes = [], []
        for axis in (len(x.shape) - 3, len(x.shape) - 2):
            whole = size_of(x, axis)
            if isinstance(whole, int):
                start: Any = int((whole - whole * central_fraction) / 2)
            else:
                length = cast(whole, float32)
                start = cast(divide(subtract(length, multiply(length, central_fraction)), 2.0), int32)
            starts.append(start)
            sizes.append(whole - 2 * start)
        found = crop_to_bounding_box(x, *starts, *sizes)
        found.set_shape([*(x.dims or ())[:-3], None, None, (x.dims or ())[-1]])
        return found


def resize_image_with_crop_or_pad(image: TensorLike, target_height: TensorLike, target_width: TensorLike) -> Tensor:
    """Its middle, or it in the middle of zeros, so that it has that size."""
    with op_scope(None, "resize_image_with_crop_or_pad", image):
        x = picture(image)
        targets = _number(target_height), _number(target_width)
        names = "target_height", "target_width"
        positive = [_need(n > 0, f"{name} must be > 0.") for n, name in zip(targets, names, strict=True)]
        x = _checked(x, _with_pixels(x), *positive)
        for axis, target in ((len(x.shape) - 3, targets[0]), (len(x.shape) - 2, targets[1])):
            whole = size_of(x, axis)
            more = target - whole
            cut, fill, kept = _not_below_0(-more // 2), _not_below_0(more // 2), target - _not_below_0(more)
            rank = len(x.shape)
            assert x.dims is not None
            dims = [*x.dims[:axis], target if isinstance(target, int) else None, *x.dims[axis + 1 :]]
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


def resize_image_with_pad(
    image: TensorLike,
    target_height: TensorLike,
    target_width: TensorLike,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """As large as fits into that size, with its own proportions, in the middle of zeros. Other arguments as of `resize_images`."""
    with op_scope(None, "resize_image_with_pad", image):
        x = picture(image)
        targets = _number(target_height), _number(target_width)
        names = "target_height", "target_width"
        positive = [_need(n > 0, f"{name} must be > 0.") for n, name in zip(targets, names, strict=True)]
        x = _checked(x, _with_pixels(x), *positive)
        old = [cast(convert(size_of(x, a)), float64) for a in (-3, -2)]
        room = [cast(convert(n), float64) for n in targets]
        ratio = maximum(divide(old[0], room[0]), divide(old[1], room[1]))
        sizes = [divide(n, ratio) for n in old]
        height, width = (cast(floor(n), int32) for n in sizes)
        top, left = (maximum(cast(floor((r - n) / 2.0), int32), 0) for r, n in zip(room, sizes, strict=True))
        resized = resize_images(x, stack([height, width]), method, align_corners)
        if method not in (ResizeMethod.NEAREST_NEIGHBOR, "nearest"):
            resized = cast(resized, float32)  # also where the size stays
        return pad_to_bounding_box(resized, top, left, *targets)


explain_members(sys.modules[__name__])
