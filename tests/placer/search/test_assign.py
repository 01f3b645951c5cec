"""Searching where the nodes of a graph go: demands stay hard, costs decide the rest, a clock shows the step."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from random_graphs import placed_graphs, updating_programs
from search_problems import problem, random_problem

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError, ResourceExhaustedError
from dovetail.graph.core.source_location import SourceLine
from dovetail.placer.critical_path import CLIENT, Span, Transfer
from dovetail.placer.partition.one_sided_updates import moved_parts
from dovetail.placer.pipeline import STRATEGIES
from dovetail.placer.rules.placement import Rule
from dovetail.placer.search.portfolio import watched
from dovetail.placer.simulate import simulate, timeline

CPU = "/job:w/replica:0/task:{}/device:CPU:0"
SLOW = [{"name": "cpu:0", "flops": 1e6, "bandwidth": 1e6}]
SLOW_AND_FAST = {"w": [{"name": "cpu:0", "flops": 1e9, "bandwidth": 1e9}]}


@pytest.fixture
def graph():
    with dt.Graph().as_default() as g:
        yield g


def branches(count=4, size=256, depth=3):
    """Independent chains of large products that meet at the end."""
    x = dt.placeholder(dt.float32, [size, size], name="x")
    ends = []
    for b in range(count):
        y = x
        for k in range(depth):
            y = dt.matmul(y, y, name=f"b{b}_{k}")
        ends.append(y)
    total = ends[0]
    for y in ends[1:]:
        total = total + y
    return total


def place(graph, tasks=2, **options):
    return dt.place(graph, {"w": tasks}, devices=SLOW_AND_FAST, budget_s=0.3, **options)


def test_independent_work_is_spread_and_beats_the_rules(graph):
    total = branches()
    rules, auto = place(graph, fetches=total), place(graph, fetches=total, strategy="auto")
    assert len(rules.partitions) == 1 and len(auto.partitions) == 2
    assert auto.solution.objective == pytest.approx(simulate(auto).makespan)
    assert auto.solution.objective < 0.7 * simulate(rules).makespan
    assert auto.solution.lower_bound <= auto.solution.objective
    assert rules.solution is None


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_empty_graph_has_an_empty_plan_under_every_strategy(graph, strategy):
    plan = place(graph, strategy=strategy)
    assert not plan.placement and not plan.partitions


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_demands_stay_hard_under_every_strategy(graph, strategy):
    x = dt.placeholder(dt.float32, [64, 64])
    with dt.device("/job:w/task:1"):
        pinned = dt.matmul(x, x)
    free = dt.matmul(x, pinned)
    with dt.device("/task:0"):
        other = dt.matmul(x, x)
    free = free + other
    with dt.colocate_with(pinned):
        beside = free + 1.0
    if strategy == "single":  # two devices are demanded
        with pytest.raises(InvalidArgumentError, match="'single' found no assignment"):
            place(graph, fetches=beside, strategy=strategy)
        return
    plan = place(graph, fetches=beside, strategy=strategy)
    assert plan.placement[pinned.op.name] == CPU.format(1)
    assert plan.placement[beside.op.name] == CPU.format(1)
    assert plan.placement[other.op.name] == CPU.format(0)


def test_explain_says_that_the_search_chose(graph):
    total = branches(2)
    with dt.device("/task:1"):
        pinned = dt.identity(total, name="pinned")
    plan = place(graph, fetches=pinned, strategy="auto")
    assert "selected by the search among the candidates" in plan.explain("b0_0")
    assert plan.decisions.decision("pinned").rule is Rule.ONLY


def test_variables_that_do_not_fit_are_named_with_what_is_short(graph):
    with dt.device("/task:1"):
        large = dt.Variable(np.zeros([1024, 1024], np.float32), name="large")
    small = {"w": [{"name": "cpu:0", "memory": 3 * 2**20}]}
    with pytest.raises(ResourceExhaustedError, match=r"'large.*1\.0 MiB too little"):
        dt.place(graph, {"w": 2}, devices=small, fetches=large.value(), strategy="auto")


@pytest.mark.parametrize("strategy", ["rules", "auto"])
@pytest.mark.parametrize(
    ("count", "elements", "kib", "message"),
    [
        (1, 65536, 200, "'v0' needs 256.0 KiB, and no device has more than 200.0 KiB: 56.0 KiB too little. Split it"),
        (
            5, 32768, 128.125, {
                "rules": "'v0', 'v1', 'v2', 'v3', 'v4' need 640.0 KiB together on /job:w/task:0/CPU:0, which has 128.1 KiB: "
                "511.9 KiB too little. All variables need 640.0 KiB, and all devices have 512.5 KiB: add devices, or",
                "auto": "'v0', 'v1', 'v2', 'v3', 'v4' need 640.0 KiB together, and may only be on /job:w/task:0/CPU:0, "
                "/job:w/task:1/CPU:0, /job:w/task:2/CPU:0, /job:w/task:3/CPU:0, which have 512.5 KiB: 127.5 KiB too little. Allow",
            },
        ),
        (
            5, 16384, 120, {
                "rules": "need 320.0 KiB together on /job:w/task:0/CPU:0, which has 120.0 KiB: 200.0 KiB too little",
                "auto": "need 320.0 KiB together, and may only be on /job:w/task:0/CPU:0, /job:w/task:1/CPU:0, /job:w/task:2/CPU:0, "
                "/job:w/task:3/CPU:0, which have 480.0 KiB, but no way was found to give each a place: the largest needs 64.0 KiB",
            },
        ),
        (
            5, 65536, 400, {
                "rules": "need 1280.0 KiB together on /job:w/task:0/CPU:0, which has 400.0 KiB: 880.0 KiB too little",
                "auto": "/job:w/task:3/CPU:0, which have 1.6 MiB, but no way was found to give each a place: the largest needs 256.0 KiB",
            },
        ),
    ],
)  # fmt: skip
def test_rules_and_searches_refuse_what_does_not_fit_alike_in_sums_that_add_up(
    graph, strategy, count, elements, kib, message
):
    with dt.name_scope(""):
        made = [dt.reduce_sum(dt.get_variable(f"v{i}", [elements])) for i in range(count)]
    devices = {"w": [{"name": "cpu:0", "memory": int(kib * 1024)}]}
    with pytest.raises(ResourceExhaustedError) as e:
        dt.place(graph, {"w": 4}, devices=devices, fetches=made, strategy=strategy, budget_s=0.1)
    assert (message if isinstance(message, str) else message[strategy]) in str(e.value)
    assert f"'v0' was created at {str(SourceLine(__file__, 1)).removesuffix('1')}" in str(e.value)
    assert e.value.op.name == "v0"


def test_a_variable_that_may_be_on_one_device_only_is_measured_by_that(graph):
    with dt.device("/task:1"):
        v = dt.get_variable("v", [1024])
    devices = {"w": [{"name": "cpu:0", "memory": 8192}], "/job:w/task:1": [{"name": "cpu:0", "memory": 1024}]}
    for strategy in ("rules", "auto"):
        with pytest.raises(
            ResourceExhaustedError, match=r"no device that it may be on has more than 1\.0 KiB: 3\.0 KiB too"
        ):
            dt.place(graph, {"w": 2}, devices=devices, fetches=v, strategy=strategy)


def test_variables_are_spread_where_one_device_cannot_hold_them(graph):
    variables = [dt.Variable(np.zeros([1024, 256], np.float32), name=f"v{i}") for i in range(4)]
    total = dt.add_n([dt.reduce_sum(v) for v in variables])
    small = {"w": [{"name": "cpu:0", "memory": 2 * 2**20 + 1000}]}
    plan = dt.place(graph, {"w": 2}, devices=small, fetches=total, strategy="auto", budget_s=0.2)
    assert sorted(plan.placement[f"v{i}"] for i in range(4)) == [CPU.format(t) for t in (0, 0, 1, 1)]


def test_a_function_places_and_is_held_to_the_constraints(graph):
    total = branches(2)
    plan = place(graph, fetches=total, strategy=lambda p: np.full(p.nodes, 1))
    assert set(plan.partitions) == {CPU.format(1)}
    with pytest.raises(InvalidArgumentError, match="one integer for each of"):
        place(graph, fetches=total, strategy=lambda p: [1])
    with pytest.raises(InvalidArgumentError, match="from 0 to 1"):
        place(graph, fetches=total, strategy=lambda p: np.full(p.nodes, 7))
    with dt.device("/task:0"):
        pinned = dt.identity(total)
    with pytest.raises(InvalidArgumentError, match=r"puts 'Identity' on .*task:1.*but it may only be on .*task:0"):
        place(graph, fetches=pinned, strategy=lambda p: np.full(p.nodes, 1))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("strategy", ["auto", "heft", "m-etf", "local-search"])
def test_loops_are_searched(graph, strategy, late):
    """A loop leads back to its begin; the search takes one iteration of it, and what it finds can be cut and run."""
    start = dt.constant(np.ones(8, "float32"))
    _, x = dt.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + x), [0, start])
    first, last = dt.negative(x), dt.exp(-x)
    if late:  # a control edge against the order of creation
        first.op._add_control_input(last.op)
    (grad,) = dt.gradients(first + last, [start])
    plan = place(graph, tasks=2, fetches=[first, last, grad], strategy=strategy)
    assert {n.name for p in plan.partitions.values() for n in p.nodes} >= {first.op.name, last.op.name, grad.op.name}


def test_nothing_is_proven_of_loops_whose_iterations_are_not_counted(graph):
    _, x = dt.while_loop(
        lambda i, x: i < dt.placeholder(dt.int32, []), lambda i, x: (i + 1, x @ x), [0, dt.ones([8, 8])]
    )
    seen = []
    with watched(lambda best, spent, exact: seen.append((best.lower_bound, exact))):
        plan = place(graph, fetches=x, strategy="auto")
    assert plan.solution.lower_bound == 0 and {*seen} == {(0.0, False)} and not plan.unknown_sizes
    assert "the number of iterations of its loops is unknown" in str(plan.report())
    costs = dt.Profile(
        {n.name: {CPU.format(0): 1e-6} for n in graph.nodes}, (), 1e-3, 1
    )  # all iterations of a node together
    assert place(graph, fetches=x, strategy="auto", costs=costs).solution.lower_bound > 0


def test_the_same_input_gives_the_same_plan(graph):
    total = branches(5)
    one, two = (place(graph, tasks=3, fetches=total, strategy="auto", seed=3) for _ in range(2))
    assert one.placement == two.placement


def test_what_the_step_does_not_run_stays_where_the_rules_put_it(graph):
    total = branches(2)
    idle = dt.matmul(total, total, name="idle")
    plan = place(graph, fetches=total, strategy="auto")
    assert plan.placement[idle.op.name] == CPU.format(0)


def test_a_timeline_adds_up(graph):
    plan = place(graph, fetches=branches(3), strategy="auto")
    found = simulate(plan)
    assert found.makespan == max(s.finish for s in found.spans)
    assert len(found.transfers) == len({(c.name, c.destination) for c in plan.channels})
    assert sum(found.busy) == pytest.approx(sum(s.finish - s.start for s in found.spans))
    assert found.critical[0].start == 0 and found.critical[-1].finish == found.makespan
    for before, after in zip(found.critical, found.critical[1:], strict=False):
        assert after.start == pytest.approx(before.finish)
    assert "limited by" in str(found)
    by_name = {s.name: s for s in found.spans}
    for device in range(2):  # one node at a time
        mine = sorted((s.start, s.finish) for s in found.spans if s.device == device)
        assert all(a[1] <= b[0] + 1e-12 for a, b in zip(mine, mine[1:], strict=False))
    assert isinstance(by_name["b0_0"], Span)


@pytest.mark.parametrize("seed", range(12))
def test_a_critical_path_adds_up_to_the_step(seed):
    """Also where links are shared, transfers keep devices busy, and the client feeds and fetches."""
    rng = np.random.default_rng(seed)
    n, d = 40, 3
    p = replace(
        random_problem(seed, n, contended=bool(seed % 2)),
        handling=(1.0 - np.eye(d)) * rng.random(),
        fed_at=rng.random((d, n)) * (rng.random(n) < 0.3) * 40 if seed % 3 else None,
        back_after=rng.random((d, n)) * (rng.random(n) < 0.3) * 40 if seed % 3 else None,
    )
    found = timeline(p, rng.integers(0, d, n))
    assert found.critical[-1].finish == pytest.approx(found.makespan)
    assert sum(found.spent.values()) == pytest.approx(found.makespan)
    ends = [(part.start, part.finish) for part in found.critical]
    for i, (part, (start, _)) in enumerate(zip(found.critical, ends, strict=True)):
        before = ends[i - 1][1] if i else 0.0
        waits = isinstance(part, Transfer) and CLIENT not in (part.source, part.destination) and p.contended
        assert start >= before - 1e-9 if waits else start == pytest.approx(before)


def test_the_critical_path_has_what_the_client_feeds_and_fetches_by_hand():
    # Node 0 waits 2 s for its feed and takes 1 s, its value travels for 1 s, node 1 takes 3 s, and the client has its value after 4 s.
    p = problem([(0, 1)], [[1, 3]], devices=[0, 0])
    p = replace(p, fed_at=np.array([[2.0, 0.0]] * 2), back_after=np.array([[0.0, 4.0]] * 2))
    found = timeline(p, [0, 1])
    assert found.makespan == 11
    assert found.spent == {"link client -> 0": 2, "0": 1, "link 0 -> 1": 1, "1": 3, "link 1 -> client": 4}
    assert found.limited_by == "link 1 -> client"
    assert [b.track for b in found.chart().bars if b.critical] == ["0", "1", "0 -> 1", "client -> 0", "1 -> client"]


def test_contended_links_and_peak_memory_by_hand():
    p = problem([(0, 2), (1, 2)], [[1, 0, 1]], devices=[0, 0], size=3.0, contended=True, memory=[0, 0, 10])
    found = timeline(p, [0, 0, 1])
    # Node 1 takes no time and runs second; both leave at 1, one after the other.
    assert [(t.start, t.finish) for t in found.transfers] == [(1, 4), (4, 7)]
    assert found.makespan == 8 and found.peak == (6, 16)
    assert found.limited_by == "link 0 -> 1"


def test_importing_dovetail_imports_no_compiler():
    code = "import sys, dovetail; sys.exit('numba' in sys.modules or 'scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": dt.__path__[0]}).returncode == 0


def training(setter: bool):
    """A small network and its update, free or on parameter servers: the step's loss and its training op."""
    x, labels = dt.placeholder("float32", [64, 64], name="x"), dt.placeholder("int32", [64], name="labels")
    with dt.device(dt.train.replica_device_setter(ps_tasks=2) if setter else None):
        h = dt.layers.dense(dt.layers.dense(x, 64, activation=dt.nn.relu), 10)
        loss = dt.losses.sparse_softmax_cross_entropy(labels, h)
        return loss, dt.train.AdamOptimizer(0.1).minimize(loss)


@pytest.mark.parametrize("setter", [True, False])
@pytest.mark.parametrize("shared_memory", [None, False])
@pytest.mark.parametrize("objective", ["makespan", "latency"])
def test_a_searched_plan_of_training_is_never_predicted_to_be_slower_than_that_of_the_rules(
    graph, setter, shared_memory, objective
):
    loss, step = training(setter)
    cluster = {"ps": 2, "worker": 2}
    options = {"fetches": [loss], "targets": [step], "shared_memory": shared_memory}
    rules = dt.place(graph, cluster, **options)
    auto = dt.place(graph, cluster, strategy="auto", budget_s=0.3, objective=objective, **options)
    client = objective == "latency"
    found = simulate(auto, client=client).makespan
    assert auto.solution.objective == pytest.approx(found, rel=1e-9)
    assert auto.solution.lower_bound <= found <= simulate(rules, client=client).makespan * (1 + 1e-9)


def test_a_search_does_not_charge_values_that_are_read_in_place(graph):
    """Two branches share a large variable; sent to the other task it takes longer than it saves there."""
    with dt.device("/task:0"):
        w = dt.get_variable("w", [256, 256], initializer=dt.zeros_initializer())
    x = dt.placeholder("float32", [16, 256])
    ends = [dt.matmul(dt.matmul(x, w), w, name=f"b{i}") for i in range(2)]
    sent, read = (
        dt.place(graph, {"w": 2}, fetches=ends, strategy="auto", budget_s=0.3, shared_memory=shared)
        for shared in (False, True)
    )
    assert len(sent.partitions) == 1 and len(read.partitions) == 2
    assert [c.direct for c in read.channels if not c.control] == [True]
    assert read.solution.objective == pytest.approx(simulate(read).makespan)
    assert read.solution.objective < simulate(sent).makespan


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(placed_graphs(devices=("", "", "/job:a/task:0", "/job:b/task:0"), flow=True), st.sampled_from([None, False]))
def test_the_objective_is_the_time_that_a_plan_is_predicted_to_take(case, shared_memory):
    graph, fetches, targets, feeds = case
    plan = dt.place(
        graph, {"a": 1, "b": 1}, devices={"a": SLOW, "b": SLOW}, fetches=fetches, targets=targets, feeds=feeds, strategy="auto",
        budget_s=0.02, shared_memory=shared_memory,
    )  # fmt: skip
    assert plan.solution is not None
    if fetches or targets:
        assert plan.solution.objective == pytest.approx(simulate(plan).makespan, rel=1e-9)
        assert plan.solution.lower_bound <= plan.solution.objective


def test_the_objective_is_the_predicted_time_of_programs_that_use_variables_in_place():
    """Reads and updates of another task's memory, with and without the client's time."""
    reads, updates = 0, 0

    @settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(updating_programs(), st.sampled_from(["makespan", "latency"]), st.sampled_from(["auto", "heft", "rules"]))
    def holds(case, objective, strategy):
        nonlocal reads, updates
        graph, fetches, targets = case
        plan = dt.place(
            graph, {"a": 1, "b": 1}, devices={"a": SLOW, "b": SLOW}, fetches=fetches, targets=targets, strategy=strategy,
            objective=objective, budget_s=0.02,
        )  # fmt: skip
        reads += any(c.direct for c in plan.channels)
        updates += bool(moved_parts(plan.partitions, plan.decisions.device_of))
        if plan.solution is None:
            return
        predicted = simulate(plan, client=objective == "latency").makespan
        assert plan.solution.objective == pytest.approx(predicted, rel=1e-9)
        assert plan.solution.lower_bound <= plan.solution.objective
        report = plan.report(client=objective == "latency")
        assert report.lower_bound <= report.objective == pytest.approx(predicted, rel=1e-9)

    holds()
    assert reads > 10 and updates > 5


def test_a_search_logs_its_begin_and_its_end(caplog):
    with dt.Graph().as_default(), caplog.at_level("INFO", logger="dovetail"):
        x = dt.ones([8, 8])
        plan = dt.place(x + dt.exp(x), {"worker": 2}, strategy="auto", budget_s=0.25)
    begin, end = [r.getMessage() for r in caplog.records if "placement" in r.getMessage()]
    assert begin == f"Searching for a placement (auto): {len(plan.graph.nodes)} nodes on 2 devices, budget 0.25 s"
    assert end.startswith("Found a placement (") and " predicted, lower bound " in end
