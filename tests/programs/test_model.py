"""A model over parameter servers and a worker: parameters there, layers and training here, transfers between.

The weights and biases of the first layer are on ps 0, those of the second on ps 1, all else on worker 7.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dovetail as tf

PS = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
WORKER = "/job:worker/replica:0/task:7/device:"
RATE = 0.5


def build() -> dict[str, Any]:
    start = np.random.default_rng(0)
    with tf.device("/job:ps/task:0"):
        weights_1 = tf.Variable(start.normal(size=(6, 8)).astype(np.float32), name="weights_1")
        biases_1 = tf.Variable(tf.zeros([8]), name="biases_1")
    with tf.device("/job:ps/task:1"):
        weights_2 = tf.Variable(start.normal(size=(8, 3)).astype(np.float32), name="weights_2")
        biases_2 = tf.Variable(tf.zeros([3]), name="biases_2")
    with tf.device("/job:worker/task:7"):
        x = tf.placeholder(tf.float32, [None, 6], name="x")
        labels = tf.placeholder(tf.int64, [None], name="labels")
        layer_1 = tf.nn.relu(tf.matmul(x, weights_1) + biases_1)
        logits = tf.matmul(layer_1, weights_2) + biases_2
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses, name="loss")
        train_op = tf.train.GradientDescentOptimizer(RATE).minimize(loss)
    return {
        "variables": [weights_1, biases_1, weights_2, biases_2],
        "x": x, "labels": labels, "logits": logits, "loss": loss, "train_op": train_op,
    }  # fmt: skip


def by_hand(x: np.ndarray, labels: np.ndarray, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[float, list[np.ndarray]]:
    """The loss, and the parameters after one step of gradient descent, in float64."""
    before = x.astype(np.float64) @ w1 + b1
    hidden = np.maximum(before, 0)
    logits = hidden @ w2 + b2
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    loss = -np.log(p[np.arange(len(x)), labels]).mean()
    d_logits = (p - np.eye(3)[labels]) / len(x)
    d_before = (d_logits @ w2.T) * (before > 0)
    changes = [x.T @ d_before, d_before.sum(axis=0), hidden.T @ d_logits, d_logits.sum(axis=0)]
    return loss, [v - RATE * d for v, d in zip((w1, b1, w2, b2), changes, strict=True)]


@pytest.fixture
def batch() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    return draw.normal(size=(20, 6)).astype(np.float32), draw.integers(3, size=20)


@pytest.mark.parametrize("gpus", [0, 1])
def test_parameters_and_layers_are_where_they_were_put(gpus: int) -> None:
    m = build()
    devices = {"worker": ("cpu:0", "gpu:0") if gpus else ("cpu:0",)}
    plan = tf.place(
        None, {"ps": 2, "worker": 8}, targets=m["train_op"], devices=devices, master="/job:worker/task:7", shared_memory=False
    )  # fmt: skip
    here = WORKER + ("GPU:0" if gpus else "CPU:0")

    assert [plan.placement[v.op.name] for v in m["variables"]] == [PS[0], PS[0], PS[1], PS[1]]
    computed = [n for n in plan.graph.nodes if n.type in ("MatMul", "Relu", "SparseSoftmaxCrossEntropyWithLogits")]
    assert len(computed) >= 2 + 1 + 1 + 3  # forward, and the three products of the backward pass
    assert {plan.placement[n.name] for n in computed} == {here}
    assert plan.placement[m["train_op"].name] == here
    assert set(plan.partitions) == {*PS, here}

    # For the forward pass the parameters go to the worker, each once.
    assert [(c.name, c.source) for c in plan.channels if c.destination == here and not c.control] == [
        ("weights_1/read:0", PS[0]),
        ("biases_1/read:0", PS[0]),
        ("weights_2/read:0", PS[1]),
        ("biases_2/read:0", PS[1]),
    ]
    # The gradients go back, each to the parameter's own server, which applies it.
    updates = [n for n in plan.graph.nodes if n.type == "ApplyGradientDescent"]
    assert [plan.placement[u.name] for u in updates] == [PS[0], PS[0], PS[1], PS[1]]
    for ps in PS:
        back = {c.name: c for c in plan.channels if c.destination == ps}
        assert {c.source for c in back.values()} == {here}
        gradients = [u.inputs[2].name for u in updates if plan.placement[u.name] == ps]
        assert gradients == [name for name in back if name in gradients]
        # Beside them only the learning rate, which was made on the worker.
        assert sorted(back[name].bytes for name in set(back) - set(gradients)) in ([], [4])
    # The step has ended when both servers have: the training op, which only waits for them, takes no message.
    assert not any(c.control for c in plan.channels)


@pytest.mark.slow
def test_one_step_over_three_processes_is_the_step_by_hand(
    start: Callable, addresses: Callable, batch: tuple[np.ndarray, np.ndarray], where_it_runs: Callable
) -> None:
    """Worker 7 is this process; the job has no other task. The ps tasks are processes of their own."""
    *ps, worker = addresses(3)
    jobs = {"ps": ps, "worker": {7: worker}}
    for i in range(2):
        start("server.py", "ps", str(i), json.dumps(jobs))
    m = build()
    feed = {m["x"]: batch[0], m["labels"]: batch[1]}
    with (
        tf.train.Server(tf.train.ClusterSpec(jobs), job_name="worker", task_index=7) as server,
        tf.Session(server.target) as sess,
    ):
        for v, device in zip(m["variables"], [PS[0], PS[0], PS[1], PS[1]], strict=True):
            assert where_it_runs(sess, v) == device  # there is no value yet
        sess.run(tf.global_variables_initializer())
        assert where_it_runs(sess, m["loss"], {m["x"]: batch[0], m["labels"]: batch[1][:3]}) == WORKER + "CPU:0"

        expected_loss, expected = by_hand(*batch, *[v.astype(np.float64) for v in sess.run(m["variables"])])
        loss, _ = sess.run([m["loss"], m["train_op"]], feed)
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        for got, wanted in zip(sess.run(m["variables"]), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)

        for _ in range(60):
            sess.run(m["train_op"], feed)
        assert sess.run(m["loss"], feed) < 0.5 * loss
