"""Estimators in one process: train, evaluate, predict, go on, start from another model, strategies, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(-1, 1)
Y = 3 * X[:, 0] + 1


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield
    tf.summary.FileWriterCache.clear()


def model_fn(features, labels, mode, params):
    w = tf.get_variable("w", [1, 1], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
    y = (tf.matmul(features["x"], w) + b)[:, 0]
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"y": y, "twice": 2 * y})
    loss = tf.reduce_mean(tf.square(y - labels))
    if mode == tf.estimator.ModeKeys.EVAL:
        metrics = {"error": tf.metrics.mean_absolute_error(labels, y)}
        return tf.estimator.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    step = tf.train.get_global_step()
    train_op = tf.train.GradientDescentOptimizer(params["rate"]).minimize(loss, global_step=step)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(epochs: int | None = None, batch: int = 8):
    return lambda: tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat(epochs).batch(batch)


def made(folder: Path, model: Any = model_fn, **config: Any) -> tf.estimator.Estimator:
    settings = {"save_checkpoints_steps": 20, "log_step_count_steps": 10} | config
    return tf.estimator.Estimator(model, str(folder), tf.estimator.RunConfig(**settings), params={"rate": 0.3})


def test_trains_evaluates_predicts_and_goes_on_where_it_was(tmp_path):
    estimator = made(tmp_path)
    assert estimator.train(input_fn(), steps=30) is estimator
    assert estimator.latest_checkpoint() == str(tmp_path / "model.ckpt-30")
    assert estimator.get_variable_names() == ["b", "global_step", "w"]
    first = estimator.evaluate(input_fn(1))
    assert first["global_step"] == 30
    estimator.train(input_fn(), steps=20)
    estimator.train(input_fn(), max_steps=50)  # is done
    second = estimator.evaluate(input_fn(1), name="again")
    assert second["global_step"] == 50
    assert second["loss"] < first["loss"] < 0.1
    assert second["error"] < 0.1
    assert estimator.get_variable_value("w")[0, 0] == pytest.approx(3, abs=0.2)
    found = list(estimator.predict(input_fn(1)))
    assert len(found) == 32
    np.testing.assert_allclose([p["y"] for p in found], Y, atol=0.2)
    (batch, *_) = estimator.predict(input_fn(1), predict_keys="twice", yield_single_examples=False)
    assert list(batch) == ["twice"]
    np.testing.assert_allclose(batch["twice"], 2 * Y[:8], atol=0.4)
    assert list((tmp_path / "eval").glob("events*"))
    assert list((tmp_path / "eval_again").glob("events*"))
    assert list(tmp_path.glob("events*"))


def test_steps_of_an_evaluation_and_an_older_checkpoint(tmp_path):
    estimator = made(tmp_path, keep_checkpoint_max=3)
    estimator.train(input_fn(), steps=60)
    kept = sorted(p.name for p in tmp_path.glob("model.ckpt-*.index"))
    assert kept == ["model.ckpt-20.index", "model.ckpt-40.index", "model.ckpt-60.index"]
    old = estimator.evaluate(input_fn(), steps=4, checkpoint_path=str(tmp_path / "model.ckpt-20"))
    assert old["global_step"] == 20
    assert old["loss"] == pytest.approx(
        estimator.evaluate(input_fn(1), checkpoint_path=str(tmp_path / "model.ckpt-20"))["loss"]
    )


def test_without_a_checkpoint_first_values_are_evaluated_and_nothing_is_predicted(tmp_path):
    estimator = made(tmp_path)
    found = estimator.evaluate(input_fn(1))
    assert found["global_step"] == 0
    assert found["loss"] == pytest.approx(np.mean(Y**2), rel=1e-5)
    with pytest.raises(ValueError, match="Could not find trained model"):
        next(estimator.predict(input_fn(1)))


def test_the_end_of_the_input_ends_training(tmp_path):
    estimator = made(tmp_path)
    estimator.train(input_fn(epochs=2))
    assert estimator.get_variable_value("global_step") == 8


def test_hooks_and_listeners_are_called(tmp_path):
    told: list[str] = []

    class Hook(tf.train.SessionRunHook):
        def __init__(self, name):
            self.name = name

        def begin(self):
            told.append(self.name)

    class Listener(tf.train.CheckpointSaverListener):
        def after_save(self, session, global_step_value):
            told.append(f"saved {global_step_value}")

    def model(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        given = {
            "training_hooks": [Hook("model")],
            "training_chief_hooks": [Hook("chief")],
            "evaluation_hooks": [Hook("evaluates")],
        }
        return tf.estimator.EstimatorSpec(
            mode, loss=spec.loss, train_op=spec.train_op, eval_metric_ops=spec.eval_metric_ops, **given
        )

    estimator = made(tmp_path, model)
    estimator.train(input_fn(), hooks=[Hook("user")], steps=25, saving_listeners=[Listener()])
    assert told == ["chief", "user", "model", "saved 0", "saved 20", "saved 25"]
    estimator.evaluate(input_fn(1), hooks=[Hook("user")])
    assert told[-2:] == ["user", "evaluates"]
    with pytest.raises(ValueError, match="CheckpointSaverHook"):
        made(tmp_path, save_checkpoints_steps=None).train(input_fn(), steps=1, saving_listeners=[Listener()])


def test_functions_get_what_they_ask_for(tmp_path):
    asked: dict[str, Any] = {}

    def model(features, mode, config):
        asked["model"] = (mode, config.model_dir)
        w = tf.get_variable("w", [])
        train = tf.assign_add(tf.train.get_global_step(), 1)
        return tf.estimator.EstimatorSpec(mode, predictions=w + features, loss=w, train_op=train)

    def inputs(mode, params, config, input_context):
        asked["input"] = (mode, params, config.task_type, input_context.get_per_replica_batch_size(8))
        return tf.constant([1.0])

    estimator = tf.estimator.Estimator(model, str(tmp_path))
    estimator.train(inputs, steps=1)
    assert asked == {"model": ("train", str(tmp_path)), "input": ("train", {}, "worker", 8)}
    (found,) = list(zip(estimator.predict(inputs), range(1), strict=False))
    assert found[0] == estimator.get_variable_value("w") + 1


def test_starts_from_another_model(tmp_path):
    made(tmp_path / "first").train(input_fn(), steps=20)

    def renamed(features, labels, mode, params):
        with tf.variable_scope("new"):
            return model_fn(features, labels, mode, params)

    settings = tf.estimator.WarmStartSettings(
        str(tmp_path / "first"), vars_to_warm_start="new/w", var_name_to_prev_var_name={"new/w": "w"}
    )
    config = tf.estimator.RunConfig(str(tmp_path / "second"), save_checkpoints_steps=1)
    second = tf.estimator.Estimator(renamed, config=config, params={"rate": 1e-9}, warm_start_from=settings)
    second.train(input_fn(), steps=1)
    before = tf.train.load_variable(str(tmp_path / "first"), "w")
    np.testing.assert_allclose(second.get_variable_value("new/w"), before, atol=1e-6)
    np.testing.assert_allclose(second.get_variable_value("new/b"), 0, atol=1e-6)
    with pytest.raises(ValueError, match="no checkpoint"):
        made_from = tf.estimator.Estimator(
            model_fn, str(tmp_path / "third"), params={"rate": 1}, warm_start_from=str(tmp_path)
        )
        made_from.train(input_fn(), steps=1)


def test_parts_of_variables_start_from_another_model_and_an_init_fn_comes_last(tmp_path):
    def model(partitioner, start):
        def fn(features, labels, mode):
            with tf.variable_scope("net", partitioner=partitioner):
                table = tf.get_variable("table", [3, 2], initializer=tf.random_uniform_initializer())
            other = tf.get_variable("other", [], initializer=tf.zeros_initializer())
            train = tf.assign_add(tf.train.get_global_step(), 1)
            scaffold = tf.train.Scaffold(init_fn=lambda _, session: other.load(start, session))
            return tf.estimator.EstimatorSpec(
                mode, loss=tf.reduce_sum(tf.convert_to_tensor(table)), train_op=train, scaffold=scaffold
            )

        return fn

    for name, partitioner in (("first", None), ("parts", tf.fixed_size_partitioner(2)), ("whole", None)):
        source = {"first": None, "parts": tmp_path / "first", "whole": tmp_path / "parts"}[name]
        start = float(len(name))
        estimator = tf.estimator.Estimator(model(partitioner, start), str(tmp_path / name), warm_start_from=source)
        estimator.train(input_fn(), steps=1)
        assert sorted(estimator.get_variable_names()) == ["global_step", "net/table", "other"]
        assert estimator.get_variable_value("other") == start
    first, parts, whole = (tf.train.load_variable(str(tmp_path / n), "net/table") for n in ("first", "parts", "whole"))
    np.testing.assert_array_equal(parts, first)
    np.testing.assert_array_equal(whole, first)


@pytest.mark.parametrize("kind", ["mirrored", "central", "one"])
def test_replicas_take_a_batch_each_and_train_as_one_with_both(tmp_path, kind):
    strategy: Any = {
        "mirrored": lambda: tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]),
        "central": lambda: tf.distribute.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0"),
        "one": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    }[kind]()
    batch = 4 if kind != "one" else 8
    both = tf.estimator.RunConfig(
        str(tmp_path / "both"),
        save_checkpoints_steps=100,
        session_config=tf.ConfigProto(device_count={"CPU": 2}),
        experimental_distribute=tf.estimator.DistributeConfig(strategy, strategy),
    )
    replicated = tf.estimator.Estimator(model_fn, config=both, params={"rate": 0.1})
    replicated.train(input_fn(batch=batch), steps=12)
    alone = tf.estimator.Estimator(model_fn, str(tmp_path / "alone"), params={"rate": 0.1})
    alone.train(input_fn(batch=8), steps=12)
    for name in ("w", "b"):
        np.testing.assert_allclose(replicated.get_variable_value(name), alone.get_variable_value(name), rtol=1e-5)
    found, expected = replicated.evaluate(input_fn(1, batch)), alone.evaluate(input_fn(1, 8))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("rows", [3, 8, 21])  # one batch, fewer rows than one; one; three, the last of them smaller
def test_replicas_evaluate_every_batch_though_they_do_not_divide_evenly(tmp_path, rows):
    def evaluated(strategy: Any) -> dict[str, Any]:
        def take() -> tf.data.Dataset:
            features = {"x": np.linspace(-1, 2, rows, dtype=np.float32).reshape(-1, 1)}
            return tf.data.Dataset.from_tensor_slices((features, 3 * features["x"][:, 0])).batch(8)

        options = tf.ConfigProto(device_count={"CPU": 2})
        return made(tmp_path, eval_distribute=strategy, session_config=options).evaluate(take)

    made(tmp_path).train(input_fn(), steps=2)
    alone = evaluated(None)
    assert alone["loss"] > 0
    together = evaluated(tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]))
    assert together == pytest.approx(alone, rel=1e-5)


def test_train_and_evaluate_in_one_process(tmp_path):
    evaluated = []

    class Export(tf.estimator.Exporter):
        name = "weights"

        def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
            evaluated.append((int(eval_result["global_step"]), is_the_final_export))
            return f"{export_path} {checkpoint_path}"

    estimator = made(tmp_path)
    found = tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn(), max_steps=50),
        tf.estimator.EvalSpec(input_fn(1), steps=None, exporters=Export(), throttle_secs=0),
    )
    assert found is not None
    metrics, exported = found
    assert metrics is not None
    assert metrics["global_step"] == 50
    assert exported == [f"{tmp_path}/export/weights {tmp_path}/model.ckpt-50"]
    assert evaluated == [(20, False), (40, False), (50, True)]
    again = tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(input_fn(), max_steps=50), tf.estimator.EvalSpec(input_fn(1), steps=None)
    )
    assert again is not None
    assert again[0] == metrics


@pytest.mark.parametrize(
    "kinds", [("mirrored", "mirrored"), ("mirrored", "one"), ("central", None), (None, "mirrored")]
)
def test_evaluating_while_training_has_a_strategy_of_its_own(tmp_path, kinds):
    both: dict[str | None, Any] = {
        "mirrored": tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]),
        "central": tf.distribute.CentralStorageStrategy(["/cpu:0", "/cpu:1"], "/cpu:0"),
        "one": tf.distribute.OneDeviceStrategy("/cpu:0"),
    }
    config = {
        "experimental_distribute": tf.estimator.DistributeConfig(both.get(kinds[0]), both.get(kinds[1])),
        "session_config": tf.ConfigProto(device_count={"CPU": 2}),
    }
    found = tf.estimator.train_and_evaluate(
        made(tmp_path, **config),
        tf.estimator.TrainSpec(input_fn(), max_steps=40),
        tf.estimator.EvalSpec(input_fn(1), steps=None, throttle_secs=0),
    )
    assert found is not None
    metrics, _ = found
    assert metrics is not None
    assert metrics["global_step"] == 40 and metrics["error"] < 0.5


def test_an_evaluator_follows_checkpoints_to_the_last(tmp_path, monkeypatch):
    trainer = made(tmp_path)
    trainer.train(input_fn(), steps=20)
    monkeypatch.setenv(
        "TF_CONFIG", json.dumps({"cluster": {"chief": ["localhost:1"]}, "task": {"type": "evaluator", "index": 0}})
    )
    seen = []

    class More(tf.train.SessionRunHook):
        """Goes on training after the first evaluation: the evaluator must find that checkpoint."""

        def end(self, session):
            seen.append(session.run(tf.train.get_global_step()))
            if len(seen) == 1:
                trainer.train(input_fn(), max_steps=40)

    evaluator = made(tmp_path)
    assert evaluator.config.task_type == "evaluator"
    assert not evaluator.config.is_chief
    spec = tf.estimator.EvalSpec(input_fn(1), hooks=[More()], start_delay_secs=0, throttle_secs=3600)
    assert tf.estimator.train_and_evaluate(evaluator, tf.estimator.TrainSpec(input_fn(), max_steps=40), spec) is None
    assert seen == [20, 40]


def test_numpy_input_fn(tmp_path):
    inputs = tf.estimator.inputs.numpy_input_fn
    with tf.Graph().as_default(), tf.Session() as session:
        features, labels = inputs({"x": X}, Y, batch_size=20, shuffle=False)()
        session.run(tf.local_variables_initializer())
        values = session.run([features, labels])
        np.testing.assert_array_equal(values[0]["x"], X[:20])
        np.testing.assert_array_equal(values[1], Y[:20])
        assert session.run(labels).shape == (12,)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(labels)
        mixed = inputs(X, batch_size=32, shuffle=True)()
        session.run(tf.local_variables_initializer())
        drawn = session.run(mixed)
        assert drawn.tolist() != X.tolist()
        assert sorted(drawn.tolist()) == X.tolist()
    estimator = made(tmp_path)
    estimator.train(inputs({"x": X}, Y, 8, num_epochs=None, shuffle=True), steps=20)
    assert estimator.evaluate(inputs({"x": X}, Y, shuffle=False))["loss"] < 1
    for wrong, text in (({"shuffle": None}, "shuffle"), ({"y": Y[:3], "shuffle": True}, "mismatched")):
        with pytest.raises(ValueError, match=text):
            inputs(**({"x": X} | wrong))


def test_what_is_refused(tmp_path):
    with pytest.raises(ValueError, match="features"):
        tf.estimator.Estimator(lambda x: None, str(tmp_path))
    with pytest.raises(ValueError, match="not expected args: other"):
        tf.estimator.Estimator(lambda features, other: None, str(tmp_path))
    with pytest.raises(ValueError, match="params"):
        tf.estimator.Estimator(lambda features: None, str(tmp_path), params={"a": 1})
    with pytest.raises(ValueError, match="different values"):
        tf.estimator.Estimator(model_fn, "/a", tf.estimator.RunConfig("/b"))
    estimator = made(tmp_path)
    with pytest.raises(ValueError, match="both steps and max_steps"):
        estimator.train(input_fn(), steps=1, max_steps=1)
    with pytest.raises(ValueError, match="should return an EstimatorSpec"):
        tf.estimator.Estimator(lambda features, labels: 1, str(tmp_path)).train(input_fn(), steps=1)
    with pytest.raises(ValueError, match="does not take labels"):
        tf.estimator.Estimator(lambda features: 1, str(tmp_path)).train(input_fn(), steps=1)
    loss = tf.constant(1.0)
    for arguments, text in (
        ({"mode": "train", "loss": loss}, "train_op"),
        ({"mode": "eval"}, "loss"),
        ({"mode": "infer"}, "predictions"),
        ({"mode": "other"}, "mode"),
        ({"mode": "eval", "loss": tf.constant([1.0, 2.0])}, "scalar"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.estimator.EstimatorSpec(**arguments)
    with pytest.raises(TypeError, match="tuples"):
        tf.estimator.EstimatorSpec("eval", loss=loss, eval_metric_ops={"a": loss})
    with pytest.raises(TypeError, match="SessionRunHook"):
        tf.estimator.TrainSpec(input_fn(), hooks=[1])
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    replicated = made(tmp_path, train_distribute=strategy, session_config=tf.ConfigProto(device_count={"CPU": 2}))
    with pytest.raises(ValueError, match=r"must return a tf\.data\.Dataset"):
        replicated.train(lambda: ({"x": tf.constant(X)}, tf.constant(Y)), steps=1)


def test_nan_ends_training(tmp_path):
    estimator = tf.estimator.Estimator(model_fn, str(tmp_path), params={"rate": 1e30})
    with pytest.raises(tf.train.NanLossDuringTrainingError):
        estimator.train(input_fn(), steps=50)
