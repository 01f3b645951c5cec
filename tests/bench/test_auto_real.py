"""The steps of bench/auto_real.py and bench/pipeline.py: they build, and compute the same wherever their blocks are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import dovetail as dt

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """bench/auto_real.py; its folder is on the path only while it loads."""
    monkeypatch.syspath_prepend(str(BENCH))
    import auto_real

    yield auto_real
    for name in ("auto_real", "_harness"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("step", ["wide", "transformer"])
def test_a_step_gives_the_same_on_one_device_and_on_three(bench: ModuleType, step: str) -> None:
    build, found = getattr(bench, step), []
    for count in (1, 3):
        with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(device_count={"CPU": count})) as session:
            fetches, feeds = build(dt, lambda i, count=count: dt.device(f"/cpu:{i % count}"))
            session.run(dt.global_variables_initializer())
            found.append(session.run(fetches, feeds)[0])
            assert len(session.last_plan.partitions) == count
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("cores", [1, 2, 4, 8])
def test_budgets_never_ask_for_more_than_there_is(
    bench: ModuleType, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.os, "sched_getaffinity", lambda _: set(range(cores)))
    budgets = bench.budgets()
    assert set(budgets) == set(bench.JOBS)
    asked: dict[int, float] = {}
    for mine, faults in budgets.values():
        slow = next((float(f.partition(":")[2]) for f in faults.split(",") if f.startswith("slow")), 1.0)
        for core in mine:
            asked[core] = asked.get(core, 0.0) + 1 / slow
    assert max(asked.values()) <= 1.0 and bench.SLOW_LINK in budgets["far"][1]


def test_the_model_of_the_pipelines_has_a_stage_on_each_task(bench: ModuleType) -> None:
    import pipeline

    for schedule in ("", "gpipe", "1f1b"):
        with dt.Graph().as_default():
            _, train_op = pipeline.model(dt, schedule)
            plan = dt.place(None, dict.fromkeys(pipeline.TASKS, 1), targets=train_op)
            assert len(plan.partitions) == 2
            evaluation = plan.report()
            assert (evaluation.pipeline is None) == (not schedule)
    sys.modules.pop("pipeline")
