"""Tasks whose end follows from another one's do not tell of it."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail as tf
from dovetail.codegen.ir.partition import EndLoop, PartitionGraph, PartitionStep, RecvTensor, SendTensor
from dovetail.graph.core.device import DeviceSpec
from dovetail.runtime.rpc.pending_call import PendingReplies
from dovetail.runtime.wire.messages import Message
from dovetail.runtime.worker.registration import Registration

HERE, THERE = (f"/job:a/replica:0/task:{i}/device:CPU:0" for i in range(2))
SEND, RECEIVE = SendTensor(0, None, THERE), RecvTensor(1, None, THERE)


def unit(*steps: PartitionStep, fetches: Any = ()) -> PartitionGraph:
    return PartitionGraph(HERE, steps, (), fetches)


def must_report(*units: PartitionGraph) -> bool:
    return Registration("program", "session", units, seed=0).reports


@pytest.mark.parametrize(
    ("units", "reports"),
    [
        ([unit(SEND)], False),
        ([unit(RECEIVE, SEND)], False),
        ([unit(SEND), unit(RECEIVE, SEND)], False),
        ([unit(SEND, RECEIVE)], True),
        ([unit(SEND), unit(RECEIVE)], True),
        ([unit()], True),
        ([unit(SEND, EndLoop(()))], True),
    ],
)
def test_who_ends_with_a_send_need_not_report(units: list[PartitionGraph], reports: bool) -> None:
    assert must_report(*units) is reports


def test_who_is_fetched_from_reports() -> None:
    with tf.Graph().as_default():
        x = tf.constant(1.0)
    assert must_report(unit(SEND, fetches=(("x:0", x),)))


class Deaf:
    """Connections over which one task says that it does not work on the request."""

    def send(self, address: str, message: Message) -> None:
        pass

    def poll(self, timeout_s: float | None, only: str | None = None) -> list[tuple[str, Message]]:
        return [("quiet:1", Message("pong", {"seq": 7, "incarnation": 1, "working": False}))]

    def lives(self, address: str, since: float) -> bool:
        return False

    def moved(self, address: str) -> tuple[int, int]:
        return 0, 0


def test_who_does_not_report_may_have_ended_long_ago() -> None:
    wait = PendingReplies({"quiet:1": "a", "other:1": "b"}, 60.0, None, "step", request=7, quiet={"quiet:1"})
    for _ in range(5):
        assert wait.messages(Deaf()) == []  # type: ignore[arg-type]


def test_steps_end_and_fail_as_ever(cluster: tf.LocalCluster) -> None:
    """The ps reads and sends, which only a trace or an error makes it tell of."""
    with tf.device(DeviceSpec(job="ps", task=0)):
        v = tf.get_variable("quiet", [3], initializer=tf.ones_initializer())
        bad = tf.get_variable("never_initialised", [3], initializer=tf.ones_initializer())
        squares = tf.square(v), tf.square(bad)  # the variables themselves would be read where they lie
    with tf.device("/job:worker/task:1"):
        total, never = map(tf.reduce_sum, squares)
    with tf.Session(cluster.target("worker", 0)) as session:
        session.run(v.initializer)
        for _ in range(20):
            assert session.run(total) == 3.0
        with pytest.raises(tf.errors.FailedPreconditionError, match="never_initialised"):
            session.run(never)
        metadata = tf.RunMetadata()
        assert (
            session.run(total, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata) == 3
        )
        assert {e.device for e in metadata.trace.kernels} >= {"/job:ps/replica:0/task:0/device:CPU:0"}
