"""Pooling, and its gradients: the largest, or the mean, of what a window sees.

All kernels go along their outputs as they lie in memory. The gradient of the largest belongs to the first pixel that is the largest
of its window: one kernel writes which tap that is, for each window; another one goes over the pixels and adds up the gradients of
those windows that chose it. No two programs add to one number, so the result does not depend on their order.

Padding is below all numbers, and counts as a pixel when everything is; NaN is above all. The mean counts only pixels inside.

Launch names: `max_pool`, `avg_pool`: in0 image; out0. `max_pool_gradient`: in0 image, in2 gradient of the result; out0 (in1, the
result, is not needed). `max_pool_gradient_gradient`: in0 image, in2 an array like the image; out0 like the result.
`avg_pool_gradient`: in0 gradient of the result; out0. Sizes: `image_sizes(window, image's shape, None, data_format)`.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType
from ....graph.ops.nn.conv_geometry import Window
from ..emit.expr import NARROW, stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, TritonKernel, triton_type
from .text import lines, make_kernel
from .windows import IMAGE, WINDOW, Layout, for_taps, size_parameters, window_constants

_BLOCK = 512
_IMAGE_SIZES, _RESULT_SIZES = ("height", "width", "channels"), ("rows", "columns", "channels")
_PIXELS, _POSITIONS = ("images", "height", "width", "channels"), ("images", "rows", "columns", "channels")


def max_pool(
    dtype: DType, window: Window, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """The largest pixel of each window, for any type of number.

    Args:
        dtype: of image and result.
        window: taps, strides, padding.
        data_format: "NHWC" or "NCHW".
        known: sizes that never change.
    """
    pool = _Pool(dtype, window, data_format, known)
    largest = "maximum(best, x)" if dtype.is_floating else "tl.maximum(best, x)"
    body = lines(
        pool.of_position(),
        f"best = tl.full([BLOCK], {pool.lowest}, {pool.computed})",
        for_taps(window, pool.tap(), pool.load("in0", pool.lowest), f"best = {largest}"),
        pool.store("best", "at"),
    )
    kernel = pool.kernel("max_pool", ["in0", "out0"], body, ["maximum"] if dtype.is_floating else [])
    return [Routine((Launch(kernel, pool.grid(_POSITIONS)),))]


def max_pool_gradient(
    dtype: DType, window: Window, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """The gradient of `max_pool`; arguments as there."""
    pool = _Pool(dtype, window, data_format, known)
    choose = lines(pool.of_position(), pool.first_largest(), "tl.store(scratch0 + at, chosen, mask=at < count)")
    position = pool.layout.offset(_RESULT_SIZES, "image", "row", "column", "channel")
    add = lines(
        pool.of_pixel(),
        f"total = tl.zeros([BLOCK], {pool.computed})",
        for_taps(
            window,
            pool.from_pixel(),
            f"position = {position}",
            "mine = seen & (tl.load(scratch0 + position, mask=seen, other=-1) == i * KW + j)",
            f"total += tl.load(in2 + position, mask=mine, other=0).to({pool.computed})",
        ),
        pool.store("total", "at"),
    )
    launches = (
        Launch(pool.kernel("max_pool_choice", ["in0", "scratch0"], choose), pool.grid(_POSITIONS)),
        Launch(pool.kernel("max_pool_gradient", ["in2", "scratch0", "out0"], add), pool.grid(_PIXELS)),
    )
    return [Routine(launches, (Scratch("scratch0", "i32", (Count(_POSITIONS),)),))]


def max_pool_gradient_gradient(
    dtype: DType, window: Window, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """What `in2` has where the image has the largest pixel of each window; arguments as for `max_pool`."""
    pool = _Pool(dtype, window, data_format, known)
    body = lines(
        pool.of_position(),
        pool.first_largest(),
        "h = row * SH - top + chosen // KW * DH",
        "w = column * SW - left + chosen % KW * DW",
        "seen = (at < count) & (h >= 0) & (h < height) & (w >= 0) & (w < width)",
        pool.load("in2", "0"),
        pool.store("x", "at"),
    )
    return [Routine((Launch(pool.kernel("max_pool_pick", ["in0", "in2", "out0"], body), pool.grid(_POSITIONS)),))]


def avg_pool(
    dtype: DType, window: Window, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """The mean of the pixels inside the image that each window sees; arguments as for `max_pool`, `dtype` is floating."""
    pool = _Pool(dtype, window, data_format, known, mean=True)
    body = lines(
        pool.of_position(),
        f"total = tl.zeros([BLOCK], {pool.computed})",
        f"pixels = tl.zeros([BLOCK], {pool.computed})",
        for_taps(window, pool.tap(), pool.load("in0", "0"), "total += x", f"pixels += seen.to({pool.computed})"),
        pool.store(pool.divided("total", "pixels"), "at"),
    )
    return [Routine((Launch(pool.kernel("avg_pool", ["in0", "out0"], body), pool.grid(_POSITIONS)),))]


def avg_pool_gradient(
    dtype: DType, window: Window, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """The gradient of `avg_pool`; arguments as there."""
    pool = _Pool(dtype, window, data_format, known, mean=True)
    position = pool.layout.offset(_RESULT_SIZES, "image", "row", "column", "channel")
    body = lines(
        pool.of_pixel(),
        f"total = tl.zeros([BLOCK], {pool.computed})",
        for_taps(
            window,
            pool.from_pixel(),
            f"x = tl.load(in0 + {position}, mask=seen, other=0).to({pool.computed})",
            "# how many pixels inside the image that window sees",
            _inside_axis("high", "row", "SH", "top", "KH", "DH", "height"),
            _inside_axis("wide", "column", "SW", "left", "KW", "DW", "width"),
            f"pixels = tl.maximum(high * wide, 1).to({pool.computed})",
            f"total += {pool.divided('x', 'pixels')}",
        ),
        pool.store("total", "at"),
    )
    return [Routine((Launch(pool.kernel("avg_pool_gradient", ["in0", "out0"], body), pool.grid(_PIXELS)),))]


def _inside_axis(name: str, position: str, stride: str, pad: str, taps: str, dilation: str, size: str) -> list[str]:
    """Lines for how many taps of a window lie inside along one axis."""
    return [
        f"start = {position} * {stride} - {pad}",
        f"before = tl.maximum(-start + {dilation} - 1, 0) // {dilation}",
        f"{name} = tl.minimum(tl.maximum({size} - start + {dilation} - 1, 0) // {dilation}, {taps}) - before",
    ]


class _Pool:
    """What the kernels of one pooling share."""

    def __init__(
        self, dtype: DType, window: Window, data_format: str, known: Mapping[str, int] | None, mean: bool = False
    ) -> None:
        if dtype.is_bool or dtype.is_complex or (mean and not dtype.is_floating):
            raise ValueError(f"no kernel pools {dtype.name}")
        triton_type(dtype.name)
        self.dtype, self.window, self.known = dtype, window, known or {}
        self.layout = Layout(data_format)
        self.computed = "tl.float32" if dtype in NARROW else stored_as(dtype)
        self.lowest = "float('-inf')" if dtype.is_floating else str(int(dtype.min))

    def grid(self, sizes: tuple[str, ...]) -> Grid:
        """One program for each block of outputs."""
        return Grid((Count(sizes, _BLOCK),))

    def kernel(self, name: str, arrays: list[str], body: str, functions: list[str] | None = None) -> TritonKernel:
        """A kernel over the window's constants and all sizes."""
        kind = triton_type(self.dtype.name)
        parameters = [Parameter(a, "*i32" if a == "scratch0" else f"*{kind}", True) for a in arrays]
        sizes = size_parameters((*IMAGE, *WINDOW), self.known)
        constants = (("BLOCK", _BLOCK), *window_constants(self.window))
        return make_kernel(name, (*parameters, *sizes), constants, body, functions=functions or (), contract=False)

    def of_position(self) -> str:
        """Which positions a program has."""
        return lines(
            "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "count = images * rows * columns * channels",
            self.layout.decode("at", _RESULT_SIZES, ("image", "row", "column", "channel")),
        )

    def of_pixel(self) -> str:
        """Which pixels a program has."""
        return lines(
            "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
            "count = images * height * width * channels",
            self.layout.decode("at", _IMAGE_SIZES, ("image", "h", "w", "channel")),
        )

    def tap(self) -> list[str]:
        """What a window sees at a tap."""
        return [
            "h = row * SH - top + i * DH",
            "w = column * SW - left + j * DW",
            "seen = (at < count) & (h >= 0) & (h < height) & (w >= 0) & (w < width)",
        ]

    def from_pixel(self) -> list[str]:
        """Which window sees a pixel at a tap."""
        return [
            "from_h = h + top - i * DH",
            "from_w = w + left - j * DW",
            "row = from_h // SH",
            "column = from_w // SW",
            "seen = (at < count) & (from_h >= 0) & (from_w >= 0) & (row < rows) & (column < columns)",
            "seen = seen & (from_h % SH == 0) & (from_w % SW == 0)",
        ]

    def load(self, array: str, outside: str) -> str:
        """The pixel at (h, w)."""
        pixel = self.layout.offset(_IMAGE_SIZES, "image", "h", "w", "channel")
        return f"x = tl.load({array} + {pixel}, mask=seen, other={outside}).to({self.computed})"

    def first_largest(self) -> str:
        """Lines for `chosen`, the tap of the first largest pixel of each window."""
        better = "(x > best) | ((x != x) & (best == best))" if self.dtype.is_floating else "x > best"
        return lines(
            f"best = tl.full([BLOCK], {self.lowest}, {self.computed})",
            "chosen = tl.zeros([BLOCK], tl.int32)",
            for_taps(
                self.window,
                self.tap(),
                self.load("in0", self.lowest),
                f"better = {better}",
                "best = tl.where(better, x, best)",
                "chosen = tl.where(better, i * KW + j, chosen)",
            ),
        )

    def divided(self, a: str, b: str) -> str:
        """A quotient, rounded as IEEE says."""
        return f"tl.div_rn({a}, {b})" if self.computed == "tl.float32" else f"({a} / {b})"

    def store(self, value: str, at: str) -> str:
        """Write the program's outputs."""
        return f"tl.store(out0 + {at}, {value}.to({stored_as(self.dtype)}), mask={at} < count)"
