"""Direct additions: steps give what they would give if gradients were sent, whatever happens to accumulators, sessions and tasks."""

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

PATIENCE_S = 120  # for what ends on an event


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


class Sums:
    """Two accumulators of the ps, and the worker's step that adds to them."""

    def __init__(self, reduction="MEAN") -> None:
        self.x, self.step = tf.placeholder(tf.float32, [3], name="x"), tf.placeholder(tf.int64, [], name="step")
        with tf.device(PS):
            made = [
                tf.ConditionalAccumulator(tf.float32, s, name=n, reduction_type=reduction)
                for n, s in (("a", [3]), ("b", []))
            ]
        self.a, self.b = made
        with tf.device(WORKER):
            step = tf.identity(self.step)
            self.add = tf.group(
                self.a.apply_grad(tf.multiply(self.x, 2.0), step), self.b.apply_grad(tf.reduce_sum(self.x), step)
            )
        with tf.device(PS):
            self.take = [acc.take_grad(2) for acc in made]
            self.count = [acc.num_accumulated() for acc in made]
            self.now = tf.placeholder(tf.int64, [])
            self.set_step = tf.group(*(acc.set_global_step(self.now) for acc in made))

    def give(self, session, value, step=0):
        session.run(self.add, {self.x: np.full(3, value, "f"), self.step: step})


def is_added_directly(session) -> bool:
    return bool(session.last_plan.added_to)


@pytest.mark.parametrize("reduction", ["MEAN", "SUM"])
@pytest.mark.parametrize("direct", ["0", "1"])
def test_it_gives_what_is_given_by_messages(pair, monkeypatch, direct, reduction):
    monkeypatch.setenv("DOVETAIL_ONE_SIDED_UPDATES", direct)
    sums = Sums(reduction)
    with pair.session() as session:
        for value in (0.1, 0.7, 0.2):
            sums.give(session, value)
            assert is_added_directly(session) == (direct == "1")
        assert session.run(sums.count) == [3, 3]
        a, b = session.run(sums.take)
        total = np.float32(0.1) * 2 + np.float32(0.7) * 2 + np.float32(0.2) * 2
        np.testing.assert_allclose(a, np.full(3, total / (3 if reduction == "MEAN" else 1)), rtol=1e-6)
        np.testing.assert_allclose(b, 3.0 / (3 if reduction == "MEAN" else 1), rtol=1e-6)
        sums.give(session, 5.0, step=0)  # stale: the take has advanced the step
        assert session.run(sums.count) == [0, 0]
        sums.give(session, 5.0, step=1)
        assert session.run(sums.count) == [1, 1]
        session.run(sums.set_step, {sums.now: 7})
        sums.give(session, 5.0, step=6)
        sums.give(session, 3.0, step=7)
        a, _ = session.run(sums.take)
        np.testing.assert_array_equal(a, np.full(3, 8.0 if reduction == "MEAN" else 16.0))


def test_what_is_added_wakes_who_waits(pair, monkeypatch):
    sums = Sums()
    with pair.session() as session:
        sums.give(session, 1.0)
        assert is_added_directly(session)
        taken: list[np.ndarray] = []
        took = threading.Semaphore(0)

        def take() -> None:
            for _ in range(20):
                taken.append(session.run(sums.take)[0])
                took.release()

        thread = threading.Thread(target=take)
        thread.start()
        for k in range(20):
            for _ in range(1 if k == 0 else 2):
                sums.give(session, 1.0 + k, step=k)
            assert took.acquire(timeout=PATIENCE_S)
        thread.join(PATIENCE_S)
        np.testing.assert_array_equal(taken[0], np.full(3, 2.0))
        np.testing.assert_array_equal(taken[19], np.full(3, 40.0))


def test_who_was_not_told_looks_by_himself(pair, monkeypatch):
    # As of a process that was killed before.
    monkeypatch.setitem(pair.ps._handlers, "accumulated", lambda peer, message: None)
    sums = Sums()
    with pair.session() as session:
        sums.give(session, 1.0)
        taken: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: taken.extend(session.run(sums.take)))
        thread.start()
        sums.give(session, 3.0)
        thread.join(PATIENCE_S)
        np.testing.assert_array_equal(taken[0], np.full(3, 4.0))


def test_it_is_told_what_is_run_where(pair):
    sums = Sums()
    with pair.session() as session:
        metadata = tf.RunMetadata()
        feeds = {sums.x: [1, 2, 3], sums.step: 0}
        plan = session.plan(sums.add)
        session.run(sums.add, feeds)
        traced = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        session.run(sums.add, feeds, options=traced, run_metadata=metadata)
        assert str(plan) == str(session.last_plan)
        assert session.run(sums.count) == [2, 2]
    (addition,) = [n.name for n in plan.added_to if "ApplyGradient" in n.name and n.inputs[0].op.name == "a"]
    assert plan.placement["a"] == plan.placement[addition] == "/job:ps/replica:0/task:0/device:CPU:0"
    assert "adds to 2 accumulators of other tasks in shared memory" in " ".join(str(plan).split())
    assert "run by /job:worker/task:0/CPU:0 in the shared memory of /job:ps/task:0" in plan.explain(addition)
    assert {k.device for k in metadata.trace.kernels} == {"/job:worker/replica:0/task:0/device:CPU:0"}
    assert tf.simulate(plan).makespan > 0 and plan.report() and plan.check() is not None and plan.loads


def test_several_workers_add_and_nothing_is_lost(pair):
    sums = Sums("SUM")
    with pair.session() as session:
        sums.give(session, 1.0)

        def give() -> None:
            for _ in range(100):
                sums.give(session, 1.0)

        threads = [threading.Thread(target=give) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(PATIENCE_S)
        assert session.run(sums.count) == [401, 401]
        np.testing.assert_array_equal(session.run(sums.take)[0], np.full(3, 802.0))


def test_clearing_containers(pair):
    sums = Sums()
    with pair.session() as session:
        sums.give(session, 1.0)
        assert is_added_directly(session)
        pair.ps._worker.reset_containers([], [])
        with pytest.raises(tf.errors.AbortedError, match=r"accumulator '[ab]' .* not any more .* Run again") as caught:
            sums.give(session, 1.0)
        assert "/job:ps/replica:0/task:0" in caught.value.message
        sums.give(session, 2.0)
        assert is_added_directly(session) and session.run(sums.count) == [1, 1]


def test_isolated_sessions_add_to_their_own(pair):
    sums = Sums()
    with (
        pair.session(isolate_session_state=True) as a,
        pair.session(isolate_session_state=True) as b,
        pair.session() as c,
    ):
        for session, times in ((a, 1), (b, 2), (c, 3)):
            for _ in range(times):
                sums.give(session, 1.0)
            assert is_added_directly(session)
        assert [s.run(sums.count)[0] for s in (a, b, c)] == [1, 2, 3]


def test_a_session_that_is_closed_leaves_the_sum(pair):
    sums = Sums()
    with pair.session() as session:
        sums.give(session, 1.0)
    with pair.session() as session:
        assert session.run(sums.count) == [1, 1]
        sums.give(session, 3.0)
        np.testing.assert_array_equal(session.run(sums.take)[0], np.full(3, 4.0))


def test_another_kind_is_the_error_that_it_always_is(pair):
    sums = Sums()
    with pair.session() as session:
        sums.give(session, 1.0)
        with tf.device(PS):
            other = tf.ConditionalAccumulator(tf.float32, [4], shared_name="a")
        with tf.device(WORKER):
            add = other.apply_grad(tf.ones([4]) * sums.x[0], tf.identity(sums.step))
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match="Shared accumulator 'a' has shape"):
                session.run(add, {sums.x: [1, 2, 3], sums.step: 0})


def test_a_server_that_was_stopped_is_not_added_to(pair):
    sums = Sums()
    with pair.session(peer_timeout_s=1.0) as session:
        sums.give(session, 1.0)
        pair.ps.stop()
        with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
            sums.give(session, 1.0)


@pytest.mark.parametrize("direct", ["0", "1"])
def test_synchronous_training_sends_one_message_for_all_gradients_and_waits_once_for_them(pair, monkeypatch, direct):
    monkeypatch.setenv("DOVETAIL_ONE_SIDED_UPDATES", direct)
    with tf.device(PS):
        weights = [tf.get_variable(name, [3], initializer=tf.zeros_initializer()) for name in "uvw"]
        at = tf.train.get_or_create_global_step()
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [3])
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
        train = optimizer.apply_gradients([(tf.multiply(x, 1.0 + k), w) for k, w in enumerate(weights)], at)
    (update,) = optimizer.get_chief_queue_runner().enqueue_ops
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        plan = session.plan(train)
        assert bool(plan.added_to) == (direct == "1")
        to_ps = [c for c in plan.channels if c.destination.startswith("/job:ps") and c.control]
        assert len(to_ps) == (
            direct == "1"
        )  # without direct additions the gradients go there, and no message follows them
        (part,) = [p for device, p in session.plan(update).partitions.items() if device.startswith("/job:ps")]
        takes = [n for n in part.nodes if n.type == "ResourceAccumulatorTakeGradient"]
        assert takes[0].inputs[0].op.attrs["shared_name"] == "sync_token_q/in_line" and len(takes) == 4


@pytest.mark.slow
def test_synchronous_training_goes_on_after_a_parameter_server_was_started_again(tmp_path):
    with tf.device(PS):
        w = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        at = tf.train.get_or_create_global_step()
    with tf.device(WORKER):
        x = tf.placeholder(tf.float32, [3])
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
        train = optimizer.apply_gradients([(tf.multiply(x, 1.0), w)], at)
    hook = optimizer.make_session_run_hook(True, num_tokens=0)
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster, tf.train.MonitoredTrainingSession(
        cluster.target("worker"), checkpoint_dir=str(tmp_path), config=tf.ConfigProto(peer_timeout_s=2.0),
        save_checkpoint_secs=None, save_checkpoint_steps=5, log_step_count_steps=None, hooks=[hook],
    ) as session:  # fmt: skip
        for _ in range(12):
            session.run(train, {x: [1, 2, 3]})
        assert session._live.session.plan(train).added_to
        process = cluster.process("ps", 0)
        process.kill()
        process.wait(60)
        cluster.start("ps", 0)
        for _ in range(5):
            session.run(train, {x: [1, 2, 3]})
        assert session._live.session.plan(train).added_to
        steps, weights = session.run([at, w])
        assert 10 < steps <= 17
        np.testing.assert_array_equal(weights, -np.array([1.0, 2.0, 3.0]) * steps)
