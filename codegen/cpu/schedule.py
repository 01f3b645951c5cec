"""Chooses the schedules of loop nests on CPUs: the form of the loops, from the nest, static sizes, and `target`.

Rows whose last axis is reduced are processed one by one, in passes. Costly values that a later pass needs are saved, the rest is
computed again. If the last axis is kept, reductions are vectors along it, and the loops go as memory lies.

Short rows: a vector along one would be shorter than the machine's vectors. Then it is better to vectorize across rows: a vector of
several rows' first elements, then one of their second elements, and so on. LLVM does so where the loop along a row, whose length is
known, is unrolled. Rows of 16 to 32 elements with a costly number of their own, such as the logarithm of a sum, become columns, some
rows at a time.

If everything is reduced, threads share pieces of it, whose length is fixed, so that a result does not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...graph.core.dtypes import bfloat16, float16
from .. import target
from ..ir.fused_kernel import FusedKernel
from ..ir.loop_nest import ADD, COSTLY, LoopNest, Value
from ..ir.schedule import CpuLoops, CpuSchedule


def scheduled(kernel: FusedKernel) -> FusedKernel:
    """A fused kernel with its schedule."""
    return replace(kernel, schedule=schedule_of(kernel.loops, kernel.joined_sizes()))


def schedule_of(loops: LoopNest, sizes: Sequence[int | None] = (), split: int = 0) -> CpuSchedule:
    """The schedule of a loop nest.

    Args:
        loops: what to compute.
        sizes: the static sizes of the axes; empty: all are unknown.
        split: which of the kept axes threads share, where they do not share the work otherwise.
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
    shared = kept[split] if kept else None
    if not reduced:
        return CpuSchedule(CpuLoops.POINTWISE, shared, along, unrolled, block=_block(loops, along))
    if row > unrolled:
        return CpuSchedule(CpuLoops.COLUMNS, shared, kept[-1], tile=target.ROWS_AT_A_TIME)
    if kept and kept[-1] > reduced[-1]:
        return CpuSchedule(CpuLoops.COLUMNS, shared, along, block=_block(loops, along))
    tile = target.REDUCED_PIECE if _has_pieces(loops) else 0
    block = 0 if unrolled else _block(loops, along)
    return CpuSchedule(CpuLoops.ROWS, 0 if tile else shared, along, unrolled, tile, block, _saved(loops))


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
        computed.update(filter(is_worth_it, loops.behind(each.roots, is_reduced)))
        later = [root for after in passes[i:] for root in after.roots]
        found |= computed.intersection(loops.behind(later, lambda i: i in computed or is_reduced(i)))
    return tuple(sorted(found))
