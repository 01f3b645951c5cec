"""Scatters, sparse updates and long sorts: in Triton's interpreter, and compiled."""

from typing import Any

import numpy as np
import pytest
from kernel_checks import compiles
from kernel_runner import run_routine

from dovetail.codegen.fusion.optimizer_loops import sparse_update
from dovetail.codegen.gpu.ir import Routine
from dovetail.codegen.gpu.templates import sort, tables
from dovetail.codegen.target import SM80, SM90
from dovetail.graph.core.dtypes import (
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint32,
    uint64,
)

pytest.importorskip("triton")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("own_cache")]

RNG = np.random.default_rng(5)
TOLERANCE = {8: 1e-12, 4: 1e-5, 2: 2e-2, 1: 0.0}


# --- scatters --------------------------------------------------------------------------------------------------------

FUNCTIONS = {"update": lambda a, b: b, "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide,
             "min": np.minimum, "max": np.maximum}  # fmt: skip


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16, int32, int8, uint32], ids=lambda t: t.name)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_all_updates_of_a_row_count_and_rows_out_of_range_do_not(kind: str, dtype: Any) -> None:
    if kind == "div" and not dtype.is_floating:
        with pytest.raises(ValueError, match="not divided"):
            tables.check_scatter(kind, dtype)
        return
    rows, after, count = 6, 5, 13
    x = (4 * RNG.standard_normal((rows, after))).astype(np.int8).astype(dtype.np)
    updates = (4 * RNG.standard_normal((count, after)) + 5 * (kind == "div")).astype(np.int8).astype(dtype.np)
    at = RNG.integers(-1, rows + 1, count).astype(np.int32)
    out = np.zeros_like(x)
    sizes = tables.launch_sizes(rows, after, count, [rows])
    for routine in tables.scatter(kind, dtype, int32, sizes, begin="copied"):
        run_routine(routine, {"in0": x, "in1": at, "in2": updates, "out0": out, **sizes})
    wide = np.float64 if dtype.is_floating else dtype.np
    expected = x.astype(wide)
    with np.errstate(all="ignore"):
        for i, row in enumerate(at):
            if 0 <= row < rows:
                expected[row] = FUNCTIONS[kind](expected[row], updates[i].astype(wide))
    np.testing.assert_allclose(
        out.astype(np.float64), expected.astype(np.float64), rtol=TOLERANCE[dtype.size], atol=1e-5
    )


def test_nan_is_kept_by_extremes() -> None:
    x, updates = np.array([[1.0], [np.nan]], np.float32), np.array([[np.nan], [2.0]], np.float32)
    sizes = tables.launch_sizes(2, 1, 2, [2])
    (routine,) = tables.scatter("max", float32, int64, sizes)
    run_routine(routine, {"in1": np.array([0, 1]), "in2": updates, "out0": x, **sizes})
    assert np.isnan(x).all()


def test_what_is_not_scattered() -> None:
    with pytest.raises(ValueError, match="bool"):
        tables.check_scatter("add", bool_)
    with pytest.raises(ValueError, match="coordinates of 9"):
        tables.check_scatter("add", float32, 9)
    with pytest.raises(ValueError, match="pow"):
        tables.check_scatter("pow", float32)


@pytest.mark.parametrize("kind", ["update", "add", "mul"])
@pytest.mark.parametrize("single", [False, True])
def test_coordinates_of_several_numbers(kind: str, single: bool) -> None:
    dims, after = (3, 2, 4), 5
    x = RNG.integers(-9, 9, (*dims, after)).astype(np.float32)
    at = np.array([[0, 1, 3], [2, 0, 0], [0, 1, 3], [0, 2, 0], [-1, 0, 0], [1, 1, 4], [2, 1, 3]], np.int32)
    updates = np.array(3, np.float32) if single else RNG.integers(-9, 9, (len(at), after)).astype(np.float32)
    expected = x.copy()
    for i, place in enumerate(at):
        if all(0 <= p < n for p, n in zip(place, dims, strict=True)):
            there = tuple(place)
            expected[there] = FUNCTIONS[kind](expected[there], updates if single else updates[i])
    sizes = tables.launch_sizes(24, after, len(at), dims)
    run_routine(
        tables.scatter(kind, float32, int32, sizes, 3, single=single)[0],
        {"in1": at, "in2": updates, "out0": x, **sizes},
    )
    np.testing.assert_array_equal(x, expected)
    picked = np.full((len(at), after), 9, np.float32)
    run_routine(tables.gather_nd(float32, int32, 3, sizes)[0], {"in0": x, "in1": at, "out0": picked, **sizes})
    right = np.all((at >= 0) & (at < dims), 1)
    np.testing.assert_array_equal(picked[right], x[tuple(at[right].T)])
    assert not picked[~right].any()


def test_rows_out_of_range_are_nobodys() -> None:
    """Also where the first occurrence, whose number is that of what is not there, is one of them."""
    at, updates, x = np.array([9, -3, 1]), np.ones((3, 2), np.float32), np.zeros((2, 2), np.float32)
    sizes = tables.launch_sizes(2, 2, 3, [2])
    run_routine(tables.scatter("update", float32, int64, sizes)[0], {"in1": at, "in2": updates, "out0": x, **sizes})
    np.testing.assert_array_equal(x, [[0, 0], [1, 1]])


SIZES = tables.launch_sizes(1000, 96, 5000, [10, 100])


@pytest.mark.slow
def test_scatters_compile() -> None:
    compiles(tables.scatter("update", bfloat16, int64, SIZES, 2)[0], stack=16)  # two words, by Triton 3.6 for sm_80
    for routine in tables.scatter("add", float32, int32, SIZES):
        compiles(routine)
    compiles(tables.scatter("sub", uint32, int32, SIZES)[0], [SM90])
    compiles(tables.scatter("max", float32, int64, SIZES)[0], [SM90])
    compiles(tables.scatter("mul", float64, int32, SIZES, 2)[0], [SM90])
    compiles(tables.scatter("add", int8, int32, SIZES, begin="cleared", single=True)[0], [SM80])
    compiles(tables.gather_nd(float16, int32, 3, SIZES | {"s2": 1})[0], [SM90])


# --- sparse updates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=lambda t: t.name)
def test_rows_that_are_named_have_one_step(dtype: Any) -> None:
    rows, after, count = 7, 5, 12
    kept = float32 if dtype is bfloat16 else dtype
    loops = sparse_update("Momentum", dtype, (("use_nesterov", False),), int64, kept)
    variable, slot = (RNG.standard_normal((rows, after)).astype(dtype.np) for _ in range(2))
    gradient = RNG.standard_normal((count, after)).astype(dtype.np)
    at = RNG.integers(-1, rows + 1, count)
    summed, there = np.zeros((rows, after)), (at >= 0) & (at < rows)
    np.add.at(summed, at[there], gradient[there].astype(np.float64))
    named = np.isin(np.arange(rows), at)[:, None]
    rate, keep = (np.array(x, dtype.np) for x in (0.1, 0.9))
    new_slot = np.where(named, slot.astype(np.float64) * np.float64(keep) + summed, slot.astype(np.float64))
    new = np.where(named, variable.astype(np.float64) - np.float64(rate) * new_slot, variable.astype(np.float64))
    arrays = {"in0": variable, "in1": slot, "in2": rate, "in3": gradient, "in4": at, "in5": keep}
    sizes = tables.launch_sizes(rows, after, count, [rows])
    routine = tables.sparse_update(loops, 2, 3, dtype, int64, sizes)[0]
    run_routine(routine, {**arrays, "out0": variable, "out1": slot, **sizes})
    for mine, expected in ((variable, new), (slot, new_slot)):
        np.testing.assert_allclose(
            mine.astype(np.float64), expected, rtol=TOLERANCE[dtype.size], atol=TOLERANCE[dtype.size]
        )


@pytest.mark.slow
def test_sparse_updates_compile() -> None:
    loops = sparse_update("Momentum", float32, (("use_nesterov", True),), int64, float32)
    compiles(tables.sparse_update(loops, 2, 3, float32, int64, SIZES)[0])
    loops = sparse_update("Ftrl", bfloat16, (), int32, float32)
    compiles(tables.sparse_update(loops, 3, 3, bfloat16, int32, SIZES)[0], [SM90])


# --- long sorts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [float32, float64, bfloat16, int8, int16, int64, uint32, uint64], ids=lambda t: t.name
)
def test_sorting_by_digits(dtype: Any) -> None:
    length = 1100 if dtype is int16 else 70  # two blocks, or one
    if dtype.is_floating:
        x = (50 * RNG.standard_normal((2, length))).astype(dtype.np)
        x[0, 3], x[0, 9], x[1, 7], x[1, 8], x[0, 20], x[0, 21] = np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan
    else:
        x = RNG.integers(0 if dtype.is_unsigned else -100, 100, (2, length)).astype(dtype.np)
        x[0, :2] = np.iinfo(dtype.np).max, np.iinfo(dtype.np).min
    k = length - 3
    values, places = np.zeros((2, k), dtype.np), np.zeros((2, k), np.int32)
    routine = sort.long_sort(dtype)
    run_routine(routine, {"in0": x, "out0": values, "out1": places, "before": 2, "length": length, "k": k})
    known = x.astype(np.float32) if dtype is bfloat16 else x
    order = length - 1 - np.argsort(known[:, ::-1], axis=1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(places, order[:, :k])
    np.testing.assert_array_equal(values.astype(known.dtype), np.take_along_axis(known, order[:, :k], 1))


@pytest.mark.slow
def test_long_sorts_compile() -> None:
    keys, count, totals, moved, following, *_, take = sort.long_sort(float32).launches
    compiles(Routine((keys, moved, take)))
    compiles(Routine((count, totals, following)), [SM90])  # the kernels in between differ in the names of arrays
    wide = sort.long_sort(int64).launches
    compiles(Routine((wide[0], wide[3])), [SM90])
