"""Simulated annealing of the largest load: items over devices, with incremental loads.

Moving an item from device a to device b changes only the loads of a and b: a value is charged to each device
it touches once it touches two. So a move is judged in time linear in the item's values.

The largest load itself is a bad guide, as most moves do not change it. The walk follows the sum of the loads
to the power of 16, which is close to it and feels every load; what is kept is the assignment with the
smallest largest load. Half of the moves follow a value to a device that it touches already, and some
exchange two items, which balance needs once all devices are nearly full.
"""

from __future__ import annotations

import numpy as np

from .coarsen_hypergraph import Items
from .jit import compiled, next_random, seeded
from .types import Floats, Ints


@compiled
def _shift(
    items: Items, device_class: Ints, port_latency: Floats, port_per_byte: Floats,
    touching: Ints, spread: Ints, load: Floats, memory: Floats, where: Ints, i: int, b: int,
) -> None:  # fmt: skip
    """Move an item to device b, and keep the books."""
    a = where[i]
    load[a] -= items.seconds[device_class[a], i]
    load[b] += items.seconds[device_class[b], i]
    memory[a] -= items.memory[i]
    memory[b] += items.memory[i]
    where[i] = b
    for p in range(items.item_start[i], items.item_start[i + 1]):
        v = items.item_value[p]
        leaves = touching[v, a] == 1
        joins = touching[v, b] == 0
        touching[v, a] -= 1
        touching[v, b] += 1
        before = spread[v]
        after = before - leaves + joins
        spread[v] = after
        size = items.value_bytes[v]
        if before > 1 and leaves:
            load[a] -= port_latency[a] + size * port_per_byte[a]
        elif before == 1 and after > 1:
            load[a] += port_latency[a] + size * port_per_byte[a]
        if after > 1 and joins:
            load[b] += port_latency[b] + size * port_per_byte[b]
        elif before > 1 and after == 1:
            load[b] -= port_latency[b] + size * port_per_byte[b]


@compiled
def _steepness(load: Floats, scale: float) -> float:
    """Sum of the loads over `scale`, each to the power of 16."""
    total = 0.0
    for d in range(len(load)):
        x = load[d] / scale
        x *= x
        x *= x
        x *= x
        total += x * x
    return total


@compiled
def anneal(
    items: Items, device_class: Ints, port_latency: Floats, port_per_byte: Floats, capacity: Floats,
    where: Ints, moves: int, hot: float, cold: float, seed: int,
) -> float:  # fmt: skip
    """Improve `where` (m,) in place; returns its largest load.

    Args:
        where: the device of each item; within memory, or the walk only takes what does not add to the excess.
        moves: how many moves are tried. hot, cold: first and last temperature, as a part of the load.
    """
    m, devices, values = len(where), len(device_class), len(items.value_bytes)
    touching = np.zeros((values, devices), np.int32)
    spread, load, memory = np.zeros(values, np.int32), np.zeros(devices), np.zeros(devices)
    for v in range(values):
        for p in range(items.value_start[v], items.value_start[v + 1]):
            d = where[items.value_item[p]]
            spread[v] += touching[v, d] == 0
            touching[v, d] += 1
        if spread[v] > 1:
            for d in range(devices):
                if touching[v, d] > 0:
                    load[d] += port_latency[d] + items.value_bytes[v] * port_per_byte[d]
    for i in range(m):
        load[where[i]] += items.seconds[device_class[where[i]], i]
        memory[where[i]] += items.memory[i]
    best, kept = float(load.max()), where.copy()
    if not best > 0.0:
        return best
    scale = best
    energy = _steepness(load, scale)
    state = seeded(seed)
    temperature = hot
    cooling = (cold / hot) ** (256.0 / max(moves, 256))
    for move in range(moves):
        if move & 255 == 255:
            temperature *= cooling
            if move & 65535 == 65535:  # sums of differences drift; and the scale follows the best
                for d in range(devices):
                    load[d] = 0.0
                for v in range(values):
                    if spread[v] > 1:
                        for d in range(devices):
                            if touching[v, d] > 0:
                                load[d] += port_latency[d] + items.value_bytes[v] * port_per_byte[d]
                for i in range(m):
                    load[where[i]] += items.seconds[device_class[where[i]], i]
                scale = best
                energy = _steepness(load, scale)
        state = next_random(state)
        i = (state >> 5) % m
        state = next_random(state)
        kind = (state >> 5) & 7
        a = where[i]
        j, b = -1, a
        if kind < 5 and items.item_start[i + 1] > items.item_start[i]:
            state = next_random(state)
            first = int(items.item_start[i])  # `int`, as interpreted code knows no wider number than NumPy's else
            v = items.item_value[first + (state >> 5) % (int(items.item_start[i + 1]) - first)]
            state = next_random(state)
            low = int(items.value_start[v])
            b = where[items.value_item[low + (state >> 5) % (int(items.value_start[v + 1]) - low)]]
        elif kind < 7:
            state = next_random(state)
            b = (state >> 5) % devices
        if kind == 7:
            state = next_random(state)
            j = (state >> 5) % m
            b = where[j]
        if a == b or not items.allowed[i, b]:
            continue
        if j >= 0:
            if not items.allowed[j, a]:
                continue
            more_a, more_b = items.memory[j] - items.memory[i], items.memory[i] - items.memory[j]
        else:
            more_a, more_b = -items.memory[i], items.memory[i]
        if (more_a > 0.0 and memory[a] + more_a > capacity[a]) or (more_b > 0.0 and memory[b] + more_b > capacity[b]):
            continue
        _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, i, b)
        if j >= 0:
            _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, j, a)
        after = _steepness(load, scale)
        accept = after <= energy
        if not accept:
            # The load that the sum stands for is its 16th root: a relative change is a sixteenth of the sum's.
            worse = (after / energy - 1.0) / 16.0 if after < 2.0 * energy else np.log(after / energy) / 16.0
            state = next_random(state)
            accept = (state >> 10) / 9007199254740992.0 < np.exp(-worse / temperature)
        if accept:
            energy = after
            largest = float(load.max())
            if largest < best * (1.0 - 1e-12):
                best = largest
                for k in range(m):
                    kept[k] = where[k]
        else:
            if j >= 0:
                _shift(
                    items, device_class, port_latency, port_per_byte, touching, spread, load, memory,
                    where, j, b,
                )  # fmt: skip
            _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, i, a)
    for k in range(m):
        where[k] = kept[k]
    return best
