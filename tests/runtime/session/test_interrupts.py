"""Ctrl-C while a step runs: it ends at once, on all tasks, and the session can be used again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import dovetail as tf
from dovetail.runtime.server.running_cluster import ClusterMonitor
from dovetail.runtime.session.local_backend import LocalBackend

WAIT_S = 60.0
pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="only the main thread hears Ctrl-C"
)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(params=["in this process", "own server", "cluster"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[tf.Session, Callable[[], int]]]:
    """A session, and how many steps run where it runs them."""
    with ExitStack() as stack:
        if request.param == "in this process":
            session = stack.enter_context(tf.Session())
            target = session._backend
            assert isinstance(target, LocalBackend)
            yield session, lambda: len(target._worker.running())
            return
        if request.param == "own server":
            server = stack.enter_context(tf.train.Server.create_local_server())
            yield stack.enter_context(tf.Session(server.target)), lambda: len(server._worker.running())
            return
        cluster = request.getfixturevalue("cluster")
        observer = stack.enter_context(ClusterMonitor(cluster.target("worker", 0).removeprefix("zmq://")))

        def running() -> int:
            return sum(view.figures["steps_running"] for view in observer.look() if view.figures)

        yield stack.enter_context(tf.Session(cluster.target("worker", 0))), running


def loop() -> tf.Tensor:
    return tf.while_loop(lambda i: i >= 0, lambda i: tf.minimum(i + 1, 5), [tf.constant(0)])


def wait() -> tf.Tensor:
    return tf.FIFOQueue(3, tf.int32, shapes=[()]).dequeue()


def walk() -> tf.Tensor:
    found: tf.Tensor = tf.data.Dataset.range(10).repeat().reduce(0, lambda total, n: total + 1)
    return found


@pytest.mark.parametrize("endless", [loop, wait, walk])
def test_ctrl_c_ends_a_step_everywhere_and_the_session_goes_on(
    endless: Callable[[], tf.Tensor], place: tuple[tf.Session, Callable[[], int]]
) -> None:
    session, running = place
    number = tf.placeholder(tf.int32, [])
    again, what = number + 1, endless()
    assert session.run(again, {number: 1}) == 2

    def interrupt() -> None:
        until(lambda: running() > 0)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        session.run(what)
    thread.join(WAIT_S)
    assert session.run(again, {number: 2}) == 3
    until(lambda: running() == 0)
