"""Checkpoints of a cluster: each ps writes its own shard, and any number of ps tasks restores them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf


def model(ps_tasks: int, parts: int) -> tuple[Any, Any, Any]:
    """A table in parts and two vectors, dealt out to the parameter servers."""
    with tf.device(tf.train.replica_device_setter(ps_tasks=ps_tasks)):
        partitioner = tf.fixed_size_partitioner(parts) if parts > 1 else None
        table = tf.get_variable("table", [40, 8], partitioner=partitioner)
        a = tf.get_variable("a", initializer=np.arange(5, dtype=np.float32))
        step = tf.train.get_or_create_global_step()
    return table, a, step


@pytest.mark.slow
def test_a_checkpoint_moves_between_clusters_of_different_sizes(tmp_path: Path) -> None:
    value = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    path = ""
    for ps_tasks, parts in ((3, 5), (1, 1), (2, 3)):
        with tf.Graph().as_default(), tf.LocalCluster({"ps": ps_tasks, "worker": 1}) as cluster:
            table, a, step = model(ps_tasks, parts)
            advance = tf.assign_add(step, 1)
            saver = tf.train.Saver(consistent=parts > 1)
            with tf.Session(cluster.target("worker", 0)) as session:
                if path:
                    saver.restore(session, path)
                else:
                    session.run(tf.global_variables_initializer())
                    offset = 0
                    for part in table:
                        rows = part.shape.as_list()[0]
                        part.load(value[offset : offset + rows], session)
                        offset += rows
                np.testing.assert_array_equal(session.run(tf.convert_to_tensor(table)), value)
                assert session.run(a).tolist() == [0, 1, 2, 3, 4]
                session.run(advance)
                path = saver.save(session, str(tmp_path / "m"), global_step=step)
                assert len(list(tmp_path.glob(f"{Path(path).name}.data-*"))) == ps_tasks
    assert path.endswith("m-3")


def test_no_values_travel(cluster_of_three: tf.LocalCluster) -> None:
    model(2, 4)
    saver = tf.train.Saver()
    with tf.Session(cluster_of_three.target("worker", 0)) as session:
        for what in (saver._saved, saver._restore_all):
            plan = session.plan(what)
            crossing = [c for c in plan.channels if c.crosses_tasks]
            assert all(c.control or c.dtype is tf.string for c in crossing), crossing
            tasks = {d.partition("/device")[0] for d in plan.partitions}
            assert {"/job:ps/replica:0/task:0", "/job:ps/replica:0/task:1"} <= tasks


@pytest.fixture
def cluster_of_three() -> Any:
    with tf.LocalCluster({"ps": 2, "worker": 1}) as running:
        yield running


# Of each ps: 3, 5: its shard is written, or renamed; 9, 11: the same of the manifest, which one of them writes.
@pytest.mark.slow
@pytest.mark.parametrize("point", [3, 5, 9, 11])
def test_a_parameter_server_killed_in_a_save_loses_nothing(tmp_path: Path, point: int) -> None:
    path = str(tmp_path / "m")
    environment = {"DOVETAIL_FAULTS": f"save:{point}"}
    with tf.Graph().as_default(), tf.LocalCluster({"ps": 2, "worker": 1}) as cluster:
        model(2, 2)
        saver = tf.train.Saver()
        with tf.Session(cluster.target("worker", 0)) as session:
            session.run(tf.global_variables_initializer())
            first = saver.save(session, path, global_step=1)
    with tf.Graph().as_default(), tf.LocalCluster({"ps": 2, "worker": 1}, environment=environment) as cluster:
        _, a, _ = model(2, 2)
        double = tf.assign(a, a * 2)
        saver = tf.train.Saver()
        saver.recover_last_checkpoints([first])
        config = tf.ConfigProto(peer_timeout_s=1.0)
        with tf.Session(cluster.target("worker", 0), config=config) as session:
            saver.restore(session, first)
            session.run(double)
            began = time.monotonic()
            with pytest.raises((tf.errors.UnavailableError, tf.errors.AbortedError)) as caught:
                saver.save(session, path, global_step=2)
            assert time.monotonic() - began < 10
            assert "/job:ps" in str(caught.value)
    latest = tf.train.latest_checkpoint(str(tmp_path))
    assert latest == first
    with tf.Graph().as_default(), tf.Session() as session:
        _, a, _ = model(0, 1)
        saver = tf.train.Saver()
        saver.restore(session, latest)
        assert session.run(a).tolist() == [0, 1, 2, 3, 4]
        if tf.train.checkpoint_exists(f"{path}-2"):  # its manifest was there before the process died
            saver.restore(session, f"{path}-2")
            assert session.run(a).tolist() == [0, 2, 4, 6, 8]
        saver.save(session, path, global_step=3)
    assert all(tf.train.checkpoint_exists(str(p).partition(".data-")[0]) for p in tmp_path.glob("*.safetensors*"))
