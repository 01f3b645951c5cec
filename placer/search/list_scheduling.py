"""List scheduling (HEFT, m-ETF): one pass over the ready nodes, each to the device where it ends or starts first.

`heft` takes the ready node with the highest upward rank and gives it the device on which it finishes first
(Topcuoglu, Hariri and Wu, HEFT, 2002). `m-etf` takes the ready node that can start first anywhere, on that
device, as long as its memory holds (Jeon et al., Baechi, SoCC 2020). In both a group's first node chooses for
all of it, and takes memory for all of it.

Both look one node ahead and so scatter chains when moving a value costs more than computing it. On coarse
levels, where a node is a whole chain, they do not.
"""

from __future__ import annotations

import numpy as np

from .evaluate import travel_time
from .heaps import pop, push
from .jit import one_pass
from .types import Arrays, Flags, Floats, Ints

MOST_DELAYS = 8
"""How often m-ETF puts a ready node back because it could start later than another one."""
CORES = 256  # a device that runs more nodes at once than this is taken to run this many


@one_pass
def list_schedule(
    a: Arrays, rank: Ints, group: Ints, group_allowed: Flags, group_memory: Floats, capacity: Floats,
    earliest: bool, where: Ints,
) -> bool:  # fmt: skip
    """Give each group a device; False when memory ran out on the way.

    Args:
        rank: (n,) position by priority. earliest: m-ETF; else HEFT.
        where: (groups,) filled; a group that has a device already, not -1, keeps it.
    """
    n, devices = len(rank), len(a.device_class)
    used = np.zeros(devices)
    for u in range(len(where)):
        if where[u] >= 0:
            used[where[u]] += group_memory[u]
    base = np.zeros(devices + 1, np.int32)
    for d in range(devices):
        base[d + 1] = base[d] + min(a.slots[d], CORES)
    core_free = np.zeros(base[devices])
    finish, waiting, delays = np.zeros(n), np.empty(n, np.int32), np.zeros(n, np.int8)
    by_rank = np.empty(n, np.int32)
    for i in range(n):
        by_rank[rank[i]] = i
    times, codes, size = np.empty(n + 1), np.empty(n + 1, np.int32), 0
    for i in range(n):
        waiting[i] = a.input_start[i + 1] - a.input_start[i]
        if waiting[i] == 0:
            size = push(times, codes, size, 0.0 if earliest else float(rank[i]), np.int64(rank[i]))
    while size > 0:
        key, x = times[0], by_rank[codes[0]]
        size = pop(times, codes, size)
        u = group[x]
        best, chosen, best_start = np.inf, -1, 0.0
        for d in range(devices):
            if where[u] >= 0:
                if where[u] != d:
                    continue
            elif not group_allowed[u, d] or used[d] + group_memory[u] > capacity[d]:
                continue
            begin = core_free[base[d]]
            for c in range(base[d] + 1, base[d + 1]):
                begin = min(begin, core_free[c])
            if len(a.fed_at):
                begin = max(begin, a.fed_at[d, x])
            for e in range(a.input_start[x], a.input_start[x + 1]):
                v = a.input_value[e]
                p = a.value_source[v]
                s = where[group[p]]
                at = finish[p]
                if s != d:
                    at += travel_time(a, s, d, a.value_bytes[v])
                begin = max(begin, at)
            end = begin + a.seconds[a.device_class[d], x]
            goal = begin if earliest else end
            if goal < best or (goal == best and end < best_start):
                best, chosen = goal, d
                best_start = end
        if chosen < 0:
            return False
        if earliest and best > key and size > 0 and best > times[0] and delays[x] < MOST_DELAYS:
            delays[x] += 1
            size = push(times, codes, size, best, np.int64(rank[x]))  # others took its place meanwhile: ask again
            continue
        if where[u] < 0:
            where[u] = chosen
            used[chosen] += group_memory[u]
        core, begin = base[chosen], best
        for c in range(base[chosen], base[chosen + 1]):
            if core_free[c] < core_free[core]:
                core = c
        if not earliest:
            begin = best - a.seconds[a.device_class[chosen], x]
        finish[x] = begin + a.seconds[a.device_class[chosen], x]
        core_free[core] = finish[x]
        for v in range(a.first_value[x], a.first_value[x + 1]):
            for e in range(a.value_start[v], a.value_start[v + 1]):
                y = a.value_target[e]
                waiting[y] -= 1
                if waiting[y] == 0:
                    size = push(times, codes, size, finish[x] if earliest else float(rank[y]), np.int64(rank[y]))
    return True
