"""`dt.compile` with a strategy that searches: one search for all batch sizes, its budget, what it prints, state that stays."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail import searched_placement
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes
from dovetail.placer.render.text import time_text
from dovetail.placer.rules.placement import Rule

DESCRIPTION = """
cluster:
  worker: 2
devices:
  worker: [{name: "cpu:0", flops: 1.0e+9}]
"""
W0, W1 = (f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(2))


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """The file of a cluster of two tasks on which it pays to use both."""
    path = tmp_path / "cluster.yaml"
    path.write_text(DESCRIPTION)
    return str(path)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each search that is made."""
    made: list[Any] = []
    plan_step = searched_placement.plan_step

    def counted(graph: Any, cluster: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(options)
        return plan_step(graph, cluster, options, *args, **kwargs)

    monkeypatch.setattr(searched_placement, "plan_step", counted)
    return made


def branches(x: Any) -> Any:
    """Two products that can run at the same time, and the training of a layer behind them."""
    left, right = dt.matmul(x, x, transpose_b=True, name="left"), dt.matmul(x, x, transpose_b=True, name="right")
    both = dt.matmul(left, right, name="both")
    w = dt.get_variable("w", [], initializer=dt.ones_initializer())
    loss = dt.reduce_mean(w * both)
    dt.train.AdamOptimizer(0.01).minimize(loss)
    return loss


def batch(size: int) -> Any:
    return np.ones((size, 256), np.float32)


def test_all_batch_sizes_share_one_search(slow, searches):
    step = dt.compile(branches, cluster=slow, strategy="auto", budget_s=0.1)
    first, second = step.plan(batch(256)), step.plan(batch(192))
    assert [o.budget_s for o in searches] == [0.1]
    assert first.solution.is_of_step and second.solution == dataclasses.replace(first.solution, is_of_step=False)
    assert {first.decisions.device_of(n) for n in ("branches/left", "branches/right")} == {W0, W1}
    for n in ("left", "right", "both"):
        assert second.decisions.device_of(f"branches_1/{n}") == first.decisions.device_of(f"branches/{n}")
    assert "predicted step time there" in second.explain("branches_1/left") and "placed by search" in str(
        second.report()
    )
    assert step.plan(batch(256)) is first
    assert len(searches) == 1


def test_another_function_is_searched_for_with_the_variables_where_they_are(slow, searches):
    step = dt.compile(branches, cluster=slow, strategy="auto", budget_s=0.1)
    first = step.plan(batch(256))

    @dt.compile(share_with=step)
    def predict(x):
        return dt.matmul(x, x, transpose_b=True) * dt.get_variable("w", [])

    found = predict.plan(batch(256))
    assert len(searches) == 2 and found.decisions.device_of("branches/w") == first.decisions.device_of("branches/w")


def test_a_symbolic_batch_is_searched_for_with_the_sizes_of_the_first_call(slow, searches, caplog):
    step = dt.compile(branches, cluster=slow, strategy="auto", budget_s=0.1, symbolic_batch=True)
    assert step.plan(batch(256)).solution.objective > 1e-3
    assert step.plan(batch(8)).decisions.device_of("branches/left") == step.plan(batch(256)).decisions.device_of(
        "branches/left"
    )
    assert len(searches) == 1 and not caplog.records


@pytest.mark.slow
def test_calls_follow_the_search_and_their_tasks_make_none(slow, searches, capfd):
    step = dt.compile(branches, cluster=slow, strategy="auto", budget_s=0.1)
    planned = step.plan(batch(256))
    with step:
        assert step(batch(256)) > step(batch(256))  # it learns
        step(batch(64))
        for name in ("left", "right", "both"):
            assert step.plan(batch(64)).decisions.device_of(f"branches_1/{name}") == planned.decisions.device_of(
                f"branches/{name}"
            )
    assert len(searches) == 1
    assert capfd.readouterr() == ("", "")  # neither a line of progress nor a warning of sizes


def test_in_this_process_nothing_is_warned_of(caplog):
    step = dt.compile(branches, strategy="auto", budget_s=0)
    with step:
        step(batch(8))
    assert not caplog.records


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_only(slow, monkeypatch):
    for stream, shows in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        dt.compile(branches, cluster=slow, strategy="auto", budget_s=0.1).plan(batch(256))
        assert ("best so far" in stream.getvalue() and "of the budget used" in stream.getvalue()) is shows


@pytest.mark.parametrize("known", [True, False])
def test_progress_marks_what_depends_on_unknown_sizes(known, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with dt.Graph().as_default(), searched_placement.search_progress():
        x = dt.placeholder(dt.float32, [None, 64], name="x")
        y = dt.matmul(x, dt.ones([64, 64]))
        dt.place(y, {"worker": 2}, strategy="auto", budget_s=0.1, shapes={x: (32, 64)} if known else None)
    told = stream.getvalue()
    assert "best so far" in told and ("best so far ≥ " in told) is not known and (", at least" in told) is known


@pytest.mark.parametrize("shared", [True, False])
def test_progress_counts_one_sided_reads(shared, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with dt.Graph().as_default(), searched_placement.search_progress():
        with dt.device("/job:ps"):
            a, b = (dt.get_variable(name, [200, 200]) for name in "ab")
        with dt.device("/job:worker"):
            y = dt.matmul(dt.matmul(a, a), dt.matmul(b, b))
        plan = dt.place(y, {"ps": 1, "worker": 2}, strategy="auto", budget_s=0.1, profile="none", shared_memory=shared)
    assert {c.direct for c in plan.channels if c.name in ("a/read:0", "b/read:0")} == {shared}
    last = stream.getvalue().strip().splitlines()[-1]
    assert last.startswith(f"best so far {time_text(plan.solution.objective)}")


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"budget_s": 1}, ValueError, 'add strategy="auto"'),
        ({"budget_s": 1, "strategy": "heft"}, ValueError, "not 'heft'"),
        ({"budget_s": -1, "strategy": "auto"}, ValueError, "at least 0, not -1"),
        ({"budget_s": "1", "strategy": "auto"}, TypeError, "a number of seconds, not '1'"),
        ({"strategy": "automatic"}, ValueError, "There is no placement strategy 'automatic'"),
        ({"strategy": "Auto"}, ValueError, "no placement strategy 'Auto': did you mean 'auto'"),
        ({"strategy": "fastest"}, ValueError, "no placement strategy 'fastest'; strategies: rules, auto, "),
    ],
)
def test_wrong_budgets_and_strategies(given, error, text):
    with pytest.raises(error, match=text):
        dt.compile(branches, **given)


def test_the_rules_follow_an_earlier_search_where_a_node_may_have_its_device():
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [2], name="x")
        free = dt.square(x, name="free")
        with dt.device("/job:worker/task:0"):
            bound = dt.square(x, name="bound")
        elsewhere = dt.square(x, name="elsewhere")
    graph.searched.update({free.op: W1, bound.op: W1, elsewhere.op: "/job:ps/replica:0/task:7/device:CPU:0"})
    copy = dt.Graph()
    extend_from_bytes(copy, graph_to_bytes(graph))
    for each in (graph, copy):
        found = dt.place(each, {"worker": 2}).decisions
        assert [found.device_of(n) for n in ("free", "bound", "elsewhere")] == [W1, W0, W0]
        assert found.decision("free").rule is Rule.SEARCHED and found.decision("bound").rule is Rule.ONLY
