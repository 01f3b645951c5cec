"""A coordinator and real workers: work is handed out, done once it can be, and not lost with a worker."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as dt
from dovetail.distribute import ClusterCoordinator, MirroredStrategy, ParameterServerStrategy
from dovetail.distribute.resolvers.cluster_resolver import SimpleClusterResolver

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster():
    with dt.LocalCluster({"worker": 2, "ps": 2}) as found, dt.Graph().as_default():
        yield found


@pytest.fixture
def coordinator(cluster):
    strategy = ParameterServerStrategy(SimpleClusterResolver(cluster.cluster_spec))
    with ClusterCoordinator(strategy) as found:
        yield found


def test_work_is_done_by_whoever_is_free(coordinator):
    strategy = coordinator.strategy
    with strategy.scope():
        v = dt.get_variable("v", initializer=0.0)
        w = dt.get_variable("w", initializer=[1.0, 2.0])
    assert [v.device, w.device] == ["/job:ps/task:0", "/job:ps/task:1"]

    def step(x):
        with dt.control_dependencies([v.assign_add(dt.reduce_sum(x), read_value=False)]):
            return {"doubled": x * 2.0, "w": w.read_value()}

    results = [coordinator.schedule(step, (np.full(n % 3, 1.0, np.float32),)) for n in range(30)]
    coordinator.join()
    assert coordinator.done()
    assert coordinator.session.run(v) == 30.0
    found = coordinator.fetch(results)
    np.testing.assert_array_equal(found[2]["doubled"], [2, 2])
    np.testing.assert_array_equal(found[0]["w"], [1, 2])


def test_the_total_loss_of_a_worker_is_its_own(coordinator):
    def step(x):
        w = dt.get_variable("w", initializer=dt.ones([3]), regularizer=dt.reduce_sum)
        dt.losses.absolute_difference(dt.zeros([3]), w * x)
        return dt.losses.get_total_loss()

    results = [coordinator.schedule(step, (float(n),)) for n in range(12)]
    assert coordinator.fetch(results) == [n + 3.0 for n in range(12)]


def test_metrics_of_a_function_are_initialized_and_numbers_are_results(cluster, coordinator):
    def step(x):
        total, seen = dt.Variable(0, collections=["local_variables"], name="seen"), dt.metrics.mean(x)
        with dt.control_dependencies([seen[1]]):
            return {"mean": seen[1], "seen": total.assign_add(1), "one": 1, "half": 0.5, "name": "step"}

    for values in ([2.0, 4.0], [6.0]):
        found = coordinator.fetch([coordinator.schedule(step, (np.array(values, np.float32),)) for _ in range(6)])
        coordinator.join()
        assert all(2 <= f["mean"] <= 6 and 1 <= f["seen"] <= 12 for f in found)
        assert [(f["one"], f["half"], f["name"]) for f in found] == [(1, 0.5, b"step")] * 6
    assert max(f["seen"] for f in found) >= 6  # of one of two workers


def test_training(coordinator):
    strategy = coordinator.strategy
    optimizer = dt.train.AdamOptimizer(0.1)

    def step(x, y):
        def replica():
            w = dt.get_variable("w", initializer=np.zeros((3, 1), np.float32))
            loss = dt.reduce_mean(dt.square(dt.matmul(x, w) - y))
            with dt.control_dependencies([optimizer.minimize(loss)]):
                return dt.identity(loss)

        return strategy.run(replica)

    rng = np.random.default_rng(0)
    truth = np.array([[1.0], [-2.0], [0.5]], np.float32)
    for _ in range(150):
        x = rng.normal(size=(16, 3)).astype(np.float32)
        last = coordinator.schedule(step, (x, x @ truth))
    coordinator.join()
    assert coordinator.fetch(last) < 0.05


def test_each_worker_has_its_own(coordinator):
    ids = coordinator.create_per_worker_resource(lambda: dt.random_uniform([], seed=None) * 0.0 + 7.0)
    results = [coordinator.schedule(lambda x, y: x + y, (ids, float(n))) for n in range(4)]
    assert coordinator.fetch(results) == [7.0, 8.0, 9.0, 10.0]


def test_arguments_of_other_names_and_forms_are_traced_anew(coordinator):
    def step(a=0.0, b=0.0):
        return dt.add(dt.add_n(a) * 10.0 if isinstance(a, list) else a * 10.0, b)

    calls = [{"a": 1.0}, {"b": 1.0}, {"a": [1.0, 2.0], "b": 3.0}, {"a": [1.0, 2.0, 3.0]}]
    results = [coordinator.schedule(step, kwargs=call) for call in calls]
    assert coordinator.fetch(results) == [10.0, 1.0, 33.0, 60.0]


def test_a_killed_worker_loses_no_work(cluster, coordinator, caplog):
    with coordinator.strategy.scope():
        v = dt.get_variable("v", initializer=0.0)

    def step(x):
        with dt.control_dependencies([v.assign_add(1.0, read_value=False)]):
            return x + 1.0

    first = [coordinator.schedule(step, (float(n),)) for n in range(10)]
    coordinator.join()
    cluster.kill("worker", 1)
    results = [coordinator.schedule(step, (float(n),)) for n in range(40)]
    coordinator.join()
    assert coordinator.fetch(first + results) == [n + 1.0 for n in (*range(10), *range(40))]
    assert coordinator.session.run(v) >= 50.0  # at least once each
    assert [r.getMessage()[:29] for r in caplog.records if "lost" in r.getMessage()] == [
        "/job:worker/task:1 is lost. A"
    ]
    cluster.start("worker", 1)
    assert coordinator.fetch(coordinator.schedule(step, (1.0,))) == 2.0


def test_errors_are_said_once_and_cancel_what_waits(coordinator):
    bad = coordinator.schedule(lambda x: dt.gather(dt.constant([1.0]), x), (5,))
    with pytest.raises(dt.errors.InvalidArgumentError):
        bad.fetch()
    with pytest.raises(dt.errors.InvalidArgumentError):
        coordinator.join()
    coordinator.join()  # reported once
    assert coordinator.fetch(coordinator.schedule(lambda x: x * 2, (5,))) == 10


def test_closing_cancels_what_runs_and_what_waits(cluster):
    strategy = ParameterServerStrategy(SimpleClusterResolver(cluster.cluster_spec))
    results = []
    with pytest.raises(KeyError, match="mine"), ClusterCoordinator(strategy) as coordinator:
        with strategy.scope(), dt.device("/job:ps"):
            empty = dt.FIFOQueue(1, dt.float32, [[]])
        results += [coordinator.schedule(empty.dequeue) for _ in range(4)]
        raise KeyError("mine")
    for result in results:
        with pytest.raises(dt.errors.CancelledError):
            result.fetch()


def test_a_dead_parameter_server_is_the_users_concern(cluster, coordinator):
    with coordinator.strategy.scope():
        v = dt.get_variable("v", initializer=0.0)
    step = v.assign_add
    assert coordinator.fetch(coordinator.schedule(step, (1.0,))) == 1.0
    cluster.kill("ps", 0)
    coordinator.schedule(step, (1.0,))
    with pytest.raises((dt.errors.UnavailableError, dt.errors.AbortedError), match="/job:ps"):
        coordinator.join()


def test_tables_are_filled_on_each_worker(cluster, coordinator):
    def table():
        return dt.lookup.StaticHashTable(dt.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)

    with coordinator.strategy.scope():
        everywhere = table()
        with dt.device("/job:ps/task:1"):
            on_a_server = table()

    def step(words):
        return dt.stack([t.lookup(words) for t in (table(), everywhere, on_a_server)])

    words = np.array(["b", "c", "a"], object)
    for lost in (None, 0, 1):
        if lost is not None:
            cluster.kill("worker", lost)
            cluster.start("worker", lost)
        for found in coordinator.fetch([coordinator.schedule(step, (words,)) for _ in range(6)]):
            np.testing.assert_array_equal(found, [[2, -1, 1]] * 3)


def test_variables_of_a_lost_parameter_server_are_restored(cluster, coordinator, tmp_path):
    with coordinator.strategy.scope():
        v, w = dt.get_variable("v", initializer=0.0), dt.get_variable("w", initializer=5.0)
    saver, step = dt.train.Saver(), v.assign_add
    for _ in range(3):
        coordinator.schedule(step, (1.0,))
    coordinator.join()
    path = saver.save(coordinator.session, str(tmp_path / "model"))
    coordinator.session.run(w.assign(6.0))
    cluster.kill("ps", 0)
    cluster.start("ps", 0)
    for _ in range(4):  # each worker finds out for itself
        try:
            coordinator.schedule(step, (1.0,))
            coordinator.join()
        except dt.errors.OpError:
            saver.restore(coordinator.session, path)
    coordinator.join()
    assert coordinator.session.run([v, w])[1] == 5.0
    before = coordinator.session.run(v)
    assert before >= 3.0
    assert coordinator.fetch(coordinator.schedule(step, (1.0,))) == before + 1.0


def test_what_cannot_be_scheduled(coordinator):
    with pytest.raises(TypeError, match="returns None. A worker runs only the nodes that the function returns"):
        coordinator.schedule(lambda x: None, (1.0,))
    with pytest.raises(TypeError, match="function that builds nodes"):
        coordinator.schedule(5)
    value = coordinator.schedule(lambda: dt.constant(1.0))
    with pytest.raises(ValueError, match="Fetch them first"):
        coordinator.schedule(lambda x: x, (value,))
    with pytest.raises(ValueError, match="ParameterServerStrategy"):
        ClusterCoordinator(MirroredStrategy())
