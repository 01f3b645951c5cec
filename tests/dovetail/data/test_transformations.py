"""`tf.data.experimental`, iterators of several data sets, and lists of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.data.runtime_values import IterationContext

Dataset = tf.data.Dataset
more = tf.data.experimental


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def plain(dataset) -> list:
    """The elements as Python values."""

    def value(x):
        return tuple(value(i) for i in x) if isinstance(x, tuple) else x.tolist()

    return [value(e) for e in dataset]


def rest_of(dataset, skip: int) -> list:
    """The elements behind the first ones, as a restored iterator takes them."""
    return [[a.tolist() for a in e] for e in dataset._iterate(IterationContext((7,)), skip)]


def test_two_in_one() -> None:
    double = lambda x: x * 2  # noqa: E731
    for given in ({}, {"num_parallel_calls": 3}, {"num_parallel_batches": 2}):
        assert plain(Dataset.range(5).apply(more.map_and_batch(double, 2, **given))) == [[0, 2], [4, 6], [8]]
    assert plain(Dataset.range(5).apply(more.map_and_batch(double, 2, drop_remainder=True))) == [[0, 2], [4, 6]]
    with pytest.raises(ValueError, match="mutually exclusive"):
        more.map_and_batch(double, 2, 1, num_parallel_calls=1)
    twice = plain(Dataset.range(4).apply(more.shuffle_and_repeat(4, 2, seed=1)))
    assert sorted(twice[:4]) == sorted(twice[4:]) == [0, 1, 2, 3]
    rows = Dataset.range(2).apply(more.parallel_interleave(lambda n: Dataset.range(n * 10, n * 10 + 2), 2, sloppy=True))
    assert plain(rows) == [0, 10, 1, 11]
    assert plain(Dataset.range(3).apply(more.prefetch_to_device("/gpu:0")).apply(more.copy_to_device("/gpu:0"))) == [
        0,
        1,
        2,
    ]


def test_one_by_one() -> None:
    pairs = Dataset.from_tensor_slices((np.arange(6), np.arange(6) * 10)).batch(4).apply(more.unbatch())
    assert plain(pairs) == [(n, n * 10) for n in range(6)] and pairs.output_shapes == (
        tf.TensorShape([]),
        tf.TensorShape([]),
    )
    assert plain(Dataset.range(3).map(lambda n: n * n).apply(more.enumerate_dataset(5))) == [(5, 0), (6, 1), (7, 4)]
    assert plain(more.Counter(3, 2).take(3)) == [3, 5, 7]
    assert more.Counter(dtype=tf.int32).output_types is tf.int32
    assert plain(Dataset.range(9).apply(more.take_while(lambda n: n < 4))) == [0, 1, 2, 3]
    with tf.Session() as session:
        only = more.get_single_element(Dataset.range(5).batch(8))
        for _ in range(2):
            np.testing.assert_array_equal(session.run(only), range(5))
        for wrong, what in ((Dataset.range(0), "was empty"), (Dataset.range(2), "had more than one element")):
            with pytest.raises(tf.errors.InvalidArgumentError, match=what):
                session.run(more.get_single_element(wrong))


def test_elements_drawn_from_several() -> None:
    low, high = Dataset.range(20), Dataset.range(100, 140)
    mixed = more.sample_from_datasets([low, high], [0.5, 0.5], seed=3)
    found = plain(mixed)
    assert [n for n in found if n < 100] == list(range(20)) and [n for n in found if n >= 100] == list(range(100, 140))
    assert plain(mixed) == found and found[:30] != sorted(found[:30])
    assert plain(more.sample_from_datasets([low, high], [1.0, 0.0])) == list(range(20))
    choice = Dataset.from_tensor_slices(np.array([1, 0, 1, 1], np.int64))
    assert plain(more.choose_from_datasets([low, high], choice)) == [100, 0, 101, 102]
    with pytest.raises(ValueError, match="one number of at least 0 for each of 2"):
        more.sample_from_datasets([low, high], [1.0])
    with pytest.raises(TypeError, match="same structure and types"):
        more.sample_from_datasets([low, Dataset.from_tensors(1.0)])
    with pytest.raises(TypeError, match="int64"):
        more.choose_from_datasets([low], Dataset.from_tensors(1.0))
    for wrong in (-1, 2):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=f"choice {wrong} is not the index of one of the 2 data sets"
        ):
            plain(more.choose_from_datasets([low, high], Dataset.from_tensors(np.int64(wrong))))


def test_a_counter_counts_down_too() -> None:
    assert plain(more.Counter(3, -2).take(3)) == [3, 1, -1]
    for ends in ((5,), (2, 9, 3), (9, 2, -3), (3, 3), (0, -(2**63), -1)):
        numbers = range(*ends)
        assert Dataset.range(*ends)._size == (len(numbers) if numbers.stop > -100 else 2**63)


def test_a_function_that_ends_is_an_error_in_map_and_batch() -> None:
    numbers = Dataset.range(5)

    def end_at_three(x: Any) -> Any:
        def check(n: Any) -> Any:
            if n == 3:
                raise tf.errors.OutOfRangeError(None, None, "no more")
            return n

        return tf.py_func(check, [x], tf.int64)

    assert plain(numbers.map(end_at_three)) == [0, 1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no more"):
        plain(numbers.apply(more.map_and_batch(end_at_three, 2)))


def test_sparse_elements_in_buckets() -> None:
    def row(n: Any) -> tf.SparseTensor:
        return tf.SparseTensor(tf.range(n)[:, None], tf.ones([n], tf.int32), n[None])

    rows = Dataset.from_tensor_slices(np.array([1, 5, 2, 6])).map(row)
    buckets = rows.apply(more.bucket_by_sequence_length(lambda s: s.dense_shape[0], [4], [2, 2], no_padding=True))
    assert [list(b.dense_shape) for b in buckets] == [[2, 2], [2, 6]]


def test_padded_shapes_are_no_negative_sizes() -> None:
    with pytest.raises(ValueError, match="at least 0, or -1"):
        Dataset.from_tensors([1, 2]).padded_batch(1, [-5])
    size = tf.placeholder_with_default(np.int64(-5), [])
    wrong = Dataset.from_tensors([1, 2]).padded_batch(1, size[None])
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="at least 0, or -1"):
        session.run(more.get_single_element(wrong))


def test_a_key_that_is_a_python_number() -> None:
    grouped = Dataset.range(4).apply(more.group_by_window(lambda n: 7, lambda key, window: window.batch(9), 9))
    assert plain(grouped) == [[0, 1, 2, 3]]


def test_windows_of_one_key() -> None:
    even = Dataset.range(9).apply(more.group_by_window(lambda n: n % 2, lambda key, window: window.batch(3), 3))
    assert plain(even) == [[0, 2, 4], [1, 3, 5], [6, 8], [7]]
    sized = more.group_by_window(
        lambda n: n % 2, lambda key, window: window.batch(9), window_size_func=lambda key: 1 + key
    )
    assert plain(Dataset.range(5).apply(sized)) == [[0], [2], [1, 3], [4]]
    with pytest.raises(ValueError, match="either window_size or window_size_func"):
        more.group_by_window(lambda n: n, lambda key, window: window)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("shift", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_windows(size: int, shift: int, stride: int, drop: bool) -> None:
    windows = Dataset.range(7).window(size, shift, stride, drop)
    found = windows.flat_map(lambda w: w.batch(size))
    whole = (size - 1) * stride + 1
    starts = [i for i in range(0, 7, shift) if not drop or i + whole <= 7]
    expected = [list(range(i, min(7, i + whole), stride)) for i in starts]
    assert plain(found) == expected
    assert plain(found.skip(2)) == expected[2:]
    assert plain(windows.interleave(lambda w: w, len(starts) or 1, size)) == sum(expected, [])


def test_windows_are_data_sets() -> None:
    five = Dataset.range(5)
    pairs = Dataset.zip({"a": five, "b": (five.map(lambda n: n * 10), five)}).window(2)
    zipped = pairs.flat_map(lambda d: Dataset.zip((d["a"].batch(2), d["b"][0].batch(2), d["b"][1])))
    assert plain(zipped) == [([0, 1], [0, 10], 0), ([2, 3], [20, 30], 2), ([4], [40], 4)]
    windows = five.window(2)
    moved = Dataset.zip((windows, windows.skip(1))).flat_map(lambda a, b: a.concatenate(b))
    assert plain(moved) == [0, 1, 2, 3, 2, 3, 4]
    assert plain(windows.window(2).flat_map(lambda outer: outer.flat_map(lambda w: w.batch(2)))) == [
        [0, 1],
        [2, 3],
        [4],
    ]
    assert plain(windows.cache().repeat(2).flat_map(lambda w: w.take(1))) == [0, 2, 4] * 2
    for misused in (lambda: windows.map(lambda w: 0), lambda: windows.batch(2), lambda: iter(windows).__next__(),
                    lambda: windows.make_one_shot_iterator().get_next()):  # fmt: skip
        with pytest.raises(TypeError, match="hold data sets"):
            misused()
    with pytest.raises(TypeError, match="different types"):
        windows.concatenate(Dataset.from_tensors(1.0).window(2))


def test_an_element_that_fails_fails_each_of_its_windows() -> None:
    numbers = Dataset.range(5).map(lambda n: tf.div(6, n - 2)).window(2, shift=1).flat_map(lambda w: w.batch(2))
    element = numbers.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(element).tolist() == [-3, -6]
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
                session.run(element)
        assert session.run(element).tolist() == [6, 3]


def test_buckets_of_like_lengths() -> None:
    lengths = [1, 5, 2, 6, 3, 9]
    rows = Dataset.from_generator(lambda: ([n] * n for n in lengths), tf.int64, [None])
    length = lambda row: tf.shape(row)[0]  # noqa: E731
    found = plain(rows.apply(more.bucket_by_sequence_length(length, [4, 8], [2, 2, 1])))
    assert found == [[[1, 0], [2, 2]], [[5] * 5 + [0], [6] * 6], [[9] * 9], [[3] * 3]]
    short = rows.filter(lambda row: length(row) < 8)
    full = plain(short.apply(more.bucket_by_sequence_length(length, [4, 8], [2, 2, 1], pad_to_bucket_boundary=True)))
    assert [np.shape(b) for b in full] == [(2, 3), (2, 7), (1, 3)]
    with pytest.raises(ValueError, match="must have length < 8"):
        plain(rows.apply(more.bucket_by_sequence_length(length, [4, 8], [2, 2, 1], pad_to_bucket_boundary=True)))
    with pytest.raises(ValueError, match=r"must equal len\(bucket_boundaries\) \+ 1"):
        more.bucket_by_sequence_length(length, [4], [2])


@pytest.mark.parametrize("skip", [0, 1, 3, 50])
def test_each_can_be_walked_from_any_position(skip: int) -> None:
    batches = Dataset.range(12).batch(3)
    made = [
        batches.apply(more.unbatch()),
        more.sample_from_datasets([Dataset.range(5), Dataset.range(5, 9)]),
        more.choose_from_datasets([Dataset.range(5), Dataset.range(5, 9)], Dataset.range(2).repeat(3)),
        Dataset.range(12).apply(more.group_by_window(lambda n: n % 3, lambda key, w: w.shuffle(4).batch(2), 4)),
        Dataset.range(12).apply(more.bucket_by_sequence_length(lambda n: n, [4, 8], [2, 3, 2])),
        Dataset.range(12).apply(more.take_while(lambda n: n < 7)),
    ]
    for dataset in made:
        assert rest_of(dataset, skip) == rest_of(dataset, 0)[skip:]


def test_files_that_match(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "c.bin"):
        (tmp_path / name).write_text(name)
    pattern = str(tmp_path / "*.txt")
    names = [str(tmp_path / n).encode() for n in ("a.txt", "b.txt")]
    assert plain(Dataset.list_files(pattern, shuffle=False)) == names
    assert plain(Dataset.list_files([pattern, str(tmp_path / "c*")], shuffle=False)) == [
        *names,
        str(tmp_path / "c.bin").encode(),
    ]
    assert sorted(plain(Dataset.list_files(pattern))) == names
    lines = Dataset.list_files(pattern, shuffle=False).interleave(tf.data.TextLineDataset, cycle_length=2)
    assert plain(lines) == [b"a.txt", b"b.txt"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="No files matched pattern: .*nothing"):
        plain(Dataset.list_files(str(tmp_path / "nothing*")))


# --- iterators of several data sets ----------------------------------------------------------------------------------


def test_an_iterator_starts_with_one_data_set_or_the_other(tmp_path: Path) -> None:
    train, test = Dataset.range(5).map(lambda n: (n, n * 2)), Dataset.range(10, 12).map(lambda n: (n, n * 3))
    iterator = tf.data.Iterator.from_structure(train.output_types, train.output_shapes)
    to_train, to_test = iterator.make_initializer(train), iterator.make_initializer(test)
    element = iterator.get_next()
    saver = tf.train.Saver({"input": iterator.position})
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            session.run(element)
        session.run(to_train)
        assert [session.run(element) for _ in range(2)] == [(0, 0), (1, 2)]
        path = saver.save(session, str(tmp_path / "model"))
        session.run(to_test)
        assert [session.run(element) for _ in range(2)] == [(10, 30), (11, 33)]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)
        session.run(to_train)
        assert session.run(element) == (0, 0)
        saver.restore(session, path)
        assert session.run(element) == (2, 4)
    with pytest.raises(ValueError, match="does not have an initializer"):
        _ = iterator.initializer
    with pytest.raises(ValueError, match="structure"):
        iterator.make_initializer(Dataset.range(3))
    with pytest.raises(ValueError, match="multiple initializers"):
        train.make_initializable_iterator().make_initializer(train)


def test_a_handle_that_is_fed_chooses_the_iterator() -> None:
    train, test = Dataset.range(100).batch(2), Dataset.range(100, 103).batch(2)
    handle = tf.placeholder(tf.string, [])
    chosen = tf.data.Iterator.from_string_handle(handle, train.output_types, train.output_shapes)
    doubled = chosen.get_next() * 2
    first, second = train.make_one_shot_iterator(), test.make_initializable_iterator()
    assert chosen.output_types is tf.int64 and chosen.output_shapes.as_list() == [None]
    with tf.Session() as session:
        a, b = session.run([first.string_handle(), second.string_handle()])
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            session.run(doubled, {handle: b})
        session.run(second.initializer)
        assert session.run(doubled, {handle: a}).tolist() == [0, 2]
        assert session.run(doubled, {handle: b}).tolist() == [200, 202]
        assert session.run(doubled, {handle: a}).tolist() == [4, 6]
        assert session.run(first.get_next()).tolist() == [4, 5]  # one position, whoever takes
        assert session.run(doubled, {handle: b}).tolist() == [204]
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(doubled, {handle: b})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Not the handle of an iterator"):
            session.run(doubled, {handle: "iterator"})
        other = Dataset.from_tensors(1.5).make_one_shot_iterator()
        with pytest.raises(tf.errors.InvalidArgumentError, match="returns float32, and int64 is expected"):
            session.run(doubled, {handle: session.run(other.string_handle())})


def test_what_takes_by_handle_stays_with_the_client_under_a_device_setter() -> None:
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:1")):
        iterator = Dataset.range(3).make_one_shot_iterator()
        by_handle = tf.data.Iterator.from_string_handle(iterator.string_handle(), tf.int64, [])
    with tf.device("/job:ps"):
        assert by_handle.get_next().device == iterator.position.device == "/job:worker/task:1"


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2.5, tf.int32), (np.array([1, 300]), tf.uint8), (300, tf.uint8), (1j, tf.float32), (1, tf.string)],
)
def test_elements_that_a_generators_type_cannot_hold_are_refused(value: Any, dtype: Any) -> None:
    dataset = Dataset.from_generator(lambda: iter([value]), dtype)
    with pytest.raises(TypeError, match="could not be converted to the expected type"):
        plain(dataset)


def test_bytes_of_zero_at_the_end_of_text_stay() -> None:
    texts = [b"a\0", b"\0\0", b""]
    assert plain(Dataset.from_generator(lambda: iter(texts), tf.string)) == texts
    assert plain(Dataset.from_generator(lambda: iter([texts]), tf.string)) == [texts]
    assert plain(Dataset.from_tensor_slices(texts)) == texts


def test_large_numbers_in_lists_are_int64() -> None:
    dataset = Dataset.from_tensor_slices([2**40, 1])
    assert dataset.output_types is tf.int64
    assert plain(dataset) == [2**40, 1]
    assert plain(Dataset.from_generator(lambda: iter([3.0]), tf.int32)) == [3]
