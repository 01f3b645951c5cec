"""Names of `tf.contrib`: the losses of sequences, initializers and regularizers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def values(*tensors: tf.Tensor) -> list[np.ndarray]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [np.asarray(v) for v in session.run(list(tensors))]


LOGITS = np.random.RandomState(0).randn(2, 3, 4)
CLASSES = np.array([[0, 3, 1], [2, 2, 0]])
WEIGHTS = np.array([[1.0, 1.0, 0.0], [1.0, 0.5, 0.5]])
LOSSES = (np.log(np.exp(LOGITS).sum(-1)) - np.take_along_axis(LOGITS, CLASSES[..., None], -1)[..., 0]) * WEIGHTS


def test_the_loss_of_sequences_is_a_weighted_mean() -> None:
    loss = tf.contrib.seq2seq.sequence_loss
    given = (tf.constant(LOGITS), tf.constant(CLASSES), tf.constant(WEIGHTS))
    both, rows, steps, none = values(
        loss(*given), loss(*given, average_across_batch=False), loss(*given, average_across_timesteps=False),
        loss(*given, average_across_batch=False, average_across_timesteps=False),
    )  # fmt: skip
    np.testing.assert_allclose(both, LOSSES.sum() / WEIGHTS.sum())
    np.testing.assert_allclose(rows, LOSSES.sum(1) / WEIGHTS.sum(1))
    np.testing.assert_allclose(steps, LOSSES.sum(0) / WEIGHTS.sum(0))
    np.testing.assert_allclose(none, LOSSES)
    with pytest.raises(ValueError, match="logits must have 3 axes"):
        loss(tf.constant(LOGITS[0]), tf.constant(CLASSES), tf.constant(WEIGHTS))


def test_the_loss_of_unrolled_sequences_is_a_mean_per_row() -> None:
    parts = [tf.unstack(tf.constant(v), axis=1) for v in (LOGITS, CLASSES, WEIGHTS)]
    legacy = tf.contrib.legacy_seq2seq
    rows, whole = values(legacy.sequence_loss_by_example(*parts), legacy.sequence_loss(*parts))
    np.testing.assert_allclose(rows, LOSSES.sum(1) / WEIGHTS.sum(1))
    np.testing.assert_allclose(whole, (LOSSES.sum(1) / WEIGHTS.sum(1)).mean())
    with pytest.raises(ValueError, match="one length: 3, 3, 2"):
        legacy.sequence_loss_by_example(parts[0], parts[1], parts[2][:2])


def test_regularizers_join_the_losses() -> None:
    layers = tf.contrib.layers
    w = tf.get_variable("w", [3, 4], initializer=layers.xavier_initializer(), regularizer=layers.l2_regularizer(0.1))
    (l2,) = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    l1 = layers.apply_regularization(layers.l1_regularizer(0.5), [w])
    weights, found_l2, found_l1 = values(w, l2, l1)
    np.testing.assert_allclose(found_l2, 0.05 * np.square(weights).sum(), rtol=1e-6)
    np.testing.assert_allclose(found_l1, 0.5 * np.abs(weights).sum(), rtol=1e-6)
    assert layers.l2_regularizer(0.0)(w) is None
    assert len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 2
    with pytest.raises(ValueError, match="at least 0"):
        layers.l1_regularizer(-1.0)


def test_strategies_count_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    contrib = tf.contrib.distribute
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "2")
    mirrored = contrib.MirroredStrategy(num_gpus=2)
    assert isinstance(mirrored, tf.distribute.MirroredStrategy)
    assert mirrored.extended.worker_devices == ("/device:GPU:0", "/device:GPU:1")
    assert contrib.MirroredStrategy(["/cpu:0"]).extended.worker_devices == ("/device:CPU:0",)
    assert contrib.CollectiveAllReduceStrategy(num_gpus_per_worker=2).num_replicas_in_sync == 2
    assert contrib.ParameterServerStrategy(num_gpus_per_worker=1).num_replicas_in_sync == 1
    with pytest.raises(ValueError, match="only specify one"):
        contrib.MirroredStrategy(["/gpu:0"], num_gpus=1)


def test_adamw_takes_the_decay_first() -> None:
    w = tf.Variable([2.0, -4.0])
    step = tf.contrib.opt.AdamWOptimizer(0.5, learning_rate=0.25).minimize(tf.reduce_sum(w * [1.0, -1.0]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(step)
        # Decoupled: w - rate * decay * w, and behind it Adam's first step, which is the rate along the gradient's sign.
        np.testing.assert_allclose(session.run(w), [2.0 - 0.25 - 0.25, -4.0 + 0.5 + 0.25], rtol=1e-6)


def test_data_sets_have_their_old_place() -> None:
    data = tf.contrib.data
    pipeline = tf.data.Dataset.range(5).apply(data.map_and_batch(lambda n: n + 1, 2))
    element = pipeline.make_one_shot_iterator().get_next()
    whole = tf.data.Dataset.range(5).apply(data.batch_and_drop_remainder(2))
    assert whole.output_shapes.as_list() == [2]
    np.testing.assert_array_equal(values(element)[0], [1, 2])


def test_unrolled_decoders() -> None:
    legacy = tf.contrib.legacy_seq2seq
    steps = [np.random.RandomState(i).randn(2, 3).astype(np.float32) for i in range(3)]
    cell = tf.nn.rnn_cell.BasicRNNCell(4)
    outputs, state = legacy.rnn_decoder(steps, cell.zero_state(2, tf.float32), cell)
    echo = tf.nn.rnn_cell.BasicRNNCell(4)
    fed, _ = legacy.rnn_decoder(
        [np.ones((2, 4), np.float32)] * 3, echo.zero_state(2, tf.float32), echo, lambda out, i: out * i, scope="fed"
    )
    with tf.variable_scope("both"):
        pair, _ = legacy.basic_rnn_seq2seq(steps, steps[:2], tf.nn.rnn_cell.GRUCell(4))
    words = [np.array([1, 2])] * 3
    projection = (tf.constant(np.eye(4, 5, dtype=np.float32)), tf.zeros([5]))
    said, _ = legacy.embedding_rnn_decoder(
        words, tf.zeros([2, 4]), tf.nn.rnn_cell.BasicRNNCell(4), 5, 3, projection, feed_previous=True
    )
    assert [len(x) for x in (outputs, fed, pair, said)] == [3, 3, 2, 3]
    names = [v.op.name for v in tf.trainable_variables()]
    assert names[:2] == ["rnn_decoder/basic_rnn_cell/kernel", "rnn_decoder/basic_rnn_cell/bias"]
    assert "both/basic_rnn_seq2seq/rnn/gru_cell/gates/kernel" in names
    assert "both/basic_rnn_seq2seq/rnn_decoder/gru_cell/gates/kernel" in names
    assert "embedding_rnn_decoder/embedding" in names
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        w = {v.op.name: session.run(v) for v in tf.trainable_variables()}
        found, last, echoed, spoken = session.run([outputs, state, fed, said])
    h = np.zeros((2, 4))
    for x, out in zip(steps, found, strict=True):
        h = np.tanh(
            np.concatenate([x, h], 1) @ w["rnn_decoder/basic_rnn_cell/kernel"] + w["rnn_decoder/basic_rnn_cell/bias"]
        )
        np.testing.assert_allclose(out, h, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, h, rtol=1e-5, atol=1e-6)
    x, h = np.ones((2, 4)), np.zeros((2, 4))
    for i, out in enumerate(echoed):
        h = np.tanh(np.concatenate([x, h], 1) @ w["fed/basic_rnn_cell/kernel"] + w["fed/basic_rnn_cell/bias"])
        np.testing.assert_allclose(out, h, rtol=1e-5, atol=1e-6)
        x = out * (i + 1)
    cell_w, h, ids = w["embedding_rnn_decoder/rnn_decoder/basic_rnn_cell/kernel"], np.zeros((2, 4)), np.array([1, 2])
    for out in spoken:
        h = np.tanh(np.concatenate([w["embedding_rnn_decoder/embedding"][ids], h], 1) @ cell_w)
        np.testing.assert_allclose(out, h, rtol=1e-5, atol=1e-6)
        ids = np.concatenate([h, np.zeros((2, 1))], 1).argmax(1)


def test_what_is_known_before_the_graph_runs() -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    assert tf.contrib.util.constant_value(tf.shape(x)) is None
    np.testing.assert_array_equal(tf.contrib.util.constant_value(tf.constant([1, 2]) + 1), [2, 3])
    assert tf.contrib.util.constant_value_as_shape(tf.shape(x)).as_list() == [None, 3]


def test_rows_of_numbers_of_words(tmp_path: Path) -> None:
    learn = tf.contrib.learn
    assert (learn.ModeKeys.TRAIN, learn.ModeKeys.EVAL, learn.ModeKeys.INFER) == ("train", "eval", "infer")
    texts = ["A red fox's den", "a fox, a fox", "red-hot fireTruck HTTPServer"]
    made = learn.preprocessing.VocabularyProcessor(5)
    rows = np.array(list(made.fit_transform(texts)))
    np.testing.assert_array_equal(rows, [[1, 2, 3, 4, 0], [5, 6, 5, 6, 0], [7, 8, 9, 10, 0]])
    assert len(made.vocabulary_) == 11
    assert next(made.reverse([[2, 3, 0]])) == "red fox's <UNK>"
    made.save(str(tmp_path / "words"))
    again = learn.preprocessing.VocabularyProcessor.restore(str(tmp_path / "words"))
    np.testing.assert_array_equal(list(again.transform(["a new fox"])), [[5, 0, 6, 0, 0]])
    often = learn.preprocessing.VocabularyProcessor(3, min_frequency=1)
    np.testing.assert_array_equal(list(often.fit_transform(["b a c", "c a", "c"])), [[0, 2, 1], [1, 2, 0], [1, 0, 0]])


def test_small_names_of_programs() -> None:
    assert tf.contrib.layers.OPTIMIZER_CLS_NAMES["Adam"] is tf.train.AdamOptimizer
    assert "gradient_norm" in tf.contrib.layers.OPTIMIZER_SUMMARIES
    assert tf.contrib.framework.deprecated("2018-01-01", "use another one")(values) is values
