"""A task of a cluster that trains the digits under a strategy: the same program in every process. Prints what came out, as JSON.

python train_digits.py STRATEGY STEPS BATCH     TF_CONFIG says which cluster, and which task this is
"""

from __future__ import annotations

import json
import sys
import threading

import numpy as np

import dovetail as tf
from dovetail.tools.demo.data import load_digits


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The strategy of that name."""
    match name:
        case "mirrored":
            return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        case "central":
            return tf.distribute.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0")
        case "one":
            return tf.distribute.OneDeviceStrategy("/cpu:0")
        case "multiworker":
            return tf.distribute.experimental.MultiWorkerMirroredStrategy()
        case "ring":
            return tf.distribute.experimental.MultiWorkerMirroredStrategy(
                tf.distribute.experimental.CollectiveCommunication.RING
            )
        case "ps":
            return tf.distribute.experimental.ParameterServerStrategy()
    raise ValueError(name)


def dense(x, width, name, seed):
    """A layer whose first weights are the same in every process and under every strategy."""
    rng = np.random.default_rng(seed)
    inputs = int(x.shape[1])
    start = rng.normal(scale=(2.0 / inputs) ** 0.5, size=(inputs, width)).astype(np.float32)
    with tf.variable_scope(name):
        w = tf.get_variable("w", initializer=start)
        b = tf.get_variable("b", [width], initializer=tf.zeros_initializer())
    return tf.matmul(x, w) + b


def train(name: str, steps: int, batch: int) -> dict:
    """Train, and say how well it went."""
    strategy = make_strategy(name)
    resolver = strategy.cluster_resolver
    if resolver is not None and resolver.task_type == "ps":
        strategy.server.join()
    workers, rank = getattr(strategy, "_workers", ()), getattr(strategy, "_rank", 0)
    digits = load_digits()
    with strategy.scope():
        images, labels = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
        global_step = tf.train.get_or_create_global_step()
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)

        def step(x, y):
            logits = dense(tf.nn.relu(dense(x, 64, "hidden", 1)), 10, "logits", 2)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.reduce_mean(losses)
            right = tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)
            return loss, optimizer.minimize(loss, global_step=global_step), right

        losses, train_op, right = strategy.run(step, (strategy.split_batch(images), strategy.split_batch(labels)))
        loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses)
        accuracy = strategy.reduce("MEAN", right, axis=0)
        first = strategy.experimental_local_results(tf.trainable_variables()[0])[0]
        end = strategy.barrier() if workers else tf.no_op()
    config = strategy.update_config_proto(tf.ConfigProto(device_count={"CPU": 2}))
    with tf.Session(strategy.session_target, config=config) as session:
        if strategy.extended.experimental_should_init or workers:
            session.run(tf.global_variables_initializer())
        else:
            missing = tf.report_uninitialized_variables()
            while session.run(missing).size:
                pass
        batches = digits.batches(batch, seed=0 if workers or name != "ps" else resolver.task_id)
        share = batch // max(1, len(workers))
        while session.run(global_step) < steps:
            x, y = next(batches)
            mine = slice(rank * share, (rank + 1) * share)
            last, _ = session.run([loss, train_op], {images: x[mine], labels: y[mine]})
        even = len(digits.test_labels) // 2 * 2
        found, weights, done = session.run(
            [accuracy, first, global_step], {images: digits.test_images[:even], labels: digits.test_labels[:even]}
        )
        session.run(end)  # nobody leaves while another one still needs it
    return {
        "accuracy": float(found), "loss": float(last), "steps": int(done), "weights": float(np.abs(weights).sum()),
        "exactly": weights.tobytes().hex()[:4000], "some": weights[:3, :3].tolist(),
    }  # fmt: skip


if __name__ == "__main__":
    kind, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print("RESULT " + json.dumps(train(kind, count, size)), flush=True)
    if not sys.stdin.isatty():  # a task goes on serving until its parent closes the pipe
        ended = threading.Thread(target=sys.stdin.buffer.read, daemon=True)
        ended.start()
        ended.join()
