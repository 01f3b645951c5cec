"""What each mechanism of the runtime gains: the same cluster with it and without it, at the same time.

Both clusters run on this machine and take turns, a batch of steps each; a pair of batches gives one ratio, time without over time with,
so that a machine that gets busy does so for both. A row has the median of the ratios, its quartiles, the ratio of the fastest batches,
and that of the processor time of all processes. The mechanism "nothing" compares equal clusters: what it shows is noise.
`_switches.py` turns the mechanisms off. A mechanism stays if it saves 5 % of the time of some program. The program "wide training"
has a link of 100 MiB/s between its two workers (`DOVETAIL_FAULTS`), as between two machines.

    python bench/ablation.py --runtime                        # all: two hours on two cores
    python bench/ablation.py --runtime --only "send coalescing" --program "ten hops"
"""

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from _clusters import MACHINES, Driver, cpu_seconds
from _switches import MECHANISMS, environment
from collectives import Members
from training import CLUSTERS, Cluster

from _harness import report, row

STEPS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "empty step": ("empty_step", 200, {}),
    "variable read": ("variable_read", 150, {}),
    "variable update": ("variable_update", 150, {}),
    "constant update": ("constant_update", 150, {}),
    "grouped updates": ("grouped_updates", 60, {}),
    "ten hops": ("ten_hops", 40, {}),
    "early send": ("early_send", 20, {}),
    "many tensors": ("many_tensors", 20, {}),
    "transfer 1 MiB": ("transfer", 50, {"mib": 1}),
    "transfer 16 MiB": ("transfer", 10, {"mib": 16}),
    "send 1 MiB": ("send", 50, {"mib": 1}),
    "64 clients": ("many_clients", 1, {"clients": 64, "steps": 5}),
}
"""By name: the program, the steps of a batch, the program's parameters."""
COLLECTIVES = {
    "all-reduce 4 KiB": (4 << 10, 200, "all_reduce"),
    "all-reduce 1 MiB": (1 << 20, 40, "all_reduce"),
    "all-reduce 16 MiB": (16 << 20, 8, "all_reduce"),
    "gather 64 KiB": (64 << 10, 100, "all_gather"),
    "gather 4 MiB": (4 << 20, 15, "all_gather"),
}
"""By name: bytes of a member's value, runs of a batch, the kind of collective; two members."""
TRAINED = {"asynchronous": 60, "synchronous": 30, "mirrored": 60, "wide": 3}  # steps of a batch
SLOW_LINK = {"DOVETAIL_FAULTS": "rate:100"} | environment("lent tensors, Unix streams")
WARM_BATCHES = 3
Batch = Callable[[], tuple[float, float]]
"""Runs a batch: seconds, and processor seconds of all processes, of a step."""


def compare(on: Batch, off: Batch, pairs: int) -> dict[str, float]:
    """Run batches in turn."""
    for _ in range(WARM_BATCHES):
        on()
        off()
    found: list[list[tuple[float, float]]] = [[], []]
    for number in range(pairs):
        for which in (0, 1) if number % 2 else (1, 0):
            found[which].append((on, off)[which]())
    ratios = [without / having for (having, _), (without, _) in zip(*found, strict=True)]
    quarters = statistics.quantiles(ratios, n=4)
    having, without = ([seconds for seconds, _ in batches] for batches in found)
    cpu = [sum(used for _, used in batches) for batches in found]
    return {
        "on_us": min(having) * 1e6,
        "off_us": min(without) * 1e6,
        "median": quarters[1],
        "low": quarters[0],
        "high": quarters[2],
        "fastest": min(without) / min(having),
        "cpu": cpu[1] / cpu[0],
    }


def _steps(cluster: Driver, count: int) -> Batch:
    def batch() -> tuple[float, float]:
        answer = cluster.run(count)
        return statistics.median(answer["seconds"]), answer["cpu"] / count

    return batch


def _trains(cluster: Cluster, count: int) -> Batch:
    def batch() -> tuple[float, float]:
        found = cluster.train(count)
        if found is None:
            raise RuntimeError(cluster.missing)
        return 1 / found[0], found[1]

    return batch


def _reduces(members: Members, size: int, count: int, kind: str) -> Batch:
    def batch() -> tuple[float, float]:
        used = cpu_seconds(members.pids)
        seconds = members.measure(size, count, kind)
        if not seconds:
            raise RuntimeError(members.missing)
        return statistics.median(seconds), (cpu_seconds(members.pids) - used) / (count + 1)

    return batch


def rows(mechanism: str, programs: Iterable[str], pairs: int, base: dict[str, str]) -> Iterable[dict[str, Any]]:
    """The rows of one mechanism. `base`: settings of both clusters."""
    settings = base | environment(mechanism)
    with contextlib.ExitStack() as stack:
        wanted = [name for name in STEPS if name in programs]
        pair = [stack.enter_context(Driver("dovetail", **more)) for more in (base, settings)] if wanted else []
        for name in wanted:
            program, count, parameters = STEPS[name]
            for cluster in pair:
                cluster.prepare(program, **parameters)
            on, off = (_steps(cluster, count) for cluster in pair)
            yield {"mechanism": mechanism, "program": name, **compare(on, off, pairs)}
    wanted = [name for name in COLLECTIVES if name in programs]
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(contextlib.closing(Members("dovetail", sys.executable, 2, **more)))
            for more in ((base, settings) if wanted else ())
        ]
        for name in wanted:
            on, off = (_reduces(members, *COLLECTIVES[name]) for members in both)
            yield {"mechanism": mechanism, "program": name, **compare(on, off, pairs)}
    for way in CLUSTERS:
        name = f"{way} training"
        if name not in programs:
            continue
        link = SLOW_LINK if way == "wide" else {}
        with contextlib.ExitStack() as stack:
            both = [
                stack.enter_context(contextlib.closing(Cluster("dovetail", sys.executable, way, **(link | more))))
                for more in (base, settings)
            ]
            on, off = (_trains(cluster, TRAINED[way]) for cluster in both)
            for _ in range(5):  # until kernels are compiled
                on()
                off()
            yield {"mechanism": mechanism, "program": name, **compare(on, off, pairs)}


def main() -> None:
    """Print the rows as they are measured, and write them down."""
    programs = [*STEPS, *COLLECTIVES, *(f"{way} training" for way in CLUSTERS)]
    parser = argparse.ArgumentParser(description="What each mechanism of the runtime gains")
    parser.add_argument("--json", type=Path, metavar="FILE", help="put rows, machine and versions there")
    parser.add_argument("--only", action="append", choices=list(MECHANISMS), metavar="NAME", help=", ".join(MECHANISMS))
    parser.add_argument("--program", action="append", choices=programs, metavar="NAME", help=", ".join(programs))
    parser.add_argument(
        "--apart", action="store_true", help="as on several machines: no shared memory, no Unix streams"
    )
    parser.add_argument(
        "--namespaces",
        action="store_true",
        help="parameter servers in another network namespace; no training, no collectives",
    )
    parser.add_argument("--pairs", type=int, default=40, help="batches of each cluster")
    args = parser.parse_args()
    found: list[dict[str, Any]] = []
    base = environment("lent tensors, Unix streams") if args.apart or args.namespaces else {}
    if args.namespaces:
        base, programs = base | {MACHINES: "insecure"}, list(STEPS)
    apart = ", two machines" if args.namespaces else ", over tcp" if args.apart else ""
    for mechanism in args.only or MECHANISMS:
        try:
            for each in rows(mechanism, args.program or programs, args.pairs, base):
                found.append(each)
                print(
                    f"{mechanism:36} {each['program']:22} {each['on_us']:9.0f} {each['off_us']:9.0f} µs   median {each['median']:.2f} "
                    f"({each['low']:.2f}-{each['high']:.2f})  fastest {each['fastest']:.2f}  cpu {each['cpu']:.2f}",
                    flush=True,
                )  # fmt: skip
        except (RuntimeError, TimeoutError) as error:
            print(f"{mechanism}: {error}", file=sys.stderr, flush=True)
        if args.json is not None:  # after each mechanism: what was measured stays, whatever happens to the next
            _write(args.json, found, apart)


def _write(path: Path, found: Iterable[dict[str, Any]], apart: str) -> None:
    """Put the rows into a file; those that were not measured anew stay."""
    new = [
        row(f"{r['program']}{apart}: {r['mechanism']}", "µs", r["on_us"], r["on_us"] * r["median"], "without it")
        for r in found
    ]
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    what = report("What each mechanism of the runtime gains", False, new, kept)
    if kept is not None:
        names = {each.name for each in new}
        what["rows"] = [each for each in kept["rows"] if each["name"] not in names] + what["rows"]
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")
