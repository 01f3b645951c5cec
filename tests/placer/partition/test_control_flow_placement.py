"""Branches and loops in plans: where their steering nodes run, what crosses how often, and that a cut keeps all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.io.serialization import extend_from_bytes, graph_to_bytes
from dovetail.placer.partition.partitioned_graph import Partitioned

WORKER, PS = "/job:worker/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g


def plan_of(fetches: Any) -> Any:
    return tf.place(tf.get_default_graph(), {"ps": 1, "worker": 1}, fetches=fetches)


def spread_loop() -> Any:
    """A loop on a worker, its body on a ps, with a loop inside the body and a branch inside that."""

    def inner(j: Any, v: Any) -> Any:
        with tf.device("/job:worker"):
            return j + 1, tf.cond(v > 3.0, lambda: v - 1.0, lambda: v * 2.0, name="k")

    def body(i: Any, x: Any) -> Any:
        with tf.device("/job:ps"):
            y = tf.add(x, x, name="dbl")
            return i + 1, tf.while_loop(lambda j, v: j < i, inner, [0, y], name="in")[1]

    with tf.device("/job:worker"):
        return tf.while_loop(lambda i, x: i < 3, body, [0, 1.0], name="w")[1]


def test_channels_tell_the_loop_that_they_are_in() -> None:
    plan = plan_of(spread_loop())
    loops = {c.name: c.loop for c in plan.channels}
    assert loops["w/LoopCond:0"] == "w/while_context"
    assert loops["w/Identity_1:0"] == "w/while_context"
    assert "w/in/while_context" in loops.values()
    assert "once per iteration of 'w/while_context'" in plan.explain("w/LoopCond")


def test_a_move_beside_data_is_explained() -> None:
    with tf.device(lambda node: "/job:ps" if node.type in ("Enter", "Exit") else "/job:worker"):
        y = tf.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, [1.0], name="w")
    plan = plan_of(y)
    assert plan.placement["w/Enter"] == plan.placement["w/Exit"] == PS
    assert f"runs on {WORKER}, with its first consumer" in plan.explain("w/Enter")
    assert f"runs on {WORKER}, with its input" in plan.explain("w/Exit")
    assert "runs on" not in plan.explain("w/Merge")
    assert not plan.channels


def test_what_a_loop_captures_crosses_outside_it() -> None:
    with tf.device("/job:ps"):
        c = tf.placeholder(tf.float32, [], name="c") * 1.0
    with tf.device("/job:worker"):
        y = tf.while_loop(lambda x: x < 9.0, lambda x: x * c, [1.0], name="w")
    assert [(ch.name, ch.loop) for ch in plan_of(y).channels] == [("mul:0", None)]


def test_a_cut_keeps_every_node_once_and_loops_well_nested() -> None:
    plan = plan_of(spread_loop())
    check_cut(plan.partitioned)
    nodes = [n for p in plan.partitions.values() for n in p.nodes]
    assert len(nodes) == len(set(nodes))
    sends = [c.id for p in plan.partitions.values() for c in p.sends]
    receives = [c.id for p in plan.partitions.values() for c in p.receives]
    assert sorted(sends) == sorted(receives) == [c.id for c in sorted(plan.channels, key=lambda c: c.id)]


def check_cut(cut: Partitioned) -> None:
    """In each partition loops open and close in order, each with one test; a channel has both ends in one loop."""
    ends: dict[int, list[tuple[str, ...]]] = {}
    for part in cut.partitions.values():
        around: list[str] = []
        tested: list[bool] = []
        for kind, what in part.steps:
            if kind == "loop":
                around.append(what.name)  # type: ignore[union-attr]
                tested.append(False)
            elif kind == "test":
                assert not tested[-1]
                tested[-1] = True
            elif kind == "end":
                assert tested.pop()
                around.pop()
            elif kind != "node":
                ends.setdefault(what.id, []).append(tuple(around))  # type: ignore[union-attr]
        assert not around
    for channel in cut.channels:
        one, other = ends[channel.id]
        assert one == other
        assert (one[-1] if one else None) == channel.loop


def test_plans_with_loops_survive_save_and_load(tmp_path: Any) -> None:
    plan = plan_of(spread_loop())
    path = tmp_path / "loops.plan"
    plan.save(path)
    loaded = type(plan).load(path)
    assert not plan.diff(loaded)
    assert str(loaded) == str(plan)
    assert [str(c) for c in loaded.channels] == [str(c) for c in plan.channels]
    check_cut(loaded.partitioned)


def test_a_loop_variable_that_feeds_something_else_first_is_refused(graph: tf.Graph) -> None:
    """No builder makes such a graph; one from elsewhere may hold anything."""
    attrs = {"frame_name": "f", "is_constant": False, "parallel_iterations": 1, "shape": None}
    with tf.device("/job:worker"):
        enter = graph.create("Enter", [tf.constant(1.0)], attrs).outputs[0]
        with tf.device("/job:ps"):
            graph.create("Identity", [enter])
        merge = graph.create("Merge", [enter, enter])
        again = graph.create("LoopCond", [merge.outputs[0] < 9.0]).outputs[0]
        switch = graph.create("Switch", [merge.outputs[0], again])
        graph.flow.close_loop(merge, graph.create("NextIteration", [switch.outputs[1] * 2.0]))
        graph.create("Exit", [switch.outputs[0]])
    with pytest.raises(InvalidArgumentError, match="feeds something else first"):
        tf.place(graph, {"ps": 1, "worker": 1})


def test_an_extended_session_graph_keeps_its_loops() -> None:
    """The master's copy grows piece by piece; a loop comes whole."""
    graph, copy = tf.get_default_graph(), tf.Graph()
    x = tf.constant(1.0)
    extend_from_bytes(copy, graph_to_bytes(graph))
    y = tf.while_loop(lambda v: v < 9.0, lambda v: v * 2.0, [x], name="w")
    extend_from_bytes(copy, graph_to_bytes(graph, len(copy)))
    assert str(copy) == str(graph)
    assert tf.place(copy, {"ps": 1, "worker": 1}, fetches=y.name).partitions
