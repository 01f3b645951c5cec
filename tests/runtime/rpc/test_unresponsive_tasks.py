"""A task whose interpreter is held by a kernel: it does not answer, and is not dead."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from echoing import WAIT_S, Connection, ping, until

import dovetail as tf
from dovetail.runtime.rpc.failure_detection import AwaitedTensors, LossDetector
from dovetail.runtime.rpc.pending_call import PendingReplies, Server
from dovetail.runtime.transport.client import Connections
from dovetail.runtime.transport.endpoint import Endpoint
from dovetail.runtime.transport.fault_injection import break_connections

HOLDER = """
import ctypes, json, os, pathlib, sys, threading, time
import dovetail as tf
spec = json.loads(os.environ["TF_CONFIG"])
server = tf.train.Server(spec["cluster"], spec["task"]["type"], spec["task"]["index"])
order = pathlib.Path(sys.argv[1])
while True:
    time.sleep(0.01)
    if order.exists():
        seconds = int(order.read_text())
        order.rename(order.with_suffix(".taken"))
        ctypes.PyDLL(None).sleep(seconds)  # as a kernel that is one long call of C
"""


class Holder:
    """Two tasks; of one, the interpreter can be held."""

    def __init__(self, folder: Path) -> None:
        self.order = folder / "order"
        program = [sys.executable, "-c", HOLDER, str(self.order)]
        self.cluster = tf.LocalCluster({"a": 1, "held": 1}, programs={"held": program})

    def hold(self, seconds: int) -> None:
        self.order.with_suffix(".new").write_text(str(seconds))
        self.order.with_suffix(".new").rename(self.order)
        until(self.order.with_suffix(".taken").exists, "the interpreter is held")
        self.order.with_suffix(".taken").unlink()


@pytest.fixture(scope="module")
def holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holder]:
    made = Holder(tmp_path_factory.mktemp("holder"))
    with made.cluster:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("master", ["a", "held"])
def test_a_task_that_cannot_answer_is_waited_for(holder: Holder, master: str) -> None:
    """By clients, old and new, and by a task that waits for its tensors."""
    with tf.device("/job:held"):
        x = tf.random_uniform([50_000])
    with tf.device("/job:a"):
        y = tf.reduce_sum(x) * 0.0 + 7.0
    config = tf.ConfigProto(peer_timeout_s=1.0)
    with tf.Session(holder.cluster.target(master), config=config) as session:
        assert session.run(y) == 7.0
        holder.hold(4)
        assert session.run(y) == 7.0
        holder.hold(3)
        with tf.Session(holder.cluster.target(master), config=config) as another:
            assert another.run(y) == 7.0


@pytest.mark.slow
def test_a_deadline_ends_the_wait_for_it_on_time(holder: Holder) -> None:
    with tf.device("/job:held"):
        x = tf.random_uniform([])
    with tf.Session(holder.cluster.target("a"), config=tf.ConfigProto(peer_timeout_s=1.0)) as session:
        session.run(x)
        holder.hold(8)
        began = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError, match="/job:held"):
            session.run(x, options=tf.RunOptions(timeout_in_ms=2_000))
        assert time.monotonic() - began < 6.0
    time.sleep(max(0.0, began + 8.5 - time.monotonic()))  # the next test finds it free


@pytest.mark.slow
def test_one_that_is_stopped_meanwhile_is_dead(holder: Holder) -> None:
    with tf.device("/job:held"):
        x = tf.random_uniform([])
    pid = holder.cluster.process("held", 0).pid
    with tf.Session(holder.cluster.target("a"), config=tf.ConfigProto(peer_timeout_s=1.0)) as session:
        session.run(x)
        holder.hold(2)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(tf.errors.UnavailableError, match="/job:held"):
                session.run(x)
        finally:
            os.kill(pid, signal.SIGCONT)


class Standing(Connections):
    """A connection that stands, until a moment, and on which nothing comes."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until

    def lives(self, address: str, since: float) -> bool:
        return time.monotonic() < self.until


def test_a_silent_task_is_dead_when_its_connection_has_ended() -> None:
    with Standing(time.monotonic() + 0.8) as connections:
        wait, began = PendingReplies({"localhost:9": Server("it")}, 0.2, None, "call"), time.monotonic()
        with pytest.raises(tf.errors.UnavailableError, match="it at localhost:9 has not answered"):
            while True:
                wait.messages(connections)
        assert time.monotonic() - began >= 0.7


def test_a_task_waits_for_tensors_of_one_that_lives() -> None:
    overdue, waits = LossDetector(), {7: AwaitedTensors(2.0, {"b": [1]})}
    for second in range(9):
        _, lost = overdue.look(float(second), waits, lambda task, since, now=second: since == 0.0 and now < 8)
        assert bool(lost) == (second == 8)


def test_a_task_that_lives_and_does_not_know_the_step_is_not_waited_for() -> None:
    overdue, waits = LossDetector(), {7: AwaitedTensors(2.0, {"b": [1]})}
    overdue.look(0.0, waits)
    assert overdue.look(1.0, waits)[0]
    overdue.coming(1.1, 7, "b", False, [], 0, waits[7])
    assert overdue.look(3.0, waits, lambda task, since: True)[1]


def test_a_connection_that_was_made_again_proves_nothing(echo: Endpoint, client: Connection) -> None:
    before = time.monotonic() - 60.0
    until(lambda: client.all.lives(client.address, before), "the connection is made")
    break_connections()
    until(lambda: not client.all.lives(client.address, before), "it is broken")
    until(lambda: client.all.lives(client.address, time.monotonic()), "it is made again")
    assert not client.all.lives(client.address, before)
    client.close()
    assert not client.all.lives(client.address, time.monotonic())


def test_an_in_process_step_ends_on_time_while_its_kernel_goes_on() -> None:
    slow = tf.py_func(lambda: (time.sleep(1.5), np.float32(1.0))[1], [], tf.float32)
    with tf.Session() as session:
        began = time.monotonic()
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(slow, options=tf.RunOptions(timeout_in_ms=100))
        assert time.monotonic() - began < 1.2
        assert session.run(tf.constant(2.0) * 1.0) == 2.0


def test_distinct_texts_are_found_while_other_threads_run() -> None:
    x = tf.placeholder(tf.string, [None])
    texts = np.array([b"%d" % (i % 300_000) for i in range(600_000)], object)
    turns, done = [], threading.Event()

    def count() -> None:
        while not done.wait(0.001):
            turns.append(time.monotonic())

    counter = threading.Thread(target=count)
    counter.start()
    with tf.Session() as session:
        y, index, counts = session.run(tf.unique_with_counts(x), {x: texts})
    done.set()
    counter.join()
    assert len(y) == 300_000 and (index == np.arange(600_000) % 300_000).all() and (counts == 2).all()
    assert len(turns) > 5


def test_a_connection_that_is_forgotten_open_blocks_no_other(echo: Endpoint, client: Connection) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(20):
            lost = Connection(echo.address)
            until(lambda lost=lost: lost.all.lives(lost.address, time.monotonic()), "the connection is made")
            del lost
            gc.collect()
    client.send(ping(7))
    answer = client.recv(WAIT_S)
    assert answer is not None and answer.fields == {"seq": 7}
