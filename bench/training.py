"""Training the digits on a cluster of processes of this machine, beside TensorFlow.

The classifier 64-256-256-10, batches of 64, gradient descent: the same program on the same cluster in both systems, which take turns in
one run. Asynchronous and synchronous (SyncReplicasOptimizer) training have two parameter servers and two workers;
MultiWorkerMirroredStrategy has two workers, which reduce by TensorFlow's RING and by Dovetail's AUTO. Steps are those of one worker.

All of it takes about three minutes on two cores. `--only NAME` measures a part of it anew.
"""

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from _harness import Row, main, peer_python, row

TASK = Path(__file__).with_name("_training.py")
CLUSTERS = {
    "asynchronous": {"ps": 2, "worker": 2},
    "synchronous": {"ps": 2, "worker": 2},
    "mirrored": {"worker": 2},
}
TITLES = {
    "asynchronous": "asynchronous training",
    "synchronous": "synchronous training",
    "mirrored": "MultiWorkerMirroredStrategy",
}
SYSTEMS = {"dovetail": "Dovetail", "tensorflow": "TensorFlow"}
WARM, STEPS, ROUNDS = 600, 300, 5
LIMIT_S = 300.0  # also for starting


class Cluster:
    """The processes of one system, with `settings` in their environment. `missing` says why there are none (any more)."""

    def __init__(self, system: str, python: str, way: str, **settings: str) -> None:
        self.missing = ""
        jobs = CLUSTERS[way]
        ports = iter(_free_ports(sum(jobs.values())))
        cluster = {job: [f"localhost:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (it lives as long as the cluster)
        self._tasks = {
            (job, i): subprocess.Popen(
                [python, str(TASK), system, way, json.dumps(cluster), job, str(i)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True,
                env=os.environ | settings,
            )
            for job, count in jobs.items()
            for i in range(count)
        }  # fmt: skip
        self.pids = [p.pid for p in self._tasks.values()]
        self.workers = [p for (job, _), p in self._tasks.items() if job == "worker"]

    def train(self, steps: int) -> float | None:
        """All workers train at once: steps per second and worker; None when something has failed."""
        if self.missing:
            return None
        limit = threading.Timer(LIMIT_S, self._kill)
        limit.start()
        try:
            for p in self.workers:
                assert p.stdin is not None
                with contextlib.suppress(OSError):
                    print(steps, file=p.stdin, flush=True)
            seconds = [_answer(p) for p in self.workers]
        finally:
            limit.cancel()
        found = [s for s in seconds if s is not None]
        if len(found) == len(self.workers):
            return sum(steps / s for s in found) / len(found)
        self.close()
        self._errors.seek(0)
        self.missing = (self._errors.read().strip().splitlines() or [f"no answer in {LIMIT_S:.0f} s"])[-1]
        return None

    def _kill(self) -> None:
        for p in self._tasks.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(p.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the processes."""
        self._kill()
        for p in self._tasks.values():
            p.communicate()


def _answer(process: "subprocess.Popen[str]") -> float | None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("SECONDS "):
            return float(line.split()[1])
    return None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


def rows(way: str, quick: bool) -> Iterator[Row]:
    """The row of one way to train."""
    pythons = {"dovetail": sys.executable, "tensorflow": peer_python()}
    steps = 50 if quick else STEPS
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(contextlib.closing(Cluster(s, p, way))) for s, p in pythons.items()]
        for cluster in clusters:  # until kernels are compiled
            cluster.train(50 if quick else WARM)
        found: list[list[float]] = [[] for _ in clusters]
        for number in range(1 if quick else ROUNDS):
            order = list(range(len(clusters)))
            for i in order if number % 2 == 0 else order[::-1]:
                rate = clusters[i].train(steps)
                found[i] += [] if rate is None else [rate]
        if clusters[0].missing:
            raise RuntimeError(clusters[0].missing)
        if clusters[1].missing:
            print(f"TensorFlow left out ({pythons['tensorflow']}): {clusters[1].missing}", file=sys.stderr)
    rates = [statistics.median(f) if f else None for f in found]
    yield row(TITLES[way], "steps/s", rates[0] or 0.0, rates[1], SYSTEMS["tensorflow"], "ratio >= 5")


if __name__ == "__main__":
    groups: dict[str, Callable[[bool], Iterator[Row]]] = {way: partial(rows, way) for way in CLUSTERS}
    main("Training the digits on a cluster", groups)
