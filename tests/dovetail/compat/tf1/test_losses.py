"""Losses whose arguments are swapped, or of another kind, say so."""

import numpy as np
import pytest

import dovetail as dt

FUNCTIONS = {
    "sigmoid": dt.nn.sigmoid_cross_entropy_with_logits,
    "softmax": dt.nn.softmax_cross_entropy_with_logits,
    "softmax v2": dt.nn.softmax_cross_entropy_with_logits_v2,
    "losses.sigmoid": lambda labels, logits: dt.losses.sigmoid_cross_entropy(labels, logits),
    "losses.softmax": lambda labels, logits: dt.losses.softmax_cross_entropy(labels, logits),
    "losses.log": lambda labels, logits: dt.losses.log_loss(labels, logits),
    "losses.hinge": lambda labels, logits: dt.losses.hinge_loss(labels, logits),
}


@pytest.fixture(autouse=True)
def graph():
    with dt.Graph().as_default() as g:
        yield g


@pytest.mark.parametrize("name", FUNCTIONS)
def test_swapped_labels_and_logits(name: str) -> None:
    labels, logits = dt.placeholder(dt.int32, [8, 10]), dt.placeholder(dt.float32, [8, 10])
    with pytest.raises(TypeError, match="are the two swapped. The labels come first"):
        FUNCTIONS[name](labels=logits, logits=labels)
    FUNCTIONS[name](labels=dt.cast(labels, dt.float32), logits=logits)


@pytest.mark.parametrize(
    "function", [dt.nn.sparse_softmax_cross_entropy_with_logits, dt.losses.sparse_softmax_cross_entropy]
)
def test_swapped_class_numbers_and_logits(function) -> None:
    labels, logits = dt.placeholder(dt.int64, [8]), dt.placeholder(dt.float32, [8, 10])
    assert function(labels=labels, logits=logits).dtype == dt.float32
    with pytest.raises(
        TypeError, match="sparse_softmax_cross_entropy.*not int64, and the labels are float32: are the two swapped"
    ):
        function(labels=logits, logits=labels)


def test_probabilities_in_the_place_of_logits_are_warned_of_when_a_step_runs() -> None:
    labels, logits = np.eye(3, dtype=np.float32), np.float32([[2, -1, 0], [0.1, 0.3, 1], [-3, 0, 1]])
    a, b = dt.placeholder(dt.float32, [3, 3]), dt.placeholder(dt.float32, [3, 3])
    loss = dt.losses.softmax_cross_entropy(a, b)
    with dt.Session() as session:
        session.run(loss, {a: labels, b: logits})
        session.run(loss, {a: labels, b: labels})  # both may be probabilities
        session.run(loss, {a: 2 * labels, b: logits})  # TensorFlow takes labels of any sum
        with pytest.warns(UserWarning, match="the two swapped. The labels come first"):
            session.run(loss, {a: logits, b: labels})


def test_class_numbers_in_the_place_of_probabilities_and_the_other_way_round() -> None:
    numbers, logits = dt.placeholder(dt.int32, [8]), dt.placeholder(dt.float32, [8, 10])
    with pytest.raises(ValueError, match="use sparse_softmax_cross_entropy_with_logits"):
        dt.nn.softmax_cross_entropy_with_logits(labels=numbers, logits=logits)
    with pytest.raises(ValueError, match="use softmax_cross_entropy_with_logits"):
        dt.nn.sparse_softmax_cross_entropy_with_logits(labels=dt.placeholder(dt.int32, [8, 10]), logits=logits)


def test_logits_that_are_whole_numbers() -> None:
    x = dt.placeholder(dt.int32, [8, 10])
    with pytest.raises(TypeError, match=r"logits must be of a floating type, not int32$"):
        dt.nn.softmax_cross_entropy_with_logits(labels=x, logits=x)


def test_the_gradient_of_a_hinge_loss_is_0_at_its_corner() -> None:
    logits = dt.constant([1.0, -1.0, 0.5, 2.0])
    (gradient,) = dt.gradients(
        dt.losses.hinge_loss([1.0, 0.0, 1.0, 1.0], logits, reduction=dt.losses.Reduction.SUM), logits
    )
    with dt.Session() as session:
        assert session.run(gradient).tolist() == [0, 0, -1, 0]
