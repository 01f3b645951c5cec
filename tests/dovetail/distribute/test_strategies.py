"""Strategies of one process: what their replicas build, where variables are, and what training with them gives."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail import distribute
from dovetail.distribute import ReduceOp

TWO = ["/cpu:0", "/cpu:1"]
CONFIG = dt.ConfigProto(device_count={"CPU": 3})


@pytest.fixture(autouse=True)
def _graph():
    with dt.Graph().as_default():
        yield


def run(fetches, feeds=None):
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        return session.run(fetches, feeds)


STRATEGIES = [
    pytest.param(lambda: distribute.OneDeviceStrategy("/cpu:0"), id="one"),
    pytest.param(lambda: distribute.MirroredStrategy(TWO), id="mirrored"),
    pytest.param(lambda: distribute.MirroredStrategy(["/cpu:0", "/cpu:1", "/cpu:2"]), id="mirrored-3"),
    pytest.param(lambda: distribute.CentralStorageStrategy(TWO, "/cpu:2"), id="central"),
]


def _train(strategy, optimizer, steps=8):
    """The weights after some steps on rows of a fixed problem, all of them in each step."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(12, 4)).astype(np.float32), rng.normal(size=(12, 1)).astype(np.float32)
    with strategy.scope():
        images, labels = dt.placeholder(dt.float32, [None, 4]), dt.placeholder(dt.float32, [None, 1])
        steps_made = dt.train.get_or_create_global_step()

        def replica(x, y):
            w = dt.get_variable("w", initializer=np.full((4, 1), 0.5, np.float32))
            b = dt.Variable([0.0], name="b")
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) + b - y))
            return loss, optimizer.minimize(loss, global_step=steps_made)

        losses, train = strategy.run(replica, (strategy.split_batch(images), strategy.split_batch(labels)))
        loss = strategy.reduce(ReduceOp.MEAN, losses)
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        for _ in range(steps):
            last, _ = session.run([loss, train], {images: x, labels: y})
        assert session.run(steps_made) == steps
        return last, session.run([list(v.values) for v in dt.trainable_variables()])


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize(
    "optimizer",
    [lambda: dt.train.GradientDescentOptimizer(0.1), lambda: dt.train.AdamOptimizer(0.05)],
    ids=["sgd", "adam"],
)
def test_training_in_step_is_training_on_the_whole_batch(make, optimizer):
    with dt.Graph().as_default():
        loss, expected = _train(distribute.OneDeviceStrategy("/cpu:0"), optimizer())
    with dt.Graph().as_default():
        found_loss, found = _train(make(), optimizer())
    assert found_loss == pytest.approx(loss, rel=1e-5)
    for copies, (one,) in zip(found, expected, strict=True):
        for copy in copies:
            np.testing.assert_array_equal(copy, copies[0])  # copies never differ
            np.testing.assert_allclose(copy, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize("outside", [False, True], ids=["variables made in replicas", "a layer made outside"])
def test_the_total_loss_of_a_replica_is_its_own_with_what_regularizes_its_copies(make, outside):
    strategy = make()
    rows = np.arange(1, 7, dtype=np.float32).reshape(6, 1)
    with strategy.scope():
        layer = dt.layers.Dense(
            1, use_bias=False, kernel_initializer=dt.ones_initializer(), kernel_regularizer=lambda w: 5 * dt.reduce_sum(w * w)
        )  # fmt: skip
        if outside:
            layer(dt.constant(rows))

        def replica(x):
            dt.losses.mean_squared_error(dt.zeros_like(x), layer(x))
            distribute.get_replica_context().merge_call(lambda strategy: None)
            total = dt.losses.get_total_loss()
            return total, dt.train.GradientDescentOptimizer(0.01).minimize(total)

        losses, train = strategy.run(replica, (strategy.split_batch(dt.constant(rows)),))
    assert len(dt.losses.get_losses()) == strategy.num_replicas_in_sync
    assert len(dt.losses.get_regularization_losses()) == 1
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        count = strategy.num_replicas_in_sync
        expected = [np.mean(part**2) + 5 for part in np.split(rows, count)]
        np.testing.assert_allclose(session.run(list(strategy.experimental_local_results(losses))), expected, rtol=1e-6)
        session.run(train)
        gradient = 2 * np.mean(rows**2) + 10
        for copy in session.run(list(layer.kernel.values)):
            np.testing.assert_allclose(copy, [[1 - 0.01 * gradient]], rtol=1e-5)


def test_where_things_are_and_what_they_are_called():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.get_variable("v", [2])
        product = strategy.run(lambda: v * 2.0)
    assert [c.op.name for c in v.values] == ["v", "v/replica_1"]
    assert [c.device for c in v.values] == ["/device:CPU:0", "/device:CPU:1"]
    assert [p.op.name for p in product.values] == ["mul", "replica_1/mul"]
    assert [p.device for p in product.values] == ["/device:CPU:0", "/device:CPU:1"]
    assert product.values[1].op.inputs[0].op.inputs[0] is v.values[1].handle  # each replica reads its own copy
    assert dt.trainable_variables() == [v]


def test_central_storage_keeps_variables_in_one_place():
    strategy = distribute.CentralStorageStrategy(TWO, parameter_device="/cpu:2")
    with strategy.scope():
        v = dt.get_variable("v", [2])
    assert [c.device for c in v.values] == ["/device:CPU:2"]
    assert strategy.extended.parameter_devices == ("/device:CPU:2",)


def test_copies_start_equal_though_drawn_at_random():
    with distribute.MirroredStrategy(TWO).scope():
        v = dt.get_variable("v", [50])
    a, b = run(list(v.values))
    np.testing.assert_array_equal(a, b)
    assert a.std() > 0


def test_variables_made_in_the_replicas_are_made_once():
    strategy = distribute.MirroredStrategy(TWO)

    def replica():
        return dt.get_variable("a", []), dt.Variable(1.0, name="b"), dt.get_variable("c", [])

    with strategy.scope():
        a, b, c = strategy.run(replica)
    assert [v.op.name for v in dt.global_variables()] == ["a", "b", "c"]
    assert dt.global_variables() == [a, b, c]


def test_scopes():
    one, other = distribute.MirroredStrategy(TWO), distribute.OneDeviceStrategy("/cpu:0")
    assert not distribute.has_strategy()
    assert not distribute.in_cross_replica_context()
    assert distribute.get_replica_context().num_replicas_in_sync == 1
    with one.scope() as same, one.scope():
        assert same is one and distribute.get_strategy() is one and distribute.in_cross_replica_context()
        with pytest.raises(RuntimeError, match="Mixing different"), other.scope():
            pass
        with dt.Graph().as_default(), one.scope():  # another graph has blocks of its own
            assert len(dt.get_variable("v", initializer=1.0).values) == 2
    assert not distribute.has_strategy()


def test_run_and_reduce():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        per = strategy.experimental_distribute_values_from_function(
            lambda context: dt.constant([1.0, 2.0, 3.0][: 1 + 2 * context.replica_id_in_sync_group])
        )
        got = strategy.run(
            lambda x, scale: {"y": x * scale, "id": distribute.get_replica_context().replica_id}, (per, 2.0)
        )
        assert got["id"].values == (0, 1)
        fetches = [
            strategy.reduce(ReduceOp.SUM, per, axis=0),
            strategy.reduce("MEAN", per, axis=0),  # counts elements: (1 + 1 + 2 + 3) / 4
            strategy.reduce(ReduceOp.MEAN, strategy.run(lambda x: dt.reduce_sum(x), (per,)), axis=None),
            strategy.gather(per, axis=0),
            *strategy.experimental_local_results(got["y"]),
        ]
        assert strategy.reduce(ReduceOp.SUM, 0) == 0
        assert strategy.reduce(ReduceOp.MEAN, 5) == 5
        with pytest.raises(ValueError, match="A non-DistributedValues value 5 cannot be reduced"):
            strategy.reduce(ReduceOp.SUM, 5)
    total, mean, of_sums, joined, first, second = run(fetches)
    assert (total, mean, of_sums) == (7.0, 1.75, 3.5)
    np.testing.assert_array_equal(joined, [1, 1, 2, 3])
    np.testing.assert_array_equal(first, [2])
    np.testing.assert_array_equal(second, [2, 4, 6])


def test_replicas_meet_half_way():
    strategy = distribute.MirroredStrategy(TWO)
    log = []

    def merged(strategy, value):
        log.append(("merged", value.values))
        assert distribute.in_cross_replica_context()
        return strategy.reduce(ReduceOp.SUM, value)

    def replica():
        context = distribute.get_replica_context()
        log.append(("before", context.replica_id))
        total = context.merge_call(merged, (10.0 * (1 + context.replica_id),))
        log.append(("after", context.replica_id))
        return total * dt.constant(1.0), context.all_reduce("mean", dt.constant(float(context.replica_id)))

    with strategy.scope():
        totals, means = strategy.run(replica)
    assert [what for what, _ in log] == ["before", "before", "merged", "after", "after"]
    found = run([*totals.values, *strategy.experimental_local_results(means)])
    assert found == [30.0, 30.0, 0.5]


def test_what_replicas_must_not_do():
    strategy = distribute.MirroredStrategy(TWO)

    def one_meets():
        context = distribute.get_replica_context()
        if context.replica_id == 0:
            context.merge_call(lambda strategy: None)

    def one_makes():
        if distribute.get_replica_context().replica_id == 1:
            dt.Variable(1.0)

    def fails():
        if distribute.get_replica_context().replica_id == 1:
            raise KeyError("mine")
        with dt.name_scope("open"):
            distribute.get_replica_context().merge_call(lambda strategy: None)

    with strategy.scope():
        with pytest.raises(RuntimeError, match=r"The replicas \[0\] call merge_call"):
            strategy.run(one_meets)
        with pytest.raises(RuntimeError, match="has not made"):
            strategy.run(one_makes)
        with pytest.raises(KeyError, match="mine"):
            strategy.run(fails)
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            strategy.run(lambda: strategy.run(lambda: None))
        with pytest.raises(RuntimeError, match="requires being in cross-replica context"):
            strategy.run(lambda: strategy.reduce("sum", 1.0))
        assert dt.constant(1.0, name="c").op.name == "c"  # no block of a replica was left open
        assert dt.get_variable("w", [1]).op.name == "w"


@pytest.mark.parametrize(
    "make", [lambda: distribute.MirroredStrategy(TWO), lambda: distribute.CentralStorageStrategy(TWO, "/cpu:0")]
)
@pytest.mark.parametrize(("aggregation", "expected"), [("SUM", 1.0), ("MEAN", 0.5), ("ONLY_FIRST_REPLICA", 0.0)])
def test_replicas_assign_together(make, aggregation, expected):
    strategy = make()
    with strategy.scope():
        v = dt.Variable(7.0, aggregation=dt.VariableAggregation[aggregation])
        change = strategy.run(
            lambda: v.assign(dt.constant(float(distribute.get_replica_context().replica_id)), read_value=False)
        )
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        session.run(strategy.group(change))
        assert session.run(list(v.values)) == [expected] * len(v.values)
        assert session.run(v) == expected


def test_assigning_without_an_aggregation_is_an_error():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.Variable(7.0)
        with pytest.raises(ValueError, match="You must specify an aggregation method"):
            strategy.run(lambda: v.assign(1.0))
        everywhere = v.assign_add(1.0)  # across replicas: all copies
    with dt.Session(config=CONFIG) as session:
        session.run(v.initializer)
        assert session.run(everywhere) == 8.0
        assert session.run(list(v.values)) == [8.0, 8.0]


def test_synchronized_on_read():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.Variable(0.0, synchronization=dt.VariableSynchronization.ON_READ, aggregation=dt.VariableAggregation.SUM)
        assert not v.trainable and dt.trainable_variables() == []
        change = strategy.group(
            strategy.run(lambda: v.assign_add(1.0 + distribute.get_replica_context().replica_id, read_value=False))
        )
        total = v.read_value()
        with pytest.raises(ValueError, match="ON_READ"):
            dt.layers.Layer().add_weight("w", trainable=True, synchronization=dt.VariableSynchronization.ON_READ)
        with pytest.raises(ValueError, match="NONE"):
            dt.Variable(0.0, synchronization=dt.VariableSynchronization.NONE)
    with dt.Session(config=CONFIG) as session:
        session.run(v.initializer)
        session.run(change)
        assert session.run([list(v.values), total]) == [[1.0, 2.0], 3.0]


def test_variables_beside_others():
    strategy = distribute.CentralStorageStrategy(TWO, "/cpu:2")
    with strategy.scope():
        v = dt.Variable(1.0)
        with strategy.extended.colocate_vars_with(v), dt.device("/cpu:1"):
            w = dt.Variable(2.0)
        assert w.device == v.device == "/device:CPU:2"
        with (
            pytest.raises(ValueError, match="colocate_vars_with"),
            strategy.extended.colocate_vars_with(dt.constant(1.0)),
        ):
            pass
        with dt.device("/cpu:1"):
            assert dt.Variable(1.0).device == "/device:CPU:2"  # blocks do not move a strategy's variables


def test_update_each_copy():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.Variable(1.0)
        change = strategy.extended.update(v, lambda copy, x: copy.assign_add(x, read_value=False), (2.0,))
        total = strategy.extended.reduce_to("sum", distribute.PerReplica([dt.constant(1.0), dt.constant(2.0)]), v)
    with dt.Session(config=CONFIG) as session:
        session.run(v.initializer)
        session.run(change)
        assert session.run([list(v.values), strategy.unwrap(total)]) == [[3.0, 3.0], [3.0, 3.0]]
    assert [t.device for t in total.values] == ["/device:CPU:0", "/device:CPU:1"]


def test_rows_of_an_embedding_are_averaged():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():

        def replica(ids):
            table = dt.get_variable("table", initializer=np.zeros((4, 2), np.float32))
            loss = dt.reduce_sum(dt.gather(table, ids))
            return dt.train.GradientDescentOptimizer(1.0).minimize(loss)

        train = strategy.run(replica, (distribute.PerReplica([dt.constant([0, 1]), dt.constant([1, 1])]),))
        (table,) = dt.trainable_variables()
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        session.run(train)
        for copy in session.run(list(table.values)):
            np.testing.assert_array_equal(copy[:, 0], [-0.5, -1.5, 0, 0])


def test_devices():
    with pytest.raises(AssertionError, match="Duplicates"):
        distribute.MirroredStrategy(["/cpu:0", "/device:CPU:0"])
    with pytest.raises(ValueError, match="empty"):
        distribute.MirroredStrategy([])
    assert distribute.MirroredStrategy().extended.worker_devices == ("/device:CPU:0",)


def test_emulated_gpus_are_taken(monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "2")
    assert distribute.MirroredStrategy().num_replicas_in_sync == 2
    central = distribute.CentralStorageStrategy()
    assert central.extended.parameter_devices == ("/device:CPU:0",)


def test_tpus_are_refused_with_advice():
    with pytest.raises(dt.errors.UnimplementedError, match="Use MirroredStrategy"):
        distribute.TPUStrategy()


def trained(strategy, steps=3, optimizer=lambda: dt.train.MomentumOptimizer(0.1, 0.9)):
    """What a small model, dense and sparse, is after some steps: the copies of each variable."""
    with dt.Graph().as_default() as graph:
        return _trained(strategy, graph, steps, optimizer)


def _trained(strategy, graph, steps, optimizer):
    with strategy.scope():

        def replica(x, ids):
            w = dt.get_variable("w", initializer=np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
            b = dt.get_variable("b", initializer=np.zeros(3, np.float32))
            table = dt.get_variable("table", initializer=np.ones((5, 3), np.float32))
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) + b + dt.gather(table, ids)))
            return optimizer().minimize(loss, var_list=dt.trainable_variables())

        rng = np.random.default_rng(0)
        count = strategy.num_replicas_in_sync
        x = distribute.PerReplica([dt.constant(rng.normal(size=(2, 4)).astype(np.float32)) for _ in range(count)])
        ids = distribute.PerReplica([dt.constant([i % 5, (i + 1) % 5]) for i in range(count)])
        train = strategy.run(replica, (x, ids))
        copies = [list(v.values) for v in dt.trainable_variables()]
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        values = session.run(copies)
    return values, [n.device for n in graph.get_operations() if n.type == "CollectiveReduce"]


def test_nccl_all_reduce_goes_on_without_nccl(monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "3")
    gpus = [f"/gpu:{i}" for i in range(3)]
    expected, none = trained(distribute.MirroredStrategy(gpus))
    found, devices = trained(distribute.MirroredStrategy(gpus, cross_device_ops=distribute.NcclAllReduce()))
    assert not none and sorted(devices) == [f"/device:GPU:{i}" for i in range(3)]  # a bucket, and a member on each GPU
    for many, one in zip(found, expected, strict=True):
        assert all(np.array_equal(copy, many[0]) for copy in many)
        np.testing.assert_allclose(many[0], one[0], rtol=1e-5)


@pytest.mark.parametrize("limit", [{"global_clipnorm": 0.05}, {"clipnorm": 0.05}, {"clipvalue": 0.01}])
def test_mean_gradients_are_clipped_once_for_all_copies(limit, monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "3")
    gpus = [f"/gpu:{i}" for i in range(3)]
    found = []
    for strategy in (
        distribute.CentralStorageStrategy(gpus),
        distribute.MirroredStrategy(gpus),
        distribute.MirroredStrategy(gpus, cross_device_ops=distribute.NcclAllReduce()),
    ):
        found.append(trained(strategy, 1, lambda: dt.keras.optimizers.SGD(1.0, **limit))[0])
    for mirrored in found[1:]:
        for copies, (central,) in zip(mirrored, found[0], strict=True):
            for copy in copies:
                np.testing.assert_allclose(copy, central, rtol=1e-5)


@pytest.mark.parametrize("make", STRATEGIES)
def test_checkpoints_do_not_depend_on_the_number_of_replicas(make, tmp_path):
    optimizer = lambda: dt.train.AdamOptimizer(0.05)  # noqa: E731
    expected, written = _train_on(distribute.OneDeviceStrategy("/cpu:0"), optimizer(), None, str(tmp_path / "one"))
    again, names = _train_on(make(), optimizer(), written, str(tmp_path / "many"))
    back, _ = _train_on(distribute.OneDeviceStrategy("/cpu:0"), optimizer(), names, None)
    straight, _ = _train_on(distribute.OneDeviceStrategy("/cpu:0"), optimizer(), None, None, 3)
    assert not any("replica" in name for name, _ in dt.train.list_variables(names))
    np.testing.assert_allclose(back, straight, rtol=1e-5)
    assert not np.allclose(expected, again)


def _train_on(strategy, optimizer, start, end, rounds=1):
    """The weight after some steps, from one checkpoint to another."""
    with dt.Graph().as_default(), strategy.scope():
        x = dt.constant(np.arange(6, dtype=np.float32))

        def replica(x):
            w = dt.get_variable("w", initializer=np.array([2.0, -1.0], np.float32))
            return optimizer.minimize(dt.reduce_mean(dt.square(x * w[0] + w[1])))

        train = strategy.group(strategy.run(replica, (strategy.split_batch(x),)))
        saver = dt.train.Saver()
        with dt.Session(config=CONFIG) as session:
            session.run(dt.global_variables_initializer())
            if start:
                saver.restore(session, start)
            for _ in range(3 * rounds):
                session.run(train)
            (w,) = dt.trainable_variables()
            copies = session.run(list(w.values))
            assert all(np.array_equal(copy, copies[0]) for copy in copies)
            return copies[0], saver.save(session, end) if end else None


@pytest.mark.parametrize("devices", [["/cpu:0"], TWO, ["/gpu:0"]])
def test_nccl_all_reduce_reduces_on_one_device_where_there_are_no_gpus(devices, monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")
    expected, _ = trained(distribute.MirroredStrategy(devices))
    for ops in (distribute.NcclAllReduce(), distribute.HierarchicalCopyAllReduce(num_packs=2)):
        found, collectives = trained(distribute.MirroredStrategy(devices, cross_device_ops=ops))
        assert not collectives
        for many, one in zip(found, expected, strict=True):
            np.testing.assert_array_equal(many, one)


def test_cross_device_ops_have_tensorflow_s_methods():
    for kind in (distribute.NcclAllReduce, distribute.HierarchicalCopyAllReduce):
        with pytest.raises(ValueError, match="num_packs"):
            kind(num_packs=-1)
    ops = distribute.ReductionToOneDevice(accumulation_fn=lambda tensors: dt.add_n(tensors) * 10.0)
    value = distribute.PerReplica([dt.constant([1.0, 2.0]), dt.constant([3.0, 6.0])])
    total = ops.reduce(distribute.ReduceOp.SUM, value, "/cpu:0")
    first, second = ops.batch_reduce("MEAN", [(value, "/cpu:0"), (dt.constant(3.0), "/cpu:0")])
    assert total.device == "/device:CPU:0"
    with dt.Session() as session:
        np.testing.assert_array_equal(session.run(total), [40.0, 80.0])
        np.testing.assert_array_equal(session.run(first), [20.0, 40.0])
        assert session.run(second) == 3.0 and session.run(ops.broadcast(second, "/cpu:0")) == 3.0


def test_saving_restores_every_copy(tmp_path):
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.Variable([1.0, 2.0], name="v")
        change = v.assign([5.0, 6.0])
        saver = dt.train.Saver()
    with dt.Session(config=CONFIG) as session:
        session.run(v.initializer)
        path = saver.save(session, str(tmp_path / "model"))
        session.run(change)
        saver.restore(session, path)
        for copy in session.run(list(v.values)):
            np.testing.assert_array_equal(copy, [1, 2])


class Counting:
    """A dataset of batches [0 1 2 3], [4 5 6 7], ...: what a strategy asks of one."""

    def make_initializable_iterator(self):
        place = dt.Variable(-4, trainable=False, collections=[], use_resource=True)
        self.initializer = place.initializer
        self.get_next = lambda: {"x": dt.range(4) + place.assign_add(4)}
        return self


def test_a_dataset_is_cut_for_the_replicas():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        iterator = strategy.make_dataset_iterator(Counting())
        doubled = strategy.run(lambda batch: batch["x"] * 2, (iterator.get_next(),))
    with dt.Session(config=CONFIG) as session:
        session.run(iterator.initializer)
        for start in (0, 8):
            a, b = session.run(list(strategy.experimental_local_results(doubled)))
            np.testing.assert_array_equal([*a, *b], [start, start + 2, start + 4, start + 6])


def test_what_is_no_data_set_for_replicas():
    strategy, rows = distribute.MirroredStrategy(TWO), dt.data.Dataset.range(3)
    for given in (np.arange(4), [1, 2], rows.make_one_shot_iterator()):
        with pytest.raises(TypeError, match=r"takes a dt.data.Dataset whose elements are batches, not .* make one"):
            strategy.experimental_distribute_dataset(given)
    with pytest.raises(TypeError, match="is for distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(lambda context: rows)
    with pytest.raises(
        TypeError, match="takes a function of an InputContext .* there is experimental_distribute_dataset"
    ):
        strategy.distribute_datasets_from_function(rows)
    with pytest.raises(TypeError, match=r"must give a dt.data.Dataset, not \[1, 2\]"):
        strategy.distribute_datasets_from_function(lambda context: [1, 2])
    with pytest.raises(ValueError, match=r"has no rows: make batches of the elements, by Dataset.batch"):
        strategy.make_dataset_iterator(rows).get_next()
    x = strategy.experimental_distribute_dataset(rows.batch(3)).make_one_shot_iterator().get_next()
    with (
        dt.Session(config=CONFIG) as session,
        pytest.raises(dt.errors.InvalidArgumentError, match="drop_remainder=True"),
    ):
        session.run(strategy.experimental_local_results(x))
    one = distribute.OneDeviceStrategy("/cpu:0").make_dataset_iterator(rows).get_next()
    assert one.shape.as_list() == []


@pytest.mark.parametrize("devices", [TWO, TWO[:1]])
def test_a_pipeline_of_ones_own_gives_each_replica_an_element(devices):
    strategy = distribute.MirroredStrategy(devices)
    asked = []

    def pipeline(context):
        asked.append((context.num_input_pipelines, context.input_pipeline_id, context.num_replicas_in_sync))
        return dt.data.Dataset.range(12).batch(context.get_per_replica_batch_size(2 * len(devices)))

    with strategy.scope():
        iterator = strategy.make_input_fn_iterator(pipeline)
        once = strategy.distribute_datasets_from_function(pipeline).make_one_shot_iterator()
        doubled = [strategy.run(lambda x: x * 2, (i.get_next(),)) for i in (iterator, once)]
    assert asked == [(1, 0, len(devices))] * 2
    with dt.Session(config=CONFIG) as session:
        session.run(iterator.initializer)
        for step in range(2):
            for found in doubled:
                parts = session.run(list(strategy.experimental_local_results(found)))
                first = 4 * len(devices) * step
                np.testing.assert_array_equal(np.concatenate(parts), first + 2 * np.arange(2 * len(devices)))


def test_copies_that_drift_apart_are_an_error_where_that_is_checked(monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "1")
    monkeypatch.setattr("dovetail.distribute.values.COMPARED_EVERY", 2)
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():

        def replica():
            right, wrong = dt.get_variable("right", [3]), dt.get_variable("wrong", [2])
            return dt.train.MomentumOptimizer(0.1, 0.9).minimize(dt.nn.l2_loss(right) + dt.nn.l2_loss(wrong))

        train = strategy.group(strategy.run(replica))
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        for _ in range(4):
            session.run(train)
        session.run(dt.trainable_variables()[1].values[1].assign_add([0.0, 1e-6]))
        session.run(train)  # the fifth
        with pytest.raises(dt.errors.InternalError, match="'wrong' differ after 6 updates.* /device:CPU:1 has"):
            session.run(train)


@pytest.mark.parametrize("meet", ["merge_call", "all_reduce", "minimize", "assign"])
@pytest.mark.parametrize("place", ["loop", "branch"])
def test_replicas_do_not_meet_in_a_loop_of_their_own(meet, place):
    strategy = distribute.MirroredStrategy(TWO)

    def together(v):
        context = distribute.get_replica_context()
        if meet == "merge_call":
            context.merge_call(lambda strategy: None)
        elif meet == "all_reduce":
            return context.all_reduce("SUM", dt.constant(1.0))
        elif meet == "minimize":
            with dt.control_dependencies([dt.train.GradientDescentOptimizer(0.1).minimize(dt.square(v))]):
                return dt.constant(1.0)
        else:
            return v.assign_add(1.0)
        return dt.constant(1.0)

    def replica():
        v = dt.get_variable("v", initializer=1.0, aggregation=dt.VariableAggregation.SUM)
        if place == "loop":
            return dt.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, together(v)), [0, 0.0])[1]
        return dt.cond(dt.constant(True), lambda: together(v), lambda: 0.0)

    with strategy.scope(), pytest.raises(RuntimeError, match="merge_call called in a branch or a loop"):
        strategy.run(replica)
    assert dt.constant(1.0, name="after").op.name == "after"


def test_replicas_meet_where_run_stands_in_a_loop():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        v = dt.get_variable("v", initializer=[1.0, 1.0])

        def replica():
            scale = float(distribute.get_replica_context().replica_id_in_sync_group)
            return dt.train.GradientDescentOptimizer(0.5).minimize(dt.reduce_sum(v * scale))

        def body(i):
            with dt.control_dependencies([strategy.group(strategy.run(replica))]):
                return i + 1

        train = dt.while_loop(lambda i: i < 3, body, [0])
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        session.run(train)
        for copy in session.run(list(v.values)):
            np.testing.assert_allclose(copy, [0.25, 0.25])


def test_a_single_replica_may_meet_itself_anywhere():
    with distribute.OneDeviceStrategy("/cpu:0").scope() as strategy:
        v = dt.get_variable("v", initializer=1.0, aggregation=dt.VariableAggregation.SUM)

        def replica():
            step = dt.train.GradientDescentOptimizer(0.25).minimize
            return dt.cond(dt.constant(True), lambda: dt.group(step(dt.square(v))), lambda: dt.no_op())

        train = strategy.run(replica)
    with dt.Session() as session:
        session.run(dt.global_variables_initializer())
        session.run(train)
        assert session.run(v) == 0.5


def test_summaries_of_replicas_are_written_once():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        texts = strategy.run(lambda: dt.summary.scalar("loss", 2.0))
        whole = dt.summary.merge_all()
    first, second, whole = run([*strategy.unwrap(texts), whole])
    assert second == b""
    assert whole.count(b"loss") == first.count(b"loss") == 1


def test_names_of_variables_must_not_depend_on_the_replica():
    def number():
        return distribute.get_replica_context().replica_id_in_sync_group

    def scoped():
        with dt.variable_scope(f"s{number()}"):
            return dt.Variable(1.0, name="x")

    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        with pytest.raises(RuntimeError, match="Replica 1 makes a variable 'v1' where the first replica has made 'v0'"):
            strategy.run(lambda: dt.Variable(1.0, name=f"v{number()}"))
        with pytest.raises(RuntimeError, match="'s1/x' where the first replica has made 's0/x'"):
            strategy.run(scoped)
        strategy.run(lambda: (dt.Variable(1.0), dt.layers.dense(dt.ones([1, 2]), 2)))


def test_a_replicas_number_can_be_fetched():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        numbers = strategy.run(lambda: distribute.get_replica_context().replica_id_in_sync_group)
    with dt.Session(config=CONFIG) as session:
        assert session.run(list(strategy.unwrap(numbers))) == [0, 1]


@pytest.mark.parametrize("make", STRATEGIES)
def test_an_empty_graph(make):
    strategy = make()
    with strategy.scope():
        nothing = strategy.run(lambda: None)
        with dt.Session(config=CONFIG) as session:
            with pytest.raises(RuntimeError, match="graph is empty"):
                session.run([])
            number = strategy.run(lambda: distribute.get_replica_context().replica_id_in_sync_group)
            assert session.run(strategy.unwrap(number)) == list(range(len(strategy.extended.worker_devices)))
            session.run([dt.global_variables_initializer(), strategy.group(strategy.run(dt.no_op))])
    assert nothing is None


@pytest.mark.parametrize("ops", [distribute.ReductionToOneDevice(), distribute.HierarchicalCopyAllReduce()])
def test_what_is_reduced_to_several_places_is_on_each(ops):
    values = []
    for device, x in zip(TWO, (1.0, 3.0), strict=True):
        with dt.device(device):
            values.append(dt.constant(x))
    found = ops.reduce("MEAN", distribute.PerReplica(values), distribute.PerReplica(values))
    assert [t.device for t in found.values] == ["/device:CPU:0", "/device:CPU:1"]
    (batch,) = ops.batch_reduce("SUM", [(distribute.PerReplica(values), "/cpu:2")])
    assert run([list(found.values), batch]) == [[2.0, 2.0], 4.0]


@pytest.mark.parametrize("make", STRATEGIES)
def test_several_steps_in_one(make):
    strategy = make()
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        v = dt.get_variable("v", initializer=0.0)
        data = dt.data.Dataset.range(100).map(lambda i: dt.cast(i, dt.float32))
        iterator = strategy.make_input_fn_iterator(lambda context: data)

        def replica(context, x):
            context.set_last_step_output("total", x, "SUM")
            context.set_non_tensor_output("what", "text")
            return dt.train.GradientDescentOptimizer(1.0).minimize(lambda: -v * x)

        def step(context, inputs):
            done = strategy.extended.call_for_each_replica(replica, args=(context, inputs))
            context.set_last_step_output("inputs", inputs)
            return strategy.group(done)

        first = {"total": 0.0, "inputs": [0.0] * replicas}
        context = strategy.extended.experimental_run_steps_on_iterator(step, iterator, 3, first)
    with dt.Session(config=CONFIG) as session:
        session.run([dt.global_variables_initializer(), iterator.initialize()])
        outputs = context.last_step_outputs
        total, inputs, _ = session.run([outputs["total"], strategy.unwrap(outputs["inputs"]), context.run_op])
        assert inputs == list(range(2 * replicas, 3 * replicas)) and total == sum(inputs)
        assert session.run(v) == sum(range(3 * replicas)) / replicas
    assert context.non_tensor_outputs["what"] == ("text",)


def test_inputs_from_a_function_that_gives_elements():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        iterator = strategy.make_input_fn_iterator(lambda context: lambda: dt.constant([1.0, 2.0]))
        sums = strategy.experimental_run(dt.reduce_sum, iterator)
    with dt.Session(config=CONFIG) as session:
        session.run(iterator.initialize())
        assert session.run(strategy.unwrap(sums)) == [3.0, 3.0]
    assert strategy.unwrap(strategy.experimental_run(lambda: 1)) == [1]


@pytest.mark.parametrize("fused", [True, False])
def test_batches_without_rows_leave_moving_averages(fused):
    strategy = distribute.OneDeviceStrategy("/cpu:0")
    strategy.extended.experimental_enable_get_next_as_optional = True
    with strategy.scope():
        x = dt.placeholder(dt.float32, [None, 2, 2, 3])
        layer = dt.layers.BatchNormalization(momentum=0.5, fused=fused)
        loss = dt.reduce_sum(layer.apply(x, training=True))
        train = dt.train.GradientDescentOptimizer(0.1).minimize(loss)
        averages = [layer.moving_mean, layer.moving_variance]
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        session.run([train, layer.updates], {x: np.zeros((0, 2, 2, 3))})
        np.testing.assert_array_equal(session.run([layer.gamma, layer.beta]), [[1, 1, 1], [0, 0, 0]])
        np.testing.assert_array_equal(session.run(averages), [[0, 0, 0], [1, 1, 1]])
        session.run(layer.updates, {x: np.full((1, 2, 2, 3), 4.0)})
        np.testing.assert_array_equal(session.run(averages), [[2, 2, 2], [0.5, 0.5, 0.5]])


def test_positions_of_iterators_are_not_made_by_creators():
    made = []

    def creator(next_creator, **kwargs):
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    with dt.variable_creator_scope(creator):
        dt.data.make_one_shot_iterator(dt.data.Dataset.range(3))
        dt.Variable(1.0, name="v")
    assert made == ["v"]


@pytest.mark.parametrize("make", STRATEGIES)
def test_keras_models_that_replicas_make_are_copies_of_one(make):
    """A model without a name in each replica, as in the model function of an estimator."""
    strategy = make()
    count = strategy.num_replicas_in_sync
    layers = dt.keras.layers
    x, y = np.ones((count, 2), np.float32), np.arange(count, dtype=np.float32)[:, None]
    layers.Dense(1)  # its name is taken before

    def replica(x, y):
        model = dt.keras.Sequential(
            [layers.Dense(1, kernel_initializer="zeros"), layers.Dense(1, kernel_initializer="ones")]
        )
        return dt.train.GradientDescentOptimizer(0.25).minimize(dt.reduce_mean(dt.square(model(x) - y)))

    with strategy.scope():
        train = strategy.run(replica, (strategy.split_batch(dt.constant(x)), strategy.split_batch(dt.constant(y))))
    found = {v.op.name: v for v in dt.trainable_variables()}
    assert list(found) == ["dense_1/kernel", "dense_1/bias", "dense_2/kernel", "dense_2/bias"]
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        session.run(train)
        kernel, bias = session.run([found["dense_1/kernel"], found["dense_2/bias"]])
    np.testing.assert_allclose(bias, [y.mean() / 2])
    np.testing.assert_allclose(kernel, np.full((2, 1), y.mean() / 2))
    assert layers.Dense(1).name == "dense_3"


def assert_steps(fetches, expected):
    """A step for each list of values that is expected."""
    with dt.Session(config=CONFIG) as session:
        session.run(dt.global_variables_initializer())
        for values in expected:
            for found, value in zip(session.run(fetches), values, strict=True):
                np.testing.assert_allclose(found, value, rtol=1e-5)


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize("per_replica", [False, True], ids=["one object", "an object per replica"])
def test_replicas_move_averages_of_variables_together(make, per_replica):
    strategy = make()
    rows = np.arange(6, dtype=np.float32)
    with strategy.scope():
        shared = dt.train.ExponentialMovingAverage(0.75)

        def replica(x):
            average = dt.train.ExponentialMovingAverage(0.75) if per_replica else shared
            w = dt.get_variable("w", initializer=1.0)
            with dt.control_dependencies([dt.train.GradientDescentOptimizer(1.0).minimize(w * dt.reduce_mean(x))]):
                return average.apply([w])

        moved = strategy.group(strategy.run(replica, (strategy.split_batch(dt.constant(rows)),)))
    (of_w,) = (v for v in dt.global_variables() if v.op.name == "w/ExponentialMovingAverage")
    with dt.control_dependencies([moved]):
        copies = [v.read_value() for v in of_w.values]
    w, shadow, expected = 1.0, 1.0, []
    for _ in range(3):
        w -= rows.mean()
        shadow = 0.75 * shadow + 0.25 * w
        expected.append([shadow] * len(copies))
    assert_steps(copies, expected)


@pytest.mark.parametrize("make", STRATEGIES)
@pytest.mark.parametrize("per_replica", [False, True], ids=["one object", "an object per replica"])
@pytest.mark.parametrize("zero_debias", [False, True])
def test_replicas_move_averages_of_tensors_together(make, per_replica, zero_debias):
    strategy = make()
    rows = np.arange(6, dtype=np.float32)
    with strategy.scope():
        shared = dt.train.ExponentialMovingAverage(0.75, zero_debias=zero_debias)
        dt.constant(1.0, name="first")  # the first replica's names are others

        def replica(x):
            average = dt.train.ExponentialMovingAverage(0.75, zero_debias=zero_debias) if per_replica else shared
            first = dt.reduce_mean(x, name="first")
            second = dt.multiply(first, [1.0, 2.0], name="first")
            with dt.control_dependencies([average.apply([second, first])]):
                return [dt.identity(average.average(t)) for t in (first, second)]

        moved = strategy.run(replica, (strategy.split_batch(dt.constant(rows)),))
        of_first, of_second = (strategy.experimental_local_results(v) for v in moved)
    shadow, expected = 0.0, []
    for step in range(1, 4):
        shadow = 0.75 * shadow + 0.25 * rows.mean()
        now = shadow / (1 - 0.75**step if zero_debias else 1)
        expected.append([now] * len(of_first) + [[now, 2 * now]] * len(of_second))
    assert_steps([*of_first, *of_second], expected)
