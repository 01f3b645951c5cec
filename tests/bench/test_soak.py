"""The soak benchmark runs, kills clients, and compares the quarters of its time."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """bench/soak.py; its folder is on the path only while it loads."""
    monkeypatch.syspath_prepend(str(BENCH))
    import soak

    yield soak
    for name in ("soak", "_harness"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_some_seconds_of_it(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "LIFE_S", 3.0)
    found = {r.name: r for r in bench.rows(12.0)}
    assert found["clients killed"].dovetail >= 1
    assert found["memory of the tasks"].dovetail > 10 and found["descriptors of the tasks"].dovetail > 10
    assert found["a step, last quarter"].dovetail > 0
