"""A data set goes on after an element that fails, as in TensorFlow: the error belongs to that element."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

Dataset = tf.data.Dataset
experimental = tf.data.experimental


def _failing(*where: int) -> Any:
    def function(x: Any) -> Any:
        product = tf.ones([], tf.int64)
        for place in where:
            product *= x - place
        return x + 0 * (1 // tf.abs(product))

    return function


def _source(count: int = 8, *where: int) -> Any:
    return Dataset.range(count).map(_failing(*(where or (3,))))


@pytest.mark.parametrize(
    ("make", "wanted"),
    [  # TensorFlow 2.21's elements; None for an error
        (lambda: _source().filter(lambda x: tf.not_equal(x % 3, 1)), [0, 2, None, 5, 6]),
        (lambda: Dataset.range(5).filter(lambda x: tf.greater(_failing(3)(x), -1)), [0, 1, 2, None, 4]),
        (lambda: _source().take(4), [0, 1, 2, None, 4]),
        (lambda: _source().take(5).repeat(2), [0, 1, 2, None, 4, 5] * 2),
        (lambda: _source().shard(2, 1), [1, None, 4, 6]),
        (lambda: _source().cache().repeat(2), [0, 1, 2, None, 4, 5, 6, 7, 0, 1, 2, 4, 5, 6, 7]),
        (lambda: _source(3, 0).cache().repeat(2), [None, 1, 2, 1, 2]),
        (lambda: _source().filter(lambda x: x % 2 < 1).batch(2), [[0, 2], None, [4, 6]]),
        (lambda: _source().padded_batch(3, []), [[0, 1, 2], None, [4, 5, 6], [7]]),
        (
            lambda: _source().map(lambda x: tf.stack([x, x])).apply(experimental.unbatch()).skip(4),
            [2, 2, None, 4, 4, 5, 5, 6, 6, 7, 7],
        ),
        (lambda: Dataset.zip((_source(6), Dataset.range(6))).map(lambda x, y: x + y), [0, 2, 4, None, 8, 10]),
        (lambda: Dataset.zip((Dataset.range(6), _source(6))).map(lambda x, y: x + y), [0, 2, 4, None, 8, 10]),
        (lambda: _source(4).concatenate(_source(3, 0)), [0, 1, 2, None, None, 1, 2]),
        (lambda: _source().apply(experimental.take_while(lambda x: x < 6)), [0, 1, 2, None, 4, 5]),
        (
            lambda: _source().apply(experimental.scan(np.int64(0), lambda s, x: (s + x, s + x))),
            [0, 1, 3, None, 7, 12, 18, 25],
        ),
        (
            lambda: _source().apply(experimental.group_by_window(lambda x: x % 2, lambda k, d: d.batch(2), 2)),
            [[0, 2], None, [1, 5], [4, 6], [7]],
        ),
        (
            lambda: experimental.choose_from_datasets(
                [_source(4, 1), Dataset.range(10, 14)], Dataset.range(8).map(lambda x: x % 2)
            ),
            [0, 10, None, 11, 2, 12, 3, 13],
        ),
        (lambda: experimental.sample_from_datasets([_source(4, 1)]), [0, None, 2, 3]),
        (lambda: _source().apply(experimental.ignore_errors()).skip(4), [5, 6, 7]),
        (lambda: _source().batch(3).apply(experimental.ignore_errors()), [[0, 1, 2], [6, 7]]),
        (lambda: _source(2, 0, 1).apply(experimental.ignore_errors()).repeat(), []),
        (lambda: _source(3, 1).apply(experimental.ignore_errors()).repeat(2), [0, 2] * 2),
        # a batch of a map ends where it would without the error
        (lambda: _source().batch(3), [[0, 1, 2], None, [6, 7]]),
        (lambda: _source(9, 3, 4).batch(3, True), [[0, 1, 2], None, [6, 7, 8]]),
        (lambda: Dataset.range(8).map(_failing(3), num_parallel_calls=2).batch(3), [[0, 1, 2], None, [6, 7]]),
        (lambda: _source().take(-1).repeat(1).skip(0).shard(1, 0).batch(3), [[0, 1, 2], None, [6, 7]]),
        (lambda: _source(8, 4).apply(experimental.map_and_batch(_failing(3), 2)), [[0, 1], None, None, [6, 7]]),
        (lambda: _source().batch(3).batch(2), [None, [[6, 7]]]),
        # a map that changes nothing is left out
        (lambda: _source().prefetch(1).map(lambda x: x).batch(3), [[0, 1, 2], None, [4, 5, 6], [7]]),
        (lambda: _source().prefetch(1).map(tf.identity, 2).batch(3), [[0, 1, 2], None, [4, 5, 6], [7]]),
        (lambda: _source().map(lambda x: x).batch(3), [[0, 1, 2], None, [6, 7]]),
        (lambda: _source().prefetch(1).map(lambda x: x + 0).batch(3), [[0, 1, 2], None, [6, 7]]),
        (lambda: Dataset.range(2).flat_map(lambda _: _source(4, 0).batch(2)), [None, [2, 3]] * 2),
        (lambda: _source().prefetch(1).batch(3), [[0, 1, 2], None, [4, 5, 6], [7]]),
        (lambda: _source(8, 6).prefetch(1).batch(3, True), [[0, 1, 2], [3, 4, 5], None]),
        (lambda: _source().cache().batch(3), [[0, 1, 2], None, [4, 5, 6], [7]]),
        (lambda: _source(4).repeat(2).batch(3), [[0, 1, 2], None, [0, 1, 2], None]),
        # an element that is left out still fails; TensorFlow 2.21 then leaves out as many again, TensorFlow 1 does not
        (lambda: _source().skip(2), [2, None, 4, 5, 6, 7]),
        (lambda: _source().skip(4), [None, 5, 6, 7]),
        (lambda: _source(4).skip(4), [None]),
        (lambda: Dataset.range(8).map(_failing(3), num_parallel_calls=2).skip(5), [None, 6, 7]),
        (lambda: _source(4).prefetch(2).skip(3).repeat(2), [None, None]),
        (lambda: _source(4, 0).skip(1).repeat(2), [None, 2, 3] * 2),
        # an error comes before the end, also from a data set of which nothing else is left
        (lambda: _source(1, 0).batch(3, True).repeat(2), [None, None]),
        (lambda: _source(2, 0, 1).repeat(), [None, None]),
        (lambda: _source(2, 1).repeat(2), [0, None] * 2),
        (lambda: Dataset.zip((_source(6, 2, 3), Dataset.range(2))).map(lambda x, y: x + y), [0, 2, None]),
        (lambda: Dataset.zip((Dataset.range(2), _source(6, 2, 3))).map(lambda x, y: x + y), [0, 2]),
        # a shuffle reads no further than its buffer reaches
        (lambda: _source().shuffle(1), [0, 1, 2, None, 4, 5, 6, 7]),
        (lambda: _source(3, 1).shuffle(1).repeat(2), [0, None, 2] * 2),
        # interleaved
        (lambda: _source(3, 1).interleave(lambda x: Dataset.range(x, x + 2), 2), [0, None, 2, 1, 3]),
        (lambda: _source(3, 1).interleave(lambda x: Dataset.range(x, x + 2), 2, 1, 2), [0, None, 1, 2, 3]),
        (lambda: _source(3, 1).interleave(lambda x: Dataset.range(x, x + 2), 2, 1, 1), [0, None, 1, 2, 3]),
        (lambda: _source(3, 0).interleave(lambda x: Dataset.range(x, x + 2), 2, 2, 2), [None, 1, 2, 2, 3]),
        (
            lambda: Dataset.range(5).interleave(lambda x: Dataset.from_tensors(_failing(2, 3)(x)).repeat(2), 3, 1, 2),
            [0, 1, None, 0, 1, None, 4, 4],
        ),
        (
            lambda: Dataset.range(3).interleave(lambda x: Dataset.range(2).map(lambda y: _failing(1)(x + y)), 2, 1, 1),
            [0, None, None, 2, 2, 3],
        ),
        (
            lambda: Dataset.range(3).interleave(lambda x: Dataset.range(x, x + 2).map(_failing(1)), 2),
            [0, None, 2, None, 2, 3],
        ),
        (lambda: Dataset.range(3).flat_map(lambda x: Dataset.range(_failing(1)(x), x + 2)), [0, 1, None, 2, 3]),
    ],
)
def test_a_data_set_goes_on_after_an_element_that_fails(make: Any, wanted: list[Any]) -> None:
    assert _taken(make()) == wanted


def test_a_shuffle_and_a_cache_in_a_file_go_on_after_an_element_that_fails(tmp_path: Path) -> None:
    found = _taken(_source().shuffle(3))
    assert found.count(None) == 1 and sorted(x for x in found if x is not None) == [0, 1, 2, 4, 5, 6, 7]
    cached = _source().cache(str(tmp_path / "kept"))
    assert _taken(cached) == [0, 1, 2, None, 4, 5, 6, 7] and _taken(cached) == [0, 1, 2, 4, 5, 6, 7]


def test_a_cache_that_is_not_filled_leaves_no_file_when_its_iterator_starts_again(tmp_path: Path) -> None:
    iterator = Dataset.range(5).cache(str(tmp_path / "kept")).make_initializable_iterator()
    element = iterator.get_next()
    gc.disable()
    try:
        with tf.Session() as session:
            session.run(iterator.initializer)
            assert session.run(element) == 0
            session.run(iterator.initializer)
            assert [session.run(element) for _ in range(5)] == [0, 1, 2, 3, 4]
            gc.collect()
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(element)
    finally:
        gc.enable()
    assert [p.name for p in tmp_path.iterdir()] == ["kept.elements"]


def test_after_a_damaged_file_the_next_one_is_read(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        with tf.python_io.TFRecordWriter(name) as writer:
            writer.write(name[-1].encode())
    Path(names[1]).write_bytes(b"damaged")
    assert _taken(tf.data.TFRecordDataset(names)) == [b"a", None, b"c"]


def _taken(dataset: Any) -> list[Any]:
    """The elements, at most 30; None for one that fails."""
    element = dataset.make_one_shot_iterator().get_next()
    found: list[Any] = []
    with tf.Session() as session:
        while len(found) < 30:
            try:
                value = session.run(element)
                found.append(value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value)
            except (tf.errors.InvalidArgumentError, tf.errors.DataLossError):
                found.append(None)
            except tf.errors.OutOfRangeError:
                break
    return found


def test_a_repetition_goes_on_after_a_round_without_elements() -> None:
    rounds = tf.get_variable("rounds", [], tf.int64, tf.zeros_initializer(), use_resource=True)
    odd = Dataset.range(1).filter(lambda x: tf.equal(rounds.assign_add(1) % 2, 0)).repeat(4)
    element = odd.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        session.run(rounds.initializer)
        assert [session.run(element) for _ in range(2)] == [0, 0]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)
