"""A step that waits for another, without processes: its end and its answer come in every order, at every point.

An element is either used by the step, which then ends well, or back in the queue; and the step ends once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from shells import Notebook

from dovetail.codegen.program import Call, Program, Wait
from dovetail.graph.dtypes import as_dtype
from dovetail.graph.errors import CancelledError, OpError, OutOfRangeError
from dovetail.graph.queues import Queue, QueueKind
from dovetail.graph.requests import Request
from dovetail.runtime.step import TaskStep

DEVICE = "/job:a/replica:0/task:0/device:CPU:0"
INT = as_dtype("int32")


def queue() -> Queue:
    return Queue("q", QueueKind("FIFOQueueV2", 3, (INT,), ((),)))


def put(q: Queue, value: int = 7) -> None:
    q.enqueue([[np.asarray(value, np.int32)]])


class Waits:
    """A step that takes an element and fetches it, plus 1."""

    def __init__(self, kernel: Callable[[], Any]) -> None:
        take = Call(kernel, (), (0,), (), "take", "QueueDequeueV2", ("program.py", 7))
        add = Call(lambda x: x + 1, (0,), (1,), (0,), "add", "Add", ("program.py", 8))
        program = Program(DEVICE, (Wait(take, (), -1), add), (None, None), (), (("y:0", 1),))
        shell = Notebook()
        self.ready, self.outcomes = shell.ready, shell.outcomes
        self.step = TaskStep(1, "session", [program], {}, shell)

    def go(self) -> None:
        while self.ready:
            self.ready.pop(0).run()

    def ended(self) -> Any:
        (outcome,) = self.outcomes
        return outcome


def check(waits: Waits, q: Queue) -> None:
    """The promise, once an element has been put in and everything has settled."""
    outcome = waits.ended()
    if isinstance(outcome, OpError):
        assert isinstance(outcome, CancelledError) and len(q) == 1
    else:
        assert outcome == {"y:0": 8} and len(q) == 0
    assert not list(q._waiting())


def test_in_every_order_of_start_put_run_and_abort() -> None:
    outcomes = set()
    for order in itertools.permutations(["start", "put", "run", "run again", "abort"]):
        q = queue()
        waits = Waits(q.dequeue)
        for event in order:
            if event == "start":
                waits.step.start()
            elif event == "put":
                put(q)
            elif event == "abort":
                waits.step.abort("told to")
            else:
                waits.go()
        waits.go()
        check(waits, q)
        outcomes.add(type(waits.ended()))
    assert outcomes == {dict, CancelledError}


POINTS = ("in the kernel", "before it leaves word", "after it left word", "before it goes on")


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("events", [("put",), ("abort",), ("put", "abort"), ("abort", "put")], ids="-".join)
def test_events_that_come_between(at: str, events: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread does these just there."""
    q = queue()

    def happen(now: str) -> None:
        if now == at:
            for event in events:
                if event == "put":
                    put(q)
                else:
                    waits.step.abort("told to")

    def kernel() -> Any:
        request = q.dequeue()
        happen("in the kernel")
        return request

    leave_word = Request.when_settled

    def when_settled(request: Request, tell: Callable[[], None]) -> bool:
        happen("before it leaves word")
        left = leave_word(request, tell)
        happen("after it left word")
        return left

    monkeypatch.setattr(Request, "when_settled", when_settled)
    waits = Waits(kernel)
    waits.step.start()
    waits.go()
    happen("before it goes on")
    waits.go()
    if "put" not in events:
        put(q)
        waits.go()
    if not waits.outcomes:
        waits.step.abort("the end of the test")
    check(waits, q)


def test_a_refusal_is_the_steps_error_and_names_the_node() -> None:
    q = queue()
    waits = Waits(q.dequeue)
    waits.step.start()
    waits.go()
    assert waits.step.waits_for() == [f"{DEVICE} waits for 1 element of FIFOQueue 'q'"]
    q.close()
    waits.go()
    outcome = waits.ended()
    assert isinstance(outcome, OutOfRangeError)
    assert "node 'take' (QueueDequeueV2), made at program.py:7" in str(outcome)


def test_two_steps_pass_an_element_on() -> None:
    first, second = queue(), queue()

    def relay(x: Any = None) -> Any:
        second.enqueue([[np.asarray(1, np.int32)]])
        return first.dequeue()

    a, b = Waits(relay), Waits(second.dequeue)
    b.step.start()
    b.go()
    a.step.start()
    a.go()
    assert b.ready  # a's kernel has made it ready, though a waits itself
    b.go()
    assert b.ended() == {"y:0": 2} and not a.outcomes
    put(first)
    a.go()
    assert a.ended() == {"y:0": 8}
