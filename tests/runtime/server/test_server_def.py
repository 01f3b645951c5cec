"""Servers, clusters and options as programs write them with TensorFlow's messages."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf


def test_a_cluster_is_written_down_job_by_job() -> None:
    cluster = tf.train.ClusterDef()
    worker = cluster.job.add()
    worker.name = "worker"
    worker.tasks[0] = "a:1"
    worker.tasks[2] = "b:2"
    cluster.job.add(name="ps", tasks={0: "c:3"})
    spec = tf.train.ClusterSpec(cluster)
    assert spec.as_dict() == {"ps": ["c:3"], "worker": {0: "a:1", 2: "b:2"}}
    assert tf.train.ClusterSpec(spec.as_cluster_def()) == spec
    for again in (copy.deepcopy(cluster), pickle.loads(pickle.dumps(cluster)), tf.train.ClusterDef(job=cluster.job)):
        assert again == cluster
        again.job.add(name="more")
        assert again != cluster
    assert dataclasses.asdict(cluster)["job"][1] == {"name": "ps", "tasks": {0: "c:3"}}


def test_a_server_tells_what_it_was_told() -> None:
    config = tf.ConfigProto(gpu_options=tf.GPUOptions(per_process_gpu_memory_fraction=0.1))
    cluster = {"ps": ["localhost:0"], "worker": ["localhost:1", "localhost:2"]}
    made = tf.train.Server(cluster, job_name="worker", task_index=1, config=config, start=False)
    told = made.server_def
    assert (told.job_name, told.task_index, told.protocol) == ("worker", 1, "grpc")
    assert told.default_session_config.gpu_options.per_process_gpu_memory_fraction == 0.1
    assert tf.train.ClusterSpec(told.cluster) == tf.train.ClusterSpec(cluster)
    again = tf.train.Server(told, start=False).server_def
    assert again == told
    other = tf.train.Server(told, task_index=0, config=tf.ConfigProto(), start=False).server_def
    assert other.task_index == 0 and other.default_session_config == tf.ConfigProto()
    plain = tf.train.ServerDef(cluster=made.cluster_spec.as_cluster_def(), job_name="ps", protocol="zmq")
    assert tf.train.Server(plain, start=False).task == "/job:ps/replica:0/task:0"


def test_the_config_of_a_server_is_that_of_its_sessions_where_they_say_nothing() -> None:
    config = tf.ConfigProto(operation_timeout_in_ms=150)
    empty = tf.FIFOQueue(1, tf.float32, [[]]).dequeue()
    with tf.train.Server.create_local_server(config=config) as server:
        with tf.Session(server.target) as session, pytest.raises(tf.errors.DeadlineExceededError):
            session.run(empty)
        own = tf.ConfigProto(operation_timeout_in_ms=50, isolate_session_state=True)
        with (
            tf.Session(server.target, config=own) as session,
            pytest.raises(tf.errors.DeadlineExceededError, match="0.1"),
        ):
            session.run(empty)
        assert server.config == config
    merged = own.over(tf.ConfigProto(allow_soft_placement=True, operation_timeout_in_ms=7, device_count={"CPU": 3}))
    assert merged.allow_soft_placement and merged.isolate_session_state and merged.operation_timeout_in_ms == 50
    assert merged.device_count == {}
    graph_options = tf.GraphOptions(enable_bfloat16_sendrecv=True)
    assert own.over(tf.ConfigProto(graph_options=graph_options)).graph_options == graph_options


def test_names_of_devices_are_text() -> None:
    with tf.Session() as session:
        (device, *_) = session.list_devices()
        assert isinstance(device.name, str) and device.name == "/job:localhost/replica:0/task:0/device:CPU:0"
        assert tf.DeviceSpec.from_string(device.name).device_type == "CPU" and device.name.device_index == 0
        with tf.device(device.name):
            assert session.run(tf.constant(1) + 1) == 2
    for same in (copy.deepcopy(device.name), pickle.loads(pickle.dumps(device.name))):
        assert same == device.name and same.task_name == "/job:localhost/replica:0/task:0"


def test_the_default_graph_can_be_reset_beside_an_interactive_session() -> None:
    with tf.Graph().as_default() as around:
        pass
    session = tf.InteractiveSession(graph=around)
    assert tf.get_default_graph() is around
    session.close()
    session = tf.InteractiveSession()
    x = tf.constant(2.0)
    before = tf.get_default_graph()
    assert x.eval() == 2.0 and session.graph is before
    session.close()


def test_options_that_programs_set() -> None:
    config = tf.ConfigProto()
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    config.session_inter_op_thread_pool.add().num_threads = 3
    assert config.session_inter_op_thread_pool == [type(config.session_inter_op_thread_pool[0])(num_threads=3)]
    config.graph_options.infer_shapes = True
    with tf.Session(config=config) as session:
        assert session.run(tf.constant(1)) == 1
    node = tf.NodeDef(name="a", op="Const")
    node.device = "/cpu:0"
    assert (node.name, node.op, node.device, node.input) == ("a", "Const", "/cpu:0", ())


def test_metadata_says_what_it_has() -> None:
    metadata, x = tf.RunMetadata(), tf.constant([1.0]) * tf.placeholder_with_default(2.0, [])
    with tf.Session() as session:
        session.run(x, run_metadata=metadata)
        assert not metadata.HasField("step_stats") and not metadata.step_stats.dev_stats
        session.run(x, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        assert metadata.HasField("step_stats") and not metadata.HasField("partition_graphs")
        (stats,) = metadata.step_stats.dev_stats  # of a step that is folded to a constant, too
        assert stats.device.endswith("CPU:0")
        session.run(x, run_metadata=metadata)
        assert not metadata.HasField("step_stats")


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any
    both: Any = dataclasses.field(default=None, init=False)


def test_fetches_in_classes_and_by_names_that_are_bytes() -> None:
    x = tf.constant(3.0, name="x")
    y = x * 2.0
    with tf.Session() as session:
        assert session.run(Pair(x, {"y": [y]})) == Pair(3.0, {"y": [6.0]})
        assert session.run([b"x:0", "x:0"]) == [3.0, 3.0]
        assert session.run(y, {b"x:0": 5.0}) == 10.0
        assert session.run(b"x") is None


def test_fetches_in_attrs_classes() -> None:
    attr = pytest.importorskip("attr")
    made = attr.make_class("Made", ["first", "_second"])
    x = tf.constant(3.0)
    with tf.Session() as session:
        found = session.run(made(x, made(x + 1.0, x.op)))
    assert found == made(3.0, made(4.0, None))


def test_feeds_by_nested_tuples_and_of_sparse_tensors_whose_shape_is_known() -> None:
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    sparse = tf.sparse_placeholder(tf.float32, shape=[2, 3])
    with tf.Session() as session:
        assert session.run(a - b, {((a,), b): ((5.0,), 2.0)}) == 3.0
        dense = session.run(tf.sparse_tensor_to_dense(sparse), {sparse: ([[0, 1]], [7.0])})
    np.testing.assert_array_equal(dense, [[0.0, 7.0, 0.0], [0.0, 0.0, 0.0]])


def test_batches_of_different_sizes_are_refused_when_they_are_put_into_a_queue() -> None:
    queue = tf.FIFOQueue(10, [tf.float32, tf.int32], [[], []])
    with pytest.raises(ValueError, match=r"the same number of elements, not \[2, 3\]"):
        queue.enqueue_many([tf.zeros([2]), tf.zeros([3], tf.int32)])
    queue.enqueue_many([tf.zeros([2]), tf.placeholder(tf.int32, [None])])


def test_a_resolver_can_be_told_which_task_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}, "rpc_layer": "grpc"}'
    monkeypatch.setenv("TF_CONFIG", config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.master() == "grpc://a:1"
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "zmq"
    assert resolver.master() == "zmq://b:2"


def test_resolvers_are_put_together() -> None:
    resolvers = tf.distribute.cluster_resolver

    def one(jobs: dict[str, Any], **more: Any) -> Any:
        return resolvers.SimpleClusterResolver(tf.train.ClusterSpec(jobs), **more)

    first = one({"worker": ["a:1"], "ps": ["p:1"]}, master="m:9", task_type="worker", task_id=0, rpc_layer="grpc")
    both = resolvers.UnionResolver(first, one({"worker": ["b:2"]}))
    assert both.cluster_spec().as_dict() == {"worker": ["a:1", "b:2"], "ps": ["p:1"]}
    assert (both.task_type, both.task_id, both.master(), both.master("worker", 1)) == (
        "worker",
        0,
        "grpc://m:9",
        "grpc://b:2",
    )
    both.task_id = 1
    assert both.task_id == 1 and first.task_id == 0
    gaps = resolvers.UnionResolver(one({"worker": ["a:1"]}), one({"worker": {1: "b:2", 3: "c:3"}}))
    assert gaps.cluster_spec().as_dict() == {"worker": {0: "a:1", 1: "b:2", 3: "c:3"}}
    with pytest.raises(KeyError, match="Duplicate"):
        resolvers.UnionResolver(one({"worker": ["a:1"]}), one({"worker": {0: "b:2", 2: "c:3"}})).cluster_spec()
    with pytest.raises(ValueError, match="At least one"):
        resolvers.UnionResolver()


def test_a_session_is_entered_once() -> None:
    with tf.Session() as session, pytest.raises(RuntimeError, match="not re-entrant"):
        session.__enter__()
    with session.as_default(), session.as_default():
        pass


def test_programs_that_share_a_shuffling_queue_need_not_build_the_same_graph() -> None:
    tf.set_random_seed(7)

    def queue(seed: int | None = None) -> Any:
        return tf.RandomShuffleQueue(10, 2, tf.float32, [[]], seed=seed, shared_name="shared")

    with tf.Session() as session:
        session.run(queue().size())
        tf.constant(1.0)  # what seeds of ops follow from
        session.run(queue().size())
        with pytest.raises(tf.errors.InvalidArgumentError, match="random seeds"):
            session.run(queue(seed=5).size())


def test_the_queue_that_is_chosen_has_what_is_the_same_in_all() -> None:
    def queue(*shapes: Any) -> Any:
        return tf.PaddingFIFOQueue(10, [tf.float32] * len(shapes), [tf.TensorShape(s) for s in shapes])

    which = tf.placeholder(tf.int32, [])
    queues = [queue([None, 2], [3]), queue([4, 2], [3, 3])]
    chosen = tf.QueueBase.from_list(which, queues)
    assert [s.dims is None or s.as_list() for s in chosen.shapes] == [[None, 2], True]
    chosen = tf.QueueBase.from_list(which, [queues[1], queues[1]])
    assert [s.as_list() for s in chosen.shapes] == [[4, 2], [3, 3]]
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=r"index 3 is not in \[0, 2\)"):
        session.run(chosen.size(), {which: 3})


def test_records_of_compressed_files(tmp_path: Path) -> None:
    file = tmp_path / "records.gz"
    file.write_bytes(gzip.compress(b"abcdef"))
    names = tf.FIFOQueue(1, tf.string, [[]])
    _, record = tf.FixedLengthRecordReader(3, encoding="GZIP").read(names)
    with tf.Session() as session:
        session.run(names.enqueue(str(file)))
        assert [session.run(record) for _ in range(2)] == [b"abc", b"def"]


def test_a_plain_tasks_program_needs_no_arguments() -> None:
    """As where a launcher starts it, which gives each task its TF_CONFIG."""
    task = {"cluster": {"ps": ["localhost:0"]}, "task": {"type": "ps", "index": 0}}
    done = subprocess.run(
        [sys.executable, "-m", "dovetail.runtime.server.process"],
        stdin=subprocess.DEVNULL, env={**os.environ, "TF_CONFIG": json.dumps(task)}, timeout=60, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
