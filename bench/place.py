"""What planning costs: placing and cutting graphs of 1,000 to 1,000,000 nodes over 64 devices, and over 16 to 10,000 GPUs.

Two graphs: towers of layers on weights of parameter servers, where almost every edge stays on its device, and
a chain that changes device at every node, where every edge crosses. Each size runs in a fresh process, so that
the peak of memory is its own. There is no peer: TensorFlow places a graph only while it makes a session.

The group `devices` plans the towers of the largest size over more and more workers of 8 GPUs, prints the plan and writes its page.

The table ends with how time grows: the slope of log(seconds) over log(nodes) from 10,000 nodes on, where 1 is linear; over
log(devices) at the same number of nodes, it stays near 0. A plot of seconds over nodes follows the table.
"""

import gc
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _harness import Row, main, row

SIZES = (1_000, 10_000, 100_000, 1_000_000)
ACCELERATORS = (16, 256, 4_096, 10_000)
WIDTH, HEIGHT = 60, 15  # of the plot, in characters
TASKS, GPUS, SERVERS = 8, 7, 8  # unless told otherwise: 8 * 7 GPUs of workers and the CPUs of 8 servers are 64 devices


# --- one graph, in a process of its own ---------------------------------------------------------------------------------


def towers(dt: Any, count: int, tasks: int, gpus: int) -> None:
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


def hopping(dt: Any, count: int, tasks: int, gpus: int) -> None:
    """A chain that changes device at every node: every edge crosses, which is as bad as it gets."""
    places = [f"/job:worker/task:{t}/gpu:{g}" for g in range(gpus) for t in range(tasks)]
    places += [f"/job:ps/task:{t}" for t in range(SERVERS)]
    x = dt.constant(1.0)
    for i in range(count - 1):
        with dt.device(places[i % len(places)]):
            x = dt.math.negative(x)


GRAPHS = {"towers": towers, "hopping": hopping}


def plan_one(name: str, count: int, repeats: int, accelerators: int = 0) -> dict[str, Any]:
    """Build and plan one graph in this process: nodes, channels, seconds, and bytes at the peak and of the graph.

    The seconds are processor time: planning is one thread's work that waits for nothing, so this is what it takes on a quiet machine,
    also while the machine is busy. The peak is that of the whole process. With a number of GPUs, workers have 8 each, and the plan is
    printed and its page written, too: `print_seconds`, `page_seconds`, `page_bytes`.
    """
    import dovetail as dt

    tasks, gpus = (accelerators // 8, 8) if accelerators else (TASKS, GPUS)
    cluster, devices = {"ps": SERVERS, "worker": tasks}, {"worker": [f"gpu:{i}" for i in range(gpus)]}
    with dt.Graph().as_default() as graph:
        GRAPHS[name](dt, count, tasks, gpus)
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
        start = time.thread_time()
        assert str(plan).startswith("Plan: ")
        found["print_seconds"] = time.thread_time() - start
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "plan.html"
            start = time.thread_time()
            plan.to_html(page)
            found |= {"page_seconds": time.thread_time() - start, "page_bytes": page.stat().st_size}
    return found


# --- all of them ----------------------------------------------------------------------------------------------------------


def over_devices(quick: bool) -> Iterator[Row]:
    """Seconds, memory and page per number of GPUs, for one number of nodes; then the slope."""
    nodes = SIZES[2] if quick else SIZES[-1]
    points: list[tuple[int, float]] = []
    for count in ACCELERATORS[:3] if quick else ACCELERATORS:
        found = measured("towers", nodes, 1 if quick else 3, count)
        seconds = statistics.median(found["seconds"])
        points.append((count, seconds))
        name, large = f"{nodes:,} nodes on {count:,} GPUs", count == ACCELERATORS[-1]
        yield row(name, "s", seconds, target="dovetail <= 30" if large else "")
        yield row(f"{name}, peak memory", "GiB", found["peak"] / 2**30, target="dovetail <= 6" if large else "")
        yield row(f"{name}, print(plan)", "s", found["print_seconds"], target="dovetail <= 5" if large else "")
        yield row(f"{name}, page", "s", found["page_seconds"], target="dovetail <= 15" if large else "")
        yield row(
            f"{name}, size of the page", "MB", found["page_bytes"] / 1e6, target="dovetail <= 20" if large else ""
        )
    yield row("growth of time with devices", "slope", slope(points), target="dovetail <= 0.3")


def over_nodes(quick: bool) -> Iterator[Row]:
    """Seconds and peak memory per graph and size, then the slope per graph; the plot as a side effect."""
    points: dict[str, list[tuple[int, float]]] = {graph: [] for graph in GRAPHS}
    for graph in GRAPHS:
        for size in SIZES[:3] if quick else SIZES:
            found = measured(graph, size, repeats=3 if quick else 5)
            seconds = statistics.median(found["seconds"])
            points[graph].append((found["nodes"], seconds))
            large = size == SIZES[-1]
            yield row(f"{graph}, {size:,} nodes", "s", seconds, target="dovetail <= 30" if large else "")
            yield row(
                f"{graph}, {size:,} nodes, peak memory", "GiB", found["peak"] / 2**30,
                target="dovetail <= 4" if large else "",
            )  # fmt: skip
    for graph, measured_at in points.items():
        yield row(f"{graph}, growth of time", "slope", slope(measured_at[1:]), target="dovetail <= 1.15")
    print(plot(points))


def measured(graph: str, size: int, repeats: int, accelerators: int = 0) -> dict[str, float]:
    """One graph of one size in a process of its own; see `plan_one` for what comes back."""
    command = [sys.executable, __file__, "--one", graph, str(size), str(repeats), str(accelerators)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent of the power of the size that fits the times best."""
    x, y = [math.log(n) for n, _ in points], [math.log(s) for _, s in points]
    return statistics.linear_regression(x, y).slope


def plot(points: dict[str, list[tuple[int, float]]]) -> str:
    """Seconds over nodes, both on logarithmic axes; each graph by its first letter, a dotted line of slope 1."""
    everything = [p for each in points.values() for p in each]
    left, right = (f(math.log10(n) for n, _ in everything) for f in (min, max))
    low = math.floor(min(math.log10(s) for _, s in everything))
    high = math.ceil(max(math.log10(s) for _, s in everything))
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]

    def put(x: float, y: float, mark: str) -> None:
        column, line = round((x - left) / (right - left) * WIDTH), round((high - y) / (high - low) * HEIGHT)
        if 0 <= line <= HEIGHT and grid[line][column] in " .":
            grid[line][column] = mark

    size, seconds = points[next(iter(GRAPHS))][1]
    for column in range(WIDTH + 1):
        x = left + (right - left) * column / WIDTH
        put(x, math.log10(seconds) + x - math.log10(size), ".")
    for name, measured_at in points.items():
        for n, s in measured_at:
            put(math.log10(n), math.log10(s), name[0])
    lines = [
        f"{10 ** (high - (high - low) * i / HEIGHT):9.3g} s |{''.join(line).rstrip()}" for i, line in enumerate(grid)
    ]
    key = ", ".join(f"{name[0]}: {name}" for name in points)
    return "\n".join(
        [*lines, f"{'':12}+{'-' * WIDTH}", f"{'':12}{10**left:,.0f} to {10**right:,.0f} nodes; {key}; .: linear"]
    )


if __name__ == "__main__" and sys.argv[1:2] == ["--one"]:
    print(json.dumps(plan_one(sys.argv[2], *map(int, sys.argv[3:]))))
elif __name__ == "__main__":
    main("Placing and cutting", {"nodes": over_nodes, "devices": over_devices})
