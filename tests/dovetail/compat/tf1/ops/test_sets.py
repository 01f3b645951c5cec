"""Sets in rows, against Python's own."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf

A = [[[1, 2, 2], [3, 3, 3]], [[5, 9, 7], [0, 1, 2]]]
B = [[[2, 8], [3, 3]], [[6, 6], [2, 0]]]
OPERATIONS = {
    "intersection": (tf.sets.intersection, lambda a, b: a & b),
    "union": (tf.sets.union, lambda a, b: a | b),
    "difference": (tf.sets.difference, lambda a, b: a - b),
    "other difference": (lambda a, b: tf.sets.difference(a, b, aminusb=False), lambda a, b: b - a),
}


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches):
    with tf.Session() as session:
        return session.run(fetches)


def sparse(rows, kind):
    dense = np.array(rows, dtype=kind)
    indices = [i for i, _ in np.ndenumerate(dense)]
    return tf.SparseTensor(indices, dense.reshape(-1), dense.shape)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, "U"])
@pytest.mark.parametrize("is_sparse", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_rows_are_sets(operation, is_sparse, kind):
    ask, wanted = OPERATIONS[operation]
    operands = [sparse(x, kind) if s else np.array(x, dtype=kind) for x, s in zip((A, B), is_sparse, strict=True)]
    found = ask(*operands)
    assert found.shape.rank == 3
    value = run(found)
    rows = {(i, j): wanted(set(A[i][j]), set(B[i][j])) for i in range(2) for j in range(2)}
    assert value.dense_shape.tolist() == [2, 2, max(map(len, rows.values()))]
    assert value.indices.tolist() == [[*at, k] for at, row in rows.items() for k in range(len(row))]
    assert [int(v) for v in value.values] == [v for row in rows.values() for v in sorted(row)]


def test_sizes_of_sets():
    size = tf.sets.size(sparse(A, np.int32))
    assert size.shape.as_list() == [2, 2]
    assert run(size).tolist() == [[2, 1], [3, 3]]


def test_what_is_refused():
    with pytest.raises(TypeError, match="invalid dtype float32"):
        tf.sets.union([[1.0]], [[2.0]])
    with pytest.raises(ValueError, match="do not match"):
        tf.sets.union([[1]], [[1], [2]])
    with pytest.raises(TypeError, match="Expected SparseTensor"):
        tf.sets.size([[1]])
    late = tf.sets.union(tf.placeholder_with_default([[1], [2]], None), tf.placeholder_with_default([[1]], None))
    unordered = tf.sets.size(tf.SparseTensor([[0, 1], [0, 0]], [1, 2], [1, 2]))
    for fetch, problem in ((late, "do not match"), (unordered, "out of order")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=problem):
            run(fetch)
