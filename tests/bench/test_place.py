"""The planning benchmark plans what it says, and measures growth."""

import json
from collections.abc import Iterator
from types import ModuleType

import pytest
from bench_modules import BENCH, loaded


@pytest.fixture(scope="module")
def bench() -> Iterator[ModuleType]:
    with loaded("place") as module:
        yield module


@pytest.mark.slow
@pytest.mark.parametrize(("graph", "channels"), [("towers", range(50, 600)), ("hopping", range(2990, 3000))])
def test_a_graph_over_64_devices(bench: ModuleType, graph: str, channels: range) -> None:
    found = bench.measured(graph, 3000, 2)
    assert abs(found["nodes"] - 3000) < 150 and found["channels"] in channels
    assert len(found["seconds"]) == 2 and all(0 < s < 10 for s in found["seconds"])
    assert 0 < found["graph"] <= found["peak"]


@pytest.mark.slow
def test_over_many_devices_the_plan_is_printed_and_its_page_written(bench: ModuleType) -> None:
    found = bench.measured("towers", 3000, 1, 16)
    assert 0 < found["print_seconds"] < 10 and 0 < found["page_seconds"] < 10 and found["page_bytes"] > 1e5


def test_a_process_that_fails_says_why(bench: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="KeyError: 'unheard of'"):
        bench.measured("unheard of", 10, 1)


def test_growth(bench: ModuleType) -> None:
    assert bench.slope([(10, 0.5), (100, 5.0), (1000, 50.0)]) == pytest.approx(1)
    assert bench.slope([(10, 1.0), (100, 100.0)]) == pytest.approx(2)


def test_the_plot_shows_every_point(bench: ModuleType) -> None:
    text = bench.plot({"towers": [(1000, 0.01), (10_000, 0.1)], "hopping": [(1000, 0.02), (10_000, 0.9)]})
    body = text.split("+---")[0]
    assert body.count("t") == 2 and body.count("h") == 2 and "." in body


def test_the_recorded_result_is_of_the_full_run() -> None:
    recorded = json.loads((BENCH / "results" / "place.json").read_text(encoding="utf-8"))
    rows = {row["name"]: row for row in recorded["rows"]}
    assert recorded["quick"] is False and rows["hopping, 1,000,000 nodes"]["met"] is True
