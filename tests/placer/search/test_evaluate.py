"""The three objectives, by hand and beside plain Python that follows the definitions."""

from dataclasses import replace

import numpy as np
import pytest
from search_problems import problem, random_problem

from dovetail.placer.search.bounds import lower_bound
from dovetail.placer.search.clock import MOMENT, advance, begin, clocks, keep, resume, run
from dovetail.placer.search.evaluate import loads, time_behind, upward_rank
from dovetail.placer.search.portfolio import search
from dovetail.placer.search.problem import Objective
from dovetail.placer.simulate import timeline

DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_a_step_waits_for_inputs_for_the_device_and_for_links():
    p = problem(DIAMOND, [[1, 4, 4, 1]], devices=[0, 0], size=2.0)
    assert p.evaluate([0, 0, 0, 0]) == 10
    # 1 | moved 1..3, runs 3..7, moved 7..9 | 9..10: beside the other branch, which runs 1..5
    assert p.evaluate([0, 0, 1, 0]) == 10
    assert problem(DIAMOND, [[1, 4, 4, 1]], devices=[0, 0], size=1.0).evaluate([0, 0, 1, 0]) == 8


def test_a_value_travels_once_to_a_device_and_contended_links_carry_one_after_the_other():
    edges = [(0, 2), (0, 3), (1, 3)]
    free = problem(edges, [[1, 0, 1, 1]], devices=[0, 0], size=3.0)
    shared = problem(edges, [[1, 0, 1, 1]], devices=[0, 0], size=3.0, contended=True)
    where = [0, 0, 1, 1]
    assert free.evaluate(where) == 1 + 3 + 1 + 1
    assert shared.evaluate(where) == 1 + 3 + 3 + 1  # node 0 is first, then node 1's value waits for the link


def test_cores_run_nodes_side_by_side():
    assert problem([], [[2, 2, 2]], slots=[2]).evaluate([0, 0, 0]) == 4


def test_the_load_counts_a_value_once_per_device_it_touches():
    p = problem([(0, 1), (0, 2), (0, 3)], [[1, 1, 1, 1]], objective=Objective.THROUGHPUT, devices=[0, 0])
    assert loads(p.arrays, np.array([0, 1, 1, 0], np.int32)).tolist() == [3, 3]
    assert p.evaluate([0, 0, 0, 0]) == 4


@pytest.mark.parametrize("seed", range(20))
def test_loads_follow_the_definition(seed):
    p = random_problem(seed, objective=Objective.THROUGHPUT)
    where = np.random.default_rng(seed).integers(0, p.devices, p.nodes).astype(np.int32)
    expected = np.zeros(p.devices)
    for i, d in enumerate(where):
        expected[d] += p.seconds[p.device_class[d], i]
    for v, source in enumerate(p.value_source):
        ends = [source, *p.value_target[p.value_start[v] : p.value_start[v + 1]]]
        touched = {int(where[e]) for e in ends}
        for d in touched if len(touched) > 1 else ():
            expected[d] += p.value_bytes[v] * p.port_per_byte[d]
    assert loads(p.arrays, where) == pytest.approx(expected)


def test_a_problem_must_fit_together():
    with pytest.raises(ValueError, match="cycle"):
        problem([(0, 1), (1, 0)], [[1, 1]])
    with pytest.raises(ValueError, match="memory has shape"):
        problem([], [[1, 1]], memory=[1])
    with pytest.raises(ValueError, match="no device"):
        problem([], [[1, 1]], allowed=[[True], [False]])


def test_violations_name_what_is_wrong():
    p = problem(
        [], [[1, 1]], devices=[0, 0], memory=[3, 3], capacity=[4, 4], group=[0, 0],
        allowed=[[True, True], [False, True]],
    )  # fmt: skip
    assert p.violations([1, 1]) == ["device 1 holds 6 of 4 bytes"]
    assert p.violations([1, 0]) == ["node 1 may not be on device 0", "node 1 is not with its group 0"]


def test_more_may_travel_at_once_on_a_machine_than_the_clock_has_room_for():
    """What there is no room for has the machine to itself."""
    sources = 80
    p = problem(
        [(i, sources + j) for i in range(sources) for j in range(2)], [[0.0] * sources + [1.0] * 2], devices=[0] * 3,
        size=0.0,
    )  # fmt: skip
    between = 1.0 - np.eye(3)
    room = p.nodes + 4 * 3 * 3
    p = replace(p, link_latency=between, host=np.zeros(3, np.int32), shared=1.5, used=np.ones(p.nodes))
    assert room < 2 * sources
    assert p.evaluate([0] * sources + [1, 2]) == pytest.approx(room / 1.5 + 2 / 1.5)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("seed", range(8))
def test_nodes_that_take_no_time_change_no_objective_and_are_placed_with_their_units(objective, seed):
    rng = np.random.default_rng(seed)
    n, m = 20, 50  # nodes of the step, and all
    new = np.sort(rng.permutation(m)[:n]).astype(np.int32)  # where they are among all
    p = random_problem(seed, n, objective, capacity=[np.inf] * 3)
    groups = p.groups + 10
    group, kind = rng.integers(0, groups, m).astype(np.int32), rng.integers(0, 2, m).astype(np.int32)
    group[new], kind[new] = p.group, 0
    group[rng.permutation(np.setdiff1d(np.arange(m), new))[:10]] = np.arange(p.groups, groups)
    seconds = np.zeros((2, m))
    seconds[:, new] = p.seconds
    memory = rng.random(m)
    whole = replace(
        p, seconds=seconds, memory=memory, capacity=np.full(3, memory.sum() * 0.6), group=group, allowed_kind=kind,
        allowed=np.array([[True, True, True], [False, True, True]]), priority=-rng.permutation(m).astype(float),
        value_source=new[p.value_source], value_target=new[p.value_target],
    )  # fmt: skip
    few = whole.of_step()
    assert n <= few.nodes < m and few.of_step() is few
    assert np.array_equal(few.group_allowed, whole.group_allowed) and few.group_memory == pytest.approx(
        whole.group_memory
    )
    for _ in range(10):
        where = rng.integers(0, 3, groups)
        assert few.evaluate(where[few.group]) == whole.evaluate(where[group])
    found = search(whole, budget_s=0.1)
    assert not whole.violations(found.assignment) and found.objective == whole.evaluate(found.assignment)


@pytest.mark.parametrize("seed", range(8))
def test_devices_of_one_place_share_its_row_of_the_tables_of_links(seed):
    """Tables by place give the same as tables by device that repeat them, except that all devices of two places share a link.

    Each value has one consumer: more of them in one place are sent it once.
    """
    rng = np.random.default_rng(seed)
    place = np.array([0, 1, 0, 1, 2], np.int32)
    by_place = {name: rng.random((3, 3)) for name in ("link_latency", "link_per_byte", "handling", "handling_per_byte")}
    by_device = {name: table[np.ix_(place, place)] * (1 - np.eye(5)) for name, table in by_place.items()}
    p = random_problem(seed, 30, devices=(0, 1, 1, 0, 1), capacity=[np.inf] * 5)
    each = np.diff(p.value_start)
    p = replace(
        p, value_source=np.repeat(p.value_source, each), value_bytes=np.repeat(p.value_bytes, each),
        value_start=np.arange(len(p.value_target) + 1, dtype=np.int32),
    )  # fmt: skip
    few, all_of_them = replace(p, **by_place, place=place), replace(p, **by_device)
    assert upward_rank(few.arrays, p.topological) == pytest.approx(upward_rank(all_of_them.arrays, p.topological))
    few, all_of_them = replace(few, priority=p.rank), replace(all_of_them, priority=p.rank)  # no ties by rounding
    assert lower_bound(few) == pytest.approx(lower_bound(all_of_them))
    for _ in range(10):
        where = rng.integers(0, 5, p.nodes)
        assert few.evaluate(where) == pytest.approx(all_of_them.evaluate(where))


def test_values_between_two_places_take_turns_whichever_devices_they_join():
    edges, tables = [(0, 2), (1, 3)], {"link_latency": np.zeros((2, 2)), "link_per_byte": 1.0 - np.eye(2)}
    apart = problem(edges, [[1, 1, 1, 1]], devices=[0] * 4, size=3.0, contended=True)
    joined = replace(apart, **tables, place=np.array([0, 0, 1, 1], np.int32))
    assert apart.evaluate([0, 1, 2, 3]) == 1 + 3 + 1
    assert joined.evaluate([0, 1, 2, 3]) == 1 + 3 + 3 + 1
    pairs = replace(joined, link_per_byte=np.ones((2, 2)), place=np.zeros(4, np.int32))
    assert pairs.evaluate([0, 1, 2, 3]) == 1 + 3 + 1  # within a place each pair of devices has a link of its own


@pytest.mark.parametrize("shared", [{}, {"host": np.zeros(3, np.int32), "shared": 9.0, "used": np.ones(4)}])
def test_a_value_is_sent_once_to_a_place_and_passed_on_there(shared):
    p = problem([(0, 1), (0, 2), (0, 3)], [[1, 1, 1, 1]], devices=[0] * 3, size=2.0)
    place, tables = np.array([0, 1, 1], np.int32), {"link_per_byte": np.array([[0.5, 1.0], [1.0, 0.5]])}
    p = replace(p, place=place, link_latency=np.array([[0.25, 0.5], [0.5, 0.25]]), **tables, **shared)
    step = timeline(p, [0, 1, 2, 2])
    assert [(t.source, t.destination, t.start, t.finish) for t in step.transfers] == [(0, 1, 1, 3.5), (1, 2, 3.5, 4.75)]
    assert step.makespan == p.evaluate([0, 1, 2, 2]) == 1 + 2.5 + 1.25 + 2
    assert p.evaluate([1, 2, 0, 0]) == 1 + 2.5 + 2  # within its place it is sent to each device


@pytest.mark.parametrize("seed", range(12))
def test_a_clock_that_sets_out_from_a_kept_state_ends_as_one_that_runs_all(seed):
    rng = np.random.default_rng(seed)
    n, d = 40, 3
    place = np.arange(d, dtype=np.int32) if seed % 3 < 2 else np.array([0, 1, 1], np.int32)
    inside = np.eye(place.max() + 1)
    between = 1.0 - inside
    options = {"slots": [2, 1, 1], "contended": bool(seed % 2), "capacity": [np.inf] * d}
    more = {"handling": between * rng.random(), "handling_per_byte": between * 0.1}
    more |= {"place": place, "link_latency": 0.0 * inside, "link_per_byte": between + 0.25 * inside}
    if seed % 3 == 0:
        more |= {"fed_at": rng.random((d, n)) * 9, "back_after": rng.random((d, n)) * 9}
    if seed % 4 == 1:  # a machine that two of the devices share
        more |= {
            "used": rng.integers(1, 3, n) * 0.8,
            "host": np.array([0, 1, 0]),
            "shared": 1.2,
            "wake": rng.random(),
            "polls": rng.random(),
        }
    p = replace(random_problem(seed, n, **options), **more)
    a, order = p.arrays, np.argsort(p.rank).astype(np.int32)
    was = rng.integers(0, d, n).astype(np.int32)
    behind = time_behind(a, p.topological, p.seconds.min(axis=0), np.zeros(len(a.value_target)))
    start, finish, ended = np.empty((2, n)), np.empty((2, n)), np.empty((2, n), np.int32)
    c, rest = clocks(a, 5), (np.empty(0, np.int32), np.empty((2, 0)))
    begin(a, was, c)
    now = advance(a, was, p.rank, order, p.contended, start[0], finish[0], c, 0, behind, np.inf, *rest, ended[0])
    keep(a, was, was[:0], 0, c)
    resumed = cut = 0
    for _ in range(200):
        moved = rng.choice(n, rng.integers(1, 4), replace=False).astype(np.int32)
        device = was.copy()
        device[moved] = rng.integers(0, d, len(moved))
        sources = [a.value_source[a.input_value[a.input_start[x] : a.input_start[x + 1]]] for x in moved]
        since = min(float(finish[0][s].min()) if len(s) else -1.0 for s in sources)
        start[1], finish[1], ended[1] = start[0], finish[0], ended[0]
        same = resume(a, device, moved, start[0], since, c)
        limit = now * rng.choice([0.9, 1.1, np.inf])
        after = advance(
            a, device, p.rank, order, p.contended, start[1], finish[1], c, same, behind, limit, *rest, ended[1]
        )
        whole_start, whole_finish = np.empty(n), np.empty(n)
        whole = run(a, device, p.rank, p.contended, False, whole_start, whole_finish, np.empty((2, 0)))
        resumed, cut = resumed + (same > 0), cut + (after == np.inf)
        assert after == whole or after == np.inf and whole > limit
        if after == whole:
            assert np.array_equal(start[1], whole_start) and np.array_equal(finish[1], whole_finish)
            assert np.array_equal(np.sort(ended[1]), np.arange(n)) and (np.diff(finish[1][ended[1]]) >= -MOMENT).all()
            was, now, start, finish, ended = device, after, start[::-1], finish[::-1], ended[::-1]
            keep(a, device, moved, same, c)
    assert resumed > 0 and cut > 5


@pytest.mark.parametrize("shared", [1.0, 1.5, 2.0])
def test_nodes_at_the_same_time_on_one_machine_share_its_cores(shared):
    """Two devices of a machine with one core each ready to run 4 s: together they get `shared` cores."""
    alike = {"host": np.array([0, 0]), "used": np.ones(2), "shared": shared}
    p = replace(problem([], [[4.0, 4.0]], devices=[0, 0]), **alike)
    assert p.evaluate([0, 1]) == pytest.approx(8.0 / shared)
    assert p.evaluate([0, 0]) == pytest.approx(8.0)
    apart = replace(p, host=np.array([0, 1]))
    assert apart.evaluate([0, 1]) == pytest.approx(4.0)


def test_a_long_node_is_slow_only_while_another_one_runs():
    p = replace(
        problem([], [[4.0, 1.0]], devices=[0, 0]),
        host=np.array([0, 0]), used=np.ones(2), shared=1.0,
    )  # fmt: skip
    start, finish = np.empty(2), np.empty(2)
    assert run(p.arrays, np.array([0, 1], np.int32), p.rank, False, False, start, finish, np.empty((2, 0))) == 5.0
    assert finish.tolist() == [5.0, 2.0]


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_in_the_order_of_the_clock_takes_as_long_as_the_clock_says(seed):
    """What a search counts is what its plan takes, also on a machine that devices share."""
    rng = np.random.default_rng(seed)
    n, d = 40, 3
    between = 1.0 - np.eye(d)
    p = replace(
        random_problem(seed, n, slots=[1, 1, 1], contended=True, capacity=[np.inf] * d),
        handling=between * 0.1, handling_per_byte=between * 0.01, used=rng.integers(1, 3, n) * 0.8, host=np.array([0, 1, 0]),
        shared=1.2, wake=0.3, polls=0.2,
    )  # fmt: skip
    device = rng.integers(0, d, n).astype(np.int32)
    start, finish, nothing = np.empty(n), np.empty(n), np.empty((2, 0))
    counted = run(p.arrays, device, p.rank, True, False, start, finish, nothing)
    rank = np.empty(n, np.int32)
    rank[np.lexsort((p.rank, start))] = np.arange(n)
    assert run(p.arrays, device, rank, True, True, start, finish, nothing) == pytest.approx(counted, rel=1e-9)


def test_the_throughput_of_devices_that_share_cores_is_that_of_their_machine():
    p = problem([(0, 1), (1, 2)], [[3, 1, 2]], objective=Objective.THROUGHPUT, devices=[0, 0, 0], size=0.0)
    assert p.evaluate([0, 1, 2]) == lower_bound(p) == 3
    p = replace(p, host=np.array([0, 0, 1]), used=np.array([1.0, 1.0, 4.0]), shared=1.6)
    assert p.evaluate([0, 1, 2]) == 3
    assert p.evaluate([0, 1, 1]) == (3 + 1) / 1.6 + 2  # one node that uses all cores has no others beside it
    assert p.evaluate([2, 2, 2]) == 6
    one = replace(p, host=np.zeros(3, np.int32), used=np.ones(3))
    assert search(one).objective == lower_bound(one) == 6 / 1.6
