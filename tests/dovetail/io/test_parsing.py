"""Examples out of records, alone and in batches; raw bytes; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dovetail as tf

FILE = str(Path(__file__).parent / "data" / "plain.tfrecord")
FEATURES = {
    "number": tf.io.FixedLenFeature([], tf.int64),
    "point": tf.FixedLenFeature([2, 1], tf.float32),
    "words": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True, default_value="-"),
    "absent": tf.io.FixedLenFeature([2], tf.float32, default_value=[1, 2]),
    "nothing": tf.io.FixedLenSequenceFeature([3], tf.float32, allow_missing=True),
}


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def example(**features: Any) -> bytes:
    """An example of lists of numbers, or of bytes."""
    feature = tf.train.Feature
    made = {}
    for name, values in features.items():
        if all(isinstance(v, bytes) for v in values):
            made[name] = feature(bytes_list=tf.train.BytesList(value=values))
        elif all(isinstance(v, int) for v in values):
            made[name] = feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = feature(float_list=tf.train.FloatList(value=values))
    found: bytes = tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()
    return found


def run(tensors: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(tensors, feeds)


def test_a_batch():
    records = list(tf.io.tf_record_iterator(FILE))
    parsed = tf.io.parse_example(tf.constant(records), FEATURES)
    assert {n: t.shape.as_list() for n, t in parsed.items()} == {
        "number": [4], "point": [4, 2, 1], "words": [4, None], "absent": [4, 2], "nothing": [4, None, 3],
    }  # fmt: skip
    found = run(parsed)
    assert found["number"].tolist() == [0, 1, 2, 3]
    assert found["point"][..., 0].tolist() == [[0, 0], [1, 0.5], [2, 1], [3, 1.5]]
    assert found["words"].tolist() == [[b"-"] * 3, [b"w0", b"-", b"-"], [b"w0", b"w1", b"-"], [b"w0", b"w1", b"w2"]]
    assert found["absent"].tolist() == [[1, 2]] * 4
    assert found["nothing"].shape == (4, 0, 3)
    assert {n: t.dtype.base for n, t in parsed.items()}["words"] is tf.string


def test_one_and_none():
    record = tf.placeholder(tf.string)
    one = tf.parse_single_example(record, {"words": FEATURES["words"], "number": FEATURES["number"]})
    (last,) = list(tf.io.tf_record_iterator(FILE))[-1:]
    found = run(one, {record: last})
    assert found["words"].tolist() == [b"w0", b"w1", b"w2"]
    assert found["number"] == 3
    batch = tf.placeholder(tf.string, [None])
    empty = run(tf.parse_example(batch, FEATURES), {batch: np.zeros(0, object)})
    assert {n: v.shape for n, v in empty.items()} == {
        "number": (0,), "point": (0, 2, 1), "words": (0, 0), "absent": (0, 2), "nothing": (0, 0, 3),
    }  # fmt: skip


def test_a_pipeline_from_files_to_batches():
    features = {"number": tf.FixedLenFeature([], tf.int64), "raw": tf.FixedLenFeature([], tf.string)}

    def parse(record):
        parsed = tf.parse_single_example(record, features)
        return tf.cast(tf.decode_raw(parsed["raw"], tf.uint8), tf.float32), parsed["number"]

    dataset = tf.data.TFRecordDataset([FILE, FILE]).map(parse).batch(3)
    batches = list(dataset)
    assert [b[1].tolist() for b in batches] == [[0, 1, 2], [3, 0, 1], [2, 3]]
    assert batches[0][0].tolist() == [[0, 0, 1, 0], [1, 0, 1, 0], [2, 0, 1, 0]]


@pytest.mark.parametrize(
    ("features", "record", "text"),
    [
        ({"x": tf.FixedLenFeature([], tf.int64)}, {}, "required but could not be found"),
        ({"x": tf.FixedLenFeature([], tf.int64)}, {"x": [1.5]}, "Data types don't match"),
        ({"x": tf.FixedLenFeature([], tf.int64)}, {"x": [1, 2]}, "Number of int64 values != expected"),
        ({"x": tf.FixedLenSequenceFeature([2], tf.int64, True)}, {"x": [1, 2, 3]}, "!= expected"),
    ],
)
def test_examples_that_are_otherwise_than_said(features, record, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        run(tf.parse_single_example(tf.constant(example(**record)), features))


def test_features_of_any_length_are_sparse():
    features = {
        "x": tf.VarLenFeature(tf.int64),
        "y": tf.FixedLenFeature([], tf.float32),
        "z": tf.VarLenFeature(tf.string),
    }
    records = [example(x=[1, 2], y=[0.5]), example(y=[1.5], z=[b"a", b"b", b"c"]), example(x=[3], y=[2.5], z=[b"d"])]
    serialized = tf.placeholder(tf.string, None)
    found = run(tf.parse_example(serialized, features), {serialized: np.array(records, object)})
    x, z = found["x"], found["z"]
    assert (x.indices.tolist(), x.values.tolist(), x.dense_shape.tolist()) == (
        [[0, 0], [0, 1], [2, 0]],
        [1, 2, 3],
        [3, 2],
    )
    assert z.indices.tolist() == [[1, 0], [1, 1], [1, 2], [2, 0]]
    assert (z.values.tolist(), z.dense_shape.tolist()) == ([b"a", b"b", b"c", b"d"], [3, 3])
    assert found["y"].tolist() == [0.5, 1.5, 2.5]
    one = run(
        tf.parse_single_example(
            tf.constant(records[0]), {"x": tf.VarLenFeature(tf.int64), "z": tf.VarLenFeature(tf.string)}
        )
    )
    assert (one["x"].indices.tolist(), one["x"].dense_shape.tolist(), one["z"].dense_shape.tolist()) == (
        [[0], [1]],
        [2],
        [0],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="Data types don't match"):
        run(tf.parse_single_example(tf.constant(records[0]), {"y": tf.VarLenFeature(tf.int64)}))


def test_sparse_features_come_out_of_data_sets():
    records = [example(x=[1, 2]), example(y=[0.5]), example(x=[3, 4, 5])]
    data = tf.data.Dataset.from_tensor_slices(np.array(records, object)).batch(3)
    found = (
        data.map(lambda s: tf.parse_example(s, {"x": tf.VarLenFeature(tf.int64)}))
        .make_one_shot_iterator()
        .get_next()["x"]
    )
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    rows = tf.nn.safe_embedding_lookup_sparse(table, found, combiner="sum")
    np.testing.assert_array_equal(run(rows), [table[1] + table[2], [0, 0], table[3:].sum(0)])
    again = data.map(lambda s: tf.parse_example(s, {"x": tf.VarLenFeature(tf.int64)})["x"]).repeat(2).batch(2)
    both = run(tf.sparse.to_dense(again.make_one_shot_iterator().get_next()))
    np.testing.assert_array_equal(both, [[[1, 2, 0], [0, 0, 0], [3, 4, 5]]] * 2)


def test_what_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse"):
        run(tf.parse_single_example(tf.constant(b"\xff\xff"), {"x": tf.FixedLenFeature([], tf.int64)}))
    for features, text in (
        ({}, "Missing"),
        ({"x": 1}, "Invalid feature"),
        ({"x": tf.FixedLenSequenceFeature([], tf.int64)}, "allow_missing"),
        ({"x": tf.FixedLenFeature([None], tf.int64)}, "complete shape"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.parse_example(tf.constant([b""]), features)
    with pytest.raises(TypeError, match="int32"):
        tf.parse_example(tf.constant([b""]), {"x": tf.FixedLenFeature([], tf.int32)})
    with pytest.raises(ValueError, match="a scalar"):
        tf.parse_single_example(tf.constant([b""]), FEATURES)


def test_raw_bytes():
    x = tf.placeholder(tf.string, [2])
    found = run(
        {"little": tf.decode_raw(x, tf.int16), "big": tf.io.decode_raw(x, tf.int16, little_endian=False)},
        {x: [b"\1\0\2\0", b"\0\1\0\2"]},
    )
    assert found["little"].tolist() == [[1, 2], [256, 512]]
    assert found["big"].tolist() == [[256, 512], [1, 2]]
    for wrong, text in (([b"a", b"bc"], "same size"), ([b"abc", b"abc"], "multiple")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            run(tf.decode_raw(x, tf.int16), {x: wrong})
    with pytest.raises(TypeError, match="out_type"):
        tf.decode_raw(x, tf.string)


def test_a_sequence_example_is_a_message():
    lists = tf.train.FeatureLists(feature_list={"a": tf.train.FeatureList(feature=[tf.train.Feature()])})
    assert tf.train.SequenceExample(feature_lists=lists).feature_lists.feature_list["a"].feature


def test_a_default_may_be_given_flat():
    features = {"a": tf.FixedLenFeature((1, 2, 1), tf.float32, [3.0, -3.0]), "b": tf.FixedLenFeature(2, tf.int64, 7)}
    found = run(tf.io.parse_example([example()], features))
    assert found["a"].tolist() == [[[[3], [-3]]]] and found["b"].tolist() == [[7, 7]]
    with pytest.raises(ValueError, match="must have shape"):
        tf.io.parse_example([example()], {"a": tf.FixedLenFeature([3], tf.float32, [1.0, 2.0])})
    with pytest.raises(ValueError, match="Missing shape"):
        tf.io.parse_example([example()], {"a": tf.FixedLenFeature(None, tf.float32)})


def test_values_at_the_coordinates_of_other_features():
    rows = [example(at=[4, 1], row=[0, 2], what=[0.5, 1.5]), example(), example(at=[3], row=[1], what=[2.5])]
    features = {
        "line": tf.io.SparseFeature("at", "what", tf.float32, 5),
        "plane": tf.io.SparseFeature(["row", "at"], "what", tf.float32, [3, 5]),
        "at": tf.VarLenFeature(tf.int64),
    }
    parsed = tf.io.parse_example(rows, features)
    assert sorted(parsed) == ["at", "line", "plane"]
    found = run([parsed["line"], tf.sparse.to_dense(parsed["line"]), tf.sparse.to_dense(parsed["plane"])])
    assert found[0].indices.tolist() == [[0, 1], [0, 4], [2, 3]] and found[0].dense_shape.tolist() == [3, 5]
    assert found[1].tolist() == [[0, 1.5, 0, 0, 0.5], [0] * 5, [0, 0, 0, 2.5, 0]]
    plane = np.zeros((3, 3, 5), np.float32)
    plane[0, 0, 4], plane[0, 2, 1], plane[2, 1, 3] = 0.5, 1.5, 2.5
    np.testing.assert_array_equal(found[2], plane)
    one = run(tf.sparse.to_dense(tf.io.parse_single_example(rows[0], {"line": features["line"]})["line"]))
    assert one.tolist() == [0, 1.5, 0, 0, 0.5]
    with pytest.raises(ValueError, match="Conflicting type"):
        tf.io.parse_example(rows, {**features, "at": tf.VarLenFeature(tf.float32)})


def sequence(context: dict[str, Any], **lists: list[list[Any]]) -> bytes:
    """A sequence example: of each list the values of its steps."""
    whole = tf.train.Example.FromString(example(**context)).features
    steps = {
        name: tf.train.FeatureList(
            feature=[tf.train.Example.FromString(example(x=values)).features.feature["x"] for values in each]
        )
        for name, each in lists.items()
    }
    made = tf.train.SequenceExample(context=whole, feature_lists=tf.train.FeatureLists(feature_list=steps))
    found: bytes = made.SerializeToString()
    return found


CONTEXT = {"id": tf.FixedLenFeature([], tf.int64), "tags": tf.VarLenFeature(tf.string)}
LISTS = {
    "point": tf.FixedLenSequenceFeature([2], tf.float32),
    "words": tf.VarLenFeature(tf.string),
    "late": tf.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
}
LONG = sequence({"id": [7], "tags": [b"x", b"y"]}, point=[[1.0, 2.0], [3.0, 4.0]], words=[[b"a"], [], [b"b", b"c"]])
SHORT = sequence({"id": [8]}, point=[[5.0, 6.0]], late=[[9], [10]])


def test_a_sequence_example():
    serialized = tf.placeholder(tf.string, [])
    context, lists = tf.io.parse_single_sequence_example(serialized, CONTEXT, LISTS)
    assert lists["point"].shape.as_list() == [None, 2]
    found, steps = run([context, lists], {serialized: LONG})
    assert found["id"] == 7 and found["tags"].values.tolist() == [b"x", b"y"]
    assert steps["point"].tolist() == [[1, 2], [3, 4]] and steps["late"].tolist() == []
    assert steps["words"].indices.tolist() == [[0, 0], [2, 0], [2, 1]]
    assert steps["words"].values.tolist() == [b"a", b"b", b"c"] and steps["words"].dense_shape.tolist() == [3, 2]
    _, lists = tf.io.parse_single_sequence_example(sequence({}), None, {"p": LISTS["point"]})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Feature list 'p' is required"):
        run(lists)
    with pytest.raises(ValueError, match="Missing features"):
        tf.io.parse_single_sequence_example(LONG)
    with pytest.raises(ValueError, match="Invalid feature"):
        tf.io.parse_single_sequence_example(LONG, {"id": LISTS["point"]})


def test_a_batch_of_sequence_examples():
    context, lists, lengths = tf.io.parse_sequence_example([LONG, SHORT], CONTEXT, LISTS)
    found, steps, counts = run([context, lists, lengths])
    assert found["id"].tolist() == [7, 8] and found["tags"].dense_shape.tolist() == [2, 2]
    assert steps["point"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [0, 0]]]
    assert steps["late"].tolist() == [[0, 0], [9, 10]]
    assert {name: n.tolist() for name, n in counts.items()} == {"point": [2, 1], "late": [0, 2]}
    assert steps["words"].indices.tolist() == [[0, 0, 0], [0, 2, 0], [0, 2, 1]]
    assert steps["words"].dense_shape.tolist() == [2, 3, 2]


def test_examples_in_json():
    text = '{"features": {"feature": {"n": {"int64List": {"value": [1, 2]}}}}}'
    made = tf.io.decode_json_example([text, "{}"])
    found = run(tf.io.parse_example(made, {"n": tf.VarLenFeature(tf.int64)})["n"])
    assert found.values.tolist() == [1, 2] and found.dense_shape.tolist() == [2, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="JSON"):
        run(tf.io.decode_json_example("{"))


@pytest.mark.parametrize("value", [np.float32([[1.5, 2]]), np.array(7, np.int64), np.array([b"a", b"\0"], object)])
def test_tensors_as_text(value):
    kind = tf.as_dtype(value.dtype)
    found = run(tf.io.parse_tensor(tf.io.serialize_tensor(tf.constant(value)), kind))
    assert found.dtype == value.dtype and found.tolist() == value.tolist()
    with pytest.raises(tf.errors.InvalidArgumentError, match="Type mismatch"):
        run(tf.io.parse_tensor(tf.io.serialize_tensor(tf.constant(value)), tf.uint8))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Could not parse"):
        run(tf.io.parse_tensor(b"bogus", kind))
