"""What is compared with Keras: layers, optimizers and short trainings. Read by Keras' side (record.py) and by the tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class LayerCase:
    """A layer, and what it is called with."""

    make: Callable[[Any], Any]
    shapes: tuple[tuple[int, ...], ...]
    call: dict[str, Any] = field(default_factory=dict)
    ids: int = 0  # whole numbers below this, instead of floats


def _l(make: Callable[[Any], Any], *shapes: tuple[int, ...], ids: int = 0, **call: Any) -> LayerCase:
    return LayerCase(lambda keras: make(keras.layers), shapes, call, ids)


IMAGE = (2, 5, 6, 3)
STEPS = (3, 4, 5)
LAYERS: dict[str, LayerCase] = {
    "dense": _l(lambda L: L.Dense(4, activation="tanh"), (3, 5)),
    "dense_steps": _l(lambda L: L.Dense(4, activation="gelu"), STEPS),
    "conv2d": _l(lambda L: L.Conv2D(4, 3, strides=2, padding="same", activation="relu"), IMAGE),
    "conv2d_valid": _l(lambda L: L.Conv2D(2, (2, 3), dilation_rate=(1, 2)), IMAGE),
    "conv1d_causal": _l(lambda L: L.Conv1D(3, 3, padding="causal", dilation_rate=2), (2, 7, 2)),
    "conv1d": _l(lambda L: L.Conv1D(3, 2, strides=2), (2, 7, 2)),
    "depthwise": _l(lambda L: L.DepthwiseConv2D(3, depth_multiplier=2, padding="same"), IMAGE),
    "conv2d_transpose": _l(lambda L: L.Conv2DTranspose(2, 3, strides=2), (2, 3, 4, 3)),
    "conv2d_transpose_same": _l(lambda L: L.Conv2DTranspose(2, 3, strides=2, padding="same"), (2, 3, 4, 3)),
    "max_pooling": _l(lambda L: L.MaxPooling2D(2, padding="same"), IMAGE),
    "average_pooling": _l(lambda L: L.AveragePooling2D((2, 3), strides=1, padding="same"), IMAGE),
    "average_pooling1d": _l(lambda L: L.AveragePooling1D(2), (2, 7, 3)),
    "global_average_pooling": _l(lambda L: L.GlobalAveragePooling2D(), IMAGE),
    "batch_norm_train": _l(lambda L: L.BatchNormalization(momentum=0.8), IMAGE, training=True),
    "batch_norm_features": _l(lambda L: L.BatchNormalization(momentum=0.8), (6, 4), training=True),
    "batch_norm_no_scale": _l(lambda L: L.BatchNormalization(scale=False, axis=1), IMAGE, training=True),
    "batch_norm_use": _l(lambda L: L.BatchNormalization(), IMAGE, training=False),
    "layer_norm": _l(lambda L: L.LayerNormalization(), STEPS),
    "layer_norm_axes": _l(lambda L: L.LayerNormalization(axis=[1, 2], epsilon=1e-5), STEPS),
    "embedding": _l(lambda L: L.Embedding(7, 3), (2, 5), ids=7),
    "simple_rnn": _l(lambda L: L.SimpleRNN(4), STEPS),
    "lstm": _l(lambda L: L.LSTM(4), STEPS),
    "lstm_sequences": _l(lambda L: L.LSTM(4, return_sequences=True, return_state=True), STEPS),
    "lstm_backwards": _l(lambda L: L.LSTM(3, go_backwards=True, recurrent_activation="hard_sigmoid"), STEPS),
    "gru": _l(lambda L: L.GRU(4), STEPS),
    "gru_before": _l(lambda L: L.GRU(4, reset_after=False, return_sequences=True), STEPS),
    "bidirectional": _l(lambda L: L.Bidirectional(L.LSTM(3, return_sequences=True)), STEPS),
    "attention": _l(lambda L: L.MultiHeadAttention(2, 3), (2, 4, 5), (2, 6, 5)),
    "attention_causal": _l(
        lambda L: L.MultiHeadAttention(2, 3, value_dim=4, output_shape=7), (2, 4, 5), (2, 4, 5), use_causal_mask=True
    ),
}

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda k: k.optimizers.SGD(0.1),
    "momentum": lambda k: k.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda k: k.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda k: k.optimizers.Adam(0.1),
    "amsgrad": lambda k: k.optimizers.Adam(0.1, amsgrad=True),
    "adamw": lambda k: k.optimizers.AdamW(0.1, weight_decay=0.1),
    "rmsprop": lambda k: k.optimizers.RMSprop(0.1, momentum=0.5),
    "rmsprop_centered": lambda k: k.optimizers.RMSprop(0.1, centered=True),
    "adagrad": lambda k: k.optimizers.Adagrad(0.1),
    "adadelta": lambda k: k.optimizers.Adadelta(1.0),
    "adamax": lambda k: k.optimizers.Adamax(0.1),
    "nadam": lambda k: k.optimizers.Nadam(0.1),
    "sgd_decayed_weights": lambda k: k.optimizers.SGD(0.1, weight_decay=0.1),
    "clipnorm": lambda k: k.optimizers.SGD(0.1, clipnorm=0.5),
    "clipvalue": lambda k: k.optimizers.SGD(0.1, clipvalue=0.2),
    "global_clipnorm": lambda k: k.optimizers.SGD(0.1, global_clipnorm=0.7),
    "exponential": lambda k: k.optimizers.SGD(k.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "piecewise": lambda k: k.optimizers.SGD(k.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.05, 0.01])),
    "cosine": lambda k: k.optimizers.SGD(k.optimizers.schedules.CosineDecay(0.1, 4, alpha=0.1)),
}


@dataclass(frozen=True)
class FitCase:
    """A short training: layers, how they are compiled, how they are trained."""

    layers: Callable[[Any], list[Any]]
    shape: tuple[int, ...]
    compile: Callable[[Any], dict[str, Any]]
    fit: dict[str, Any]
    targets: str = "classes"
    weighted: str = ""


FITS: dict[str, FitCase] = {
    "classes": FitCase(
        lambda L: [L.Dense(8, activation="relu"), L.Dense(3, activation="softmax")], (4,),
        lambda k: {"optimizer": k.optimizers.Adam(0.01), "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        {"batch_size": 8, "validation_split": 0.25},
    ),
    "images": FitCase(
        lambda L: [L.Conv2D(3, 3, activation="relu"), L.BatchNormalization(momentum=0.9), L.MaxPooling2D(), L.Flatten(), L.Dense(3)],
        (6, 6, 2),
        lambda k: {
            "optimizer": k.optimizers.SGD(0.05, momentum=0.9), "loss": k.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        },
        {"batch_size": 10},
    ),
    "regression": FitCase(
        lambda L: [L.Dense(6, activation="tanh", kernel_regularizer="l2"), L.LayerNormalization(), L.Dense(1)], (4,),
        lambda k: {"optimizer": k.optimizers.RMSprop(0.01), "loss": k.losses.Huber(0.5), "metrics": ["mae", "mse"]},
        {"batch_size": 16}, "numbers",
    ),
    "binary": FitCase(
        lambda L: [L.Dense(5, activation="elu"), L.Dense(1, activation="sigmoid")], (4,),
        lambda k: {
            "optimizer": "adagrad", "loss": "binary_crossentropy",
            "metrics": ["accuracy", k.metrics.Precision(name="precision"), k.metrics.Recall(name="recall"), k.metrics.AUC(name="auc")],
        },
        {"batch_size": 7}, "two",
    ),
    "class_weights": FitCase(
        lambda L: [L.Dense(3, activation="softmax")], (4,),
        lambda k: {"optimizer": k.optimizers.SGD(0.1), "loss": "categorical_crossentropy", "weighted_metrics": ["accuracy"]},
        {"batch_size": 8, "class_weight": {0: 1.0, 1: 3.0, 2: 0.5}}, "one_hot",
    ),
    "sample_weights": FitCase(
        lambda L: [L.Dense(1)], (4,),
        lambda k: {"optimizer": k.optimizers.Nadam(0.05), "loss": "mse", "weighted_metrics": ["mae"]},
        {"batch_size": 8}, "numbers", "samples",
    ),
    "sequences": FitCase(
        lambda L: [L.Embedding(9, 4, mask_zero=True), L.LSTM(5), L.Dense(3, activation="softmax")], (6,),
        # No Adam: where a row is looked up twice, Keras adds the squares of its gradients, not the gradients.
        lambda k: {"optimizer": k.optimizers.SGD(0.5), "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]},
        {"batch_size": 12}, "classes",
    ),
}  # fmt: skip


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write arrays as one, with an index of their names and shapes: each entry of a zip file would cost more than most of them."""
    flat = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    index = json.dumps({k: v.shape for k, v in flat.items()})
    np.savez_compressed(path, numbers=np.concatenate([v.ravel() for v in flat.values()]), index=np.array(index))


def load(path: Path) -> dict[str, np.ndarray]:
    """The arrays that `save` wrote."""
    with np.load(path) as found:
        numbers, shapes = found["numbers"], json.loads(str(found["index"]))
    ends = np.cumsum([int(np.prod(s)) for s in shapes.values()])
    parts = np.split(numbers, ends[:-1])
    return {k: part.reshape(shape) for (k, shape), part in zip(shapes.items(), parts, strict=True)}


def layer_input(name: str) -> list[np.ndarray]:
    """What a layer is called with."""
    case, rng = LAYERS[name], np.random.default_rng(1)
    if case.ids:
        return [rng.integers(0, case.ids, s).astype(np.int32) for s in case.shapes]
    return [rng.standard_normal(s).astype(np.float32) for s in case.shapes]


def start_of(weight: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A first value for a weight: positive for vectors, which may be variances."""
    value = rng.standard_normal(weight.shape) * 0.4
    return (np.abs(value) + 0.5 if weight.ndim == 1 else value).astype(np.float32)


def gradients_of() -> list[np.ndarray]:
    """Five gradients."""
    rng = np.random.default_rng(2)
    return [rng.standard_normal((3, 2)).astype(np.float32) for _ in range(5)]


def fit_model(keras: Any, case: FitCase) -> Any:
    """The compiled model of a training."""
    kind = "int32" if len(case.shape) == 1 and case.shape[0] == 6 else "float32"
    model = keras.Sequential([keras.Input(case.shape, dtype=kind), *case.layers(keras.layers)])
    model.compile(**case.compile(keras))
    return model


def data_of(case: FitCase) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Inputs, targets, and weights."""
    rng = np.random.default_rng(5)
    rows = 40
    if case.shape == (6,):
        x = rng.integers(1, 9, (rows, 6)).astype(np.int32)
        x[np.arange(6) >= rng.integers(1, 7, (rows, 1))] = 0
        y = x[:, 0] % 3
        return x, y.astype(np.int64), {}
    x = rng.standard_normal((rows, *case.shape)).astype(np.float32)
    score = x.reshape(rows, -1)[:, :3] @ rng.standard_normal((3, 3)).astype(np.float32)
    y = score.argmax(1).astype(np.int64)
    targets = {
        "classes": y, "one_hot": np.eye(3, dtype=np.float32)[y], "two": (score[:, :1] > 0).astype(np.float32),
        "numbers": score[:, :1],
    }  # fmt: skip
    more = {"sample_weight": rng.uniform(0, 2, rows).astype(np.float32)} if case.weighted else {}
    return x, targets[case.targets], more
