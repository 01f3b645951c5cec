"""Functions of matrices, histograms and other compositions, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special

import dovetail as tf

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches):
    with tf.Session() as session:
        return session.run(fetches)


def test_pseudo_inverses_and_ranks():
    low = RNG.normal(size=(2, 4, 2)) @ RNG.normal(size=(2, 2, 3))
    full = RNG.normal(size=(3, 5))
    for a, rank in ((low, [2, 2]), (full, 3), (np.zeros((2, 2)), 0)):
        np.testing.assert_allclose(run(tf.linalg.pinv(a)), np.linalg.pinv(a), atol=1e-12)
        np.testing.assert_array_equal(run(tf.linalg.matrix_rank(a)), rank)
    assert run(tf.linalg.matrix_rank(np.diag([1.0, 0.1]), tol=0.5)) == 1


def test_singular_vectors_and_their_gradients():
    for m, n in ((4, 3), (3, 4)):
        a = RNG.normal(size=(m, n))
        x = tf.constant(a)
        s, u, v = tf.linalg.svd(x)
        weighted = tf.matmul(u * [1.0, 2.0, 3.0], v, transpose_b=True)
        with tf.Session() as session:
            np.testing.assert_allclose(session.run(tf.matmul(u * s, v, transpose_b=True)), a, atol=1e-12)
            assert tf.test.compute_gradient_error(x, [m, n], weighted, [m, n], a, delta=1e-6) < 1e-6
        assert [t.shape.as_list() for t in tf.svd(x, full_matrices=True)] == [[3], [m, m], [n, n]]


def test_determinants():
    a = RNG.normal(size=(2, 3, 3))
    sign, log_abs = run(tf.linalg.slogdet(a))
    np.testing.assert_allclose(sign * np.exp(log_abs), np.linalg.det(a))
    positive = a @ np.swapaxes(a, 1, 2) + np.eye(3)
    np.testing.assert_allclose(run(tf.linalg.logdet(positive)), np.linalg.slogdet(positive)[1])
    np.testing.assert_array_equal(run(tf.linalg.adjoint(a)), np.swapaxes(a, 1, 2))


def test_cross_products():
    a, b = RNG.normal(size=(2, 4, 3))
    np.testing.assert_allclose(run(tf.cross(a, b)), np.cross(a, b))
    with pytest.raises(ValueError, match="only defined for vectors of 3"):
        tf.linalg.cross([1.0, 2.0], [3.0, 4.0])


def test_bessel_functions_beta_and_polynomials():
    x = np.array([-2.5, 0.0, 0.1, 9.0])
    np.testing.assert_allclose(run(tf.math.bessel_i0(x)), scipy.special.i0(x))
    np.testing.assert_allclose(run(tf.math.bessel_i1(x)), scipy.special.i1(x))
    with tf.Session() as session:
        at = tf.constant(0.0, tf.float64)
        assert session.run(tf.gradients(tf.math.bessel_i1e(at), at)) == [0.5]
        large = np.array([-800.0, -700.0, 0.0, 700.0, 709.0, 1e30])  # exp overflows from 710 on
        at = tf.constant(large)
        slopes = [tf.gradients(f(at), at)[0] for f in (tf.math.bessel_i0, tf.math.bessel_i1)]
        slopes += tf.gradients(slopes[0], at)
        i0, i1, second = session.run(slopes)
        np.testing.assert_allclose(i0, scipy.special.i1(large), rtol=1e-12)
        np.testing.assert_allclose(i1, scipy.special.ivp(1, large), rtol=1e-12)
        np.testing.assert_allclose(second, i1, rtol=1e-12)
    np.testing.assert_allclose(run(tf.lbeta([[1.0, 2.0], [3.0, 4.0]])), scipy.special.betaln([1, 3], [2, 4]), rtol=1e-5)
    np.testing.assert_allclose(run(tf.math.polyval([1.0, -2.0, 3.0], x)), np.polyval([1, -2, 3], x))
    assert run(tf.math.polyval([], x)).tolist() == [0] * 4
    with pytest.raises(ValueError, match="must be list"):
        tf.math.polyval(3.0, x)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32])
def test_histograms(kind):
    values = RNG.uniform(-3, 13, (20, 5)).astype(kind)
    wanted = np.histogram(np.clip(values, 0, 10), 5, (0, 10))[0]
    assert run(tf.histogram_fixed_width(values, [0, 10], 5, tf.int64)).tolist() == wanted.tolist()
    bins = run(tf.histogram_fixed_width_bins(values, [0, 10], 5))
    np.testing.assert_array_equal(bins, np.clip(np.floor(values / 2), 0, 4))


def test_a_value_at_an_edge_is_counted_in_tensorflow_s_bin():
    """-0.24 as a float32 is a bit below the edge, which only float64 tells."""
    edge = np.float32([-0.24])
    assert run(tf.histogram_fixed_width(edge, [-3.0, 3.0], 50)).nonzero()[0].tolist() == [22]
    assert run(tf.histogram_fixed_width_bins(edge, [-3.0, 3.0], 50)).tolist() == [23]


@pytest.mark.parametrize(
    ("values", "ends", "text"),
    [([0.1, np.nan], [0, 1], "NaN"), ([0.1], [1, 1], "value_range"), ([0.1], [1, 0], "value_range")],
)
def test_a_histogram_of_what_has_no_bin_is_refused(values, ends, text):
    for f in (tf.histogram_fixed_width, tf.histogram_fixed_width_bins):
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            run(f(tf.constant(values), tf.constant(ends, tf.float32), 3))


def test_small_array_functions():
    params, indices = RNG.normal(size=(2, 3, 4)), [[2, 0], [1, 1]]
    np.testing.assert_array_equal(run(tf.batch_gather(params, indices)), [params[0, [2, 0]], params[1, [1, 1]]])
    np.testing.assert_array_equal(run(tf.parallel_stack([[1, 2], [3, 4]])), [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="needs to know the shapes"):
        tf.parallel_stack([tf.placeholder(tf.float32, [None])])
    assert run(tf.setdiff1d(["b", "a", "c"], ["a"])).out.tolist() == [b"b", b"c"]
    x = np.array([3.0, 4.0], np.float32)
    np.testing.assert_allclose(run(tf.clip_by_average_norm(x, 1.25)), x / 2)
    np.testing.assert_allclose(run(tf.clip_by_average_norm(x, 5.0)), x)
    paddings, crops = tf.required_space_to_batch_paddings([5, 6], [2, 4], [[1, 0], [0, 1]])
    assert (run(paddings).tolist(), run(crops).tolist()) == ([[1, 0], [0, 2]], [[0, 0], [0, 1]])


def test_whole_numbers_and_fractions():
    x = np.array([[3, 4], [-1, 2]])
    assert run(tf.math.reduce_euclidean_norm(x, 1)).tolist() == [5, 2]
    a, b = np.array([7.5, -7.5, 7.5]), np.array([2.0, 2.0, -2.0])
    np.testing.assert_array_equal(run(tf.truncatemod(a, b)), np.fmod(a, b))
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(tf.truncatemod([1], [0]))


@pytest.mark.parametrize("axis", [[], [0, 1, 2], [1.5], [[1], [0]], [1, 1]])
def test_axes_of_norms(axis):
    with pytest.raises(ValueError, match="unique integers"):
        tf.norm([[1.0, 2.0]], axis=axis)


def test_what_fits_no_shape_or_type_is_refused():
    with pytest.raises(ValueError, match="not compatible"):
        tf.clip_by_norm(tf.ones([2, 3, 1]), [1.0, 2.0])
    with pytest.raises(TypeError, match="does not match dtype parameter int32"):
        tf.one_hot([0], 2, on_value=np.float32(1), dtype=tf.int32)


class Celsius:
    def __init__(self, degrees):
        self.degrees = degrees


def test_objects_of_registered_types_are_tensors(monkeypatch):
    monkeypatch.setattr("dovetail.graph.core.build._conversions", [])

    def converted(value, dtype=None, name=None, as_ref=False):
        return NotImplemented if value.degrees is None else tf.constant(value.degrees, dtype or tf.float32, name=name)

    tf.register_tensor_conversion_function(Celsius, converted)
    tf.register_tensor_conversion_function(Celsius, lambda value, **kwargs: tf.constant(-273.0), priority=200)
    with tf.Session() as session:
        assert session.run(tf.constant(1.0) + Celsius(2.0)) == 3.0
        assert session.run(tf.stack([Celsius(2.0), 1.0])).tolist() == [2.0, 1.0]
        assert session.run(tf.convert_to_tensor(Celsius(7), tf.int64)).dtype == np.int64
        assert session.run(tf.negative(Celsius(None))) == 273.0
    with pytest.raises(TypeError, match="must be a type"):
        tf.register_tensor_conversion_function("Celsius", converted)


@pytest.mark.parametrize(
    ("matrices", "diagonals", "wanted"),
    [
        (None, (2, None), (2, None, None)),
        ((None, None, None), (5, 3), (5, None, None)),
        ((None, 3, 4), (5, None), (5, 3, 4)),
        ((2, 3), None, (2, 3)),
        (None, None, None),
    ],
)
def test_new_diagonals_tell_the_shape_of_their_matrices(matrices, diagonals, wanted):
    made = tf.matrix_set_diag(tf.placeholder("float32", matrices), tf.placeholder("float32", diagonals))
    assert made.dims == wanted


def test_a_count_of_bins_is_not_negative():
    most = tf.placeholder(tf.int32, [])
    counts = tf.bincount([1, 1, 7], maxlength=most)
    with tf.Session() as session:
        assert session.run(counts, {most: 2}).tolist() == [0, 2]
        with pytest.raises(tf.errors.InvalidArgumentError, match="maxlength must be non-negative"):
            session.run(counts, {most: -1})


def test_numbers_beside_an_int64_tensor_are_int64() -> None:
    x = np.arange(12.0).reshape(3, 4)
    at = tf.placeholder(tf.int64, [2])
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.slice(x, at, [1, -1]), {at: [1, 2]}), x[1:2, 2:])
        np.testing.assert_array_equal(session.run(tf.slice(x, (1, 0), at), {at: [2, 3]}), x[1:, :3])
