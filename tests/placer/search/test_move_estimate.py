"""Estimates of what a move does to a step: by hand on small steps, and against the clock."""

from dataclasses import replace

import numpy as np
import pytest
from search_problems import problem, random_problem

from dovetail.placer.search.clock import advance, begin, clocks
from dovetail.placer.search.move_estimate import estimate, find_tails, is_critical, schedule_of, tails_of


def scheduled(p, device):
    """The arrays, the assignment, its schedule and tails, and when the step ends."""
    device = np.asarray(device, np.int32)
    n, order = len(device), np.argsort(p.rank).astype(np.int32)
    s, t, c = schedule_of(n), tails_of(n, p.devices), clocks(p.arrays, 0)
    none = (np.empty(0), np.inf, np.empty(0, np.int32), np.empty((2, 0)))
    begin(p.arrays, device, c)
    ends = advance(p.arrays, device, p.rank, order, p.contended, s.start, s.finish, c, 0, *none, s.ended)
    find_tails(p.arrays, device, s, t)
    return device, s, t, ends


def judged(p, device, s, t, moved, to):
    """The estimate of a move."""
    after = device.copy()
    after[moved] = to
    moved = np.array(sorted(moved, key=lambda x: p.rank[x]), np.int32)
    return estimate(p.arrays, after, p.rank, moved, s, t), p.evaluate(after)


def test_tails_are_the_longest_ways_by_data_and_by_device():
    # 0 -> 1 -> 3 and 0 -> 2; 1 and 3 on device 0, 2 on device 1; a value is 1 s under way.
    p = problem([(0, 1), (1, 3), (0, 2)], [[2, 3, 4, 1]], devices=[0, 0])
    device, s, t, ends = scheduled(p, [0, 0, 1, 0])
    assert ends == t.span[0] == 2 + 1 + 4
    assert t.tail.tolist() == [1 + 4, 1, 0, 0]
    assert [is_critical(s, t, np.array([x], np.int32)) for x in range(4)] == [True, False, True, False]
    # All on one device: each waits for those before.
    device, s, t, ends = scheduled(p, [0, 0, 0, 0])
    assert ends == t.span[0] == 10 and all(is_critical(s, t, np.array([x], np.int32)) for x in range(4))


def test_a_moved_node_waits_for_its_inputs_and_for_what_runs_there_and_pushes_what_follows():
    p = problem([(0, 1), (2, 3)], [[2, 3, 4, 5]], devices=[0, 0])
    device, s, t, ends = scheduled(p, [0, 0, 1, 1])
    assert ends == 9
    # Node 1 has its input at 2 + 1, when 2 runs until 4; then 3 has a higher rank, and ends at 9.
    assert judged(p, device, s, t, [1], 1) == (12, 12)
    # Node 2 runs before 0, which has a lower rank; 3 has its input at 5.
    assert judged(p, device, s, t, [2], 0) == (10, 10)


@pytest.mark.parametrize("name", ["fed_at", "back_after"])
def test_what_the_client_adds_counts(name):
    p = problem([(0, 1)], [[2, 3]], devices=[0, 0])
    p = replace(p, fed_at=np.zeros((2, 2)), back_after=np.zeros((2, 2)))
    getattr(p, name)[1, :] = 20.0
    device, s, t, ends = scheduled(p, [0, 0])
    about, exact = judged(p, device, s, t, [1], 1)
    assert about == exact > 20 > ends


@pytest.mark.parametrize(("slots", "least"), [(1, 300), (2, 0)])
def test_what_is_turned_away_is_worse_on_the_clock(slots, least):
    """Of random moves, most that are estimated to be worse are, and most that are not worse pass. Nodes do not wait for two slots."""
    turned_away = wrong = passed = good = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        p = random_problem(seed, 60, slots=[slots] * 3, capacity=[np.inf] * 3)
        device, s, t, ends = scheduled(p, rng.integers(0, 3, 60))
        assert t.span[0] == pytest.approx(ends)
        for _ in range(150):
            about, exact = judged(p, device, s, t, rng.choice(60, rng.integers(1, 4), replace=False), rng.integers(3))
            is_worse = exact > ends + 1e-9
            turned_away += about > ends + 1e-9
            wrong += about > ends + 1e-9 and not is_worse
            passed += about <= ends + 1e-9 and not is_worse
            good += not is_worse
    assert turned_away > least and wrong <= 0.3 * turned_away + 1 and passed > 0.5 * good
    assert not t.is_moved.any()
