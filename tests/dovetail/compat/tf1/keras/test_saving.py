"""Models on disk: what is written comes back, and goes on as if nothing had been."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import dovetail as dt
from dovetail import keras

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 6, 6, 1)).astype(np.float32)
Y = np.arange(24) % 3


def net() -> keras.Model:
    x = keras.Input([6, 6, 1], name="image")
    h = L.Conv2D(4, 3, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(x)
    h = L.BatchNormalization(momentum=0.9)(h)
    h = L.Add()([h, L.Conv2D(4, 1, padding="same", kernel_initializer=keras.initializers.HeNormal(seed=3))(h)])
    h = L.Flatten()(L.MaxPooling2D(2)(h))
    return keras.Model(x, L.Dense(3, activation="softmax", name="kind")(L.Dropout(0.1)(h)))


@pytest.mark.parametrize("optimizer", ["adam", "nadam", keras.optimizers.SGD(0.05, momentum=0.9)])
def test_a_model_that_comes_back_goes_on_training_as_before(tmp_path: Path, optimizer: object) -> None:
    given = keras.optimizers.serialize(keras.optimizers.get(optimizer))
    model = net()
    model.layers[-2].rate = 0.0
    loss = keras.losses.SparseCategoricalCrossentropy()
    model.compile(
        keras.optimizers.deserialize(given),
        loss,
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(k=2)],
    )
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    model.save(tmp_path / "model")
    again = keras.models.load_model(tmp_path / "model")
    np.testing.assert_allclose(again.predict(X), model.predict(X), rtol=1e-6)
    assert again.evaluate(X, Y, verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-5)
    for m in (model, again):
        m.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert again.get_config() | {"name": ""} == model.get_config() | {"name": ""}


def test_a_copy_has_weights_of_its_own() -> None:
    model = net()
    for again in (keras.models.clone_model(model), keras.models.model_from_json(model.to_json())):
        assert not {id(w) for w in model.weights} & {id(w) for w in again.weights}
        again.set_weights(model.get_weights())
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


def test_a_file_says_what_it_is(tmp_path: Path) -> None:
    model = keras.Sequential([L.Embedding(5, 2, input_length=4), L.LSTM(3), L.Dense(1)])
    model.compile("rmsprop", "mse")
    model.save(tmp_path / "model")
    with safe_open(tmp_path / "model", "numpy") as file:
        metadata = file.metadata()
        names = set(file.keys())
    assert metadata["format"] == "dovetail-keras-1"
    written = json.loads(metadata["model"])
    assert written["class_name"] == "Sequential"
    assert [layer["class_name"] for layer in written["config"]["layers"]] == ["Embedding", "LSTM", "Dense"]
    assert json.loads(metadata["training"])["optimizer"]["class_name"] == "RMSprop"
    assert {"embedding/embeddings", "lstm/recurrent_kernel", "dense/bias"} <= names


def every_layer() -> list[object]:
    return [
        L.Dense(2, kernel_constraint="max_norm"), L.Conv1D(2, 2, padding="causal"), L.Conv2DTranspose(2, 3), L.DepthwiseConv2D(2),
        L.ZeroPadding2D(1), L.Reshape([2, -1]), L.Permute([2, 1]), L.RepeatVector(2), L.Rescaling(0.5), L.LeakyReLU(0.1), L.ReLU(6.0),
        L.Softmax(0), L.SpatialDropout1D(0.1), L.Masking(1.0), L.AveragePooling1D(3), L.GlobalMaxPooling2D(keepdims=True),
        L.LayerNormalization(axis=[1, 2]), L.GRU(3, reset_after=False), L.SimpleRNN(2, unroll=True), L.Bidirectional(L.LSTM(2)),
        L.TimeDistributed(L.Dense(2)), L.MultiHeadAttention(2, 3, value_dim=4), L.Dot(1), L.Concatenate(axis=1), L.Activation("gelu"),
    ]  # fmt: skip


def test_every_layer_is_made_again_from_its_config() -> None:
    for layer in every_layer():
        config = json.loads(json.dumps(layer.get_config()))
        again = type(layer).from_config(config)
        assert json.loads(json.dumps(again.get_config())) == config, layer


def test_weights_alone(tmp_path: Path) -> None:
    first, second = net(), net()
    first.save_weights(tmp_path / "weights")
    second.load_weights(tmp_path / "weights")
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    with pytest.raises(FileExistsError):
        first.save_weights(tmp_path / "weights", overwrite=False)
    with pytest.raises(ValueError, match="has weights only"):
        keras.models.load_model(tmp_path / "weights")
    other = keras.Sequential([L.Dense(3, input_shape=(4,))])
    with pytest.raises(ValueError, match=r"does not fit 'sequential': it lacks \['dense/kernel'"):
        other.load_weights(tmp_path / "weights")
    with pytest.raises(FileNotFoundError):
        other.load_weights(tmp_path / "nothing")


class Twice(L.Layer):
    def call(self, inputs):
        return inputs * 2.0


def halved(x):
    return x * 0.5


def test_classes_and_functions_of_ones_own(tmp_path: Path) -> None:
    model = keras.Sequential([Twice(input_shape=(3,)), L.Lambda(halved), L.Dense(1, activation=halved)])
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="Unknown layer: 'Twice'"):
        keras.models.load_model(tmp_path / "model")
    again = keras.models.load_model(tmp_path / "model", custom_objects={"Twice": Twice, "halved": halved})
    x = RNG.standard_normal((4, 3)).astype(np.float32)
    np.testing.assert_allclose(again.predict(x), model.predict(x), rtol=1e-6)
    x = keras.Input([3])
    with pytest.raises(ValueError, match="cannot be saved: put what makes it into a layer"):
        keras.Model(x, x * 2.0).save(tmp_path / "other")


def test_under_a_strategy_and_back(tmp_path: Path) -> None:
    with dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        model = net()
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "model")
    alone = keras.models.load_model(tmp_path / "model")
    np.testing.assert_allclose(alone.predict(X), model.predict(X), rtol=1e-5, atol=1e-6)
    with dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        again = keras.models.load_model(tmp_path / "model")
    assert int(keras.backend.get_value(again.optimizer.iterations)) == 1
    again.fit(X, Y, verbose=0)


class Scaled(L.Layer):
    """A layer whose config is what programs have at hand: arrays, numbers of NumPy, types, shapes."""

    def __init__(self, by: object, power: object, to: object, last: object, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.by, self.power, self.to, self.last = np.asarray(by, np.float32), int(power), dt.as_dtype(to), list(last)

    def call(self, inputs: dt.Tensor) -> dt.Tensor:
        return dt.cast(inputs * self.by**self.power, self.to)

    def get_config(self) -> dict[str, object]:
        own = {"by": self.by, "power": np.int64(self.power), "to": self.to, "last": dt.TensorShape(self.last)}
        return super().get_config() | own


def test_configs_may_hold_arrays_numbers_of_numpy_and_types(tmp_path: Path) -> None:
    kernel = RNG.standard_normal((3, 2)).astype(np.float32)
    layers = [L.Dense(2, kernel_initializer=dt.constant_initializer(kernel)), Scaled([1, 2], 2, dt.float64, [4, 5])]
    model = keras.Sequential(layers)
    x = X[:, 0, :3, 0]
    expected = model.predict(x)
    np.testing.assert_allclose(expected, x @ kernel * [1, 4], rtol=1e-5)
    model.save(tmp_path / "m")
    for found in (
        keras.models.load_model(tmp_path / "m", {"Scaled": Scaled}),
        keras.models.model_from_json(model.to_json(), {"Scaled": Scaled}),
    ):
        np.testing.assert_array_equal(found.predict(x), expected)
