"""Convolutions, transposed convolutions, and pooling over windows and whole images.

An image has the shape `[batch, channels, *sizes]`. An image with one spatial axis gets another one of size 1 in front, so that all images
are `NCHW`, a layout of the graph's own ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import concat, split
from ....graph.ops.array.padding import pad
from ....graph.ops.array.shapes import expand_dims, reshape, shape, squeeze, transpose
from ....graph.ops.math.arithmetic import absolute, add, divide, maximum, power
from ....graph.ops.math.reduce import reduce_max, reduce_mean, reduce_sum
from ....graph.ops.nn.conv import conv2d, conv2d_transpose, depthwise_conv2d_native
from ....graph.ops.nn.dense import bias_add
from ....graph.ops.nn.pooling import avg_pool, max_pool
from ..registry import Call, UnsupportedError, imports, imports_by

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a convolution or pooling, with one entry for each of the two axes.

    Attributes:
        taps: the window's size.
        strides: the strides.
        dilations: the dilations.
        pads: (before, after) of each axis. None: padding for ceil(size / stride) windows.
        sizes: the image's sizes; None: unknown.
        ceil: whether a last window that exceeds the padded image counts.
    """

    taps: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[Pair, Pair] | None
    sizes: tuple[int | None, int | None]
    ceil: bool = False

    def span(self, axis: int) -> int:
        """Returns the size of a dilated window."""
        return (self.taps[axis] - 1) * self.dilations[axis] + 1

    def pads_of(self, axis: int) -> Pair:
        """Returns the padding of one axis. UnsupportedError: it depends on an unknown size."""
        if self.pads is not None:
            return self.pads[axis]
        size, stride = self.sizes[axis], self.strides[axis]
        if size is None and stride > 1:
            raise UnsupportedError(f"padding of axis {axis + 2}, whose size is known only when the graph runs")
        more = max(0, self.span(axis) - (stride if size is None or size % stride == 0 else size % stride))
        return more // 2, more - more // 2

    def overhang(self, axis: int) -> int:
        """Returns how far the last window exceeds the padded image in `ceil` mode."""
        if not self.ceil or self.strides[axis] == 1:
            return 0
        (before, after), size = self.pads_of(axis), self.sizes[axis]
        stride, span = self.strides[axis], self.span(axis)
        if size is None:
            if after + stride - 1 >= span:
                raise UnsupportedError(f"ceil_mode along axis {axis + 2}, whose size is known only when the graph runs")
            return stride - 1
        count = -(-(size + before + after - span) // stride) + 1
        if (count - 1) * stride >= size + before:  # its window would contain only padding
            count -= 1
        return max(0, (count - 1) * stride + span - (size + before + after))

    def explicit_padding(self) -> list[list[int]]:
        """Returns the padding of all axes as the graph's pairs: batch, channels, and both spatial axes."""
        return [[0, 0], [0, 0], *([b, a + self.overhang(i)] for i, (b, a) in enumerate(map(self.pads_of, (0, 1))))]

    def padding(self) -> Any:
        """Returns the padding argument of the graph's ops."""
        return "SAME" if self.pads is None else self.explicit_padding()

    def window_count(self, axis: int) -> int:
        """Returns the number of windows along an axis. UnsupportedError: the size is unknown."""
        size = self.sizes[axis]
        if size is None:
            raise UnsupportedError(
                f"dilated windows along axis {axis + 2}, whose size is known only when the graph runs"
            )
        before, after = self.pads_of(axis)
        return (size + before + after + self.overhang(axis) - self.span(axis)) // self.strides[axis] + 1

    def tap_slices(self) -> Iterator[tuple[slice, ...]]:
        """Yields for each tap the slices of the padded image that it reads."""
        for tap in product(*map(range, self.taps)):
            seen = (
                slice(t * d, t * d + (self.window_count(a) - 1) * s + 1, s)
                for a, (t, d, s) in enumerate(zip(tap, self.dilations, self.strides, strict=True))
            )
            yield slice(None), slice(None), *seen


def windows_of(call: Call, x: Tensor, taps: tuple[int, ...]) -> Windows:
    """Returns the windows that a node's attributes describe."""
    axes = len(taps)
    if axes not in (1, 2):
        raise UnsupportedError(f"windows over {axes} axes, only over 1 or 2")
    strides, dilations = (tuple(call.attr(n) or (1,) * axes) for n in ("strides", "dilations"))
    how = call.choice("auto_pad", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")
    numbers = call.attr("pads", (0,) * 2 * axes) if how == "NOTSET" else (0,) * 2 * axes
    if min(numbers) < 0:
        raise UnsupportedError("negative padding")
    pads: tuple[Pair, ...] | None = tuple(zip(numbers[:axes], numbers[axes:], strict=True))
    sizes = call.dims(x)[2:]
    if axes == 1:
        taps, strides, dilations, sizes = (1, *taps), (1, *strides), (1, *dilations), (1, *sizes)
        pads = ((0, 0), *(pads or ()))
    made = Windows(taps, strides, dilations, None, sizes)  # type: ignore[arg-type]
    if how == "SAME_LOWER":
        turned = tuple(made.pads_of(a)[::-1] for a in (0, 1))
        return Windows(taps, strides, dilations, turned, sizes)  # type: ignore[arg-type]
    return made if how == "SAME_UPPER" else Windows(
        taps, strides, dilations, pads, sizes, bool(call.attr("ceil_mode", 0))  # type: ignore[arg-type]
    )  # fmt: skip


def as_nchw(x: Tensor) -> Tensor:
    """Returns an image with two spatial axes. If x has one, the first of the two has size 1."""
    return expand_dims(x, 2) if x.dims is not None and len(x.dims) == 3 else x


def restore_rank(made: Tensor, x: Tensor) -> Tensor:
    """Returns a result with the rank of x."""
    return squeeze(made, [2]) if x.dims is not None and len(x.dims) == 3 else made


# --- convolutions -----------------------------------------------------------------------------------------------------


def _kernel_size(call: Call, w: Tensor) -> tuple[int, ...]:
    """Returns the spatial sizes of a filter, which must be known."""
    taps = tuple(call.attr("kernel_shape") or call.dims(w, "the filter")[2:])
    if None in taps:
        raise UnsupportedError("the filter's size is known only when the graph runs")
    return taps


@imports("Conv")
def conv(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Imports a convolution, also with groups. The standard's filter has the shape `[out, in / groups, *taps]`."""
    windows = windows_of(call, x, _kernel_size(call, w))
    groups, channels = call.attr("group", 1), call.dims(x)[1]
    images, filters = as_nchw(x), as_nchw(w)
    how: dict[str, Any] = {
        "strides": windows.strides, "padding": windows.padding(), "data_format": "NCHW", "dilations": windows.dilations,
    }  # fmt: skip
    if groups == 1:
        made = conv2d(images, transpose(filters, [2, 3, 1, 0]), **how)
    elif groups == channels and call.dims(w)[1] == 1:
        made = _depthwise(images, filters, groups, how)
    else:
        parts = zip(split(images, groups, 1), split(filters, groups, 0), strict=True)
        made = concat([conv2d(i, transpose(f, [2, 3, 1, 0]), **how) for i, f in parts], 1)
    made = restore_rank(made, x)
    return made if bias is None else bias_add(made, bias, data_format="NCHW")


def _depthwise(images: Tensor, filters: Tensor, groups: int, how: dict[str, Any]) -> Tensor:
    """Builds a depthwise convolution. The graph's filter has the shape `[taps high, taps wide, channels, multiplier]`."""
    assert filters.dims is not None
    out, _, high, wide = filters.dims
    if out is None:
        raise UnsupportedError("the number of filters is known only when the graph runs")
    apart = reshape(filters, [groups, out // groups, high, wide])
    return depthwise_conv2d_native(images, transpose(apart, [2, 3, 0, 1]), **how)


@imports("ConvTranspose")
def conv_transpose(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Imports a transposed convolution. The standard's filter has the shape `[in, out / groups, *taps]`."""
    windows = windows_of(call, x, _kernel_size(call, w))
    more = tuple(call.attr("output_padding") or (0,) * (len(call.dims(x)) - 2))
    wished = call.attr("output_shape")
    if len(more) == 1:
        more, wished = (0, *more), None if wished is None else [1, *wished[-1:]]
    elif wished is not None:
        wished = wished[-2:]
    groups, channels = call.attr("group", 1), call.dims(w)[1]
    images, filters = as_nchw(x), as_nchw(w)
    there = shape(images)
    cut, add, sizes = [], [], []
    for axis in (0, 1):
        (before, after), size = _cut(call, windows, axis, more[axis], wished)
        known = windows.sizes[axis]
        whole: Any = known if known is not None else there[2 + axis]
        full = whole * windows.strides[axis] + (windows.span(axis) - windows.strides[axis])
        # A window exceeds the result by at most `stride - 1` elements. A larger requested output is padded.
        more_after = max(0, -after - (windows.strides[axis] - 1))
        cut.append([max(0, before), max(0, after)])
        add.append([max(0, -before), more_after])
        sizes.append(size if size is not None else full - max(0, before) - max(0, after) + max(0, -after) - more_after)
        if size is not None:
            sizes[-1] = size - max(0, -before) - more_after
    how: dict[str, Any] = {
        "strides": windows.strides, "padding": [[0, 0], [0, 0], *cut], "data_format": "NCHW", "dilations": windows.dilations,
    }  # fmt: skip
    parts = (
        [(images, filters)] if groups == 1 else zip(split(images, groups, 1), split(filters, groups, 0), strict=True)
    )
    made = [conv2d_transpose(i, transpose(f, [2, 3, 1, 0]), [there[0], channels, *sizes], **how) for i, f in parts]
    result = made[0] if groups == 1 else concat(made, 1)
    if any(any(a) for a in add):
        result = pad(result, [[0, 0], [0, 0], *add])
    result = restore_rank(result, x)
    return result if bias is None else bias_add(result, bias, data_format="NCHW")


def _cut(call: Call, windows: Windows, axis: int, more: int, wished: Any) -> tuple[tuple[int, int], int | None]:
    """Returns the numbers of elements to crop at both ends (negative: to add), and the result's size if the node sets it."""
    how = call.attr("auto_pad", "NOTSET")
    size, stride, span = windows.sizes[axis], windows.strides[axis], windows.span(axis)
    if wished is None and not how.startswith("SAME"):
        before, after = windows.pads_of(axis)
        return (before, after - more), None
    if size is None:
        raise UnsupportedError("output_shape or auto_pad for a size that is known only when the graph runs")
    to = wished[axis] if wished is not None else size * stride
    total = stride * (size - 1) + more + span - to
    if total < 0:
        return (0, total - more), to
    small, large = total // 2, total - total // 2
    before, after = (small, large) if how == "SAME_UPPER" else (large, small)
    return (before, after - more), to


# --- pooling ----------------------------------------------------------------------------------------------------------


def _windows(call: Call, x: Tensor) -> Windows:
    return windows_of(call, x, tuple(call.attr("kernel_shape")))


def _pool_arguments(windows: Windows) -> dict[str, Any]:
    return {"ksize": windows.taps, "strides": windows.strides, "padding": windows.padding(), "data_format": "NCHW"}


def _tap_values(x: Tensor, windows: Windows, fill: Any) -> list[Tensor]:
    """Returns the pixels that each tap reads."""
    around = windows.explicit_padding()
    padded = pad(x, around, constant_values=constant(np.array(fill, x.dtype.base.np))) if np.any(around) else x
    return [padded[seen] for seen in windows.tap_slices()]


@imports("MaxPool")
def max_pool_(call: Call, x: Tensor) -> Tensor:
    """Imports max pooling. Padding is never the maximum."""
    if call.is_used(1):
        raise UnsupportedError("the output Indices")
    windows, image = _windows(call, x), as_nchw(x)
    if windows.dilations == (1, 1):
        return restore_rank(max_pool(image, **_pool_arguments(windows)), x)
    lowest = -np.inf if x.dtype.base.is_floating else x.dtype.base.min
    return restore_rank(reduce(maximum, _tap_values(image, windows, lowest)), x)


@imports("AveragePool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    """Imports average pooling. Padding counts only with `count_include_pad`, and elements beyond it never count."""
    windows, image = _windows(call, x), as_nchw(x)
    if windows.dilations != (1, 1):
        total = reduce(add, _tap_values(image, windows, 0))
        high, wide = (windows.sizes[a] for a in (0, 1))
        around = windows.explicit_padding()
        inner = np.ones((1, 1, high or 0, wide or 0))
        if call.attr("count_include_pad", 0):
            inner = np.pad(inner, [(0, 0), (0, 0), *map(windows.pads_of, (0, 1))], constant_values=1)
            around = [[0, 0], [0, 0], [0, windows.overhang(0)], [0, windows.overhang(1)]]
        ones = np.pad(inner, around)
        counts = sum(ones[seen] for seen in windows.tap_slices())
        return restore_rank(divide(total, constant(np.asarray(counts, x.dtype.base.np))), x)
    how = _pool_arguments(windows)
    if call.attr("count_include_pad", 0):
        pads = [(0, 0), (0, 0), *map(windows.pads_of, (0, 1))]
        image = pad(image, pads)
        how["padding"] = [[0, 0], [0, 0], [0, windows.overhang(0)], [0, windows.overhang(1)]]
    return restore_rank(avg_pool(image, **how), x)


def _picture_axes(call: Call, x: Tensor) -> list[int]:
    return list(range(2, len(call.dims(x))))


def _norm(call: Call, x: Tensor, summed: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns the p-norm, with `summed` as the sum."""
    p = call.attr("p", 2)
    return power(summed(power(absolute(x), float(p))), 1.0 / p)


imports_by(
    GlobalAveragePool=lambda call, x: reduce_mean(x, _picture_axes(call, x), True),
    GlobalLpPool=lambda call, x: _norm(call, x, lambda powers: reduce_sum(powers, _picture_axes(call, x), True)),
    GlobalMaxPool=lambda call, x: reduce_max(x, _picture_axes(call, x), True),
    LpPool=lambda call, x: restore_rank(
        _norm(call, as_nchw(x), lambda powers: reduce(add, _tap_values(powers, _windows(call, x), 0))), x
    ),
)
