"""What every benchmark shares: fair timing, one table, one file.

A benchmark is a script, `python bench/NAME.py [--quick] [--json FILE]`, that starts the peer beside Dovetail
in the same run on the same machine, because a number measured on another day compares two days, not two
systems. It ends

    if __name__ == "__main__":
        main("Building graphs", rows)          # rows(quick) yields `Row`s

`measure` takes its samples in turn, Dovetail and peer, and changes who goes first in each round, so that a
machine that warms up, throttles or gets busy does so for both. It reports medians: a busy moment makes a
sample slower, never faster, and the median forgets it.

A file in bench/ must not be named like a module of the standard library: the folder stands first on the path
of its scripts, so a bench/queue.py would be everybody's `queue`.
"""

import argparse
import gc
import json
import operator
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))  # a benchmark runs in a checkout, installed or not

if TYPE_CHECKING:
    from rich.table import Table

# An interpreter that has the peer, where the running one has not. The option --peer-python sets it.
PEER_PYTHON = "DOVETAIL_PEER_PYTHON"
WARM_UP = 4  # the first call of all may compile; from the third one of the same shapes on, plans are made
COMPARISONS = {"<=": operator.le, ">=": operator.ge}
# Packages whose version can change a number: what Dovetail stands on, and the peers.
VERSIONED = [
    "numpy", "pyzmq", "msgpack", "networkx", "scipy", "numba", "triton", "cuda-bindings",
    "tensorflow", "tensorflow-cpu", "torch", "jax", "cupy", "cupy-cuda13x", "ray", "onnxruntime",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a benchmark: what was measured, and whether it is good enough.

    `dovetail` and `peer` are in `unit`; `ratio` is Dovetail over peer. `target` is "" or a comparison such as
    "ratio <= 0.1" or "dovetail >= 0.95"; `met` is None when there is no target, or no peer to compare with.
    """

    name: str
    unit: str
    dovetail: float
    peer: float | None
    peer_name: str
    ratio: float | None
    target: str
    met: bool | None


def row(name: str, unit: str, dovetail: float, peer: float | None = None, peer_name: str = "", target: str = "") -> Row:
    """Make a `Row`: the ratio and whether the target is met follow from the rest.

    Raises ValueError when `target` is not of the form "ratio|dovetail <=|>= NUMBER".

        >>> row("empty step", "µs", 90.0, 570.0, "TensorFlow", target="ratio <= 0.25").met
        True
    """
    ratio = dovetail / peer if peer else None
    met = None
    if target:
        parsed = re.fullmatch(r"(ratio|dovetail) (<=|>=) (\d+(?:\.\d+)?(?:e-?\d+)?)", target)
        if parsed is None:
            raise ValueError(f"{name}: target {target!r} is not like 'ratio <= 0.1' or 'dovetail >= 0.95'")
        value = ratio if parsed[1] == "ratio" else dovetail
        met = None if value is None else COMPARISONS[parsed[2]](value, float(parsed[3]))
    return Row(name, unit, dovetail, peer, peer_name, ratio, target, met)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[98] if len(values) > 1 else values[0]


def measure(
    dovetail: Callable[[], object],
    peer: Callable[[], object] | None = None,
    *,
    rounds: int = 9,
    min_sample_s: float = 0.01,
    clock: Callable[[], float] = time.perf_counter,
    rest: float = 0.0,
) -> tuple[float, float | None]:
    """Time two callables in turn; return the median seconds per call of each (None without a peer).

    First the number of calls per sample grows until WARM_UP samples last `min_sample_s` each, so that short calls
    are timed many at once; this warms both up, too. Then follow `rounds` samples of each, after a rest of so many seconds.
    """
    functions = [dovetail] if peer is None else [dovetail, peer]
    calls = [calls_per_sample(function, min_sample_s, clock) for function in functions]
    samples: list[list[float]] = [[] for _ in functions]
    order = list(range(len(functions)))
    for _ in range(rounds):
        for which in order:
            time.sleep(rest)
            samples[which].append(_sample(functions[which], calls[which], clock))
        order.reverse()
    medians = [statistics.median(each) for each in samples]
    return medians[0], (medians[1] if peer is not None else None)


def calls_per_sample(function: Callable[[], object], min_sample_s: float, clock: Callable[[], float]) -> int:
    """How many calls in a row take at least so many seconds of a clock, WARM_UP times."""
    calls = 1
    while any(_sample(function, calls, clock) * calls < min_sample_s for _ in range(WARM_UP)):
        calls *= 2
    return calls


def _sample(function: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    gc.collect()  # no system pays for another one's garbage
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def main(
    title: str,
    rows: Callable[[bool], Iterable[Row]] | Mapping[str, Callable[[bool], Iterable[Row]]],
    argv: list[str] | None = None,
) -> None:
    """Run a benchmark from its command line: print its table, and write it down when --json says where.

    `rows(quick)` yields the rows as they are measured; `quick` asks for a run of seconds. A missed target is
    printed and is no error: people judge whether a number is good enough, on a machine that is quiet.

    A long benchmark gives a table of such functions, by name. Then `--only NAME` measures some of them and leaves
    the other rows of the file as they are, the file is written after each row, and one that fails does not
    keep the others from being measured; the exit status tells of it.
    """
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--quick", action="store_true", help="a short run: fewer and smaller cases")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write rows, machine and versions there")
    parser.add_argument(
        "--peer-python", metavar="PATH",
        help=f"interpreter that has the peer, if the running one has not (or set {PEER_PYTHON})",
    )  # fmt: skip
    if isinstance(rows, Mapping):
        parser.add_argument(
            "--only", action="append", choices=list(rows), metavar="NAME",
            help=f"measure this alone, and keep the other rows of the file: {', '.join(rows)} (may be said several times)",
        )  # fmt: skip
    args = parser.parse_args(argv)
    if args.peer_python is not None:
        os.environ[PEER_PYTHON] = args.peer_python
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")  # before minutes are spent
    failed: list[str] = []
    if isinstance(rows, Mapping):
        measured = _measured_by_name(title, rows, args.only or list(rows), args.quick, args.json, failed)
    else:
        measured = list(rows(args.quick))
    from rich.console import Console

    Console().print(table(title, measured))
    if args.json is not None and not isinstance(rows, Mapping):  # else it is written already
        _write(args.json, report(title, args.quick, measured))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _measured_by_name(
    title: str,
    groups: Mapping[str, Callable[[bool], Iterable[Row]]],
    wanted: Iterable[str],
    quick: bool,
    path: Path | None,
    failed: list[str],
) -> list[Row]:
    """The rows of the wanted groups, among those that the file has; the file is written after each."""
    found: dict[tuple[str, str], Row] = {}
    kept: dict[str, Any] | None = None
    if path is not None and path.exists() and set(wanted) != set(groups):
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {_key(Row(**each)): Row(**each) for each in kept["rows"]}
    for name in wanted:
        try:
            for each in groups[name](quick):
                found[_key(each)] = each
                ratio = "" if each.ratio is None else f", {each.ratio:.3g} of {each.peer_name}"
                print(f"{each.name}: {each.dovetail:.4g} {each.unit}{ratio}", file=sys.stderr, flush=True)
                if path is not None:
                    _write(path, report(title, quick, found.values(), kept))
        except Exception:
            traceback.print_exc()
            failed.append(name)
    return list(found.values())


def _key(each: Row) -> tuple[str, str]:
    """What a row measures: its name without the processor time that `ablation.py` adds, and the peer."""
    return each.name.partition(" (processor time")[0], each.peer_name


def _write(path: Path, what: dict[str, Any]) -> None:
    path.write_text(json.dumps(what, indent=1) + "\n", encoding="utf-8")


def peer_python() -> str:
    """The interpreter in which to look for the peer: what --peer-python names, or else the running one."""
    return os.environ.get(PEER_PYTHON, sys.executable)


def table(title: str, rows: Iterable[Row]) -> "Table":
    """The rows as a table for the terminal."""
    from rich.table import Table  # machines with GPUs may lack it; bench/gpu.py does without

    out = Table(title=title, title_justify="left")
    out.add_column("")
    for heading in ("dovetail", "peer", "ratio"):
        out.add_column(heading, justify="right")
    for heading in ("unit", "peer name", "target", "met"):
        out.add_column(heading)
    for each in rows:
        numbers = (each.dovetail, each.peer, each.ratio)
        out.add_row(
            each.name,
            *("" if number is None else f"{number:.4g}" for number in numbers),
            each.unit,
            each.peer_name,
            each.target,
            {True: "yes", False: "[red]no[/red]", None: ""}[each.met],
        )
    return out


def report(title: str, quick: bool, rows: Iterable[Row], kept: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The rows with what a reader needs to judge them: when, which commit, what machine, which versions.

    `kept`: the earlier report that some of the rows are from. `since` tells when its oldest rows were measured.
    """
    since, here = {}, machine()
    if kept is not None:
        since = {"since": kept.get("since", kept["time"])}
        before = kept["machine"]["cpu"]
        here["cpu"] = before if here["cpu"] in before else f"{before}; in part {here['cpu']}"
    return since | {
        "title": title,
        "quick": quick,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": here,
        "versions": versions(),
        "rows": [asdict(each) for each in rows],
    }


def machine() -> dict[str, Any]:
    """The machine's class: processor, cores this process may use, memory in GiB, system. No host name."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = re.findall(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        cpu = models[0] if models else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """Versions of Python, Dovetail and the packages that are installed here; this imports none of the packages."""
    import dovetail  # here: a peer's interpreter runs this file, too, and may lack what Dovetail needs

    found = {"python": platform.python_version(), "dovetail": dovetail.__version__}
    for package in VERSIONED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The checkout's commit, with `+` when there are changes beyond it; None outside a git checkout."""
    # One call gives both: the first line is "# branch.oid HASH", changed files are lines without "#".
    command = ["git", "-C", str(ROOT), "status", "--porcelain=v2", "--branch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    first, *others = done.stdout.splitlines()
    return first.split()[-1][:10] + ("+" if any(not line.startswith("#") for line in others) else "")
