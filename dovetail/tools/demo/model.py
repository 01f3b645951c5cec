"""The classifier that the demo trains, written as a TensorFlow 1 program.

This module does not depend on processes. `tf.device` blocks around these functions determine the device of each variable and op, and
`session.run` sends tensors between the processes.
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
    """One copy of the classifier's computation: its feeds and fetches. Replicas share the variables."""

    images: tf.Tensor  # float32 [batch, 64]
    labels: tf.Tensor  # int64 [batch]
    loss: tf.Tensor
    predictions: tf.Tensor  # int64 [batch]
    accuracy: tf.Tensor
    train_op: tf.Operation
    global_step: Any  # the variable that counts the updates of all replicas together


def parameters_on_ps(cluster: tf.train.ClusterSpec, worker: int) -> Callable[[Any], str] | None:
    """Returns the device function of a replica. Variables are placed on the job ps, and all other nodes on the worker.

    Each new variable is placed on the parameter server with the fewest bytes. Round-robin would place all weights on one server, and all
    biases on the other.
    """
    by_bytes = tf.train.GreedyLoadBalancingStrategy(cluster.num_tasks("ps"), tf.train.byte_size_load_fn)
    return tf.train.replica_device_setter(
        worker_device=f"/job:worker/task:{worker}", cluster=cluster, ps_strategy=by_bytes
    )


def classifier(optimizer: Any) -> Replica:
    """Adds a replica of the classifier to the default graph. The first replica creates the variables."""
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
    """Returns the optimizer. Its slots are colocated with the variables, on the parameter servers."""
    return tf.train.AdamOptimizer(LEARNING_RATE)


def train(
    session: tf.Session,
    replica: Replica,
    batches: Iterator[tuple[Array, Array]],
    last_step: int,
    report: Callable[[int, int, float, float], None],
) -> None:
    """Trains asynchronously until the replicas have made `last_step` updates together.

    Args:
        session: the session.
        replica: the replica to train.
        batches: the training batches.
        last_step: the global step at which to stop.
        report: called ten times per second, and at the end, with the steps of this replica, the global step, the mean loss and the steps
            per second since the last call.
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
