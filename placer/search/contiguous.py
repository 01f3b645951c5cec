"""Contiguous partitioning: dynamic programming over the split points of an order of items.

In an order of the items, give each device one segment. The best way to do so is found exactly: a state is
how many devices of each kind are used up and where the last segment ended. Interchangeable devices
are of one kind. The cost of a segment grows item by item, with a count per value of how many of its items
are inside, so all segments from one start cost time linear in the pins.

This is the contiguous programme of Tarnawski et al. with an order in place of their ideals: one order is a
heuristic, the best of several orders matched every optimum that their exact programme reached.

The largest cost of a segment (throughput) or the sum of all (makespan, of which the sum is an estimate) is minimized.
"""

from __future__ import annotations

import numpy as np

from .coarsen_hypergraph import Items
from .jit import compiled
from .types import Flags, Floats, Ints


@compiled
def split(
    items: Items, order: Ints, kind_class: Ints, kind_count: Ints, kind_allowed: Flags, kind_capacity: Floats,
    kind_latency: Floats, kind_per_byte: Floats, additive: bool, bound: float,
) -> tuple[float, Ints]:  # fmt: skip
    """The best segments of an order.

    Args:
        order: (m,) the items.
        kind_class, kind_count, kind_capacity, kind_latency, kind_per_byte: (Q,) class of execution times,
            number of devices, bytes, and port costs of each kind of device.
        kind_allowed: (m, Q).
        additive: whether costs add up; else the largest counts.
        bound: segments that cost more are not looked at.

    Returns:
        the cost (infinite when no split was found), and (m,) per position of the order kind * 65536 + number
        of the device of its kind.
    """
    m, kinds, values = len(order), len(kind_class), len(items.value_bytes)
    stride, states = np.ones(kinds + 1, np.int64), 1
    for q in range(kinds):
        stride[q] = states
        states *= kind_count[q] + 1
    stride[kinds] = states
    is_used_up = np.zeros((kinds, states), np.bool_)
    for q in range(kinds):
        for s in range(states):
            is_used_up[q, s] = (s // stride[q]) % (kind_count[q] + 1) == kind_count[q]
    cost = np.full((m + 1, states), np.inf)
    from_at, from_kind = np.zeros((m + 1, states), np.int32), np.full((m + 1, states), -1, np.int32)
    cost[0, 0] = 0.0
    inside = np.zeros(values, np.int32)
    work, open_ = np.zeros(kinds), np.zeros(kinds, np.bool_)
    for low in range(m):
        for v in range(values):
            inside[v] = 0
        for q in range(kinds):
            work[q], open_[q] = 0.0, True
        memory, crossing, crossing_bytes = 0.0, 0, 0.0
        for high in range(low + 1, m + 1):
            i = order[high - 1]
            memory += items.memory[i]
            for p in range(items.item_start[i], items.item_start[i + 1]):
                v = items.item_value[p]
                inside[v] += 1
                if inside[v] == 1:
                    crossing += 1
                    crossing_bytes += items.value_bytes[v]
                if inside[v] == items.value_start[v + 1] - items.value_start[v]:
                    crossing -= 1
                    crossing_bytes -= items.value_bytes[v]
            any_open = False
            for q in range(kinds):
                work[q] += items.seconds[kind_class[q], i]
                open_[q] &= kind_allowed[i, q] and work[q] <= bound and memory <= kind_capacity[q]
                any_open |= open_[q]
                if not open_[q]:
                    continue
                c = work[q] + crossing * kind_latency[q] + max(crossing_bytes, 0.0) * kind_per_byte[q]
                if c > bound:
                    continue
                for s in range(states):
                    before = cost[low, s]
                    if before > bound or is_used_up[q, s]:
                        continue
                    t = s + stride[q]
                    after = before + c if additive else max(before, c)
                    if after < cost[high, t]:
                        cost[high, t] = after
                        from_at[high, t], from_kind[high, t] = low, q
            if not any_open:
                break
    last = 0
    for s in range(states):
        if cost[m, s] < cost[m, last]:
            last = s
    found = np.full(m, -1, np.int32)
    at, s = m, last
    while at > 0 and cost[m, last] < np.inf:
        q = from_kind[at, s]
        t = s - stride[q]
        number = (s // stride[q]) % (kind_count[q] + 1) - 1
        low = from_at[at, s]
        for k in range(low, at):
            found[k] = q * 65536 + number
        at, s = low, t
    return cost[m, last], found
