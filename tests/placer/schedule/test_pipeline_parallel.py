"""Schedules of pipelines: every pass once, nothing before what it needs, the promised bubble and number of kept micro-batches."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from dovetail.placer.schedule.pipeline_parallel import (
    SCHEDULES,
    Pass,
    Pipeline,
    held,
    ideal_bubble,
    on_a_clock,
    schedule,
)

sizes = st.integers(1, 7), st.integers(1, 12)


@given(st.sampled_from(SCHEDULES), *sizes)
def test_every_stage_runs_each_pass_once_and_forward_first(name: str, stages: int, micro_batches: int) -> None:
    passes = schedule(name, stages, micro_batches)
    every = {Pass("F", m) for m in range(micro_batches)} | {Pass("B", m) for m in range(micro_batches)}
    assert len(passes) == stages
    for todo in passes:
        assert len(todo) == len(every) and set(todo) == every
        assert all(todo.index(Pass("F", m)) < todo.index(Pass("B", m)) for m in range(micro_batches))


@given(st.sampled_from(SCHEDULES), *sizes)
def test_nothing_waits_for_itself_and_passes_follow_what_they_need(name: str, stages: int, micro_batches: int) -> None:
    passes = schedule(name, stages, micro_batches)
    placed = on_a_clock(passes)
    assert len(placed) == 2 * stages * micro_batches
    finish = {(p.stage, p.what): p.finish for p in placed}
    order = {(p.stage, p.what): i for i, p in enumerate(placed)}
    for p in placed:
        beside = p.stage - 1 if p.what.kind == "F" else p.stage + 1
        if 0 <= beside < stages:
            assert finish[beside, p.what] <= p.start and order[beside, p.what] < order[p.stage, p.what]


@given(st.sampled_from(SCHEDULES), *sizes)
def test_the_bubble_is_what_the_papers_say(name: str, stages: int, micro_batches: int) -> None:
    placed = on_a_clock(schedule(name, stages, micro_batches))
    busy = sum(p.finish - p.start for p in placed)
    end = max(p.finish for p in placed)
    assert 1 - busy / (stages * end) == pytest.approx(ideal_bubble(stages, micro_batches))


@given(*sizes)
def test_1f1b_keeps_no_more_micro_batches_than_there_are_stages(stages: int, micro_batches: int) -> None:
    assert held(schedule("gpipe", stages, micro_batches)) == (micro_batches,) * stages
    assert held(schedule("1f1b", stages, micro_batches)) == tuple(min(stages - s, micro_batches) for s in range(stages))


def test_it_is_drawn() -> None:
    assert str(Pipeline("pipeline", "1f1b", 3, ("/cpu:0", "/cpu:1"))) == (
        "1f1b: 2 stages, 3 micro-batches; bubble 25% where stages take equally long\n"
        "  /cpu:0  F0 F1       B0... F2 B1...    B2...  keeps 2\n"
        "  /cpu:1     F0 B0... F1 B1... F2 B2...        keeps 1"
    )


@pytest.mark.parametrize("wrong", [("2f2b", 1, 1), ("gpipe", 0, 1), ("1f1b", 1, 0)])
def test_wrong_schedules(wrong: tuple[str, int, int]) -> None:
    with pytest.raises(ValueError, match="schedule|at least one"):
        schedule(*wrong)
