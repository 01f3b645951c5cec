"""Arithmetic before windows, which their kernels compute at each tap: what is fused, and its numbers against NumPy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from window_kernels import kernels_with_producers

import dovetail as dt
from dovetail.codegen.fusion.window_loops import WINDOW_LOOPS
from dovetail.graph.core.errors import InternalError

pytest.importorskip("numba")

pytestmark = pytest.mark.usefixtures("own_cache")

RNG = np.random.default_rng(0)


def pooled(x: Any, taps: int, stride: int, function: Callable[..., Any]) -> Any:
    """By NumPy, with padding as SAME has it, which never counts."""
    n, height, width, c = x.shape
    rows, columns = -(-height // stride), -(-width // stride)
    top, left = (max((m - 1) * stride + taps - d, 0) // 2 for m, d in ((rows, height), (columns, width)))
    out = np.zeros((n, rows, columns, c), x.dtype)
    for r in range(rows):
        for q in range(columns):
            h, w = r * stride - top, q * stride - left
            seen = x[:, max(h, 0) : h + taps, max(w, 0) : w + taps]
            out[:, r, q] = function(seen, (1, 2))
    return out


@pytest.mark.parametrize("shape", [(2, 7, 6, 4), (None, 7, 6, 4), (None, None, None, 4), (1, 7, 6, 4)])
def test_bias_and_activation_before_a_pooling_are_in_its_kernel(shape: tuple[int | None, ...]) -> None:
    value, bias = RNG.standard_normal((shape[0] or 3, 7, 6, 4)).astype(np.float32), RNG.standard_normal(4).astype("f")
    value[0, 2, 3, 1] = np.nan
    with dt.Graph().as_default():
        x, b = dt.placeholder(dt.float32, shape), dt.placeholder(dt.float32, [4])
        low = dt.nn.max_pool(
            dt.minimum(x + b, 9.0) - 100.0, 3, 2, "SAME"
        )  # all pixels are below zero: padding must not win
        mean = dt.nn.avg_pool(dt.nn.relu(dt.nn.bias_add(x, b)), 2, 2, "SAME") * 2.0
        assert kernels_with_producers(low) == [["AddV2", "Minimum", "Sub", "MaxPool"]]
        assert kernels_with_producers(mean) == [["BiasAdd", "Relu", "AvgPool", "Mul"]]
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
            found = session.run([low, mean], {x: value, b: bias})
    shifted = value + bias
    np.testing.assert_allclose(found[0], pooled(np.minimum(shifted, 9) - 100, 3, 2, np.max), rtol=1e-6)
    np.testing.assert_allclose(found[1], 2 * pooled(np.maximum(shifted, 0), 2, 2, np.mean), rtol=1e-5, atol=1e-6)


def test_images_and_channels_of_unknown_sizes_that_differ_are_left_to_the_references() -> None:
    with dt.Graph().as_default():
        x, y = (dt.placeholder(dt.float32, [None] * 4) for _ in range(2))
        z = dt.nn.max_pool(x * y, 2, 2, "VALID")
        a, b = RNG.standard_normal((2, 4, 6, 3)).astype("f"), RNG.standard_normal((1, 1, 1, 3)).astype("f")
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba")) as session:
            for other in (a, b):
                want = (a * other).reshape(2, 2, 2, 3, 2, 3).max((2, 4))
                np.testing.assert_array_equal(session.run(z, {x: a, y: other}), want)


def fused(build: Callable[[Any], Any], **options: Any) -> list[list[str]]:
    with dt.Graph().as_default():
        return kernels_with_producers(build(dt.placeholder(dt.float32, [None, 8, 8, 4])), **options)


def test_what_is_not_computed_at_each_tap() -> None:
    def pool(x: Any, taps: int = 2, stride: int = 2) -> Any:
        return dt.nn.max_pool(x, taps, stride, "SAME")

    filters = np.ones((3, 3, 4, 1), np.float32)
    assert fused(lambda x: pool(dt.tanh(x))) == [["Tanh"], ["MaxPool"]]  # costly
    assert fused(lambda x: pool(dt.nn.relu(x) + 1.0, 3, 1)) == [["Relu", "AddV2"], ["MaxPool"]]  # nine times
    assert fused(lambda x: pool(dt.nn.relu(x) + 1.0, 3, 1), operations_per_byte=10.0) == [["Relu", "AddV2", "MaxPool"]]

    def twice(x: Any) -> Any:
        y = dt.nn.relu(x)
        return dt.add_n([pool(y), y[:, ::2, ::2]])  # another step needs it

    assert fused(twice)[0] == ["Relu"]

    def convolved(x: Any) -> Any:
        return pool(dt.nn.relu(dt.nn.conv2d(x, np.ones((1, 1, 4, 4), np.float32), 1, "SAME")))

    assert fused(convolved) == [["Relu", "MaxPool"]]
    assert fused(convolved, has_epilogues=True) == [["Relu"], ["MaxPool"]]
    assert fused(lambda x: dt.nn.depthwise_conv2d(dt.nn.relu(x), filters, [1, 2, 2, 1], "SAME")) == [
        ["Relu", "DepthwiseConv2dNative"]
    ]


def test_checking_names_a_window_behind_what_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WINDOW_LOOPS, "MaxPool", WINDOW_LOOPS["AvgPool"])
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(dt.float32, [None, 4, 4, 3])
        y = dt.nn.max_pool(dt.nn.relu(x), 2, 2, "VALID", name="pooled")
        config = dt.ConfigProto(kernel_backend="numba", kernel_check=2)
        with dt.Session(graph=graph, config=config) as session, pytest.raises(InternalError, match="first in 'pooled'"):
            session.run(y, {x: np.arange(48, dtype=np.float32).reshape(1, 4, 4, 3)})
