"""`Dimension` and `TensorShape` as numbers, and as tensors."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import dovetail as tf
from dovetail.graph.core.shape import Dimension, TensorShape


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


X = np.arange(10, dtype=np.float32).reshape(2, 5)

TENSORS = {
    "quotient": (lambda x: x / x.shape[-1], X / 5),
    "product": (lambda x: x.shape[0] * x, X * 2),
    "whole numbers": (lambda x: tf.size(x) // x.shape[-1], 2),
    "cast": (lambda x: tf.cast(x.shape[-1], tf.float32), 5.0),
    "stack": (lambda x: tf.stack([x.shape[0], 3]), [2, 3]),
    "stack with tensors": (lambda x: tf.stack([x.shape[0], tf.size(x)]), [2, 10]),
    "range": (lambda x: tf.range(x.shape[0]), [0, 1]),
    "shape": (lambda x: tf.convert_to_tensor(x.shape), [2, 5]),
    "long shape": (lambda x: tf.convert_to_tensor(x.shape, tf.int64), [2, 5]),
    "constant": (lambda x: tf.constant([10, x.shape[0]]), [10, 2]),
    "sum of shapes": (lambda x: tf.zeros(x.shape + [1]) + 1, np.ones((2, 5, 1))),
    "no axes": (lambda x: tf.convert_to_tensor(tf.TensorShape([])), []),
}


@pytest.mark.parametrize("name", TENSORS)
def test_sizes_are_tensors(name):
    build, wanted = TENSORS[name]
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(build(tf.constant(X))), wanted)


def test_unknown_sizes_and_floats_are_refused():
    shape = tf.placeholder(tf.float32, [None, 3]).shape
    for value in (shape, shape[0], [shape[0], 3]):
        with pytest.raises(ValueError, match="Cannot convert a"):
            tf.convert_to_tensor(value)
    for value in (shape[1], tf.TensorShape([1])):
        with pytest.raises(TypeError, match="float32"):
            tf.convert_to_tensor(value, tf.float32)
    assert tf.convert_to_tensor(tf.TensorShape([2**40])).dtype == tf.int64


def test_arithmetic_of_sizes():
    d, unknown = Dimension(7), Dimension(None)
    assert [int(v) for v in (13 - d, d - 3, d % 4, 9 % d, 15 // d, d // 2, d + -1, 2 * d, d + d)] == (
        [6, 4, 3, 2, 2, 3, 6, 14, 14]
    )
    assert [(d + unknown).value, (2 - unknown).value, (unknown % d).value] == [None] * 3
    assert (d == unknown) is None and (d != unknown) is None and (unknown < 3) is None
    assert d == 7 and d != 8 and d > 6 and not d <= 6 and d != "7"
    with pytest.raises(ValueError, match="-1 must be >= 0"):
        6 - d
    for quotient in (lambda: d / 2, lambda: 2 / d, lambda: d / d):
        with pytest.raises(TypeError, match="please use // instead"):
            quotient()
    assert d.merge_with(unknown) == unknown.merge_with(7) == 7
    assert d.is_compatible_with(None) and not d.is_compatible_with(6)
    with pytest.raises(ValueError, match="not compatible"):
        d.merge_with(6)
    assert [tf.dimension_value(v) for v in (d, unknown, 3, None)] == [7, None, 3, None]
    assert (str(d), repr(d), str(unknown)) == ("7", "Dimension(7)", "?")


def test_shapes_join_and_travel():
    shape, unknown = TensorShape([None, 3]), TensorShape(None)
    assert (shape + [4]).as_list() == [None, 3, 4] and ([4] + shape).as_list() == [4, None, 3]
    assert TensorShape([3]) == 3 and TensorShape([3]) == Dimension(3) and TensorShape([3]) != 4 and unknown != 3
    assert shape.most_specific_compatible_shape([2, 3]).as_list() == [None, 3]
    assert shape.most_specific_compatible_shape([2, 4]).as_list() == [None, None]
    assert shape.most_specific_compatible_shape([2]).rank is None
    assert unknown[1:3].as_list() == [None, None] and unknown[1:].rank is None
    assert tf.dimension_at_index(shape, 1) == 3 and tf.dimension_at_index(unknown, 1).value is None
    for s in (shape, unknown, TensorShape([])):
        assert TensorShape(s.as_proto()) == s
        assert pickle.loads(pickle.dumps(s)) == s
    assert pickle.loads(pickle.dumps(Dimension(5))) == 5
