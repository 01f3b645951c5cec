"""In-graph replication: one client, one graph, one set of parameters, one copy of the model per worker."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

WORKERS = 3
RATE = 0.1


def worker(i: int) -> str:
    return f"/job:worker/replica:0/task:{i}/device:CPU:0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[tf.LocalCluster]:
    with tf.LocalCluster({"ps": 1, "worker": WORKERS}) as started:
        yield started


def build(synchronous: bool) -> dict[str, Any]:
    """Softmax regression. Each copy has inputs, a loss and gradients of its own.

    Synchronous: one training op applies the mean of all gradients. Else each copy has its own.
    """
    with tf.device("/job:ps/task:0"):
        weights = tf.Variable(tf.zeros([64, 10]), name="weights")
        biases = tf.Variable(tf.zeros([10]), name="biases")
        steps = tf.train.get_or_create_global_step()
        optimizer = tf.train.GradientDescentOptimizer(RATE)
    inputs, losses, gradients = [], [], []
    for i in range(WORKERS):
        with tf.device(f"/job:worker/task:{i}"), tf.name_scope(f"copy_{i}"):
            x = tf.placeholder(tf.float32, [None, 64], name="x")
            y = tf.placeholder(tf.int64, [None], name="y")
            logits = tf.matmul(x, weights) + biases
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits), name="loss")
            inputs.append((x, y))
            losses.append(loss)
            gradients.append(optimizer.compute_gradients(loss, [weights, biases]))
    with tf.device("/job:ps/task:0"):
        if synchronous:
            means = [(tf.add_n([g for g, _ in pair]) / WORKERS, pair[0][1]) for pair in zip(*gradients, strict=True)]
            train = [optimizer.apply_gradients(means, global_step=steps)]
        else:
            train = [optimizer.apply_gradients(pairs, global_step=steps) for pairs in gradients]
    return {
        "variables": [weights, biases],
        "steps": steps,
        "inputs": inputs,
        "losses": losses,
        "train": train,
    }


def test_parameters_once_and_computation_once_per_worker() -> None:
    m = build(synchronous=True)
    plan = tf.place(None, {"ps": 1, "worker": WORKERS}, targets=m["train"], fetches=m["losses"])
    ps = "/job:ps/replica:0/task:0/device:CPU:0"
    assert {plan.placement[v.op.name] for v in m["variables"]} == {ps}
    for i in range(WORKERS):
        own = {n.name for n in plan.partitions[worker(i)].nodes}
        assert f"copy_{i}/MatMul" in own
        assert not any(name.startswith(f"copy_{other}/") for name in own for other in range(WORKERS) if other != i)
        arrives = [c.name for c in plan.channels if c.destination == worker(i) and not c.control]
        assert arrives == ["weights/read:0", "biases/read:0"]  # the one set of parameters, each once
        leaves = [c for c in plan.channels if c.source == worker(i) and not c.control]
        assert [c.destination for c in leaves] == [ps, ps]  # one gradient for each
        assert sorted(c.bytes for c in leaves) == [40, 64 * 40]


def test_averaged_gradients_are_the_gradient_of_all_data(
    cluster: tf.LocalCluster, digits: Any, where_it_runs: Callable
) -> None:
    """Three copies on a third of a batch each make exactly the step that one copy makes on all of it."""
    m = build(synchronous=True)
    x, y = digits.train_x[:300], digits.train_y[:300]
    parts = list(zip(np.split(x, WORKERS), np.split(y, WORKERS), strict=True))
    feed = {
        t: v for tensors, values in zip(m["inputs"], parts, strict=True) for t, v in zip(tensors, values, strict=True)
    }
    with tf.Session(cluster.target("worker", 0)) as sess:
        sess.run(tf.global_variables_initializer())
        for i, (tensors, loss) in enumerate(zip(m["inputs"], m["losses"], strict=True)):
            assert where_it_runs(sess, loss, {tensors[0]: x[:3], tensors[1]: y[:2]}) == worker(i)

        weights, biases = np.zeros((64, 10)), np.zeros(10)
        for step in range(1, 6):
            p = np.exp(x @ weights + biases)
            p /= p.sum(axis=1, keepdims=True)
            d = (p - np.eye(10)[y]) / len(x)
            weights, biases = weights - RATE * x.T @ d, biases - RATE * d.sum(axis=0)
            sess.run(m["train"], feed)
            got = sess.run(m["variables"])
            np.testing.assert_allclose(got[0], weights, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got[1], biases, rtol=1e-4, atol=1e-6)
            assert sess.run(m["steps"]) == step


def test_each_copy_trains_by_itself_from_its_own_thread(cluster: tf.LocalCluster, digits: Any) -> None:
    """Asynchronous: one client with a thread per copy; no copy waits for another."""
    m = build(synchronous=False)
    rounds = 200
    failures: list[BaseException] = []

    def loop(i: int) -> None:
        draw = np.random.default_rng(i)
        x, y = m["inputs"][i]
        try:
            for _ in range(rounds):
                rows = draw.choice(len(digits.train_x), 64)
                sess.run(m["train"][i], {x: digits.train_x[rows], y: digits.train_y[rows]})
        except BaseException as e:
            failures.append(e)

    with tf.Session(cluster.target("worker", 0)) as sess:
        sess.run(tf.global_variables_initializer())
        x, y = m["inputs"][0]
        test = {x: digits.test_x, y: digits.test_y}
        assert sess.run(m["losses"][0], test) == pytest.approx(np.log(10), rel=1e-5)  # it knows nothing yet
        threads = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(WORKERS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(40)
        assert not failures
        assert not any(t.is_alive() for t in threads)
        assert sess.run(m["steps"]) == WORKERS * rounds  # no update was lost
        assert sess.run(m["losses"][0], test) < 0.45
