"""Tasks of a cluster that are slower than this machine: `python bench/_slow_tasks.py MS` serves one with slow registrations.

`slow_kernels` slows the kernels of this process down by a factor, for clusters with unequal devices. A kernel that uses the processor
for 3 ms then takes 3 ms times the factor of wall-clock time. It sleeps for the rest, so two tasks that are slowed by a factor of 2 can
share a core, and each runs as if it had half a core. The time for which a kernel waits for a core counts as part of this time, as long
as the factor allows. `slow_registrations` makes each registration of a task's part of a signature take so many milliseconds longer.
"""

import dataclasses
import sys
import time
from typing import Any

from dovetail.codegen.ir.program import Call, Instruction, Kernel, Loop, Predicated, Program
from dovetail.runtime.server.process import main
from dovetail.runtime.worker import worker

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


def slowed(program: Program, factor: float) -> Program:
    """The program with kernels that take so many times as long."""
    pace = _Pace(factor)
    return dataclasses.replace(program, instructions=tuple(map(pace.instruction, program.instructions)))


def slow_kernels(factor: float) -> None:
    """Slow down the programs that this process compiles from now on."""
    compile_partition = worker.compile_partition
    worker.compile_partition = lambda *what: slowed(compile_partition(*what), factor)


def slow_registrations(milliseconds: float) -> None:
    """Slow down the registrations of this process from now on."""
    register = worker.Worker.register

    def slow(self: Any, new: Any) -> dict[str, Any]:
        registered = register(self, new)
        time.sleep(milliseconds / 1e3)
        return registered

    worker.Worker.register = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_registrations(float(sys.argv.pop()))
    main()
