"""Input queues: each element comes as often as it should, and their end is the program's."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@contextmanager
def running() -> Iterator[tf.Session]:
    """A session whose queue runners run."""
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        yield session
        coordinator.request_stop()
        coordinator.join(threads, stop_grace_period_secs=60)


def until_the_end(session: tf.Session, fetches: Any) -> list[Any]:
    found = []
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            found.append(session.run(fetches))
    return found


def test_texts_come_in_order_once_per_epoch() -> None:
    name = tf.train.string_input_producer(["a", "b", "c"], num_epochs=2, shuffle=False).dequeue()
    assert [v.name for v in tf.local_variables()] == ["input_producer/limit_epochs/epochs:0"]
    with running() as session:
        assert until_the_end(session, name) == [b"a", b"b", b"c"] * 2


def test_each_epoch_is_shuffled_by_itself() -> None:
    row = tf.train.range_input_producer(10, num_epochs=3, seed=1).dequeue()
    with running() as session:
        rows = [int(r) for r in until_the_end(session, row)]
    epochs = [rows[i : i + 10] for i in range(0, 30, 10)]
    assert all(sorted(e) == list(range(10)) for e in epochs)
    assert len({tuple(e) for e in epochs}) > 1


def test_rows_of_several_tensors_stay_together() -> None:
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    image, label = tf.train.slice_input_producer([tf.constant(x), tf.constant(x[:, 0] + 1)], num_epochs=1)
    batch = tf.train.batch({"image": image, "label": label}, 4, allow_smaller_final_batch=True)
    assert batch["image"].shape.as_list() == [None, 2]
    with running() as session:
        found = until_the_end(session, batch)
    assert [len(b["label"]) for b in found] == [4, 4, 2]
    assert sorted(np.concatenate([b["label"] for b in found])) == sorted(x[:, 0] + 1)
    assert all((b["image"][:, 0] + 1 == b["label"]).all() for b in found)


def test_random_batches_lose_nothing() -> None:
    row = tf.train.range_input_producer(24, num_epochs=1, shuffle=False).dequeue()
    batch = tf.train.shuffle_batch([row], 4, capacity=16, min_after_dequeue=8, seed=5)
    with running() as session:
        found = until_the_end(session, batch)
    order = [int(r) for (b,) in found for r in b] if isinstance(found[0], list) else [int(r) for b in found for r in b]
    assert sorted(order) == list(range(24)) != order


def test_elements_may_be_left_out_and_padded() -> None:
    row = tf.train.range_input_producer(10, num_epochs=1, shuffle=False).dequeue()
    even = tf.train.maybe_batch(row, tf.equal(row % 2, 0), 2)
    length = tf.train.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()
    padded = tf.train.batch(tf.fill(tf.reshape(length + 1, [1]), 7), 3, dynamic_pad=True, shapes=[[None]])
    with running() as session:
        assert [b.tolist() for b in until_the_end(session, even)] == [[0, 2], [4, 6]]
        assert session.run(padded).tolist() == [[7, 0, 0], [7, 7, 0], [7, 7, 7]]


def test_many_elements_at_a_time_from_several_sources() -> None:
    sources = [[tf.constant([1, 2])], [tf.constant([10, 20])]]
    (batch,) = tf.train.batch_join(sources, 8, capacity=8, enqueue_many=True)
    assert batch.shape.as_list() == [8]
    with running() as session:
        assert set(session.run(batch).tolist()) <= {1, 2, 10, 20}


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ValueError, match="non-null input tensor"):
        tf.train.string_input_producer([])
    with pytest.raises(ValueError, match="num_epochs must be > 0 not 0"):
        tf.train.limit_epochs(tf.constant([1]), 0)
    with pytest.raises(ValueError, match="fully defined shape"):
        tf.train.input_producer(tf.placeholder(tf.float32, [None, None]))
    with pytest.raises(TypeError, match="same element types"):
        tf.train.batch_join([[tf.constant(1)], [tf.constant(1.0)]], 2)
