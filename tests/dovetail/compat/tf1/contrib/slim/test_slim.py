"""`tf.contrib.slim`: layers with `arg_scope`, against NumPy; variables; training and evaluation, alone and on a cluster."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

slim = tf.contrib.slim
RNG = np.random.RandomState(0)
IMAGES = RNG.randn(2, 6, 5, 3).astype(np.float32)
ROWS = RNG.randn(32, 5).astype(np.float32)
TARGETS = (ROWS @ RNG.randn(5, 1)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g


def values(*tensors: Any) -> list[np.ndarray]:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return [np.asarray(v) for v in session.run(list(tensors))]


def names(variables: Any) -> list[str]:
    return [v.op.name for v in variables]


# --- arg_scope -------------------------------------------------------------------------------------------------------


@slim.add_arg_scope
def told(a, b=1, c=2, **more):
    """What it was told."""
    return a, b, c, more


@slim.add_arg_scope
def strict(a, b=1):
    return a, b


def test_scopes_nest_and_calls_come_first() -> None:
    with slim.arg_scope([told, strict], b=5) as outer:
        assert told(0) == (0, 5, 2, {}) and strict(0) == (0, 5)
        with slim.arg_scope([told], c=7, d=8) as inner:
            assert told(0) == (0, 5, 7, {"d": 8}) and told(0, b=6) == (0, 6, 7, {"d": 8})
            assert slim.current_arg_scope() == inner
            with slim.arg_scope(outer):
                assert told(0) == (0, 5, 2, {})
        assert told(0) == (0, 5, 2, {})
    assert told(0) == (0, 1, 2, {}) and strict(0) == (0, 1)
    with slim.arg_scope(inner):
        assert told(0) == (0, 5, 7, {"d": 8})
    assert slim.has_arg_scope(told) and not slim.has_arg_scope(values)
    assert slim.arg_scoped_arguments(strict) == ("b",)
    assert told.__doc__ == "What it was told."


def test_scopes_say_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="values is not decorated with @add_arg_scope"), slim.arg_scope([values], a=1):
        pass
    with pytest.raises(ValueError, match="strict has no argument 'z'; it has a, b"), slim.arg_scope([strict], z=1):
        pass
    with pytest.raises(ValueError, match="kwargs must be empty"), slim.arg_scope({}, z=1):
        pass
    assert strict(0) == (0, 1)


def test_a_scope_belongs_to_its_thread() -> None:
    found = []
    with slim.arg_scope([strict], b=2):
        thread = threading.Thread(target=lambda: found.append(strict(0)))
        thread.start()
        thread.join()
    assert found == [(0, 1)]


# --- layers ----------------------------------------------------------------------------------------------------------


def test_a_network_has_the_variables_that_checkpoints_of_slim_have() -> None:
    x = tf.placeholder(tf.float32, [None, 28, 28, 1])
    with (
        slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-3)),
        slim.arg_scope([slim.conv2d], normalizer_fn=slim.batch_norm, outputs_collections="points"),
    ):
        net = slim.conv2d(x, 8, [5, 5], scope="conv1")
        net = slim.max_pool2d(net, [2, 2], scope="pool1")
        net = slim.repeat(net, 2, slim.conv2d, 16, [3, 3], scope="conv2")
        net = slim.dropout(slim.flatten(net), 0.5, is_training=False)
        logits = slim.fully_connected(net, 10, activation_fn=None, scope="logits")
    assert net.shape.as_list() == [None, 14 * 14 * 16] and logits.shape.as_list() == [None, 10]
    norm = ["BatchNorm/beta", "BatchNorm/moving_mean", "BatchNorm/moving_variance"]
    convs = [f"{conv}/{v}" for conv in ("conv1", "conv2/conv2_1", "conv2/conv2_2") for v in ["weights", *norm]]
    assert names(tf.global_variables()) == [*convs, "logits/weights", "logits/biases"]
    assert names(slim.get_model_variables()) == names(tf.global_variables())
    assert len(names(tf.trainable_variables())) == 8  # weights and beta of three, and two
    assert len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 6
    assert len(tf.losses.get_regularization_losses()) == 4
    points = slim.utils.convert_collection_to_dict("points")
    assert list(points) == ["conv1", "conv2/conv2_1", "conv2/conv2_2"] and points["conv1"].shape.as_list()[1:] == [
        28,
        28,
        8,
    ]
    assert names(slim.get_variables_by_suffix("biases")) == ["logits/biases"]
    assert names(slim.get_variables_by_name("beta", "conv2")) == [
        "conv2/conv2_1/BatchNorm/beta",
        "conv2/conv2_2/BatchNorm/beta",
    ]
    assert names(slim.get_variables_to_restore(exclude=["conv"])) == ["logits/weights", "logits/biases"]
    assert names(slim.filter_variables(tf.global_variables(), ["conv1"], ["Batch"])) == ["conv1/weights"]
    assert slim.get_unique_variable("logits/biases") is tf.global_variables()[-1]
    with pytest.raises(ValueError, match="Couldn't find variable nothing"):
        slim.get_unique_variable("nothing")


def test_fully_connected_and_convolutions_of_one_pixel_are_products() -> None:
    begin = tf.constant_initializer(RNG.randn(3, 4).astype(np.float32))
    bias = tf.constant_initializer(np.array([0.5, -1.0, 2.0, 0.0], np.float32))
    dense = slim.fully_connected(IMAGES, 4, weights_initializer=begin, biases_initializer=bias)
    conv = slim.conv2d(IMAGES, 4, 1, weights_initializer=begin, biases_initializer=bias)
    first = slim.conv2d(
        IMAGES.transpose(0, 3, 1, 2), 4, 1, weights_initializer=begin, biases_initializer=bias, data_format="NCHW"
    )
    bare = slim.fully_connected(
        IMAGES, 4, activation_fn=None, biases_initializer=None, weights_initializer=begin, scope="bare"
    )
    again = slim.fully_connected(IMAGES, 4, activation_fn=None, biases_initializer=None, scope="bare", reuse=True)
    found = values(dense, conv, first, bare, again, tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, "bare")[0])
    product = IMAGES @ found[5]
    np.testing.assert_allclose(found[0], np.maximum(product + [0.5, -1.0, 2.0, 0.0], 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2].transpose(0, 2, 3, 1), found[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[3], product, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[4], found[3])
    assert names(slim.get_variables("bare")) == ["bare/weights"]
    with pytest.raises(ValueError, match="expects input with rank 3 or 4, got 2"):
        slim.conv2d(ROWS, 4, 3)
    with pytest.raises(ValueError, match="NCHW or NHWC"):
        slim.conv2d(IMAGES, 4, 3, data_format="NHCW")


def test_separable_convolutions_are_two() -> None:
    deep = slim.separable_conv2d(
        IMAGES, None, [1, 1], depth_multiplier=2, activation_fn=None, biases_initializer=None, scope="a"
    )
    both = slim.separable_conv2d(IMAGES, 4, [1, 1], depth_multiplier=2, activation_fn=None, scope="b")
    found = values(deep, both, *slim.get_variables("a"), *slim.get_variables("b"))
    each = np.einsum("bhwc,cm->bhwcm", IMAGES, found[2][0, 0]).reshape(2, 6, 5, 6)
    np.testing.assert_allclose(found[0], each, rtol=1e-5, atol=1e-6)
    each = np.einsum("bhwc,cm->bhwcm", IMAGES, found[3][0, 0]).reshape(2, 6, 5, 6)
    np.testing.assert_allclose(found[1], each @ found[4][0, 0], rtol=1e-4, atol=1e-5)
    assert names(slim.get_variables("b")) == ["b/depthwise_weights", "b/pointwise_weights", "b/biases"]


@pytest.mark.parametrize("x", [ROWS, IMAGES], ids=["rows", "images"])
def test_batch_norm_by_the_batch_and_by_the_averages(x: np.ndarray) -> None:
    training = tf.placeholder(tf.bool, [])
    given = {"decay": 0.75, "scale": True, "scope": "norm"}
    y = slim.batch_norm(x, is_training=training, **given)
    same = slim.batch_norm(x, is_training=False, reuse=True, **given)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    assert len(updates) == 2 and y.shape.as_list() == list(x.shape)
    axes = tuple(range(x.ndim - 1))
    mean, n = x.mean(axes), x.size // x.shape[-1]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first, _ = session.run([y, updates], {training: True})
        np.testing.assert_allclose(first, (x - mean) / np.sqrt(x.var(axes) + 1e-3), rtol=1e-4, atol=1e-5)
        moving_mean, moving_variance = 0.25 * mean, 0.75 + 0.25 * x.var(axes) * n / (n - 1)
        expected = (x - moving_mean) / np.sqrt(moving_variance + 1e-3)
        for found in (session.run([y, updates], {training: False})[0], session.run(same)):  # which moves nothing
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_moves_its_averages_at_once_where_no_collection_gets_the_nodes() -> None:
    y = slim.batch_norm(ROWS, decay=0.5, updates_collections=None, scope="norm")
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        moved = session.run(slim.get_unique_variable("norm/moving_mean"))
    np.testing.assert_allclose(moved, 0.5 * ROWS.mean(0), rtol=1e-5)
    with pytest.raises(ValueError, match="expected 2 or 4 but got 3"):
        slim.batch_norm(IMAGES[0])
    with (
        pytest.raises(ValueError, match="batch_norm has no argument 'renorm'"),
        slim.arg_scope([slim.batch_norm], renorm=True),
    ):
        pass


def test_layer_norm_is_of_each_row() -> None:
    (found,) = values(slim.layer_norm(IMAGES))
    flat = IMAGES.reshape(2, -1)
    expected = (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)
    np.testing.assert_allclose(found.reshape(2, -1), expected, rtol=1e-4, atol=1e-5)


def test_small_layers() -> None:
    kept = slim.dropout(np.ones([1000], np.float32), 0.25, seed=1)
    soft, hot, biased, dropped = values(
        slim.softmax(ROWS),
        slim.one_hot_encoding([2, 0], 3),
        slim.bias_add(ROWS, initializer=tf.ones_initializer()),
        kept,
    )
    np.testing.assert_allclose(soft, np.exp(ROWS) / np.exp(ROWS).sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(hot, [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(biased, ROWS + 1)
    assert set(np.unique(dropped)) == {0.0, 4.0}


def test_devices_of_variables_come_from_a_scope() -> None:
    with slim.arg_scope([slim.model_variable, slim.variable], device="/job:ps/task:3"), tf.device("/job:worker"):
        y = slim.fully_connected(slim.batch_norm(slim.conv2d(IMAGES, 4, 3)), 2)
    assert {v.device for v in tf.global_variables()} == {"/job:ps/task:3"}
    assert y.device == "/job:worker"


def test_values_are_assigned_by_feeding(tmp_path: Any) -> None:
    a = slim.variable("a", [2, 3], initializer=tf.ones_initializer())
    b = slim.model_variable("b", [3], initializer=tf.zeros_initializer())
    new = np.arange(6, dtype=np.float32).reshape(2, 3)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        slim.assign_from_values_fn({"a": new})(session)
        np.testing.assert_array_equal(session.run(a), new)
        path = tf.train.Saver([a]).save(session, str(tmp_path / "model"))
        session.run(a.initializer)
        restore = slim.assign_from_checkpoint_fn(path, [a, b], ignore_missing_vars=True)
        restore(session)
        np.testing.assert_array_equal(session.run(a), new)
        session.run(a.initializer)
        op, feeds = slim.assign_from_checkpoint(path, {"a": a})
        session.run(op, feeds)
        np.testing.assert_array_equal(session.run(a), new)
    with pytest.raises(ValueError, match=r"missing variable \[b\]"):
        slim.assign_from_checkpoint(path, [b])
    assert slim.assign_from_checkpoint_fn(path, [b], ignore_missing_vars=True) is None


# --- training --------------------------------------------------------------------------------------------------------


def line() -> Any:
    """The loss of a linear model."""
    begin = tf.zeros_initializer()
    y = slim.fully_connected(ROWS, 1, None, scope="line", reuse=tf.AUTO_REUSE, weights_initializer=begin)
    return tf.losses.mean_squared_error(TARGETS, y)


def gradient(w: np.ndarray) -> np.ndarray:
    return 2 * ROWS.T @ (ROWS @ w - TARGETS) / len(ROWS)


def test_a_training_op_is_the_loss_and_makes_a_step() -> None:
    train = slim.learning.create_train_op(
        line(),
        tf.train.GradientDescentOptimizer(0.1),
        clip_gradient_norm=0.5,
        gradient_multipliers={"line/weights": 3.0},
    )
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP)[-1] is train
    w = slim.get_unique_variable("line/weights")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(train) == pytest.approx(np.mean(TARGETS**2), rel=1e-5)
        g = 3 * gradient(np.zeros([5, 1]))
        np.testing.assert_allclose(session.run(w), -0.1 * g * min(1, 0.5 / np.linalg.norm(g)), rtol=1e-4)
        assert session.run(tf.train.get_global_step()) == 1


def test_a_loss_that_is_not_a_number_ends_the_step() -> None:
    train = tf.contrib.training.create_train_op(line() / tf.constant(0.0), tf.train.GradientDescentOptimizer(0.1))
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="LossTensor is inf or nan"):
        session.run(tf.global_variables_initializer())
        session.run(train)


def test_optimize_loss_clips_by_the_norm_of_all_and_adds_summaries() -> None:
    step = tf.train.create_global_step()
    decay = lambda rate, at: tf.train.exponential_decay(rate, at, 1, 0.5)  # noqa: E731
    train = slim.optimize_loss(line(), step, 0.2, "SGD", clip_gradients=1.0, learning_rate_decay_fn=decay)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train)
        g, b = gradient(np.zeros([5, 1])), -2 * TARGETS.mean()
        scale = min(1, 1 / np.sqrt(np.sum(g**2) + b**2))
        np.testing.assert_allclose(session.run(slim.get_unique_variable("line/weights")), -0.2 * g * scale, rtol=1e-4)
        assert session.run(step) == 1
    found = [t.op.name for t in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    assert found == [
        f"OptimizeLoss/{n}"
        for n in ("learning_rate", "global_norm/gradient_norm", "global_norm/clipped_gradient_norm", "loss")
    ]
    with pytest.raises(ValueError, match=r"should be one of \[Adagrad, .*, you provided Best"):
        slim.optimize_loss(line(), step, 0.1, "Best")
    with pytest.raises(ValueError, match="Learning rate is None"):
        slim.optimize_loss(line(), step, None, "SGD")


def test_training_goes_on_from_its_checkpoint_and_is_evaluated(tmp_path: Any) -> None:
    folder = str(tmp_path / "run")
    losses = []
    for stop in (30, 50):
        with tf.Graph().as_default():
            train = slim.learning.create_train_op(line(), tf.train.GradientDescentOptimizer(0.1))
            losses.append(
                slim.learning.train(
                    train, folder, number_of_steps=stop, log_every_n_steps=10, trace_every_n_steps=stop - 1
                )
            )
        assert tf.train.latest_checkpoint(folder).endswith(f"model.ckpt-{stop}")
        assert (tmp_path / "run" / f"tf_trace-{stop}.json").exists()
    assert losses[1] < losses[0] < 0.1
    pytest.importorskip("tensorboardX")
    slim.get_or_create_global_step()
    metrics, updates = slim.metrics.aggregate_metric_map({"loss": tf.metrics.mean(line())})
    tf.summary.scalar("eval", metrics["loss"])
    found = slim.evaluation.evaluation_loop(
        "", folder, str(tmp_path / "eval"), 3, eval_op=list(updates.values()), final_op=metrics["loss"],
        eval_interval_secs=0, max_number_of_evaluations=1,
    )  # fmt: skip
    assert found < losses[1] and list((tmp_path / "eval").iterdir())


def test_the_losses_of_slim_take_predictions_first() -> None:
    hot = np.eye(5, dtype=np.float32)[RNG.randint(0, 5, 32)]
    mine = slim.losses.softmax_cross_entropy(ROWS, hot, label_smoothing=0.1)
    core = tf.losses.softmax_cross_entropy(hot, ROWS, label_smoothing=0.1)
    assert tf.losses.get_losses() == [mine, core]
    found = values(
        mine, core, slim.metrics.streaming_accuracy([1, 2, 3], [1, 2, 0])[1], slim.metrics.accuracy([1, 0], [1, 1])
    )
    assert found[0] == found[1] and found[2] == pytest.approx(2 / 3) and found[3] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["asynchronous", "synchronous"])
def test_workers_train_together(tmp_path: Any, together: bool) -> None:
    ends: dict[int, Any] = {}

    def replica(cluster: Any, task: int) -> None:
        with tf.Graph().as_default():
            with (
                tf.device(f"/job:worker/task:{task}"),
                slim.arg_scope([slim.model_variable, slim.variable], device="/job:ps/task:0"),
            ):
                with tf.device("/job:ps/task:0"):
                    slim.create_global_step()
                loss = line()
                optimizer = tf.train.GradientDescentOptimizer(0.1)
                if together:
                    with tf.device("/job:ps/task:0"):
                        optimizer = tf.train.SyncReplicasOptimizer(optimizer, 2, total_num_replicas=2)
                train = slim.learning.create_train_op(loss, optimizer)
            try:
                ends[task] = slim.learning.train(
                    train, str(tmp_path), master=cluster.target("worker", task), is_chief=task == 0, number_of_steps=60,
                    sync_optimizer=optimizer if together else None, startup_delay_steps=0 if together else 5 * task,
                    log_every_n_steps=0,
                )  # fmt: skip
            except (
                tf.errors.OpError
            ) as e:  # the chief has closed the cluster's session while this one waited for a token
                ends[task] = e

    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        threads = [threading.Thread(target=replica, args=(cluster, task)) for task in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
    assert set(ends) == {0, 1}
    assert float(ends[0]) < 0.01
    assert tf.train.latest_checkpoint(str(tmp_path)) is not None


def test_names_of_nodes_are_in_the_layer_s_scope_once() -> None:
    slim = tf.contrib.slim
    x = tf.ones([2, 4, 4, 3])
    with tf.Graph().as_default(), tf.variable_scope("net"):
        x = tf.ones([2, 4, 4, 3])
        y = slim.conv2d(x, 5, [1, 1], activation_fn=None, scope="logits")
        z = slim.fully_connected(tf.ones([2, 3]), 4, scope="fc")
        again = slim.fully_connected(tf.ones([2, 3]), 4, activation_fn=None, scope="fc", reuse=True)
    assert [t.op.name for t in (y, z, again)] == ["net/logits/BiasAdd", "net/fc/Relu", "net/fc_1/BiasAdd"]


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_instance_norm(data_format: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = np.random.RandomState(0).randn(2, 5, 4, 3).astype(np.float32) * 3 + 1
    with tf.Graph().as_default():
        x = given if data_format == "NHWC" else given.transpose(0, 3, 1, 2)
        y = tf.contrib.layers.instance_norm(x, data_format=data_format)
        assert tf.contrib.slim.model_analyzer.analyze_vars(tf.trainable_variables(), print_info=True) == (6, 24)
        assert "InstanceNorm/beta:0 (float32_ref 3) [3, bytes: 12]" in capsys.readouterr().out
        assert tf.contrib.slim.model_analyzer.analyze_ops(y.graph) > 120
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            found = session.run(y)
        with pytest.raises(ValueError, match="axes to normalize over"):
            tf.contrib.layers.instance_norm(tf.ones([2, 3]))
    wanted = (given - given.mean((1, 2), keepdims=True)) / np.sqrt(given.var((1, 2), keepdims=True) + 1e-6)
    np.testing.assert_allclose(
        found if data_format == "NHWC" else found.transpose(0, 2, 3, 1), wanted, rtol=1e-4, atol=1e-5
    )
