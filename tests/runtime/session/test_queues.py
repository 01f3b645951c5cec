"""Steps that wait for other steps: no thread waits inside, and whatever ends the wait puts back what it held."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.runtime.rpc import dispatch
from dovetail.runtime.worker.step_scheduler import StepRunner


class Waiting:
    """A step in a thread of its own; `ended()` gives its value or error."""

    def __init__(self, session: tf.Session, fetch: Any, feeds: Any = None, **options: Any) -> None:
        self.value: Any = None

        def run() -> None:
            try:
                self.value = session.run(fetch, feeds, tf.RunOptions(**options) if options else None)
            except tf.errors.OpError as e:
                self.value = e

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def ended(self) -> Any:
        self._thread.join(20)
        assert not self.is_waiting
        return self.value


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def waiting_at(server: tf.train.Server) -> int:
    """How many requests wait in a server's queues."""
    return sum(len(list(r._waiting())) for _, _, r in server._worker.resources if hasattr(r, "_waiting"))


@pytest.fixture(params=["in process", "server"])
def session(request: pytest.FixtureRequest) -> Iterator[tf.Session]:
    if request.param == "in process":
        with tf.Session() as s:
            yield s
    else:
        with tf.train.Server.create_local_server() as server, tf.Session(server.target) as s:
            yield s


def test_a_step_waits_for_another_and_goes_on_after_it(session: tf.Session) -> None:
    q = tf.FIFOQueue(2, tf.float32, shapes=[[]])
    x = tf.placeholder(tf.float32, [])
    put, got = q.enqueue(x), q.dequeue() * 2 + 1
    waits = Waiting(session, got)
    time.sleep(0.05)
    assert waits.is_waiting
    session.run(put, {x: 3.0})
    assert waits.ended() == 7
    for value in (1.0, 2.0):
        session.run(put, {x: value})
    full = Waiting(session, put, {x: 3.0})
    time.sleep(0.05)
    assert full.is_waiting
    assert session.run(got) == 3
    assert full.ended() is None
    assert [session.run(got) for _ in range(2)] == [5, 7]


def test_what_a_step_puts_in_itself_is_there_for_its_takes(session: tf.Session) -> None:
    q = tf.FIFOQueue(2, tf.float32, shapes=[[]])
    got = q.dequeue()
    put = q.enqueue(5.0)  # made after the take, and nothing orders them
    assert session.run([got, put]) == [5, None]
    again = q.enqueue(q.dequeue() + 1)
    session.run(put)
    session.run(again)
    assert session.run(got) == 6


def test_a_limit_ends_the_wait_and_puts_back_what_it_held(session: tf.Session) -> None:
    q = tf.FIFOQueue(10, tf.int32, shapes=[[]])
    put, three, one, size = q.enqueue_many([[1, 2]]), q.dequeue_many(3), q.dequeue(), q.size()
    session.run(put)
    with pytest.raises(tf.errors.DeadlineExceededError, match="waited 0.1 s"):
        session.run(three, options=tf.RunOptions(timeout_in_ms=100))
    until(lambda: session.run(size) == 2)
    assert [session.run(one) for _ in range(2)] == [1, 2]


def test_closing_the_session_ends_the_wait(session: tf.Session) -> None:
    waits = Waiting(session, tf.FIFOQueue(10, tf.int32).dequeue())
    time.sleep(0.1)
    session.close()
    assert isinstance(waits.ended(), tf.errors.CancelledError)


def test_a_wait_in_a_branch_and_in_a_loop(session: tf.Session) -> None:
    q = tf.FIFOQueue(100, tf.int32, shapes=[[]])
    x = tf.placeholder(tf.int32, [])
    put = q.enqueue(x)
    wanted = tf.placeholder(tf.bool, [])
    branch = tf.cond(wanted, lambda: q.dequeue(), lambda: tf.constant(-1))
    total = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + q.dequeue()), [0, 0])[1]
    assert session.run(branch, {wanted: False}) == -1
    waits = Waiting(session, branch, {wanted: True})
    session.run(put, {x: 4})
    assert waits.ended() == 4
    loop = Waiting(session, total)
    for value in (1, 10, 100):
        assert loop.is_waiting
        session.run(put, {x: value})
    assert loop.ended() == 111


def test_a_handle_cannot_be_fetched(session: tf.Session) -> None:
    q = tf.FIFOQueue(2, tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="A handle cannot be fetched: FIFOQueue 'fifo_queue'"):
        session.run(q.queue_ref)


def test_many_threads_pass_each_element_once(session: tf.Session) -> None:
    q = tf.FIFOQueue(4, tf.int32, shapes=[[]])
    x = tf.placeholder(tf.int32, [])
    put, got = q.enqueue(x), q.dequeue()
    taken: list[int] = []

    def give(start: int) -> None:
        for i in range(start, start + 50):
            session.run(put, {x: i})

    def take() -> None:
        for _ in range(50):
            taken.append(int(session.run(got)))

    threads = [threading.Thread(target=give, args=(100 * i,)) for i in range(3)]
    threads += [threading.Thread(target=take) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert sorted(taken) == sorted(100 * i + k for i in range(3) for k in range(50))


def test_more_steps_may_wait_than_there_are_threads() -> None:
    """Each waiting step would hold one of the server's eight threads, if it held any."""
    with tf.train.Server.create_local_server() as server, tf.Session(server.target) as session:
        q = tf.FIFOQueue(100, tf.int32, shapes=[[]])
        put, got = q.enqueue(1), q.dequeue()
        session.run([put, got])  # both programs are known to be small, or not: it does not matter
        before = threading.active_count()
        waits = [Waiting(session, got) for _ in range(30)]
        until(lambda: waiting_at(server) == 30)
        assert threading.active_count() <= before + 30 + 8
        for _ in waits:
            session.run(put)
        assert [w.ended() for w in waits] == [1] * 30


def test_ctrl_c_ends_a_wait_in_this_process() -> None:
    this = threading.get_ident()
    q = tf.FIFOQueue(10, tf.int32, shapes=[[]])
    put, two, size = q.enqueue(1), q.dequeue_many(2), q.size()
    with tf.Session() as session:
        session.run(put)
        threading.Timer(0.2, signal.pthread_kill, (this, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            session.run(two)
        assert session.run(size) == 1


def test_stopping_the_server_ends_the_wait() -> None:
    with tf.train.Server.create_local_server() as server:
        session = tf.Session(server.target, config=tf.ConfigProto(peer_timeout_s=1.0))
        waits = Waiting(session, tf.FIFOQueue(10, tf.int32).dequeue())
        until(lambda: waiting_at(server) == 1)
    assert isinstance(waits.ended(), (tf.errors.CancelledError, tf.errors.UnavailableError))
    session.close()


_CLIENT = """
import sys, dovetail as tf
q = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="shared")
two = q.dequeue_many(2)
with tf.Session(sys.argv[1]) as session:
    session.run(two)
"""


@pytest.mark.slow
def test_a_client_that_dies_gives_back_what_its_step_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SILENT_S", 1.0)
    with tf.train.Server.create_local_server() as server, tf.Session(server.target) as session:
        q = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="shared")
        put, size = q.enqueue(1), q.size()
        session.run(put)
        with _process(_CLIENT, server.target) as client:
            until(lambda: waiting_at(server) == 1)
            assert session.run(size) == 0
            client.kill()
            until(lambda: waiting_at(server) == 0)
        assert session.run(size) == 1


@contextmanager
def _process(code: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", code, *arguments])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_answer_that_came_too_late_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The element is taken out for a step that ends before it is resumed."""
    with tf.Session() as session:
        q = tf.FIFOQueue(10, tf.int32, shapes=[[]])
        put, got, size = q.enqueue(1), q.dequeue(), q.size()
        waits = Waiting(session, got)
        worker = session._backend._worker
        until(lambda: waiting_at_worker(worker) == 1)
        (step,) = worker._steps.values()
        (execution,) = step._executors
        # Whoever resumes it comes too late.
        monkeypatch.setattr(
            StepRunner, "resume", lambda self, execution: step.fail(tf.errors.CancelledError.of("ended meanwhile"))
        )
        session.run(put)
        assert isinstance(waits.ended(), tf.errors.CancelledError)
        assert session.run(size) == 1
        assert execution.slots == []


def waiting_at_worker(worker: Any) -> int:
    return sum(len(list(r._waiting())) for _, _, r in worker.resources if hasattr(r, "_waiting"))


# --- several clients of a cluster -------------------------------------------------------------------------------------


def test_clients_share_a_queue_by_its_name(cluster: tf.LocalCluster) -> None:
    def build() -> Any:
        with tf.device("/job:ps/task:0"):
            q = tf.FIFOQueue(10, tf.float32, shapes=[[2]], shared_name="between_clients")
        x = tf.placeholder(tf.float32, [2])
        with tf.device("/job:worker/task:0"):
            return x, q.enqueue(x + 1), q.dequeue() * 10, q

    with tf.Graph().as_default(), tf.Session(cluster.target("worker", 0)) as giver:
        x, put, _, _ = build()
        with tf.Graph().as_default(), tf.Session(cluster.target("worker", 1)) as taker:
            _, _, got, q = build()
            plan = taker.plan(got)
            waits = Waiting(taker, got)
            time.sleep(0.1)
            giver.run(put, {x: [1.0, 2.0]})
            np.testing.assert_array_equal(waits.ended(), [20, 30])
            assert {str(n) for n in plan.partitions} == {
                "/job:ps/replica:0/task:0/device:CPU:0", "/job:worker/replica:0/task:0/device:CPU:0",
            }  # fmt: skip
            assert taker.run(q.size()) == 0


def test_state_that_is_isolated_is_not_shared(cluster: tf.LocalCluster) -> None:
    with tf.device("/job:ps/task:0"):
        q = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="isolated")
    put, size = q.enqueue(1), q.size()
    own = tf.ConfigProto(isolate_session_state=True)
    with tf.Session(cluster.target("worker", 0)) as a, tf.Session(cluster.target("worker", 0), config=own) as b:
        a.run(put)
        assert (a.run(size), b.run(size)) == (1, 0)
    with tf.Session(cluster.target("worker", 1)) as c:
        assert c.run(size) == 1  # it outlives the session


def test_reset_clears_one_container_and_ends_what_waits_there() -> None:
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        with tf.device("/job:ps/task:0"):
            with tf.container("gone"):
                gone = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="q")
            kept = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="q")
        puts, sizes = [gone.enqueue(1), kept.enqueue(1)], [gone.size(), kept.size()]
        two = gone.dequeue_many(2)
        target, other = cluster.target("worker", 0), cluster.target("worker", 1)
        with tf.Session(target) as a, tf.Session(other) as b:
            a.run(puts)
            waits = Waiting(b, two)
            until(lambda: a.run(sizes) == [0, 1])
            tf.Session.reset(target, ["gone"])
            ended = waits.ended()
            assert isinstance(ended, tf.errors.CancelledError) and "container was cleared" in str(ended)
            with pytest.raises(tf.errors.AbortedError):  # sessions of that master are closed
                a.run(sizes)
            assert b.run(sizes) == [0, 1]
        with tf.Session(target) as c:
            c.run(puts)
            waits = Waiting(c, two)  # of that master: it hears that its session is gone, as its next step would
            until(lambda: c.run(sizes) == [0, 2])
            tf.Session.reset(target, ["gone"])
            ended = waits.ended()
            assert isinstance(ended, tf.errors.AbortedError) and "Session.reset" in str(ended)
        tf.Session.reset(target, ["unknown"])
        with tf.Session(target) as c:
            assert c.run(sizes) == [0, 2]
        tf.Session.reset(target, config=tf.ConfigProto(device_filters=["/job:worker"]))
        with tf.Session(target) as c:
            assert c.run(sizes) == [0, 2]  # the ps was filtered out
        tf.Session.reset(target)
        with tf.Session(target) as c:
            assert c.run(sizes) == [0, 0]


def test_a_session_with_filters_does_not_need_the_other_tasks(cluster: tf.LocalCluster) -> None:
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:0"])
    with tf.device("/job:worker/task:1"):
        far = tf.constant(1.0) + 1
    with tf.Session(cluster.target("worker", 0), config=config) as session:
        assert {d.name.task_name for d in session.list_devices()} == {
            "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0",
        }  # fmt: skip
        with pytest.raises(tf.errors.InvalidArgumentError, match="/job:worker/task:1"):
            session.run(far)


# --- variables --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_resource", [False, True])
def test_updates_of_a_variable_are_atomic_and_reads_are_snapshots(cluster: tf.LocalCluster, use_resource: bool) -> None:
    size, steps, clients = 20_000, 25, 3
    with tf.device("/job:ps/task:0"):
        v = tf.Variable(np.zeros(size, np.float32), use_resource=use_resource, name=f"atomic_{use_resource}")
    add, read = tf.assign_add(v, np.ones(size, np.float32)), v.read_value()
    add = add.op if isinstance(add, tf.Tensor) else add
    torn: list[Any] = []

    def client(number: int) -> None:
        with tf.Session(cluster.target("worker", number % 2), graph=v.graph) as session:
            for _ in range(steps):
                session.run(add)
                seen = session.run(read)
                if seen.min() != seen.max():
                    torn.append(seen)

    with tf.Session(cluster.target("worker", 0)) as session:
        session.run(v.initializer)
        threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        np.testing.assert_array_equal(session.run(read), np.full(size, steps * clients))
    assert not torn


@pytest.mark.slow
def test_a_task_that_is_killed_ends_the_steps_that_wait_there() -> None:
    with tf.LocalCluster({"ps": 1, "worker": 2}) as cluster:
        with tf.device("/job:ps/task:0"):
            q = tf.FIFOQueue(10, tf.int32, shapes=[[]], shared_name="q")
        with tf.device("/job:worker/task:1"):
            got = q.dequeue() + 1
        put = q.enqueue(1)
        config = tf.ConfigProto(peer_timeout_s=1.0)
        with tf.Session(cluster.target("worker", 0), config=config) as session:
            session.run([put, got])
            waits = Waiting(session, got)
            time.sleep(0.2)
            assert waits.is_waiting
            began = time.monotonic()
            cluster.kill("ps", 0)
            error = waits.ended()
            assert isinstance(error, tf.errors.UnavailableError) and "/job:ps" in str(error)
            assert time.monotonic() - began < 5
            cluster.start("ps", 0)
            cluster.wait_until_up()
        with tf.Session(cluster.target("worker", 0), config=config) as session:
            assert session.run([put, got])[1] == 2  # a new queue
