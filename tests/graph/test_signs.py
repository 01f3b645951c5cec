"""Signs of life between the tasks of collectives: time and what is heard come as events."""

from __future__ import annotations

from dovetail.graph.collectives.membership import DEAF_S, HEARTBEAT_S, Signs

PATIENCE_S = 5.0


def waiting() -> Signs:
    signs = Signs(PATIENCE_S)
    signs.tick(100.0)
    signs.wait_for(["b"])
    return signs


def test_who_is_waited_for_is_asked_twice_a_second() -> None:
    signs = waiting()
    assert signs.to_ask() == [("b", False)]
    signs.tick(100.0 + HEARTBEAT_S / 2)
    assert signs.to_ask() == []
    signs.tick(100.0 + HEARTBEAT_S)
    assert signs.to_ask() == [("b", False)]
    signs.wait_for([])
    signs.tick(110.0)
    assert signs.to_ask() == []


def test_who_was_heard_once_and_is_silent_then_is_named_with_for_how_long() -> None:
    signs = waiting()
    signs.tick(120.0)
    assert signs.silent() == []  # it may not have started yet
    signs.heard("b")
    assert signs.has_heard("b")
    signs.tick(120.0 + PATIENCE_S)
    assert signs.silent() == []
    signs.tick(121.0 + PATIENCE_S)
    assert signs.silent() == [("b", 6.0)]
    assert signs.to_ask() == [("b", True)]  # and is told that nothing is heard of him
    signs.heard("b")
    assert signs.silent() == []


def test_the_time_before_somebody_is_waited_for_does_not_count() -> None:
    signs = waiting()
    signs.heard("c")
    signs.tick(200.0)
    signs.wait_for(["b", "c"])
    signs.tick(200.0 + PATIENCE_S)
    assert signs.silent() == []


def test_who_answers_as_another_process_was_restarted() -> None:
    signs = waiting()
    assert not signs.gave_sign("b", 7)
    assert not signs.gave_sign("b", 7)
    assert signs.gave_sign("b", 8)
    assert not signs.gave_sign("b", 8)


def test_who_goes_on_saying_that_he_hears_nothing_is_cut_off() -> None:
    signs = waiting()
    step = DEAF_S / 4
    told = []
    for i in range(6):
        signs.tick(100.0 + i * step)
        told.append(signs.is_cut_off("b", True))
    assert told == [False] * 4 + [True] * 2
    assert not signs.is_cut_off("b", False)
    assert not signs.is_cut_off("b", True)


def test_what_was_said_while_this_process_was_stopped_does_not_count() -> None:
    signs = waiting()
    assert not signs.is_cut_off("b", True)
    signs.tick(100.0 + 2 * DEAF_S)
    assert not signs.is_cut_off("b", True)
