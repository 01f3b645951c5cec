"""Saving and restoring variables, which checkpoints are kept, and what a killed save leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.device import DeviceSpec
from dovetail.graph.resources.chunked_snapshot import ChunkedSnapshot
from dovetail.graph.resources.variable import VariableState, read_together, update_together


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def variables(value=1.0):
    v = tf.get_variable("v", initializer=np.full(4, value, np.float32))
    w = tf.Variable(int(value), name="w", use_resource=True)
    return v, w


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
            with pytest.raises(tf.errors.PermissionDeniedError, match="the only folder for them"):
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


# --- which are kept ---------------------------------------------------------------------------------------------------


def test_the_last_ones_are_kept_and_the_others_removed(tmp_path):
    variables()
    saver = tf.train.Saver(max_to_keep=2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        paths = [saver.save(session, str(tmp_path / "m"), global_step=i) for i in range(4)]
        assert saver.last_checkpoints == paths[2:]
        assert [tf.train.checkpoint_exists(p) for p in paths] == [False, False, True, True]
        state = tf.train.get_checkpoint_state(str(tmp_path))
        assert state.model_checkpoint_path == paths[3] and state.all_model_checkpoint_paths == paths[2:]
        assert len(state.all_model_checkpoint_timestamps) == 2
        assert sorted(p.name.partition(".")[0] for p in tmp_path.glob("m-*")) == ["m-2"] * 3 + ["m-3"] * 3
        again = tf.train.Saver(max_to_keep=2)
        again.recover_last_checkpoints([paths[0], *state.all_model_checkpoint_paths])
        assert again.last_checkpoints == paths[2:]
        again.save(session, str(tmp_path / "m"), global_step=4)
        assert not tf.train.checkpoint_exists(paths[2])


def test_a_saver_is_made_again_from_its_definition(tmp_path):
    v, _ = variables()
    saver = tf.train.Saver({"mine": v}, max_to_keep=2, sharded=True, keep_checkpoint_every_n_hours=3)
    told = saver.as_saver_def()
    assert (told.max_to_keep, told.sharded, told.keep_checkpoint_every_n_hours) == (2, True, 3)
    graph = tf.get_default_graph()
    again = tf.train.Saver(saver_def=told)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        size = len(graph.nodes)
        paths = [again.save(session, str(tmp_path / "m"), global_step=i) for i in range(3)]
        assert again.last_checkpoints == paths[1:] and saver.last_checkpoints == []
        assert tf.train.list_variables(paths[2]) == [("mine", [4])]
        session.run(tf.assign(v, tf.zeros(4)))
        again.restore(session, paths[2])
        assert session.run(v).tolist() == [1, 1, 1, 1]
        session.run(told.restore_op_name, {told.filename_tensor_name: paths[1]})
        assert len(graph.nodes) == size + 2  # the assignment above
    with tf.Graph().as_default(), pytest.raises(ValueError, match="has no saver whose file name is"):
        tf.train.Saver(saver_def=told)


def test_a_list_of_checkpoints_may_be_indented_and_names_one(tmp_path):
    (tmp_path / "checkpoint").write_text(
        '  model_checkpoint_path : "./m-2"\n  all_model_checkpoint_paths: "/abs/m-1"\n'
    )
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert state.model_checkpoint_path == f"{tmp_path}/./m-2" and state.all_model_checkpoint_paths == ["/abs/m-1"]
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(ValueError, match="Invalid checkpoint state loaded from"):
        tf.train.get_checkpoint_state(str(tmp_path))
    made = tf.train.generate_checkpoint_state_proto("runs/1", "runs/1/m-2", ["runs/1/m-1", "/abs/m-0"])
    assert made.model_checkpoint_path == "m-2" and made.all_model_checkpoint_paths == ["m-1", "/abs/m-0", "m-2"]
    with pytest.raises(ValueError, match="one timestamp per path"):
        tf.train.generate_checkpoint_state_proto("runs/1", "m", ["m"], [1.0, 2.0])


def test_one_in_so_many_hours_is_kept_for_good(tmp_path, monkeypatch):
    variables()
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    saver = tf.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        paths = []
        for i in range(8):
            paths.append(saver.save(session, str(tmp_path / "m"), global_step=i))
            now[0] += 1200
    assert [i for i, p in enumerate(paths) if tf.train.checkpoint_exists(p)] == [4, 7]


def test_all_are_kept_when_no_number_is_said(tmp_path):
    variables()
    saver = tf.train.Saver(max_to_keep=None)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        paths = [saver.save(session, str(tmp_path / "m"), global_step=i) for i in range(7)]
    assert all(map(tf.train.checkpoint_exists, paths)) and tf.train.latest_checkpoint(str(tmp_path)) == paths[-1]


def test_a_folder_may_be_moved_when_paths_are_relative(tmp_path):
    variables()
    (tmp_path / "a").mkdir()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        tf.train.Saver(save_relative_paths=True).save(session, str(tmp_path / "a" / "m"), global_step=1)
    (tmp_path / "a").rename(tmp_path / "b")
    assert tf.train.latest_checkpoint(str(tmp_path / "b")) == str(tmp_path / "b" / "m-1")
    assert tf.train.latest_checkpoint(str(tmp_path / "a")) is None


def test_a_checkpoint_that_the_file_names_and_that_is_gone_is_passed_over(tmp_path):
    variables()
    saver = tf.train.Saver()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        paths = [saver.save(session, str(tmp_path / "m"), global_step=i) for i in range(2)]
    tf.train.remove_checkpoint(paths[1])
    assert tf.train.latest_checkpoint(str(tmp_path)) == paths[0]
    for broken in ("model_checkpoint_path: broken", "no field", "\x00\x01", "model_checkpoint_path: 3"):
        (tmp_path / "checkpoint").write_text(broken)
        assert tf.train.get_checkpoint_state(str(tmp_path)) is None
        assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_the_file_names_a_path_of_any_letters_as_tensorflow_does(tmp_path):
    folder = tmp_path / 'é "q" \\users'
    folder.mkdir()
    variables()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        path = tf.train.Saver().save(session, str(folder / "модель"))
    assert tf.train.latest_checkpoint(str(folder)) == path
    shown = path.replace("\\", "\\\\").replace('"', '\\"')
    octal = "".join(c if c.isascii() else "".join(f"\\{b:03o}" for b in c.encode()) for c in shown)
    assert (folder / "checkpoint").read_text("utf-8").startswith(f'model_checkpoint_path: "{shown}"\n')
    (folder / "checkpoint").write_text(f'model_checkpoint_path: "{octal}"\n')  # as TensorFlow 1 writes it
    assert tf.train.latest_checkpoint(str(folder)) == path


def test_saves_of_one_path_in_two_threads_take_turns(tmp_path):
    v, w = variables()
    savers = [tf.train.Saver(), tf.train.Saver()]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        failed = []

        def save(saver):
            try:
                for _ in range(5):
                    saver.save(session, str(tmp_path / "m"), write_meta_graph=False)
            except Exception as e:
                failed.append(e)

        threads = [threading.Thread(target=save, args=(saver,)) for saver in savers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failed
        savers[0].restore(session, tf.train.latest_checkpoint(str(tmp_path)))
    assert len(list(tmp_path.iterdir())) == 3  # the list, the manifest, one shard


def test_a_full_disk_fails_the_save_and_leaves_what_was_there(tmp_path):
    """Files of this process may have 200 kB: the second save is larger."""
    code = """
import pathlib, resource, sys
import numpy as np
import dovetail as tf

folder = pathlib.Path(sys.argv[1])
v = tf.get_variable("v", initializer=np.ones(100_000, np.float32))
small = tf.train.Saver([tf.get_variable("w", initializer=np.ones(10, np.float32))])
large = tf.train.Saver([v])
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    small.save(session, str(folder / "m"))
    before = sorted(p.name for p in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        large.save(session, str(folder / "m"))
    except tf.errors.ResourceExhaustedError as e:
        print(e)
    assert sorted(p.name for p in folder.iterdir()) == before
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "DOVETAIL_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert str(tmp_path / "m.data-00000-of-00001") in done.stdout and "4000" in done.stdout


def test_a_consistent_save_has_all_variables_of_one_step(tmp_path):
    """Two threads train; a step changes one variable at its beginning and the other at its end."""
    entered, go = threading.Event(), threading.Event()

    def wait(x):
        entered.set()
        go.wait(20)
        return x

    v, w = tf.Variable(0.0, name="v"), tf.Variable(0.0, name="w", use_resource=True)
    with tf.control_dependencies([tf.assign_add(v, 1.0)]):
        slow = tf.py_func(wait, [tf.constant(1.0)], tf.float32)
    slow.set_shape([])
    step = tf.group(w.assign_add(slow))
    quick = tf.group(tf.assign_add(v, 1.0), w.assign_add(1.0))
    queue = tf.FIFOQueue(10, tf.float32)
    put, count = queue.enqueue(tf.train.limit_epochs(1.0, 3)), queue.size()
    saver = tf.train.Saver(consistent=True)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(quick)
        training = threading.Thread(target=session.run, args=(step,))
        training.start()
        entered.wait(20)
        saving = threading.Thread(
            target=saver.save, args=(session, str(tmp_path / "m")), kwargs={"write_meta_graph": False}
        )
        saving.start()
        saving.join(0.1)
        assert saving.is_alive()  # it waits for the step
        session.run(put)  # which may wait for one that changes no variables
        assert session.run(count) == 1
        go.set()
        training.join()
        saving.join()
        reader = tf.train.load_checkpoint(str(tmp_path))
        assert reader.get_tensor("v") == reader.get_tensor("w") == 2.0


def test_the_variables_of_a_server_are_read_at_one_moment():
    a, b = (VariableState(n, tf.float32) for n in "ab")
    for state in (a, b):
        state.assign(np.zeros(1000, np.float32))
    end = threading.Event()

    def change():
        while not end.is_set():
            update_together([b, a], lambda x, y: (x + 1, y + 1))

    thread = threading.Thread(target=change)
    thread.start()
    for _ in range(300):
        x, y = read_together([a, b])
        assert x[0] == x[-1] == y[0]
    end.set()
    thread.join()
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        variables = [tf.get_variable(n, initializer=[float(i)], use_resource=i == 2) for i, n in enumerate("abcd")]
    with tf.device("/job:worker/task:1"):
        tf.train.Saver(variables, consistent=True)
    nodes = [n for n in tf.get_default_graph().nodes if n.type == "ReadTogether"]
    assert [[t.op.name for t in n.inputs] for n in nodes] == [["a", "c"], ["b", "d"]]
    assert [n.device for n in nodes] == ["/job:ps/task:0", "/job:ps/task:1"]


def test_steps_wait_while_a_block_lies_between_them():
    v = tf.Variable(0.0)
    add = tf.assign_add(v, 1.0)
    with tf.Session() as session:
        session.run(v.initializer)
        with session.between_steps():
            others = [threading.Thread(target=session.run, args=(add.op,)) for _ in range(3)]
            for thread in others:
                thread.start()
            others[0].join(0.1)
            assert all(t.is_alive() for t in others)
            session.run(add.op)  # this thread's own
            assert session.run(v) == 1.0
        for thread in others:
            thread.join()
        assert session.run(v) == 4.0
        started, end = threading.Event(), threading.Event()
        with tf.control_dependencies([add.op]):
            held = tf.py_func(lambda: (started.set(), end.wait(20), np.float32(0))[2], [], tf.float32)
        thread = threading.Thread(target=session.run, args=(held,))
        thread.start()
        started.wait(20)
        with (
            pytest.raises(tf.errors.DeadlineExceededError, match="no moment between steps"),
            session.between_steps(0.05),
        ):
            pass
        end.set()
        thread.join()
        assert session.run(add) == 6.0  # the gate is open again


# --- killed at every point --------------------------------------------------------------------------------------------

_SAVES = """
import itertools, os, sys
import numpy as np
import dovetail as tf
from dovetail.graph.formats import atomic_files

folder, fault, same = sys.argv[1], sys.argv[2], sys.argv[3] == "same"
v = tf.get_variable("v", initializer=np.zeros(1000, np.float32))
w = tf.Variable(0, name="w")
fill = [tf.assign(v, v + 1), tf.assign(w, w + 1)]
saver = tf.train.Saver(max_to_keep=1)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(fill)
    saver.save(session, folder + "/m", None if same else 1)
    session.run(fill)
    atomic_files._points = itertools.count(1)  # from here on they are counted
    os.environ["DOVETAIL_FAULTS"] = fault
    saver.save(session, folder + "/m", None if same else 2)
    print(next(atomic_files._points))
"""


def _save_twice(folder: Path, fault: str, same: bool) -> subprocess.CompletedProcess:
    folder.mkdir()
    return subprocess.run(
        [sys.executable, "-c", _SAVES, str(folder), fault, "same" if same else "next"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "DOVETAIL_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True], ids=["another name", "the same name"])
def test_a_save_that_is_killed_at_any_point_loses_nothing(tmp_path, same):
    """Each point of the second save once: the process is killed there, and another one restores."""
    whole = _save_twice(tmp_path / "whole", "", same)
    assert whole.returncode == 0, whole.stderr
    points = int(whole.stdout) - 1
    assert points > 20  # shard, manifest, graph, list of checkpoints: six each; and removals
    v, w = variables()
    v = tf.get_variable("v2", [1000])
    saver = tf.train.Saver({"v": v, "w": w})
    seen = set()
    with tf.Session() as session:
        for n in range(1, points + 1):
            folder = tmp_path / str(n)
            killed = _save_twice(folder, f"save:{n}", same)
            assert killed.returncode == -signal.SIGKILL, (n, killed.stderr)
            latest = tf.train.latest_checkpoint(str(folder))
            assert latest is not None, n
            saver.restore(session, latest)
            a, b = session.run([v, w])
            assert a.min() == a.max() == b and b in (1, 2), n
            seen.add(int(b))
            # The next save goes well, and clears away what the killed one left.
            saver.save(session, str(folder / "m"), None if same else 3)
            left = {p.name.split(".data-")[0] for p in folder.glob("*.safetensors*")}
            assert all(tf.train.checkpoint_exists(str(folder / name)) for name in left), n
            if same:
                assert len(list(folder.glob("*.safetensors*"))) == 1, n
    assert seen == {1, 2}


def test_devices_of_shards_are_the_cpus_of_the_variables_tasks():
    with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        a, b = tf.get_variable("a", [2]), tf.get_variable("b", [2])
    with tf.device("/job:ps/task:1/device:GPU:0"):
        c = tf.get_variable("c", [2])
    with tf.device("/job:worker/task:3"):  # where the saver is made does not matter
        tf.train.Saver([a, b, c])
    found = {n.device: n.get_attr("tensor_names") for n in tf.get_default_graph().nodes if n.type == "SaveV2"}
    assert found == {"/job:ps/task:0/device:CPU:0": ("a",), "/job:ps/task:1/device:CPU:0": ("b", "c")}
    restores = {n.device for n in tf.get_default_graph().nodes if n.type == "RestoreV2"}
    assert restores == set(found)
    assert DeviceSpec.from_string(c.device).device_type == "GPU"


@pytest.mark.parametrize(("use_resource", "consistent"), [(False, False), (True, False), (True, True)])
def test_updates_of_rows_during_a_save_copy_no_variable(tmp_path, monkeypatch, use_resource, consistent):
    with tf.device("/job:local/task:0"):
        table = tf.get_variable("table", [1 << 14, 128], initializer=tf.zeros_initializer(), use_resource=use_resource)
        at = tf.placeholder(tf.int32, [4])
        add = table.scatter_add(tf.IndexedSlices(tf.ones([4, 128]), at))
        saver = tf.train.Saver(consistent=consistent)
    begun, goes_on, copied = threading.Event(), threading.Event(), []
    chunks = ChunkedSnapshot.chunks

    def slowly(self):
        for number, chunk in enumerate(chunks(self)):
            yield chunk
            if number == 2:
                begun.set()
                assert goes_on.wait(30)

    with (
        tf.train.Server.create_local_server() as server,
        tf.Session(server.target) as session,
        tf.Session(server.target) as other,
    ):
        session.run(tf.global_variables_initializer())
        session.run(add, {at: [0, 1, 2, 1 << 13]})
        before = session.run(table).copy()
        session.run(add.op, {at: [0, 0, 0, 0]})  # a copy, if the client's value was the variable's
        session.run(add.op, {at: [1, 1, 1, 1]})
        before[0] += 4
        before[1] += 4
        monkeypatch.setattr(ChunkedSnapshot, "chunks", slowly)
        monkeypatch.setattr(
            "dovetail.graph.resources.variable.kept_copy", lambda value: copied.append(1) or np.array(value)
        )
        thread = threading.Thread(target=saver.save, args=(session, str(tmp_path / "m")))
        thread.start()
        try:
            assert begun.wait(30)
            for i in range(5):
                other.run(add.op, {at: [i, 1 << 13, (1 << 14) - 1, (1 << 14) - 1 - i]})
            assert not copied
        finally:
            goes_on.set()
            thread.join()
        assert not np.array_equal(session.run(table), before)
        saver.restore(session, str(tmp_path / "m"))
        np.testing.assert_array_equal(session.run(table), before)


def test_a_save_beside_updates_of_a_cluster_is_of_one_moment(tmp_path):
    with tf.LocalCluster({"ps": 1, "worker": 1}) as cluster:
        with tf.device(tf.train.replica_device_setter(cluster=cluster.cluster_spec)):
            table = tf.get_variable("table", [1 << 14, 128], initializer=tf.zeros_initializer())
        at = tf.placeholder(tf.int32, [4])
        add = tf.scatter_add(table, at, tf.ones([4, 128])).op
        saver = tf.train.Saver(max_to_keep=None)
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.global_variables_initializer())
            steps, paths = 0, []
            for number in range(4):
                thread = threading.Thread(
                    target=lambda n=number: paths.append(saver.save(session, str(tmp_path / "m"), n))
                )
                thread.start()
                while thread.is_alive():
                    session.run(add, {at: [0, steps % 1000 + 1, (1 << 14) - 2 - steps % 1000, (1 << 14) - 1]})
                    steps += 1
            saver.restore(session, paths[-1])
            restored = session.run(table)
    assert len(paths) == 4
    for path in paths:
        value = tf.train.load_variable(path, "table")
        done = int(value[0, 0])  # updates at that moment
        assert 0 <= done <= steps and value.sum() == done * 4 * 128
        assert (value == value[:, :1]).all() and (value[::-1] == value).all()
    np.testing.assert_array_equal(restored, tf.train.load_variable(paths[-1], "table"))
