"""A guess at how long loops take on a CPU, which decides about threads."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .loop_nest import COSTLY, READS, LoopNest

# Rough cost of one element on one core, float32, measured on a 2.6 GHz Zen 4.
NS_PER_BYTE, NS_PER_OPERATION, NS_PER_COSTLY = 0.05, 0.03, 0.25
OPERATIONS_PER_BYTE = NS_PER_BYTE / NS_PER_OPERATION
"""How many operations take as long as one byte of memory."""
NS_PER_NUMBER = {"uniform": 0.8, "normal": 5.0}
"""A random one."""
NS_PER_STEP = 1.2  # of a running sum: each waits for the one before


def nanoseconds(loops: LoopNest, sizes: Sequence[int]) -> float:
    """A guess at the time of a kernel on one core."""
    total = 0.0
    for v in loops.values:
        count = math.prod(sizes[a] for a in v.axes)
        if v.op in READS:
            total += count * v.dtype.size * NS_PER_BYTE
        elif v.op == "random":
            total += count * NS_PER_NUMBER[v.data] * v.dtype.size / 4
        elif v.op == "scan":
            total += count * NS_PER_STEP
        elif v.op != "constant":
            total += count * (NS_PER_COSTLY if v.op in COSTLY else NS_PER_OPERATION) * v.dtype.size / 4
    stored = sum(math.prod(sizes[a] for a in s.axes) * loops.values[s.value].dtype.size for s in loops.stores)
    return total + stored * NS_PER_BYTE
