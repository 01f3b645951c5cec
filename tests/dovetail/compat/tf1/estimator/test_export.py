"""Estimators as saved models."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

pytest.importorskip("google.protobuf")

export = tf.estimator.export
X = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
Y = (X.sum(1) > 0).astype(np.int32)


def input_fn() -> Any:
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).repeat().batch(16)


def classifier(folder: Path) -> Any:
    columns = [tf.feature_column.numeric_column("x", shape=(3,))]
    return tf.estimator.DNNClassifier([4], columns, str(folder), config=tf.estimator.RunConfig(tf_random_seed=1))


def test_a_classifier_is_exported_and_serves(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model")
    model.train(input_fn, steps=20)
    wanted = [p["probabilities"] for p in model.predict(tf.estimator.inputs.numpy_input_fn({"x": X}, shuffle=False))]
    receive = export.build_raw_serving_input_receiver_fn({"x": X})
    extra = tmp_path / "notes.txt"
    extra.write_text("mine")
    folder = model.export_saved_model(str(tmp_path / "out"), receive, assets_extra={"notes.txt": str(extra)})
    assert (Path(folder) / "assets.extra" / "notes.txt").read_text() == "mine"
    with tf.Session(graph=tf.Graph()) as session:
        meta = tf.saved_model.load(session, ["serve"], folder)
        assert set(meta.signature_def) == {"serving_default", "classification", "predict"}
        predict = meta.signature_def["predict"]
        got = session.run(predict.outputs["probabilities"].name, {predict.inputs["x"].name: X})
        np.testing.assert_allclose(got, wanted, 1e-6)
        served = meta.signature_def["serving_default"]
        assert session.run(served.outputs["classes"].name, {served.inputs["x"].name: X[:1]})[0][0] in (b"0", b"1")


def test_serialised_examples_are_parsed(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model")
    model.train(input_fn, steps=2)
    receive = export.build_parsing_serving_input_receiver_fn({"x": tf.FixedLenFeature([3], tf.float32)})
    folder = model.export_saved_model(str(tmp_path / "out"), receive, as_text=True)
    feature = tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0, 3.0]))
    example = tf.train.Example(features=tf.train.Features(feature={"x": feature})).SerializeToString()
    with tf.Session(graph=tf.Graph()) as session:
        signature = tf.saved_model.load(session, ["serve"], folder).signature_def["serving_default"]
        assert signature.method_name == "tensorflow/serving/classify"
        assert session.run(signature.outputs["scores"].name, {signature.inputs["inputs"].name: [example]}).shape == (
            1,
            2,
        )


def test_exporters(tmp_path: Path) -> None:
    model = classifier(tmp_path / "model")
    receive = export.build_raw_serving_input_receiver_fn({"x": X})
    exporters = [
        tf.estimator.FinalExporter("final", receive),
        tf.estimator.LatestExporter("latest", receive, exports_to_keep=1),
        tf.estimator.BestExporter(serving_input_receiver_fn=receive),
    ]
    for steps in (5, 10):
        evaluation = tf.estimator.EvalSpec(input_fn, 1, exporters=exporters, throttle_secs=0, start_delay_secs=0)
        result, exported = tf.estimator.train_and_evaluate(model, tf.estimator.TrainSpec(input_fn, steps), evaluation)
        assert exported[0] and exported[1] and result["loss"] > 0
    latest = list((tmp_path / "model" / "export" / "latest").iterdir())
    assert [str(p) for p in latest] == [exported[1]]
    best = exporters[2]
    folder = str(tmp_path / "model" / "export" / best.name)
    path = model.latest_checkpoint()
    assert best.export(model, folder, path, {"loss": 1e9}, False) is None
    assert best.export(model, folder, path, {"loss": -1.0}, False) is not None
    with pytest.raises(ValueError, match="must have a 'loss'"):
        best.export(model, folder, path, {}, False)


def test_what_is_refused(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        x, words = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.string, [None])
        with pytest.raises(ValueError, match="must be a Tensor"):
            export.ServingInputReceiver({"x": x}, {"x": 3})
        with pytest.raises(ValueError, match="must be a float32 Tensor"):
            export.ClassificationOutput(words)
        with pytest.raises(ValueError, match="must be a string Tensor"):
            export.ClassificationOutput(x, x)
        with pytest.raises(ValueError, match="numeric Tensor"):
            export.RegressionOutput(words)
        receiver = export.ServingInputReceiver(x, x)
        assert list(receiver.receiver_tensors) == ["input"]
        signature = export.RegressionOutput(x).as_signature_def(receiver.receiver_tensors)
        assert signature.method_name == "tensorflow/serving/predict" and list(signature.outputs) == ["outputs"]

    def model_fn(features: Any, mode: str) -> Any:
        outputs = {"a": export.PredictOutput(features["x"]), "b": export.PredictOutput(features["x"])}
        return tf.estimator.EstimatorSpec(
            mode, features["x"], tf.reduce_sum(features["x"]), tf.no_op(), export_outputs=outputs
        )

    model = tf.estimator.Estimator(model_fn, str(tmp_path))
    receive = export.build_raw_serving_input_receiver_fn({"x": X})
    with pytest.raises(ValueError, match="Could not find trained model"):
        model.export_saved_model(str(tmp_path / "out"), receive)
    with pytest.raises(ValueError, match="none of them is specified as the default"):
        model.export_saved_model(str(tmp_path / "out"), receive, checkpoint_path="unused")


def test_a_vocabulary_file_is_exported(tmp_path: Path) -> None:
    words, vocabulary = np.array(["a", "b", "c", "d"] * 8), tmp_path / "words.txt"
    vocabulary.write_text("a\nb\nc\n")
    columns = [tf.feature_column.categorical_column_with_vocabulary_file("w", str(vocabulary), num_oov_buckets=1)]
    model = tf.estimator.LinearClassifier(columns, str(tmp_path / "model"))
    model.train(tf.estimator.inputs.numpy_input_fn({"w": words}, Y, batch_size=8, shuffle=False), steps=3)
    wanted = [p["logits"] for p in model.predict(tf.estimator.inputs.numpy_input_fn({"w": words}, shuffle=False))]
    folder = model.export_saved_model(
        str(tmp_path / "out"), export.build_raw_serving_input_receiver_fn({"w": words.astype(object)})
    )
    vocabulary.unlink()
    with tf.Session(graph=tf.Graph()) as session:
        predict = tf.saved_model.load(session, ["serve"], folder).signature_def["predict"]
        got = session.run(predict.outputs["logits"].name, {predict.inputs["w"].name: words.astype(object)})
        np.testing.assert_allclose(got, wanted, 1e-6)
