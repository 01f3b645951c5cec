"""float8 on GPUs that are stand-ins: numbers are stored in it, and products of it are made of it."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gpu_programs import ops
from kernel_checks import compiles

import dovetail as dt
from dovetail.codegen.gpu.emit.launches import routines
from dovetail.codegen.gpu.schedule import specialise
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.codegen.target import SM80, SM90, SM100
from dovetail.graph.core.dtypes import bfloat16, float8_e4m3fn, float8_e5m2, float32

pytestmark = pytest.mark.gpu

TYPES = (float8_e4m3fn, float8_e5m2)
A = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
B = np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)


def narrowed(x: Any, dtype: Any) -> Any:
    return x.astype(dtype.np).astype(np.float32)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_casts(fake, dtype):
    x = np.array([0.0, -0.0, 1.0, -1.06, 0.017, 3e-3, -2e-6, 300.0, 447.0, np.nan], np.float32).repeat(9)
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        given = dt.placeholder(float32, [None])
        stored = dt.cast(given, dtype)
        back = dt.cast(stored, float32) * 2.0
    with dt.Session(graph=graph) as session:
        got, wide = session.run([stored, back], {given: x})
        assert not [n for n in ops(session) if "host" in n]
    np.testing.assert_array_equal(got.view(np.uint8)[:-9], x.astype(dtype.np).view(np.uint8)[:-9])
    np.testing.assert_array_equal(wide, narrowed(x, dtype) * 2)


@pytest.mark.parametrize("half", [bfloat16, float32], ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_products(fake, dtype, half):
    """An operand that is stored, and one that is made narrow before the product, in the same kernel."""
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x, y = dt.placeholder(float32, [32, 64]), dt.placeholder(float32, [64, 32])
        weights = dt.Variable(dt.cast(y, dtype), trainable=False)
        product = dt.nn.relu(dt.matmul(dt.cast(dt.cast(x, dtype), half), dt.cast(weights, half)))
        start = dt.global_variables_initializer()
    with dt.Session(graph=graph) as session:
        session.run(start, {x: A, y: B})
        got = session.run(product, {x: A})
        assert not [n for n in ops(session) if "host" in n]
    exact = np.maximum(narrowed(A, dtype) @ narrowed(B, dtype), 0)
    np.testing.assert_allclose(got.astype(np.float32), exact, rtol=2.0**-8 if half is bfloat16 else 1e-6, atol=1e-6)
    (text,) = [k.text for k, _ in fake.kernels.values() if "tl.dot(" in k.text]
    assert ("max_num_imprecise_acc=" in text) == (half is bfloat16)  # products of half precision are made of float8
    assert ('input_precision="ieee"' in text) == (half is float32)  # those of float32 are exact


def test_where_instructions_do_not_know_it_the_host_casts(fake, monkeypatch):
    from dovetail.codegen.gpu.driver.device import device

    assert fake.strict, "a real one takes binaries of its own kind only"
    monkeypatch.setattr(device(0), "target", SM80)
    assert [t.has_float8 for t in (SM80, SM90, SM100)] == [False, True, True]
    with dt.Graph().as_default() as graph, dt.device("/gpu:0"):
        x = dt.placeholder(float32, [32, 64])
        product = dt.matmul(dt.cast(dt.cast(x, float8_e4m3fn), bfloat16), dt.ones([64, 8], bfloat16))
    with dt.Session(graph=graph) as session:
        got = session.run(product, {x: A})
        assert "Cast (on the host)" in ops(session)
    np.testing.assert_allclose(
        got.astype(np.float32), narrowed(A, float8_e4m3fn).sum(1, keepdims=True).repeat(8, 1), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_on_cpus_numpy_casts_and_products_are_of_the_wider_type(dtype):
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(float32, [32, 64])
        stored = dt.cast(x, dtype)
        product = dt.matmul(dt.cast(stored, float32), dt.constant(B))
        (gradient,) = dt.gradients(product, [x])
        whole = dt.cast(dt.cast([1.75, -2.0], dtype), dt.int32)
    with dt.Session(graph=graph) as session:
        kept, got, by_x, numbers = session.run([stored, product, gradient, whole], {x: A})
    assert kept.dtype == dtype.np and kept.dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    np.testing.assert_allclose(got, narrowed(A, dtype) @ B, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(by_x, narrowed(np.broadcast_to(B.sum(1), (32, 64)), dtype))
    np.testing.assert_array_equal(numbers, [1, -2])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES, ids=lambda t: t.name)
def test_casts_compile(dtype, own_cache):
    build = LoopNestBuilder([False])
    x = build.apply("cast", build.load(0, float32, [0]), dtype=dtype)
    build.store(x, [0])
    build.store(build.apply("cast", build.load(1, dtype, [0]), dtype=bfloat16), [0])
    loops, _ = build.finish()
    compiles(routines(loops, specialise(loops, [4096]))[0], [SM90, SM100])
