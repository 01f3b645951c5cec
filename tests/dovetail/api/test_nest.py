"""Structures under TensorFlow's names."""

from __future__ import annotations

from collections import namedtuple

import pytest

import dovetail as tf

Pair = namedtuple("Pair", "x y")
nest = tf.contrib.framework.nest


def test_structures_are_flattened_and_packed():
    structure = {"b": [1, (2,)], "a": Pair(3, None)}
    assert nest.flatten(structure) == [3, None, 1, 2]
    assert nest.pack_sequence_as(structure, "wxyz") == {"b": ["y", ("z",)], "a": Pair("w", "x")}
    assert tf.nest.map_structure(lambda a, b: a + b, [1, (2, 3)], [4, (5, 6)]) == [5, (7, 9)]
    assert nest.is_sequence([]) and tf.nest.is_nested({}) and not nest.is_sequence("text")
    with tf.Graph().as_default():
        sp = tf.SparseTensor([[0]], [1], [1])
        assert nest.flatten((sp,)) == [sp] and not nest.is_nested(sp)
    with pytest.raises(ValueError, match="had 2 elements, but flat_sequence had 1"):
        nest.pack_sequence_as([1, 2], [3])


def test_structures_are_compared():
    nest.assert_same_structure([1, (2, {"a": 3})], [4, (5, {"a": 6})])
    nest.assert_same_structure([1], (1,), check_types=False)
    for other, error in (([1, 2], ValueError), ((1,), TypeError), ([[1]], ValueError), (1, ValueError)):
        with pytest.raises(error):
            nest.assert_same_structure([1], other)
    with pytest.raises(ValueError, match="set of keys"):
        nest.assert_same_structure({"a": 1}, {"b": 1})


def test_shallow_structures():
    deep = [[1, 2], ([3], 4)]
    assert nest.flatten_up_to([0, (0, 0)], deep) == [[1, 2], [3], 4]
    assert nest.map_structure_up_to([0, 0], len, deep) == [2, 2]
    with pytest.raises(TypeError, match="must also be a sequence"):
        nest.assert_shallow_structure([[0]], [1])
    with pytest.raises(ValueError, match="sequence length"):
        nest.assert_shallow_structure([0], [1, 2])
