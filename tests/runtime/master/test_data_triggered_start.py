"""Parts of a step that are started by the tensors that come to them: see `runtime/master/lowering.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_graphs import placed_graphs

import dovetail as tf
from dovetail.placer.partition.one_sided_reads import direct_reads, read_directly
from dovetail.placer.partition.partition import partition
from dovetail.placer.partition.partitioned_graph import Channel, task_of
from dovetail.placer.partition.prune import needed
from dovetail.runtime.master.lowering import data_triggered, triggered_by
from dovetail.runtime.rpc.liveness import ClientRegistry
from dovetail.runtime.rpc.pending_call import PendingReplies
from dovetail.runtime.timeouts import FORGET_S, RECHECK_S
from dovetail.runtime.transport.client_set import Connections
from dovetail.runtime.wire.messages import Message

A, B, C = (f"/job:{job}/replica:0/task:0" for job in "abc")


def on(job: str) -> Any:
    return tf.device(f"/job:{job}/replica:0/task:0/device:CPU:0")


def chain() -> list[tf.Tensor]:
    with on("a"):
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        y = x + 1.0
    with on("c"):
        return [y * 2.0]


def there_and_back() -> list[tf.Tensor]:
    x = chain()[0]
    with on("a"):
        return [tf.negative(x)]


def work_of_its_own() -> list[tf.Tensor]:
    with on("a"):
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        y = tf.random_uniform([]) + 1.0
        return [x + y]


def update() -> list[tf.Tensor]:
    with on("b"):
        v = tf.Variable(0.0, use_resource=False)
    with on("a"):
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        return [v.assign_add(x * tf.constant(0.5))]


def enqueued() -> list[tf.Tensor]:
    with on("a"):
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        queue = tf.FIFOQueue(10, tf.float32, shapes=[()])
        with tf.control_dependencies([queue.enqueue(x)]):
            return [queue.size()]


def one_task() -> list[tf.Tensor]:
    with on("a"):
        return [tf.square(tf.random_uniform([]))]


@pytest.mark.parametrize(
    ("program", "started"),
    [
        (chain, {B, C}),
        (there_and_back, {B, C}),
        (work_of_its_own, set()),
        (update, {B}),
        (enqueued, {B}),
        (one_task, set()),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_who_can_do_nothing_before_something_comes_is_started_by_it(
    program: Callable[[], list[tf.Tensor]], started: set[str]
) -> None:
    fetches = program()
    cut = partition(needed(tf.get_default_graph(), fetches), lambda n: n.device, fetches=fetches)
    assert set(data_triggered(cut)) == started


def test_who_is_fed_is_told_by_the_client() -> None:
    with on("a"):
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        z = tf.placeholder(tf.float32, [])
        y = x + z
    nodes = needed(tf.get_default_graph(), [y], feeds=[z])
    assert data_triggered(partition(nodes, lambda n: n.device, fetches=[y], feeds=[z])) == ()


def test_who_reads_variables_first_is_started_by_what_comes_all_the_same() -> None:
    with on("a"):
        v = tf.Variable(1.0, use_resource=False)
        x = tf.square(tf.random_uniform([]))
    with on("b"):
        y = tf.multiply(v, x)
    with on("c"):
        z = v + 1.0  # this one takes nothing else
    nodes = needed(tf.get_default_graph(), [y, z])
    cut = partition(nodes, lambda n: n.device, fetches=[y, z])
    reads = direct_reads(cut, nodes, (), 1024)
    assert {task_of(r.channel.destination) for r in reads} == {B, C}
    assert data_triggered(read_directly(cut, reads, (), {})) == (B,)


def test_those_who_send_something_start_it() -> None:
    fetches = there_and_back()
    cut = partition(needed(tf.get_default_graph(), fetches), lambda n: n.device, fetches=fetches)
    assert [triggered_by(cut, task, data_triggered(cut)) for task in (A, B, C)] == [(B,), (C,), ()]


@settings(max_examples=60, deadline=None)
@given(placed_graphs(flow=True))
def test_what_tensors_start_is_started_in_any_graph(asked: Any) -> None:
    graph, fetches, targets, feeds = asked
    cut = partition(needed(graph, fetches, targets, feeds), lambda n: n.device, fetches=fetches, feeds=feeds)
    steps = {device: [s for s in p.steps if isinstance(s[1], Channel)] for device, p in cut.partitions.items()}
    running = {task_of(device) for device in steps} - set(data_triggered(cut))
    sent: set[int] = set()
    at = dict.fromkeys(steps, 0)
    moved = True
    while moved:
        moved = False
        for device, todo in steps.items():
            while task_of(device) in running and at[device] < len(todo):
                kind, channel = todo[at[device]]
                assert isinstance(channel, Channel)
                if kind == "recv" and channel.id not in sent:
                    break
                if kind == "send":
                    sent.add(channel.id)
                    other = task_of(channel.destination)
                    if other in triggered_by(cut, task_of(device), data_triggered(cut)):
                        running.add(other)
                at[device] += 1
                moved = True
    assert running == {task_of(device) for device in steps}
    assert at == {device: len(todo) for device, todo in steps.items()}


def test_a_connection_on_which_nothing_was_heard_may_be_gone() -> None:
    gone = {b"b"}
    callers = ClientRegistry(gone.__contains__)
    a, b = callers.heard(b"a", 1, 0.0), callers.heard(b"b", 2, 0.0)
    assert callers.find(1, 5.0) is a
    assert callers.find(2, RECHECK_S / 2) is b  # it was heard a moment ago
    assert callers.find(2, RECHECK_S) is None
    assert callers.find(3, 0.0) is None
    gone.add(b"a")
    callers.tidy(5.0, ())
    assert callers.find(1, 5.0 + RECHECK_S / 2) is a
    callers.tidy(5.0 + FORGET_S, {a})  # its step runs
    assert callers.find(1, 5.0) is a
    callers.tidy(5.0 + FORGET_S, ())
    assert callers.find(1, 5.0 + FORGET_S) is None


def test_a_client_has_one_name_at_a_time() -> None:
    callers = ClientRegistry(lambda peer: False)
    old = callers.heard(b"a", 1, 0.0)
    assert callers.heard(b"a", 2, 0.0) is old  # it has given up a connection: see `Connections.name`
    assert callers.find(1, 0.0) is None and callers.find(2, 0.0) is old
    assert callers.heard(b"b", 2, 0.0) is callers.find(2, 0.0)
    callers.heard(b"a", 3, 0.0)
    assert callers.find(2, 0.0) is not None


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tasks to which this process says `run`. It never finds that they take long."""
    monkeypatch.setattr("dovetail.runtime.rpc.pending_call.PING_S", 3600.0)
    tasks: list[str] = []
    send = PendingReplies.send

    def spy(self: PendingReplies, connections: Connections, address: str, message: Message) -> None:
        if message.kind == "run":
            tasks.append(self._owing[address])
        send(self, connections, address, message)

    monkeypatch.setattr(PendingReplies, "send", spy)
    return tasks


class Pushed:
    """A step in which a worker computes, and a parameter server updates and gives something back."""

    def __init__(self, name: str) -> None:
        with tf.device("/job:ps"):
            self.v = tf.get_variable(name, initializer=tf.zeros([3]))
        with tf.device("/job:worker/task:1"):
            self.x = tf.placeholder(tf.float32, [3])
            self.change = tf.square(self.x)
        with tf.device("/job:ps"):
            self.up = self.v.assign_add(self.change)
            self.sum = tf.reduce_sum(self.change) + 1.0
            self.bad = tf.gather(self.change, tf.cast(self.change[0], tf.int32) + 2)


PATIENT = tf.ConfigProto(peer_timeout_s=120.0)
WORKER, PS = "/job:worker/replica:0/task:1", "/job:ps/replica:0/task:0"


def test_the_client_says_run_once_to_each_and_then_only_to_those_that_begin(
    cluster: tf.LocalCluster, said: list[str]
) -> None:
    step = Pushed("once")
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        session.run(step.v.initializer)
        said.clear()
        assert session.run([step.sum, step.up.op], {step.x: np.ones(3)})[0] == 4.0
        assert sorted(said) in ([PS, WORKER], [WORKER])  # it may know the ps from another step
        total, deadline = 1.0, time.monotonic() + 60
        alone = 0
        while alone < 5:  # when tasks have met, they go over to streams of their own, and may have to be told once more
            assert time.monotonic() < deadline
            said.clear()
            assert session.run([step.sum, step.up.op], {step.x: np.full(3, 2.0)})[0] == 13.0
            total += 4.0
            assert WORKER in said
            alone = alone + 1 if said == [WORKER] else 0
        np.testing.assert_array_equal(session.run(step.v), np.full(3, total))


def test_a_step_that_is_traced_is_begun_by_the_client_everywhere(cluster: tf.LocalCluster, said: list[str]) -> None:
    step = Pushed("traced")
    options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        for _ in range(3):
            session.run(step.sum, {step.x: np.ones(3)})
        said.clear()
        session.run(step.sum, {step.x: np.ones(3)}, options=options, run_metadata=metadata)
        assert sorted(said) == [PS, WORKER]
        assert {t.task for t in metadata.trace.tasks} == {PS, WORKER}
        said.clear()
        session.run(step.sum, {step.x: np.ones(3)})
        assert said == [WORKER]


def test_an_error_in_a_part_that_tensors_started_names_its_task(cluster: tf.LocalCluster, said: list[str]) -> None:
    step = Pushed("bad")
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        assert session.run(step.bad, {step.x: np.zeros(3)}) == 0.0
        said.clear()
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"From {PS}") as caught:
            session.run(step.bad, {step.x: np.ones(3)})
        assert caught.value.op is step.bad.op
        assert session.run(step.bad, {step.x: np.zeros(3)}) == 0.0
        assert said == [WORKER] * 2


def test_who_does_not_know_the_client_is_told_after_a_while(
    cluster: tf.LocalCluster, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Pushed("stranger")
    with tf.Session(cluster.target("worker", 0), config=PATIENT) as session:
        assert session.run(step.sum, {step.x: np.ones(3)}) == 4.0
        target: Any = session._backend
        connections: Connections = target._connections.take()
        connections.name += 2  # as if all had forgotten it
        connections.told = {address: (process, connections.name) for address, (process, _) in connections.told.items()}
        target._connections.give_back(connections)
        said.clear()
        with monkeypatch.context() as patch:
            patch.setattr("dovetail.runtime.rpc.pending_call.PING_S", 0.1)
            assert session.run(step.sum, {step.x: np.ones(3)}) == 4.0
        assert said == [WORKER, PS]
        said.clear()
        assert session.run(step.sum, {step.x: np.ones(3)}) == 4.0
        assert said == [WORKER]
