"""Random graphs on a GPU (a stand-in, whose kernels run in Triton's interpreter) against the reference evaluator.

Beside what `tests/codegen/fusion/test_fuzz.py` draws, there are products, with elementwise work before and behind them.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gpu_programs import gpus_with_kernels
from hypothesis import HealthCheck, given, settings, strategies as st
from reference_interpreter import Interpreter

import dovetail as dt

pytestmark = pytest.mark.gpu

pytest.importorskip("triton")

SIZES = (1, 2, 3, 7, 16, 33)
UNARY: dict[str, Any] = {
    "tanh": dt.tanh, "relu": dt.nn.relu, "gelu": dt.nn.gelu, "sigmoid": dt.sigmoid, "half": lambda x: x * 0.5, "neg": lambda x: -x,
    "square": lambda x: dt.square(x) * 0.25, "exp": lambda x: dt.exp(-abs(x)), "softmax": dt.nn.softmax,
    "mean": lambda x: x - dt.reduce_mean(x, -1, keepdims=True), "scan": lambda x: dt.cumsum(x, 0) * 0.1,
}  # fmt: skip
BINARY: dict[str, Any] = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y * 0.5, "max": dt.maximum}


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    return rng.standard_normal(shape).astype(dtype.np)


def draw_graph(draw: Any) -> tuple[list[Any], dict[Any, Any]]:
    """Layers over rows of some width: products with weights, and elementwise work with vectors and matrices. Fetches and feeds."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from((dt.float32, dt.float32, dt.float16, dt.bfloat16, dt.float64)))
    rows, feeds = draw(st.sampled_from(SIZES)), {}
    stack = draw(st.sampled_from(((), (), (2,), (2, 3))))

    def fed(*shape: int, known: bool = True) -> Any:
        static = [d if known or draw(st.booleans()) else None for d in shape]
        x = dt.placeholder(dtype, static)
        feeds[x] = numbers(rng, shape, dtype)
        return x

    values = [(fed(*stack, rows, width := draw(st.sampled_from(SIZES)), known=False), width)]
    for _ in range(draw(st.integers(1, 6))):
        x, width = draw(st.sampled_from(values[-3:]))
        kind = draw(st.sampled_from(("product", "product", "unary", "unary", "vector", "matrix", "reshaped")))
        if kind == "product":
            out = draw(st.sampled_from(SIZES))
            flip = draw(st.booleans())
            w = fed(*stack, out, width) if flip else fed(*stack, width, out)
            values.append((dt.matmul(x, w, transpose_b=flip) * (1.0 / np.sqrt(width)), out))
        elif kind == "unary":
            values.append((UNARY[draw(st.sampled_from(sorted(UNARY)))](x), width))
        elif kind == "vector":
            values.append((BINARY[draw(st.sampled_from(sorted(BINARY)))](x, fed(width)), width))
        elif kind == "matrix":
            values.append((BINARY[draw(st.sampled_from(sorted(BINARY)))](x, fed(*stack, rows, width)), width))
        elif stack:
            flat = dt.reshape(x, [-1, width])
            w = fed(width, width)
            values.append((dt.reshape(dt.matmul(flat, w), [*stack, rows, width]) * (1.0 / np.sqrt(width)), width))
    last = values[-1][0]
    fetches = [last, draw(st.sampled_from(values))[0]]
    if dtype.size >= 4 and draw(st.booleans()):
        fetches += [g for g in dt.gradients(dt.reduce_sum(last * 0.1), list(feeds)[:3]) if isinstance(g, dt.Tensor)]
    return list(dict.fromkeys(fetches)), feeds


def check(data: Any) -> None:
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"), np.errstate(all="ignore"):
        fetches, feeds = draw_graph(data.draw)
        expected = Interpreter(graph).run(fetches, feeds)
        with dt.Session(graph=graph) as session:
            got = session.run(fetches, feeds)
    for tensor, mine, theirs in zip(fetches, got, expected, strict=True):
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype
        rtol = {2: 5e-2, 4: 1e-4, 8: 1e-10}[tensor.dtype.size]
        mine, theirs = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
        scale = max(1.0, float(np.abs(theirs).max(initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=rtol * scale, err_msg=str(tensor))


@pytest.fixture(scope="module")
def gpu(own_cache: None) -> Iterator[None]:
    with gpus_with_kernels():
        yield


EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@pytest.mark.usefixtures("gpu")
@given(st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=QUIET)
def test_random_layers(data: Any) -> None:
    check(data)


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
@given(st.data())
@settings(max_examples=600 if EXPLORES else 60, deadline=None, suppress_health_check=QUIET)
def test_more_random_layers(data: Any) -> None:
    check(data)
