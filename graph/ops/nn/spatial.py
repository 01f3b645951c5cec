"""Convolutions and pooling over one, two or three spatial axes, composed of those for images.

A sequence is an image of height 1. A convolution of volumes is one of images, where the taps along the depth are channels. Pooling of
volumes first pools height and width, and then the depth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert
from ...core.graph import Tensor
from ...core.hooks import hooks
from ..array.concat_stack import concat
from ..array.creation import zeros
from ..array.gather import reverse
from ..array.padding import pad
from ..array.shapes import expand_dims, reshape_to, sizes_of, squeeze, transpose, with_rank
from ..math.arithmetic import add, divide, maximum, multiply, negative
from ..math.cast import cast
from ..math.common import layout_of
from ..math.static_operands import op_scope
from .conv import conv1d, conv2d, conv2d_transpose
from .pooling import avg_pool, max_pool

Sizes = list[Any]
"""Sizes of a tensor: ints where they are known, else scalar tensors."""


def _times(a: Any, b: Any) -> Any:
    return a * b if isinstance(a, int) and isinstance(b, int) else multiply(a, b)


def _along(value: Any, n: int, first: int, what: str) -> list[int]:
    """One number per spatial axis, from a single number, `n` numbers, or one per axis of the tensor. None counts as 1.

    `first` is the first of the `n` spatial axes.

    >>> _along([1, 2, 3, 1], 2, 1, "strides")
    [2, 3]
    """
    numbers = [1] if value is None else [int(v) for v in np.ravel(value)]
    if len(numbers) == 1:
        return numbers * n
    if len(numbers) == n + 2:
        if any(v != 1 for v in numbers[:first] + numbers[first + n :]):
            raise ValueError(f"{what} over batches and channels must be 1: {numbers}")
        return numbers[first : first + n]
    if len(numbers) != n:
        raise ValueError(f"{what} should be of length 1, {n} or {n + 2} but was {len(numbers)}")
    return numbers


def _rank(*tensors: Tensor) -> int:
    """The number of spatial axes, from the first tensor of known rank. ValueError unless it is 1, 2 or 3."""
    known = next((t.shape.rank for t in tensors if t.shape.rank is not None), None)
    if known is None:
        raise ValueError("The rank of the input must be known")
    if not 3 <= known <= 5:
        raise ValueError(f"Input tensor must be of rank 3, 4 or 5 but was {known}.")
    return known - 2


def _first(data_format: str | None, n: int) -> int:
    """The first of `n` spatial axes."""
    return 2 if data_format is not None and layout_of(data_format, n) == "NCHW" else 1


def _last_channels(x: Tensor, n: int, data_format: str | None) -> Tensor:
    x = with_rank(x, n + 2)
    return transpose(x, [0, *range(2, n + 2), 1]) if _first(data_format, n) == 2 else x


def _back(y: Tensor, n: int, data_format: str | None) -> Tensor:
    return transpose(y, [0, n + 1, *range(1, n + 1)]) if _first(data_format, n) == 2 else y


def _taps(x: Tensor, axis: int, count: int, stride: int, gap: int) -> list[Tensor]:
    """For each of `count` taps along an axis, the strided slice that it reads. `gap` is the dilation."""
    before = (slice(None),) * axis
    return [x[(*before, slice(i * gap, (i + 1 - count) * gap or None, stride))] for i in range(count)]


def _padded(x: Tensor, axis: int, span: int, stride: int, padding: str, fill: float = 0) -> Tensor:
    """Pad a tensor with `fill` along an axis, as `padding` requires for a window that spans `span` elements."""
    if padding not in ("SAME", "VALID"):
        raise ValueError(f"padding must be 'SAME' or 'VALID', not {padding!r}")
    if padding == "VALID" or span == 1:
        return x
    size = sizes_of(x)[axis]
    total: Any = span - 1
    if stride > 1:
        total = (-(-size // stride) - 1) * stride + span - size
        total = max(total, 0) if isinstance(total, int) else maximum(total, 0)
    half = total // 2
    around: list[list[Any]] = [[0, 0] for _ in x.shape]
    around[axis] = [half, total - half]
    return pad(x, around, constant_values=fill)


# --- convolutions -----------------------------------------------------------------------------------------------------


def convolution(
    input: TensorLike,
    filter: TensorLike = None,
    padding: str = "VALID",
    strides: Any = None,
    dilation_rate: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The convolution of sequences, images or volumes: `conv1d`, `conv2d` or `conv3d`, depending on the rank.

    Args:
        input: `[batch, spatial axes..., in]`, or `[batch, in, spatial axes...]` for a `data_format` that begins with "NC".
        filter: `[filter sizes..., in, out]`.
        padding: "SAME" or "VALID".
        strides: one number, or one per spatial axis.
        dilation_rate: one number, or one per spatial axis.
        name: name of the result's node.
        data_format: the layout. None means channels last.
        filters: newer name of `filter`.
        dilations: newer name of `dilation_rate`.

    Raises:
        ValueError: the rank is unknown or not 3, 4 or 5, or both strides and dilations are above 1.
    """
    kernel = filters if filter is None else filter
    gaps = dilations if dilation_rate is None else dilation_rate
    with op_scope(name, "convolution", input, kernel) as scope:
        x, w = convert(input, name="input"), convert(kernel, name="filter")
        n = _rank(x, w)
        first = _first(data_format, n)
        steps, apart = _along(strides, n, first, "strides"), _along(gaps, n, first, "dilations")
        if max(steps) > 1 and max(apart) > 1:
            raise ValueError(f"strides > 1 not supported in conjunction with dilation_rate > 1: {steps} and {apart}")
        if n == 1:
            return conv1d(x, w, steps[0], padding, data_format=data_format, dilations=apart[0], name=scope)
        if n == 2:
            return conv2d(x, w, steps, padding, data_format=data_format or "NHWC", dilations=apart, name=scope)
        return conv3d(x, w, steps, padding, data_format or "NDHWC", apart, scope)


def conv3d(
    input: TensorLike,
    filter: TensorLike = None,
    strides: Any = None,
    padding: str = "VALID",
    data_format: str = "NDHWC",
    dilations: Any = None,
    name: str | None = None,
    filters: TensorLike = None,
) -> Tensor:
    """The convolution of volumes.

    Args:
        input: `[batch, depth, height, width, in]`, or `[batch, in, depth, height, width]` for "NCDHW".
        filter: `[filter depth, filter height, filter width, in, out]`. All sizes but `out` must be known statically.
        strides: one number, one per spatial axis, or one per axis.
        padding: "SAME" or "VALID".
        data_format: "NDHWC" or "NCDHW".
        dilations: the distance between neighbouring taps, in the forms of `strides`.
        name: name scope of the nodes.
        filters: newer name of `filter`.
    """
    kernel = filters if filter is None else filter
    first = _first(data_format, 3)
    steps, gaps = _along(strides, 3, first, "strides"), _along(dilations, 3, first, "dilations")
    with op_scope(name, "Conv3D", input, kernel):
        given = convert(input, name="input")
        w = convert(kernel, given.dtype.base, name="filter")
        x = _last_channels(given, 3, data_format)
        if w.dims is None or None in w.dims[:4]:
            raise ValueError(f"conv3d needs to know its filter's taps and input channels, not {w.shape}")
        deep, *plane, into, _ = sizes_of(w)
        if x.dims is not None and x.dims[-1] not in (into, None):
            raise ValueError(
                f"the volume's channels and the filter's input channels must agree: {x.dims[-1]} against {into}"
            )
        x = _padded(x, 1, (deep - 1) * gaps[0] + 1, steps[0], padding)
        seen = concat(_taps(x, 1, deep, steps[0], gaps[0]), -1)
        batch, rows, *size, _ = sizes_of(seen)
        flat = reshape_to(seen, [_times(batch, rows), *size, deep * into])
        mixed = reshape_to(transpose(w, [1, 2, 0, 3, 4]), [*plane, deep * into, sizes_of(w)[4]])
        y = conv2d(flat, mixed, steps[1:], padding, dilations=gaps[1:])
        return _back(reshape_to(y, [batch, rows, *sizes_of(y)[1:]]), 3, data_format)


def conv3d_transpose(
    value: TensorLike = None,
    filter: TensorLike = None,
    output_shape: TensorLike = None,
    strides: Any = None,
    padding: str = "SAME",
    data_format: str = "NDHWC",
    name: str | None = None,
    input: TensorLike = None,
    filters: TensorLike = None,
    dilations: Any = None,
) -> Tensor:
    """The transpose of `conv3d`, with a result of shape `output_shape`. The filter is `[filter sizes..., out, in]`."""
    given, kernel = input if value is None else value, filters if filter is None else filter
    with op_scope(name, "conv3d_transpose", given, kernel, output_shape):
        y = convert(given, name="value")
        x = zeros(output_shape, y.dtype.base)
        (found,) = hooks.gradients(conv3d(x, kernel, strides, padding, data_format, dilations), x, grad_ys=y)
        result: Tensor = found
        return result


def conv1d_transpose(
    input: TensorLike,
    filters: TensorLike,
    output_shape: TensorLike,
    strides: Any,
    padding: str = "SAME",
    data_format: str | None = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Tensor:
    """The transpose of `conv1d`, with a result of shape `output_shape`. The filter is `[filter width, out, in]`."""
    axis = _first(data_format, 1)
    (step,), (gap,) = _along(strides, 1, axis, "strides"), _along(dilations, 1, axis, "dilations")
    with op_scope(name, "conv1d_transpose", input, filters, output_shape) as scope:
        sizes = convert(output_shape, name="output_shape")
        high = concat([sizes[:axis], [1], sizes[axis:]], 0)
        x, w = expand_dims(convert(input, name="input"), axis), expand_dims(convert(filters, name="filters"), 0)
        layout = "NCHW" if axis == 2 else "NHWC"
        y = conv2d_transpose(x, w, high, [1, step], padding, layout, dilations=[1, gap])
        return squeeze(y, [axis], name=scope)


# --- pooling ----------------------------------------------------------------------------------------------------------

Pool = Callable[..., Tensor]


def _pooled(
    over: Pool,
    x: Tensor,
    n: int,
    ksize: list[int],
    steps: list[int],
    padding: Any,
    data_format: str | None,
    name: str | None,
) -> Tensor:
    """Pool along `n` spatial axes with `over`, which pools images."""
    if n == 2:
        return over(x, ksize, steps, padding, data_format or "NHWC", name)
    if n == 1:
        axis = _first(data_format, 1)
        layout = "NCHW" if axis == 2 else "NHWC"
        y = over(expand_dims(x, axis), [1, *ksize], [1, *steps], padding, layout)
        return squeeze(y, [axis], name=name)
    volume = _last_channels(x, 3, data_format)
    batch, depth, *plane = sizes_of(volume)
    flat = over(reshape_to(volume, [_times(batch, depth), *plane]), ksize[1:], steps[1:], padding)
    _, high, wide, channels = sizes_of(flat)
    y = over(reshape_to(flat, [batch, depth, _times(high, wide), channels]), [ksize[0], 1], [steps[0], 1], padding)
    return _back(reshape_to(y, [batch, sizes_of(y)[1], high, wide, channels]), 3, data_format)


def _by_rank(
    op: str,
    over: Pool,
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    name: str | None,
    n: int = 0,
) -> Tensor:
    """Pool a tensor along all its spatial axes. `n` is their number, 0 for any."""
    with op_scope(name, op, input) as scope:
        x = convert(input, name="input")
        found = n or _rank(x)
        first = _first(data_format, found)
        taps, steps = _along(ksize, found, first, "ksize"), _along(strides, found, first, "strides")
        return _pooled(over, x, found, taps, steps, padding, data_format, scope)


def max_pool_v2(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """The maximum of each window of sequences, images or volumes.

    Args:
        input: `[batch, spatial axes..., channels]`, or `[batch, channels, spatial axes...]` for a `data_format` that begins with "NC".
        ksize: the size of the window: one number, or one per spatial axis.
        strides: the step of the window: one number, or one per spatial axis.
        padding: as for `max_pool`.
        data_format: the layout. None means channels last.
        name: name of the result's node.

    Raises:
        ValueError: the rank is unknown or not 3, 4 or 5.
    """
    return _by_rank("max_pool", max_pool, input, ksize, strides, padding, data_format, name)


def avg_pool_v2(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """The mean of each window of sequences, images or volumes, without padding. Arguments as for `max_pool_v2`."""
    return _by_rank("avg_pool", avg_pool, input, ksize, strides, padding, data_format, name)


def max_pool1d(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = "NWC", name: str | None = None
) -> Tensor:
    """`max_pool_v2` of sequences, `[batch, width, channels]`."""
    return _by_rank("max_pool1d", max_pool, input, ksize, strides, padding, data_format, name, 1)


def avg_pool1d(
    input: TensorLike, ksize: Any, strides: Any, padding: Any, data_format: str | None = "NWC", name: str | None = None
) -> Tensor:
    """`avg_pool_v2` of sequences, `[batch, width, channels]`."""
    return _by_rank("avg_pool1d", avg_pool, input, ksize, strides, padding, data_format, name, 1)


def max_pool3d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`max_pool_v2` of volumes, `[batch, depth, height, width, channels]`."""
    return _by_rank("max_pool3d", max_pool, input, ksize, strides, padding, data_format, name, 3)


def avg_pool3d(
    input: TensorLike,
    ksize: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """`avg_pool_v2` of volumes, `[batch, depth, height, width, channels]`."""
    return _by_rank("avg_pool3d", avg_pool, input, ksize, strides, padding, data_format, name, 3)


def pool(
    input: TensorLike,
    window_shape: Any,
    pooling_type: str,
    padding: str,
    dilation_rate: Any = None,
    strides: Any = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Any = None,
) -> Tensor:
    """Pooling over one to three spatial axes.

    Args:
        input: as for `max_pool_v2`.
        window_shape: the size of the window along each spatial axis.
        pooling_type: "MAX" or "AVG".
        padding: "SAME" or "VALID".
        dilation_rate: the distance between neighbouring taps. Above 1 it needs "VALID" and strides of 1.
        strides: the step of the window: one number, or one per spatial axis.
        name: name of the result's node.
        data_format: the layout. None means channels last.
        dilations: newer name of `dilation_rate`.

    Raises:
        ValueError: the type is unknown, strides are larger than the window, or dilations are combined with "SAME" or strides.
    """
    kinds: dict[str, tuple[Pool, Callable[..., Tensor]]] = {"MAX": (max_pool, maximum), "AVG": (avg_pool, add)}
    if pooling_type not in kinds:
        raise ValueError(f"pooling_type must be 'MAX' or 'AVG', not {pooling_type!r}")
    over, both = kinds[pooling_type]
    n = len(window_shape)
    if not 1 <= n <= 3:
        raise ValueError(f"window_shape must have one to three sizes, not {n}")
    gaps = _along(dilations if dilation_rate is None else dilation_rate, n, 0, "dilation_rate")
    taps, steps = _along(window_shape, n, 0, "window_shape"), _along(strides, n, 0, "strides")
    if any(s > t for s, t in zip(steps, taps, strict=True)):
        raise ValueError(f"strides > window_shape not supported: {steps} and {taps}")
    with op_scope(name, f"{pooling_type.lower()}_pool", input) as scope:
        x = convert(input, name="input")
        if max(gaps) == 1:
            return _pooled(over, x, n, taps, steps, padding, data_format, scope)
        if padding != "VALID" or max(steps) > 1:
            raise ValueError("pooling with dilation_rate > 1 takes padding 'VALID' and strides of 1")
        first = _first(data_format, n)
        for axis, (count, gap) in enumerate(zip(taps, gaps, strict=True), first):
            parts = _taps(x, axis, count, 1, gap)
            x = parts[0]
            for part in parts[1:]:
                x = both(x, part)
        return x if pooling_type == "MAX" else divide(x, cast(int(np.prod(taps)), x.dtype.base))


# --- morphology -------------------------------------------------------------------------------------------------------


def dilation2d(
    input: TensorLike, filter: TensorLike, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The grey-scale dilation of images: the maximum of pixel plus filter tap over each window, channel by channel.

    Args:
        input: `[batch, height, width, channels]`.
        filter: `[filter height, filter width, channels]`, of known shape.
        strides: the step of the window, as for `conv2d`.
        rates: the distance between neighbouring taps, as for `conv2d`.
        padding: "SAME" or "VALID".
        name: name scope of the nodes.
    """
    (down, right), (high, wide) = _along(strides, 2, 1, "strides"), _along(rates, 2, 1, "rates")
    with op_scope(name, "Dilation2D", input, filter):
        x = convert(input, name="input")
        w = convert(filter, x.dtype.base, name="filter")
        if w.dims is None or None in w.dims[:2]:
            raise ValueError(f"dilation2d needs to know its filter's taps, not {w.shape}")
        rows, columns = sizes_of(w)[:2]
        lowest = x.dtype.base.min
        x = _padded(x, 1, (rows - 1) * high + 1, down, padding, lowest)
        x = _padded(x, 2, (columns - 1) * wide + 1, right, padding, lowest)
        sums = [
            add(seen, w[i, j])
            for i, row in enumerate(_taps(x, 1, rows, down, high))
            for j, seen in enumerate(_taps(row, 2, columns, right, wide))
        ]
        found = sums[0]
        for each in sums[1:]:
            found = maximum(found, each)
        return found


def erosion2d(
    value: TensorLike, kernel: TensorLike, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Tensor:
    """The grey-scale erosion of images: the minimum of pixel minus filter tap over each window. Arguments as for `dilation2d`."""
    with op_scope(name, "erosion2d", value, kernel) as scope:
        flipped = reverse(convert(kernel, name="kernel"), [0, 1])
        return negative(
            dilation2d(negative(convert(value, name="value")), flipped, strides, rates, padding), name=scope
        )
