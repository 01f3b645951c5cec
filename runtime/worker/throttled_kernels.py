"""Fault injection: slows kernels down by a factor (`slow:FACTOR`), for tests of clusters with unequal devices, and delays registrations.

A kernel that uses the processor for 3 ms then takes 3 ms times the factor of wall-clock time. It sleeps for the rest, so two tasks that
are slowed by a factor of 2 can share a core, and each runs as if it had half a core. The time for which a kernel waits for a core counts
as part of this time, as long as the factor allows.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ...codegen.ir.program import Call, Instruction, Kernel, Loop, Predicated, Program
from ...graph.core.fault_injection import faults

LEAST_S = 1e-4  # a shorter sleep is inaccurate, so shorter delays are accumulated first
CREDIT_S = 2e-3  # at most this much time slept or waited in excess is subtracted from later delays


class _Pace:
    """How far one program is ahead of the slowed processor."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.owed = 0.0

    def slowed(self, kernel: Kernel) -> Kernel:
        """The kernel, slowed. For a kernel with several threads, the caller's thread counts."""

        def run(*inputs: Any) -> Any:
            began, worked = time.perf_counter(), time.thread_time()
            result = kernel(*inputs)
            self.owed += (time.thread_time() - worked) * self.factor - (time.perf_counter() - began)
            if self.owed > LEAST_S:
                began = time.perf_counter()
                time.sleep(self.owed)
                self.owed -= time.perf_counter() - began
            self.owed = max(self.owed, -CREDIT_S)
            return result

        return run

    def instruction(self, now: Instruction) -> Instruction:
        if isinstance(now, Call):
            return dataclasses.replace(now, kernel=self.slowed(now.kernel))
        if isinstance(now, Predicated):  # a Wait, too
            call = self.instruction(now.call)
            assert isinstance(call, Call)
            return dataclasses.replace(now, call=call)
        if isinstance(now, Loop):
            head, body = (tuple(map(self.instruction, part)) for part in (now.head, now.body))
            return dataclasses.replace(now, head=head, body=body)
        return now


def throttled(program: Program) -> Program:
    """The program slowed by the factor of `slow` in DOVETAIL_FAULTS; the program itself if that is not set.

    Raises:
        ValueError: the factor is not a number, or is less than 1.
    """
    text = faults().get("slow")
    if text is None:
        return program
    factor = float(text)
    if not factor >= 1:
        raise ValueError(f"DOVETAIL_FAULTS has slow:{text}; the factor must be 1 or more")
    pace = _Pace(factor)
    return dataclasses.replace(program, instructions=tuple(map(pace.instruction, program.instructions)))


def delay_registration() -> None:
    """Wait for the milliseconds of `register` in DOVETAIL_FAULTS."""
    time.sleep(float(faults().get("register", 0)) / 1e3)
