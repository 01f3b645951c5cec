"""Direct reads: steps give what they would give if all values were sent, whatever happens to variables, sessions and tasks."""

import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from pairs import PS, WORKER, Pair

import dovetail as tf
from dovetail.placer.partition.one_sided_access import MOST_BYTES
from dovetail.runtime.shared_memory import pool as memory_pool, variable_reader
from dovetail.runtime.shared_memory.segment import is_available
from dovetail.runtime.shared_memory.shared_variable import can_publish

pytestmark = pytest.mark.skipif(
    not (is_available() and can_publish()), reason="no memory files, or another kind of machine"
)


@pytest.fixture
def pair(monkeypatch) -> Iterator[Pair]:
    made = Pair()
    on_want = made.ps._handlers["want"]

    def count(peer, message):
        made.wants.append(message.fields["step"])
        on_want(peer, message)

    monkeypatch.setitem(made.ps._handlers, "want", count)
    yield made
    made.close()


def variable(name="v", value=(1.0, 2.0), **more):
    with tf.device(PS):
        return tf.get_variable(name, initializer=tf.constant(list(value), tf.float32), **more)


def doubled(v):
    with tf.device(WORKER):
        return tf.multiply(v, 2.0)


def is_direct(session) -> bool:
    return any(c.direct for c in session.last_plan.channels)


@pytest.mark.parametrize("resource", [False, True])
def test_a_variable_is_read_without_its_task(pair, resource):
    v = variable(use_resource=resource)
    y = doubled(v)
    with pair.session() as session:
        session.run(v.initializer)
        for i in range(3):
            np.testing.assert_array_equal(session.run(y), [2 * (i + 1), 2 * (i + 2)])
            assert is_direct(session) and list(session.last_plan.partitions) == [
                "/job:worker/replica:0/task:0/device:CPU:0"
            ]
            session.run(v.assign_add([1.0, 1.0]))
    assert pair.wants == []


def test_it_is_told_what_is_read_directly(pair):
    y = doubled(variable())
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        plan = session.plan(y)
        session.run(y)
        assert str(plan) == str(session.last_plan) and "as a one-sided read" in " ".join(str(plan).split())
        assert "in the shared memory of /job:ps/task:0/CPU:0" in plan.explain("v/read")
        assert tf.simulate(plan).makespan > 0
        metadata = tf.RunMetadata()
        session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    (read,) = metadata.trace.transfers
    assert read.direct and read.bytes == 8 and read.name == "v/read:0"
    assert "one-sided read" in metadata.trace.step_stats.dev_stats[0].node_stats[-1].timeline_label


def test_plans_survive_files_and_pages(pair, tmp_path):
    y = doubled(variable())
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        plan = session.plan(y)
    plan.save(tmp_path / "plan")
    assert str(tf.Plan.load(tmp_path / "plan")) == str(plan)
    plan.to_html(tmp_path / "page.html")
    assert "one-sided read in shared memory" in (tmp_path / "page.html").read_text()


def test_it_can_be_turned_off(pair, monkeypatch):
    y = doubled(variable())
    monkeypatch.setenv("DOVETAIL_ONE_SIDED_READS", "0")
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(y), [2, 4])
        assert not is_direct(session)


def test_without_shared_memory_values_are_sent(pair, monkeypatch):
    y = doubled(variable())
    monkeypatch.setattr("dovetail.runtime.shared_memory.remote_variables.pool_of_process", lambda: None)
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(y), [2, 4])
        assert not is_direct(session)


def test_a_variable_without_a_value_is_the_error_that_it_always_is(pair):
    v = variable()
    y = doubled(v)
    with pair.session() as session:
        for _ in range(2):
            with pytest.raises(tf.errors.FailedPreconditionError) as caught:
                session.run(y)
            text = caught.value.message
            assert "uninitialized value v" in text and "node 'v' (Read)" in text and "test_one_sided_reads.py" in text
            assert "/job:ps/replica:0/task:0/device:CPU:0" in text
        assert caught.value.op.name == "v"
        session.run(v.initializer)  # no new plan is needed then
        np.testing.assert_array_equal(session.run(y), [2, 4])


def test_what_cannot_be_read_is_sent(pair, monkeypatch):
    v = variable()
    y = doubled(v)
    with pair.session() as session:
        session.run(v.initializer)
        session.run(y)
        monkeypatch.setattr(variable_reader.RemoteSharedVariable, "read", lambda self: None)
        np.testing.assert_array_equal(session.run(y), [2, 4])
        assert len(pair.wants) == 1
        metadata = tf.RunMetadata()
        session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        (sent,) = metadata.trace.transfers
        assert not sent.direct and sent.bytes == 8
        monkeypatch.undo()
        np.testing.assert_array_equal(session.run(y), [2, 4])
        assert len(pair.wants) == 2


def test_a_want_that_is_lost_is_said_again(pair, monkeypatch):
    y = doubled(variable())
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        monkeypatch.setattr(variable_reader.RemoteSharedVariable, "read", lambda self: None)
        handlers, lost = pair.ps._handlers, []
        handle = handlers["want"]
        monkeypatch.setitem(handlers, "want", lambda *given: handle(*given) if len(lost) == 2 else lost.append(given))
        np.testing.assert_array_equal(session.run(y), [2, 4])
        assert len(lost) == 2


def test_an_answer_that_never_comes_ends_the_step(pair, monkeypatch):
    y = doubled(variable())
    with pair.session(peer_timeout_s=1.0) as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        monkeypatch.setattr(variable_reader.RemoteSharedVariable, "read", lambda self: None)
        monkeypatch.setitem(pair.ps._handlers, "want", lambda *given: None)
        with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
            session.run(y)


def test_another_shape_and_a_larger_value(pair):
    with tf.device(PS):
        v = tf.Variable([1.0, 2.0], name="v")
        new = tf.placeholder(tf.float32, None)
        assign = tf.assign(v, new, validate_shape=False)
    y = doubled(v)
    with pair.session() as session:
        session.run(v.initializer)
        for value in ([1.0], [[1.0, 2.0]], np.ones(MOST_BYTES // 4 + 1, np.float32), [5.0]):
            session.run(assign.op, {new: value})
            np.testing.assert_array_equal(session.run(y), 2 * np.array(value))
            assert is_direct(session)
    assert len(pair.wants) == 1


def test_clearing_containers_and_making_variables_anew(pair):
    y = doubled(variable())
    with pair.session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        pair.ps._worker.reset_containers([], [])
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
            session.run(y)
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(y), [2, 4])
    wants = len(pair.wants)
    tf.Session.reset(pair.worker.target)
    with pair.session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized value v"):
            session.run(y)
        session.run(tf.global_variables_initializer())
        session.run(y)
    assert len(pair.wants) == wants + 1


def test_isolated_sessions_read_their_own(pair):
    v = variable()
    y, up = doubled(v), v.assign_add([1.0, 1.0])
    with (
        pair.session(isolate_session_state=True) as a,
        pair.session(isolate_session_state=True) as b,
        pair.session() as c,
    ):
        for session, times in ((a, 0), (b, 1), (c, 2)):
            session.run(v.initializer)
            for _ in range(times):
                session.run(up)
        for session, times in ((a, 0), (b, 1), (c, 2)):
            np.testing.assert_array_equal(session.run(y), [2 + 2 * times, 4 + 2 * times])
            assert is_direct(session)
    assert pair.wants == []


def test_sessions_that_are_closed_leave_nothing_published(pair):
    y = doubled(variable())
    kept = pair.ps._worker.direct.publisher
    for isolated in (False, True):
        with pair.session(isolate_session_state=isolated) as session:
            session.run(tf.global_variables_initializer())
            session.run(y)
            assert len(kept) == 1
        for _ in range(600):  # closing is told to the tasks, and not waited for
            if not len(kept):
                break
            threading.Event().wait(0.1)
        assert not len(kept)


def test_a_server_that_was_stopped_is_not_read(pair):
    y = doubled(variable())
    with pair.session(peer_timeout_s=1.0) as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        pair.ps.stop()
        with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
            session.run(y)


def test_many_steps_at_once_see_whole_values(pair):
    v = variable(value=[0.0] * 5000)
    with tf.device(PS):
        up = tf.assign_add(v, tf.ones([5000])).op
    with tf.device(WORKER):
        ends = tf.stack([tf.reduce_min(v), tf.reduce_max(v)])
    with pair.session() as session:
        session.run(v.initializer)
        wrong = []

        def look():
            latest = 0.0
            for _ in range(150):
                low, high = session.run(ends)
                if low != high or low < latest:
                    wrong.append((low, high, latest))
                latest = high

        threads = [threading.Thread(target=look) for _ in range(3)]
        for t in threads:
            t.start()
        for _ in range(150):
            session.run(up)
        for t in threads:
            t.join()
        assert not wrong
        np.testing.assert_array_equal(session.run(ends), [150, 150])


# --- tasks that die --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_that_are_stopped_killed_and_started_again():
    v = variable()
    y = doubled(v)
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        target = cluster.target("worker")
        config = tf.ConfigProto(peer_timeout_s=2.0)
        with tf.Session(target, config=config) as session:
            session.run(v.initializer)
            np.testing.assert_array_equal(session.run(y), [2, 4])
            assert is_direct(session)
            process = cluster.process("ps", 0)
            os.kill(process.pid, signal.SIGSTOP)
            np.testing.assert_array_equal(session.run(y), [2, 4])  # its variables can be read
            process.kill()
            process.wait(60)
            with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:0"):
                session.run(y)
            cluster.start("ps", 0)
            with tf.Session(target, config=config) as again:
                again.run(v.initializer)
                np.testing.assert_array_equal(again.run(y), [2, 4])
                assert is_direct(again)
                with pytest.raises(tf.errors.AbortedError, match="restarted"):
                    session.run(y)
        memory_pool.mapper.let_go()
