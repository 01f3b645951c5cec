"""Parameter servers that get variables in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.distribute import ClusterCoordinator, ParameterServerStrategy
from dovetail.distribute.experimental import partitioners
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver


class Server:
    """Says where a server would be."""

    target = "zmq://localhost:1"


def strategy_of_a_worker(partitioner: Any) -> ParameterServerStrategy:
    spec = dt.train.ClusterSpec({"worker": ["localhost:1"], "ps": ["localhost:2", "localhost:3"]})
    resolver = SimpleClusterResolver(spec, task_type="worker", task_id=0)
    return ParameterServerStrategy(resolver, partitioner, server=Server())


@pytest.mark.parametrize(
    ("partitioner", "shape", "parts"),
    [
        (partitioners.FixedShardsPartitioner(2), [10, 3], [2, 1]),
        (partitioners.FixedShardsPartitioner(20), [10, 3], [10, 1]),
        (partitioners.MinSizePartitioner(4, max_shards=2), [6, 1], [2, 1]),
        (partitioners.MinSizePartitioner(4, max_shards=10), [6, 1], [6, 1]),
        (partitioners.MinSizePartitioner(), [6, 1], [1, 1]),
        (partitioners.MaxSizePartitioner(4), [6, 1], [6, 1]),
        (partitioners.MaxSizePartitioner(4, max_shards=2), [6, 1], [2, 1]),
        (partitioners.MaxSizePartitioner(1024), [6, 1], [1, 1]),
    ],
)
def test_how_many_parts(partitioner, shape, parts):
    assert partitioner(shape, dt.float32) == parts


def test_parts_go_to_the_servers_in_turn():
    strategy = strategy_of_a_worker(partitioners.FixedShardsPartitioner(3))
    with dt.Graph().as_default(), strategy.scope():
        step = dt.train.get_or_create_global_step()
        table = dt.get_variable("table", [7, 2])
        with dt.variable_scope("inner"):
            other = dt.get_variable("other", [2])
        whole = dt.get_variable("whole", [4], partitioner=dt.fixed_size_partitioner(1))
        looked_up = dt.nn.embedding_lookup(table, [0, 6], partition_strategy="div")
        names = [v.name for v in dt.trainable_variables()]
    assert step.device == "/job:ps/task:0"
    assert [(p.name, p.device, p.shape.as_list()) for p in table] == [
        ("table/part_0:0", "/job:ps/task:1", [3, 2]),
        ("table/part_1:0", "/job:ps/task:0", [2, 2]),
        ("table/part_2:0", "/job:ps/task:1", [2, 2]),
    ]
    assert [p.name for p in other] == ["inner/other/part_0:0", "inner/other/part_1:0"]
    assert len(list(whole)) == 1
    assert looked_up.shape.as_list() == [2, 2]
    assert names[0] == "table/part_0:0"
    assert len(names) == 6


def test_a_partitioner_is_a_function():
    with pytest.raises(ValueError, match="must be a function"):
        strategy_of_a_worker(2)


@pytest.mark.slow
def test_rows_of_a_table_are_trained_where_they_are():
    with dt.LocalCluster({"worker": 2, "ps": 2}) as cluster, dt.Graph().as_default():
        resolver = SimpleClusterResolver(cluster.cluster_spec)
        strategy = ParameterServerStrategy(resolver, partitioners.FixedShardsPartitioner(2))
        optimizer = dt.train.GradientDescentOptimizer(1.0)
        with ClusterCoordinator(strategy) as coordinator:
            with strategy.scope():
                table = dt.get_variable("table", [6, 2], initializer=dt.zeros_initializer())
            assert [p.device for p in table] == ["/job:ps/task:0", "/job:ps/task:1"]

            def step(ids):
                def replica():
                    rows = dt.nn.embedding_lookup(table, ids, partition_strategy="div")
                    return optimizer.minimize(dt.reduce_sum(rows))

                with dt.control_dependencies([strategy.run(replica)]):
                    return dt.constant(1)

            for i in range(12):
                coordinator.schedule(step, (np.array([i % 6, 5]),))
            coordinator.join()
            found = coordinator.session.run([p.value() for p in table])
    np.testing.assert_array_equal(np.concatenate(found)[:, 0], [-2, -2, -2, -2, -2, -14])


@pytest.mark.parametrize("optimizer", [dt.train.AdamOptimizer(0.1), dt.train.MomentumOptimizer(0.1, 0.9)])
def test_checkpoints_have_the_slots_of_parts_as_slices(optimizer, tmp_path):
    def trained(strategy, load, save):
        with (
            dt.Graph().as_default(),
            strategy.scope(),
            dt.variable_scope("net", partitioner=dt.fixed_size_partitioner(2)),
        ):
            table = dt.get_variable("table", initializer=np.arange(6, dtype=np.float32).reshape(3, 2))

            def replica():
                with dt.variable_scope("inner"):
                    return optimizer.minimize(dt.reduce_sum(dt.square(table)))

            train = strategy.run(replica)
            saver = dt.train.Saver()
            with dt.Session(config=dt.ConfigProto(device_count={"CPU": 2})) as session:
                session.run(dt.global_variables_initializer())
                if load:
                    saver.restore(session, load)
                session.run(strategy.group(train))
                path = saver.save(session, str(tmp_path / save))
        return {name: dt.train.load_variable(path, name) for name, _ in dt.train.list_variables(path)}

    one, two = dt.distribute.OneDeviceStrategy("/cpu:0"), dt.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    plain = dt.distribute.get_strategy()
    wanted = trained(plain, None, "first"), trained(plain, str(tmp_path / "first"), "second")
    assert all(v.shape in ((3, 2), ()) for v in wanted[0].values())
    for strategy in (one, two, ParameterServerStrategy()):
        found = trained(strategy, None, "a"), trained(strategy, str(tmp_path / "first"), "b")
        for a, b in zip(found, wanted, strict=True):
            assert sorted(a) == sorted(b)
            for name, value in b.items():
                np.testing.assert_allclose(a[name], value, rtol=1e-6, err_msg=name)
