"""Meta graphs: a program that knows only the file goes on where the one that built the graph was."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.io.meta_graph import MetaGraph

X = np.asarray([[1.0, 2.0]], np.float32)


def build(use_resource: bool) -> tuple[Any, Any]:
    """A model that trains, with a loop, collections of all kinds, and a variable in parts."""
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    with tf.variable_scope("model", use_resource=use_resource):
        w = tf.get_variable("w", [2, 3], initializer=tf.ones_initializer())
        table = tf.get_variable("table", [4, 3], partitioner=tf.fixed_size_partitioner(2))
    rows = tf.concat([tf.convert_to_tensor(p) for p in table], 0)
    _, y = tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2.0), [0, tf.matmul(x, w)])
    y = tf.identity(y + tf.reduce_sum(rows), name="y")
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(tf.reduce_mean(y * y), step, name="train")
    for value in (train, y, 7, "said"):
        tf.add_to_collection("mine", value)
    return y, train


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("scope", [None, "copy"])
def test_training_goes_on_from_the_files_alone(tmp_path: Path, use_resource: bool, scope: str | None) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        y, train = build(use_resource)
        saver = tf.train.Saver(max_to_keep=3)
        session.run(tf.global_variables_initializer())
        session.run(train, {"x:0": X})
        path = saver.save(session, str(tmp_path / "m"), global_step=1)
        session.run(train, {"x:0": X})
        expected = session.run(y, {"x:0": X})
        trainable = [v.name for v in tf.trainable_variables()]
    prefix = "" if scope is None else f"{scope}/"
    with tf.Graph().as_default(), tf.Session() as session:
        tf.constant(1.0, name="there_before")
        again = tf.train.import_meta_graph(f"{path}.meta", import_scope=scope)
        assert again is not None
        assert again.restore(session, path).problems == []
        train, y, number, said = tf.get_collection("mine")
        assert (train.name, y.name, number, said) == (f"{prefix}train", f"{prefix}y:0", 7, "said")
        assert [v.name for v in tf.trainable_variables()] == [prefix + n for n in trainable]
        assert tf.global_variables()[0] is tf.trainable_variables()[0]
        session.run(train, {f"{prefix}x:0": X})
        np.testing.assert_array_equal(session.run(y, {f"{prefix}x:0": X}), expected)
        step = tf.train.get_global_step() if scope is None else tf.get_collection(tf.GraphKeys.GLOBAL_STEP)[0]
        assert session.run(step) == 2
        session.run(tf.global_variables_initializer())
        assert session.run(step) == 0
        more = tf.get_variable("more", [])  # the graph can be built on
        assert more.name == "more:0"
        written = [again.save(session, str(tmp_path / "n"), global_step=i) for i in range(4)]
        assert again.last_checkpoints == written[1:]  # max_to_keep came along


@pytest.mark.parametrize(("written", "scope"), [("meta graph", "again"), ("graph_def", None)])
def test_gradients_through_imported_branches_and_loops(written: str, scope: str | None) -> None:
    """Both in each other, a list of tensors, and a variable; gradients there are already stay as they are."""

    def gradient(prefix: str = "") -> Any:
        graph = tf.get_default_graph()
        y, x = (graph.get_tensor_by_name(f"{prefix}{name}:0") for name in ("y", "x"))
        with tf.Session() as session:
            session.run(f"{prefix}v/Assign")
            return session.run(
                [y, tf.gradients(y, x)[0], tf.gradients(y, graph.get_tensor_by_name(f"{prefix}v/read:0"))[0]], {x: 1.5}
            )

    with tf.Graph().as_default():
        x, w = tf.placeholder(tf.float32, [], name="x"), tf.Variable(0.5, name="v", use_resource=False)

        def turn(i: Any, a: Any) -> Any:
            def inner(j: Any, b: Any) -> Any:
                return j + 1, tf.cond(b > 4.0, lambda: b * w, lambda: b * x + w)

            return i + 1, tf.while_loop(lambda j, _: j < i, inner, [0, a])[1]

        looped = tf.while_loop(lambda i, _: i < 4, turn, [0, x])[1]
        mapped = tf.map_fn(lambda e: e * e * w, tf.stack([x, x * x]))
        chosen = tf.cond(x > 1.0, lambda: tf.while_loop(lambda a: a < 5.0, lambda a: a * x, [x]), lambda: -x)
        y = tf.identity(looped + tf.reduce_sum(mapped) + chosen, name="y")
        tf.gradients(y, x)
        given = tf.train.export_meta_graph() if written == "meta graph" else tf.get_default_graph().as_graph_def()
        wanted = gradient()
    with tf.Graph().as_default():
        if written == "meta graph":
            tf.train.import_meta_graph(given, import_scope=scope)
        else:
            tf.import_graph_def(given, name=scope or "")
        np.testing.assert_allclose(gradient(f"{scope}/" if scope else ""), wanted, rtol=1e-6)


def test_two_copies_have_states_of_their_own(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        v = tf.get_variable("v", initializer=1.0, use_resource=True)
        tf.add_to_collection("change", v.assign_add(1.0, read_value=False))
        kept = tf.train.export_meta_graph()
    with tf.Graph().as_default(), tf.Session() as session:
        for scope in ("a", "b"):
            tf.train.import_meta_graph(kept, import_scope=scope)
        session.run(tf.global_variables_initializer())
        session.run(tf.get_collection("change")[0])
        assert session.run(tf.global_variables()) == [2.0, 1.0]


def test_devices_can_be_cleared() -> None:
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:3"):
            tf.get_variable("v", [])
        kept = tf.train.export_meta_graph()
    for clear, device in ((False, "/job:ps/task:3"), (True, "")):
        with tf.Graph().as_default():
            saver = tf.train.import_meta_graph(kept, clear_devices=clear)
            assert saver is not None and tf.global_variables()[0].device == device


def test_a_name_that_is_taken_changes_nothing() -> None:
    with tf.Graph().as_default():
        tf.get_variable("v", [])
        kept = tf.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        tf.constant(0.0, name="v/read")
        with pytest.raises(InvalidArgumentError, match="'v/read' exists already"):
            tf.train.import_meta_graph(kept)
        assert len(graph.nodes) == 1 and not tf.global_variables()


def test_what_has_no_written_form_is_left_out_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with tf.Graph().as_default(), caplog.at_level(logging.INFO, "dovetail"):
        with tf.variable_scope("open"):  # a collection has it, too: that is nobody's business
            pass
        tf.add_to_collection("mine", object())
        tf.add_to_collection("mine", 3)
        kept = tf.train.export_meta_graph()
    assert [r.getMessage() for r in caplog.records] == ["collection 'mine': not written: values of type object"]
    with tf.Graph().as_default():
        assert tf.train.import_meta_graph(kept) is None
        assert tf.get_collection("mine") == [3]


def test_a_text_for_people(tmp_path: Path) -> None:
    with tf.Graph().as_default():
        tf.constant(2.0, name="two")
        tf.train.export_meta_graph(str(tmp_path / "text"), as_text=True)
    assert "two" in (tmp_path / "text").read_text()


def damaged() -> list[tuple[str, bytes]]:
    with tf.Graph().as_default():
        tf.get_variable("v", [])
        source = tf.train.Saver().export_meta_graph().source
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(source)
    name, version, about = unpacker.unpack()
    rest = source[unpacker.tell() :]

    def head(**changes: Any) -> bytes:
        return msgpack.packb((name, version, about | changes)) + rest

    (variable,) = about["variables"]
    return [
        ("nothing", b""),
        ("no file of ours", b"some text that is longer than nothing"),
        ("version", msgpack.packb((name, 2, about)) + rest),
        ("cut", source[:-3]),
        ("no variables", head(variables=None)),
        ("unknown node", head(collections={"c": [("n", "w")]})),
        ("unknown kind", head(collections={"c": [("x", 1)]})),
        ("variable of no number", head(collections={"c": [("v", 5)]})),
        ("a place that is none", head(variables=[variable | {"place": "v/read:0"}])),
        ("saver of others", head(saver={"items": [("v", 3)]})),
        ("saver of nothing", head(saver=7)),
    ]


@pytest.mark.parametrize(("what", "data"), damaged())
def test_damaged_files_are_refused_and_change_nothing(what: str, data: bytes) -> None:
    with tf.Graph().as_default() as graph:
        with pytest.raises(InvalidArgumentError):
            tf.train.import_meta_graph(MetaGraph(data))
        assert not graph.nodes and not graph.get_all_collection_keys()
