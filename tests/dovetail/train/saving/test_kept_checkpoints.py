"""Which checkpoints a saver keeps, and the file that names them."""

from __future__ import annotations

import threading
import time

import pytest
from saved_variables import variables

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


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
    with tf.Graph().as_default(), pytest.raises(ValueError, match="has no saver whose file name tensor is"):
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
