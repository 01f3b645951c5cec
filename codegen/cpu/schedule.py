"""Chooses the schedules of CPUs, from sizes and `target`: the form of the loops of a nest, and the tiles of products and convolutions.

Rows whose last axis is reduced are processed one by one, in passes. Costly values that a later pass needs are saved, the rest is
computed again. If the last axis is kept, reductions are vectors along it, and the loops go as memory lies.

Short rows: a vector along one would be shorter than the machine's vectors. Then it is better to vectorize across rows: a vector of
several rows' first elements, then one of their second elements, and so on. LLVM does so where the loop along a row, whose length is
known, is unrolled. Rows of 16 to 32 elements with a costly number of their own, such as the logarithm of a sum, become columns, some
rows at a time.

If everything is reduced, threads share pieces of it, whose length is fixed, so that a result does not depend on the number of threads.

A product or a convolution is computed by boxes of its result (`contraction_source` has their loops): what the windows of a box see stays
in the second cache, and the packed taps in the first. There are several times as many boxes as threads, but not so many that
packing the taps for each takes long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...graph.core.dtypes import bfloat16, float16
from .. import target
from ..ir.fused_kernel import FusedKernel
from ..ir.loop_nest import ADD, COSTLY, LoopNest, Value
from ..ir.schedule import CpuLoops, CpuProductSchedule, CpuSchedule
from ..options import threads_for


def scheduled(kernel: FusedKernel) -> FusedKernel:
    """A fused kernel with its schedule."""
    return replace(kernel, schedule=schedule_of(kernel.loops, kernel.joined_sizes()))


def schedule_of(loops: LoopNest, sizes: Sequence[int | None] = ()) -> CpuSchedule:
    """The schedule of a loop nest.

    Args:
        loops: what to compute.
        sizes: the static sizes of the axes; empty: all are unknown.
    """
    kept, reduced = loops.kept_axes, loops.reduced_axes
    along = len(loops.reduced) - 1 if loops.reduced else None
    table = [s for s in loops.stores if s.how == ADD]
    if table:
        assert table[0].row is not None and not reduced
        placed = loops.values[table[0].row].axes
        along = max((a for a in kept if a not in placed), default=along)
        return CpuSchedule(CpuLoops.TABLE, None, along, block=_block(loops, along))
    row = short_row(loops, sizes) if sizes else 0
    unrolled = row if row <= target.LONGEST_UNROLLED and len(reduced) < 2 else 0
    shared = _shared(kept, sizes) if kept else None
    if not reduced:
        few = (sizes[-1] or 0) if sizes and len(kept) > 1 else 0
        tile = few if target.LONGEST_UNROLLED < few <= 2 * target.SHORT_ROW else 0
        return CpuSchedule(CpuLoops.POINTWISE, shared, along, unrolled, tile, block=_block(loops, along))
    if row > unrolled:
        return CpuSchedule(CpuLoops.COLUMNS, shared, kept[-1], tile=target.ROWS_AT_A_TIME)
    if kept and kept[-1] > reduced[-1]:
        return CpuSchedule(CpuLoops.COLUMNS, shared, along, block=_block(loops, along))
    tile = target.REDUCED_PIECE if _has_pieces(loops) else 0
    block = 0 if unrolled else _block(loops, along)
    return CpuSchedule(CpuLoops.ROWS, 0 if tile else shared, along, unrolled, tile, block, _saved(loops))


def _shared(kept: Sequence[int], sizes: Sequence[int | None]) -> int:
    """The axis that threads share: the first one, or, if that is too short for them, a long last one."""
    few, many = (sizes[kept[0]], sizes[kept[-1]]) if sizes else (None, None)
    return kept[-1] if few is not None and few < target.FEW_SHARED and (many or 0) >= target.MANY_SHARED else kept[0]


def short_row(loops: LoopNest, sizes: Sequence[int | None]) -> int:
    """How many elements the rows have that the innermost loops go along, where these are known to be few and rows to be many; else 0.

    `sizes`: the static sizes of the axes.
    """
    kept, reduced, values = loops.kept_axes, loops.reduced_axes, loops.values
    axes, before = (reduced, kept) if reduced else (kept[-1:], kept[:-1])
    if not before or reduced and kept[-1] > reduced[-1]:
        return 0
    if any(v.op in ("random", "scan") for v in values) or any(s.row is not None for s in loops.stores):
        return 0  # these are computed along rows
    row, several = math.prod(sizes[a] or target.SHORT_ROW + 1 for a in axes), sizes[before[-1]]
    if row > target.SHORT_ROW or several is not None and several < target.SHORT_ROW:
        return 0
    is_costly = any(v.op in COSTLY and axes[-1] in v.axes for v in values)
    longest = target.LONGEST_UNROLLED if reduced or is_costly else target.CHEAP_UNROLLED
    if row <= longest and len(axes) == 1 and row * len(values) <= target.MOST_UNROLLED:
        return row
    # A row's own costly number, such as the logarithm of its sum, takes as long as a vector of them.
    has_own = any(v.op in COSTLY and not loops.is_full(i) for i, v in enumerate(values))
    return row if reduced and is_costly and (has_own or row <= target.LONGEST_UNROLLED) else 0


def _has_pieces(loops: LoopNest) -> bool:
    """Whether all there is is reduced, once, along one axis, so that threads can reduce pieces of it."""
    stages = loops.stages()
    if len(loops.reduced) != 1 or max(stages) != 1 or any(v.op == "scan" for v in loops.values):
        return False
    return all(stages[s.value] == 0 for s in loops.stores if s.axes)


def _block(loops: LoopNest, along: int | None) -> int:
    """The length of blocks, in which random numbers are computed, and along reduced axes floating-point sums and running sums."""
    is_reduced = along is not None and loops.reduced[along]

    def is_in_blocks(v: Value) -> bool:
        is_sum = v.op == "reduce" and v.data in ("sum", "prod") and v.dtype.is_floating
        return v.op == "random" and along in v.axes or is_reduced and (v.op == "scan" or is_sum)

    return target.SUM_BLOCK if any(map(is_in_blocks, loops.values)) else 0


def _saved(loops: LoopNest) -> tuple[int, ...]:
    """Full values that are costly, random, or gathered from here and there, and that a pass computes and a later one needs."""
    values, passes = loops.values, loops.passes()

    def is_reduced(i: int) -> bool:
        return values[i].op == "reduce"

    def is_worth_it(i: int) -> bool:
        v = values[i]
        scattered = v.op == "gather" and loops.is_full(v.args[0]) and v.dtype not in (float16, bfloat16)
        return loops.is_full(i) and (v.op in COSTLY or v.op in ("random", "scan") or scattered)

    computed: set[int] = set()
    found: set[int] = set()
    for i, each in enumerate(passes, 1):
        computed.update(filter(is_worth_it, loops.backward_slice(each.roots, is_reduced)))
        later = [root for after in passes[i:] for root in after.roots]
        found |= computed.intersection(loops.backward_slice(later, lambda i: i in computed or is_reduced(i)))
    return tuple(sorted(found))


# --- products and convolutions -----------------------------------------------------------------------------------------

_SEEN_BYTES = target.L2_BYTES // 2  # of the image that a box should read
_HELD_BYTES = target.L2_BYTES // 4  # the same of a gradient by the filter, at a time
_MOST_PIXELS = 2048  # of a box


@lru_cache(maxsize=1024)
def product_schedule(
    image: tuple[int, int, int],
    result: tuple[int, int, int, int],
    sums: tuple[int, int, int],
    window: tuple[int, ...],
    itemsize: int,
    threads: int,
    matrices: int = 1,
    *,
    is_packed: bool = False,
    by_filter: bool = False,
) -> CpuProductSchedule:
    """The schedule of a contraction, or of several of the same shape (`matrices`).

    Args:
        image, result, sums, window: as in `contraction_source.contract`.
        itemsize: bytes of an element.
        threads: how many may share the work.
        is_packed, by_filter: the first factor is not contiguous along the sum; it is a gradient by the filter.
    """
    down, along, apart, beside, top, left = window
    images, rows, columns, channels = result
    high, wide = sums[1:] if by_filter else sums[:2]
    spans = (high - 1) * apart + 1, (wide - 1) * beside + 1
    work = matrices * math.prod(result) * math.prod(sums) * itemsize
    is_vector = 1 in (images * rows * columns, channels)
    ns = work * (target.NS_PER_STREAMED_BYTE if is_vector else target.NS_PER_FLOP / 2)
    threads = threads_for(ns, threads)
    box, units = boxes_of(
        result, image[2], (down, along), spans, itemsize, threads, matrices, by_filter, is_packed=is_packed,
        is_one_panel=math.prod(sums) <= target.PANEL_STEPS and sums[0] * sums[1] > 1,
    )  # fmt: skip
    lasts = ((rows - 1) * down - top + spans[0], (columns - 1) * along - left + spans[1])
    is_inside = max(top, left) <= 0 and all(last <= size for last, size in zip(lasts, image[:2], strict=True))
    tall, lanes = target.register_tile(itemsize)
    copied, held = 0, (0, 0)
    if by_filter:
        copied, held = held_by(box, sums, window, itemsize)
    elif is_packed:
        copied = _up(math.prod(box[:3]), tall) * min(image[2], target.PANEL_STEPS)
    elif not is_inside:
        copied = box[0] * ((box[1] - 1) * down + spans[0]) * ((box[2] - 1) * along + spans[1]) * image[2]
    return CpuProductSchedule(
        tile=(tall, lanes, target.PANEL_STEPS),
        box=box,
        units=units,
        threads=min(threads, units),
        scratch=_up(box[3] * lanes * target.PANEL_STEPS + copied, 16),  # whole cache lines
        held=held,
        is_packed=is_packed,
        copies_windows=not (by_filter or is_packed or is_inside),
    )


def boxes_of(
    result: tuple[int, int, int, int],
    inner: int,
    strides: tuple[int, int],
    spans: tuple[int, int],
    itemsize: int,
    threads: int,
    matrices: int = 1,
    by_filter: bool = False,
    is_one_panel: bool = False,
    is_packed: bool = False,
) -> tuple[tuple[int, int, int, int], int]:
    """The box of a `CpuProductSchedule`, and the number of units of work. Arguments are as for `product_schedule`.

    `inner`: channels of the image. `strides`, `spans`: of the windows, for rows and then for columns; a span includes both end taps.
    `is_one_panel`: a panel has all taps of its channels. If so, a thread packs them once, and units are small: threads end together.
    """
    images, rows, columns, channels = result
    tall, lanes = target.register_tile(itemsize)
    # Units per thread, of which one that is done early takes another; pixels that are worth packing the taps for; most panels of a unit;
    # images that are a group.
    per_thread, enough, widest, group = (2, 1024, 8, tall) if by_filter else (8, 512, 4, 1)
    panels, pixels = -(-channels // lanes), images * rows * columns
    groups = 1
    if spans == (1, 1) and inner > target.PANEL_STEPS and not by_filter:
        # A long sum, of which the caches hold a piece at a time. Every unit reads all pieces again, or packs them again (`is_packed`).
        per_thread, enough = (2, 64) if is_packed else (4, 256)
        widest, inner = 8, target.PANEL_STEPS
        groups = -(-panels // widest)
    elif is_one_panel and not by_filter and channels <= widest * lanes:
        per_thread, enough = 32, 128
    wanted = -(-(per_thread if pixels > 1 else 1) * threads // matrices) if threads > 1 else 1
    # Bytes that a pixel more of the result sees.
    each = inner * itemsize * min(strides[0], spans[0]) * min(strides[1], spans[1])
    most = _MOST_PIXELS if by_filter else max(64, min(_MOST_PIXELS, _SEEN_BYTES // each))
    most = min(most, max(enough if channels > 1 else 64, -(-pixels // -(-wanted // groups))))
    if images * rows == 1 and pixels > most * threads:  # as many boxes for each thread
        most = _up(-(-pixels // (-(-pixels // (most * threads)) * threads)), tall)
    across = columns if columns <= most else _up(_part(columns, most // tall * tall), tall)  # whole tiles
    down = _part(rows, most // across) if across == columns else 1
    deep = _part(images, most // (across * down)) if down == rows else 1
    deep = min(images, _up(deep, group))
    blocks = -(-columns // across) * -(-rows // down) * -(-images // deep)
    beside = -(-panels // min(panels, max(-(-wanted // blocks), 1 if pixels == 1 else -(-panels // widest))))
    return (deep, down, across, beside), matrices * blocks * -(-panels // beside)


def held_by(
    box: tuple[int, int, int, int], sums: tuple[int, int, int], window: tuple[int, ...], itemsize: int
) -> tuple[int, tuple[int, int]]:
    """Of a gradient by the filter, how many numbers a box sees at a time, and of how many images and rows of the result."""
    images, rows, columns = sums
    down, along, apart, beside, *_ = window
    group = min(target.register_tile(itemsize)[0], box[0])
    line = _up(box[0], group) * ((box[2] - 1) * along + (columns - 1) * beside + 1)
    lines = _HELD_BYTES // (line * itemsize)
    held = _part(rows, (lines - (box[1] - 1) * down) // apart)
    tall = (box[1] - 1) * down + (held - 1) * apart + 1
    deep = _part(images, lines // tall) if held == rows else 1
    return deep * tall * line, (deep, held)


def _part(length: int, most: int) -> int:
    """The longest of equal parts of a length, each at most `most`."""
    return -(-length // -(-length // max(1, most)))


def _up(length: int, step: int) -> int:
    """The next multiple of a step."""
    return -(-length // step) * step
