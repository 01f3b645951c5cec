"""Primary/backup replication: what a backup takes, when a step ends, and that kills of real tasks lose no acknowledged update."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.dtypes import float32
from dovetail.graph.core.errors import AbortedError, OpError, UnavailableError
from dovetail.graph.resources.resource_manager import Resources
from dovetail.graph.resources.variable import VariableState, changing
from dovetail.runtime.server.local_cluster import reserved_address
from dovetail.runtime.server.running_cluster import RunningCluster
from dovetail.runtime.transport.client import Connections, open_connections
from dovetail.runtime.wire.messages import Message, decode, encode
from dovetail.runtime.worker import replication
from dovetail.runtime.worker.replication import Copies, Entry, Replicator, packed, unpacked

PS = "/job:ps/replica:0/task:0"


def batch(
    number: int, *entries: Entry, part: int = 0, last: bool = True, whole: bool = False, incarnation: int = 1
) -> Message:
    """A message, as it arrives."""
    described, tensors = packed(entries)
    fields = {
        "request": 1, "task": PS, "incarnation": incarnation, "number": number, "part": part, "last": last, "whole": whole,
        "entries": described,
    }  # fmt: skip
    return decode(encode(Message("replicate", fields, tensors)))


def claimed(copies: Copies, incarnation: int) -> dict[str, list[float]] | None:
    """What a new process of the primary gets."""
    found, part, last = {}, 0, False
    while not last:
        request = Message("recover", {"request": 1, "task": PS, "incarnation": incarnation, "part": part})
        whole, last, entries = copies.claim(request)
        if not whole:
            return None
        found |= {key[1]: value.tolist() for key, _, value in entries}
        part += 1
    return found


def value(name: str, *values: float) -> Entry:
    return ("ps", name), None, np.array(values, np.float32)


def rows(name: str, at: list[int], *values: float) -> Entry:
    return ("ps", name), np.array(at), np.array(values, np.float32)


def test_a_backup_that_lacks_the_copy_asks_for_all_of_it_and_then_takes_changes() -> None:
    copies = Copies()
    assert not copies.take(batch(1, value("v", 1.0)))
    assert copies.take(batch(2, value("v", 1.0, 2.0, 3.0), value("w", 5.0), whole=True))
    assert copies.take(batch(3, rows("v", [0, 2], 7.0, 9.0)))
    assert not copies.take(batch(4, rows("new", [0], 7.0)))
    assert claimed(copies, 2) is None  # since the last batch could not be taken


def test_a_batch_in_parts_is_taken_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "PART_TENSORS", 1)
    copies = Copies()
    copies.take(batch(1, value("v", 1.0), value("w", 1.0), whole=True))
    assert copies.take(batch(2, value("v", 2.0), last=False))  # and its primary dies
    assert claimed(copies, 2) == {"v": [1.0], "w": [1.0]}
    assert copies.take(batch(1, value("v", 3.0), last=False, incarnation=2))
    assert copies.take(batch(1, value("w", 3.0), part=1, incarnation=2))
    assert copies.take(batch(1, value("w", 0.0), incarnation=2))  # an old one, which was late
    assert not copies.take(batch(2, value("w", 4.0), part=1, incarnation=2))  # its first part was lost
    assert claimed(copies, 3) == {"v": [3.0], "w": [3.0]}


def test_a_late_part_of_an_abandoned_batch_is_not_mixed_with_a_later_one() -> None:
    """The thread that takes large parts may be behind the I/O thread, which takes small ones."""
    copies = Copies()
    copies.take(batch(1, value("v", 1.0), value("w", 1.0), whole=True))
    assert copies.take(batch(3, value("v", 3.0), last=False))
    copies.take(batch(2, value("w", 2.0), last=False))
    assert copies.take(batch(3, value("w", 3.0), part=1))
    assert claimed(copies, 2) == {"v": [3.0], "w": [3.0]}
    assert copies.take(batch(1, value("v", 4.0), last=False, incarnation=2))
    assert not copies.take(batch(2, value("w", 5.0), part=1, incarnation=2))  # its first part was lost
    assert claimed(copies, 3) == {"v": [3.0], "w": [3.0]}


def test_a_process_that_was_replaced_confirms_nothing() -> None:
    copies = Copies()
    copies.take(batch(1, value("v", 1.0), whole=True))
    assert claimed(copies, 2) == {"v": [1.0]}
    for whole in (False, True):
        with pytest.raises(AbortedError, match="Another process was started for /job:ps/replica:0/task:0"):
            copies.take(batch(2, value("v", 2.0), whole=whole))
    assert claimed(copies, 2) == {"v": [1.0]}


class Primary:
    """A task's state, and its replicator."""

    def __init__(self, incarnation: int, call: Callable[[Message], Message]) -> None:
        self.resources = Resources(default_container="ps")
        self.replicator = Replicator(PS, "/job:ps/replica:0/task:1", incarnation, self.resources, call)
        self.replicator.start()

    def variable(self, name: str) -> VariableState:
        return self.resources.get_or_create("ps", name, VariableState, lambda: VariableState(name, float32))

    def end_step(self) -> list[object]:
        """What a step's end gives, as soon as it does."""
        out: list[object] = []
        self.replicator.after(out.append)({"done": 1})
        return out

    def wait(self, what: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20.0
        while not what():
            assert time.monotonic() < deadline
            time.sleep(0.005)


class Backup:
    """Calls of the backup, which can be held up, or fail."""

    def __init__(self) -> None:
        self.copies = Copies()
        self.open = threading.Event()
        self.open.set()
        self.error: OpError | None = None

    def __call__(self, message: Message) -> Message:
        self.open.wait(20.0)
        if self.error is not None:
            raise self.error
        message.fields["request"] = 1
        message = decode(encode(message))
        if message.kind == "replicate":
            return Message("replicated", {"request": 1, "whole": self.copies.take(message), "incarnation": 9})
        whole, last, entries = self.copies.claim(message)
        described, tensors = packed(entries)
        fields = {"request": 1, "whole": whole, "last": last, "entries": described}
        return decode(encode(Message("recovered", fields, tensors)))


def test_values_of_a_backup_that_is_started_again_meanwhile_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication, "PART_TENSORS", 1)
    backup = Backup()
    backup.copies.take(batch(1, value("v", 1.0), value("w", 1.0), whole=True))

    def restart(message: Message) -> Message:
        if message.kind == "recover" and message.fields["part"] == 1:
            backup.copies = Copies()
        return backup(message)

    primary = Primary(2, restart)
    primary.wait(lambda: primary.replicator.is_ready)
    assert primary.resources.find("ps", "v") is None
    primary.replicator.close()


def test_a_step_ends_when_the_backup_has_what_has_changed() -> None:
    backup = Backup()
    primary = Primary(1, backup)
    primary.wait(lambda: primary.replicator.confirmed_by)
    assert primary.end_step() == [{"done": 1}]  # nothing has changed
    table = primary.variable("table")
    table.assign(np.zeros((8, 2)))
    first = primary.end_step()
    primary.wait(lambda: first)
    backup.open.clear()
    with changing([table], np.array([[1, 99], [-1, 1]])) as (held,):  # with rows that are not there
        held[1] = 5.0
    primary.variable("step").assign(7.0)
    second = primary.end_step()
    time.sleep(0.1)
    assert not second
    backup.open.set()
    primary.wait(lambda: second)
    again = Primary(2, backup)
    again.wait(lambda: again.replicator.is_ready)
    assert again.variable("table").read().tolist() == [[0, 0], [5, 5], *[[0, 0]] * 6]
    assert again.variable("step").read() == 7.0
    table.assign(np.ones((8, 2)))
    third = primary.end_step()  # of the process that was replaced
    primary.wait(lambda: third)
    assert isinstance(third[0], AbortedError)
    primary.replicator.close()
    again.replicator.close()


def test_a_backup_that_is_away_fails_steps_in_the_end_and_gets_all_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backup = Backup()
    primary = Primary(1, backup)
    primary.variable("kept").assign(1.0)
    kept = primary.end_step()
    primary.wait(lambda: kept)
    backup.error = UnavailableError(None, None, "it is dead")
    monkeypatch.setattr(replication, "COMMIT_TIMEOUT_S", 0.0)
    primary.variable("v").assign(1.0)
    failed = primary.end_step()
    primary.wait(lambda: failed)
    assert isinstance(failed[0], UnavailableError) and "its backup /job:ps/replica:0/task:1" in failed[0].message
    monkeypatch.undo()
    waits = primary.end_step()
    backup.copies, backup.error = Copies(), None  # a new process
    primary.wait(lambda: waits)
    assert waits == [{"done": 1}]
    assert claimed(backup.copies, 2) == {"kept": 1.0, "v": 1.0}
    primary.replicator.close()


def test_a_cleared_container_is_cleared_at_the_backup() -> None:
    backup = Backup()
    primary = Primary(1, backup)
    primary.variable("old").assign(1.0)
    ended = primary.end_step()
    primary.wait(lambda: ended)
    primary.resources.clear("ps")
    primary.variable("new").assign(2.0)
    ended = primary.end_step()
    primary.wait(lambda: ended)
    assert claimed(backup.copies, 2) == {"new": 2.0}
    primary.replicator.close()


def test_types_that_need_care_come_back() -> None:
    given = [
        (("c", "text"), None, np.array([b"a", b""], object)),
        (("c", "half"), None, tf.bfloat16.np.type(1.5).reshape(1)),
    ]
    described, tensors = packed(given)
    fields = {"request": 1, "whole": True, "last": True, "entries": described}
    found = unpacked(decode(encode(Message("recovered", fields, tensors))))
    assert [dtype for _, dtype in found] == ["string", "bfloat16"]
    assert [entry[2].tolist() for entry, _ in found] == [[b"a", b""], [1.5]]


def test_what_cannot_be_kept_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_PS_REPLICAS", "2")
    with pytest.raises(tf.errors.InvalidArgumentError, match="a job ps of 2 tasks or more, not 2 with 1"):
        tf.train.Server({"ps": ["localhost:0"]}, start=False)
    tf.train.Server({"worker": ["localhost:0"]}, start=False)  # which has nothing to keep


def test_a_primary_that_is_stopped_closes_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_PS_REPLICAS", "2")
    before = set(open_connections)
    with reserved_address() as first, reserved_address() as second:
        jobs = {"ps": [first, second]}
        servers = [tf.train.Server(jobs, "ps", i) for i in range(2)]
        replicators = [server._worker.replicator for server in servers]
        deadline = time.monotonic() + 20.0
        while not all(r is not None and r.confirmed_by for r in replicators) and time.monotonic() < deadline:
            time.sleep(0.005)
        for server in servers:
            server.stop()
    for replicator in replicators:
        assert replicator is not None
        replicator._thread.join(20.0)
    opened = set(open_connections) - before
    assert opened and all(connections.closed for connections in opened)


@pytest.mark.slow
def test_kills_of_either_task_lose_no_acknowledged_update() -> None:
    """Dense and sparse updates, slots and a counter, in two threads, while each parameter server is killed in turn."""
    with tf.LocalCluster({"ps": 2, "worker": 2}, ps_replicas=2) as cluster:
        with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
            weights = tf.get_variable("weights", [64, 8], initializer=tf.zeros_initializer())
            table = tf.get_variable("table", [1000, 4], initializer=tf.zeros_initializer())
            counts = [tf.get_variable(f"count{i}", [], initializer=tf.zeros_initializer()) for i in range(2)]
            loss = tf.reduce_sum(weights) + tf.reduce_sum(tf.gather(table, [3, 5]))
            optimizer = tf.train.MomentumOptimizer(learning_rate=1.0, momentum=0.0)
            train = optimizer.minimize(loss)
        steps = [[train, tf.assign_add(count, 1.0)] for count in counts]
        state = [*counts, weights, table, *[optimizer.get_slot(v, "momentum") for v in (weights, table)]]
        acknowledged, tried, stop = [0, 0], [0, 0], threading.Event()
        config = tf.ConfigProto(peer_timeout_s=1.0)

        def work(worker: int) -> None:
            with tf.Session(cluster.target("worker", worker), graph=table.graph, config=config) as session:
                while not stop.is_set():
                    tried[worker] += 1
                    try:
                        session.run(steps[worker])
                        acknowledged[worker] += 1
                    except OpError:
                        time.sleep(0.2)

        with tf.Session(cluster.target("worker"), config=config) as session:
            session.run(tf.global_variables_initializer())
            threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for victim in (0, 1):
                before = sum(acknowledged)
                while sum(acknowledged) < before + 20:
                    time.sleep(0.05)
                cluster.kill("ps", victim)
                cluster.start("ps", victim)
                cluster.wait_until_up(120.0)  # also until all is kept twice again
            stop.set()
            for thread in threads:
                thread.join(60.0)
            cluster.kill("ps", 0)
            cluster.start("ps", 0)
            cluster.wait_until_up(120.0)
        with tf.Session(cluster.target("worker"), config=config) as session:
            *count, weight, rows_, slot, row_slots = session.run(state)
        for i in range(2):
            assert acknowledged[i] <= count[i] <= tried[i]
        for done in (-weight[0, 0], -rows_[3, 0], -rows_[5, 3]):
            assert sum(acknowledged) <= done <= sum(tried)
        assert slot[0, 0] == row_slots[5, 0] == 1.0 and not rows_[4].any()  # momentum 0: the last gradient


@pytest.mark.slow
def test_a_task_that_does_not_answer_is_not_flooded_with_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one answers, and is waited for, too, because its copy has gone."""
    asked: list[str] = []
    send = Connections.send
    monkeypatch.setattr(
        Connections, "send", lambda self, address, message: (asked.append(address), send(self, address, message))[1]
    )
    with tf.LocalCluster({"ps": 2}, ps_replicas=2) as cluster:
        cluster.kill("ps", 0)
        asked.clear()
        of_another_process = RunningCluster()
        of_another_process.cluster_spec = cluster.cluster_spec
        with pytest.raises(UnavailableError, match="No answer within 1 s from /job:ps/task:0"):
            of_another_process.wait_until_up(1.0)
        assert 0 < asked.count(cluster.cluster_spec.task_address("ps", 0)) <= 3
