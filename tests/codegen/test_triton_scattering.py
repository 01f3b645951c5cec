"""Scatters, sparse updates and long sorts: in Triton's interpreter, and compiled."""

from typing import Any

import numpy as np
import pytest
from kernel_checks import compiles

from dovetail.codegen.gpu_kernel import GFX942, SM80, SM90, Routine
from dovetail.codegen.triton_interpret import run_routine
from dovetail.codegen.triton_ops import picking, scattering, sorting, sparse
from dovetail.codegen.update_loops import update
from dovetail.graph.dtypes import (
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

pytestmark = pytest.mark.usefixtures("own_cache")

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
            scattering.scatter(kind, dtype, int32)
        return
    rows, after, count = 6, 5, 13
    x = (4 * RNG.standard_normal((rows, after))).astype(np.int8).astype(dtype.np)
    updates = (4 * RNG.standard_normal((count, after)) + 5 * (kind == "div")).astype(np.int8).astype(dtype.np)
    at = RNG.integers(-1, rows + 1, count).astype(np.int32)
    out = np.zeros_like(x)
    sizes = {"rows": rows, "after": after, "count": count, **scattering.sizes_of([rows])}
    run_routine(
        scattering.scatter(kind, dtype, int32, begin="copied", after=after),
        {"in0": x, "in1": at, "in2": updates, "out0": out, **sizes},
    )
    wide = np.float64 if dtype.is_floating else dtype.np
    wanted = x.astype(wide)
    with np.errstate(all="ignore"):
        for i, row in enumerate(at):
            if 0 <= row < rows:
                wanted[row] = FUNCTIONS[kind](wanted[row], updates[i].astype(wide))
    np.testing.assert_allclose(out.astype(np.float64), wanted.astype(np.float64), rtol=TOLERANCE[dtype.size], atol=1e-5)


def test_nan_is_kept_by_extremes() -> None:
    x, updates = np.array([[1.0], [np.nan]], np.float32), np.array([[np.nan], [2.0]], np.float32)
    run_routine(
        scattering.scatter("max", float32, int64, after=1),
        {"in1": np.array([0, 1]), "in2": updates, "out0": x, "rows": 2, "after": 1, "count": 2, "s0": 2},
    )
    assert np.isnan(x).all()


def test_what_is_not_scattered() -> None:
    with pytest.raises(ValueError, match="bool"):
        scattering.scatter("add", bool_, int32)
    with pytest.raises(ValueError, match="coordinates of 9"):
        scattering.scatter("add", float32, int32, 9)
    with pytest.raises(ValueError, match="pow"):
        scattering.scatter("pow", float32, int32)


@pytest.mark.slow
def test_scatters_compile() -> None:
    compiles(scattering.scatter("update", bfloat16, int64, 2))
    compiles(scattering.scatter("add", float32, int32))
    compiles(scattering.scatter("max", float32, int64), [SM90, GFX942])
    compiles(scattering.scatter("add", int8, int32, begin="cleared", single=True), [SM80])
    compiles(picking.gather_nd(float16, int32, 3), [SM90, GFX942])


# --- sparse updates --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [float32, float64, bfloat16], ids=lambda t: t.name)
def test_rows_that_are_named_have_one_step(dtype: Any) -> None:
    rows, after, count = 7, 5, 12
    loops = update("Momentum", dtype, (("use_nesterov", False),))
    variable, slot = (RNG.standard_normal((rows, after)).astype(dtype.np) for _ in range(2))
    gradient = RNG.standard_normal((count, after)).astype(dtype.np)
    at = RNG.integers(-1, rows + 1, count)
    summed, there = np.zeros((rows, after)), (at >= 0) & (at < rows)
    np.add.at(summed, at[there], gradient[there].astype(np.float64))
    named = np.isin(np.arange(rows), at)[:, None]
    rate, keep = (np.array(x, dtype.np) for x in (0.1, 0.9))
    new_slot = np.where(named, slot.astype(np.float64) * np.float64(keep) + summed, slot.astype(np.float64))
    new = np.where(named, variable.astype(np.float64) - np.float64(rate) * new_slot, variable.astype(np.float64))
    arrays = {"in0": variable, "in1": slot, "in2": rate, "in3": gradient, "in4": keep, "indices": at}
    sizes = {"rows": rows, "s0": rows, "count": count, "after": after}
    run_routine(sparse.sparse_update(loops, 2, 3, int64, after), {**arrays, "out0": variable, "out1": slot, **sizes})
    for mine, wanted in ((variable, new), (slot, new_slot)):
        np.testing.assert_allclose(
            mine.astype(np.float64), wanted, rtol=TOLERANCE[dtype.size], atol=TOLERANCE[dtype.size]
        )


@pytest.mark.slow
def test_sparse_updates_compile() -> None:
    loops = update("Momentum", float32, (("use_nesterov", True),))
    compiles(sparse.sparse_update(loops, 2, 3, int64))
    compiles(sparse.sparse_update(update("Ftrl", bfloat16, ()), 3, 3, int32, 16), [SM90])


# --- long sorts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [float32, float64, bfloat16, int8, int16, int64, uint32, uint64], ids=lambda t: t.name
)
@pytest.mark.parametrize("descending", [False, True])
def test_sorting_by_digits(dtype: Any, descending: bool) -> None:
    length = 1100 if dtype is int16 else 70  # two blocks, or one
    if dtype.is_floating:
        x = (50 * RNG.standard_normal((2, length))).astype(dtype.np)
        x[0, 3], x[0, 9], x[1, 7], x[1, 8], x[0, 20], x[0, 21] = np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan
    else:
        x = RNG.integers(0 if dtype.is_unsigned else -100, 100, (2, length)).astype(dtype.np)
        x[0, :2] = np.iinfo(dtype.np).max, np.iinfo(dtype.np).min
    k = length - 3
    values, places = np.zeros((2, k), dtype.np), np.zeros((2, k), np.int32)
    routine = sorting.long_sort(dtype, descending=descending)
    run_routine(routine, {"in0": x, "out0": values, "out1": places, "before": 2, "length": length, "k": k})
    known = x.astype(np.float32) if dtype is bfloat16 else x
    order = np.argsort(known, axis=1, kind="stable")
    if descending:
        order = length - 1 - np.argsort(known[:, ::-1], axis=1, kind="stable")[:, ::-1]
    np.testing.assert_array_equal(places, order[:, :k])
    np.testing.assert_array_equal(values.astype(known.dtype), np.take_along_axis(known, order[:, :k], 1))


@pytest.mark.slow
def test_long_sorts_compile() -> None:
    keys, count, totals, moved, following, *_, take = sorting.long_sort(float32, descending=True).launches
    compiles(Routine((keys, moved, take)))
    compiles(Routine((count, totals, following)), [SM90])  # the kernels in between differ in the names of arrays
    wide = sorting.long_sort(int64).launches
    compiles(Routine((wide[0], wide[3])), [SM90])
