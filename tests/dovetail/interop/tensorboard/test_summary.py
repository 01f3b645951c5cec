"""Summaries and event files, read back by tensorboardX's messages."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dovetail as tf
from dovetail.interop.tensorboard import writer as writer_module

pytest.importorskip("tensorboardX")
from event_files import events  # noqa: E402
from tensorboardX.proto.graph_pb2 import GraphDef  # noqa: E402
from tensorboardX.proto.summary_pb2 import Summary  # noqa: E402


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g
    tf.summary.FileWriterCache.clear()


def made(tensor, feeds=None) -> list:
    with tf.Session() as session:
        return list(Summary.FromString(session.run(tensor, feeds)).value)


def test_a_scalar_is_tagged_with_the_name_of_its_node():
    with tf.name_scope("layer"):
        node = tf.summary.scalar("loss", tf.constant(1.5))
    assert node.op.name == "layer/loss"
    (value,) = made(node)
    assert (value.tag, value.simple_value) == ("layer/loss", 1.5)
    (value,) = made(tf.summary.scalar("a b!", 2))
    assert (value.tag, value.simple_value) == ("a_b_", 2.0)
    (value,) = made(tf.summary.scalar("c", 3.0, family="f"))
    assert value.tag == "f/f/c"
    with pytest.raises(ValueError, match="needs shape"):
        tf.summary.scalar("x", [1.0, 2.0])
    with pytest.raises(TypeError, match="only numbers"):
        tf.summary.scalar("x", "text")


def test_a_histogram_counts_every_value_in_a_bin_that_holds_it():
    x = np.random.default_rng(0).standard_normal((50, 20)).astype("f4")
    x[0, :3] = [0, 1e-6, -1000]
    (value,) = made(tf.summary.histogram("h", x))
    h = value.histo
    assert (h.min, h.max, h.num) == (x.min(), x.max(), x.size)
    np.testing.assert_allclose([h.sum, h.sum_squares], [x.astype("f8").sum(), np.square(x.astype("f8")).sum()])
    limits, counts = np.array(h.bucket_limit), np.array(h.bucket)
    assert (
        counts.sum() == x.size and counts[1:][counts[:-1] == 0].all()
    )  # of bins that are empty one after another, one is told
    for i in np.flatnonzero(counts[1:]) + 1:
        assert counts[i] == np.count_nonzero((x >= limits[i - 1]) & (x < limits[i]))
    (value,) = made(tf.summary.histogram("empty", tf.zeros([0])))
    assert value.histo.num == 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        made(tf.summary.histogram("bad", [1.0, float("nan")]))


def decode(png: bytes) -> np.ndarray:
    """The picture in a PNG file, [height, width, channels]."""
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    return pixels if pixels.ndim == 3 else pixels[..., None]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_are_stored_as_png(channels):
    x = np.random.default_rng(0).integers(0, 256, (4, 5, 7, channels), np.uint8)
    values = made(tf.summary.image("im", x, max_outputs=2))
    assert [v.tag for v in values] == ["im/image/0", "im/image/1"]
    for value, image in zip(values, x, strict=False):
        assert (value.image.height, value.image.width, value.image.colorspace) == (5, 7, channels)
        np.testing.assert_array_equal(decode(value.image.encoded_image_string), image)


def test_images_of_floats_are_scaled():
    (value,) = made(tf.summary.image("im", np.float32([0, 1, 2, 4]).reshape(1, 2, 2, 1), max_outputs=1))
    assert value.tag == "im/image"
    assert decode(value.image.encoded_image_string).reshape(-1).tolist() == [0, 63, 127, 255]
    (value,) = made(tf.summary.image("im", np.float32([-1, 0, 0.5, 1]).reshape(1, 2, 2, 1), max_outputs=1))
    assert decode(value.image.encoded_image_string).reshape(-1).tolist() == [1, 128, 191, 255]
    seen = np.ones((1, 2, 2, 3), np.float32)
    seen[0, 1, 0, 2] = np.nan
    (value,) = made(tf.summary.image("im", seen, max_outputs=1))
    found = decode(value.image.encoded_image_string)
    assert found[1, 0].tolist() == [255, 0, 0] and found[0, 0].tolist() == [255, 255, 255]  # red: it is no number
    with pytest.raises(ValueError, match="needs shape"):
        tf.summary.image("im", np.zeros((2, 2), "f4"))


@pytest.mark.parametrize(
    "x", [np.float32([[1.5, 2]]), np.array([True]), np.array([[b"a"]], object), np.array(3, np.int64)]
)
def test_tensors_are_stored_as_they_are(x):
    with tf.name_scope("scope"):
        node = tf.summary.tensor_summary("any", tf.constant(x), display_name="shown")
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == [node]
    (value,) = made(node)
    assert (value.tag, value.metadata.display_name) == ("scope/any", "shown")
    found = tf.make_ndarray(value.tensor)
    assert found.dtype == x.dtype and found.tolist() == x.tolist()
    metadata = tf.summary.SummaryMetadata(summary_description="said")
    (value,) = made(tf.summary.tensor_summary("other", tf.constant(x), summary_metadata=metadata))
    assert value.metadata.summary_description == "said"


def test_text_is_marked_as_text():
    (value,) = made(tf.summary.text("said", tf.constant(["a", "é"])))
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("said", "text")
    assert tf.make_ndarray(value.tensor).tolist() == [b"a", "é".encode()]
    with pytest.raises(ValueError, match="to have dtype string, got int32"):
        tf.summary.text("number", tf.constant(1))


def test_all_summaries_are_merged(graph):
    assert tf.summary.merge_all() is None
    a = tf.summary.scalar("a", 1.0)
    tf.summary.scalar("b", 2.0)
    c = tf.summary.scalar("c", 3.0, collections=["mine"])
    assert [(v.tag, v.simple_value) for v in made(tf.summary.merge_all())] == [("a", 1.0), ("b", 2.0)]
    assert [v.tag for v in made(tf.summary.merge([a, c]))] == ["a", "c"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Duplicate tag a"):
        made(tf.summary.merge([a, a]))


def test_a_writer_writes_summaries_graphs_and_plans(tmp_path: Path, graph):
    with tf.device("/cpu:0"):
        a = tf.constant([[1.0, 2.0]], name="a")
    b = tf.identity(a, name="b")
    with tf.control_dependencies([b]):
        tf.no_op(name="c")
    with tf.Session() as session, tf.summary.FileWriter(str(tmp_path), graph) as writer:
        assert writer.get_logdir() == str(tmp_path)
        writer.add_summary(session.run(tf.summary.scalar("x", 1.0)), 7)
        writer.add_scalar("y", 2, 8)
        writer.add_plan(session.plan(b))
    first, shown, x, y, placed, text = events(tmp_path)
    assert first.file_version == "brain.Event:2"
    assert (x.step, x.summary.value[0].tag, x.summary.value[0].simple_value) == (7, "x", 1.0)
    assert (y.step, y.summary.value[0].tag, y.summary.value[0].simple_value) == (8, "y", 2.0)
    nodes = {n.name: n for n in GraphDef.FromString(shown.graph_def).node}
    assert (nodes["a"].op, nodes["a"].device) == ("Const", "/device:CPU:0")
    assert (list(nodes["b"].input), list(nodes["c"].input)) == (["a"], ["^b"])
    dims = nodes["a"].attr["_output_shapes"].list.shape[0].dim
    assert [d.size for d in dims] == [1, 2]
    assert all(n.device.endswith("/device:CPU:0") for n in GraphDef.FromString(placed.graph_def).node if n.name in "ab")
    assert text.summary.value[0].metadata.plugin_data.plugin_name == "text"


def test_a_closed_writer_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its name comes after that of the first, which readers sort as texts, also where it is a process's hundredth."""
    monkeypatch.setattr(writer_module, "_files", itertools.count(99))
    writer = tf.summary.FileWriter(str(tmp_path))
    writer.add_scalar("x", 1, 1)
    writer.close()
    writer.close()
    writer.reopen()
    writer.add_scalar("x", 2, 2)
    writer.flush()
    assert [e.step for e in events(tmp_path) if e.summary.value] == [1, 2]
    writer.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_graph_def_is_written_as_it_is(tmp_path: Path, graph):
    tf.constant(1.0, name="a")
    tf.summary.FileWriter(str(tmp_path), graph_def=graph.as_graph_def()).close()
    _, shown = events(tmp_path)
    (node,) = GraphDef.FromString(shown.graph_def).node
    assert node.name == "a" and list(node.attr["value"].tensor.float_val) == [1.0]


def test_one_folder_has_one_cached_writer(tmp_path: Path):
    one = tf.summary.FileWriterCache.get(str(tmp_path))
    assert tf.summary.FileWriterCache.get(str(tmp_path / "x" / "..")) is not None
    assert tf.summary.FileWriterCache.get(str(tmp_path)) is one


def test_a_training_session_writes_summaries(tmp_path: Path):
    step = tf.train.get_or_create_global_step()
    op = tf.assign_add(step, 1)
    tf.summary.scalar("ten", tf.to_float(step) * 0 + 10)
    hooks = [tf.train.StopAtStepHook(last_step=6)]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), hooks=hooks, save_summaries_steps=2, log_step_count_steps=3
    ) as session:
        while not session.should_stop():
            session.run(op)
    found = events(tmp_path)
    assert sum(1 for e in found if e.graph_def) == 1
    tens = [e.step for e in found for v in e.summary.value if v.tag == "ten"]
    assert tens == [1, 3, 5]
    assert any(v.tag == "global_step/sec" and v.simple_value > 0 for e in found for v in e.summary.value)
