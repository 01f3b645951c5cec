"""Contractions on CPUs, which products and convolutions are: how they are cut into units of work (`contraction_source` has the loops)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ....graph.core.dtypes import Array
from ...target import L2_BYTES, NS_PER_FLOP, NS_PER_STREAMED_BYTE, PARALLEL_NS
from ..jit import Function
from ..native.planner import Planner

Jumps: TypeAlias = "tuple[int, ...]"

FUNCTIONS = {"contract": ("rrwwc", (3, 4, 3, 2, 6, 4, 5, 4, 4, 3, 3, 3)), "overlay": ("rrw", (3, 3, 6, 2))}
_SEEN = L2_BYTES // 2  # bytes of the image that a box should read
_HELD = L2_BYTES // 4  # the same of a gradient by the filter, at a time
_MOST = 2048  # pixels of a box
_CUTS = 8, 512, 4, 1
"""Units per thread, of which one that is done early takes another; pixels of a box that are worth laying the taps out for; panels of a
unit at most; channels of a group."""


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
    by_filter: bool = False,
) -> Boxes:
    """Cut a contraction.

    Args:
        result: (images, rows, columns, channels) of what is computed. inner: channels of the image.
        strides, spans: of the windows, for rows and then for columns; a span is from the first tap to the last, both included.
        itemsize: bytes of an element. threads: how many share the work. matrices: how many contractions there are.
        by_filter: images and channels have changed places.
    """
    from .contraction_source import STEPS  # loads numba
    from .microkernel import MR, NR  # which only load with Numba

    images, rows, columns, channels = result
    per_thread, enough, widest, group = (2, 1024, 8, MR) if by_filter else _CUTS
    lanes = NR["float32"] * 4 // itemsize
    panels, pixels = -(-channels // lanes), images * rows * columns
    wanted = -(-(per_thread if pixels > 1 else 1) * threads // matrices) if threads > 1 else 1
    # Bytes that a pixel more of the result sees.
    each = inner * itemsize * min(strides[0], spans[0]) * min(strides[1], spans[1])
    most = _MOST if by_filter else max(64, min(_MOST, _SEEN // each))
    most = min(most, max(enough if channels > 1 else 64, -(-pixels // wanted)))
    if images * rows == 1 and pixels > most * threads:  # as many boxes for each thread
        most = -(-pixels // (-(-pixels // (most * threads)) * threads * MR)) * MR
    across = columns if columns <= most else -(-part_of(columns, most // MR * MR) // MR) * MR  # whole tiles
    down = part_of(rows, most // across) if across == columns else 1
    deep = part_of(images, most // (across * down)) if down == rows else 1
    deep = min(images, -(-deep // group) * group)
    blocks = -(-columns // across) * -(-rows // down) * -(-images // deep)
    beside = -(-panels // min(panels, max(-(-wanted // blocks), 1 if pixels == 1 else -(-panels // widest))))
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
    sums: tuple[int, int, int],
    window: tuple[int, ...],
    x_jumps: Jumps,
    w_jumps: Jumps,
    y_jumps: Jumps,
    counts: Jumps = (1, 1, 1),
    x_stack: Jumps = (0, 0, 0),
    w_stack: Jumps = (0, 0, 0),
    by_filter: bool = False,
) -> None:
    """Record a contraction of vectors: `contraction_source.contract` tells the arguments. `by_filter`: it is a gradient by the filter."""
    from .contraction_source import STEPS  # loads numba
    from .microkernel import MR

    down, along, apart, beside, top, left = window
    images, rows, columns, channels = result
    high, wide = sums[1:] if by_filter else sums[:2]
    spans, matrices = ((high - 1) * apart + 1, (wide - 1) * beside + 1), math.prod(counts)
    work = matrices * math.prod(result) * math.prod(sums) * x.itemsize
    is_vector = 1 in (images * rows * columns, channels)
    threads = threads if work * (NS_PER_STREAMED_BYTE if is_vector else NS_PER_FLOP / 2) >= PARALLEL_NS else 1
    boxes = boxes_of(result, image[2], (down, along), spans, x.itemsize, threads, matrices, by_filter)
    threads = min(threads, boxes.units)
    lasts = ((rows - 1) * down - top + spans[0], (columns - 1) * along - left + spans[1])
    is_inside = max(top, left) <= 0 and all(last <= size for last, size in zip(lasts, image[:2], strict=True))
    slab, held = 0 if is_inside else boxes.seen, (0, 0)
    if x_jumps[3] != 1:
        slab = -(-math.prod(boxes.box[:3]) // MR) * MR * min(image[2], STEPS)
    if by_filter:
        slab, held = held_by(boxes.box, sums, window, x.itemsize)
    room = planner.empty((threads * -(-(boxes.panels + slab) // 16) * 16,), x.dtype)  # whole lines
    numbers = (image, result, sums, held, window, x_jumps, w_jumps, y_jumps, boxes.box, counts, x_stack, w_stack)
    planner.share_units(function, (x, w, y, room), numbers, boxes.units, threads)


def held_by(
    box: tuple[int, int, int, int], sums: tuple[int, int, int], window: tuple[int, ...], itemsize: int
) -> tuple[int, tuple[int, int]]:
    """Of a gradient by the filter: the numbers that a box sees at a time, and of how many images and rows of the result these are."""
    from .microkernel import MR  # which only loads with Numba

    images, rows, columns = sums
    down, along, apart, beside, *_ = window
    group = min(MR, box[0])
    line = -(-box[0] // group) * group * ((box[2] - 1) * along + (columns - 1) * beside + 1)
    lines = _HELD // (line * itemsize)
    held = part_of(rows, (lines - (box[1] - 1) * down) // apart)
    tall = (box[1] - 1) * down + (held - 1) * apart + 1
    deep = part_of(images, lines // tall) if held == rows else 1
    return deep * tall * line, (deep, held)
