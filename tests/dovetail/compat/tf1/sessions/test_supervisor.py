"""`Supervisor`: sessions, services and ends in this process, and a chief and a worker on a cluster."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dovetail as tf

pytest.importorskip("tensorboardX")
from event_files import events  # noqa: E402


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def counting(device: str = ""):
    """A global step, and a node that counts it up."""
    with tf.device(device):
        step = tf.train.get_or_create_global_step()
        return step, tf.assign_add(step, 1)


def test_the_chief_initialises_runs_and_leaves_a_checkpoint_from_which_the_next_one_goes_on(tmp_path):
    for start in (0, 5):
        with tf.Graph().as_default():
            step, count = counting()
            saved = threading.Event()

            class Saver(tf.train.Saver):
                def save(self, *args, told=saved, **kwargs):
                    path = super().save(*args, **kwargs)
                    told.set()
                    return path

            sv = tf.train.Supervisor(logdir=str(tmp_path), saver=Saver(), save_model_secs=0.01)
            assert sv.save_path == str(tmp_path / "model.ckpt")
            with sv.managed_session() as session:
                assert session.run(step) == start
                while not sv.should_stop() and session.run(count) < start + 5:
                    pass
                saved.clear()
                assert saved.wait(60)  # one that begins when all steps are done
                saved.clear()
                assert saved.wait(60)
            assert sv.should_stop()
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-10")


def test_the_graph_takes_no_more_nodes(graph):
    counting()
    tf.train.Supervisor()
    with pytest.raises(RuntimeError, match="finalized"):
        tf.constant(1)


def test_services_write_summaries_steps_and_the_graph(tmp_path):
    step, count = counting()
    tf.summary.scalar("twice", tf.cast(step, tf.float32) * 2)
    sv = tf.train.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.01, save_model_secs=0)
    assert sv.summary_op is not None
    written = threading.Event()
    add, seen = sv.summary_writer.add_summary, set()

    def told(summary, global_step=None):
        add(summary, global_step)
        seen.add(global_step)
        if 3 in seen:
            written.set()

    sv.summary_writer.add_summary = told
    with sv.managed_session() as session:
        for _ in range(3):
            session.run(count)
        assert written.wait(60)
        sv.summary_computed(session, session.run(sv.summary_op))
        sv.summary_computed(session, session.run(sv.summary_op), global_step=77)
    found = events(tmp_path)
    tags = {(v.tag, e.step) for e in found if e.HasField("summary") for v in e.summary.value}
    assert {("twice", 3), ("twice", 77)} <= tags
    assert any(tag == "global_step/sec" for tag, _ in tags)
    assert sum(e.HasField("graph_def") for e in found) == sum(e.HasField("meta_graph_def") for e in found) == 1
    (file,) = tmp_path.glob("events*")
    assert [e.wall_time for e in tf.train.summary_iterator(str(file))] == [e.wall_time for e in found]
    assert [e.session_log.status for e in found if e.HasField("session_log")] == [1, 2]  # START, STOP


def test_an_error_in_the_block_or_in_a_thread_is_raised_and_an_exhausted_input_is_an_end():
    counting()
    sv = tf.train.Supervisor()
    with pytest.raises(ValueError, match="mine"), sv.managed_session():
        raise ValueError("mine")
    with sv.managed_session():
        raise tf.errors.OutOfRangeError(None, None, "no more")

    def fail():
        raise KeyError("in a thread")

    with pytest.raises(KeyError, match="in a thread"), sv.managed_session():
        sv.loop(None, fail)
        sv.wait_for_stop()


def test_a_loop_calls_its_function_until_all_stop():
    counting()
    sv = tf.train.Supervisor()
    calls, many = [], threading.Event()

    def call(a, b):
        calls.append((a, b))
        if len(calls) == 3:
            many.set()

    with sv.managed_session():
        sv.loop(0.001, call, args=(1,), kwargs={"b": 2})
        assert many.wait(60)
    assert set(calls) == {(1, 2)}
    after = len(calls)
    sv.stop()
    assert len(calls) == after


def test_queues_are_filled_until_the_session_ends():
    queue = tf.FIFOQueue(4, tf.int64, shapes=())
    source = tf.Variable(0, dtype=tf.int64)
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(tf.assign_add(source, 1))]))
    taken = queue.dequeue()
    sv = tf.train.Supervisor()
    with sv.managed_session() as session:
        assert [session.run(taken) for _ in range(6)] == [1, 2, 3, 4, 5, 6]


def test_the_chief_makes_its_folder_and_writes_the_graph_and_a_checkpoint_without_a_writer(tmp_path):
    step, _ = counting()
    folder = tmp_path / "runs" / "1"
    sv = tf.train.Supervisor(logdir=str(folder), summary_writer=None)
    assert sv.ready_for_local_init_op is None
    with sv.managed_session() as session:
        path = sv.saver.save(session, sv.save_path, global_step=step)  # while the service saves its first one
    assert tf.train.latest_checkpoint(str(folder)) == path == str(folder / "model.ckpt-0")
    tf.train.load_checkpoint(path).get_tensor("global_step")
    assert 'name: "global_step"' in (folder / "graph.pbtxt").read_text()


def test_a_global_step_may_be_a_vector_of_one(tmp_path):
    step = tf.Variable([3], name="global_step", dtype=tf.int64)
    tf.summary.scalar("one", tf.constant(1.0))
    sv = tf.train.Supervisor(logdir=str(tmp_path), save_summaries_secs=0.01)
    with sv.managed_session() as session:
        sv.summary_computed(session, session.run(sv.summary_op))
        assert sv.saver.save(session, sv.save_path, sv.global_step).endswith("model.ckpt-3")
    assert sv.global_step.op.name == "global_step" and step.shape.as_list() == [1]
    assert {e.step for e in events(tmp_path) if e.HasField("summary")} == {3}


def test_a_basic_loop_goes_on_after_a_restart_and_ends_with_the_supervisor(tmp_path):
    _, count = counting()
    seen = []

    def train(session, last, *, word):
        seen.append((session.run(count), word))
        if len(seen) == 2:
            raise tf.errors.AbortedError(None, None, "a task was restarted")
        if len(seen) == last:
            sv.request_stop()

    sv = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0)
    tf.train.basic_train_loop(sv, train, (4,), {"word": "go"})
    assert seen == [(1, "go"), (2, "go"), (1, "go"), (2, "go")]


def test_what_is_given_is_taken_and_none_is_none(tmp_path):
    v = tf.Variable(1.0)
    twice = tf.placeholder(tf.float32)
    init = v.assign(twice)
    ran = []
    sv = tf.train.Supervisor(
        init_op=init, init_feed_dict={twice: 4.0}, init_fn=ran.append, ready_op=None, summary_op=None, saver=None,
        global_step=None, logdir=str(tmp_path), summary_writer=None,
    )  # fmt: skip
    assert (sv.init_op, sv.ready_op, sv.summary_op, sv.saver, sv.global_step) == (init, None, None, None, None)
    assert sv.summary_writer is None
    session = sv.prepare_or_wait_for_session(start_standard_services=False)
    assert session.run(v) == 4.0 and ran == [session]
    with pytest.raises(RuntimeError, match="summary writer"):
        sv.summary_computed(session, b"")
    sv.request_stop()
    assert sv.should_stop()
    sv.stop()
    session.close()


def test_only_the_chief_has_services_and_variables_of_replicas_need_devices():
    step, _ = counting("/job:ps")
    sv = tf.train.Supervisor(is_chief=False, global_step=step)
    with pytest.raises(RuntimeError, match="Only chief supervisor can call start_standard_services"):
        sv.start_standard_services(tf.Session())
    with pytest.raises(RuntimeError, match="Only chief supervisor can call summary_computed"):
        sv.summary_computed(tf.Session(), b"")
    with tf.Graph().as_default():
        tf.Variable(1.0, name="mine")
        with pytest.raises(
            ValueError, match=r"all Variables must have their device set: 'mine', created at .*test_supervisor"
        ):
            tf.train.Supervisor(is_chief=False)


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["asynchronous", "synchronous"])
def test_a_chief_and_a_worker_train_together(tmp_path, together):
    steps, ends = 40, {}
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [3.0]], np.float32)

    def replica(cluster, task):
        with tf.Graph().as_default():
            worker = f"/job:worker/task:{task}"
            with tf.device(tf.train.replica_device_setter(1, worker_device=worker)):
                step = tf.Variable(0, name="global_step", trainable=False)
                w = tf.Variable(tf.zeros([3, 1]), name="w")
                loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - y))
                opt = tf.train.GradientDescentOptimizer(0.1)
                given = {}
                if together:
                    opt = tf.train.SyncReplicasOptimizer(opt, 2, total_num_replicas=2)
                train = opt.minimize(loss, global_step=step)
                if together:
                    given = {
                        "local_init_op": opt.chief_init_op if task == 0 else opt.local_step_init_op,
                        "ready_for_local_init_op": opt.ready_for_local_init_op,
                    }
                    tokens, runner = opt.get_init_tokens_op(), opt.get_chief_queue_runner()
            sv = tf.train.Supervisor(
                is_chief=task == 0, logdir=str(tmp_path), recovery_wait_secs=0.1, global_step=step, **given
            )
            with sv.managed_session(cluster.target("worker", task)) as session:
                if together and task == 0:
                    session.run(tokens)
                    sv.start_queue_runners(session, [runner])
                done = 0
                while done < steps:
                    _, done = session.run([train, step])
                ends[task] = session.run(w)
                if task == 0:
                    other.join()

    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        chief, other = (threading.Thread(target=replica, args=(cluster, task)) for task in (0, 1))
        for thread in (chief, other):
            thread.start()
        for thread in (other, chief):
            thread.join(180)
    assert set(ends) == {0, 1}
    for value in ends.values():
        np.testing.assert_allclose(value, [[1.0], [-2.0], [3.0]], atol=0.2)
    assert tf.train.latest_checkpoint(str(tmp_path)) is not None


def test_what_a_checkpoint_lacks_may_get_its_value_from_the_local_init_op(tmp_path):
    """By default nothing is asked before the local init op runs: it may be what initialises the rest of the globals."""
    seen = []
    for _ in range(2):
        with tf.Graph().as_default():
            saved = tf.get_variable("saved", initializer=1.0)
            extra = tf.get_variable("extra", initializer=2.0)
            change = saved.assign(5.0)
            supervisor = tf.train.Supervisor(
                logdir=str(tmp_path), saver=tf.train.Saver([saved]), local_init_op=extra.initializer, summary_op=None,
                save_model_secs=0, save_summaries_secs=0,
            )  # fmt: skip
            assert supervisor.ready_for_local_init_op is None
            with supervisor.managed_session() as session:
                seen.append(session.run([saved, extra]))
                session.run(change)
                supervisor.saver.save(session, supervisor.save_path)
    assert seen == [[1.0, 2.0], [5.0, 2.0]]
