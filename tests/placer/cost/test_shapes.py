"""The sizes of a plan's values: from the shapes of what is fed, of batches, of what was measured. Oracles are counted by hand."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.cluster.spec import Link
from dovetail.placer.cost.shapes import Sizes

CLUSTER = {"ps": 1, "worker": 2}
WORKER = "/job:worker/replica:0/task:0/device:CPU:0"


def layer() -> tuple[dt.Graph, dt.Tensor, dt.Tensor, dt.Tensor]:
    """y = x W on a worker, W [512, 1024] on a parameter server, and z = y in rows of 512."""
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 512], name="x")
        with dt.device("/job:ps/task:0"):
            w = dt.Variable(dt.zeros([512, 1024]), name="w")
        with dt.device("/job:worker/task:0"):
            y = dt.matmul(x, w, name="y")
            z = dt.reshape(y, [dt.shape(y)[0] * 2, 512], name="z")
        with dt.device("/job:worker/task:1"):
            dt.reduce_sum(z, name="loss")
    return graph, x, y, z


def plan_of(graph: dt.Graph, **given: object) -> dt.Plan:
    return dt.place(graph, CLUSTER, fetches="loss:0", **given)  # type: ignore[arg-type]


def flops_and_bytes(batch: int) -> tuple[int, int]:
    """By hand: the operations of y on its worker, and the bytes that cross: W to it, and z from it."""
    return 2 * batch * 512 * 1024, 4 * (512 * 1024 + batch * 1024)


@pytest.mark.parametrize("given", [
    {"feeds": {"x": np.zeros((4096, 512), np.float32)}},
    {"feeds": {"x:0": np.broadcast_to(np.float32(0), (4096, 512))}},
    {"shapes": {"x": (4096, 512)}},
    {"shapes": {"x:0": [4096, None]}},
    {"shapes": {"x:0": dt.TensorShape([4096, 512])}},
])  # fmt: skip
def test_a_plan_has_the_sizes_that_it_is_given(given: dict[str, object]) -> None:
    graph, x, y, z = layer()
    plan, flops = plan_of(graph, **given), flops_and_bytes(4096)
    assert plan.sizes.of(z).dims == (8192, 512)  # through shape arithmetic
    assert plan.sizes.bytes(y) == 4096 * 1024 * 4
    assert plan.cost[WORKER].flops == pytest.approx(flops[0], rel=1e-6)
    assert sum(c.bytes for c in plan.channels) == flops[1] and all(c.is_exact for c in plan.channels)
    assert [c.bytes for p in plan.partitions.values() for c in p.receives] == [c.bytes for c in plan.channels]
    assert x.dims == (None, 512) and z.dims == (None, 512), "the graph stays as it is"
    assert "≥" not in str(plan) + str(plan.report()) + plan.explain("z") and not plan.unknown_sizes
    step = dt.simulate(plan)
    assert step.exact and step.makespan > flops[0] / 5e10 and sum(t.bytes for t in step.transfers) == flops[1]


def test_what_depends_on_an_unknown_size_is_marked_and_nothing_is_claimed() -> None:
    graph, x, *_ = layer()
    plan = plan_of(graph)
    assert plan.unknown_sizes == (x,)
    report = plan.report()
    assert "≥" in str(report) and report.lower_bound == 0.0 and report.hint is None
    assert "optimal" not in str(report) and "lower bound" not in str(report)
    assert "plan.at(shapes={'x': (64, 512)})" in str(report) and "'x:0' (?, 512)" in str(report)
    tables = str(plan)
    assert "memory" in tables and "  2.0 MiB" in tables  # the variable's size is known
    assert "≥ 2.0 KiB" in tables and "≥ 1.0 M" in tables  # z, and the operations of y: one row each
    assert "≥" in plan.explain("z") and str(dt.simulate(plan)).startswith("≥") and "≥" in repr(dt.simulate(plan))


def test_one_plan_answers_for_several_batches() -> None:
    graph, *_ = layer()
    plan = plan_of(graph)
    for batch in (1, 64, 4096):
        other, same = plan.at(batch=batch), plan_of(graph, shapes={"x": (batch, 512)})
        assert other.cost == same.cost and other.channels == same.channels and other.placement == plan.placement
        assert other.report().objective == same.report().objective == dt.simulate(other).makespan
    assert plan.at(shapes={"x": (3, 512)}).at(batch=7).sizes.given == {"x:0": (7, 512)}
    table = plan.scale(batch=[1, 16, 256, 4096])
    assert [p.bytes for p in table] == [flops_and_bytes(p.batch)[1] for p in table]
    assert [p.seconds for p in table] == [dt.simulate(plan.at(batch=p.batch)).makespan for p in table]
    assert table[3].memory >= 4 * (512 * 1024 + 4096 * 1024) and table[3].fits and table[3].exact
    assert [line.split()[0] for line in str(table).splitlines()] == ["batch", "1", "16", "256", "4096"]


def test_a_batch_that_does_not_fit_is_marked() -> None:
    graph, *_ = layer()
    devices = {"worker": [{"name": "cpu:0", "memory": "8 MiB"}]}
    small, large = dt.place(graph, CLUSTER, fetches="loss:0", devices=devices).scale(batch=[16, 4096])
    assert small.fits and not large.fits and large.device == WORKER


def test_bad_sizes_are_refused_with_what_was_expected() -> None:
    graph, *_ = layer()
    plan = plan_of(graph)
    with pytest.raises(
        ValueError, match=r"'x:0' \(created at .*\) cannot have the shape \(3, 4\); the graph says \(\?, 512\)"
    ):
        plan_of(graph, shapes={"x": (3, 4)})
    with pytest.raises(ValueError, match=r"cannot have the shape \(7,\)"):
        plan_of(graph, feeds={"x": np.zeros(7)})
    with pytest.raises(TypeError, match="shapes must be a mapping"):
        plan_of(graph, shapes=[(3, 4)])
    with pytest.raises(TypeError, match="A size in a shape is an int"):
        plan_of(graph, shapes={"x": ("many", 512)})
    with pytest.raises(KeyError):
        plan_of(graph, shapes={"nothing": (3,)})
    with pytest.raises(ValueError, match="batch must be at least one batch size"):
        plan.scale(batch=[])
    with pytest.raises(ValueError, match="batch must be at least 1, not 0"):
        plan.at(batch=0)
    with pytest.raises(TypeError, match="batch must be a whole number"):
        plan.at(batch=1.5)  # type: ignore[arg-type]
    with dt.Graph().as_default() as fixed:
        dt.reduce_sum(dt.placeholder(dt.float32, [8, 2], name="x"), name="loss")
    with pytest.raises(
        ValueError, match=r"no batch size to choose.*'x:0' \(8, 2\)\)\. These sizes are fixed\. .*symbolic_batch"
    ) as e:
        plan_of(fixed).at(batch=4)
    assert "shapes=" not in str(e.value)
    with pytest.raises(ValueError, match=r"the graph says \(8, 2\)\. Its sizes are fixed\. .*symbolic_batch"):
        plan_of(fixed).at(shapes={"x": (4, 2)})
    with dt.Graph().as_default() as narrow:
        dt.reduce_sum(dt.placeholder(dt.float32, [8, None], name="x"), name="loss")
    with pytest.raises(
        ValueError, match=r"no batch size to choose.*Give the shapes: plan\.at\(shapes=\{'x': \(8, 64\)\}"
    ):
        plan_of(narrow).at(batch=4)


def test_shapes_that_a_node_cannot_take_name_it_unless_it_is_in_a_branch() -> None:
    with dt.Graph().as_default() as graph:
        a, b = (dt.placeholder(dt.float32, [None], name=name) for name in "ab")
        dt.add(a, b, name="sum")
        dt.cond(dt.reduce_sum(a) > 0, lambda: dt.add(a, b), lambda: a, name="either")
    with pytest.raises(ValueError, match=r"do not fit the program: 'sum' \(Add.*\), created at .*test_shapes.py"):
        dt.place(graph, CLUSTER, fetches="sum:0", shapes={"a": (3,), "b": (4,)})
    plan = dt.place(graph, CLUSTER, fetches="either/Merge:0", shapes={"a": (3,), "b": (4,)})
    assert not plan.sizes.misfit


def test_what_only_a_run_can_tell_stays_unknown_until_it_is_given() -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 8], name="x")
        kept = dt.boolean_mask(x, dt.reduce_sum(x, 1) > 0)
        dt.reduce_sum(kept, name="loss")
    plan = plan_of(graph, shapes={x: (100, 8)})
    (where,) = plan.unknown_sizes
    assert where.op.type == "Where" and plan.sizes.of(kept).dims == (None, 8)
    sized = plan.at(shapes={where: (30, 1)})
    assert sized.sizes.of(kept).dims == (30, 8) and not sized.unknown_sizes


@pytest.mark.parametrize("grows", [False, True])
def test_loop_variables_keep_the_shape_with_which_they_enter_unless_an_iteration_changes_it(grows: bool) -> None:
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 3], name="x")
        step = (lambda v: dt.concat([v, v], 0)) if grows else (lambda v: v * 2.0)
        out = dt.while_loop(
            lambda v: dt.reduce_sum(v) < 9.0, lambda v: [step(v)], [x], [dt.TensorShape([None, 3])]
        )  # fmt: skip
        dt.reduce_sum(out, name="loss")
    plan = plan_of(graph, shapes={x: (5, 3)})
    found = plan.sizes.of(out)
    assert found.dims == ((None, 3) if grows else (5, 3))
    assert not dt.simulate(plan).exact  # nobody knows how often it runs
    assert ("iterations" in str(plan.report())) is not grows


@pytest.mark.parametrize("behind", ["", "prefetch", "map"])
def test_data_sets_tell_the_size_of_a_full_batch(behind: str) -> None:
    with dt.Graph().as_default() as graph:
        data = dt.data.Dataset.from_tensor_slices(np.zeros((100, 7), np.float32)).batch(32)
        if behind == "prefetch":
            data = data.repeat().shuffle(3).prefetch(1)
        elif behind == "map":
            data = data.map(lambda x: dt.boolean_mask(x, dt.reduce_sum(x, 1) > 0))
        x = data.make_one_shot_iterator().get_next()
        dt.reduce_sum(dt.exp(x), name="loss")
    plan = dt.place(graph, None, fetches="loss:0")
    assert x.dims == (None, 7) and plan.sizes.of(x).dims == (None if behind == "map" else 32, 7)
    assert plan.at(batch=10).sizes.of(x).dims == (10, 7)


def test_only_inputs_are_asked_for_where_gradients_have_their_sizes_from_them() -> None:
    with dt.Graph().as_default() as graph:
        x, y = dt.placeholder(dt.float32, [None, 2], name="x"), dt.placeholder(dt.float32, [None], name="y")
        loss = dt.reduce_mean(dt.square(dt.squeeze(dt.matmul(x, dt.get_variable("w", [2, 1])), [1]) - y))
        step = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        drawn = dt.random_uniform(dt.placeholder(dt.int32, [1], name="n"))
    plan = dt.place(graph, None, fetches=[step, drawn])
    # Its shape is a value that is fed.
    assert [t.name for t in plan.unknown_sizes] == [
        "x:0",
        "y:0",
        "random_uniform/RandomUniform:0",
    ]
    assert plan.at(shapes={x: (64, 2)}).unknown_sizes[0] is y
    assert not dt.place(graph, None, fetches=step, shapes={x: (64, 2), y: (64,)}).unknown_sizes


def test_a_search_for_unknown_sizes_says_so_and_how_to_give_them(caplog: pytest.LogCaptureFixture) -> None:
    graph, *_ = layer()
    with caplog.at_level(logging.WARNING):
        plan = plan_of(graph, strategy="auto", budget_s=0.1)
    assert "dt.place(..., shapes={'x': (64, 512)})" in caplog.text
    assert [w.kind for w in plan.check()].count("unknown-sizes") == 1
    assert plan.solution is not None and plan.solution.lower_bound == 0.0
    caplog.clear()
    plan = plan_of(graph, strategy="auto", budget_s=0.1, shapes={"x": (4096, 512)})
    assert not caplog.text and plan.solution is not None and plan.solution.lower_bound > 0
    assert all(w.kind != "unknown-sizes" for w in plan.check())
    assert plan.report().objective <= plan_of(graph, shapes={"x": (4096, 512)}).report().objective


def test_saved_plans_keep_their_sizes(tmp_path: Path) -> None:
    graph, *_ = layer()
    plan = plan_of(graph, shapes={"x": (4096, 512)})
    plan.save(tmp_path / "plan")
    loaded = dt.Plan.load(tmp_path / "plan")
    assert str(loaded) == str(plan) and loaded.sizes.given == plan.sizes.given and loaded.cost == plan.cost
    assert loaded.report().objective == plan.report().objective
    assert loaded.at(batch=64).channels == plan.at(batch=64).channels


def test_a_profile_has_the_shapes_of_what_was_measured_and_plans_follow() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [None, 256], name="x")
        with dt.device("/task:0"):
            y = dt.exp(x, name="y")
        with dt.device("/task:1"):
            z = dt.reduce_sum(y, name="z")
        costs = dt.Profile({}, (Link("/job:w/task:0", "/job:w/task:1", 0.0, 1e6),), 1.0, 1, {"x:0": (1024, 256)})
        plan = dt.place(None, {"w": 2}, fetches=z)
        line = dt.simulate(plan, costs=costs)
        assert [t.bytes for t in line.transfers] == [2**20] and line.exact
        assert line.makespan > 2**20 / 1e6 and min(line.peak) >= 2**20
        assert dt.simulate(plan).makespan < 1e-3
        assert dt.Profile.from_text(costs.to_text()).shapes == {"x:0": (1024, 256)}
        searched = dt.place(None, {"w": 2}, fetches=z, costs=costs, strategy="auto", budget_s=0.1)
        assert searched.sizes.given == {"x:0": (1024, 256)} and [c.bytes for c in searched.channels] == [2**20]
        given = dt.simulate(plan.at(batch=2), costs=costs)  # what the plan was given counts
        assert [t.bytes for t in given.transfers] == [2 * 256 * 4]


@pytest.mark.slow
def test_profiling_finds_them() -> None:
    with dt.Graph().as_default(), dt.Session() as session:
        x = dt.placeholder(dt.float32, [None, 4], name="x")
        y = dt.exp(x, name="y")
        profile = dt.profile(session, dt.reduce_sum(y), {x: np.ones((7, 4))}, steps=2)
        assert profile.shapes == {"x:0": (7, 4)}


def test_nothing_is_inferred_where_nothing_is_given() -> None:
    graph, x, *_ = layer()
    sizes = Sizes(graph.nodes)
    assert not sizes.has_stand_ins and sizes.of(x) is x and sizes.node(x.op) is x.op and sizes.bytes(x) == 512 * 4


def classifier() -> dt.Node:
    """A training step whose gradients depend on the batch: dropout, shape arithmetic, broadcasting, concatenation, a look-up."""
    x, label = dt.placeholder(dt.float32, [None, 6], name="x"), dt.placeholder(dt.int64, [None], name="label")
    table, w = (dt.Variable(dt.ones(shape), name=name) for shape, name in (([9, 6], "table"), ([12, 4], "w")))
    rows = dt.concat([dt.nn.dropout(x, keep_prob=0.5), dt.nn.embedding_lookup(table, label)], 1)
    rows = dt.reshape(rows, [dt.shape(x)[0], 12]) - dt.reduce_mean(rows, 1, keepdims=True)
    loss = dt.nn.sparse_softmax_cross_entropy_with_logits(labels=label % 4, logits=dt.matmul(rows, w))
    return dt.train.AdamOptimizer().minimize(dt.reduce_mean(loss))


def test_the_sizes_of_a_training_step_are_those_of_a_run() -> None:
    with dt.Graph().as_default() as graph, dt.Session() as session:
        step = classifier()
        plan = dt.place(graph, None, targets=step).at(batch=5)
        assert not plan.unknown_sizes and plan.report().lower_bound > 0
        made = [t for p in plan.partitions.values() for n in p.nodes for t in n.outputs]
        made = [t for t in made if t.dtype.np.kind in "fiu" and not t.dtype.is_ref and t.op.type != "NoOp"]
        session.run(dt.global_variables_initializer())
        values = session.run(made, {"x:0": np.ones((5, 6)), "label:0": np.arange(5)})
        assert {t.name: plan.sizes.bytes(t) for t in made} == {
            t.name: v.nbytes for t, v in zip(made, values, strict=True)
        }
        assert sum(t.dims is None or None in t.dims for t in made) > 20
