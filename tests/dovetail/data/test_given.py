"""Data sets made from tensors: what an iterator's initializer is fed is what it starts with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.graph import Graph


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as g:
        yield g


def rest(session: tf.Session, element: Any) -> list[Any]:
    """What is left."""
    found = []
    while True:
        try:
            found.append(session.run(element))
        except tf.errors.OutOfRangeError:
            return found


def test_each_start_has_what_it_is_fed() -> None:
    x, y = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.string, [None])
    size = tf.placeholder(tf.int64, [])
    dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": y}).map(lambda d: (d["x"] * 2, d["y"])).batch(size)
    assert [s.as_list() for s in dataset.output_shapes] == [[None, 2], [None]]
    iterator = dataset.make_initializable_iterator()
    element = iterator.get_next()
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    with tf.Session() as session:
        session.run(iterator.initializer, {x: rows, y: ["a", "b", "c"], size: 2})
        (first, names), (second, name) = rest(session, element)
        np.testing.assert_array_equal(np.concatenate([first, second]), rows * 2)
        assert [*names, *name] == [b"a", b"b", b"c"]
        session.run(iterator.initializer, {x: rows[:1] + 1, y: ["d"], size: 9})
        ((only, _),) = rest(session, element)
        np.testing.assert_array_equal(only, [[2, 4]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="same number of rows"):
            session.run(iterator.initializer, {x: rows, y: ["d"], size: 9})
            session.run(element)


def test_two_iterators_of_one_data_set_go_through_different_values() -> None:
    x = tf.placeholder(tf.int32, [None])
    dataset = tf.data.Dataset.from_tensor_slices(x).cache().repeat(2).concatenate(tf.data.Dataset.from_tensors(x[0]))
    iterators = [dataset.make_initializable_iterator() for _ in range(2)]
    elements = [i.get_next() for i in iterators]
    with tf.Session() as session:
        session.run(iterators[0].initializer, {x: [1, 2]})
        session.run(iterators[1].initializer, {x: [3]})
        assert [session.run(elements[0]), session.run(elements[1])] == [1, 3]
        assert rest(session, elements[0]) == [2, 1, 2, 1]
        assert rest(session, elements[1]) == [3, 3]


def test_two_sessions_of_one_graph_start_an_iterator_with_different_values() -> None:
    x = tf.placeholder(tf.int32, [None])
    iterator = tf.data.Dataset.from_tensor_slices(x).make_initializable_iterator()
    element = iterator.get_next()
    with tf.Session() as one, tf.Session() as other:
        one.run(iterator.initializer, {x: [1, 2, 3]})
        other.run(iterator.initializer, {x: [10, 20, 30]})
        assert [s.run(element) for s in (one, other, one, other)] == [1, 10, 2, 20]
        one.run(iterator.initializer, {x: [4]})
        assert rest(other, element) == [30] and rest(one, element) == [4]


def test_a_structure_takes_data_sets_of_tensors() -> None:
    x = tf.placeholder(tf.int64, [None])
    fed = tf.data.Dataset.from_tensor_slices(x)
    both = tf.data.experimental.sample_from_datasets([fed, tf.data.Dataset.range(10, 12)])
    iterator = tf.data.Iterator.from_structure(tf.int64, ())
    starts = [iterator.make_initializer(d) for d in (fed, tf.data.Dataset.range(3), both)]
    element = iterator.get_next()
    with tf.Session() as session:
        session.run(starts[0], {x: [7, 8]})
        assert rest(session, element) == [7, 8]
        session.run(starts[1])
        assert rest(session, element) == [0, 1, 2]
        session.run(starts[2], {x: [7, 8]})
        assert sorted(rest(session, element)) == [7, 8, 10, 11]


def test_numbers_may_be_fed() -> None:
    n = tf.placeholder(tf.int64, [])
    numbers = tf.data.Dataset.range(4)
    made = [d.make_initializable_iterator() for d in (numbers.skip(n), numbers.take(n), numbers.take(1).repeat(n))]
    elements = [i.get_next() for i in made]
    with tf.Session() as session:

        def all_with(count: int) -> list[list[int]]:
            session.run([i.initializer for i in made], {n: count})
            return [[int(x) for x in rest(session, e)] for e in elements[: 3 if count >= 0 else 2]]

        assert all_with(3) == [[3], [0, 1, 2], [0, 0, 0]]
        assert all_with(0) == [[0, 1, 2, 3], [], []]
        assert all_with(-1) == [[], [0, 1, 2, 3]]
        session.run(made[2].initializer, {n: -1})
        assert [session.run(elements[2]) for _ in range(5)] == [0] * 5


def test_names_of_files_may_be_fed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    names = tf.placeholder(tf.string, [None])
    lines = tf.data.TextLineDataset(names).make_initializable_iterator()
    line = lines.get_next()
    with tf.Session() as session:
        session.run(lines.initializer, {names: [str(tmp_path / "a.txt")] * 2})
        assert rest(session, line) == [b"one", b"two"] * 2
    with pytest.raises(TypeError, match="File names must be strings, not int32"):
        tf.data.TFRecordDataset(tf.placeholder(tf.int32, [None]))


def test_what_is_computed_in_the_graph() -> None:
    known = tf.data.Dataset.from_tensor_slices((tf.constant([1.0, 2.0]), tf.range(2)))
    element = known.make_one_shot_iterator().get_next()
    drawn = tf.data.Dataset.from_tensor_slices(tf.random_uniform([4, 3]))
    with pytest.raises(ValueError, match=r"(?s)Cannot capture .*Use make_initializable_iterator .*random_uniform"):
        drawn.make_one_shot_iterator()
    iterator = drawn.make_initializable_iterator()
    row = iterator.get_next()
    with tf.Session() as session:
        assert rest(session, element) == [(1.0, 0), (2.0, 1)]
        session.run(iterator.initializer)
        assert np.stack(rest(session, row)).shape == (4, 3)


def test_without_values() -> None:
    x = tf.placeholder(tf.int32, [None])
    iterator = tf.data.Dataset.from_tensor_slices(x).make_initializable_iterator()
    element = iterator.get_next()
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"run iterator.initializer before"):
            session.run(element)
        session.run(iterator.position.initializer)  # as after a checkpoint was restored
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match=r"value of Placeholder:0. Before the first element, run iterator.initializer",
        ):
            session.run(element)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Placeholder"):
            session.run(iterator.initializer)
    with pytest.raises(ValueError, match="same number of rows"):
        tf.data.Dataset.from_tensor_slices((tf.placeholder(tf.int32, [2]), tf.placeholder(tf.int32, [3])))
    with pytest.raises(ValueError, match="same number of rows"):
        tf.data.Dataset.from_tensor_slices(tf.placeholder(tf.int32, []))
