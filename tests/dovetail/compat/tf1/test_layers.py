"""`dt.layers` and `dt.losses`: TensorFlow 1's functions, by names, collections and numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((6, 8, 8, 2)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as fresh:
        yield fresh


def net(x: tf.Tensor, training: object) -> tf.Tensor:
    h = tf.layers.conv2d(x, 4, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.batch_normalization(h, training=training)
    h = tf.layers.max_pooling2d(h, 2, 2)
    h = tf.layers.average_pooling2d(h, 2, 2)
    h = tf.layers.dropout(tf.layers.flatten(h), 0.5, training=training)
    return tf.layers.dense(h, 3, name="logits", kernel_regularizer=lambda w: 0.5 * tf.nn.l2_loss(w))


@pytest.mark.parametrize("made", [tf.layers.Dense, tf.keras.layers.Dense, lambda n, **k: tf.layers.Conv2D(n, 3, **k)])
def test_a_layer_without_bias_has_none(made: Callable[..., Any]) -> None:
    assert made(2, use_bias=False).bias is None
    with_bias = made(2)
    with_bias(tf.zeros([1, 4, 4, 3]))
    assert with_bias.bias.shape == [2] and len(with_bias.weights) == 2


@pytest.mark.parametrize("layers", [tf.layers, tf.keras.layers])
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_a_separable_convolution_is_one_by_channel_and_one_by_pixel(layers: Any, data_format: str) -> None:
    made = layers.SeparableConv2D(5, 3, 2, "same", data_format, depth_multiplier=3, activation="relu")
    x = tf.constant(IMAGES if data_format == "channels_last" else IMAGES.transpose(0, 3, 1, 2))
    y = made(x)
    first, second, bias = made.weights
    assert [w.op.name.rpartition("/")[2] for w in made.weights] == ["depthwise_kernel", "pointwise_kernel", "bias"]
    assert [w.shape.as_list() for w in made.weights] == [[3, 3, 2, 3], [1, 1, 6, 5], [5]] and made.bias is bias
    by_channel = tf.concat(
        [tf.nn.conv2d(IMAGES[..., c : c + 1], first[:, :, c : c + 1], [1, 2, 2, 1], "SAME") for c in range(2)], -1
    )
    wanted = tf.nn.relu(tf.tensordot(by_channel, second[0, 0], 1) + bias)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found, plain = session.run([y, wanted])
    np.testing.assert_allclose(
        found if data_format == "channels_last" else found.transpose(0, 2, 3, 1), plain, atol=1e-5
    )
    config = made.get_config()
    again = layers.SeparableConv2D.from_config(config)
    assert again.get_config() == config and "kernel_initializer" not in config


def test_the_function_of_a_separable_convolution_makes_its_variables_in_a_scope() -> None:
    y = tf.layers.separable_conv2d(IMAGES, 4, 3, dilation_rate=2, use_bias=False, name="mixed")
    assert y.shape.as_list() == [6, 4, 4, 4]
    assert [v.op.name for v in tf.trainable_variables()] == ["mixed/depthwise_kernel", "mixed/pointwise_kernel"]


def test_a_layer_around_another_one() -> None:
    class Doubled(tf.keras.layers.Wrapper):
        def call(self, inputs: Any) -> Any:
            return 2 * self.layer(inputs)

    inside = tf.keras.layers.Dense(3)
    made = Doubled(inside)
    made(tf.ones([2, 4]))
    assert made.layer is inside and made.weights == inside.weights
    assert Doubled.from_config(made.get_config()).layer.units == 3


def test_names_reuse_and_collections() -> None:
    x = tf.placeholder(tf.float32, [None, 8, 8, 2])
    with tf.variable_scope("net"):
        first = net(x, True)
    with tf.variable_scope("net", reuse=True):
        second = net(x, False)
    names = [v.op.name for v in tf.global_variables()]
    assert names == [
        "net/conv2d/kernel", "net/conv2d/bias", "net/batch_normalization/gamma", "net/batch_normalization/beta",
        "net/batch_normalization/moving_mean", "net/batch_normalization/moving_variance", "net/logits/kernel", "net/logits/bias",
    ]  # fmt: skip
    assert len(tf.trainable_variables()) == 6
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2
    (regularized,) = tf.losses.get_regularization_losses()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        kernel = session.run("net/logits/kernel:0")
        np.testing.assert_allclose(session.run(regularized), 0.25 * (kernel**2).sum(), rtol=1e-5)
        before = session.run(second, {x: IMAGES})
        session.run([first, *updates], {x: IMAGES})
        assert not np.allclose(before, session.run(second, {x: IMAGES}))


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_variables_have_the_type_of_the_input(dtype: tf.DType) -> None:
    x = tf.placeholder(dtype, [None, 8, 8, 2])
    y = net(x, True)
    expected = {v.op.name: dtype for v in tf.global_variables()}
    if dtype is not tf.float64:
        expected |= {name: tf.float32 for name in expected if name.startswith("batch_normalization")}
    assert {v.op.name: v.dtype.base_dtype for v in tf.global_variables()} == expected
    assert y.dtype is dtype
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert np.isfinite(session.run(tf.cast(y, tf.float32), {x: IMAGES})).all()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_weights_of_float32_are_used_as_narrow_ones(dtype: tf.DType) -> None:
    """Mixed precision as TensorFlow 1's programs write it: a getter that keeps float32 and casts, and a scaled loss."""

    def stored(getter, name, shape=None, dtype=None, *args, trainable=True, **kwargs):
        variable = getter(name, shape, tf.float32 if trainable else dtype, *args, trainable=trainable, **kwargs)
        return tf.cast(variable, dtype) if trainable and dtype != tf.float32 else variable

    features = RNG.standard_normal((256, 8)).astype(np.float32)
    labels = features[:, :3].argmax(1)
    with tf.variable_scope("model", custom_getter=stored):
        hidden = tf.layers.dense(tf.cast(tf.constant(features), dtype), 32, tf.nn.relu)
        logits = tf.cast(tf.layers.dense(tf.layers.batch_normalization(hidden, training=True), 3), tf.float32)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    train = tf.train.LossScaleOptimizer(tf.train.AdamOptimizer(0.01), "dynamic").minimize(loss)
    assert hidden.dtype is dtype
    assert {v.dtype.base_dtype for v in tf.trainable_variables()} == {tf.float32}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(loss)
        for _ in range(60):
            session.run(train)
        assert session.run(loss) < before / 4


def test_training_may_be_a_tensor() -> None:
    x, training = tf.placeholder(tf.float32, [None, 8, 8, 2]), tf.placeholder(tf.bool, [])
    y = tf.layers.batch_normalization(x, training=training, momentum=0.0, epsilon=1e-6)
    dropped = tf.layers.dropout(tf.ones([1000]), 0.5, training=training)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_allclose(session.run(y, {x: IMAGES, training: False}), IMAGES, rtol=1e-5)
        normal, _ = session.run([y, updates], {x: IMAGES, training: True})
        np.testing.assert_allclose(normal.mean((0, 1, 2)), 0, atol=1e-6)
        np.testing.assert_allclose(normal.std((0, 1, 2)), 1, rtol=1e-4)
        unbiased = np.sqrt(1 - 1 / IMAGES[..., 0].size)  # the variance that is kept is, as in TensorFlow
        np.testing.assert_allclose(session.run(y, {x: IMAGES, training: False}), normal * unbiased, atol=1e-4)
        assert session.run(dropped, {training: False}).tolist() == [1.0] * 1000
        assert set(session.run(dropped, {training: True}).tolist()) == {0.0, 2.0}


def test_dropout_at_a_rate_that_is_fed() -> None:
    """The shape stays known, so that a dense layer can follow."""
    rate = tf.placeholder(tf.float32)
    for dropped in (
        tf.nn.dropout(tf.ones([2, 500]), keep_prob=1.0 - rate),
        tf.layers.dropout(tf.ones([2, 500]), rate=rate, training=True),
    ):
        y = tf.layers.dense(dropped, 3)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(y, {rate: 0.5}).shape == (2, 3)
            assert 0.6 < session.run(tf.reduce_mean(dropped), {rate: 0.5}) < 1.4
            assert session.run(tf.reduce_mean(dropped), {rate: 0.0}) == 1.0


def test_a_default_initializer_of_the_scope_counts() -> None:
    with tf.variable_scope("net", initializer=tf.ones_initializer()):
        y = tf.layers.dense(tf.constant([[1.0, 2.0]]), 2, use_bias=False)
    layer = tf.layers.Dense(2, name="shared")
    a, b = layer(y), layer(y)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(y).tolist() == [[3.0, 3.0]]
        np.testing.assert_array_equal(*session.run([a, b]))
    assert [w.op.name for w in layer.weights] == ["shared/kernel", "shared/bias"] and layer.scope_name == "shared"


WEIGHTS = np.float32([[1.0], [0.0], [2.0]])


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("none", [[1.0, 4.0], [0.0, 0.0], [50.0, 72.0]]), ("weighted_sum", 127.0), ("weighted_sum_over_batch_size", 127 / 6),
        ("weighted_mean", 127 / 6), ("weighted_sum_by_nonzero_weights", 127 / 4),
    ],
)  # fmt: skip
def test_reductions(reduction: str, expected: object) -> None:
    assert reduction in tf.losses.Reduction.all()
    predictions = np.float32([[1, 2], [3, 4], [5, 6]])
    loss = tf.losses.mean_squared_error(np.zeros((3, 2)), predictions, WEIGHTS, reduction=reduction)
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(loss), expected, rtol=1e-6)
    assert tf.losses.get_losses() == [loss]


def pairs(errors: list[list[float]], weights: list[float]) -> float:
    """Twice the mean over the pairs of each example of the squared differences of their errors, weighted and summed up."""
    each = [np.mean([(a - b) ** 2 for a, b in itertools.combinations(row, 2)]) for row in errors]
    return float(np.dot(each, weights))


def test_formulas() -> None:
    labels, logits = np.float32([[1, 0], [0, 1]]), np.float32([[2, -1], [0.5, 0.25]])
    p = 1 / (1 + np.exp(-logits))
    softmax = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    cases = {
        "absolute_difference": (tf.losses.absolute_difference(labels, logits), np.abs(labels - logits).mean()),
        "huber": (tf.losses.huber_loss(labels, logits * 2), np.mean([[2.5, 1.5], [0.5, 0.125]])),
        "hinge": (tf.losses.hinge_loss(labels, logits), np.maximum(0, 1 - (2 * labels - 1) * logits).mean()),
        "log": (tf.losses.log_loss(labels, p), -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean()),
        "cosine": (tf.losses.cosine_distance(labels, labels, axis=1), 0.0),
        "sigmoid": (
            tf.losses.sigmoid_cross_entropy(labels, logits),
            -(labels * np.log(p) + (1 - labels) * np.log(1 - p)).mean(),
        ),
        "softmax": (tf.losses.softmax_cross_entropy(labels, logits), -np.log([softmax[0, 0], softmax[1, 1]]).mean()),
        "smooth": (
            tf.losses.softmax_cross_entropy(labels, logits, label_smoothing=0.2),
            -((labels * 0.8 + 0.1) * np.log(softmax)).sum(1).mean(),
        ),
        "sparse": (
            tf.losses.sparse_softmax_cross_entropy([[0], [1]], logits, weights=[1.0, 3.0]),
            (-np.log([softmax[0, 0], softmax[1, 1]]) * [1, 3]).mean(),
        ),
        "pairs": (
            tf.losses.mean_pairwise_squared_error(labels, logits, [[1.0], [3.0]]),
            pairs([[1, -1], [0.5, -0.75]], [1, 3]),
        ),
    }
    total = tf.losses.get_total_loss()
    with tf.Session() as session:
        for name, (loss, expected) in cases.items():
            np.testing.assert_allclose(session.run(loss), expected, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(session.run(total), sum(e for _, e in cases.values()), rtol=1e-5)


def test_labels_of_unknown_rank() -> None:
    labels, logits, weights = tf.placeholder(tf.int32), tf.placeholder(tf.float32), tf.placeholder(tf.float32)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, weights)
    assert loss.op.name == "sparse_softmax_cross_entropy_loss/value"
    with tf.Session() as session:
        for fed in ([[0], [1]], [0, 1]):
            for weight in ([[1.0], [3.0]], [1.0, 3.0], 2.0):
                found = session.run(loss, {labels: fed, logits: [[0.0, 0.0], [0.0, 0.0]], weights: weight})
                assert found == pytest.approx(2 * np.log(2))
        with pytest.raises(tf.errors.InvalidArgumentError, match="can not be broadcast"):
            session.run(loss, {labels: [0, 1], logits: np.zeros((2, 2)), weights: np.ones((2, 1, 1))})


@pytest.mark.parametrize("dims", [[None, None], None])
def test_labels_are_smoothed_over_a_number_of_classes_that_only_a_step_tells(dims: list[None] | None) -> None:
    labels, logits = np.float32([[1, 0, 0], [0, 0, 1]]), np.float32([[2, -1, 0], [0.5, 0.25, 1]])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    fed = tf.placeholder(tf.float32, dims), tf.placeholder(tf.float32, dims)
    found = [
        tf.losses.softmax_cross_entropy(*fed, label_smoothing=0.3),
        tf.reduce_mean(tf.keras.losses.categorical_crossentropy(*fed, from_logits=True, label_smoothing=0.3)),
    ]
    with tf.Session() as session:
        got = session.run(found, dict(zip(fed, (labels, logits), strict=True)))
    np.testing.assert_allclose(got, -((labels * 0.7 + 0.1) * np.log(p)).sum(1).mean(), rtol=1e-5)


def test_a_dense_layer_of_one_row_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"'dense' takes a batch of rows, .* \(2,\): dt.expand_dims"):
        tf.layers.dense(tf.zeros([2]), 4)


def test_what_losses_refuse() -> None:
    with pytest.raises(ValueError, match="differ; they must be of one shape: dt.reshape"):
        tf.losses.mean_squared_error(np.zeros(3), np.zeros(4))
    for weights in (np.ones(3), np.ones((3, 4))):
        with pytest.raises(ValueError, match="can not be broadcast"):
            tf.losses.mean_squared_error(np.zeros((3, 1)), np.zeros((3, 1)), weights)
    with pytest.raises(ValueError, match="None values not supported"):
        tf.losses.mean_squared_error(np.zeros(3), np.zeros(3), None)
    with pytest.raises(ValueError, match="Invalid ReductionKey"):
        tf.losses.mean_squared_error(np.zeros(3), np.zeros(3), reduction="mean")
    with pytest.raises(ValueError, match="no loss in the collection"):
        tf.losses.get_total_loss()


def test_what_programs_say_about_kernels_and_formats() -> None:
    x = tf.constant(np.arange(24.0, dtype=np.float32).reshape(1, 2, 3, 4))
    first, last = tf.layers.flatten(x, data_format="channels_first"), tf.layers.flatten(x)
    y = tf.layers.batch_normalization(x, training=True, fused=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(last)[0], np.arange(24))
        np.testing.assert_array_equal(session.run(first)[0], np.arange(24).reshape(2, 12).T.ravel())
        np.testing.assert_allclose(session.run(y).mean(axis=(0, 1, 2)), 0, atol=1e-6)
    with pytest.raises(tf.errors.UnimplementedError, match="batch_normalization has no virtual_batch_size"):
        tf.layers.batch_normalization(x, virtual_batch_size=2)


@pytest.mark.parametrize(("dtype", "remedy"), [(tf.uint8, r"dt\.float32\) / 255"), (tf.int32, r"dt\.float32\)$")])
def test_a_convolution_of_whole_numbers_is_refused_by_its_input(dtype: tf.DType, remedy: str) -> None:
    images = tf.placeholder(dtype, [2, 8, 8, 1], name="images")
    with pytest.raises(TypeError, match=rf"layer 'conv2d' is {dtype.name}, and.*'images:0'.*{remedy}"):
        tf.layers.conv2d(images, 4, 3)
    with pytest.raises(TypeError, match=remedy):
        tf.keras.layers.DepthwiseConv2D(3)(images)
    assert not tf.global_variables()


def test_names_of_objects_and_of_functions() -> None:
    """As TensorFlow names them: an object's name is made unique, a function's is the scope's; each call of an object is in its scope."""
    x = tf.ones([2, 3])
    with tf.variable_scope("net"):
        first, second = tf.layers.Dense(4, name="x"), tf.layers.Dense(4, name="x")
        found = [layer(x).op.name for layer in (first, second, first)]
        tf.layers.dense(x, 4, name="y")
        with pytest.raises(ValueError, match="net/y/kernel already exists"):
            tf.layers.dense(x, 4, name="y")
        tf.layers.dense(x, 4, name="y", reuse=True)
    assert found == ["net/x/BiasAdd", "net/x_1/BiasAdd", "net/x/BiasAdd_1"]
    names = [v.op.name for v in tf.global_variables()]
    assert names == [f"net/{n}" for n in ("x/kernel", "x/bias", "x_1/kernel", "x_1/bias", "y/kernel", "y/bias")]


def test_layers_that_are_not_trainable_keep_their_variables() -> None:
    slim = tf.contrib.slim
    x, y = tf.constant(IMAGES), tf.constant(IMAGES[:, 0])
    with tf.variable_scope("frozen"):
        outputs = [
            tf.layers.dense(x, 2, trainable=False), tf.layers.conv1d(y, 2, 3, trainable=False),
            tf.layers.conv2d(x, 2, 3, trainable=False), tf.layers.conv2d_transpose(x, 2, 3, trainable=False),
            tf.layers.batch_normalization(x, trainable=False), tf.layers.Dense(2, trainable=False)(y),
        ]  # fmt: skip
        with slim.arg_scope([slim.conv2d, slim.fully_connected], trainable=False):
            outputs += [slim.conv2d(x, 2, 3), slim.fully_connected(y, 2)]
    moved = tf.layers.dense(x, 2, name="moved", kernel_initializer=tf.ones_initializer())
    assert [v.op.name for v in tf.trainable_variables()] == ["moved/kernel", "moved/bias"]
    loss = tf.add_n([tf.reduce_sum(tf.square(t)) for t in [*outputs, moved]])
    step = tf.train.GradientDescentOptimizer(0.01).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        before = session.run(tf.global_variables())
        session.run(step)
        for v, old, new in zip(tf.global_variables(), before, session.run(tf.global_variables()), strict=True):
            assert np.array_equal(old, new) == v.op.name.startswith("frozen/"), v.op.name


def test_build_makes_the_weights_that_calls_use() -> None:
    class Twice(tf.keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="twice")
            self.inner = tf.keras.layers.Dense(2, weights=[np.full((3, 2), 4.0), np.ones(2)])

        def build(self, input_shape: object) -> None:
            self.inner.build(input_shape)
            super().build(input_shape)

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return 2.0 * self.inner(inputs)

    model = tf.keras.Sequential([Twice()])
    np.testing.assert_array_equal(model.predict(np.ones((1, 3))), [[26, 26]])
    assert len(model.weights) == 2
    with tf.variable_scope("o"):
        for layer in (tf.keras.layers.Dense(2), tf.layers.Dense(2), tf.layers.Dense(2, name="q")):
            assert not layer.built
            layer.build((None, 3))
            made = layer.weights
            layer(tf.ones([1, 3]))
            assert layer.built and layer.weights == made
    assert [w.name for w in made] == ["o/q/kernel:0", "o/q/bias:0"]


def test_layers_in_a_scope_that_partitions_variables() -> None:
    def build(partitioner: object) -> tf.Tensor:
        tf.set_random_seed(1)
        x = tf.constant(IMAGES)
        with tf.variable_scope("net", partitioner=partitioner):
            outputs = [
                tf.layers.batch_normalization(x, training=True), tf.layers.batch_normalization(x[0, 0], training=True),
                tf.layers.batch_normalization(x, training=True, renorm=True), tf.contrib.layers.batch_norm(x),
                tf.layers.conv1d(x[0], 4, 3, kernel_initializer=tf.ones_initializer()),
            ]  # fmt: skip
        return tf.add_n([tf.reduce_sum(tf.square(t)) for t in outputs])

    found = []
    for partitioner in (None, tf.fixed_size_partitioner(2)):
        with tf.Graph().as_default(), tf.Session() as session:
            loss = build(partitioner)
            train = tf.train.GradientDescentOptimizer(0.001).minimize(loss)
            parts = {v.op.name for v in tf.global_variables() if "/part_" in v.op.name}
            assert not [name for name in parts if "moving" in name or "renorm" in name]  # as TensorFlow's checkpoints
            session.run(tf.global_variables_initializer())
            session.run([train, tf.get_collection(tf.GraphKeys.UPDATE_OPS)])
            averages = [v for v in tf.global_variables() if "moving" in v.op.name]
            found.append([session.run(loss), *session.run(averages)])
    assert parts >= {"net/conv1d/kernel/part_1", "net/batch_normalization/gamma/part_1"}
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_variables_of_a_layer_of_ones_own_are_in_the_scope_that_it_names() -> None:
    class Own(tf.layers.Layer):
        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            return tf.get_variable("w", [2]) * inputs

    class Renamed(Own):
        def __init__(self) -> None:
            super().__init__(name="first")
            self._name = self._base_name = "second"

    for layer in (Own(name="own"), Renamed(), Own()):
        layer(tf.ones([2]))
        layer(tf.ones([2]))
    assert [v.op.name for v in tf.global_variables()] == ["own/w", "second/w", "own_1/w"]
    assert Renamed().name == "second"
