"""A plan's step on a clock: devices run their nodes in the plan's order, and wait for each.

The machine is otherwise that of `evaluate.run`. Where it was measured, two things more are minded. What several tasks do at once, kernels
and the latency of what travels between them, shares the machine's processors (`processors.py`). And a task that works on for a short time
sends what it has made when it pauses, as workers do (`runtime/worker/step_scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import numpy as np

from .problem import Problem
from .processors import Processors
from .types import Ints

MOMENT = 1e-12  # seconds: what is so close happens together, as in evaluate.py
Travels = dict[tuple[int, int], tuple[float, float]]
"""(value, destination) -> when it leaves and arrives."""


def run_in_order(problem: Problem, device: Ints) -> tuple[list[float], list[float], Travels]:
    """The step of an assignment (n,) on which devices run nodes by number, which must be a topological order.

    Returns:
        (n,) when each node starts, and when it ends; what is sent, and when.
    """
    step = _InOrder(problem, device)
    step.run()
    return step.start, step.finish, step.travels


class _InOrder:
    """The events of a step, which have codes.

    x < n: the inputs of node x are there; n + x: it has ended; 2 n + 2 k: the latency of transfer k is over; 2 n + 2 k + 1: all of it has
    arrived. An event whose time has moved is pushed anew, and the old one is passed over.
    """

    def __init__(self, problem: Problem, device: Ints) -> None:
        a, n = problem.arrays, problem.nodes
        self.start, self.finish = [0.0] * n, [0.0] * n
        self.travels: Travels = {}
        self._problem, self._n, self._where = problem, n, device.tolist()
        self._takes = problem.seconds[problem.device_class[device], np.arange(n)].tolist()
        self._todo: list[list[int]] = [[] for _ in range(problem.devices)]  # of each device, last first
        for x in range(n - 1, -1, -1):
            self._todo[self._where[x]].append(x)
        self._waiting = np.diff(a.input_start).tolist()
        self._data_at = [0.0] * n if problem.fed_at is None else problem.fed_at[device, np.arange(n)].tolist()
        self._is_there, self._is_busy = [False] * n, [False] * problem.devices
        self._owed = [0.0] * problem.devices
        self._shared = Processors(problem)
        self._host = [-1] * problem.devices if problem.host is None else problem.host.tolist()
        self._used = [1.0] * n if problem.used is None else problem.used.tolist()
        self._first, self._targets, self._ends = a.first_value.tolist(), a.value_target.tolist(), a.value_start.tolist()
        self._sizes, self._sources = a.value_bytes.tolist(), a.value_source.tolist()
        self._latency, self._per_byte = problem.link_latency.tolist(), problem.link_per_byte.tolist()
        self._handling, self._handling_per_byte = a.handling.tolist(), a.handling_per_byte.tolist()
        self._link_free: dict[tuple[int, int], float] = {}
        # Transfer -> value, destination, and the nodes that need it there.
        self._under_way: list[tuple[int, int, list[int]]] = []
        # Of each device: value, destination, the nodes that need it there, since when.
        self._put_off: list[list[tuple[int, int, list[int], float]]] = [[] for _ in range(problem.devices)]
        self._coalesced = [] if problem.coalesced is None else problem.coalesced.tolist()
        self._works_on = self._until_it_sends_or_pauses() if self._coalesced else []
        self._over: set[int] = set()  # codes that are not to be minded again
        self._events = [(self._data_at[x], x) for x in range(n) if not self._waiting[x]]
        heapify(self._events)

    def _until_it_sends_or_pauses(self) -> list[float]:
        """(n,) seconds from the end of each node until its device sends again or waits for another one."""
        n, where, out = self._n, self._where, [0.0] * self._n
        sends, receives = [False] * n, [False] * n
        for v, source in enumerate(self._sources):
            for y in self._targets[self._ends[v] : self._ends[v + 1]]:
                if where[y] != where[source]:
                    sends[source] = receives[y] = True
        for nodes in self._todo:
            ahead = 0.0
            for x in nodes:
                out[x] = ahead
                ahead = 0.0 if receives[x] else self._takes[x] + (0.0 if sends[x] else ahead)
        return out

    def run(self) -> None:
        """Let all events happen, in the order of time."""
        n, events = self._n, self._events
        while events:
            now = events[0][0]
            touched = set[int]()
            while events and events[0][0] <= now + MOMENT:
                code = heappop(events)[1]
                if self._over and code in self._over:
                    continue
                if code < n:
                    self._is_there[code] = True
                    touched.add(self._where[code])
                elif code >= 2 * n:
                    self._travelled(code, now)
                elif self.finish[code - n] <= now + MOMENT:
                    touched.add(self._where[code - n])
                    self._ended(code - n, now)
            for d in sorted(touched):
                if not self._is_busy[d]:
                    self._go_on(d, now)
            for code, at in self._shared.changed(now) if self._shared.are_shared else ():
                if code < 2 * n:
                    self.finish[code - n] = at
                else:
                    v, there, _ = self._under_way[(code - 2 * n) // 2]
                    self.travels[v, there] = self.travels[v, there][0], at
                heappush(events, (at, code))

    def _go_on(self, d: int, now: float) -> None:
        """Begin a device's next node; where it has to wait, or there is none, send what was put off."""
        todo = self._todo[d]
        if todo and self._is_there[todo[-1]]:
            x = todo.pop()
            takes, self._owed[d] = self._owed[d] + self._takes[x], 0.0
            self._is_busy[d], self.start[x], self.finish[x] = True, now, now + takes
            if self._shared.are_shared:
                self._shared.begins(self._n + x, self._host[d], now, takes, self._used[x])
            heappush(self._events, (self.finish[x], self._n + x))
            return
        self._send_all(d, now)

    def _ended(self, x: int, now: float) -> None:
        here = self._where[x]
        self._is_busy[here] = False
        if self._shared.are_shared:
            self._over.add(self._n + x)
            self._shared.ends(self._n + x, self._host[here], now)
        puts_off = self._coalesced[here] if self._coalesced else []
        for v in range(self._first[x], self._first[x + 1]):
            needed: dict[int, list[int]] = {}
            for y in self._targets[self._ends[v] : self._ends[v + 1]]:
                needed.setdefault(self._where[y], []).append(y)
            self._deliver(needed.pop(here, ()), now)
            for there, targets in needed.items():
                if puts_off and 0.0 < puts_off[there] >= self._works_on[x]:
                    self._put_off[here].append((v, there, targets, now))
                else:
                    self._send(v, there, targets, now, now)
        if self._put_off[here] and now - self._put_off[here][0][3] > max(puts_off):
            self._send_all(here, now)

    def _send_all(self, d: int, now: float) -> None:
        put_off, self._put_off[d] = self._put_off[d], []
        for v, there, targets, made in put_off:
            self._send(v, there, targets, made, now)

    def _send(self, v: int, there: int, targets: list[int], made: float, now: float) -> None:
        here = self._where[self._sources[v]]
        latency, passes = self._latency[here][there], self._sizes[v] * self._per_byte[here][there]
        leaves, code = now, 2 * self._n + 2 * len(self._under_way)
        free = max(now, self._link_free.get((here, there), 0.0))
        self._link_free[here, there] = free + passes
        if self._problem.contended:
            leaves = free
        self._under_way.append((v, there, targets))
        self.travels[v, there] = (made if made < now else leaves), leaves + latency
        if free <= now and self._host[here] == self._host[there]:
            self._shared.begins(code, self._host[there], now, latency, 1.0)
        heappush(self._events, (leaves + latency, code))
        for d in (here, there):
            self._owed[d] += self._handling[here][there] + self._sizes[v] * self._handling_per_byte[here][there]

    def _travelled(self, code: int, now: float) -> None:
        """The latency of a transfer is over, or all of it has arrived."""
        v, there, targets = self._under_way[(code - 2 * self._n) // 2]
        made, at = self.travels[v, there]
        if at > now + MOMENT:
            return
        self._over.add(code)
        if code % 2:
            self._deliver(targets, now)
            return
        here = self._where[self._sources[v]]
        self._shared.ends(code, self._host[there], now)
        at = at + self._sizes[v] * self._per_byte[here][there]
        self.travels[v, there] = made, at
        heappush(self._events, (at, code + 1))

    def _deliver(self, targets: Iterable[int], now: float) -> None:
        """A value is there for these nodes: those that wait for nothing else begin in turn."""
        for y in targets:
            self._data_at[y] = max(self._data_at[y], now)
            self._waiting[y] -= 1
            if not self._waiting[y]:
                heappush(self._events, (self._data_at[y], y))
