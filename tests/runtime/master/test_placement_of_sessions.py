"""When sessions place, and what: the whole graph, unless told to place only what a run needs; state stays where it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.errors import InvalidArgumentError

CPU = "/job:localhost/replica:0/task:0/device:CPU:{}"
TWO_CPUS = {"device_count": {"CPU": 2}}


def pruned(**options: Any) -> tf.ConfigProto:
    return tf.ConfigProto(graph_options=tf.GraphOptions(place_pruned_graph=True), **options)


@pytest.fixture
def good() -> Iterator[tf.Tensor]:
    """A tensor that can be had, in a graph with one that cannot."""
    found = tf.constant(1.0) + 1.0
    with tf.device("/job:moon"):
        tf.negative(found, name="bad")
    yield found


def test_a_node_that_cannot_be_placed_fails_every_run_of_its_session(good: tf.Tensor) -> None:
    with tf.Session() as session:
        for _ in range(2):
            with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation bad") as e:
                session.run(good)
            assert "\nThis step does not need 'bad'" in e.value.message and "place_pruned_graph=True" in e.value.message
        with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation bad") as e:
            session.run("bad:0")
        assert "does not need" not in e.value.message


def test_so_does_one_that_comes_later(fresh_graph: None) -> None:
    x = tf.constant(1.0) + 1.0
    with tf.Session() as session:
        assert session.run(x) == 2.0
        with tf.device("/gpu:7"):
            y = tf.negative(x)
        for fetch in (y, x + 1.0, y):
            with pytest.raises(InvalidArgumentError, match="available devices are"):
                session.run(fetch)
        assert session.run(x) == 2.0  # prepared before, and runs on


def test_only_what_a_run_needs_is_placed_when_asked(good: tf.Tensor) -> None:
    with tf.Session(config=pruned()) as session:
        assert session.run(good) == 2.0
        with pytest.raises(InvalidArgumentError, match="operation bad"):
            session.run("bad:0")
        assert session.run(good + 1.0) == 3.0
        plan = session.plan(good)
        assert good.op.name in plan.placement and "bad" not in plan.placement
        with pytest.raises(KeyError, match="was not placed"):
            plan.explain("bad")


def test_what_is_fed_need_not_be_placed() -> None:
    with tf.device("/job:moon"):
        x = tf.negative(1.0)
    y = x + 1.0
    with tf.Session(config=pruned()) as session:
        assert session.run(y, {x: 4.0}) == 5.0
        with pytest.raises(InvalidArgumentError, match="/job:moon"):
            session.run(y)


def test_an_interactive_session_places_what_a_run_needs(good: tf.Tensor) -> None:
    config = tf.ConfigProto(log_device_placement=True)
    session = tf.InteractiveSession(config=config)
    try:
        assert good.eval() == 2.0
    finally:
        session.close()
    assert config.graph_options.place_pruned_graph is False  # the caller's config is the caller's


def grown() -> tuple[Any, Any, Any]:
    """A variable without a request, and a change of it that asks for the second CPU."""
    v = tf.Variable(np.zeros(2, "float32"), use_resource=True, name="v")
    value = v.read_value()
    with tf.device("/cpu:1"):
        change = v.assign_add([1.0, 1.0], read_value=False)
    return v, value, change


def test_a_variable_without_a_request_goes_where_its_changes_ask_for() -> None:
    v, value, change = grown()
    with tf.Session(config=tf.ConfigProto(**TWO_CPUS)) as session:
        session.run(v.initializer)
        assert session.last_plan.placement["v"] == CPU.format(1)


def test_state_stays_where_a_run_that_needed_less_has_put_it() -> None:
    v, value, change = grown()
    with tf.Session(config=pruned(**TWO_CPUS)) as session:
        session.run(v.initializer)
        assert session.last_plan.placement["v"] == CPU.format(0)
        session.run(change)
        placed = session.last_plan.placement
        assert placed["v"] == placed[change.name] == CPU.format(0)
        (told,) = [r for r in session.last_plan.relaxations if r.node == change.name]
        assert told.requested == "/device:CPU:1" and "takes a reference" in told.reason
        assert session.run(value).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("config", [tf.ConfigProto(**TWO_CPUS), pruned(**TWO_CPUS)], ids=["whole", "pruned"])
def test_state_does_not_move_when_the_graph_grows(config: tf.ConfigProto) -> None:
    v = tf.Variable(np.zeros(2, "float32"), use_resource=True, name="v")
    with tf.Session(config=config) as session:
        session.run(v.initializer)
        assert session.last_plan.placement["v"] == CPU.format(0)
        with tf.device("/cpu:1"):
            change = v.assign_add([1.0, 1.0], read_value=False)
        session.run(change)
        assert session.last_plan.placement["v"] == CPU.format(0)
        assert session.run(v).tolist() == [1.0, 1.0]


def test_where_nodes_are_and_what_they_did_not_get_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with tf.device("/gpu:3"):
        x = tf.negative(1.0, name="x")
    config = tf.ConfigProto(log_device_placement=True, allow_soft_placement=True)
    with caplog.at_level(logging.WARNING), tf.Session(config=config) as session:
        session.run(x)
        told = [r.getMessage() for r in caplog.records]
        assert f"x: (Neg): {CPU.format(0)}" in told
        given_up = "no device matches '/device:GPU:3'; device type and index were dropped"
        assert f"x requested '/device:GPU:3', assigned {CPU.format(0)}: {given_up}" in told
        caplog.clear()
        session.run(tf.negative(x, name="y"))
        assert [r.getMessage() for r in caplog.records] == [f"y: (Neg): {CPU.format(0)}"]  # only what is new


def test_on_a_cluster_too_only_what_a_run_needs_is_placed_when_asked(cluster: tf.LocalCluster, good: tf.Tensor) -> None:
    target = cluster.target("worker", 0)
    for session in (tf.Session(target, config=pruned()), tf.InteractiveSession(target)):
        with session:
            assert session.run(good) == 2.0
            with pytest.raises(InvalidArgumentError, match="operation bad"):
                session.run("bad:0")
    with tf.Session(target) as session, pytest.raises(InvalidArgumentError, match="operation bad"):
        session.run(good)
