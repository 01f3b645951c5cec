"""Pictures: TensorFlow's recorded answers, chance, shapes of unknown size, gradients, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from image_cases import cases

import dovetail as tf

ANSWERS = json.loads((Path(__file__).parent / "image_answers.json").read_text())


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as g:
        yield g


def run(fetches, feeds=None):
    with tf.Session() as session:
        return session.run(fetches, feeds)


@pytest.mark.parametrize("name", cases(tf))
def test_answers_are_tensorflows(name):
    dtype, shape, values = ANSWERS[name]
    node = cases(tf)[name]()
    found = np.asarray(run(node))
    assert (found.dtype.name, list(found.shape)) == (dtype, shape)
    assert node.shape.as_list() == shape
    if found.dtype.kind == "f":
        np.testing.assert_allclose(found.ravel(), values, atol=3e-5)
    else:  # a half may be rounded to either side: the arithmetic before it differs in its last bit
        assert np.abs(found.ravel().astype(int) - np.array(values)).max() <= (1 if "hue" in name else 0)


def test_pictures_whose_size_only_the_step_knows():
    f = np.random.default_rng(0).random((2, 6, 5, 3), np.float32)
    x = tf.placeholder(tf.float32, [None, None, None, 3])
    size = tf.placeholder(tf.int32, [2])
    nodes = [
        tf.image.resize_images(x, size), tf.image.resize_image_with_crop_or_pad(x, 4, 9), tf.image.central_crop(x, 0.5),
        tf.image.pad_to_bounding_box(x, 1, 1, 8, 8), tf.image.per_image_standardization(x),
    ]  # fmt: skip
    assert [n.shape.as_list() for n in nodes[:2]] == [[None, None, None, 3], [None, 4, 9, 3]]
    unknown = run(nodes, {x: f, size: [3, 7]})
    known = run([
        tf.image.resize_images(f, [3, 7]), tf.image.resize_image_with_crop_or_pad(f, 4, 9), tf.image.central_crop(f, 0.5),
        tf.image.pad_to_bounding_box(f, 1, 1, 8, 8), tf.image.per_image_standardization(f),
    ])  # fmt: skip
    for a, b in zip(unknown, known, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_chance_turns_about_half_and_changes_within_bounds():
    tf.set_random_seed(0)
    batch = np.tile(np.arange(6, dtype=np.float32).reshape(1, 2, 3, 1), (200, 1, 1, 1))
    flipped, upside, single = run([
        tf.image.random_flip_left_right(batch), tf.image.random_flip_up_down(batch), tf.image.random_flip_left_right(batch[0]),
    ])  # fmt: skip
    for turned, other in ((flipped, batch[0, :, ::-1]), (upside, batch[0, ::-1])):
        count = sum(np.array_equal(t, other) for t in turned)
        assert 60 < count < 140
        assert all(np.array_equal(t, other) or np.array_equal(t, batch[0]) for t in turned)
    assert single.tolist() in (batch[0].tolist(), batch[0, :, ::-1].tolist())
    grey = np.full((2, 2, 3), 0.5, np.float32)
    brighter = [tf.image.random_brightness(grey, 0.25) for _ in range(20)]
    found = np.array(run(brighter))[:, 0, 0, 0]
    assert 0.25 <= found.min() < found.max() < 0.75 and len(set(found.tolist())) > 10
    picture = np.random.default_rng(0).random((3, 3, 3), np.float32)
    for change in (
        tf.image.random_contrast(picture, 0.5, 1.5), tf.image.random_saturation(picture, 0.5, 1.5), tf.image.random_hue(picture, 0.2),
    ):  # fmt: skip
        value = run(change)
        assert value.shape == picture.shape and not np.array_equal(value, picture)


def test_resizing_has_the_gradient_of_its_sum():
    x = tf.constant(np.random.default_rng(0).random((4, 4, 1), np.float32))
    slope = run(tf.convert_to_tensor(tf.gradients(tf.reduce_sum(tf.image.resize_images(x, [7, 5])), x)[0]))
    basis = np.eye(16, dtype=np.float32).reshape(16, 4, 4, 1)
    np.testing.assert_allclose(slope.ravel(), run(tf.image.resize_images(basis, [7, 5])).sum((1, 2, 3)), rtol=1e-5)


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (lambda: tf.image.flip_left_right(np.zeros((3, 3))), "3 or 4 dimensions"),
        (lambda: tf.image.central_crop(np.zeros((3, 3, 1)), 1.5), "central_fraction"),
        (lambda: tf.image.resize_images(np.zeros((3, 3, 1)), [2, 2], method=4), "not implemented"),
        (lambda: tf.image.resize_images(np.zeros((3, 3, 1)), [2, 0]), "at least 1, not 0"),
        (lambda: tf.image.adjust_gamma(np.zeros((3, 3, 1)), -1.0), "non-negative"),
        (lambda: tf.image.random_contrast(np.zeros((3, 3, 1)), 2.0, 1.0), "upper must be"),
        (lambda: tf.image.random_hue(np.zeros((3, 3, 3)), 0.7), "from 0 to 0.5"),
        (lambda: tf.image.random_brightness(np.zeros((3, 3, 3)), -0.1), "non-negative"),
    ],
)
def test_what_is_refused(ask, text):
    with pytest.raises(ValueError, match=text):
        ask()


def test_a_part_outside_is_an_error_of_the_step():
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        run(tf.image.crop_to_bounding_box(np.zeros((3, 3, 1), np.float32), 2, 0, 3, 3))


KEYS = {"area": tf.image.ResizeMethod.AREA, "bicubic": tf.image.ResizeMethod.BICUBIC}


def along(row, new, kind, align):
    """A row of pixels resized, by a loop over the new ones."""
    old, found = len(row), []
    scale = (old - 1) / (new - 1) if align and new > 1 else old / new
    for i in range(new):
        at = i * scale
        if kind == "area":  # the mean of a step function, whose last step goes on
            edges = np.unique([at, at + scale, *(k for k in range(1, old) if at < k < at + scale)])
            found.append(
                sum((b - a) * row[min(int(a + 1e-9), old - 1)] for a, b in zip(edges, edges[1:], strict=False)) / scale
            )
        else:
            first, d = int(at), np.round((at - int(at)) * 1024) / 1024
            weights = [-0.75 * d * (1 - d) ** 2, 1 + d * d * (1.25 * d - 2.25)]
            weights += [1 + (1 - d) ** 2 * (1.25 * (1 - d) - 2.25), -0.75 * (1 - d) * d**2]
            found.append(
                sum(w * row[min(max(first + k, 0), old - 1)] for k, w in zip((-1, 0, 1, 2), weights, strict=True))
            )
    return np.array(found)


@pytest.mark.parametrize("kind", ["area", "bicubic"])
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(3, 9), (8, 4)])
def test_resized_by_areas_and_by_cubes(kind, align, size):
    x = np.random.default_rng(0).random((2, 5, 6, 3)).astype(np.float32)
    tall = np.apply_along_axis(along, 1, x, size[0], kind, align)
    expected = np.apply_along_axis(along, 2, tall, size[1], kind, align)
    late = tf.placeholder(tf.int32, [2])
    nodes = [tf.image.resize_images(x, size, KEYS[kind], align), tf.image.resize_images(x[0], late, kind, align)]
    whole, one = run(nodes, {late: size})
    np.testing.assert_allclose(whole, expected, atol=2e-5)
    np.testing.assert_allclose(one, expected[0], atol=2e-5)
    assert nodes[0].shape.as_list() == [2, *size, 3]


@pytest.mark.parametrize("method", [m for n, m in vars(tf.image.ResizeMethod).items() if n.isupper()])
@pytest.mark.parametrize("align", [False, True])
def test_a_single_row_of_pixels_is_repeated(method, align):
    x = np.random.default_rng(0).random((2, 1, 4, 3)).astype(np.float32)
    resized = run(tf.image.resize_images(x, [5, 4], method, align))
    np.testing.assert_allclose(resized, np.repeat(x, 5, 1), atol=1e-6)


def test_pictures_of_unknown_rank_are_pictures():
    f = np.random.default_rng(0).random((4, 5, 3)).astype(np.float32)
    x, k, n = tf.placeholder(tf.float32), tf.placeholder(tf.int32, []), tf.placeholder(tf.int64, [])
    nodes = [
        tf.image.flip_left_right(x), tf.image.flip_up_down(x), tf.image.transpose_image(x), tf.image.rot90(x, k),
        tf.image.crop_to_bounding_box(x, 1, n, 2, n), tf.image.pad_to_bounding_box(x, n, 0, 6, 7), tf.image.rgb_to_grayscale(x),
        tf.image.resize_image_with_crop_or_pad(x, n + 2, n + 3), tf.image.grayscale_to_rgb(x[..., :1]),
    ]  # fmt: skip
    assert nodes[0].op.name.startswith("flip_left_right") and nodes[1].op.name.startswith("flip_up_down")
    found = run(nodes, {x: f, k: 3, n: 2})
    expected = [
        f[:, ::-1], f[::-1], f.transpose(1, 0, 2), np.rot90(f, 3), f[1:3, 2:4], np.pad(f, ((2, 0), (0, 2), (0, 0))),
        f @ np.float32([[0.2989], [0.5870], [0.1140]]), f, np.repeat(f[..., :1], 3, 2),
    ]  # fmt: skip
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"width must be >= target \+ offset"):
        run(nodes[4], {x: f, n: 3})
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(nodes[0], {x: f[None]})


def test_with_their_proportions_in_the_middle_of_zeros():
    found = run(tf.image.resize_image_with_pad(np.ones((4, 2, 1), np.float32), 6, 9))
    assert found.shape == (6, 9, 1) and found[:, 3:6].all() and found.sum() == 18


def test_colours_of_television_and_back():
    f = np.random.default_rng(0).random((2, 3, 4, 3)).astype(np.float32)
    for there, back in ((tf.image.rgb_to_yiq, tf.image.yiq_to_rgb), (tf.image.rgb_to_yuv, tf.image.yuv_to_rgb)):
        y, again = run([there(f), back(there(f))])
        np.testing.assert_allclose(y[..., 0], f @ np.float32([0.299, 0.587, 0.114]), rtol=1e-5)
        np.testing.assert_allclose(again, f, atol=1e-4)


@pytest.mark.parametrize("function, channels", [
    (tf.image.rgb_to_grayscale, 3), (tf.image.rgb_to_yiq, 3), (tf.image.yiq_to_rgb, 3), (tf.image.rgb_to_yuv, 3),
    (tf.image.yuv_to_rgb, 3), (tf.image.grayscale_to_rgb, 1),
])  # fmt: skip
def test_pictures_of_other_channels_are_refused(function, channels):
    x = tf.placeholder(tf.float32, [None, None, None])
    found = function(x)
    assert found.shape.as_list() == [None, None, {"rgb_to_grayscale": 1}.get(function.__name__, 3)]
    for other in {1, 2, 3, 4} - {channels}:
        with pytest.raises(ValueError, match=rf"channels?, not of shape \(4, 5, {other}\)"):
            function(np.ones((4, 5, other), np.float32))
        with pytest.raises(tf.errors.InvalidArgumentError):
            run(found, {x: np.ones((4, 5, other), np.float32)})


def test_how_alike_pictures_are():
    rng = np.random.default_rng(0)
    a = rng.random((2, 48, 37, 3)).astype(np.float32)
    b = np.clip(a + rng.normal(0, 0.1, a.shape), 0, 1).astype(np.float32)
    at = np.arange(11) - 5
    bell = np.exp(-(at**2) / (2 * 1.5**2))
    window = np.outer(bell, bell) / bell.sum() ** 2

    def mean(x):
        seen = np.lib.stride_tricks.sliding_window_view(x, (11, 11), (1, 2))
        return np.einsum("bhwcij,ij->bhwc", seen, window)

    ma, mb = mean(a), mean(b)
    spread, common = mean(a * a) + mean(b * b) - ma**2 - mb**2, mean(a * b) - ma * mb
    contrast = (2 * common + 0.03**2) / (spread + 0.03**2)
    index = (2 * ma * mb + 0.01**2) / (ma**2 + mb**2 + 0.01**2) * contrast
    peak, same, one, two = run([
        tf.image.psnr(a, b, 1.0), tf.image.psnr(a, a, 1.0), tf.image.ssim(a, b, 1.0), tf.image.ssim_multiscale(a, b, 1.0, (1.0,)),
    ])  # fmt: skip
    np.testing.assert_allclose(peak, -10 * np.log10(((a - b) ** 2).mean((1, 2, 3))), rtol=1e-4)
    assert np.isinf(same).all()
    np.testing.assert_allclose(one, index.mean((1, 2, 3)), rtol=1e-3)
    np.testing.assert_allclose(two, index.mean((1, 2)).mean(-1), rtol=1e-3)
    late = tf.placeholder(tf.float32)
    scales = run(tf.image.ssim_multiscale(late, a, 1.0, (0.5, 0.5), filter_size=5), {late: b})
    assert ((scales > 0.5) & (scales < 1)).all()
    with pytest.raises(ValueError, match="not compatible"):
        tf.image.psnr(a, a[:, :5], 1.0)


def test_changes_from_pixel_to_pixel():
    x = np.random.default_rng(0).random((2, 4, 5, 2)).astype(np.float32)
    (dy, dx), edges = run([tf.image.image_gradients(x), tf.image.sobel_edges(x)])
    np.testing.assert_allclose(dy[:, :-1], np.diff(x, axis=1))
    np.testing.assert_allclose(dx[:, :, :-1], np.diff(x, axis=2))
    assert not dy[:, -1].any() and not dx[:, :, -1].any()
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), "reflect")
    down = around[:, 2:] - around[:, :-2]
    down = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    np.testing.assert_allclose(edges[..., 0], down, atol=1e-5)
    with pytest.raises(ValueError, match="4D"):
        tf.image.image_gradients(x[0])
