"""Into how many parts the work of a kernel is divided for threads. `native.launches` has the threads.

Work is divided into more parts than there are threads, and each thread takes the next one when it is free. An analytical cost model
estimates the time of a loop nest on one core, which decides how many threads share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.loop_nest import COSTLY, READS, LoopNest
from ..options import threads_for
from ..target import (
    CACHE_LINE_BYTES,
    NS_PER_BYTE,
    NS_PER_COSTLY,
    NS_PER_OPERATION,
    NS_PER_RANDOM,
    NS_PER_SCAN_STEP,
    PARALLEL_NS,
)

LINE = CACHE_LINE_BYTES // 8  # words in a line of the cache
_PER_THREAD = 4  # parts: more of them balance the load better, but each costs a call
_WIDE = 8  # elements of a row from which on skipping a row is cheap compared with adding it


def parts_of(length: int, nanoseconds: float, threads: int, least: int = 1) -> int:
    """Into how many parts a work is divided.

    Args:
        length: the number of items. nanoseconds: the time that one thread needs for all of them.
        threads: how many share the parts.
        least: the shortest part worth making, once there is one for each thread.
    """
    if threads_for(nanoseconds, threads) <= 1:
        return 1
    worth = int(2 * nanoseconds / PARALLEL_NS)
    parts = max(1, min(_PER_THREAD * threads, length, max(threads, length // least), worth))
    return threads if threads < parts < 2 * threads else parts  # else one of them would have two, and others wait


def parts_of_rows(count: int, width: int, nanoseconds: float, threads: int) -> int:
    """The same for rows of a table to which threads add: one part for each, since each scans all added elements."""
    is_shared = width >= _WIDE and parts_of(count, nanoseconds, threads) > 1
    return min(threads, count) if is_shared else 1


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
