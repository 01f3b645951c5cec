"""Collectives of real processes between which messages are lost: each step ends, everywhere."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fault_schedules import Call

import dovetail as tf
from dovetail.graph.ops.state import collectives as ops

WAIT_S = 60.0  # only a step that hangs waits so long
COUNT = 3


class Member:
    """A client that goes on reducing until its session is closed, also when it has failed.

    If the message is lost that asks for a step, nobody but its client knows of that step, and the other members wait for this one to
    begin another.
    """

    def __init__(self, session: tf.Session) -> None:
        self.session = session
        self.error: tf.errors.OpError | None = None
        self.has_failed = threading.Event()
        self.is_over = False
        self.call = Call(self._work)

    def _work(self) -> None:
        while not self.is_over:
            try:
                assert self.session.run("found:0") == 6.0
            except tf.errors.OpError as e:
                self.error = self.error or e
                self.has_failed.set()

    def close(self) -> None:
        self.is_over = True
        self.session.close()  # which ends a step that waits for who has gone
        assert self.call.ended(WAIT_S)


class Workers:
    """Workers that reduce together, each with a client of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {"DOVETAIL_FAULTS": f"from:{folder}", "DOVETAIL_SHARED_MEMORY_MB": "0"}
        self.cluster = tf.LocalCluster({"worker": COUNT}, environment=environment)
        self.sessions = [self.session(i) for i in range(COUNT)]

    def session(self, rank: int) -> tf.Session:
        members = [f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(COUNT)]
        with tf.Graph().as_default() as graph, tf.device(members[rank]):
            value = ops.all_reduce(tf.fill([1000], float(rank + 1)), members, rank, instance="i")
            tf.reduce_max(value, name="found")
        config = tf.ConfigProto(peer_timeout_s=2.0)
        return tf.Session(self.cluster.target("worker", rank), graph=graph, config=config)

    def says(self, rank: int, faults: str) -> None:
        file = self.folder / str(self.cluster.process("worker", rank).pid)
        partial = file.with_suffix(".partial")
        partial.write_text(faults, "utf-8")
        partial.replace(file)

    def address(self, rank: int) -> str:
        return self.cluster.target("worker", rank).removeprefix("zmq://")

    def begin(self) -> list[Member]:
        """All go on reducing."""
        return [Member(session) for session in self.sessions]

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self.cluster.close()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_a_cut_in_one_direction_and_lost_messages_end_the_steps_of_all(workers: Workers) -> None:
    for strike in (f"cut:{workers.address(1)}", "lose:7"):
        members = workers.begin()
        workers.says(0, strike)
        for member in members:
            assert member.has_failed.wait(WAIT_S), f"{strike}: a step hangs"
            assert isinstance(member.error, tf.errors.UnavailableError | tf.errors.AbortedError), member.error
        workers.says(0, "")
        for i, member in enumerate(members):
            member.close()
            workers.sessions[i] = workers.session(i)
        calls = [Call(lambda s=s: s.run("found:0")) for s in workers.sessions]  # type: ignore[misc]
        assert all(call.ended(WAIT_S) for call in calls), "new sessions hang"
        assert [call.value for call in calls] == [np.float32(6.0)] * COUNT, [call.error for call in calls]
