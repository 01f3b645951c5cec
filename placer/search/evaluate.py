"""Exact objectives of an assignment: the simulated makespan, and the loads of a pipeline.

`run` is a discrete-event simulation in O((n + E) log n). Events of one moment (within 1e-12 s, so that
rounding does not split a moment) are taken together before any device chooses what it runs next; it chooses
by rank, then by number. So the result depends on nothing but the input.

A walk that judges one move after the other need not run all of the step for each. What a moved node changes begins when the first of its
inputs is made, so the clock sets out from a state of the current assignment that was kept before that moment (`resume`), and stops as
soon as the end is sure to be too late (`advance`). What comes out is the same, to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .heaps import pop, pop_ready, push, push_ready
from .jit import TINY, compiled, interpreted, is_first_call, next_random, one_pass, seeded
from .memory_penalty import times_slower
from .types import Arrays, Floats, Ints

MOMENT = 1e-12


@compiled
def _ordered(start: Ints, neighbour: Ints, waiting: Ints, breadth: bool, seed: int) -> Ints:
    """The nodes, each behind all that lead to it; `waiting` counts those, and is used up."""
    n = len(waiting)
    ready, order = np.empty(n, np.int32), np.empty(n, np.int32)
    low, high, done = 0, 0, 0
    state = seeded(seed)
    for i in range(n):
        at = i if breadth else n - 1 - i
        if waiting[at] == 0:
            ready[high] = at
            high += 1
    while low < high:
        if breadth:
            u = ready[low]
            low += 1
        else:
            high -= 1
            u = ready[high]
        order[done] = u
        done += 1
        newest = high
        for e in range(start[u], start[u + 1]):
            x = neighbour[e]
            waiting[x] -= 1
            if waiting[x] == 0:
                ready[high] = x
                high += 1
                if seed > 0:
                    state = next_random(state)
                    swap = newest + (state >> 5) % (high - newest)
                    ready[high - 1], ready[swap] = ready[swap], ready[high - 1]
    return order[:done]


def topological_order(a: Arrays, breadth: bool, seed: int = 0, backward: bool = False) -> Ints:
    """The nodes, each behind its inputs; those on a cycle are left out.

    Args:
        breadth: the oldest ready node next; else the newest, so that what belongs together stays together.
        seed: another order among the consumers of a node for each; 0: that of the arrays.
        backward: walk from the ends to the starts, and turn the order round.
    """
    out_start, out = a.value_start[a.first_value], a.value_target
    in_start, into = a.input_start, a.value_source[a.input_value]
    nodes = len(in_start) - 1
    with interpreted(nodes <= TINY or is_first_call(_ordered, nodes)):
        if backward:
            return _ordered(in_start, into, np.diff(out_start), breadth, seed)[::-1].copy()
        return _ordered(out_start, out, np.diff(in_start), breadth, seed)


@one_pass
def upward_rank(a: Arrays, order: Ints) -> Floats:
    """Longest way to the end from each node: mean time over devices, and mean transfer (HEFT's rank)."""
    n, devices = len(order), len(a.device_class)
    latency, per_byte = 0.0, 0.0
    if devices > 1:
        pairs = devices * (devices - 1)
        for s in range(devices):
            for d in range(devices):
                if s != d:
                    latency += a.link_latency[s, d] / pairs
                    per_byte += a.link_per_byte[s, d] / pairs
    rank = np.zeros(n)
    for at in range(n - 1, -1, -1):
        u = order[at]
        behind = 0.0
        for v in range(a.first_value[u], a.first_value[u + 1]):
            cost = latency + per_byte * a.value_bytes[v]
            for e in range(a.value_start[v], a.value_start[v + 1]):
                behind = max(behind, cost + rank[a.value_target[e]])
        mean, count = 0.0, 0
        for d in range(devices):
            t = a.seconds[a.device_class[d], u]
            if t < np.inf:
                mean += t
                count += 1
        rank[u] = behind + mean / max(count, 1)
    return rank


class Clocks(NamedTuple):
    """States of a step on a clock, one a row, packed so that a state is copied at once: row 0 is the one that runs.

    `kept` others are states of the current assignment to set out from again, and as many are room for those of an assignment that
    is tried; `row` says which are which.
    """

    number: Ints  # (R, 3 n + 3 D + 4) per node inputs that lack, by device what is ready, events; per device ready, busy, base; counts
    time: Floats  # (R, 2 n + 1 + D * (D + 2) + 1) per node when its data is there, events; per device owed, work left; links; last end
    moment: Floats  # (R,) the first event that lies ahead
    row: Ints  # (2, kept)


@compiled
def clocks(a: Arrays, kept: int) -> Clocks:
    """Room for the state that runs and `kept` others."""
    n, devices, rows = len(a.memory), len(a.device_class), 1 + 2 * kept
    row = np.empty((2, kept), np.int32)
    for k in range(kept):
        row[0, k], row[1, k] = 1 + k, 1 + kept + k
    return Clocks(
        np.empty((rows, 3 * n + 3 * devices + 4), np.int32),
        np.empty((rows, 2 * n + 2 + devices * (devices + 2))), np.full(rows, np.inf), row,
    )  # fmt: skip


@compiled
def begin(a: Arrays, device: Ints, c: Clocks) -> None:
    """Set the clock to the begin of a step."""
    n = len(device)
    number, time = c.number[0], c.time[0]
    number[3 * n + 1 :] = 0
    time[:] = 0.0
    size = 0
    for i in range(n):
        if len(a.fed_at):
            time[i] = a.fed_at[device[i], i]
        number[i] = a.input_start[i + 1] - a.input_start[i]
        if number[i] == 0:
            size = push(time[n:], number[2 * n :], size, time[i], np.int64(i))
    number[-2] = size
    _share_out(a, device, np.empty(0), 0.0, c)


@compiled
def _share_out(a: Arrays, device: Ints, start: Floats, moment: float, c: Clocks) -> None:
    """Where the nodes of each device stand that are ready, and how much work lies ahead of it: of nodes that start after the moment."""
    n, devices = len(device), len(a.device_class)
    base, left = c.number[0, 3 * n + 1 + 2 * devices :], c.time[0, 2 * n + 1 + devices :]
    for d in range(devices):
        base[d + 1], left[d] = 0, 0.0
    for i in range(n):
        d = device[i]
        base[d + 1] += 1
        if len(start) == 0 or start[i] > moment:
            left[d] += a.seconds[a.device_class[d], i]
    for d in range(devices):
        base[d + 1] += base[d]


@compiled
def resume(a: Arrays, device: Ints, moved: Ints, start: Floats, since: float, c: Clocks) -> int:
    """Set the clock to the last state kept in which nothing has happened yet that moved nodes change; returns how many are before.

    Args:
        device: (n,) the assignment. moved: the nodes that are elsewhere in the current one, of which states are kept.
        start: (n,) when each node starts in that. since: when the first input of a moved node is made there.
    """
    n, devices = len(device), len(a.device_class)
    k = len(c.row[0])
    while k > 0 and not c.moment[c.row[0, k - 1]] + MOMENT < since:
        k -= 1
    if k == 0:
        begin(a, device, c)
        return 0
    row = c.row[0, k - 1]
    number, kept = c.number[0], c.number[row]
    number[:] = kept
    c.time[0, :] = c.time[row]
    _share_out(a, device, start, c.moment[row], c)
    at = 3 * n + 1
    for d in range(devices):
        low, was = n + number[at + 2 * devices + d], n + kept[at + 2 * devices + d]
        for i in range(number[at + d]):
            number[low + i] = kept[was + i]
    if len(a.fed_at):
        for x in moved:
            c.time[0, x] = a.fed_at[device[x], x]
    return k


@compiled
def keep(a: Arrays, device: Ints, moved: Ints, same: int, c: Clocks) -> None:
    """Make the assignment that was run last the current one; `same` is what `resume` said."""
    for k in range(len(c.row[0])):
        if k >= same:
            c.row[0, k], c.row[1, k] = c.row[1, k], c.row[0, k]
        elif len(a.fed_at):
            for x in moved:
                c.time[c.row[0, k], x] = a.fed_at[device[x], x]


@compiled
def advance(
    a: Arrays, device: Ints, rank: Ints, by_rank: Ints, contended: bool, start: Floats, finish: Floats, c: Clocks, kept: int,
    behind: Floats, limit: float,
) -> float:  # fmt: skip
    """Run the rest of a step; returns when its last node ends, or infinity as soon as that is sure to be later than `limit`.

    Args:
        start, finish: (n,) filled for the nodes that run. kept: how many of the states to keep are before.
        behind: (n,) the least time from the end of each node to the end of the step; or (0,): not known.
    """
    n, devices = len(rank), len(a.device_class)
    number, time = c.number[0], c.time[0]
    waiting, heap, codes = number[:n], number[n : 2 * n], number[2 * n : 3 * n + 1]
    ready, busy, base = number[3 * n + 1 :], number[3 * n + 1 + devices :], number[3 * n + 1 + 2 * devices :]
    data_at, times = time[:n], time[n : 2 * n + 1]
    owed = time[2 * n + 1 :]  # for what was sent and received: whatever a device runs next takes so much longer
    left, link_free = time[2 * n + 1 + devices :], time[2 * n + 1 + 2 * devices :]
    size, done, last = int(number[-2]), int(number[-1]), float(time[-1])
    touched, is_touched = np.empty(devices, np.int32), np.zeros(devices, np.bool_)
    sent, arrives = np.full(devices, -1, np.int32), np.zeros(devices)
    keeps = len(c.row[0])
    late = limit * (1.0 + 1e-9)  # what is left is a sum of differences
    for d in range(devices):
        if size > 0 and times[0] + left[d] / a.slots[d] > late:
            return np.inf
    while size > 0:
        now, count = times[0], 0
        while kept < keeps and done >= (kept + 1) * n // (keeps + 1):
            number[-2], number[-1], time[-1] = size, done, last
            c.number[c.row[1, kept]] = number
            c.time[c.row[1, kept]] = time
            c.moment[c.row[1, kept]] = now
            kept += 1
        while size > 0 and times[0] <= now + MOMENT:
            code = codes[0]
            size = pop(times, codes, size)
            x = code % n
            s = device[x]
            if not is_touched[s]:
                is_touched[s] = True
                touched[count] = s
                count += 1
            if code < n:  # all its inputs are there
                push_ready(heap, base[s], ready[s], rank[x])
                ready[s] += 1
                continue
            busy[s] -= 1
            done += 1
            last = max(last, now + (a.back_after[s, x] if len(a.back_after) else 0.0))
            for v in range(a.first_value[x], a.first_value[x + 1]):
                for e in range(a.value_start[v], a.value_start[v + 1]):
                    y = a.value_target[e]
                    d = device[y]
                    at = now
                    if d != s:
                        if sent[d] != v:
                            takes = a.link_latency[s, d] + a.value_bytes[v] * a.link_per_byte[s, d]
                            leaves = now
                            if contended:
                                leaves = max(now, link_free[s * devices + d])
                                # The link is free again while the last byte is still under way.
                                link_free[s * devices + d] = leaves + a.value_bytes[v] * a.link_per_byte[s, d]
                            sent[d], arrives[d] = v, leaves + takes
                            handled = a.handling[s, d] + a.value_bytes[v] * a.handling_per_byte[s, d]
                            owed[s] += handled
                            owed[d] += handled
                        at = arrives[d]
                    data_at[y] = max(data_at[y], at)
                    waiting[y] -= 1
                    if waiting[y] == 0:
                        size = push(times, codes, size, data_at[y], np.int64(y))
        for k in range(count):
            d = touched[k]
            is_touched[d] = False
            while ready[d] > 0 and busy[d] < a.slots[d]:
                x = by_rank[pop_ready(heap, base[d], ready[d])]
                ready[d] -= 1
                busy[d] += 1
                start[x], finish[x] = now, now + owed[d] + a.seconds[a.device_class[d], x]
                if now + (owed[d] + left[d]) / a.slots[d] > late or (len(behind) and finish[x] + behind[x] > late):
                    return np.inf
                left[d] -= a.seconds[a.device_class[d], x]
                owed[d] = 0.0
                size = push(times, codes, size, finish[x], np.int64(n + x))
    for k in range(kept, keeps):
        c.moment[c.row[1, k]] = np.inf  # the step ended before
    if len(a.home_memory):
        last *= times_slower(a, device, start, finish)
    return last


@one_pass
def run(a: Arrays, device: Ints, rank: Ints, contended: bool, start: Floats, finish: Floats) -> float:
    """Run one step on a clock; fills start and finish of every node and returns when the last ends.

    It is longer where devices are too small for what they hold (`memory_penalty.py`).
    """
    by_rank = np.empty(len(rank), np.int32)
    for i in range(len(rank)):
        by_rank[rank[i]] = i
    c = clocks(a, 0)
    begin(a, device, c)
    return advance(a, device, rank, by_rank, contended, start, finish, c, 0, np.empty(0), np.inf)


@one_pass
def loads(a: Arrays, device: Ints) -> Floats:
    """(D,) the load of each device: work, and each value that crosses its border once."""
    n, devices = len(device), len(a.device_class)
    load, seen = np.zeros(devices), np.full(devices, -1, np.int32)
    for i in range(n):
        load[device[i]] += a.seconds[a.device_class[device[i]], i]
    for v in range(len(a.value_source)):
        s = device[a.value_source[v]]
        seen[s] = v
        crosses = False
        for e in range(a.value_start[v], a.value_start[v + 1]):
            d = device[a.value_target[e]]
            if seen[d] != v:
                seen[d] = v
                crosses = True
                load[d] += a.port_latency[d] + a.value_bytes[v] * a.port_per_byte[d]
        if crosses:
            load[s] += a.port_latency[s] + a.value_bytes[v] * a.port_per_byte[s]
    return load


@one_pass
def time_behind(a: Arrays, order: Ints, seconds: Floats, travel: Floats) -> Floats:
    """(n,) the longest chain of nodes behind each node, each with its time; `travel`: (E,) from each source to each target."""
    behind = np.zeros(len(order))
    for u in order[::-1]:
        for v in range(a.first_value[u], a.first_value[u + 1]):
            for e in range(a.value_start[v], a.value_start[v + 1]):
                y = a.value_target[e]
                behind[u] = max(behind[u], travel[e] + seconds[y] + behind[y])
    return behind
