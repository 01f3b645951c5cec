"""How the work of a kernel is divided into ranges for threads. `native.worker_pool` has the threads.

Work is split into more ranges than there are threads, and each thread takes the next one when it is free. An analytical cost model
estimates the time of a loop nest on one core, which decides how many threads share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from ..ir.loop_nest import COSTLY, READS, LoopNest
from ..target import (
    CACHE_LINE_BYTES,
    NS_PER_BYTE,
    NS_PER_COSTLY,
    NS_PER_OPERATION,
    NS_PER_RANDOM,
    NS_PER_SCAN_STEP,
    PARALLEL_NS,
)

LINE = CACHE_LINE_BYTES // 8  # counters of units in a line of the cache; each has one
FINISHED = 0  # index of the counter of finished units; then one per thread, of the units that are taken from its part
_PER_THREAD = 4  # ranges: more of them balance the load better, but each costs a call
_WIDE = 8  # elements of a row from which on skipping a row is cheap compared with adding it

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"


def ranges_of(length: int, nanoseconds: float, threads: int, least: int = 1) -> Ranges:
    """Ranges that make up `0..length`.

    Args:
        length: the number of items. nanoseconds: the time that one thread needs for all of them.
        threads: how many share the ranges.
        least: the shortest range worth making, once there is one for each thread.
    """
    if threads <= 1 or nanoseconds < PARALLEL_NS:
        return ((0, length),)
    worth = int(2 * nanoseconds / PARALLEL_NS)
    parts = max(1, min(_PER_THREAD * threads, length, max(threads, length // least), worth))
    if threads < parts < 2 * threads:
        parts = threads  # else one of them would have two, and others wait
    return _even_parts(length, parts)


def ranges_of_rows(count: int, width: int, nanoseconds: float, threads: int) -> Ranges:
    """How the rows of a table are shared by threads that add to them: one range for each, since each scans all added elements."""
    is_shared = width >= _WIDE and len(ranges_of(count, nanoseconds, threads)) > 1
    return _even_parts(count, min(threads, count)) if is_shared else ((0, count),)


def _even_parts(length: int, parts: int) -> Ranges:
    edges = [length * i // parts for i in range(parts + 1)]
    return tuple(zip(edges[:-1], edges[1:], strict=True))


def nanoseconds(loops: LoopNest, sizes: Sequence[int]) -> float:
    """Estimated time of a kernel on one core, in nanoseconds."""
    total = 0.0
    for v in loops.values:
        count = math.prod(sizes[a] for a in v.axes)
        if v.op in READS:
            total += count * v.dtype.size * NS_PER_BYTE
        elif v.op == "random":
            total += count * NS_PER_RANDOM[v.data] * v.dtype.size / 4
        elif v.op == "scan":
            total += count * NS_PER_SCAN_STEP
        elif v.op != "constant":
            total += count * (NS_PER_COSTLY if v.op in COSTLY else NS_PER_OPERATION) * v.dtype.size / 4
    stored = sum(math.prod(sizes[a] for a in s.axes) * loops.values[s.value].dtype.size for s in loops.stores)
    return total + stored * NS_PER_BYTE
