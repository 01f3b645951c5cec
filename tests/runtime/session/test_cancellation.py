"""Steps that walk data sets without end: whatever ends a step ends its walk, wherever it runs."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.runtime.session.local_backend import LocalBackend

Dataset = tf.data.Dataset
more = tf.data.experimental
WAIT_S = 60.0
TOO_LONG = tf.RunOptions(timeout_in_ms=300)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def running(session: tf.Session, fetch: Any, feeds: Any = None) -> Iterator[list[Exception]]:
    """A thread that runs a step, and the error with which the step ends; afterwards it has ended."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            session.run(fetch, feeds)
        except Exception as e:
            errors.append(e)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield errors
    thread.join(WAIT_S)
    assert not thread.is_alive()


def element_of(dataset: Dataset) -> Any:
    return dataset.make_initializable_iterator().get_next()


def none(dataset: Dataset) -> Dataset:
    return dataset.filter(lambda n: n < 0)


def total(dataset: Dataset) -> Any:
    return dataset.reduce(np.int64(0), lambda t, n: t + n)


def endless() -> Dataset:
    return Dataset.range(10).repeat()


def generated() -> Dataset:
    return Dataset.from_generator(itertools.count, tf.int64, [])


def from_queue(n: Any) -> Any:
    """Waits for an element of an empty queue."""
    return tf.FIFOQueue(1, tf.int64, [()], shared_name="never").dequeue() + n


def by_key(window: int) -> Callable[[Dataset], Dataset]:
    made: Callable[[Dataset], Dataset] = more.group_by_window(lambda n: n % 2, lambda key, w: w.batch(2), window)
    return made


LONG = 2**40
ENDLESS: dict[str, Callable[[], Any]] = {
    "reduce": lambda: total(endless()),
    "reduce of a cache": lambda: total(Dataset.range(3).cache().repeat()),
    "reduce of a generator": lambda: total(generated()),
    "reduce of a map": lambda: total(endless().map(lambda n: n + 1, 2)),
    "reduce of made ahead": lambda: total(endless().prefetch(3)),
    "filter": lambda: element_of(none(endless())),
    "filter, made ahead": lambda: element_of(none(endless()).prefetch(2)),
    "skip": lambda: element_of(none(generated()).skip(3)),
    "shuffle": lambda: element_of(endless().shuffle(LONG)),
    "batch": lambda: element_of(endless().batch(LONG)),
    "window": lambda: element_of(endless().apply(by_key(LONG))),
    "empty data sets": lambda: element_of(endless().flat_map(lambda n: Dataset.range(0))),
    "empty data sets, made ahead": lambda: element_of(endless().interleave(lambda n: Dataset.range(0), 3, 2, 2)),
    "empty rows": lambda: element_of(endless().map(lambda n: tf.zeros([0])).apply(more.unbatch())),
    "single": lambda: more.get_single_element(none(endless())),
    "scan": lambda: element_of(none(endless().apply(more.scan(np.int64(0), lambda t, n: (t + n, t))))),
    "no choice": lambda: element_of(more.sample_from_datasets([none(endless()), Dataset.range(1)], [1.0, 0.0])),
    "queue": lambda: element_of(endless().map(from_queue)),
    "queue, in threads": lambda: element_of(endless().map(from_queue, 3)),
    "queue, made ahead": lambda: element_of(endless().map(from_queue).prefetch(1)),
    "loop in a function": lambda: element_of(
        endless().map(lambda n: tf.while_loop(lambda i: i >= 0, lambda i: i * 0, [n]))
    ),
    "loop in threads": lambda: element_of(
        endless().map(lambda n: tf.while_loop(lambda i: i >= 0, lambda i: i * 0, [n]), 2)
    ),
}  # fmt: skip


def data_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith("dataset-")}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_deadline_and_close_end_a_walk_and_its_threads(kind: str) -> None:
    before = data_threads()
    fetch = ENDLESS[kind]()
    session = tf.Session()
    session.run(tf.local_variables_initializer())
    starts = [n for n in tf.get_default_graph().get_operations() if n.name.endswith("make_initializer/Assign")]
    session.run(starts)
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(fetch, options=TOO_LONG)
    backend = session._backend
    assert isinstance(backend, LocalBackend)
    with running(session, fetch) as errors:
        until(lambda: bool(backend._worker.running()))
        session.close()
    assert [type(e) for e in errors] == [tf.errors.CancelledError]
    assert "Session.close" in str(errors[0])
    until(lambda: not data_threads() - before)


def test_a_cancelled_step_takes_no_element() -> None:
    v = tf.get_variable("v", initializer=np.int64(0), use_resource=True)
    element = endless().filter(lambda n: v > 0).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        session.run(v.initializer)
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(element, options=TOO_LONG)
        session.run(v.assign(1))
        assert [session.run(element) for _ in range(3)] == [0, 1, 2]


def test_a_step_that_was_short_a_hundred_times_is_ended_too() -> None:
    count = tf.placeholder(tf.int64, [])
    found = total(endless().take(count))
    with tf.Session() as session:
        for _ in range(100):
            assert session.run(found, {count: 2}) == 1
        backend = session._backend
        assert isinstance(backend, LocalBackend)
        with running(session, found, {count: 2**62}) as errors:
            until(lambda: bool(backend._worker.running()))
            session.close()
        assert [type(e) for e in errors] == [tf.errors.CancelledError]


def test_what_is_made_ahead_ends_with_its_session_and_no_other() -> None:
    before = data_threads()
    element = endless().concatenate(none(endless())).take(3).prefetch(2).make_one_shot_iterator().get_next()
    late = Dataset.range(2).concatenate(none(endless())).prefetch(9).make_one_shot_iterator().get_next()
    first, second = tf.Session(), tf.Session()
    assert [first.run(late), first.run(late)] == [0, 1]  # a thread goes on to look for more
    assert [second.run(element) for _ in range(2)] == [0, 1]
    assert data_threads() - before
    first.close()
    assert second.run(element) == 2
    second.close()
    until(lambda: not data_threads() - before)


def test_the_stop_of_a_coordinator_lets_a_step_end_with_its_session() -> None:
    found, coordinator = total(endless()), tf.train.Coordinator()
    session = tf.Session()
    with running(session, found) as errors:
        coordinator.request_stop()
        session.close()
    assert all(isinstance(e, (tf.errors.CancelledError, RuntimeError)) for e in errors) and len(errors) == 1


# --- with servers -----------------------------------------------------------------------------------------------------


def counted(task: int) -> tuple[Any, Any, tf.Tensor]:
    """A counter on a worker, the sum of as many numbers as are fed, and that number."""
    with tf.device(f"/job:worker/task:{task}"):
        count = tf.placeholder(tf.int64, [])
        v = tf.get_variable("v", initializer=np.int64(0), use_resource=True)
        numbers = endless().take(count).map(lambda n: v.assign_add(1))
        return v, total(numbers), count


def has_stopped(session: tf.Session, v: Any) -> bool:
    """Whether no step counts any more."""
    before = session.run(v)
    time.sleep(0.2)
    return bool(session.run(v) == before)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "deadline", "reset"])
def test_a_walk_on_a_worker_ends_with_its_step(how: str, cluster: tf.LocalCluster) -> None:
    v, found, count = counted(1)
    observer = tf.Session(cluster.target("worker", 0))
    observer.run(v.initializer)
    session = tf.Session(cluster.target("worker", 0))
    for _ in range(20):
        session.run(found, {count: 1})
    if how == "deadline":
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.run(found, {count: 2**62}, options=TOO_LONG)
    else:
        with running(session, found, {count: 2**62}) as errors:
            until(lambda: observer.run(v) > 30)
            if how == "close":
                session.close()
            else:
                tf.Session.reset(cluster.target("worker", 0), ["other"])
                observer = tf.Session(cluster.target("worker", 0))
        expected = tf.errors.CancelledError if how == "close" else tf.errors.AbortedError
        assert [type(e) for e in errors] == [expected]
    until(lambda: has_stopped(observer, v))
    observer.close()
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["loop", "walk"])
def test_a_server_hears_the_end_of_a_step_that_was_always_short(what: str, cluster: tf.LocalCluster) -> None:
    """Short steps run on the thread that hears messages; one that may take any time must not."""
    with tf.device("/job:worker/task:1"):
        n = tf.placeholder(tf.int64, [])
        if what == "loop":
            found = tf.while_loop(lambda i: i < n, lambda i: i + 1, [tf.constant(0, tf.int64)])
        else:
            found = total(Dataset.range(n))
        one = tf.constant(1) + 1
    session = tf.Session(cluster.target("worker", 0))
    for _ in range(50):
        session.run(found, {n: 1})
    with pytest.raises(tf.errors.DeadlineExceededError):
        session.run(found, {n: 2**62}, options=TOO_LONG)
    assert session.run(one) == 2
    with running(session, found, {n: 2**62}) as errors:
        time.sleep(0.2)
        session.close()
    assert [type(e) for e in errors] == [tf.errors.CancelledError]
    with tf.Session(cluster.target("worker", 0)) as other:
        assert other.run(one) == 2


@pytest.mark.slow
def test_a_walk_ends_when_its_worker_dies() -> None:
    with tf.LocalCluster({"worker": 2}) as cluster:
        v, found, count = counted(1)
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(v.initializer)
            with running(session, found, {count: 2**62}) as errors:
                until(lambda: session.run(v) > 3)
                cluster.kill("worker", 1)
            assert [type(e) for e in errors] == [tf.errors.UnavailableError]


@pytest.mark.slow
def test_a_session_without_its_master_ends_its_steps_at_other_tasks() -> None:
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        with tf.device("/job:ps/task:0"):
            element = tf.FIFOQueue(1, tf.float32, shapes=[[]]).dequeue()
            one = tf.constant(1) + 1
        session = tf.Session(cluster.target("worker", 0))
        assert session.run(one) == 2
        with running(session, element) as errors:
            time.sleep(0.2)
            cluster.kill("worker", 0)
            session.close()
        assert [type(e) for e in errors] == [tf.errors.CancelledError]


def test_a_session_with_state_of_its_own_leaves_no_data_set_and_no_state_behind() -> None:
    def prefetching() -> int:
        return sum(t.name == "dataset-prefetch" for t in threading.enumerate())

    server, before = tf.train.Server.create_local_server(), prefetching()
    with tf.Graph().as_default():
        element = endless().map(lambda n: n + 1).prefetch(3).make_one_shot_iterator().get_next()
        with tf.Session(server.target, config=tf.ConfigProto(isolate_session_state=True)) as session:
            assert [session.run(element), session.run(element)] == [1, 2]
            (state,) = [weakref.ref(s.resources) for s in server._worker._sessions.values()]
            assert prefetching() == before + 1
    del session
    until(lambda: gc.collect() >= 0 and state() is None and prefetching() == before)
    server.stop()


@pytest.mark.slow
def test_a_walk_in_the_clients_own_server_ends_when_the_server_stops() -> None:
    server = tf.train.Server.create_local_server()
    found = total(endless())
    session = tf.Session(server.target)
    with running(session, found) as errors:
        until(lambda: bool(server._worker.running()))
        server.stop()
    assert len(errors) == 1 and isinstance(errors[0], (tf.errors.CancelledError, tf.errors.UnavailableError))
    session.close()


def test_the_garbage_collector_may_end_sessions_and_data_sets_in_a_thread_that_holds_a_lock():
    script = Path(__file__).with_name("finalizers_under_locks.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    places = [line.split() for line in done.stdout.splitlines()]  # of one process and a cluster: sessions, data sets
    assert [int(count) > 5 for count, *_ in places] == [True] * 4
