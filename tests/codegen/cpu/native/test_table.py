"""Compiled kernels called from a table: arguments as Numba takes them, arrays looked at, what fails and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from planned import by_plan

from dovetail.codegen.cpu.jit import compile_now
from dovetail.codegen.cpu.native import launches
from dovetail.codegen.cpu.native.launches import run, share
from dovetail.codegen.cpu.native.planner import LEAST, Planner, check_source, copy_source
from dovetail.codegen.cpu.native.plans import NativePlan, PlanCache

Array = np.ndarray[Any, Any]


def clear() -> Any:
    """The function that fills bytes with zeros."""
    return launches.loops()["clear"]


class Table:
    """A table that is being written, for some arrays."""

    def __init__(self, *arrays: Array) -> None:
        self.arrays = arrays
        self.words: list[int] = []
        self.patches: list[int] = []

    def add(self, function: Any, arguments: Sequence[Any], length: int) -> None:
        """Call a function for these arguments, in which arrays are (number, bytes behind its begin)."""
        at = len(self.words) + launches.HEAD
        for x in arguments:
            self.patches += [at, *x] if isinstance(x, list) else []
            at += len(x) if isinstance(x, (list, tuple)) else 1  # a list: the two words of a vector
        values = [self.arrays[x[0]].reshape(-1) if isinstance(x, list) else x for x in arguments]
        self.words += launches.record(function, values, lambda x: 0, length)

    def run(self, *arrays: Any) -> bool:
        """Whether all are arrays, and all records succeeded."""
        table, taken = np.array(self.words, np.int64), arrays or self.arrays
        return run(table, 1, tuple(taken), np.array(self.patches, np.int64))


def strided(x: Array, out: Array) -> Table:
    """out = x.T, by a kernel that takes two vectors, three tuples and two integers."""
    rows, columns = x.shape
    table = Table(x, out)
    sizes, jumps, out_jumps = (1, 1, 1, columns, rows), (0, 0, 0, 1, columns), (0, 0, 0, rows, 1)
    table.add(compile_now(copy_source(x.itemsize)), ([0, 0], [1, 0], sizes, jumps, out_jumps), 1)
    return table


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.complex64])
def test_a_kernel_is_called_as_numba_calls_it(dtype: Any) -> None:
    x = np.arange(35).reshape(5, 7).astype(dtype)
    out = np.zeros((7, 5), dtype)
    function = compile_now(copy_source(x.itemsize))
    assert strided(x, out).run() is True
    assert np.array_equal(out, x.T)
    raw, again = x.reshape(-1).view(f"u{x.itemsize}"), np.zeros((7, 5), f"u{x.itemsize}")
    arguments = (raw, again.reshape(-1), (1, 1, 1, 7, 5), (0, 0, 0, 1, 7), (0, 0, 0, 5, 1))
    share(function, arguments, 1, 1, 1)
    assert np.array_equal(again.view(dtype), out)


def test_other_arrays_of_the_same_kind_are_taken() -> None:
    x, out = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((3, 2), np.float32)
    table = strided(x, out)
    other, there = x * 2, np.zeros_like(out)
    assert table.run(other, there) is True
    assert np.array_equal(there, other.T)
    assert not out.any()


def test_what_is_no_array_is_told_before_anything_runs() -> None:
    x, out = np.ones((2, 3), np.float32), np.zeros((3, 2), np.float32)
    table = strided(x, out)
    for other in (np.float32(1), None, [1.0]):
        assert table.run(other, out) is False
    assert not out.any()


def copied(x: Any) -> Any:
    """A copy by a plan; None: there is no plan for what this is."""
    return COPIES.run((x,), True)


COPIES = PlanCache(lambda planner, given: [_copy(planner, *given)], "a copy")


def _copy(planner: Planner, x: Array) -> Array:
    made = planner.empty(x.shape, x.dtype)
    planner.copy(x, made)
    return made


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((3, 2), np.float32), np.zeros(6, np.float32), np.zeros((3, 2), np.float32).T, np.zeros((2, 3), np.int32),
        np.zeros((2, 3, 1), np.float32), np.float32(1), None, [["a", None]] * 2,
        np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3),
    ],
    ids=["sizes", "rank", "order", "type", "more", "scalar", "none", "list", "alignment"],
)  # fmt: skip
def test_a_plan_runs_for_arrays_of_its_kind_only(other: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (x, other, x):
        out = copied(given)
        if given is None or isinstance(given, list):
            assert out is None
        else:
            assert out[0].dtype == given.dtype and np.array_equal(out[0], given)


def test_a_cache_of_plans_puts_an_array_that_is_not_aligned_in_order() -> None:
    x = np.arange(25, dtype=np.uint8)[1:].view(np.float32).reshape(2, 3)
    assert np.array_equal(by_plan(lambda planner, given: planner.in_memory(given), x), x)


def test_a_scalar_and_an_axis_of_one_element_with_any_stride_fit() -> None:
    wide = np.lib.stride_tricks.as_strided(np.arange(3, dtype=np.int64), (1, 3), (992, 8))
    for x in (np.array(7, np.int64), wide):
        (out,) = copied(x)
        assert out.shape == x.shape and out.tolist() == x.tolist()


def checked(values: Any, limit: int, least: int = 0) -> bool:
    """Whether a plan runs that checks these numbers."""
    planner = Planner()
    x = planner.given(0, values)
    compile_now(check_source(values.itemsize))
    planner.check(x, limit, least)
    return NativePlan(planner, []).run([values], [values]) is not None


def test_a_record_that_fails_stops_the_table() -> None:
    labels, out = np.array([0, 4, 9], np.int64), np.full(3, 5, np.int64)
    check = compile_now(check_source(8))
    for limit, stops in ((10, False), (9, True)):
        table = Table(labels, out)
        table.add(check, ([0, 0], 0, limit), 3)
        table.add(clear(), ([1, 8],), 16)
        assert table.run() is not stops
        assert out.tolist() == ([5, 5, 5] if stops else [5, 0, 0])
        out[:] = 5


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_numbers_below_zero_are_out_of_range(dtype: Any) -> None:
    for values, well in (([0, 1, 2], True), ([0, -1, 2], False), ([3, 0, 0], False)):
        x = np.array(values, dtype)
        assert checked(x, 3) is well
        assert checked(x, 3, LEAST) is (max(values) < 3)


def test_only_the_bytes_of_a_launch_are_written() -> None:
    x = np.arange(1, 101, dtype=np.uint8)
    table = Table(x)
    table.add(clear(), ([0, 20],), 10)
    assert table.run() is True
    assert x.tolist() == [*range(1, 21), *[0] * 10, *range(31, 101)]


def test_a_plan_that_fails_for_arrays_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed before a kernel failed must not change again."""
    cache, ran = PlanCache(lambda planner, given: [_copy(planner, *given)], "a copy"), 0
    assert cache.run((np.ones(3, np.float32),), True) is not None

    def fail(*arguments: Any) -> bool:
        nonlocal ran
        ran += 1
        return False

    monkeypatch.setattr("dovetail.codegen.cpu.native.plans.run", fail)
    assert cache.run((np.ones(3, np.float32),), True) is None
    assert ran == 1
