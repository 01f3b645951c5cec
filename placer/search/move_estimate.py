"""What a move does to a step on a clock, estimated from the schedule of the current assignment in the time of a few nodes.

Searches for job shops judge moves by heads and tails (Taillard, 1994; Mastrolilli and Gambardella, 2000). The head of a node is when its
inputs are there. Its tail is the longest way from its end to the end of the step, through what takes its values and what runs behind it
on its device. A moved node ends at its new head and its time there; then its new tail follows, and that of the node that it pushes back.
The longest of these ways is the estimate. It leaves out what the move makes shorter, and queues of links.

So an estimate is no bound. It rejects 70 to 97 % of all moves, among them 10 to 30 % of those that the clock would accept, and takes
about a hundredth of a run on the clock.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .clock import MOMENT
from .evaluate import travel_time
from .jit import inner
from .types import Arrays, Flags, Floats, Ints


class Schedule(NamedTuple):
    """A step as the clock has run it: when each node starts and ends (n,), and the nodes in the order in which they end."""

    start: Floats
    finish: Floats
    ended: Ints


class Tails(NamedTuple):
    """What estimates need of the current schedule."""

    tail: Floats  # (n,) time from the end of each node to the end of the step
    base: Ints  # (D + 1,) the nodes of device d, as they run there, are order[base[d] : base[d + 1]]
    order: Ints  # (n,)
    span: Floats  # (1,) when the last node ends
    moved_end: Floats  # (n,) used by `estimate` only, as what follows
    is_moved: Flags  # (n,)
    free: Floats  # (D,) when the moved nodes have ended that a device has been given so far


@inner
def schedule_of(n: int) -> Schedule:
    """Room for a schedule of n nodes."""
    return Schedule(np.zeros(n), np.zeros(n), np.zeros(n, np.int32))


@inner
def tails_of(n: int, devices: int) -> Tails:
    """Room for the tails of n nodes."""
    return Tails(
        np.zeros(n), np.zeros(devices + 1, np.int32), np.zeros(n, np.int32), np.zeros(1),
        np.zeros(n), np.zeros(n, np.bool_), np.zeros(devices),
    )  # fmt: skip


@inner
def find_tails(a: Arrays, device: Ints, s: Schedule, t: Tails) -> None:
    """Set the tails to those of a schedule of `device` (n,)."""
    t.base[:] = 0
    for d in device:
        t.base[d + 1] += 1
    for d in range(len(t.base) - 1):
        t.base[d + 1] += t.base[d]
    first = t.base[1:].copy()  # of the nodes that a device runs behind the one at hand
    t.span[0] = 0.0
    for x in s.ended[::-1]:
        d = device[x]
        tail = _behind(a, device, s, t, x)
        if first[d] < t.base[d + 1] and a.slots[d] == 1:
            tail = max(tail, _from_start(s, t, t.order[first[d]]))
        first[d] -= 1
        t.order[first[d]] = x
        t.tail[x] = tail
        t.span[0] = max(t.span[0], s.finish[x] + t.tail[x])


@inner
def is_critical(s: Schedule, t: Tails, moved: Ints) -> bool:
    """Whether one of the nodes is on a longest way: only then the step can become shorter as they move."""
    latest = 0.0
    for x in moved:
        latest = max(latest, s.finish[x] + t.tail[x])
    return bool(latest >= t.span[0] * (1.0 - 1e-9))


@inner
def estimate(a: Arrays, device: Ints, rank: Ints, moved: Ints, s: Schedule, t: Tails) -> float:
    """About how long the step takes once nodes have moved.

    Args:
        device: (n,) where each node is then. rank: (n,) the position of each by priority. moved: the nodes, each after its inputs.
    """
    for x in moved:
        t.is_moved[x] = True
        t.moved_end[x] = s.finish[x]
        t.free[device[x]] = 0.0
    longest = 0.0
    for x in moved:
        d = device[x]
        now = max(t.free[d], a.fed_at[d, x] if len(a.fed_at) else 0.0)
        for e in range(a.input_start[x], a.input_start[x + 1]):
            v = a.input_value[e]
            source = a.value_source[v]
            end = t.moved_end[source] if t.is_moved[source] else s.finish[source]
            if device[source] != d:
                end += travel_time(a, device[source], d, a.value_bytes[v])
            now = max(now, end)
        at, last = _place_behind(s, t, d, now), t.base[d + 1]
        if a.slots[d] == 1:
            if at < last and not t.is_moved[t.order[at]] and s.start[t.order[at]] < now:  # it runs
                now = s.finish[t.order[at]]
                at += 1
            while at < last:
                y = t.order[at]
                if not t.is_moved[y]:
                    if s.start[y] > now + MOMENT or rank[y] > rank[x]:
                        break
                    now = s.finish[y]
                at += 1
        now += a.seconds[a.device_class[d], x]
        t.moved_end[x] = t.free[d] = now
        if a.slots[d] == 1 and at < last and s.start[t.order[at]] < now:
            longest = max(longest, now + _from_start(s, t, t.order[at]))
        longest = max(longest, now + _behind(a, device, s, t, x))
    for x in moved:
        t.is_moved[x] = False
    return longest


@inner
def _from_start(s: Schedule, t: Tails, x: int) -> float:
    """From the start of a node to the end of the step."""
    return float(s.finish[x] - s.start[x] + t.tail[x])


@inner
def _behind(a: Arrays, device: Ints, s: Schedule, t: Tails, x: int) -> float:
    """The longest way from the end of a node to the end of the step: to the client, or through what takes its values and has not moved."""
    d = device[x]
    longest = a.back_after[d, x] if len(a.back_after) else 0.0
    for v in range(a.first_value[x], a.first_value[x + 1]):
        for e in range(a.value_start[v], a.value_start[v + 1]):
            y = a.value_target[e]
            if not t.is_moved[y]:
                way = _from_start(s, t, y)
                if device[y] != d:
                    way += travel_time(a, d, device[y], a.value_bytes[v])
                longest = max(longest, way)
    return float(longest)


@inner
def _place_behind(s: Schedule, t: Tails, d: int, now: float) -> int:
    """Where in the order of a device's nodes the first stands that ends later."""
    low, high = t.base[d], t.base[d + 1]
    while low < high:
        middle = (low + high) >> 1
        if s.finish[t.order[middle]] > now:
            high = middle
        else:
            low = middle + 1
    return int(low)
