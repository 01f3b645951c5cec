"""Between-graph replication, trained asynchronously: one client per worker, in the process of its server."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

STEPS = 250
SCRIPT = Path(__file__).parent / "scripts" / "between_graph.py"


@pytest.mark.slow
@pytest.mark.parametrize("variables", ["reference", "resource"])
def test_workers_train_the_same_variables_each_at_its_own_pace(variables: str, digits: Any, tmp_path: Path) -> None:
    data = tmp_path / "digits.npz"
    np.savez(data, x=digits.train_x, y=digits.train_y)
    command = [sys.executable, str(SCRIPT), str(data), str(tmp_path), str(STEPS), variables]
    with tf.LocalCluster({"ps": 2, "worker": 2}, programs={"worker": command}) as cluster:
        assert cluster.wait("worker", 45) == [0, 0]
        reports = [json.loads((tmp_path / f"worker{i}.json").read_text()) for i in range(2)]
        after = what_is_left(cluster, digits, resource=variables == "resource")
        pids = [cluster.process("worker", i).pid for i in range(2)]

    # The client and the server of a worker are one process.
    assert [r["pid"] for r in reports] == pids
    # Both built the same graph, so both found the same variables on the same servers, as the chief set them.
    names = ["w1", "b1", "w2", "b2", "stamp", "global_step"]
    round_robin = {name: f"/job:ps/task:{i % 2}" for i, name in enumerate(names)}
    assert [r["devices"] for r in reports] == [round_robin] * 2
    assert [r["stamp"] for r in reports] == [100.0, 100.0]
    # Each computed for itself.
    for i, r in enumerate(reports):
        assert f"/job:worker/replica:0/task:{i}/device:CPU:0" in r["complaint"]
    # All updates arrived, whoever made them, and whoever ended last saw the other's.
    assert after["global_step"] == 2 * STEPS
    assert all(r["steps"] == sorted(r["steps"]) for r in reports)
    assert max(r["steps"][-1] for r in reports) > STEPS
    # It learned.
    assert max(r["losses"][0] for r in reports) > 2  # whoever began first met the chief's start
    assert all(np.mean(r["losses"][-20:]) < 0.6 for r in reports)
    assert after["loss"] < 0.4
    assert after["accuracy"] > 0.9


def what_is_left(cluster: tf.LocalCluster, digits: Any, resource: bool) -> dict[str, float]:
    """Evaluate the model after the workers have gone: a third client, which finds the variables by name."""
    shapes = {"w1": (64, 32), "b1": (32,), "w2": (32, 10), "b2": (10,), "stamp": ()}
    found = {}
    with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec, worker_device="/job:ps/task:1")):
        for name, shape in shapes.items():
            found[name] = tf.Variable(np.zeros(shape, np.float32), name=name, use_resource=resource)
        step = tf.Variable(0, dtype=tf.int64, name="global_step", use_resource=resource)
        hidden = tf.nn.relu(tf.matmul(tf.constant(digits.test_x), found["w1"]) + found["b1"])
        logits = tf.matmul(hidden, found["w2"]) + found["b2"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.constant(digits.test_y), logits=logits)
        right = tf.equal(tf.argmax(logits, 1), tf.constant(digits.test_y))
        wanted = {
            "loss": tf.reduce_mean(losses),
            "accuracy": tf.reduce_mean(tf.cast(right, tf.float32)),
            "global_step": step,
        }
    config = tf.ConfigProto(device_filters=["/job:ps"])
    with tf.Session(cluster.target("ps", 0), config=config) as sess:
        return sess.run(wanted)
