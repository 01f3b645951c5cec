"""Threads that stay together for a plan share each launch completely, once, and in time."""

import threading
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from dovetail.codegen.cpu.native import vm
from dovetail.codegen.cpu.native.worker_pool import WorkerPool, worker_pool
from dovetail.codegen.cpu.thread_pool import LINE

pytestmark = pytest.mark.skipif(not vm.is_possible(), reason="arrays do not look as native calls take them to be")

PATIENT = 60.0  # seconds for what ends with an event
MEMBERS = 2 * LINE

# add: numbers[lo ... hi - 1] += 1, 1 when hi is negative. take: what is done with units by all who take them
_KERNELS = f"""
define i32 @add(ptr %result, ptr %error, ptr %numbers, i64 %lo, i64 %hi) {{
start:
  %is_wrong = icmp slt i64 %hi, 0
  br i1 %is_wrong, label %wrong, label %next
next:
  %i = phi i64 [ %lo, %start ], [ %i1, %one ]
  %is_end = icmp eq i64 %i, %hi
  br i1 %is_end, label %well, label %one
one:
  %place = getelementptr i64, ptr %numbers, i64 %i
  %before = atomicrmw add ptr %place, i64 1 seq_cst
  %i1 = add i64 %i, 1
  br label %next
well:
  ret i32 0
wrong:
  ret i32 1
}}

define i32 @take(ptr %result, ptr %error, ptr %numbers, ptr %counters, i64 %who, i64 %units) {{
start:
  %taken = getelementptr i64, ptr %counters, i64 {LINE}
  br label %next
next:
  %unit = atomicrmw add ptr %taken, i64 1 seq_cst
  %is_one = icmp slt i64 %unit, %units
  br i1 %is_one, label %one, label %well
one:
  %place = getelementptr i64, ptr %numbers, i64 %unit
  %before = atomicrmw add ptr %place, i64 1 seq_cst
  %finished = atomicrmw add ptr %counters, i64 1 seq_cst
  br label %next
well:
  ret i32 0
}}
"""


@cache
def _address(name: str) -> int:
    return vm.compiled_functions(_KERNELS)(name)


def _record(name: str, *arguments: int) -> Any:
    return np.array([*vm.head(_address(name), len(arguments)), *arguments], np.int64)


def _ranges(record: Any, ranges: list[tuple[int, int]], together: WorkerPool, threads: int = 2) -> int | None:
    return together.launch_ranges(record.ctypes.data, len(record), np.array(ranges, np.int64), threads)


@pytest.fixture
def together() -> Iterator[WorkerPool]:
    """The worker pool of this process, held."""
    found = worker_pool()
    assert found is not None
    until = time.monotonic() + PATIENT
    while not found.begin(2):
        assert time.monotonic() < until
    yield found
    found.end()


def test_each_range_is_done_once_in_many_launches_on_end(together: WorkerPool) -> None:
    numbers = np.zeros(1000, np.int64)
    record = _record("add", numbers.ctypes.data, 0, 0)
    ranges = [(i, i + 100) for i in range(0, 1000, 100)]
    done = 0
    for _ in range(2000):
        status = _ranges(record, ranges, together)
        assert status in (0, None)
        done += status == 0
        assert (numbers == done).all()  # all of it, as soon as the launch is over
    assert done


def test_each_unit_is_done_once_in_many_launches_on_end(together: WorkerPool) -> None:
    numbers = np.zeros(64, np.int64)
    record = _record("take", numbers.ctypes.data, 0, 0, 0)
    done = 0
    for _ in range(2000):
        status = together.launch_units(record.ctypes.data, len(record), vm.HEAD + 1, 64, 2)
        assert status in (0, None)
        done += status == 0
        assert (numbers == done).all()
    assert done


def test_plans_that_follow_each_other_share_their_launches() -> None:
    found = worker_pool()
    assert found is not None
    numbers, done = np.zeros(64, np.int64), 0
    record = _record("take", numbers.ctypes.data, 0, 0, 0)
    until = time.monotonic() + PATIENT
    for i in range(200):
        while not found.begin(2):
            assert time.monotonic() < until
        status = found.launch_units(record.ctypes.data, len(record), vm.HEAD + 1, 64, 2)
        found.end(goes_on=i % 3 > 0)
        assert status in (0, None)
        done += status == 0
        assert (numbers == done).all()
    assert done


def test_launches_of_both_kinds_take_turns(together: WorkerPool) -> None:
    numbers, others = np.zeros(64, np.int64), np.zeros(64, np.int64)
    units, ranges = _record("take", numbers.ctypes.data, 0, 0, 0), _record("add", others.ctypes.data, 0, 0)
    done = [0, 0]
    for _ in range(1000):
        done[0] += together.launch_units(units.ctypes.data, len(units), vm.HEAD + 1, 64, 2) == 0
        done[1] += _ranges(ranges, [(0, 20), (20, 64)], together) == 0
    assert (numbers == done[0]).all() and (others == done[1]).all()


def test_a_kernel_that_fails_fails_the_launch_and_not_the_next(together: WorkerPool) -> None:
    numbers = np.zeros(10, np.int64)
    record = _record("add", numbers.ctypes.data, 0, 0)
    for _ in range(20):
        assert _ranges(record, [(0, 5), (0, -1), (5, 10)], together) in (1, None)
        assert _ranges(record, [(0, 5), (5, 10)], together) in (0, None)


def test_only_one_has_the_pool() -> None:
    found = worker_pool()
    assert found is not None
    until = time.monotonic() + PATIENT
    while not found.begin(2):
        assert time.monotonic() < until
    try:
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(found.begin(2)))
        thread.start()
        thread.join(PATIENT)
        assert answers == [False]
    finally:
        found.end()


def test_one_thread_needs_no_pool() -> None:
    found = worker_pool()
    assert found is not None and not found.begin(1)


@pytest.mark.parametrize("goes_on", [False, True])
def test_helpers_go_when_the_plan_is_over(goes_on: bool) -> None:
    """Also when the plan that should follow does not come."""
    found = worker_pool()
    assert found is not None
    until = time.monotonic() + PATIENT
    while not found.begin(2):
        assert time.monotonic() < until
    found.end(goes_on)
    while found._memory[MEMBERS]:
        assert time.monotonic() < until
        time.sleep(0.001)
