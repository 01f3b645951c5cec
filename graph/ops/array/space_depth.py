"""Blocks of pixels to channels or to the batch, and the inverses: each is a reshape, a transpose and a reshape.

TensorFlow: `tf.space_to_depth`, `tf.depth_to_space`, `tf.space_to_batch(_nd)`, `tf.batch_to_space(_nd)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert
from ...core.constant_value import static_value
from ...core.dtypes import int32
from ...core.graph import Tensor
from ...core.shape import compatible
from ..math.arithmetic import minimum
from ..math.cast import cast
from ..math.common import layout_of
from ..math.static_operands import op_scope
from .concat_stack import concat, unstack
from .padding import pad
from .shapes import reshape, reshape_to, shape as shape_of, sizes_of, transpose, with_rank
from .slicing import slice as slice_

Sizes = list[Any]  # ints where sizes are known statically, scalar tensors elsewhere


def space_to_depth(input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Tensor:
    """Move each block of `block_size` x `block_size` pixels into the channels of one pixel.

    Args:
        input: `[batch, height, width, channels]`, or `[batch, channels, height, width]` for "NCHW". Height and width are multiples
            of block_size.
        block_size: an int of at least 2.
        name: name of the node.
        data_format: "NHWC" or "NCHW".

    Returns:
        `[batch, height / block_size, width / block_size, block_size ** 2 * channels]`, or the same sizes in the order of "NCHW".

    Raises:
        ValueError: the rank is not 4, height or width is not a multiple, or block_size or data_format is invalid.

    >>> space_to_depth([[[[1.], [2.]], [[3.], [4.]]]], 2)   # evaluates to [[[[1., 2., 3., 4.]]]]
    """
    with op_scope(name, "SpaceToDepth", input) as scope:
        x, b = _image(input, block_size, data_format)
        n, h, w, c = _sizes(x, data_format)
        _divisible((h, w), b, "height and width")
        if data_format == "NHWC":
            cut = reshape_to(x, [n, h // b, b, w // b, b, c])
            return reshape_to(transpose(cut, [0, 1, 3, 2, 4, 5]), [n, h // b, w // b, c * b * b], scope)
        cut = reshape_to(x, [n, c, h // b, b, w // b, b])
        return reshape_to(transpose(cut, [0, 3, 5, 1, 2, 4]), [n, c * b * b, h // b, w // b], scope)


def depth_to_space(input: TensorLike, block_size: int, name: str | None = None, data_format: str = "NHWC") -> Tensor:
    """The inverse of `space_to_depth`: move the channels of each pixel into a block of `block_size` x `block_size` pixels.

    Args:
        input: `[batch, height, width, channels]`, or `[batch, channels, height, width]` for "NCHW". The channels are a multiple of
            block_size ** 2.
        block_size: an int of at least 2.
        name: name of the node.
        data_format: "NHWC" or "NCHW".

    Returns:
        `[batch, height * block_size, width * block_size, channels / block_size ** 2]`, or the same sizes in the order of "NCHW".

    Raises:
        ValueError: as for `space_to_depth`.
    """
    with op_scope(name, "DepthToSpace", input) as scope:
        x, b = _image(input, block_size, data_format)
        n, h, w, c = _sizes(x, data_format)
        _divisible((c,), b * b, "channels")
        left = c // (b * b)
        if data_format == "NHWC":
            cut = reshape_to(x, [n, h, w, b, b, left])
            return reshape_to(transpose(cut, [0, 1, 3, 2, 4, 5]), [n, h * b, w * b, left], scope)
        cut = reshape_to(x, [n, b, b, left, h, w])
        return reshape_to(transpose(cut, [0, 3, 4, 1, 5, 2]), [n, left, h * b, w * b], scope)


def space_to_batch_nd(input: TensorLike, block_shape: Any, paddings: Any, name: str | None = None) -> Tensor:
    """Split the axes after the batch into blocks, and move the position within a block into the batch.

    Args:
        input: `[batch, ...]`.
        block_shape: the block size along axis 1, 2, ..., a vector whose length is known statically.
        paddings: `[[before, after], ...]`: zeros added to each of those axes, which makes it a multiple of its block size.
        name: name of the node.

    Returns:
        `[batch * prod(block_shape), (axis 1 + padding) / block_shape[0], ..., remaining axes...]`. The position within a block is the
        slower part of the new batch index.

    Raises:
        ValueError: the input has fewer axes, or an axis is not a multiple. InvalidArgumentError if only the step knows.
    """
    with op_scope(name, "SpaceToBatchND", input) as scope:
        x = convert(input, name="input")
        blocks = _blocks(block_shape)
        pads = _pairs(paddings, "paddings", len(blocks))
        if x.dims is None:
            return _on_first_axes(x, len(blocks), lambda flat: space_to_batch_nd(flat, blocks, pads), scope)
        rank, count = _rank(x, len(blocks))
        x = pad(x, [[0, 0], *pads, *[[0, 0]] * (rank - count - 1)])
        n, *axes = _sizes(x, "")
        for size, m in zip(axes, blocks, strict=False):
            _divisible((size,), m, "axes with their paddings")
        split = [v for size, m in zip(axes, blocks, strict=False) for v in (size // m, m)]
        inside, outside = [2 * i + 2 for i in range(count)], [2 * i + 1 for i in range(count)]
        rest = axes[count:]
        order = [*inside, 0, *outside, *range(2 * count + 1, 2 * count + 1 + len(rest))]
        found = transpose(reshape_to(x, [n, *split, *rest]), order)
        return reshape_to(found, [n * math.prod(blocks), *split[::2], *rest], scope)


def batch_to_space_nd(input: TensorLike, block_shape: Any, crops: Any, name: str | None = None) -> Tensor:
    """The inverse of `space_to_batch_nd`: interleave entries of the batch along the axes after it.

    Args:
        input: `[batch, ...]`. The batch is a multiple of prod(block_shape).
        block_shape: as for `space_to_batch_nd`.
        crops: `[[before, after], ...]`: elements removed from each of those axes.
        name: name of the node.

    Returns:
        `[batch / prod(block_shape), axis 1 * block_shape[0] - crops, ..., remaining axes...]`.

    Raises:
        ValueError: as for `space_to_batch_nd`, or crops are larger than an axis. InvalidArgumentError if only the step knows.
    """
    with op_scope(name, "BatchToSpaceND", input) as scope:
        x = convert(input, name="input")
        blocks = _blocks(block_shape)
        cuts = _pairs(crops, "crops", len(blocks))
        if x.dims is None:
            return _on_first_axes(x, len(blocks), lambda flat: batch_to_space_nd(flat, blocks, cuts), scope)
        _, count = _rank(x, len(blocks))
        n, *axes = _sizes(x, "")
        whole = math.prod(blocks)
        _divisible((n,), whole, "rows of the batch")
        batch, rest = n // whole, axes[count:]
        order = [count, *[v for i in range(count) for v in (count + 1 + i, i)]]
        order += range(2 * count + 1, 2 * count + 1 + len(rest))
        joined = transpose(reshape_to(x, [*blocks, batch, *axes]), order)
        sizes = [size * m for size, m in zip(axes, blocks, strict=False)]
        found = reshape_to(joined, [batch, *sizes, *rest])
        if all(isinstance(v, int) and v == 0 for pair in cuts for v in pair):
            return reshape_to(found, [batch, *sizes, *rest], scope)
        begin = [0, *[before for before, _ in cuts], *[0] * len(rest)]
        left = [size - before - after for size, (before, after) in zip(sizes, cuts, strict=True)]
        if any(isinstance(v, int) and v < 0 for v in left):
            raise ValueError(f"crops {cuts} are more than there is: {sizes}")
        # `slice` would take -1 for all that remains. minimum(v, 2 * v) turns the -1 of crops that are 1 too large into -2.
        left = [v if isinstance(v, int) else minimum(v, 2 * v) for v in left]
        return slice_(found, begin, [batch, *left, *rest], scope)


def space_to_batch(input: TensorLike, paddings: Any, block_size: int, name: str | None = None) -> Tensor:
    """`space_to_batch_nd` of the two axes of an image, [batch, height, width, channels]."""
    return space_to_batch_nd(four_axes(input), [block_size, block_size], paddings, name or "SpaceToBatch")


# --- sizes ------------------------------------------------------------------------------------------------------------


def _image(input: TensorLike, block_size: Any, data_format: str) -> tuple[Tensor, int]:
    x = four_axes(input)
    layout_of(data_format)
    if not isinstance(block_size, (int, np.integer)) or block_size < 2:
        raise ValueError(f"block_size must be a number of at least 2, not {block_size!r}")
    if x.shape.rank != 4:
        raise ValueError(f"an image of rank 4 is needed, not of shape {x.shape}")
    return x, int(block_size)


def _sizes(x: Tensor, data_format: str) -> Sizes:
    """The sizes of the axes. For "NCHW" they are reordered to batch, height, width, channels."""
    known = sizes_of(x)
    return [known[i] for i in (0, 2, 3, 1)] if data_format == "NCHW" else known


def _rank(x: Tensor, blocks: int) -> tuple[int, int]:
    if x.shape.rank is None or x.shape.rank < blocks + 1:
        raise ValueError(f"block_shape has {blocks} numbers, and the input has shape {x.shape}")
    return x.shape.rank, blocks


def four_axes(input: TensorLike) -> Tensor:
    """An image batch as a tensor of rank 4."""
    return with_rank(convert(input, name="input"), 4)


def _on_first_axes(x: Tensor, count: int, f: Callable[[Tensor], Tensor], name: str) -> Tensor:
    """Apply `f` to a tensor of unknown rank whose axes after the first `count + 1` are merged into one for the call."""
    whole = shape_of(x)
    flat = reshape(x, concat([whole[: count + 1], [-1]], 0))
    flat.set_shape([None] * (count + 2))
    found = f(flat)
    return reshape(found, concat([shape_of(found)[:-1], whole[count + 1 :]], 0), name)


def _blocks(value: Any) -> Sizes:
    """The elements of block_shape: ints if they are known statically, or else scalar tensors."""
    given = convert(value, name="block_shape")
    if given.dims is None or len(given.dims) != 1 or given.dims[0] is None:
        raise ValueError(f"block_shape must be a list of numbers of known length, not of shape {given.shape}")
    found = static_value(given)
    if found is None:
        return unstack(cast(given, int32))
    if (found < 1).any():
        raise ValueError(f"block_shape must hold numbers of 1 or more, not {value!r}")
    return found.tolist()  # type: ignore[no-any-return]


def _pairs(value: Any, name: str, count: int) -> list[Sizes]:
    """Paddings or crops for `count` axes, as `_blocks`."""
    given = convert(value, name=name)
    if not compatible(given.dims, (count, 2)):
        raise ValueError(f"{name} must have shape [{count}, 2] for as many blocks, not {given.shape}")
    found = static_value(given)
    if found is None:
        rows = reshape(cast(given, int32), [count, 2])
        return [unstack(row) for row in unstack(rows)]
    if (found < 0).any():
        raise ValueError(f"{name} must hold numbers of 0 or more, not {value!r}")
    return found.tolist()  # type: ignore[no-any-return]


def _divisible(sizes: Sequence[Any], by: Any, what: str) -> None:
    for size in sizes:
        if isinstance(size, int) and isinstance(by, int) and size % by:
            raise ValueError(f"{what} must be a multiple of {by}, not {size}")
