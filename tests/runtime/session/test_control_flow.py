"""Branches and loops give the numbers of plain Python, however they are spread over devices and processes.

Random programs of nested loops and conds are told twice: as a graph, and as Python that computes at once. The
graph is cut, packed, unpacked, lowered and run by steps that are joined here, in every order of events, and
now and then by real processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from joined_steps import CLUSTER, TASKS, Joined
from random_control_flow import FLOAT, Dual, InPython, Program, programs
from reference_interpreter import Interpreter

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.placer.rules.place import place

CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=150, deadline=None, suppress_health_check=CHECKS)
@given(programs(), st.integers(0, 1000), st.booleans())
def test_any_spread_gives_python_s_numbers(program: Program, seed: int, paced: bool) -> None:
    with tf.Graph().as_default() as graph:
        xs, results, init = program.build()
        joined, reference = Joined(graph, paced), Interpreter(graph, check=True)
        joined.run([], targets=[init])
        reference.run(init)
        for feed, expected in zip(program.feeds, program.expected(), strict=True):
            feeds = {x: np.full(program.shape, v, FLOAT) for x, v in zip(xs, feed, strict=True)}
            np.testing.assert_array_equal(reference.run(results, feeds), expected)
            np.testing.assert_array_equal(joined.run(results, feeds, seed=seed), expected)


@settings(max_examples=100, deadline=None, suppress_health_check=CHECKS)
@given(programs(variables=0), st.integers(0, 1000), st.booleans())
def test_any_spread_gives_python_s_derivatives(program: Program, seed: int, colocate: bool) -> None:
    """Reverse mode over devices against forward mode in Python, in one direction."""
    with tf.Graph().as_default() as graph:
        xs, results, _ = program.build(tf.float64)
        grads = tf.gradients(results, xs, colocate_gradients_with_ops=colocate, unconnected_gradients="zero")
        joined, reference = Joined(graph), Interpreter(graph, check=True)
        for feed in program.feeds:
            feeds = {x: np.full(program.shape, v, np.float64) for x, v in zip(xs, feed, strict=True)}
            ways = [i + 1.0 for i in range(len(xs))]
            values = [Dual(v, np.full_like(v, w)) for v, w in zip(feeds.values(), ways, strict=True)]
            expected = sum(r.d.sum() for r in InPython([]).block(program.block, values))
            found = reference.run(grads, feeds)
            np.testing.assert_allclose(sum(w * g.sum() for w, g in zip(ways, found, strict=True)), expected, 1e-9)
            np.testing.assert_array_equal(joined.run(grads, feeds, seed=seed), found)


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with tf.LocalCluster({"a": 1, "b": 1, "c": 1}, device_count={"CPU": 2}) as cluster:
        yield cluster.target("a")


@settings(max_examples=40, deadline=None, suppress_health_check=CHECKS)
@given(programs())
def test_processes_give_python_s_numbers(target: str, program: Program) -> None:
    with tf.Graph().as_default() as graph:
        xs, results, init = program.build()
        config = tf.ConfigProto(isolate_session_state=True)
        with tf.Session(target, graph=graph, config=config) as session:
            session.run(init)
            for feed, expected in zip(program.feeds, program.expected(), strict=True):
                feeds = {x: np.full(program.shape, v, FLOAT) for x, v in zip(xs, feed, strict=True)}
                np.testing.assert_array_equal(session.run(results, feeds), expected)


# --- what crosses -------------------------------------------------------------------------------------------

HERE, THERE = "/job:a/task:0/cpu:0", "/job:b/task:0/cpu:0"


def spread_loop(trips: Any, captured: Any = None) -> Any:
    """x = x + x (+ captured) on another task than the loop's."""

    def body(i: Any, x: Any) -> Any:
        with tf.device(THERE):
            y = tf.add(x, x, name="dbl")
            if captured is not None:
                y = tf.add(y, captured, name="more")
        return i + 1, y

    with tf.device(HERE):
        return tf.while_loop(lambda i, x: i < trips, body, [tf.constant(0), tf.constant(1.0)], name="w")


@pytest.mark.parametrize("initial", [lambda v: v, lambda v: tf.assign_add(v, 2.0)])
def test_a_loop_starts_with_the_value_of_a_variable_of_another_task(initial: Any, target: str) -> None:
    with tf.device(THERE):
        v = tf.Variable(3.0, use_resource=False)
    with tf.device(HERE):
        first = tf.convert_to_tensor(initial(v))
        _, x = tf.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x + x), [tf.constant(0), first])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(v.initializer)
        assert session.run([x, first]) == [16 * session.run(v), session.run(v)]


@pytest.mark.parametrize("trips", [0, 1, 7])
def test_an_iteration_costs_one_message_per_crossing_tensor(trips: int) -> None:
    graph = tf.get_default_graph()
    _, x = spread_loop(trips)
    joined = Joined(graph)
    assert joined.run([x]) == [2.0**trips]
    out, back = TASKS[1], TASKS[0]
    expected = {("w/LoopCond:0", out): trips + 1}
    if trips:
        expected |= {("w/Identity_1:0", out): trips, ("w/dbl:0", back): trips}
    assert joined.messages == expected


def test_what_a_loop_captures_crosses_once() -> None:
    graph = tf.get_default_graph()
    with tf.device(HERE):
        c = tf.random_uniform([], 1.0, 2.0, seed=1)
    _, x = spread_loop(5, c)
    joined = Joined(graph)
    joined.run([x])
    assert joined.messages["w/more/Enter:0", TASKS[1]] + joined.messages[c.name, TASKS[1]] == 1


def test_two_devices_of_a_far_task_share_the_message() -> None:
    graph = tf.get_default_graph()

    def body(x: Any) -> Any:
        with tf.device("/job:b/task:0/cpu:0"):
            a = x * 2.0
        with tf.device("/job:b/task:0/cpu:1"):
            b = x + 1.0
        return a + b

    with tf.device(HERE):
        y = tf.while_loop(lambda x: x < 100.0, body, [tf.constant(1.0)], name="w")
    joined = Joined(graph)
    expected, trips = 1.0, 0
    while expected < 100:
        expected, trips = expected * 3 + 1, trips + 1
    assert joined.run([y]) == [expected]
    assert joined.messages["w/LoopCond:0", TASKS[1]] == trips + 1
    assert joined.messages["w/Identity:0", TASKS[1]] == trips


def test_what_only_the_body_needs_does_not_cross_after_the_last_iteration() -> None:
    graph = tf.get_default_graph()

    seen: list[Any] = []

    def again(i: Any, s: Any) -> Any:
        with tf.device(HERE):
            seen.append(tf.multiply(i, 2, name="twice"))
            return seen[0] < 6

    def body(i: Any, s: Any) -> Any:
        with tf.device(THERE):
            return i + 1, s + tf.cast(seen[0], tf.float32)

    with tf.device(HERE):
        _, s = tf.while_loop(again, body, [0, 0.0], name="w")
    joined = Joined(graph)
    assert joined.run([s]) == [0.0 + 2.0 + 4.0]
    assert joined.messages["w/twice:0", TASKS[1]] == 3
    assert joined.messages["w/LoopCond:0", TASKS[1]] == 4


def test_a_branch_not_taken_is_told_of_and_does_nothing() -> None:
    graph = tf.get_default_graph()
    p = tf.placeholder(tf.bool, [])
    with tf.device(HERE):
        x = tf.constant(3.0)
    with tf.device(THERE):
        v = tf.Variable(0.0, name="v")

    def branch() -> Any:
        with tf.device(THERE), tf.control_dependencies([tf.assign_add(v, 1.0)]):
            return tf.exp(x, name="far")

    y = tf.cond(p, branch, lambda: -x, name="k")
    joined = Joined(graph)
    joined.run([], targets=[v.initializer])
    assert joined.run([y], {p: False}) == [-3.0]
    assert joined.dead["k/far:0"] == 1
    assert joined.run([v]) == [0.0]
    assert joined.run([y], {p: True}) == [np.exp(FLOAT(3.0))]
    assert joined.dead.total() == 0
    assert joined.run([v]) == [1.0]


def test_a_loop_in_a_branch_not_taken_ends_at_once_everywhere() -> None:
    graph = tf.get_default_graph()
    p = tf.placeholder(tf.bool, [])
    y = tf.cond(p, lambda: spread_loop(3)[1], lambda: 0.5, name="k")
    joined = Joined(graph)
    assert joined.run([y], {p: False}) == [0.5]
    assert joined.messages["k/w/LoopCond:0", TASKS[1]] == 1
    assert joined.run([y], {p: True}) == [8.0]


def test_a_loop_variable_lives_beside_its_merge_whatever_its_parts_ask_for() -> None:
    graph = tf.get_default_graph()

    def anywhere(node: Any) -> str:
        return THERE if node.type in ("Enter", "NextIteration", "Exit") else HERE

    with tf.device(anywhere):
        y = tf.while_loop(lambda x: x < 9.0, lambda x: x * 2.0, [1.0], name="w")
    joined = Joined(graph)
    assert place(graph, CLUSTER).device_of("w/Enter").startswith("/job:b")
    assert joined.run([y]) == [16.0]
    assert not joined.messages


# --- errors -------------------------------------------------------------------------------------------------


def test_what_is_inside_a_loop_cannot_be_fetched() -> None:
    graph = tf.get_default_graph()
    tf.while_loop(lambda x: x < 9.0, lambda x: tf.multiply(x, 2.0, name="inner"), [1.0], name="w")
    with tf.Session() as session, pytest.raises(ValueError, match="not fetchable"):
        session.run("w/inner:0")
    inner = graph.get_tensor_by_name("w/inner:0")
    with pytest.raises(InvalidArgumentError, match="one value per iteration"):
        Joined(graph).run([inner])


def test_a_value_from_a_branch_that_was_not_taken_cannot_be_fetched() -> None:
    p = tf.placeholder(tf.bool, [])
    kept: list[Any] = []

    def branch() -> Any:
        kept.append(tf.constant(2.0))
        return kept[0]

    tf.cond(p, branch, lambda: 1.0)
    y = kept[0] * 3.0
    with tf.Session() as session:
        assert session.run(y, {p: True}) == 6.0
        with pytest.raises(InvalidArgumentError, match="a branch that was not taken"):
            session.run(y, {p: False})


def test_an_error_inside_a_loop_names_the_node() -> None:
    x = tf.placeholder(tf.float32, [None, 2])
    y = tf.while_loop(
        lambda i, a: i < 3, lambda i, a: (i + 1, tf.matmul(a, a, name="bad")), [0, x], name="w",
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 2])],
    )  # fmt: skip
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match="node 'w/bad'"):
        session.run(y[1], {x: np.ones((3, 2))})


def test_a_loop_without_end_stops_with_its_step(target: str) -> None:
    with tf.device(THERE):
        y = tf.while_loop(lambda x: x < 1.0, lambda x: x * 0.5, [0.5])
    with tf.Session(target) as session:
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(y, options=tf.RunOptions(timeout_in_ms=300))
        assert session.run(tf.constant(1)) == 1


def test_in_this_process_too_a_loop_without_end_stops_with_its_step() -> None:
    y = tf.while_loop(lambda x: x < 1.0, lambda x: x * 0.5, [0.5])
    with tf.Session() as session:
        with pytest.raises(tf.errors.DeadlineExceededError, match=r"Timed out: this step ran for 0\.1 s"):
            session.run(y, options=tf.RunOptions(timeout_in_ms=100))
        assert session.run(tf.constant(1), options=tf.RunOptions(timeout_in_ms=-1)) == 1
    with (
        tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=100)) as session,
        pytest.raises(tf.errors.DeadlineExceededError),
    ):
        session.run(y)


# --- functions along an axis, and gradients, over devices -----------------------------------------------------


def test_map_and_scan_work_on_far_devices(target: str) -> None:
    x = tf.placeholder(tf.float32, [None, 2])

    def far(v: Any) -> Any:
        with tf.device(THERE):
            return tf.tanh(v) * 2.0

    def further(s: Any, v: Any) -> Any:
        with tf.device("/job:c/task:0/cpu:1"):
            return s * 0.5 + v

    y = tf.scan(further, tf.map_fn(far, x))
    (grad,) = tf.gradients(y, x)
    feed = {x: np.arange(8, dtype=FLOAT).reshape(4, 2) / 8}
    reference = Interpreter(tf.get_default_graph()).run([y, grad], feed)
    with tf.Session(target, config=tf.ConfigProto(kernel_backend="numpy")) as session:  # whose tanh is the reference's
        for mine, theirs in zip(session.run([y, grad], feed), reference, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("read", [lambda w: w.read_value(), lambda w: w], ids=["read_value", "variable"])
def test_a_training_loop_in_the_graph(target: str, read: Callable[[Any], Any]) -> None:
    """All steps of a training run in one step of the session: weights on a ps, the loop on a worker."""
    with tf.device("/job:c"):
        w = tf.get_variable("w", initializer=np.zeros(3, FLOAT))
    goal = tf.constant([1.0, -2.0, 3.0])

    def body(i: Any) -> Any:
        with tf.device(THERE):
            loss = tf.reduce_sum(tf.square(read(w) - goal))
            (grad,) = tf.gradients(loss, w)
        with tf.control_dependencies([tf.assign_sub(w, 0.1 * grad)]):
            return i + 1

    done = tf.while_loop(lambda i: tf.logical_and(i < 50, tf.reduce_sum(w) < 100.0), body, [0])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(w.initializer)
        assert session.run(done) == 50
        np.testing.assert_allclose(session.run(w), [1, -2, 3], atol=1e-3)


def test_a_loop_may_run_ahead_of_those_that_it_sends_to(target: str) -> None:
    """Nothing comes back to the loop's own task, so it never pauses: what it makes must leave all the same."""
    with tf.device("/job:c"):
        total = tf.Variable(0.0, name="total")

    def body(i: Any, n: Any) -> Any:
        with tf.device(THERE):
            change = tf.assign_add(total, tf.cast(i, tf.float32))
        with tf.control_dependencies([change]), tf.device("/job:c"):
            n = tf.identity(n)
        return i + 1, n

    with tf.device(HERE):
        i, n = tf.while_loop(lambda i, n: i < 3000, body, [0, 0])
    with tf.Session(target, config=tf.ConfigProto(isolate_session_state=True)) as session:
        session.run(total.initializer)
        assert session.run([i, n]) == [3000, 0]
        assert session.run(total) == sum(range(3000))
