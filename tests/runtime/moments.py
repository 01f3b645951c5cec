"""One step that takes an element of a queue, and all that can happen to it, at every moment: in every order, and in between.

A `Machine` is such a step with the shell around it. What makes it waits in its own way; the events, and the moments at which
another thread could have them happen, are the same for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
from shells import Notebook

from dovetail.codegen.ir.program import Program
from dovetail.graph.core.dtypes import as_dtype
from dovetail.graph.core.errors import CancelledError
from dovetail.graph.resources.async_request import Request
from dovetail.graph.resources.queue import Queue, QueueKind
from dovetail.runtime.observability.step_notes import Recorder
from dovetail.runtime.worker.step import TaskStep, TracedStep

DEVICE = "/job:a/replica:0/task:0/device:CPU:0"
POINTS = ("in the kernel", "before it leaves word", "after it left word", "before it goes on")
INT = as_dtype("int32")


def queue() -> Queue:
    """An empty one."""
    return Queue("q", QueueKind("FIFOQueueV2", 3, (INT,), ((),)))


def put(q: Queue, value: int = 7) -> None:
    """Put an element in."""
    q.enqueue([[np.asarray(value, np.int32)]])


class Machine:
    """A step of one program, and what has been left for others to do."""

    def __init__(self, program: Program, recorder: Recorder | None = None) -> None:
        shell = Notebook()
        self.ready, self.offload, self.outcomes = shell.ready, shell.offloaded, shell.outcomes
        arguments = 1, "session", [program], {}, shell
        self.step = TaskStep(*arguments) if recorder is None else TracedStep(recorder, *arguments)

    def go(self) -> None:
        """Run what can go on."""
        while self.ready:
            self.ready.pop(0).run()

    def go_aside(self) -> None:
        """Do what was put aside for another thread."""
        while self.offload:
            self.offload.pop(0)()

    def settle(self) -> None:
        """Both, until nothing is left."""
        while self.ready or self.offload:
            self.go()
            self.go_aside()

    def ended(self) -> Any:
        """How the step has ended; that was once."""
        (outcome,) = self.outcomes
        return outcome

    def happens(self, event: str, q: Queue) -> None:
        """An event."""
        if event == "start":
            self.step.start()
        elif event == "put":
            put(q)
        elif event == "abort":
            self.step.fail(CancelledError.of("told to"))
        elif event == "aside":
            self.go_aside()
        else:
            self.go()


M = TypeVar("M", bound=Machine)
Make = Callable[[Callable[..., Any]], M]
"""Makes a machine whose step takes its element by this kernel."""
Check = Callable[[M, Queue], None]
"""The promise, once an element has been put in and everything has settled."""


def in_every_order(events: Sequence[str], make: Make[M], check: Check[M]) -> set[type]:
    """Play the events in every order; what kinds of outcomes there were."""
    outcomes = set()
    for order in itertools.permutations(events):
        q = queue()
        machine = make(lambda *_, q=q: q.dequeue())  # type: ignore[misc]
        for event in order:
            machine.happens(event, q)
        machine.settle()
        check(machine, q)
        outcomes.add(type(machine.ended()))
    return outcomes


def in_between(
    at: str,
    events: Sequence[str],
    make: Make[M],
    check: Check[M],
    patch: pytest.MonkeyPatch,
    *,
    aside_first: bool = False,
) -> None:
    """Play a step during which another thread has the events happen at one of `POINTS`.

    With `aside_first`, what is begun beside the program runs before that comes to its end.
    """
    q = queue()

    def happen(now: str) -> None:
        if now == at:
            for event in events:
                machine.happens(event, q)

    def kernel(*_: Any) -> Any:
        request = q.dequeue()
        happen("in the kernel")
        return request

    leave_word = Request.when_settled

    def when_settled(request: Request, tell: Callable[[], None]) -> bool:
        happen("before it leaves word")
        left = leave_word(request, tell)
        happen("after it left word")
        return left

    patch.setattr(Request, "when_settled", when_settled)
    machine = make(kernel)
    machine.step.start()
    if aside_first:
        start = TaskStep.begin

        def begin(*args: Any) -> Any:
            begun = start(*args)
            machine.go_aside()
            return begun

        patch.setattr(TaskStep, "begin", begin)
    machine.go()
    happen("before it goes on")
    machine.settle()
    if "put" not in events:
        put(q)
        machine.settle()
    if not machine.outcomes:
        machine.step.fail(CancelledError.of("the end of the test"))
    check(machine, q)
