"""fit, evaluate, predict: what they take, and that numbers are those of the data, whatever the batches are."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail import keras
from dovetail.keras.layers import BatchNormalization, Dense

RNG = np.random.default_rng(0)
X = RNG.standard_normal((50, 4)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5, 3.0]))[:, None].astype(np.float32)


def linear(optimizer: object = None, **compiled: object) -> keras.Sequential:
    model = keras.Sequential([Dense(1, input_shape=(4,), kernel_initializer="zeros")])
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", **compiled)
    return model


def batches(size: int = 10):
    for i in range(0, 50, size):
        yield X[i : i + size], Y[i : i + size]


class Numbered(keras.utils.Sequence):
    def __init__(self, rows=(X, Y)) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int):
        return tuple(part[10 * index : 10 * index + 10] for part in self.rows)


def test_all_kinds_of_data_train_alike() -> None:
    kinds = {
        "arrays": lambda: (X, Y, {"batch_size": 10, "shuffle": False}),
        "lists": lambda: (X.tolist(), Y.tolist(), {"batch_size": 10, "shuffle": False}),
        "dataset": lambda: (dt.data.Dataset.from_tensor_slices((X, Y)).batch(10), None, {}),
        "endless": lambda: (
            dt.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat(),
            None,
            {"steps_per_epoch": 5},
        ),
        "generator": lambda: (iter([b for _ in range(3) for b in batches()]), None, {"steps_per_epoch": 5}),
        "sequence": lambda: (Numbered(), None, {"shuffle": False}),
    }
    found = {}
    for kind, make in kinds.items():
        model = linear()
        x, y, more = make()
        history = model.fit(x, y, epochs=3, verbose=0, **more).history["loss"]
        found[kind] = np.concatenate([np.ravel(w) for w in model.get_weights()] + [history])
    for kind, values in found.items():
        np.testing.assert_allclose(values, found["arrays"], rtol=1e-5, err_msg=kind)


def test_numbers_in_a_row_are_samples_of_one_feature() -> None:
    x = np.linspace(-1, 1, 20)
    for layers in ([Dense(1)], [Dense(1, input_shape=(1,))]):
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.SGD(0.3), "mse")
        assert model.fit(x, 2 * x + 1, epochs=30, verbose=0).history["loss"][-1] < 0.01
        assert model.predict(np.array([0.5]))[0, 0] == pytest.approx(2.0, abs=0.2)


def test_batches_of_different_lengths() -> None:
    made = [(RNG.integers(1, 5, (3, n)), np.ones((3, 1))) for n in (4, 6, 5)]
    model = keras.Sequential(
        [keras.Input([None], dtype="int32"), keras.layers.Embedding(5, 2), keras.layers.GRU(2), Dense(1)]
    )
    model.compile("sgd", "mse")
    model.fit(iter(made), verbose=0)
    assert [model.predict(x).shape for x, _ in made] == [(3, 1)] * 3
    fixed = keras.Sequential([keras.layers.Embedding(5, 2), keras.layers.GRU(2), Dense(1)])
    fixed.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"shape \(3, 6\); a size that varies is None"):
        fixed.fit(iter(made), verbose=0)


def test_shuffled_rows_are_each_taken_once_and_follow_the_seed() -> None:
    seen = []

    def noticed(a):
        seen.append(a.copy())
        return a

    def orders() -> list[list[float]]:
        seen.clear()
        model = keras.Sequential([keras.layers.Lambda(lambda x: dt.numpy_function(noticed, [x], dt.float32)), Dense(1)])
        model.layers[0].call = lambda x: _shaped(dt.numpy_function(noticed, [x], dt.float32), x)
        model.compile("sgd", "mse")
        model.fit(np.arange(50.0)[:, None], np.zeros((50, 1)), batch_size=16, epochs=2, verbose=0)
        rows = [float(r) for a in seen for r in a[:, 0]]
        return [rows[:50], rows[50:]]

    first, second = orders()
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second != list(range(50))
    with dt.Graph().as_default():
        dt.set_random_seed(1)
        assert orders() == [first, second]


def _shaped(y, like):
    y.set_shape(like.shape)
    return y


def test_the_loss_of_an_epoch_counts_each_row_once() -> None:
    model = linear(metrics=["mae"])
    found = model.evaluate(X, Y, batch_size=16, verbose=0)
    np.testing.assert_allclose(found, [np.mean(Y**2), np.mean(np.abs(Y))], rtol=1e-5)
    assert model.evaluate(X, Y, verbose=0, return_dict=True)["mae"] == pytest.approx(found[1], rel=1e-5)
    assert model.predict(X, batch_size=16).shape == (50, 1)
    np.testing.assert_allclose(model.test_on_batch(X[:5], Y[:5])[0], np.mean(Y[:5] ** 2), rtol=1e-5)


def test_validation() -> None:
    model = linear()
    history = model.fit(X, Y, validation_split=0.2, epochs=4, validation_freq=2, verbose=0).history
    assert len(history["loss"]) == 4 and len(history["val_loss"]) == 2
    np.testing.assert_allclose(history["val_loss"][-1], np.mean((model.predict(X[40:]) - Y[40:]) ** 2), rtol=1e-4)
    checks = dt.data.Dataset.from_tensor_slices((X, Y)).batch(25)
    history = model.fit(X, Y, validation_data=checks, verbose=0).history
    np.testing.assert_allclose(history["val_loss"][-1], np.mean((model.predict(X) - Y) ** 2), rtol=1e-4)


def test_any_optimizer_of_dt_train_serves() -> None:
    model = linear(dt.train.AdamOptimizer(0.1))
    history = model.fit(X, Y, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.1 * history[0]


def test_a_metric_of_ones_own() -> None:
    class Largest(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__("largest")
            self.most = self.add_weight("most")

        def update_state(self, y_true, y_pred, sample_weight=None):
            return self.most.assign(dt.maximum(self.most, dt.reduce_max(y_true)), read_value=False)

        def result(self):
            return self.most.value()

    model = linear(metrics=[Largest(), lambda t, p: dt.reduce_mean(dt.abs(t - p), -1)])
    found = model.evaluate(X, Y, batch_size=16, verbose=0)
    np.testing.assert_allclose(found[1:], [Y.max(), np.abs(Y).mean()], rtol=1e-5)


def test_metrics_stand_alone() -> None:
    metric = keras.metrics.SparseCategoricalAccuracy()
    truth, guess = dt.placeholder(dt.int64, [None]), dt.placeholder(dt.float32, [None, 3])
    after = metric(truth, guess)
    session = keras.backend.get_session()
    metric.reset_state()
    eye = np.eye(3, dtype=np.float32)
    assert session.run(after, {truth: [0, 1], guess: eye[[0, 1]]}) == 1.0
    assert session.run(after, {truth: [2, 2], guess: eye[[0, 1]]}) == 0.5
    metric.reset_state()
    assert session.run(after, {truth: [2], guess: eye[[0]]}) == 0.0


@pytest.mark.parametrize("axes", [1, 2])
def test_the_weight_of_a_sample_counts_for_each_of_its_steps(axes: int) -> None:
    x, y = X[:48].reshape(12, 4, 4), RNG.standard_normal((12, 4, 2)).astype(np.float32)
    weights = RNG.uniform(0.5, 2, 12).astype(np.float32)
    model = keras.Sequential([Dense(2, input_shape=(4, 4), kernel_initializer="ones")])
    model.compile("sgd", "mse", weighted_metrics=["mae", "binary_accuracy"])
    given = weights if axes == 1 else weights[:, None]
    said = model.evaluate(
        x, y, batch_size=5, sample_weight=given, verbose=0, return_dict=True
    )  # the last batch has two rows
    predicted = x.sum(-1, keepdims=True)
    error = np.abs(predicted - y).mean((1, 2))
    np.testing.assert_allclose(said["mae"], (weights * error).sum() / weights.sum(), rtol=1e-5)
    assert 0 <= said["binary_accuracy"] <= 1


def test_weights_of_metrics_that_stand_alone() -> None:
    values, weights = RNG.standard_normal((3, 4, 2)).astype(np.float32), RNG.uniform(0.5, 2, (3, 4)).astype(np.float32)
    for given in (weights[:, 0], weights, weights[..., None], weights[:, :1]):
        mean, total = keras.metrics.Mean(), keras.metrics.Sum()
        nodes = [metric.update_state(values, sample_weight=given) for metric in (mean, total)]
        session = keras.backend.get_session()
        session.run(nodes)
        each = given.reshape(given.shape + (1,) * (3 - given.ndim)) * np.ones_like(values)
        found = session.run([mean.result(), total.result()])
        np.testing.assert_allclose(found, [np.average(values, weights=each), (values * each).sum()], rtol=1e-4)


@pytest.mark.parametrize("make", [
    lambda: dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1", "/cpu:2"]),
    lambda: dt.distribute.experimental.CentralStorageStrategy(["/cpu:0", "/cpu:1", "/cpu:2"], parameter_device="/cpu:0"),
])  # fmt: skip
def test_replicas_do_what_one_does_with_the_whole_batch_however_it_is_cut(make) -> None:
    weights = RNG.uniform(0, 2, 50).astype(np.float32)
    # 16, 16, 16 and 2 rows.
    given = {
        "batch_size": 16,
        "epochs": 3,
        "shuffle": False,
        "verbose": 0,
        "sample_weight": weights,
    }
    alone = linear(metrics=["mae"])
    want = alone.fit(X, Y, **given).history
    with make().scope():
        model = linear(metrics=["mae"])
    found = model.fit(X, Y, **given).history
    for label in want:
        np.testing.assert_allclose(found[label], want[label], rtol=1e-4, err_msg=label)
    np.testing.assert_allclose(model.get_weights()[0], alone.get_weights()[0], rtol=1e-4)
    np.testing.assert_allclose(model.predict(X[:2]), alone.predict(X[:2]), rtol=1e-4)
    for copy in model.weights[0].values:
        np.testing.assert_array_equal(
            keras.backend.get_session(model.distribute_strategy).run(copy), model.get_weights()[0]
        )


def test_what_regularizes_outputs_counts_for_each_row_however_a_batch_is_cut() -> None:
    def trained(strategy: object) -> list[np.ndarray]:
        with strategy.scope():
            regular = keras.regularizers.l2(0.3)
            model = keras.Sequential([keras.layers.Dense(1, activity_regularizer=regular, input_shape=(4,))])
            model.set_weights([np.ones((4, 1)), [0.5]])
            model.compile(keras.optimizers.SGD(0.1), "mse")
        # 16, 16, 16 and 2 rows, of which three replicas get 5, 5 and 6, or 0, 1 and 1.
        losses = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
        return [*model.get_weights(), np.array(losses)]

    w, b, losses = np.ones((4, 1)), np.array([0.5]), []
    for _ in range(2):
        told = []
        for x, y in [(X[i : i + 16], Y[i : i + 16]) for i in range(0, 50, 16)]:
            p = x @ w + b
            told.append(((p - y) ** 2 + 0.3 * p**2).sum())
            slope = 2 * ((p - y) + 0.3 * p) / len(x)
            w, b = w - 0.1 * x.T @ slope, b - 0.1 * slope.sum(0)
        losses.append(sum(told) / 50)
    for strategy in (
        dt.distribute.OneDeviceStrategy("/cpu:0"),
        dt.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(3)]),
    ):
        for found, wanted in zip(trained(strategy), (w, b, losses), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_moving_averages_follow_the_mean_over_the_replicas() -> None:
    with dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        model = keras.Sequential([BatchNormalization(momentum=0.5, input_shape=(4,)), Dense(1)])
        model.compile("sgd", "mse")
    model.fit(X[:20], Y[:20], batch_size=20, shuffle=False, verbose=0)
    _, _, mean, variance = model.layers[0].get_weights()
    halves = X[:10], X[10:20]
    np.testing.assert_allclose(mean, 0.5 * np.mean([h.mean(0) for h in halves], 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, 0.5 + 0.5 * np.mean([h.var(0) for h in halves], 0), rtol=1e-5)


def test_classes_of_batches_that_bring_their_targets_have_weights() -> None:
    labels, own, by_class = np.arange(50) % 3, np.linspace(0.5, 2.0, 50, dtype=np.float32), {0: 1.0, 1: 3.0, 2: 0.5}
    found = []
    for weights in (None, own):
        rows = (X, labels) if weights is None else (X, labels, weights)
        dataset = dt.data.Dataset.from_tensor_slices(rows).batch(10)
        kinds = [(rows, {"batch_size": 10}), ((dataset,), {}), ((Numbered(rows),), {})]
        for data, options in kinds:
            model = keras.Sequential([keras.layers.Dense(3, "softmax", kernel_initializer="zeros", input_shape=(4,))])
            model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
            x, y, w = (*data, None, None)[:3]
            model.fit(x, y, sample_weight=w, class_weight=by_class, epochs=2, shuffle=False, verbose=0, **options)
            found.append(model.get_weights())
    for i, (kernel, bias) in enumerate(found):
        np.testing.assert_allclose(kernel, found[i // 3 * 3][0], rtol=1e-5)
        np.testing.assert_allclose(bias, found[i // 3 * 3][1], rtol=1e-5, atol=1e-7)
    kernel = np.zeros((5, 3))  # the oracle: with the bias as a fifth row
    for x, y in [(X[i : i + 10], labels[i : i + 10]) for _ in range(2) for i in range(0, 50, 10)]:
        x, w = np.concatenate([x, np.ones((10, 1))], 1), np.array([by_class[c] for c in y])
        p = np.exp(x @ kernel) / np.exp(x @ kernel).sum(1, keepdims=True)
        kernel -= 0.5 * x.T @ ((p - np.eye(3)[y]) * w[:, None]) / 10
    np.testing.assert_allclose(found[0][0], kernel[:4], rtol=1e-4, atol=1e-6)


def test_what_is_refused() -> None:
    model = linear()
    with pytest.raises(ValueError, match="same number of rows"):
        model.fit(X, Y[:-1], verbose=0)
    with pytest.raises(ValueError, match="say steps_per_epoch"):
        model.fit(dt.data.Dataset.from_tensor_slices((X, Y)).batch(10).repeat(), verbose=0)
    with pytest.raises(ValueError, match="`y` must be left out"):
        model.fit(batches(), Y, verbose=0)
    with pytest.raises(ValueError, match="no target"):
        model.fit(X, verbose=0)
    with pytest.raises(ValueError, match=r"got an array of shape \(32, 4, 1\)"):
        model.fit(X[..., None], Y, verbose=0)
    with pytest.raises(ValueError, match="nothing for the classes"):
        model.fit(X, np.arange(50) % 3, class_weight={0: 1.0}, verbose=0)
    with pytest.raises(ValueError, match=r"such as \{0: 1.0, 1: 5.0\}; it is not 'balanced'"):
        model.fit(X, np.arange(50) % 3, class_weight="balanced", verbose=0)
    with pytest.raises(ValueError, match="class_weight needs targets"):
        model.fit(dt.data.Dataset.from_tensor_slices(X).batch(10), class_weight={0: 1.0}, verbose=0)
    with pytest.raises(ValueError, match="Unknown loss"):
        model.compile("sgd", "meen_squared_error")
    with pytest.raises(ValueError, match="no run_eagerly"):
        model.compile("sgd", "mse", run_eagerly=True)
    with dt.distribute.MirroredStrategy(["/cpu:0"]).scope(), pytest.raises(RuntimeError, match="make the model inside"):
        model.compile("sgd", "mse")


def test_adamw_decays_every_row_of_a_table():
    """What Keras 3.15 gives for the same steps: rows that are not looked up decay, too."""
    table = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
    model = keras.Sequential([keras.Input((1,), dtype="int32"), keras.layers.Embedding(4, 2), keras.layers.Flatten()])
    model.set_weights([table])
    model.compile(keras.optimizers.AdamW(0.1, weight_decay=0.1), "mse")
    for rows in ([[0], [1]], [[1], [2]], [[0], [1]]):
        model.train_on_batch(np.array(rows), np.zeros((2, 2), np.float32))
    expected = [[0.72545, 1.69504], [2.61441, 3.58459], [4.7203, 5.6906], [7 * 0.99**3, 8 * 0.99**3]]
    np.testing.assert_allclose(model.get_weights()[0], expected, atol=3e-5)


@pytest.mark.parametrize("shape", [(4, 3), (4, 1, 2), (1, 4)])
def test_targets_of_another_shape_than_the_predictions_are_refused(shape: tuple[int, ...]) -> None:
    for loss in (keras.losses.mean_squared_error, keras.metrics.MeanAbsoluteError().update_state):
        with pytest.raises(ValueError, match="do not fit predictions of shape"):
            loss(dt.zeros(shape), dt.zeros([4, 1]))
    with dt.Session() as session:
        assert session.run(keras.losses.mean_squared_error(dt.ones([4]), dt.zeros([4, 1]))).tolist() == [1.0] * 4
