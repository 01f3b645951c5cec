"""Tensors that are overdue, without processes: who is asked when, and when a step is given up."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.graph.core.errors import OpError
from dovetail.placer.cluster.spec import local_devices
from dovetail.runtime.rpc.failure_detection import (
    ASK_S,
    BROKEN,
    CUT,
    SILENT,
    STUCK_LINK_S,
    Ask,
    AwaitedTensors,
    LossDetector,
    Lost,
)
from dovetail.runtime.worker.registration import Registration
from dovetail.runtime.worker.worker import Worker, _moment

WAITS = {7: AwaitedTensors(3.0, {"b": [1, "2@0"]})}


def test_nobody_is_asked_before_it_is_time() -> None:
    overdue = LossDetector()
    assert overdue.look(0.0, WAITS) == ([], [])
    assert overdue.look(0.9 * ASK_S, WAITS) == ([], [])
    assert overdue.look(1.0 * ASK_S, WAITS) == ([Ask(7, "b", [1, "2@0"])], [])
    assert overdue.look(1.5 * ASK_S, WAITS) == ([], [])
    assert overdue.look(2.0 * ASK_S, WAITS) == ([Ask(7, "b", [1, "2@0"])], [])


def test_a_wait_that_ended_is_forgotten() -> None:
    overdue = LossDetector()
    overdue.look(0.0, WAITS)
    overdue.look(1.0, {})
    assert overdue.look(2.0, WAITS) == ([], [])


def test_silence_ends_the_step_after_the_sessions_limit() -> None:
    overdue = LossDetector()
    ended = []
    for quarter in range(40):
        _, lost = overdue.look(quarter / 4, WAITS)
        ended += lost
        if lost:
            break
    assert ended == [Lost(7, "b", 3.25, SILENT)]  # whenever it was asked first, the limit is 3


def test_a_task_whose_process_has_ended_has_time_for_one_answer() -> None:
    overdue, waits = LossDetector(), {7: AwaitedTensors(3600.0, {"b": [1], "c": [2]}, {"b"})}
    assert overdue.look(0.0, waits) == ([], [])
    assert overdue.look(0.5 * ASK_S, waits) == ([Ask(7, "b", [1])], [])
    asks, lost = overdue.look(1.2 * ASK_S, waits)
    assert (asks, lost) == ([Ask(7, "c", [2])], [Lost(7, "b", 1.2 * ASK_S, SILENT)])


def test_signs_of_life_keep_the_step() -> None:
    overdue = LossDetector()
    for second in range(30):
        _, lost = overdue.look(float(second), WAITS)
        assert not lost
        assert overdue.coming(second + 0.1, 7, "b", True, [], 0, WAITS[7]) is None


def test_a_producer_that_does_not_know_the_step_is_no_sign_of_life() -> None:
    overdue = LossDetector()
    lost: list[Lost] = []
    second = 0
    while not lost:
        _, lost = overdue.look(float(second), WAITS)
        assert overdue.coming(second + 0.1, 7, "b", False, [], 0, WAITS[7]) is None
        second += 1
        assert second < 10


def test_what_was_sent_is_lost_when_that_is_said_twice_while_it_is_waited_for() -> None:
    overdue = LossDetector()
    overdue.look(0.0, WAITS)
    overdue.look(1.0, WAITS)
    assert overdue.accounted(1.1, 7, "b", ["2@0"], WAITS[7]) is None
    assert overdue.accounted(2.1, 7, "b", [1], WAITS[7]) is None  # another one: the first has come
    assert overdue.accounted(3.1, 7, "b", ["2@1"], WAITS[7]) is None  # nobody waits for that
    assert overdue.accounted(4.1, 7, "b", [1], WAITS[7]) is None
    assert overdue.accounted(5.1, 7, "b", [1], WAITS[7]) == Lost(7, "b", 5.1, BROKEN)


def still(
    left: Callable[[int], int], waits: AwaitedTensors = WAITS[7], sent: Callable[[int], list[int | str]] = lambda _: [1]
) -> float:
    """When a step ends for which a task says each second that it has sent tensors, which do not come; 0.0: not in a minute."""
    overdue = LossDetector()
    for second in range(60):
        _, lost = overdue.look(float(second), {7: waits})
        assert not lost
        found = overdue.coming(float(second), 7, "b", True, sent(second), left(second), waits)
        if found is not None:
            assert found == Lost(7, "b", float(second), CUT)
            return found.waited_s
    return 0.0


def test_a_way_on_which_nothing_gets_through_ends_the_step_though_the_task_answers() -> None:
    assert STUCK_LINK_S < still(lambda second: 0) <= STUCK_LINK_S + 2 * ASK_S + 1.0
    patient = AwaitedTensors(20.0, WAITS[7].channels)
    assert 20.0 < still(lambda second: 0, patient) <= 20.0 + 2 * ASK_S + 1.0


def test_a_slow_way_on_which_bytes_leave_is_not_cut() -> None:
    assert still(lambda second: second) == 0.0
    assert still(lambda second: second // 4) == 0.0  # not each time that it is asked
    assert 12.0 + STUCK_LINK_S < still(lambda second: min(second, 12)) <= 12.0 + STUCK_LINK_S + 2 * ASK_S + 1.0


def test_what_was_not_sent_is_waited_for_and_each_tensor_has_its_own_time() -> None:
    assert still(lambda second: 0, sent=lambda second: []) == 0.0
    assert still(lambda second: 0, sent=lambda second: ["2@1"]) == 0.0  # nobody waits for that
    assert still(lambda second: 0, sent=lambda second: [1, "2@0"][second // 4 % 2 :][:1]) == 0.0


def test_who_was_stopped_reads_what_came_meanwhile_before_the_way_counts_as_cut() -> None:
    overdue = LossDetector()
    overdue.look(0.0, WAITS)
    assert overdue.coming(1.0, 7, "b", True, [1], 0, WAITS[7]) is None
    assert overdue.coming(100.0, 7, "b", True, [1], 0, WAITS[7]) is None
    assert overdue.coming(101.0, 7, "b", True, [], 0, WAITS[7]) is None  # it has come


def test_answers_about_other_steps_change_nothing() -> None:
    overdue = LossDetector()
    assert overdue.coming(0.0, 1, "b", True, [1], 0, WAITS[7]) is None
    assert overdue.accounted(0.0, 1, "b", [1], WAITS[7]) is None
    overdue.look(0.0, WAITS)
    assert overdue.accounted(0.0, 7, "b", [1], None) is None


def test_iterations_are_in_order() -> None:
    order: list[int | str] = ["7@0@0", "7@0@9", "7@0@10", "7@1@0", "7@10@0"]
    assert sorted(order, key=_moment) == order
    assert _moment(7) == (7,)


def test_a_worker_accounts_for_steps_that_run_have_ended_or_are_not_known() -> None:
    task = "/job:a/replica:0/task:0"
    worker = Worker(task, local_devices(task), push=lambda task, step, values: None)
    assert worker.account(1, [3]) == (False, [])
    worker.register(Registration("p", "s", (), seed=1))
    outcomes: list[object] = []
    worker.start(1, "p", {}, outcomes.append)
    assert outcomes == [{}]
    assert worker.account(1, [3, "4@0"]) == (True, [3, "4@0"])
    worker.abort(2, "told to")  # it has never run here, and never will
    assert worker.account(2, [3]) == (True, [3])
    assert not isinstance(outcomes[0], OpError)
