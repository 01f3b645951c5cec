"""How good and how fast the placement search is, on published workloads, judged by their own evaluator.

    python bench/placement_quality.py [FOLDER] [--json FILE] [--budget S] [--seeds N] [--unhurried N] [--quick]

FOLDER holds workloads, `best_known.tsv` and `evaluate.py` (see `_workloads.py`); by default it is what
DOVETAIL_PLACEMENT_WORKLOADS names, or `../shared/conformance/placement` beside the checkout. Every split is
judged by that `evaluate.py`, never by our own simulator, and must satisfy its `check`. The worst of N seeds counts.

Each workload is searched for what its table asks for, and for the time of one step. No step times are published, so these are compared
with the best of the N seeds and of further searches with ten times the budget, one or as many as `--unhurried` says.
`step_workloads.py` writes a folder of steps.

The inner loops are compiled before the clock starts, as a user pays for that once per machine; how long it
took is printed. Times are wall-clock times: on a busy machine they are too high. Values are the same on any machine.
"""

import argparse
import contextlib
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
from dovetail.placer.search.problem import Objective, Problem, Solution

FOLDER = "DOVETAIL_PLACEMENT_WORKLOADS"
DEFAULT = ROOT.parent / "shared" / "conformance" / "placement"
BUDGET_S, SEEDS, UNHURRIED = 1.0, 5, 10.0
JUDGES = {Objective.THROUGHPUT: "max_load", Objective.MAKESPAN: "oplevel"}


@dataclass(frozen=True, slots=True)
class Result:
    """One workload: the judged value of the worst seed, that of the best, what is known, and how long it took (seconds, the slowest).

    `first_s` is when the first feasible split was there. `single_pass` is the best of one device, HEFT and m-ETF (makespan only).
    """

    workload: str
    objective: str
    nodes: int
    value: float
    best: float
    best_contiguous: float | None
    best_known: float | None
    single_pass: float | None
    lower_bound: float
    by: str
    first_s: float
    total_s: float

    @property
    def ratio(self) -> float | None:
        """The value over the best known."""
        return self.value / self.best_known if self.best_known else None


def solve(case: Case, objective: Objective, judge: Any, budget_s: float, seeds: int, unhurried: int = 1) -> Result:
    """Search with each seed, and so many times unhurriedly, and let the judge say what came of it.

    RuntimeError: a split breaks a constraint.
    """
    workload = judge.Workload(str(case.path))
    first_s = total_s = 0.0
    found: list[tuple[float, Solution]] = []
    for seed in range(seeds):
        started = time.perf_counter()
        problem = problem_of(workload, objective)
        first: float | None = None
        for better in improvements(problem, budget_s=budget_s, seed=seed):
            solution = better
            first = first or time.perf_counter() - started
        first_s, total_s = max(first_s, first or 0.0), max(total_s, time.perf_counter() - started)
        found.append((judged(workload, objective, solution), solution))
    contiguous, known = case.best_contiguous, case.best_any
    if objective is not case.objective:  # the table says nothing about steps
        contiguous = known = None
    single_pass = None
    if objective is Objective.MAKESPAN:
        single_pass = _single_pass(workload, problem)
        if known is None and seeds > 1:
            further = [search(problem, budget_s=UNHURRIED * budget_s, seed=seeds + i) for i in range(unhurried)]
            known = min([judged(workload, objective, each) for each in further] + [value for value, _ in found])
    value, solution = max(found, key=lambda entry: entry[0])
    return Result(
        case.name, objective.value, workload.n, value, min(value for value, _ in found), contiguous, known, single_pass,
        solution.lower_bound, solution.history[-1].by, first_s, total_s,
    )  # fmt: skip


def _single_pass(workload: Any, problem: Problem) -> float | None:
    """The best step time of one device, HEFT and m-ETF; None: none of them fits memory."""
    found: list[float] = []
    for strategy in ("single", "heft", "m-etf"):
        with contextlib.suppress(ValueError):  # it does not fit memory this way
            found.append(judged(workload, Objective.MAKESPAN, search(problem, strategy=strategy)))
    return min(found, default=None)


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
        "throughput within 1 % of best known": sum((r.ratio or 9) <= 1.01 for r in throughput),
        "steps": len(steps),
        "steps better than every single pass": sum(r.value < (r.single_pass or 0.0) for r in steps),
        "steps within 1.5 % of an unhurried search": sum((r.ratio or 9) <= 1.015 for r in steps),
        "slowest, s": max(r.total_s for r in results),
        "median, s": statistics.median(r.total_s for r in results),
        "slowest first answer, s": max(r.first_s for r in results),
    }


def table(results: Sequence[Result]) -> str:
    """The results as lines that a wide terminal, a file and a diff all take."""
    width = max(len(r.workload) for r in results)
    head = f"{'objective':<10}  {'workload':<{width}}" + "".join(
        f"{name:>12}" for name in ("worst", "best", "contiguous", "known", "ratio", "bound", "first s", "total s")
    )
    lines = [head]
    for r in results:
        numbers = (r.value, r.best, r.best_contiguous, r.best_known, r.ratio, r.lower_bound, r.first_s, r.total_s)
        cells = "".join(f"{'' if x is None else format(x, '.4f'):>12}" for x in numbers)
        lines.append(f"{r.objective:<10}  {r.workload:<{width}}{cells}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark from the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Quality and speed of the placement search")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="where the workloads are")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results, machine and versions there")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="work of each search, in seconds")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"searches of each workload; {SEEDS}")
    parser.add_argument(
        "--unhurried", type=int, default=1, metavar="N", help="searches of a step with ten times the budget"
    )
    parser.add_argument("--quick", action="store_true", help="only what the table asks for, with one seed")
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
    seeds = args.seeds or (1 if args.quick else SEEDS)
    for case in found:
        for objective in [case.objective] if args.quick else dict.fromkeys((case.objective, Objective.MAKESPAN)):
            r = solve(case, objective, judge, args.budget, seeds, args.unhurried)
            results.append(r)
            print(f"{r.workload}, {r.objective}: {r.value:.4f}, at most {r.total_s:.2f} s ({r.by})", flush=True)
    print(table(results))
    totals = summary(results)
    for what, count in totals.items():
        print(f"{what}: {count:.3g}" if isinstance(count, float) else f"{what}: {count}")
    if args.json is not None:
        report = {
            "title": "Placement of published workloads", "quick": args.quick, "budget_s": args.budget, "seeds": seeds,
            "unhurried": args.unhurried,
            "time": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(),
            "load": [round(x, 2) for x in os.getloadavg()], "versions": versions(), "compile_s": compile_s,
            "summary": totals, "rows": [asdict(r) | {"ratio": r.ratio} for r in results],
        }  # fmt: skip
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
