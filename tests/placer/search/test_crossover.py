"""Crossover of assignments: the best parts of several steps, joined."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from search_problems import problem, random_problem

from dovetail.placer.search.bounds import least_behind
from dovetail.placer.search.crossover import PARENTS, crossed, mixed


def descendants(p, found, kinds=None, seed=0):
    kinds = p.device_class if kinds is None else np.asarray(kinds, np.int32)
    valued = [(p.evaluate(np.asarray(w, np.int32)[p.group]), np.asarray(w, np.int32)) for w in found]
    with ThreadPoolExecutor(2) as cores:
        return crossed(p, kinds, valued, 1e-7, np.random.default_rng(seed), cores)


def pairs_of_chains(length, size=10.0):
    """Two chains of pairs side by side; each pair gives to the next, so it may change devices only at a price."""
    edges = [(2 * k + side, 2 * k + 2 + side) for k in range(length - 1) for side in (0, 1)]
    return problem(edges, [np.ones(2 * length)], devices=[0, 0], size=size)


def test_a_good_begin_and_a_good_end_are_joined_with_devices_renamed():
    p = pairs_of_chains(8)
    apart = [0, 1] * 8
    # The first has all of its second half on one device; the other all of its first half, and its devices the other way round.
    first, other = apart[:8] + [0] * 8, [0] * 8 + [1, 0] * 4
    parents, price = descendants(p, [first, other])
    assert parents[0][0] == 8.0 < min(p.evaluate(first), p.evaluate(other))
    assert parents[0][1].tolist() in (apart, [1 - d for d in apart])
    assert price > 0.0


def test_devices_that_differ_keep_their_names():
    p = pairs_of_chains(8)
    first, other = [0, 1] * 4 + [0] * 8, [0] * 8 + [1, 0] * 4
    parents, _ = descendants(p, [first, other], kinds=[0, 1])
    assert parents[0][0] > 8.0


def assignments(p, rng, count):
    """Random ones that keep all constraints."""
    found = []
    while len(found) < count:
        where = rng.integers(0, p.devices, p.groups)
        if not p.violations(where[p.group]):
            found.append(where)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_descendants_keep_constraints_have_their_true_values_and_are_the_same_each_time(seed):
    p = random_problem(seed, n=30)
    found = assignments(p, np.random.default_rng(seed), 6)
    parents, _ = descendants(p, found, seed=seed)
    assert 1 <= len(parents) <= PARENTS
    values = [value for value, _ in parents]
    assert values == sorted(set(values))
    assert values[0] <= min(p.evaluate(w[p.group]) for w in found)
    for value, where in parents:
        assert not p.violations(where[p.group])
        assert value == pytest.approx(p.evaluate(where[p.group]), rel=1e-12)
    again, _ = descendants(p, found, seed=seed)
    assert [value for value, _ in again] == values


def test_an_unfinished_chain_is_no_parent():
    p = pairs_of_chains(4)
    where = np.array([0, 1] * 4, np.int32)
    with ThreadPoolExecutor(1) as cores:
        parents, _ = crossed(p, p.device_class, [(np.inf, where), (4.0, where)], 1e-7, np.random.default_rng(0), cores)
    assert [value for value, _ in parents] == [4.0]


def changed(p, before, after, shift=0.5):
    before, after = np.asarray(before, np.int32), np.asarray(after, np.int32)
    return mixed(p, least_behind(p), (p.evaluate(before[p.group]), before), after, 1e-7, shift)


def test_of_what_a_walk_has_changed_the_good_parts_stay_and_the_bad_ones_go():
    p = pairs_of_chains(160, size=1.0)
    good, bad = [0, 1] * 160, [0] * 320
    # The walk has mended the second half, and spoilt the first.
    before, after = good[:160] + bad[160:], bad[:160] + good[160:]
    (value, where), price = changed(p, before, after, shift=0.0)
    assert value == p.evaluate(good) < min(p.evaluate(before), p.evaluate(after))
    assert where.tolist() == good and price > 0.0


@pytest.mark.parametrize("seed", range(20))
def test_a_mixed_assignment_is_no_worse_keeps_memory_and_has_its_true_value(seed):
    p = random_problem(seed, n=30)
    rng = np.random.default_rng(seed)
    found = assignments(p, rng, 2)
    (value, where), _ = changed(p, *found, shift=rng.random())
    assert not p.violations(where[p.group])
    assert value <= p.evaluate(found[0][p.group])
    assert value == pytest.approx(p.evaluate(where[p.group]), rel=1e-12)
