"""What tells long work that its step has ended."""

from __future__ import annotations

import threading

import pytest

from dovetail.graph.core.errors import CancelledError, DeadlineExceededError
from dovetail.graph.resources.cancellation import (
    Cancellation,
    active_cancellation,
    check_cancelled,
    is_cancelled,
    unless_cancelled,
    wait_for,
)


def test_work_sees_its_own_cancellation_and_no_other() -> None:
    outer, inner = Cancellation(), Cancellation()
    outer.cancel(DeadlineExceededError(None, None, "too late"))
    assert unless_cancelled(5) == 5 and not is_cancelled() and active_cancellation() is None

    def work() -> int:
        with pytest.raises(DeadlineExceededError, match="too late"):
            check_cancelled()
        assert inner.run(unless_cancelled, 7) == 7
        assert is_cancelled() and active_cancellation() is outer
        raise KeyError

    with pytest.raises(KeyError):
        outer.run(work)
    assert active_cancellation() is None
    outer.cancel()
    with pytest.raises(DeadlineExceededError):  # the first error counts
        outer.check()


def test_callbacks_are_called_once_also_late_and_not_after_their_block() -> None:
    cancellation, called = Cancellation(), []
    with cancellation.calling(lambda: called.append("before")):
        pass
    with cancellation.calling(lambda: called.append("a")), cancellation.calling(lambda: called.append("b")):
        cancellation.cancel()
        cancellation.cancel()
    assert called == ["a", "b"]
    with cancellation.calling(lambda: called.append("late")):
        assert called == ["a", "b", "late"]


@pytest.mark.parametrize("is_early", [False, True])
def test_a_wait_ends_when_its_work_is_cancelled(is_early: bool) -> None:
    cancellation, changed, looks = Cancellation(), threading.Condition(), threading.Semaphore(0)
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            wait_for(changed, lambda: looks.release())
        except CancelledError as e:
            outcome.append(e)

    if is_early:
        cancellation.cancel()
    thread = threading.Thread(target=cancellation.run, args=(work,))
    thread.start()
    if not is_early:
        assert looks.acquire(timeout=60)
        cancellation.cancel()
    thread.join(60)
    assert len(outcome) == 1


def test_a_wait_ends_when_its_predicate_holds() -> None:
    changed, found = threading.Condition(), []

    def change() -> None:
        with changed:
            found.append(1)
            changed.notify_all()

    for cancellation in (None, Cancellation()):
        found.clear()
        thread = threading.Thread(target=change)
        thread.start()
        if cancellation is None:
            wait_for(changed, lambda: found)
        else:
            cancellation.run(wait_for, changed, lambda: found)
        thread.join(60)
