"""Checks of values: when the graph is built, where they can be; else when a step runs."""

from __future__ import annotations

import numpy as np
import pytest

import dovetail as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (tf.assert_equal, ([1, 2], [1, 2]), ([1, 2], [1, 3])),
        (tf.assert_none_equal, ([1, 2], [2, 1]), ([1, 2], [1, 3])),
        (tf.assert_less, ([1, 2], [2, 3]), ([1, 3], [2, 3])),
        (tf.assert_less_equal, ([1, 3], [2, 3]), ([1, 4], [2, 3])),
        (tf.assert_greater, ([2, 3], 1), ([2, 3], 2)),
        (tf.assert_greater_equal, ([2, 3], 2), ([2, 3], 3)),
        (tf.assert_near, ([1.0, 2.0], [1.0, 2.0 + 1e-7]), ([1.0], [1.001])),
        (tf.assert_positive, ([1, 2],), ([0, 1],)),
        (tf.assert_negative, ([-1.0],), ([0.0],)),
        (tf.assert_non_negative, ([0, 1],), ([-1],)),
        (tf.assert_non_positive, ([0, -1],), ([1],)),
    ],
)
def test_comparisons(check, good, bad):
    assert check(*good).type == "NoOp"
    with pytest.raises(tf.errors.InvalidArgumentError, match="mine"):
        check(*bad, message="mine")
    dtype = np.asarray(good[0]).dtype
    fed = tf.placeholder(np.float32 if dtype.kind == "f" else np.int64, [None])
    with tf.control_dependencies([check(fed, *good[1:], message="mine")]):
        passed = tf.identity(fed)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(passed, {fed: good[0]}), np.asarray(good[0], fed.dtype.np))
        wrong = bad[0] if good[1:] == bad[1:] else bad[0]
        if good[1:] in ((), bad[1:]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="mine"):
                session.run(passed, {fed: wrong})


def test_ranks_and_types():
    x = tf.placeholder(tf.float32)
    with pytest.raises(ValueError, match="must have rank 2"):
        tf.assert_rank([1.0], 2)
    with pytest.raises(ValueError, match="at least 1"):
        tf.assert_rank_at_least(1.0, 1)
    with pytest.raises(ValueError, match="in"):
        tf.assert_rank_in([1.0], [0, 2])
    with pytest.raises(ValueError, match="scalar"):
        tf.assert_scalar([1.0])
    with pytest.raises(TypeError, match="float32"):
        tf.assert_type(x, tf.int32)
    with pytest.raises(TypeError, match="integer"):
        tf.assert_integer(x)
    checks = [tf.assert_rank(x, 1), tf.assert_rank_at_least(x, 1), tf.assert_rank_in(x, [1, 3])]
    with tf.Session() as session:
        session.run(checks, {x: [1.0]})
        for check in checks:
            with pytest.raises(tf.errors.InvalidArgumentError, match="rank"):
                session.run(check, {x: 1.0})


def test_finite_numbers():
    x = tf.placeholder(tf.float32, [2])
    y = tf.check_numerics(tf.log(x), "the log")
    every = tf.add_check_numerics_ops()
    with tf.Session() as session:
        assert session.run(y, {x: [1, 1]}).tolist() == [0, 0]
        session.run(every, {x: [1, 1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="the log"):
            session.run(y, {x: [0, 1]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Inf or NaN"):
            session.run(every, {x: [-1, 1]})


def test_order_and_counts():
    with tf.Session() as session:
        found = session.run(
            {
                "up": tf.is_non_decreasing([1, 1, 2]),
                "strictly": tf.is_strictly_increasing([1, 1, 2]),
                "counts": tf.bincount([1, 1, 3], minlength=5),
                "weighed": tf.math.bincount([1, 1, 3], weights=[0.5, 1.0, 2.0], maxlength=2),
                "none": tf.bincount(tf.zeros([0], tf.int32)),
                "matrix": tf.confusion_matrix([0, 1, 1], [0, 2, 1]),
                "zeros": tf.nn.zero_fraction([0.0, 1.0, 0.0, 2.0]),
                "xlogy": tf.math.xlogy([0.0, 2.0], [0.0, 1.0]),
                "xdivy": tf.math.xdivy([0.0, 2.0], [0.0, 4.0]),
                "product": tf.math.multiply_no_nan([np.inf, 2.0], [0.0, 4.0]),
                "reciprocal": tf.math.reciprocal_no_nan([0.0, 4.0]),
            }
        )
    assert (found["up"], found["strictly"], found["zeros"]) == (True, False, 0.5)
    assert found["counts"].tolist() == [0, 2, 0, 1, 0]
    assert found["weighed"].tolist() == [0, 1.5]
    assert found["none"].tolist() == []
    assert found["matrix"].tolist() == [[1, 0, 0], [0, 1, 1], [0, 0, 0]]
    assert found["xlogy"].tolist() == [0, 0]
    assert found["xdivy"].tolist() == [0, 0.5]
    assert found["product"].tolist() == [0, 8]
    assert found["reciprocal"].tolist() == [0, 0.25]


def test_shapes_of_several_tensors():
    x, y, one = tf.zeros([4, 2]), tf.zeros([3, 4]), tf.constant(1)
    tf.debugging.assert_shapes([(x, ("n", 2)), (y, (None, "n")), (one, "k"), (tf.zeros([1, 5]), "k5"), (y, None)])
    tf.debugging.assert_shapes({x: (..., 2), tf.zeros([1, 7, 4, 2]): "*42"})
    for shapes, text in (
        ([(x, (5, 2))], "Specified explicitly.  Tensor .* dimension 0 must have size 5.  Received size 4"),
        (
            [(x, "nm"), (y, "nk")],
            "Specified by tensor .* dimension 0.  Tensor .* dimension 0 must have size 4.  Received size 3",
        ),
        ([(x, "*3")], "dimension -1 must have size 3"),
        ([(x, (1, 1, 1))], "must have rank 3"),
        ([(x, ("n", ..., 2))], "only allowed as the first entry"),
        ([(x, 2)], "must be an iterable"),
        ([(one, (2,))], "must have size 2.  Received size 1"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.debugging.assert_shapes(shapes)
    late, any_rank = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32)
    check = tf.debugging.assert_shapes([(late, "n2"), (any_rank, "n")])
    with tf.Session() as session:
        session.run(check, {late: np.zeros((3, 2)), any_rank: np.zeros(3)})
        session.run(check, {late: np.zeros((1, 2)), any_rank: 0.0})
        for value in (np.zeros(2), 0.0):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must have size"):
                session.run(check, {late: np.zeros((3, 2)), any_rank: value})


def test_iterables_and_floating_types():
    tf.assert_proper_iterable([1])
    for wrong in (tf.constant([1]), np.zeros(2), "text", 3):
        with pytest.raises(TypeError, match="iterable"):
            tf.assert_proper_iterable(wrong)
    single, double = tf.constant(1.0), tf.constant(1.0, tf.float64)
    assert tf.assert_same_float_dtype() is tf.float32
    assert tf.assert_same_float_dtype([double, None], tf.float64) is tf.float64
    with pytest.raises(ValueError, match="must be of the same type"):
        tf.assert_same_float_dtype([single, double])
    with pytest.raises(ValueError, match="Expected floating"):
        tf.assert_same_float_dtype([tf.constant(1)])


def test_ranks_that_are_no_numbers():
    x, rank = tf.zeros([2]), tf.placeholder(tf.int32, [])
    with tf.Session() as session:
        for check in (tf.assert_rank(x, rank), tf.assert_rank_in(x, [0, rank]), tf.assert_rank_at_least(x, rank)):
            session.run(check, {rank: 1})
            with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank"):
                session.run(check, {rank: 2})
    for wrong, error in ((0.5, TypeError), ([1], ValueError)):
        with pytest.raises(error, match="rank|Rank"):
            tf.assert_rank(x, wrong)
        with pytest.raises(error, match="rank|Rank"):
            tf.assert_rank_in(x, [1, wrong])


def test_a_confusion_matrix_is_of_two_vectors():
    """A column beside a vector counts as one; anything else was flattened, and paired what does not belong together."""
    with tf.Session() as session:
        for labels, predictions in (([[0], [1]], [1, 1]), ([0, 1], [[1], [1]])):
            assert session.run(tf.confusion_matrix(labels, predictions)).tolist() == [[0, 1], [0, 1]]
    for labels, predictions, text in (
        ([1, 2, 3], [[1, 2, 3]], "its size is 3, not 1"),
        ([[1, 2, 3]], [1, 2, 3], "its size is 3, not 1"),
        ([[1, 0], [0, 1]], [[1, 0], [0, 1]], "labels: Shape must be rank 1 but is rank 2"),
        (0, 0, "labels: Shape must be rank 1 but is rank 0"),
    ):
        with pytest.raises(ValueError, match=text):
            tf.confusion_matrix(labels, predictions)
