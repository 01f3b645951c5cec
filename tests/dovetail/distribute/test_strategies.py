"""Strategies of one process: what their replicas build, and where variables are."""

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
        with pytest.raises(RuntimeError, match="did not create"):
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
        with pytest.raises(
            RuntimeError, match="Replica 1 creates a variable 'v1' where the first replica created 'v0'"
        ):
            strategy.run(lambda: dt.Variable(1.0, name=f"v{number()}"))
        with pytest.raises(RuntimeError, match="'s1/x' where the first replica created 's0/x'"):
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
