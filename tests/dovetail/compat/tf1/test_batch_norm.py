"""Batch normalisation against TensorFlow 1's formulas in NumPy: training, its moving averages, and evaluation by them.

Where images are normalised by the fused op, which is what TensorFlow does unless told `fused=False`, the average of variances takes
the unbiased variance (divided by n - 1); normalising itself takes the biased one. The averages start at mean 0 and variance 1, so
after 59 steps with a decay of 0.997 they have taken 1 - 0.997 ** 59 = 16 % of what the batches say, and 84 % are still the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.contrib import layers as contrib_layers

DECAY, STEPS, RATE, EPSILON = 0.997, 59, 0.01, 1e-4
RNG = np.random.default_rng(0)
BATCHES = RNG.normal(3.0, 5.0, (STEPS, 4, 3, 3, 2)).astype(np.float32)
UNSEEN = RNG.normal(3.0, 5.0, (4, 3, 3, 2)).astype(np.float32)
PULL = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)  # the gradient of the loss with respect to the output


def oracle(batches: Any, unseen: Any, pull: Any, unbiased: bool) -> dict[str, Any]:
    """What the layer holds after a step on each batch, and what it makes of an unseen one."""
    batches, unseen, pull = (np.asarray(v, np.float64) for v in (batches, unseen, pull))
    axes = tuple(range(unseen.ndim - 1))
    n = unseen[..., 0].size
    gamma, beta, mean, variance = np.ones(2), np.zeros(2), np.zeros(2), np.ones(2)
    for x in batches:
        normal = (x - x.mean(axes)) / np.sqrt(x.var(axes) + EPSILON)
        gamma, beta = gamma - RATE * (pull * normal).sum(axes), beta - RATE * pull.sum(axes)
        mean = mean - (1 - DECAY) * (mean - x.mean(axes))
        variance = variance - (1 - DECAY) * (variance - x.var(axes) * (n / (n - 1) if unbiased else 1.0))
    y = (unseen - mean) / np.sqrt(variance + EPSILON) * gamma + beta
    return {"gamma": gamma, "beta": beta, "moving_mean": mean, "moving_variance": variance, "y": y}


def of_layers(fused: bool | None) -> Callable[..., Any]:
    return lambda x, training: tf.layers.batch_normalization(
        x, momentum=DECAY, epsilon=EPSILON, training=training, fused=fused, name="bn", reuse=tf.AUTO_REUSE
    )


def of_contrib(fused: bool | None, **more: Any) -> Callable[..., Any]:
    return lambda x, training: contrib_layers.batch_norm(
        x,
        DECAY,
        scale=True,
        epsilon=EPSILON,
        is_training=training,
        fused=fused,
        scope="bn",
        reuse=tf.AUTO_REUSE,
        **more,
    )


def by_hand(x: Any, training: Any) -> Any:
    """`tf.nn.fused_batch_norm` with averages that the program moves itself."""
    with tf.variable_scope("bn", reuse=tf.AUTO_REUSE):
        gamma, beta = tf.get_variable("gamma", initializer=[1.0, 1.0]), tf.get_variable("beta", initializer=[0.0, 0.0])
        mean = tf.get_variable("moving_mean", initializer=[0.0, 0.0], trainable=False)
        variance = tf.get_variable("moving_variance", initializer=[1.0, 1.0], trainable=False)

    def by_batch() -> Any:
        y, now, spread = tf.nn.fused_batch_norm(x, gamma, beta, epsilon=EPSILON)
        moves = [tf.assign_sub(v, (v - new) * (1 - DECAY)) for v, new in ((mean, now), (variance, spread))]
        with tf.control_dependencies(moves):
            return tf.identity(y)

    def by_averages() -> Any:
        return tf.nn.fused_batch_norm(x, gamma, beta, mean, variance, epsilon=EPSILON, is_training=False)[0]

    if isinstance(training, bool):
        return by_batch() if training else by_averages()
    return tf.cond(training, by_batch, by_averages)


@pytest.mark.parametrize("fed", [False, True])
@pytest.mark.parametrize(
    ("layer", "unbiased", "rank"),
    [
        pytest.param(of_layers(None), True, 4, id="layers"),
        pytest.param(of_layers(True), True, 4, id="layers-fused"),
        pytest.param(of_layers(False), False, 4, id="layers-not-fused"),
        pytest.param(of_layers(None), False, 2, id="layers-rows"),
        pytest.param(of_contrib(None), True, 4, id="contrib"),
        pytest.param(of_contrib(False), False, 4, id="contrib-not-fused"),
        pytest.param(of_contrib(None, updates_collections=None), True, 4, id="contrib-at-once"),
        pytest.param(by_hand, True, 4, id="by-hand"),
    ],
)
def test_averages_and_evaluation_are_tensorflows(layer: Any, unbiased: bool, rank: int, fed: bool) -> None:
    given, unseen, pull = (v if rank == 4 else v.reshape(*v.shape[:-4], -1, 2) for v in (BATCHES, UNSEEN, PULL))
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, *given.shape[2:]])
        if fed:
            training = tf.placeholder(tf.bool, [])
            y = evaluated = layer(x, training)
        else:
            training = tf.placeholder_with_default(False, [])  # which nothing asks
            y, evaluated = layer(x, True), layer(x, False)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.GradientDescentOptimizer(RATE).minimize(tf.reduce_sum(y * pull))
        session.run(tf.global_variables_initializer())
        for batch in given:
            session.run(train, {x: batch, training: True})
        found = {v.op.name.removeprefix("bn/"): session.run(v) for v in tf.global_variables()}
        found["y"] = session.run(evaluated, {x: unseen, training: False})
    for name, wanted in oracle(given, unseen, pull, unbiased).items():
        np.testing.assert_allclose(found[name], wanted, rtol=2e-4, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("fed", [False, True])
def test_renormalization_is_tensorflows(fed: bool) -> None:
    limits, slow = {"rmin": 0.9, "rmax": 4.0, "dmax": 2.0}, 0.9
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 3, 3, 2])
        training = tf.placeholder(tf.bool, [])

        def layer(training: Any) -> Any:
            return tf.layers.batch_normalization(
                x, momentum=DECAY, epsilon=EPSILON, training=training, name="bn", reuse=tf.AUTO_REUSE, renorm=True,
                renorm_clipping=limits, renorm_momentum=slow,
            )  # fmt: skip

        y, evaluated = (layer(training),) * 2 if fed else (layer(True), layer(False))
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train = tf.train.GradientDescentOptimizer(RATE).minimize(tf.reduce_sum(y * PULL))
        session.run(tf.global_variables_initializer())
        made = [session.run([y, train], {x: batch, training: True})[0] for batch in BATCHES]
        found = {v.op.name.removeprefix("bn/"): session.run(v) for v in tf.global_variables()}
        found["y"] = session.run(evaluated, {x: UNSEEN, training: False})
    wanted: dict[str, Any] = {
        "gamma": np.ones(2),
        "moving_variance": np.ones(2),
        "moving_mean": np.zeros(2),
        "beta": np.zeros(2),
    }
    wanted |= {"renorm_mean": np.zeros(2), "renorm_stddev": np.ones(2), "moving_stddev": np.ones(2)}
    for x_, y_ in zip(BATCHES.astype(np.float64), made, strict=True):
        mean, stddev = x_.mean((0, 1, 2)), np.sqrt(x_.var((0, 1, 2)) + EPSILON)
        factor = np.clip(stddev / wanted["renorm_stddev"], limits["rmin"], limits["rmax"])
        offset = np.clip((mean - wanted["renorm_mean"]) / wanted["renorm_stddev"], -limits["dmax"], limits["dmax"])
        normal = (x_ - mean) / stddev * factor + offset
        np.testing.assert_allclose(y_, normal * wanted["gamma"] + wanted["beta"], rtol=1e-3, atol=1e-3)
        wanted["gamma"] = wanted["gamma"] - RATE * (PULL * normal).sum((0, 1, 2))
        wanted["beta"] = wanted["beta"] - RATE * PULL.sum((0, 1, 2))
        for name, value, keep in (
            ("renorm_mean", mean, slow), ("renorm_stddev", stddev, slow), ("moving_mean", mean, DECAY), ("moving_stddev", stddev, DECAY)
        ):  # fmt: skip
            wanted[name] = wanted[name] * keep + value * (1 - keep)
        wanted["moving_variance"] = wanted["moving_stddev"] ** 2 - EPSILON
    normal = (UNSEEN - wanted["moving_mean"]) / np.sqrt(wanted["moving_variance"] + EPSILON)
    wanted["y"] = normal * wanted["gamma"] + wanted["beta"]
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-3, err_msg=name)


def test_the_fused_op_takes_no_smaller_epsilon_than_tensorflows() -> None:
    x = np.float32([1e-3, -1e-3]).reshape(1, 2, 1, 1)
    with tf.Graph().as_default(), tf.Session() as session:
        y = session.run(tf.nn.fused_batch_norm(x, [1.0], [0.0], epsilon=1e-12)[0])
    np.testing.assert_allclose(y, x / np.sqrt(1e-6 + 1.001e-5), rtol=1e-5)


@pytest.mark.slow
def test_after_few_steps_with_a_slow_decay_only_evaluation_is_poor() -> None:
    """A residual network learns in 59 steps, and evaluates poorly by averages of a decay of 0.997, which are mostly their start.

    Training does not look at the averages, so the decay changes evaluation alone; with 0.9 it is good. That the averages are TensorFlow's
    is what the test above says.
    """
    accuracies = {}
    for decay in (0.997, 0.9):
        rng = np.random.default_rng(0)
        patterns = rng.normal(size=(10, 8, 8, 1))

        def batch(size: int, rng: Any = rng, patterns: Any = patterns) -> tuple[Any, Any]:
            labels = rng.integers(0, 10, size)
            return patterns[labels] + 0.7 * rng.normal(size=(size, 8, 8, 1)), labels

        with tf.Graph().as_default():
            tf.set_random_seed(1)
            x, labels = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int64, [None])
            training = tf.placeholder(tf.bool, [])

            def normal(h: Any, decay: float = decay, training: Any = training) -> Any:
                return tf.nn.relu(tf.layers.batch_normalization(h, momentum=decay, epsilon=1e-5, training=training))

            h = tf.layers.conv2d(x, 16, 3, padding="same", use_bias=False)
            for _ in range(4):
                inner = tf.layers.conv2d(normal(h), 16, 3, padding="same", use_bias=False)
                h += tf.layers.conv2d(normal(inner), 16, 3, padding="same", use_bias=False)
            logits = tf.layers.dense(tf.reduce_mean(normal(h), [1, 2]), 10)
            loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
            with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
                train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
            right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                for _ in range(59):
                    images, numbers = batch(64)
                    session.run(train, {x: images, labels: numbers, training: True})
                images, numbers = batch(500)
                accuracies[decay] = [
                    session.run(right, {x: images, labels: numbers, training: by_batch}) for by_batch in (True, False)
                ]
    (by_batch, slow), (_, quick) = accuracies[0.997], accuracies[0.9]
    assert by_batch > 0.95
    assert slow < 0.5
    assert quick > 0.75
