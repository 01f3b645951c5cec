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
    order = [int(r) for b in found for r in b]  # a list of one tensor gives a tensor
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
    batch = tf.train.batch_join(sources, 8, capacity=8, enqueue_many=True)
    assert batch.shape.as_list() == [8]
    with running() as session:
        assert set(session.run(batch).tolist()) <= {1, 2, 10, 20}


def sparse_rows() -> tuple[tf.Tensor, tf.SparseTensor]:
    """Rows 0 to 3: row n has the n elements n, n + 1, ... at places 0, 2, 4, ..."""
    row = tf.train.range_input_producer(4, num_epochs=1, shuffle=False).dequeue()
    columns = tf.range(row)
    places = tf.cast(tf.expand_dims(columns * 2, 1), tf.int64)
    size = tf.cast(tf.reshape(row * 2, [1]), tf.int64)
    return row, tf.SparseTensor(places, tf.cast(row + columns, tf.float32), size)


@pytest.mark.parametrize("shuffled", [False, True])
def test_sparse_elements_make_sparse_batches(shuffled: bool) -> None:
    row, sp = sparse_rows()
    if shuffled:
        batch = tf.train.shuffle_batch({"row": row, "sp": sp}, 3, 8, 0, allow_smaller_final_batch=True)
    else:
        batch = tf.train.batch({"row": row, "sp": sp}, 3, allow_smaller_final_batch=True)
    assert batch["sp"].dense_shape.shape.as_list() == [2] and batch["sp"].indices.shape.as_list() == [None, 2]
    with running() as session:
        found = until_the_end(session, batch)
    assert sum(len(b["row"]) for b in found) == 4
    for b in found:
        rows, sp_found = b["row"], b["sp"]
        assert shuffled or rows.tolist() in ([0, 1, 2], [3])
        assert sp_found.dense_shape.tolist() == [len(rows), 2 * max(rows)]
        expected = [([i, 2 * j], n + j) for i, n in enumerate(rows) for j in range(n)]
        assert list(zip(sp_found.indices.tolist(), sp_found.values.tolist(), strict=True)) == expected


def test_rows_of_a_sparse_tensor_are_elements_and_a_vector_says_which_are_kept() -> None:
    number = tf.train.range_input_producer(2, num_epochs=1, shuffle=False).dequeue()
    texts = tf.SparseTensor([[2, 1], [0, 0], [2, 3]], ["x", "y", "z"], [3, 5])  # in any order
    dense = tf.reshape(number, [1]) * 10 + tf.range(3)
    kept, taken = tf.train.maybe_batch([dense, texts], [True, False, True], 2, enqueue_many=True)
    assert taken.dense_shape.shape.as_list() == [2] and taken.dtype == tf.string
    with running() as session:
        for n in range(2):
            numbers, sp = session.run([kept, taken])
            assert numbers.tolist() == [10 * n, 10 * n + 2]
            assert sp.indices.tolist() == [[0, 0], [1, 1], [1, 3]] and sp.values.tolist() == [b"y", b"x", b"z"]
            assert sp.dense_shape.tolist() == [2, 5]


@pytest.mark.parametrize("many", [False, True])
def test_elements_that_are_not_kept_are_in_no_shuffled_batch_of_several_sources(many: bool) -> None:
    def source(start: int) -> tuple[tf.Tensor, tf.Tensor]:
        row = tf.train.range_input_producer(20, num_epochs=1, shuffle=False).dequeue()
        return (tf.reshape(row, [1]) if many else row) + start, tf.equal(row % 2, 0)

    one, keep = source(0)
    a = tf.train.maybe_shuffle_batch(one, 2, 8, 1, keep, enqueue_many=many)
    two, keep = source(100)
    b = tf.train.maybe_shuffle_batch_join([[two]], 2, 8, 1, keep, enqueue_many=many)
    three, keep = source(200)
    c = tf.train.maybe_batch_join([[three]], keep, 2, enqueue_many=many)
    with running() as session:
        for batch, start in ((a, 0), (b, 100), (c, 200)):
            found = np.ravel(until_the_end(session, batch))
            assert sorted(found - start) == list(range(0, 20, 2))


def test_an_empty_list_of_texts_ends_the_input() -> None:
    name = tf.train.string_input_producer(tf.placeholder_with_default(np.array([], object), [None])).dequeue()
    with tf.Session() as session:
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        with pytest.raises(tf.errors.InvalidArgumentError, match="non-null input tensor"):
            coordinator.join(threads, stop_grace_period_secs=60)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(name)


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(ValueError, match="must have the same keys"):
        tf.train.batch_join([{"a": tf.constant(1)}, {"b": tf.constant(1)}], 2)
    with pytest.raises(ValueError, match="Cannot infer Tensor's rank"):
        tf.train.batch([tf.placeholder(tf.float32)], 2)
    with pytest.raises(ValueError, match="cannot be a vector"):
        tf.train.maybe_batch([tf.constant(1)], [True, False], 2)
    with pytest.raises(TypeError, match="sparse in the same places"):
        tf.train.batch_join([[tf.constant(1.0)], [tf.SparseTensor([[0]], [1.0], [1])]], 2)
    with pytest.raises(ValueError, match="non-null input tensor"):
        tf.train.string_input_producer([])
    with pytest.raises(ValueError, match="num_epochs must be > 0 not 0"):
        tf.train.limit_epochs(tf.constant([1]), 0)
    with pytest.raises(ValueError, match="fully defined shape"):
        tf.train.input_producer(tf.placeholder(tf.float32, [None, None]))
    with pytest.raises(TypeError, match="same element types"):
        tf.train.batch_join([[tf.constant(1)], [tf.constant(1.0)]], 2)
