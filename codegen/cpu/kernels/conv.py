"""Convolutions on CPUs: how each op's arrays are prepared for the loops, and how the work is cut into units.

forward, gradient by the image    a contraction (`convolve`)
gradient by the filter            a contraction that sums over pixels; where filters are small, of some images each, whose sum is one more
gradient by few channels          products of pixels and all taps, whose parts are added up (`overlay` in `contraction_source`, col2im)

The gradient of a convolution by its image is a convolution of the result's gradient with the filter rotated by 180 degrees. With
strides, the image's pixels fall into as many phases as there are strides, and each phase is a convolution of its own, with the
taps that meet such a pixel (`phases_of`, a sub-pixel decomposition).

A kernel returns None for cases that it does not support (no elements, dilations together with strides). The reference computes these,
and also raises the errors for shapes that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import Array
from ....graph.core.graph import Node
from ....graph.ops.nn.conv_geometry import Window, channels_last, nhwc, window_of
from ...target import FEW_CHANNELS, FILTER_PART_ELEMENTS, FILTER_PART_PIXELS, NS_PER_FLOP, NS_PER_PART
from ..emit.instantiate import text_of
from ..jit import Function
from ..native.planner import Planner
from ..work_parts import parts_of
from .gemm import FUNCTIONS, add_parts, contract, equal_parts

Functions: TypeAlias = Mapping[str, Function]


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
    if inner > FEW_CHANNELS and window.strides != (1, 1) and window.dilations != (1, 1):
        return None
    x = planner.empty(shape, grad.dtype)
    own, y = planner.ordered(w), planner.ordered(y)
    if inner <= FEW_CHANNELS:
        arguments = (
            y.ravel(), own.ravel(), x.ravel(), shape[1:], y.shape[1:],
            (*window.taps, *window.strides, *_before(window, shape)), window.dilations,
        )  # fmt: skip
        time = y.size * w.size // w.shape[3] * (2 * NS_PER_FLOP + NS_PER_PART / w.shape[3])
        planner.share(functions["overlay"], arguments, n, parts_of(n, time, threads), threads)
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
    x, y = planner.ordered(image), planner.ordered(y)
    (n, height, width, _), (_, rows, columns, _) = x.shape, y.shape
    w = planner.empty((high, wide, inner, channels), x.dtype)
    count = _parts(n, n * rows * columns, w.size)
    parts = planner.empty((count, w.size), x.dtype) if count > 1 else w
    contract(
        planner, functions["contract"], threads, x.ravel(), y.ravel(), parts.ravel(), by_filter=True,
        image=(height, width, inner), result=(inner, high, wide, channels), sums=(n // count, rows, columns),
        window=(*window.dilations, *window.strides, *_before(window, x.shape)),
        x_jumps=(height * width * inner, width * inner, inner, 1),
        w_jumps=(0, rows * columns * channels, columns * channels, channels, 1),
        y_jumps=(0, channels, wide * inner * channels, inner * channels),
        counts=(1, 1, count), x_stack=(0, 0, x.size // count), w_stack=(0, 0, y.size // count),
    )  # fmt: skip
    if count > 1:
        add_parts(planner, functions["contract"], threads, parts, w)
    return w


def _parts(images: int, pixels: int, size: int) -> int:
    """In how many parts of equal size the sum over images is made, for a filter of that size. It depends on shapes alone."""
    return equal_parts(images, min(images, pixels // FILTER_PART_PIXELS, FILTER_PART_ELEMENTS // size))


def _positions(window: Window, shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the result for images `[n, height, width, channels]`; 0: there are none."""
    return window.positions(0, shape[1]) or 0, window.positions(1, shape[2]) or 0


def _before(window: Window, shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of padding before images `[n, height, width, channels]`."""
    return window.pads(0, shape[1])[0], window.pads(1, shape[2])[0]


def _as_layout(planner: Planner, x: Array, data_format: str) -> Array:
    """An image `[n, h, w, c]` in the order of `data_format`."""
    return planner.ordered(np.moveaxis(x, 3, 1)) if data_format == "NCHW" else x


OPS: dict[str, tuple[Callable[..., Array | None], tuple[str, ...]]] = {
    "Conv2D": (conv, ("contract",)),
    "Conv2DBackpropInput": (conv_input, ("contract", "overlay")),
    "Conv2DBackpropFilter": (conv_filter, ("contract",)),
}
"""For each op: what runs it, and its compiled functions."""


def conv_kernel(node: Node, threads: int) -> tuple[str, Callable[..., Array | None]]:
    """The source text for a node, and the `call` of its `NodeKernel`."""
    dtype = node.outputs[0].dtype.base
    run, names = OPS[node.type]
    if node.type == "Conv2DBackpropInput":
        dims = node.inputs[1].dims
        if dims is not None and dims[2] is not None:  # one of them does it, and each takes long to compile
            names = ("overlay" if dims[2] <= FEW_CHANNELS else "contract",)

    def call(compiled: Any, planner: Planner, *inputs: Array) -> Array | None:
        each = compiled if isinstance(compiled, tuple) else (compiled,)
        return run(planner, dict(zip(names, each, strict=True)), threads, node.attrs, *inputs)

    return text_of("kernels/contraction_source", {name: FUNCTIONS[name] for name in names}, dtype.name), call


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
        image=(height, width, inner), result=(n, rows, columns, channels), sums=(high, wide, inner),
        window=(*strides, *dilations, -begin[0], -begin[1]), x_jumps=(height * width * inner, width * inner, inner, 1),
        w_jumps=tuple(jump // w.itemsize for jump in (taps.ctypes.data - w.ctypes.data, *taps.strides)),
        y_jumps=(to[0] * y.shape[2] * channels + to[1] * channels, *y_jumps),
    )  # fmt: skip


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
