"""What runs beside a program, without processes: its end, its answers and the step's end come in every order, at every point.

Whatever the order, the step ends once; an element is either used by a step that ends well, or is still there; and a step that was
ended leaves no request behind.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from moments import DEVICE, POINTS, Machine, in_between, in_every_order, put, queue

from dovetail.codegen.ir.program import Await, Begin, Call, Program
from dovetail.graph.core.errors import CancelledError, OpError, OutOfRangeError
from dovetail.graph.resources.queue import Queue
from dovetail.runtime.observability.step_notes import Recorder

ORIGIN = ("program.py", 7)


class Beside(Machine):
    """A step that begins to take an element, makes 1 meanwhile, and fetches the sum."""

    def __init__(self, kernel: Callable[..., Any], recorder: Recorder | None = None) -> None:
        self.made_meanwhile = False

        def one() -> Any:
            self.made_meanwhile = True
            return np.int32(1)

        given = Call(None, (), (4,), (), "given", "Zeros", ORIGIN, kernel=lambda: np.zeros(4))
        begin = Begin(Call(None, (4,), (0,), (4,), "take", "CollectiveReduce", ORIGIN, kernel=kernel), (), -1)
        other = Call(None, (), (2,), (), "one", "Const", ORIGIN, kernel=one)
        wait = Await(Call(None, (0,), (1,), (0,), "take", "CollectiveReduce", ORIGIN, kernel=lambda: ()), (), -1)
        add = Call(None, (1, 2), (3,), (1, 2), "add", "Add", ORIGIN, kernel=lambda x, y: x + y)
        program = Program(DEVICE, (given, begin, other, wait, add), (None,) * 5, (), (("y:0", 3),))
        super().__init__(program, recorder)


def check(beside: Beside, q: Queue) -> None:
    """The promise, once an element has been put in and everything has settled."""
    outcome = beside.ended()
    if isinstance(outcome, OpError):
        assert isinstance(outcome, CancelledError)
        assert len(q) <= 1  # an answer that was taken when the step ended is lost with it
    else:
        assert outcome == {"y:0": 8}
        assert len(q) == 0
    assert not list(q._waiting())
    assert not beside.step._ready_kernels and not beside.step._requests


def test_in_every_order_of_start_put_run_and_abort() -> None:
    outcomes = in_every_order(["start", "put", "run", "run again", "aside", "abort"], Beside, check)
    assert outcomes == {dict, CancelledError}


@pytest.mark.parametrize("aside_first", [False, True], ids=["by the program", "by another thread"])
@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("events", [("put",), ("abort",), ("put", "abort"), ("abort", "put")], ids="-".join)
def test_events_that_come_between(
    at: str, events: tuple[str, ...], aside_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread does these just there."""
    in_between(at, events, Beside, check, monkeypatch, aside_first=aside_first)


def test_the_program_goes_on_meanwhile_and_takes_the_result_where_it_needs_it() -> None:
    q = queue()
    beside = Beside(lambda x: q.dequeue())
    beside.step.start()
    beside.go()
    assert beside.made_meanwhile and not beside.outcomes
    assert beside.step.may_go_on
    assert beside.step.waits_for() == [f"{DEVICE} waits for 1 element of FIFOQueue 'q'"]
    put(q)
    # The program itself goes on with it; the thread that was asked finds nothing.
    assert beside.ready and len(beside.offload) == 1
    beside.settle()
    assert beside.ended() == {"y:0": 8}


def test_a_settled_request_is_gone_on_with_before_the_program_waits() -> None:
    q = queue()
    beside = Beside(lambda x: q.dequeue())
    beside.step.begin(beside.step._executors[0].program.instructions[1].call, [None], DEVICE)
    beside.go_aside()
    assert not beside.offload
    put(q)
    beside.go_aside()
    assert len(q) == 0 and not beside.step._ready_kernels and not beside.step._requests
    beside.step.fail(CancelledError.of("the end of the test"))


def test_a_program_that_awaits_a_kernel_of_another_thread_may_go_on() -> None:
    """Nothing else says so: the kernel runs, and waits for nobody."""
    seen = []

    def kernel(x: Any) -> Any:
        main.run()  # it comes to its Await meanwhile
        seen.append(beside.step.may_go_on)
        return np.int32(7)

    beside = Beside(kernel)
    (main,) = beside.step._executors
    begin = main.program.instructions[1]
    main.slots[0], main.counter = beside.step.begin(begin.call, [None], DEVICE), 2
    beside.go_aside()
    assert seen == [True]
    beside.settle()
    assert beside.ended() == {"y:0": 8}


def test_an_error_fails_the_step_at_once_and_names_the_node() -> None:
    def refuse(x: Any) -> Any:
        raise OutOfRangeError(None, None, "there is no more")

    beside = Beside(refuse)
    beside.step.start()
    beside.ready.clear()  # the program is elsewhere
    beside.step.begin(beside.step._executors[0].program.instructions[1].call, [None], DEVICE)
    beside.go_aside()
    outcome = beside.ended()
    assert isinstance(outcome, OutOfRangeError)
    assert "node 'take' (CollectiveReduce), created at program.py:7" in str(outcome)


@pytest.mark.parametrize("aside_first", [False, True])
def test_an_error_that_the_program_meets(aside_first: bool) -> None:
    q = queue()
    beside = Beside(lambda x: q.dequeue())
    beside.step.start()
    beside.go()
    q.close()
    if aside_first:
        beside.go_aside()
    beside.settle()
    assert isinstance(beside.ended(), OutOfRangeError)
    assert not beside.step._ready_kernels and not beside.step._requests


def test_inputs_are_let_go_of_when_the_kernel_has_taken_them() -> None:
    class Given:
        alive = 0

        def __init__(self) -> None:
            Given.alive += 1

        def __del__(self) -> None:
            Given.alive -= 1

    q = queue()
    beside = Beside(lambda x: q.dequeue())
    beside.step.begin(beside.step._executors[0].program.instructions[1].call, [Given()], DEVICE)
    assert Given.alive == 1
    beside.go_aside()
    assert Given.alive == 0
    beside.step.fail(CancelledError.of("the end of the test"))
    assert not list(q._waiting())


def test_a_trace_has_its_whole_run_and_what_the_program_waited() -> None:
    q = queue()
    recorder = Recorder()
    beside = Beside(lambda x: q.dequeue(), recorder)
    beside.step.start()
    beside.go()
    put(q)
    beside.settle()
    notes = recorder.finished()
    spans = {notes.calls[k.call].node: k for k in notes.kernels}
    assert spans["take"].start <= spans["one"].start <= spans["one"].finish <= spans["take"].finish
    assert spans["take"].thread != spans["one"].thread
    (wait,) = notes.waits
    assert wait.what == "CollectiveReduce 'take'" and wait.start >= spans["one"].finish


def test_programs_as_text() -> None:
    begin = Begin(Call(None, (4,), (0,), (4,), "g", "CollectiveReduce", ORIGIN, kernel=lambda x: x), (), -1)
    wait = Await(Call(None, (0,), (1,), (0,), "g", "CollectiveReduce", ORIGIN, kernel=lambda: ()), (), -1)
    text = str(Program(DEVICE, (begin, wait), (None,) * 5, (), ()))
    assert "  begin s0 = CollectiveReduce(s4)  # g  free s4\n" in text
    assert text.endswith("  await s1 = CollectiveReduce(s0)  # g  free s0")
