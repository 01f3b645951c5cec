"""First values from another model's checkpoint, and checkpoints as they come."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of `a/w`, `a/b`, and `table` in three parts."""
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.variable_scope("a"):
            tf.get_variable("w", initializer=[1.0, 2.0])
            tf.get_variable("b", initializer=3.0)
        tf.get_variable("table", initializer=np.arange(6.0, dtype=np.float32), partitioner=tf.fixed_size_partitioner(3))
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "model"), 7)


@pytest.mark.parametrize("resource", [False, True])
def test_a_scope_a_name_a_variable_and_parts(tmp_path, checkpoint, resource):
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource), tf.Session() as session:
        with tf.variable_scope("mine"):
            w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
            b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
        other = tf.get_variable("other", [2], initializer=tf.zeros_initializer())
        table = tf.get_variable("t", [6], partitioner=tf.fixed_size_partitioner(2), initializer=tf.zeros_initializer())
        rest = tf.get_variable("rest", initializer=5.0)
        tf.train.init_from_checkpoint(str(tmp_path), {"a/": "mine/"})
        tf.train.init_from_checkpoint(checkpoint, {"a/w": other, "table": "t"})
        session.run(tf.global_variables_initializer())
        found = session.run([w, b, other, tf.convert_to_tensor(table), rest])
        w.load([8.0, 9.0], session)
        assert session.run(w).tolist() == [8, 9]
    assert [np.asarray(f).tolist() for f in found] == [[1, 2], 3, [1, 2], [0, 1, 2, 3, 4, 5], 5]


def test_copies_of_replicas(checkpoint):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with tf.Graph().as_default(), strategy.scope():
        w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
        tf.train.init_from_checkpoint(checkpoint, {"a/w": w})
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf.global_variables_initializer())
            assert [v.tolist() for v in session.run([c.value() for c in w.values])] == [[1, 2], [1, 2]]


def test_what_is_refused(tmp_path, checkpoint):
    with tf.Graph().as_default():
        tf.get_variable("w", [3])
        for map_, text in (
            ({"a/w": "w"}, "doesn't match"),
            ({"a/x": "w"}, "not found"),
            ({"a/w": "x"}, "not in the graph"),
            ({"b/": "/"}, "has no b/w"),
            ({"a": "/"}, "scope"),
        ):
            with pytest.raises(ValueError, match=text):
                tf.train.init_from_checkpoint(checkpoint, map_)
        (tmp_path / "empty").mkdir()
        with pytest.raises(ValueError, match="Couldn't find"):
            tf.train.init_from_checkpoint(str(tmp_path / "empty"), {"a/w": "w"})


def test_checkpoints_as_they_come(tmp_path, checkpoint):
    found = tf.train.checkpoints_iterator(str(tmp_path), timeout=0)
    assert next(found) == checkpoint
    assert list(found) == []
    asked: list[int] = []

    def ask():
        asked.append(1)
        return len(asked) == 3

    assert list(tf.train.checkpoints_iterator(str(tmp_path / "none"), timeout=0, timeout_fn=ask)) == []
    assert len(asked) == 3
