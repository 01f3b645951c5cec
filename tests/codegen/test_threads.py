"""Sharing work: every range once, whoever takes it, and errors reach the caller."""

import os
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from dovetail.codegen import threads
from dovetail.codegen.threads import PARALLEL_NS, ranges_of, share


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_ranges_cover_everything_once(length: int, count: int) -> None:
    ranges = ranges_of(length, 100 * PARALLEL_NS, count)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(length))
    assert (len(ranges) == 1) == (count == 1 or length == 1)


def test_short_work_is_not_cut() -> None:
    assert ranges_of(1000, PARALLEL_NS / 2, 8) == ((0, 1000),)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_range_is_done_once(count: int) -> None:
    seen: list[tuple[str, int, int]] = []

    def work(name: str, lo: int, hi: int) -> None:
        seen.append((name, lo, hi))

    ranges = tuple((i, i + 1) for i in range(50))
    share(work, ("x",), ranges, count)
    assert sorted(seen) == [("x", lo, hi) for lo, hi in ranges]


def test_an_error_in_a_helper_reaches_the_caller() -> None:
    caller = threading.get_ident()
    begun = threading.Event()

    def work(lo: int, hi: int) -> Any:
        if threading.get_ident() != caller:
            begun.set()
            raise ZeroDivisionError
        begun.wait(10)

    with pytest.raises(ZeroDivisionError):
        share(work, (), ((0, 1), (1, 2)), 2)


def test_helpers_who_come_late_hold_nothing() -> None:
    busy = threading.Event()
    todo = threads._helpers(os.getpid())

    class Elsewhere:
        def help(self) -> None:
            busy.wait(60)

    for _ in range(threads.cores()):
        todo.put(Elsewhere())  # type: ignore[arg-type]
    array = np.zeros(3)
    gone = weakref.ref(array)
    share(lambda x, lo, hi: None, (array,), ((0, 1), (1, 2)), 2)
    del array
    assert gone() is None  # though no helper has looked yet
    busy.set()


def test_helpers_leave_the_core_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", places.__setitem__, raising=False)
    helpers = threads._Helpers()
    helpers._allowed, core = {3, 5, 8}, 5
    helpers._core_of = lambda: core
    helpers.leave_core_of_caller()
    assert places == {t.native_id: {3, 8} for t in helpers._threads}
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
    helpers = threads._Helpers()
    helpers._allowed, helpers._core_of = {3, 5}, lambda: 5
    helpers.leave_core_of_caller()
    helpers.leave_core_of_caller()
    assert helpers._core_of is None


# --- helpers that wait awake ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def awake() -> Any:
    """Two helpers that wait awake, and a kernel that adds, which is cut into ranges."""
    numba = pytest.importorskip("numba")
    if not threads._may_wait_awake:
        pytest.skip("needs Linux and a processor for which helpers can wait awake")
    from dovetail.codegen.kernel_cache import compile_now
    from dovetail.codegen.loop_text import source_of
    from dovetail.codegen.native_helpers import NativeHelpers

    signature = "wwwww", ()
    functions = compile_now(source_of("helper_loops", {"drive": signature, "serve": signature}, "int64"))
    number = numba.types.Array(numba.types.float32, 1, "C")

    @numba.njit(numba.void(number, number, numba.intp, numba.intp), nogil=True)
    def twice(x: Any, out: Any, lo: int, hi: int) -> None:
        for i in range(lo, hi):
            out[i] += 2 * x[i]

    return NativeHelpers(*functions, 2, 200.0), twice


def test_helpers_that_wait_awake_do_every_range_once(awake: Any) -> None:
    helpers, twice = awake
    x = np.arange(1000, dtype=np.float32)
    for ranges in (((0, 1000),), ((0, 300), (300, 301), (301, 1000)), tuple((i, i + 1) for i in range(1000))):
        for _ in range(20):
            out = np.zeros(1000, np.float32)
            while not helpers.share(twice, (x, out), ranges, len(ranges), 3):
                pass  # a helper is about to leave
            assert (out == 2 * x).all()


def test_what_a_kernel_does_not_take_is_left_to_numba(awake: Any) -> None:
    helpers, twice = awake
    x = np.arange(10, dtype=np.float32)
    wrong: tuple[Any, ...] = (x.astype(np.float64), x[::2], x.reshape(2, 5), [1.0])
    for other in wrong:
        assert not helpers.share(twice, (other, np.zeros(10, np.float32)), ((0, 5), (5, 10)), 2, 2)
    read_only = np.zeros(10, np.float32)
    read_only.flags.writeable = False
    assert not helpers.share(twice, (x, read_only), ((0, 5), (5, 10)), 2, 2)
    assert not helpers.share(lambda lo, hi: None, (), ((0, 5), (5, 10)), 2, 2)


def test_callers_who_find_helpers_busy_are_told(awake: Any) -> None:
    helpers, twice = awake
    x, out = np.ones(10, np.float32), np.zeros(10, np.float32)
    with helpers._busy:
        assert not helpers.share(twice, (x, out), ((0, 5), (5, 10)), 2, 2)
    assert not out.any()


def test_who_shares_cores_waits_asleep(awake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_may_wait_awake", True)
    threads.wait_asleep()
    assert threads._awake(awake[1]) is None
