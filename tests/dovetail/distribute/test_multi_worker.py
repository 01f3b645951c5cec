"""Two workers with two replicas each: what they reduce, gather, assign and start from. Their servers are in this process."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

import dovetail as dt
from dovetail import distribute
from dovetail.distribute.reduction import BUCKET_BYTES, buckets, collective_reduction
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver


@pytest.fixture
def workers():
    """Runs `build(strategy)` in a thread per worker; it gives fetches to initialize with, and to run then."""
    config = dt.ConfigProto(device_count={"CPU": 2})
    with cluster_of_two(config) as (spec, servers):

        def run(build):
            found, errors = {}, []

            def worker(i):
                resolver = SimpleClusterResolver(spec, task_type="worker", task_id=i)
                try:
                    with dt.Graph().as_default():
                        strategy = distribute.MultiWorkerMirroredStrategy(
                            cluster_resolver=resolver, devices=["/cpu:0", "/cpu:1"], server=servers[i]
                        )
                        with strategy.scope():
                            changes, fetches = build(strategy)
                            end = strategy.barrier()
                        session_config = strategy.update_config_proto(dt.ConfigProto())
                        with dt.Session(strategy.session_target, config=session_config) as session:
                            session.run(dt.global_variables_initializer())
                            session.run(changes)
                            found[i] = session.run(fetches)
                            session.run(end)
                except Exception as e:
                    errors.append(e)

            threads = [threading.Thread(target=worker, args=(i,)) for i in range(2)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            if errors:
                raise errors[0]
            return found[0], found[1]

        yield run


class cluster_of_two:  # noqa: N801
    """Two servers of job `worker` in this process."""

    def __init__(self, config):
        sockets = [socket.socket() for _ in range(2)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        spec = dt.train.ClusterSpec({"worker": [f"localhost:{s.getsockname()[1]}" for s in sockets]})
        for s in sockets:
            s.close()
        self.spec = spec
        self.servers = [dt.train.Server(spec, "worker", i, config=config) for i in range(2)]

    def __enter__(self):
        return self.spec, self.servers

    def __exit__(self, *exc):
        for s in self.servers:
            s.stop()


def test_values_of_all_replicas(workers):
    def build(strategy):
        assert strategy.num_replicas_in_sync == 4

        def replica():
            number = distribute.get_replica_context().replica_id_in_sync_group
            return dt.constant([[float(number)]])

        x = strategy.run(replica)
        return [], [
            strategy.reduce("SUM", x),
            strategy.reduce("MEAN", x),
            strategy.reduce("MEAN", x, axis=0),
            strategy.gather(x, 0),
            strategy.gather(x, 1),
            strategy.run(lambda: distribute.get_replica_context().all_reduce("SUM", dt.constant(1.0))),
        ]

    for total, mean, of_rows, rows, columns, count in workers(build):
        assert (total, mean, of_rows, count) == (6.0, 1.5, 1.5, 4.0)
        np.testing.assert_array_equal(rows, [[0], [1], [2], [3]])
        np.testing.assert_array_equal(columns, [[0, 1, 2, 3]])


def test_variables(workers):
    def build(strategy):
        start = dt.get_variable("start", [50])
        counts = dt.Variable(
            0.0, synchronization=dt.VariableSynchronization.ON_READ, aggregation=dt.VariableAggregation.SUM
        )
        first = dt.Variable(0.0, aggregation=dt.VariableAggregation.ONLY_FIRST_REPLICA, trainable=False)
        mean = dt.Variable(0.0, aggregation=dt.VariableAggregation.MEAN, trainable=False)

        def replica():
            number = float(distribute.get_replica_context().replica_id_in_sync_group)
            changes = [v.assign_add(number + 1.0, read_value=False) for v in (counts, first, mean)]
            return dt.group(*changes)

        changes = strategy.group(strategy.run(replica))
        return changes, [list(start.values), counts.read_value(), list(first.values), list(mean.values)]

    a, b = workers(build)
    for starts, count, first, mean in (a, b):
        for copy in starts:
            np.testing.assert_array_equal(copy, a[0][0])  # all start with the first worker's
        assert count == 10.0
        assert first == [1.0, 1.0]
        assert mean == [2.5, 2.5]


def test_rows_of_an_embedding(workers):
    def build(strategy):
        def replica():
            number = distribute.get_replica_context().replica_id_in_sync_group
            table = dt.get_variable("table", initializer=np.zeros((6, 1), np.float32))
            loss = dt.reduce_sum(dt.gather(table, [number, 5]))
            return dt.train.GradientDescentOptimizer(4.0).minimize(loss)

        train = strategy.group(strategy.run(replica))
        return train, list(dt.trainable_variables()[0].values)

    for copies in workers(build):
        for copy in copies:
            np.testing.assert_array_equal(copy[:, 0], [-1, -1, -1, -1, 0, -4])


def test_gradients_travel_in_buckets():
    with dt.Graph().as_default():
        small = [dt.zeros([10]), dt.zeros([20])]
        large = [dt.zeros([BUCKET_BYTES // 4]), dt.zeros([BUCKET_BYTES // 4 + 1])]
        whole = [dt.zeros([3], dt.int32)]
        found = buckets([small[0], whole[0], large[0], small[1], large[1]])
    assert found == [[large[1]], [small[1]], [large[0]], [whole[0]], [small[0]]]


def test_collectives_give_means_where_a_kernel_would_only_divide():
    cpus, gpus = ([f"/job:worker/replica:0/task:{i}/device:{kind}:0" for i in range(2)] for kind in ("CPU", "GPU"))
    mean, total = distribute.ReduceOp.MEAN, distribute.ReduceOp.SUM
    found = [
        collective_reduction(op, dtype, members)
        for op, dtype, members in (
            (mean, dt.float32, cpus), (mean, dt.complex64, cpus), (mean, dt.bfloat16, cpus), (mean, dt.int32, cpus),
            (mean, dt.float32, gpus), (total, dt.float32, cpus),
        )
    ]  # fmt: skip
    assert found == ["mean", "mean", "mean", "sum", "sum", "sum"]


def test_nccl_wants_gpus():
    with pytest.raises(dt.errors.FailedPreconditionError, match="/cpu:0. Use communication=.*AUTO or RING"):
        distribute.MultiWorkerMirroredStrategy(distribute.CollectiveCommunication.NCCL, devices=["/cpu:0"])


def test_each_replica_of_a_worker_takes_part_for_itself(workers):
    """Nothing is added up in the worker before the workers meet: a bucket can leave as soon as its gradients are there."""
    start = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
    inputs = [np.random.default_rng(i).normal(size=(2, 4)).astype(np.float32) for i in range(4)]
    reductions = []

    def build(strategy):
        def replica():
            number = distribute.get_replica_context().replica_id_in_sync_group
            w = dt.get_variable("w", initializer=start)
            b = dt.get_variable("b", initializer=np.zeros(3, np.float32))
            loss = dt.reduce_sum(dt.matmul(dt.constant(inputs[number]), w) + b)
            return dt.train.GradientDescentOptimizer(1.0).minimize(loss)

        train = strategy.group(strategy.run(replica))
        nodes = dt.get_default_graph().get_operations()
        reductions.append([n for n in nodes if n.type == "CollectiveReduce"])
        assert not any(n.type == "AddN" for n in nodes)
        return train, [list(v.values) for v in dt.trainable_variables()]

    gradient = np.mean([np.repeat(x.sum(0)[:, None], 3, 1) for x in inputs], 0)
    for w, b in workers(build):
        for copy in w:
            np.testing.assert_allclose(copy, start - gradient, rtol=1e-5)
        assert [copy.tolist() for copy in b] == [[-2.0] * 3] * 2
    # And nothing is divided afterwards.
    assert {n.attrs["reduction"] for nodes in reductions for n in nodes} == {"mean"}
    # Both variables in one bucket.
    assert sorted(n.attrs["rank"] for nodes in reductions for n in nodes) == [
        0,
        1,
        2,
        3,
    ]


def test_a_worker_that_drifts_apart_is_named(workers, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "1")
    monkeypatch.setattr("dovetail.distribute.values.CHECK_INTERVAL", 1)

    def build(strategy):
        def replica():
            v = dt.get_variable("v", [3])
            return dt.train.GradientDescentOptimizer(0.1).minimize(dt.nn.l2_loss(v))

        train = strategy.group(strategy.run(replica))
        own = dt.trainable_variables()[0].values[0].assign_add([float(strategy._rank)] * 3)
        return own, train

    with pytest.raises(
        dt.errors.InternalError, match="'v' differ after 1 updates.*task:0/device:CPU:1 has .*task:1/device:CPU:0 has"
    ):
        workers(build)


def free_address():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return f"localhost:{s.getsockname()[1]}"


def test_a_server_of_a_strategy_has_the_cpu_devices_of_its_replicas():
    resolver = SimpleClusterResolver(dt.train.ClusterSpec({"worker": [free_address()]}), task_type="worker", task_id=0)
    with dt.Graph().as_default():
        strategy = distribute.experimental.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver, devices=["/cpu:0", "/cpu:1"]
        )
        with strategy.scope():
            v = dt.get_variable("v", initializer=2.0)
        config = strategy.update_config_proto(dt.ConfigProto())
        with dt.Session(strategy.session_target, config=config) as session:
            session.run(v.initializer)
            assert session.run([copy.value() for copy in v.values]) == [2.0, 2.0]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["mirrored", "ps"])
def test_the_programs_own_server_is_used(kind, is_first):
    address = free_address()
    spec = dt.train.ClusterSpec({"worker": [address]} | ({"ps": ["localhost:1"]} if kind == "ps" else {}))
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    make = (
        distribute.experimental.ParameterServerStrategy
        if kind == "ps"
        else distribute.experimental.MultiWorkerMirroredStrategy
    )
    strategy = None if is_first else make(cluster_resolver=resolver)
    with dt.train.Server(spec, "worker", 0) as server, dt.Graph().as_default():
        strategy = strategy or make(cluster_resolver=resolver)
        assert strategy.session_target == server.target
        if kind == "ps":
            assert strategy.server is server
            return
        with strategy.scope():
            v = dt.get_variable("v", initializer=2.0)
        with dt.Session(server.target) as session:
            session.run(v.initializer)
            assert session.run(v.value()) == 2.0
