"""Simulated annealing of the makespan. The exact evaluator judges each move.

Local search by differences needs an objective that a move changes locally; the end of a step on a clock is
not like that. The evaluator takes some microseconds for a thousand nodes, so it judges every move. What
makes this effective are the moves: items of coarse levels, whole chains, go first, and most moves carry an
item to a device where one of its neighbours is.
"""

from __future__ import annotations

import numpy as np

from .coarsen_hypergraph import Items
from .evaluate import run
from .jit import compiled, next_random, seeded
from .types import Arrays, Floats, Ints


@compiled
def walk(
    a: Arrays, rank: Ints, contended: bool, item_of: Ints, items: Items, capacity: Floats, where: Ints, moves: int,
    hot: float, cold: float, seed: int,
) -> float:  # fmt: skip
    """Improve `where` (m,), the device of each item, in place; returns the objective.

    Args:
        rank: the position of each node by priority.
        item_of: (n,) the item of each node.
        moves: how many moves are judged. hot, cold: first and last temperature, as a part of the objective.
    """
    n, m, devices = len(rank), len(where), len(a.device_class)
    node_start, node = np.zeros(m + 1, np.int32), np.empty(n, np.int32)
    for i in range(n):
        node_start[item_of[i] + 1] += 1
    for k in range(m):
        node_start[k + 1] += node_start[k]
    fill = np.empty(m, np.int32)
    for k in range(m):
        fill[k] = node_start[k]
    device, memory = np.empty(n, np.int32), np.zeros(devices)
    for i in range(n):
        k = item_of[i]
        node[fill[k]] = i
        fill[k] += 1
        device[i] = where[k]
    for k in range(m):
        memory[where[k]] += items.memory[k]
    start, finish = np.empty(n), np.empty(n)
    now = run(a, device, rank, contended, start, finish)
    best, kept = now, where.copy()
    state, temperature = seeded(seed), hot
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    tries, done = 0, 0
    while done < moves and tries < 20 * moves:
        tries += 1
        state = next_random(state)
        i = (state >> 5) % m
        state = next_random(state)
        kind = (state >> 5) & 7
        p = where[i]
        j, q = -1, p
        if kind < 6 and items.item_start[i + 1] > items.item_start[i]:
            state = next_random(state)
            first = int(items.item_start[i])  # `int`, as interpreted code knows no wider number than NumPy's else
            v = items.item_value[first + (state >> 5) % (int(items.item_start[i + 1]) - first)]
            state = next_random(state)
            low = int(items.value_start[v])
            q = where[items.value_item[low + (state >> 5) % (int(items.value_start[v + 1]) - low)]]
        elif kind < 7:
            state = next_random(state)
            q = (state >> 5) % devices
        if kind == 7:
            state = next_random(state)
            j = (state >> 5) % m
            q = where[j]
        if p == q or not items.allowed[i, q] or (j >= 0 and not items.allowed[j, p]):
            continue
        more = items.memory[i] - (items.memory[j] if j >= 0 else 0.0)
        if (more > 0.0 and memory[q] + more > capacity[q]) or (more < 0.0 and memory[p] - more > capacity[p]):
            continue
        done += 1
        temperature *= cooling
        for k in range(node_start[i], node_start[i + 1]):
            device[node[k]] = q
        if j >= 0:
            for k in range(node_start[j], node_start[j + 1]):
                device[node[k]] = p
        after = run(a, device, rank, contended, start, finish)
        accept = after <= now
        if not accept and after < np.inf:
            state = next_random(state)
            accept = (state >> 10) / 9007199254740992.0 < np.exp((now - after) / (best * temperature))
        if accept:
            now = after
            where[i] = q
            if j >= 0:
                where[j] = p
            memory[q] += more
            memory[p] -= more
            if now < best * (1.0 - 1e-12):
                best = now
                for k in range(m):
                    kept[k] = where[k]
        else:
            for k in range(node_start[i], node_start[i + 1]):
                device[node[k]] = p
            if j >= 0:
                for k in range(node_start[j], node_start[j + 1]):
                    device[node[k]] = q
    for k in range(m):
        where[k] = kept[k]
    return best


@compiled
def try_all(
    a: Arrays, rank: Ints, contended: bool, item_of: Ints, items: Items, capacity: Floats, where: Ints
) -> float:  # fmt: skip
    """The best of all assignments within the constraints, put into `where` (m,); infinite when none is."""
    n, m, devices = len(rank), len(where), len(a.device_class)
    digit, device, memory = np.zeros(m, np.int32), np.empty(n, np.int32), np.empty(devices)
    start, finish, best = np.empty(n), np.empty(n), np.inf
    while True:
        fits = True
        for d in range(devices):
            memory[d] = 0.0
        for k in range(m):
            memory[digit[k]] += items.memory[k]
            fits &= items.allowed[k, digit[k]] and memory[digit[k]] <= capacity[digit[k]]
        if fits:
            for i in range(n):
                device[i] = digit[item_of[i]]
            value = run(a, device, rank, contended, start, finish)
            if value < best:
                best = value
                for k in range(m):
                    where[k] = digit[k]
        k = 0
        while k < m and digit[k] == devices - 1:  # count on by one, in base `devices`
            digit[k] = 0
            k += 1
        if k == m:
            return best
        digit[k] += 1
