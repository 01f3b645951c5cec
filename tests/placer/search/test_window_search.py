"""Refining large steps in windows: it gains, keeps constraints, and repeats itself."""

import numpy as np
import pytest
from search_problems import problem

from dovetail.placer.search import portfolio
from dovetail.placer.search.portfolio import WALK_NODES, search
from dovetail.placer.search.window_search import ended, window_pass


def branches(layers, width=12, slots=None, **options):
    """Branches that cross into each other now and then, on four devices of two speeds."""
    rng = np.random.default_rng(0)
    node = np.arange(layers * width).reshape(layers, width)
    edges = [*zip(node[:-1].ravel().tolist(), node[1:].ravel().tolist(), strict=True)]
    edges += [(s, t // width * width + int(rng.integers(width))) for s, t in edges if rng.random() < 0.1]
    work = rng.lognormal(0, 0.5, node.size)
    size = rng.lognormal(0, 0.5, node.size)
    return problem(edges, [work, 2 * work], devices=[0, 0, 1, 1], size=size, slots=slots, **options)


@pytest.mark.parametrize("slots", [None, [1, 2, 1, 3]])
def test_passes_shorten_a_step_within_memory_and_leave_units_together(slots):
    rng = np.random.default_rng(1)
    n = 12 * 300
    group = np.arange(n)
    group[1000] = group[10]
    group = np.unique(group, return_inverse=True)[1]
    memory = rng.integers(0, 3, n).astype(float)
    p = branches(300, slots=slots, group=group, memory=memory, capacity=[memory.sum() * 0.3] * 4)
    before = search(p, strategy="heft")
    where = np.empty(p.groups, np.int32)
    where[p.group] = before.assignment
    value = before.objective
    for refine in (window_pass, ended):
        after, price = refine(p, where, 0)
        assert not p.violations(after[p.group])
        assert price > 0 and np.array_equal(after, refine(p, where, 0)[0])
        if p.evaluate(after[p.group]) < value:
            where, value = after, p.evaluate(after[p.group])
    assert value < before.objective


def test_auto_beats_every_single_pass_on_a_step_that_is_too_large_to_walk_on():
    p = branches(WALK_NODES // 12 + 100)
    found = search(p, budget_s=0.5)
    single = [search(p, strategy=strategy).objective for strategy in ("single", "heft", "m-etf", "contiguous")]
    assert found.objective < min(single)
    assert found.lower_bound <= found.objective == pytest.approx(p.evaluate(found.assignment))


def test_a_huge_step_is_merged_only_where_there_is_room(monkeypatch):
    monkeypatch.setattr(portfolio, "HUGE", 1000)
    roomy = branches(WALK_NODES // 12 + 100)
    rng = np.random.default_rng(2)
    wide = problem([], [rng.lognormal(0, 0.5, WALK_NODES + 100)] * 2, devices=[0, 0, 1, 1])
    merged = []
    levels = portfolio.levels
    monkeypatch.setattr(portfolio, "levels", lambda p, *more: merged.append(p) or levels(p, *more))
    for p, is_merged in ((roomy, True), (wide, False)):
        merged.clear()
        found = search(p, budget_s=0.5)
        assert (merged != []) is is_merged
        assert found.objective <= min(search(p, strategy=s).objective for s in ("single", "heft", "m-etf"))
        assert np.array_equal(found.assignment, search(p, budget_s=0.5).assignment)
