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
        (lambda: tf.image.resize_images(np.zeros((3, 3, 1)), [2, 2], method=2), "not implemented"),
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
