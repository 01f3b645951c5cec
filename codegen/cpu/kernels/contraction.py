"""Contractions on CPUs, which products and convolutions are: how they are cut into units of work (`contraction_source` has the loops)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ....graph.core.dtypes import Array
from ...target import L2_BYTES
from ..jit import Function
from ..native.planner import Planner
from ..work_ranges import PARALLEL_NS

Jumps: TypeAlias = "tuple[int, ...]"

FUNCTIONS = {"contract": ("rrwwc", (3, 4, 8, 4, 5, 4, 4, 3, 3, 3)), "overlay": ("rrw", (3, 3, 6, 2))}
NS_PER_FLOP = 0.011  # one core, float32
_NS_PER_BYTE = 0.02  # one core, of a matrix that is read once, for a single row or column
_SEEN = L2_BYTES // 2  # bytes of the image that a box should read
_MOST = 2048  # pixels of a box
_ENOUGH = 512  # pixels of a box that are worth laying the taps out for
_WIDEST = 4  # panels of a unit
_UNITS = 8  # per thread: a thread that is done early takes another one


@dataclass(frozen=True, slots=True)
class Boxes:
    """How the work is cut.

    Attributes:
        box: (images, rows, columns of the result, panels of channels) of a unit. units: how many there are.
        panels: numbers of a unit's panels. seen: those that the windows of a box see.
    """

    box: tuple[int, int, int, int]
    units: int
    panels: int
    seen: int


@lru_cache(maxsize=1024)
def boxes_of(
    result: tuple[int, int, int, int],
    inner: int,
    strides: tuple[int, int],
    spans: tuple[int, int],
    itemsize: int,
    threads: int,
    matrices: int = 1,
) -> Boxes:
    """Cut a contraction.

    Args:
        result: (images, rows, columns, channels) of what is computed. inner: channels of the image.
        strides, spans: of the windows, for rows and then for columns; a span is from the first tap to the last, both included.
        itemsize: bytes of an element. threads: how many share the work. matrices: how many contractions there are.
    """
    from .contraction_source import STEPS  # loads numba
    from .microkernel import MR, NR  # which only load with Numba

    images, rows, columns, channels = result
    lanes = NR["float32"] * 4 // itemsize
    panels, pixels = -(-channels // lanes), images * rows * columns
    wanted = -(-(_UNITS if pixels > 1 else 1) * threads // matrices) if threads > 1 else 1
    # Bytes that a pixel more of the result sees.
    each = inner * itemsize * min(strides[0], spans[0]) * min(strides[1], spans[1])
    most = max(64, min(_MOST, _SEEN // each))
    most = min(most, max(_ENOUGH if channels > 1 else 64, -(-pixels // wanted)))
    across = columns if columns <= most else -(-part_of(columns, most // MR * MR) // MR) * MR  # whole tiles
    down = part_of(rows, most // across) if across == columns else 1
    deep = part_of(images, most // (across * down)) if down == rows else 1
    blocks = -(-columns // across) * -(-rows // down) * -(-images // deep)
    widest = panels if pixels == 1 else _WIDEST
    beside = -(-panels // min(panels, max(-(-wanted // blocks), -(-panels // widest))))
    seen = deep * ((down - 1) * strides[0] + spans[0]) * ((across - 1) * strides[1] + spans[1]) * inner
    units = matrices * blocks * -(-panels // beside)
    return Boxes((deep, down, across, beside), units, beside * lanes * STEPS, seen)


def part_of(length: int, most: int) -> int:
    """A length split into equal parts of at most `most`."""
    return -(-length // -(-length // max(1, most)))


def contract(
    planner: Planner,
    function: Function,
    threads: int,
    x: Array,
    w: Array,
    y: Array,
    image: tuple[int, int, int],
    result: tuple[int, int, int, int],
    window: tuple[int, ...],
    x_jumps: Jumps,
    w_jumps: Jumps,
    y_jumps: Jumps,
    counts: Jumps = (1, 1, 1),
    x_stack: Jumps = (0, 0, 0),
    w_stack: Jumps = (0, 0, 0),
) -> None:
    """Record a contraction of vectors: `contraction_source.contract` tells the arguments."""
    from .contraction_source import STEPS  # loads numba
    from .microkernel import MR

    high, wide, *strides, apart, beside, top, left = window
    images, rows, columns, channels = result
    spans, matrices = ((high - 1) * apart + 1, (wide - 1) * beside + 1), math.prod(counts)
    work = matrices * math.prod(result) * high * wide * image[2] * x.itemsize
    is_vector = 1 in (images * rows * columns, channels)
    threads = threads if work * (_NS_PER_BYTE if is_vector else NS_PER_FLOP / 2) >= PARALLEL_NS else 1
    boxes = boxes_of(result, image[2], (strides[0], strides[1]), spans, x.itemsize, threads, matrices)
    threads = min(threads, boxes.units)
    lasts = ((rows - 1) * strides[0] - top + spans[0], (columns - 1) * strides[1] - left + spans[1])
    is_inside = max(top, left) <= 0 and all(last <= size for last, size in zip(lasts, image[:2], strict=True))
    slab = 0 if is_inside else boxes.seen
    if x_jumps[3] != 1:
        slab = -(-math.prod(boxes.box[:3]) // MR) * MR * min(image[2], STEPS)
    room = planner.empty((threads * -(-(boxes.panels + slab) // 16) * 16,), x.dtype)  # whole lines
    numbers = (image, result, window, x_jumps, w_jumps, y_jumps, boxes.box, counts, x_stack, w_stack)
    planner.share_units(function, (x, w, y, room), numbers, boxes.units, threads)
