"""Published placement workloads as problems: which files there are, what each asks for, who judges.

A folder holds workloads in the format of Tarnawski et al. (its README tells), `evaluate.py`, which judges
splits, and `best_known.tsv`. What a workload asks for is in that table, or else in the path: `step_*.json` ask for the
makespan on the machine of `evaluate.py oplevel`, all others for throughput. Files below `latency-inputs/` ask for the
latency of a host that calls accelerators, which the placer has no objective for: they are passed over.
"""

import csv
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dovetail.placer.search.problem import Objective, Problem

OBJECTIVES = {
    "thr": Objective.THROUGHPUT, "throughput": Objective.THROUGHPUT,
    "op": Objective.MAKESPAN, "oplevel": Objective.MAKESPAN, "step": Objective.MAKESPAN,
    "makespan": Objective.MAKESPAN,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: its path, its name in the table, what it asks for, the best values known (or None)."""

    path: Path
    name: str
    objective: Objective
    best_contiguous: float | None
    best_any: float | None


def cases(folder: Path) -> Iterator[Case]:
    """All workloads below a folder, in order of their paths."""
    table = folder / "best_known.tsv"
    known: dict[str, dict[str, str]] = {}
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            known = {row["workload"]: row for row in csv.DictReader(file, delimiter="\t")}
    for path in sorted(folder.rglob("*.json")):
        name = path.relative_to(folder).as_posix()
        if name.startswith("latency"):
            continue
        row = known.get(name, {})
        objective = OBJECTIVES.get(row.get("objective", "")) or _objective_of(path.relative_to(folder))
        contiguous, best = (_number(row.get(column)) for column in ("best_contiguous", "best_any"))
        yield Case(path, name, objective, contiguous, best)


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:  # a table may say "-" where nothing is known
        return None


def _objective_of(path: Path) -> Objective:
    return Objective.MAKESPAN if path.name.startswith("step_") else Objective.THROUGHPUT


def load_judge(folder: Path) -> Any:
    """The module `evaluate.py` of a folder."""
    spec = importlib.util.spec_from_file_location("placement_judge", folder / "evaluate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # the folder may be read-only
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def problem_of(workload: Any, objective: Objective) -> Problem:
    """A `Workload` of the judge as a problem. Device 0 is the host's CPUs, 1 to k are accelerators."""
    n, k = workload.n, workload.k
    accelerator = np.arange(k + 1) > 0
    sources = [u for u in range(n) if workload.succ[u]]
    ends = [len(workload.succ[u]) for u in sources]
    group = np.empty(n, np.int32)
    for number, members in enumerate(workload.groups):
        group[members] = number
    # To make a group's number that of its first node keeps the numbers in the order of the file.
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first, kind="stable"), kind="stable")[inverse].astype(np.int32)
    port = accelerator.astype(float)
    link = port[:, None] + port[None, :]
    np.fill_diagonal(link, 0.0)
    return Problem(
        objective,
        seconds=np.array([workload.p_cpu, workload.p_acc]),
        device_class=accelerator.astype(np.int32),
        memory=np.array(workload.size),
        capacity=np.where(accelerator, workload.M, np.inf),
        slots=np.where(accelerator, 1, max(1, workload.l)).astype(np.int32),
        value_source=np.array(sources, np.int32),
        value_bytes=np.array([workload.cost[u] for u in sources]),  # "bytes" that take a second each
        value_start=np.concatenate([[0], np.cumsum(ends)]).astype(np.int32),
        value_target=np.array([v for u in sources for v in workload.succ[u]], np.int32),
        group=group,
        allowed=np.array([~accelerator, np.ones(k + 1, bool)]),
        allowed_kind=np.array(workload.sup, np.int32),
        link_latency=np.zeros((k + 1, k + 1)),
        link_per_byte=link,
        port_latency=np.zeros(k + 1),
        port_per_byte=port,
        priority=np.array(workload.upward_rank()) if objective is Objective.MAKESPAN else None,
    )
