"""Convolutions and pooling along one, two or three axes of space, against loops over positions and taps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import dovetail as tf

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as fresh:
        yield fresh


def run(x: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(x, feeds)


def slide(x: Any, taps: Any, strides: Any, gaps: Any, padding: str, see: Callable[[Any, Any], Any]) -> Any:
    """`see(patch, inside)` of what each position of the window sees: the patch is zero where it is not inside of the image."""
    space = x.shape[1:-1]
    spans = [(t - 1) * g + 1 for t, g in zip(taps, gaps, strict=True)]
    if padding == "SAME":
        counts = [-(-n // s) for n, s in zip(space, strides, strict=True)]
        pads = [max((c - 1) * s + w - n, 0) for c, s, w, n in zip(counts, strides, spans, space, strict=True)]
    else:
        counts = [(n - w) // s + 1 for n, s, w in zip(space, strides, spans, strict=True)]
        pads = [0] * len(space)
    around = [(0, 0), *((p // 2, p - p // 2) for p in pads), (0, 0)]
    image, inside = np.pad(x, around), np.pad(np.ones_like(x), around)
    found: Any = {}
    for at in itertools.product(*map(range, counts)):
        where = tuple(slice(a * s, a * s + w, g) for a, s, w, g in zip(at, strides, spans, gaps, strict=True))
        found[at] = see(image[(slice(None), *where)], inside[(slice(None), *where)])
    return np.stack([found[at] for at in itertools.product(*map(range, counts))], 1).reshape(len(x), *counts, -1)


def convolved(x: Any, w: Any, strides: Any, gaps: Any, padding: str) -> Any:
    axes = list(range(1, x.ndim)), list(range(w.ndim - 1))
    return slide(x, w.shape[:-2], strides, gaps, padding, lambda patch, _: np.tensordot(patch, w, axes))


def pooled(kind: str, x: Any, taps: Any, strides: Any, gaps: Any, padding: str) -> Any:
    axes = tuple(range(1, x.ndim - 1))
    sees = {
        "MAX": lambda patch, inside: np.where(inside > 0, patch, -np.inf).max(axes),
        "AVG": lambda patch, inside: patch.sum(axes) / inside.sum(axes),
    }
    return slide(x, taps, strides, gaps, padding, sees[kind])


SPACES = [((9,), (3,), (2,), (2,)), ((6, 7), (2, 3), (2, 1), (1, 2)), ((5, 6, 4), (2, 3, 2), (2, 1, 2), (2, 1, 1))]


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(("space", "taps", "strides", "gaps"), SPACES)
def test_convolutions(space: Any, taps: Any, strides: Any, gaps: Any, padding: str) -> None:
    n = len(space)
    x = RNG.standard_normal((2, *space, 3)).astype(np.float32)
    w = RNG.standard_normal((*taps, 3, 4)).astype(np.float32)
    ones = (1,) * n
    moved, apart = convolved(x, w, strides, ones, padding), convolved(x, w, ones, gaps, padding)
    found = run([tf.nn.convolution(x, w, padding, strides), tf.nn.convolution(x, w, padding, dilation_rate=gaps)])
    np.testing.assert_allclose(found[0], moved, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found[1], apart, rtol=1e-4, atol=1e-4)
    late = tf.placeholder(tf.float32, [None] * (n + 1) + [3])
    np.testing.assert_allclose(
        run(tf.nn.convolution(late, w, padding, strides), {late: x}), moved, rtol=1e-4, atol=1e-4
    )
    first = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[n]
    y = run(tf.nn.convolution(np.moveaxis(x, -1, 1), w, padding, strides, data_format=first))
    np.testing.assert_allclose(np.moveaxis(y, 1, -1), moved, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("space", "taps", "strides", "gaps"), SPACES)
def test_transposes_are_those_of_the_convolutions(space: Any, taps: Any, strides: Any, gaps: Any) -> None:
    x, w = RNG.standard_normal((2, *space, 3)), RNG.standard_normal((*taps, 3, 4))
    y = convolved(x, w, strides, (1,) * len(space), "SAME")
    other = RNG.standard_normal(y.shape)
    found = run(tf.nn.conv_transpose(other, w, [2, *space, 3], strides))
    np.testing.assert_allclose((found * x).sum(), (other * y).sum())


@pytest.mark.parametrize("kind", ["MAX", "AVG"])
@pytest.mark.parametrize(("space", "taps", "strides", "gaps"), SPACES)
def test_pooling(space: Any, taps: Any, strides: Any, gaps: Any, kind: str) -> None:
    x = -np.arange(1, 2 * 3 * np.prod(space) + 1, dtype=np.float32).reshape(2, *space, 3)
    ones = (1,) * len(space)
    by_rank = {"MAX": tf.nn.max_pool_v2, "AVG": tf.nn.avg_pool_v2}[kind]
    for padding in ("SAME", "VALID"):
        expected = pooled(kind, x, taps, strides, ones, padding)
        np.testing.assert_allclose(run(tf.nn.pool(x, taps, kind, padding, strides=strides)), expected, rtol=1e-5)
        np.testing.assert_allclose(run(by_rank(x, taps, strides, padding)), expected, rtol=1e-5)
    expected = pooled(kind, x, taps, ones, gaps, "VALID")
    np.testing.assert_allclose(run(tf.nn.pool(x, taps, kind, "VALID", dilation_rate=gaps)), expected, rtol=1e-5)


@pytest.mark.parametrize("taps", [4, 6])
def test_the_gradient_of_a_maximum_that_is_as_low_as_padding(taps: int) -> None:
    """It goes to the first pixel that the window sees inside the image, not into the padding."""
    image = tf.constant(np.full((1, 2, 2, 1), -np.inf, np.float32))
    pooled_image = tf.nn.max_pool(image, taps, 2, "SAME")
    np.testing.assert_array_equal(
        run(tf.gradients(pooled_image, image, [np.full((1, 1, 1, 1), 5.0, np.float32)])[0]).ravel(), [5, 0, 0, 0]
    )


def test_the_largest_of_neighbouring_channels() -> None:
    x = RNG.standard_normal((2, 3, 2, 6)).astype(np.float32)
    late = tf.placeholder(tf.float32, [None, None, None, 6])
    found = run(tf.nn.max_pool(late, [1, 1, 1, 3], [1, 1, 1, 3], "SAME"), {late: x})
    np.testing.assert_array_equal(found, x.reshape(2, 3, 2, 2, 3).max(-1))
    for size, step in ([1, 2, 1, 3], 3), ([1, 1, 1, 3], 1), ([1, 1, 1, 4], 4):
        with pytest.raises(tf.errors.UnimplementedError, match="MaxPooling|max pooling"):
            tf.nn.max_pool(x, size, [1, 1, 1, step], "SAME")


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_morphology(padding: str) -> None:
    x, w = RNG.standard_normal((2, 6, 7, 3)), RNG.standard_normal((2, 3, 3))

    def tallest(image: Any, taps: Any) -> Any:
        lowest = lambda patch, inside: np.where(inside > 0, patch + taps, -np.inf).max((1, 2))  # noqa: E731
        return slide(image, (2, 3), (1, 2), (2, 1), padding, lowest)

    found = run(tf.nn.dilation2d(x, w, [1, 1, 2, 1], [1, 2, 1, 1], padding))
    np.testing.assert_allclose(found, tallest(x, w))
    found = run(tf.nn.erosion2d(x, w, [1, 1, 2, 1], [1, 2, 1, 1], padding))
    np.testing.assert_allclose(found, -tallest(-x, w[::-1, ::-1]))


def test_gradients_of_depthwise_convolutions_by_name() -> None:
    x, w = RNG.standard_normal((2, 5, 6, 3)), RNG.standard_normal((2, 3, 3, 2))
    y = tf.nn.depthwise_conv2d_native(x, w, [1, 1, 1, 1], "SAME")
    g = RNG.standard_normal(y.shape.as_list())
    by_x = tf.nn.depthwise_conv2d_native_backprop_input([2, 5, 6, 3], w, g, [1, 1, 1, 1], "SAME")
    by_w = tf.nn.depthwise_conv2d_native_backprop_filter(x, [2, 3, 3, 2], g, [1, 1, 1, 1], "SAME")
    result, dx, dw = run([y, by_x, by_w])
    np.testing.assert_allclose([(dx * x).sum(), (dw * w).sum()], [(result * g).sum()] * 2)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 3, 4 or 5"):
        tf.nn.max_pool_v2(np.zeros((2, 2)), 2, 2, "SAME")
    with pytest.raises(ValueError, match="length 1, 2 or 4"):
        tf.nn.convolution(np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 1, 1)), "SAME", [1, 2, 3])
    with pytest.raises(ValueError, match="in conjunction with"):
        tf.nn.convolution(np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 1, 1)), "SAME", 2, 2)
    with pytest.raises(ValueError, match="strides > window_shape"):
        tf.nn.pool(np.zeros((1, 2, 2, 1)), [1, 1], "MAX", "SAME", strides=[2, 2])
    with pytest.raises(ValueError, match="length 3, 4 or 5"):
        tf.nn.conv_transpose(np.zeros((1, 2, 2, 1)), np.zeros((1, 1, 1, 1)), [1, 2], 1)


def test_an_empty_result_has_an_empty_gradient_of_its_filter() -> None:
    found = run(tf.nn.conv2d_backprop_filter(np.zeros((0, 4, 4, 3)), [2, 2, 3, 0], np.zeros((0, 4, 4, 0)), 1, "SAME"))
    assert found.shape == (2, 2, 3, 0)


@pytest.mark.parametrize(
    ("op", "rank", "names"),
    [
        (lambda x, f: tf.nn.conv3d(x, np.ones((1, 1, 1, 3, 2)), 1, "SAME", data_format=f), 5, "'NDHWC' or 'NCDHW'"),
        (lambda x, f: tf.nn.max_pool3d(x, 2, 1, "SAME", f), 5, "'NDHWC' or 'NCDHW'"),
        (lambda x, f: tf.nn.avg_pool3d(x, 2, 1, "SAME", f), 5, "'NDHWC' or 'NCDHW'"),
        (lambda x, f: tf.nn.avg_pool_v2(x, 2, 1, "SAME", f), 5, "'NDHWC' or 'NCDHW'"),
        (lambda x, f: tf.nn.pool(x, [2], "MAX", "SAME", data_format=f), 3, "'NWC' or 'NCW'"),
        (lambda x, f: tf.nn.max_pool1d(x, 2, 1, "SAME", f), 3, "'NWC' or 'NCW'"),
        (lambda x, f: tf.nn.avg_pool1d(x, 2, 1, "SAME", f), 3, "'NWC' or 'NCW'"),
        (lambda x, f: tf.nn.conv1d(x, np.ones((1, 3, 2)), 1, "SAME", data_format=f), 3, "'NWC' or 'NCW'"),
        (lambda x, f: tf.nn.depth_to_space(x, 2, data_format=f), 4, "'NHWC' or 'NCHW'"),
        (lambda x, f: tf.layers.flatten(x, data_format=f), 4, "'channels_last' or 'channels_first'"),
    ],
)
def test_a_layout_of_another_name_is_refused(op: Any, rank: int, names: str) -> None:
    x = np.zeros((3,) * rank, np.float32)
    for wrong in ("NCXYZ", "NHWDC", "nwc", "last"):
        with pytest.raises(ValueError, match=f"data_format must be {names}, not '{wrong}'"):
            op(x, wrong)
