"""Geometry of images, `[height, width, channels]` or batches of them: flips, rotations, crops, padding, resizing.

All of them are made of other ops, so they are fused with the ops around them and have gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...core.build import TensorLike, convert
from ...core.constant_value import static_value
from ...core.default_graph import control_dependencies
from ...core.dtypes import float32, float64, int32
from ...core.graph import Node, Tensor
from ...core.hooks import hooks
from ..array.concat_stack import stack, unstack
from ..array.gather import gather, reverse
from ..array.identity_and_placeholders import Assert, identity
from ..array.padding import pad
from ..array.ranges import range as range_
from ..array.shapes import ensure_shape, expand_dims, reshape, shape, transpose
from ..array.slicing import slice as slice_
from ..linalg.einsum import einsum
from ..math.arithmetic import absolute, add, divide, floormod, maximum, minimum, multiply, subtract
from ..math.cast import cast
from ..math.compare import equal, greater, less, where, where_v2
from ..math.elementwise import floor, round as round_
from ..math.reduce import reduce_all
from ..math.static_operands import op_scope
from ..random.random import random_uniform


class ResizeMethod:
    """How `resize_images` finds a new pixel: from the four around it, the nearest one, the sixteen around it, or all that it covers."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def picture(value: TensorLike) -> Tensor:
    """A tensor that is a picture, or a batch. One of unknown rank is taken for a picture, and held to that when the graph runs.

    Raises:
        ValueError: it has another number of axes, or an axis of size 0.
    """
    x = convert(value, name="image")
    if x.dims is None:
        return ensure_shape(x, [None, None, None])
    if len(x.dims) < 3:
        raise ValueError(
            f"'image' (shape {x.shape}) must be at least three-dimensional. 'image' must have either 3 or 4 dimensions."
        )
    if len(x.dims) > 4:
        raise ValueError(f"'image' must have either 3 or 4 dimensions. Its shape is {x.shape}")
    if 0 in x.dims[-3:]:
        raise ValueError(f"all dims of 'image.shape' must be > 0: {x.shape}")
    return x


def _need(condition: Any, text: str) -> list[Node]:
    """The assertions that check a condition at run time; none if it is known to hold. ValueError: it is known to be false."""
    known = static_value(condition) if isinstance(condition, Tensor) else condition
    if known is None:
        return [Assert(condition, [text])]
    if not known:
        raise ValueError(text)
    return []


def checked(value: TensorLike, holds: Callable[[Any], Any], text: str) -> TensorLike:
    """The number, once it is known to hold. ValueError: it does not; InvalidArgumentError: the same, when the graph runs."""
    if not isinstance(value, Tensor):
        _need(holds(value), text)
        return value
    return _checked(value, [Assert(holds(value), [text])])


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


def _size(x: Tensor, axis: int) -> Any:
    """A size: a number where it is known, else a scalar."""
    assert x.dims is not None
    known = x.dims[axis]
    return known if known is not None else shape(x)[axis]


# --- turned -----------------------------------------------------------------------------------------------------------


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


# --- cut --------------------------------------------------------------------------------------------------------------


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
            _need(_size(x, -2) >= width + left, "width must be >= target + offset."),
            _need(_size(x, -3) >= height + top, "height must be >= target + offset."),
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
        below, right = height - top - _size(x, -3), width - left - _size(x, -2)
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
            whole = _size(x, axis)
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
            whole = _size(x, axis)
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
        images: a picture or a batch.
        size: height and width, two int32.
        method: `ResizeMethod.BILINEAR`, `BICUBIC` or `AREA` (float32 comes out), or `NEAREST_NEIGHBOR`; or their names, "bilinear",
            "bicubic", "area" and "nearest".
        align_corners: the middles of the pixels in the corners fall on each other; else, as TensorFlow 1 has it, pixel i of the
            result is at i * old / new.
        preserve_aspect_ratio: as large as fits into `size`, with its own proportions.

    Raises:
        ValueError: another method, or no picture.
    """
    names = {"bilinear": 0, "nearest": 1, "bicubic": 2, "area": 3}
    chosen: Any = names.get(method, method) if isinstance(method, str) else method
    if chosen not in _ALONG:
        raise ValueError(f"Resize method is not implemented: {method}; {', '.join(names)} are")
    with op_scope(name, "resize", images):
        x = convert(images, name="images")
        if x.dims is None:
            raise ValueError("'images' contains no shape: its number of dimensions must be known")
        x = picture(x)
        rows, columns = len(x.shape) - 3, len(x.shape) - 2
        try:
            wanted = convert(size, int32, name="size")
        except TypeError as e:
            raise ValueError(f"'size' must be a 1-D int32 Tensor: {e}") from None
        if not wanted.shape.is_compatible_with([2]):
            raise ValueError(
                f"'size' must be a 1-D Tensor of 2 elements: new_height, new_width; its shape is {wanted.shape}"
            )
        height, width = unstack(wanted, 2)
        if preserve_aspect_ratio:
            old = [cast(shape(x)[a], float32) for a in (rows, columns)]
            scale = minimum(divide(cast(height, float32), old[0]), divide(cast(width, float32), old[1]))
            height, width = (cast(round_(multiply(scale, n)), int32) for n in old)
        elif all(_is(new, x.dims[a]) for new, a in ((height, rows), (width, columns))):  # type: ignore[index]
            return x
        return _resized(x, height, width, chosen, align_corners)


def _resized(x: Tensor, height: Tensor, width: Tensor, method: int, align: bool) -> Tensor:
    if method != ResizeMethod.NEAREST_NEIGHBOR:
        x = cast(x, float32)
    for axis, new in ((len(x.shape) - 3, height), (len(x.shape) - 2, width)):
        dims, known = list(x.dims or ()), static_value(new)
        x = _ALONG[method](x, axis, new, align)
        x.set_shape([*dims[:axis], None if known is None else int(known), *dims[axis + 1 :]])
    return x


def _nearest(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    at = multiply(_steps(new), _scale(x, axis, new, align))
    nearest = floor(add(at, 0.5)) if align else floor(at)
    return gather(x, minimum(cast(nearest, int32), _size(x, axis) - 1), axis=axis)


def _bilinear(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    at = multiply(_steps(new), _scale(x, axis, new, align))
    low = floor(at)
    first = cast(low, int32)
    share = _beside(subtract(at, low), x, axis)
    before = gather(x, first, axis=axis)
    after = gather(x, minimum(add(first, 1), _size(x, axis) - 1), axis=axis)
    return add(before, multiply(subtract(after, before), share))


def _bicubic(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """Keys's kernel with a = -0.75, at distances of whole 1024ths, as TensorFlow has it (Keys, 1981)."""
    a = -0.75
    at = multiply(_steps(new), _scale(x, axis, new, align))
    low = floor(at)
    share = divide(round_(multiply(subtract(at, low), 1024.0)), 1024.0)
    parts = []
    for i in range(-1, 3):
        d = absolute(subtract(share, float(i)))
        if i in (0, 1):
            weight = ((a + 2) * d - (a + 3)) * d * d + 1.0
        else:
            weight = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        place = minimum(maximum(add(cast(low, int32), i), 0), _size(x, axis) - 1)
        parts.append(multiply(gather(x, place, axis=axis), _beside(weight, x, axis)))
    return add(add(parts[0], parts[1]), add(parts[2], parts[3]))


def _area(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """The mean of the old pixels that a new pixel covers, weighted by the covered area. The last pixel extends beyond the edge."""
    scale = _scale(x, axis, new, align)
    count = _size(x, axis)
    begin, low = expand_dims(multiply(_steps(new), scale), 1), expand_dims(_steps(count), 0)
    high = where_v2(equal(low, cast(count - 1, float32)), float("inf"), add(low, 1.0))
    covered = maximum(subtract(minimum(add(begin, scale), high), maximum(begin, low)), 0.0)
    across = "bhwc"[-len(x.shape) :]
    old = across[axis]
    return einsum(f"n{old},{across}->{across.replace(old, 'n')}", divide(covered, scale), x)


_ALONG: dict[Any, Callable[[Tensor, int, Tensor, bool], Tensor]] = {
    ResizeMethod.BILINEAR: _bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: _nearest,
    ResizeMethod.BICUBIC: _bicubic,
    ResizeMethod.AREA: _area,
}


resize = resize_images


def _is(new: Tensor, old: int | None) -> bool:
    known = static_value(new)
    return known is not None and old is not None and int(known) == old


def _steps(count: TensorLike) -> Tensor:
    """0, 1, 2, ... as float32."""
    found: Tensor = cast(range_(count), float32)
    return found


def _scale(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """The scale along an axis: old pixels per new pixel. The corners of a single pixel cannot be aligned."""
    old, count = cast(convert(_size(x, axis)), float32), cast(new, float32)
    whole = divide(old, count)
    if not align:
        return whole
    return where(
        greater(minimum(old, count), 1.0), divide(subtract(old, 1.0), maximum(subtract(count, 1.0), 1.0)), whole
    )


def _beside(along: Tensor, x: Tensor, axis: int) -> Tensor:
    """Numbers for an axis, shaped so that they broadcast against the picture."""
    return reshape(along, [-1] + [1] * (len(x.shape) - 1 - axis))


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


def resize_bicubic(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` by the bicubic method; float32 comes out."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.BICUBIC, align_corners, name=name), float32)
    return resized


def resize_area(images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None) -> Tensor:
    """`resize_images` by the means of areas; float32 comes out."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.AREA, align_corners, name=name), float32)
    return resized


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
        old = [cast(convert(_size(x, a)), float64) for a in (-3, -2)]
        room = [cast(convert(n), float64) for n in targets]
        ratio = maximum(divide(old[0], room[0]), divide(old[1], room[1]))
        sizes = [divide(n, ratio) for n in old]
        height, width = (cast(floor(n), int32) for n in sizes)
        top, left = (maximum(cast(floor((r - n) / 2.0), int32), 0) for r, n in zip(room, sizes, strict=True))
        resized = resize_images(x, stack([height, width]), method, align_corners)
        return pad_to_bounding_box(resized, top, left, *targets)
