"""Orders of the nodes, their ranks, the loads of a pipeline, the time behind each node, and that of a transfer."""

from __future__ import annotations

import numpy as np

from .jit import TINY, compiled, inlined, interpreted, is_first_call, next_random, one_pass, seeded
from .types import Arrays, Floats, Ints


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


@inlined
def travel_time(a: Arrays, source: int, destination: int, size: float) -> float:
    """Seconds for which so many bytes are under way between two different devices, if nothing else is on their link."""
    p, q = a.place[source], a.place[destination]
    return float(a.link_latency[p, q] + size * a.link_per_byte[p, q])


@one_pass
def upward_rank(a: Arrays, order: Ints) -> Floats:
    """Longest way to the end from each node: mean time over devices, and mean transfer (HEFT's rank)."""
    n, devices = len(order), len(a.device_class)
    latency, per_byte = 0.0, 0.0
    if devices > 1:
        there = np.zeros(len(a.link_latency))
        for d in range(devices):
            there[a.place[d]] += 1.0
        for p in range(len(there)):
            for q in range(len(there)):
                share = there[p] * (there[q] - (p == q)) / (devices * (devices - 1))
                latency += a.link_latency[p, q] * share
                per_byte += a.link_per_byte[p, q] * share
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
