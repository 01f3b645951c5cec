"""Direct updates: steps give what they would give if gradients were sent, whatever happens to variables, sessions and tasks."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from pairs import PS, WORKER, Pair

import dovetail as tf
from dovetail.runtime.shared_memory.segment import is_available
from dovetail.runtime.shared_memory.shared_variable import can_publish

pytestmark = pytest.mark.skipif(
    not (is_available() and can_publish()), reason="no memory files, or another kind of machine"
)

ONLY_WORKER = ["/job:worker/replica:0/task:0/device:CPU:0"]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def regression(optimizer, resource=False):
    """A small regression with its variables on the ps: training op, variables, feeds."""
    x = tf.placeholder(tf.float32, [8, 5])
    with tf.device(PS):
        w = tf.get_variable("w", [5, 12], initializer=tf.ones_initializer(), use_resource=resource)
        b = tf.get_variable("b", [12], initializer=tf.zeros_initializer(), use_resource=resource)
        step = tf.train.get_or_create_global_step()
    with tf.device(WORKER):
        loss = tf.reduce_mean(tf.square(tf.tanh(tf.matmul(x, w) + b) - 0.5))
        train = optimizer.minimize(loss, global_step=step)
    return train, loss, {x: np.linspace(-1, 1, 40, dtype=np.float32).reshape(8, 5)}


OPTIMIZERS = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "locking": lambda: tf.train.GradientDescentOptimizer(0.1, use_locking=True),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9),
    "nesterov": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "adadelta": lambda: tf.train.AdadeltaOptimizer(0.1),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.1),
    "centered": lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "proximal": lambda: tf.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=0.01),
    "proximal adagrad": lambda: tf.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=0.01),
}


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_gives_the_same_bits(pair, monkeypatch, name, resource):
    train, loss, feeds = regression(OPTIMIZERS[name](), resource)
    results = []
    for direct in "01":
        monkeypatch.setenv("DOVETAIL_ONE_SIDED_UPDATES", direct)
        with pair.session(isolate_session_state=True) as session:
            session.run(tf.global_variables_initializer())
            losses = []
            for _ in range(4):
                losses.append(session.run([loss, train], feeds)[0])
                devices = list(session.last_plan.partitions)
                assert (devices == ONLY_WORKER) == (direct == "1")
            results.append([*losses, *session.run(tf.global_variables())])
    for sent, changed in zip(*results, strict=True):
        np.testing.assert_array_equal(sent, changed)


def is_moved(session) -> bool:
    return bool(session.last_plan.moved_parts)


def counted():
    """A variable on the ps, and a step in which the worker gives what is added to it."""
    with tf.device(PS):
        v = tf.get_variable("v", initializer=tf.zeros([3]))
    x = tf.placeholder(tf.float32, [3], name="x")
    with tf.device(WORKER):
        y = tf.multiply(x, 2.0)
    return v, x, y, v.assign_add(y)


# --- what is told ----------------------------------------------------------------------------------------------------


def test_it_is_told_what_is_run_where(pair, tmp_path):
    v, x, y, up = counted()
    with pair.session() as session:
        session.run(v.initializer)
        plan = session.plan(up)
        np.testing.assert_array_equal(session.run(up, {x: [1, 2, 3]}), [2, 4, 6])
        assert str(plan) == str(session.last_plan)
        metadata = tf.RunMetadata()
        session.run(
            up, {x: [1, 2, 3]}, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata
        )
    assert plan.moved_parts == {"/job:ps/replica:0/task:0": ONLY_WORKER[0]}
    assert plan.placement["v"] == plan.placement[up.op.name] == "/job:ps/replica:0/task:0/device:CPU:0"
    assert "/job:worker/task:0/CPU:0 runs the partition of /job:ps/task:0 in shared memory" in " ".join(
        str(plan).split()
    )
    for name in ("v", up.op.name):
        assert "run by /job:worker/task:0/CPU:0 in the shared memory of /job:ps/task:0" in plan.explain(name)
    assert "in the memory" not in plan.explain(y)
    assert tf.simulate(plan).makespan > 0 and plan.report() and plan.check() is not None and plan.loads
    assert {k.device for k in metadata.trace.kernels} == set(ONLY_WORKER) and not metadata.trace.transfers
    assert plan.kernels(ONLY_WORKER[0]).device == ONLY_WORKER[0]
    plan.save(tmp_path / "plan")
    assert str(tf.Plan.load(tmp_path / "plan")) == str(plan)
    plan.to_html(tmp_path / "page.html")


@pytest.mark.parametrize("name", ["DOVETAIL_ONE_SIDED_UPDATES", "DOVETAIL_ONE_SIDED_READS"])
def test_it_can_be_turned_off(pair, monkeypatch, name):
    v, x, _, up = counted()
    monkeypatch.setenv(name, "0")
    with pair.session() as session:
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(up, {x: [1, 2, 3]}), [2, 4, 6])
        assert not is_moved(session)


def test_without_shared_memory_gradients_are_sent(pair, monkeypatch):
    v, x, _, up = counted()
    monkeypatch.setattr("dovetail.runtime.shared_memory.remote_variables.pool_of_process", lambda: None)
    with pair.session() as session:
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(up, {x: [1, 2, 3]}), [2, 4, 6])
        assert not is_moved(session)


def test_a_step_that_both_reads_and_changes_keeps_the_order_of_the_graph(pair):
    v, x, y, up = counted()
    with tf.device(WORKER):
        before = tf.identity(v)
        with tf.control_dependencies([before]), tf.device(PS):
            up = v.assign_add(y)
        with tf.control_dependencies([up]):
            after = tf.identity(v.read_value())
    with pair.session() as session:
        session.run(v.initializer)
        for k in range(3):
            found = session.run([before, up, after], {x: [1, 2, 3]})
            for value, times in zip(found, (k, k + 1, k + 1), strict=True):
                np.testing.assert_array_equal(value, np.array([2, 4, 6]) * times)
            assert is_moved(session)


# --- what stays ------------------------------------------------------------------------------------------------------


def stays_queue(v, y):
    with tf.device(PS):
        queue = tf.FIFOQueue(10, [tf.float32], [[3]])
        return tf.group(queue.enqueue([y]), v.assign_add(y))


def stays_accumulator(v, y):
    with tf.device(PS):
        gathered = tf.ConditionalAccumulator(tf.float32, [3])
        return tf.group(gathered.apply_grad(y, local_step=0), v.assign_add(y))


def stays_random(v, y):
    with tf.device(PS):
        return v.assign_add(y + tf.random_uniform([3]))


def stays_branch(v, y):
    return tf.cond(tf.reduce_sum(y) > 0, lambda: v.assign_add(y), lambda: v.assign_sub(y))


def stays_loop(v, y):
    with tf.device(WORKER):
        many = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + y), [0, y])[1]
    return v.assign_add(many)


def stays_sparse(v, y):
    with tf.device(PS):
        return tf.scatter_add(v, [0], y[:1])


def stays_printed(v, y):
    with tf.device(PS):
        return v.assign_add(tf.Print(y, [y], "never", first_n=0))


def stays_large(v, y):
    with tf.device(PS):
        large = tf.get_variable("large", [(1 << 18) + 1], initializer=tf.zeros_initializer())
        return tf.group(large.assign_add(tf.zeros_like(large) + y[0]), v.assign_add(y))


def stays_assigned(v, y):
    return v.assign(y)  # what only stores a value is an initializer, or as rare


def stays_reshaped(v, y):
    with tf.device(PS):
        return tf.group(tf.assign(v, y, validate_shape=False).op, v.assign_add(y).op)


def stays_computed(v, y):
    with tf.device(PS):
        return v.assign_add(tf.reduce_mean(tf.ones([1000, 3]) * y, 0))


@pytest.mark.parametrize(
    "make",
    [
        stays_queue, stays_accumulator, stays_random, stays_branch, stays_loop, stays_sparse, stays_printed, stays_large,
        stays_assigned, stays_reshaped, stays_computed,
    ],
)  # fmt: skip
def test_what_is_more_than_reading_and_updating_stays(pair, make):
    v, x, y, _ = counted()
    made = make(v, y)
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        session.run(made, {x: [1, 2, 3]})
        assert not is_moved(session)


def test_without_a_value_it_stays_and_is_the_error_that_it_always_is(pair):
    v, x, _, up = counted()
    with pair.session() as session:
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
                session.run(up, {x: [1, 2, 3]})
        assert not is_moved(session)
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(up, {x: [1, 2, 3]}), [2, 4, 6])


def test_emulated_gpus_send_their_gradients(monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")
    pair = Pair()
    try:
        with tf.device(PS + "/cpu:0"):
            v = tf.get_variable("v", initializer=tf.zeros([3]))
        with tf.device(WORKER + "/gpu:0"):
            up = v.assign_add(tf.ones([3]) * tf.placeholder_with_default(2.0, []))
        with pair.session() as session:
            session.run(v.initializer)
            np.testing.assert_array_equal(session.run(up), [2, 2, 2])
            assert not is_moved(session)
    finally:
        pair.close()


# --- what changes meanwhile ------------------------------------------------------------------------------------------


def test_another_shape_ends_no_step_that_fits(pair):
    with tf.device(PS):
        v = tf.get_variable("v", initializer=tf.zeros([3]))
        new = tf.placeholder(tf.float32, None)
        assign = tf.assign(v, new, validate_shape=False).op
    x = tf.placeholder(tf.float32, [3], name="x")
    with tf.device(WORKER):
        up = v.assign_add(tf.multiply(x, 2.0))
    feeds = {x: [1, 2, 3]}
    with pair.session() as session:
        session.run(v.initializer)
        session.run(up, feeds)
        assert is_moved(session)
        session.run(assign, {new: [1.0]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be equal"):
            session.run(up, feeds)
        session.run(assign, {new: [1.0, 1.0, 1.0]})
        session.run(up, feeds)
        np.testing.assert_array_equal(session.run(v), [3, 5, 7])


def test_clearing_containers(pair):
    v, x, _, up = counted()
    with pair.session() as session:
        session.run(v.initializer)
        session.run(up, {x: [1, 2, 3]})
        assert is_moved(session)
        pair.ps._worker.reset_containers([], [])
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v") as caught:
            session.run(up, {x: [1, 2, 3]})
        assert "node 'v'" in caught.value.message and "/job:ps/replica:0/task:0" in caught.value.message
        session.run(v.initializer)
        np.testing.assert_array_equal(session.run(up, {x: [1, 2, 3]}), [2, 4, 6])
        assert is_moved(session)


def test_isolated_sessions_change_their_own(pair):
    v, x, _, up = counted()
    with (
        pair.session(isolate_session_state=True) as a,
        pair.session(isolate_session_state=True) as b,
        pair.session() as c,
    ):
        for session, times in ((a, 1), (b, 2), (c, 3)):
            session.run(v.initializer)
            for _ in range(times):
                session.run(up, {x: [1, 2, 3]})
            assert is_moved(session)
        for session, times in ((a, 1), (b, 2), (c, 3)):
            np.testing.assert_array_equal(session.run(v), np.array([2, 4, 6]) * times)


def test_sessions_that_are_closed_leave_the_variable_to_the_others(pair):
    v, x, _, up = counted()
    one, other = pair.session(), pair.session()
    one.run(v.initializer)
    for session in (one, other):
        session.run(up, {x: [1, 2, 3]})
        assert is_moved(session)
    stop, failed = threading.Event(), []

    def go_on():
        count = 0
        try:
            while not stop.is_set() or count < 50:
                other.run(up, {x: [1, 2, 3]})
                count += 1
        except Exception as e:
            failed.append(e)
        counts.append(count)

    counts: list[int] = []
    thread = threading.Thread(target=go_on)
    thread.start()
    one.close()
    publisher = pair.ps._worker.direct.publisher
    stop.set()
    thread.join()
    assert not failed
    np.testing.assert_array_equal(other.run(v), np.array([2, 4, 6]) * (2 + counts[0]))
    other.close()
    for _ in range(600):  # closing is told to the tasks, and not waited for
        if not len(publisher):
            break
        threading.Event().wait(0.1)
    assert not len(publisher)
    state = pair.ps._worker.resources.find("ps", "v")
    assert not state.is_shared
    np.testing.assert_array_equal(state.read(), np.array([2, 4, 6]) * (2 + counts[0]))


def test_a_server_that_was_stopped_is_not_changed(pair):
    v, x, _, up = counted()
    with pair.session(peer_timeout_s=1.0) as session:
        session.run(v.initializer)
        session.run(up, {x: [1, 2, 3]})
        assert is_moved(session)
        pair.ps.stop()
        with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
            session.run(up, {x: [1, 2, 3]})


def test_owner_and_worker_count_together(pair):
    v, x, _, up = counted()
    with tf.device(PS):
        own = v.assign_add(tf.ones([3])).op
    with pair.session() as session:
        session.run(v.initializer)
        session.run(up.op, {x: [0, 0, 0]})
        assert is_moved(session)

        def run(what, feeds):
            for _ in range(100):
                session.run(what, feeds)

        threads = [threading.Thread(target=run, args=given) for given in ((own, {}), (up.op, {x: [1, 2, 3]})) * 2]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        np.testing.assert_array_equal(session.run(v), [200 + 400, 200 + 800, 200 + 1200])


# --- tasks that die --------------------------------------------------------------------------------------------------


def test_a_third_task_gets_the_variable_that_another_one_changes_in_place_from_that_task():
    """Its value is in the parameter server's memory: the worker that changes it there may have a variable of the same name."""
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        with tf.Graph().as_default(), tf.device("/job:worker/task:0"):
            other = tf.Variable(99.0, name="v", use_resource=False)
            with tf.Session(cluster.target("worker", 0)) as session:
                session.run(other.initializer)
        with tf.Graph().as_default():
            with tf.device("/job:ps"):
                v = tf.Variable(1.0, name="v", use_resource=False)
            with tf.device("/job:worker/task:0"):
                read = v.read_value()
            with tf.device("/job:worker/task:1"):
                y = read * 2.0
            with tf.device("/job:worker/task:0"):
                gradient = y + 1.0
            update = tf.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, v)])
            with tf.Session(cluster.target("worker", 0)) as session:
                session.run(v.initializer)
                assert session.run([y, update])[0] == 2.0
                assert "/job:ps/replica:0/task:0" in {owner for _, owner in session.last_plan.access.used}
                assert session.run(v) == 1.0 - 3.0


@pytest.mark.slow
def test_tasks_that_are_killed_and_started_again():
    v, x, _, up = counted()
    feeds = {x: [1, 2, 3]}
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        config = tf.ConfigProto(peer_timeout_s=2.0)
        with (
            tf.Session(cluster.target("worker"), config=config) as session,
            tf.Session(cluster.target("worker", 1), config=config) as other,
        ):
            session.run(v.initializer)
            session.run(up, feeds)
            assert is_moved(session)
            cluster.process("worker", 0).kill()  # wherever it was
            with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)):
                session.run(up, feeds)
            assert other.run(v)[0] >= 2  # and its variable is not held up
            other.run(v.assign_add([1.0, 1.0, 1.0]))
            cluster.start("worker", 0)
            cluster.wait_until_up(60.0)
        patient = tf.ConfigProto(peer_timeout_s=3600.0)
        with tf.Session(cluster.target("worker"), config=patient) as session:
            session.run(up, feeds)
            assert is_moved(session)
            process = cluster.process("ps", 0)
            process.kill()
            process.wait(60)
            # The machine tells that a process has ended: nobody waits for its task to have been silent for so long.
            with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
                session.run(up, feeds, tf.RunOptions(timeout_in_ms=60_000))
            cluster.start("ps", 0)
            cluster.wait_until_up(60.0)
            with tf.Session(cluster.target("worker"), config=config) as again:
                again.run(v.initializer)
                np.testing.assert_array_equal(again.run(up, feeds), [2, 4, 6])
                assert is_moved(again)
                with pytest.raises(tf.errors.AbortedError, match="restarted"):
                    session.run(up, feeds)


@pytest.mark.slow
def test_training_goes_on_after_a_parameter_server_was_started_again(tmp_path):
    train, _, feeds = regression(tf.train.AdamOptimizer(0.1))
    step = tf.train.get_global_step()
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster, tf.train.MonitoredTrainingSession(
        cluster.target("worker"), checkpoint_dir=str(tmp_path), config=tf.ConfigProto(peer_timeout_s=2.0),
        save_checkpoint_secs=None, save_checkpoint_steps=5, log_step_count_steps=None,
    ) as session:  # fmt: skip
        for _ in range(12):
            session.run(train, feeds)
        process = cluster.process("ps", 0)
        process.kill()
        process.wait(60)
        cluster.start("ps", 0)
        for _ in range(5):
            session.run(train, feeds)
        assert 10 < session.run(step) <= 17
