"""Data sets: what each kind gives, that each can be walked from any position, and iterators in graphs."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import dovetail as tf
from dovetail.data.runtime_values import IterationContext

Dataset = tf.data.Dataset


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def plain(dataset) -> list:
    """The elements as Python values."""

    def value(x):
        if isinstance(x, tuple):
            return tuple(value(i) for i in x)
        if isinstance(x, dict):
            return {k: value(v) for k, v in x.items()}
        return x.tolist()

    return [value(e) for e in dataset]


# --- each kind --------------------------------------------------------------------------------------------------------


def test_sources():
    assert plain(Dataset.range(3)) == [0, 1, 2]
    assert plain(Dataset.range(5, 0, -2)) == [5, 3, 1]
    both = Dataset.from_tensor_slices({"a": [1.5, 2.5], "b": (np.arange(4).reshape(2, 2), ["x", "y"])})
    assert plain(both) == [{"a": 1.5, "b": ([0, 1], b"x")}, {"a": 2.5, "b": ([2, 3], b"y")}]
    assert both.output_types == {"a": tf.float32, "b": (tf.int64, tf.string)}
    assert both.output_shapes == {"a": tf.TensorShape([]), "b": (tf.TensorShape([2]), tf.TensorShape([]))}
    assert plain(Dataset.from_tensors((np.arange(2), 1))) == [([0, 1], 1)]
    with pytest.raises(ValueError, match="same number of rows"):
        Dataset.from_tensor_slices(([1, 2], [1, 2, 3]))


def test_generators():
    def squares(n):
        for i in range(n):
            yield i, [i * i] * i

    dataset = Dataset.from_generator(squares, (tf.int32, tf.float32), ([], [None]), args=(3,))
    assert plain(dataset) == plain(dataset) == [(0, []), (1, [1.0]), (2, [4.0, 4.0])]
    with pytest.raises(TypeError, match="shape"):
        plain(Dataset.from_generator(squares, (tf.int32, tf.float32), ([], []), args=(3,)))
    with pytest.raises(TypeError, match="components"):
        plain(Dataset.from_generator(lambda: [(1, 2)], (tf.int32, tf.int32, tf.int32)))


def test_files(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\r\n\n")
    (tmp_path / "b.txt").write_bytes("drü".encode())
    names = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    assert plain(tf.data.TextLineDataset(names)) == [b"one", b"two", b"", "drü".encode()]
    assert plain(Dataset.from_tensor_slices(names).flat_map(tf.data.TextLineDataset)) == plain(
        tf.data.TextLineDataset(names)
    )
    (tmp_path / "returns.txt").write_bytes(b"a\rb\r\nc\n\rd\r\r\n\n\r")
    assert plain(tf.data.TextLineDataset(str(tmp_path / "returns.txt"))) == [b"ab", b"c", b"d", b""]
    with pytest.raises(tf.errors.NotFoundError, match="c.txt"):
        plain(tf.data.TextLineDataset(str(tmp_path / "c.txt")))
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.arange(6, dtype=np.float32).reshape(3, 2) + 10 * i)
    rows = tf.data.NpyDataset([str(tmp_path / "0.npy"), str(tmp_path / "1.npy")])
    assert plain(rows) == [[0, 1], [2, 3], [4, 5], [10, 11], [12, 13], [14, 15]]
    assert plain(rows.skip(4)) == [[12, 13], [14, 15]]
    np.save(tmp_path / "2.npy", np.arange(3))
    with pytest.raises(ValueError, match="one type and shape"):
        tf.data.NpyDataset([str(tmp_path / "0.npy"), str(tmp_path / "2.npy")])


def test_transformations():
    ten = Dataset.range(10)
    assert plain(ten.map(lambda x: x * x).take(3)) == [0, 1, 4]
    assert plain(Dataset.zip((ten, ten.skip(8)))) == [(0, 8), (1, 9)]
    assert plain(Dataset.zip((ten, ten)).map(lambda x, y: {"sum": x + y})) == [{"sum": 2 * i} for i in range(10)]
    assert plain(ten.filter(lambda x: tf.equal(x % 3, 0))) == [0, 3, 6, 9]
    assert plain(ten.batch(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert plain(ten.batch(4, drop_remainder=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ten.batch(4, drop_remainder=True).output_shapes == tf.TensorShape([4])
    assert plain(ten.take(2).repeat(3)) == [0, 1] * 3
    assert plain(ten.take(0).repeat()) == []
    assert plain(ten.shard(4, 1)) == [1, 5, 9]
    assert plain(ten.take(2).concatenate(ten.skip(8))) == [0, 1, 8, 9]
    assert plain(ten.take(-1)) == plain(ten)
    assert plain(ten.prefetch(3)) == plain(ten.prefetch(0)) == plain(ten)
    assert plain(ten.apply(lambda d: d.take(1))) == [0]
    for wrong in (lambda: ten.batch(0), lambda: ten.shuffle(0), lambda: ten.prefetch(-2), lambda: ten.shard(2, 2)):
        with pytest.raises(ValueError):
            wrong()
    with pytest.raises(ValueError, match="boolean"):
        ten.filter(lambda x: x)


def test_elements_of_generators_nest_as_promised():
    types = {"row": tf.int64, "size": tf.int64}
    given = Dataset.from_generator(lambda: iter([{"row": [4, 5], "size": (2,)}]), types)
    assert [{k: v.tolist() for k, v in e.items()} for e in given] == [{"row": [4, 5], "size": [2]}]
    for wrong in ({"row": 4, "width": 2}, {"row": 4}, (4, 2), 4):
        with pytest.raises(TypeError, match=r"keys \['row', 'size'\] were expected"):
            list(Dataset.from_generator(lambda wrong=wrong: iter([wrong]), types))


def test_elements_that_do_not_fit_are_refused_where_the_data_set_is_made():
    named = Dataset.from_tensors({"a": 1, "b": 2})
    for other in (Dataset.from_tensors({"a": 1, "c": 2}), Dataset.from_tensors((1, 2)), Dataset.from_tensors(1)):
        with pytest.raises(TypeError, match="different types"):
            named.concatenate(other)
    with pytest.raises(TypeError, match="same structure"):
        tf.data.experimental.sample_from_datasets([named, Dataset.from_tensors((1, 2))])
    for parts in ((np.arange(3), np.arange(4)), (np.arange(3), 1), 1):
        with pytest.raises(ValueError, match="number of rows"):
            Dataset.from_tensors(parts).unbatch()


@pytest.mark.parametrize(
    ("cycle", "block", "order"),
    [  # recorded from TensorFlow 2.21
        (2, 2, [0, 1, 10, 11, 2, 12, 20, 21, 30, 31, 22, 32]),
        (2, 1, [0, 10, 1, 11, 2, 12, 20, 30, 21, 31, 22, 32]),
        (3, 2, [0, 1, 10, 11, 20, 21, 2, 12, 22, 30, 31, 32]),
    ],
)
def test_the_order_of_an_interleave_is_tensorflows(cycle, block, order):
    parts = Dataset.range(4).interleave(lambda i: Dataset.range(10 * i, 10 * i + 3), cycle, block)
    assert plain(parts) == order


def test_a_data_set_for_each_element():
    assert plain(Dataset.range(3).flat_map(lambda i: Dataset.range(i))) == [0, 0, 1]
    with pytest.raises(TypeError, match="must return a `Dataset`"):
        Dataset.range(3).flat_map(lambda i: i)


def test_elements_of_different_sizes_are_filled_up():
    rows = Dataset.from_generator(lambda: ([i] * i for i in range(1, 5)), tf.int32, [None])
    assert plain(rows.padded_batch(2)) == [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]
    assert plain(rows.padded_batch(2, [5], -1))[0] == [[1, -1, -1, -1, -1], [2, 2, -1, -1, -1]]
    with pytest.raises(tf.errors.DataLossError, match="does not fit"):
        plain(rows.padded_batch(2, [3]))


def test_a_shuffle_has_all_elements_and_draws_from_its_buffer():
    many = plain(Dataset.range(200).shuffle(20, seed=1))
    assert sorted(many) == list(range(200)) and many != list(range(200))
    assert all(value <= place + 20 for place, value in enumerate(many))
    assert many == plain(Dataset.range(200).shuffle(20, seed=1))
    assert plain(Dataset.range(200).shuffle(200)) != plain(Dataset.range(200).shuffle(200))
    twice = plain(Dataset.range(50).shuffle(50, seed=1).repeat(2))
    assert sorted(twice[:50]) == sorted(twice[50:]) and twice[:50] != twice[50:]
    same = plain(Dataset.range(50).shuffle(50, seed=1, reshuffle_each_iteration=False).repeat(2))
    assert same[:50] == same[50:]


def test_parallel_maps_keep_the_order_and_pass_errors_on():
    dataset = Dataset.range(50).map(lambda x: x * 2, num_parallel_calls=4)
    assert plain(dataset) == [2 * i for i in range(50)]
    bad = Dataset.range(5).map(lambda x: tf.gather([1, 2, 3], x), num_parallel_calls=2)
    with pytest.raises(tf.errors.InvalidArgumentError):
        plain(bad)


def test_a_cache_makes_its_elements_once():
    calls = []

    def numbers():
        calls.append(1)
        yield from range(4)

    dataset = Dataset.from_generator(numbers, tf.int64, []).cache()
    assert plain(dataset.repeat(3)) == [0, 1, 2, 3] * 3
    assert len(calls) == 1


# --- from any position ------------------------------------------------------------------------------------------------

STEPS = {
    "map": lambda d, n: d.map(lambda x: x + n),
    "filter": lambda d, n: d.filter(lambda x: tf.not_equal(tf.reduce_sum(x) % (n + 1), 0)),
    "shuffle": lambda d, n: d.shuffle(n + 1),
    "repeat": lambda d, n: d.repeat(n),
    "take": lambda d, n: d.take(3 * n),
    "skip": lambda d, n: d.skip(n),
    "shard": lambda d, n: d.shard(n + 1, n),
    "prefetch": lambda d, n: d.prefetch(n + 1),
    "concatenate": lambda d, n: d.concatenate(d.take(n)),
    "interleave": lambda d, n: d.interleave(lambda i: Dataset.range(i % 5), n + 1, 2),
    "generated": lambda d, n: Dataset.from_generator(lambda: (int(e) for e in d), tf.int64, []),
    "cache": lambda d, n: d.cache(),
}
DETERMINISTIC = set(STEPS) - {"generated"}  # a generator of a shuffle would draw its own seed


@settings(max_examples=60, deadline=None)
@example([("shuffle", 4), ("cache", 0), ("repeat", 3)], 5, 7, False)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(DETERMINISTIC)), st.integers(0, 4)), max_size=4),
    st.integers(0, 12),
    st.integers(0, 40),
    st.booleans(),
)
def test_a_walk_from_a_position_is_the_rest_of_the_walk(steps, size, skip, batched):
    def walked(skip):
        dataset = Dataset.range(size)  # a new one, with empty caches, as after a restart
        for name, n in steps:
            dataset = STEPS[name](dataset, n)
        if batched:
            dataset = dataset.batch(3)
        return dataset, [
            e[0].tolist() for e in itertools.islice(dataset._iterate(IterationContext((7,)), skip), 200 - skip)
        ]

    with tf.Graph().as_default():
        dataset, whole = walked(0)
        assert walked(skip)[1] == whole[skip:]
        if dataset._size is not None and dataset._size < 200:
            assert dataset._size == len(whole)


# --- in a graph -------------------------------------------------------------------------------------------------------


def test_an_iterator_gives_elements_until_the_end():
    x, y = Dataset.from_tensor_slices(([1.0, 2.0], ["a", "b"])).make_one_shot_iterator().get_next()
    assert (x.dtype, x.shape.as_list(), y.dtype) == (tf.float32, [], tf.string)
    double = x * 2
    with tf.Session() as session:
        assert session.run([double, y]) == [2.0, b"a"]
        assert session.run(double) == 4.0
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                session.run(double)


def test_an_initializable_iterator_starts_again():
    iterator = Dataset.range(3).make_initializable_iterator()
    x = iterator.get_next()
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"run iterator.initializer"):
            session.run(x)
        for _ in range(2):
            session.run(iterator.initializer)
            assert [session.run(x) for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="does not have an initializer"):
        _ = Dataset.range(3).make_one_shot_iterator().initializer


def test_two_sessions_do_not_share_a_position():
    x = Dataset.range(5).make_one_shot_iterator().get_next()
    with tf.Session() as a, tf.Session() as b:
        assert [a.run(x), a.run(x), b.run(x), a.run(x), b.run(x)] == [0, 1, 0, 2, 1]


def test_steps_of_several_threads_share_the_elements():
    x = Dataset.range(60).map(lambda v: v + 1).prefetch(4).make_one_shot_iterator().get_next()
    seen: list[int] = []
    with tf.Session() as session:
        threads = [
            threading.Thread(target=lambda: [seen.append(int(session.run(x))) for _ in range(20)]) for _ in range(3)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert sorted(seen) == list(range(1, 61))


def test_errors_of_a_pipeline_are_errors_of_the_step():
    def broken():
        yield 1
        raise KeyError("gone")

    x = Dataset.from_generator(broken, tf.int32, []).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(x) == 1
        with pytest.raises(tf.errors.UnknownError, match="KeyError: 'gone'"):
            session.run(x)


def test_a_seed_of_the_graph_makes_the_order_the_same():
    def order():
        with tf.Graph().as_default():
            tf.set_random_seed(5)
            iterator = Dataset.range(30).shuffle(30).make_initializable_iterator()
            x = iterator.get_next()
            with tf.Session() as session:
                session.run(iterator.initializer)
                return [int(session.run(x)) for _ in range(30)]

    assert order() == order()


def test_a_position_is_saved_and_restored(tmp_path: Path):
    def build():
        dataset = Dataset.range(20).shuffle(8).map(lambda x: x * 3).repeat().batch(3)
        iterator = dataset.make_one_shot_iterator()
        tf.data.experimental.make_saveable_from_iterator(iterator)
        return iterator.get_next(), tf.train.Saver()

    with tf.Graph().as_default():
        x, saver = build()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(9):
                session.run(x)
            path = saver.save(session, str(tmp_path / "m"))
            rest = [session.run(x).tolist() for _ in range(5)]
            saver.restore(session, path)  # backwards
            assert [session.run(x).tolist() for _ in range(5)] == rest
    with tf.Graph().as_default():
        x, saver = build()
        with tf.Session() as session:
            saver.restore(session, path)
            assert [session.run(x).tolist() for _ in range(5)] == rest


def test_training_goes_on_with_the_next_element(tmp_path: Path):
    def train(steps):
        with tf.Graph().as_default():
            iterator = Dataset.range(100).shuffle(100).repeat().make_one_shot_iterator()
            tf.data.experimental.make_saveable_from_iterator(iterator)
            x = iterator.get_next()
            op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
            hooks = [tf.train.StopAtStepHook(num_steps=steps)]
            seen = []
            with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
                while not session.should_stop():
                    seen.append(int(session.run([x, op])[0]))
            return seen

    assert sorted(train(40) + train(60)) == list(range(100))


def test_the_end_of_the_data_ends_training():
    x = Dataset.range(7).make_initializable_iterator().get_next()
    tf.train.get_or_create_global_step()
    seen = []
    with tf.train.MonitoredTrainingSession() as session:
        while not session.should_stop():
            seen.append(int(session.run(x)))
    assert seen == list(range(7))


def test_the_position_stays_with_the_client_under_a_device_setter():
    setter = tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")
    with tf.device(setter):
        iterator = Dataset.range(3).make_one_shot_iterator()
        x = iterator.get_next()
    assert iterator.position.device == x.device == "/job:worker/task:1"
