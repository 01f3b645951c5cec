"""`TensorArray`, and the functions that go along the first axis: against plain Python, with gradients."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter, interpret as run

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.verify import verify


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g
    verify(g)


AT = np.array([[0.3, -0.7], [1.0, 2.0], [0.5, 0.1]])


def check(build: Callable[[Any], Any], expected: Callable[[np.ndarray], Any], at: np.ndarray = AT) -> None:
    """Values against Python, gradients against differences; with a first size that is known, and that is not."""
    for dims in (at.shape, (None, *at.shape[1:])):
        x = tf.placeholder(tf.float64, dims)
        y = build(x)
        (grad,) = tf.gradients(y, x)
        interpreter = Interpreter(x.graph, check=True)
        np.testing.assert_allclose(interpreter.run(y, {x: at}), expected(at))
        found = np.zeros_like(at)
        for i in np.ndindex(at.shape):
            step = np.zeros_like(at)
            step[i] = 1e-6
            found[i] = (np.sum(expected(at + step)) - np.sum(expected(at - step))) / 2e-6
        np.testing.assert_allclose(interpreter.run(grad, {x: at}), found, 1e-5, 1e-8)


def f(s: Any, v: Any) -> Any:
    return np.tanh(s) * v


def g(s: Any, v: Any) -> Any:
    return tf.tanh(s) * v


def test_map_fn() -> None:
    check(lambda x: tf.map_fn(lambda v: tf.tanh(v) * v, x), lambda x: np.tanh(x) * x)


def test_map_fn_of_several_to_another_type() -> None:
    x, y = tf.constant([1, 2, 3]), tf.constant([[1.0], [2.0], [4.0]])
    half, both = tf.map_fn(
        lambda e: (tf.cast(e[0], tf.float32) / 2.0, e[1] * 2.0), (x, y), dtype=(tf.float32, tf.float32)
    )
    assert half.shape.as_list() == [3]
    assert both.shape.as_list() == [3, 1]
    assert run(half).tolist() == [0.5, 1.0, 1.5]
    assert run(both).tolist() == [[2.0], [4.0], [8.0]]


def test_map_fn_in_map_fn() -> None:
    check(
        lambda x: tf.map_fn(lambda v: tf.map_fn(lambda u: u * u * tf.reduce_sum(v), v), x),
        lambda x: x * x * x.sum(1, keepdims=True),
    )


def test_map_fn_of_nothing() -> None:
    assert run(tf.map_fn(lambda v: v * 2.0, tf.zeros([0, 2]))).shape == (0, 2)


def test_map_fn_with_a_branch() -> None:
    check(
        lambda x: tf.map_fn(lambda v: tf.cond(v[1] > 0.0, lambda: v * v, lambda: tf.exp(v)), x),
        lambda x: np.array([v * v if v[1] > 0 else np.exp(v) for v in x]),
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse: bool) -> None:
    def expected(x: np.ndarray) -> Any:
        rows = list(itertools.accumulate(x[::-1] if reverse else x, f))
        return np.array(rows[::-1] if reverse else rows)

    check(lambda x: tf.scan(g, x, reverse=reverse), expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_from_an_initializer(reverse: bool) -> None:
    def expected(x: np.ndarray) -> Any:
        rows = list(itertools.accumulate(x[::-1] if reverse else x, f, initial=x[0] * 2))[1:]
        return np.array(rows[::-1] if reverse else rows)

    check(lambda x: tf.scan(g, x, initializer=x[0] * 2.0, reverse=reverse), expected)


def test_scan_of_a_structure() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    total, product = tf.scan(lambda s, v: (s[0] + v, s[1] * v), x, initializer=(0.0, 1.0))
    assert run(total).tolist() == [1.0, 3.0, 6.0]
    assert run(product).tolist() == [1.0, 2.0, 6.0]


def test_folds() -> None:
    check(lambda x: tf.foldl(g, x), lambda x: functools.reduce(f, x))
    check(lambda x: tf.foldr(g, x), lambda x: functools.reduce(f, x[::-1]))
    check(lambda x: tf.foldl(g, x, initializer=x[1]), lambda x: functools.reduce(f, x, x[1]))
    check(lambda x: tf.foldr(g, x, initializer=x[1]), lambda x: functools.reduce(f, x[::-1], x[1]))


def test_scan_is_made_of_tensorflow_s_nodes(graph: tf.Graph) -> None:
    tf.scan(lambda s, v: s + v, tf.placeholder(tf.float32, [4, 2], name="a"))
    assert {
        "scan/TensorArray", "scan/TensorArray_1", "scan/while/TensorArrayReadV3", "scan/while/add_1",
        "scan/TensorArrayUnstack/TensorArrayScatter/TensorArrayScatterV3",
        "scan/while/TensorArrayWrite/TensorArrayWriteV3", "scan/TensorArrayStack/TensorArrayGatherV3",
    } <= {n.name for n in graph.nodes}  # fmt: skip


# --- lists --------------------------------------------------------------------------------------------------


def test_what_is_written_is_read() -> None:
    a = tf.TensorArray(tf.float32, 3, clear_after_read=False).write(0, [1.0, 2.0]).write(2, [5.0, 6.0])
    a = a.write(1, [3.0, 4.0])
    assert a.element_shape.as_list() == [2]
    assert run(a.read(2)).tolist() == [5.0, 6.0]
    assert run(a.stack()).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert run(a.gather([2, 0])).tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert run(a.concat()).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert run(a.size()) == 3


def test_rows_are_dealt_out() -> None:
    a = tf.TensorArray(tf.int32, 2, infer_shape=False).split([1, 2, 3], [1, 2])
    assert run(a.read(1)).tolist() == [2, 3]
    b = tf.TensorArray(tf.int32, 3).unstack([[1], [2], [3]])
    assert run(b.read(2)).tolist() == [3]


def test_what_is_known_of_elements() -> None:
    """All have the shape of one that was written, also those that never were; pieces may have one length."""
    a = tf.TensorArray(tf.float32, 3, clear_after_read=False).write(0, tf.placeholder_with_default([1.0, 2.0], None))
    assert run([a.read(1), a.stack()])[0].tolist() == [0.0, 0.0]
    lengths = tf.constant([2, 2], tf.int64)
    assert tf.TensorArray(tf.int32, 2).split([1, 2, 3, 4], lengths).read(0).shape.as_list() == [2]
    with pytest.raises(ValueError, match="Inconsistent shapes"):
        tf.TensorArray(tf.float32, 2, element_shape=[None, 2], infer_shape=False).write(0, [[1.0, 2.0, 3.0]])


def test_a_list_may_grow() -> None:
    a = tf.TensorArray(tf.int32, 0, dynamic_size=True)
    _, a = tf.while_loop(lambda i, a: i < 4, lambda i, a: (i + 1, a.write(i, i * i)), [0, a])
    assert run([a.stack(), a.size()])[0].tolist() == [0, 1, 4, 9]
    assert run(a.size()) == 4


def test_each_step_has_its_own_list(graph: tf.Graph) -> None:
    x = tf.placeholder(tf.float32, [])
    y = tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * 2.0).stack()
    interpreter = Interpreter(graph)
    assert interpreter.run(y, {x: 1.0}).tolist() == [1.0, 2.0]
    assert interpreter.run(y, {x: 3.0}).tolist() == [3.0, 6.0]


def test_gradients_of_lists() -> None:
    def joined(x: Any) -> Any:
        a = tf.TensorArray(tf.float64, 3, clear_after_read=False, infer_shape=False).split(x[:, 0], [2, 1, 0])
        return tf.concat([a.read(0) * 3.0, a.concat() ** 2.0], 0)

    check(joined, lambda x: np.concatenate([x[:2, 0] * 3, x[:, 0] ** 2]))

    def several_reads(x: Any) -> Any:
        a = tf.TensorArray(tf.float64, 2, clear_after_read=False).write(0, x).write(1, x * x)
        return a.read(0) * a.read(1) + a.read(1) + a.stack()[0]

    check(several_reads, lambda x: x * x * x + x * x + x)


def test_an_element_that_was_not_used_has_no_gradient() -> None:
    x = tf.constant(2.0)
    y = tf.TensorArray(tf.float32, 2).write(0, x).write(1, x * x).read(0)
    assert run(tf.gradients(y, x)[0]) == 1.0


def test_two_calls_of_gradients_do_not_meet(graph: tf.Graph) -> None:
    x = tf.constant([1.0, 2.0])
    y = tf.map_fn(lambda v: v * v, x)
    first, second = tf.gradients(y, x)[0], tf.gradients(y * 3.0, x)[0]
    found = run([first, second])
    assert found[0].tolist() == [2.0, 4.0]
    assert found[1].tolist() == [6.0, 12.0]


def test_refusals() -> None:
    a = tf.TensorArray(tf.float32, 2)
    slopes = tf.TensorArray(tf.float32, 2, infer_shape=False).grad("g")
    for bad, message in (
        (a.write(2, 1.0).read(0), r"Tried to write to index 2 but array is not resizeable and size is: 2"),
        (a.write(0, 1.0).write(0, 2.0).read(0), "index 0 because it has already been written to"),
        (slopes.write(0, 1.0).write(0, [1.0]).read(0), r"index 0 because the existing shape is \(\) but .* is \(1,\)"),
        (a.unstack([1.0, 2.0, 3.0]).read(0), "Tried to write to index 2"),
        (a.write(0, 1.0).read(5), "Tried to read from index 5 but size is: 2"),
        (tf.TensorArray(tf.float32, 2).read(0), "never written, and its shape is not known"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            run(bad)
    once = tf.TensorArray(tf.float32, 1).write(0, 1.0)
    with tf.control_dependencies([once.read(0)]):
        twice = tf.identity(once.read(0))
    with pytest.raises(InvalidArgumentError, match="clear_after_read"):
        run(twice)
    with pytest.raises(ValueError, match=r"Inconsistent shapes: saw \(2,\) but expected \(1,\)"):
        tf.TensorArray(tf.float32, 2).write(0, [1.0]).write(1, [1.0, 2.0])
    with pytest.raises(TypeError, match="float32"):
        tf.TensorArray(tf.float32, 2).write(0, tf.constant(1))
    with pytest.raises(ValueError, match="scalar"):
        tf.map_fn(lambda v: v, tf.constant(1.0))
    with pytest.raises(ValueError, match="3 and 2 elements"):
        tf.map_fn(lambda v: v[0], (tf.zeros([3]), tf.zeros([2])), dtype=tf.float32)
    with pytest.raises((TypeError, ValueError), match="the result of fn"):
        tf.map_fn(lambda v: (v, v), tf.zeros([3]))


def test_a_list_lives_beside_its_first_value(graph: tf.Graph) -> None:
    with tf.device("/job:ps/task:1"):
        x = tf.placeholder(tf.float32, [2], name="x")
    with tf.device("/job:worker"):
        tf.TensorArray(tf.float32, 2).unstack(x, name="u")
    assert graph.get_operation_by_name("TensorArray").device == ""
    scatter = graph.get_operation_by_name("u/TensorArrayScatter/TensorArrayScatterV3")
    assert scatter.device == "/job:ps/task:1"
    assert scatter.colocation == ("x",)
