"""What steps cost on a cluster of processes of this machine, beside TensorFlow over gRPC.

Both systems run the same programs (bench/_clusters.py) on two ps and two worker processes, in turn, in one run. Times are medians of
single steps; `cpu` is processor time of all processes together, per step. The rows `over tcp` are measured without what only
processes of one machine can do for each other: shared memory and lanes.
"""

import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

from _clusters import Driver

from _harness import Row, main, peer_python, row

ROUNDS = 5
MIB = (1, 16, 64, 256)


def rows(quick: bool) -> Iterator[Row]:
    """All rows of the table."""
    python = peer_python()
    with (
        Driver("dovetail") as ours,
        Driver("dovetail", DOVETAIL_SHARED_MEMORY="0") as apart,
        Driver("tensorflow", python) as peer,
    ):
        peers = [] if peer.missing else [peer]
        both = [ours, *peers]
        if peer.missing:
            print(f"TensorFlow not installed: peer column empty ({python}: {peer.missing})", file=sys.stderr)

        def table(name: str, unit: str, figures: list[float], target: str = "") -> Row:
            return row(name, unit, figures[0], figures[1] if len(figures) > 1 else None, peer.title, target)

        for name, program, target in (
            ("empty step", "empty_step", "ratio <= 0.25"),
            ("variable read", "variable_read", "ratio <= 0.2"),
            ("variable update", "variable_update", ""),
            ("ten hops", "ten_hops", "ratio <= 0.25"),
        ):
            latency, cpu = _steps(both, program, 100 if quick else 400)
            yield table(name, "µs", latency, target)
            yield table(f"{name}, cpu", "µs", cpu)
        for mib in MIB[:2] if quick else MIB:
            latency, _ = _steps(both, "transfer", max(3, 64 // mib), mib=mib)
            yield table(f"transfer {mib} MiB", "GB/s", [mib * 2**20 / t / 1e3 for t in latency], "ratio >= 5")
        for name, program in (("empty step", "empty_step"), ("ten hops", "ten_hops")):
            latency, _ = _steps([apart, *peers], program, 100 if quick else 400)
            yield table(f"{name}, over tcp", "µs", latency)
        for mib in MIB[:2] if quick else MIB:
            latency, _ = _steps([apart, *peers], "transfer", max(3, 64 // mib), mib=mib)
            yield table(
                f"transfer {mib} MiB, over tcp", "GB/s", [mib * 2**20 / t / 1e3 for t in latency], "ratio >= 2.5"
            )
        clients, steps = 64, 20 if quick else 50
        latency, _ = _steps(both, "many_clients", 1, clients=clients, steps=steps)
        yield table("64 clients", "steps/s", [clients * steps / t * 1e6 for t in latency], "ratio >= 5")
        figures = _in_turn(both, lambda d: d.train(50 if quick else 300), 1 if quick else 3)
        yield table("digits training, per worker", "steps/s", figures, "ratio >= 5")


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


def _in_turn(systems: list[Driver], measure: Callable[[Driver], float], rounds: int) -> list[float]:
    found: list[list[float]] = [[] for _ in systems]
    for _ in range(rounds):
        for i, s in enumerate(systems):
            found[i].append(measure(s))
    return [statistics.median(f) for f in found]


if __name__ == "__main__":
    main("Steps on a cluster of processes", rows)
