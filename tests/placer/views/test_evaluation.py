"""What a plan is worth: figures by hand, bounds that hold for every placement, hints with numbers."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.simulate import simulate, step_of, timeline
from dovetail.placer.views.evaluation import alternatives

# 1 GFLOP/s, so that a product of two 512 x 512 matrices takes 2 * 512**3 / 1e9 = 0.268 s.
SLOW = {"worker": [{"name": "cpu:0", "flops": 1e9, "memory": 2**30}]}
PRODUCT = 2 * 512**3 / 1e9


@pytest.fixture
def products():
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        left, right = dt.matmul(x, x, name="left"), dt.matmul(x, x, name="right")
        dt.matmul(dt.matmul(left, left, name="left2"), dt.matmul(right, right, name="right2"), name="both")
        yield graph


def placed(graph, strategy="rules", fetches="both:0", workers=2, devices=SLOW):
    return dt.place(graph, {"worker": workers}, devices=devices, fetches=fetches, strategy=strategy)


def test_one_device_by_hand(products):
    report = placed(products).report()
    assert report.objective == pytest.approx(5 * PRODUCT, rel=0.01)
    assert report.lower_bound == pytest.approx(3 * PRODUCT, rel=0.01)  # left, left2, both follow each other
    assert report.gap == pytest.approx(0.4, abs=0.01)
    assert report.found_by == "the rules"
    (load,) = report.loads
    assert report.critical == (("/job:worker/task:0/CPU:0", pytest.approx(report.objective)),)
    assert (load.device, load.capacity) == ("/job:worker/replica:0/task:0/device:CPU:0", 2**30)
    assert report.best_single == (load.device, pytest.approx(report.objective))
    assert "at most 40% less" in str(report)


def test_the_critical_path_says_how_much_it_leaves_out(products):
    report = placed(products).report()
    report = replace(
        report,
        objective=1.0,
        critical=tuple((f"device {i}", s) for i, s in enumerate((0.4, 0.2, 0.15, 0.1, 0.08, 0.02))),
    )
    assert "\n     10%  device 3\n     10%  2 more\n" in str(report)
    assert "more\n" not in str(replace(report, critical=report.critical[:4]))


def test_a_search_that_cannot_be_beaten_says_so(products):
    report = placed(products, "auto").report()
    assert report.objective == pytest.approx(3 * PRODUCT, rel=0.01)
    assert "optimal: equal to the lower bound" in str(report)
    assert report.found_by.startswith("search (")
    assert report.best_single[1] / report.objective == pytest.approx(5 / 3, rel=0.01)
    assert sum(seconds for _, seconds in report.critical) == pytest.approx(report.objective, rel=1e-6)


def test_no_placement_is_below_the_bound(products):
    plan = placed(products)
    bound = plan.report().lower_bound
    problem, assignment, names, devices = step_of(plan)
    for where in itertools.product((0, 1), repeat=len(assignment)):
        assert timeline(problem, np.array(where, np.int32), names, devices).makespan >= bound * (1 - 1e-9)


def test_no_bound_is_above_the_step_on_one_device(products):
    """A search knows kernels as they are fused in its plan; a placement on one device may fuse more of them."""
    plan = dt.place(
        products, {"worker": 2}, devices=SLOW, fetches="both:0", strategy="auto", objective="throughput", budget_s=0.1
    )
    report = replace(plan, solution=replace(plan.solution, lower_bound=9 * PRODUCT)).report()
    assert report.lower_bound <= report.best_single[1]
    assert report.throughput[1] <= report.best_single[1]


def test_a_bound_above_the_step_on_one_device_is_one_of_what_requests_allow(products):
    report = replace(placed(products).report(), objective=1.0, lower_bound=0.8)
    device = report.best_single[0]
    for seconds, which in ((0.7, "any placement that satisfies the device requests"), (0.9, "any placement")):
        assert f"  lower bound for {which}: 800 ms" in str(replace(report, best_single=(device, seconds)))
    best = replace(report, objective=0.8, best_single=(device, 0.7))
    assert "  optimal: equal to the lower bound for any placement that satisfies the device requests\n" in str(best)


def test_alternatives_are_what_a_plan_with_that_move_takes(products):
    plan = placed(products, "auto")
    ((device, seconds),) = alternatives(plan, "left")
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [512, 512], name="x")
        nodes = {"left": (x, x), "right": (x, x)}
        made = {}
        for name in ("left", "right", "left2", "right2", "both"):
            at = device if name == "left" else plan.placement[name]
            half = {"left2": ("left", "left"), "right2": ("right", "right"), "both": ("left2", "right2")}
            a, b = nodes.get(name) or [made[other] for other in half[name]]
            with dt.device(at):
                made[name] = dt.matmul(a, b, name=name)
        moved = dt.place(graph, {"worker": 2}, devices=SLOW, fetches=made["both"])
    assert seconds == pytest.approx(simulate(moved).makespan, rel=0.01)
    text = plan.explain("left")
    assert "on other candidates:" in text
    assert "(+33" in text
    assert "elsewhere:" not in placed(products).explain("left")


def test_what_does_not_fit_elsewhere_says_so():
    with dt.Graph().as_default() as graph:
        with dt.device("/task:0"):
            x = dt.placeholder(dt.float32, [512, 512], name="x")
        made = dt.tanh(dt.matmul(x, x, name="product"), name="made")
        with dt.device("/task:0"):
            y = dt.matmul(made, made, name="y")
        devices = {"worker": SLOW["worker"], "/job:worker/task:1": [{"name": "cpu:0", "flops": 1e9, "memory": 2**19}]}
        plan = dt.place(graph, {"worker": 2}, devices=devices, fetches=y, strategy="auto", budget_s=0.1)
        ((device, seconds),) = alternatives(plan, "product")  # it makes 1 MiB
        assert (device, seconds) == ("/job:worker/replica:0/task:1/device:CPU:0", np.inf)
        assert "/job:worker/task:1/CPU:0: does not fit its memory" in plan.explain("product")
        assert plan.report().best_single[0] == "/job:worker/replica:0/task:0/device:CPU:0"


def test_replicas_are_named_where_they_would_be_faster():
    with dt.Graph().as_default() as graph:
        h = dt.placeholder(dt.float32, [4096, 256])
        for i in range(3):
            h = dt.tanh(dt.matmul(h, dt.get_variable(f"w{i}", [256, 256])))
        loss = dt.reduce_mean(dt.square(h))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        plan = dt.place(graph, {"worker": 4}, targets=train)
        report = plan.report()
        assert report.hint is not None
        assert report.hint.devices == 4
        assert report.hint.bytes == 3 * 256 * 256 * 4
        assert report.objective / 4 < report.hint.seconds < report.objective / 2
        assert "hint: with data parallelism over 4 devices" in str(report)
        assert dt.place(graph, {"worker": 4}, fetches=loss).report().hint is None  # nothing is trained
        assert dt.place(graph, {"worker": 1}, targets=train).report().hint is None


def test_an_empty_step_has_a_report():
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [], name="x")
        plan = dt.place(graph, {"worker": 1}, fetches=x, feeds=x)
        assert plan.report().objective == 0.0
        assert str(plan.report())


def test_variables_count_in_the_memory_of_their_task_whoever_updates_them():
    with dt.Graph().as_default():
        with dt.device(dt.train.replica_device_setter(ps_tasks=1, worker_device="/job:worker/task:0")):
            w = dt.get_variable("w", [64, 64])
            loss = dt.reduce_mean(dt.square(dt.matmul(dt.placeholder(dt.float32, [2, 64]), w)))
            train = dt.train.AdamOptimizer().minimize(loss)
        plan = dt.place([train, loss], {"ps": 1, "worker": 1})
    (variables,) = [load.variable_bytes for load in plan.loads if load.variables]
    assert plan.moved_parts and variables > 3 * 64 * 64 * 4
    memory = {load.device: load.peak for load in plan.report().loads}
    assert memory.pop("/job:ps/replica:0/task:0/device:CPU:0") == variables
    assert 64 * 64 * 4 <= memory["/job:worker/replica:0/task:0/device:CPU:0"] < 2 * 64 * 64 * 4  # the gradient


def test_a_step_with_a_data_set_has_a_report():
    with dt.Graph().as_default():
        values = dt.data.Dataset.from_tensor_slices(np.zeros((64, 8), np.float32)).batch(16)
        batch = dt.data.make_one_shot_iterator(values).get_next()
        plan = dt.place(dt.square(batch), {"worker": 1})
    report = plan.report()
    assert report.objective == plan.simulate().makespan


@pytest.mark.parametrize("job", ["worker", "ps"])
def test_a_step_that_takes_no_time_has_a_report_warnings_and_a_page(job, tmp_path):
    with dt.Graph().as_default(), dt.device(f"/job:{job}"):
        plan = dt.place(dt.get_variable("v", [4]), {"ps": 1, "worker": 2})
    assert plan.report().objective == 0 and plan.check() == []
    assert "slower" not in str(plan.report()) and "memory 16 B" in str(plan.report())
    plan.to_html(tmp_path / "plan.html")
