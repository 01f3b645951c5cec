"""Data sets in the processes of workers: where an iterator is placed, its data set runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.data.deserialize import decode
from dovetail.data.runtime_values import IterationContext
from dovetail.data.serialize import NotSerializableError, encode
from dovetail.distribute import ClusterCoordinator, ParameterServerStrategy
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from dovetail.graph.io.serialization import graph_to_bytes
from dovetail.graph.ops.io.iterators import attrs_at
from dovetail.graph.resources.resource_manager import Resources

Dataset = tf.data.Dataset
more = tf.data.experimental


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as g:
        yield g


def rest(session: tf.Session, element: Any) -> list[Any]:
    """What is left."""
    found = []
    while True:
        try:
            found.append(session.run(element))
        except tf.errors.OutOfRangeError:
            return found


# --- descriptions -----------------------------------------------------------------------------------------------------


def kinds(folder: Path) -> list[Dataset]:
    """Data sets of every kind that can be sent."""
    (folder / "a.txt").write_text("1\n2\n")
    np.save(folder / "a.npy", np.arange(4))
    with tf.io.TFRecordWriter(str(folder / "a.rec")) as writer:
        writer.write(b"abcd")
    ten = Dataset.range(10)
    rows = ten.map(lambda n: tf.fill([n % 3], n))
    text = str(folder / "a.txt")
    return [
        ten.shuffle(4, 1).map(lambda n: (n, tf.random_uniform([], seed=n is None)), 2).repeat(2).skip(3).take(9).batch(2, True),
        Dataset.zip({"a": ten, "b": Dataset.from_tensors((["x"], 1.5)).repeat()}).filter(lambda d: d["a"] > 3).prefetch(2),
        rows.padded_batch(3, padding_values=np.int64(-1)).apply(more.unbatch()).shard(2, 1).concatenate(rows).cache(),
        ten.interleave(lambda n: Dataset.range(n, 2 * n).flat_map(lambda m: Dataset.from_tensors(m * n)), 3, 2, 2),
        ten.apply(more.group_by_window(lambda n: n % 2, lambda key, w: w.shuffle(3).batch(2), 4)),
        rows.apply(more.bucket_by_sequence_length(lambda r: tf.size(r), [1, 2], [2, 3, 2])),
        more.sample_from_datasets([ten, ten.skip(5)], [0.3, 0.7]).apply(more.take_while(lambda n: n < 9)),
        more.choose_from_datasets([ten, ten.skip(5)], Dataset.range(2).repeat(3)).apply(more.enumerate_dataset()),
        ten.apply(more.scan(np.int64(0), lambda t, n: (t + n, t))).with_options(tf.data.Options()),
        Dataset.zip((ten, ten)).window(3, 2, 2).enumerate().flat_map(lambda i, w: Dataset.zip((w[0], w[1].map(lambda n: n * i)))),
        tf.data.TextLineDataset([text, text]).map(lambda line: tf.strings.to_number(line)),
        Dataset.list_files([text, text]).interleave(tf.data.TextLineDataset),
        tf.data.TFRecordDataset(str(folder / "a.rec")).map(lambda r: tf.decode_raw(r, tf.uint8)),
        tf.data.FixedLengthRecordDataset(text, 2),
        tf.data.NpyDataset(str(folder / "a.npy")),
    ]  # fmt: skip


def test_every_kind_gives_the_same_elements_when_it_was_sent(tmp_path: Path) -> None:
    for dataset in kinds(tmp_path):
        sent = decode(*encode(dataset))
        for skip in (1, 0):
            here, there = (
                [[a.tolist() for a in e] for e in d._iterate(IterationContext((5,)), skip)] for d in (dataset, sent)
            )
            assert here == there
        assert here


def test_what_cannot_be_sent_says_why() -> None:
    with pytest.raises(NotSerializableError, match="from_generator"):
        encode(Dataset.from_generator(lambda: iter([1]), tf.int64).map(lambda n: n + 1))
    with pytest.raises(NotSerializableError, match="PyFunc"):
        encode(Dataset.range(3).map(lambda n: tf.py_func(abs, [n], tf.int64)))


def test_a_description_that_is_damaged_is_an_error() -> None:
    description, arrays = encode(Dataset.from_tensor_slices([1, 2]).map(lambda n: n + 1))
    for at in range(0, len(description), 7):
        for damaged in (description[:at], description[:at] + b"\xc1" + description[at + 1 :]):
            try:
                found = decode(damaged, arrays)
            except tf.errors.InvalidArgumentError:
                continue
            assert isinstance(found, Dataset)  # a name was changed, say
    with pytest.raises(tf.errors.InvalidArgumentError, match="Malformed"):
        decode(b"", ())
    with pytest.raises(tf.errors.InvalidArgumentError, match="Malformed"):
        decode(description, ())


def test_files_are_used_for_others_only_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("out.txt", "in/a.txt"):
        (tmp_path / name).write_text("line")
    (tmp_path / "in/link.txt").symlink_to(tmp_path / "out.txt")
    np.save(tmp_path / "out.npy", np.arange(2))
    task = Resources()

    def lines(dataset: Dataset) -> list[Any]:
        return [e[0].item() for e in decode(*encode(dataset)).iterate_from(1, 0, (), task)]

    text = tf.data.TextLineDataset
    outside = [
        text(str(tmp_path / "out.txt")),
        text(str(tmp_path / "in/../out.txt")),
        text(str(tmp_path / "in/link.txt")),
        text(str(tmp_path / "not there")),
        Dataset.from_tensors(str(tmp_path / "out.txt")).flat_map(text),
        Dataset.list_files(str(tmp_path / "*.txt")),
        Dataset.list_files(str(tmp_path / "in/../*.txt")),
        tf.data.NpyDataset(str(tmp_path / "out.npy")),
        Dataset.range(3).cache(str(tmp_path / "kept")),
    ]
    for dataset in (*outside, text(str(tmp_path / "in/a.txt"))):
        with pytest.raises(tf.errors.PermissionDeniedError, match="DOVETAIL_DATA_FILES"):
            lines(dataset)
    task.data_folders = (str(tmp_path / "in"),)
    assert lines(text(str(tmp_path / "in/a.txt"))) == [b"line"]
    assert lines(Dataset.list_files(str(tmp_path / "in/a*"))) == [str(tmp_path / "in/a.txt").encode()]
    for dataset in outside:
        with pytest.raises(tf.errors.PermissionDeniedError, match="DOVETAIL_DATA_FILES"):
            lines(dataset)
    task.data_folders = None
    assert lines(outside[0]) == [b"line"]
    assert not (tmp_path / "kept.elements").exists()


# --- with servers -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_iterator_runs_where_it_is_placed() -> None:
    handle, p = tf.placeholder(tf.string, []), tf.placeholder(tf.int64, [None])
    with tf.device("/job:worker/task:1"):
        v = tf.get_variable("v", initializer=np.int64(100), use_resource=True)
        table = tf.contrib.lookup.HashTable(
            tf.contrib.lookup.KeyValueTensorInitializer([1, 2], ["a", "b"], tf.int64), "?"
        )
        numbers = Dataset.range(6).shuffle(6).map(lambda n: v.assign_add(1) + 0 * n, 2).batch(2).prefetch(2)
        first = numbers.make_initializable_iterator()
        arrays = Dataset.from_tensor_slices(np.arange(4).reshape(2, 2)).flat_map(Dataset.from_tensor_slices)
        second = arrays.map(table.lookup).make_one_shot_iterator()
        fed = Dataset.from_tensor_slices(p).map(lambda n: n + p[0]).make_initializable_iterator()
        chosen = tf.data.Iterator.from_string_handle(handle, tf.string, []).get_next()
        several = tf.data.Iterator.from_structure(tf.int64, [])
        total = Dataset.range(5).reduce(np.int64(0), lambda t, n: t + n + p[0])
        bound = Dataset.from_generator(lambda: iter([1]), tf.int64, []).make_one_shot_iterator().get_next()
    starts = [several.make_initializer(d) for d in (Dataset.range(2), Dataset.from_tensor_slices(p))]
    anywhere = Dataset.range(3).map(lambda n: n * 5).make_one_shot_iterator().get_next()
    x, y, z, w = first.get_next(), second.get_next(), fed.get_next(), several.get_next()
    assert first.position.device == x.device == "/job:worker/task:1"
    with tf.LocalCluster({"worker": 2}) as cluster, tf.Session(cluster.target("worker", 0)) as session:
        session.run([v.initializer, tf.tables_initializer()])
        session.run([first.initializer])
        session.run(fed.initializer, {p: [1, 2]})
        assert sorted(np.concatenate(rest(session, x))) == [101, 102, 103, 104, 105, 106]
        assert session.run(v) == 106
        assert [session.run(y), session.run(y)] == [b"?", b"a"]
        assert session.run(chosen, {handle: session.run(second.string_handle())}) == b"b"
        assert rest(session, y) == [b"?"]
        assert rest(session, z) == [2, 3]
        session.run(starts[0])
        assert session.run(w) == 0
        session.run(starts[1], {p: [7]})
        assert rest(session, w) == [7]
        assert session.run(total, {p: [10]}) == 60
        assert rest(session, anywhere) == [0, 5, 10]  # in the process of the session's target
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"it has a Python function \(from_generator\)"):
            session.run(bound)


@pytest.mark.slow
def test_a_server_of_this_process_that_is_not_the_sessions_target_keeps_no_data_set_here() -> None:
    numbers = Dataset.range(3).map(lambda n: n * 5)
    with tf.LocalCluster({"worker": 1}) as cluster, tf.train.Server({"worker": ["localhost:0"]}, "worker", 0) as server:
        element = numbers.make_one_shot_iterator().get_next()
        single = more.get_single_element(numbers.skip(2))
        large = Dataset.from_tensors(np.ones(1 << 19, np.float32))
        with tf.device("/job:worker/task:0"):  # a name that both clusters have
            placed = [d.make_one_shot_iterator() for d in (numbers, large)]
        with tf.device("/job:worker/task:0"):
            bound = Dataset.from_generator(lambda: iter([1]), tf.int64, []).make_one_shot_iterator().get_next()
        for target in (cluster.target("worker", 0), server.target):
            with tf.Session(target) as session:
                assert rest(session, element) == rest(session, placed[0].get_next()) == [0, 5, 10]
                assert session.run([single, tf.reduce_sum(placed[1].get_next())]) == [10, 1 << 19]
                if target == server.target:
                    assert session.run(bound) == 1
        size = [len(graph_to_bytes(tf.get_default_graph(), 0, at)) for at in (None, lambda n: attrs_at(n, server.task))]
        assert size[0] > 2 << 20 > size[1]  # what runs in this process is not sent to it


@pytest.mark.slow
def test_each_worker_of_a_coordinator_has_a_data_set_of_its_own(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("".join(f"{i}{n}\n" for n in range(5)))

    with tf.LocalCluster({"worker": 2, "ps": 1}, environment={"DOVETAIL_DATA_FILES": str(tmp_path)}) as cluster:
        strategy = ParameterServerStrategy(SimpleClusterResolver(cluster.cluster_spec))

        def of_worker(context: Any) -> Dataset:
            files = Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False)
            files = files.shard(context.num_input_pipelines, context.input_pipeline_id)
            table = tf.contrib.lookup.HashTable(
                tf.contrib.lookup.KeyValueTensorInitializer(["00", "10"], [1, 2], value_dtype=tf.int64), 0
            )
            lines = files.interleave(tf.data.TextLineDataset, 2)
            return lines.map(lambda t: tf.string_to_number(t, tf.int64) + table.lookup(t)).repeat().batch(2).prefetch(2)

        with ClusterCoordinator(strategy) as coordinator:
            with strategy.scope():
                seen = tf.get_variable("seen", [2], tf.int64, tf.zeros_initializer(), use_resource=True)

            def step(numbers: Any) -> Any:
                batch = next(numbers)
                with tf.control_dependencies(
                    [seen.scatter_add(tf.IndexedSlices(tf.ones_like(batch), batch // 10 % 2))]
                ):
                    return tf.identity(batch)

            dataset = coordinator.create_per_worker_dataset(
                lambda: strategy.distribute_datasets_from_function(of_worker)
            )
            with pytest.raises(ValueError, match=r"iter\(dataset\)"):
                coordinator.schedule(step, (dataset,))
            numbers = iter(dataset)
            with pytest.raises(TypeError, match="scheduled"):
                next(numbers)
            results = [coordinator.schedule(step, (numbers,)) for _ in range(20)]
            coordinator.join()
            found = coordinator.fetch(results)
            parts = {tuple(sorted({int(n) // 10 % 2 for n in b})) for b in found}
            assert parts <= {(0,), (1,)}  # a worker has files 0 and 2, or 1 and 3
            assert {int(n) for b in found for n in b}.isdisjoint({0, 10})  # the table says others
            assert coordinator.session.run(seen).sum() == 40
            cluster.kill("worker", 1)
            for _ in range(6):
                coordinator.schedule(step, (numbers,))
            coordinator.join()
            cluster.start("worker", 1)
            parts, end = set(), time.monotonic() + 60
            while 1 not in parts and time.monotonic() < end:  # the worker that came back has files 1 and 3
                later = [coordinator.schedule(step, (numbers,)) for _ in range(20)]
                coordinator.join()
                parts = {int(n) // 10 % 2 for b in coordinator.fetch(later) for n in b}
            assert 1 in parts
            bound = Dataset.from_generator(lambda: iter([1]), tf.int64)
            with pytest.raises(
                tf.errors.InvalidArgumentError, match=r"cannot run on /job:worker/task:0: .*from_generator"
            ):
                coordinator.create_per_worker_dataset(lambda: bound)
            with pytest.raises(TypeError, match="a function that returns one"):
                coordinator.create_per_worker_dataset(lambda: 5)
