"""Depthwise convolution, where each channel has filters of its own, and its gradients.

There is no matrix product in it: a result is made from a few taps of one channel, and memory is what takes time. So forward and
the input's gradient go along their outputs as they lie in memory, and the filter's gradient sums over positions, block by block
of channels, shared by several programs whose parts are added in a fixed order.

Result channel c * multiplier + m is channel c under its filter m. Launch names as in `conv.py`; the filter is [height, width,
channels, multiplier]. Sizes: `image_sizes(..., filters=channels * multiplier, depthwise=True)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ....graph.core.dtypes import DType, bfloat16, float16, float32
from ....graph.ops.nn.conv_geometry import Window
from ...ir.tile_loops import TileLoops, plain
from ...target import H100_MULTIPROCESSORS
from ..emit.expr import stored_as
from ..ir import Count, Grid, Launch, Parameter, Routine, Scratch, triton_type
from .conv import add_parts
from .epilogue import EpilogueWriter, TilePosition
from .text import inside, lines, make_kernel
from .windows import IMAGE, WINDOW, Layout, for_taps, size_parameters, window_constants

_BLOCK = 512  # numbers that a program of the forward kernels makes
_CHANNELS, _POSITIONS = 64, 32  # the block of the filter's gradient
_PROGRAMS = 4 * H100_MULTIPROCESSORS
_IMAGE_SIZES, _RESULT_SIZES = ("height", "width", "channels"), ("rows", "columns", "filters")


def depthwise(
    dtype: DType,
    window: Window,
    multiplier: int,
    *,
    data_format: str = "NHWC",
    epilogue: TileLoops | None = None,
    known: Mapping[str, int] | None = None,
) -> list[Routine]:
    """Ways to compute a depthwise convolution.

    Args:
        dtype: of image and filter: float32, float16, bfloat16.
        window: taps, strides, dilations, padding.
        multiplier: filters of each channel.
        epilogue: from the result, float32 over the axes of `data_format`, to the outputs. None: rounded to `dtype`.
        known: sizes that never change.

    Raises:
        ValueError: no kernel can do this.
    """
    _check(dtype)
    layout, writer = Layout(data_format), EpilogueWriter(epilogue or plain(dtype, 4), 2)
    axes = ("image", "row", "column", "filter")
    place = TilePosition(
        layout.ordered(*axes), layout.ordered("images", *_RESULT_SIZES), ("at < count",) * 4, "at"
    )  # fmt: skip
    body = lines(
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "count = images * rows * columns * filters",
        layout.decode("at", _RESULT_SIZES, axes),
        "channel = filter // MULTIPLIER",
        "total = tl.zeros([BLOCK], tl.float32)",
        for_taps(
            window,
            "h = row * SH - top + i * DH",
            "w = column * SW - left + j * DW",
            "seen = (at < count) & (h >= 0) & (h < height) & (w >= 0) & (w < width)",
            f"x = tl.load(in0 + {layout.offset(_IMAGE_SIZES, 'image', 'h', 'w', 'channel')}, mask=seen, other=0.0)",
            "f = tl.load(in1 + (i * KW + j) * filters + filter, mask=at < count, other=0.0)",
            "total += x.to(tl.float32) * f.to(tl.float32)",
        ),
        writer.store("total", place),
    )
    parameters = (*_arrays(dtype, "in0", "in1"), *writer.parameters, *writer.outputs(),
                  *size_parameters((*IMAGE, *WINDOW, "filters"), known or {}))  # fmt: skip
    constants = (("BLOCK", _BLOCK), ("MULTIPLIER", multiplier), *window_constants(window))
    kernel = make_kernel("depthwise", parameters, constants, body, functions=writer.helpers)
    return [Routine((Launch(kernel, Grid((Count(("images", "rows", "columns", "filters"), _BLOCK),))),))]


def depthwise_input_gradient(
    dtype: DType, window: Window, multiplier: int, *, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """Ways to compute the gradient for the image: in0 filter, in1 gradient of the result; out0. Arguments as for `depthwise`."""
    _check(dtype)
    layout = Layout(data_format)
    body = lines(
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "count = images * height * width * channels",
        layout.decode("at", _IMAGE_SIZES, ("image", "h", "w", "channel")),
        "total = tl.zeros([BLOCK], tl.float32)",
        for_taps(
            window,
            "from_h = h + top - i * DH",
            "from_w = w + left - j * DW",
            "row = from_h // SH",
            "column = from_w // SW",
            "seen = (at < count) & (from_h >= 0) & (from_w >= 0) & (row < rows) & (column < columns)",
            "seen = seen & (from_h % SH == 0) & (from_w % SW == 0)",
            inside(
                "for m in tl.static_range(MULTIPLIER):",
                "filter = channel * MULTIPLIER + m",
                f"dy = tl.load(in1 + {layout.offset(_RESULT_SIZES, 'image', 'row', 'column', 'filter')}, mask=seen, other=0.0)",
                "f = tl.load(in0 + (i * KW + j) * filters + filter, mask=seen, other=0.0)",
                "total += dy.to(tl.float32) * f.to(tl.float32)",
            ),
        ),
        f"tl.store(out0 + at, total.to({stored_as(dtype)}), mask=at < count)",
    )
    parameters = (*_arrays(dtype, "in0", "in1", "out0"), *size_parameters((*IMAGE, *WINDOW, "filters"), known or {}))
    constants = (("BLOCK", _BLOCK), ("MULTIPLIER", multiplier), *window_constants(window))
    kernel = make_kernel("depthwise_input", parameters, constants, body)
    return [Routine((Launch(kernel, Grid((Count(("images", "height", "width", "channels"), _BLOCK),))),))]


def depthwise_filter_gradient(
    dtype: DType, window: Window, multiplier: int, *, data_format: str = "NHWC", known: Mapping[str, int] | None = None
) -> list[Routine]:
    """Ways to compute the gradient for the filter: in0 image, in1 gradient of the result; out0. Arguments as for `depthwise`."""
    _check(dtype)
    layout, known = Layout(data_format), known or {}
    taps = math.prod(window.taps)
    programs = taps * -(-known.get("filters", 64) // _CHANNELS)
    positions = math.prod(known.get(n, 32) for n in ("images", "rows", "columns"))
    splits = 1 << max(0, min(_PROGRAMS // programs, positions // (8 * _POSITIONS), 64).bit_length() - 1)
    pixel = layout.offset(_IMAGE_SIZES, "image[:, None]", "h[:, None]", "w[:, None]", "(filter // MULTIPLIER)[None, :]")
    position = layout.offset(_RESULT_SIZES, "image[:, None]", "row[:, None]", "column[:, None]", "filter[None, :]")
    body = lines(
        "blocks = tl.cdiv(filters, BC)",
        "tap = tl.program_id(0) // blocks",
        "filter = tl.program_id(0) % blocks * BC + tl.arange(0, BC)",
        "count = images * rows * columns",
        "share = tl.cdiv(tl.cdiv(count, BP), SPLITS) * BP",
        "begin = tl.program_id(1) * share",
        "total = tl.zeros([BP, BC], tl.float32)",
        inside(
            "for start in range(begin, tl.minimum(begin + share, count), BP):",
            "at = start + tl.arange(0, BP)",
            "image = (at // (rows * columns)).to(tl.int64)",
            "row = at // columns % rows",
            "column = at % columns",
            "h = row * SH - top + tap // KW * DH",
            "w = column * SW - left + tap % KW * DW",
            "seen = (at < count) & (h >= 0) & (h < height) & (w >= 0) & (w < width)",
            "seen = seen[:, None] & (filter < filters)[None, :]",
            f"x = tl.load(in0 + {pixel}, mask=seen, other=0.0)",
            f"dy = tl.load(in1 + {position}, mask=seen, other=0.0)",
            "total += x.to(tl.float32) * dy.to(tl.float32)",
        ),
        "sums = tl.sum(total, 0)",
        "tl.store(scratch0 + (tl.program_id(1) * KH * KW + tap) * filters + filter, sums, mask=filter < filters)",
    )
    parameters = (*_arrays(dtype, "in0", "in1"), Parameter("scratch0", "*fp32", True),
                  *size_parameters((*IMAGE, *WINDOW, "filters"), known))  # fmt: skip
    constants = (("BP", _POSITIONS), ("BC", _CHANNELS), ("SPLITS", splits), ("MULTIPLIER", multiplier),
                 *window_constants(window))  # fmt: skip
    part = make_kernel("depthwise_filter", parameters, constants, body)
    grid = Grid((Count(("filters",), _CHANNELS, times=taps),), (Count((), times=splits),))
    total = Launch(add_parts(splits, dtype, "filter_size", known), Grid((Count(("filter_size",), 1024),)))
    sums = Scratch("scratch0", "fp32", (Count((), times=splits), Count(("filter_size",))))
    return [Routine((Launch(part, grid), total), (sums,))]


def _check(dtype: DType) -> None:
    if dtype not in (float32, float16, bfloat16):
        raise ValueError(f"convolutions are computed in float32, float16 or bfloat16, not in {dtype.name}")


def _arrays(dtype: DType, *names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, "*" + triton_type(dtype.name), True) for name in names)
