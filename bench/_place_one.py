"""One process that builds one graph, plans it, and says what that took. `bench/place.py` starts it.

    python bench/_place_one.py GRAPH NODES REPEATS [GPUS]

prints `{"nodes": ..., "channels": ..., "seconds": [...], "peak": bytes, "graph": bytes}`. The seconds are
processor time: planning is one thread's work that waits for nothing, so this is what it takes on a quiet
machine, also while the machine is busy. The peak is that of the whole process, the graph included.

With a number of GPUs, workers have 8 each, and the plan's page is written, too: `"page_seconds"`, `"page_bytes"`.
"""

import gc
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # a checkout needs no install

import dovetail as dt  # noqa: E402

TASKS, GPUS, SERVERS = 8, 7, 8  # unless told otherwise: 8 * 7 GPUs of workers and the CPUs of 8 servers are 64 devices


def towers(count: int, tasks: int, gpus: int) -> None:
    """A tower per GPU, each a chain of layers on weights of the servers; almost all edges stay on their device."""
    setter = dt.train.replica_device_setter(ps_tasks=SERVERS)
    with dt.device(setter):
        weights = [dt.Variable([[1.0] * 4] * 4, name=f"w{i}") for i in range(SERVERS * 2)]
    graph = dt.get_default_graph()
    each = (count - len(graph.nodes)) // (tasks * gpus)
    for task in range(tasks):
        for gpu in range(gpus):
            with dt.device(f"/job:worker/task:{task}/gpu:{gpu}"), dt.name_scope(f"tower_{task}_{gpu}"):
                x = dt.zeros([8, 4])
                start = len(graph.nodes)
                while len(graph.nodes) - start < each - 3:
                    w = weights[len(graph.nodes) % len(weights)]
                    x = dt.nn.relu(dt.matmul(x, w) + 1.0)


def hopping(count: int, tasks: int, gpus: int) -> None:
    """A chain that changes device at every node: every edge crosses, which is as bad as it gets."""
    places = [f"/job:worker/task:{t}/gpu:{g}" for g in range(gpus) for t in range(tasks)]
    places += [f"/job:ps/task:{t}" for t in range(SERVERS)]
    x = dt.constant(1.0)
    for i in range(count - 1):
        with dt.device(places[i % len(places)]):
            x = dt.negative(x)


GRAPHS = {"towers": towers, "hopping": hopping}


def main(name: str, count: int, repeats: int, accelerators: int = 0) -> dict[str, Any]:
    """Build and plan."""
    tasks, gpus = (accelerators // 8, 8) if accelerators else (TASKS, GPUS)
    cluster, devices = {"ps": SERVERS, "worker": tasks}, {"worker": [f"gpu:{i}" for i in range(gpus)]}
    with dt.Graph().as_default() as graph:
        GRAPHS[name](count, tasks, gpus)
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = []
    for _ in range(repeats):
        plan = None  # the plan before is not this one's memory
        gc.collect()
        start = time.thread_time()
        plan = dt.place(graph, cluster, devices=devices)
        seconds.append(time.thread_time() - start)
    assert plan is not None
    assert sum(len(p.nodes) for p in plan.partitions.values()) == len(graph.nodes)
    assert len(plan.partitions) == tasks * gpus + SERVERS or count < 2000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {
        "nodes": len(graph.nodes), "channels": len(plan.channels), "seconds": seconds, "peak": peak, "graph": built,
    }  # fmt: skip
    if accelerators:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "plan.html"
            start = time.thread_time()
            plan.to_html(page)
            found |= {"page_seconds": time.thread_time() - start, "page_bytes": page.stat().st_size}
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
