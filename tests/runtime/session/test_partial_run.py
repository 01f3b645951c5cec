"""Partial runs: a step in several calls is the step in one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dovetail as tf


@pytest.fixture(params=["in this process", "on a server"])
def session(request: pytest.FixtureRequest) -> Iterator[tf.Session]:
    with tf.Graph().as_default():
        if request.param == "in this process":
            with tf.Session() as session:
                yield session
        else:
            with tf.train.Server.create_local_server() as server, tf.Session(server.target) as session:
                yield session


def test_feeds_and_fetches_come_in_several_calls(session: tf.Session) -> None:
    a, b, c = (tf.placeholder(tf.float32, name=n) for n in "abc")
    total = tf.add(a, b, name="total")
    product = tf.multiply(total, c, name="product")
    handle = session.partial_run_setup([total, {"p": product}, product.op], [a, b, c])
    other = session.partial_run_setup(product, ["a:0", b, c])
    assert session.partial_run(handle, {"t": (total,)}, {a: 1, b: 2}) == {"t": (3,)}
    assert session.partial_run(other, product, {a: 2, b: 2, c: 2}) == 8
    assert session.partial_run(handle, ["product:0", product.op], {c: 17}) == [51, None]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Must run 'setup' before performing partial runs!"):
        session.partial_run(handle, product)


def test_each_node_runs_once(session: tf.Session) -> None:
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    queue = tf.FIFOQueue(5, tf.float32, shapes=[[2]])
    v = tf.Variable([0.0, 0.0])
    session.run([v.initializer, queue.enqueue_many([[[1.0, 1.0], [2.0, 2.0]]])])
    counted = tf.assign_add(v, x)
    first = counted + queue.dequeue() + tf.random_uniform([2])
    with tf.control_dependencies([y]):
        second = first * y + counted
    handle = session.partial_run_setup([first, second], [x, y])
    seen = session.partial_run(handle, first, {x: [1, 2]})
    session.run(v.assign([100.0, 100.0]))  # what the first call has seen does not change
    np.testing.assert_allclose(session.partial_run(handle, second, {y: [3, 4]}), seen * [3, 4] + [1, 2], rtol=1e-6)
    assert session.run(queue.size()) == 1
    handle = session.partial_run_setup([counted, v.initializer], [x])
    assert session.partial_run(handle, v.initializer) is None
    assert session.partial_run(handle, counted, {x: [5, 6]}).tolist() == [5, 6]


def test_what_the_caller_writes_does_not_change_later_calls(session: tf.Session) -> None:
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    first = x * 2.0
    second = first + x + y
    handle = session.partial_run_setup([first, second], [x, y])
    batch = np.array([1.0, 2.0], np.float32)
    found = session.partial_run(handle, first, {x: batch})
    found[:] = batch[:] = 100.0
    assert session.partial_run(handle, second, {y: batch}).tolist() == [103, 106]


def test_branches_and_loops_are_computed_again_from_what_they_had(session: tf.Session) -> None:
    p, x, y = tf.placeholder(tf.bool), tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    v = tf.Variable(3.0)
    session.run(v.initializer)
    inside: list[Any] = []

    def taken() -> Any:
        inside.append(x * v)
        return inside[0]

    chosen = tf.cond(p, taken, lambda: x)
    _, looped = tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2.0), [0, chosen])
    later = tf.add_n([inside[0], looped, y])
    handle = session.partial_run_setup([chosen, looped, later], [p, x, y])
    assert session.partial_run(handle, [chosen, looped], {p: True, x: 5}) == [15, 120]
    session.run(v.assign(0.0))
    assert session.partial_run(handle, later, {y: 1}) == 15 + 120 + 1


def test_what_would_be_done_twice_is_refused_before_anything_runs(session: tf.Session) -> None:
    p, y = tf.placeholder(tf.bool), tf.placeholder(tf.float32)
    v = tf.Variable(0.0)
    session.run(v.initializer)
    inside: list[Any] = []

    def taken() -> Any:
        inside.append(tf.identity(tf.assign_add(v, 1.0)))
        return inside[0]

    chosen = tf.cond(p, taken, lambda: tf.constant(0.0))
    later = inside[0] + y
    handle = session.partial_run_setup([chosen, later], [p, y])
    assert session.partial_run(handle, chosen, {p: True}) == 1
    with pytest.raises(tf.errors.UnimplementedError, match=r"AssignAdd.*created at .*two calls of a partial run"):
        session.partial_run(handle, later, {y: 1})
    assert session.run(v) == 1


def test_what_was_not_agreed_on(session: tf.Session) -> None:
    a, b = tf.placeholder(tf.float32, name="a"), tf.placeholder(tf.float32, name="b")
    s, d = tf.add(a, b, name="s"), tf.multiply(a, 2.0, name="d")
    invalid = tf.errors.InvalidArgumentError
    with pytest.raises(invalid, match="at least one target"):
        session.partial_run_setup([], [a])
    handle = session.partial_run_setup([s, d], [a, b])
    with pytest.raises(invalid, match="The feed d:0 was not specified in partial_run_setup"):
        session.partial_run(handle, s, {d: 1})
    with pytest.raises(invalid, match="The fetch b:0 was not specified in partial_run_setup"):
        session.partial_run(handle, b, {b: 1})
    with pytest.raises(
        invalid, match="Fetch s:0 can't be computed from the feeds that have been fed so far. It needs b:0"
    ):
        session.partial_run(handle, s, {a: 1})
    assert session.partial_run(handle, d, {a: 1}) == 2  # the wrong calls have changed nothing
    with pytest.raises(invalid, match="The feed a:0 has already been fed"):
        session.partial_run(handle, s, {a: 1, b: 1})
    with pytest.raises(invalid, match="The fetch d:0 has already been fetched"):
        session.partial_run(handle, [s, d], {b: 1})
    assert session.partial_run(handle, s, {b: 1}) == 2
    with pytest.raises(invalid, match="setup"):
        session.partial_run("nonsense", s)


def test_an_output_that_will_be_fed_is_not_computed_instead(session: tf.Session) -> None:
    """Its node has run for the sake of its other output."""
    x = tf.placeholder(tf.float32, [2])
    a, b = tf.unstack(x)
    first, second = b * 2.0, a * 2.0
    handle = session.partial_run_setup([first, second], [x, a])
    assert session.partial_run(handle, first, {x: [1, 2]}) == 4
    with pytest.raises(tf.errors.InvalidArgumentError, match="can't be computed from the feeds that"):
        session.partial_run(handle, second)
    assert session.partial_run(handle, second, {a: 5}) == 10


def test_an_error_of_a_step_ends_it(session: tf.Session) -> None:
    which = tf.placeholder(tf.int32)
    picked = tf.gather(tf.constant([1.0, 2.0]), which)
    handle = session.partial_run_setup([picked, picked * 2.0], [which])
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        session.partial_run(handle, picked, {which: 7})
    with pytest.raises(tf.errors.InvalidArgumentError, match="setup"):
        session.partial_run(handle, picked)
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.partial_run_setup(picked, [which])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_cut_gives_what_one_run_gives(data: st.DataObject) -> None:
    """Random sums of earlier tensors, some of them fed; fetched one after another, in an order in which feeds suffice."""
    with tf.Graph().as_default(), tf.Session() as session:
        tensors: list[Any] = []
        feeds: dict[Any, float] = {}
        needs: list[set[Any]] = []
        for _ in range(data.draw(st.integers(3, 12))):
            if not tensors or data.draw(st.booleans()):
                tensors.append(tf.placeholder(tf.float64, []))
                feeds[tensors[-1]] = float(len(tensors))
                needs.append({tensors[-1]})
                continue
            picked = data.draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=3))
            before = [tensors[i] for i in data.draw(st.lists(st.integers(0, len(tensors) - 1), max_size=2))]
            with tf.control_dependencies(before):
                tensors.append(tf.add_n([tensors[i] for i in picked]) * 2.0)
            used = [needs[tensors.index(t)] for t in before] + [needs[i] for i in picked]
            needs.append(set().union(*used))
        expected = session.run(tensors, feeds)
        order = data.draw(st.permutations(range(len(tensors))))
        handle = session.partial_run_setup(tensors, list(feeds))
        fed: set[Any] = set()
        for i in order:
            now = {t: feeds[t] for t in needs[i] - fed}
            fed |= set(now)
            assert session.partial_run(handle, tensors[i], now) == expected[i]
