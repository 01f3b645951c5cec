"""Arguments that only the running graph knows, and what is known of the results' shapes nevertheless."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches, feeds=None):
    with tf.Session() as session:
        return session.run(fetches, feeds)


def late(value, dtype=None):
    """A tensor of which nothing is known but its type."""
    return tf.placeholder_with_default(tf.constant(value, dtype), None)


def test_eye_takes_its_sizes_late():
    wanted = np.broadcast_to(np.eye(2, 3), (4, 2, 3))
    for batch, rows, columns in (
        (late([4]), 2, 3),
        ([4], late(2), 3),
        (late([4]), late(2), late(3)),
        ([4], 2, late(3)),
    ):
        np.testing.assert_array_equal(run(tf.eye(rows, columns, batch)), wanted)
    assert tf.eye(late(2), 3, [4]).shape.as_list() == [4, None, 3]
    assert tf.eye(2, batch_shape=tf.placeholder(tf.int32, [1])).shape.as_list() == [None, 2, 2]


def test_values_keep_their_own_type():
    assert (tf.constant([1.5]) + []).dtype == tf.float32 and run(tf.reduce_all([]))
    assert run(tf.equal(tf.constant([], tf.string), [])).shape == (0,)
    assert tf.linspace(np.float64(0), 0.1, 3).dtype == tf.float64
    assert tf.linspace(0.0, 0.1, 3).dtype == tf.float32
    assert tf.constant(2**40).dtype == tf.int64 and tf.constant([1, -(2**31)]).dtype == tf.int32
    assert tf.placeholder(tf.float32, [6 / 2, None]).shape.as_list() == [3, None]


def test_blocks_and_paddings_are_late():
    x = np.arange(2 * 4 * 6 * 2, dtype=np.float32).reshape(2, 4, 6, 2)
    early = tf.space_to_batch_nd(x, [2, 3], [[1, 1], [0, 3]])
    blocks, pads = tf.placeholder_with_default([2, 3], [2]), late([[1, 1], [0, 3]])
    for image in (tf.constant(x), late(x)):
        parts = tf.space_to_batch_nd(image, blocks, pads)
        whole = tf.batch_to_space_nd(parts, blocks, pads)
        wanted, found, back = run([early, parts, whole])
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(back, x)
    assert tf.space_to_depth(tf.placeholder(tf.float32), 2).shape.as_list() == [None] * 4
    assert tf.space_to_batch(tf.placeholder(tf.float32), tf.placeholder(tf.int32), 2).shape.rank == 4


def test_shapes_are_known_where_a_part_of_the_sizes_is():
    n = tf.placeholder(tf.int32)
    assert tf.tile(tf.zeros([1, 7]), [n, 2]).shape.as_list() == [None, 14]
    assert tf.pad(tf.zeros([4, 4]), [[1, 2], n]).shape.as_list() == [7, None]
    assert tf.pad(tf.zeros([4, 4]), [[n, 0], [1, 2]]).shape.as_list() == [None, 7]
    assert tf.reshape(tf.placeholder(tf.float32), [n, 37]).shape.as_list() == [None, 37]
    x, any_rank, chosen = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32), tf.zeros([3, 5], tf.bool)
    for y, condition in ((x, chosen), (any_rank, chosen), (x, chosen[:, 0])):
        assert tf.where(condition, y, y).shape.as_list() == [3, 5]
    assert tf.where(chosen[:, 0], any_rank, any_rank).shape.rank is None


def test_a_missing_size_of_no_elements_is_found():
    x = tf.placeholder(tf.float32, [0, 6])
    assert run(tf.reshape(x, [0, -1, 3]), {x: np.zeros((0, 6))}).shape == (0, 2, 3)


@pytest.mark.parametrize("axes", [1, 2, 0, [[1], [0]], [[-1, 0], [1, -2]]])
def test_ranks_of_tensordot_are_late(axes):
    a, b = np.random.default_rng(1).normal(size=(2, 3, 3))
    for x, y in ((late(a), b), (a, late(b)), (late(a), late(b))):
        np.testing.assert_allclose(run(tf.tensordot(x, y, axes)), np.tensordot(a, b, axes))


def test_all_axes_but_the_last_are_batches():
    params, indices = np.arange(12).reshape(2, 3, 2), [[2, 0], [1, 1]]
    wanted = [params[0, [2, 0]], params[1, [1, 1]]]
    np.testing.assert_array_equal(run(tf.gather(params, indices, batch_dims=None)), wanted)


@pytest.mark.parametrize("shape", [(2, 1, 2), (2, 0, 2)])
def test_ranks_of_gather_nd_with_batches_are_late(shape):
    params, indices = np.arange(24).reshape(2, 3, 2, 2), np.ones(shape, np.int32)
    wanted = np.stack([p[tuple(i.T)] for p, i in zip(params, indices, strict=True)])
    np.testing.assert_array_equal(run(tf.gather_nd(late(params), late(indices, tf.int32), batch_dims=1)), wanted)


@pytest.mark.parametrize("axes", [[[1, 2], [1, 0]], [[-2, 2], [1, 0]], [[2], [0]], [2, 0]])
def test_tensordot_takes_its_axes_late(axes):
    x, y = np.arange(24.0).reshape(2, 3, 4), np.arange(60.0).reshape(4, 3, 5)
    wanted = np.tensordot(x, y, axes)
    for left, given in ((tf.constant(x), late(axes, tf.int32)), (late(x), late(axes, tf.int64)), (late(x), axes)):
        np.testing.assert_allclose(run(tf.tensordot(left, y, given)), wanted)


@pytest.mark.parametrize(
    "axes, text",
    [([[7], [0]], "not in"), ([[1, 1], [1, 1]], "not a permutation"), ([[1], [0]], "sizes do not match")],
)
def test_late_axes_of_tensordot_that_do_not_fit(axes, text):
    x, y = np.ones((2, 3, 4)), np.ones((4, 3, 5))
    for left, given in ((tf.constant(x), late(axes, tf.int32)), (late(x), late(axes, tf.int32))):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            run(tf.tensordot(left, late(y), given))
    if text == "not in":  # not counted from the front again
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            run(tf.tensordot(late(x), y, axes))


@pytest.mark.parametrize("along, batch", [(1, 0), (0, 2), (2, 1)])
def test_sequences_of_unknown_rank_are_reversed(along, batch):
    x = np.arange(24.0).reshape(2, 3, 4)
    lengths = np.arange(x.shape[batch]) % (x.shape[along] + 1)
    wanted = np.moveaxis(x, (batch, along), (0, 1)).copy()
    for row, n in zip(wanted, lengths, strict=True):
        row[:n] = row[:n][::-1].copy()
    t = late(x)
    found = tf.reverse_sequence(t, lengths, along, batch)
    assert found.shape.ndims is None
    weights = np.cos(x)
    slope = tf.gradients(found * weights, t)[0]
    turned = tf.reverse_sequence(weights, lengths, along, batch)  # it is its own inverse
    got, got_slope, expected_slope = run([found, slope, turned])
    np.testing.assert_array_equal(np.moveaxis(got, (batch, along), (0, 1)), wanted)
    np.testing.assert_array_equal(got_slope, expected_slope)
    with pytest.raises(ValueError, match="count from the end"):
        tf.reverse_sequence(t, lengths, -1, batch)


def test_joined_sparse_tensors_have_the_rank_that_one_of_them_has():
    known = tf.SparseTensor([[0, 1]], [1.0], [2, 3])
    unknown = tf.SparseTensor(*(tf.placeholder(d) for d in (tf.int64, tf.float32, tf.int64)))
    joined = tf.sparse_concat(0, [unknown, known])
    assert joined.indices.shape.as_list() == [None, 2]
    assert joined.values.shape.as_list() == [None]


def test_an_array_of_numbers_is_a_condition():
    for dtype in (np.int64, np.float32, np.uint8):
        condition = np.array([[1], [0], [2]], dtype)
        assert run(tf.where(condition[:, 0], [1, 2, 3], [4, 5, 6])).tolist() == [1, 5, 3]
        assert run(tf.where_v2(condition, [[7, 8]], -1)).tolist() == [[7, 8], [-1, -1], [7, 8]]
        assert run(tf.where(condition)).tolist() == [[0, 0], [2, 0]]
    with pytest.raises(TypeError, match="condition must be bool"):  # nor does TensorFlow take a list
        tf.where([1, 0], [1, 2], [3, 4])


def test_pooling_and_convolution_of_volumes_take_their_ranks_late():
    x, taps = np.arange(54.0).reshape(1, 3, 3, 3, 2), np.ones((2, 1, 1, 2, 1))
    np.testing.assert_allclose(run(tf.nn.max_pool3d(late(x), 2, 1, "VALID")), x[:, 1:, 1:, 1:])
    np.testing.assert_allclose(run(tf.nn.avg_pool3d(late(x), [1, 1, 3], 3, "VALID")), x[:, ::3, ::3, 1:2])
    wanted = (x[:, :-1] + x[:, 1:]).sum(-1, keepdims=True)
    np.testing.assert_allclose(run(tf.nn.conv3d(late(x), taps, 1, "VALID")), wanted)


def test_what_is_known_of_results_whose_arguments_are_late():
    assert tf.tile(late([1.0]), [0]).shape.as_list() == [0]
    assert tf.nn.in_top_k(late([[1.0]]), late([0]), 1).shape.as_list() == [None]
    sparse = tf.SparseTensor([[0, 1]], [2.0], [3, 2])
    assert tf.sparse_tensor_dense_matmul(sparse, tf.ones([2, 4])).shape.as_list() == [3, 4]
