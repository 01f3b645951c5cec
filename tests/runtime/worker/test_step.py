"""Steps without processes: programs written by hand, events given in every order."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from shells import Notebook

import dovetail as dt
from dovetail.codegen.ir.partition import Posted, RecvTensor
from dovetail.codegen.ir.program import Call, Program, Recv, Send
from dovetail.graph.core.errors import CancelledError, InvalidArgumentError, OpError, UnknownError
from dovetail.placer.cluster.spec import local_devices
from dovetail.runtime.worker.executor import Executor
from dovetail.runtime.worker.step import TaskStep
from dovetail.runtime.worker.worker import Worker

A, B, FAR = (
    "/job:a/replica:0/task:0/device:CPU:0",
    "/job:a/replica:0/task:0/device:CPU:1",
    "/job:b/replica:0/task:0/device:CPU:0",
)


def call(kernel: Any, inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = ()) -> Call:
    return Call(None, inputs, outputs, frees, "node", "Op", ("program.py", 7), kernel=kernel)


class Harness:
    """A step whose executions are run in the order that a schedule says."""

    def __init__(self, *programs: Program, feeds: Mapping[str, Any] | None = None) -> None:
        shell = Notebook()
        self.pushed, self.ready, self.outcomes = shell.pushed, shell.ready, shell.outcomes
        self.step = TaskStep(1, "session", programs, feeds or {}, shell)

    def drain(self, pick: int = 0) -> None:
        while self.ready:
            self.ready.pop(pick).run()

    @property
    def outcome(self) -> Mapping[str, Any] | OpError:
        assert len(self.outcomes) == 1
        return self.outcomes[0]


def two_devices() -> tuple[Program, Program]:
    """A sends x to B, which sends 2x back; A gives 2x + 1."""
    a = Program(
        A,
        (Send(0, 0, B, ()), Recv(1, 1, B), call(lambda y: y + 1, (1,), (2,), (1,))),
        (None, None, None),
        (("x:0", 0),),
        (("z:0", 2),),
    )
    b = Program(B, (Recv(0, 0, A), call(lambda x: 2 * x, (0,), (1,)), Send(1, 1, A, (0, 1))), (None, None), (), ())
    return a, b


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("pick", [0, -1])
def test_two_devices_of_one_task_pass_tensors_whichever_starts_first(order: int, pick: int) -> None:
    programs = two_devices()
    h = Harness(*(programs if order == 0 else programs[::-1]), feeds={"x:0": np.float32(3)})
    h.step.start()
    h.drain(pick)
    assert h.outcome == {"z:0": 7}
    assert not h.pushed


def test_a_step_that_has_ended_leaves_nothing_to_the_cycle_collector() -> None:
    h = Harness(*two_devices(), feeds={"x:0": np.float32(3)})
    gone = weakref.ref(h.step)
    gc.disable()
    try:
        h.step.start()
        h.drain()
        del h.step
        assert gone() is None
    finally:
        gc.enable()


def far_sum(arrivals: int) -> Program:
    steps: list[Any] = [Recv(c, c, FAR) for c in range(arrivals)]
    steps.append(call(lambda *xs: sum(xs), tuple(range(arrivals)), (arrivals,)))
    return Program(A, tuple(steps), (None,) * (arrivals + 1), (), (("sum:0", arrivals),))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("start_after", range(4))
def test_tensors_may_arrive_in_any_order_before_and_after_the_start(order: tuple[int, ...], start_after: int) -> None:
    h = Harness(far_sum(3))
    for i, channel in enumerate(order):
        if i == start_after:
            h.step.start()
            h.drain()
        h.step.deliver({channel: 10**channel})
        h.drain()
    if start_after == 3:
        h.step.start()
        h.drain()
    assert h.outcome == {"sum:0": 111}


def test_a_tensor_for_another_task_is_pushed_at_once() -> None:
    ran: list[str] = []
    program = Program(A, (Send(4, 0, FAR, (0,)), call(lambda: ran.append("later"), (), ())), (np.ones(2),), (), ())
    h = Harness(program)
    h.step.start()
    h.ready.pop().run()
    ((destination, channel, value),) = h.pushed
    assert (destination, channel, value.tolist(), ran) == (FAR, 4, [1, 1], ["later"])


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("bad"), InvalidArgumentError),
        (IndexError("bad"), InvalidArgumentError),
        (RuntimeError("bad"), UnknownError),
    ],
)
def test_a_failing_kernel_ends_the_step_with_node_line_and_device(raised: Exception, expected: type[OpError]) -> None:
    def fail() -> None:
        raise raised

    h = Harness(Program(A, (call(fail, (), ()),), (), (), ()), two_devices()[1])
    h.step.start()
    h.drain()
    assert isinstance(h.outcome, expected)
    for part in ("bad", "'node'", "program.py:7", A):
        assert part in str(h.outcome)
    h.step.deliver({0: 1})  # a late tensor changes nothing
    assert len(h.outcomes) == 1 and not h.ready


def test_an_aborted_step_stops_between_instructions_and_finishes_once() -> None:
    ran: list[int] = []
    steps = (
        call(lambda: ran.append(1), (), ()),
        call(lambda: h.step.fail(CancelledError.of("stop")), (), ()),
        call(lambda: ran.append(2), (), ()),
    )
    h = Harness(Program(A, steps, (), (), ()))
    h.step.start()
    h.drain()
    assert isinstance(h.outcome, CancelledError) and ran == [1]


def test_what_a_step_waits_for_is_said() -> None:
    h = Harness(far_sum(1))
    h.step.start()
    h.drain()
    assert h.step.waits_for() == [f"{A} waits for channel 0 from {FAR}"]


def test_freed_slots_let_go_of_their_tensors() -> None:
    seen: list[Any] = []
    execution: list[Executor] = []
    steps = (
        call(lambda: np.ones(4), (), (0,)),
        call(lambda x: x.sum(), (0,), (1,), (0,)),
        call(lambda: seen.append(execution[0].slots[0]), (), ()),
    )
    h = Harness(Program(A, steps, (None, None), (), (("s:0", 1),)))
    h.step.start()
    execution.append(h.ready[0])
    h.drain()
    assert seen == [None]


def test_deliveries_from_many_threads_wake_the_program_once_each() -> None:
    count = 200
    h = Harness(far_sum(count))
    h.step.start()
    h.drain()
    threads = [threading.Thread(target=h.step.deliver, args=({c: 1},)) for c in range(count)]
    for t in threads:
        t.start()
    while not h.outcomes:
        h.drain()
    for t in threads:
        t.join()
    assert h.outcome == {"sum:0": count}


def test_a_request_for_a_variable_is_forgotten_with_its_step() -> None:
    """Also one that is repeated, or made, when the step has ended meanwhile in another thread."""
    task, asked = A.partition("/device:")[0], []
    worker = Worker(task, local_devices(task, {}), ask=lambda *request: asked.append(request[2]))
    with dt.Graph().as_default():
        posted = Posted((1, 2, 3, 4, 5), 7, "", "v", "v", "VariableV2", "program.py:7")
        receive = RecvTensor(3, dt.constant(1.0), FAR, None, posted)
    known = sys.getrefcount(receive)
    worker.want(5, "session", [receive])
    assert asked == [5]
    assert sys.getrefcount(receive) == known
    worker.close()
