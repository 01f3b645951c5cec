"""Steps of several tasks, joined in one process, in every order of events."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from shells import Notebook

import dovetail as tf
from dovetail.codegen.options import KernelOptions
from dovetail.codegen.pipeline import compile_partition, cpu_backend
from dovetail.codegen.reference import NumpyBackend
from dovetail.graph.core.errors import OpError
from dovetail.graph.resources.resource_manager import DEAD, Context, Resources, SessionState
from dovetail.placer.cluster.spec import Cluster, local_devices
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.partitioned_graph import Partitioned, task_of
from dovetail.placer.partition.prune import needed
from dovetail.placer.rules.place import place
from dovetail.placer.schedule.pacing import schedule_receives
from dovetail.runtime.master.lowering import lower_partitions
from dovetail.runtime.worker.executor import Executor
from dovetail.runtime.worker.registration import pack_partitions, unpack_partitions
from dovetail.runtime.worker.step import TaskStep

TASKS = ("/job:a/replica:0/task:0", "/job:b/replica:0/task:0", "/job:c/replica:0/task:0")
CLUSTER = Cluster(tuple(d for t in TASKS for d in local_devices(t, {"CPU": 2}, incarnation=1)), TASKS[0])


class Joined:
    """The devices of `CLUSTER` in one process, with state that stays from run to run.

    `messages` counts what the last run sent between tasks, by the name of the value and the destination.
    """

    def __init__(self, graph: tf.Graph, paced: bool = False) -> None:
        self.graph = graph
        self.paced = paced  # whether sends are held back while their receiver is far behind
        self.resources = {task: Resources() for task in TASKS}
        self.states = {task: SessionState(5) for task in TASKS}
        self.messages: Counter[tuple[str, str]] = Counter()
        self.dead: Counter[str] = Counter()

    def cut(self, fetches: Sequence[Any], feeds: Sequence[Any] = (), targets: Sequence[Any] = ()) -> Partitioned:
        nodes = needed(self.graph, fetches, targets, feeds)
        cut = partition(nodes, place(self.graph, CLUSTER).device_of, fetches=fetches, feeds=feeds)
        return schedule_receives(cut) if self.paced else cut

    def run(
        self,
        fetches: Sequence[Any],
        feeds: Mapping[Any, Any] | None = None,
        targets: Sequence[Any] = (),
        seed: int = 0,
    ) -> list[Any]:
        feeds = feeds or {}
        cut = self.cut(fetches, list(feeds), targets)
        partitions = unpack_partitions(pack_partitions(lower_partitions(cut, self.graph)))
        ready: list[Executor] = []
        outcomes: dict[str, Any] = {}
        steps: dict[str, TaskStep] = {}
        flying: list[tuple[str, int | str, Any]] = []
        chance = random.Random(seed)
        self.messages.clear()
        self.dead.clear()

        def push(destination: str, channel: int | str, value: Any, more: bool) -> None:
            name = cut.channels[int(str(channel).partition("@")[0])].name
            self.messages[name, task_of(destination)] += 1
            self.dead[name] += value is DEAD
            flying.append((destination, channel, value))

        backend = cpu_backend(KernelOptions()) if seed % 2 else NumpyBackend()
        for task in TASKS:
            programs = [
                # Every other run is of rewritten graphs.
                compile_partition(u, backend, lambda node, task=task: self._context(node, task))
                for u in partitions
                if task_of(u.device) == task
            ]
            if programs:
                shell = Notebook()
                shell.ready, shell.push = ready, push  # type: ignore[method-assign]
                shell.finish = partial(outcomes.__setitem__, task)  # type: ignore[method-assign]
                steps[task] = TaskStep(1, "s", programs, {t.name: v for t, v in feeds.items()}, shell)
        for step in chance.sample(list(steps.values()), len(steps)):
            step.start()
        while ready or flying:
            if ready and (not flying or chance.random() < 0.6):
                ready.pop(chance.randrange(len(ready))).run()
            else:
                destination, channel, value = flying.pop(chance.randrange(len(flying)))
                steps[task_of(destination)].deliver({channel: value})
        found: dict[str, Any] = {}
        for outcome in outcomes.values():
            if isinstance(outcome, OpError):
                raise outcome
        waits = [w for s in steps.values() for w in s.waits_for()]
        assert len(outcomes) == len(steps), waits
        assert not any(s._arrived for s in steps.values()), "something was sent that nobody took"
        for outcome in outcomes.values():
            found.update(outcome)
        return [found[t.name] if t not in feeds else feeds[t] for t in fetches]

    def _context(self, node: Any, task: str) -> Context:
        return Context(
            node.name,
            node.container,
            self.resources[task],
            self.states[task],
            tuple(t.dims for t in node.outputs),
        )
