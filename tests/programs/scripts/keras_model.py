"""A model of layers, trained under a strategy: the same program in every process. Prints what came out, as JSON.

python keras_model.py STRATEGY EPOCHS BATCH     TF_CONFIG says which cluster, and which task this is
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading

import numpy as np

import dovetail as tf
from dovetail import keras
from dovetail.tools.demo.data import load_digits


def make_strategy(name: str) -> tf.distribute.Strategy:
    """The strategy of that name."""
    experimental = tf.distribute.experimental
    match name:
        case "mirrored":
            return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
        case "central":
            return experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1"], parameter_device="/cpu:0")
        case "one":
            return tf.distribute.OneDeviceStrategy("/cpu:0")
        case "multiworker":
            return experimental.MultiWorkerMirroredStrategy()
        case "ring":
            return experimental.MultiWorkerMirroredStrategy(experimental.CollectiveCommunication.RING)
        case "ps":
            return experimental.ParameterServerStrategy()
    raise ValueError(name)


def start_of(weights: list[np.ndarray]) -> list[np.ndarray]:
    """First weights that are the same in every process and under every strategy."""
    rng = np.random.default_rng(1)
    return [
        rng.normal(scale=(2.0 / w.shape[0]) ** 0.5, size=w.shape).astype(np.float32) * (w.ndim > 1) for w in weights
    ]


def train(name: str, epochs: int, batch: int) -> dict:
    """Train, and say how well it went."""
    strategy = make_strategy(name)
    resolver = strategy.cluster_resolver
    if resolver is not None and resolver.task_type == "ps":
        strategy.server.join()
    digits = load_digits()
    tf.set_random_seed(1)
    with strategy.scope():
        model = keras.models.Sequential(
            [
                keras.layers.Dense(64, activation="relu", input_shape=(64,)),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        rate = keras.optimizers.schedules.CosineDecay(0.1, epochs * 22)
        model.compile(keras.optimizers.SGD(rate, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        normed = keras.models.Sequential([keras.layers.BatchNormalization(momentum=0.9), keras.layers.Dense(10)])
        normed.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if strategy.extended.experimental_should_init or name != "ps":
        model.set_weights(start_of(model.get_weights()))
    x, y = digits.train_images, digits.train_labels
    history = model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0)
    loss, accuracy = model.evaluate(digits.test_images, digits.test_labels, batch_size=101, verbose=0)
    own = (model.predict(digits.test_images).argmax(1) == digits.test_labels).mean()
    weights = model.get_weights()
    if name != "ps":  # an odd last batch, of fewer rows than there are replicas
        normed.fit(x[:193], y[:193], batch_size=64, epochs=2, verbose=0)
        weights += normed.get_weights()
    return {
        "accuracy": accuracy, "loss": loss, "own": float(own), "steps": int(keras.backend.get_value(model.optimizer.iterations)),
        "history": history.history, "exactly": hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest(),
        "some": [w.ravel()[:3].tolist() for w in weights[:4]],
    }  # fmt: skip


if __name__ == "__main__":
    print("RESULT " + json.dumps(train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))), flush=True)
    if not sys.stdin.isatty():  # a task goes on serving until its parent closes the pipe
        ended = threading.Thread(target=sys.stdin.buffer.read, daemon=True)
        ended.start()
        ended.join()
