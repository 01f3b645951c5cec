"""The classifier that the demo trains, written as a TensorFlow 1 program.

This module does not depend on processes: `tf.device` blocks around these functions decide which device of which
process holds a variable or runs an op, and `session.run` sends the tensors there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import dovetail as tf

from .data import Array

HIDDEN = (256, 256)
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
REPORT_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Replica:
    """One copy of the classifier's compute: what to feed and what to fetch. Replicas share the variables."""

    images: tf.Tensor  # float32 [batch, 64]
    labels: tf.Tensor  # int64 [batch]
    loss: tf.Tensor
    predictions: tf.Tensor  # int64 [batch]
    accuracy: tf.Tensor
    train_op: tf.Operation
    global_step: Any  # the variable that counts the updates of all replicas together


def parameters_on_ps(cluster: tf.train.ClusterSpec, worker: int) -> Callable[[Any], str] | None:
    """The device function of a replica: variables go to the ps job, all else to the worker.

    Each new variable goes to the parameter server that holds the fewest bytes so far. Plain round robin would
    give one server all the weights and the other all the biases.
    """
    by_bytes = tf.train.GreedyLoadBalancingStrategy(cluster.num_tasks("ps"), tf.train.byte_size_load_fn)
    return tf.train.replica_device_setter(
        worker_device=f"/job:worker/task:{worker}", cluster=cluster, ps_strategy=by_bytes
    )


def classifier(optimizer: Any) -> Replica:
    """Add a replica of the classifier to the default graph. The variables are made by the first one."""
    images = tf.placeholder(tf.float32, [None, 64], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")

    with tf.variable_scope("classifier", reuse=tf.AUTO_REUSE):
        hidden = images
        for number, width in enumerate(HIDDEN, start=1):
            hidden = tf.nn.relu(dense(hidden, width, f"hidden_{number}"))
        logits = dense(hidden, 10, "logits")

    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses, name="loss")
    global_step = tf.train.get_or_create_global_step()
    train_op = optimizer.minimize(loss, global_step=global_step, name="train")

    predictions = tf.argmax(logits, 1, name="predictions")
    correct = tf.cast(tf.equal(predictions, labels), tf.float32)
    accuracy = tf.reduce_mean(correct, name="accuracy")
    return Replica(images, labels, loss, predictions, accuracy, train_op, global_step)


def dense(inputs: tf.Tensor, width: int, name: str) -> tf.Tensor:
    """A fully connected layer: `inputs @ weights + biases`."""
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs.shape[1], width])
        biases = tf.get_variable("biases", [width], initializer=tf.zeros_initializer())
        outputs: tf.Tensor = tf.matmul(inputs, weights) + biases
        return outputs


def make_optimizer() -> Any:
    """The optimizer. Its slots are colocated with the variables, on the parameter servers."""
    return tf.train.AdamOptimizer(LEARNING_RATE)


def train(
    session: tf.Session,
    replica: Replica,
    batches: Iterator[tuple[Array, Array]],
    last_step: int,
    report: Callable[[int, int, float, float], None],
) -> None:
    """Train asynchronously until the replicas together have made `last_step` updates.

    Args:
        report: called ten times a second, and at the end, with the steps of this replica, the global
            step, the mean loss and the steps per second since the last call.
    """
    fetches = [replica.train_op, replica.loss, replica.global_step]
    losses, began = [], time.monotonic()
    for steps, (images, labels) in enumerate(batches, start=1):
        _, loss, global_step = session.run(fetches, {replica.images: images, replica.labels: labels})
        losses.append(loss)
        now, done = time.monotonic(), global_step >= last_step
        if done or now - began >= REPORT_EVERY_S:
            report(steps, int(global_step), float(np.mean(losses)), len(losses) / (now - began))
            losses, began = [], now
        if done:
            return
