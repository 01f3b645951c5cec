"""Threads that stay together for a table share each launch completely, once, and in time."""

import os
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen import options
from dovetail.codegen.cpu.jit import compile_now
from dovetail.codegen.cpu.native import launches
from dovetail.codegen.cpu.native.launches import WorkerPool, pool, run, share
from dovetail.codegen.cpu.work_parts import LINE

PATIENT = 60.0  # seconds for what ends with an event

# add: numbers[lo ... hi - 1] += 1, an error when hi is `wrong`. take: one for each unit, by the thread that takes it
_KERNELS = """
import numpy as np
from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.native.machine import count_now, count_up

@m.launched
def add(words, lo, hi):
    numbers, wrong = m.vector(words, 0, np.int64), m.word(words, 2)
    if hi == wrong:
        raise ValueError
    for i in range(lo, hi):
        count_up(numbers, i, 1)

@m.launched
def take(words, thread, end):
    numbers, counters, units = m.vector(words, 0, np.int64), m.vector(words, 2, np.int64), m.word(words, 4)
    while True:
        unit = count_up(counters, 0, 1)
        if unit >= units:
            return
        count_up(numbers, unit, 1)

@m.launched
def meet(words, lo, hi):
    numbers = m.vector(words, 0, np.int64)
    if lo + 2 == hi:  # the caller was left alone
        numbers[:] = 1
        return
    count_up(numbers, lo, 1)
    while count_now(numbers, 1 - lo) == 0:
        pass

kernel = add, take, meet
"""


@cache
def _kernels() -> Any:
    launches.loops()
    return compile_now(_KERNELS)


def _table(function: Any, arguments: Any, length: int, threads: int = 1, parts: int = 1) -> Any:
    return np.array(launches.record(function, arguments, launches.begin_of, length, threads, parts), np.int64)


def _parts(numbers: Any, parts: int, threads: int = 2, wrong: int = -1) -> Any:
    """A table that adds parts."""
    return _table(_kernels()[0], (numbers, wrong), numbers.size, threads, parts)


def _units(numbers: Any, counters: Any, units: int, threads: int = 2) -> Any:
    """A table that takes units."""
    clear = _table(launches.loops()["clear"], (counters,), counters.nbytes)
    return np.concatenate([clear, _table(_kernels()[1], (numbers, counters, units), threads, threads, threads)])


def test_each_part_is_done_once_in_many_launches_on_end() -> None:
    numbers = np.zeros(1000, np.int64)
    table = _parts(numbers, 10)
    for done in range(1, 2001):
        assert run(table, 2)
        assert (numbers == done).all()  # all of it, as soon as the table is done


@pytest.mark.parametrize("threads", [2, 3])
def test_each_unit_is_done_once_in_many_launches_on_end(threads: int) -> None:
    numbers, counters = np.zeros(64, np.int64), np.zeros(LINE, np.int64)
    table = _units(numbers, counters, 64, threads)
    for done in range(1, 1001):
        assert run(table, threads)
        assert (numbers == done).all()


def test_launches_of_both_kinds_take_turns_in_one_table() -> None:
    numbers, others, counters = np.zeros(64, np.int64), np.zeros(64, np.int64), np.zeros(LINE, np.int64)
    ranges = _parts(others, 3)
    table = np.concatenate([_units(numbers, counters, 64), ranges, ranges, _units(numbers, counters, 64)])
    for done in range(1, 501):
        assert run(table, 2)
        assert (numbers == 2 * done).all() and (others == 2 * done).all()


def test_a_kernel_that_fails_fails_the_table_and_not_the_next() -> None:
    numbers = np.zeros(10, np.int64)
    wrong, right = _parts(numbers, 3, wrong=6), _parts(numbers, 2)
    for _ in range(20):
        assert not run(np.concatenate([wrong, right]), 2)
        before = numbers.copy()
        assert run(right, 2)
        assert (numbers == before + 1).all()


def test_several_threads_run_tables_at_once() -> None:
    def work(numbers: Any) -> None:
        table = _parts(numbers, 10)
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


def test_helpers_sleep_when_the_table_is_done_and_wake_for_the_next() -> None:
    numbers = np.zeros(100, np.int64)
    table = _parts(numbers, 2)
    helpers = pool(os.getpid())
    for done in range(1, 4):
        assert run(table, 2)
        assert (numbers == done).all()
        until = time.monotonic() + PATIENT
        while helpers.memory[launches.SLEEPING] < helpers.threads - 1:
            assert time.monotonic() < until
            time.sleep(0.001)


def test_a_helper_takes_part() -> None:
    """It does what the caller waits for: one of two ranges ends only when the other one has begun."""
    numbers = np.zeros(2, np.int64)
    assert run(_table(_kernels()[2], (numbers,), 2, 2, 2), 2)
    assert numbers.tolist() == [1, 1]


@pytest.mark.parametrize(("threads", "woken"), [(2, 0), (3, 1), (4, 2), (9, 2)])
def test_a_caller_wakes_only_those_that_it_needs_besides_the_ones_awake(threads: int, woken: int) -> None:
    """Waking one takes the caller some 15 microseconds. Of three helpers, none of which is there, two sleep."""
    memory = np.zeros(launches.POOL_WORDS, np.int64)
    end, memory[launches.WRITE_END] = os.pipe()
    memory[launches.HELPERS], memory[launches.SLEEPING] = 3, 2
    numbers = np.zeros(100, np.int64)
    try:
        assert launches.loops()["run"](id(()), np.zeros(0, np.int64), _parts(numbers, 10, threads), memory) == 0
        assert (numbers == 1).all()
        assert memory[launches.SLEEPING] == 2 - woken
        os.set_blocking(end, False)
        assert not woken or len(os.read(end, 9)) == woken
    finally:
        os.close(end)
        os.close(int(memory[launches.WRITE_END]))


def test_a_second_caller_does_its_work_alone() -> None:
    numbers = np.zeros(100, np.int64)
    with pool(os.getpid()).lock:
        assert run(_parts(numbers, 2), 2)
    assert (numbers == 1).all()


def test_a_forked_process_has_helpers_of_its_own() -> None:
    numbers = np.zeros(100, np.int64)
    table = _parts(numbers, 2)
    assert run(table, 2)
    child = os.fork()
    if child == 0:
        os._exit(0 if run(table, 2) and (numbers == 2).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (numbers == 1).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_function_is_called_for_every_range_once(threads: int) -> None:
    numbers = np.zeros(50, np.int64)
    for _ in range(100):
        share(_kernels()[0], (numbers, -1), 50, 10, threads)
    assert (numbers == 100).all()


def test_a_helper_that_fails_fails_the_call() -> None:
    with pytest.raises(MemoryError):
        share(_kernels()[0], (np.zeros(50, np.int64), 50), 50, 2, 2)


def test_helpers_leave_the_core_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", places.__setitem__, raising=False)
    helpers = WorkerPool()
    helpers._allowed, core = {3, 5, 8}, 5
    helpers._core_of = lambda: core
    helpers.leave_core_of_caller()
    assert places == {t.native_id: {3, 8} for t in helpers._helpers}
    places.clear()
    helpers.leave_core_of_caller()
    assert not places  # they are there already
    core = 8
    helpers.leave_core_of_caller()
    assert set(map(tuple, places.values())) == {(3, 5)}


def test_helpers_stay_where_they_are_when_cores_have_been_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: int, cores: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    helpers = WorkerPool()
    helpers._allowed, helpers._core_of = {3, 5}, lambda: 5
    helpers.leave_core_of_caller()
    helpers.leave_core_of_caller()
    assert helpers._core_of is None


def test_helpers_of_a_task_that_has_neighbours_are_less_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    for has_neighbours in (False, True):
        monkeypatch.setattr("dovetail.codegen.options._has_neighbours", has_neighbours)
        looks.append(WorkerPool().memory[launches.LOOKS])
    assert looks == [launches.PATIENCE, launches.TASK_PATIENCE]


@pytest.mark.parametrize(
    ("cluster", "is_one_of_several"), [({"local": ["localhost:0"]}, False), ({"ps": 1, "worker": 1}, True)]
)
def test_a_server_of_several_tasks_expects_neighbours(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], is_one_of_several: bool
) -> None:
    monkeypatch.setattr("dovetail.codegen.options._has_neighbours", False)
    addresses = {job: tasks if isinstance(tasks, list) else ["localhost:0"] for job, tasks in cluster.items()}
    dt.train.Server(addresses, job_name=next(iter(addresses)), task_index=0, start=False)
    assert options.has_neighbours() is is_one_of_several
