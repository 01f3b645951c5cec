"""One process that builds one graph, plans it, and says what that took. `bench/place.py` starts it.

    python bench/_place_one.py GRAPH NODES REPEATS

prints `{"nodes": ..., "channels": ..., "seconds": [...], "peak": bytes, "graph": bytes}`. The seconds are
processor time: planning is one thread's work that waits for nothing, so this is what it takes on a quiet
machine, also while the machine is busy. The peak is that of the whole process, the graph included.
"""

import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # a checkout needs no install

import dovetail as dt  # noqa: E402

TASKS, GPUS, SERVERS = 8, 7, 8  # 8 workers with a CPU and 7 GPUs each, less their CPUs' work, and 8 servers
CLUSTER = {"ps": SERVERS, "worker": TASKS}
DEVICES = {"worker": [f"gpu:{i}" for i in range(GPUS)]}  # 8 * 7 + 8 = 64 devices


def towers(count: int) -> None:
    """A tower per GPU, each a chain of layers on weights of the servers; almost all edges stay on their device."""
    setter = dt.train.replica_device_setter(ps_tasks=SERVERS)
    with dt.device(setter):
        weights = [dt.Variable([[1.0] * 4] * 4, name=f"w{i}") for i in range(SERVERS * 2)]
    graph = dt.get_default_graph()
    each = (count - len(graph.nodes)) // (TASKS * GPUS)
    for task in range(TASKS):
        for gpu in range(GPUS):
            with dt.device(f"/job:worker/task:{task}/gpu:{gpu}"), dt.name_scope(f"tower_{task}_{gpu}"):
                x = dt.zeros([8, 4])
                start = len(graph.nodes)
                while len(graph.nodes) - start < each - 3:
                    w = weights[len(graph.nodes) % len(weights)]
                    x = dt.nn.relu(dt.matmul(x, w) + 1.0)


def hopping(count: int) -> None:
    """A chain that changes device at every node: every edge crosses, which is as bad as it gets."""
    places = [f"/job:worker/task:{t}/gpu:{g}" for g in range(GPUS) for t in range(TASKS)]
    places += [f"/job:ps/task:{t}" for t in range(SERVERS)]
    x = dt.constant(1.0)
    for i in range(count - 1):
        with dt.device(places[i % len(places)]):
            x = dt.negative(x)


GRAPHS = {"towers": towers, "hopping": hopping}


def main(name: str, count: int, repeats: int) -> dict[str, Any]:
    """Build and plan."""
    with dt.Graph().as_default() as graph:
        GRAPHS[name](count)
    built = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = []
    for _ in range(repeats):
        plan = None  # the plan before is not this one's memory
        gc.collect()
        start = time.thread_time()
        plan = dt.place(graph, CLUSTER, devices=DEVICES)
        seconds.append(time.thread_time() - start)
    assert plan is not None
    assert sum(len(p.nodes) for p in plan.partitions.values()) == len(graph.nodes)
    assert len(plan.partitions) == 64 or count < 2000
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "nodes": len(graph.nodes), "channels": len(plan.channels), "seconds": seconds, "peak": peak, "graph": built,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
