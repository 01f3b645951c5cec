"""Local search for steps of any size: moves of single nodes, judged within a window of the schedule.

One evaluation of a million nodes takes a good part of a second, so a walk that asks for one per move is out of
the question. But what a move changes is near to it in time. A pass goes along the schedule: what started before
the window is known, and the nodes of the window and some behind it are run on a clock alone. A move is one of a
node that the last end of the window waits for, picked from the longest chain of nodes that leads there; it goes to
the device of the node that it waits for, or anywhere. It stays when the window then ends no later, both on the
last device and on the mean of all (what follows can begin earlier on each). Several failures in a row, and the
window moves on: what started first is done, the rest is looked at again beside what comes next.

A pass takes time in proportion to the nodes. Links are taken for free of contention, so what a pass has made is judged
by the exact evaluator in the end. Nodes that share a group with others stay where they are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .evaluate import travel_time
from .heaps import pop, pop_ready, push, push_ready, sort
from .jit import compiled, next_random, seeded
from .list_scheduling import CORES
from .problem import Problem
from .types import Arrays, Flags, Floats, Ints

WIDTH, AHEAD = 1024, 512  # nodes of a window, and behind it
LAST = 1024  # nodes of the window at the end, where a gain is sure to count
LAST_FAILURES = 1000
LAST_RUNS = 6_000_000  # nodes run on a clock for it at most: about a second
FAILURES = 8
PASS_RUNS = 30  # times that a pass runs each node, at most, on average
PARTS = 2  # of the schedule, refined at the same time on a core each
VISIT_S = 1.5e-7  # price of running one node in a window
NO_CAUSE = -1  # the cause of a start that nothing in the window delayed


@compiled
def improve(
    a: Arrays, rank: Ints, order: Ints, low: int, high: int, finish: Floats, may: Flags, memory: Floats, capacity: Floats,
    where: Ints, width: int, ahead: int, failures: int, runs_most: int, seed: int,
) -> int:  # fmt: skip
    """One pass; changes `where` (n,), the device of each node. Returns how many nodes it has run on a clock.

    Args:
        rank: (n,) position by priority. order: (n,) the nodes by their start in the schedule of `where`.
        low, high: the pass is over order[low:high]. finish: (n,) when each node before it ends; changed.
        may: (n, D) where each node may go. memory: (n,) what it takes there.
        width, ahead: nodes of a window, and behind it. failures: moves in a row without gain that end a window.
        runs_most: nodes run on a clock after which no move is tried.
    """
    n, devices = len(order), len(a.device_class)
    most = width + ahead
    used = np.zeros(devices)
    for i in range(n):
        used[where[i]] += memory[i]
    base = np.zeros(devices + 1, np.int32)
    for d in range(devices):
        base[d + 1] = base[d] + min(a.slots[d], CORES)
    core_free = np.zeros(base[devices])
    for at in range(low):
        _occupy(base, core_free, where[order[at]], finish[order[at]])
    local = np.full(n, -1, np.int32)
    node, rest, device = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    before_start, after_start, room = np.zeros(most + 1, np.int32), np.zeros(most + 2, np.int32), 4 * most
    before, after, size = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room)
    release = np.empty((most, devices))
    position, by_rank = np.empty(most, np.int32), np.empty(most, np.int32)
    start, end, cause = np.empty(most), np.empty(most), np.empty(most, np.int32)
    new_start, new_end, new_cause = np.empty(most), np.empty(most), np.empty(most, np.int32)
    state = seeded(seed)
    m, runs = 0, 0
    while low < high or m > 0:
        while m < most and low < high:
            node[m] = order[low]
            m += 1
            low += 1
        edges = 0
        for k in range(m):
            local[node[k]] = k
            device[k] = where[node[k]]
            edges += a.input_start[node[k] + 1] - a.input_start[node[k]]
        if edges > room:
            room = 2 * edges
            before, after, size = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(room)
        _cut_out(a, m, node, local, where, finish, before_start, before, after_start, after, size, release)
        for k in range(m):
            start[k] = rank[node[k]]
        sort(m, start, end, by_rank)
        for c in range(m):
            position[by_rank[c]] = c
        # At the end of the step nothing follows that the mean would matter to, but it tells equal ends apart.
        share = 1.0 if low < n else 1e-3
        best = _run(
            a, m, node, device, before_start, after_start, after, size, release, position, by_rank, base, core_free,
            share, start, end, cause,
        )  # fmt: skip
        failed = 0
        while failed < failures and runs < runs_most:
            failed += 1
            state = next_random(state)
            k = _on_the_longest_way(m, end, cause, state >> 5)
            state = next_random(state)
            was = to = device[k]
            other = k
            if state & 32 and cause[k] != NO_CAUSE:
                to = device[cause[k] % m]
            if to == was:
                other = (state >> 8) % m
                to = device[other]
                if state & 64 or to == was:
                    other, to = k, (state >> 8) % devices
            x, y = node[k], node[other]
            more = memory[x] - (memory[y] if other != k else 0.0)
            if to == was or not may[x, to] or (other != k and not may[y, was]):
                continue
            if (more > 0.0 and used[to] + more > capacity[to]) or (more < 0.0 and used[was] - more > capacity[was]):
                continue
            device[k] = to
            if other != k:
                device[other] = was
            runs += m
            value = _run(
                a, m, node, device, before_start, after_start, after, size, release, position, by_rank, base,
                core_free, share, new_start, new_end, new_cause,
            )  # fmt: skip
            if value > best:
                if other != k:
                    device[other] = to
                device[k] = was
                continue
            if value < best * (1.0 - 1e-12):
                failed = 0
            best = value
            where[y] = device[other]
            where[x] = to
            used[was] -= more
            used[to] += more
            start, new_start = new_start, start
            end, new_end = new_end, end
            cause, new_cause = new_cause, cause
        sort(m, start, new_end, by_rank)
        done = m if low >= high else min(width, m)
        for c in range(m):
            k = by_rank[c]
            x = node[k]
            local[x] = -1
            if c < done:
                finish[x] = end[k]
                _occupy(base, core_free, device[k], end[k])
            else:
                rest[c - done] = x
        m -= done
        node, rest = rest, node
    return runs


@compiled
def _occupy(base: Ints, core_free: Floats, d: int, until: float) -> None:
    """Take the core of a device that is free first."""
    core = base[d]
    for c in range(base[d] + 1, base[d + 1]):
        if core_free[c] < core_free[core]:
            core = c
    core_free[core] = max(core_free[core], until)


@compiled
def _cut_out(
    a: Arrays, m: int, node: Ints, local: Ints, where: Ints, finish: Floats, before_start: Ints, before: Ints,
    after_start: Ints, after: Ints, size: Floats, release: Floats,
) -> None:  # fmt: skip
    """The edges within a window, by consumer and by producer; what comes from before it is a time on each device."""
    devices = len(a.device_class)
    for k in range(m + 2):
        after_start[k] = 0
    edges = 0
    for k in range(m):
        x = node[k]
        before_start[k] = edges
        for d in range(devices):
            release[k, d] = 0.0
        for e in range(a.input_start[x], a.input_start[x + 1]):
            v = a.input_value[e]
            p = a.value_source[v]
            if local[p] >= 0:
                before[edges] = v
                after_start[local[p] + 2] += 1
                edges += 1
                continue
            s = where[p]
            for d in range(devices):
                at = finish[p]
                if s != d:
                    at += travel_time(a, s, d, a.value_bytes[v])
                release[k, d] = max(release[k, d], at)
    before_start[m] = edges
    for k in range(m):
        after_start[k + 2] += after_start[k + 1]
    for k in range(m):
        for e in range(before_start[k], before_start[k + 1]):
            v = before[e]
            j = local[a.value_source[v]]
            to = after_start[j + 1]
            after[to], size[to] = k, a.value_bytes[v]
            after_start[j + 1] = to + 1


@compiled
def _on_the_longest_way(m: int, end: Floats, cause: Ints, number: int) -> int:
    """One of the nodes that the last end of the window waits for."""
    last = 0
    for k in range(m):
        if end[k] > end[last]:
            last = k
    length, k = 0, last
    while k != NO_CAUSE:
        length += 1
        k = cause[k] % m if cause[k] != NO_CAUSE else NO_CAUSE
    k = last
    for _ in range(number % length):
        k = cause[k] % m
    return k


@compiled
def _run(
    a: Arrays, m: int, node: Ints, device: Ints, before_start: Ints, after_start: Ints, after: Ints, size: Floats,
    release: Floats, position: Ints, by_rank: Ints, base: Ints, core_free: Floats, share: float,
    start: Floats, end: Floats, cause: Ints,
) -> float:  # fmt: skip
    """Run the window's nodes on a clock, as `clock.run` does; returns its last end, and a share of the mean one.

    `cause` is the producer that a node waited for, or m + the node that ran before it, or NO_CAUSE.
    """
    devices = len(a.device_class)
    heap_base = np.zeros(devices + 1, np.int32)
    waiting, data_at = np.empty(m, np.int32), np.empty(m)
    for k in range(m):
        heap_base[device[k] + 1] += 1
    for d in range(devices):
        heap_base[d + 1] += heap_base[d]
    heap, ready, busy = np.empty(m, np.int32), np.zeros(devices, np.int32), np.zeros(devices, np.int32)
    touched, is_touched = np.empty(devices, np.int32), np.zeros(devices, np.bool_)
    ended, late = np.full(devices, -1, np.int32), np.zeros(devices)
    room = m + base[devices] + 1
    times, codes, events = np.empty(room), np.empty(room, np.int32), 0
    for d in range(devices):
        for c in range(base[d], base[d + 1]):
            late[d] = max(late[d], core_free[c])
            if core_free[c] > 0.0:
                busy[d] += 1
                events = push(times, codes, events, core_free[c], np.int64(2 * m + d))
    for k in range(m):
        waiting[k] = before_start[k + 1] - before_start[k]
        data_at[k] = release[k, device[k]]
        cause[k] = NO_CAUSE
        if waiting[k] == 0:
            events = push(times, codes, events, data_at[k], np.int64(k))
    while events > 0:
        now, count = times[0], 0
        while events > 0 and times[0] <= now:
            code = codes[0]
            events = pop(times, codes, events)
            d = code - 2 * m if code >= 2 * m else device[code % m]
            if not is_touched[d]:
                is_touched[d] = True
                touched[count] = d
                count += 1
            if code < m:
                push_ready(heap, heap_base[d], ready[d], position[code])
                ready[d] += 1
                continue
            busy[d] -= 1
            if code >= 2 * m:
                continue
            x = code - m
            ended[d] = x
            late[d] = max(late[d], now)
            for e in range(after_start[x], after_start[x + 1]):
                y = after[e]
                t = device[y]
                at = now
                if t != d:
                    at += travel_time(a, d, t, size[e])
                if at >= data_at[y]:
                    data_at[y], cause[y] = at, x
                waiting[y] -= 1
                if waiting[y] == 0:
                    events = push(times, codes, events, data_at[y], np.int64(y))
        for c in range(count):
            d = touched[c]
            is_touched[d] = False
            while ready[d] > 0 and busy[d] < base[d + 1] - base[d]:
                x = by_rank[pop_ready(heap, heap_base[d], ready[d])]
                ready[d] -= 1
                busy[d] += 1
                if data_at[x] < now:
                    cause[x] = ended[d] + m if ended[d] >= 0 else NO_CAUSE
                start[x], end[x] = now, now + a.seconds[a.device_class[d], node[x]]
                events = push(times, codes, events, end[x], np.int64(m + x))
    last, mean = 0.0, 0.0
    for d in range(devices):
        last = max(last, late[d])
        mean += late[d] / devices
    return last + share * mean


def window_pass(problem: Problem, where: Ints, seed: int) -> tuple[Ints, float]:
    """The assignment of groups after a pass over the whole step, and the price of it; it may be worse than before."""
    n = problem.nodes
    parts = PARTS if n > 2 * PARTS * (WIDTH + AHEAD) else 1
    return _refined(problem, where, [n * i // parts for i in range(parts + 1)], WIDTH, FAILURES, PASS_RUNS * n, seed)


def ended(problem: Problem, where: Ints, seed: int) -> tuple[Ints, float]:
    """The same for the end of the step alone, with patience: there a gain in the window is one of the step."""
    n = problem.nodes
    return _refined(problem, where, [max(n - LAST, 0), n], LAST, LAST_FAILURES, LAST_RUNS, seed)


def _refined(
    problem: Problem, where: Ints, edges: list[int], width: int, failures: int, runs_most: int, seed: int
) -> tuple[Ints, float]:
    """Refine parts of the schedule side by side, from edge to edge; how many there are does not hang on the machine."""
    p, a, device = problem, problem.arrays, where[problem.group]
    start, finish, _ = p.clocked(device)
    position = np.empty(p.nodes, np.int32)
    position[p.topological] = np.arange(p.nodes, dtype=np.int32)
    order = np.lexsort((position, start)).astype(np.int32)
    may = p.group_allowed[p.group] & (np.bincount(p.group)[p.group] == 1)[:, None]
    used = np.bincount(device, p.memory, p.devices)
    capacity = used + (p.capacity - used) / (len(edges) - 1)  # a share of what is free, so that the parts fit together

    def part(number: int) -> tuple[Ints, int]:
        changed = device.copy()
        runs = improve(
            a, p.rank, order, edges[number], edges[number + 1], finish.copy(), may, p.memory, capacity, changed,
            width, AHEAD, failures, runs_most, seed * 101 + number + 1,
        )  # fmt: skip
        return changed[order[edges[number] : edges[number + 1]]], runs

    with ThreadPoolExecutor(len(edges) - 1) as pool:
        done = list(pool.map(part, range(len(edges) - 1)))
    device[order[edges[0] :]] = np.concatenate([changed for changed, _ in done])
    after = np.empty(p.groups, np.int32)
    after[p.group] = device
    return after, sum(runs for _, runs in done) * VISIT_S
