"""The penalty for placements that need more memory than a device has at some moment of a step.

Peak memory depends on the schedule, so it is known only after a simulation. A placement that exceeds a device's memory counts as slower
than any that fits, in proportion to the excess. So searches move toward placements that fit (`memory_profile.py` has the live ranges).
"""

from __future__ import annotations

import numpy as np

from .evaluate import travel_time
from .heaps import sort
from .jit import compiled
from .types import Arrays, Floats, Ints

AT_LEAST = 10.0  # times slower than it is, however little is missing
PER_PART = 1000.0  # for each part of a device's memory that is missing
ROUNDING = 1e-9


@compiled
def times_slower(a: Arrays, device: Ints, start: Floats, finish: Floats) -> float:
    """1 where all fits; else by what to multiply the time of a step."""
    devices, values = len(a.device_class), len(a.value_source)
    most = values + len(a.value_target)  # rows: a value on a device
    time, size, where = np.empty(2 * most), np.empty(2 * most), np.empty(2 * most, np.int32)
    seen, last = np.full(devices, -1, np.int32), np.zeros(devices)
    count = 0
    for v in range(values):
        source = a.value_source[v]
        home = device[source]
        until = finish[source]
        for e in range(a.value_start[v], a.value_start[v + 1]):
            y = a.value_target[e]
            d = device[y]
            if d == home:
                until = max(until, finish[y])
            elif seen[d] != v:
                seen[d], last[d] = v, finish[y]
            else:
                last[d] = max(last[d], finish[y])
        for e in range(a.value_start[v], a.value_start[v + 1]):
            d = device[a.value_target[e]]
            if d != home and seen[d] == v:
                seen[d] = -1
                came = finish[source] + travel_time(a, home, d, a.value_bytes[v])
                until = max(until, came)
                if a.away_memory[v] > 0.0:
                    time[count], time[count + 1] = came, max(last[d], came)
                    size[count], size[count + 1] = a.away_memory[v], -a.away_memory[v]
                    where[count] = where[count + 1] = d
                    count += 2
        if a.home_memory[v] > 0.0:
            time[count], time[count + 1] = start[source], until
            size[count], size[count + 1] = a.home_memory[v], -a.home_memory[v]
            where[count] = where[count + 1] = home
            count += 2
    live = np.zeros(devices)
    for i in range(len(device)):
        live[device[i]] += a.memory[i]
    peak = live.copy()
    # Ends and begins of one moment: the sums of a moment count, so that what ends goes first.
    order, at = np.empty(count, np.int32), 0
    sort(count, time, np.empty(count), order)
    while at < count:
        now, first = time[order[at]], at
        while at < count and time[order[at]] == now:
            if size[order[at]] < 0.0:
                live[where[order[at]]] += size[order[at]]
            at += 1
        for k in range(first, at):
            if size[order[k]] > 0.0:
                d = where[order[k]]
                live[d] += size[order[k]]
                peak[d] = max(peak[d], live[d])
    missing = 0.0
    for d in range(devices):
        if peak[d] > a.capacity[d] * (1.0 + ROUNDING):
            missing += (peak[d] - a.capacity[d]) / max(a.capacity[d], 1.0)
    return 1.0 if missing == 0.0 else AT_LEAST + PER_PART * missing
