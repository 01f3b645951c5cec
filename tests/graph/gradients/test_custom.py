"""Gradients that programs define: for functions, for the nodes of a block; and second derivatives."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf

VALUES = np.asarray([-2.0, 0.5, 3.0], np.float32)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(fetches, feeds=None):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)


@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)
    return tf.math.log(1 + e), lambda dy: dy * (1 - 1 / (1 + e))


def test_a_function_says_its_own_gradient():
    x = tf.constant([100.0, 0.0])
    y = log1pexp(x)
    (g,) = tf.gradients(y, [x])
    np.testing.assert_allclose(run(g), [1.0, 0.5])  # without it, the first were NaN


def test_several_arguments_and_results():
    @tf.custom_gradient
    def both(a, b):
        return [a + b, a * b], lambda da, db: (10.0 * da, 100.0 * db)

    a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
    added, times = both(a, b)
    np.testing.assert_array_equal(run([added, times]), [[4.0, 6.0], [3.0, 8.0]])
    np.testing.assert_array_equal(run(tf.gradients([added, times], [a, b])), [[10.0, 10.0], [100.0, 100.0]])
    np.testing.assert_array_equal(run(tf.gradients(added, [a, b])), [[10.0, 10.0], [0.0, 0.0]])


@pytest.mark.parametrize("use_resource", [False, True])
def test_variables_that_the_function_reads_get_gradients_too(use_resource):
    v = tf.get_variable("v", initializer=2.0, use_resource=use_resource)
    x = tf.constant(3.0)

    @tf.custom_gradient
    def scaled(x):
        def grad(dy, variables):
            assert variables == [v]
            return dy * 5.0, [dy * 7.0]

        return v * x, grad

    y = scaled(x)
    assert run([y, *tf.gradients(y * 2.0, [x, v])]) == [6.0, 10.0, 14.0]

    @tf.custom_gradient
    def forgetful(x):
        return v * x, lambda dy: dy

    with pytest.raises(TypeError, match=r"reads the variables \['v'\]"):
        forgetful(x)


def test_a_wrong_number_of_gradients_is_told():
    @tf.custom_gradient
    def wrong(a, b):
        return a + b, lambda dy: dy

    a = tf.constant(1.0)
    with pytest.raises(ValueError, match="wrong has 1 results for 2 arguments"):
        tf.gradients(wrong(a, a), [a])


def test_inside_a_loop():
    x = tf.constant(1.5)
    _, y = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, log1pexp(v)), [0, x])
    (g,) = tf.gradients(y, [x])
    at, slope = 1.5, 1.0
    for _ in range(3):
        at, slope = np.log1p(np.exp(at)), slope / (1 + np.exp(-at))
    np.testing.assert_allclose(run([y, g]), [at, slope], rtol=1e-6)


@tf.RegisterGradient("StraightThrough")
def _straight_through(op, grad):
    assert op.type == "Sign" and op.inputs[0].shape == op.outputs[0].shape
    return grad


def test_nodes_of_a_block_have_another_gradient(graph):
    x = tf.constant(VALUES)
    with graph.gradient_override_map({"Sign": "StraightThrough"}):
        inside = tf.sign(x)
    outside = tf.sign(x)
    np.testing.assert_array_equal(run(tf.gradients(inside * 3.0, [x])[0]), [3.0, 3.0, 3.0])
    np.testing.assert_array_equal(run(tf.gradients(outside * 3.0, [x])[0]), [0.0, 0.0, 0.0])


tf.NotDifferentiable("NothingPasses")


def test_a_block_may_let_nothing_pass(graph):
    x = tf.constant(VALUES)
    with graph.gradient_override_map({"Square": "NothingPasses"}):
        stopped = tf.square(x)
    assert tf.gradients(stopped, [x]) == [None]
    np.testing.assert_array_equal(run(tf.gradients(stopped * x, [x])[0]), VALUES**2)


def test_names_are_looked_up_at_once(graph):
    with pytest.raises(LookupError, match="under the name 'Nobody'"), graph.gradient_override_map({"Sign": "Nobody"}):
        pass
    with pytest.raises(ValueError, match="registered already"):
        tf.NoGradient("NothingPasses")


def test_second_derivatives():
    x, w = tf.constant(VALUES), tf.constant([[1.0, 2.0], [3.0, 4.0]])
    cubes, squares = tf.hessians(tf.reduce_sum(x**3) + tf.reduce_sum(tf.matmul(w, w)), [x, w])
    assert cubes.shape.as_list() == [3, 3] and squares.shape.as_list() == [2, 2, 2, 2]
    found, matrix = run([cubes, squares])
    np.testing.assert_allclose(found, np.diag(6 * VALUES))
    # d2/dw_ij dw_kl of the sum over a, b, m of w_am w_mb: (j == k) + (l == i)
    eye = np.eye(2)
    np.testing.assert_allclose(
        matrix, np.einsum("jk,i,l->ijkl", eye, [1, 1], [1, 1]) + np.einsum("li,j,k->ijkl", eye, [1, 1], [1, 1])
    )
    with pytest.raises(ValueError, match="do not depend"):
        tf.hessians(tf.constant(1.0), x)


def test_variables_that_the_function_makes_get_gradients_too():
    @tf.custom_gradient
    def f(x):
        y = tf.layers.dense(x, 3, use_bias=False)
        return y, lambda dy, variables=None: (tf.zeros_like(x), [tf.ones_like(v) for v in variables])

    x = tf.ones([2, 4])
    with tf.variable_scope("f", use_resource=True):
        y = f(x)
    (kernel,) = tf.trainable_variables()
    of_x, of_kernel = run(tf.gradients(y, [x, kernel]))
    assert not of_x.any()
    assert of_kernel.tolist() == np.ones((4, 3)).tolist()


def test_gradients_pass_a_function():
    x = tf.constant(VALUES)
    (g,) = tf.gradients(tf.grad_pass_through(tf.round)(x) ** 2, x)
    np.testing.assert_array_equal(run(g), 2 * np.round(VALUES))


def test_a_function_is_run_again_for_its_gradient(graph):
    v = tf.get_variable("v", initializer=2.0, use_resource=True)
    x = tf.constant(VALUES)
    y = tf.recompute_grad(lambda x: tf.exp(v * x))(x)
    before = len([n for n in graph.get_operations() if n.type == "Exp"])
    of_x, of_v = tf.gradients(y, [x, v])
    assert len([n for n in graph.get_operations() if n.type == "Exp"]) == before + 1
    found = run([of_x, of_v])
    np.testing.assert_allclose(found[0], 2 * np.exp(2 * VALUES), rtol=1e-5)
    np.testing.assert_allclose(found[1], np.sum(VALUES * np.exp(2 * VALUES)), rtol=1e-5)


def test_a_function_may_have_any_name():
    @tf.custom_gradient
    def _doubled(x):
        return 2 * x, lambda dy: 5 * dy

    x = tf.constant(1.0)
    assert run(tf.gradients(_doubled(x), x)) == [5.0]
