"""Resizing of images, `[height, width, channels]`, and batches of them. It is composed of other ops, which have gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.build import TensorLike, convert
from ...core.constant_value import static_value
from ...core.dtypes import float32, int32
from ...core.graph import Tensor
from ..array.concat_stack import unstack
from ..array.gather import gather
from ..array.ranges import range as range_
from ..array.shapes import ensure_shape, expand_dims, reshape, shape, size_of
from ..linalg.einsum import einsum
from ..math.arithmetic import absolute, add, divide, maximum, minimum, multiply, subtract
from ..math.cast import cast
from ..math.compare import equal, greater, where, where_v2
from ..math.elementwise import floor, round as round_
from ..math.static_operands import op_scope


class ResizeMethod:
    """How `resize_images` computes a pixel: from 4 neighbours, the nearest pixel, 16 neighbours, or all pixels of the area it covers."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = 0, 1, 2, 3


def picture(value: TensorLike) -> Tensor:
    """A value as a tensor of rank 3 or 4. One of unknown rank must have rank 3, which is checked in each step.

    Raises:
        ValueError: the rank is not 3 or 4, or an axis has size 0.
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


def resize_images(
    images: TensorLike,
    size: TensorLike,
    method: int | str = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """Resize images.

    Args:
        images: `[height, width, channels]` or `[batch, height, width, channels]`.
        size: the new height and width, two int32.
        method: `ResizeMethod.BILINEAR`, `BICUBIC`, `AREA` or `NEAREST_NEIGHBOR`, or "bilinear", "bicubic", "area" or "nearest".
        align_corners: align the centers of the corner pixels. Otherwise pixel i of the result is at i * old size / new size, as in
            TensorFlow 1.
        preserve_aspect_ratio: keep the aspect ratio, with the largest size that fits into `size`.
        name: name scope of the nodes.

    Returns:
        float32 images. With `NEAREST_NEIGHBOR`, or if the size does not change, they keep their type.

    Raises:
        ValueError: the method is unknown, the rank is not 3 or 4, or a size is below 1.
    """
    names = {"bilinear": 0, "nearest": 1, "bicubic": 2, "area": 3}
    chosen: Any = names.get(method, method) if isinstance(method, str) else method
    if chosen not in (*_AT_ONCE, *_ALONG):
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
    sizes = [static_value(new) for new in (height, width)]
    for known in sizes:
        if known is not None and known < 1:
            raise ValueError(f"the new height and width must be at least 1, not {known}")
    dims = list(x.dims or ())
    dims[-3:-1] = [None if known is None else int(known) for known in sizes]
    if method in _AT_ONCE:
        y = _AT_ONCE[method](x, height, width, align)
    else:
        y = x
        for axis, new in ((len(dims) - 3, height), (len(dims) - 2, width)):
            y = _ALONG[method](y, axis, new, align)
    y.set_shape(dims)
    return y


def _nearest(x: Tensor, height: Tensor, width: Tensor, align: bool) -> Tensor:
    def nearest(axis: int, new: Tensor) -> Tensor:
        at = multiply(_steps(new), _scale(x, axis, new, align))
        low = floor(add(at, 0.5)) if align else floor(at)
        return minimum(cast(low, int32), size_of(x, axis) - 1)

    rank = len(x.shape)
    return _pixels(x)(nearest(rank - 3, height), nearest(rank - 2, width))


def _bilinear(x: Tensor, height: Tensor, width: Tensor, align: bool) -> Tensor:
    def neighbours(axis: int, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pixels on both sides of each new one, and how near the second one is."""
        at = multiply(_steps(new), _scale(x, axis, new, align))
        low = floor(at)
        first = cast(low, int32)
        last = minimum(add(first, 1), size_of(x, axis) - 1)
        return first, last, _broadcastable(subtract(at, low), x, axis)

    rank, pixels = len(x.shape), _pixels(x)
    top, bottom, down = neighbours(rank - 3, height)
    left, right, across = neighbours(rank - 2, width)

    def row(at: Tensor) -> Tensor:
        first = pixels(at, left)
        return add(first, multiply(subtract(pixels(at, right), first), across))

    upper = row(top)
    return add(upper, multiply(subtract(row(bottom), upper), down))


def _pixels(x: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """A function from rows and columns to the pixels there.

    They are rows of a table of all pixels: a lookup of these, and arithmetic on them, is one kernel, which makes all channels of a pixel.
    """
    rank = len(x.shape)
    rows, columns = (size_of(x, axis) for axis in (rank - 3, rank - 2))
    table = reshape(x, [-1, size_of(x, rank - 1)])

    def pixels(down: Tensor, across: Tensor) -> Tensor:
        at = add(expand_dims(multiply(down, columns), 1), across)
        if rank == 4:
            first = multiply(range_(size_of(x, 0)), multiply(rows, columns))
            at = add(reshape(first, [-1, 1, 1]), at)
        return gather(table, at)

    return pixels


def _bicubic(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """Keys's kernel (1981) with a = -0.75. Distances are rounded to multiples of 1/1024, as in TensorFlow."""
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
        source = minimum(maximum(add(cast(low, int32), i), 0), size_of(x, axis) - 1)
        parts.append(multiply(gather(x, source, axis=axis), _broadcastable(weight, x, axis)))
    return add(add(parts[0], parts[1]), add(parts[2], parts[3]))


def _area(x: Tensor, axis: int, new: Tensor, align: bool) -> Tensor:
    """The mean of the old pixels that a new pixel covers, weighted by the covered area. The last old pixel has no upper edge."""
    scale = _scale(x, axis, new, align)
    count = size_of(x, axis)
    begin, low = expand_dims(multiply(_steps(new), scale), 1), expand_dims(_steps(count), 0)
    high = where_v2(equal(low, cast(count - 1, float32)), float("inf"), add(low, 1.0))
    covered = maximum(subtract(minimum(add(begin, scale), high), maximum(begin, low)), 0.0)
    across = "bhwc"[-len(x.shape) :]
    old = across[axis]
    return einsum(f"n{old},{across}->{across.replace(old, 'n')}", divide(covered, scale), x)


_AT_ONCE: dict[Any, Callable[[Tensor, Tensor, Tensor, bool], Tensor]] = {
    ResizeMethod.BILINEAR: _bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: _nearest,
}
_ALONG: dict[Any, Callable[[Tensor, int, Tensor, bool], Tensor]] = {
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
    """The number of old pixels per new pixel along an axis. An axis of one pixel is not aligned."""
    old, count = cast(convert(size_of(x, axis)), float32), cast(new, float32)
    whole = divide(old, count)
    if not align:
        return whole
    return where(
        greater(minimum(old, count), 1.0), divide(subtract(old, 1.0), maximum(subtract(count, 1.0), 1.0)), whole
    )


def _broadcastable(along: Tensor, x: Tensor, axis: int) -> Tensor:
    """A vector along an axis, reshaped so that it broadcasts against the image."""
    return reshape(along, [-1] + [1] * (len(x.shape) - 1 - axis))


def resize_bilinear(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` with bilinear interpolation. The result is float32."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.BILINEAR, align_corners, name=name), float32)
    return resized


def resize_nearest_neighbor(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` with the nearest pixels. Images keep their type."""
    return resize_images(images, size, ResizeMethod.NEAREST_NEIGHBOR, align_corners, name=name)


def resize_bicubic(
    images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """`resize_images` with bicubic interpolation. The result is float32."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.BICUBIC, align_corners, name=name), float32)
    return resized


def resize_area(images: TensorLike, size: TensorLike, align_corners: bool = False, name: str | None = None) -> Tensor:
    """`resize_images` with means of areas. The result is float32."""
    resized: Tensor = cast(resize_images(images, size, ResizeMethod.AREA, align_corners, name=name), float32)
    return resized
