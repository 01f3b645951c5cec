"""Data sets and iterators of replicas, and replicas in loops."""

from __future__ import annotations

import numpy as np
import pytest
from strategy_programs import CONFIG, STRATEGIES, TWO

import dovetail as dt
from dovetail import distribute


@pytest.fixture(autouse=True)
def _graph():
    with dt.Graph().as_default():
        yield


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
        with pytest.raises(TypeError, match=r"needs a dt.data.Dataset whose elements are batches, not .* Create one"):
            strategy.experimental_distribute_dataset(given)
    with pytest.raises(TypeError, match="to distribute_datasets_from_function"):
        strategy.experimental_distribute_dataset(lambda context: rows)
    with pytest.raises(TypeError, match="needs a function of an InputContext .* to experimental_distribute_dataset"):
        strategy.distribute_datasets_from_function(rows)
    with pytest.raises(TypeError, match=r"must return a dt.data.Dataset, not \[1, 2\]"):
        strategy.distribute_datasets_from_function(lambda context: [1, 2])
    with pytest.raises(ValueError, match=r"has no rows. Batch the elements with Dataset.batch"):
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


def test_inputs_from_a_function_that_gives_elements():
    strategy = distribute.MirroredStrategy(TWO)
    with strategy.scope():
        iterator = strategy.make_input_fn_iterator(lambda context: lambda: dt.constant([1.0, 2.0]))
        sums = strategy.experimental_run(dt.reduce_sum, iterator)
    with dt.Session(config=CONFIG) as session:
        session.run(iterator.initialize())
        assert session.run(strategy.unwrap(sums)) == [3.0, 3.0]
    assert strategy.unwrap(strategy.experimental_run(lambda: 1)) == [1]


def test_positions_of_iterators_are_not_made_by_creators():
    made = []

    def creator(next_creator, **kwargs):
        made.append(kwargs["name"])
        return next_creator(**kwargs)

    with dt.variable_creator_scope(creator):
        dt.data.make_one_shot_iterator(dt.data.Dataset.range(3))
        dt.Variable(1.0, name="v")
    assert made == ["v"]


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
