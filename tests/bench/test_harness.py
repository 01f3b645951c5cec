"""The benchmarks' harness counts, compares and records right, however fast or slow this machine is."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import dovetail

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def harness() -> ModuleType:
    """bench/_harness.py, loaded by path: bench/ is a folder of scripts and stays off the tests' path."""
    spec = importlib.util.spec_from_file_location("_harness", BENCH / "_harness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["_harness"] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


class FakeClock:
    """A clock that only moves when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("dovetail_", "peer", "target", "ratio", "met"),
    [
        (1.0, 10.0, "ratio <= 0.1", 0.1, True),
        (2.0, 10.0, "ratio <= 0.1", 0.2, False),
        (50.0, 10.0, "ratio >= 5", 5.0, True),
        (0.94, None, "dovetail >= 0.95", None, False),
        (0.96, 10.0, "dovetail >= 0.95", 0.096, True),
        (1.0, None, "ratio <= 0.1", None, None),
        (1.0, 10.0, "", 0.1, None),
    ],
)
def test_row_judges(
    harness: ModuleType,
    dovetail_: float,
    peer: float | None,
    target: str,
    ratio: float | None,
    met: bool | None,
) -> None:
    row = harness.row("case", "s", dovetail_, peer, "peer", target)
    assert row.ratio == (None if ratio is None else pytest.approx(ratio))
    assert row.met is met


@pytest.mark.parametrize("target", ["ratio < 0.1", "peer <= 1", "fast", "ratio <= 1x"])
def test_row_rejects_a_target_that_it_cannot_judge(harness: ModuleType, target: str) -> None:
    with pytest.raises(ValueError, match="is not like"):
        harness.row("case", "s", 1.0, 1.0, "peer", target)


def test_measure_takes_turns_and_gives_medians(harness: ModuleType) -> None:
    clock = FakeClock()
    log: list[str] = []
    # One outlier among dovetail's five measured calls, which a mean would show.
    durations = {"dovetail": iter([1.0] * 6 + [99.0, 1.0, 1.0]), "peer": iter([4.0] * 9)}

    def work(name: str) -> None:
        log.append(name)
        clock.now += next(durations[name])

    medians = harness.measure(lambda: work("dovetail"), lambda: work("peer"), rounds=5, clock=clock)
    assert medians == (1.0, 4.0)
    warm_up, rounds = log[:8], [set(log[i : i + 2]) for i in range(8, len(log), 2)]
    assert warm_up == ["dovetail"] * 4 + ["peer"] * 4
    assert rounds == [{"dovetail", "peer"}] * 5
    assert log[8:12] == ["dovetail", "peer", "peer", "dovetail"]


def test_measure_times_short_calls_many_at_once(harness: ModuleType) -> None:
    clock = FakeClock()
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1
        clock.now += 2.0**-10

    assert harness.measure(short, rounds=3, min_sample_s=2.0**-6, clock=clock) == (2.0**-10, None)
    assert calls == (1 + 2 + 4 + 8 + 4 * 16) + 3 * 16


def test_a_first_call_that_compiles_does_not_say_how_many_calls_a_sample_has(harness: ModuleType) -> None:
    clock = FakeClock()
    durations = [10.0, 10.0, 20.0]

    def short() -> None:
        clock.now += durations.pop() if durations else 2.0**-10

    calls = harness.calls_per_sample(short, 2.0**-6, clock)
    assert calls == 16


def test_main_prints_a_table_and_writes_what_it_measured(
    harness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def rows(quick: bool) -> list[object]:
        asked.append(quick)
        return [
            harness.row("empty step", "s", 0.5, 2.0, "Peer", "ratio <= 0.3"),
            harness.row("alone", "s", 3.0),
        ]

    path = tmp_path / "out.json"
    harness.main("A title", rows, ["--quick", "--json", str(path)])
    assert asked == [True]
    printed = capsys.readouterr().out
    assert "A title" in printed
    assert "empty step" in printed
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["rows"][0] == {
        "name": "empty step", "unit": "s", "dovetail": 0.5, "peer": 2.0, "peer_name": "Peer", "ratio": 0.25,
        "target": "ratio <= 0.3", "met": True,
    }  # fmt: skip
    assert written["rows"][1]["peer"] is None
    assert written["quick"] is True
    assert written["machine"]["cores"] >= 1
    assert written["versions"]["dovetail"] == dovetail.__version__
    assert "numpy" in written["versions"]


def test_main_refuses_a_missing_folder_before_it_measures(harness: ModuleType, tmp_path: Path) -> None:
    def rows(quick: bool) -> list[object]:
        raise AssertionError("measured first")

    with pytest.raises(SystemExit):
        harness.main("A title", rows, ["--json", str(tmp_path / "missing" / "out.json")])


def test_main_measures_some_rows_anew_and_keeps_the_others(harness: ModuleType, tmp_path: Path) -> None:
    asked: list[str] = []

    def group(name: str, fails: bool = False) -> object:
        def rows(quick: bool) -> Iterator[object]:
            asked.append(name)
            yield harness.row(f"{name} (processor time {len(asked)})", "s", float(len(asked)))
            if fails:
                raise OSError("it broke")

        return rows

    path = tmp_path / "out.json"
    table = {"a": group("a"), "b": group("b", fails=True), "c": group("c")}
    with pytest.raises(SystemExit, match="b"):
        harness.main("A title", table, ["--json", str(path)])
    harness.main("A title", table, ["--json", str(path), "--only", "a"])
    assert asked == ["a", "b", "c", "a"]
    written = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert [(each["name"][0], each["dovetail"]) for each in written] == [("a", 4.0), ("b", 2.0), ("c", 3.0)]


def test_a_report_names_all_machines_of_its_rows(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    report, cpus = None, []
    for cpu in ("one", "one", "other", "one"):
        monkeypatch.setattr(harness, "machine", lambda cpu=cpu: {"cpu": cpu})
        report = harness.report("A title", True, [], report)
        cpus.append(report["machine"]["cpu"])
    assert cpus == ["one", "one", "one; in part other", "one; in part other"]


def test_no_benchmark_hides_a_standard_module() -> None:
    assert {path.stem for path in BENCH.glob("*.py")}.isdisjoint(sys.stdlib_module_names)
