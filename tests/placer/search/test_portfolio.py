"""The searches beside enumeration, their constraints, their proofs, and that they repeat themselves."""

import numpy as np
import pytest
from search_problems import best_of_all, problem, random_problem

from dovetail.placer.search import SEARCHES, portfolio
from dovetail.placer.search.bounds import lower_bound
from dovetail.placer.search.coarsen_dag import levels
from dovetail.placer.search.portfolio import improvements, search, watched
from dovetail.placer.search.problem import InfeasibleError, Objective


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(4))
def test_auto_finds_the_best_of_small_problems(objective, seed):
    p = random_problem(seed, 7, objective)
    found, best = search(p), best_of_all(p)
    assert not p.violations(found.assignment)
    assert found.objective == pytest.approx(p.evaluate(found.assignment))
    assert found.objective == pytest.approx(best)
    assert found.lower_bound <= best * (1 + 1e-9)


def test_the_exact_search_refuses_what_it_cannot_try():
    with pytest.raises(ValueError, match="more than 50000; try 'auto'"):
        search(random_problem(1, 40, Objective.MAKESPAN), strategy="exact")


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_search_proves_the_best_largest_load(seed):
    p = random_problem(seed, 8, Objective.THROUGHPUT)
    found = search(p, strategy="exact")
    assert found.objective == pytest.approx(best_of_all(p))
    assert found.lower_bound == pytest.approx(found.objective, rel=1e-5)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("strategy", SEARCHES)
def test_every_strategy_keeps_to_the_constraints(objective, strategy):
    options = {"capacity": [np.inf] * 3} if strategy == "single" else {}
    p = random_problem(5, 9 if strategy == "exact" else 40, objective, **options)
    found = search(p, strategy=strategy, budget_s=0.2)
    assert not p.violations(found.assignment)


@pytest.mark.parametrize("objective", Objective)
def test_the_same_seed_gives_the_same_answer_and_answers_only_get_better(objective):
    p = random_problem(3, 60, objective)
    one, two = (list(improvements(p, budget_s=0.3, seed=7)) for _ in range(2))
    assert [s.objective for s in one] == [s.objective for s in two]
    assert np.array_equal(one[-1].assignment, two[-1].assignment)
    values = [s.objective for s in one]
    assert values == sorted(values, reverse=True)
    assert all(not p.violations(s.assignment) for s in one)


def test_what_may_be_nowhere_names_its_nodes_and_how_much_is_short():
    p = problem([], [[1] * 4], devices=[0, 0], memory=[1, 5, 5, 1], capacity=[9, 9], group=[0, 1, 1, 2])
    with pytest.raises(InfeasibleError, match=r"The 2 nodes 1, 2 must share .* 10 bytes, 1 more") as e:
        search(p)
    assert e.value.nodes.tolist() == [1, 2] and e.value.short == 1
    only = [[True, False]] * 3 + [[True, True]]
    p = problem([], [[1] * 4], devices=[0, 0], memory=[4, 4, 4, 4], capacity=[9, 9], allowed=only)
    with pytest.raises(InfeasibleError, match=r"only be on devices 0 and need 12 bytes, 3 more") as e:
        search(p)
    assert e.value.devices == (0,) and e.value.nodes.tolist() == [0, 1, 2]
    apart = [[True, False], [False, True]]
    p = problem([], [[1, 1]], devices=[0, 0], group=[0, 0], allowed=apart)
    with pytest.raises(InfeasibleError, match="no device may have all of them"):
        search(p)


def test_a_packing_that_is_tight_is_found():
    p = problem([], [[1] * 6], devices=[0, 0, 0], memory=[5, 4, 3, 3, 2, 1], capacity=[6, 6, 6])
    assert not p.violations(search(p, budget_s=0).assignment)


@pytest.mark.parametrize("seed", range(6))
def test_merged_levels_stay_acyclic_and_keep_work_memory_and_units(seed):
    p = random_problem(seed, 80, slots=[1, 1, 1])
    chain = levels(p, 4, 30.0, float(p.capacity[0]) / 2)  # making a Problem checks that it has no cycle
    assert len(chain) > 2
    for coarse, label in chain:
        assert coarse.seconds.sum() == pytest.approx(p.seconds.sum())
        assert coarse.memory.sum() == pytest.approx(p.memory.sum())
        assert coarse.groups == label.max() + 1
        assert coarse.group_memory.max() <= max(p.capacity[0] / 2, p.group_memory.max())


def test_an_unknown_strategy_is_refused():
    with pytest.raises(ValueError, match="no search 'magic'"):
        search(problem([], [[1]]), strategy="magic")


@pytest.mark.parametrize("objective", Objective)
def test_chains_begin_anew_and_the_answer_does_not_hang_on_the_number_of_cores(objective, monkeypatch):
    p = random_problem(4, 60, objective, capacity=[np.inf] * 3)
    monkeypatch.setattr(portfolio, "PATIENCE", 1)
    begun = []
    chain = portfolio._Search._chain
    monkeypatch.setattr(portfolio._Search, "_chain", lambda self, number: begun.append(number) or chain(self, number))
    answers = []
    for cores in (1, 5):
        begun.clear()
        monkeypatch.setattr(portfolio.os, "cpu_count", lambda cores=cores: cores)
        answers.append(search(p, budget_s=0.3, seed=2))
        assert begun == list(range(len(begun))) and len(begun) > portfolio.CHAINS
    one, other = answers
    assert np.array_equal(one.assignment, other.assignment)
    assert [(f.by, f.objective) for f in one.history] == [(f.by, f.objective) for f in other.history]


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_no_worse_than_a_start_and_its_objective_is_exact(objective, seed):
    p = random_problem(seed, 60, objective, capacity=[np.inf] * 3)
    start = np.random.default_rng(seed).integers(0, 3, p.groups).astype(np.int32)
    for budget_s in (0.0, 0.05):
        found = search(p, budget_s=budget_s, seed=seed, starts=[("given", start)])
        assert not p.violations(found.assignment)
        assert found.lower_bound <= found.objective <= p.evaluate(start[p.group])
        assert found.objective == p.evaluate(found.assignment)


def test_a_watched_search_shows_what_it_finds_and_keeps_the_best_when_it_is_interrupted():
    p = random_problem(3, 60, capacity=[np.inf] * 3)
    seen, parts = [], []

    def stop(solution, spent, exact):
        assert exact
        seen.append(solution)
        parts.append(spent)
        if spent > 0.1:
            raise KeyboardInterrupt

    with watched(stop):
        found = search(p, budget_s=1.0)
    assert found.objective == seen[-1].objective and not p.violations(found.assignment)
    values = [s.objective for s in seen]
    assert values == sorted(values, reverse=True)
    # It goes on where nothing better is found.
    assert parts == sorted(parts) and len(parts) > 3 and 0 <= parts[0] < 0.1 < parts[-1] < 0.5


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(10))
def test_bounds_count_what_is_forced_and_stay_below_the_best(objective, seed):
    rng = np.random.default_rng(seed)
    allowed = rng.random((7, 3)) < 0.4
    allowed[np.arange(7), rng.integers(0, 3, 7)] = True
    p = random_problem(seed, 7, objective, allowed=allowed, group=np.arange(7), capacity=[np.inf] * 3)
    assert lower_bound(p) <= best_of_all(p) * (1 + 1e-9)


def test_a_value_between_nodes_that_must_be_apart_counts_in_the_bound():
    only = {"allowed": [[True, False], [False, True]], "devices": [0, 0], "size": 5.0}
    step = problem([(0, 1)], [[1, 1]], **only)
    load = problem([(0, 1)], [[1, 1]], objective=Objective.THROUGHPUT, **only)
    assert lower_bound(step) == step.evaluate([0, 1]) == 7
    assert lower_bound(load) == load.evaluate([0, 1]) == 6


def test_short_searches_of_layered_random_steps_come_near_the_bound():
    rng = np.random.default_rng(3)
    layers = width = 10
    edges = [
        ((layer - 1) * width + int(source), layer * width + i)
        for layer in range(1, layers)
        for i in range(width)
        for source in rng.choice(width, 3, replace=False)
    ]
    p = problem(edges, [list(rng.uniform(0.5, 2, layers * width))], devices=[0] * 4)
    assert max(search(p, budget_s=0.2, seed=seed).objective for seed in range(3)) < 1.045 * lower_bound(p)
