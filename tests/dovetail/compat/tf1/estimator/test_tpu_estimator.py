"""`tf.contrib.tpu.TPUEstimator` without a TPU: batch sizes of its own, metrics by a function, a call in each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

tpu = tf.contrib.tpu
X = np.arange(8, dtype=np.float32)[:, None]


def input_fn(params: dict[str, Any]) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices((X, 2 * X))
    return data.batch(params["batch_size"], drop_remainder=True)


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    assert params["use_tpu"] is False
    weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    y = features * weight
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"y": y, "size": tf.zeros_like(y) + params["batch_size"]})
    loss = tf.reduce_mean(tf.square(y - labels))
    calls = tf.get_variable("calls", [], initializer=tf.zeros_initializer(), trainable=False)
    train = tf.train.GradientDescentOptimizer(params["rate"]).minimize(loss, tf.train.get_global_step())

    def metrics(y: Any, labels: Any) -> dict[str, Any]:
        return {"error": tf.metrics.mean_absolute_error(labels, y)}

    return tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=train, eval_metrics=(metrics, {"y": y, "labels": labels}),
        host_call=(lambda by: tf.assign_add(calls, by[0]), [tf.ones([1])]), scaffold_fn=tf.train.Scaffold,
    )  # fmt: skip


def test_a_program_for_tpus_runs_without_one(tmp_path: Path) -> None:
    config = tpu.RunConfig(
        model_dir=str(tmp_path), save_checkpoints_steps=2, master=None, cluster=None,
        tpu_config=tpu.TPUConfig(
            iterations_per_loop=5, num_shards=8, per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2
        ),
    )  # fmt: skip
    made = tpu.TPUEstimator(
        model_fn,
        config=config,
        params={"rate": 0.01},
        use_tpu=False,
        train_batch_size=2,
        eval_batch_size=4,
        predict_batch_size=8,
    )
    made.train(input_fn)
    assert made.get_variable_value("global_step") == 4 and made.get_variable_value("calls") == 4
    weight = made.get_variable_value("w")
    found = made.evaluate(input_fn)
    np.testing.assert_allclose(found["error"], abs(2 - weight) * X.mean(), rtol=1e-5)
    predicted = list(made.predict(input_fn))
    np.testing.assert_allclose([p["y"][0] for p in predicted], X[:, 0] * weight, rtol=1e-5)
    assert predicted[0]["size"] == [8]


def test_what_needs_a_tpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="with use_tpu=False it runs on CPUs and GPUs"):
        tpu.TPUEstimator(model_fn, str(tmp_path), params={"rate": 1.0})
    with pytest.raises(ValueError, match="give train_batch_size"):
        tpu.TPUEstimator(model_fn, str(tmp_path), params={"batch_size": 1}, use_tpu=False)
    with pytest.raises(ValueError, match="TF_CONFIG names the tasks"):
        tpu.RunConfig(master="grpc://10.0.0.1:8470")
    with pytest.raises(AttributeError, match=r"'CrossShardOptimizer': use tf.distribute.MirroredStrategy"):
        tpu.CrossShardOptimizer  # noqa: B018
    with pytest.raises(AttributeError, match="there are no TPUs"):
        tpu.rewrite  # noqa: B018
