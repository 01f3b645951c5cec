"""Steps that tasks begin again by themselves: what `Session.repeat` asks for, for queue runners."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import dovetail as tf
from dovetail.runtime.rpc.pending_call import PendingReplies
from dovetail.runtime.transport.client_set import Connections
from dovetail.runtime.wire.messages import Message

PATIENT = tf.ConfigProto(peer_timeout_s=120.0)
LONG_S = 120.0  # a bound on what ends on an event


class Relay:
    """A step over two other tasks: what a worker takes out of one queue, a parameter server counts, and puts into another one."""

    def __init__(self, name: str) -> None:
        with tf.device("/job:worker/task:1"):
            self.into = tf.FIFOQueue(100, tf.float32, shapes=[()], shared_name=f"{name}/in")
            taken = self.into.dequeue()
            self.put = self.into.enqueue_many([tf.range(10.0)])
            self.end = self.into.close()
        with tf.device("/job:ps"):
            self.count = tf.get_variable(f"{name}/count", initializer=0)
            self.out = tf.FIFOQueue(100, tf.float32, shapes=[()], shared_name=f"{name}/out")
            with tf.control_dependencies([taken]):
                counted = tf.assign_add(self.count, 1)
            with tf.control_dependencies([counted]):
                self.step = self.out.enqueue(taken * 2.0)
            self.get = self.out.dequeue_many(10)


class Repeating:
    """A thread that repeats a node, and how it ended."""

    def __init__(self, session: tf.Session, node: tf.Operation) -> None:
        self.is_over = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._repeat, args=(session, node), daemon=True)
        self.thread.start()

    def _repeat(self, session: tf.Session, node: tf.Operation) -> None:
        try:
            session.repeat(node, lambda: self.is_over)
        except BaseException as e:
            self.error = e

    def ended(self) -> BaseException | None:
        """The error with which it has ended, if any."""
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()
        return self.error


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks to which this process says that they are to repeat something."""
    tasks: list[str] = []
    send = PendingReplies.send

    def spy(self: PendingReplies, connections: Connections, address: str, message: Message) -> None:
        if message.kind == "run" and message.fields.get("again"):
            tasks.append(self._owing[address])
        send(self, connections, address, message)

    monkeypatch.setattr(PendingReplies, "send", spy)
    return tasks


def test_tasks_begin_again_without_being_told(cluster: tf.LocalCluster, runs: list[str]) -> None:
    relay = Relay("again")
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        session.run(relay.count.initializer)
        repeating = Repeating(session, relay.step)
        for _ in range(3):
            session.run(relay.put)
            np.testing.assert_array_equal(session.run(relay.get), 2 * np.arange(10.0))
        assert session.run(relay.count) == 30
        assert sorted(runs) == ["/job:ps/replica:0/task:0", "/job:worker/replica:0/task:1"]
        repeating.is_over = True
        assert repeating.ended() is None
        until_it_stays(session, relay.count)


def test_an_error_ends_it_everywhere(cluster: tf.LocalCluster) -> None:
    relay = Relay("error")
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        session.run(relay.count.initializer)
        repeating = Repeating(session, relay.step)
        session.run([relay.put])
        session.run(relay.get)
        session.run(relay.end)
        assert isinstance(repeating.ended(), tf.errors.OutOfRangeError)
        assert session.run(relay.count) == 10


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_it_ends_with_its_session(cluster: tf.LocalCluster, how: str) -> None:
    relay = Relay(how)
    session = tf.Session(cluster.target("worker", 0), config=PATIENT)
    session.run(relay.count.initializer)
    repeating = Repeating(session, relay.step)
    session.run(relay.put)
    session.run(relay.get)
    if how == "closed":
        session.close()
    else:
        tf.Session.reset(cluster.target("worker", 0), config=PATIENT)
    error = repeating.ended()
    assert isinstance(error, tf.errors.CancelledError | tf.errors.AbortedError | RuntimeError)
    session.close()


def test_a_step_that_never_waits_lets_others_have_their_turn(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:ps"):
        count = tf.get_variable("busy/count", initializer=0)
        step = tf.group(tf.assign_add(count, 1))
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        session.run(count.initializer)
        repeating = Repeating(session, step)
        while session.run(count) < 1000:
            pass
        repeating.is_over = True
        assert repeating.ended() is None
        until_it_stays(session, count)


def test_a_lost_task_ends_it() -> None:
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        relay = Relay("lost")
        with tf.Session(cluster.target("worker", 0), config=tf.ConfigProto(peer_timeout_s=2.0)) as session:
            session.run(relay.count.initializer)
            repeating = Repeating(session, relay.step)
            session.run(relay.put)
            session.run(relay.get)
            cluster.kill("worker", 1)
            assert isinstance(repeating.ended(), tf.errors.UnavailableError | tf.errors.AbortedError)


def test_here_each_step_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    count = tf.get_variable("here/count", initializer=0)
    step = tf.assign_add(count, 1).op
    with tf.Session() as session:
        session.run(count.initializer)
        session.repeat(step, _after(5))
        assert session.run(count) == 5


def until_it_stays(session: tf.Session, count: tf.Variable) -> None:
    """Wait until nobody counts any more: tasks hear by and by that they are not to begin again."""
    deadline = time.monotonic() + LONG_S
    before, now = -1, session.run(count)
    while now != before:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        before, now = now, session.run(count)


def _after(times: int) -> Callable[[], bool]:
    """False so many times."""
    left = iter([False] * times)
    return lambda: next(left, True)
