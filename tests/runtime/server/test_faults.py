"""Something happens to a task: kill, stop, restart, cut, slow; whatever it was doing. See `fault_schedules.py`.

The full run is the script there; these are the grid of all cases once, and some random ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_schedules import WHAT, WHEN, WHOM, Schedule, Suite, kept_open, schedules, wait_until_gone

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Suite]]:
    """The cluster that the tests play on; one that a test has left in disorder is replaced."""
    before = kept_open()
    running: list[Suite] = []
    yield running
    for each in running:
        each.close()
    wait_until_gone(before)


def play(suite: list[Suite], folder: Path, schedule: Schedule) -> None:
    if not suite:
        suite.append(Suite(folder))
    try:
        suite[0].play(schedule)
    except BaseException:
        suite.pop().close()
        raise


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("what", WHAT)
def test_each_fault_at_each_moment(what: str, when: str, suite: list[Suite], tmp_path: Path) -> None:
    whom = WHOM[(WHAT.index(what) + WHEN.index(when)) % len(WHOM)]
    play(suite, tmp_path, Schedule(what, whom, when, after_s=0.1, heal_s=1.0))


@pytest.mark.parametrize("schedule", list(schedules(10, seed=2026)), ids=str)
def test_random_schedules(schedule: Schedule, suite: list[Suite], tmp_path: Path) -> None:
    play(suite, tmp_path, schedule)


def test_the_same_seed_gives_the_same_schedules() -> None:
    assert list(schedules(50, 3)) == list(schedules(50, 3)) != list(schedules(50, 4))


def test_nothing_is_left(suite: list[Suite], tmp_path: Path) -> None:
    """After as many steps as it takes to open all connections, more leave no descriptor behind, and no step."""
    if not suite:
        suite.append(Suite(tmp_path))
    calm = Schedule("slow", "b", "transfer", after_s=0.0, heal_s=0.1)
    for _ in range(3):
        suite[0].play(calm)
    before = suite[0].held()
    for _ in range(5):
        suite[0].play(calm)
    deadline = time.monotonic() + 10.0
    while any(now > before[name] + 2 for name, now in suite[0].held().items()):
        assert time.monotonic() < deadline, f"descriptors: {before}, then {suite[0].held()}"
        time.sleep(0.2)


def test_a_task_that_cannot_reach_another_one_ends_the_step_though_it_hears_and_answers_it(
    suite: list[Suite], tmp_path: Path
) -> None:
    if not suite:
        suite.append(Suite(tmp_path))
    suite[0].play_one_way("b", "c")
