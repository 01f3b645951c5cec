"""What a monitored session is made of, and the session manager: readiness, waiting, recovery."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g
    tf.summary.FileWriterCache.clear()


# --- what a session is made of ----------------------------------------------------------------------------------------


def test_a_monitored_session_starts_queue_runners_itself_and_is_empty_when_closed():
    session = tf.train.SingularMonitoredSession()
    assert tf.train.start_queue_runners(session) == []
    with pytest.raises(TypeError, match=r"must be a tf\.Session"):
        tf.train.start_queue_runners(3)
    session.close()
    assert session.raw_session() is None


def test_names_without_an_output_and_writers_with_tensorflows_methods_do(caplog):
    op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    tf.constant(2.5, name="loss")
    written = []

    class Writer:
        def add_summary(self, summary, global_step=None):
            written.append((summary.value[0].tag, global_step))

        def flush(self):
            pass

    hooks = [
        tf.train.LoggingTensorHook({"p": "loss"}, every_n_iter=1),
        tf.train.StepCounterHook(every_n_steps=1, summary_writer=Writer()),
        tf.train.StopAtStepHook(num_steps=2),
    ]
    with caplog.at_level(logging.INFO, logger="dovetail"), tf.train.MonitoredSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run(op)
    assert any(r.getMessage().startswith("p = 2.5") for r in caplog.records)
    assert written == [("global_step/sec", 2)]


def test_a_checkpoint_hook_makes_its_folder_and_writes_the_graph(tmp_path: Path):
    op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    folder = tmp_path / "runs" / "1"
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(folder)) as session:
        session.run(op)
    assert 'name: "global_step"' in (folder / "graph.pbtxt").read_text()
    assert tf.train.latest_checkpoint(str(folder)) == str(folder / "model.ckpt-1")


def test_an_init_op_may_be_a_tensor():
    v = tf.Variable(1.0)
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(tf.train.Scaffold(init_op=v.assign(5.0)))) as session:
        assert session.run(v) == 5.0


def test_an_operation_can_say_whether_a_session_is_ready():
    v = tf.get_variable("v", initializer=1.0)
    manager = tf.train.SessionManager(ready_op=tf.assert_variables_initialized())
    with pytest.raises(RuntimeError, match="did not make model ready"):
        manager.prepare_session("", init_op=tf.no_op())
    with manager.prepare_session("", init_op=v.initializer) as session:
        assert session.run(v) == 1.0


def test_a_scaffold_takes_what_is_there_and_makes_the_rest(graph):
    v = tf.get_variable("v", [2])
    local = tf.Variable(1.0, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    mine = tf.no_op()
    graph.add_to_collection(tf.GraphKeys.LOCAL_INIT_OP, mine)
    called = []
    scaffold = tf.train.Scaffold(init_fn=lambda s, session: called.append((s, session)))
    assert scaffold.finalize() is scaffold
    assert scaffold.local_init_op is mine
    assert graph.get_collection(tf.GraphKeys.SAVERS) == [scaffold.saver]
    assert scaffold.summary_op is None
    with tf.Session() as session:
        assert session.run(scaffold.ready_op).tolist() == [b"v", b"Variable"]
        session.run([scaffold.init_op, local.initializer])
        scaffold.init_fn(session)
        assert called == [(scaffold, session)]
        assert session.run(scaffold.ready_op).tolist() == []
        assert session.run(v).shape == (2,)
    with tf.Graph().as_default() as other:
        tf.get_variable("v", [2])
        for _ in range(2):
            other.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver())
        with pytest.raises(RuntimeError, match="More than one item in the collection 'savers'"):
            tf.train.Scaffold().finalize()


# --- the session manager ----------------------------------------------------------------------------------------------


def test_preparing_needs_something_that_initialises():
    v = tf.get_variable("v", initializer=1.0)
    ready = tf.report_uninitialized_variables()
    init = tf.global_variables_initializer()
    nothing = tf.no_op()
    manager = tf.train.SessionManager(ready_op=ready)
    with pytest.raises(RuntimeError, match="Model is not initialized and no init_op"):
        manager.prepare_session("")
    with pytest.raises(RuntimeError, match=r"Init operations did not make model ready.*not initialized: v"):
        manager.prepare_session("", nothing)
    with manager.prepare_session("", init) as session:
        assert session.run(v) == 1
    with manager.prepare_session("", init_fn=lambda s: s.run(init)) as session:
        assert session.run(v) == 1
    with pytest.raises(ValueError, match="must also pass a local_init_op"):
        tf.train.SessionManager(ready_for_local_init_op=ready)
    local = tf.train.SessionManager(local_init_op=nothing, ready_for_local_init_op=ready)
    with pytest.raises(RuntimeError, match=r"did not make model ready for local_init.*not initialized: v"):
        local.prepare_session("", nothing)


def test_a_session_is_waited_for_until_the_time_is_over():
    tf.get_variable("v", initializer=1.0)
    manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), recovery_wait_secs=0.02)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"not ready after waiting 0.1 secs.*v"):
        manager.wait_for_session("", max_wait_secs=0.1)


def test_the_log_says_once_that_no_summaries_are_written(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch):
    def missing(folder: str) -> None:
        raise tf.errors.UnimplementedError(None, None, "tensorboardX is not installed")

    monkeypatch.setattr(tf.summary.FileWriterCache, "get", missing)
    op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path), save_summaries_steps=1) as session:
        session.run(op)
    assert caplog.text.count(f"No summaries are written to {tmp_path}") == 1


def test_the_log_says_how_far_variables_of_a_cluster_go_back(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    op = tf.assign_add(tf.train.get_or_create_global_step(), 1)
    saver, init = tf.train.Saver(), tf.global_variables_initializer()
    manager = tf.train.SessionManager()
    with tf.train.Server.create_local_server() as server:
        target = server.target
        with manager.prepare_session(target, init, saver, str(tmp_path)) as session:
            session.run(op)
            saver.save(session, str(tmp_path / "m"), global_step=1)
            session.run([op])
            session.run([op])
            with manager.prepare_session(target, init, saver, str(tmp_path)) as again:
                assert again.run(tf.train.get_global_step()) == 1
        assert f"Restored step 1 from {tmp_path / 'm-1'}; the variables on the cluster were at step 3" in caplog.text
        caplog.clear()
        with (
            manager.prepare_session("", init, saver, str(tmp_path)),
            manager.prepare_session(target, init, saver, str(tmp_path)),
        ):
            assert not caplog.text  # a session alone, and variables that are where the checkpoint is


def test_a_session_is_recovered_from_a_checkpoint(tmp_path: Path):
    v = tf.get_variable("v", initializer=1.0)
    saver, init = tf.train.Saver(), tf.global_variables_initializer()
    manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), recovery_wait_secs=0.02)
    session, ready = manager.recover_session("", saver, str(tmp_path))
    assert not ready
    session.run(init)
    v.load(5.0, session)
    saver.save(session, str(tmp_path / "m"), global_step=3)
    session.close()
    session, ready = manager.recover_session("", saver, str(tmp_path), wait_for_checkpoint=True)
    assert ready and session.run(v) == 5
    session.close()
    with manager.prepare_session("", init, saver, checkpoint_filename_with_path=str(tmp_path / "m-3")) as session:
        assert session.run(v) == 5
    with pytest.raises(ValueError, match="Can not provide both"):
        manager.prepare_session("", init, saver, str(tmp_path), str(tmp_path / "m-3"))
