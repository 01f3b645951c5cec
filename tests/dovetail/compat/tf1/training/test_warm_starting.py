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


@pytest.mark.parametrize("resource", [False, True])
def test_what_builds_on_a_variable_starts_from_the_checkpoint_too(checkpoint, resource):
    with tf.Graph().as_default(), tf.variable_scope("", use_resource=resource), tf.Session() as session:
        w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
        tf.train.init_from_checkpoint(checkpoint, {"a/w": w})
        twice = tf.Variable(w.initialized_value() * 2.0)
        same = tf.Variable(w.initial_value)
        session.run(tf.global_variables_initializer())
        assert [v.tolist() for v in session.run([twice, same])] == [[2, 4], [1, 2]]


def test_a_model_is_warm_started_by_expressions_lists_and_other_names(tmp_path, checkpoint):
    for chosen, expected in ((".*", [1, 3, 0]), (["a/b", "count"], [0, 3, 7]), ("a/w", [1, 0, 0])):
        with tf.Graph().as_default(), tf.Session() as session:
            with tf.variable_scope("a"):
                w = tf.get_variable("w", [2], initializer=tf.zeros_initializer())
                b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
            if "count" in chosen:
                chosen = [tf.Variable(0.0, trainable=False, name="count"), b]
                tf.train.warm_start(str(tmp_path), chosen, var_name_to_prev_var_name={"count": "a/b"})
                expected = [0, 3, 3]
            else:
                tf.train.warm_start(str(tmp_path), chosen)
            session.run(tf.global_variables_initializer())
            assert [session.run(w)[0], session.run(b)] == expected[:2]
            assert not isinstance(chosen, list) or isinstance(chosen[0], str) or session.run(chosen[0]) == 3


@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_and_columns_move_with_their_words(tmp_path, axis, parts):
    (tmp_path / "old").write_text("apple\nbanana\nguava\n")
    (tmp_path / "new").write_text("orange\nguava\nbanana\nrest\n")
    old = np.arange(12, dtype=np.float32).reshape(3, 4)
    old = old if axis == 0 else old.T
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", initializer=old)
        session.run(v.initializer)
        path = tf.train.Saver().save(session, str(tmp_path / "model"))
    info = tf.train.VocabInfo(str(tmp_path / "new"), 3, 1, str(tmp_path / "old"), 2, tf.constant_initializer(0.5), axis)
    cut = None if parts is None else tf.fixed_size_partitioner(parts)
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.get_variable("v", [4, 4], partitioner=cut, initializer=tf.zeros_initializer())
        tf.train.warm_start(path, None, var_name_to_vocab_info={"v": info})
        session.run(tf.global_variables_initializer())
        found = session.run(tf.convert_to_tensor(v))
    other = np.full(4, 0.5)
    rows = [other, other, old.take(1, axis), other]  # of the old words only the first two count; one entry for others
    np.testing.assert_array_equal(found, np.stack(rows, axis))


def test_what_cannot_be_warm_started_is_told(tmp_path, checkpoint):
    (tmp_path / "words").write_text("a\nb\n")
    words = str(tmp_path / "words")
    with tf.Graph().as_default():
        tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        with pytest.raises(ValueError, match="var_name_to_prev_var_name that were not used: u"):
            tf.train.warm_start(checkpoint, var_name_to_prev_var_name={"u": "a/w"})
        with pytest.raises(ValueError, match="var_name_to_vocab_info that were not used: u"):
            tf.train.warm_start(checkpoint, var_name_to_vocab_info={"u": tf.train.VocabInfo(words, 2, 0, words)})
        with pytest.raises(ValueError, match="not found"):
            tf.train.warm_start(checkpoint)
        with pytest.raises(ValueError, match="must be all `Variable` or all `str`"):
            tf.train.warm_start(checkpoint, [3])
        renamed = {"w": "a/w"}
        for info, told in (
            (tf.train.VocabInfo(words, 2, 0, words, axis=1), "axis"),
            (tf.train.VocabInfo(words, 3, 0, words), "2 words, fewer than 3"),
            (tf.train.VocabInfo(words, 2, 0, words), r"must be \[2\]"),
        ):
            with pytest.raises(ValueError, match=told):
                tf.train.warm_start(checkpoint, None, {"w": info}, renamed)


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
