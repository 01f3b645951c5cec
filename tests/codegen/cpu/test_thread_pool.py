"""How work is divided, and on which cores helpers run."""

import os

import pytest

from dovetail.codegen.cpu import thread_pool
from dovetail.codegen.cpu.thread_pool import PARALLEL_NS, ranges_of


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_ranges_cover_everything_once(length: int, count: int) -> None:
    ranges = ranges_of(length, 100 * PARALLEL_NS, count)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(length))
    assert (len(ranges) == 1) == (count == 1 or length == 1)


def test_short_work_is_not_cut() -> None:
    assert ranges_of(1000, PARALLEL_NS / 2, 8) == ((0, 1000),)


def test_helpers_leave_the_core_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    places: dict[int, set[int]] = {}
    monkeypatch.setattr(os, "sched_setaffinity", places.__setitem__, raising=False)
    helpers = thread_pool._Helpers()
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
    helpers = thread_pool._Helpers()
    helpers._allowed, helpers._core_of = {3, 5}, lambda: 5
    helpers.leave_core_of_caller()
    helpers.leave_core_of_caller()
    assert helpers._core_of is None
