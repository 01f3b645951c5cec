"""Zero-copy sends: a kernel writes a result for another task directly into a shared-memory send buffer.

Without this pass a kernel takes the memory of its result from the buffer pool, and sending copies it into memory that both processes
can read. Here such a kernel runs with the pool's `sending` set, so that it gets memory of the second kind at once.

A result in a send buffer is read-only: the receiver may keep it. A client that fetches it gets a copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.resources.buffer_pool import sending
from ...graph.resources.shared_storage import is_shared
from ..ir.program import Call, Instruction, Kernel, Loop, PooledKernel, Predicated, Program


def use_send_buffers(program: Program) -> Program:
    """The program in which kernels write their results into send buffers where these are sent."""
    if not program.sent:
        return program
    return replace(program, instructions=tuple(_placed(program.instructions, program.sent)))


def _placed(instructions: Iterable[Instruction], sent: Collection[int]) -> Iterable[Instruction]:
    for step in instructions:
        if isinstance(step, Loop):
            yield replace(step, head=tuple(_placed(step.head, sent)), body=tuple(_placed(step.body, sent)))
        elif isinstance(step, Call):
            yield _call(step, sent)
        elif isinstance(step, Predicated):
            yield replace(step, call=_call(step.call, sent))
        else:
            yield step


def _call(call: Call, sent: Collection[int]) -> Call:
    if not isinstance(call.kernel, PooledKernel) or not any(i in sent for i in call.outputs):
        return call
    return replace(call, kernel=SendBufferKernel(call.kernel))


class SendBufferKernel:
    """Runs a kernel with `sending` set, and makes those of its results read-only that lie in send buffers."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __call__(self, *inputs: Any) -> Any:
        sending.on = True
        try:
            result = self.kernel(*inputs)
        finally:
            sending.on = False
        for made in result if isinstance(result, tuple) else (result,):
            if isinstance(made, np.ndarray) and is_shared(made):
                made.flags.writeable = False
        return result


__all__ = ["SendBufferKernel", "use_send_buffers"]
