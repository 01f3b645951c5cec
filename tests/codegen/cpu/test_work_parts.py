"""How work is divided for threads."""

import pytest

from dovetail.codegen.cpu.work_parts import parts_of
from dovetail.codegen.options import threads_for
from dovetail.codegen.target import PARALLEL_NS, TASK_PARALLEL_NS


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_work_is_cut_into_parts_that_have_items(length: int, threads: int) -> None:
    parts = parts_of(length, 100 * PARALLEL_NS, threads)
    assert 1 <= parts <= length
    assert (parts == 1) == (threads == 1 or length == 1)


def test_short_work_is_not_cut() -> None:
    assert parts_of(1000, PARALLEL_NS / 2, 8) == 1


def test_a_task_that_has_neighbours_shares_only_longer_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.codegen.options._has_neighbours", True)
    assert threads_for(PARALLEL_NS, 8) == parts_of(1000, PARALLEL_NS, 8) == 1
    assert threads_for(TASK_PARALLEL_NS, 8) == 8 and parts_of(1000, TASK_PARALLEL_NS, 8) > 1
