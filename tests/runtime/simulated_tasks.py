"""Members that share memory, without processes: tasks, the messages between them, and steps that go on in any order."""

from __future__ import annotations

import numpy as np

from dovetail.graph.resources.async_request import Request
from dovetail.graph.resources.collective_context import CollectiveCall
from dovetail.runtime.collectives import algorithms
from dovetail.runtime.collectives.coordinator import Coordinator
from dovetail.runtime.collectives.shared_memory_algorithms import SharedMemoryAllReduce

TASKS = [f"/job:worker/replica:0/task:{i}" for i in range(5)]


class Machine:
    """Memory of one process; nobody may sleep, so all that waits is woken by a message."""

    def __init__(self, limit=1 << 30, opens=True):
        self.limit, self.opens = limit, opens

    memory: list[memoryview] = []

    def make(self, size):
        if size > self.limit:
            return None
        self.memory.append(memoryview(bytearray(size)))
        return [len(self.memory) - 1], self.memory[-1]

    def open(self, place, size):
        return self.memory[place[0]][:size] if self.opens else None

    def may_sleep(self):
        return False


class Session:
    """Stands for a session."""


def member(session, members, rank, instance="g", run=0):
    """A member's call of a collective."""
    return CollectiveCall("all_reduce", "node", session, instance, run, (), {"members": tuple(members), "rank": rank})


class Net:
    """Tasks, the messages between them, and what their steps wait for."""

    def __init__(self, count=2, machines=None):
        self.tasks = TASKS[:count]
        self.under_way = []
        self.events = []
        self.down = set()
        self.sessions = [Session() for _ in self.tasks]
        machines = machines or [Machine() for _ in self.tasks]
        self.coordinators = [self.coordinator(t, m) for t, m in zip(self.tasks, machines, strict=True)]

    def coordinator(self, task, machine):
        return Coordinator(task, lambda to, fields, tensors: self.send(task, to, fields, tensors), 5.0, machine)

    def send(self, sender, to, fields, tensors):
        if to not in self.down and sender not in self.down:
            self.events.append(fields["event"])
            self.under_way.append((self.tasks.index(to), dict(fields), tensors))

    def ask(self, i, value, run=0, what="sum", instance="g"):
        value = np.asarray(value)
        exchange = algorithms.all_reduce(i, len(self.tasks), value, what, "auto")
        shared = SharedMemoryAllReduce(value, what)
        return self.come(i, (instance, run), f"{what} {value.dtype}{value.shape}", lambda: exchange, shared)

    def come(self, i, key, signature, exchange, shared, finish=lambda x: x):
        """A step of a member that comes to a collective."""
        members = [f"{t}/device:CPU:0" for t in self.tasks]
        return Step(
            lambda: self.coordinators[i].take_part(
                member(self.sessions[i], members, i, *key), signature, exchange, finish, shared
            )
        )

    def play(self, steps=(), rng=None):
        """Deliver messages and let steps go on until nothing is left to do."""
        while True:
            ready = [s for s in steps if s.is_ready()]
            if not self.under_way and not ready:
                return
            at = 0 if rng is None else rng.randrange(len(self.under_way) + len(ready))
            if at < len(self.under_way):
                to, fields, tensors = self.under_way.pop(at)
                if self.tasks[to] not in self.down:
                    self.coordinators[to].message(fields, tensors)
            else:
                ready[at - len(self.under_way)].go_on()


class Step:
    """A step that stands at a collective."""

    def __init__(self, ask):
        self._do(ask)

    def is_ready(self):
        return isinstance(self.result, Request) and self.result.state.name != "WAITING"

    def go_on(self):
        self._do(self.result.result)

    def _do(self, what):
        try:
            self.result = what()
        except Exception as e:
            self.result = e
