"""Kernels that are slowed on request: they take their time by the clock, and nothing else changes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dovetail as dt
from dovetail.codegen.ir.program import Call, Loop, Predicated, Program
from dovetail.runtime.worker import worker

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(autouse=True)
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """bench/_slow_tasks.py; its folder is on the path only while it loads."""
    monkeypatch.syspath_prepend(str(BENCH))
    import _slow_tasks

    yield _slow_tasks
    sys.modules.pop("_slow_tasks", None)


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
def clock(monkeypatch: pytest.MonkeyPatch, bench: ModuleType) -> Clock:
    clock = Clock()
    fake = SimpleNamespace(perf_counter=lambda: clock.now, thread_time=lambda: clock.worked, sleep=clock.sleep)
    monkeypatch.setattr(bench, "time", fake)
    return clock


def program(*kernels: Callable[..., object]) -> Program:
    calls = [Call(None, (), (), (), f"n{i}", "NoOp", ("", 0), kernel=k) for i, k in enumerate(kernels)]
    return Program("/job:w/replica:0/task:0/device:CPU:0", tuple(calls), (), (), ())


def run(made: Program) -> None:
    for call in sys.modules["_slow_tasks"].slowed(made, 3.0).instructions:
        assert isinstance(call, Call)
        call.kernel()


def test_a_kernel_takes_its_time_so_often(clock: Clock) -> None:
    run(program(clock.kernel(2.0)))
    assert clock.now == pytest.approx(6.0) and clock.slept == pytest.approx(4.0)


def test_what_others_held_up_counts_as_part_of_it(clock: Clock) -> None:
    run(program(clock.kernel(2.0, held_up=3.0)))
    assert clock.now == pytest.approx(6.0) and clock.slept == pytest.approx(1.0)


def test_a_sleep_that_lasted_too_long_is_made_up_for(clock: Clock) -> None:
    clock.late = 1e-3
    run(program(clock.kernel(2e-3), clock.kernel(2e-3)))
    assert clock.now == pytest.approx(12e-3 + 1e-3)


def test_short_kernels_owe_until_a_sleep_is_worth_it(clock: Clock) -> None:
    run(program(*[clock.kernel(1e-5)] * 4))
    assert clock.slept == 0.0
    run(program(*[clock.kernel(1e-5)] * 60))
    assert clock.slept == pytest.approx(60 * 2e-5, rel=0.1)


def test_kernels_of_branches_and_loops_are_slowed_too(bench: ModuleType, clock: Clock) -> None:
    (call,) = program(clock.kernel(1.0)).instructions
    assert isinstance(call, Call)
    predicated = Predicated(call, (), -1)
    loop = Loop("while", (), (), (call,), 0, (predicated,), (), (), ())
    made = bench.slowed(Program("/job:w/replica:0/task:0/device:CPU:0", (loop,), (), (), ()), 3.0).instructions[0]
    assert isinstance(made, Loop) and isinstance(made.body[0], Predicated)
    assert made.head[0] is not call and made.body[0].call is not call


def test_a_slowed_session_computes_the_same(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "compile_partition", worker.compile_partition)
    monkeypatch.setattr(worker.Worker, "register", worker.Worker.register)
    bench.slow_kernels(2.0)
    bench.slow_registrations(1.0)
    with dt.Graph().as_default(), dt.Session() as session:
        x = dt.placeholder(dt.float32, [None, 8])
        y = dt.reduce_sum(dt.nn.relu(dt.matmul(x, dt.ones([8, 8]))))
        assert session.run(y, {x: np.ones((4, 8), np.float32)}) == 256.0
