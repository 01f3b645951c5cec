"""Batch normalization in kernels: its results and gradients against NumPy in float64, and a block of a ResNet."""

from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.graph.core.graph import Tensor

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

CHANNELS, EPSILON = 6, 0.01
COMPILED = dt.ConfigProto(kernel_backend="numba", kernel_check=2)
RNG = np.random.default_rng(5)


def numbers(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def expected(x: Any, weights: Any, scale: Any, offset: Any, given: Any, training: bool, factor: float) -> list[Any]:
    """y, the returned statistics, those that were used, and the gradients of sum(y * weights); channels last, in float64."""
    x, weights, scale, offset, *given = (np.asarray(a, np.float64) for a in (x, weights, scale, offset, *given))
    mean, variance = (x.mean((0, 1, 2)), x.var((0, 1, 2))) if training else given
    inverse = (variance + EPSILON) ** -0.5
    normal = (x - mean) * inverse
    returned = [mean, variance]
    for_x = weights * scale * inverse
    if training:
        found = mean, x.var((0, 1, 2), ddof=1)
        returned = [(1 - factor) * old + factor * new for old, new in zip(given, found, strict=True)]
        for_x = for_x - for_x.mean((0, 1, 2)) - normal * (for_x * normal).mean((0, 1, 2))
    sums = [(weights * normal).sum((0, 1, 2)), weights.sum((0, 1, 2))]
    return [normal * scale + offset, *returned, mean, inverse, np.zeros(0), for_x, *sums]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(("training", "factor"), [(True, 1.0), (True, 0.25), (False, 1.0)])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_results_and_gradients(layout: str, training: bool, factor: float, known: bool, dtype: str) -> None:
    images, weights = ((numbers(3, 5, 4, CHANNELS) * s + m).astype(dtype) for s, m in ((2.0, 30.0), (1.0, 0.0)))
    scale, offset, mean, variance = (abs(numbers(CHANNELS)) + 0.5 for _ in range(4))
    wanted = expected(images, weights, scale, offset, (mean, variance), training, factor)

    def laid(x: Any) -> Any:
        return np.moveaxis(x, -1, 1) if layout == "NCHW" and np.ndim(x) == 4 else x

    shape = [n if known or n == CHANNELS else None for n in laid(images).shape]
    with dt.Graph().as_default(), dt.Session(config=COMPILED) as session:
        x, w = dt.placeholder(dtype, shape), dt.placeholder(dtype, shape)
        vectors = [dt.placeholder("float32", [CHANNELS]) for _ in range(4)]
        y = dt.nn.fused_batch_norm(x, *vectors, EPSILON, layout, training, exponential_avg_factor=factor)[0]
        fetches = [*y.op.outputs, *dt.gradients(y, [x, *vectors[:2]], grad_ys=[w])]
        values = zip((x, w, *vectors), (laid(images), laid(weights), scale, offset, mean, variance), strict=True)
        found = session.run(fetches, dict(values))
    for t, a, b in zip(fetches, found, wanted, strict=True):
        assert a.dtype == t.dtype.np
        rtol = 2e-3 if t.dtype.size == 2 else 2e-5
        np.testing.assert_allclose(a, laid(b), rtol, rtol * np.abs(b).max(initial=0.0))


def block(x: Tensor, training: bool = True) -> Tensor:
    """Two convolutions, each normalized, the second one with a residual sum behind it."""
    y = x
    for i in range(2):
        y = dt.nn.conv2d(y, dt.constant(numbers(3, 3, CHANNELS, CHANNELS) * 0.1), [1, 1, 1, 1], "SAME")
        vectors = [dt.constant(abs(numbers(CHANNELS)) + 0.5) for _ in range(4)]
        y = dt.nn.fused_batch_norm(y, *vectors, is_training=training)[0]
        y = dt.nn.relu(y + x if i else y)
    return y


@pytest.mark.parametrize("training", [True, False])
def test_a_residual_block_is_fused_and_its_gradients_are_those_of_the_references(training: bool) -> None:
    image = numbers(2, 8, 8, CHANNELS)
    with dt.Graph().as_default() as graph:
        x = dt.placeholder("float32", [None, 8, 8, CHANNELS])
        y = block(x, training)
        fetches = [y, *dt.gradients(dt.reduce_sum(dt.square(y)), [x])]
    found = []
    for config in (COMPILED, dt.ConfigProto(kernel_backend="numpy")):
        with dt.Session(graph=graph, config=config) as session:
            found.append(session.run(fetches, {x: image}))
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, 2e-4, 2e-5 * np.abs(theirs).max())
    kernels = dt.place(graph, fetches=fetches).kernels("cpu:0")
    (last,) = [k for k in kernels if y.op.name in k.nodes]
    assert "FusedBatchNorm_1" in last.nodes, str(kernels)  # with the residual sum and the ReLU
    assert not any("BatchNorm" in name for name in kernels.reasons), str(kernels)


def test_one_inside_a_branch_is_dead_where_the_branch_is() -> None:
    image = numbers(2, 8, 8, CHANNELS)
    with dt.Graph().as_default(), dt.Session(config=COMPILED) as session:
        x, taken = dt.placeholder("float32", image.shape), dt.placeholder("bool", [])
        scale = dt.constant(abs(numbers(CHANNELS)))
        y = dt.cond(taken, lambda: dt.nn.fused_batch_norm(x, scale, scale)[0] * 2.0, lambda: x)
        normal = (image - image.mean((0, 1, 2))) / np.sqrt(image.var((0, 1, 2)) + 0.001)
        factor = session.run(scale)
        np.testing.assert_allclose(session.run(y, {x: image, taken: True}), 2 * (normal + 1) * factor, 1e-4, 1e-5)
        np.testing.assert_array_equal(session.run(y, {x: image, taken: False}), image)
