"""Analytical cost model: the estimated time of a loop nest on one CPU core, which decides how many threads share it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..target import NS_PER_BYTE, NS_PER_COSTLY, NS_PER_OPERATION, NS_PER_RANDOM, NS_PER_SCAN_STEP
from .loop_nest import COSTLY, READS, LoopNest


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
