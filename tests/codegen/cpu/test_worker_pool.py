"""Threads that stay together for a table share each launch completely, once, and in time."""

import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from dovetail.codegen.cpu.jit import compile_now
from dovetail.codegen.cpu.native import table as launches, worker_pool
from dovetail.codegen.cpu.native.worker_pool import WorkerPool, run, share, share_units
from dovetail.codegen.cpu.thread_pool import LINE

PATIENT = 60.0  # seconds for what ends with an event

# add: numbers[lo ... hi - 1] += 1, an error when hi is negative. take: one for each unit, by whoever takes it
_KERNELS = """
from numba import njit, types
from dovetail.codegen.cpu.native.machine import count_up
from dovetail.codegen.cpu.thread_pool import FINISHED, LINE

def add(numbers, lo, hi):
    if hi < 0:
        raise ValueError
    for i in range(lo, hi):
        count_up(numbers, i, 1)

def take(numbers, counters, thread, units):
    while True:
        unit = count_up(counters, LINE, 1)
        if unit >= units:
            return
        count_up(numbers, unit, 1)
        count_up(counters, FINISHED, 1)

_add = njit("void(int64[::1], int64, int64)", nogil=True, error_model="numpy", cache=True)(add)
_take = njit("void(int64[::1], int64[::1], int64, int64)", nogil=True, error_model="numpy", cache=True)(take)
kernel = _add, _take
"""


@cache
def _kernels() -> Any:
    launches.loops()
    return compile_now(_KERNELS)


def _ranges(numbers: Any, ranges: list[tuple[int, int]], threads: int = 2) -> Any:
    """A table that adds ranges, and the ranges."""
    held = np.array(ranges, np.int64)
    words = [*launches.vector(numbers.size, 8, numbers.ctypes.data), 0, 0]
    record = [*launches.head(_kernels()[0], len(words), threads, len(ranges), held.ctypes.data), *words]
    return np.array(record, np.int64), held


def _units(numbers: Any, counters: Any, units: int, threads: int = 2) -> Any:
    """A table that takes units; the counters are for when no helper has time."""
    words = [
        *launches.vector(numbers.size, 8, numbers.ctypes.data),
        *launches.vector(counters.size, 8, counters.ctypes.data),
    ]
    counted = launches.HEAD + launches.VECTOR + launches.ADDRESS
    head = launches.head(_kernels()[1], len(words) + 2, threads, units, counted=counted)
    clear = [*launches.head("fill", 3), counters.ctypes.data, counters.size, 0]
    return np.array([*clear, *head, *words, 0, units], np.int64)


def test_each_range_is_done_once_in_many_launches_on_end() -> None:
    numbers = np.zeros(1000, np.int64)
    table, _held = _ranges(numbers, [(i, i + 100) for i in range(0, 1000, 100)])
    for done in range(1, 2001):
        assert run(table, 2, goes_on=done % 7 > 0)
        assert (numbers == done).all()  # all of it, as soon as the table is done


@pytest.mark.parametrize("threads", [2, 3, 40])
def test_each_unit_is_done_once_in_many_launches_on_end(threads: int) -> None:
    numbers, counters = np.zeros(64, np.int64), np.zeros((threads + 1) * LINE, np.int64)
    table = _units(numbers, counters, 64, threads)
    for done in range(1, 1001):
        assert run(table, threads, goes_on=done % 3 > 0)
        assert (numbers == done).all()


def test_launches_of_both_kinds_take_turns_in_one_table() -> None:
    numbers, others, counters = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(3 * LINE, np.int64)
    ranges, _held = _ranges(others, [(0, 20), (20, 64)])
    table = np.concatenate([_units(numbers, counters, 64), ranges, ranges, _units(numbers, counters, 64)])
    for done in range(1, 501):
        assert run(table, 2)
        assert (numbers == 2 * done).all() and (others == 2 * done).all()


def test_a_kernel_that_fails_fails_the_table_and_not_the_next() -> None:
    numbers = np.zeros(10, np.int64)
    wrong, _held = _ranges(numbers, [(0, 5), (0, -1), (5, 10)])
    right, _held_too = _ranges(numbers, [(0, 5), (5, 10)])
    for _ in range(20):
        assert not run(np.concatenate([wrong, right]), 2)
        before = numbers.copy()
        assert run(right, 2)
        assert (numbers == before + 1).all()


def test_several_threads_run_tables_at_once() -> None:
    def work(numbers: Any) -> None:
        table, _held = _ranges(numbers, [(i, i + 10) for i in range(0, 100, 10)])
        for done in range(1, 301):
            assert run(table, 2)
            assert (numbers == done).all()

    each = [np.zeros(100, np.int64) for _ in range(4)]
    threads = [threading.Thread(target=work, args=(numbers,)) for numbers in each]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENT)
    assert [int(numbers.min()) for numbers in each] == [300] * 4


@pytest.mark.parametrize("goes_on", [False, True])
def test_helpers_go_when_the_table_is_done(goes_on: bool) -> None:
    """Also when the table that should follow does not come."""
    numbers = np.zeros(100, np.int64)
    table, _held = _ranges(numbers, [(0, 50), (50, 100)])
    pool = WorkerPool(2)
    assert pool.run(table, 2, goes_on)
    until = time.monotonic() + PATIENT
    while pool._memory[launches.MEMBERS]:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_function_is_called_for_every_range_and_unit_once(threads: int) -> None:
    numbers, units = np.zeros(50, np.int64), np.zeros(30, np.int64)
    add, take = _kernels()
    for _ in range(100):
        share(add, (numbers,), tuple((i, i + 5) for i in range(0, 50, 5)), threads)
        share_units(take, (units,), (), 30, threads)
    assert (numbers == 100).all() and (units == 100).all()


def test_the_loops_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, units = np.zeros(50, np.int64), np.zeros(30, np.int64)
    add, take = _kernels()
    monkeypatch.setattr(launches, "is_ready", lambda: False)
    monkeypatch.setattr(worker_pool, "run", None)
    share(add, (numbers,), ((0, 20), (20, 50)), 2)
    share_units(take, (units,), (), 30, 2)
    assert (numbers == 1).all() and (units == 1).all()


@pytest.mark.parametrize("wrong", [np.zeros(50), np.zeros(100, np.int64)[::2]], ids=["type", "order"])
def test_arrays_that_the_function_does_not_take_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a kernel takes a contiguous vector of int64"):
        share(_kernels()[0], (wrong,), ((0, 20), (20, 50)), 2)


def test_a_helper_that_fails_fails_the_call() -> None:
    with pytest.raises(MemoryError):
        share(_kernels()[0], (np.zeros(50, np.int64),), ((0, 20), (20, -1)), 2)
