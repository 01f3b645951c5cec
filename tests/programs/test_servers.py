"""Servers that a user starts himself: one alone, and two that form a cluster."""

import json
import signal
from collections.abc import Callable

import pytest

import dovetail as tf


def test_a_local_server_prints_a_constant(start: Callable) -> None:
    out, err = start("hello.py").communicate(timeout=30)
    target, text, number = out.splitlines()
    assert target.startswith("target: zmq://localhost:")
    assert (text, number, err) == ("b'Hello, Dovetail!'", "42", "")


def test_a_local_server_is_the_only_task_of_its_job() -> None:
    with tf.train.Server.create_local_server() as server, tf.Session(server.target) as sess:
        assert [str(d.name) for d in sess.list_devices()] == ["/job:local/replica:0/task:0/device:CPU:0"]
        with tf.device("/job:local/task:0"):
            total = tf.constant([1, 2, 3]) + 4
        assert sess.run(total).tolist() == [5, 6, 7]


@pytest.fixture
def two_servers(start: Callable, addresses: Callable) -> list[str]:
    """The targets of two servers in two processes, each built from the same cluster."""
    hosts = addresses(2)
    servers = [start("server.py", "local", str(i), json.dumps({"local": hosts})) for i in range(2)]
    targets = [s.stdout.readline().split()[1] for s in servers]
    assert targets == [f"zmq://{host}" for host in hosts]
    return targets


def test_a_client_runs_ops_on_both_servers(two_servers: list[str], where_it_runs: Callable) -> None:
    x = tf.placeholder(tf.float32)
    with tf.device("/job:local/task:0"):
        on_first = x * [1.0, 2.0]
    with tf.device("/job:local/task:1"):
        on_second = on_first + [10.0, 20.0]
    with tf.device("/job:local/task:0"):
        back = on_second - 1.0
    unpinned = x * [3.0, 3.0]

    # Every server is a master, and every server works for the other one's sessions.
    for i, target in enumerate(two_servers):
        with tf.Session(target) as sess:
            assert [d.name.task for d in sess.list_devices()] == [i, 1 - i]
            assert sess.run(back, {x: 1.0}).tolist() == [10.0, 21.0]
            wrong = {x: [1.0, 2.0, 3.0]}
            assert where_it_runs(sess, on_first, wrong) == "/job:local/replica:0/task:0/device:CPU:0"
            assert where_it_runs(sess, on_second, {on_first: wrong[x]}) == "/job:local/replica:0/task:1/device:CPU:0"
            assert where_it_runs(sess, unpinned, wrong) == f"/job:local/replica:0/task:{i}/device:CPU:0"


@pytest.mark.slow
def test_servers_wait_for_each_other(start: Callable, addresses: Callable) -> None:
    """A session may be made before the other server has been started: it waits."""
    hosts = addresses(2)
    first = start("server.py", "local", "0", json.dumps({"local": hosts}))
    target = first.stdout.readline().split()[1]
    with pytest.raises(tf.errors.UnavailableError, match="/job:local/replica:0/task:1"):
        tf.Session(target, config=tf.ConfigProto(wait_for_cluster_s=0.2))
    start("server.py", "local", "1", json.dumps({"local": hosts}))
    with tf.device("/job:local/task:1"):
        there = tf.constant(5.0)
    with tf.Session(target, config=tf.ConfigProto(wait_for_cluster_s=20)) as sess:
        assert sess.run(there) == 5.0


def test_ctrl_c_ends_a_server_that_joins(start: Callable, addresses: Callable) -> None:
    server = start("server.py", "local", "0", json.dumps({"local": addresses(1)}))
    server.stdout.readline()
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=10)
    assert server.returncode != 0  # a script that was interrupted did not succeed
