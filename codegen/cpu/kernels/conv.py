"""Convolutions on CPUs: how each op's arrays are prepared for the loops, and how the work is cut into units.

forward, gradient by the image    a contraction (`convolve`, `contraction`)
gradient by the filter            chunks of boxes by channels (`filter_gradient`, loops in `conv_filter_source`)
gradient by few channels          products of pixels and all taps, whose parts are added up (`overlay` in `contraction_source`, col2im)

The gradient of a convolution by its image is a convolution of the result's gradient with the filter rotated by 180 degrees. With
strides, the image's pixels fall into as many phases as there are strides, and each phase is a convolution of its own, with the
taps that meet such a pixel (`phases_of`, a sub-pixel decomposition).

A kernel returns None for cases that it does not support (no elements, dilations together with strides). The reference computes these,
and also raises the errors for shapes that do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import Window, channels_last, nhwc, window_of
from ....graph.resources.buffer_pool import LARGE
from ...target import L2_BYTES
from ..emit.instantiate import text_of
from ..jit import Function
from ..native.planner import Planner
from ..work_ranges import PARALLEL_NS, ranges_of
from .contraction import FUNCTIONS, NS_PER_FLOP, contract, part_of

Functions: TypeAlias = Mapping[str, Function]
"""The compiled functions, by name."""

_TYPES = (np.dtype(np.float32), np.dtype(np.float64))
_NS_PER_PART = 0.5  # of adding up the parts of pixels
_FEW = 8  # channels that fill half a tile


# --- ops ---------------------------------------------------------------------------------------------------------------


def conv(planner: Planner, functions: Functions, threads: int, attrs: Any, x: Array, w: Array) -> Array | None:
    """`Conv2D`."""
    image, window = channels_last(x, attrs["data_format"]), window_of(attrs, w.shape[:2])
    rows, columns = _positions(window, image.shape)
    if image.shape[3] != w.shape[2] or 0 in (x.size, w.size, rows, columns):
        return None
    y = planner.empty((image.shape[0], rows, columns, w.shape[3]), x.dtype)
    top, left = _before(window, image.shape)
    own = planner.ordered(w)
    convolve(
        planner, functions["contract"], threads, planner.ordered(image), own, y, (rows, columns),
        taps=own, strides=window.strides, dilations=window.dilations, begin=(-top, -left),
    )  # fmt: skip
    return _as_layout(planner, y, attrs["data_format"])


def conv_input(
    planner: Planner, functions: Functions, threads: int, attrs: Any, sizes: Array, w: Array, grad: Array
) -> Array | None:
    """`Conv2DBackpropInput`."""
    y, window = channels_last(grad, attrs["data_format"]), window_of(attrs, w.shape[:2])
    shape = tuple(int(d or 0) for d in nhwc(tuple(planner.known(sizes).tolist()), attrs["data_format"]))
    n, height, width, inner = shape
    fits = y.shape == (n, *_positions(window, shape), w.shape[3]) and inner == w.shape[2]
    if not fits or 0 in (y.size, height * width * inner):
        return None
    if inner > _FEW and window.strides != (1, 1) and window.dilations != (1, 1):
        return None
    x = planner.empty(shape, grad.dtype)
    own, y = planner.ordered(w), planner.ordered(y)
    if inner <= _FEW:
        arguments = (
            y.ravel(), own.ravel(), x.ravel(), shape[1:], y.shape[1:],
            (*window.taps, *window.strides, *_before(window, shape)), window.dilations,
        )  # fmt: skip
        time = y.size * w.size // w.shape[3] * (2 * NS_PER_FLOP + _NS_PER_PART / w.shape[3])
        planner.share(functions["overlay"], arguments, ranges_of(n, time, threads), threads)
        return _as_layout(planner, x, attrs["data_format"])
    if any(window.strides[i] > window.span(i) for i in range(2)):
        planner.clear(x)  # there are pixels that no tap meets
    turned = own.transpose(0, 1, 3, 2)
    for p in phases_of(window, (height, width)):
        convolve(
            planner, functions["contract"], threads, y, own, x, p.count,
            taps=turned[p.taps], dilations=window.dilations, begin=p.begin, to=p.to, apart=window.strides,
        )  # fmt: skip
    return _as_layout(planner, x, attrs["data_format"])


def conv_filter(
    planner: Planner, functions: Functions, threads: int, attrs: Any, x: Array, sizes: Array, grad: Array
) -> Array | None:
    """`Conv2DBackpropFilter`."""
    image, y = (channels_last(a, attrs["data_format"]) for a in (x, grad))
    high, wide, inner, channels = planner.known(sizes).tolist()
    if min(high, wide) < 1:
        return None
    window = window_of(attrs, (high, wide))
    fits = y.shape == (image.shape[0], *_positions(window, image.shape), channels) and inner == image.shape[3]
    if not fits or 0 in (x.size, y.size):
        return None
    return filter_gradient(planner, functions["convolve_filter"], threads, window, image, y)


def _positions(window: Window, shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the result for images `[n, height, width, channels]`; 0: there are none."""
    return window.positions(0, shape[1]) or 0, window.positions(1, shape[2]) or 0


def _before(window: Window, shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of padding before images `[n, height, width, channels]`."""
    return window.pads(0, shape[1])[0], window.pads(1, shape[2])[0]


def _as_layout(planner: Planner, x: Array, data_format: str) -> Array:
    """An image `[n, h, w, c]` in the order of `data_format`."""
    return planner.ordered(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else x


OPS: dict[str, tuple[Callable[..., Array | None], str, dict[str, Any]]] = {
    "Conv2D": (conv, "contraction_source", {"contract": FUNCTIONS["contract"]}),
    "Conv2DBackpropInput": (conv_input, "contraction_source", FUNCTIONS),
    "Conv2DBackpropFilter": (
        conv_filter,
        "conv_filter_source",
        {"convolve_filter": ("rrwwwcc", (3, 3, 4, 8, 5, 3, 3))},
    ),
}
"""For each op: what runs it, the file of its functions, and these with their signatures."""


def conv_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]] | None:
    """For a node that has a kernel here: its source text, and what is to be called with the compiled function and the inputs.

    That gives None where the reference must do the work.
    """
    dtype = node.outputs[0].dtype.base
    if node.type not in OPS or dtype.np not in _TYPES:
        return None
    run, file, functions = OPS[node.type]
    if node.type == "Conv2DBackpropInput":
        dims = node.inputs[1].dims
        if dims is not None and dims[2] is not None:  # one of them does it, and each takes long to compile
            only = "overlay" if dims[2] <= _FEW else "contract"
            functions = {only: functions[only]}

    def call(compiled: Any, planner: Planner, *inputs: Array) -> Array | None:
        each = compiled if isinstance(compiled, tuple) else (compiled,)
        return run(planner, dict(zip(functions, each, strict=True)), threads, node.attrs, *inputs)

    return text_of(f"kernels/{file}", functions, dtype.name), call


# --- contractions ------------------------------------------------------------------------------------------------------


def convolve(
    planner: Planner,
    function: Function,
    threads: int,
    x: Array,
    w: Array,
    y: Array,
    count: tuple[int, int],
    *,
    taps: Array,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    begin: tuple[int, int] = (0, 0),
    to: tuple[int, int] = (0, 0),
    apart: tuple[int, int] = (1, 1),
) -> None:
    """y at pixels `to`, `to + apart`, ... (`count` of them) = x, from pixel `begin` on, under the filter `taps`, a view of w.

    All pairs are for rows and columns. Windows may begin and end beyond the image, where zeros are. x, w and y are contiguous.
    """
    n, height, width, inner = x.shape
    high, wide, _, channels = taps.shape
    y_jumps = (y.shape[1] * y.shape[2] * channels, apart[0] * y.shape[2] * channels, apart[1] * channels)
    rows, columns = count
    if (high, wide, *strides, *apart, *begin, *count) == (1, 1, 1, 1, 1, 1, 0, 0, height, width):
        n, rows, columns, height, width = 1, 1, n * height * width, 1, n * height * width  # all pixels are one row
    contract(
        planner, function, threads, x.ravel(), w.ravel(), y.ravel(),
        image=(height, width, inner), result=(n, rows, columns, channels),
        window=(high, wide, *strides, *dilations, -begin[0], -begin[1]), x_jumps=(height * width * inner, width * inner, inner, 1),
        w_jumps=tuple(jump // w.itemsize for jump in (taps.ctypes.data - w.ctypes.data, *taps.strides)),
        y_jumps=(to[0] * y.shape[2] * channels + to[1] * channels, *y_jumps),
    )  # fmt: skip


# --- gradients by the filter -------------------------------------------------------------------------------------------

_PIXELS = 256  # most pixels of a box: a panel of that size stays in the L1 cache
_FILTERS_SEEN = L2_BYTES // 4  # bytes of the image that a box should read
_FEWEST = (
    128  # pixels of a box that reads more: with large dilations, packing its input takes longer than the cache misses
)
_KINDS, _PIECE = 1024, L2_BYTES // 4  # rows and bytes of a piece of the filter at most
_COLUMNS = 512  # of a piece at most: so do a box's panels
_FILTER_UNITS = 16  # target number of work units
_CHUNK = 2048  # pixels of a chunk at least: to write and add its part takes a few hundredths of the time of making it
_PARTS = 1 << 24  # bytes of the parts of all chunks at most


@dataclass(frozen=True, slots=True)
class Cuts:
    """How the work is cut, which depends on shapes alone.

    Attributes:
        box: (images, rows, columns) of the result at most. seen: (rows, columns) that it sees of an image. boxes: how many along each.
        chunks: of boxes. inner, columns: channels of the image, and of the result, that a unit takes.
    """

    box: tuple[int, int, int]
    seen: tuple[int, int]
    boxes: tuple[int, int, int]
    chunks: int
    inner: int
    columns: int


@lru_cache(maxsize=1024)
def cuts_of(result: tuple[int, ...], inner: int, window: Window, size: int) -> Cuts:
    """For a result of this shape, from `inner` channels, of elements of `size` bytes."""
    from .microkernel import MR, NR  # which only load with Numba

    lanes = NR["float32"] * 4 // size
    taps = window.taps[0] * window.taps[1]
    deep, few = _even(inner, max(1, _KINDS // taps), MR)
    across, columns = _even(result[3], min(_COLUMNS, _PIECE // (taps * few * size)), lanes)
    most = _PIXELS
    while True:
        box, boxes = _box(result[:3], most)
        seen = tuple((box[1 + i] - 1) * window.strides[i] + window.span(i) for i in range(2))
        if most <= _FEWEST or box[0] * seen[0] * seen[1] * few * size <= _FILTERS_SEEN:
            break
        most //= 2
    pixels = math.prod(result[:3])
    room = _PARTS // (taps * inner * result[3] * size)
    chunks = max(1, min(-(-_FILTER_UNITS // (deep * across)), math.prod(boxes), pixels // _CHUNK, room))
    return Cuts(box, (seen[0], seen[1]), boxes, chunks, few, columns)


def _even(length: int, most: int, step: int) -> tuple[int, int]:
    """(number of ranges, length of each): at most `most` but at least a step; a multiple of `step` if there are several."""
    count = -(-length // max(step, most // step * step))
    return count, length if count == 1 and length < step else -(-length // (count * step)) * step


def _box(result: tuple[int, ...], most: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(images, rows, columns) of a box of up to `most` consecutive pixels; and the number of boxes along each axis."""
    images, rows, columns = result
    deep, tall, broad = (
        part_of(images, most // (rows * columns)),
        part_of(rows, most // columns),
        part_of(columns, most),
    )
    return (deep, tall, broad), (-(-images // deep), -(-rows // tall), -(-columns // broad))


def filter_gradient(planner: Planner, function: Function, threads: int, window: Window, x: Array, y: Array) -> Array:
    """The gradient `[taps high, taps wide, channels of x, channels of y]`.

    Args:
        x: the image `[n, height, width, channels]`. y: the gradient of the result, likewise.
    """
    x, y = planner.ordered(x), planner.ordered(y)
    (high, wide), inner, channels = window.taps, x.shape[3], y.shape[3]
    cuts = cuts_of(y.shape, inner, window, x.itemsize)
    from .microkernel import NR  # loads numba

    lanes = NR[x.dtype.name]
    jumps = (x.shape[1] * x.shape[2] * inner, x.shape[2] * inner, inner)
    w = planner.empty((high, wide, inner, channels), x.dtype)
    pieces = -(-inner // cuts.inner) * -(-channels // cuts.columns)
    units = cuts.chunks * pieces
    time = 2.0 * w.size * math.prod(y.shape[:3]) * NS_PER_FLOP * x.itemsize / 4
    threads = min(threads, units) if time >= PARALLEL_NS else 1
    slab = -(-cuts.box[0] * cuts.seen[0] * cuts.seen[1] * cuts.inner // lanes) * lanes
    # Large memory begins with a line.
    room = max(threads * (slab + -(-cuts.columns // lanes) * lanes * math.prod(cuts.box)), LARGE // x.itemsize)
    parts = planner.empty((cuts.chunks, w.size), x.dtype) if cuts.chunks > 1 else w
    done = planner.empty((pieces,), np.dtype(np.int64))
    planner.clear(done)
    numbers = (
        (x.shape[1], x.shape[2], inner), jumps, y.shape,
        (high, wide, *window.strides, *window.dilations, *_before(window, x.shape)),
        (*cuts.box, *cuts.seen), cuts.boxes, (cuts.chunks, cuts.inner, cuts.columns),
    )  # fmt: skip
    arrays = (x.ravel(), y.ravel(), w.ravel(), parts.ravel(), planner.empty((room,), x.dtype), done)
    planner.share_units(function, arrays, numbers, units, threads)
    return w


# --- gradients by strided images ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Phase:
    """Pixels of an image that the same taps meet; each field is for rows and for columns.

    Attributes:
        to, count: the first pixel, and how many there are. taps: from last to first.
        begin: where in the result the first pixel's window begins, which may be before it.
    """

    to: tuple[int, int]
    count: tuple[int, int]
    taps: tuple[slice, slice]
    begin: tuple[int, int]


def phases_of(window: Window, size: tuple[int, int]) -> list[Phase]:
    """The phases of an image of this height and width; none has strides together with dilations."""
    rows, columns = (_along(window, axis, size[axis]) for axis in range(2))
    return [Phase(*zip(r, c, strict=True)) for r in rows for c in columns]  # type: ignore[arg-type]


def _along(window: Window, axis: int, length: int) -> list[tuple[int, int, slice, int]]:
    """The phases of one axis: the fields of each."""
    stride, dilation, taps = window.strides[axis], window.dilations[axis], window.taps[axis]
    padding = window.pads(axis, length)[0]
    out = []
    for phase in range(stride):  # pixels of the padded image that are `phase` beyond a multiple of the stride
        first = (phase - padding) % stride
        own = -(-(taps - phase) // stride)
        pixels = -(-(length - first) // stride)
        if own <= 0 or pixels <= 0:
            continue
        span = (own - 1) * dilation + 1
        begin = (first + padding - phase) // stride - (span - 1)
        last = phase + (own - 1) * stride
        stop = phase - stride
        out.append((first, pixels, slice(last, stop if stop >= 0 else None, -stride), begin))
    return out
