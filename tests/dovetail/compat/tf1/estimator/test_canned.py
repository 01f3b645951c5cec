"""Ready-made estimators, against the same training and the same metrics in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail import feature_column as fc

RNG = np.random.default_rng(3)
COUNT = 24
AGE = RNG.uniform(-1, 1, (COUNT, 2)).astype(np.float32)
CITY = RNG.choice(["oslo", "rome", "lima"], COUNT)
WEIGHT = RNG.uniform(0.5, 2.0, COUNT).astype(np.float32)
ID = np.array([["oslo", "rome", "lima"].index(c) for c in CITY])
FEATURES = {"age": AGE, "city": CITY.astype(object), "weight": WEIGHT}
# In the order of the columns' names.
INPUTS = np.concatenate([AGE, np.eye(3, dtype=np.float32)[ID]], 1).astype(np.float64)


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield
    tf.summary.FileWriterCache.clear()


def columns() -> list[Any]:
    city = fc.categorical_column_with_vocabulary_list("city", ["oslo", "rome", "lima"])
    return [fc.numeric_column("age", (2,)), fc.indicator_column(city)]


def given(labels: Any, epochs: int | None = None) -> Callable[[], Any]:
    return tf.estimator.inputs.numpy_input_fn(FEATURES, labels, batch_size=COUNT, num_epochs=epochs, shuffle=False)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def losses(kind: str, logits: Any, labels: Any) -> tuple[Any, Any]:
    """The loss of each example, and its derivative by the logits."""
    if kind == "binary":
        p, y = sigmoid(logits), labels[:, None]
        return -(y * np.log(p) + (1 - y) * np.log(1 - p)), p - y
    if kind == "classes":
        p = softmax(logits)
        return -np.log(p[np.arange(COUNT), labels])[:, None], p - np.eye(p.shape[1])[labels]
    return (logits - labels) ** 2, 2 * (logits - labels)


LABELS = {
    "binary": (AGE[:, 0] > 0).astype(np.int64),
    "classes": RNG.integers(0, 3, COUNT),
    "numbers": np.stack([AGE.sum(1), ID], 1).astype(np.float32),
}
WIDTH = {"binary": 1, "classes": 3, "numbers": 2}
RATE = 0.01


def linear(kind: str, folder: Path, weighted: Any) -> Any:
    optimizer = tf.train.GradientDescentOptimizer(RATE)
    if kind == "numbers":
        return tf.estimator.LinearRegressor(columns(), str(folder), 2, weighted, optimizer)
    return tf.estimator.LinearClassifier(
        columns(), str(folder), max(2, WIDTH[kind]), weighted, optimizer=lambda: optimizer
    )


def dnn(kind: str, folder: Path, weighted: Any, **more: Any) -> Any:
    optimizer = tf.train.GradientDescentOptimizer(RATE)
    if kind == "numbers":
        return tf.estimator.DNNRegressor([5, 4], columns(), str(folder), 2, weighted, optimizer, tf.nn.tanh, **more)
    return tf.estimator.DNNClassifier(
        [5, 4],
        columns(),
        str(folder),
        max(2, WIDTH[kind]),
        weighted,
        optimizer=optimizer,
        activation_fn=tf.nn.tanh,
        **more,
    )


@pytest.mark.parametrize("weighted", [None, "weight", fc.numeric_column("weight")])
@pytest.mark.parametrize("kind", list(LABELS))
def test_a_linear_model_learns_as_numpy_does(kind: str, weighted: Any, tmp_path: Path) -> None:
    estimator, labels = linear(kind, tmp_path, weighted), LABELS[kind]
    estimator.train(given(labels), steps=20)
    counts = np.ones((COUNT, 1)) if weighted is None else WEIGHT[:, None].astype(np.float64)
    w, b = np.zeros((5, WIDTH[kind])), np.zeros(WIDTH[kind])
    for _ in range(20):
        slope = losses(kind, INPUTS @ w + b, labels)[1] * counts
        w, b = w - RATE * INPUTS.T @ slope, b - RATE * slope.sum(0)
    found = estimator.get_variable_value
    np.testing.assert_allclose(found("linear/linear_model/age/weights"), w[:2], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found("linear/linear_model/city_indicator/weights"), w[2:], rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(found("linear/linear_model/bias_weights"), b, rtol=1e-3, atol=1e-5)
    each, _ = losses(kind, INPUTS @ w + b, labels)
    said = estimator.evaluate(given(labels, 1))
    assert said["loss"] == pytest.approx((each * counts).sum(), rel=1e-3)
    wide = np.broadcast_to(counts, each.shape)
    assert said["average_loss"] == pytest.approx((each * wide).sum() / wide.sum(), rel=1e-3)
    assert said["global_step"] == 20


@pytest.mark.parametrize("kind", list(LABELS))
def test_a_network_learns_as_numpy_does(kind: str, tmp_path: Path) -> None:
    estimator, labels = dnn(kind, tmp_path, None), LABELS[kind]
    estimator.train(given(labels), max_steps=1)
    names = [
        f"dnn/{layer}/{part}" for layer in ("hiddenlayer_0", "hiddenlayer_1", "logits") for part in ("kernel", "bias")
    ]
    assert sorted(estimator.get_variable_names()) == sorted([*names, "global_step"])
    start = [estimator.get_variable_value(n).astype(np.float64) for n in names]
    estimator.train(given(labels), max_steps=4)
    layers = [[start[i], start[i + 1]] for i in (0, 2, 4)]
    for _ in range(3):
        values = [INPUTS]
        for i, (w, b) in enumerate(layers):
            x = values[-1] @ w + b
            values.append(np.tanh(x) if i < 2 else x)
        slope = losses(kind, values[-1], labels)[1]
        for i in (2, 1, 0):
            w, b = layers[i]
            back = slope @ w.T
            layers[i] = [w - RATE * values[i].T @ slope, b - RATE * slope.sum(0)]
            slope = back * (1 - values[i] ** 2)
    for name, expected in zip(names, [v for layer in layers for v in layer], strict=True):
        np.testing.assert_allclose(estimator.get_variable_value(name), expected, rtol=2e-3, atol=1e-5)


def test_what_a_classifier_of_two_classes_says(tmp_path: Path) -> None:
    labels = LABELS["binary"]
    estimator = linear("binary", tmp_path, "weight")
    estimator.train(given(labels), steps=3)
    found = list(estimator.predict(given(None, 1)))
    logits = np.array([p["logits"][0] for p in found])
    p = sigmoid(logits.astype(np.float64))
    np.testing.assert_allclose([f["logistic"][0] for f in found], p, rtol=1e-5)
    np.testing.assert_allclose([f["probabilities"] for f in found], np.stack([1 - p, p], 1), rtol=1e-5)
    ids = (p > 0.5).astype(int)
    assert [f["class_ids"].tolist() for f in found] == [[i] for i in ids]
    assert [f["classes"].tolist() for f in found] == [[b"1" if i else b"0"] for i in ids]
    w = WEIGHT.astype(np.float64)
    said = estimator.evaluate(given(labels, 1))
    expected = {
        "accuracy": (w * (ids == labels)).sum() / w.sum(),
        "precision": (w * ids * labels).sum() / (w * ids).sum(),
        "recall": (w * ids * labels).sum() / (w * labels).sum(),
        "prediction/mean": (w * p).sum() / w.sum(),
        "label/mean": (w * labels).sum() / w.sum(),
    }
    expected["accuracy_baseline"] = max(expected["label/mean"], 1 - expected["label/mean"])
    pairs = [(i, j) for i in range(COUNT) for j in range(COUNT) if labels[i] and not labels[j]]
    ranked = sum(w[i] * w[j] * ((p[i] > p[j]) + 0.5 * (p[i] == p[j])) for i, j in pairs)
    expected["auc"] = ranked / sum(w[i] * w[j] for i, j in pairs)
    assert set(said) == {*expected, "auc_precision_recall", "average_loss", "loss", "global_step"}
    for name, value in expected.items():
        assert said[name] == pytest.approx(value, rel=0.03 if name == "auc" else 1e-4), name


def test_labels_may_be_text(tmp_path: Path) -> None:
    names = ["cold", "warm", "hot"]
    words = np.array(names, object)[LABELS["classes"]]
    by_name = tf.estimator.LinearClassifier(columns(), str(tmp_path / "a"), 3, label_vocabulary=names)
    by_number = tf.estimator.LinearClassifier(columns(), str(tmp_path / "b"), 3)
    by_name.train(given(words), steps=10)
    by_number.train(given(LABELS["classes"]), steps=10)
    a, b = by_name.evaluate(given(words, 1)), by_number.evaluate(given(LABELS["classes"], 1))
    assert a == b and set(a) == {"accuracy", "average_loss", "loss", "global_step"}
    first, other = next(by_name.predict(given(None, 1))), next(by_number.predict(given(None, 1)))
    assert first["classes"][0].decode() == names[other["class_ids"][0]] and other["classes"][0].decode() in "012"
    with pytest.raises(ValueError, match="label_vocabulary"):
        by_number.train(given(words), steps=1)
    with pytest.raises(ValueError, match="should be string"):
        by_name.train(given(LABELS["classes"]), steps=1)


def test_embeddings_dropout_and_normalization_train(tmp_path: Path) -> None:
    city = fc.categorical_column_with_hash_bucket("city", 50)
    crossed = fc.crossed_column([fc.bucketized_column(fc.numeric_column("weight"), [1.0]), "city"], 50)
    estimator = tf.estimator.DNNClassifier(
        [16], [fc.embedding_column(city, 4), fc.embedding_column(crossed, 4, "sqrtn")], str(tmp_path), 3, optimizer="Adam",
        dropout=0.1, input_layer_partitioner=tf.fixed_size_partitioner(2),
    )  # fmt: skip
    estimator.train(given(ID), steps=150)
    found = estimator.evaluate(given(ID, 1))
    assert found["loss"] < COUNT * np.log(3) / 2
    normalized = dnn("numbers", tmp_path / "normalized", None, batch_norm=True)
    normalized.train(given(LABELS["numbers"]), steps=2)
    moved = normalized.get_variable_value("dnn/batchnorm_1/moving_mean")
    assert np.abs(moved).max() > 0  # it follows the batches, by and by


def test_what_is_refused(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with pytest.raises(ValueError, match="n_classes"):
        tf.estimator.LinearClassifier(columns(), folder, 1)
    with pytest.raises(ValueError, match="label_vocabulary"):
        tf.estimator.DNNClassifier([3], columns(), folder, 3, label_vocabulary=["a"])
    with pytest.raises(ValueError, match="label_dimension"):
        tf.estimator.LinearRegressor(columns(), folder, 0)
    with pytest.raises(ValueError, match="loss_reduction"):
        tf.estimator.LinearRegressor(columns(), folder, loss_reduction="none")
    with pytest.raises(ValueError, match="Unsupported optimizer"):
        tf.estimator.LinearRegressor(columns(), folder, optimizer="Best").train(given(LABELS["numbers"][:, 0]), steps=1)
    with pytest.raises(ValueError, match="labels"):
        tf.estimator.LinearRegressor(columns(), folder).train(given(None), steps=1)
    with pytest.raises(ValueError, match="dictionary"):
        tf.estimator.LinearRegressor(columns(), folder).train(
            lambda: (tf.constant([[1.0]]), tf.constant([1.0])), steps=1
        )
