"""Assignments that send less at the same objective."""

import numpy as np
import pytest
from search_problems import problem, random_problem

from dovetail.placer.search.portfolio import search
from dovetail.placer.search.problem import Objective
from dovetail.placer.search.transfers import traffic, with_fewer_transfers


def test_a_value_counts_once_for_each_device_that_it_is_sent_to():
    p = problem([(0, 1), (0, 2), (0, 3)], [np.ones(4)], devices=[0, 0, 0], size=5.0)
    assert traffic(p, np.array([0, 0, 0, 0], np.int32)) == (0.0, 0)
    assert traffic(p, np.array([0, 1, 1, 2], np.int32)) == (10.0, 2)


def test_what_is_elsewhere_for_nothing_comes_to_its_neighbours():
    # A long chain, and beside it a short one of which one node is on the long one's device, and need not be.
    edges = [(k, k + 1) for k in range(5)] + [(6, 7), (7, 8)]
    p = problem(edges, [np.ones(9)], devices=[0, 0], size=0.1)
    where = np.array([0] * 6 + [1, 0, 1], np.int32)
    better, price = with_fewer_transfers(p, where, 1e-7, 1.0)
    assert traffic(p, better)[1] < traffic(p, where)[1] and price > 0.0
    assert p.evaluate(better) <= p.evaluate(where)


def test_without_effort_nothing_changes():
    p = problem([(0, 1)], [np.ones(2)], devices=[0, 0])
    where = np.array([0, 1], np.int32)
    assert with_fewer_transfers(p, where, 1e-7, 0.0)[0].tolist() == [0, 1]


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(5))
def test_less_is_sent_at_no_price_and_within_the_constraints(seed, objective):
    p = random_problem(seed, 30, objective)
    where = np.empty(p.groups, np.int32)
    where[p.group] = search(p, budget_s=0).assignment
    better, _ = with_fewer_transfers(p, where, 1e-7, 1.0)
    assert not p.violations(better[p.group])
    assert p.evaluate(better[p.group]) <= p.evaluate(where[p.group])
    assert traffic(p, better) <= traffic(p, where)
