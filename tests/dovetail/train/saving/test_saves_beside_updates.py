"""Saves beside updates, by threads, and killed at any point: a checkpoint is whole, and of one moment where that is asked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from saved_variables import variables

import dovetail as tf
from dovetail.graph.core.device import DeviceSpec
from dovetail.graph.resources.chunked_snapshot import ChunkedSnapshot
from dovetail.graph.resources.variable import VariableState, read_together, update_together


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


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
import itertools, json, os, sys
from pathlib import Path
import numpy as np
import dovetail as tf
from dovetail.graph.formats import atomic_files

def save_twice(folder, fault, same):
    v = tf.get_variable("v", initializer=np.zeros(1000, np.float32))
    w = tf.Variable(0, name="w")
    fill = [tf.assign(v, v + 1), tf.assign(w, w + 1)]
    saver = tf.train.Saver(max_to_keep=1)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(fill)
        saver.save(session, f"{folder}/m", None if same else 1)
        session.run(fill)
        atomic_files._points = itertools.count(1)  # from here on they are counted
        os.environ["DOVETAIL_FAULTS"] = fault
        saver.save(session, f"{folder}/m", None if same else 2)
        return next(atomic_files._points) - 1

def in_a_process(folder, fault, same):  # one that has loaded all already
    folder.mkdir()
    pid = os.fork()
    if pid == 0:
        points = save_twice(folder, fault, same)
        (folder / "points").write_text(str(points))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

folder, same = Path(sys.argv[1]), sys.argv[2] == "same"
statuses = [in_a_process(folder / "0", "", same)]
for n in range(1, 1 + int((folder / "0" / "points").read_text())):
    statuses.append(in_a_process(folder / str(n), f"save:{n}", same))
print(json.dumps(statuses))
"""


@pytest.mark.slow
@pytest.mark.parametrize("same", [False, True], ids=["another name", "the same name"])
def test_a_save_that_is_killed_at_any_point_loses_nothing(tmp_path, same):
    """Each point of the second save once: the process is killed there, and another one restores."""
    ended = subprocess.run(
        [sys.executable, "-c", _SAVES, str(tmp_path), "same" if same else "next"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "DOVETAIL_BACKEND": "numpy"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    whole, *killed = json.loads(ended.stdout)
    assert whole == 0, ended.stderr
    assert len(killed) > 20  # shard, manifest, graph, list of checkpoints: six each; and removals
    assert set(killed) == {-signal.SIGKILL}, (killed, ended.stderr)
    v, w = variables()
    v = tf.get_variable("v2", [1000])
    saver = tf.train.Saver({"v": v, "w": w})
    seen = set()
    with tf.Session() as session:
        for n in range(1, len(killed) + 1):
            folder = tmp_path / str(n)
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
