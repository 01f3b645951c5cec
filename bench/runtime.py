"""What steps cost on a cluster of processes of this machine, beside TensorFlow over gRPC.

Both systems run the same programs (bench/_clusters.py) on two ps and two worker processes, in turn, in one run. Times are medians of
single steps; `cpu` is processor time of all processes together, per step. The rows `over tcp` are measured without what only
processes of one machine can do for each other: shared memory and streams.

All of it takes about four minutes on two cores; training is in bench/training.py. `--only NAME` measures a part of it anew.
"""

import contextlib
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from _clusters import Driver

from _harness import Row, main, peer_python, row

ROUNDS = 5
MIB = (1, 16, 64, 256)
OURS, APART, PEER = "dovetail", "dovetail over tcp", "tensorflow"


class Clusters:
    """The clusters that are compared, each started when it is first needed."""

    def __init__(self) -> None:
        self._drivers: dict[str, Driver] = {}

    def both(self, ours: str = OURS) -> list[Driver]:
        """Ours and, if it is installed, the peer's."""
        peer = self._get(PEER)
        if peer.missing:
            print(f"TensorFlow not installed: peer column empty ({peer_python()}: {peer.missing})", file=sys.stderr)
        return [self._get(ours), *([] if peer.missing else [peer])]

    def _get(self, name: str) -> Driver:
        driver = self._drivers.get(name)
        if driver is None:
            settings = {"DOVETAIL_SHARED_MEMORY_MB": "0"} if name == APART else {}
            system, python = (PEER, peer_python()) if name == PEER else (OURS, sys.executable)
            driver = self._drivers[name] = Driver(system, python, **settings)
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
    }
    return {name: partial(fresh, measure) for name, measure in table.items()}


def _row(systems: list[Driver], name: str, unit: str, figures: list[float], target: str = "") -> Row:
    peer, title = (figures[1], systems[1].title) if len(systems) > 1 else (None, "")
    return row(name, unit, figures[0], peer, title, target)


def _latency(clusters: Clusters, name: str, program: str, target: str, quick: bool) -> Iterator[Row]:
    both = clusters.both()
    latency, cpu = _steps(both, program, 100 if quick else 400)
    yield _row(both, name, "µs", latency, target)
    yield _row(both, f"{name}, cpu", "µs", cpu)


def _transfers(clusters: Clusters, ours: str, way: str, target: str, quick: bool) -> Iterator[Row]:
    both = clusters.both(ours)
    for mib in MIB[:2] if quick else MIB:
        latency, cpu = _steps(both, "transfer", max(3, 64 // mib), mib=mib)
        yield _row(both, f"transfer {mib} MiB{way}", "GB/s", [mib * 2**20 / t / 1e3 for t in latency], target)
        yield _row(both, f"transfer {mib} MiB{way}, cpu", "µs", cpu)


def _over_tcp(clusters: Clusters, quick: bool) -> Iterator[Row]:
    both = clusters.both(APART)
    for name, program in (("empty step", "empty_step"), ("ten hops", "ten_hops")):
        latency, cpu = _steps(both, program, 100 if quick else 400)
        yield _row(both, f"{name}, over tcp", "µs", latency)
        yield _row(both, f"{name}, over tcp, cpu", "µs", cpu)
    yield from _transfers(clusters, APART, ", over tcp", "ratio >= 2.5", quick)


def _clients(clusters: Clusters, quick: bool) -> Iterator[Row]:
    both = clusters.both()
    clients, steps = 64, 20 if quick else 50
    latency, cpu = _steps(both, "many_clients", 1, clients=clients, steps=steps)
    yield _row(both, "64 clients", "steps/s", [clients * steps / t * 1e6 for t in latency], "ratio >= 5")
    yield _row(both, "64 clients, cpu", "µs", [c / clients / steps for c in cpu])


def _steps(systems: list[Driver], program: str, count: int, **parameters: Any) -> tuple[list[float], list[float]]:
    """Median microseconds and processor microseconds of a step, for each system."""
    latency: list[list[float]] = [[] for _ in systems]
    cpu: list[float] = [0.0 for _ in systems]
    for s in systems:
        s.prepare(program, **parameters)
        s.run(max(3, count // 10))
    for _ in range(ROUNDS):
        for i, s in enumerate(systems):
            answer = s.run(count)
            latency[i] += answer["seconds"]
            cpu[i] += answer["cpu"]
    return [statistics.median(x) * 1e6 for x in latency], [c / count / ROUNDS * 1e6 for c in cpu]


if __name__ == "__main__":
    with contextlib.closing(Clusters()) as clusters:
        main("Steps on a cluster of processes", groups(clusters))
