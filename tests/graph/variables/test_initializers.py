"""Initializers: distributions and sizes, fans, element types, names, arguments."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter
from scipy import stats

from dovetail.graph.core.build import constant
from dovetail.graph.core.default_graph import get_default_graph
from dovetail.graph.core.graph import Graph
from dovetail.graph.variables import initializers as init


@pytest.fixture(autouse=True)
def _fresh_graph():
    with Graph().as_default():
        yield


def _value(tensor: Any) -> Any:
    return Interpreter(get_default_graph(), check=True).run(tensor)


def test_plain_values():
    assert (_value(init.zeros_initializer()([2, 3])) == np.zeros((2, 3))).all()
    assert _value(init.ones_initializer(dtype="int32")([2])).tolist() == [1, 1]
    assert _value(init.zeros_initializer()([2], dtype="bool")).tolist() == [False, False]
    assert _value(init.constant_initializer(0.5)([2, 2], dtype="float64")).dtype == np.float64
    assert _value(init.constant_initializer([1, 2, 3])([2, 2])).tolist() == [[1, 2], [3, 3]]
    assert _value(init.constant_initializer(7)([])) == 7


def test_a_large_constant_is_no_value_in_the_graph():
    big = init.constant_initializer(0.25)([100, 100])
    assert big.op.type == "Fill"
    assert (_value(big) == 0.25).all()


@pytest.mark.parametrize("value", [1.0, [1.0, 2.0], []])
def test_a_constant_without_elements_may_be_made_of_any_value(value):
    for shape in ([0], [2, 0]):
        assert _value(constant(value, "float32", shape)).shape == tuple(shape)
        assert _value(init.constant_initializer(value)(shape)).shape == tuple(shape)


def test_constant_shapes_are_verified():
    with pytest.raises(TypeError, match="Expected Tensor.s shape"):
        init.constant_initializer([1.0, 2.0], verify_shape=True)([3])
    with pytest.raises(TypeError, match="Expected Tensor.s shape"):
        init.constant_initializer(1.0)([3], verify_shape=True)
    with pytest.raises(ValueError, match="Too many elements"):
        init.constant_initializer([1.0, 2.0, 3.0])([2])
    with pytest.raises(TypeError, match="Invalid type for initial value: dict"):
        init.constant_initializer({})


@pytest.mark.parametrize(
    ("initializer", "law"),
    [
        (init.random_uniform_initializer(-2.0, 3.0, seed=1), stats.uniform(-2, 5)),
        (init.random_uniform_initializer(seed=1), stats.uniform(0, 1)),
        (init.random_normal_initializer(1.0, 0.5, seed=1), stats.norm(1, 0.5)),
        (init.truncated_normal_initializer(1.0, 0.5, seed=1), stats.truncnorm(-2, 2, 1, 0.5)),
        (init.uniform_unit_scaling_initializer(2.0, seed=1), stats.uniform(-0.2, 0.4)),
        (init.glorot_uniform_initializer(seed=1), stats.uniform(-0.1, 0.2)),
        (init.lecun_uniform(seed=1), stats.uniform(-0.1, 0.2)),
        (init.he_uniform(seed=1), stats.uniform(-math.sqrt(0.02), 2 * math.sqrt(0.02))),
        (
            init.variance_scaling_initializer(0.5, "fan_out", "untruncated_normal", seed=1),
            stats.norm(0, math.sqrt(1 / 600)),
        ),
    ],
)
def test_distributions(initializer, law):
    x = _value(initializer([300, 300]))
    assert x.dtype == np.float32
    assert stats.kstest(x.ravel().astype(np.float64), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        (init.glorot_normal_initializer(seed=2), 2 / (200 + 600)),
        (init.lecun_normal(seed=2), 1 / 200),
        (init.he_normal(seed=2), 2 / 200),
        (init.variance_scaling_initializer(seed=2), 1 / 200),
        (init.variance_scaling_initializer(3.0, "fan_out", "normal", seed=2), 3 / 600),
    ],
)
def test_truncated_numbers_have_the_variance_asked_for(initializer, variance):
    x = _value(initializer([200, 600])).astype(np.float64)
    np.testing.assert_allclose(x.var(), variance, rtol=0.02)
    assert np.abs(x).max() <= 2 * math.sqrt(variance) / 0.8796 * 1.0001


@pytest.mark.parametrize(
    ("shape", "fans"),
    [([], (1, 1)), ([5], (5, 5)), ([3, 4], (3, 4)), ([2, 3, 4, 5], (24, 30)), ([0, 3], (0, 3))],
)
def test_fans(shape, fans):
    assert init.compute_fans(shape) == fans


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 3, 4)])
def test_orthogonal(shape):
    x = _value(init.orthogonal_initializer(2.0, seed=3)(shape, dtype="float64"))
    matrix = x.reshape(-1, shape[-1]) / 2
    small = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
    np.testing.assert_allclose(small, np.eye(len(small)), atol=1e-12)


def test_orthogonal_is_evenly_distributed():
    x = init.orthogonal_initializer()([2, 2])
    run = Interpreter(get_default_graph()).run
    corner = np.array([run(x)[0, 0] for _ in range(2000)])  # the cosine of an even angle
    assert stats.kstest(np.arccos(corner.astype(np.float64)) / np.pi, "uniform").pvalue > 1e-3


def test_identity():
    assert _value(init.Identity(3.0)([2, 3])).tolist() == [[3, 0, 0], [0, 3, 0]]
    part = SimpleNamespace(full_shape=[4, 3], var_offset=[1, 0])
    assert _value(init.Identity()([2, 3], partition_info=part)).tolist() == [[0, 1, 0], [0, 0, 1]]
    with pytest.raises(ValueError, match="2D"):
        init.Identity()([3])


def test_a_part_is_scaled_like_the_whole():
    part = SimpleNamespace(full_shape=[300, 300], var_offset=[0, 0])
    x = _value(init.glorot_uniform_initializer(seed=1)([100, 300], partition_info=part))
    assert 0.0999 < np.abs(x).max() <= 0.1


def test_seeds_give_the_same_numbers():
    a = _value(init.glorot_uniform_initializer(seed=5)([4]))
    with Graph().as_default():
        assert (a == _value(init.glorot_uniform_initializer(seed=5)([4]))).all()
    assert (a != _value(init.glorot_uniform_initializer(seed=6)([4]))).any()
    free = init.glorot_uniform_initializer()([4])
    assert (_value(free) != _value(free)).any()  # two sessions


def test_integers_may_be_random():
    x = _value(init.random_uniform_initializer(3, 9, dtype="int64")([100]))
    assert x.dtype == np.int64
    assert set(x) == set(range(3, 9))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: init.random_normal_initializer(dtype="int32"), "Expected floating point type, got int32."),
        (
            lambda: init.glorot_uniform_initializer()([2], dtype="int32"),
            "Expected floating point type, got int32.",
        ),
        (lambda: init.variance_scaling_initializer(0.0), "must be positive"),
        (lambda: init.variance_scaling_initializer(mode="fan"), "mode must be"),
        (lambda: init.variance_scaling_initializer(distribution="cauchy"), "distribution must be"),
        (lambda: init.zeros_initializer()([None, 2]), "fully defined shape"),
        (lambda: init.zeros_initializer()(None), "fully defined shape"),
        (lambda: init.orthogonal_initializer()([3]), "at least two-dimensional"),
    ],
)
def test_errors(make, text):
    with pytest.raises(ValueError, match=text):
        make()
    assert len(get_default_graph()) == 0


@pytest.mark.parametrize(
    "initializer",
    [
        init.Zeros("int32"),
        init.Constant([1.0, 2.0]),
        init.RandomUniform(-1.0, 1.0, 3),
        init.TruncatedNormal(0.5, 2.0, 3, "float64"),
        init.VarianceScaling(2.0, "fan_out", "uniform", 3),
        init.GlorotUniform(3),
        init.Orthogonal(2.0, 3),
        init.Identity(2.0),
    ],
    ids=lambda i: type(i).__name__,
)
def test_a_config_makes_an_equal_one(initializer):
    again = type(initializer).from_config(initializer.get_config())
    assert again.get_config() == initializer.get_config()
    assert repr(again) == repr(initializer)
    assert (_value(initializer([2, 3])) == _value(again([2, 3]))).all()


def test_names_read_like_tensorflows():
    with get_default_graph().name_scope("w/Initializer/"):
        init.glorot_uniform_initializer()([2, 3])
    assert "w/Initializer/random_uniform/RandomUniform" in get_default_graph()
