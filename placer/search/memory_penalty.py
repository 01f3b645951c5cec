"""Which values are on which devices at which moments of a step, and the penalty for a placement that needs more memory than there is.

Peak memory depends on the schedule, so it is known only after a simulation. A placement that exceeds a device's memory counts as slower
than any that fits, in proportion to the excess. So searches move toward placements that fit (`memory_profile.py` has the live ranges).
"""

from __future__ import annotations

import numpy as np

from .evaluate import travel_time
from .heaps import sort
from .jit import inner, one_pass
from .types import Arrays, Floats, Ints

AT_LEAST = 10.0  # times slower than it is, however little is missing
PER_PART = 1000.0  # for each part of a device's memory that is missing
ROUNDING = 1e-9


@one_pass
def live_ranges(
    a: Arrays, device: Ints, start: Floats, finish: Floats, travels: Floats
) -> tuple[Ints, Ints, Floats, Floats]:
    """(R,) the value, the device, and the begin and the end of each live range, in seconds: those of a value together, the first at home.

    On its own device a value is live from the start of its node until its last use or departure there. On another one it is live from its
    arrival until its last use; where it is passed on to other devices of the task, at least until it has arrived there.

    Args:
        start, finish: (n,) when each node starts and ends. travels: (2, E) as `run` fills it; or (2, 0): nothing waits for a link.
    """
    rows = len(a.value_source) + len(a.value_target)
    value, where, since, until = np.empty(rows, np.int32), np.empty(rows, np.int32), np.empty(rows), np.empty(rows)
    row_of, first = np.full(len(a.device_class), -1, np.int32), np.full(len(a.link_latency), -1, np.int32)
    count = 0
    for v in range(len(a.value_source)):
        source, at_home = a.value_source[v], count
        home = device[source]
        value[count], where[count], since[count], until[count] = v, home, start[source], finish[source]
        row_of[home] = first[a.place[home]] = at_home
        count += 1
        for e in range(a.value_start[v], a.value_start[v + 1]):
            y = a.value_target[e]
            d = device[y]
            if row_of[d] < at_home:  # as `_send` of the clock does it
                if first[a.place[d]] < at_home:
                    first[a.place[d]] = count
                via = first[a.place[d]] if first[a.place[d]] < count else at_home
                came = (finish[source] if via == at_home else since[via]) + travel_time(
                    a, where[via], d, a.value_bytes[v]
                )
                if travels.shape[1]:
                    came = travels[1, e]
                until[via] = max(until[via], came)
                value[count], where[count], since[count], until[count] = v, d, came, came
                row_of[d] = count
                count += 1
            until[row_of[d]] = max(until[row_of[d]], finish[y])
    return value[:count], where[:count], since[:count], until[:count]


@inner
def times_slower(a: Arrays, device: Ints, start: Floats, finish: Floats) -> float:
    """1 where all fits; else by what to multiply the time of a step."""
    devices = len(a.device_class)
    value, at_device, since, until = live_ranges(a, device, start, finish, np.empty((2, 0)))
    time, size, where = np.empty(2 * len(value)), np.empty(2 * len(value)), np.empty(2 * len(value), np.int32)
    count = 0
    for r in range(len(value)):
        is_home = r == 0 or value[r - 1] != value[r]
        held = a.home_memory[value[r]] if is_home else a.away_memory[value[r]]
        if held > 0.0:
            time[count], time[count + 1] = since[r], until[r]
            size[count], size[count + 1] = held, -held
            where[count] = where[count + 1] = at_device[r]
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
