"""What training with a strategy gives: the same as on the whole batch, whichever way gradients are reduced and however steps run."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_programs import CONFIG, STRATEGIES, TWO, run

import dovetail as dt
from dovetail import distribute
from dovetail.distribute import ReduceOp


@pytest.fixture(autouse=True)
def _graph():
    with dt.Graph().as_default():
        yield


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


def test_copies_that_drift_apart_are_an_error_where_that_is_checked(monkeypatch):
    monkeypatch.setenv("DOVETAIL_CHECK", "1")
    monkeypatch.setattr("dovetail.distribute.values.CHECK_INTERVAL", 2)
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
