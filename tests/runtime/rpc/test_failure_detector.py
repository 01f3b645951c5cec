"""Which tasks are silent or restarted: time and what is heard come as events."""

from __future__ import annotations

from dovetail.runtime.rpc.failure_detection import DEAF_S, PING_S, FailureDetector

PATIENCE_S = 5.0


def waiting() -> FailureDetector:
    detector = FailureDetector(PATIENCE_S)
    detector.tick(100.0)
    detector.wait_for(["b"])
    return detector


def test_who_is_waited_for_is_asked_twice_a_second() -> None:
    detector = waiting()
    assert detector.to_ask() == [("b", False)]
    detector.tick(100.0 + PING_S / 2)
    assert detector.to_ask() == []
    detector.tick(100.0 + PING_S)
    assert detector.to_ask() == [("b", False)]
    detector.wait_for([])
    detector.tick(110.0)
    assert detector.to_ask() == []


def test_who_was_heard_once_and_is_silent_then_is_named_with_for_how_long() -> None:
    detector = waiting()
    detector.tick(120.0)
    assert detector.silent() == []  # it may not have started yet
    detector.heard("b")
    detector.tick(120.0 + PATIENCE_S)
    assert detector.silent() == []
    detector.tick(121.0 + PATIENCE_S)
    assert detector.silent() == [("b", 6.0)]
    assert detector.to_ask() == [("b", True)]  # and is told that nothing is heard of him
    detector.heard("b")
    assert detector.silent() == []


def test_the_time_before_somebody_is_waited_for_does_not_count() -> None:
    detector = waiting()
    detector.heard("c")
    detector.tick(200.0)
    detector.wait_for(["b", "c"])
    detector.tick(200.0 + PATIENCE_S)
    assert detector.silent() == []


def test_who_answers_as_another_process_was_restarted() -> None:
    detector = waiting()
    assert not detector.heartbeat("b", 7)
    assert not detector.heartbeat("b", 7)
    assert detector.heartbeat("b", 8)
    assert not detector.heartbeat("b", 8)


def test_who_goes_on_saying_that_he_hears_nothing_is_cut_off() -> None:
    detector = waiting()
    step = DEAF_S / 4
    told = []
    for i in range(6):
        detector.tick(100.0 + i * step)
        told.append(detector.is_cut_off("b", True))
    assert told == [False] * 4 + [True] * 2
    assert not detector.is_cut_off("b", False)
    assert not detector.is_cut_off("b", True)


def test_what_was_said_while_this_process_was_stopped_does_not_count() -> None:
    detector = waiting()
    assert not detector.is_cut_off("b", True)
    detector.tick(100.0 + 2 * DEAF_S)
    assert not detector.is_cut_off("b", True)


def test_whoever_is_expected_counts_as_heard_and_a_process_that_runs_is_not_silent() -> None:
    detector = FailureDetector(PATIENCE_S, 50.0, {"a": 1, "b": 0})
    assert detector.to_ask() == [] and detector.silent() == []
    detector.now = 53.0
    detector.heard("a")
    assert [task for task, _ in detector.to_ask()] == ["a", "b"]
    assert detector.heartbeat("a", 2) and not detector.heartbeat("b", 2)
    detector.now = 60.0
    assert detector.silent() == [("a", 7.0), ("b", 7.0)]
    assert detector.silent(lambda task, since: task == "a" and since == 53.0) == [("b", 7.0)]
