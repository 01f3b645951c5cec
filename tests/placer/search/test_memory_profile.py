"""What is alive at one time must fit: placements that hold too much at some moment are not taken, and errors tell what and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.core.errors import ResourceExhaustedError
from dovetail.placer.search.memory_profile import LiveValues
from dovetail.placer.simulate import step_of

MIB = 2**20


def branches(count: int, side: int = 512) -> Any:
    """So many values of 1 MiB that are all alive until they are added up; a slow function makes each."""
    x = dt.placeholder(dt.float32, [side, side], name="x")
    made = [dt.matmul(x, x, name=f"made_{i}") for i in range(count)]
    return dt.add_n([dt.reduce_sum(m) for m in made] + [dt.reduce_sum(dt.concat(made, 0))], name="total")


def placed(total: Any, memory: float, devices: int = 3, **options: Any) -> dt.Plan:
    described = {"w": [{"name": "cpu:0", "memory": int(memory * MIB), "flops": 1e12, "bandwidth": 1e11}]}
    return dt.place(None, {"w": devices}, devices=described, fetches=total, budget_s=0.5, **options)


def test_held_values_are_summed_over_time() -> None:
    with dt.Graph().as_default():
        plan = placed(branches(3), 1000, devices=1)
        # Three of 1 MiB, and the one of 3 MiB that they are joined to.
        assert dt.simulate(plan).peak == (pytest.approx(6 * MIB, rel=0.01),)


def test_the_search_spreads_what_does_not_fit_together() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        # Alone on one device it would be fastest, but six values of 1 MiB are alive at once.
        made = [dt.matmul(x, x, name=f"made_{i}") for i in range(6)]
        sums = [dt.reduce_sum(m, name=f"sum_{i}") for i, m in enumerate(made)]
        with dt.control_dependencies([m.op for m in made]):
            late = [dt.reduce_sum(dt.exp(m, name=f"exp_{i}")) for i, m in enumerate(made)]
        total = dt.add_n(sums + late, name="total")
        alone = placed(total, 1000, strategy="single")
        assert max(dt.simulate(alone).peak) > 6 * MIB
        plan = placed(total, 4.5, strategy="auto")
        peak = dt.simulate(plan).peak
        assert len(plan.partitions) > 1 and max(peak) <= 4.5 * MIB
        again = placed(total, 4.5, strategy="auto")
        assert again.placement == plan.placement


def test_a_node_that_fits_nowhere_is_named_with_what_it_takes_and_makes() -> None:
    with dt.Graph().as_default(), pytest.raises(ResourceExhaustedError) as e:
        placed(branches(4), 7, strategy="auto")
    assert "'concat' (ConcatV2) needs 8.0 MiB at once: 'concat' (4.0 MiB), 'made_0' (1.0 MiB)" in str(e.value)
    assert "no device that it may be on has more than 7.0 MiB, 1.0 MiB too little" in str(e.value)
    assert "test_memory_profile.py" in str(e.value)


def test_what_holds_too_much_at_one_moment_is_told() -> None:
    with dt.Graph().as_default(), pytest.raises(ResourceExhaustedError) as e:
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        made = [dt.exp(x, name=f"made_{i}") for i in range(6)]
        with dt.control_dependencies([m.op for m in made]):
            late = [dt.reduce_sum(m) for m in made]
        placed(dt.add_n(late), 4.5, devices=1, strategy="auto")
    assert "the best placement that was found holds 6.0 MiB at once: 'made_0' (1.0 MiB)" in str(e.value)
    assert "1.5 MiB too little" in str(e.value)


def test_reading_a_variable_copies_it_only_where_it_is_not() -> None:
    with dt.Graph().as_default():
        with dt.device("/task:0"):
            v = dt.Variable(np.zeros([512, 512], np.float32), name="v")
            here = dt.reduce_sum(v)
        with dt.device("/task:1"):
            there = dt.reduce_sum(v)
        plan = dt.place(None, {"w": 2}, fetches=[here, there])
        assert dt.simulate(plan).peak == (pytest.approx(MIB, rel=0.01), pytest.approx(MIB, rel=0.01))


def test_rows_of_held_values_end_when_the_last_copy_has_left() -> None:
    with dt.Graph().as_default():
        with dt.device("/task:0"):
            a = dt.fill([512, 512], 1.0, name="a")
        with dt.device("/task:1"):
            b = dt.reduce_sum(a)
        plan = dt.place(None, {"w": 2}, fetches=b)
        problem, assignment, names, _ = step_of(plan)
        start, finish = np.zeros(len(names)), np.ones(len(names))
        held = LiveValues(problem, assignment, start, finish)
        (v,) = (v for v, s in enumerate(problem.value_source.tolist()) if names[s] == "a")
        rows = {
            int(d): (float(s), float(u))
            for x, d, s, u in zip(held.value, held.device, held.since, held.until, strict=True)
            if x == v
        }
        assert rows[0][0] == 0.0 and rows[0][1] == rows[1][0] > 1.0
