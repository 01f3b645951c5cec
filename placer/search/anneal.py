"""Simulated annealing of a placement: of the makespan, or of the largest load.

Both walks propose the same moves and accept them by Metropolis' rule (Kirkpatrick, Gelatt and Vecchi, 1983). Most moves carry an item
to a device where one of its neighbours is, some carry it to any device, and some exchange two items, which balance needs once all
devices are nearly full. A move that breaks a constraint, or adds to an excess of memory, is not tried.

They differ in how a move is evaluated:

- `anneal_makespan` draws how much worse a move may be before it judges it. Most moves are judged by an estimate (`move_estimate.py`).
  Those that pass run on the clock, from the moment on at which they make a difference, until they are sure to be too late (`clock.py`).
  A move of what is on no longest way cannot shorten the step, so most of those are passed over.
- `anneal_load` keeps incremental loads. Moving an item from device p to device q changes only the loads of p and q: a value is
  charged to each device that it touches once it touches two. So a move costs time linear in the item's values. The largest load
  itself is a bad guide, as most moves do not change it. The walk follows the sum of the loads to the power of 16, which is close to it
  and feels every load; it keeps the assignment with the smallest largest load.
"""

from __future__ import annotations

import numpy as np

from .clock import advance, begin, clocks, keep, resume, run
from .coarsen_hypergraph import Items
from .jit import compiled, inner, next_random, seeded
from .move_estimate import estimate, find_tails, is_critical, schedule_of, tails_of
from .types import Arrays, Floats, Ints

KEPT = 8  # states of the clock to set out from again
DRAW_S = 1.5e-7  # price of drawing a move
ESTIMATE_S, ESTIMATE_NODE_S = 1e-7, 1e-7  # price of an estimate, and for each node that moves
TAIL = 0.15  # of the price of running a node on the clock: that of finding its tail
IDLE = 0.03  # of the moves of what is on no longest way: those that are judged


@inner
def _propose(items: Items, where: Ints, devices: int, follow: int, state: int) -> tuple[int, int, int, int]:
    """A random move: (state, item, the item that it changes places with or -1, device).

    Of 8 moves, `follow` go to a device of a neighbour, one exchanges two items, and the rest go to any device.
    """
    m = len(where)
    state = next_random(state)
    i = (state >> 5) % m
    state = next_random(state)
    kind = (state >> 5) & 7
    j, q = -1, int(where[i])
    if kind < follow and items.item_start[i + 1] > items.item_start[i]:
        state = next_random(state)
        first = int(items.item_start[i])  # `int`, as interpreted code knows no wider number than NumPy's else
        v = items.item_value[first + (state >> 5) % (int(items.item_start[i + 1]) - first)]
        state = next_random(state)
        low = int(items.value_start[v])
        q = int(where[items.value_item[low + (state >> 5) % (int(items.value_start[v + 1]) - low)]])
    elif kind < 7:
        state = next_random(state)
        q = (state >> 5) % devices
    if kind == 7:
        state = next_random(state)
        j = (state >> 5) % m
        q = int(where[j])
    return state, i, j, q


@inner
def _is_possible(items: Items, memory: Floats, capacity: Floats, where: Ints, i: int, j: int, q: int) -> bool:
    """Whether a move changes something, is allowed, and overfills no device."""
    p = where[i]
    if p == q or not items.allowed[i, q] or (j >= 0 and not items.allowed[j, p]):
        return False
    more = items.memory[i] - (items.memory[j] if j >= 0 else 0.0)
    return not ((more > 0.0 and memory[q] + more > capacity[q]) or (more < 0.0 and memory[p] - more > capacity[p]))


@inner
def _share(state: int) -> float:
    """A random number above 0 and at most 1."""
    return float(((state >> 10) + 1) / 9007199254740993.0)


@inner
def _drawn(state: int) -> float:
    """By how many temperatures a move may be worse: so Metropolis' rule accepts it with probability e**-excess."""
    return float(-np.log(_share(state)))


@compiled
def anneal_makespan(
    a: Arrays, rank: Ints, contended: bool, behind: Floats, item_of: Ints, items: Items, capacity: Floats, where: Ints,
    effort: float, move_s: float, node_s: float, hot: float, cold: float, seed: int,
) -> tuple[float, float, Ints]:  # fmt: skip
    """Improve `where` (m,), the device of each item, in place; returns the objective, the price of the walk, and where it ended.

    Args:
        rank: the position of each node by priority. behind: the least time behind each (`time_behind`).
        item_of: (n,) the item of each node.
        effort: the price, about, of the walk. move_s, node_s: that of judging a move, and of each node that is run on the clock for it.
        hot, cold: first and last temperature, as a part of the objective.
    """
    n, m, devices = len(rank), len(where), len(a.device_class)
    by_rank, moved, memory = np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(devices)
    for i in range(n):
        by_rank[rank[i]] = i
    node_start, node = np.zeros(m + 1, np.int32), np.empty(n, np.int32)
    for i in range(n):
        node_start[item_of[i] + 1] += 1
    for k in range(m):
        node_start[k + 1] += node_start[k]
        memory[where[k]] += items.memory[k]
    fill = node_start[:m].copy()
    for x in by_rank:  # each node of an item comes after its inputs
        node[fill[item_of[x]]] = x
        fill[item_of[x]] += 1
    device = where[item_of]
    was, c, tails = device.copy(), clocks(a, np.int64(KEPT)), tails_of(n, devices)
    current, tried = schedule_of(n), schedule_of(n)
    by_readiness, unrecorded = np.empty(0, np.int32), np.empty((2, 0))
    begin(a, device, c)
    now = advance(
        a, device, rank, by_rank, contended, current.start, current.finish, c, np.int64(0), behind, np.inf, by_readiness, unrecorded,
        current.ended,
    )  # fmt: skip
    keep(a, device, moved[:0], np.int64(0), c)
    find_tails(a, device, current, tails)
    best, kept = now, where.copy()
    state, cooling = seeded(seed), np.log(cold / hot)
    spent = n * (1.0 + TAIL) * node_s
    while spent < effort:
        spent += DRAW_S
        state, i, j, q = _propose(items, where, devices, 6, state)
        if not _is_possible(items, memory, capacity, where, i, j, q):
            continue
        p, count = np.int64(where[i]), 0
        for item, to in ((i, q), (j, p)):
            if item < 0:
                continue
            for k in range(node_start[item], node_start[item + 1]):
                moved[count], device[node[k]] = node[k], to
                count += 1
        state = next_random(state)
        is_tried = is_critical(current, tails, moved[:count]) or _share(state) < IDLE
        state = next_random(state)
        limit = now + _drawn(state) * best * hot * np.exp(cooling * spent / effort)
        if is_tried:
            spent += ESTIMATE_S + ESTIMATE_NODE_S * count
            about = estimate(a, device, rank, moved[:count], current, tails)
            is_tried = about * now <= limit * tails.span[0]  # a step that lacks memory counts as longer than its span
        after, same = np.inf, 0
        if is_tried:
            since = np.inf
            for x in moved[:count]:
                if a.input_start[x] == a.input_start[x + 1]:
                    since = -1.0
                for e in range(a.input_start[x], a.input_start[x + 1]):
                    since = min(since, current.finish[a.value_source[a.input_value[e]]])
            tried.start[:], tried.finish[:], tried.ended[:] = current.start, current.finish, current.ended
            same = resume(a, device, moved[:count], current.start, since, c)
            before = c.size[1]
            after = advance(
                a, device, rank, by_rank, contended, tried.start, tried.finish, c, same, behind, limit, by_readiness,
                unrecorded, tried.ended,
            )  # fmt: skip
            spent += move_s + node_s * (c.size[1] - before)
        if not after <= limit:
            for x in moved[:count]:
                device[x] = was[x]
            continue
        now = after
        current, tried = tried, current
        keep(a, device, moved[:count], same, c)
        find_tails(a, device, current, tails)
        spent += n * TAIL * node_s
        for x in moved[:count]:
            was[x] = device[x]
        where[i] = q
        more = items.memory[i]
        if j >= 0:
            where[j] = p
            more -= items.memory[j]
        memory[q] += more
        memory[p] -= more
        if now < best * (1.0 - 1e-12):
            best = now
            kept[:] = where
    end = where.copy()
    where[:] = kept
    return best, spent, end


@inner
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


@inner
def _count_loads(
    items: Items, device_class: Ints, port_latency: Floats, port_per_byte: Floats,
    touching: Ints, spread: Ints, load: Floats, where: Ints,
) -> None:  # fmt: skip
    """Set `load` (D,) from what touches and lies where."""
    load[:] = 0.0
    for v in range(len(spread)):
        if spread[v] > 1:
            for d in range(len(load)):
                if touching[v, d] > 0:
                    load[d] += port_latency[d] + items.value_bytes[v] * port_per_byte[d]
    for i in range(len(where)):
        load[where[i]] += items.seconds[device_class[where[i]], i]


@inner
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
def anneal_load(
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
    for i in range(m):
        memory[where[i]] += items.memory[i]
    _count_loads(items, device_class, port_latency, port_per_byte, touching, spread, load, where)
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
                _count_loads(items, device_class, port_latency, port_per_byte, touching, spread, load, where)
                scale = best
                energy = _steepness(load, scale)
        state, i, j, b = _propose(items, where, devices, 5, state)
        if not _is_possible(items, memory, capacity, where, i, j, b):
            continue
        a = where[i]
        _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, i, b)
        if j >= 0:
            _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, j, a)
        after = _steepness(load, scale)
        # The load that the sum stands for is its 16th root: a relative change is a sixteenth of the sum's.
        worse = (after / energy - 1.0) / 16.0 if after < 2.0 * energy else np.log(after / energy) / 16.0
        if worse > 0.0:
            state = next_random(state)
        if worse <= 0.0 or worse <= _drawn(state) * temperature:
            energy = after
            largest = float(load.max())
            if largest < best * (1.0 - 1e-12):
                best = largest
                kept[:] = where
        else:
            if j >= 0:
                _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, j, b)
            _shift(items, device_class, port_latency, port_per_byte, touching, spread, load, memory, where, i, a)
    where[:] = kept
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
            value = run(a, device, rank, contended, False, start, finish, np.empty((2, 0)))
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
