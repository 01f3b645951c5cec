"""Ray's compiled graphs on this machine: the programs of `_clusters.py` that have a counterpart there, as a `Conversation`.

Two actors, each a process, take the places of a ps and a worker. The driver executes a graph that was compiled once, and waits for its
result. Run as `python bench/_ray.py ray` by `Peer`.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _clusters import PATIENCE_S, cpu_seconds

import _processes
from _processes import Conversation

HOPS = 10
RAY_PYTHON = "DOVETAIL_RAY_PYTHON"
"""The environment variable that names an interpreter with Ray, where the running one has none."""


def drive() -> tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]:
    """Start Ray, and answer as `_clusters.drive` does."""
    import numpy as np
    import ray
    from ray.dag import InputNode

    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)

    @ray.remote
    class Task:
        def __init__(self) -> None:
            self.held = np.zeros(1, np.float32)

        def hold(self, mib: float) -> int:
            self.held = np.ones(int(mib * 2**18), np.float32)
            return os.getpid()

        def add(self, x: float) -> float:
            return x + 1.0

        def give(self, x: float) -> Any:
            return self.held

        def ends(self, held: Any, x: float) -> float:
            return float(held[0] + held[-1]) + x

    ps, worker = Task.remote(), Task.remote()
    pids = [os.getpid(), *(ray.get(task.hold.remote(0.0)) for task in (ps, worker))]
    compiled: list[Any] = []

    def respond(request: dict[str, Any]) -> dict[str, Any]:
        if "prepare" in request:
            while compiled:
                compiled.pop().teardown()
            mib = request.get("mib", 0)
            ray.get(ps.hold.remote(mib))
            with InputNode() as x:
                if request["prepare"] == "ten_hops":
                    out = x
                    for i in range(HOPS):
                        out = (ps if i % 2 else worker).add.bind(out)
                else:
                    out = worker.ends.bind(ps.give.bind(x), x)
            compiled.append(out.experimental_compile(_buffer_size_bytes=int(mib * 2**20) + (1 << 20)))
            ray.get(compiled[0].execute(1.0))
            return {}
        cpu, seconds = cpu_seconds(pids), []
        for _ in range(request["run"]):
            began = time.perf_counter()
            ray.get(compiled[0].execute(1.0))
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds, "cpu": cpu_seconds(pids) - cpu}

    return str(ray.__version__), respond


class Peer(Conversation):
    """Ray's processes, used as a `Driver` (`_clusters.py`)."""

    def __init__(self, python: str) -> None:
        super().__init__(str(Path(__file__)), "ray", os.environ.get(RAY_PYTHON, python), PATIENCE_S)

    def prepare(self, program: str, **parameters: Any) -> None:
        """Compile a graph and execute it once."""
        self.ask(prepare=program, **parameters)

    def run(self, count: int) -> dict[str, Any]:
        """Execute it so often: {"seconds": [...], "cpu": total}."""
        return self.ask(run=count)


if __name__ == "__main__":
    _processes.answer(drive)
