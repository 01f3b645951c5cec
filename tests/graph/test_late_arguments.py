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
    assert tf.linspace(np.float64(0), 0.1, 3).dtype == tf.float64
    assert tf.linspace(0.0, 0.1, 3).dtype == tf.float32
    assert tf.constant(2**40).dtype == tf.int64 and tf.constant([1, -(2**31)]).dtype == tf.int32
    assert tf.placeholder(tf.float32, [6 / 2, None]).shape.as_list() == [3, None]
