"""Gathering and scattering in shared memory, without processes: any order of what members do, any size."""

from __future__ import annotations

import random

import numpy as np
import pytest
from simulated_tasks import Net as Played

from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.runtime.collectives import algorithms, shared_buffer
from dovetail.runtime.collectives.coordinator import WAYS

TYPES = [np.float32, np.float64, np.int8, np.int64, np.complex64, np.bool_]


class Net(Played):
    def ask(self, i, value, run=0, what="gather"):
        kind = "all_gather" if what == "gather" else "reduce_scatter"
        exchange, mine, finish = WAYS[kind]((value,), {"rank": i, "members": self.tasks, "reduction": what})
        signature = f"{what} {value.dtype}{value.shape[1:] if what == 'gather' else value.shape}"
        return self.come(i, ("g", run), signature, exchange, mine, finish)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(shared_buffer, "MIN_STAGING_BYTES", 1 << 10)
    monkeypatch.setattr(shared_buffer, "STAGING_BYTES", 1 << 11)


def shapes(rng, what, count):
    """A shape for each member."""
    inner = rng.choice([(), (3,), (2, 0), (5, 2)])
    rows = [rng.choice([0, 1, 2, 7, 100, 999]) for _ in range(count)]
    if what == "gather":
        return [(n, *inner) for n in rows]
    return [(rows[0] * count, *inner)] * count


def expected(what, values):
    count = len(values)
    if what == "gather":
        return [np.concatenate(values)] * count
    total = values[0]
    for v in values[1:]:
        total = algorithms.REDUCTIONS[what](total, v)
    if what == "mean":
        total = algorithms.mean_of(total, count)
    return np.split(total, count)


@pytest.mark.parametrize("seed", range(40))
def test_any_order_gives_what_sending_gives(seed):
    rng = random.Random(seed)
    count = rng.choice([2, 3, 5])
    net = Net(count)
    numbers = np.random.default_rng(seed)
    for run in range(4):
        what = rng.choice(["gather", "sum", "mean", "max"])
        dtype = rng.choice(TYPES[:2] if what == "mean" else TYPES[:4] if what in ("sum", "max") else TYPES)
        values = [numbers.integers(0, 9, s).astype(dtype) for s in shapes(rng, what, count)]
        before = [v.copy() for v in values]
        order = rng.sample(range(count), count)
        steps = {i: net.ask(i, values[i], run, what) for i in order}
        net.play(list(steps.values()), rng)
        for i, right in enumerate(expected(what, before)):
            found = steps[i].result
            assert found.dtype == dtype and found.shape == right.shape
            np.testing.assert_array_equal(found, right)
            np.testing.assert_array_equal(values[i], before[i])


def test_large_values_leave_no_parts_once_members_have_met():
    net = Net(3)
    values = [np.arange(10_000.0) + i for i in range(3)]
    steps = [net.ask(i, values[i]) for i in range(3)]
    net.play(steps)
    net.events.clear()
    steps = [net.ask(i, values[i][: 100 * i], 1) for i in range(3)]
    net.play(steps)
    assert all(len(s.result) == 300 for s in steps)
    assert set(net.events) <= {"wake"}


def test_members_that_differ_fail_everywhere():
    net = Net()
    steps = [net.ask(0, np.zeros((4, 2))), net.ask(1, np.zeros((4, 3)))]
    net.play(steps)
    for step in steps:
        assert isinstance(step.result, InvalidArgumentError)
        assert "all members must run the same program" in str(step.result)
