"""Sessions that place by search: steps run where the search says, state stays, and a wrong name is an error."""

import contextlib
import dataclasses

import numpy as np
import pytest

import dovetail as dt
from dovetail.placer.rules.placement import Rule

pytestmark = pytest.mark.slow


def two_towers():
    x = dt.placeholder(dt.float32, [256, 256], name="x")
    left = right = x
    weights = dt.get_variable("w", [256, 256], initializer=dt.ones_initializer())
    for _ in range(4):
        left, right = dt.tanh(dt.matmul(left, weights)), dt.tanh(dt.matmul(right, weights))
    return x, weights, dt.add(left, right, name="both")


def config(strategy):
    return dt.ConfigProto(device_count={"CPU": 2}, placement_strategy=strategy)


def test_a_session_places_by_search_and_keeps_state_where_it_is():
    with dt.Graph().as_default():
        x, weights, both = two_towers()
        value = np.random.default_rng(1).normal(size=(256, 256)).astype(np.float32) * 0.01
        with dt.Session(config=config("rules")) as session:
            session.run(dt.global_variables_initializer())
            expected = session.run(both, {x: value})
        with dt.Session(config=config("auto")) as session:
            session.run(dt.global_variables_initializer())
            np.testing.assert_allclose(session.run(both, {x: value}), expected, rtol=1e-5)
            plan = session.last_plan
            assert len(plan.partitions) == 2
            searched = [n for n in plan.decisions if plan.decisions.decision(n).rule is Rule.SEARCHED]
            assert searched
            found = plan.solution
            assert found is not None and found.history and not found.is_of_step
            assert plan.report().found_by == f"search ({found.history[-1].by})"
            assert 0 < found.lower_bound <= found.objective
            assert session.plan(both, {x: value}).solution.history == found.history  # no second search
            where = plan.placement["w"]
            more = dt.reduce_sum(both * 2.0)
            session.run(more, {x: value})
            assert session.last_plan.placement["w"] == where
            assert "keeps the device" in session.last_plan.explain("w") or len(session.last_plan.partitions) == 2


def test_initializers_do_not_decide_where_training_runs():
    """A small network's step is fastest in one task, however many tasks could initialize its variables at once."""
    with dt.LocalCluster({"ps": 1, "worker": 1}) as cluster, dt.Graph().as_default():
        hidden = dt.ones([64, 128])
        for i in range(4):
            hidden = dt.nn.relu(hidden @ dt.get_variable(f"w{i}", [128, 128]))
        loss = dt.reduce_mean(hidden)
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        with dt.Session(cluster.target(), config=dt.ConfigProto(placement_strategy="auto")) as session:
            session.run(dt.global_variables_initializer())
            planned = session.plan([loss, train])
            session.run([loss, train])
            ran = session.last_plan
    assert ran.cluster.master == "/job:worker/replica:0/task:0"  # what `target()` names
    assert len(ran.partitions) == 1
    assert str(planned) == str(ran)


def test_what_was_asked_for_stays_hard():
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [64, 64])
        with dt.device("/cpu:1"):
            y = dt.matmul(x, x, name="pinned")
        with dt.Session(config=config("auto")) as session:
            session.run(dt.matmul(y, y), {x: np.ones((64, 64), np.float32)})
            assert session.last_plan.placement["pinned"].endswith("CPU:1")


def test_an_unknown_strategy_names_those_there_are():
    with dt.Graph().as_default():
        y = dt.constant(1.0) + 1.0
        with (
            dt.Session(config=config("best")) as session,
            pytest.raises(dt.errors.InvalidArgumentError, match="strategies: rules, auto"),
        ):
            session.run(y)


def test_it_travels_to_a_server():
    with (
        dt.train.Server.create_local_server(dt.ConfigProto(device_count={"CPU": 2})) as server,
        dt.Graph().as_default(),
    ):
        x, _, both = two_towers()
        with dt.Session(server.target, config=config("auto")) as session:
            session.run(dt.global_variables_initializer())
            session.run(both, {x: np.zeros((256, 256), np.float32)})
            assert len(session.last_plan.partitions) == 2


def test_measured_costs_decide_and_travel(tmp_path):
    """The costs say that one product is worth a device of its own; what was not measured stays with the rules."""
    with dt.Graph().as_default():
        x = dt.placeholder(dt.float32, [8, 8], name="x")
        left, right = dt.matmul(x, x, name="left"), dt.matmul(x, x, name="right")
        both = dt.add(left, right, name="both")
        other = dt.exp(both, name="other")
        for target in ("", "server"):
            with contextlib.ExitStack() as opened:
                task = "localhost"
                if target:
                    server = opened.enter_context(
                        dt.train.Server.create_local_server(dt.ConfigProto(device_count={"CPU": 2}))
                    )
                    target, task = server.target, "local"
                device = f"/job:{task}/replica:0/task:0/device:CPU:0"
                profile = dt.Profile({n: {device: 1.0} for n in ("left", "right", "both")}, (), 3.0, 1)
                profile.save(tmp_path / "costs.json")
                for costs in (profile, tmp_path / "costs.json"):
                    chosen = dataclasses.replace(config("auto"), placement_costs=costs)
                    with dt.Session(target, config=chosen) as session:
                        session.run(other, {x: np.zeros((8, 8), np.float32)})
                        plan = session.last_plan
                        assert len(plan.partitions) == 2
                        assert plan.placement["left"] != plan.placement["right"]
                        assert plan.decisions.decision("left").rule is Rule.SEARCHED


def test_costs_that_are_none_are_refused(tmp_path):
    (tmp_path / "costs.json").write_text("{}")
    with pytest.raises(dt.errors.InvalidArgumentError, match=r"costs\.json"):
        dt.Session(config=dataclasses.replace(config("auto"), placement_costs=tmp_path / "costs.json"))
    fields = config("auto").to_fields()
    assert dt.ConfigProto.from_fields(fields).placement_costs is None
    with pytest.raises(dt.errors.InvalidArgumentError, match="placement_costs"):
        dt.ConfigProto.from_fields({**fields, "placement_costs": "hello"})
    with pytest.raises(TypeError, match="placement_costs"):
        dt.ConfigProto.from_fields({**fields, "placement_costs": 3})
