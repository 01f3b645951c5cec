"""The gradient of a convolution by its filter, compiled for CPUs: how it is cut into units of work (`image_filter_loops`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from ..graph.ops.nn.conv_geometry import Window
from .buffers import LARGE
from .doers import Doer
from .kernel_cache import Function
from .matrix_kernels import NS_PER_FLOP, WORTH_HELP_NS

Array: TypeAlias = np.ndarray[Any, Any]

FUNCTIONS = {"convolve_filter": ("rrwwwcc", (3, 3, 4, 8, 5, 3, 3))}

_PIXELS = 256  # of a box at most: a panel of so many stays in the first cache
_SEEN = 1 << 19  # bytes that a box should see of the image: they stay in the second cache
_FEWEST = 128  # pixels of a box that sees more: where taps lie far apart, laying out what it sees takes longer than leaving the cache
_KINDS, _PIECE = 1024, 1 << 19  # rows and bytes of a piece of the filter at most: it stays in the second cache, too
_COLUMNS = 512  # of a piece at most: so do a box's panels
_UNITS = 16  # so many there should be
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
    """For a result of this shape, from so many channels, of numbers of so many bytes."""
    from .matrix_tile import MR, NR  # which only load with Numba

    lanes = NR["float32"] * 4 // size
    taps = window.taps[0] * window.taps[1]
    deep, few = _even(inner, max(1, _KINDS // taps), MR)
    across, columns = _even(result[3], min(_COLUMNS, _PIECE // (taps * few * size)), lanes)
    most = _PIXELS
    while True:
        box, boxes = _box(result[:3], most)
        seen = tuple((box[1 + i] - 1) * window.strides[i] + window.span(i) for i in range(2))
        if most <= _FEWEST or box[0] * seen[0] * seen[1] * few * size <= _SEEN:
            break
        most //= 2
    pixels = math.prod(result[:3])
    room = _PARTS // (taps * inner * result[3] * size)
    chunks = max(1, min(-(-_UNITS // (deep * across)), math.prod(boxes), pixels // _CHUNK, room))
    return Cuts(box, (seen[0], seen[1]), boxes, chunks, few, columns)


def _even(length: int, most: int, step: int) -> tuple[int, int]:
    """How many ranges of at most so many (but at least a step), and how long each is: a whole number of steps if there are several."""
    count = -(-length // max(step, most // step * step))
    return count, length if count == 1 and length < step else -(-length // (count * step)) * step


def _box(result: tuple[int, ...], most: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(images, rows, columns) of up to so many pixels, which lie one behind the other; and how many boxes there are along each."""
    images, rows, columns = result
    across = -(-columns // most)
    broad = -(-columns // across)
    down = -(-rows // max(1, most // columns))
    tall = -(-rows // down)
    many = -(-images // max(1, most // (rows * columns)))
    deep = -(-images // many)
    return (deep, tall, broad), (-(-images // deep), -(-rows // tall), -(-columns // broad))


def filter_gradient(doer: Doer, function: Function, threads: int, window: Window, x: Array, y: Array) -> Array:
    """The gradient `[taps high, taps wide, channels of x, channels of y]`.

    Args:
        x: the image `[n, height, width, channels]`. y: the gradient of the result, likewise.
    """
    x, y = doer.ordered(x), doer.ordered(y)
    (high, wide), inner, channels = window.taps, x.shape[3], y.shape[3]
    cuts = cuts_of(y.shape, inner, window, x.itemsize)
    from .matrix_tile import NR

    lanes = NR[x.dtype.name]
    jumps = (x.shape[1] * x.shape[2] * inner, x.shape[2] * inner, inner)
    pads = (window.pads(0, x.shape[1])[0], window.pads(1, x.shape[2])[0])
    w = doer.empty((high, wide, inner, channels), x.dtype)
    pieces = -(-inner // cuts.inner) * -(-channels // cuts.columns)
    units = cuts.chunks * pieces
    time = 2.0 * w.size * math.prod(y.shape[:3]) * NS_PER_FLOP * x.itemsize / 4
    threads = min(threads, units) if time >= WORTH_HELP_NS else 1
    slab = -(-cuts.box[0] * cuts.seen[0] * cuts.seen[1] * cuts.inner // lanes) * lanes
    room = max(
        threads * (slab + -(-cuts.columns // lanes) * lanes * math.prod(cuts.box)), LARGE // x.itemsize
    )  # large memory begins with a line
    parts = doer.empty((cuts.chunks, w.size), x.dtype) if cuts.chunks > 1 else w
    done = doer.empty((pieces,), np.dtype(np.int64))
    doer.clear(done)
    numbers = (
        (x.shape[1], x.shape[2], inner), jumps, y.shape,
        (high, wide, *window.strides, *window.dilations, *pads),
        (*cuts.box, *cuts.seen), cuts.boxes, (cuts.chunks, cuts.inner, cuts.columns),
    )  # fmt: skip
    arrays = (x.ravel(), y.ravel(), w.ravel(), parts.ravel(), doer.empty((room,), x.dtype), done)
    doer.share_units(function, arrays, numbers, units, threads)
    return w
