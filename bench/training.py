"""Training the digits on a cluster of processes of this machine, beside TensorFlow.

The classifier 64-256-256-10, batches of 64, gradient descent: the same program on the same cluster in both systems, which take turns in
one run. Asynchronous and synchronous (SyncReplicasOptimizer) training have two parameter servers and two workers;
MultiWorkerMirroredStrategy has two workers, which reduce by TensorFlow's RING and by Dovetail's AUTO; PyTorch's DistributedDataParallel
over gloo stands beside it, in the interpreter that DOVETAIL_GLOO_PYTHON names. Steps are those of one worker; `p99` is the 99th
percentile of single steps.

All of it takes about three minutes on two cores. `--only NAME` measures a part of it anew.
"""

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from _clusters import cpu_seconds

from _harness import Row, main, peer_python, row
from _processes import Group, free_ports

TASK = Path(__file__).with_name("_training.py")
CLUSTERS = {
    "asynchronous": {"ps": 2, "worker": 2},
    "synchronous": {"ps": 2, "worker": 2},
    "mirrored": {"worker": 2},
    "wide": {"worker": 2},  # only for `ablation.py --runtime`
}
TITLES = {
    "asynchronous": "asynchronous training",
    "synchronous": "synchronous training",
    "mirrored": "MultiWorkerMirroredStrategy",
}
SYSTEMS = {"tensorflow": "TensorFlow", "torch": "PyTorch DDP"}
WARM, STEPS, ROUNDS = 600, 300, 5
LIMIT_S = 300.0  # also for starting


class Trained(NamedTuple):
    """What so many steps took.

    Attributes:
        rate: steps per second and worker. cpu: processor seconds of a step. p99: seconds of the slowest hundredth of steps.
    """

    rate: float
    cpu: float
    p99: float


class Cluster(Group):
    """The processes of one system, with `settings` in their environment."""

    def __init__(self, system: str, python: str, way: str, **settings: str) -> None:
        jobs = CLUSTERS[way]
        ports = iter(free_ports(sum(jobs.values())))
        cluster = {job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
        tasks = [(job, i) for job, count in jobs.items() for i in range(count)]
        commands = [[python, str(TASK), system, way, json.dumps(cluster), job, str(i)] for job, i in tasks]
        self.workers = [number for number, (job, _) in enumerate(tasks) if job == "worker"]
        super().__init__(commands, self.workers, **settings)

    def train(self, steps: int) -> Trained | None:
        """All workers train at once; None when something has failed."""
        began = 0.0 if self.missing else cpu_seconds(self.pids)
        found = [tuple(map(float, s.split())) for s in self.say(str(steps), "SECONDS", len(self.workers), LIMIT_S)]
        if not found:
            return None
        cpu = (cpu_seconds(self.pids) - began) / steps / len(found)
        return Trained(sum(steps / s for s, _ in found) / len(found), cpu, max(p99 for _, p99 in found))


def rows(way: str, quick: bool) -> Iterator[Row]:
    """The rows of one way to train, beside each peer that is installed."""
    pythons = {"dovetail": sys.executable, "tensorflow": peer_python()}
    if way == "mirrored" and (torch := os.environ.get("DOVETAIL_GLOO_PYTHON")):
        pythons["torch"] = torch
    steps = 50 if quick else STEPS
    with contextlib.ExitStack() as stack:
        clusters = {s: stack.enter_context(contextlib.closing(Cluster(s, p, way))) for s, p in pythons.items()}
        for cluster in clusters.values():  # until kernels are compiled
            cluster.train(50 if quick else WARM)
        found: dict[str, list[Trained]] = {system: [] for system in clusters}
        for number in range(1 if quick else ROUNDS):
            order = list(clusters)
            for system in order if number % 2 == 0 else order[::-1]:
                trained = clusters[system].train(steps)
                found[system] += [] if trained is None else [trained]
        if clusters["dovetail"].missing:
            raise RuntimeError(clusters["dovetail"].missing)
    for peer in [name for name in SYSTEMS if name in clusters]:
        if clusters[peer].missing:
            print(f"{SYSTEMS[peer]} left out ({pythons[peer]}): {clusters[peer].missing}", file=sys.stderr)
            if peer != "tensorflow":
                continue
        for which, what, unit, scale, target in (
            (0, "", "steps/s", 1.0, "ratio >= 5" if peer == "tensorflow" else "ratio >= 1"),
            (1, ", cpu", "µs", 1e6, ""),
            (2, ", p99", "µs", 1e6, ""),
        ):
            ours, theirs = (
                statistics.median(t[which] for t in each) * scale if each else None
                for each in (found["dovetail"], found[peer])
            )
            yield row(f"{TITLES[way]}{what}", unit, ours or 0.0, theirs, SYSTEMS[peer], target)


if __name__ == "__main__":
    groups: dict[str, Callable[[bool], Iterator[Row]]] = {way: partial(rows, way) for way in TITLES}
    main("Training the digits on a cluster", groups)
