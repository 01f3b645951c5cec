"""Exact objectives of an assignment: the simulated makespan, and the loads of a pipeline.

`run` is a discrete-event simulation in O((n + E) log n). Events of one moment (within 1e-12 s, so that
rounding does not split a moment) are taken together before any device chooses what it runs next; it chooses
by rank, then by number. So the result depends on nothing but the input.
"""

from __future__ import annotations

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


@one_pass
def run(a: Arrays, device: Ints, rank: Ints, contended: bool, start: Floats, finish: Floats) -> float:
    """Run one step on a clock; fills start and finish of every node and returns when the last ends.

    It is longer where devices are too small for what they hold (`memory_penalty.py`).
    """
    n, devices = len(rank), len(a.device_class)
    by_rank = np.empty(n, np.int32)
    waiting = np.empty(n, np.int32)
    base = np.zeros(devices + 1, np.int32)
    for i in range(n):
        by_rank[rank[i]] = i
        waiting[i] = a.input_start[i + 1] - a.input_start[i]
        base[device[i] + 1] += 1
    for d in range(devices):
        base[d + 1] += base[d]
    heap, ready = np.empty(n, np.int32), np.zeros(devices, np.int32)
    busy = np.zeros(devices, np.int32)
    touched, is_touched = np.empty(devices, np.int32), np.zeros(devices, np.bool_)
    link_free = np.zeros((devices, devices))
    sent, arrives = np.full(devices, -1, np.int32), np.zeros(devices)
    times, codes, size = np.empty(n + 1), np.empty(n + 1, np.int32), 0
    data_at = np.zeros(n)
    owed = np.zeros(devices)  # for what was sent and received: whatever a device runs next takes so much longer
    for i in range(n):
        start[i] = finish[i] = np.inf
        if len(a.fed_at):
            data_at[i] = a.fed_at[device[i], i]
        if waiting[i] == 0:
            size = push(times, codes, size, data_at[i], np.int64(i))
    last = 0.0
    while size > 0:
        now, count = times[0], 0
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
                                leaves = max(now, link_free[s, d])
                                # The link is free again while the last byte is still under way.
                                link_free[s, d] = leaves + a.value_bytes[v] * a.link_per_byte[s, d]
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
                owed[d] = 0.0
                size = push(times, codes, size, finish[x], np.int64(n + x))
    if len(a.home_memory):
        last *= times_slower(a, device, start, finish)
    return last


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
def longest_way(a: Arrays, order: Ints, seconds: Floats) -> float:
    """The longest chain of nodes, each with its time; nothing for what is moved."""
    end, last = np.zeros(len(order)), 0.0
    for u in order:
        begin = 0.0
        for e in range(a.input_start[u], a.input_start[u + 1]):
            begin = max(begin, end[a.value_source[a.input_value[e]]])
        end[u] = begin + seconds[u]
        last = max(last, end[u])
    return last
