"""Convolution of images, and its gradients, as matrix products whose operands are never written out ("implicit GEMM").

    forward   result[position, filter]  = sum over (tap, channel)   image[position moved by tap, channel] w[tap, channel, filter]
    input     dx[pixel, channel]        = sum over (tap, filter)    dy[the position that sees pixel at tap, filter] w[tap, channel, filter]
    filter    dw[(tap, channel), filter] = sum over positions       image[position moved by tap, channel] dy[position, filter]

Forward goes tap by tap, and block by block of channels; with few channels it takes (tap, channel) as one long axis instead.

The input's gradient with strides: only every stride-th tap reads a pixel, depending on the pixel's position modulo the stride, its
*phase*. So pixels are grouped by phase, each phase is a separate product, and no work is wasted on zeros.
Along one axis, tap i sees pixel h when stride divides h + pad - i * dilation. With g = gcd(stride, dilation) these are none or the
taps i0, i0 + stride / g, ..., and i0 follows from the inverse of dilation / g modulo stride / g.

The filter's gradient sums over all positions of all images, for few results: programs share the sum and a second kernel adds
their parts in a fixed order.

Launch names. Forward: in0 image, in1 filter [height, width, channels, filters], in2... what the epilogue reads; out0... Gradient for
the input: in0 filter, in1 gradient of the result, in2...; out0... For the filter: in0 image, in1 gradient; out0. Sizes: `image_sizes`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType, bfloat16, float16, float32, float64
from ....graph.ops.nn.conv_geometry import Window
from ...ir.loop_nest import TileLoops, plain
from ...ir.schedule import GpuProductSchedule
from ..emit.expr import stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine
from ..schedule import convolution_schedules, filter_schedules
from .gemm import added
from .text import Constants, EpilogueWriter, TilePosition, address, dot, inside, lines, make_launch, parts_added

IMAGE = ("images", "height", "width", "channels")
WINDOW = ("rows", "columns", "top", "left")
_PIXELS, _POSITIONS = ("height", "width", "channels"), ("rows", "columns", "filters")


_FEW_CHANNELS = 16  # below that, a tap's channels do not fill a step


def convolution(
    dtype: DType,
    window: Window,
    makes: str = "result",
    *,
    data_format: str = "NHWC",
    epilogue: TileLoops | None = None,
    tf32: bool = False,
    known: Mapping[str, int] | None = None,
    at: Sequence[GpuProductSchedule] | None = None,
) -> list[Routine]:
    """Ways to convolve images of shape `data_format` with a filter, or to compute a gradient.

    Args:
        dtype: of image and filter: float32, float64, float16, bfloat16.
        window: taps, strides, dilations, padding.
        makes: `result`, or the gradient for the `image` or the `filter`.
        epilogue: from the result, float32 over the axes of `data_format`, to the outputs. None: rounded to `dtype`. Not for a filter.
        tf32: products of float32 may be made from 10 bits of each factor.
        known: sizes that never change; see `image_sizes` for their names. Multiples of 16 give vector loads.
        at: the schedules to use instead of the usual ones.

    Raises:
        ValueError: no kernel can do this.
    """
    work = epilogue or plain(dtype, 4, computed=added(dtype))
    known = known or {}
    writer = _Convolution(dtype, window, data_format == "NCHW", work, tf32, known)
    if makes == "filter":
        return [writer.filter(t) for t in at or filter_schedules(dtype, math.prod(window.taps), known)]
    write, across = (writer.input, "channels") if makes == "image" else (writer.forward, "filters")
    return [write(t) for t in at or convolution_schedules(dtype, known, across)]


@dataclass(frozen=True, slots=True)
class _Convolution:
    """Writes the kernels."""

    dtype: DType
    window: Window
    channels_first: bool  # NCHW, not NHWC
    epilogue: TileLoops
    tf32: bool
    known: Mapping[str, int]

    def __post_init__(self) -> None:
        if self.dtype not in (float32, float64, float16, bfloat16):
            raise ValueError(f"convolutions are computed in floats of 16 to 64 bits, not in {self.dtype.name}")

    # --- routines ----------------------------------------------------------------------------------------------------

    def filter(self, t: GpuProductSchedule) -> Routine:
        """One kernel that sums, and one that adds the sums."""
        taps = math.prod(self.window.taps)
        # "filter_size" is not a multiple of a tile's rows: rows are counted tap by tap, so that a tile has one tap's channels
        tiles = (Count(("channels",), t.m, times=taps), Count(("filters",), t.n))
        part = self.filter_kernel(t, Grid(tiles, (Count((), times=t.splits),)))
        if t.splits == 1:
            return Routine((part,))
        return parts_added(part, t.splits, plain(self.dtype, 1, added(self.dtype)), 1, ("filter_size",), self.known)

    # --- pieces ------------------------------------------------------------------------------------------------------

    def offset(self, sizes: tuple[str, str, str], n: str, h: str, w: str, c: str) -> str:
        """Offset of one pixel of an image with (height, width, channels); `n` is int64, and so is the result."""
        height, width, channels = sizes
        if self.channels_first:
            return f"(({n} * {channels} + {c}) * {height} + {h}) * {width} + {w}"
        return f"(({n} * {height} + {h}) * {width} + {w}) * {channels} + {c}"

    def ordered(self, n: str, h: str, w: str, c: str) -> tuple[str, str, str, str]:
        """Four things, one per axis, in the order of the axes in memory."""
        return (n, c, h, w) if self.channels_first else (n, h, w, c)

    def dot(self) -> str:
        return f"total = {dot('a', 'b', 'total', self.dtype, self.tf32)}"

    def kernel(
        self,
        name: str,
        t: GpuProductSchedule,
        grid: Grid,
        body: str,
        epilogue: EpilogueWriter | None = None,
        more: Sequence[str] = (),
    ) -> Launch:
        """A kernel that takes two arrays of our type, writes its epilogue's outputs (or out0), and takes sizes, `more` than all do."""
        arrays = [Parameter(f"in{i}", address(self.dtype), True) for i in range(2)]
        if epilogue is not None:
            arrays += [*epilogue.parameters, *epilogue.results()]
        else:
            to, kind = ("scratch0", added(self.dtype)) if t.splits > 1 else ("out0", self.dtype)
            arrays.append(Parameter(to, address(kind), True))
        sizes = (*IMAGE, *WINDOW, "filters", *more)
        parameters = (*arrays, *(Parameter(n, "i32", self.known.get(n, 1) % 16 == 0) for n in sizes))
        window = (*self.window.taps, *self.window.strides, *self.window.dilations)
        constants: Constants = (("BM", t.m), ("BN", t.n), ("BK", t.k))
        constants += tuple(zip(("KH", "KW", "SH", "SW", "DH", "DW"), window, strict=True))
        constants += (("SPLITS", t.splits),) if name.endswith("filter") else ()
        return make_launch(name, body, parameters, constants, grid, t)

    def place(self, sizes: tuple[str, str, str], h: str, w: str, mask: str) -> TilePosition:
        """Where a tile lies whose rows are pixels of an image with these (height, width, channels), of which the last are its columns."""
        index = ("image[:, None]", f"{h}[:, None]", f"{w}[:, None]", "across[None, :]")
        return TilePosition(
            self.ordered(*index),
            self.ordered("images", *sizes),
            self.ordered(mask, mask, mask, f"(across < {sizes[2]})[None, :]"),
            self.offset(sizes, *index),
        )

    # --- forward -----------------------------------------------------------------------------------------------------

    def forward(self, t: GpuProductSchedule) -> Routine:
        """One kernel: positions down, filters across."""
        few = self.known.get("channels", _FEW_CHANNELS) < _FEW_CHANNELS
        epilogue = EpilogueWriter(self.epilogue, 2)
        place = self.place(_POSITIONS, "row", "column", "(position < count)[:, None]")
        body = lines(
            "wide = tl.cdiv(filters, BN)",
            "count = images * rows * columns",
            "position = tl.program_id(0) // wide * BM + tl.arange(0, BM)",
            "across = tl.program_id(0) % wide * BN + tl.arange(0, BN)",
            "inner = tl.arange(0, BK)",
            "image = (position // (rows * columns)).to(tl.int64)",
            "row = position // columns % rows",
            "column = position % columns",
            "h = row * SH - top",
            "w = column * SW - left",
            f"x_at = in0 + {self.offset(_PIXELS, 'image', 'h', 'w', '0')}",
            f"total = tl.zeros([BM, BN], {stored_as(added(self.dtype))})",
            self.along_few_channels() if few else self.along_taps(),
            epilogue.store("total", place),
        )
        grid = Grid((Count(("images", "rows", "columns"), t.m), Count(("filters",), t.n)))
        return Routine((self.kernel("convolution", t, grid, body, epilogue),))

    def along_taps(self) -> str:
        pixel, channel = ("1", "height * width") if self.channels_first else ("channels", "1")
        return lines(
            "blocks = tl.cdiv(channels, BK)",
            inside(
                "for step in range(0, blocks * KH * KW):",
                "tap = step // blocks",
                "channel = step % blocks * BK + inner",
                "i = tap // KW * DH",
                "j = tap % KW * DW",
                "seen = (position < count) & (h + i >= 0) & (h + i < height) & (w + j >= 0) & (w + j < width)",
                f"a_at = x_at[:, None] + (i * width + j) * {pixel} + (channel * {channel})[None, :]",
                "a = tl.load(a_at, mask=seen[:, None] & (channel < channels)[None, :], other=0.0)",
                "b_at = in1 + (tap * channels + channel)[:, None] * filters + across[None, :]",
                "b = tl.load(b_at, mask=(channel < channels)[:, None] & (across < filters)[None, :], other=0.0)",
                self.dot(),
            ),
        )

    def along_few_channels(self) -> str:
        """The loop over (tap, channel) as one axis."""
        pixel, channel = ("1", "height * width") if self.channels_first else ("channels", "1")
        return lines(
            "deep = channels * KH * KW",
            inside(
                "for start in range(0, deep, BK):",
                "number = start + inner",
                "channel = number % channels",
                "i = number // channels // KW * DH",
                "j = number // channels % KW * DW",
                "below = h[:, None] + i[None, :]",
                "beside = w[:, None] + j[None, :]",
                "seen = (below >= 0) & (below < height) & (beside >= 0) & (beside < width)",
                "seen = seen & (position < count)[:, None] & (number < deep)[None, :]",
                f"a_at = x_at[:, None] + ((i * width + j) * {pixel} + channel * {channel})[None, :]",
                "a = tl.load(a_at, mask=seen, other=0.0)",
                "b_at = in1 + number[:, None] * filters + across[None, :]",
                "b = tl.load(b_at, mask=(number < deep)[:, None] & (across < filters)[None, :], other=0.0)",
                self.dot(),
            ),
        )

    # --- the input's gradient ----------------------------------------------------------------------------------------

    def input(self, t: GpuProductSchedule) -> Routine:
        """One kernel: pixels of one phase down, channels across. Each phase is a row of the grid."""
        pixel, channel = ("1", "rows * columns") if self.channels_first else ("filters", "1")
        epilogue = EpilogueWriter(self.epilogue, 2)
        place = self.place(_PIXELS, "h", "w", "pixels[:, None]")
        (every_h, apart_h), (every_w, apart_w) = map(self.every, range(2))
        body = lines(
            "wide = tl.cdiv(channels, BN)",
            "number = tl.program_id(0) // wide * BM + tl.arange(0, BM)",
            "across = tl.program_id(0) % wide * BN + tl.arange(0, BN)",
            "inner = tl.arange(0, BK)",
            "phase_h = tl.program_id(1) // SW",
            "phase_w = tl.program_id(1) % SW",
            "image = (number // (phase_rows * phase_columns)).to(tl.int64)",
            "h = number // phase_columns % phase_rows * SH + phase_h",
            "w = number % phase_columns * SW + phase_w",
            "pixels = (image < images) & (h < height) & (w < width)",
            self.taps_of_phase(0, "h", "top"),
            self.taps_of_phase(1, "w", "left"),
            "# where the first of these taps sees the pixel from; the next ones are BACK positions before",
            "row = (h + top - first_h * DH) // SH",
            "column = (w + left - first_w * DW) // SW",
            f"dy_at = in1 + {self.offset(_POSITIONS, 'image', 'row', 'column', '0')}",
            "blocks = tl.cdiv(filters, BK)",
            f"total = tl.zeros([BM, BN], {stored_as(added(self.dtype))})",
            inside(
                "for step in range(0, count_h * count_w * blocks):",
                "tap = step // blocks",
                "filter = step % blocks * BK + inner",
                f"back_h = tap // count_w * {apart_h}",
                f"back_w = tap % count_w * {apart_w}",
                f"i = first_h + tap // count_w * {every_h}",
                f"j = first_w + tap % count_w * {every_w}",
                "seen = pixels & (row >= back_h) & (row - back_h < rows) & (column >= back_w) & (column - back_w < columns)",
                f"a_at = dy_at[:, None] - (back_h * columns + back_w) * {pixel} + (filter * {channel})[None, :]",
                "a = tl.load(a_at, mask=seen[:, None] & (filter < filters)[None, :], other=0.0)",
                "b_at = in0 + ((i * KW + j) * channels + across[None, :]) * filters + filter[:, None]",
                "b = tl.load(b_at, mask=(filter < filters)[:, None] & (across < channels)[None, :], other=0.0)",
                self.dot(),
            ),
            epilogue.store("total", place),
        )
        pixels = Count(("images", "phase_rows", "phase_columns"), t.m)
        grid = Grid((pixels, Count(("channels",), t.n)), (Count((), times=math.prod(self.window.strides)),))
        more = ("phase_rows", "phase_columns")
        return Routine((self.kernel("convolution_input", t, grid, body, epilogue, more),))

    def every(self, axis: int) -> tuple[int, int]:
        """How many taps from one that sees a pixel to the next, and how many positions back from which that one sees it."""
        stride, dilation = self.window.strides[axis], self.window.dilations[axis]
        shared = math.gcd(stride, dilation)
        return stride // shared, dilation // shared

    def taps_of_phase(self, axis: int, name: str, pad: str) -> list[str]:
        """Lines for the first tap that sees a phase's pixels, and how many there are."""
        taps, stride, dilation = (v[axis] for v in (self.window.taps, self.window.strides, self.window.dilations))
        shared, every = math.gcd(stride, dilation), self.every(axis)[0]
        inverse = pow(dilation // shared, -1, every) if every > 1 else 0
        rest = f"(phase_{name} + {pad}) % {stride}"
        out = [
            f"first_{name} = {rest} // {shared} * {inverse} % {every}",
            f"count_{name} = tl.maximum({taps} - first_{name} + {every - 1}, 0) // {every}",
        ]
        if shared > 1:
            out.append(f"count_{name} = tl.where({rest} % {shared} == 0, count_{name}, 0)")
        return out

    # --- the filter's gradient ---------------------------------------------------------------------------------------

    def filter_kernel(self, t: GpuProductSchedule, grid: Grid) -> Launch:
        """Channels of one tap down, filters across, along the positions."""
        channel = "height * width" if self.channels_first else "1"
        start = "scratch0 + tl.program_id(1).to(tl.int64) * (channels * filters * KH * KW)" if t.splits > 1 else "out0"
        value = "total" if t.splits > 1 else f"total.to({stored_as(self.dtype)})"
        body = lines(
            "wide = tl.cdiv(filters, BN)",
            "high = tl.cdiv(channels, BM)",
            "number = tl.program_id(0)",
            "across = number % wide * BN + tl.arange(0, BN)",
            "channel = number // wide % high * BM + tl.arange(0, BM)",
            "tap = number // wide // high",
            "i = tap // KW * DH",
            "j = tap % KW * DW",
            "count = images * rows * columns",
            "share = tl.cdiv(tl.cdiv(count, BK), SPLITS) * BK",
            "begin = tl.program_id(1) * share",
            f"total = tl.zeros([BM, BN], {stored_as(added(self.dtype))})",
            inside(
                "for start in range(begin, tl.minimum(begin + share, count), BK):",
                "position = start + tl.arange(0, BK)",
                "image = (position // (rows * columns)).to(tl.int64)",
                "row = position // columns % rows",
                "column = position % columns",
                "h = row * SH - top + i",
                "w = column * SW - left + j",
                "seen = (position < count) & (h >= 0) & (h < height) & (w >= 0) & (w < width)",
                f"x_at = in0 + {self.offset(_PIXELS, 'image', 'h', 'w', '0')}",
                f"a_at = x_at[None, :] + (channel * {channel})[:, None]",
                "a = tl.load(a_at, mask=seen[None, :] & (channel < channels)[:, None], other=0.0)",
                f"b_at = in1 + {self.offset(_POSITIONS, 'image[:, None]', 'row[:, None]', 'column[:, None]', 'across[None, :]')}",
                "b = tl.load(b_at, mask=(position < count)[:, None] & (across < filters)[None, :], other=0.0)",
                self.dot(),
            ),
            f"at = {start} + (tap * channels + channel)[:, None] * filters + across[None, :]",
            f"tl.store(at, {value}, mask=(channel < channels)[:, None] & (across < filters)[None, :])",
        )
        return self.kernel("convolution_filter", t, grid, body)
