"""How values cross, as `GraphOptions` say: as bfloat16, and not long before they are needed. With real processes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.runtime.config import ConfigProto
from dovetail.runtime.master.lowering import lower_partitions
from dovetail.runtime.worker.registration import pack_partitions, unpack_partitions

PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def config(**options: bool) -> tf.ConfigProto:
    return tf.ConfigProto(isolate_session_state=True, graph_options=tf.GraphOptions(**options))


def rounded(x: Any) -> np.ndarray:
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def test_both_are_off_unless_asked_for() -> None:
    options = tf.ConfigProto().graph_options
    assert not options.enable_bfloat16_sendrecv and not options.enable_recv_scheduling
    sent = config(enable_bfloat16_sendrecv=True, enable_recv_scheduling=True).to_fields()
    options = ConfigProto.from_fields(sent).graph_options
    assert options.enable_bfloat16_sendrecv and options.enable_recv_scheduling


@pytest.mark.parametrize("target", ["local", "cluster"])
def test_float32_crosses_as_bfloat16(cluster: tf.LocalCluster, target: str) -> None:
    """Float32 is rounded once per crossing, to the nearest; all else, and what stays, is not."""
    there, here = (PS, WORKER) if target == "cluster" else ("/cpu:1", "/cpu:0")
    values = np.array([1 / 3, -1e-30, 3e38, 1 + 2**-9, np.inf, np.nan, 0.0], np.float32)
    with tf.device(there):
        x, wide = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float64, [None])
        made, made_wide = x * 1.0, wide * 1.0
        v = tf.Variable(values, name="v", use_resource=False)
        r = tf.Variable(values, name="r", use_resource=True)
    with tf.device(here):
        taken = [tf.identity(made), tf.identity(made_wide), tf.identity(v), tf.identity(r), tf.identity(x)]
    options = config(enable_bfloat16_sendrecv=True)
    options.device_count = {"CPU": 2}
    with tf.Session(cluster.target("worker") if target == "cluster" else "", config=options) as session:
        session.run(tf.global_variables_initializer())
        feeds = {x: values, wide: values.astype(np.float64)}
        one, two, three, four, fed, stayed = session.run([*taken, made], feeds)
        sizes = {c.name: (c.dtype.name, c.bytes) for c in session.plan([*taken]).channels if c.dtype is not None}
    for found in (one, three, four):
        np.testing.assert_array_equal(found, rounded(values))
        assert found.dtype == np.float32
    for found in (two, fed, stayed):
        np.testing.assert_array_equal(found, values)
    assert sizes["v/read:0"] == ("bfloat16", 14) and sizes[made_wide.name][0] == "float64"


def test_training_with_bfloat16_between_tasks(cluster: tf.LocalCluster) -> None:
    """Gradients and weights cross every step: the loss goes where it goes without rounding, nearly."""
    draw = np.random.default_rng(1)
    xs = draw.normal(size=(64, 5)).astype("float32")
    ys = xs @ np.arange(5, dtype="float32")
    with tf.device(PS):
        w = tf.Variable(np.zeros(5, "float32"), name="w")
    with tf.device(WORKER):
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(tf.constant(xs) * w, 1) - tf.constant(ys)))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    with tf.Session(cluster.target("worker"), config=config(enable_bfloat16_sendrecv=True)) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(60):
            session.run(train)
        np.testing.assert_allclose(session.run(w), np.arange(5), atol=0.03)


def test_in_loops_and_branches_values_cross_as_bfloat16_too(cluster: tf.LocalCluster) -> None:
    third = np.float32(1 / 3)

    def body(i: Any, x: Any) -> Any:
        with tf.device(PS):
            y = x * 1.0
        return i + 1, y + third

    with tf.device(WORKER):
        _, x = tf.while_loop(lambda i, x: i < 3, body, [0, third])
        use = tf.placeholder(tf.bool, [])

        def far(value: Any) -> Any:
            with tf.device(PS):
                return value * 2.0

        chosen = tf.cond(use, lambda: far(x), lambda: x)
    expected = third
    for _ in range(3):
        expected = rounded(expected) + third
    with tf.Session(cluster.target("worker"), config=config(enable_bfloat16_sendrecv=True)) as session:
        assert session.run(x) == np.float32(expected)
        assert session.run(chosen, {use: False}) == np.float32(expected)  # what is dead crosses, too
        assert session.run(chosen, {use: True}) == rounded(rounded(expected) * 2)


def test_a_message_cannot_ask_for_another_cast() -> None:
    with tf.device("/job:ps"):
        x = tf.constant([1.0]) * 2.0
    with tf.device("/job:worker"):
        y = x * 2.0
    plan = tf.place(None, {"ps": 1, "worker": 1}, fetches=y, enable_bfloat16_sendrecv=True)
    packed = pack_partitions(lower_partitions(plan.partitioned, plan.graph))
    assert any(getattr(s, "travels_as", None) is tf.bfloat16 for u in unpack_partitions(packed) for s in u.steps)
    for other in (b"float16\x00", b"bfloat17"):
        with pytest.raises(InvalidArgumentError, match="Malformed partition"):
            unpack_partitions(packed.replace(b"bfloat16", other))


def test_scheduled_receives_change_no_number(cluster: tf.LocalCluster) -> None:
    """The ps makes all values at once, and the worker uses them slowly, one by one."""
    with tf.device(PS):
        x = tf.placeholder(tf.float32, [])
        made = [x * float(i) for i in range(40)]
    with tf.device(WORKER):
        total = tf.constant(0.0)
        for m in made:
            total = tf.tanh(total) + m
    with tf.Session(cluster.target("worker"), config=config(enable_recv_scheduling=True)) as session:
        paced, plan = session.run(total, {x: 0.5}), session.last_plan
    with tf.Session(cluster.target("worker"), config=config()) as session:
        assert session.run(total, {x: 0.5}) == paced
        assert not any(c.paces for c in session.last_plan.channels)
    assert plan is not None and sum(c.paces for c in plan.channels) > 10
    assert "as the pace" not in plan.explain(made[0])
