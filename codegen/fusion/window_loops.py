"""Loop nests of pooling and depthwise convolutions: reductions over the taps of a window.

At tap (i, j) the position (row, column) of the result sees the pixel (row * stride - top + i * dilation, ...) of the image. These are
affine index maps with masks: a pixel outside of the image is read as row -1 of a table, which gives zero, and counts as padding.
Up to 25 taps are written out, so that indices are computed once per pixel and not once per element; more become reduced axes.

    space              axes in the order of memory: images, height, width, channels; or images, channels, height, width
    over positions     height and width are the `rows` and `columns` of the result
    over pixels        they are those of the image; the sum goes over the positions that see the pixel

A launch gives the sizes of `gpu/templates/windows.py`. Channel c of a depthwise convolution has the filters
c * multiplier + m; its filter is [height, width, channels * multiplier].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

from ...graph.core.dtypes import DType, int32
from ...graph.ops.nn.conv_geometry import Window
from ..ir.loop_nest import LoopNest, LoopNestBuilder
from .table_loops import kept_in
from .tracer import Symbol, SymbolicMath, literal

_MOST_WRITTEN_OUT = 25  # taps
_FOLDED = {"sum": "add", "max": "maximum", "min": "minimum"}
_IMAGE, _RESULT = ("height", "width"), ("rows", "columns")

Tap = Any
"""A tap along one axis: a number, or a symbol that goes over all of them."""


def taps_are_axes(window: Window) -> bool:
    """Whether a window has so many taps that they are the first two axes of its nests."""
    return math.prod(window.taps) > _MOST_WRITTEN_OUT


class _Nest:
    """A loop nest over images or results, as it is written.

    Args:
        taps: whether taps are gone over.
        summed: the space's positions are reduced, and the taps are kept axes: the gradient of a filter.
    """

    def __init__(self, window: Window, data_format: str, *, taps: bool = True, summed: bool = False) -> None:
        self.window = window
        self.channels_first = data_format == "NCHW"
        first = 2 if summed or (taps and taps_are_axes(window)) else 0
        n, c, h, w = (0, 1, 2, 3) if self.channels_first else (0, 3, 1, 2)
        self.builder = LoopNestBuilder([not summed] * first + [summed and a != c for a in range(4)])
        self.taps_are_axes = bool(first)
        self.space = range(first, first + 4)
        self.n, self.c, self.h, self.w = (self.symbol(first + a) for a in (n, c, h, w))
        self.channel_axis = first + c

    # --- numbers -----------------------------------------------------------------------------------------------------

    def symbol(self, axis: int) -> Symbol:
        """The position along an axis."""
        return Symbol(self.builder, self.builder.position(axis, int32))

    def size(self, name: str) -> Symbol:
        """A size that a launch gives."""
        return Symbol(self.builder, self.builder.size(name, int32))

    def quotient(self, x: Symbol, by: int) -> Symbol:
        """x // by; what is negative is rounded in any direction."""
        divisor = literal(self.builder, by, int32).number
        return x if by == 1 else Symbol(self.builder, self.builder.apply("quotient", x.number, divisor))

    # --- windows -----------------------------------------------------------------------------------------------------

    def over_taps(self, kind: str, term: Callable[[Tap, Tap], Symbol]) -> Symbol:
        """The sum, largest or smallest of what all taps give."""
        if self.taps_are_axes:
            value = term(self.symbol(0), self.symbol(1))
            return Symbol(self.builder, self.builder.reduce(kind, value.number))
        high, wide = self.window.taps
        terms = [term(i, j).number for i in range(high) for j in range(wide)]
        return Symbol(self.builder, reduce(lambda a, b: self.builder.apply(_FOLDED[kind], a, b), terms))

    def number(self, i: Tap, j: Tap) -> Symbol:
        """The number of a tap."""
        tap = i * self.window.taps[1] + j
        found: Symbol = tap if isinstance(tap, Symbol) else literal(self.builder, tap, int32)
        return found

    def start(self, axis: int, position: Symbol) -> Symbol:
        """The pixel that a position sees at its first tap; -1 and less in the padding."""
        first: Symbol = _times(position, self.window.strides[axis])
        return first - self.size(("top", "left")[axis])

    def seen(self, i: Tap, j: Tap) -> tuple[Symbol, Symbol, Symbol]:
        """The pixel that the current position sees at a tap: its row and column, and whether it is inside."""
        h, w = (
            _plus(self.start(axis, at), _times(tap, self.window.dilations[axis]))
            for axis, at, tap in ((0, self.h, i), (1, self.w, j))
        )
        return h, w, (h >= 0) & (h < self.size("height")) & (w >= 0) & (w < self.size("width"))

    def seen_from(self, i: Tap, j: Tap) -> tuple[Symbol, Symbol, Symbol]:
        """The position that sees the current pixel at a tap: its row and column, and whether there is one."""
        found, valid = [], []
        for axis, at, tap in ((0, self.h, i), (1, self.w, j)):
            stride = self.window.strides[axis]
            start = _plus(at + self.size(("top", "left")[axis]), -_times(tap, self.window.dilations[axis]))
            position = self.quotient(start, stride)
            found.append(position)
            valid += [start >= 0, position < self.size(_RESULT[axis])]
            valid += [_times(position, stride) == start] if stride > 1 else []
        return found[0], found[1], reduce(Symbol.__and__, valid)

    def pixels(self, row: Symbol, column: Symbol, dtype: DType) -> Symbol:
        """How many pixels inside the image the position (row, column) sees."""

        def along(axis: int, position: Symbol) -> Symbol:
            dilation = self.window.dilations[axis]
            start = self.start(axis, position)
            builder = self.builder
            zero = literal(builder, 0, int32)

            def steps(length: Symbol) -> Symbol:
                length = _plus(length, dilation - 1)
                return self.quotient(Symbol(builder, builder.apply("maximum", length.number, zero.number)), dilation)

            taps = literal(builder, self.window.taps[axis], int32)
            end = steps(self.size(_IMAGE[axis]) - start)
            return Symbol(builder, builder.apply("minimum", end.number, taps.number)) - steps(-start)

        return SymbolicMath.cast(along(0, row) * along(1, column), dtype)

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
        return Symbol(self.builder, self.builder.gather(position, dtype, row.number, axes))

    def weight(self, position: int, dtype: DType, i: Tap, j: Tap, filter: Symbol) -> Symbol:
        """The number of input `position`, a depthwise convolution's filter, at a tap."""
        row = self.number(i, j) * self.size("filters") + filter
        return Symbol(self.builder, self.builder.gather(position, dtype, row.number, []))

    def load(self, position: int, dtype: DType) -> Symbol:
        """The current element of an input that has the axes of the space."""
        return Symbol(self.builder, self.builder.load(position, dtype, self.space))

    def stored(self, value: Symbol, axes: Any = None, dtype: DType | None = None) -> LoopNest:
        """The nest, with its output."""
        value = value if dtype is None else SymbolicMath.cast(value, dtype)
        self.builder.store(value.number, self.space if axes is None else axes)
        return self.builder.finish()[0]


def _times(x: Tap, n: int) -> Any:
    return x if n == 1 else x * n


def _plus(x: Symbol, n: Tap) -> Symbol:
    return x if isinstance(n, int) and n == 0 else x + n


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pixel(nest: _Nest, dtype: DType) -> Callable[[Tap, Tap], Symbol]:
    """What the current position sees of in0 at a tap. Padding is below all numbers."""
    lowest = -math.inf if dtype.is_floating else int(dtype.min)

    def seen(i: Tap, j: Tap) -> Symbol:
        at = nest.seen(i, j)
        return SymbolicMath.where(at[2], nest.read(0, dtype, at, _IMAGE), lowest)

    return seen


def _first_largest(nest: _Nest, dtype: DType) -> Symbol:
    """The number of the first tap with the largest pixel; NaN is the largest."""
    pixel, (high, wide) = _pixel(nest, dtype), nest.window.taps
    if not nest.taps_are_axes:  # in one pass, so that pixels need no registers for long
        best, chosen = pixel(0, 0), literal(nest.builder, 0, int32)
        for tap in range(1, high * wide):
            x = pixel(tap // wide, tap % wide)
            better = (x > best) | ((x != x) & (best == best)) if dtype.is_floating else x > best
            best, chosen = (SymbolicMath.where(better, new, old) for new, old in ((x, best), (tap, chosen)))
        return chosen
    top = nest.over_taps("max", pixel)

    def number(i: Tap, j: Tap) -> Symbol:
        x = pixel(i, j)
        largest = (x == top) | (x != x) if dtype.is_floating else x == top
        return SymbolicMath.where(largest, nest.number(i, j), math.prod(nest.window.taps))

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

    def term(i: Tap, j: Tap) -> Symbol:
        row, column, there = nest.seen_from(i, j)
        chosen = nest.read(0, int32, (row, column, there), _RESULT)
        gradient = nest.read(1, dtype, (row, column, there), _RESULT)
        return SymbolicMath.where(there & (chosen == nest.number(i, j)), gradient, 0)

    return nest.stored(nest.over_taps("sum", term))


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
def avg_pool_shares(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """Over positions: the gradient, in0, divided by the pixels that the window sees; float32 for narrow types."""
    nest, kept = _Nest(window, data_format, taps=False), kept_in(dtype)
    gradient = nest.read(0, dtype, (nest.h, nest.w, nest.h >= 0), _RESULT)  # so that no axes are joined
    return nest.stored(SymbolicMath.cast(gradient, kept) / nest.pixels(nest.h, nest.w, kept))


@cache
def avg_pool_gradient(dtype: DType, window: Window, data_format: str) -> LoopNest:
    """Over pixels: the sum of the shares, in0, of those windows that see the pixel."""
    nest, kept = _Nest(window, data_format), kept_in(dtype)
    total = nest.over_taps("sum", lambda i, j: nest.read(0, kept, nest.seen_from(i, j), _RESULT))
    return nest.stored(total, dtype=dtype)


# --- depthwise convolutions ------------------------------------------------------------------------------------------


@cache
def depthwise(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """The convolution. in0: image; in1: filter."""
    nest = _Nest(window, data_format)
    channel = None if multiplier == 1 else nest.quotient(nest.c, multiplier)

    def term(i: Tap, j: Tap) -> Symbol:
        x = nest.read(0, dtype, nest.seen(i, j), _IMAGE, channel)
        return x * nest.weight(1, dtype, i, j, nest.c)

    return nest.stored(nest.over_taps("sum", term))


@cache
def depthwise_input_gradient(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """Over pixels: the gradient for the image. in0: filter; in1: gradient of the result."""
    nest = _Nest(window, data_format)

    def term(i: Tap, j: Tap) -> Symbol:
        at, terms = nest.seen_from(i, j), []
        for m in range(multiplier):
            filter = _plus(_times(nest.c, multiplier), m)
            y = nest.read(1, dtype, at, _RESULT, None if multiplier == 1 else filter, "filters")
            terms.append(y * nest.weight(0, dtype, i, j, filter))
        return reduce(Symbol.__add__, terms)

    return nest.stored(nest.over_taps("sum", term))


@cache
def depthwise_filter_gradient(dtype: DType, window: Window, multiplier: int, data_format: str) -> LoopNest:
    """Over taps and filters, reducing positions: the gradient for the filter. in0: image; in1: gradient of the result."""
    nest = _Nest(window, data_format, summed=True)
    channel = None if multiplier == 1 else nest.quotient(nest.c, multiplier)
    x = nest.read(0, dtype, nest.seen(nest.symbol(0), nest.symbol(1)), _IMAGE, channel)
    total = nest.builder.reduce("sum", (x * nest.load(1, dtype)).number)
    return nest.stored(Symbol(nest.builder, total), [0, 1, nest.channel_axis])
