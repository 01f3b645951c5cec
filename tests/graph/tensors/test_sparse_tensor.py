"""`SparseTensor`: fed, fetched, in branches and loops, and refused where a dense tensor is needed."""

from __future__ import annotations

import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches, feeds=None):
    with tf.Session() as session:
        return session.run(fetches, feeds)


def test_they_are_fed_and_fetched():
    x, y = tf.sparse_placeholder(tf.float32, name="x"), tf.sparse_placeholder(tf.float32, [None, 3])
    assert [t.name for t in (x.indices, x.values, x.dense_shape)] == ["x/indices:0", "x/values:0", "x/shape:0"]
    assert x.get_shape().ndims is None and y.get_shape().ndims == 2
    value = tf.SparseTensorValue([[0, 2]], [5.0], [2, 3])
    got, total = run([x, tf.sparse.to_dense(y)], {x: value, y: ([[1, 1]], [2.0], [2, 3])})
    assert isinstance(got, tf.SparseTensorValue)
    assert (got.indices.tolist(), got.values.tolist(), got.dense_shape.tolist()) == ([[0, 2]], [5.0], [2, 3])
    assert total.tolist() == [[0, 0, 0], [0, 2, 0]]
    assert run(tf.sparse.to_dense(x), {x: ([], [], [2, 3])}).tolist() == [[0, 0, 0]] * 2
    assert run(tf.sparse.to_dense(x), {x: run(x, {x: value})}).tolist() == [[0, 0, 5], [0, 0, 0]]
    with pytest.raises(ValueError, match="SparseTensor is fed with"):
        run(x, {x: [1.0]})


def test_they_go_through_branches_loops_identity_and_casts(graph):
    sp = tf.SparseTensor([[0], [3]], [1, 2], [4])
    _, looped = tf.while_loop(lambda i, _: i < 3, lambda i, s: (i + 1, s * 2), [0, tf.identity(sp)])
    chosen = tf.cond(tf.constant(True), lambda: looped, lambda: sp)
    assert run(tf.sparse.to_dense(tf.cast(chosen, tf.float32))).tolist() == [8.0, 0.0, 0.0, 16.0]
    assert tf.convert_to_tensor_or_sparse_tensor(sp) is sp
    assert tf.SparseTensor.from_value(tf.SparseTensorValue([[0]], [1], [2])).dtype == tf.int32
    with pytest.raises(RuntimeError, match="Sparse dtype"):
        tf.convert_to_tensor_or_sparse_tensor(sp, tf.float64)
    with tf.Session():
        assert sp.eval().values.tolist() == [1, 2]


@pytest.mark.parametrize("values", [[1.0], ["a"]])
def test_where_a_dense_tensor_is_needed(values) -> None:
    x = tf.SparseTensor([[0, 0]], values, [1, 1])
    for build in (
        lambda: tf.convert_to_tensor(x), lambda: tf.concat([x, x], 0), lambda: tf.nn.embedding_lookup(tf.ones([3, 2]), x),
        lambda: tf.matmul(x, [[1.0]]), lambda: tf.strings.length(x),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"is sparse: .* dt\.sparse\.to_dense"):
            build()
