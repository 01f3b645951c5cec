"""How work is divided for threads."""

import pytest

from dovetail.codegen.cpu.work_ranges import ranges_of
from dovetail.codegen.target import PARALLEL_NS


@pytest.mark.parametrize("length", [1, 2, 7, 1000])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_ranges_cover_everything_once(length: int, count: int) -> None:
    ranges = ranges_of(length, 100 * PARALLEL_NS, count)
    assert [i for lo, hi in ranges for i in range(lo, hi)] == list(range(length))
    assert (len(ranges) == 1) == (count == 1 or length == 1)


def test_short_work_is_not_cut() -> None:
    assert ranges_of(1000, PARALLEL_NS / 2, 8) == ((0, 1000),)
