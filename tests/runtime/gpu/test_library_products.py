"""Products with work at their edges by NVIDIA's library, on stand-ins for it and for the GPU: their numbers are the CPU's."""

from typing import Any

import numpy as np
import pytest
from fake_cublaslt import FakeCublasLt
from gpu_programs import agree, close, matrix, results_on

import dovetail as dt
from dovetail.codegen.gpu import kernels
from dovetail.codegen.gpu.driver import cublaslt
from dovetail.graph.core.dtypes import float8_e4m3fn

pytestmark = pytest.mark.usefixtures("launch_by_launch")


@pytest.fixture
def library(fake):
    """The library, which is held to be the fastest wherever it is a candidate: the last one with `expected` in its name."""
    made = FakeCublasLt(fake)
    made.expected = "cublaslt"
    made.algorithms = 3
    before = cublaslt.use(made)

    def fastest(device: Any, key: str, candidates: Any) -> int:
        names = key.partition(";")[0].split("|")
        assert len(names) == len(candidates)
        return max((i for i, name in enumerate(names) if made.expected in name), default=0)

    with pytest.MonkeyPatch.context() as patch:  # of its own: undone before what `fake` has set is
        patch.setenv("DOVETAIL_AUTOTUNE", "1")
        patch.setattr(kernels, "fastest", fastest)
        yield made
    cublaslt.use(before)


def launches(fake: Any) -> list[str]:
    return [x[1] for x in fake.launches()]


def dense(dtype: Any = dt.float32, *, transposed: bool = False) -> tuple[Any, Any, dict[Any, Any]]:
    x, w = dt.placeholder(dtype, [None, 24]), dt.placeholder(dtype, [20, 24] if transposed else [24, 20])
    return x, w, {x: matrix(5, 24).astype(dtype.np), w: matrix(*w.dims).astype(dtype.np)}


AFTER = {
    "rectifier": lambda y, bias, other: dt.nn.relu(y + bias),
    "residual": lambda y, bias, other: dt.nn.gelu(dt.nn.bias_add(y, bias)) + other,
    "select": lambda y, bias, other: dt.where_v2(y > other, y, dt.zeros_like(y)) - bias,
}


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float16], ids=lambda d: d.name)
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
def test_work_behind_a_product_is_a_kernel_behind_the_library(fake, library, after, dtype):
    def build():
        x, w, feeds = dense(dtype, transposed=True)
        bias, other = dt.placeholder(dtype, [20]), dt.placeholder(dtype, [None, 20])
        y = dt.matmul(x, w, transpose_b=True)
        return [after(y, bias, other)], {
            **feeds,
            bias: matrix(20).astype(dtype.np),
            other: matrix(5, 20).astype(dtype.np),
        }

    agree(same(build), rtol=2e-2 if dtype.size == 2 else 2e-5, atol=1e-2 if dtype.size == 2 else 1e-6)
    assert len(library.products) == 1 and library.products[0] == (20, 5, 24)
    assert len(launches(fake)) == 1 and "matmul" not in launches(fake)


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16], ids=lambda d: d.name)
def test_a_bias_alone_is_added_by_the_library(fake, library, dtype):
    def build():
        x, w, feeds = dense(dtype)
        bias = dt.placeholder(dtype, [20])
        return [dt.nn.bias_add(dt.matmul(x, w), bias)], {**feeds, bias: matrix(20).astype(dtype.np)}

    library.expected = " bias "
    digits = 2e-2 if dtype.size == 2 else 2e-5
    agree(same(build), rtol=digits, atol=digits)
    assert len(library.products) == 1 and not launches(fake)


def test_a_product_in_half_precision_is_rounded_once(fake, library):
    """Behind it comes what would show a rounding in between: the difference to its own float32 value."""

    def build():
        x, w, feeds = dense(dt.bfloat16)
        return [dt.matmul(x, w) * 3.0], feeds

    (mine,), _ = results_on("/gpu:0", same(build))
    (x, w) = same(build)()[1].values()
    exact = x.astype(np.float64) @ w.astype(np.float64) * 3.0
    assert library.products
    np.testing.assert_array_equal(mine[0], exact.astype(np.float32).astype(mine[0].dtype))


def test_several_outputs_and_the_product_itself(fake, library):
    def build():
        x, w, feeds = dense(dt.bfloat16)
        y = dt.matmul(x, w)
        return [dt.tanh(y), y, y * y], feeds

    (mine,), _ = results_on("/gpu:0", same(build))
    (theirs,), _ = results_on("/cpu:0", same(build))
    assert library.products
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype
        close(a, b, 2e-2, 2e-2)


@pytest.mark.parametrize("transposed", [False, True])
def test_work_on_operands_is_a_kernel_before_the_library(fake, library, transposed):
    def build():
        x, w = dt.placeholder(dt.float32, [24, 5] if transposed else [5, 24]), dt.placeholder(dt.bfloat16, [24, 20])
        scale = dt.placeholder(dt.float32, [24 if not transposed else 5])
        y = dt.matmul(dt.cast(x * scale, dt.bfloat16), w, transpose_a=transposed)
        feeds = {x: matrix(*x.dims), w: matrix(24, 20).astype(dt.bfloat16.np), scale: matrix(*scale.dims)}
        return [dt.cast(y, dt.float32) + 1.0], feeds

    agree(same(build), rtol=2e-2, atol=1e-2)
    assert len(library.products) == 1
    assert "matmul" not in launches(fake) and len(launches(fake)) == 2


def test_stacks(fake, library):
    def build():
        x, y = dt.placeholder(dt.float32, [3, 4, 5, 6]), dt.placeholder(dt.float32, [3, 4, 7, 6])
        mask = dt.placeholder(dt.float32, [3, 1, 5, 7])
        return [dt.tanh(dt.matmul(x, y, transpose_b=True)) + 1.0, dt.matmul(x, y, transpose_b=True) * mask], {
            x: matrix(3, 4, 5, 6), y: matrix(3, 4, 7, 6), mask: matrix(3, 1, 5, 7)
        }  # fmt: skip

    agree(same(build))
    assert library.products


def test_rows_that_were_a_stack(fake, library):
    def build():
        x, w = dt.placeholder(dt.float32, [2, 3, 24]), dt.placeholder(dt.float32, [24, 20])
        y = dt.reshape(dt.matmul(dt.reshape(x, [-1, 24]), w), [2, 3, 20])
        return [dt.nn.relu(y + 1.0)], {x: matrix(2, 3, 24), w: matrix(24, 20)}

    agree(same(build))
    assert library.products == [(20, 6, 24)]


def test_operands_of_float8_go_to_the_library_as_they_are(fake, library):
    def build():
        x, w = dt.placeholder(dt.float32, [16, 32]), dt.placeholder(dt.float32, [48, 32])
        small = [dt.cast(dt.cast(v, float8_e4m3fn), dt.bfloat16) for v in (x, w)]
        return [dt.matmul(*small, transpose_b=True) * 2.0], {x: matrix(16, 32), w: matrix(48, 32)}

    agree(same(build), rtol=2e-2, atol=1e-2)
    assert library.products


@pytest.mark.parametrize("graphs", ["0", "1"])
def test_training(fake, library, monkeypatch, graphs):
    monkeypatch.setenv("DOVETAIL_CUDA_GRAPHS", graphs)

    def build():
        w, b = dt.Variable(matrix(6, 4)), dt.Variable(np.zeros(4, np.float32))
        x = dt.placeholder(dt.float32, [5, 6])
        loss = dt.reduce_sum(dt.nn.relu(dt.matmul(x, w) + b) ** 2.0)
        with dt.control_dependencies([dt.train.GradientDescentOptimizer(0.01).minimize(loss)]):
            return [loss, w.read_value(), b.read_value()], {x: matrix(5, 6)}

    agree(same(build), steps=6, rtol=1e-4, atol=1e-5)
    assert library.products


def same(build: Any) -> Any:
    """A program that is made of the same numbers each time."""

    def again() -> Any:
        from gpu_programs import _random

        _random[0] = np.random.default_rng(3)
        return build()

    return again
