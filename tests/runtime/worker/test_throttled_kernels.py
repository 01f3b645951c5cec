"""Kernels that are slowed on request: they take their time by the clock, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.ir.program import Call, Loop, Predicated, Program
from dovetail.runtime.transport.fault_injection import link_faults
from dovetail.runtime.worker import throttled_kernels as module
from dovetail.runtime.worker.throttled_kernels import throttled


class Clock:
    """Time as it would pass: kernels work, others hold them up, sleeps may last too long."""

    def __init__(self) -> None:
        self.now = self.worked = self.slept = 0.0
        self.late = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds + self.late
        self.now += seconds + self.late

    def kernel(self, seconds: float, held_up: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds + held_up
            self.worked += seconds

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    fake = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: clock.worked, sleep=clock.sleep)
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setenv("DOVETAIL_FAULTS", "slow:3")
    return clock


def program(*kernels: Callable[..., object]) -> Program:
    calls = [Call(k, (), (), (), f"n{i}", "NoOp", ("", 0)) for i, k in enumerate(kernels)]
    return Program("/job:w/replica:0/task:0/device:CPU:0", tuple(calls), (), (), ())


def run(made: Program) -> None:
    for call in made.instructions:
        assert isinstance(call, Call)
        call.kernel()


def test_a_kernel_takes_its_time_so_often(clock: Clock) -> None:
    run(throttled(program(clock.kernel(2.0))))
    assert clock.now == pytest.approx(6.0) and clock.slept == pytest.approx(4.0)


def test_what_others_held_up_counts_as_part_of_it(clock: Clock) -> None:
    run(throttled(program(clock.kernel(2.0, held_up=3.0))))
    assert clock.now == pytest.approx(6.0) and clock.slept == pytest.approx(1.0)


def test_a_sleep_that_lasted_too_long_is_made_up_for(clock: Clock) -> None:
    clock.late = 1e-3
    run(throttled(program(clock.kernel(2e-3), clock.kernel(2e-3))))
    assert clock.now == pytest.approx(12e-3 + 1e-3)


def test_short_kernels_owe_until_a_sleep_is_worth_it(clock: Clock) -> None:
    run(throttled(program(*[clock.kernel(1e-5)] * 4)))
    assert clock.slept == 0.0
    run(throttled(program(*[clock.kernel(1e-5)] * 60)))
    assert clock.slept == pytest.approx(60 * 2e-5, rel=0.1)


def test_kernels_of_branches_and_loops_are_slowed_too(clock: Clock) -> None:
    (call,) = program(clock.kernel(1.0)).instructions
    assert isinstance(call, Call)
    guarded = Predicated(call, (), -1)
    loop = Loop("while", (), (), (call,), 0, (guarded,), (), (), ())
    made = throttled(Program("/job:w/replica:0/task:0/device:CPU:0", (loop,), (), (), ())).instructions[0]
    assert isinstance(made, Loop) and isinstance(made.body[0], Predicated)
    assert made.head[0] is not call and made.body[0].call is not call


def test_without_the_fault_a_program_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOVETAIL_FAULTS", raising=False)
    made = program(lambda: None)
    assert throttled(made) is made


def test_it_says_nothing_about_links(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", "slow:2")
    assert link_faults() is None


@pytest.mark.parametrize("factor", ["0.5", "nan", "fast"])
def test_a_factor_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, factor: str) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", f"slow:{factor}")
    with pytest.raises(ValueError, match=factor):
        throttled(program(lambda: None))


def test_a_slowed_session_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOVETAIL_FAULTS", "slow:2")
    with dt.Graph().as_default(), dt.Session() as session:
        x = dt.placeholder(dt.float32, [None, 8])
        y = dt.reduce_sum(dt.nn.relu(dt.matmul(x, dt.ones([8, 8]))))
        assert session.run(y, {x: np.ones((4, 8), np.float32)}) == 256.0
