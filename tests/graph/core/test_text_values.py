"""Text is bytes wherever a value enters a graph, also where NumPy holds it as unicode."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf

UNICODE = np.array(["é", "bb"])
WANTED = ["é".encode(), b"bb"]


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize(
    "value", [UNICODE, UNICODE.astype(object), [np.str_("é"), np.str_("bb")], np.char.encode(UNICODE, "utf-8")]
)
def test_constants_feeds_and_variables_hold_bytes(value):
    fed = tf.placeholder(tf.string, [None])
    variable = tf.Variable(value)
    other = tf.get_variable("other", initializer=value)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        found = session.run([tf.constant(value), fed, variable, other, tf.identity(value)], {fed: value})
        assert [f.tolist() for f in found] == [WANTED] * 5
        assert session.run(tf.equal(fed, "é"), {fed: value}).tolist() == [True, False]
        variable.load(value[::-1], session)
        assert session.run(variable).tolist() == WANTED[::-1]


def test_kernels_compare_bytes():
    with tf.Session() as session:
        assert session.run(tf.equal(tf.constant(UNICODE), "bb")).tolist() == [False, True]
        assert session.run(tf.count_nonzero(np.array(["", "a"]))) == 1
        assert session.run(tf.unique(np.array(["b", "a", "b"])).y).tolist() == [b"b", b"a"]


def test_no_elements_are_text_too():
    fed = tf.placeholder(tf.string, [None])
    with tf.Session() as session:
        for nothing in ([], np.array([]), np.array([], object)):
            assert session.run(tf.constant(nothing, tf.string)).shape == (0,)
            assert session.run(fed, {fed: nothing}).dtype == object


@pytest.mark.parametrize("value", [[1, 2], np.array([1, 2]), np.array(["a", 1], object)])
def test_numbers_are_no_text(value):
    with pytest.raises(TypeError, match="int is not text"):
        tf.constant(value, tf.string)


def test_text_is_no_number():
    with pytest.raises(TypeError, match="Expected float32"):
        tf.constant(np.array(["1.5"]), tf.float32)


def test_padding_values_of_data_sets_are_bytes():
    lines = tf.data.Dataset.from_tensor_slices([["a"], ["b"]]).padded_batch(2, [2], padding_values="é")
    batch = tf.data.make_one_shot_iterator(lines).get_next()
    with tf.Session() as session:
        assert session.run(batch).tolist() == [[b"a", "é".encode()], [b"b", "é".encode()]]


def test_bytes_of_zero_at_the_end_stay_in_defaults_padding_and_sparse_feeds():
    text = b"d\0"
    sparse = tf.sparse_placeholder(tf.string)
    features = {"x": tf.FixedLenFeature([2], tf.string, text)}
    rows = tf.data.Dataset.from_tensors([text]).padded_batch(1, [2], text)
    dense = tf.sparse_tensor_to_dense(sparse, "")
    fetched = [tf.parse_single_example(b"", features)["x"], rows.make_one_shot_iterator().get_next()[0], dense]
    with tf.Session() as session:
        for found in session.run(fetched, {sparse: tf.SparseTensorValue([[0], [1]], [text, text], [2])}):
            assert found.tolist() == [text, text]


def test_one_text_of_a_variable_is_assigned():
    words = tf.Variable(["a", "b"])
    with tf.Session() as session:
        session.run(words.initializer)
        session.run(words[0].assign(b"c\0"))
        assert session.run(words).tolist() == [b"c\0", b"b"]


def test_the_default_of_a_dense_table_is_text():
    table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.string, "none", -1, -2)
    with tf.Session() as session:
        session.run(table.insert([1, 2], ["a", "b"]))
        assert session.run(table.lookup([2, 3])).tolist() == [b"b", b"none"]
