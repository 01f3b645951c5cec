"""`SyncReplicasOptimizer` in this process: who waits for whom, what is dropped, where its nodes are, what it refuses.

That several processes train as one with their batches together is tested in tests/programs/test_training.py.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def build(count: int, total: int | None = None, **more: Any):
    """Gradient descent with rate 1 on a weight whose gradient is fed."""
    g = tf.placeholder(tf.float32, [2])
    w = tf.get_variable("w", initializer=[0.0, 0.0])
    step = tf.train.get_or_create_global_step()
    opt = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), count, total, **more)
    return g, w, step, opt, opt.apply_gradients([(g, w)], global_step=step)


def test_an_update_is_the_mean_of_enough_gradients():
    g, w, step, opt, train_op = build(2)
    hook = opt.make_session_run_hook(is_chief=True, num_tokens=0)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        raw = session._live.session
        threads = [threading.Thread(target=raw.run, args=(train_op, {g: v})) for v in ([1.0, 2.0], [3.0, 6.0])]
        threads[0].start()
        threads[0].join(0.2)
        assert threads[0].is_alive()  # it waits for the other one's gradient
        assert raw.run([w, step])[1] == 0
        threads[1].start()
        for t in threads:
            t.join(10)
        value, at = raw.run([w, step])
        np.testing.assert_allclose(value, [-2, -4])
        assert at == 1


def test_a_replica_may_give_several_gradients_per_update():
    g, w, step, opt, train_op = build(3, 1)
    hook = opt.make_session_run_hook(is_chief=True)  # three tokens at the start
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        for k in range(3):
            session.run(train_op, {g: [float(k), 0.0]})
        while session.run(step) < 1:
            pass
        np.testing.assert_allclose(session.run(w), [-1, 0])


def test_stale_gradients_are_dropped():
    g, w, step, opt, train_op = build(1, 2)  # one backup replica
    hook = opt.make_session_run_hook(is_chief=True, num_tokens=0)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op, {g: [1.0, 1.0]})
        local = tf.local_variables()[0]
        assert session.run([local, step]) == [1, 1]
        session.run(local.initializer)  # as a replica that has slept since step 0
        session.run(train_op, {g: [100.0, 100.0]})  # gets its token: the other one of the first update
        np.testing.assert_allclose(session.run(w), [-1, -1])


def test_sparse_gradients_are_averaged_by_rows():
    table = tf.get_variable("table", initializer=np.zeros((4, 1), "f4"))
    rows = tf.placeholder(tf.int64, [None])
    step = tf.train.get_or_create_global_step()
    opt = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 2)
    grad = tf.IndexedSlices(tf.ones([tf.size(rows), 1]), rows, tf.constant([4, 1]))
    train_op = opt.apply_gradients([(grad, table)], global_step=step)
    with tf.train.MonitoredSession(hooks=[opt.make_session_run_hook(True)]) as session:
        session.run(train_op, {rows: [0, 2]})
        session.run(train_op, {rows: [2, 3]})
        while session.run(step) < 1:
            pass
        np.testing.assert_allclose(session.run(table)[:, 0], [-1, 0, -1, -1])


def test_nodes_stand_where_they_belong(graph):
    with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:3")):
        _, w, step, opt, train_op = build(2)
    v = tf.local_variables()[0]
    assert (v.op.name, v.device) == ("sync_rep_local_step", "/job:worker/task:3")
    kinds = {n.type: n.device for n in graph.get_operations()}
    assert step.device == "/job:ps/task:1"
    assert kinds["FIFOQueueV2"].startswith(step.device)  # (on a CPU: nothing else holds queues)
    gradients, in_line = [n for n in graph.get_operations() if n.type == "ResourceConditionalAccumulator"]
    assert gradients.attrs["shared_name"] == "w:0/grad_accum" and gradients.device == w.device == "/job:ps/task:0"
    assert in_line.attrs["shared_name"] == "sync_token_q/in_line" and in_line.device.startswith(step.device)
    assert opt.get_slot_names() == [] and opt.variables() == []


def test_its_variables_are_called_as_without_it(graph):
    v = tf.get_variable("v", initializer=1.0)
    step = tf.train.get_or_create_global_step()
    opt = tf.train.SyncReplicasOptimizer(tf.train.AdamOptimizer(), 2)
    opt.minimize(v * 2.0, global_step=step)
    names = {u.op.name for u in tf.global_variables()}
    assert names == {"v", "global_step", "v/Adam", "v/Adam_1", "beta1_power", "beta2_power"}


def test_averages_are_moved_after_each_update():
    average = tf.train.ExponentialMovingAverage(0.5)
    w = tf.get_variable("w", initializer=[0.0, 0.0])
    step = tf.train.get_or_create_global_step()
    opt = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(1.0), 1, variable_averages=average, variables_to_average=[w]
    )
    train_op = opt.apply_gradients([(tf.constant([2.0, 4.0]), w)], global_step=step)
    hook = opt.make_session_run_hook(True, num_tokens=0)
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(train_op)
        while (found := session.run(average.average(w)))[0] == 0:
            pass
        np.testing.assert_allclose(found, [-1, -2])


def test_what_is_refused():
    opt = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 4, 2)
    step = tf.train.get_or_create_global_step()
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match="at least one variable"):
        opt.apply_gradients([], global_step=step)
    with pytest.raises(ValueError, match="Global step is required"):
        opt.apply_gradients([(tf.constant(1.0), w)])
    with pytest.raises(ValueError, match="Unknown grad type"):
        opt.apply_gradients([(1.0, w)], global_step=step)
    with pytest.raises(ValueError, match="after apply_gradients"):
        opt.get_chief_queue_runner()
    with pytest.raises(ValueError, match="after apply_gradients"):
        opt.get_init_tokens_op()
    with pytest.raises(ValueError, match="apply_gradient should be called"):
        opt.make_session_run_hook(True).begin()
    opt.apply_gradients([(tf.constant(1.0), w), (None, tf.Variable(2.0))], global_step=step)
    with pytest.raises(ValueError, match=r"Too few tokens to finish the first step: 1 \(given\) vs 2 \(needed\)"):
        opt.get_init_tokens_op(1)
