"""Exact objectives of an assignment: a step on a clock, loads of a pipeline, latency of offloaded calls.

`run` is a discrete-event simulation in O((n + E) log n). Events of one moment (within 1e-12 s, so that
rounding does not split a moment) are taken together before any device chooses what it runs next; it chooses
by rank, then by number. So the result depends on nothing but the input.
"""

from __future__ import annotations

import numpy as np

from .compiled import TINY, compiled, interpreted, is_first_call, next_random, one_pass, seeded
from .heaps import pop, pop_ready, push, push_ready
from .overfull import times_slower
from .problem import Arrays, Floats, Ints

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

    It is longer where devices are too small for what they hold (overfull.py).
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


@compiled
def calls(a: Arrays, order: Ints, device: Ints, host: int, call: Ints) -> int:
    """Cut what each accelerator runs into the fewest calls; fills the number of each node's call.

    A path that leaves a device and comes back must come back in a later call. So a node's call is the
    largest number of returns on any path to it (Tarnawski et al., reworkSplitIntoContiguous). Nodes on the
    host are calls of their own. Returns how many calls there are.
    """
    n, devices = len(order), len(a.device_class)
    first, last = np.full(devices, n, np.int32), np.full(devices, -1, np.int32)
    for at in range(n):
        d = device[order[at]]
        first[d] = min(first[d], at)
        last[d] = at
    number = 0
    returns = np.zeros(n, np.int32)
    for d in range(devices):
        if d == host or last[d] < 0:
            continue
        most = 0
        for at in range(first[d], last[d] + 1):
            u = order[at]
            here = device[u] == d
            x = 1 if here else 0
            for e in range(a.input_start[u], a.input_start[u + 1]):
                p = a.value_source[a.input_value[e]]
                # What stands before the first node of d has seen none of d.
                x = max(x, returns[p] + (1 if here and device[p] != d else 0))
            returns[u] = x
            if here:
                call[u] = number + x - 1
                most = max(most, x)
        for at in range(first[d], last[d] + 1):
            returns[order[at]] = 0
        number += most
    for i in range(n):
        if device[i] == host:
            call[i] = number
            number += 1
    return number


@one_pass
def offload(a: Arrays, order: Ints, device: Ints, host: int) -> float:
    """Latency of one sample; infinite when calls need each other in a circle."""
    n = len(order)
    call = np.empty(n, np.int32)
    count = calls(a, order, device, host, call)
    start = np.zeros(count + 1, np.int32)
    for i in range(n):
        start[call[i] + 1] += 1
    for b in range(count):
        start[b + 1] += start[b]
    member, fill = np.empty(n, np.int32), np.empty(count, np.int32)
    for b in range(count):
        fill[b] = start[b]
    waiting = np.zeros(count, np.int32)
    for i in range(n):
        b = call[i]
        member[fill[b]] = i
        fill[b] += 1
        for e in range(a.input_start[i], a.input_start[i + 1]):
            waiting[b] += call[a.value_source[a.input_value[e]]] != b
    moved_in = np.full(len(a.value_source), -1, np.int32)
    ready, high, done, last = np.empty(count, np.int32), 0, 0, 0.0
    begins = np.zeros(count)
    for b in range(count):
        if waiting[b] == 0:
            ready[high] = b
            high += 1
    while high > 0:
        high -= 1
        b = ready[high]
        done += 1
        t = begins[b]
        for k in range(start[b], start[b + 1]):
            i = member[k]
            d = device[i]
            t += a.seconds[a.device_class[d], i]
            if d == host:
                continue
            for e in range(a.input_start[i], a.input_start[i + 1]):
                v = a.input_value[e]
                if call[a.value_source[v]] != b and moved_in[v] != b:
                    moved_in[v] = b
                    t += a.port_latency[d] + a.value_bytes[v] * a.port_per_byte[d]
            for v in range(a.first_value[i], a.first_value[i + 1]):
                for e in range(a.value_start[v], a.value_start[v + 1]):
                    if call[a.value_target[e]] != b:
                        t += a.port_latency[d] + a.value_bytes[v] * a.port_per_byte[d]
                        break
        last = max(last, t)
        for k in range(start[b], start[b + 1]):
            i = member[k]
            for v in range(a.first_value[i], a.first_value[i + 1]):
                for e in range(a.value_start[v], a.value_start[v + 1]):
                    c = call[a.value_target[e]]
                    if c != b:
                        begins[c] = max(begins[c], t)
                        waiting[c] -= 1
                        if waiting[c] == 0:
                            ready[high] = c
                            high += 1
    return last if done == count else np.inf


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
