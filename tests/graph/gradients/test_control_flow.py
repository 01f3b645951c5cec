"""Gradients through branches and loops: against differences, and what is special about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter

import dovetail as tf
from dovetail.graph.core.verify import verify


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g
    verify(g)


def differences(y: Any, x: Any, at: np.ndarray) -> np.ndarray:
    """The derivatives of the sum of y, by central differences."""
    interpreter = Interpreter(y.graph, check=True)
    found = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[i] = 1e-6
        found[i] = (np.sum(interpreter.run(y, {x: at + step})) - np.sum(interpreter.run(y, {x: at - step}))) / 2e-6
    return found


def check(build: Callable[[Any], Any], at: Any = (0.3, -0.7), **arguments: Any) -> Any:
    """Compare the gradient of what `build` makes with differences."""
    at = np.array(at, np.float64)
    x = tf.placeholder(tf.float64, at.shape)
    y = build(x)
    (grad,) = tf.gradients(y, x, **arguments)
    found = Interpreter(x.graph, check=True).run(grad, {x: at})
    np.testing.assert_allclose(found, differences(y, x, at), 1e-5, 1e-8)
    return grad


def loop(n: int, body: Callable[[Any], Any], x: Any, **arguments: Any) -> Any:
    return tf.while_loop(lambda i, v: i < n, lambda i, v: (i + 1, body(v)), [0, x], **arguments)[1]


BRANCHES: dict[str, Callable[[Any], Any]] = {
    "taken": lambda x: tf.cond(x[0] > 0.0, lambda: tf.tanh(x) * x, lambda: tf.exp(x)),
    "other": lambda x: tf.cond(x[0] < 0.0, lambda: tf.tanh(x) * x, lambda: tf.exp(x)),
    "x comes out as it is": lambda x: tf.cond(x[0] < 0.0, lambda: x * x, lambda: x),
    "used in one branch only": lambda x: (
        tf.sin(x) + tf.cond(x[0] < 0.0, lambda: x * x, lambda: tf.ones([2], tf.float64))
    ),
    "nested": lambda x: tf.cond(
        x[0] > 0.0, lambda: tf.cond(x[1] > 0.0, lambda: x * x, lambda: tf.exp(x * 2.0)) * x, lambda: x
    ),
    "several results": lambda x: tf.add_n(
        list(tf.cond(x[0] > 0.0, lambda: (x * x, tf.sin(x)), lambda: (tf.cos(x), x)))
    ),
    "case": lambda x: tf.case([(x[0] < 0.0, lambda: x), (x[1] < 0.0, lambda: x * x * x)], default=lambda: -x),
    "a loop in a branch": lambda x: tf.cond(x[0] > 0.0, lambda: loop(3, lambda v: tf.tanh(v * x), x), lambda: x),
    "a loop in the other branch": lambda x: tf.cond(
        x[0] < 0.0, lambda: loop(3, lambda v: tf.tanh(v * x), x), lambda: x * x
    ),
}

LOOPS: dict[str, Callable[[Any], Any]] = {
    "invariant": lambda x: loop(3, lambda v: tf.tanh(v * x), x),
    "never runs": lambda x: loop(0, lambda v: tf.tanh(v * x), x),
    "only the invariant": lambda x: loop(3, lambda v: v * x, tf.ones([2], tf.float64)),
    "only the variable": lambda x: loop(3, lambda v: tf.sin(v) * v, x),
    "the invariant comes out": lambda x: loop(2, lambda v: x, x * x),
    "as long as it takes": lambda x: tf.while_loop(lambda v: tf.reduce_sum(v * v) < 9.0, lambda v: v * 1.5 + x, [x]),
    "two variables": lambda x: tf.while_loop(
        lambda i, v, w: i < 4, lambda i, v, w: (i + 1, w * x, tf.sin(v) + tf.cast(i, tf.float64) * v), [0, x, x * x]
    )[1],
    "a branch inside": lambda x: loop(4, lambda v: tf.cond(v[0] > 0.1, lambda: v * x, lambda: tf.exp(v) + x), x),
    "nested": lambda x: loop(3, lambda v: loop(2, lambda u: tf.sin(u) * x, v) * v, x),
    "nested, of its own length": lambda x: tf.while_loop(
        lambda i, v: i < 3,
        lambda i, v: (i + 1, tf.while_loop(lambda j, u: j <= i, lambda j, u: (j + 1, tf.sin(u) * x + v), [0, v])[1]),
        [0, x],
    )[1],
    "a branch in a loop in a loop": lambda x: loop(
        2, lambda v: loop(2, lambda u: tf.cond(u[0] > 0.2, lambda: u * x, lambda: u + v), v), x
    ),
    "a loop in a branch in a loop": lambda x: loop(
        3, lambda v: tf.cond(v[0] > 0.2, lambda: loop(2, lambda u: u * x, v), lambda: v + x), x
    ),
    "limited": lambda x: loop(9, lambda v: tf.tanh(v * x), x, maximum_iterations=3),
    "matrices": lambda x: loop(3, lambda m: tf.matmul(m, tf.linalg.diag(x)), tf.linalg.diag(x)),
    "what the head makes": lambda x: _head(x),
}


def _head(x: Any) -> Any:
    made: list[Any] = []

    def again(v: Any) -> Any:
        made.append(tf.exp(v))
        return tf.reduce_sum(made[0]) < 8.0

    return tf.while_loop(again, lambda v: v + 0.5 * made[0] * x * x, [x])


@pytest.mark.parametrize("name", BRANCHES)
def test_branches(name: str) -> None:
    check(BRANCHES[name])


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("colocate", [False, True])
def test_loops(name: str, colocate: bool) -> None:
    check(LOOPS[name], colocate_gradients_with_ops=colocate)


def test_a_shape_may_vary() -> None:
    def build(x: Any) -> Any:
        def body(i: Any, v: Any) -> Any:
            return i + 1, tf.concat([v, tf.sin(v)], 0)

        shapes = [tf.TensorShape([]), tf.TensorShape([None])]
        return tf.while_loop(lambda i, v: i < 3, body, [0, x], shape_invariants=shapes)[1]

    check(build)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_a_variable_used_in_every_iteration(graph: tf.Graph, resource: bool, rows: bool) -> None:
    v = tf.get_variable("v", initializer=np.array([[1.0, 2.0], [3.0, 4.0]]), use_resource=resource)

    def body(i: Any, s: Any) -> Any:
        row = tf.gather(v, [i, i]) if rows else tf.slice(v, [i, 0], [1, 2])
        return i + 1, s + tf.reduce_sum(row * row)

    _, s = tf.while_loop(lambda i, s: i < 2, body, [0, tf.constant(0.0, tf.float64)])
    (grad,) = tf.gradients(s, v)
    interpreter = Interpreter(graph)
    interpreter.run(tf.global_variables_initializer())
    times = 4.0 if rows else 2.0
    assert interpreter.run(tf.convert_to_tensor(grad)).tolist() == [[times, 2 * times], [3 * times, 4 * times]]


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_used_in_a_branch(graph: tf.Graph, resource: bool) -> None:
    v = tf.get_variable("v", initializer=2.0, use_resource=resource)
    p = tf.placeholder(tf.bool, [])
    (grad,) = tf.gradients(tf.cond(p, lambda: v * v * v, lambda: tf.constant(1.0)), v)
    interpreter = Interpreter(graph)
    interpreter.run(tf.global_variables_initializer())
    assert interpreter.run(grad, {p: True}) == 12.0
    assert interpreter.run(grad, {p: False}) == 0.0


def test_training_may_be_chosen(graph: tf.Graph) -> None:
    """`minimize` inside a branch, of a loss that itself branches and loops."""
    v = tf.get_variable("v", initializer=3.0)
    p, q = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
    loss = tf.cond(q, lambda: v * v, lambda: loop(2, lambda s: s * v, v)) + v
    train = tf.cond(p, lambda: tf.train.GradientDescentOptimizer(0.5).minimize(loss), tf.no_op)
    interpreter = Interpreter(graph)
    interpreter.run(tf.global_variables_initializer())
    interpreter.run(train, {p: False, q: True})
    assert interpreter.run(v) == 3.0
    interpreter.run(train, {p: True, q: True})
    assert interpreter.run(v) == 3.0 - 0.5 * (2 * 3.0 + 1)
    interpreter.run(train, {p: True, q: False})
    assert interpreter.run(v) == -0.5 - 0.5 * (3 * 0.25 + 1)


def test_gradients_in_a_body(graph: tf.Graph) -> None:
    """A few steps of Newton's method for x^3 = 5, whose derivative is made inside the loop."""

    def body(i: Any, x: Any) -> Any:
        y = x * x * x - 5.0
        (slope,) = tf.gradients(y, x)
        return i + 1, x - y / slope

    _, root = tf.while_loop(lambda i, x: i < 20, body, [0, tf.constant(2.0, tf.float64)])
    np.testing.assert_allclose(Interpreter(graph).run(root), 5 ** (1 / 3))


def test_gradients_in_a_body_through_an_inner_loop_and_branch(graph: tf.Graph) -> None:
    c = tf.constant(0.5, tf.float64)
    slopes: list[Any] = []

    def body(i: Any, x: Any) -> Any:
        y = tf.cond(x > 0.0, lambda: loop(2, lambda u: u * x * c, x), lambda: x)
        slopes.extend(tf.gradients(y, [x, c]))
        return i + 1, x - 0.1 * slopes[0] + slopes[1]

    _, x = tf.while_loop(lambda i, x: i < 3, body, [0, tf.constant(1.0, tf.float64)])
    value = 1.0
    for _ in range(3):
        value = value - 0.1 * (3 * value**2 * 0.25 if value > 0 else 1) + (value**3 * 2 * 0.5 if value > 0 else 0)
    np.testing.assert_allclose(Interpreter(graph).run(x), value)


def test_what_is_not_asked_for_costs_nothing(graph: tf.Graph) -> None:
    """The forward loop alone pushes nothing, though a gradient was built."""
    from dovetail.placer.partition.prune import needed

    x = tf.constant([1.0, 2.0])
    y = loop(3, lambda v: tf.tanh(v * x), x)
    (grad,) = tf.gradients(y, x)
    types = {n.type for n in needed(graph, [y])}
    assert not types & {"StackV2", "StackPushV2", "ControlTrigger"}
    assert {"StackV2", "StackPushV2", "StackPopV2"} <= {n.type for n in needed(graph, [grad])}


def test_no_back_prop_no_gradient() -> None:
    x = tf.constant([1.0, 2.0])
    y = loop(3, lambda v: v * x, x, back_prop=False)
    assert tf.gradients(y, x) == [None]
    assert tf.gradients(y + x, x) != [None]


def test_stop_gradients_inside(graph: tf.Graph) -> None:
    x = tf.constant(2.0)
    y = loop(3, lambda v: v * tf.stop_gradient(v * x), x)
    (grad,) = tf.gradients(y, x)
    v, slope = 2.0, 1.0
    for _ in range(3):
        held = v * 2.0
        v, slope = v * held, slope * held
    assert Interpreter(graph).run(grad) == slope


def test_integers_between_do_not_matter() -> None:
    check(lambda x: tf.while_loop(
        lambda i, n, v: i < 3, lambda i, n, v: (i + 1, n * 2, v * tf.cast(n, tf.float64) + x), [0, 1, x])[2])  # fmt: skip


def test_second_order_is_refused_where_it_would_be_wrong(graph: tf.Graph) -> None:
    x = tf.constant(2.0)
    (first,) = tf.gradients(loop(3, lambda v: v * x, x), x)
    with pytest.raises(LookupError, match="Second-order gradients through while_loop"):
        tf.gradients(first, x)


def test_second_order_of_branches() -> None:
    def build(x: Any) -> Any:
        y = tf.cond(x[0] > 0.0, lambda: x * x * x, lambda: x)
        return tf.gradients(y, x)[0]

    check(build)


def test_another_loop_s_gradient_inside_a_loop_is_refused() -> None:
    x = tf.constant(2.0)
    y = loop(3, lambda v: v * x, x)
    with pytest.raises(LookupError, match="take them outside"):
        loop(2, lambda v: v + tf.gradients(y, x)[0], x)


def test_the_backward_loop_is_beside_the_forward_loop_where_gradients_are_colocated():
    """Nothing of it is left where `gradients` is called; and a loop on one far task costs no message per iteration."""
    with tf.device("/job:ps"):
        w = tf.get_variable("w", [4, 4])
    with tf.device("/job:worker/task:1"):

        def body(i, h):
            inner = tf.while_loop(lambda j, g: j < 2, lambda j, g: (j + 1, g * 2.0), [0, h])[1]
            return i + 1, tf.cond(i < 1, lambda: tf.tanh(tf.matmul(inner, w)), lambda: inner + h)

        _, h = tf.while_loop(lambda i, h: i < 3, body, [0, tf.ones([2, 4])])
        loss = tf.reduce_sum(h)
    with tf.device("/job:worker/task:0"):
        grads = tf.gradients(loss, [w], colocate_gradients_with_ops=True, name="back")
    made = [n for n in w.graph.nodes if n.name.startswith("back/")]
    assert {n.device for n in made} == {"/job:worker/task:1"}
    plan = tf.place(None, {"ps": 1, "worker": 2}, fetches=grads)
    assert not [c for c in plan.channels if c.loop is not None]


def test_every_client_builds_the_same_backward_loop() -> None:
    def build(count: int) -> list[str]:
        with tf.Graph().as_default() as graph:
            kept = []  # so that nodes lie elsewhere in memory each time
            ws = []
            for i in range(12):
                ws.append(tf.placeholder(tf.float32, [i + 1], name=f"w{i}"))
                kept += [object() for _ in range(count * (i % 3))]
            _, y = tf.while_loop(
                lambda i, y: i < 2, lambda i, y: (i + 1, y + tf.add_n([tf.reduce_sum(w) * y for w in ws])), [0, 1.0]
            )
            tf.gradients(y, ws[::-1])
            return [f"{n.name} {[t.name for t in n.inputs]} {[t.dims for t in n.outputs]}" for n in graph.nodes]

    first = build(0)
    assert all(build(count) == first for count in (50, 500, 5))


def test_weights_of_what_lists_give() -> None:
    """The lists of gradients are found by the call, whatever the weight is made in; calls in one scope have their own."""
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.name_scope("somewhere"):
        weights = tf.constant([1.0, 10.0, 100.0])
        y = tf.map_fn(lambda v: v * v, x)
        first, second = tf.gradients(y, x, name="first"), tf.gradients(y, x, [weights], name="second")
    summed = tf.gradients(tf.scan(lambda a, v: a + v, x), x, grad_ys=weights)
    cell = tf.nn.rnn_cell.BasicRNNCell(1, activation=tf.identity)
    inputs = tf.ones([3, 1, 1])
    outputs, _ = tf.nn.dynamic_rnn(cell, inputs, dtype=tf.float32, time_major=True)
    recurrent = tf.gradients(outputs, inputs, grad_ys=[tf.reshape(weights, [3, 1, 1])])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run([*first, *second, *summed])
        assert [f.tolist() for f in found] == [[2, 4, 6], [2, 40, 600], [111, 110, 100]]
        w, u = session.run(cell.weights[0])[:, 0]
        wanted = [w * (1 + u * (10 + u * 100)), w * (10 + u * 100), w * 100]
        np.testing.assert_allclose(session.run(recurrent)[0][:, 0, 0], wanted, rtol=1e-4)


def test_a_list_that_grows_after_it_was_split() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True).split(x, [1, 2]).write(2, [4.0]).concat()
    (grad,) = tf.gradients(rows * rows, x)
    with tf.Session() as session:
        assert session.run([rows, grad])[1].tolist() == [2.0, 4.0, 6.0]


def test_what_a_loop_stops_is_zero() -> None:
    """As in TensorFlow: None is for what no path leads to."""
    x, y, z = tf.constant(3.0), tf.constant(2.0), tf.constant(1.0)

    def body(x: Any, y: Any, z: Any) -> Any:
        stopped = tf.stop_gradient(tf.square(y))
        return x * x + stopped, stopped, z

    found, *_ = tf.while_loop(lambda x, *_: x < 100.0, body, [x, y, z])
    grads = tf.gradients(found, [x, y, z])
    assert grads[2] is None
    with tf.Session() as session:
        assert session.run(grads[:2]) == [156.0, 0.0]


def test_gradients_in_a_body_by_first_values_are_refused() -> None:
    x = tf.placeholder(tf.float32, [])

    def body(i: Any, v: Any) -> Any:
        return i + 1, tf.gradients(v * 2.0, x)[0]

    with pytest.raises(ValueError, match="Cannot compute gradient inside while loop with respect to .*initial value"):
        tf.while_loop(lambda i, _: i < 3, body, [0, x + 1.0])
