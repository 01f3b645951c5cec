"""Models: how layers become one, what they are called, what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail import keras

L = keras.layers
X = np.random.default_rng(0).standard_normal((12, 4)).astype(np.float32)


def test_a_functional_model_computes_what_its_layers_compute() -> None:
    x = keras.Input([4])
    h = L.Dense(3, activation="tanh")(x)
    model = keras.Model(x, L.Concatenate()([h, L.Dense(2)(h)]))
    a, b, c, d = model.get_weights()
    first = np.tanh(X @ a + b)
    np.testing.assert_allclose(model.predict(X), np.concatenate([first, first @ c + d], 1), rtol=1e-5, atol=1e-6)
    assert [layer.name for layer in model.layers] == ["input", "dense", "dense_1", "concatenate"]
    assert model.output_shape == (None, 5)


def test_shared_layers_nodes_between_layers_and_nested_models() -> None:
    x, y = keras.Input([4], name="left"), keras.Input([4], name="right")
    tower = keras.Sequential([L.Dense(3, activation="relu"), L.Dense(2)])
    model = keras.Model([x, y], tower(x) * 2.0 - tower(y))
    assert len(model.trainable_weights) == 4
    one = keras.Model(x, tower(x))
    np.testing.assert_allclose(model.predict([X, X + 1]), 2 * one.predict(X) - one.predict(X + 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.predict({"right": X + 1, "left": X}), model.predict([X, X + 1]))


def test_several_outputs_are_trained_together() -> None:
    x = keras.Input([4])
    h = L.Dense(8, activation="relu")(x)
    model = keras.Model(x, {"kind": L.Dense(3, activation="softmax")(h), "size": L.Dense(1)(h)})
    model.compile(
        keras.optimizers.Adam(0.05),
        loss={"kind": "sparse_categorical_crossentropy", "size": "mse"},
        loss_weights={"size": 0.1},
        metrics={"kind": ["accuracy"]},
    )
    targets = {"kind": np.arange(12) % 3, "size": X[:, :1]}
    history = model.fit(X, targets, epochs=30, verbose=0).history
    assert set(history) == {"loss", "kind_loss", "size_loss", "kind_accuracy"}
    np.testing.assert_allclose(
        history["loss"][-1], history["kind_loss"][-1] + 0.1 * history["size_loss"][-1], rtol=1e-4
    )
    assert history["loss"][-1] < history["loss"][0]
    assert set(model.predict(X)) == {"kind", "size"}


def test_a_subclass_builds_when_it_sees_data() -> None:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.rate, self.last = L.Dense(6, activation="relu"), L.Dropout(0.5), L.Dense(1)

        def call(self, inputs, training=None):
            return self.last(self.rate(self.first(inputs), training=training))

    model = Net()
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], epochs=1, verbose=0)
    a, b, c, d = model.get_weights()
    np.testing.assert_allclose(model.predict(X), np.maximum(X @ a + b, 0) @ c + d, rtol=1e-5, atol=1e-5)
    assert [w.op.name for w in model.weights] == ["dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias"]


def test_a_layer_of_ones_own() -> None:
    class Scale(L.Layer):
        def build(self, input_shape):
            self.factor = self.add_weight("factor", [input_shape[-1]], initializer="ones", regularizer="l2")

        def call(self, inputs):
            self.add_loss(0.5 * dt.reduce_mean(dt.square(inputs)))
            return inputs * self.factor

    model = keras.Sequential([Scale(), L.Dense(1)])
    model.compile("sgd", "mse")
    start = model.fit(X, np.zeros((12, 1)), epochs=1, verbose=0, batch_size=12).history["loss"][0]
    assert start > 0.5 * np.mean(X**2) + 0.04 - 1e-5  # beside the error: what the layer adds, and 0.01 * 4
    assert len(model.losses) == 1


def test_a_sequential_grows_shrinks_and_builds_by_a_shape() -> None:
    model = keras.Sequential([L.Dense(3)])
    model.add(L.Dense(2))
    assert not model.built
    model.build([None, 4])
    assert [w.shape.as_list() for w in model.weights] == [[4, 3], [3], [3, 2], [2]]
    model.pop()
    assert model.predict(X).shape == (12, 3)
    lines: list[str] = []
    model.summary(print_fn=lines.append)
    assert any("dense (Dense)" in line and "(None, 3)" in line and line.endswith("15") for line in lines)
    assert "Total params: 15" in lines


def test_layers_that_are_not_trained_stay() -> None:
    model = keras.Sequential([L.Dense(3, input_shape=(4,)), L.BatchNormalization(), L.Dense(1)])
    model.layers[0].trainable = model.layers[1].trainable = False
    model.compile("sgd", "mse")
    before = model.get_weights()
    model.fit(X, X[:, :1], epochs=1, verbose=0)
    same = [np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert same == [True] * 6 + [False] * 2


def test_names_are_numbered_and_weights_follow_them() -> None:
    a, b = L.Dense(1), L.Dense(1)
    a(dt.constant(X)), b(dt.constant(X))
    assert [w.op.name for w in [*a.weights, *b.weights]] == [
        "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias",
    ]  # fmt: skip
    keras.backend.clear_session()
    assert L.Dense(1).name == "dense"


def test_what_is_refused() -> None:
    x = keras.Input([4])
    with pytest.raises(ValueError, match="made by `keras.Input`"):
        keras.Model(dt.constant(X), L.Dense(1)(x))
    with pytest.raises(ValueError, match="does not depend on the inputs"):
        keras.Model(x, dt.constant(X))
    with pytest.raises(ValueError, match="not among the model's inputs"):
        keras.Model(x, L.Add()([x, keras.Input([4])]))
    with pytest.raises(ValueError, match="needs to know the size"):
        L.Dense(2)(keras.Input([None]))
    with pytest.raises(ValueError, match=r"Unknown activation: 'rleu'.*relu"):
        L.Dense(2, activation="rleu")
    with pytest.raises(TypeError, match="no argument 'colour'"):
        L.Dense(2, colour="red")
    with pytest.raises(TypeError, match="consists of layers"):
        keras.Sequential([3])
    with pytest.raises(ValueError, match="called 'a' already"):
        keras.Sequential([L.Dense(1, name="a"), L.Dense(1, name="a")])
    with pytest.raises(ValueError, match="No such layer: 'b'"):
        keras.Sequential([L.Dense(1, name="a")]).get_layer("b")
    with pytest.raises(ValueError, match="stateful=True is not supported"):
        L.LSTM(2, stateful=True)
    with pytest.raises(RuntimeError, match="compile"):
        keras.Sequential([L.Dense(1)]).fit(X, X)


def test_masks_travel_from_the_embedding_to_the_loss() -> None:
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 6]], np.int32)
    model = keras.Sequential([L.Embedding(7, 3, mask_zero=True), L.GRU(4, return_sequences=True), L.Dense(1)])
    model.compile("sgd", "mse")
    target = np.ones((2, 4, 1), np.float32)
    loss = model.evaluate(ids, target, verbose=0)
    error = (model.predict(ids)[..., 0] - 1) ** 2
    kept = ids > 0
    np.testing.assert_allclose(loss, error[kept].mean(), rtol=1e-5)


def test_a_masked_mean_leaves_padding_out() -> None:
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 6]], np.int32)
    model = keras.Sequential([L.Embedding(7, 3, mask_zero=True), L.GlobalAveragePooling1D()])
    table = model(dt.constant(ids)) is not None and model.get_weights()[0]
    np.testing.assert_allclose(model.predict(ids)[0], table[[1, 2]].mean(0), rtol=1e-5)


@pytest.mark.parametrize("unroll", [False, True])
def test_a_masked_step_changes_no_state(unroll: bool) -> None:
    x = np.random.default_rng(1).standard_normal((2, 5, 3)).astype(np.float32)
    x[0, 3:] = 0
    layer = L.LSTM(4, unroll=unroll)
    model = keras.Sequential([L.Masking(input_shape=(5, 3)), layer])
    whole = model.predict(x)
    short = keras.backend.get_session().run(layer(dt.constant(x[:1, :3])))
    np.testing.assert_allclose(whole[:1], short, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("unroll", [False, True])
def test_masked_steps_of_both_directions_are_zeros(unroll: bool) -> None:
    x = np.random.default_rng(1).standard_normal((1, 5, 3)).astype(np.float32)
    x[:, 3:] = 0
    layer = L.Bidirectional(L.GRU(4, return_sequences=True, unroll=unroll))
    whole = keras.Sequential([L.Masking(input_shape=(5, 3)), layer]).predict(x)
    session = keras.backend.get_session()
    np.testing.assert_allclose(whole[:, :3], session.run(layer(dt.constant(x[:, :3]))), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(whole[:, 3:], np.zeros((1, 2, 8)))
    last = L.GRU(4, unroll=unroll, zero_output_for_mask=True)
    assert not keras.Sequential([L.Masking(input_shape=(5, 3)), last]).predict(x).any()


def test_a_model_of_one_input_and_output_in_lists_gives_arrays() -> None:
    given = keras.Input((3,))
    model = keras.Model(inputs=[given], outputs=[L.Dense(2, kernel_initializer="ones")(given)])
    model.compile(loss="mse", optimizer="sgd")
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    expected = np.repeat(x.sum(1, keepdims=True), 2, axis=1)
    for found in (model.predict(x), model.predict_on_batch(x), model.predict([x])):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected)
    assert isinstance(model.output, dt.Tensor) and isinstance(model(dt.constant(x)), dt.Tensor)
    assert (model.input_shape, model.output_shape) == ((None, 3), (None, 2))
    assert model.evaluate(x, expected, verbose=0) == 0
    again = keras.Model.from_config(model.get_config())
    assert isinstance(again.output, dt.Tensor)


def test_the_session_of_keras_gives_weights_their_first_values() -> None:
    model = keras.Sequential([L.Dense(2, kernel_initializer="ones", bias_initializer="ones", input_shape=(3,))])
    session = keras.backend.get_session()
    np.testing.assert_array_equal(session.run(model.output, {model.input: [[1.0, 2.0, 3.0]]}), [[7.0, 7.0]])
    model.set_weights([np.zeros((3, 2)), [5.0, 6.0]])
    later = L.Dense(1, kernel_initializer="ones")(model.output)
    with dt.Session() as own:  # an open session has its own values
        np.testing.assert_array_equal(
            keras.backend.get_session().run(later, {model.input: [[1.0, 2.0, 3.0]]}), [[14.0]]
        )
        assert keras.backend.get_session() is own
    np.testing.assert_array_equal(keras.backend.get_session().run(later, {model.input: [[1.0, 2.0, 3.0]]}), [[11.0]])


def test_a_model_in_a_users_own_graph_and_session() -> None:
    x = dt.placeholder(dt.float32, [None, 4])
    layer = L.Dense(2)
    y = layer(x)
    train = dt.train.GradientDescentOptimizer(0.1).minimize(dt.reduce_mean(dt.square(y)), var_list=layer.weights)
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        before = session.run(y, {x: X})
        for _ in range(20):
            session.run(train, {x: X})
        assert np.square(session.run(y, {x: X})).mean() < np.square(before).mean()


def test_a_layer_may_stand_twice_in_a_sequential() -> None:
    pool, dense = L.MaxPooling2D(2), L.Dense(3)
    model = keras.Sequential([keras.Input([8, 8, 3]), dense, pool, dense, pool])
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
    kernel, bias = model.get_weights()

    def pooled(y: np.ndarray) -> np.ndarray:
        return y.reshape(2, y.shape[1] // 2, 2, y.shape[2] // 2, 2, 3).max((2, 4))

    once = pooled(x @ kernel + bias)
    np.testing.assert_allclose(model.predict(x), pooled(once @ kernel + bias), atol=1e-5)
    for expected in (once @ kernel + bias, once):
        model.pop()
        np.testing.assert_allclose(model.predict(x), expected, atol=1e-5)
    with pytest.raises(ValueError, match="different names"):
        model.add(L.Dense(1, name=dense.name))


@pytest.mark.parametrize("target", [(3,), (-1, 3), (0, -1)])
def test_a_reshape_that_would_mix_samples_is_refused(target: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="cannot reshape a sample"):
        keras.layers.Reshape(target)(dt.ones([3, 4]))


def test_samples_are_reshaped_one_by_one() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    unknown = dt.placeholder(dt.float32, [None, None, None])
    fetched = [
        keras.layers.Reshape((2, -1))(dt.constant(x)),
        keras.layers.Reshape((12,))(unknown),
        keras.layers.Flatten()(dt.zeros([2, 0, 3])),
        keras.layers.Reshape((0, 5))(dt.zeros([2, 0, 3])),
    ]
    with dt.Session() as session:
        first, second, *empty = session.run(fetched, {unknown: x})
        np.testing.assert_array_equal(first, x.reshape(2, 2, 6))
        np.testing.assert_array_equal(second, x.reshape(2, 12))
        assert [v.shape for v in empty] == [(2, 0), (2, 0, 5)]
        with pytest.raises(dt.errors.InvalidArgumentError, match="Cannot reshape"):
            session.run(keras.layers.Reshape((8,))(unknown), {unknown: x})


def test_what_regularizes_an_output_counts_for_each_sample() -> None:
    """TensorFlow divides it by the size of the batch, so that the batch does not weigh."""
    ones = np.ones((4, 2), np.float32)
    with dt.Graph().as_default(), dt.Session() as session:
        dt.layers.dense(
            dt.constant(ones), 3, kernel_initializer=dt.ones_initializer(), activity_regularizer=dt.reduce_sum
        )
        (loss,) = dt.get_collection(dt.GraphKeys.REGULARIZATION_LOSSES)
        session.run(dt.global_variables_initializer())
        assert session.run(loss) == 4 * 3 * 2 / 4
    model = keras.Sequential(
        [L.Dense(1, use_bias=False, kernel_initializer="ones", activity_regularizer=keras.regularizers.l2(0.5))]
    )
    model.compile("sgd", loss="mse")
    assert model.evaluate(ones, np.full((4, 1), 2.0), batch_size=4, verbose=0) == pytest.approx(0.5 * 2.0**2)
