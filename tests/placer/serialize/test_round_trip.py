"""Plans as text: what is written is read again, the same plan gives the same text, and damage is told."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from random_graphs import placed_graphs

import dovetail as dt
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer.cluster.calibration import OVERHEADS, Calibration, Point
from dovetail.placer.cluster.load import make_cluster
from dovetail.placer.cost.launches import KINDS
from dovetail.placer.pipeline import place
from dovetail.placer.plan import Plan
from dovetail.placer.serialize.read import parts_of
from dovetail.placer.serialize.write import plan_lines

CLUSTER = make_cluster({"a": 1, "b": 1, "c": 1}, {"a": ["cpu:0", "cpu:1"], "b": ["cpu:0", "cpu:1"]}, "/job:b")


def again(plan, graph=None):
    return Plan(**parts_of(plan_lines(plan, with_graph=graph is None), graph)._asdict())


def same(plan, loaded):
    """Whether two plans say the same about everything."""
    assert str(loaded) == str(plan)
    assert (loaded.fetches, loaded.targets, loaded.feeds) == (plan.fetches, plan.targets, plan.feeds)
    assert loaded.cluster.master == plan.cluster.master and loaded.cluster.links == plan.cluster.links
    assert loaded.requested == plan.requested and loaded.placement == plan.placement
    assert loaded.channels == plan.channels and loaded.relaxations == plan.relaxations
    assert loaded.cost == plan.cost and loaded.check() == plan.check()
    steps = [
        [(d, [(k, what.name) for k, what in p.steps], p.feeds, p.fetches) for d, p in q.partitions.items()]
        for q in (plan, loaded)
    ]
    assert steps[0] == steps[1]
    predicated = [
        {n.name: [c if isinstance(c, int) else c.name for c in cs] for n, cs in q.partitioned.predicated.items()}
        for q in (plan, loaded)
    ]
    assert predicated[0] == predicated[1]
    assert [v.name for v in loaded.partitioned.values] == [v.name for v in plan.partitioned.values]
    for node in plan.decisions:
        assert loaded.explain(node.name) == plan.explain(node)
    assert not plan.diff(loaded) and not loaded.diff(plan)


def test_a_plan_that_names_its_predicated_nodes_guarded_loads() -> None:
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [], name="x")
        with dt.device("/job:b"):
            y = dt.cond(x > 0.0, lambda: x * 2.0, lambda: x - 1.0)
        plan = dt.place(y, CLUSTER, feeds=[x])
    lines = list(plan_lines(plan))
    old = [line.replace('{"predicated"', '{"guarded"') for line in lines]
    assert plan.partitioned.predicated and old != lines
    same(plan, Plan(**parts_of(old, None)._asdict()))


@given(placed_graphs(flow=True), st.booleans())
def test_a_plan_survives_saving_and_loading(example, soft):
    g, fetches, targets, feeds = example
    plan = place(g, CLUSTER, fetches=fetches, targets=targets, feeds=feeds, allow_soft_placement=soft)
    loaded = again(plan)
    same(plan, loaded)
    assert list(plan_lines(loaded)) == list(plan_lines(plan))
    same(plan, again(plan, g))


@given(placed_graphs(flow=True))
def test_the_same_program_gives_the_same_text(example):
    g, fetches, targets, feeds = example
    texts = [list(plan_lines(place(g, CLUSTER, fetches=fetches, targets=targets, feeds=feeds))) for _ in range(2)]
    assert texts[0] == texts[1]
    # What was loaded is placed as the original was: nothing that placing needs is lost.
    loaded = parts_of(texts[0]).graph
    placed = place(loaded, CLUSTER, fetches=[t.name for t in fetches], targets=[n.name for n in targets],
                   feeds=[t.name for t in feeds])  # fmt: skip
    assert list(plan_lines(placed))[1:] == texts[0][1:]


@pytest.fixture
def plan():
    with dt.Graph().as_default() as g:
        with dt.device(dt.train.replica_device_setter(ps_tasks=2)):
            v = dt.Variable(np.zeros((3, 4), "float32"), name="v")
            with dt.device("/gpu:0"):
                y = dt.matmul(v, np.ones((4, 2), "float32"), name="y")
        links = "/job:ps", "/job:worker"
        yield place(g, {"ps": 2, "worker": 1}, fetches=y, allow_soft_placement=True), links


@given(placed_graphs(flow=True))
def test_how_values_cross_survives(example):
    g, fetches, targets, feeds = example
    g.finalize()
    fetches = [t for t in fetches if g.is_fetchable(t)]
    plan = place(
        g, CLUSTER, fetches=fetches, targets=targets, feeds=feeds, allow_soft_placement=True,
        enable_bfloat16_sendrecv=True, enable_recv_scheduling=True,
    )  # fmt: skip
    same(plan, again(plan))
    assert again(plan).channels == plan.channels


def test_files(plan, tmp_path):
    plan, _ = plan
    path = tmp_path / "a.plan"
    plan.save(path)
    same(plan, Plan.load(path))
    assert [p.name for p in tmp_path.iterdir()] == ["a.plan"]
    first = json.loads(path.read_text().splitlines()[0])
    assert first["dovetail-plan"] == 2
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "b.plan")


def test_files_of_version_1_load():
    """They hold the reason against each device."""
    loaded = Plan.load(Path(__file__).with_name("version_1.plan"))
    graph = dt.Graph()
    with graph.as_default():
        with dt.device("/job:ps/task:0"):
            w = dt.get_variable("w", [3, 2])
        with dt.device("/job:worker/gpu:0"):
            y = dt.matmul(dt.placeholder(dt.float32, [4, 3], name="x"), w, name="y")
        z = dt.identity(y, name="z")
    devices = {"worker": ["cpu:0", "gpu:0"]}
    today = dt.place(graph, {"ps": 1, "worker": 2}, fetches=z, devices=devices, shared_memory=False)
    for name in ("w", "y"):
        assert loaded.explain(name).splitlines()[-3:] == today.explain(name).splitlines()[-3:]
    assert [(c.name, c.source, c.destination) for c in loaded.channels] == [
        (c.name, c.source, c.destination) for c in today.channels
    ]


def test_the_answer_of_a_search_comes_along():
    with dt.Graph().as_default():
        x = dt.ones([64, 64])
        plan = dt.place(dt.matmul(x, x) + dt.matmul(dt.exp(x), x), {"worker": 2}, strategy="auto", budget_s=0.1)
    found, loaded = plan.solution, again(plan).solution
    assert found.history and np.array_equal(loaded.assignment, found.assignment)
    assert dataclasses.replace(loaded, assignment=found.assignment) == found
    assert again(plan.at(shapes={})).solution.is_of_step
    damaged = [line.replace('"solution":[', '"solution":[99,') for line in plan_lines(plan)]
    with pytest.raises(InvalidArgumentError, match="Malformed plan"):
        parts_of(damaged)


def test_source_lines_and_setters_come_along(plan):
    loaded = again(plan[0])
    text = loaded.explain("v")
    assert 'v = dt.Variable(np.zeros((3, 4), "float32"), name="v")' in text and "test_round_trip.py:" in text
    assert "inside device block function replica_device_setter at" in text


def test_a_loaded_graph_cannot_run_by_mistake(plan):
    loaded = again(plan[0])
    with pytest.raises(dt.errors.FailedPreconditionError, match="does not keep values of large constants"):
        dt.Session(graph=loaded.graph)
    with pytest.raises(dt.errors.FailedPreconditionError, match="does not keep values of large constants"):
        loaded.graph.as_graph_def()


def test_a_loaded_plan_of_training_on_a_measured_machine_predicts_the_same() -> None:
    """Predicted times need the kernels of a plan: rewrites look at constants, some of which a saved plan leaves out."""
    points = (Point(1.0, 1e-9, 1.0), Point(1e9, 1.0, 1.0))
    machine = Calibration("m", 2, "", "", dict.fromkeys(KINDS, points), dict.fromkeys(OVERHEADS, 1e-5), 2.0)
    with dt.Graph().as_default():
        x = dt.placeholder(dt.int64, [16])
        with dt.device("/job:ps"):
            table = dt.get_variable("table", [100, 8])
        mask = dt.constant(np.linspace(0.0, 1.0, 16 * 200, dtype=np.float32).reshape(16, 200))
        h = dt.layers.dense(dt.nn.embedding_lookup(table, x), 200) * mask
        loss = dt.reduce_mean(dt.square(h) * 2.0)
        plan = dt.place([loss, dt.train.AdamOptimizer().minimize(loss)], {"ps": 1, "worker": 1}, profile=machine)
    loaded = again(plan)
    same(plan, loaded)
    assert loaded.simulate().makespan == plan.simulate().makespan
    assert "\n".join(plan_lines(loaded)) == "\n".join(plan_lines(plan))


def test_a_plan_with_a_profile_of_another_release_loads_without_it(caplog: pytest.LogCaptureFixture) -> None:
    points = (Point(1.0, 1e-9, 1.0), Point(1e9, 1.0, 1.0))
    machine = Calibration("m", 2, "", "", dict.fromkeys(KINDS, points), dict.fromkeys(OVERHEADS, 1e-5), 2.0)
    with dt.Graph().as_default():
        plan = dt.place(dt.matmul(dt.ones([8, 8]), dt.ones([8, 8])), profile=machine)
    lines = [json.loads(line) for line in plan_lines(plan)]
    (record,) = [line for line in lines if "profile" in line]
    del (
        record["profile"]["dovetail calibration"],
        record["profile"]["kernels"]["stream"],
        record["profile"]["overheads"]["wake"],
    )
    loaded = Plan(**parts_of(map(json.dumps, lines))._asdict())
    assert loaded.cluster.calibration is None
    assert loaded.simulate().makespan > 0
    assert "a machine's profile of another release" in caplog.text


def test_facts_of_devices_and_links_come_along():
    devices = {"a": [{"name": "gpu:0", "memory": 10, "flops": 1e12, "bandwidth": 2.5e9, "model": "B200"}]}
    from dovetail.placer.cluster.spec import Link

    cluster = make_cluster({"a": 2}, devices, links=[Link("/job:a", "", 1e-6, None)])
    with dt.Graph().as_default() as g:
        dt.constant(1.0)
    loaded = again(place(g, cluster))
    assert loaded.cluster == cluster


@given(st.data())
def test_damage_is_told_and_never_anything_else(data):
    with dt.Graph().as_default() as g:
        v = dt.Variable(1.0, name="v")
        with dt.device("/cpu:1"):
            dt.add(v, v, name="y")
    lines = list(plan_lines(place(g, {"a": 1}, devices={"a": ["cpu:0", "cpu:1"]})))
    at = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["drop", "cut", "twice", "change"]))
    if kind == "drop":
        del lines[at]
    elif kind == "cut":
        lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at]) - 1))]
    elif kind == "twice":
        lines.insert(at, lines[at])
    else:
        where = data.draw(st.integers(0, len(lines[at]) - 1))
        lines[at] = lines[at][:where] + data.draw(st.sampled_from('09-[]{},"ax')) + lines[at][where + 1 :]
    try:
        loaded = Plan(**parts_of(lines)._asdict())
    except InvalidArgumentError as e:
        assert "Malformed plan, line" in str(e)
    else:  # another letter in a name, or another number of bytes, is a plan as well
        assert kind == "change"
        str(loaded), loaded.check()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([], "ends too early"),
        (["{}"], "this is no plan"),
        (["[1]"], "this is no plan"),
        (["nonsense"], "JSONDecodeError"),
        (['{"dovetail-plan": 3}'], "version 3 is not known; this release reads versions 1 and 2"),
    ],
)
def test_what_is_no_plan(lines, told):
    with pytest.raises(InvalidArgumentError, match=told):
        parts_of(lines)


def test_the_file_is_named(tmp_path):
    (tmp_path / "x.plan").write_text("{}\n")
    with pytest.raises(InvalidArgumentError, match=r"x\.plan: Malformed plan, line 1: this is no plan"):
        Plan.load(tmp_path / "x.plan")
