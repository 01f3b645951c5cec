"""How good and how fast the placement search is, on published workloads, judged by their own evaluator.

    python bench/placement_quality.py [FOLDER] [--json FILE] [--quick]

FOLDER holds workloads, `best_known.tsv` and `evaluate.py` (see `_workloads.py`); by default it is what
DOVETAIL_PLACEMENT_WORKLOADS names, or `../shared/conformance/placement` beside the checkout. Every split is
judged by that `evaluate.py`, never by our own simulator, and must satisfy its `check`.

The inner loops are compiled before the clock starts, as a user pays for that once per machine; how long it
took is printed. Times are wall-clock times of one run each: on a busy machine they are too high.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from _harness import ROOT, machine, versions
from _workloads import Case, cases, load_judge, problem_of
from dovetail.placer.search.portfolio import improvements, search
from dovetail.placer.search.problem import Objective, Solution

FOLDER = "DOVETAIL_PLACEMENT_WORKLOADS"
DEFAULT = ROOT.parent / "shared" / "conformance" / "placement"
BUDGET_S, QUICK_S = 8.0, 1.0
STEP_BUDGET_S = 2.0  # a step gains little after that: 0.3 % in the median from four times as much
JUDGES = {Objective.THROUGHPUT: "max_load", Objective.MAKESPAN: "oplevel"}


@dataclass(frozen=True, slots=True)
class Result:
    """One workload: the judged value, what is known, and how long it took (seconds).

    `first_s` is when the first feasible split was there, `best_s` the last improvement, `total_s` the end.
    `single_pass` is the best of one device, HEFT and m-ETF (makespan only).
    """

    workload: str
    objective: str
    nodes: int
    value: float
    best_contiguous: float | None
    best_known: float | None
    single_pass: float | None
    lower_bound: float
    by: str
    first_s: float
    best_s: float
    total_s: float

    @property
    def ratio(self) -> float | None:
        """The value over the best known."""
        return self.value / self.best_known if self.best_known else None


def solve(case: Case, judge: Any, budget_s: float, seed: int) -> Result:
    """Search, and let the judge say what came of it. RuntimeError when a split breaks a constraint."""
    workload = judge.Workload(str(case.path))
    started = time.perf_counter()
    problem = problem_of(workload, case.objective)
    first_s = 0.0
    solution: Solution | None = None
    for better in improvements(problem, budget_s=budget_s, seed=seed):
        solution = better
        first_s = first_s or time.perf_counter() - started
    total_s = time.perf_counter() - started
    assert solution is not None  # a search raises when it finds nothing
    value = judged(workload, case.objective, solution)
    single_pass = None
    if case.objective is Objective.MAKESPAN:
        for strategy in ("single", "heft", "m-etf"):
            try:
                found = judged(workload, case.objective, search(problem, strategy=strategy))
            except ValueError:  # it does not fit memory this way
                continue
            single_pass = found if single_pass is None else min(single_pass, found)
    return Result(
        case.name, case.objective.value, workload.n, value, case.best_contiguous, case.best_any, single_pass,
        solution.lower_bound, solution.history[-1].by, first_s, solution.history[-1].seconds, total_s,
    )  # fmt: skip


def judged(workload: Any, objective: Objective, solution: Solution) -> float:
    """What `evaluate.py` says about a split."""
    device = [int(d) for d in solution.assignment]
    broken = workload.check(device)
    if broken:
        raise RuntimeError(f"{workload.path}: {broken[:3]}")
    return float(getattr(workload, JUDGES[objective])(device))


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """What the results amount to, as counts."""
    throughput = [r for r in results if r.objective == "throughput" and r.ratio]
    steps = [r for r in results if r.single_pass is not None]
    return {
        "workloads": len(results),
        "throughput": len(throughput),
        "throughput no worse than best contiguous": sum(
            r.value <= (r.best_contiguous or 0.0) * (1 + 1e-5) for r in throughput
        ),  # the table has four decimals
        "throughput within 2 % of best known": sum((r.ratio or 9) <= 1.02 for r in throughput),
        "steps": len(steps),
        "steps better than every single pass": sum(r.value < (r.single_pass or 0.0) for r in steps),
        "slowest, s": max(r.total_s for r in results),
        "under 20 s": sum(r.total_s < 20 for r in results),
        "under 2 s": sum(r.total_s < 2 for r in results),
        "median, s": statistics.median(r.total_s for r in results),
        "slowest first answer, s": max(r.first_s for r in results),
    }


def table(results: Sequence[Result]) -> str:
    """The results as lines that a wide terminal, a file and a diff all take."""
    width = max(len(r.workload) for r in results)
    head = f"{'objective':<10}  {'workload':<{width}}" + "".join(
        f"{name:>12}" for name in ("value", "contiguous", "known", "ratio", "bound", "first s", "best s", "total s")
    )
    lines = [head]
    for r in results:
        known = r.best_known or r.single_pass
        numbers = (
            r.value, r.best_contiguous, known, r.value / known if known else None, r.lower_bound, r.first_s,
            r.best_s, r.total_s,
        )  # fmt: skip
        cells = "".join(f"{'' if x is None else format(x, '.4f'):>12}" for x in numbers)
        lines.append(f"{r.objective:<10}  {r.workload:<{width}}{cells}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Quality and speed of the placement search")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="where the workloads are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results, machine and versions there")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_S:g} s of work each, not {BUDGET_S:g} (steps: {STEP_BUDGET_S:g})"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the search; one seed, one answer")
    args = parser.parse_args(argv)
    folder = args.folder or Path(os.environ.get(FOLDER, DEFAULT))
    if args.json is not None and not args.json.parent.is_dir():
        parser.error(f"--json {args.json}: there is no folder {args.json.parent}")
    found = list(cases(folder)) if folder.is_dir() else []
    if not found:
        print(f"No workloads in {folder}: name their folder, or set {FOLDER}", file=sys.stderr)
        return 0 if args.folder is None else 2  # in a plain checkout there are none, and that is no error
    judge = load_judge(folder if (folder / "evaluate.py").exists() else DEFAULT)
    started = time.perf_counter()
    smallest = min(found, key=lambda case: case.path.stat().st_size)
    for objective in Objective:
        problem = problem_of(judge.Workload(str(smallest.path)), objective)
        search(problem, budget_s=0.1)
    compile_s = time.perf_counter() - started
    print(f"compiled, or loaded compiled code, in {compile_s:.1f} s")
    results = []
    for case in found:
        budget_s = STEP_BUDGET_S if case.objective is Objective.MAKESPAN else BUDGET_S
        results.append(solve(case, judge, QUICK_S if args.quick else budget_s, args.seed))
        r = results[-1]
        print(f"{r.workload}: {r.value:.4f} after {r.total_s:.2f} s ({r.by})", flush=True)
    print(table(results))
    totals = summary(results)
    for what, count in totals.items():
        print(f"{what}: {count:.3g}" if isinstance(count, float) else f"{what}: {count}")
    if args.json is not None:
        report = {
            "title": "Placement of published workloads", "quick": args.quick, "seed": args.seed,
            "time": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(),
            "load": [round(x, 2) for x in os.getloadavg()], "versions": versions(), "compile_s": compile_s,
            "summary": totals, "rows": [asdict(r) | {"ratio": r.ratio} for r in results],
        }  # fmt: skip
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
