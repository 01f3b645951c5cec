"""Sequences turned round, and channels normalised over their neighbours, against NumPy."""

from collections.abc import Iterator

import numpy as np
import pytest
from reference_interpreter import Interpreter

from dovetail.graph.core.build import constant, placeholder
from dovetail.graph.core.dtypes import float32
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.graph import Graph
from dovetail.graph.gradients.reverse import gradients
from dovetail.graph.ops.array.sequences import repeat, reverse_sequence
from dovetail.graph.ops.nn.normalization import local_response_normalization

X = np.random.RandomState(0).randn(2, 3, 3, 7)


@pytest.fixture(autouse=True)
def graph() -> Iterator[Graph]:
    with Graph().as_default() as fresh:
        yield fresh


@pytest.mark.parametrize("known", [True, False])
def test_each_sequence_is_turned_up_to_its_length(known: bool, graph: Graph) -> None:
    x = np.arange(24.0).reshape(2, 4, 3)
    t = placeholder("float64", [2, 4, 3] if known else [None, None, None])
    rows, steps_first = reverse_sequence(t, [3, 1], 1), reverse_sequence(t, [1, 2, 0], seq_dim=1, batch_dim=2)
    (slope,) = gradients(rows * x, t)
    run = Interpreter(graph, check=True).run
    expected = x.copy()
    expected[0, :3] = x[0, 2::-1]
    np.testing.assert_array_equal(run(rows, {t: x}), expected)
    np.testing.assert_array_equal(run(slope, {t: x}), expected)  # it is its own inverse
    expected = x.copy()
    expected[:, :2, 1] = x[:, 1::-1, 1]
    np.testing.assert_array_equal(run(steps_first, {t: x}), expected)


def test_wrong_axes_are_told() -> None:
    with pytest.raises(ValueError, match="needs seq_axis"):
        reverse_sequence(constant([[1.0]]), [1])
    with pytest.raises(ValueError, match="must differ: both are 1"):
        reverse_sequence(constant([[1.0]]), [1], 1, 1)


@pytest.mark.parametrize("length", [-1, 4])
def test_lengths_beyond_an_axis_are_refused(length: int, graph: Graph) -> None:
    lengths = placeholder("int32", [None])
    turned = reverse_sequence(np.ones((2, 3)), lengths, 1)
    with pytest.raises(InvalidArgumentError, match=r"indices\[1, 0\]"):
        Interpreter(graph, check=True).run(turned, {lengths: np.array([3, length], np.int32)})


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("counts", [[2, -1, 1], [-2, 1, 1], [-1, -1, -1], [0, 3, -5]])
def test_negative_counts_leave_elements_out(counts: list[int], known: bool, graph: Graph) -> None:
    fed = placeholder("int32", [3])
    found = repeat([1, 2, 3], counts if known else fed)
    values = Interpreter(graph, check=True).run(found, {fed: np.array(counts, np.int32)})
    np.testing.assert_array_equal(values, np.repeat([1, 2, 3], np.clip(counts, 0, None)))


def test_a_scalar_is_repeated_as_a_vector(graph: Graph) -> None:
    for axis in (None, 0, -1):
        assert Interpreter(graph, check=True).run(repeat(constant(7), 3, axis)).tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="axis 1"):
        repeat(constant(7), 3, 1)


@pytest.mark.parametrize(("radius", "beta"), [(0, 0.75), (2, 0.5), (10, 0.6)])
def test_channels_are_normalised_over_their_neighbours(radius: int, beta: float, graph: Graph) -> None:
    found = Interpreter(graph, check=True).run(local_response_normalization(X, radius, 2.0, 0.3, beta))
    sums = np.stack([np.square(X[..., max(c - radius, 0) : c + radius + 1]).sum(-1) for c in range(7)], -1)
    np.testing.assert_allclose(found, X / (2.0 + 0.3 * sums) ** beta, rtol=1e-6)


def test_images_of_unknown_size_keep_their_shape() -> None:
    x = placeholder(float32, [None, None, 5, 4])
    assert local_response_normalization(x).shape.as_list() == [None, None, 5, 4]
    with pytest.raises(ValueError, match="channels of .* must be known"):
        local_response_normalization(placeholder(float32, [1, 2, 3, None]))
