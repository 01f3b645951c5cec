"""Threads that stop together, and threads that fill queues."""

from __future__ import annotations

import threading
import time

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def started(*functions):
    threads = [threading.Thread(target=f, daemon=True) for f in functions]
    for t in threads:
        t.start()
    return threads


def test_one_thread_stops_all():
    coord = tf.train.Coordinator()

    def wait():
        while not coord.should_stop():
            time.sleep(0.001)

    threads = started(wait, wait, lambda: coord.request_stop())
    coord.join(threads)
    assert coord.should_stop() and coord.joined and coord.wait_for_stop(0)
    coord.clear_stop()
    assert not coord.should_stop() and not coord.wait_for_stop(0.001)


def test_threads_that_end_by_themselves_are_waited_for():
    coord = tf.train.Coordinator()
    done = []
    (thread,) = started(lambda: done.append(1))
    coord.register_thread(thread)
    coord.join()
    assert done == [1]


def test_the_first_error_is_raised_and_a_clean_end_is_none():
    coord = tf.train.Coordinator()

    def fail(text):
        with coord.stop_on_exception():
            raise ValueError(text)

    fail("first")
    fail("second")
    with pytest.raises(ValueError, match="first"):
        coord.join()
    with pytest.raises(ValueError, match="first"):
        coord.raise_requested_exception()
    with pytest.raises(KeyError):  # after the end there is nobody else to tell
        coord.request_stop(KeyError("late"))
    clean = tf.train.Coordinator()
    clean.request_stop(tf.errors.OutOfRangeError(None, None, "the data end"))
    clean.join()
    clean.raise_requested_exception()


def test_threads_that_go_on_are_an_error():
    end = threading.Event()
    coord = tf.train.Coordinator()
    threads = started(lambda: end.wait(10))
    coord.request_stop()
    with pytest.raises(RuntimeError, match="Coordinator stopped with threads still running: Thread"):
        coord.join(threads, stop_grace_period_secs=0.05)
    coord.clear_stop()
    coord.request_stop()
    coord.join(threads, stop_grace_period_secs=0.05, ignore_live_threads=True)
    end.set()


def test_a_looper_runs_until_it_is_stopped():
    coord = tf.train.Coordinator()
    runs = []

    def count():
        runs.append(1)
        if len(runs) == 3:
            coord.request_stop()

    tf.train.LooperThread.loop(coord, 0.001, count)
    coord.join()
    assert len(runs) == 3
    with pytest.raises(ValueError, match="must be a Coordinator"):
        tf.train.LooperThread(None, 1)


# --- queue runners ----------------------------------------------------------------------------------------------------


def test_runners_fill_a_queue_until_the_coordinator_stops():
    counter = tf.Variable(0)
    q = tf.FIFOQueue(5, tf.int32, shapes=[[]])
    put = q.enqueue(tf.assign_add(counter, 1))
    tf.train.add_queue_runner(tf.train.QueueRunner(q, [put] * 2))
    got = q.dequeue()
    with tf.Session() as session:
        session.run(counter.initializer)
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coord)
        assert len(threads) == 3
        assert sorted(session.run(got) for _ in range(20)) == list(range(1, 21))
        (runner,) = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)
        assert runner.create_threads(session, coord) == []  # they run already
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=10)
        assert session.run(q.is_closed())


def test_when_the_data_end_the_queue_is_closed_behind_them():
    counter = tf.Variable(0)
    q = tf.FIFOQueue(100, tf.int32, shapes=[[]])
    put = q.enqueue(tf.count_up_to(counter, 7))
    runner = tf.train.QueueRunner(q, [put, put])
    with tf.Session() as session:
        session.run(counter.initializer)
        coord = tf.train.Coordinator()
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        got, taken = q.dequeue(), []
        with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insufficient elements"):
            while True:
                taken.append(session.run(got))
        assert sorted(taken) == list(range(7))
        coord.request_stop()
        coord.join(threads, stop_grace_period_secs=10)


def test_an_error_goes_to_the_coordinator():
    q = tf.FIFOQueue(10, tf.float32, shapes=[[]])
    put = q.enqueue(tf.placeholder(tf.float32, []))
    with tf.Session() as session:
        coord = tf.train.Coordinator()
        threads = tf.train.QueueRunner(q, [put]).create_threads(session, coord, daemon=True, start=True)
        with pytest.raises(tf.errors.InvalidArgumentError, match="must feed a value"):
            coord.join(threads, stop_grace_period_secs=10)


@pytest.mark.parametrize(("error", "closed"), [(tf.errors.UnavailableError, False), (tf.errors.InternalError, True)])
def test_queues_stay_open_for_who_goes_on_after_the_error(error, closed):
    q = tf.FIFOQueue(1, tf.float32, shapes=[[]])
    session = tf.Session()
    coord = tf.train.Coordinator(survived=(tf.errors.AbortedError, tf.errors.UnavailableError))
    threads = tf.train.QueueRunner(q, [q.enqueue(1.0)]).create_threads(session, coord, daemon=True, start=True)
    assert session.run(q.dequeue()) == 1.0
    coord.request_stop(error(None, None, "lost"))
    threads[-1].join(60)  # who closes queues at a stop
    assert not threads[-1].is_alive() and bool(session.run(q.is_closed())) == closed
    session.close()  # which ends the wait of who fills it
    with pytest.raises(error, match="lost"):
        coord.join(threads, stop_grace_period_secs=60)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_a_coordinator_errors_are_kept():
    q = tf.FIFOQueue(10, tf.float32, shapes=[[]])
    runner = tf.train.QueueRunner(q, [q.enqueue(tf.placeholder(tf.float32, []))])
    with tf.Session() as session:
        for t in runner.create_threads(session, start=True):
            t.join(10)
    assert [type(e) for e in runner.exceptions_raised] == [tf.errors.InvalidArgumentError]


def test_what_a_runner_needs():
    with pytest.raises(ValueError, match="Must provide queue and enqueue_ops"):
        tf.train.QueueRunner()
    q = tf.FIFOQueue(1, tf.int32)
    with pytest.raises(TypeError, match="subclasses of OpError"):
        tf.train.QueueRunner(q, [q.enqueue(1)], queue_closed_exception_types=(ValueError,))
    with pytest.raises(ValueError, match="No default session"):
        tf.train.start_queue_runners()


def test_a_session_that_is_closed_ends_a_runner_without_an_error(monkeypatch):
    """A monitored session closes its session when a task is lost; the runner's next step may begin after that."""
    queue = tf.FIFOQueue(10, tf.float32, shapes=[[]])
    runner = tf.train.QueueRunner(queue, [queue.enqueue(1.0)])
    coord, session = tf.train.Coordinator(), tf.Session()
    prepare = session._backend.prepare

    def late(*args):
        session.close()
        return prepare(*args)

    monkeypatch.setattr(session._backend, "prepare", late)
    (thread, *_) = runner.create_threads(session, coord=coord, start=True)
    thread.join(20)
    assert not thread.is_alive() and not coord.should_stop()
    coord.request_stop()
    coord.join()
