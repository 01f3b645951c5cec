"""The placement benchmark reads workloads, asks for what they ask, and reports what the judge says."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dovetail.placer.search.problem import Objective

BENCH = Path(__file__).resolve().parents[2] / "bench"

# A judge with the interface of the published one: two devices, each value costs 1 where it crosses.
JUDGE = """
import json, pathlib
class Workload:
    def __init__(self, path):
        self.path, given = path, json.loads(pathlib.Path(path).read_text())
        self.n, self.k, self.l, self.M = given["n"], 2, 1, 100.0
        self.p_acc, self.p_cpu = [1.0] * self.n, [9.0] * self.n
        self.size, self.sup, self.cost = [1.0] * self.n, [True] * self.n, [0.25] * self.n
        self.succ = [[i + 1] for i in range(self.n - 1)] + [[]]
        self.groups = [[i] for i in range(self.n)]
    def upward_rank(self): return [float(self.n - i) for i in range(self.n)]
    def check(self, dev): return [] if max(dev) <= 2 else ["no such device"]
    def max_load(self, dev): return 4.25
    def oplevel(self, dev): return 8.0
"""
TABLE = "objective\tworkload\tbest_contiguous\tbest_any\nthr\tthroughput-inputs/a.json\t5\t4.25\n"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    import placement_quality

    yield placement_quality
    for name in ("placement_quality", "_workloads", "_harness"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evaluate.py").write_text(JUDGE)
    (tmp_path / "best_known.tsv").write_text(TABLE)
    for name in ("throughput-inputs/a.json", "latency-inputs/b.json", "more/step_c.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"n": 8}))
    return tmp_path


def test_every_workload_is_solved_judged_and_written_down(
    bench: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    assert bench.main([str(folder), "--quick", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    rows = {row["workload"]: row for row in report["rows"]}
    assert {name: row["objective"] for name, row in rows.items()} == {
        "throughput-inputs/a.json": "throughput",
        "more/step_c.json": "makespan",
    }
    assert rows["throughput-inputs/a.json"]["ratio"] == 1.0  # the judge's word counts, not ours
    assert rows["more/step_c.json"]["single_pass"] == 8.0
    assert all(row["first_s"] < 1 for row in rows.values())
    assert report["summary"]["throughput within 1 % of best known"] == 1
    assert "step_c" in capsys.readouterr().out


def test_the_worst_seed_counts_and_steps_stand_beside_an_unhurried_search(
    bench: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([3.0, 5.0, 4.0, *[9.0] * 3, 2.0])  # three seeds, single passes, the search with ten times the budget
    monkeypatch.setattr(bench, "judged", lambda workload, objective, solution: next(values))
    case = next(c for c in bench.cases(folder) if c.name == "throughput-inputs/a.json")
    judge = bench.load_judge(folder)
    found = bench.solve(case, Objective.MAKESPAN, judge, 0.05, 3)
    assert (found.value, found.best, found.best_known, found.ratio) == (5.0, 3.0, 2.0, 2.5)
    assert found.single_pass == 9.0 and found.best_contiguous is None


def test_a_named_folder_without_workloads_is_an_error(bench: ModuleType, tmp_path: Path) -> None:
    assert bench.main([str(tmp_path / "nothing")]) == 2
