"""What programs take from TensorFlow's inside: functions that have no public name."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.compat.tf1.importing import inner


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(*tensors: Any) -> list[Any]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(list(tensors))


def test_a_defined_function_is_part_of_the_graph_and_derived() -> None:
    @inner.Defun(tf.float32, tf.float32, func_name="product")
    def multiplied(x: Any, y: Any) -> Any:
        return x * y

    x = tf.constant(3.0)
    z = multiplied(x, 2)
    assert z.op.name.startswith("product/") and multiplied.__name__ == "multiplied"
    assert run(z, tf.gradients(z, x)[0]) == [6, 2]
    only = inner.Defun(tf.float32)(lambda x: (x + 1,))(x)
    assert run(only) == [4]
    with pytest.raises(ValueError, match="argument"):
        multiplied(x)


def test_gradients_of_a_defined_function_can_be_given() -> None:
    seen = []

    def of_call(op: SimpleNamespace, dy: Any, _: Any) -> list[Any]:
        seen.append((len(op.inputs), len(op.outputs)))
        return [dy * 10 * op.inputs[0], None]

    @inner.Defun(python_grad_func=of_call, shape_func=None)
    def sums(x: Any, y: Any) -> Any:
        return x + y, x - y

    @inner.Defun(tf.float32, grad_func=inner.Defun()(lambda x, dy: dy * (x + 100)), compiled=True)
    def same(x: Any) -> Any:
        return tf.identity(x)

    x, y = tf.constant(3.0), tf.get_variable("y", [], initializer=tf.ones_initializer())
    total, difference = sums(x, y)
    assert tf.gradients(total, y) == [None]
    values = run(total, difference, *tf.gradients(total, x), same(x), *tf.gradients(same(x), x))
    assert values == [4, 2, 30, 3, 103] and set(seen) == {(2, 2)}


def test_a_gradient_may_be_derived_from_what_the_caller_computed() -> None:
    x, y = tf.constant(3.0), tf.get_variable("y", [], initializer=tf.ones_initializer())
    square = x * x * y

    def of_call(op: SimpleNamespace, dy: Any) -> list[Any]:
        before, weight, outside = op.inputs
        return [*tf.gradients(outside, [before, weight], grad_ys=dy), None]

    out = inner.Defun(tf.float32, tf.float32, tf.float32, python_grad_func=of_call)(lambda a, b, c: (tf.identity(c),))
    assert run(*tf.gradients(out(x, y, square), [x, y])) == [6, 9]


def test_rows_are_replaced_added_to_and_subtracted_from() -> None:
    x = tf.zeros([3, 2])
    one, several = inner.alias_inplace_update(x, 1, [5.0, 6.0]), inner.alias_inplace_add(x + 1, [0, 2], tf.ones([2, 2]))
    less = inner.alias_inplace_sub(several, tf.constant(0), [1.0, 2.0])
    found = run(one, several, less)
    np.testing.assert_array_equal(found[0], [[0, 0], [5, 6], [0, 0]])
    np.testing.assert_array_equal(found[1], [[2, 2], [1, 1], [2, 2]])
    np.testing.assert_array_equal(found[2], [[1, 0], [1, 1], [2, 2]])


def test_small_functions() -> None:
    assert inner.uid() < inner.uid()
    assert inner.skip_summary() is False
    assert run(inner.convert_to_tensor([1, 2], tf.float32, as_ref=False))[0].tolist() == [1, 2]
    assert inner.inspect.getfullargspec(lambda a, b: 0).args == ["a", "b"]


def test_a_graph_says_which_loop_or_branch_is_being_built(graph: tf.Graph) -> None:
    seen = []

    def body(i: Any) -> Any:
        seen.append(graph._get_control_flow_context())
        return i + 1

    tf.while_loop(lambda i: i < 3, body, [0])
    assert graph._get_control_flow_context() is None and seen[0] is not None
    assert inner.GetContainingXLAContext(seen[0]) is None
    with tf.name_scope("a"), tf.name_scope("b"):
        assert tf.contrib.framework.get_name_scope() == "a/b"
