"""Functions of `dt.nn` that are made of other ops, against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

RNG = np.random.default_rng(1)
X = RNG.standard_normal((4, 3, 5))


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(x: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(x, feeds)


@pytest.mark.parametrize("shift", [None, 0.7])
@pytest.mark.parametrize("keep", [False, True])
def test_moments_from_sums(shift: float | None, keep: bool) -> None:
    late = tf.placeholder(tf.float64, [None, 3, None])
    count, total, squares, near = tf.nn.sufficient_statistics(late, [0, 2], shift, keepdims=keep)
    assert (near is None) == (shift is None)
    found = run([count, *tf.nn.normalize_moments(count, total, squares, near)], {late: X})
    assert found[0] == 20
    np.testing.assert_allclose(found[1], X.mean((0, 2), keepdims=keep))
    np.testing.assert_allclose(found[2], X.var((0, 2), keepdims=keep))


def test_weighted_moments() -> None:
    weights = RNG.integers(0, 4, (4, 1, 1)).astype(np.float32)
    repeated = np.repeat(X, weights.ravel().astype(int), 0)
    found = run(tf.nn.weighted_moments(X, [0], weights))
    np.testing.assert_allclose(found[0], repeated.mean(0))
    np.testing.assert_allclose(found[1], repeated.var(0))
    half = tf.nn.weighted_moments(tf.constant(X, tf.float16), [0, 1], weights, keep_dims=True)
    assert [(t.dtype, t.shape.as_list()) for t in half] == [(tf.float16, [1, 1, 5])] * 2


def test_the_older_batch_normalization() -> None:
    v, beta, gamma = np.array([1.0, 2, 3, 4, 5]), np.arange(5.0), np.arange(5.0) + 1
    normal = (X - 0.5) / np.sqrt(v + 0.1)
    for scaled in (True, False):
        found = run(tf.nn.batch_norm_with_global_normalization(X, 0.5, v, beta, gamma, 0.1, scaled))
        np.testing.assert_allclose(found, normal * (gamma if scaled else 1) + beta)


def test_poisson_loss() -> None:
    targets, z = np.array([0.0, 1.0, 2.0, 7.5]), np.array([0.3, -1.0, 0.5, 2.0])
    loss = np.exp(z) - z * targets
    late = targets[2:]
    stirling = np.concatenate([[0, 0], late * np.log(late) - late + 0.5 * np.log(2 * np.pi * late)])
    true = tf.constant(targets)
    full = tf.nn.log_poisson_loss(true, z, compute_full_loss=True)
    np.testing.assert_allclose(run(tf.nn.log_poisson_loss(targets, z)), loss)
    np.testing.assert_allclose(run(full), loss + stirling)
    assert np.isfinite(run(tf.gradients(full, true)[0])).all()
    with pytest.raises(ValueError, match="same shape"):
        tf.nn.log_poisson_loss(np.zeros(2), np.zeros(3))


def test_segments_over_the_roots_of_their_sizes() -> None:
    found = run(tf.math.unsorted_segment_sqrt_n([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 2, 0], 3))
    np.testing.assert_allclose(found, [np.array([6.0, 8.0]) / np.sqrt(2), [0.0, 0.0], [3.0, 4.0]], rtol=1e-6)


def test_all_candidates_and_accidental_hits() -> None:
    true = np.array([[1, 2], [0, 4], [3, 3]])
    drawn, expected, each = tf.random.all_candidate_sampler(true, 2, 4, True)
    rows, places, weights = tf.nn.compute_accidental_hits(true, drawn, 2)
    found = run([drawn, expected, each, rows, places, weights])
    assert found[0].tolist() == [0, 1, 2, 3]
    assert found[1].tolist() == [[1, 1]] * 3 and found[2].tolist() == [1] * 4
    assert sorted(zip(found[3].tolist(), found[4].tolist(), strict=True)) == [(0, 1), (0, 2), (1, 0), (2, 3), (2, 3)]
    assert (found[5] == np.finfo(np.float32).min).all()


@pytest.mark.parametrize("loss", [tf.nn.sampled_softmax_loss, tf.nn.nce_loss])
def test_sampled_candidates_of_a_narrower_type(loss: Any) -> None:
    w, b, x, labels = X[0].T, X[0, 0], X[0, :2, :3], np.array([[1], [4]])
    losses = [
        loss(w, b, labels, x, 2, 5, sampled_values=(np.array([0, 2], kind), np.ones((2, 1)), np.ones(2)))
        for kind in (np.int32, np.int64)
    ]
    narrow, wide = run(losses)
    np.testing.assert_array_equal(narrow, wide)


def test_means_of_whole_numbers_are_refused() -> None:
    x = np.array([[0, 1], [1, 0]])
    one = np.ones(2, np.float32)
    with pytest.raises(TypeError, match=r"x is int64, and moments takes floats.*dt\.cast"):
        tf.nn.moments(x, [0])
    with pytest.raises(TypeError, match="x is int64, and weighted_moments takes floats"):
        tf.nn.weighted_moments(x, [0], 1)
    with pytest.raises(TypeError, match="x is int64, and batch_normalization takes floats"):
        tf.nn.batch_normalization(x, one, one, None, None, 0.1)
    with pytest.raises(TypeError, match=r"x is uint8, .*/ 255, for images"):
        tf.nn.moments(x.astype(np.uint8), [0])
    for training in (True, False):
        with pytest.raises(TypeError, match="is int64, and batch normalization takes floats"):
            tf.layers.batch_normalization(x, training=training)
    with pytest.raises(ValueError, match="one axis of channels"):
        tf.layers.batch_normalization(np.zeros((2, 3, 4), np.float32), axis=[1, 2])
