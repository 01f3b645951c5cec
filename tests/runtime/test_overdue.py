"""Tensors that are overdue, without processes: who is asked when, and when a step is given up."""

from __future__ import annotations

from dovetail.graph.errors import OpError
from dovetail.runtime.overdue import ASK_S, Ask, Lost, Overdue, Waiting
from dovetail.runtime.registration import Registration
from dovetail.runtime.worker import Worker, _moment

WAITS = {7: Waiting(3.0, {"b": [1, "2@0"]})}


def test_nobody_is_asked_before_it_is_time() -> None:
    overdue = Overdue()
    assert overdue.look(0.0, WAITS) == ([], [])
    assert overdue.look(0.9 * ASK_S, WAITS) == ([], [])
    assert overdue.look(1.0 * ASK_S, WAITS) == ([Ask(7, "b", [1, "2@0"])], [])
    assert overdue.look(1.5 * ASK_S, WAITS) == ([], [])
    assert overdue.look(2.0 * ASK_S, WAITS) == ([Ask(7, "b", [1, "2@0"])], [])


def test_a_wait_that_ended_is_forgotten() -> None:
    overdue = Overdue()
    overdue.look(0.0, WAITS)
    overdue.look(1.0, {})
    assert overdue.look(2.0, WAITS) == ([], [])


def test_silence_ends_the_step_after_the_sessions_limit() -> None:
    overdue = Overdue()
    ended = []
    for quarter in range(40):
        _, lost = overdue.look(quarter / 4, WAITS)
        ended += lost
        if lost:
            break
    assert ended == [Lost(7, "b", 3.25, True)]  # whenever it was asked first, the limit is 3


def test_signs_of_life_keep_the_step() -> None:
    overdue = Overdue()
    for second in range(30):
        _, lost = overdue.look(float(second), WAITS)
        assert not lost
        overdue.coming(second + 0.1, 7, "b", True)


def test_a_producer_that_does_not_know_the_step_is_no_sign_of_life() -> None:
    overdue = Overdue()
    lost: list[Lost] = []
    second = 0
    while not lost:
        _, lost = overdue.look(float(second), WAITS)
        overdue.coming(second + 0.1, 7, "b", False)
        second += 1
        assert second < 10


def test_what_was_sent_is_lost_when_that_is_said_twice_while_it_is_waited_for() -> None:
    overdue = Overdue()
    overdue.look(0.0, WAITS)
    overdue.look(1.0, WAITS)
    assert overdue.accounted(1.1, 7, "b", ["2@0"], WAITS[7]) is None
    assert overdue.accounted(2.1, 7, "b", [1], WAITS[7]) is None  # another one: the first has come
    assert overdue.accounted(3.1, 7, "b", ["2@1"], WAITS[7]) is None  # nobody waits for that
    assert overdue.accounted(4.1, 7, "b", [1], WAITS[7]) is None
    assert overdue.accounted(5.1, 7, "b", [1], WAITS[7]) == Lost(7, "b", 5.1, False)


def test_answers_about_other_steps_change_nothing() -> None:
    overdue = Overdue()
    overdue.coming(0.0, 1, "b", True)
    assert overdue.accounted(0.0, 1, "b", [1], WAITS[7]) is None
    overdue.look(0.0, WAITS)
    assert overdue.accounted(0.0, 7, "b", [1], None) is None


def test_iterations_are_in_order() -> None:
    order: list[int | str] = ["7@0@0", "7@0@9", "7@0@10", "7@1@0", "7@10@0"]
    assert sorted(order, key=_moment) == order
    assert _moment(7) == (7,)


def test_a_worker_accounts_for_steps_that_run_have_ended_or_are_not_known() -> None:
    worker = Worker("/job:a/replica:0/task:0", [], push=lambda task, step, values, carry: None)
    assert worker.account(1, [3]) == (False, [])
    worker.register(Registration("p", "s", (), seed=1))
    outcomes: list[object] = []
    worker.start(1, "p", {}, outcomes.append)
    assert outcomes == [{}]
    assert worker.account(1, [3, "4@0"]) == (True, [3, "4@0"])
    worker.abort(2, "told to")  # it has never run here, and never will
    assert worker.account(2, [3]) == (True, [3])
    assert not isinstance(outcomes[0], OpError)
