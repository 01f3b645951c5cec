"""Saving and restoring variables, which checkpoints are kept, and what a killed save leaves behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from saved_variables import variables

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


@pytest.mark.parametrize("step", [None, 7])
def test_what_is_saved_comes_back_and_needs_no_initialising(tmp_path, step):
    v, w = variables()
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"), global_step=step)
        assert saver.save(session, str(tmp_path / "new" / "m"), write_meta_graph=False)  # the folder is made
    assert path == str(tmp_path / "m") + ("" if step is None else "-7")
    assert tf.train.latest_checkpoint(str(tmp_path)) == path and tf.train.checkpoint_exists(path)
    with tf.Session() as session:
        report = saver.restore(session, path)
        assert report.restored == ("v", "w") and not report.problems
        a, b = session.run([v, w])
    np.testing.assert_array_equal(a, np.ones(4))
    assert b == 1
    assert Path(f"{path}.meta").is_file()


def test_the_step_may_be_a_variable_and_be_padded(tmp_path):
    variables()
    step = tf.train.get_or_create_global_step()
    saver = tf.train.Saver(pad_step_number=True)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(tf.assign(step, 12))
        assert saver.save(session, str(tmp_path / "m"), global_step=step).endswith("/m-00000012")
        size = len(tf.get_default_graph().nodes)
        assert saver.save(session, str(tmp_path / "m"), global_step=np.int64(3)).endswith("/m-00000003")
        assert len(tf.get_default_graph().nodes) == size  # a graph that is finished can be saved


def test_names_in_the_checkpoint_may_differ(tmp_path):
    v, _ = variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver({"other": v}).save(session, str(tmp_path / "m"))
    assert tf.train.list_variables(path) == [("other", [4])]
    assert tf.train.load_variable(str(tmp_path), "other:0").tolist() == [1, 1, 1, 1]
    with tf.Graph().as_default():
        u = tf.get_variable("u", [4])
        with tf.Session() as session:
            tf.train.Saver({"other": u}).restore(session, path)
            assert session.run(u).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(("saved", "restored"), [(3, 2), (2, 5), (1, 4), (4, 1)])
def test_a_variable_in_parts_is_restored_into_other_parts(tmp_path, saved, restored):
    def build(parts):
        return tf.get_variable("p", [10, 3], partitioner=tf.fixed_size_partitioner(parts) if parts > 1 else None)

    p = build(saved)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        value = session.run(tf.convert_to_tensor(p))
        path = tf.train.Saver().save(session, str(tmp_path / "m"))
    assert tf.train.list_variables(path) == [("p", [10, 3])]
    np.testing.assert_array_equal(tf.train.load_variable(path, "p"), value)
    with tf.Graph().as_default():
        p = build(restored)
        with tf.Session() as session:
            tf.train.Saver([p] if restored > 1 else None).restore(session, path)
            np.testing.assert_array_equal(session.run(tf.convert_to_tensor(p)), value)


def test_slots_of_an_optimizer_are_saved_too(tmp_path):
    v = tf.get_variable("v", initializer=np.zeros(3, np.float32))
    train = tf.train.AdamOptimizer(0.1).minimize(tf.reduce_sum(tf.square(v - 1.0)))
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        path = saver.save(session, str(tmp_path / "m"))
        session.run(train)
        expected = session.run(v)
    assert "v/Adam" in dict(tf.train.list_variables(path))
    with tf.Session() as session:
        saver.restore(session, path)
        session.run(train)
        np.testing.assert_array_equal(session.run(v), expected)


def test_variables_on_gpus_are_saved_by_their_tasks_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_EMULATE_GPUS", "1")
    with tf.device("/gpu:0"):
        v = tf.get_variable("v", initializer=np.arange(3, dtype=np.float32))
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = saver.save(session, str(tmp_path / "m"))
        session.run(tf.assign(v, v * 0))
        saver.restore(session, path)
        assert session.run(v).tolist() == [0, 1, 2]


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    with tf.Graph().as_default():
        variables()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            return tf.train.Saver().save(session, str(tmp_path / "m"))


def test_all_that_does_not_fit_is_told_at_once_and_nothing_changes(checkpoint):
    v = tf.get_variable("v", initializer=np.zeros(5, np.float32))
    w = tf.Variable(2.0, name="w")
    x = tf.Variable(3.0, name="x")
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.NotFoundError) as caught:
            saver.restore(session, checkpoint)
        assert str(caught.value).splitlines()[1:] == [
            "  Key x not found in checkpoint",
            "  v: the variable has shape (5,), the checkpoint (4,)",
            "  w: the variable holds float32, the checkpoint int32",
        ]
        with pytest.raises(tf.errors.InvalidArgumentError, match="the variable has shape"):
            tf.train.Saver([v]).restore(session, checkpoint)
        assert session.run([w, x]) == [2, 3]


def test_a_partial_restore_tells_what_it_left_out(checkpoint):
    v = tf.get_variable("v", initializer=np.zeros(4, np.float32))
    x = tf.Variable(3.0, name="x")
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        report = saver.restore(session, checkpoint, partial=True)
        assert (report.restored, report.missing, report.unused) == (("v",), ("x",), ("w",))
        assert str(report) == "1 restored\nKey x not found in checkpoint\nonly in the checkpoint: w"
        assert session.run(v).tolist() == [1, 1, 1, 1] and session.run(x) == 3
        size = len(tf.get_default_graph().nodes)
        saver.restore(session, checkpoint, partial=True)
        assert len(tf.get_default_graph().nodes) == size


def test_another_shape_of_the_same_size_is_restored_when_asked(checkpoint):
    v = tf.get_variable("v", [2, 2])
    with tf.Session() as session:
        tf.train.Saver(reshape=True).restore(session, checkpoint)
        assert session.run(v).tolist() == [[1, 1], [1, 1]]


def test_a_damaged_shard_is_an_error_of_the_step(checkpoint):
    (shard,) = Path(checkpoint).parent.glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    variables()
    with tf.Session() as session, pytest.raises(tf.errors.DataLossError, match=shard.name):
        tf.train.Saver().restore(session, checkpoint)


def test_wrong_uses_are_refused(tmp_path, checkpoint):
    with pytest.raises(ValueError, match="No variables to save"):
        tf.train.Saver()
    v, w = variables()
    with pytest.raises(ValueError, match="same name: a"):
        tf.train.Saver({"a": [v, v]})
    with pytest.raises(TypeError, match="not a Variable"):
        tf.train.Saver([tf.constant(1)])
    saver = tf.train.Saver()
    with tf.Session() as session:
        with pytest.raises(ValueError, match="doesn't exist, can't save"):
            saver.save(session, str(tmp_path / "none" / "deep" / "m"))
        with pytest.raises(ValueError, match="collides"):
            saver.save(session, str(tmp_path / "checkpoint"))
        with pytest.raises(ValueError, match="when it is None"):
            saver.restore(session, None)
        with pytest.raises(ValueError, match="not a valid checkpoint"):
            saver.restore(session, str(tmp_path / "other"))
        with pytest.raises(tf.errors.FailedPreconditionError, match="uninitialized"):
            saver.save(session, str(tmp_path / "m2"))
    assert not tf.train.checkpoint_exists(str(tmp_path / "m2"))


def test_checkpoints_can_be_confined_to_a_folder(tmp_path, monkeypatch, checkpoint):
    variables()
    saver = tf.train.Saver()
    monkeypatch.setenv("DOVETAIL_CHECKPOINT_DIR", str(tmp_path / "here"))
    (tmp_path / "here").mkdir()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        saver.save(session, str(tmp_path / "here" / "m"))
        for path in (tmp_path / "m2", tmp_path / "here" / ".." / "m2"):
            with pytest.raises(tf.errors.PermissionDeniedError, match="the only permitted folder"):
                saver.save(session, str(path))
        with pytest.raises(tf.errors.PermissionDeniedError):
            saver.restore(session, checkpoint)


def test_a_saver_may_be_built_later_or_be_empty(tmp_path):
    saver = tf.train.Saver(defer_build=True)
    variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(RuntimeError, match="`build\\(\\)` should be called before save"):
            saver.save(session, str(tmp_path / "m"))
        saver.build()
        assert saver.save(session, str(tmp_path / "m")) is not None
        with tf.Graph().as_default():
            empty = tf.train.Saver(allow_empty=True)
            assert empty.save(session, str(tmp_path / "nothing")) is None
            assert empty.restore(session, str(tmp_path / "nothing")).restored == ()
    with pytest.raises(ValueError, match="cannot be deferred"):
        tf.train.Saver([], defer_build=True)
