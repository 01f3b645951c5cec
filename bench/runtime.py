"""What steps cost on a cluster of processes of this machine, beside TensorFlow over gRPC and Ray's compiled graphs.

The systems run the same programs (bench/_clusters.py, bench/_ray.py) on two ps and two worker processes, in turn, in one run. Times are
medians of single steps, and `p99` their 99th percentiles; `cpu` is processor time of all processes together, per step. The rows `two
machines` have the parameter servers in another network namespace than the rest; there, a cluster with keys stands beside the same
without. Rows beside Ray
are missing where it is not installed; DOVETAIL_RAY_PYTHON names an interpreter that has it. The rows `over tcp` are measured without
what only processes of one machine can do for each other: shared memory and streams. The rows `2 tasks` and so on are of clusters of so
many processes, each with one addition of a step; there, registering a task's part takes 50 ms longer (`_slow_tasks.py`), and the peer
column has what the first step of the same graph takes on one task: preparing must not take longer the more tasks there are.

All of it takes about four minutes on two cores; training is in bench/training.py. `--only NAME` measures a part of it anew.
"""

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _ray
from _clusters import MACHINES, Driver

from _harness import Row, main, p99, peer_python, row

ROUNDS = 5
MIB = (1, 16, 64, 256)
TRANSFERRED_MIB = 512  # in one round, by three steps or more
TASKS = (2, 8, 32, 64)
REGISTER_MS = 50
STEPS_OF_TASKS = 200
OURS, APART, PEER, RAY = "dovetail", "dovetail over tcp", "tensorflow", "ray"
KEYS, INSECURE = "keys", "insecure"
Systems = list[Driver | _ray.Peer]


class Figures(NamedTuple):
    """Microseconds of a run: median, 99th percentile of its steps, and of all processors."""

    p50: float
    p99: float
    cpu: float


class Clusters:
    """The clusters that are compared, each started when it is first needed."""

    def __init__(self) -> None:
        self._drivers: dict[str, Driver | _ray.Peer] = {}

    def with_peer(self, ours: str = OURS, name: str = PEER) -> Systems:
        """Ours and, if it is installed, the peer's."""
        peer = self._get(name)
        if peer.missing:
            print(f"{name} is not installed: peer column empty ({peer.missing})", file=sys.stderr)
        return [self._get(ours), *([] if peer.missing else [peer])]

    def _get(self, name: str) -> Driver | _ray.Peer:
        driver = self._drivers.get(name)
        if driver is None:
            settings = {"DOVETAIL_SHARED_MEMORY_MB": "0"} if name in (APART, KEYS, INSECURE) else {}
            settings |= {MACHINES: name} if name in (KEYS, INSECURE) else {}
            system, python = (PEER, peer_python()) if name == PEER else (OURS, sys.executable)
            driver = _ray.Peer(sys.executable) if name == RAY else Driver(system, python, **settings)
            self._drivers[name] = driver
        return driver

    def close(self) -> None:
        """Stop all."""
        for driver in self._drivers.values():
            driver.close()
        self._drivers.clear()


def groups(clusters: Clusters) -> dict[str, Callable[[bool], Iterator[Row]]]:
    """What can be measured, by name."""

    def fresh(measure: Callable[[bool], Iterator[Row]], quick: bool) -> Iterator[Row]:
        try:
            yield from measure(quick)
        except Exception:  # what hangs or has died is of no use for what comes next
            clusters.close()
            raise

    table: dict[str, Callable[[bool], Iterator[Row]]] = {
        "empty step": partial(_latency, clusters, "empty step", "empty_step", "ratio <= 0.25"),
        "variable read": partial(_latency, clusters, "variable read", "variable_read", "ratio <= 0.2"),
        "variable update": partial(_latency, clusters, "variable update", "variable_update", ""),
        "ten hops": partial(_latency, clusters, "ten hops", "ten_hops", "ratio <= 0.25"),
        "transfers": partial(_transfers, clusters, OURS, "", "ratio >= 5"),
        "over tcp": partial(_over_tcp, clusters),
        "64 clients": partial(_clients, clusters),
        "two machines": partial(_two_machines, clusters),
        "ray": partial(_beside_ray, clusters),
        "tasks": _tasks,
    }
    return {name: partial(fresh, measure) for name, measure in table.items()}


def _rows(
    systems: Systems,
    name: str,
    figures: list[Figures],
    target: str = "",
    mib: float = 0,
    beside: str = "",
    title: str = "",
) -> Iterator[Row]:
    """The rows of one program: steps, or GB/s of `mib`; 99th percentiles; processor time. `title`: of the peer."""
    peer = title or (systems[1].title if len(systems) > 1 else "")

    def made(what: str, unit: str, found: list[float], target: str = "") -> Row:
        return row(f"{name}{what}{beside}", unit, found[0], found[1] if peer else None, peer, target)

    p50, p99, cpu = ([f[i] for f in figures] for i in range(3))
    yield made("", "GB/s", [mib * 2**20 / t / 1e3 for t in p50], target) if mib else made("", "µs", p50, target)
    yield made(", p99", "µs", p99)
    yield made(", cpu", "µs", cpu)


def _latency(clusters: Clusters, name: str, program: str, target: str, quick: bool) -> Iterator[Row]:
    systems = clusters.with_peer()
    yield from _rows(systems, name, _steps(systems, program, 100 if quick else 400), target)


def _transfers(clusters: Clusters, ours: str, way: str, target: str, quick: bool) -> Iterator[Row]:
    systems = clusters.with_peer(ours)
    for mib in MIB[:2] if quick else MIB:
        figures = _steps(systems, "transfer", max(3, TRANSFERRED_MIB // mib), mib=mib)
        yield from _rows(systems, f"transfer {mib} MiB{way}", figures, target, mib)


def _beside_ray(clusters: Clusters, quick: bool) -> Iterator[Row]:
    systems = clusters.with_peer(name=RAY)
    if len(systems) == 1:
        return
    figures = _steps(systems, "ten_hops", 100 if quick else 400)
    yield from _rows(systems, "ten hops", figures, "ratio <= 1", beside=", beside Ray")
    for mib in MIB[:1] if quick else MIB[:3]:
        figures = _steps(systems, "transfer", max(3, TRANSFERRED_MIB // mib), mib=mib)
        yield from _rows(systems, f"transfer {mib} MiB", figures, "ratio >= 1", mib, ", beside Ray")


def _over_tcp(clusters: Clusters, quick: bool) -> Iterator[Row]:
    systems = clusters.with_peer(APART)
    for name, program in (("empty step", "empty_step"), ("ten hops", "ten_hops")):
        yield from _rows(systems, f"{name}, over tcp", _steps(systems, program, 100 if quick else 400))
    yield from _transfers(clusters, APART, ", over tcp", "ratio >= 2.5", quick)


def _two_machines(clusters: Clusters, quick: bool) -> Iterator[Row]:
    """With keys, beside the same without: parameter servers in another network namespace."""
    systems = clusters.with_peer(KEYS, INSECURE)
    for name, program in (("empty step", "empty_step"), ("variable read", "variable_read"), ("ten hops", "ten_hops")):
        figures = _steps(systems, program, 100 if quick else 400)
        yield from _rows(systems, f"{name}, two machines, keys", figures, title="without keys")
    for mib in MIB[:2] if quick else MIB[:3]:
        figures = _steps(systems, "transfer", max(3, TRANSFERRED_MIB // mib), mib=mib)
        yield from _rows(systems, f"transfer {mib} MiB, two machines, keys", figures, "", mib, title="without keys")


def _clients(clusters: Clusters, quick: bool) -> Iterator[Row]:
    systems = clusters.with_peer()
    clients, steps = 64, 20 if quick else 50
    figures = _steps(systems, "many_clients", 1, clients=clients, steps=steps)
    peer = systems[1].title if len(systems) > 1 else ""
    rates, cpu = ([clients * steps / f.p50 * 1e6 for f in figures], [f.cpu / clients / steps for f in figures])
    yield row("64 clients", "steps/s", rates[0], rates[1] if peer else None, peer, "ratio >= 5")
    yield row("64 clients, p99", "µs", figures[0].p99, figures[1].p99 if peer else None, peer)
    yield row("64 clients, cpu", "µs", cpu[0], cpu[1] if peer else None, peer)


def _tasks(quick: bool) -> Iterator[Row]:
    """Clusters of more and more tasks."""
    for tasks in TASKS[:2] if quick else TASKS:
        yield from _many_tasks(tasks)


def _many_tasks(tasks: int) -> Iterator[Row]:
    import dovetail as dt

    began = time.perf_counter()
    program = [sys.executable, str(Path(__file__).with_name("_slow_tasks.py")), str(REGISTER_MS)]
    with dt.LocalCluster({"worker": tasks}, programs={"worker": program}, start_timeout_s=300.0) as cluster:
        up = time.perf_counter() - began
        first = {}
        with dt.Graph().as_default(), dt.Session(cluster.target()) as session:
            for where in ("alone", "all"):  # the same graph on one task, and on all of them
                x = dt.placeholder(dt.float32, [])
                parts = []
                for i in range(tasks):
                    with dt.device(f"/job:worker/task:{i if where == 'all' else 0}"):
                        parts.append(x + float(i))
                began = time.perf_counter()
                session.run(parts, {x: 1.0})
                first[where] = (time.perf_counter() - began) * 1e3
            run = session.make_callable(parts, [x])
            steps = []
            for _ in range(STEPS_OF_TASKS):
                began = time.perf_counter()
                run(1.0)
                steps.append((time.perf_counter() - began) * 1e6)
            memory = sum(_private_bytes(cluster.process(job, i).pid) for job, i in cluster.tasks) / tasks
    yield row(f"{tasks} tasks, start", "s", up)
    yield row(f"{tasks} tasks, first step", "ms", first["all"], first["alone"], "on one task", "ratio <= 4")
    yield row(f"{tasks} tasks, step", "µs", statistics.median(steps))
    yield row(f"{tasks} tasks, step, p99", "µs", p99(steps))
    yield row(f"{tasks} tasks, memory of each", "MiB", memory / 2**20)


def _private_bytes(pid: int) -> int:
    """The memory of a process, shared pages in equal parts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _steps(systems: Systems, program: str, count: int, **parameters: Any) -> list[Figures]:
    """What a step takes, for each system."""
    seconds: list[list[float]] = [[] for _ in systems]
    steps: list[list[float]] = [[] for _ in systems]
    cpu: list[float] = [0.0 for _ in systems]
    for s in systems:
        s.prepare(program, **parameters)
        s.run(max(3, count // 10))
    for _ in range(ROUNDS):
        for i, s in enumerate(systems):
            answer = s.run(count)
            seconds[i] += answer["seconds"]
            steps[i] += answer.get("steps") or answer["seconds"]
            cpu[i] += answer["cpu"]
    return [
        Figures(statistics.median(x) * 1e6, p99(y) * 1e6, c / count / ROUNDS * 1e6)
        for x, y, c in zip(seconds, steps, cpu, strict=True)
    ]


if __name__ == "__main__":
    with contextlib.closing(Clusters()) as clusters:
        main("Steps on a cluster of processes", groups(clusters))
