"""Convolutions, and their gradients by the image, compiled for CPUs: how they are cut into units of work (`image_convolution_loops`)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from .doers import Doer
from .image_layout import padded
from .kernel_cache import Function
from .matrix_kernels import NS_PER_FLOP, WORTH_HELP_NS

Array: TypeAlias = np.ndarray[Any, Any]

FUNCTIONS = {"convolve": ("rrwwc", (3, 4, 8, 5, 4, 4)), "overlay": ("rrw", (3, 3, 6, 2))}

_SEEN = 1 << 20  # bytes that a box should see of the image: they stay in the second cache
_MOST = 2048  # pixels of a box
_ENOUGH = 512  # pixels of a box that are worth laying the taps out for
_TWICE = 2  # from where on copying what each box sees takes longer than padding the image: taps far apart
_UNITS = 8  # per thread: who is done early takes another one


@dataclass(frozen=True, slots=True)
class Boxes:
    """How the work is cut.

    Attributes:
        box: (images, rows, columns of the result, panels of channels) of a unit. units: how many there are.
        panel: numbers of a panel. seen: those that the windows of a box see. copied: those that all boxes see.
    """

    box: tuple[int, int, int, int]
    units: int
    panel: int
    seen: int
    copied: int


@lru_cache(maxsize=1024)
def boxes_of(
    result: tuple[int, int, int, int],
    inner: int,
    strides: tuple[int, int],
    spans: tuple[int, int],
    itemsize: int,
    threads: int,
) -> Boxes:
    """Cut a convolution.

    Args:
        result: (images, rows, columns, channels) of what is computed. inner: channels of the image.
        strides, spans: of the windows, for rows and then for columns; a span is from the first tap to the last, both included.
        itemsize: bytes of an element. threads: how many share the work.
    """
    from .image_convolution_loops import STEPS
    from .matrix_tile import NR  # which only load with Numba

    images, rows, columns, channels = result
    lanes = NR["float32"] * 4 // itemsize
    panels, pixels = -(-channels // lanes), images * rows * columns
    wanted = _UNITS * threads if threads > 1 else 1
    each = (
        inner * itemsize * min(strides[0], spans[0]) * min(strides[1], spans[1])
    )  # bytes that a pixel more of the result sees
    most = max(64, min(_MOST, _SEEN // each))
    most = min(most, max(_ENOUGH, -(-pixels // wanted)))
    across = _part(columns, most)
    down = _part(rows, most // across) if across == columns else 1
    deep = _part(images, most // (across * down)) if down == rows else 1
    blocks = -(-columns // across) * -(-rows // down) * -(-images // deep)
    beside = -(-panels // min(panels, -(-wanted // blocks)))
    seen = deep * ((down - 1) * strides[0] + spans[0]) * ((across - 1) * strides[1] + spans[1]) * inner
    return Boxes((deep, down, across, beside), blocks * -(-panels // beside), STEPS * lanes, seen, blocks * seen)


def _part(length: int, most: int) -> int:
    """A length cut into equal parts of at most so many."""
    return -(-length // -(-length // max(1, most)))


def convolve(
    doer: Doer,
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
    result, spans = (n, rows, columns, channels), ((high - 1) * dilations[0] + 1, (wide - 1) * dilations[1] + 1)
    time = 2.0 * n * rows * columns * taps.size * NS_PER_FLOP * x.itemsize / 4
    threads = threads if time >= WORTH_HELP_NS else 1
    boxes = boxes_of(result, inner, strides, spans, x.itemsize, threads)
    threads = min(threads, boxes.units)
    window = ((rows - 1) * strides[0] + spans[0], (columns - 1) * strides[1] + spans[1])  # what all windows see
    is_inside = all(b >= 0 and b + w <= size for b, w, size in zip(begin, window, (height, width), strict=True))
    if not is_inside and max(begin) <= 0 and boxes.copied > _TWICE * n * window[0] * window[1] * inner:
        x = padded(doer, x, (-begin[0], -begin[1]), window)
        (height, width), begin, is_inside = window, (0, 0), True
    room = boxes.panel if is_inside else boxes.panel + -(-boxes.seen // boxes.panel) * boxes.panel
    numbers = (
        (height, width, inner), result, (high, wide, *strides, *dilations, -begin[0], -begin[1]),
        tuple(jump // w.itemsize for jump in (taps.ctypes.data - w.ctypes.data, *taps.strides)),
        (to[0] * y.shape[2] * channels + to[1] * channels, *y_jumps), boxes.box,
    )  # fmt: skip
    arrays = (x.ravel(), w.ravel(), y.ravel(), doer.empty((threads * room,), x.dtype))
    doer.share_units(function, arrays, numbers, boxes.units, threads)
