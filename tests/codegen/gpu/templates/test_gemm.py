"""Matrix products: their numbers in Triton's interpreter, and what they compile to."""

import importlib
import itertools
import math
import subprocess
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_checks import TARGETS, check, compiles, run

from dovetail.codegen.gpu.schedule import product_schedules
from dovetail.codegen.gpu.templates.gemm import matmul, product_sizes
from dovetail.codegen.gpu.toolchain.compile import compile_kernel
from dovetail.codegen.ir.loop_nest import BINARY, UNARY, LoopNestBuilder, TileLoops
from dovetail.codegen.ir.schedule import GpuProductSchedule
from dovetail.codegen.target import SM80, SM90, SM100, Target
from dovetail.graph.core.dtypes import (
    DType,
    bfloat16,
    bool_,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int32,
    uint64,
)

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]


SMALL = GpuProductSchedule(16, 32, 16, 4, 3)
RNG = np.random.default_rng(7)


def values(dtype: DType, *shape: int) -> Any:
    return RNG.standard_normal(shape).astype(dtype.np)


def product(a: Any, b: Any, transpose_a: bool, transpose_b: bool) -> Any:
    """The oracle, in float64."""
    a, b = (np.asarray(x, np.float64) for x in (a, b))
    a, b = (a.swapaxes(-1, -2) if transpose_a else a), (b.swapaxes(-1, -2) if transpose_b else b)
    return np.einsum("...ij,...jk->...ik", a, b)


DIGITS = {
    "float32": 2e-6,
    "float64": 1e-14,
    "float16": 2e-3,
    "bfloat16": 1e-2,
    "float8_e4m3fn": 1e-6,
    "float8_e5m2": 1e-6,
}


@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)), ids=["ab", "abt", "atb", "atbt"])
@pytest.mark.parametrize(
    "dtype", [float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2], ids=lambda d: d.name
)
def test_products(dtype: DType, flips: tuple[bool, bool]) -> None:
    m, n, k = 19, 35, 37
    a, b = values(dtype, *((k, m) if flips[0] else (m, k))), values(dtype, *((n, k) if flips[1] else (k, n)))
    tile = SMALL if dtype.size > 1 else replace(SMALL, k=32)  # the least that instructions for float8 take
    (routine,) = matmul(dtype, dtype, target=SM90, transpose_a=flips[0], transpose_b=flips[1], at=[tile])
    out = np.full((m, n), np.nan, np.float32 if dtype.size == 1 else dtype.np)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape, *flips))
    check(out, product(a, b, *flips), DIGITS[dtype.name])


@pytest.mark.parametrize("splits", [1, 2, 4])
@pytest.mark.parametrize("stacks", [(3, 3), (1, 3), (3, 1)])
def test_stacks_and_splits(stacks: tuple[int, int], splits: int) -> None:
    a, b = values(float32, stacks[0], 21, 70), values(float32, stacks[1], 33, 70)
    tile = GpuProductSchedule(16, 32, 16, 4, 3, splits)
    (routine,) = matmul(float32, float32, target=SM90, transpose_b=True, batched=True, at=[tile])
    out = np.full((3, 21, 33), np.nan, np.float32)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape, False, True))
    check(out, product(a, b, False, True), 2e-6)


@pytest.mark.parametrize("stacks", [None, (3, 3), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("flip", [False, True], ids=["abt", "atbt"])
def test_second_operands_that_are_turned_first(flip: bool, splits: int, stacks: tuple[int, int] | None) -> None:
    m, n, k = 21, 75, 70
    a, b = values(float32, *((k, m) if flip else (m, k))), values(float32, n, k)
    if stacks is not None:
        a, b = values(float32, stacks[0], *a.shape), values(float32, stacks[1], *b.shape)
    tile = GpuProductSchedule(16, 32, 16, 4, 3, splits, straight=True)
    (routine,) = matmul(
        float32, float32, target=SM90, transpose_a=flip, transpose_b=True, batched=stacks is not None, at=[tile]
    )
    out = np.full((*(() if stacks is None else (3,)), m, n), np.nan, np.float32)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape, flip, True))
    check(out, product(a, b, flip, True), 2e-6)


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)), ids=["ab", "abt", "atb", "atbt"])
def test_described_operands(flips: tuple[bool, bool], batched: bool, splits: int) -> None:
    """Tiles that the copy engine fetches, over the edges of the matrices, too."""
    m, n, k = 48, 80, 112
    stack = (2,) if batched else ()
    a = values(bfloat16, *stack, *((k, m) if flips[0] else (m, k)))
    b = values(bfloat16, *stack, *((n, k) if flips[1] else (k, n)))
    tile = GpuProductSchedule(32, 32, 32, 4, 3, splits, described=True)
    known = {"m": m, "n": n, "k": k}
    (routine,) = matmul(
        bfloat16, bfloat16, target=SM90, transpose_a=flips[0], transpose_b=flips[1], batched=batched, known=known, at=[tile]
    )  # fmt: skip
    out = np.full((*stack, m, n), np.nan, bfloat16.np)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape, *flips))
    check(out, product(a, b, *flips), DIGITS["bfloat16"])


@pytest.mark.parametrize("n", [80, 72])  # rows of the result that the copy engine writes, or does not
@pytest.mark.parametrize("flips", [(False, False), (True, True)], ids=["ab", "atbt"])
def test_programs_that_make_several_tiles(flips: tuple[bool, bool], n: int) -> None:
    m, k = 80, 48
    a, b = values(bfloat16, *((k, m) if flips[0] else (m, k))), values(bfloat16, *((n, k) if flips[1] else (k, n)))
    tile = GpuProductSchedule(32, 32, 32, 4, 3, described=True, programs=4)  # of 9 tiles
    (routine,) = matmul(
        bfloat16, bfloat16, target=SM90, transpose_a=flips[0], transpose_b=flips[1], known={"m": m, "n": n, "k": k}, at=[tile]
    )  # fmt: skip
    (launch,) = routine.launches
    assert launch.grid.of({}) == (4, 1, 1)
    assert ("out0_matrix.store" in launch.kernel.text) == (n == 80)
    out = np.full((m, n), np.nan, bfloat16.np)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape, *flips))
    check(out, product(a, b, *flips), DIGITS["bfloat16"])


@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (16, 32, 16), (17, 1, 100), (0, 3, 4), (3, 4, 0)])
def test_odd_sizes(m: int, n: int, k: int) -> None:
    a, b = values(float32, m, k), values(float32, k, n)
    (routine,) = matmul(float32, float32, target=SM90, at=[SMALL])
    out = np.full((m, n), np.nan, np.float32)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape))
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-5)


def test_many_tiles_in_groups() -> None:
    """More rows of tiles than a group has."""
    a, b = values(float32, 16 * 11, 16), values(float32, 16, 70)
    (routine,) = matmul(float32, float32, target=SM90, at=[SMALL], known={"k": 16})
    out = np.full((176, 70), np.nan, np.float32)
    run(routine, {"in0": a, "in1": b, "out0": out}, product_sizes(a.shape, b.shape))
    check(out, product(a, b, False, False), 2e-6)


def dense_layer(dtype: DType, batched: bool) -> TileLoops:
    """Bias, residual, tanh; the value before tanh is an output, too."""
    rank = 3 if batched else 2
    build = LoopNestBuilder([False] * rank)
    biased = build.apply("add", build.load(0, float32, range(rank)), build.load(1, float32, [rank - 1]))
    kept = build.apply("add", biased, build.apply("cast", build.load(2, dtype, range(rank)), dtype=float32))
    active = build.apply("mul", build.apply("tanh", kept), build.constant(0.5, float32))
    for value in (active, kept):
        build.store(build.apply("cast", value, dtype=dtype), range(rank))
    return TileLoops(*build.finish())


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=lambda d: d.name)
def test_epilogue_with_two_outputs(dtype: DType, batched: bool, splits: int) -> None:
    stack = (2,) if batched else ()
    a, b = values(dtype, *stack, 20, 40), values(dtype, *stack, 40, 37)
    bias, residual = values(float32, 37), values(dtype, *stack, 20, 37)
    tile = GpuProductSchedule(16, 32, 16, 4, 3, splits)
    (routine,) = matmul(dtype, dtype, target=SM90, batched=batched, epilogue=dense_layer(dtype, batched), at=[tile])
    outs = [np.full((*stack, 20, 37), np.nan, dtype.np) for _ in range(2)]
    arrays = {"in0": a, "in1": b, "in2": bias, "in3": residual, "out0": outs[0], "out1": outs[1]}
    run(routine, arrays, product_sizes(a.shape, b.shape))
    kept = product(a, b, False, False) + bias + residual.astype(np.float64)
    check(outs[1], kept, DIGITS[dtype.name])
    check(outs[0], np.tanh(kept) / 2, DIGITS[dtype.name])


def test_epilogue_by_rows_and_numbers() -> None:
    """Operands that vary along rows, and along nothing; a flag as output."""
    build = LoopNestBuilder([False, False])
    scaled = build.apply("mul", build.load(0, float32, [0, 1]), build.load(1, float32, [0]))
    shifted = build.apply("sub", scaled, build.load(2, float32, []))
    build.store(build.apply("gt", shifted, build.constant(0.0, float32)), [0, 1])
    build.store(build.apply("select", build.apply("isnan", shifted), build.constant(1.0, float32), shifted), [0, 1])
    a, b, by_row, number = values(float32, 9, 8), values(float32, 8, 40), values(float32, 9), values(float32, 1)
    (routine,) = matmul(float32, float32, target=SM90, epilogue=TileLoops(*build.finish()), at=[SMALL])
    positive, out = np.zeros((9, 40), np.bool_), np.full((9, 40), np.nan, np.float32)
    arrays = {"in0": a, "in1": b, "in2": by_row, "in3": number, "out0": positive, "out1": out}
    run(routine, arrays, product_sizes(a.shape, b.shape))
    want = product(a, b, False, False) * by_row[:, None] - number
    check(out, want, 2e-6)
    np.testing.assert_array_equal(positive, out > 0)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("flips", list(itertools.product((False, True), repeat=2)))
def test_prologues(flips: tuple[bool, bool], batched: bool) -> None:
    """exp of a, scaled by row, in float16; b cast from float32. exp(0) is 1: what lies outside must not count."""
    axes = [0, 1, 2] if batched else [0, 1]
    build = LoopNestBuilder([False] * len(axes))
    scaled = build.apply("mul", build.apply("exp", build.load(0, float32, axes)), build.load(1, float32, [axes[-2]]))
    build.store(build.apply("cast", scaled, dtype=float16), axes)
    of_a = TileLoops(*build.finish())
    build = LoopNestBuilder([False] * len(axes))
    wide = build.apply("mul", build.load(0, float32, axes), build.load(1, float32, [axes[-1]]))
    build.store(build.apply("cast", wide, dtype=float16), axes)
    of_b = TileLoops(*build.finish())
    stack = (2,) if batched else ()
    m, n, k = 18, 33, 21
    a, b = (
        values(float32, *stack, *((k, m) if flips[0] else (m, k))),
        values(float32, *stack, *((n, k) if flips[1] else (k, n))),
    )
    rows, columns = values(float32, m), values(float32, n)
    (routine,) = matmul(
        float32, float32, target=SM90, transpose_a=flips[0], transpose_b=flips[1], batched=batched,
        prologue_a=of_a, prologue_b=of_b, at=[GpuProductSchedule(16, 32, 16, 4, 3)],
    )  # fmt: skip
    out = np.full((*stack, m, n), np.nan, np.float32)
    run(
        routine, {"in0": a, "in1": b, "in2": rows, "in3": columns, "out0": out}, product_sizes(a.shape, b.shape, *flips)
    )
    left = np.exp(a) * (rows if flips[0] else rows[:, None])
    right = b * (columns[:, None] if flips[1] else columns)
    check(out, product(left.astype(np.float16), right.astype(np.float16), *flips), 2e-3)


# --- which tiles, and compiled -----------------------------------------------------------------------------------------


def test_which_operands_are_described() -> None:
    known = {"m": 4096, "n": 4096, "k": 4096}

    def described(target: Target, dtype: DType = bfloat16, **changes: int) -> bool:
        made = matmul(dtype, dtype, target=target, known=known | changes)
        return any("make_tensor_descriptor" in r.launches[0].kernel.text for r in made)

    assert described(SM90) and described(SM100)
    assert not described(SM80)
    assert not described(SM90, k=4095), "its rows begin anywhere"
    assert not described(SM90, float32)


def test_tiles_fit_the_problem() -> None:
    few_rows = product_schedules(bfloat16, SM90, False, {"m": 8, "n": 4096, "k": 4096})
    assert {t.m for t in few_rows} == {16}
    assert max(t.splits for t in few_rows) > 1, "64 tiles leave most of a GPU idle"
    large = product_schedules(bfloat16, SM90, False, {"m": 8192, "n": 8192, "k": 8192})
    assert large[0].m * large[0].n >= 128 * 128
    assert all(t.splits == 1 for t in large)
    layer = product_schedules(float32, SM90, False, {"m": 64, "n": 1024, "k": 784, "batch": 1})
    blocks = [-(-64 // t.m) * (1024 // t.n) * t.splits for t in layer]
    assert max(blocks) >= 128, "an exact product of few rows fills the GPU, too"
    for rows, first in ((4096, True), (64, False)):
        turned = product_schedules(float32, SM90, False, {"m": rows, "n": 1024, "k": 1024}, turned=True)
        assert turned[0].straight == first and any(t.straight for t in turned[:6])
        assert not all(t.straight for t in turned[:6])
    for target in (SM80, SM90, SM100):
        for dtype, tf32 in ((float32, False), (float32, True), (bfloat16, False)):
            assert len(product_schedules(dtype, target, tf32, {})) >= 3


@pytest.mark.parametrize("target", [SM80], ids=str)
def test_no_float8(target: Target) -> None:
    with pytest.raises(ValueError, match="no products of float8_e4m3fn"):
        matmul(float8_e4m3fn, float8_e4m3fn, target=target)


def test_mixed_types_are_refused() -> None:
    with pytest.raises(ValueError, match="no kernel multiplies float16 with float32"):
        matmul(float16, float32, target=SM90)
    with pytest.raises(ValueError, match="do not match"):
        product_sizes((2, 3), (4, 5))


def test_the_copy_engine_and_wide_products_are_used_on_hopper() -> None:
    known = {"m": 4096, "n": 4096, "k": 4096, "batch": 1}
    first, *others = matmul(bfloat16, bfloat16, target=SM90, known=known)
    assert ("PROGRAMS", 132) in first.launches[0].kernel.constants
    assert any("make_tensor_descriptor" not in r.launches[0].kernel.text for r in others[:5]), "both forms compete"
    binary = compile_kernel(first.launches[0].kernel, SM90)
    tool = importlib.import_module("triton").knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.image)
        file.flush()
        text = subprocess.run([tool, "--dump-sass", file.name], check=True, capture_output=True, text=True).stdout
    for instruction in ("HGMMA", "UTMALDG", "UTMASTG"):  # products of warp groups; loads and stores by the copy engine
        assert instruction in text
    assert binary.spills == 0


def dropout(dtype: DType) -> TileLoops:
    """Half of a product's elements."""
    build = LoopNestBuilder([False, False])
    tile = build.load(0, float32, [0, 1])
    stream = [build.load(i, uint64, []) for i in (1, 2)]
    kept = build.apply("lt", build.random("uniform", float32, *stream, [0, 1]), build.constant(0.5, float32))
    chosen = build.apply("select", kept, tile, build.constant(0.0, float32))
    build.store(build.apply("cast", chosen, dtype=dtype), [0, 1])
    return TileLoops(*build.finish())


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_compiles(target: Target) -> None:
    known = {"n": 1024, "k": 4096}
    half = GpuProductSchedule(64, 64, 64, 4, 2, 2)
    (routine,) = matmul(
        bfloat16,
        bfloat16,
        target=target,
        transpose_b=True,
        epilogue=dense_layer(bfloat16, False),
        known=known,
        at=[half],
    )
    made = [
        routine,
        *(matmul(float32, float32, target=target, transpose_a=True, tf32=x, known=known)[-1] for x in (False, True)),
        matmul(float16, float16, target=target, batched=True, known={"k": 64, "m": 512, "n": 512})[0],
        matmul(float64, float64, target=target, known=known)[1],
        *matmul(bfloat16, bfloat16, target=target, epilogue=dropout(bfloat16), known=known, at=[half]),
    ]
    if target in (SM90, SM100):
        described = GpuProductSchedule(128, 128, 64, 8, 3, described=True, programs=132 if target is SM90 else 0)
        known |= {"m": 4096}
        made += [
            matmul(bfloat16, bfloat16, target=target, transpose_a=True, known=known, at=[described])[0],
            matmul(float8_e4m3fn, float8_e5m2, target=target, transpose_b=True, known=known)[-1],
        ]
    for routine in made:
        compiles(routine, [target], stack=16)


def beside_the_product(read: DType | None, axes: list[int], out: DType) -> TileLoops:
    """A row, or a matrix, is added to the product."""
    build = LoopNestBuilder([False, False])
    value = build.load(0, float32, [0, 1])
    if read is not None:
        value = build.apply("add", value, build.apply("cast", build.load(1, read, axes), dtype=float32))
    build.store(value if out is float32 else build.apply("cast", value, dtype=out), [0, 1])
    return TileLoops(*build.finish())


@pytest.mark.slow
@pytest.mark.parametrize("target", [SM90, SM100], ids=str)
@pytest.mark.parametrize(
    "epilogue",
    [(None, [], float32), (bfloat16, [1], bfloat16), (bfloat16, [0, 1], bfloat16)],
    ids=["float32", "bias", "residual"],
)
def test_programs_of_several_tiles_fit_shared_memory(target: Target, epilogue: Any) -> None:
    """The epilogue of a tile takes shared memory beside the operands of the next; they asked for up to 344,112 bytes of 232,448."""
    made = matmul(
        bfloat16,
        bfloat16,
        target=target,
        epilogue=beside_the_product(*epilogue),
        known={"m": 8192, "n": 8192, "k": 8192},
    )
    kernels = [r.launches[0].kernel for r in made if "PROGRAMS" in dict(r.launches[0].kernel.constants)]
    assert kernels, "this form still competes"
    for kernel in kernels:
        assert compile_kernel(kernel, target).shared_bytes <= target.block_shared_bytes


# --- every operation at an edge ----------------------------------------------------------------------------------------


def meaning(op: str, *args: Any) -> Any:
    """What an operation of the loop IR means, in NumPy."""
    names = {
        "pow": "power", "neg": "negative", "round": "rint", "not": "logical_not", "sub": "subtract", "mul": "multiply", "div": "divide",
        "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
        "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "bitand": "bitwise_and", "bitor": "bitwise_or",
        "bitxor": "bitwise_xor", "shl": "left_shift", "shr": "right_shift",
    }  # fmt: skip
    if op in ("erf", "erfc", "lgamma"):
        return np.vectorize(getattr(math, op))(*args)
    if op in ("asin", "acos", "atan", "asinh", "acosh", "atanh"):
        op = "arc" + op[1:]
    return getattr(np, names.get(op, op))(*args)


def at_edge(op: str, operands: list[Any], dtype: DType) -> Any:
    """The operation in the epilogue of a product: of its result, when that is float32, or of what the edge loads."""
    build = LoopNestBuilder([False, False])
    result = build.load(0, float32, [0, 1])
    wide = dtype is float32
    args = [result] if wide else [build.load(1, dtype, [0, 1])]
    args += [build.load(1 + (not wide) + i, dtype, [0, 1]) for i in range(len(operands) - 1)]
    build.store(build.apply(op, *args), [0, 1])
    edge = TileLoops(*build.finish())
    (routine,) = matmul(float32, float32, target=SM90, epilogue=edge, at=[GpuProductSchedule(16, 32, 16, 4, 3)])
    out = np.zeros((16, 32), edge.outputs[0].np)
    first = operands[0] if wide else np.zeros((16, 32), np.float32)
    arrays = {"in0": np.eye(16, dtype=np.float32), "in1": first, "out0": out}
    arrays |= {f"in{2 + i}": x for i, x in enumerate(operands[1:] if wide else operands)}
    run(routine, arrays, product_sizes((16, 16), (16, 32)))
    return out


ON_FLOATS = sorted(
    (UNARY | BINARY) - {"cast", "not", "invert", "and", "or", "xor", "bitand", "bitor", "bitxor", "shl", "shr"}
)
ON_INTEGERS = ["abs", "add", "bitand", "bitor", "bitxor", "eq", "invert", "lt", "maximum", "minimum", "mul", "neg", "shl",
               "shr", "sign", "sub"]  # fmt: skip


@pytest.mark.parametrize("op", ON_FLOATS)
def test_operations_on_floats(op: str) -> None:
    x = np.linspace(-6, 6, 16 * 32, dtype=np.float32).reshape(16, 32)
    x[0, :6] = [0.5, 1.5, -2.5, 0.0, 3.0, -1e-4]
    if op in ("log", "sqrt", "lgamma", "pow"):
        x = np.abs(x) + np.float32(0.01)
    if op == "log1p":
        x = np.abs(x)
    if op in ("asin", "acos", "atanh"):
        x = x / np.float32(6.1)
    if op == "acosh":
        x = np.abs(x) + np.float32(1.0)
    operands = [x, np.roll(x, 5) + np.float32(0.25)][: 1 + (op in BINARY)]
    got = at_edge(op, operands, float32)
    np.testing.assert_allclose(got, meaning(op, *(a.astype(np.float64) for a in operands)), rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("op", ON_INTEGERS)
def test_operations_on_integers(op: str) -> None:
    x = RNG.integers(-100, 100, (16, 32)).astype(np.int32)
    y = RNG.integers(0, 5, (16, 32)).astype(np.int32)
    operands = [x, y][: 1 + (op in BINARY)]
    np.testing.assert_array_equal(at_edge(op, operands, int32), meaning(op, *operands))


@pytest.mark.parametrize("op", ["and", "or", "xor", "not", "eq"])
def test_operations_on_flags(op: str) -> None:
    x, y = RNG.random((16, 32)) < 0.5, RNG.random((16, 32)) < 0.5
    operands = [x, y][: 1 + (op in BINARY)]
    np.testing.assert_array_equal(at_edge(op, operands, bool_), meaning(op, *operands))


def test_nan_and_infinity_pass_an_edge() -> None:
    x = np.zeros((16, 32), np.float32)
    number = np.full_like(x, np.nan)
    for op in ("maximum", "minimum"):
        assert np.isnan(at_edge(op, [x, number], float32)).all()


def test_edges_have_no_reductions() -> None:
    build = LoopNestBuilder([False, True])
    build.store(build.reduce("sum", build.load(0, float32, [0, 1])), [0])
    with pytest.raises(ValueError, match="cannot contain reductions"):
        TileLoops(*build.finish())
