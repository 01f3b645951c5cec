"""Fault injection: kernels that are slower than they are (the fault `slow:FACTOR`), for tests of clusters with unequal devices.

A kernel that keeps the processor busy for 3 ms then takes 3 ms times the factor, by the clock. It sleeps for the rest, so it needs a
core only for its share: two tasks that are slowed twofold can share a core, and each runs as if it had half of one for itself. Time
for which a kernel waited for a core counts as part of its time, as long as the factor allows.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ...codegen.ir.program import Call, Instruction, Kernel, Loop, Predicated, Program
from ...graph.core.fault_injection import faults

LEAST_S = 1e-4  # a shorter sleep lasts longer than it should: what is owed adds up first
CREDIT_S = 2e-3  # what slept or waited too long makes up for later, at most


class _Pace:
    """How far one program is ahead of the processor that it should have."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.owed = 0.0

    def slowed(self, kernel: Kernel) -> Kernel:
        """The kernel, taking its time. Of one that works in several threads the caller's counts."""

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
        """The instruction with its kernels slowed."""
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
    """The program at the pace that `slow` of DOVETAIL_FAULTS asks for; itself, as everywhere but in tests: nothing asks.

    Raises:
        ValueError: the factor is no number, or less than 1.
    """
    text = faults().get("slow")
    if text is None:
        return program
    factor = float(text)
    if not factor >= 1:
        raise ValueError(f"DOVETAIL_FAULTS has slow:{text}; the factor must be 1 or more")
    pace = _Pace(factor)
    return dataclasses.replace(program, instructions=tuple(map(pace.instruction, program.instructions)))
