"""Loops of pooling and depthwise convolutions: reductions over the taps of a window.

At tap (i, j) the position (row, column) of the result sees the pixel (row * stride - top + i * dilation, ...) of the image. These are
affine index maps with masks: a pixel outside of the image is read as row -1 of a table, which gives zero, and counts as padding.
Few taps are written out, so that indices are computed once per pixel and not once per element; more become reduced axes.

    loops over a result    height and width are its `rows` and `columns`
    loops over an image    the sum goes over the positions that see the pixel

So an op over windows is a value of a loop nest like any other, and may be followed by arithmetic. `ir/windows.py` has the sizes that a
launch gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from typing import Any

from ...graph.core.dtypes import DType, int32
from ...graph.ops.nn.conv_geometry import Window
from ..ir.index_maps import AxisMap
from ..ir.loop_nest import LoopNestBuilder
from ..ir.windows import taps_are_axes
from .table_loops import kept_in
from .tracer import Symbol, SymbolicLoops, SymbolicMath

_math = SymbolicMath()
_FOLDED = {"sum": "add", "max": "maximum", "min": "minimum"}
IMAGE, RESULT = ("height", "width"), ("rows", "columns")
"""The sizes of an image and of a result, as a launch gives them."""

Tap = Any
"""A tap along one axis: a number, or a symbol that goes over all of them."""


class WindowLoops(SymbolicLoops):
    """The loops of a node over windows, as they are written into a kernel.

    Args:
        builder: of the kernel's loop nest.
        window: taps, strides, dilations and padding.
        data_format: "NHWC" or "NCHW".
        axes: of the loops: images, height, width, channels; taps along height and width; filters of a channel. None: of size 1.
        element: gives the element of a node's input in a row of the table that it is, at these axes.
        computed: the inputs that are computed at each tap.
        number: of the window in its kernel; the names of sizes end with it.
        multiplier: filters for each channel.
    """

    def __init__(
        self,
        builder: LoopNestBuilder,
        window: Window,
        data_format: str,
        axes: AxisMap,
        element: Callable[[int, DType, Symbol, Sequence[int]], Symbol],
        computed: Collection[int] = (),
        number: int = 0,
        multiplier: int = 1,
    ) -> None:
        super().__init__(builder)
        self.window, self.suffix, self.multiplier = window, number, multiplier
        self.element, self.computed = element, computed
        self.channels_first = data_format == "NCHW"
        self.taps_are_axes = taps_are_axes(window)
        self.channel_axis = axes[3]
        at = [self.constant(0, int32) if a is None else self.position(a, int32) for a in axes]
        self.n, self.h, self.w, self.c, self.i, self.j, self.m = at

    # --- numbers -----------------------------------------------------------------------------------------------------

    def size(self, name: str, dtype: DType = int32) -> Symbol:
        """A size that a launch gives."""
        return super().size(f"{name}{self.suffix}", dtype)

    def quotient(self, x: Symbol, by: int) -> Symbol:
        """x // by; what is negative is rounded in any direction."""
        divisor = self.constant(by, int32).number
        return x if by == 1 else Symbol(self.builder, self.builder.apply("quotient", x.number, divisor))

    # --- windows -----------------------------------------------------------------------------------------------------

    def over_taps(self, kind: str, term: Callable[[Tap, Tap], Symbol]) -> Symbol:
        """The sum, largest or smallest of what all taps give."""
        if self.taps_are_axes:
            return term(self.i, self.j).reduced(kind)
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
        sides = enumerate(zip(self.window.taps, self.window.strides, strict=True))
        high, wide = (-(-taps // stride) if self._steps(axis) else taps for axis, (taps, stride) in sides)
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
            facts = [position >= 0, position < self.size(RESULT[axis])]
            return position, tap, [*facts, *([tap < self.window.taps[axis]] if self.window.taps[axis] % stride else [])]
        start = _plus(pixel, -_times(which, self.window.dilations[axis]))
        position = self.quotient(start, stride)
        facts = [start >= 0, position < self.size(RESULT[axis])]
        return position, which, [*facts, *([_times(position, stride) == start] if stride > 1 else [])]

    def pixels(self, row: Symbol, column: Symbol, dtype: DType) -> Symbol:
        """How many pixels inside the image the position (row, column) sees."""

        def along(axis: int, position: Symbol) -> Any:
            end = self._taps_over(axis, self.size(IMAGE[axis]) - self.start(axis, position))
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
        input: int,
        dtype: DType,
        at: tuple[Symbol, Symbol, Symbol | None],
        sizes: tuple[str, str],
        channel: Symbol | None = None,
        channels: str = "channels",
    ) -> Symbol:
        """An element of an image or a result, the node's `input`, at (row, column, whether it is there); else 0.

        `channel` of so many `channels`: another one than the current.
        """
        h, w, there = at
        height, width = map(self.size, sizes)
        axes: list[int] = []
        if self.channels_first:
            row = ((self.n * self.size(channels) + (self.c if channel is None else channel)) * height + h) * width + w
        else:
            row = (self.n * height + h) * width + w
            if channel is not None:
                row = row * self.size(channels) + channel
            elif self.channel_axis is not None:
                axes = [self.channel_axis]
        if there is not None:
            row = SymbolicMath.where(there, row, -1)
        value = self.element(input, dtype, row, axes)
        return SymbolicMath.where(there, value, 0) if there is not None and input in self.computed else value

    def weight(self, input: int, dtype: DType, tap: Symbol, filter: Symbol) -> Symbol:
        """The number of a depthwise convolution's filter, the node's `input`, at the tap with this number."""
        return self.element(input, dtype, tap * self.size("filters") + filter, ())


def _times(x: Tap, n: int) -> Any:
    return x if n == 1 else x * n


def _plus(x: Symbol, n: Tap) -> Symbol:
    return x if isinstance(n, int) and n == 0 else x + n


# --- pooling ---------------------------------------------------------------------------------------------------------


def _pixel(loops: WindowLoops, dtype: DType) -> Callable[[Tap, Tap], Symbol]:
    """What the current position sees of the first input at a tap. No number is below padding."""
    lowest = -math.inf if dtype.is_floating else int(dtype.min)

    def seen(i: Tap, j: Tap) -> Symbol:
        at = loops.seen(i, j)
        return SymbolicMath.where(at[2], loops.read(0, dtype, at, IMAGE), lowest)

    return seen


def max_pool(loops: WindowLoops, dtype: DType) -> Symbol:
    """The largest pixel of each window; padding counts where all is padding."""
    return loops.over_taps("max", _pixel(loops, dtype))


def max_pool_choice(loops: WindowLoops, dtype: DType) -> Symbol:
    """The number of the first tap inside the image with the largest pixel; NaN is the largest."""
    pixel, (high, wide) = _pixel(loops, dtype), loops.window.taps
    if not loops.taps_are_axes:  # in one pass, so that pixels need no registers for long
        # From the first tap inside on: pixels may be as low as padding.
        chosen = _plus(_times(loops.first_inside(0, loops.h), wide), loops.first_inside(1, loops.w))
        best = pixel(0, 0)
        for tap in range(1, high * wide):
            x = pixel(tap // wide, tap % wide)
            better = (x > best) | ((x != x) & (best == best)) if dtype.is_floating else x > best
            best, chosen = (SymbolicMath.where(better, new, old) for new, old in ((x, best), (tap, chosen)))
        return chosen
    top = loops.over_taps("max", pixel)

    def number(i: Tap, j: Tap) -> Symbol:
        x = pixel(i, j)
        largest = (x == top) | (x != x) if dtype.is_floating else x == top
        return SymbolicMath.where(largest & loops.seen(i, j)[2], loops.number(i, j), math.prod(loops.window.taps))

    return loops.over_taps("min", number)


def max_pool_choice_gradient(loops: WindowLoops, dtype: DType) -> Symbol:
    """Over pixels: the sum of the gradients, input 2, of those windows that chose the pixel; input 1: the taps that were chosen."""

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Symbol:
        chosen, gradient = loops.read(1, int32, at, RESULT), loops.read(2, dtype, at, RESULT)
        return SymbolicMath.where(chosen == tap, gradient, 0)  # where there is no position, the gradient is read as 0

    return loops.over_positions(term)


def max_pool_gradient_gradient(loops: WindowLoops, dtype: DType) -> Symbol:
    """The element of input 2, an array like the image, where the image has the first largest pixel of each window."""
    chosen = max_pool_choice(loops, dtype)
    i = loops.quotient(chosen, loops.window.taps[1])
    j = chosen - _times(i, loops.window.taps[1])
    return loops.read(2, dtype, loops.seen(i, j), IMAGE, loops.c)


def avg_pool(loops: WindowLoops, dtype: DType) -> Symbol:
    """The mean of the pixels inside the image that each window sees."""
    kept = kept_in(dtype)
    total = loops.over_taps("sum", lambda i, j: loops.read(0, dtype, loops.seen(i, j), IMAGE))
    return SymbolicMath.cast(SymbolicMath.cast(total, kept) / loops.pixels(loops.h, loops.w, kept), dtype)


def avg_pool_gradient(loops: WindowLoops, dtype: DType) -> Symbol:
    """Over pixels: the sum of the gradients, input 1, of those windows that see the pixel, each divided by the pixels that it sees."""
    kept = kept_in(dtype)

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Any:
        pixels = loops.pixels(at[0], at[1], kept)
        gradient = SymbolicMath.cast(loops.read(1, dtype, at, RESULT), kept)
        return gradient / SymbolicMath.where(at[2], pixels, 1)

    return SymbolicMath.cast(loops.over_positions(term), dtype)


# --- depthwise convolutions ------------------------------------------------------------------------------------------


def depthwise(loops: WindowLoops, dtype: DType) -> Symbol:
    """The convolution."""
    channel = None if loops.multiplier == 1 else loops.quotient(loops.c, loops.multiplier)

    def term(i: Tap, j: Tap) -> Any:
        x = loops.read(0, dtype, loops.seen(i, j), IMAGE, channel)
        return x * loops.weight(1, dtype, loops.number(i, j), loops.c)

    return loops.over_taps("sum", term)


def depthwise_input_gradient(loops: WindowLoops, dtype: DType) -> Symbol:
    """Over pixels: the gradient for the image."""

    def term(at: tuple[Symbol, Symbol, Symbol], tap: Symbol) -> Any:
        terms = []
        for m in range(loops.multiplier):
            filter = _plus(_times(loops.c, loops.multiplier), m)
            y = loops.read(2, dtype, at, RESULT, None if loops.multiplier == 1 else filter, "filters")
            terms.append(y * loops.weight(1, dtype, tap, filter))
        return reduce(Symbol.__add__, terms)

    return loops.over_positions(term)


def depthwise_filter_gradient(loops: WindowLoops, dtype: DType) -> Symbol:
    """Over taps and filters, reducing positions: the gradient for the filter."""
    filter = None if loops.multiplier == 1 else loops.c * loops.multiplier + loops.m
    x = loops.read(0, dtype, loops.seen(loops.i, loops.j), IMAGE)
    y = loops.read(2, dtype, (loops.h, loops.w, None), RESULT, filter, "filters")
    product: Symbol = x * y
    return product.reduced("sum")


WINDOW_LOOPS: dict[str, Callable[[WindowLoops, DType], Symbol]] = {
    "MaxPool": max_pool,
    "MaxPoolChoice": max_pool_choice,
    "MaxPoolChoiceGrad": max_pool_choice_gradient,
    "MaxPoolGradGrad": max_pool_gradient_gradient,
    "AvgPool": avg_pool,
    "AvgPoolGrad": avg_pool_gradient,
    "DepthwiseConv2dNative": depthwise,
    "DepthwiseConv2dNativeBackpropInput": depthwise_input_gradient,
    "DepthwiseConv2dNativeBackpropFilter": depthwise_filter_gradient,
}
"""Op -> its value for an element, of the loops, and of the element type of its data."""
