"""Training the digits on a cluster of processes of this machine, beside TensorFlow.

The classifier 64-256-256-10, batches of 64, gradient descent: the same program on the same cluster in both systems, which take turns in
one run. Asynchronous and synchronous (SyncReplicasOptimizer) training have two parameter servers and two workers;
MultiWorkerMirroredStrategy has two workers, which reduce by TensorFlow's RING and by Dovetail's AUTO. Steps are those of one worker.

All of it takes about three minutes on two cores. `--only NAME` measures a part of it anew.
"""

import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
SYSTEMS = {"dovetail": "Dovetail", "tensorflow": "TensorFlow"}
WARM, STEPS, ROUNDS = 600, 300, 5
LIMIT_S = 300.0  # also for starting


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

    def train(self, steps: int) -> tuple[float, float] | None:
        """All workers train at once: steps per second and worker, and processor seconds of a step; None when something has failed."""
        began = 0.0 if self.missing else cpu_seconds(self.pids)
        seconds = [float(s) for s in self.say(str(steps), "SECONDS", len(self.workers), LIMIT_S)]
        if not seconds:
            return None
        return sum(steps / s for s in seconds) / len(seconds), (cpu_seconds(self.pids) - began) / steps / len(seconds)


def rows(way: str, quick: bool) -> Iterator[Row]:
    """The row of one way to train."""
    pythons = {"dovetail": sys.executable, "tensorflow": peer_python()}
    steps = 50 if quick else STEPS
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(contextlib.closing(Cluster(s, p, way))) for s, p in pythons.items()]
        for cluster in clusters:  # until kernels are compiled
            cluster.train(50 if quick else WARM)
        found: list[list[tuple[float, float]]] = [[] for _ in clusters]
        for number in range(1 if quick else ROUNDS):
            order = list(range(len(clusters)))
            for i in order if number % 2 == 0 else order[::-1]:
                rate = clusters[i].train(steps)
                found[i] += [] if rate is None else [rate]
        if clusters[0].missing:
            raise RuntimeError(clusters[0].missing)
        if clusters[1].missing:
            print(f"TensorFlow left out ({pythons['tensorflow']}): {clusters[1].missing}", file=sys.stderr)
    for which, (name, unit, scale, target) in enumerate((("", "steps/s", 1.0, "ratio >= 5"), (", cpu", "µs", 1e6, ""))):
        figures = [statistics.median(f[which] for f in each) * scale if each else None for each in found]
        yield row(f"{TITLES[way]}{name}", unit, figures[0] or 0.0, figures[1], SYSTEMS["tensorflow"], target)


if __name__ == "__main__":
    groups: dict[str, Callable[[bool], Iterator[Row]]] = {way: partial(rows, way) for way in TITLES}
    main("Training the digits on a cluster", groups)
