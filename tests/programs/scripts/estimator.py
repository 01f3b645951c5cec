"""A task that trains the digits by `train_and_evaluate`: the same program in every process. TF_CONFIG says which task this is.

python estimator.py FOLDER STEPS STRATEGY     STRATEGY: none, ps, multiworker; ready: a ready-made model, without one

Where HOLD names a file, the task stops at step 100 until that file is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

import dovetail as tf
from dovetail.tools.demo.data import load_digits

DIGITS = load_digits()


def dense(x, width, name):
    """A layer."""
    with tf.variable_scope(name):
        w = tf.get_variable("w", [int(x.shape[1]), width], initializer=tf.glorot_uniform_initializer(seed=width))
        b = tf.get_variable("b", [width], initializer=tf.zeros_initializer())
    return tf.matmul(x, w) + b


def model_fn(features, labels, mode, params):
    """Two layers."""
    logits = dense(tf.nn.relu(dense(features, params["units"], "hidden")), 10, "logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"accuracy": tf.metrics.accuracy(labels, tf.argmax(logits, 1))}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = tf.train.MomentumOptimizer(0.05, 0.9)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, global_step=tf.train.get_global_step())
    )


def features(images, named):
    """Features as the model takes them: by name, or alone."""
    return {"pixels": images} if named else images


def train_inputs(input_context, named):
    """Each worker has rows of its own."""
    data = tf.data.Dataset.from_tensor_slices((features(DIGITS.train_images, named), DIGITS.train_labels))
    mine = data.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return mine.shuffle(500, seed=1).repeat().batch(32)


def test_inputs(named):
    """All rows once."""
    return tf.data.Dataset.from_tensor_slices((features(DIGITS.test_images, named), DIGITS.test_labels)).batch(100)


class Report(tf.train.SessionRunHook):
    """Says how the task's training ended, or an evaluation."""

    def __init__(self, *names):
        self.names = names

    def begin(self):
        """The last moment to find what to fetch."""
        graph = tf.get_default_graph()
        self.fetches = [graph.get_tensor_by_name(n) for n in self.names] or [
            v.value() for v in tf.trainable_variables()
        ]

    def end(self, session):
        """One line."""
        step, *values = session.run([tf.train.get_global_step(), *self.fetches])
        exactly = b"".join(v.tobytes() for v in values).hex()
        print(
            "RESULT " + json.dumps({"step": int(step), "exactly": exactly, "mean": float(np.mean(values[0]))}),
            flush=True,
        )


class Hold(tf.train.SessionRunHook):
    """Stops at a step until a file is there."""

    def __init__(self, step, path):
        self.at, self.path = step, Path(path)

    def begin(self):
        """The last moment to find what to fetch."""
        self.step = tf.train.get_global_step()

    def before_run(self, run_context):
        """Before each step."""
        while not self.path.exists() and run_context.session.run(self.step) >= self.at:
            time.sleep(0.02)


def main(folder, steps, kind):
    """What every task runs."""
    strategy = {
        "none": lambda: None,
        "ready": lambda: None,
        "ps": tf.distribute.experimental.ParameterServerStrategy,
        "multiworker": tf.distribute.experimental.MultiWorkerMirroredStrategy,
    }[kind]()
    distribute = tf.contrib.distribute.DistributeConfig(train_distribute=strategy)
    config = tf.estimator.RunConfig(
        folder, save_checkpoints_steps=50, save_summary_steps=50, experimental_distribute=distribute
    )
    if kind == "ready":
        pixels = tf.feature_column.numeric_column("pixels", shape=DIGITS.train_images.shape[1:])
        estimator = tf.estimator.DNNClassifier([64], [pixels], n_classes=10, config=config)
    else:
        estimator = tf.estimator.Estimator(model_fn, config=config, params={"units": 64})
    hooks = [Report(), *([Hold(100, os.environ["HOLD"])] if "HOLD" in os.environ else [])]
    named = kind == "ready"
    train = tf.estimator.TrainSpec(
        lambda input_context: train_inputs(input_context, named), max_steps=int(steps), hooks=hooks
    )
    evaluate = tf.estimator.EvalSpec(
        lambda: test_inputs(named), steps=None, hooks=[Report("accuracy/value:0")], start_delay_secs=0, throttle_secs=0
    )
    tf.estimator.train_and_evaluate(estimator, train, evaluate)


if __name__ == "__main__":
    main(*sys.argv[1:])
