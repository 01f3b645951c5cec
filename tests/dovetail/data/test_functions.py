"""Functions of data sets: what they may use of the graph around them, seeds, errors, and what they give."""

from __future__ import annotations

import collections
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.data.deserialize import decode
from dovetail.data.runtime_values import IterationContext
from dovetail.data.serialize import encode
from dovetail.graph.core.graph import Graph
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState

Dataset = tf.data.Dataset


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


def started(dataset: Dataset, session: tf.Session, feeds: Any = None) -> list[Any]:
    """The elements of a new iterator."""
    iterator = dataset.make_initializable_iterator()
    element = iterator.get_next()
    session.run(iterator.initializer, feeds)
    return rest(session, element)


# --- what is captured -------------------------------------------------------------------------------------------------


def test_placeholders_and_computed_tensors_have_the_values_of_the_start() -> None:
    x, n = tf.placeholder(tf.float32, []), tf.placeholder(tf.int64, [])
    dataset = (
        Dataset.range(3).map(lambda i: 10.0 * x + tf.cast(i, tf.float32)).filter(lambda v: v < tf.cast(n, tf.float32))
    )
    with tf.Session() as session:
        assert started(dataset, session, {x: 1.0, n: 12}) == [10.0, 11.0]
        assert started(dataset, session, {x: 2.0, n: 99}) == [20.0, 21.0, 22.0]
    with pytest.raises(
        ValueError, match=r"Cannot capture a placeholder \(name:Placeholder, .*make_initializable_iterator"
    ):
        dataset.make_one_shot_iterator()


def test_a_one_shot_iterator_computes_what_needs_no_state() -> None:
    x = tf.constant([1.0, 2.0]) * 3.0
    element = Dataset.from_tensor_slices(tf.sqrt(x)).map(lambda v: v * v + x[0]).make_one_shot_iterator().get_next()
    drawn = tf.random_uniform([])
    with tf.Session() as session:
        np.testing.assert_allclose(rest(session, element), [6.0, 9.0], rtol=1e-6)
    with pytest.raises(ValueError, match="Cannot capture a stateful node"):
        Dataset.range(2).map(lambda i: drawn).make_one_shot_iterator()


def test_variables_are_read_and_changed_at_each_call() -> None:
    v = tf.get_variable("v", initializer=tf.constant(1.0), use_resource=True)
    plain = tf.get_variable("plain", initializer=tf.constant(5.0), use_resource=False)
    counted = Dataset.range(3).map(lambda i: v.assign_add(1.0) + plain)
    iterator = counted.make_initializable_iterator()
    x = iterator.get_next()
    with tf.Session() as session:
        session.run([v.initializer, plain.initializer])
        session.run(iterator.initializer)
        assert [session.run(x), session.run(x)] == [7.0, 8.0]
        session.run([v.assign(10.0), plain.assign(0.0)])
        assert session.run(x) == 16.0  # a reference variable has the value of the start
        assert session.run(v) == 11.0
    with tf.Session() as session:
        session.run(plain.initializer)
        session.run(iterator.initializer)
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(x)


def test_tables_queues_and_iterators() -> None:
    table = tf.contrib.lookup.HashTable(tf.contrib.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
    queue = tf.FIFOQueue(10, [tf.int32], [[]])
    inner = Dataset.range(100, 102).make_one_shot_iterator()
    words = Dataset.from_tensor_slices(["b", "c", "a"])
    with tf.Session() as session:
        session.run([tf.tables_initializer(), queue.enqueue_many([[7, 8, 9]]), queue.close()])
        element = words.map(table.lookup).map(lambda n: n + 0).make_one_shot_iterator().get_next()
        assert rest(session, element) == [2, -1, 1]
        numbers = Dataset.range(9).map(lambda i: queue.dequeue()).make_one_shot_iterator().get_next()
        assert rest(session, numbers) == [7, 8, 9]  # it ends with the queue
        taken = Dataset.range(2).map(lambda i: inner.get_next(), 2).make_one_shot_iterator().get_next()
        assert sorted(rest(session, taken)) == [100, 101]
        ended = Dataset.range(9).filter(lambda i: inner.get_next() > 0).make_one_shot_iterator().get_next()
        with pytest.raises(tf.errors.InvalidArgumentError, match="produced OutOfRangeError"):
            session.run(ended)


def test_state_is_used_in_its_own_task() -> None:
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("v", initializer=1.0, use_resource=True)
    dataset = Dataset.range(3).map(lambda n: v + 1.0)
    assert dataset.make_one_shot_iterator().get_next().device == "/job:ps/task:0"
    with (
        tf.device("/job:worker/task:0"),
        pytest.raises(ValueError, match="'v' on /job:ps/task:0 .* on /job:worker/task:0"),
    ):
        dataset.make_one_shot_iterator()


@pytest.mark.parametrize("calls", [None, 2])
def test_a_function_that_waits_ends_with_its_session(calls: int | None) -> None:
    queue = tf.FIFOQueue(10, [tf.int32], [[]])
    element = Dataset.range(2).map(lambda i: queue.dequeue(), calls).make_one_shot_iterator().get_next()
    session, found = tf.Session(), []

    def take() -> None:
        try:
            session.run(element)
        except tf.errors.CancelledError as e:
            found.append(e)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(0.2)
    session.close()
    thread.join(30)
    assert len(found) == 1


def test_variables_that_a_function_makes_belong_to_the_graph() -> None:
    def weighed(x: Any) -> Any:
        with tf.variable_scope("scope", reuse=tf.AUTO_REUSE):
            return x * tf.get_variable("w", initializer=2.0, use_resource=True)

    numbers = Dataset.from_tensor_slices([1.0, 3.0])
    elements = [numbers.map(weighed).make_one_shot_iterator().get_next() for _ in range(2)]
    assert [v.name for v in tf.global_variables()] == ["scope/w:0"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(elements) == [2.0, 2.0]
        session.run(tf.global_variables()[0].assign(10.0))
        assert session.run(elements) == [30.0, 30.0]


def test_functions_within_functions() -> None:
    x, v = tf.placeholder(tf.int64, [None]), tf.get_variable("v", initializer=np.int64(100), use_resource=True)

    def parts(n: Any) -> Dataset:
        return Dataset.from_tensor_slices(x).map(lambda m: tf.where(m > 0, m, tf.zeros_like(m)) * n + v).repeat(n)

    dataset = Dataset.from_tensor_slices(x).flat_map(parts).interleave(lambda n: Dataset.from_tensors(n).repeat(2), 2)
    with tf.Session() as session:
        session.run(v.initializer)
        assert started(dataset, session, {x: [1, 2]}) == [101, 102, 101, 102, 102, 104, 102, 104, 102, 104, 102, 104]
        assert started(dataset, session, {x: [1]}) == [101, 101]


def test_effects_of_a_function_happen_though_no_result_needs_them() -> None:
    v = tf.get_variable("v", initializer=0.0, use_resource=True)

    def counted(i: Any) -> Any:
        v.assign_add(1.0)
        tf.Assert(i < 2, [i])
        return i

    element = Dataset.range(3).map(counted).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        session.run(v.initializer)
        assert [session.run(element), session.run(element)] == [0, 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match="assertion"):
            session.run(element)
        assert session.run(v) >= 2.0


@pytest.mark.parametrize("which", ["graph", "state"])
def test_graphs_and_the_state_of_tasks_are_let_go(which: str) -> None:
    task = Resources()
    with tf.Graph().as_default() as graph:
        v = tf.get_variable("v", initializer=np.int64(5), use_resource=True)
        dataset = Dataset.range(2).map(lambda n: v.assign_add(1)).flat_map(lambda n: Dataset.from_tensors(n + v))
        task.get_or_create("", "v", VariableState, lambda: VariableState("v", tf.int64)).assign(np.int64(5))
        assert [e[0].item() for e in dataset._iterate(IterationContext((1,), task=task))] == [12, 14]
    watched = weakref.ref(graph if which == "graph" else task)
    if which == "graph":
        del graph, dataset, v
    else:
        del task
    gc.collect()
    assert watched() is None


def test_loops_and_branches_in_functions() -> None:
    n = tf.placeholder(tf.int64, [])

    def power(i: Any) -> Any:
        total = tf.while_loop(lambda k, t: k < n, lambda k, t: (k + 1, t * i), [np.int64(0), np.int64(1)])[1]
        return tf.cond(i > 1, lambda: total, lambda: n)

    with tf.Session() as session:
        assert started(Dataset.range(4).map(power, num_parallel_calls=2), session, {n: 3}) == [3, 3, 8, 27]


# --- what comes in and out --------------------------------------------------------------------------------------------


def test_structures_of_functions() -> None:
    Point = collections.namedtuple("Point", "x y")
    points = Dataset.from_tensor_slices(Point([1, 2], [3.0, 4.0])).map(
        lambda p: {"sum": tf.to_float(p.x) + p.y, "p": p}
    )
    assert [(e["sum"].item(), e["p"].x.item()) for e in points] == [(4.0, 1), (6.0, 2)]
    pairs = Dataset.range(2).map(lambda n: [n, tf.as_string(n)])
    assert pairs.output_types == (tf.int64, tf.string) and pairs.output_classes == (tf.Tensor, tf.Tensor)
    assert [(a.item(), b.item()) for a, b in pairs] == [(0, b"0"), (1, b"1")]
    with pytest.raises(TypeError, match=r"Unsupported return value from function passed to Dataset.map\(\)"):
        Dataset.range(2).map(lambda n: object())


def test_reduce_and_scan() -> None:
    start, n = tf.placeholder(tf.int64, []), tf.placeholder(tf.int64, [])
    total, last = Dataset.range(n).reduce((start, np.int64(0)), lambda state, x: (state[0] + x, x))
    rows = Dataset.from_generator(lambda: ([i] * i for i in range(1, 4)), tf.int32, [None])
    joined = rows.reduce(np.zeros(0, np.int32), lambda state, x: tf.concat([state, x], 0))
    sums = Dataset.range(4).apply(tf.data.experimental.scan(np.int64(0), lambda t, x: (t + x, (x, t + x))))
    with tf.Session() as session:
        assert session.run([total, last], {start: 5, n: 4}) == [11, 3]
        assert session.run([total, last], {start: 0, n: 0}) == [0, 0]
        assert session.run(joined).tolist() == [1, 2, 2, 3, 3, 3]
        assert rest(session, sums.make_one_shot_iterator().get_next()) == [(0, 0), (1, 1), (2, 3), (3, 6)]
    with pytest.raises(TypeError, match="must match the initial state"):
        Dataset.range(2).reduce(0.0, lambda t, x: x)


def test_sparse_tensors_are_cut_along_their_first_axis() -> None:
    dense = np.array([[0, 5, 0], [0, 0, 0], [7, 0, 8], [0, 0, 9]], np.float32)
    at = np.argwhere(dense)[::-1]  # in no order
    value = tf.SparseTensorValue(at, dense[tuple(at.T)], dense.shape)
    fed = tf.sparse_placeholder(tf.float32, [None, 3])
    whole = tf.SparseTensor(*map(tf.constant, (at.astype(np.int64), value.values, np.array([4, 3], np.int64))))

    def rows(element: Any, feed: Any = None) -> tuple[list[Any], Any]:
        iterator = element.make_initializable_iterator()
        s, number = iterator.get_next()
        found = []
        with tf.Session() as session:
            session.run(iterator.initializer, feed)
            while True:
                try:
                    got, n = session.run([s, number])
                except tf.errors.OutOfRangeError:
                    return found, s
                row = np.zeros(got.dense_shape, np.float32)
                np.add.at(row, tuple(got.indices.T), got.values)
                found.append((int(n), row.tolist()))

    wanted = list(enumerate(dense.tolist()))
    for given, feed in ((value, None), (whole, None), (fed, {fed: value})):
        dataset = Dataset.from_tensor_slices((given, np.arange(4)))
        found, s = rows(dataset, feed)
        assert found == wanted
        assert s.dtype is tf.float32 and s.shape.ndims == 1
        assert s.indices.shape.as_list() == [None, 1] and s.dense_shape.shape.as_list() == [1]
        assert rows(dataset.skip(2), feed)[0] == wanted[2:]
    sent = decode(*encode(Dataset.from_tensor_slices(value)))
    assert [sorted(e[1].tolist()) for e in sent._iterate(IterationContext((1,)), 1)] == [[], [7, 8], [9]]
    # `batch` and `unbatch` are inverse
    again = Dataset.from_tensor_slices((value, np.arange(4))).batch(3).apply(tf.data.experimental.unbatch())
    assert rows(again)[0] == wanted
    cube = tf.SparseTensorValue([[1, 0, 2]], [4], [2, 3, 3])
    (empty, one) = [e.dense_shape.tolist() + e.indices.tolist() for e in Dataset.from_tensor_slices(cube)]
    assert empty == [3, 3] and one == [3, 3, [0, 2]]
    assert len(list(Dataset.from_tensor_slices(tf.SparseTensorValue(np.zeros([0, 1]), [], [3])))) == 3
    for wrong in ((value, np.arange(5)), (tf.SparseTensorValue(np.zeros([1, 0]), [1], []), np.arange(1))):
        with pytest.raises(ValueError, match="number of rows"):
            Dataset.from_tensor_slices(wrong)
    unequal = Dataset.from_tensors((value, np.arange(5))).apply(tf.data.experimental.unbatch())
    with pytest.raises(tf.errors.InvalidArgumentError, match="different numbers of rows"):
        next(iter(unequal))


def test_sparse_tensors_are_batched() -> None:
    def sparse(n: Any) -> Any:
        return {"s": tf.SparseTensor([[n, 0]], [n * 10], [n + 1, 2]), "n": n}

    dataset = Dataset.range(5).map(sparse).batch(2).batch(2)
    element = dataset.make_one_shot_iterator().get_next()
    assert element["s"].indices.shape.as_list() == [None, 4]
    dense = tf.sparse.to_dense(element["s"])
    with tf.Session() as session:
        values, numbers = session.run([dense, element["n"]])
        assert numbers.tolist() == [[0, 1], [2, 3]]
        assert values.shape == (2, 2, 4, 2) and values.sum() == 60
        assert [values[n // 2, n % 2, n, 0] for n in range(4)] == [0, 10, 20, 30]
        assert session.run(dense).tolist() == [[[[0, 0]] * 4 + [[40, 0]]]]
    with pytest.raises(TypeError, match="padded sparse"):
        Dataset.range(2).map(sparse).padded_batch(2)
    value = tf.SparseTensorValue([[0, 1]], [5], [2, 2])
    assert next(iter(Dataset.from_tensors(value).map(lambda s: tf.sparse.to_dense(s)))).tolist() == [[0, 5], [0, 0]]


def test_padding_values_are_text_and_shapes_are_tensors() -> None:
    words = Dataset.from_generator(lambda: iter([["a"], ["b", "c"]]), tf.string, [None])
    assert next(iter(words.padded_batch(2, padding_values="?"))).tolist() == [[b"a", b"?"], [b"b", b"c"]]
    size = tf.placeholder(tf.int64, [1])
    with tf.Session() as session:
        (found,) = started(words.padded_batch(2, size), session, {size: [3]})
        assert found.tolist() == [[b"a", b"", b""], [b"b", b"c", b""]]
        with pytest.raises(tf.errors.DataLossError, match="does not fit"):
            started(words.padded_batch(2, size), session, {size: [1]})
    with pytest.raises(ValueError, match="not compatible"):
        Dataset.from_tensors([1, 2, 3]).padded_batch(2, [2])
    with pytest.raises(TypeError, match="Expected text"):
        words.padded_batch(2, padding_values=0)


# --- seeds ------------------------------------------------------------------------------------------------------------


def pipeline(seed: int | None) -> list[Any]:
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        dataset = Dataset.range(8).shuffle(8).map(lambda i: (i, tf.random_uniform([])), 3)
        dataset = dataset.map(lambda i, r: (i, r, tf.random_uniform([]))).repeat(2)
        element = dataset.make_one_shot_iterator().get_next()
        with tf.Session() as session:
            return rest(session, element)


def test_the_seed_of_the_graph_reaches_data_sets_and_their_functions() -> None:
    first = pipeline(3)
    assert first == pipeline(3) and first != pipeline(4) and pipeline(None) != pipeline(None)
    assert first[:8] != first[8:]  # another order in the second round
    assert len({r for _, r, _ in first} | {r for _, _, r in first}) == 32  # and other numbers, in each function


def test_the_seed_of_a_shuffle_may_be_fed() -> None:
    seed = tf.placeholder(tf.int64, [])
    dataset = Dataset.range(20).shuffle(20, seed)
    with tf.Session() as session:
        orders = [started(dataset, session, {seed: s}) for s in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [None, 3])
def test_an_element_that_fails_is_passed_over_with_its_own_error(calls: int | None) -> None:
    checked = Dataset.from_tensor_slices([1.0, 0.0, 2.0]).map(lambda x: tf.check_numerics(1.0 / x, "no number"), calls)
    parts = Dataset.range(3).interleave(lambda i: checked, 2, 1, calls)
    with tf.Session() as session:
        for dataset in (checked, checked.prefetch(2), parts):
            element = dataset.make_one_shot_iterator().get_next()
            found: list[Any] = []
            while True:
                try:
                    found.append(session.run(element))
                except tf.errors.InvalidArgumentError:
                    found.append(None)
                except tf.errors.OutOfRangeError:
                    break
            in_turn = [None, None, 0.5, 0.5] if calls else [None, 0.5, None, 0.5]
            assert found == ([1.0, None, 0.5] if dataset is not parts else [1, 1, *in_turn, 1, None, 0.5])


def test_errors_of_python_have_the_class_that_fits() -> None:
    def numbers() -> Any:
        yield 1
        yield "text"
        yield 3
        raise ValueError("broken")

    element = Dataset.from_generator(numbers, tf.int64, []).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(element) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="text"):
            session.run(element)
        assert session.run(element) == 3
        with pytest.raises(tf.errors.InvalidArgumentError, match="broken"):
            session.run(element)
        with pytest.raises(tf.errors.OutOfRangeError):
            session.run(element)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_cache_in_a_file_outlives_the_program(tmp_path: Path) -> None:
    calls: list[int] = []

    def numbers() -> Any:
        calls.append(1)
        yield from ((i, f"n{i}") for i in range(4))

    name = tf.placeholder(tf.string, [])
    with tf.Session() as session:
        for _ in range(2):
            dataset = Dataset.from_generator(numbers, (tf.int64, tf.string), ([], [])).cache(name).repeat(2)
            found = started(dataset, session, {name: str(tmp_path / "kept")})
            assert found == [(i, f"n{i}".encode()) for i in range(4)] * 2
        assert calls == [1]
        (tmp_path / "kept.elements").write_bytes(b"\x00" * 30)
        with pytest.raises(tf.errors.DataLossError, match="damaged"):
            started(Dataset.range(3).cache(str(tmp_path / "kept")), session)


def test_files_that_are_compressed_and_read_side_by_side(tmp_path: Path) -> None:
    import gzip
    import zlib

    text = "".join(f"{i}\n" for i in range(3))
    (tmp_path / "a.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"x\n"))
    (tmp_path / "a.z").write_bytes(zlib.compress(text.encode()))
    names = [str(tmp_path / "a.gz"), str(tmp_path / "b.gz")]
    lines = [b"0", b"1", b"2", b"x"]
    Lines = tf.data.TextLineDataset
    assert [e.item() for e in Lines(names, "GZIP", buffer_size=10)] == lines
    assert [e.item() for e in Lines(str(tmp_path / "a.z"), compression_type="ZLIB")] == lines[:3]
    assert [e.item() for e in Lines(Dataset.from_tensor_slices(names), "GZIP")] == lines
    assert [e.item() for e in Lines(names, "GZIP", num_parallel_reads=2)] == [b"0", b"x", b"1", b"2"]
    with pytest.raises(tf.errors.DataLossError, match=r"a\.z"):
        list(Lines(str(tmp_path / "a.z"), "GZIP"))


# --- iterators --------------------------------------------------------------------------------------------------------


def test_an_iterator_of_a_name_is_that_of_other_graphs() -> None:
    server = tf.train.Server.create_local_server()
    made = Dataset.range(5).make_initializable_iterator("shared")
    with tf.Session(server.target) as session:
        session.run(made.initializer)
        assert session.run(made.get_next()) == 0
    with tf.Graph().as_default():
        element = tf.data.Iterator.from_structure(tf.int64, [], shared_name="shared").get_next()
        with tf.Session(server.target) as session:
            assert rest(session, element) == [1, 2, 3, 4]
    server.stop()


def test_a_handle_is_there_when_the_graph_is_finalized() -> None:
    iterator, chosen = Dataset.range(3).make_one_shot_iterator(), tf.data.Iterator.from_structure(tf.int64, [])
    tf.get_default_graph().finalize()
    assert iterator.string_handle() is iterator.string_handle() and chosen.string_handle().dtype is tf.string


def test_an_initializer_needs_the_structure_of_its_iterator() -> None:
    iterator = tf.data.Iterator.from_structure((tf.int64, tf.float32))
    with pytest.raises(ValueError, match="structure"):
        iterator.make_initializer(Dataset.range(3).map(lambda n: ((n, 1.0),)))
    with pytest.raises(TypeError, match="Expected elements"):
        iterator.make_initializer(Dataset.range(3).map(lambda n: (n, n)))
    with pytest.raises(TypeError, match="structures differ"):
        tf.data.Iterator.from_structure((tf.int64, tf.float32), [None])


def test_options_are_kept_and_merged() -> None:
    first, second = tf.data.Options(), tf.data.Options()
    first.experimental_deterministic = False
    first.experimental_optimization.map_fusion = True
    second.experimental_optimization.autotune = False
    found = Dataset.range(3).with_options(first).map(lambda x: x).with_options(second).options()
    assert found.experimental_deterministic is False
    assert (found.experimental_optimization.map_fusion, found.experimental_optimization.autotune) == (True, False)
    assert found != first and tf.data.Options() == tf.data.Options()


def test_elements_of_parallel_calls_may_come_as_they_are_done() -> None:
    held = threading.Event()

    def slow(x: Any) -> Any:
        def call(x: Any) -> Any:
            if x == 0:
                held.wait()
            return x

        return tf.py_func(call, [x], tf.int64)

    options = tf.data.Options()
    options.experimental_deterministic = False
    element = Dataset.range(4).map(slow, 2).with_options(options).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert [session.run(element) for _ in range(3)] == [1, 2, 3]
        held.set()
        assert rest(session, element) == [0]


@pytest.mark.parametrize(
    ("dataset", "first", "count"),
    [
        (lambda: Dataset.range(10**6).prefetch(2), [0, 1, 2], 1),
        (
            lambda: (
                Dataset.range(10**6).map(lambda x: x + 1, 4).interleave(lambda i: Dataset.range(9), 3, 2, 3).prefetch(2)
            ),
            [0, 1, 0],
            5,
        ),
    ],
)
def test_threads_end_with_their_walk(dataset: Callable[[], Dataset], first: list[int], count: int) -> None:
    def threads() -> set[threading.Thread]:  # not those of kernels, which any test may start
        return {t for t in threading.enumerate() if t.name.startswith("dataset-")}

    before = threads()
    walk = iter(dataset())
    assert [int(next(walk)) for _ in range(3)] == first
    assert len(threads() - before) >= count
    walk.close()
    del walk
    deadline = time.monotonic() + 60
    while threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)  # not by `join`: one may be about to start another
    assert not threads() - before
