"""float16 and bfloat16 in CPU kernels: their bits in memory, float32 between, rounded as NumPy rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_interpreter import Interpreter

import dovetail as dt
from dovetail.codegen.check import agree
from dovetail.codegen.ir.loop_nest import LoopNestBuilder
from dovetail.graph.core.dtypes import DType, bfloat16, float16, float32, float64, int32

numba = pytest.importorskip("numba")

from dovetail.codegen.cpu.emit.module import source_of  # noqa: E402
from dovetail.codegen.cpu.jit import compile_now  # noqa: E402
from dovetail.codegen.cpu.native.launches import share  # noqa: E402
from dovetail.codegen.cpu.schedule import schedule_of  # noqa: E402
from dovetail.codegen.vecmath.memory import from_float16, to_float16, to_float16_by_integers  # noqa: E402

pytestmark = pytest.mark.usefixtures("own_cache")

NARROW = [float16, bfloat16]
both = pytest.mark.parametrize("narrow", NARROW, ids=lambda t: t.name)


def cast(value: Any, source: DType, to: DType) -> Any:
    """An array as another type, by a kernel."""
    build = LoopNestBuilder([False])
    build.store(build.apply("cast", build.load(0, source, [0]), dtype=to), [0])
    loops, _ = build.finish()
    kernel = compile_now(source_of(loops, schedule_of(loops)).text)
    out = np.empty(value.shape, to.np)
    share(kernel, (value, out, value.size), value.size, 1, 1)
    return out


def vectorized(function: Any) -> Any:
    """A function of one number, over vectors."""

    @numba.njit
    def loop(x):  # type: ignore[no-untyped-def]  # Numba's
        return [function(number) for number in x]

    return lambda x: np.array(loop(x))


def bits(value: Any) -> Any:
    return value.view(np.uint16)


@both
def test_every_number_becomes_the_same_float32(narrow: DType) -> None:
    value = np.arange(1 << 16, dtype=np.uint16).view(narrow.np)
    made = cast(value, narrow, float32)
    np.testing.assert_array_equal(made, value.astype(np.float32))
    numbers = ~np.isnan(made)
    np.testing.assert_array_equal(np.signbit(made[numbers]), np.signbit(value.astype(np.float32)[numbers]))
    np.testing.assert_array_equal(bits(cast(made, float32, narrow))[numbers], bits(value)[numbers])


@both
@pytest.mark.parametrize("source", [float32, float64, int32], ids=lambda t: t.name)
def test_rounding_is_numpys(narrow: DType, source: DType) -> None:
    rng = np.random.default_rng(3)
    if source is int32:
        value = rng.integers(-(1 << 31), 1 << 31, 100_000).astype(np.int32) >> rng.integers(0, 31, 100_000).astype("i4")
    else:
        some = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
        ends = np.arange(1 << 16, dtype=np.uint16).view(narrow.np).astype(np.float32)
        ends = ends[np.isfinite(ends)]
        middles = ends[1:] / 2 + ends[:-1] / 2  # ties, and their neighbours
        x = np.concatenate(
            [some, ends, middles, np.nextafter(middles, np.float32(9)), np.nextafter(middles, np.float32(0))]
        )
        value = x[~np.isnan(x)].astype(source.np)
        if source is float64:
            with np.errstate(all="ignore"):
                value = np.concatenate([value, value * (1 + 2.0**-40), value * (1 - 2.0**-40), [1e300, -1e300, 1e-300]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(bits(cast(value, source, narrow)), bits(value.astype(narrow.np)))


def test_the_instruction_and_integers_make_the_same_float16() -> None:
    truncated, wide = vectorized(to_float16), vectorized(from_float16)
    every = np.arange(1 << 16, dtype=np.uint16)
    some = np.random.default_rng(7).integers(0, 1 << 32, 1 << 18, dtype=np.uint64).astype(np.uint32).view(np.float32)
    numbers = every[~np.isnan(every.view(np.float16))]
    some = [some[~np.isnan(some)], wide(numbers), np.float32([65519.996, 65520, 2**-25, 2**-24, -0.0, 1e-45])]
    some = np.concatenate(some).astype(np.float32)
    np.testing.assert_array_equal(truncated(some), vectorized(to_float16_by_integers)(some))
    assert np.signbit(wide(truncated(np.float32([-0.0])))).all()


@both
def test_not_a_number_stays_one(narrow: DType) -> None:
    value = np.uint32([0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800001]).view(np.float32)
    assert np.isnan(cast(value, float32, narrow).astype(np.float32)).all()


CASES = {
    "chain": lambda x: dt.sqrt(abs(x)) * 0.5 + dt.exp(-x * x) / (dt.tanh(x) + 2.0),
    "softmax": dt.nn.softmax,
    "layer norm": lambda x: dt.nn.layer_norm(x, dt.ones([13], x.dtype), dt.zeros([13], x.dtype)),
    "sums": lambda x: dt.reduce_sum(x * 2.0, 0) + dt.reduce_mean(x, 0),
    "extremes": lambda x: dt.reduce_max(x * 1.5, -1) - dt.reduce_min(x * 1.5, -1),
    "conditions": lambda x: dt.where_v2(x > 0.5, x * 3.0, dt.nn.relu(x + 0.25)),
    "casts": lambda x: dt.cast(dt.cast(x * 3.0, dt.float32) + 1.0, x.dtype) - dt.cast(dt.cast(x, dt.int32), x.dtype),
}


@pytest.mark.parametrize(
    ("name", "narrow"),
    [*((name, float16) for name in CASES), *((name, bfloat16) for name in ("softmax", "conditions", "casts"))],
    ids=lambda v: v if isinstance(v, str) else v.name,
)
def test_fused_ops(name: str, narrow: DType) -> None:
    rng = np.random.default_rng(1)
    value = rng.standard_normal((40, 13)).astype(narrow.np)
    with dt.Graph().as_default() as graph:
        x = dt.placeholder(narrow, [None, 13])
        y = CASES[name](x)
        wanted = Interpreter(graph).run(y, {x: value})
        with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
            assert len(session.plan(y).kernels("cpu:0")) >= 1
            made = session.run(y, {x: value})
    assert made.dtype == narrow.np
    assert agree(made, wanted)
    assert not np.isnan(made.astype(np.float32)).any()


@both
def test_the_source_computes_in_float32(narrow: DType) -> None:
    build = LoopNestBuilder([False])
    x = build.load(0, narrow, [0])
    build.store(build.apply("mul", build.apply("exp", x), x), [0])
    loops, _ = build.finish()
    body = source_of(loops, schedule_of(loops)).text.split("def kernel")[1].splitlines()
    assert body == [
        "(words, lo, hi):",
        "    in0 = m.vector(words, 0, np.uint16)",
        "    out0 = m.vector(words, 2, np.uint16)",
        "    n0 = m.word(words, 4)",
        "    m.wide_vectors()",
        "    for i0 in range(lo, hi):",
        "        v0 = m.load(in0, 0, i0)",
        f"        v1 = m.from_{narrow.name}(v0)",
        "        v2 = m.exp32(v1)",
        "        v3 = v2 * v1",
        f"        v4 = m.to_{narrow.name}(v3)",
        "        m.store(out0, 1, i0, v4)",
    ]


PRODUCTS = [((5, 7), (7, 3), False, False), ((1, 1), (1, 1), True, False), ((40, 33), (57, 40), True, True),
            ((3, 20, 65), (3, 65, 31), False, False), ((2, 1, 9, 130), (4, 17, 130), False, True)]  # fmt: skip


@both
@pytest.mark.filterwarnings("ignore:overflow")  # NumPy tells of it
@pytest.mark.parametrize("shapes", PRODUCTS, ids=str)
def test_products_are_summed_in_float32_and_rounded_once(narrow: DType, shapes: Any) -> None:
    """Several times, so that native regions run too; and with checking, against the references."""
    first, second, flip_a, flip_b = shapes
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(narrow.np) for s in (first, second))
    a.flat[0] = 60000.0  # sums beyond the largest float16 are infinite
    wide = [np.asarray(m, np.float64) for m in (a, b)]
    wide[0], wide[1] = (m.swapaxes(-1, -2) if flip else m for m, flip in zip(wide, (flip_a, flip_b), strict=True))
    exact = wide[0] @ wide[1]
    for check in (0, 2):
        with dt.Graph().as_default():
            x, y = dt.placeholder(narrow, first), dt.placeholder(narrow, second)
            z = dt.matmul(x, y, transpose_a=flip_a, transpose_b=flip_b)
            with dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=check)) as session:
                made = [session.run(z, {x: a, y: b}) for _ in range(5 if check == 0 else 1)]
        assert (made[0].dtype, made[0].shape) == (narrow.np, exact.shape)
        assert agree(made[0], exact.astype(np.float32).astype(narrow.np))
        for again in made[1:]:
            np.testing.assert_allclose(again.astype(np.float32), made[0].astype(np.float32), rtol=2e-2)


@both
def test_a_product_of_nothing_is_zeros(narrow: DType) -> None:
    with dt.Graph().as_default(), dt.Session(config=dt.ConfigProto(kernel_backend="numba", kernel_check=2)) as session:
        x, y = dt.placeholder(narrow, [None, None]), dt.placeholder(narrow, [None, 3])
        made = session.run(dt.matmul(x, y), {x: np.zeros((2, 0)), y: np.zeros((0, 3))})
    np.testing.assert_array_equal(made.astype(np.float32), np.zeros((2, 3)))
