"""The clock: one step of an assignment as a discrete-event simulation, for the search and for plans.

Events of one moment (within 1e-12 s, so that rounding does not split a moment) are taken together before any device chooses what it runs
next; it chooses by rank. So the result depends on nothing but the input. A step takes O((n + E) log n), and a look at all that runs on
shared machines for each moment.

A device runs ready nodes by rank; or, `in_order`, all its nodes by rank, and waits for each, as the devices of a plan do. Sending
or receiving a message delays a device's next node (`Problem.handling`). A value is sent once to each other task, to the device of its
first consumer there. When it has arrived, that device passes it on to the others of its task.

Where machines were measured, two things more are simulated:

- *Shared processors.* What the tasks of one machine do at once, kernels and the latency of what travels between them, gets
  `Problem.shared` cores together; one kernel alone may use all. An operating system that packs what was just woken on few cores, or tasks
  whose threads wait for each other, use fewer cores than there are. Where more is wanted, all slow down by the same factor, until
  something ends or begins. So each machine has a clock of its own, which runs slower then: what begins at its time t and needs s
  seconds alone ends at its time t + s.
- *Waking up.* What comes to a task that waits has to wake it, which takes `Problem.wake` and keeps a core busy. What comes meanwhile
  waits for that. A task that has sent something polls for an answer for `Problem.polls` seconds, and so is awake.

A search that judges one move after the other need not run all of the step for each. What a moved node changes begins when the first of
its inputs is made, so the clock sets out from a state of the current assignment that was kept before that moment (`resume`), and stops
as soon as the end is sure to be too late (`advance`). What comes out is the same, to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .heaps import pop, pop_ready, push, push_ready
from .jit import inlined, inner, one_pass
from .memory_penalty import times_slower
from .types import Arrays, Floats, Ints

MOMENT = 1e-12


class Clocks(NamedTuple):
    """States of a step, one a row, packed so that a state is copied at once; and the parts of row 0, the one that runs.

    Half of the other rows are states of the current assignment to set out from again, and half are room for those of an assignment that
    is tried; `row` says which are which. What follows `link_free` is empty where no machine was measured.
    """

    number: Ints  # (R, ...)
    time: Floats  # (R, ...)
    moment: Floats  # (R,) the first event that lies ahead
    row: Ints  # (2, (R - 1) / 2)
    heap: Ints  # (n,) heaps, by device, of the ranks of what is ready
    base: Ints  # (D + 1,) where each begins
    ready: Ints  # (D,) how long each is
    busy: Ints  # (D,) how many nodes run
    upcoming: Ints  # (D,) which rank a device waits for, in order
    waiting: Ints  # (n,) inputs that lack
    size: Ints  # (3,) events, nodes that have ended, what runs on shared machines
    codes: Ints  # (n + 1,) heap of events: x: the inputs of x are there; n + x: it has ended
    times: Floats  # (n + 1,) when
    data_at: Floats  # (n,) when the last input so far is there
    owed: Floats  # (D,) for what was sent and received: whatever a device runs next takes so much longer
    left: Floats  # (D,) work that lies ahead
    last: Floats  # (1,) the latest end
    link_free: Floats  # (P * P + D * seats,) of each pair of places, and of devices in a place
    active: Ints  # (3, A) what runs on shared machines: a node and -1, or a value and the first of its ends; and the machine
    active_end: Floats  # (A,) its end on its machine's clock
    machine: Floats  # (5, D) of each machine: its own clock, when that was, its speed, cores asked for, by how many
    awake: Floats  # (2, D) until when each device's task polls, and when it has woken up for what came last


@inner
def clocks(a: Arrays, kept: int | np.int64) -> Clocks:
    """Room for the state that runs and `kept` others.

    A node, and the latency of a transfer, shares a machine with what else runs there, for as many at once as there is room for.
    """
    n, d, rows = len(a.memory), len(a.device_class), 1 + 2 * kept
    shared, room, links = 0, 0, len(a.link_latency) ** 2 + d * a.seats
    if len(a.host):
        shared, room = d, min(n + len(a.value_target), n + 4 * d * d)
    row = np.empty((2, kept), np.int32)
    for k in range(kept):
        row[0, k], row[1, k] = 1 + k, 1 + kept + k
    number = np.empty((rows, 3 * n + 4 * d + 5 + 3 * room), np.int32)
    time = np.empty((rows, 2 * n + 2 + 2 * d + links + room + 7 * shared))
    i, f = number[0], time[0]
    at, of = 3 * n + 4 * d + 5, 2 * n + 2 + 2 * d
    by = of + links + room
    return Clocks(
        number, time, np.full(rows, np.inf), row,
        i[:n], i[n : n + d + 1], i[n + d + 1 : n + 2 * d + 1], i[n + 2 * d + 1 : n + 3 * d + 1], i[n + 3 * d + 1 : n + 4 * d + 1],
        i[n + 4 * d + 1 : 2 * n + 4 * d + 1], i[2 * n + 4 * d + 1 : 2 * n + 4 * d + 4], i[2 * n + 4 * d + 4 : at],
        f[: n + 1], f[n + 1 : 2 * n + 1], f[2 * n + 1 : 2 * n + 1 + d], f[2 * n + 1 + d : 2 * n + 1 + 2 * d], f[of - 1 : of],
        f[of : of + links],
        i[at:].reshape((3, room)), f[of + links : by], f[by : by + 5 * shared].reshape((5, shared)),
        f[by + 5 * shared :].reshape((2, shared)),
    )  # fmt: skip


@inner
def begin(a: Arrays, device: Ints, c: Clocks) -> None:
    """Set the clock to the begin of a step."""
    n = len(device)
    c.number[0, n:] = 0
    c.time[0] = 0.0
    c.machine[2:3] = 1.0
    for i in range(n):
        if len(a.fed_at):
            c.data_at[i] = a.fed_at[device[i], i]
        c.waiting[i] = a.input_start[i + 1] - a.input_start[i]
        if c.waiting[i] == 0:
            c.size[0] = push(c.times, c.codes, c.size[0], c.data_at[i], np.int64(i))
    _share_out(a, device, np.empty(0), 0.0, c)


@inner
def _share_out(a: Arrays, device: Ints, start: Floats, moment: float, c: Clocks) -> None:
    """Where the nodes of each device stand that are ready, and how much work lies ahead of it: of nodes that start after the moment."""
    c.base[:] = 0
    c.left[:] = 0.0
    for i in range(len(device)):
        d = device[i]
        c.base[d + 1] += 1
        if len(start) == 0 or start[i] > moment:
            c.left[d] += a.seconds[a.device_class[d], i]
    for d in range(len(c.left)):
        c.base[d + 1] += c.base[d]


@inner
def resume(a: Arrays, device: Ints, moved: Ints, start: Floats, since: float, c: Clocks) -> int:
    """Set the clock to the last state kept in which nothing has happened yet that moved nodes change; returns how many are before.

    Args:
        device: (n,) the assignment. moved: the nodes that are elsewhere in the current one, of which states are kept.
        start: (n,) when each node starts in that. since: when the first input of a moved node is made there.
    """
    k = len(c.row[0])
    while k > 0 and not c.moment[c.row[0, k - 1]] + MOMENT < since:
        k -= 1
    if k == 0:
        begin(a, device, c)
        return 0
    row = c.row[0, k - 1]
    number = c.number[row]
    c.number[0, :] = number
    c.time[0, :] = c.time[row]
    _share_out(a, device, start, c.moment[row], c)
    for d in range(len(c.left)):
        was = number[len(device) + d]
        for i in range(c.ready[d]):
            c.heap[c.base[d] + i] = number[was + i]
    if len(a.fed_at):
        for x in moved:
            c.data_at[x] = a.fed_at[device[x], x]
    return k


@inner
def keep(a: Arrays, device: Ints, moved: Ints, same: int | np.int64, c: Clocks) -> None:
    """Make the assignment that was run last the current one; `same` is what `resume` said."""
    for k in range(len(c.row[0])):
        if k >= same:
            c.row[0, k], c.row[1, k] = c.row[1, k], c.row[0, k]
        elif len(a.fed_at):
            for x in moved:
                c.time[c.row[0, k], len(device) + 1 + x] = a.fed_at[device[x], x]


@inlined
def _change_demand(a: Arrays, c: Clocks, host: int, now: float, cores: float, more: float) -> float:
    """One activity more (1.0) or fewer (-1.0) uses a machine's cores; returns the time of the machine's own clock."""
    own = c.machine[:, host]
    own[0] += (now - own[1]) * own[2]
    own[1] = now
    own[4] += more
    own[3] = own[3] + more * cores if own[4] > 0.0 else 0.0
    own[2] = min(1.0, a.shared / max(own[3], 1e-9)) if own[4] > 1.0 else 1.0
    return float(own[0])


@inner
def _add_active(a: Arrays, c: Clocks, host: int, now: float, takes: float, what: int, end: int, cores: float) -> None:
    k = c.size[2]
    c.active[0, k], c.active[1, k], c.active[2, k] = what, end, host
    c.active_end[k] = _change_demand(a, c, host, now, cores, 1.0) + takes
    c.size[2] += 1


@inlined
def _ends(c: Clocks, k: int) -> float:
    """When an activity on a shared machine ends, if none begins before."""
    own = c.machine[:, c.active[2, k]]
    return float(own[1] + max(c.active_end[k] - own[0], 0.0) / own[2])


@inlined
def _arrive(a: Arrays, x: int, at: float, c: Clocks) -> None:
    """Note that an input of a node has arrived at this time."""
    c.data_at[x] = max(c.data_at[x], at)
    c.waiting[x] -= 1
    if c.waiting[x] == 0:
        c.size[0] = push(c.times, c.codes, c.size[0], c.data_at[x], np.int64(x))


@inner
def _relay(
    a: Arrays, via: int, d: int, v: int, e: int, now: float, contended: bool, c: Clocks, travels: Floats
) -> float:
    """Pass a value on from a device to another one of its task, for the end e; returns when it arrives."""
    p = a.place[via]
    link = len(a.link_latency) ** 2 + via * a.seats + a.seat[d]
    free, passes = max(now, c.link_free[link]), a.value_bytes[v] * a.link_per_byte[p, p]
    c.link_free[link] = free + passes
    leaves = free if contended else now
    arrives = leaves + a.link_latency[p, p] + passes
    if travels.shape[1]:
        travels[0, e], travels[1, e] = leaves, arrives
    return float(arrives)


@inner
def _send(
    a: Arrays, device: Ints, rank: Ints, v: int, now: float, contended: bool, c: Clocks, sent: Ints, arrives: Floats, travels: Floats
) -> None:  # fmt: skip
    """Send a value. A node on the device of its source that lacks nothing else is ready at once, as its arrival would be of this moment.

    Args:
        sent, arrives: (D + P,), (D,) used here only. travels: (2, E) filled: when what goes to each end leaves and arrives; or (2, 0).
    """
    s = device[a.value_source[v]]
    for e in range(a.value_start[v], a.value_start[v + 1]):
        y = a.value_target[e]
        d = device[y]
        if d == s and c.waiting[y] == 1 and c.data_at[y] <= now:
            c.data_at[y], c.waiting[y] = now, 0
            push_ready(c.heap, c.base[s], c.ready[s], rank[y])
            c.ready[s] += 1
            continue
        if d == s:
            _arrive(a, y, now, c)
            continue
        if sent[d] != v:
            source, at, q = s, now, a.place[d]
            first = sent[len(a.place) + q]  # the first end in a place
            if q != a.place[s] and a.value_start[v] <= first < e:
                source = device[a.value_target[first]]
                at = arrives[source]
            else:
                sent[len(a.place) + q] = e
            sent[d], arrives[d] = v, np.inf
            if at < np.inf:
                p = a.place[source]
                latency, passes = a.link_latency[p, q], a.value_bytes[v] * a.link_per_byte[p, q]
                places = len(a.link_latency)
                link = p * places + q if p != q else places * places + source * a.seats + a.seat[d]
                free = max(at, c.link_free[link])
                leaves = free if contended else at
                c.link_free[link] = free + passes  # the last byte is still under way
                begins = leaves
                if a.wake > 0.0 and p != q:
                    c.awake[0, s] = now + a.polls
                    if c.busy[d] == 0 and now >= c.awake[0, d] and now >= c.awake[1, d]:
                        c.awake[1, d] = now + a.wake
                    begins = max(leaves, c.awake[1, d])
                arrives[d] = begins + latency + passes
                if (
                    len(a.host)
                    and source == s
                    and free <= now
                    and a.host[s] >= 0
                    and a.host[s] == a.host[d]
                    and c.size[2] < len(c.active_end)
                ):
                    arrives[d] = np.inf  # when its latency is over is not known yet
                    _add_active(a, c, a.host[d], now, begins - now + latency, v, e, 1.0)
                fixed, passing = a.alone[v] if len(a.alone) else 1.0, a.value_bytes[v] * a.handling_per_byte[p, q]
                c.owed[source] += fixed * a.handling[p, q] + passing
                c.owed[d] += fixed * a.handling[q, p] + passing
                if travels.shape[1]:
                    travels[0, e], travels[1, e] = leaves, arrives[d]
        if arrives[d] < np.inf:
            _arrive(a, y, arrives[d], c)


@inlined
def _is_apart(a: Arrays, x: int) -> bool:
    """Whether a node takes and gives nothing. If it takes no time either, no step runs it: it does not wait for messages to be handled."""
    return bool(a.input_start[x] == a.input_start[x + 1] and a.first_value[x] == a.first_value[x + 1])


@inner
def advance(
    a: Arrays, device: Ints, rank: Ints, by_rank: Ints, contended: bool, start: Floats, finish: Floats, c: Clocks, kept: int | np.int64,
    behind: Floats, limit: float, following: Ints, travels: Floats, ended: Ints,
) -> float:  # fmt: skip
    """Run the rest of a step; returns when its last node ends, or infinity as soon as that is sure to be later than `limit`.

    Args:
        start, finish: (n,) filled for the nodes that run. kept: how many of the states to keep are before.
        behind: (n,) the least time from the end of each node to the end of the step; or (0,): not known.
        following: (n,) the rank behind each rank on its device, which is waited for; or (0,): whatever is ready runs by rank.
        travels: (2, E) filled: when what goes to an end of a value leaves and arrives, at the first end on each device; or (2, 0).
        ended: (n,) filled: the nodes in the order in which they end.
    """
    n, devices = len(rank), len(a.device_class)
    times, codes, size = c.times, c.codes, c.size
    base, ready, busy, owed, left = c.base, c.ready, c.busy, c.owed, c.left
    touched, is_touched = np.empty(devices, np.int32), np.zeros(devices, np.bool_)
    sent, arrives = np.full(devices + len(a.link_latency), -1, np.int32), np.zeros(devices)
    keeps, last = len(c.row[0]), float(c.last[0])
    late = limit * (1.0 + 1e-9)  # what is left is a sum of differences
    for d in range(devices):
        if size[0] > 0 and times[0] + left[d] / a.slots[d] > late:
            return np.inf
    while size[0] > 0 or size[2] > 0:
        now = times[0] if size[0] > 0 else np.inf
        for k in range(size[2]):
            now = min(now, _ends(c, k))
        while kept < keeps and size[1] >= (kept + 1) * n // (keeps + 1):
            c.last[0] = last
            c.number[c.row[1, kept], :] = c.number[0]
            c.time[c.row[1, kept], :] = c.time[0]
            c.moment[c.row[1, kept]] = now
            kept += 1
        count = 0
        has_ended = size[2]
        for k in range(size[2] - 1, -1, -1):  # what ends on shared machines, behind all that does not
            if _ends(c, k) <= now + MOMENT:
                has_ended -= 1
                for row in range(3):
                    c.active[row, k], c.active[row, has_ended] = c.active[row, has_ended], c.active[row, k]
                c.active_end[k] = c.active_end[has_ended]
        for k in range(has_ended, size[2]):
            what, end = c.active[0, k], c.active[1, k]
            _change_demand(a, c, c.active[2, k], now, a.used[what] if end < 0 else 1.0, -1.0)
            if end < 0:
                finish[what] = now
                size[0] = push(times, codes, size[0], now, np.int64(n + what))
                continue
            there = device[a.value_target[end]]
            p, q = a.place[device[a.value_source[what]]], a.place[there]
            at = now + a.value_bytes[what] * a.link_per_byte[p, q]
            if travels.shape[1]:
                travels[1, end] = at
            for e in range(end, a.value_start[what + 1]):
                d = device[a.value_target[e]]
                if d == there:
                    _arrive(a, a.value_target[e], at, c)
                elif p != q and a.place[d] == q:
                    if sent[d] != -2 - what:
                        sent[d] = -2 - what
                        arrives[d] = _relay(a, there, d, what, e, at, contended, c, travels)
                    _arrive(a, a.value_target[e], arrives[d], c)
        size[2] = has_ended
        while size[0] > 0 and times[0] <= now + MOMENT:
            first = size[1]
            while size[0] > 0 and times[0] <= now + MOMENT:
                code = codes[0]
                size[0] = pop(times, codes, size[0])
                x = code % n
                s = device[x]
                if not is_touched[s]:
                    is_touched[s] = True
                    touched[count] = s
                    count += 1
                if code < n:  # all its inputs are there
                    push_ready(c.heap, base[s], ready[s], rank[x])
                    ready[s] += 1
                    continue
                busy[s] -= 1
                ended[size[1]] = x
                size[1] += 1
                last = max(last, now + (a.back_after[s, x] if len(a.back_after) else 0.0))
            for k in range(first, size[1]):
                for v in range(a.first_value[ended[k]], a.first_value[ended[k] + 1]):
                    _send(a, device, rank, v, now, contended, c, sent, arrives, travels)
        for k in range(count):
            d = touched[k]
            is_touched[d] = False
            while ready[d] > 0 and busy[d] < a.slots[d]:
                r = c.heap[base[d]]
                if len(following):
                    if r != c.upcoming[d]:
                        break
                    c.upcoming[d] = following[r]
                pop_ready(c.heap, base[d], ready[d])
                x = by_rank[r]
                ready[d] -= 1
                busy[d] += 1
                seconds = a.seconds[a.device_class[d], x]
                if seconds == 0.0 and _is_apart(a, x):
                    start[x] = finish[x] = now
                    size[0] = push(times, codes, size[0], now, np.int64(n + x))
                    continue
                start[x], finish[x] = now, now + owed[d] + seconds
                if now + (owed[d] + left[d]) / a.slots[d] > late or (len(behind) and finish[x] + behind[x] > late):
                    return np.inf
                left[d] -= seconds
                if len(a.host) and a.host[d] >= 0 and size[2] < len(c.active_end):
                    _add_active(a, c, a.host[d], now, owed[d] + seconds, x, -1, a.used[x])
                else:
                    size[0] = push(times, codes, size[0], finish[x], np.int64(n + x))
                owed[d] = 0.0
    for k in range(kept, keeps):
        c.moment[c.row[1, k]] = np.inf  # the step ended before
    if len(a.home_memory) and len(following) == 0:
        last *= times_slower(a, device, start, finish)
    return float(last)


@one_pass
def run(
    a: Arrays, device: Ints, rank: Ints, contended: bool, in_order: bool, start: Floats, finish: Floats, travels: Floats
) -> float:  # fmt: skip
    """Run one step on the clock; returns when the last node ends.

    It is longer where devices are too small for what they hold (`memory_penalty.py`), unless `in_order`.

    Args:
        in_order: devices wait for each of their nodes, in the order of ranks; else they run what is ready.
        start, finish: (n,) filled. travels: (2, E) filled as by `advance`, or (2, 0).
    """
    n = len(rank)
    by_rank, following = np.empty(n, np.int32), np.empty(n if in_order else 0, np.int32)
    for i in range(n):
        by_rank[rank[i]] = i
    c = clocks(a, np.int64(0))
    begin(a, device, c)
    if in_order:
        c.upcoming[:] = n
        for r in range(n - 1, -1, -1):
            d = device[by_rank[r]]
            following[r], c.upcoming[d] = c.upcoming[d], r
    ended = np.empty(n, np.int32)
    return advance(
        a, device, rank, by_rank, contended, start, finish, c, np.int64(0), np.empty(0), np.inf, following, travels, ended,
    )  # fmt: skip
