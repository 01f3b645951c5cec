"""Direct updates: steps give what they would give if gradients were sent, whatever happens to variables, sessions and tasks."""

from collections.abc import Iterator

import numpy as np
import pytest
from pairs import PS, WORKER, Pair

import dovetail as tf
from dovetail.runtime.opened import can_open
from dovetail.runtime.shared_memory import is_available

pytestmark = pytest.mark.skipif(
    not (is_available() and can_open()), reason="no memory files, or another kind of machine"
)

ONLY_WORKER = ["/job:worker/replica:0/task:0/device:CPU:0"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def regression(optimizer, resource=False):
    """A small regression with its variables on the ps: training op, variables, feeds."""
    x = tf.placeholder(tf.float32, [8, 5])
    with tf.device(PS):
        w = tf.get_variable("w", [5, 12], initializer=tf.ones_initializer(), use_resource=resource)
        b = tf.get_variable("b", [12], initializer=tf.zeros_initializer(), use_resource=resource)
        step = tf.train.get_or_create_global_step()
    with tf.device(WORKER):
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, w) + b) - 0.5))
        train = optimizer.minimize(loss, global_step=step)
    return train, loss, {x: np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)}


OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "locking": lambda: tf.train.GradientDescentOptimizer(0.1, use_locking=True),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.1),
    "centered": lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "proximal": lambda: tf.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=0.01),
    "proximal adagrad": lambda: tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.01),
}


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_gives_the_same_bits(pair, monkeypatch, name, resource):
    train, loss, feeds = regression(OPTIMIZERS[name](), resource)
    results = []
    for direct in "01":
        monkeypatch.setenv("DOVETAIL_DIRECT_UPDATES", direct)
        with pair.session(isolate_session_state=True) as session:
            session.run(tf.global_variables_initializer())
            losses = []
            for _ in range(4):
                losses.append(session.run([loss, train], feeds)[0])
                devices = list(session.last_plan.partitions)
                assert (devices == ONLY_WORKER) == (direct == "1")
            results.append([*losses, *session.run(tf.global_variables())])
    for sent, changed in zip(*results, strict=True):
        np.testing.assert_array_equal(sent, changed)
