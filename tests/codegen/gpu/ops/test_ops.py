"""Kernels that are not loops: picking, scans, sorting: in Triton's interpreter, and compiled."""

from typing import Any

import numpy as np
import pytest
from kernel_checks import SOME, compiles
from kernel_runner import run_routine

from dovetail.codegen.fusion import table_loops
from dovetail.codegen.gpu.horizontal_fusion import MOST, multi_tensor_update, sizes_of
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.ops import rows
from dovetail.codegen.gpu.templates import sort, tables
from dovetail.codegen.ir.loop_nest import LoopNest, LoopNestBuilder, Scan
from dovetail.graph.core.dtypes import (
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
)
from dovetail.graph.ops.array.segments import combine_rows

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]

RNG = np.random.default_rng(5)


# --- picking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "before", "length", "count", "after"),
    [(1, 1, 11, 7, 300), (2, 3, 5, 4, 1), (1, 2, 4, 0, 3), (1, 1, 1, 1, 1)],
)
@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=lambda t: t.name)
def test_gather(dtype: Any, batch: int, before: int, length: int, count: int, after: int) -> None:  # fmt: skip
    x = RNG.standard_normal((batch, before, length, after)).astype(dtype.np)
    at = RNG.integers(0, length, (batch, count)).astype(np.int64)
    out = np.full((batch, before, count, after), 9, dtype.np)
    sizes = {"batch": batch, "before": before, "length": length, "count": count, "after": after}
    sizes["rows"] = batch * before * length
    for routine in tables.gather(dtype, int64, sizes):
        out[...] = 9
        run_routine(routine, {"in0": x, "in1": at, "out0": out, **sizes})
    for b in range(batch):
        np.testing.assert_array_equal(out[b], np.take(x[b], at[b], 1))


def test_an_index_out_of_range_picks_zeros_and_adds_nothing() -> None:
    x, at = np.ones((4, 8), np.float32), np.array([-1, 4, 2, 1000], np.int32)
    out = np.full((4, 8), 9, np.float32)
    sizes = {"batch": 1, "before": 1, "length": 4, "count": 4, "after": 8}
    run_routine(tables.gather(float32, int32, sizes)[0], {"in0": x, "in1": at, "out0": out, **sizes})
    np.testing.assert_array_equal(out, np.array([[0], [0], [1], [0]], np.float32) * np.ones(8, np.float32))
    sizes = tables.launch_sizes(4, 8, 4, [4])
    run_routine(segments("add", float32, sizes), {"in0": x, "in1": at, "out0": out, **sizes})
    np.testing.assert_array_equal(out.sum(1), [0, 0, 8, 0])


def segments(kind: str, dtype: Any, sizes: dict[str, int]) -> Routine:
    begin = "cleared" if kind == "add" else "empty"
    return tables.scatter(kind, dtype, int32, sizes, begin=begin, names=("in1", "in0"))[0]


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16, float64, int8, int32, int64], ids=lambda t: t.name)
def test_segment_sum(dtype: Any) -> None:
    x = (4 * RNG.standard_normal((50, 37))).astype(dtype.np)
    at = RNG.integers(0, 6, 50).astype(np.int32)
    out = np.full((9, 37), 7, dtype.np)
    sizes = tables.launch_sizes(9, 37, 50, [9])
    run_routine(segments("add", dtype, sizes), {"in0": x, "in1": at, "out0": out, **sizes})
    expected = np.zeros((9, 37), np.float64)
    np.add.at(expected, at, x.astype(np.float64))
    tolerance = {1: 0.0, 2: 1e-2, 4: 1e-5, 8: 1e-12}[dtype.size]
    np.testing.assert_allclose(out.astype(np.float64), expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("kind", ["max", "min", "prod"])
@pytest.mark.parametrize("dtype", [float32, float16, float64, int8, int64], ids=lambda t: t.name)
def test_extremes_and_products_of_segments(dtype: Any, kind: str) -> None:
    x = (3 * RNG.standard_normal((40, 37))).astype(dtype.np)
    if dtype.is_floating:
        x[3, 0], x[4, 1], x[:, 2] = np.nan, np.inf, {"max": -np.inf, "min": np.inf}.get(kind, 1)
    at = RNG.integers(-1, 6, 40).astype(np.int32)
    out = np.full((8, 37), 7, dtype.np)
    sizes = tables.launch_sizes(8, 37, 40, [8])
    run_routine(segments("mul" if kind == "prod" else kind, dtype, sizes), {"in0": x, "in1": at, "out0": out, **sizes})
    with np.errstate(over="ignore", invalid="ignore"):
        expected = combine_rows(x, at, 8, kind.title())
    np.testing.assert_allclose(
        out.astype(np.float64), expected.astype(np.float64), rtol=4 * 2.0 ** -(8 * dtype.size // 3)
    )


@pytest.mark.slow
def test_picking_compiles() -> None:
    sizes = {"batch": 1, "before": 1, "length": 1000, "count": 5000, "after": 96, "rows": 1000, "elements": 96000}
    for dtype in (float32, bfloat16, int64):
        compiles(tables.gather(dtype, int64, sizes)[0])
        compiles(segments("add", dtype, tables.launch_sizes(1000, 96, 5000, [1000])))
        compiles(segments("max", dtype, tables.launch_sizes(1000, 96, 5000, [1000])), SOME)
    compiles(tables.gather(int8, int32, sizes | {"batch": 2, "before": 3})[0], SOME)
    compiles(tables.gather(float32, int32, sizes | {"before": 3})[0], SOME)


# --- scans -----------------------------------------------------------------------------------------------------------


def scanned(x: Any, kind: str, exclusive: bool, reverse: bool) -> Any:
    work = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    work = work[:, ::-1] if reverse else work
    function = np.cumsum if kind == "sum" else np.cumprod
    out = function(work, axis=1, dtype=work.dtype)
    if exclusive:
        out = np.concatenate([np.full_like(out[:, :1], kind == "prod"), out[:, :-1]], 1)
    return (out[:, ::-1] if reverse else out).astype(x.dtype)


def along(before: int, length: int, after: int) -> dict[str, int]:
    """The sizes of a launch."""
    pieces = -(-length // table_loops.PIECE)
    return {"before": before, "length": length, "after": after, "piece_size": table_loops.PIECE, "pieces": pieces,
            "elements": before * length * after}  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 40, 1), (2, 37, 5), (1, 1, 1), (2, 1100, 1), (1, 20000, 2), (1, 9001, 1)])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(shape: tuple[int, int, int], exclusive: bool, reverse: bool) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    sizes = along(*shape)
    ways = rows.scan(Scan("sum", reverse, exclusive), float32, sizes)
    assert (len(ways[0].launches) == 3) == (shape[1] > table_loops.PIECE)
    for routine in ways[:1] if shape[1] > table_loops.PIECE else ways:
        out = np.full(shape, 9, np.float32)
        run_routine(routine, {"in0": x, "out0": out, **sizes})
        np.testing.assert_allclose(out, scanned(x, "sum", exclusive, reverse), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("length", [60, 8200])
@pytest.mark.parametrize("dtype", [int8, int32, uint8, bfloat16, float64], ids=lambda t: t.name)
def test_running_products_and_sums_of_other_types(dtype: Any, length: int) -> None:
    x = RNG.integers(1, 4, (2, length, 2)).astype(dtype.np)
    sizes = along(2, length, 2)
    for kind in ("sum", "prod"):
        if dtype in (bfloat16, float64):
            x = (x.astype(np.float32) * (0.5 if kind == "prod" else 2.0**-12)).astype(dtype.np)
        out = np.zeros_like(x)
        run_routine(rows.scan(Scan(kind), dtype, sizes)[0], {"in0": x, "out0": out, **sizes})
        np.testing.assert_allclose(
            out.astype(np.float64),
            scanned(x, kind, False, False).astype(np.float64),
            rtol=1e-2 if dtype is bfloat16 else 1e-11,
        )


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, uint8, int32, uint32], ids=lambda t: t.name)
def test_sorting(dtype: Any) -> None:
    length, k = 37, 10
    x = (
        (3 * RNG.standard_normal((2, length))).astype(dtype.np)
        if dtype.is_floating
        else RNG.integers(0 if dtype.is_unsigned else -4, 9, (2, length)).astype(dtype.np)
    )
    if dtype is int32:
        x[0, :3] = np.iinfo(np.int32).min, np.iinfo(np.int32).max, -1
    if dtype is uint32:
        x[0, :2] = 2**32 - 1, 0
    if dtype.is_floating:
        x[0, 3], x[0, 20], x[0, 9], x[0, 5], x[1, 4] = np.nan, np.inf, -0.0, 0.0, -np.inf
        x[1, 30:] = x[1, 0]
    values, places = np.zeros((2, k), dtype.np), np.zeros((2, k), np.int32)
    routine = sort.sort(dtype, length)
    run_routine(routine, {"in0": x, "out0": values, "out1": places, "before": 2, "length": length, "k": k})
    wide = x.astype(np.float64)
    order = length - 1 - np.argsort(wide[:, ::-1], axis=1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(places, order[:, :k])
    np.testing.assert_array_equal(values.astype(np.float64), np.take_along_axis(wide, order[:, :k], 1))


@pytest.mark.slow
def test_kernels_along_rows_compile() -> None:
    for dtype, how, sizes in (
        (float32, Scan("sum", exclusive=True), along(64, 1 << 20, 1)),
        (bfloat16, Scan("prod", reverse=True), along(1, 1 << 20, 16)),
        (int8, Scan("sum"), along(4096, 1000, 1)),
    ):
        compiles(rows.scan(how, dtype, sizes)[0], SOME)
    compiles(sort.sort(float32, 250))
    compiles(sort.sort(uint32, 64), SOME)


# --- the same for several arrays -------------------------------------------------------------------------------------


def momentum() -> LoopNest:
    """accumulated = accumulated * momentum + gradient; variable = variable - rate * accumulated."""
    b = LoopNestBuilder([False])
    rate, keep = b.load(2, float32, []), b.load(3, float32, [])
    variable, accumulated, gradient = (b.load(i, float32, [0]) for i in (0, 1, 4))
    accumulated = b.apply("add", b.apply("mul", accumulated, keep), gradient)
    b.store(b.apply("sub", variable, b.apply("mul", rate, accumulated)), [0])
    b.store(accumulated, [0])
    return b.finish()[0]


def test_one_launch_updates_several_variables_in_place() -> None:
    lengths = [5, 3000, 0, 1024, 1]
    variables, slots, gradients = ([RNG.standard_normal(n).astype(np.float32) for n in lengths] for _ in range(3))
    rate, keep = np.float32(0.1), np.float32(0.9)
    new_slots = [s * keep + g for s, g in zip(slots, gradients, strict=True)]
    new_variables = [v - rate * s for v, s in zip(variables, new_slots, strict=True)]
    arguments: dict[str, Any] = dict(sizes_of(lengths))
    for k in range(len(lengths)):
        arguments |= {f"in2_{k}": np.asarray(rate), f"in3_{k}": np.asarray(keep)}
        arguments |= {f"in0_{k}": variables[k], f"in1_{k}": slots[k], f"in4_{k}": gradients[k]}
        arguments |= {f"out0_{k}": variables[k], f"out1_{k}": slots[k]}
    routine = multi_tensor_update(momentum(), [n % 16 == 0 for n in lengths])
    assert routine.launches[0].grid.of(sizes_of(lengths)) == (6, 1, 1)
    run_routine(routine, arguments)
    for k in range(len(lengths)):
        np.testing.assert_array_equal(slots[k], new_slots[k])
        np.testing.assert_array_equal(variables[k], new_variables[k])


@pytest.mark.slow
def test_updates_of_several_variables_compile() -> None:
    compiles(multi_tensor_update(momentum(), [True, False, True]))
    compiles(multi_tensor_update(momentum(), [False] * MOST, wide=True), SOME)
