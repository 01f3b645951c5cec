"""Loop nests of pooling and depthwise convolutions: reductions over the taps of a window.

At tap (i, j) the position (row, column) of the result sees the pixel (row * stride - top + i * dilation, ...) of the image. These are
affine index maps with masks: a pixel outside of the image is read as row -1 of a table, which gives zero, and counts as padding.
Up to 25 taps are written out, so that indices are computed once per pixel and not once per element; more become reduced axes.

    space              axes in the order of memory: images, height, width, channels; or images, channels, height, width
    over positions     height and width are the `rows` and `columns` of the result
    over pixels        they are those of the image; the sum goes over the positions that see the pixel

Static facts come as a `Window` (taps, strides, dilations, padding): they are constants of a nest. A launch gives the sizes of
`image_sizes`, and with them the padding that "SAME" needs:

    images, height, width, channels   of the image
    rows, columns, filters            of the result
    top, left                         pixels of padding before the image
    phase_rows, phase_columns         height and width, divided by the strides and rounded up
    taps_high, taps_wide              taps of the window
    image_size, result_size           numbers in the image, in the result
    filter_size                       numbers in the filter

Channel c of a depthwise convolution has the filters
c * multiplier + m; its filter is [height, width, channels * multiplier].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

from ...graph.core.dtypes import DType, int32
from ...graph.core.opdef import Attrs
from ...graph.ops.nn.conv_geometry import Window, height_and_width, layout, window_of
from ..ir.loop_nest import LoopNest
from ..target import GPU_INDEX_MARGIN
from .table_loops import kept_in
from .tracer import Symbol, SymbolicLoops, SymbolicMath

_math = SymbolicMath()
_MOST_WRITTEN_OUT = 25  # taps
_FOLDED = {"sum": "add", "max": "maximum", "min": "minimum"}
_IMAGE, _RESULT = ("height", "width"), ("rows", "columns")

Tap = Any
"""A tap along one axis: a number, or a symbol that goes over all of them."""


def taps_are_axes(window: Window) -> bool:
    """Whether a window has so many taps that they are the first two axes of its nests."""
    return math.prod(window.taps) > _MOST_WRITTEN_OUT


def image_sizes(
    window: Window, image: Sequence[int], filters: int | None = None, data_format: str = "NHWC", depthwise: bool = False
) -> dict[str, int]:
    """The sizes that a launch needs.

    Args:
        image: the image's shape, in the order of `data_format`.
        filters: channels of the result; None: those of the image, as in pooling.
        depthwise: whether each channel has filters of its own.

    Raises:
        ValueError: the window is larger than the padded image, or an array has nearly 2^31 numbers or more.
    """
    n, a, b, c = image
    height, width, channels = (b, c, a) if data_format == "NCHW" else (a, b, c)
    filters = channels if filters is None else filters
    rows, columns = window.positions(0, height), window.positions(1, width)
    assert rows is not None and columns is not None
    (sh, sw), (kh, kw) = window.strides, window.taps
    if max(n * height * width * channels, n * rows * columns * filters) + GPU_INDEX_MARGIN >= 1 << 31:
        raise ValueError(
            f"kernels for images count to 2^31 with a block's margin; an image of shape {tuple(image)} or its result has more numbers"
        )
    return {
        "images": n, "height": height, "width": width, "channels": channels, "rows": rows, "columns": columns,
        "filters": filters, "top": window.pads(0, height)[0], "left": window.pads(1, width)[0],
        "phase_rows": -(-height // sh), "phase_columns": -(-width // sw),
        "filter_size": kh * kw * filters * (1 if depthwise else channels), "taps_high": kh, "taps_wide": kw,
        "image_size": n * height * width * channels, "result_size": n * rows * columns * filters,
    }  # fmt: skip


def axis_names(space: str, window: Window, data_format: str, is_depthwise: bool) -> tuple[str, ...]:
    """The sizes of a nest's axes, in their order, by name.

    `space`: what it goes over: the "result", the "image", or the "filter" of a depthwise convolution, which reduces positions.
    """
    taps = ("taps_high", "taps_wide") if space == "filter" or taps_are_axes(window) else ()
    high, wide = _IMAGE if space == "image" else _RESULT
    channels = "filters" if is_depthwise and space != "image" else "channels"
    return (*taps, "images", channels, high, wide) if data_format == "NCHW" else (*taps, "images", high, wide, channels)


class _Nest(SymbolicLoops):
    """A loop nest over images or results, as it is written.

    Args:
        summed: the space's positions are reduced, and the taps are kept axes: the gradient of a filter.
    """

    def __init__(self, window: Window, data_format: str, *, summed: bool = False) -> None:
        self.window = window
        self.channels_first = data_format == "NCHW"
        first = 2 if summed or taps_are_axes(window) else 0
        n, c, h, w = (0, 1, 2, 3) if self.channels_first else (0, 3, 1, 2)
        super().__init__([not summed] * first + [summed and a != c for a in range(4)])
        self.taps_are_axes = bool(first)
        self.space = range(first, first + 4)
        self.n, self.c, self.h, self.w = (self.position(first + a, int32) for a in (n, c, h, w))
        self.channel_axis = first + c

    # --- numbers -----------------------------------------------------------------------------------------------------

    def size(self, name: str, dtype: DType = int32) -> Symbol:
        """A size that a launch gives."""
        return super().size(name, dtype)

    def quotient(self, x: Symbol, by: int) -> Symbol:
        """x // by; what is negative is rounded in any direction."""
        divisor = self.constant(by, int32).number
        return x if by == 1 else Symbol(self.builder, self.builder.apply("quotient", x.number, divisor))

    # --- windows -----------------------------------------------------------------------------------------------------

    def over_taps(self, kind: str, term: Callable[[Tap, Tap], Symbol]) -> Symbol:
        """The sum, largest or smallest of what all taps give."""
        if self.taps_are_axes:
            return term(self.position(0, int32), self.position(1, int32)).reduced(kind)
        high, wide = self.window.taps
        terms = [term(i, j).number for i in range(high) for j in range(wide)]
        return Symbol(self.builder, reduce(lambda a, b: self.builder.apply(_FOLDED[kind], a, b), terms))

    def number(self, i: Tap, j: Tap) -> Symbol:
        """The number of a tap."""
        tap = _times(i, self.window.taps[1]) + j
        return tap if isinstance(tap, Symbol) else self.constant(tap, int32)

    def start(self, axis: int, position: Symbol) -> Symbol:
        """The pixel that a position sees at its first tap; -1 and less in the padding."""
        first: Symbol = _times(position, self.window.strides[axis]) - self.size(("top", "left")[axis])
        return first

    def seen(self, i: Tap, j: Tap) -> tuple[Symbol, Symbol, Symbol]:
        """The pixel that the current position sees at a tap: its row and column, and whether it is inside."""
        h, w = (
            _plus(self.start(axis, at), _times(tap, self.window.dilations[axis]))
            for axis, at, tap in ((0, self.h, i), (1, self.w, j))
        )
        return h, w, (h >= 0) & (h < self.size("height")) & (w >= 0) & (w < self.size("width"))

    def over_positions(self, term: Callable[[tuple[Symbol, Symbol, Symbol], Symbol], Symbol]) -> Symbol:
        """The sum of what all positions that see the current pixel give.

        `term`: of (row, column, whether there is such a position) and the number of the tap at which it sees the pixel.
        """

        def seen(i: Tap, j: Tap) -> Symbol:
            along = [self._seeing(axis, at, tap) for axis, at, tap in ((0, self.h, i), (1, self.w, j))]
            there = reduce(Symbol.__and__, [fact for _, _, facts in along for fact in facts])
            tap = self.number(along[0][1], along[1][1])
            if self.builder.constant_of(tap.number) is None:
                tap = SymbolicMath.where(there, tap, 0)
            return term((along[0][0], along[1][0], there), tap)

        if self.taps_are_axes:
            return self.over_taps("sum", seen)
        high, wide = (
            -(-n // self.window.strides[axis]) if self._steps(axis) else n for axis, n in enumerate(self.window.taps)
        )
        return reduce(Symbol.__add__, [seen(i, j) for i in range(high) for j in range(wide)])

    def _steps(self, axis: int) -> bool:
        """Whether the positions that see a pixel are counted along an axis, from the last one on: fewer than there are taps."""
        return self.window.strides[axis] > 1 and self.window.dilations[axis] == 1 and not self.taps_are_axes

    def _seeing(self, axis: int, at: Symbol, which: Tap) -> tuple[Symbol, Tap, list[Symbol]]:
        """A position along an axis that sees the pixel `at`, the tap at which it does, and what must hold.

        `which`: the tap, or the number of the position, counted backwards (`_steps`).
        """
        stride, pixel = self.window.strides[axis], at + self.size(("top", "left")[axis])
        if self._steps(axis):
            position = _plus(self.quotient(pixel, stride), -which)
            tap = pixel - position * stride
            facts = [position >= 0, position < self.size(_RESULT[axis])]
            return position, tap, [*facts, *([tap < self.window.taps[axis]] if self.window.taps[axis] % stride else [])]
        start = _plus(pixel, -_times(which, self.window.dilations[axis]))
        position = self.quotient(start, stride)
        facts = [start >= 0, position < self.size(_RESULT[axis])]
        return position, which, [*facts, *([_times(position, stride) == start] if stride > 1 else [])]

    def pixels(self, row: Symbol, column: Symbol, dtype: DType) -> Symbol:
        """How many pixels inside the image the position (row, column) sees."""

        def along(axis: int, position: Symbol) -> Any:
            end = self._taps_over(axis, self.size(_IMAGE[axis]) - self.start(axis, position))
            return _math.minimum(end, self.window.taps[axis]) - self.first_inside(axis, position)

        return SymbolicMath.cast(along(0, row) * along(1, column), dtype)

    def first_inside(self, axis: int, position: Symbol) -> Symbol:
        """The first tap along an axis at which a position sees a pixel inside the image."""
        return self._taps_over(axis, -self.start(axis, position))

    def _taps_over(self, axis: int, length: Symbol) -> Symbol:
        """How many taps begin within so many pixels, which may be negative."""
        dilation = self.window.dilations[axis]
        return self.quotient(_math.maximum(_plus(length, dilation - 1), 0), dilation)

    # --- memory ------------------------------------------------------------------------------------------------------

    def read(
        self,
        position: int,
        dtype: DType,
        at: tuple[Symbol, Symbol, Symbol],
        sizes: tuple[str, str],
        channel: Symbol | None = None,
        channels: str = "channels",
    ) -> Symbol:
        """An element of input `position`, an image or a result, at (row, column, whether it is there); else 0.

        `channel` of so many `channels`: another one than the current.
        """
        h, w, there = at
        height, width = map(self.size, sizes)
        axes = []
        if self.channels_first:
            row = ((self.n * self.size(channels) + (self.c if channel is None else channel)) * height + h) * width + w
        else:
            row = (self.n * height + h) * width + w
            if channel is None:
                axes = [self.channel_axis]
            else:
                row = row * self.size(channels) + channel
        row = SymbolicMath.where(there, row, -1)
        return self.gather(position, dtype, row, axes)

    def weight(self, position: int, dtype: DType, tap: Symbol, filter: Symbol) -> Symbol:
        """The number of input `position`, a depthwise convolution's filter, at the tap with this number."""
        row = tap * self.size("filters") + filter
        return self.gather(position, dtype, row)

    def stored(self, value: Symbol, axes: Any = None, dtype: DType | None = None) -> LoopNest:
        """The nest, with its output."""
        value = value if dtype is None else SymbolicMath.cast(value, dtype)
        self.store(value, self.space if axes is None else axes)
        return self.finish()


def _times(x: Tap, n: int) -> Any:
    return x if n == 1 else x * n


def _plus(x: Symbol, n: Tap) -> Symbol:
    return x if isinstance(n, int) and n == 0 else x + n


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pixel(nest: _Nest, dtype: DType) -> Callable[[Tap, Tap], Symbol]:
    """What the current position sees of in0 at a tap. No number is below padding."""
    lowest = -math.inf if dtype.is_floating else int(dtype.min)

    def seen(i: Tap, j: Tap) -> Symbol:
        at = nest.seen(i, j)
        return SymbolicMath.where(at[2], nest.read(0, dtype, at, _IMAGE), lowest)

    return seen


def _first_largest(nest: _Nest, dtype: DType) -> Symbol:
    """The number of the first tap inside the image with the largest pixel; NaN is the largest."""
    pixel, (high, wide) = _pixel(nest, dtype), nest.window.taps
    if not nest.taps_are_axes:  # in one pass, so that pixels need no registers for long
        # From the first tap inside on: pixels may be as low as padding.
        chosen = _plus(_times(nest.first_inside(0, nest.h), wide), nest.first_inside(1, nest.w))
        best = pixel(0, 0)
        for tap in range(1, high * wide):
            x = pixel(tap // wide, tap % wide)
            better = (x > best) | ((x != x) & (best == best)) if dtype.is_floating else x > best
            best, chosen = (SymbolicMath.where(better, new, old) for new, old in ((x, best), (tap, chosen)))
        return chosen
    top = nest.over_taps("max", pixel)

    def number(i: Tap, j: Tap) -> Symbol:
        x = pixel(i, j)
        largest = (x == top) | (x != x) if dtype.is_floating else x == top
        return SymbolicMath.where(largest & nest.seen(i, j)[2], nest.number(i, j), math.prod(nest.window.taps))

    return nest.over_taps("min", number)


@cache
def max_pool(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """The largest pixel of each window; padding counts where all is padding. in0: image."""
    nest = _Nest(window, data_format)
    return nest.stored(nest.over_taps("max", _pixel(nest, dtype)))


@cache
def max_pool_choice(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """The tap of the first largest pixel of each window, as int32. in0: image."""
    nest = _Nest(window, data_format)
    return nest.stored(_first_largest(nest, dtype))


@cache
def max_pool_gradient(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """Over pixels: the sum of the gradients of those windows that chose the pixel. in0: taps by `max_pool_choice`; in1: gradient."""
    nest = _Nest(window, data_format)

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Symbol:
        chosen, gradient = nest.read(0, int32, at, _RESULT), nest.read(1, dtype, at, _RESULT)
        return SymbolicMath.where(chosen == tap, gradient, 0)  # where there is no position, the gradient is read as 0

    return nest.stored(nest.over_positions(term))


@cache
def max_pool_gradient_gradient(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """The element of in1, an array like the image, where the image, in0, has the first largest pixel of each window."""
    nest = _Nest(window, data_format)
    chosen = _first_largest(nest, dtype)
    i = nest.quotient(chosen, window.taps[1])
    j = chosen - _times(i, window.taps[1])
    return nest.stored(nest.read(1, dtype, nest.seen(i, j), _IMAGE, nest.c))


@cache
def avg_pool(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """The mean of the pixels inside the image that each window sees. in0: image."""
    nest = _Nest(window, data_format)
    kept = kept_in(dtype)
    total = nest.over_taps("sum", lambda i, j: nest.read(0, dtype, nest.seen(i, j), _IMAGE))
    return nest.stored(SymbolicMath.cast(total, kept) / nest.pixels(nest.h, nest.w, kept), dtype=dtype)


@cache
def avg_pool_gradient(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """Over pixels: the sum of the gradients, in0, of those windows that see the pixel, each divided by the pixels that it sees."""
    nest, kept = _Nest(window, data_format), kept_in(dtype)

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Any:
        pixels = nest.pixels(at[0], at[1], kept)
        gradient = SymbolicMath.cast(nest.read(0, dtype, at, _RESULT), kept)
        return gradient / SymbolicMath.where(at[2], pixels, 1)

    return nest.stored(nest.over_positions(term), dtype=dtype)


# --- depthwise convolutions ------------------------------------------------------------------------------------------


@cache
def depthwise(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """The convolution. in0: image; in1: filter."""
    nest = _Nest(window, data_format)
    channel = None if multiplier == 1 else nest.quotient(nest.c, multiplier)

    def term(i: Tap, j: Tap) -> Any:
        x = nest.read(0, dtype, nest.seen(i, j), _IMAGE, channel)
        return x * nest.weight(1, dtype, nest.number(i, j), nest.c)

    return nest.stored(nest.over_taps("sum", term))


@cache
def depthwise_input_gradient(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """Over pixels: the gradient for the image. in0: filter; in1: gradient of the result."""
    nest = _Nest(window, data_format)

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Any:
        terms = []
        for m in range(multiplier):
            filter = _plus(_times(nest.c, multiplier), m)
            y = nest.read(1, dtype, at, _RESULT, None if multiplier == 1 else filter, "filters")
            terms.append(y * nest.weight(0, dtype, tap, filter))
        return reduce(Symbol.__add__, terms)

    return nest.stored(nest.over_positions(term))


@cache
def depthwise_filter_gradient(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """Over taps and filters, reducing positions: the gradient for the filter. in0: image; in1: gradient of the result."""
    nest = _Nest(window, data_format, summed=True)
    channel = None if multiplier == 1 else nest.quotient(nest.c, multiplier)
    x = nest.read(0, dtype, nest.seen(nest.position(0, int32), nest.position(1, int32)), _IMAGE, channel)
    total = (x * nest.load(1, dtype, nest.space)).reduced("sum")
    return nest.stored(total, [0, 1, nest.channel_axis])


# --- ops -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WindowOp:
    """How an op over windows is computed.

    Attributes:
        inputs: what each input of a node is: an "image", a "result", or a "filter".
        steps: loop nests, one after the other: what makes the nest, the inputs that it reads, and what it goes over.
        told: the input of which only the value is used, the shape of what it is; -1: none.
    """

    inputs: tuple[str, ...]
    steps: tuple[tuple[Callable[..., LoopNest], tuple[int, ...], str], ...]
    told: int = -1

    @property
    def is_depthwise(self) -> bool:
        """Whether it is a depthwise convolution, or a gradient of one: its nests have a multiplier."""
        return "filter" in self.inputs

    def sizes(
        self, attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> tuple[Window, dict[str, int], dict[str, tuple[int, ...]]] | None:
        """The window, what a launch gives, and the shapes of image, result and filter; None where the reference must do the work.

        `shapes`: of a node's inputs, or the one that it tells.
        """
        found: dict[str, tuple[int, ...]] = {}
        for what, shape in zip(self.inputs, shapes, strict=True):
            if found.setdefault(what, shape) != shape or len(shape) != 4 or 0 in shape:
                return None
        data_format, w = layout(attrs), found.get("filter", ())
        window = window_of(attrs, (w[0], w[1]) if w else height_and_width(attrs, "ksize"))
        try:
            sizes = image_sizes(window, found["image"], w[2] * w[3] if w else None, data_format, bool(w))
        except ValueError:
            return None  # the reference says what is wrong, or can do what kernels cannot
        n, rows, columns, filters = (sizes[name] for name in ("images", "rows", "columns", "filters"))
        result = (n, filters, rows, columns) if data_format == "NCHW" else (n, rows, columns, filters)
        fits = found.setdefault("result", result) == result and 0 not in result
        return (window, sizes, found) if fits and (not w or w[2] == sizes["channels"]) else None


CHOSEN = -1
"""What the step before wrote, as an input of a step."""

WINDOW_OPS = {
    "MaxPool": WindowOp(("image",), ((max_pool, (0,), "result"),)),
    "MaxPoolGrad": WindowOp(
        ("image", "result", "result"),
        ((max_pool_choice, (0,), "result"), (max_pool_gradient, (CHOSEN, 2), "image")),
    ),
    "MaxPoolGradGrad": WindowOp(("image", "result", "image"), ((max_pool_gradient_gradient, (0, 2), "result"),)),
    "AvgPool": WindowOp(("image",), ((avg_pool, (0,), "result"),)),
    "AvgPoolGrad": WindowOp(("image", "result"), ((avg_pool_gradient, (1,), "image"),), told=0),
    "DepthwiseConv2dNative": WindowOp(("image", "filter"), ((depthwise, (0, 1), "result"),)),
    "DepthwiseConv2dNativeBackpropInput": WindowOp(
        ("image", "filter", "result"), ((depthwise_input_gradient, (1, 2), "image"),), told=0
    ),
    "DepthwiseConv2dNativeBackpropFilter": WindowOp(
        ("image", "filter", "result"), ((depthwise_filter_gradient, (0, 2), "filter"),), told=1
    ),
}
"""The ops, on CPUs and GPUs."""
