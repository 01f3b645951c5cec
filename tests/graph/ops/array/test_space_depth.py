"""Blocks of pixels in channels and in the batch, against their definition by index."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(made, feeds=None):
    with tf.Session() as session:
        return session.run(made, feeds)


def to_depth(x, b):
    n, h, w, c = x.shape
    out = np.empty((n, h // b, w // b, b * b * c), x.dtype)
    for i, j, k, m in np.ndindex(h, w, c, n):
        out[m, i // b, j // b, (i % b * b + j % b) * c + k] = x[m, i, j, k]
    return out


IMAGES = np.arange(2 * 4 * 6 * 3, dtype=np.float32).reshape(2, 4, 6, 3)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_depth(known, data_format):
    given, wanted = IMAGES, to_depth(IMAGES, 2)
    if data_format == "NCHW":
        given, wanted = given.transpose(0, 3, 1, 2), wanted.transpose(0, 3, 1, 2)
    x = tf.placeholder(tf.float32, given.shape if known else [None] * 4)
    deep = tf.space_to_depth(x, 2, data_format=data_format)
    back = tf.depth_to_space(deep, 2, data_format=data_format)
    if known:
        assert tuple(deep.shape.as_list()) == wanted.shape
    found, again = run([deep, back], {x: given})
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(again, given)


def to_batch(x, blocks, pads):
    """The definition: padded element p of a block axis is element p // m of the rows whose place in the block is p % m."""
    x = np.pad(x, [(0, 0), *pads, *[(0, 0)] * (x.ndim - len(blocks) - 1)])
    n = len(x)
    parts = []
    for place in np.ndindex(*blocks):
        cut = (slice(None), *[slice(p, None, m) for p, m in zip(place, blocks, strict=True)])
        parts.append(x[cut])
    assert all(len(p) == n for p in parts)
    return np.concatenate(parts)


BLOCKS = {
    "no axis": ([], np.zeros([0, 2])),
    "one axis": ([2], [[1, 1]]),
    "two axes": ([2, 3], [[0, 0], [0, 0]]),
    "two padded axes": ([3, 4], [[1, 1], [2, 0]]),
    "all axes": ([2, 2, 3], [[0, 0], [2, 0], [0, 0]]),
}


@pytest.mark.parametrize(("blocks", "pads"), BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("known", [True, False])
def test_batch(blocks, pads, known):
    blocks, pads = np.asarray(blocks, np.int32), np.asarray(pads, np.int32)
    x = tf.placeholder(tf.float32, IMAGES.shape if known else [None] * 4)
    cut = tf.space_to_batch_nd(x, blocks, pads)
    found, again = run([cut, tf.batch_to_space_nd(cut, blocks, pads)], {x: IMAGES})
    np.testing.assert_array_equal(found, to_batch(IMAGES, blocks.tolist(), pads.tolist()))
    np.testing.assert_array_equal(again, IMAGES)


def test_images_in_the_batch_and_their_gradient():
    x = tf.constant(IMAGES)
    cut = tf.space_to_batch(x, [[0, 0], [0, 0]], 2)
    weights = np.random.default_rng(0).standard_normal(cut.shape.as_list()).astype(np.float32)
    (g,) = tf.gradients(tf.reduce_sum(cut * weights), [x])
    back, grad = run([tf.batch_to_space(cut, [[0, 0], [0, 0]], 2), g])
    np.testing.assert_array_equal(back, IMAGES)
    np.testing.assert_array_equal(to_batch(grad, [2, 2], [[0, 0], [0, 0]]), weights)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda x: tf.space_to_depth(x, 4), "multiple of 4, not 6"),
        (lambda x: tf.space_to_depth(x, 1), "at least 2"),
        (lambda x: tf.space_to_depth(x[0], 2), "rank 4 is needed"),
        (lambda x: tf.depth_to_space(x, 2), "channels must be a multiple of 4"),
        (lambda x: tf.depth_to_space(x, 2, data_format="NWHC"), "data_format"),
        (lambda x: tf.space_to_batch_nd(x, [5], [[0, 0]]), "multiple of 5"),
        (lambda x: tf.space_to_batch_nd(x, [2, 2], [[0, 0]]), "must have shape"),
        (lambda x: tf.space_to_batch_nd(x, [0], [[0, 0]]), "of 1 or more"),
        (lambda x: tf.space_to_batch_nd(x, tf.placeholder(tf.int32, [None]), [[0, 0]]), "known length"),
        (lambda x: tf.batch_to_space_nd(x, [3], [[0, 0]]), "multiple of 3"),
        (lambda x: tf.batch_to_space_nd(x, [2], [[9, 0]]), "more than there is"),
        (lambda x: tf.batch_to_space_nd(x, [2] * 4, [[0, 0]] * 4), "has shape"),
    ],
)
def test_what_does_not_fit_is_told(make, error):
    with pytest.raises(ValueError, match=error):
        make(tf.constant(IMAGES))


@pytest.mark.parametrize("late", ["sizes", "crops"])
@pytest.mark.parametrize("more", [1, 2, 3])
def test_crops_that_are_more_than_there_is_are_an_error_of_the_step(late, more):
    images = np.ones((2, 2, 2, 1), np.float32)  # 4 rows, of which 4 + `more` are cut off
    x = tf.placeholder(tf.float32, [None] * 4 if late == "sizes" else images.shape)
    wanted = np.array([[3, 1 + more], [0, 0]], np.int32)
    crops = tf.placeholder(tf.int32, [2, 2]) if late == "crops" else wanted
    feeds = {x: images, **({crops: wanted} if late == "crops" else {})}
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not lie in shape"):
        run(tf.batch_to_space_nd(x, [2, 1], crops), feeds)
