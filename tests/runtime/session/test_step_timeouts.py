"""A step that waits for another, without processes: its end and its answer come in every order, at every point.

An element is either used by the step, which then ends well, or back in the queue; and the step ends once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from moments import DEVICE, POINTS, Machine, in_between, in_every_order, put, queue

from dovetail.codegen.ir.program import Call, Program, Wait
from dovetail.graph.core.errors import CancelledError, OpError, OutOfRangeError
from dovetail.graph.resources.queue import Queue


class Waits(Machine):
    """A step that takes an element and fetches it, plus 1."""

    def __init__(self, kernel: Callable[..., Any]) -> None:
        take = Call(None, (), (0,), (), "take", "QueueDequeueV2", ("program.py", 7), kernel=kernel)
        add = Call(None, (0,), (1,), (0,), "add", "Add", ("program.py", 8), kernel=lambda x: x + 1)
        super().__init__(Program(DEVICE, (Wait(take, (), -1), add), (None, None), (), (("y:0", 1),)))


def check(waits: Waits, q: Queue) -> None:
    """The promise, once an element has been put in and everything has settled."""
    outcome = waits.ended()
    if isinstance(outcome, OpError):
        assert isinstance(outcome, CancelledError) and len(q) == 1
    else:
        assert outcome == {"y:0": 8} and len(q) == 0
    assert not list(q._waiting())


def test_in_every_order_of_start_put_run_and_abort() -> None:
    assert in_every_order(["start", "put", "run", "run again", "abort"], Waits, check) == {dict, CancelledError}


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("events", [("put",), ("abort",), ("put", "abort"), ("abort", "put")], ids="-".join)
def test_events_that_come_between(at: str, events: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread does these just there."""
    in_between(at, events, Waits, check, monkeypatch)


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
    assert "node 'take' (QueueDequeueV2), created at program.py:7" in str(outcome)


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
