"""Monitored sessions and their hooks, in this process: order of calls, ends, errors, recovery, what is refused."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf
from dovetail.train.loops.basic_session_run_hooks import SecondOrStepTimer


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g
    tf.summary.FileWriterCache.clear()


def counting():
    """A training op that counts, its step."""
    step = tf.train.get_or_create_global_step()
    return tf.assign_add(step, 1), step


class Recorder(tf.train.SessionRunHook):
    def __init__(self, name: str, told: list[str], fetches: Any = None, stop_at: int | None = None) -> None:
        self.name, self.told, self.fetches, self.stop_at, self.runs = name, told, fetches, stop_at, 0

    def begin(self):
        self.told.append(f"{self.name} begin")

    def after_create_session(self, session, coord):
        self.told.append(f"{self.name} created")

    def before_run(self, run_context):
        self.told.append(f"{self.name} before")
        return None if self.fetches is None else tf.train.SessionRunArgs(self.fetches)

    def after_run(self, run_context, run_values):
        self.runs += 1
        self.told.append(f"{self.name} after {run_values.results}")
        if self.runs == self.stop_at:
            run_context.request_stop()

    def end(self, session):
        self.told.append(f"{self.name} end {session.run(tf.train.get_global_step())}")


def test_hooks_are_called_in_order_and_get_what_they_fetched():
    op, _ = counting()
    told: list[str] = []
    b = tf.constant(7.0)
    hooks = [Recorder("a", told), Recorder("b", told, fetches=b, stop_at=2)]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        values = []
        while not session.should_stop():
            values.append(session.run(op))
    assert values == [1, 2]
    one = ["a before", "b before", "a after None", "b after 7.0"]
    assert told == ["a begin", "b begin", "a created", "b created", *one, *one, "a end 2", "b end 2"]


def test_steps_are_parsed_once_where_hooks_fetch_nothing(monkeypatch: pytest.MonkeyPatch):
    op, _ = counting()
    hook = Recorder("a", [])
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(op)
        monkeypatch.setattr("dovetail.runtime.session.session.parse_fetches", None)
        assert session.run(op) == 2
        monkeypatch.undo()
        hook.fetches = op
        assert session.run(op) == 3


def test_after_a_stop_nothing_runs_and_a_closed_session_says_so():
    op, _ = counting()
    session = tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(num_steps=1)])
    session.run(op)
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="Run called even after should_stop requested"):
        session.run(op)
    session.close()
    assert session.should_stop()
    with pytest.raises(RuntimeError, match="already closed"):
        session.run(op)
    with pytest.raises(RuntimeError, match="already closed"):
        session.close()


def test_an_error_passes_through_and_hooks_get_no_end():
    op, _ = counting()
    told: list[str] = []
    with pytest.raises(ZeroDivisionError), tf.train.MonitoredSession(hooks=[Recorder("a", told)]) as session:
        session.run(op)
        raise ZeroDivisionError
    assert told == ["a begin", "a created", "a before", "a after None"]


@pytest.mark.parametrize("error", [StopIteration, lambda: tf.errors.OutOfRangeError(None, None, "the end")])
def test_the_end_of_the_input_is_an_ordinary_end(error):
    op, _ = counting()
    told: list[str] = []
    with tf.train.MonitoredSession(hooks=[Recorder("a", told)]) as session:
        session.run(op)
        raise error()
    assert told[-1] == "a end 1"


def test_the_graph_is_finalised_while_the_session_is_open(graph):
    op, _ = counting()
    with tf.train.MonitoredSession() as session:
        session.run(op)
        with pytest.raises(RuntimeError, match="finalized"):
            tf.constant(1.0)
    tf.constant(1.0)


def test_one_tensor_is_fed_by_one_only():
    x = tf.placeholder(tf.float32, [])
    y = x + 1
    counting()
    feed = tf.train.FeedFnHook(lambda: {x: 1.0})
    with tf.train.MonitoredSession(hooks=[feed]) as session:
        assert session.run(y) == 2
        with pytest.raises(RuntimeError, match="Same tensor is fed"):
            session.run(y, {x: 3.0})
    two = tf.train.MonitoredSession(hooks=[feed, tf.train.FeedFnHook(lambda: {x: 2.0})])
    with two as session, pytest.raises(RuntimeError, match="Same tensor is fed"):
        session.run(y)


class Failing(tf.train.SessionRunHook):
    """Lets steps fail as if a task had died."""

    def __init__(self, at: list[int]) -> None:
        self.at, self.runs = at, 0

    def before_run(self, run_context):
        self.runs += 1
        if self.runs in self.at:
            raise tf.errors.AbortedError(None, None, "a task was restarted")


def test_a_lost_task_means_a_new_session_restored_from_the_checkpoint(tmp_path: Path):
    op, step = counting()
    told: list[str] = []
    save = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2)
    scaffold = tf.train.Scaffold(saver=tf.train.Saver())
    save._scaffold = scaffold
    creator = tf.train.ChiefSessionCreator(scaffold, checkpoint_dir=str(tmp_path))
    hooks = [Recorder("a", told), save, Failing([4, 9])]
    with tf.train.MonitoredSession(creator, hooks) as session:
        seen = [int(session.run(op)) for _ in range(8)]
    # Saved at 0, 2, 4, ...: the fourth step finds step 3 lost, and goes on from 2.
    assert seen == [1, 2, 3, 3, 4, 5, 6, 7]
    assert told.count("a created") == 3 and told.count("a begin") == 1


def test_steps_go_on_beside_a_save_in_the_background(tmp_path: Path):
    op, _ = counting()
    written, told = threading.Event(), []

    class Slow(tf.train.CheckpointSaverListener):
        def before_save(self, session, step):
            told.append(step)
            if step == 2:
                assert written.wait(20)
            if step == 6:
                raise tf.errors.UnavailableError(None, None, "a task was lost")

        def after_save(self, session, step):
            return step == 8

    saver = tf.train.CheckpointSaverHook(
        str(tmp_path), save_steps=2, saver=tf.train.Saver(), listeners=[Slow()], in_background=True
    )

    def saved(step: int) -> None:
        """Run steps until that one; its save is made then."""
        while session.run(op) < step:
            pass
        if saver._running is not None:
            saver._running.exception(20)

    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(checkpoint_dir=str(tmp_path)), [saver]) as session:
        assert [int(session.run(op)) for _ in range(5)] == [1, 2, 3, 4, 5]  # while 2 is saved
        assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0") and told == [0, 2]
        written.set()
        assert saver._running is not None and saver._running.exception(20) is None
        saved(6)
        assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-2")
        saved(8)  # that of 6 has failed, which is a word in the log
        session.run(op)  # finds that the save of 8 wants to stop
        assert session.should_stop()
    assert told == [0, 2, 6, 8, 9]
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-9")


def test_a_singular_session_ends_instead():
    op, _ = counting()
    with pytest.raises(tf.errors.AbortedError), tf.train.SingularMonitoredSession([Failing([2])]) as session:
        assert isinstance(session.raw_session(), tf.Session)
        session.run(op)
        session.run(op)


def test_checkpoints_are_saved_at_the_start_every_so_often_and_at_the_end_and_training_goes_on_from_there(
    tmp_path: Path,
):
    told: list[Any] = []

    class Listener(tf.train.CheckpointSaverListener):
        def begin(self):
            told.append("begin")

        def before_save(self, session, step):
            told.append(("before", step))

        def after_save(self, session, step):
            told.append(("after", step))
            return step >= 4

        def end(self, session, step):
            told.append(("end", step))

    def train(steps):
        with tf.Graph().as_default():
            op, _ = counting()
            saver = tf.train.CheckpointSaverHook(
                str(tmp_path), save_steps=3, saver=tf.train.Saver(), listeners=[Listener()]
            )
            hooks = [saver, tf.train.StopAtStepHook(num_steps=steps)]
            creator = tf.train.ChiefSessionCreator(checkpoint_dir=str(tmp_path))
            with tf.train.MonitoredSession(creator, hooks) as session:
                while not session.should_stop():
                    last = session.run(op)
        return last

    assert train(2) == 2
    assert told == ["begin", ("before", 0), ("after", 0), ("before", 2), ("after", 2), ("end", 2)]
    del told[:]
    assert train(10) == 5  # from 2; saved at 5, where the listener stops it
    assert told == ["begin", ("before", 5), ("after", 5), ("end", 5)]
    with pytest.raises(ValueError, match="exactly one"):
        tf.train.CheckpointSaverHook(str(tmp_path))
    with pytest.raises(RuntimeError, match="Global step should be created"):
        tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1).begin()


def test_a_step_that_goes_back_is_logged(caplog: pytest.LogCaptureFixture):
    """Another task restores a checkpoint, or initialises: this one goes on, and says so once."""
    op, step = counting()
    with tf.train.MonitoredSession(hooks=[tf.train.StopAtStepHook(last_step=100)]) as session:
        for _ in range(5):
            session.run(op)
        session.run_step_fn(lambda context: context.session.run(step.initializer))
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                session.run(op)
    said = [r.getMessage() for r in caplog.records if "went back" in r.getMessage()]
    assert len(said) == 1 and said[0].endswith("Training continues from there")


def test_nan_stops(tmp_path: Path):
    x = tf.placeholder(tf.float32, [])
    loss = x * 1
    counting()
    with tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(loss)]) as session:
        session.run(loss, {x: 1.0})
        with pytest.raises(tf.train.NanLossDuringTrainingError, match="NaN loss"):
            session.run(loss, {x: np.nan})
    with tf.train.MonitoredSession(hooks=[tf.train.NanTensorHook(loss, fail_on_nan_loss=False)]) as session:
        session.run(loss, {x: np.nan})
        assert session.should_stop()


def test_values_and_rates_are_logged(caplog: pytest.LogCaptureFixture):
    op, step = counting()
    hooks = [
        tf.train.LoggingTensorHook({"step": op}, every_n_iter=2, at_end=True),
        tf.train.StepCounterHook(every_n_steps=2),
        tf.train.StopAtStepHook(last_step=5),
    ]
    with caplog.at_level(logging.INFO, logger="dovetail"), tf.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run(op)
    lines = [r.getMessage().partition(" (")[0] for r in caplog.records]
    assert [line for line in lines if line.startswith("step")] == ["step = 1", "step = 3", "step = 5", "step = 6"]
    assert any(line.startswith("global_step/sec: ") for line in lines)
    with pytest.raises(ValueError, match="exactly one"):
        tf.train.LoggingTensorHook([op], every_n_iter=1, every_n_secs=1)
    with pytest.raises(ValueError, match="invalid"):
        tf.train.LoggingTensorHook([op], every_n_iter=0)


def test_a_step_that_nobody_counts_is_told(caplog: pytest.LogCaptureFixture):
    tf.train.get_or_create_global_step()
    value = tf.constant(1.0) + 1.0
    with tf.train.MonitoredSession(hooks=[tf.train.StepCounterHook(every_n_steps=100)]) as session:
        for _ in range(50):
            session.run(value)
    told = [r for r in caplog.records if "has not been increased" in r.getMessage()]
    assert len(told) == 2 and told[0].levelno == logging.WARNING


def test_a_timer_counts_steps_or_seconds():
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(7)
    assert timer.update_last_triggered_step(7) == (None, None)
    assert [timer.should_trigger_for_step(s) for s in (7, 9, 10, 12)] == [False, False, True, True]
    assert timer.update_last_triggered_step(12)[1] == 5
    assert timer.last_triggered_step() == 12
    hours = SecondOrStepTimer(every_secs=3600)
    hours.update_last_triggered_step(1)
    assert not hours.should_trigger_for_step(1000)
    hours.reset()
    assert hours.should_trigger_for_step(1)
    for wrong in ({}, {"every_secs": 1, "every_steps": 1}):
        with pytest.raises(ValueError, match="exactly one"):
            SecondOrStepTimer(**wrong)


def test_final_ops_run_at_the_end():
    op, step = counting()
    final = tf.train.FinalOpsHook(step)
    with tf.train.MonitoredSession(hooks=[final]) as session:
        session.run(op)
        session.run(op)
    assert final.final_ops_values == 2


def test_a_late_worker_waits_for_a_step():
    op, step = counting()
    told = []
    with tf.train.MonitoredSession(hooks=[tf.train.GlobalStepWaiterHook(3)]) as session:
        raw = session._live.session

        def others():
            for _ in range(3):
                told.append(int(raw.run(op)))

        thread = threading.Thread(target=others)
        thread.start()
        assert session.run(step) >= 3
        thread.join()
    assert told == [1, 2, 3]


def test_an_error_in_a_thread_ends_the_step_that_waits_for_it():
    counting()
    queue = tf.FIFOQueue(2, tf.float32, shapes=[[]])
    x = tf.placeholder_with_default(np.float32(0), [])
    bad = queue.enqueue(tf.cond(x > 1, lambda: x, lambda: tf.Print(tf.reciprocal(x), []) + tf.gather([1.0], [5])[0]))
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [bad]))
    taken = queue.dequeue()
    with pytest.raises(tf.errors.InvalidArgumentError), tf.train.MonitoredSession() as session:
        session.run(taken)


def test_queue_runners_are_started_and_stopped():
    counting()
    counter = tf.Variable(0)
    queue = tf.FIFOQueue(2, tf.int32, shapes=[[]])
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(tf.assign_add(counter, 1))]))
    taken = queue.dequeue()

    def running() -> list[str]:  # other threads, such as a compiler's, come and go by themselves
        return [t.name for t in threading.enumerate() if t.name.startswith("QueueRunnerThread")]

    with tf.train.MonitoredSession() as session:
        assert [session.run(taken) for _ in range(5)] == [1, 2, 3, 4, 5]
        assert running()
    assert not running()


def test_step_functions_run_with_and_without_hooks():
    op, step = counting()
    told: list[str] = []
    with tf.train.MonitoredSession(hooks=[Recorder("a", told)]) as session:

        def work(context):
            context.session.run(op)
            return context.run_with_hooks(op)

        assert session.run_step_fn(work) == 2
        assert told == ["a begin", "a created", "a before", "a after None"]
        with pytest.raises(ValueError, match="may either have one `step_context` argument"):
            session.run_step_fn(lambda context, more: None)
        with pytest.raises(StopIteration):
            session.run_step_fn(lambda context: context.request_stop())
        assert not session.should_stop()
        session.run_step_fn(lambda context: context.request_stop())
        told.append("not reached")
    assert told[-1] == "a end 2"


# --- errors of threads ------------------------------------------------------------------------------------------------


class LostBySideThread(tf.train.SessionRunHook):
    """A side thread tells the coordinator of a lost task after the second step, which then fails otherwise, if `then` says so."""

    def __init__(self, then: Exception | None) -> None:
        self.then, self.left = then, 2

    def after_create_session(self, session, coord):
        self.coord = coord

    def after_run(self, run_context, run_values):
        self.left -= 1
        if self.left == 0:
            lost = tf.errors.AbortedError(None, None, "gone")
            thread = threading.Thread(target=self.coord.request_stop, args=(lost,))
            thread.start()
            thread.join()
            if self.then is not None:
                raise self.then


class CountingCreator:
    def __init__(self) -> None:
        self.made = 0

    def create_session(self) -> tf.Session:
        self.made += 1
        return tf.Session()


@pytest.mark.parametrize("then", [tf.errors.CancelledError, tf.errors.OutOfRangeError, None])
@pytest.mark.parametrize("by", ["run", "run_step_fn"])
def test_a_task_that_a_thread_has_lost_means_a_new_session_however_the_step_fails(then, by):
    value, creator = tf.identity(tf.constant(3)), CountingCreator()
    hook = LostBySideThread(None if then is None else then(None, None, "the session is closed"))
    with tf.train.MonitoredSession(creator, [hook]) as session:
        for _ in range(2):
            found = session.run(value) if by == "run" else session.run_step_fn(lambda c: c.run_with_hooks(value))
            assert found == 3
        assert not session.should_stop()
        assert creator.made == 2
        assert session.run(value) == 3


def test_another_error_of_a_thread_does_not_hide_a_hooks():
    class Failed(tf.train.SessionRunHook):
        def after_create_session(self, session, coord):
            self.coord = coord

        def after_run(self, run_context, run_values):
            self.coord.request_stop(ValueError("a thread's"))
            raise KeyError("mine")

    value = tf.identity(tf.constant(3))
    session = tf.train.MonitoredSession(hooks=[Failed()])
    with pytest.raises(KeyError, match="mine"):
        session.run(value)
    with pytest.raises(ValueError, match="a thread's"):
        session.close()
