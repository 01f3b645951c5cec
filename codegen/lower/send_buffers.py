"""Results that are sent to another task, written at once where that can read them.

A kernel takes memory for its result from `buffers`. If the result is sent to a process of this machine, it would then be copied into
memory that both can read. So a call whose result a program sends runs with `buffers` asking for such memory first.

What was written there is read-only from then on: a receiver may keep it, and whoever fetches it, too, gets a copy of his own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.resources.buffer_pool import sending
from ...graph.resources.shared_storage import is_shared
from ..cpu.tiering import WarmingKernel
from ..ir.program import Call, Instruction, Kernel, Loop, Predicated, Program


def use_send_buffers(program: Program) -> Program:
    """The program with kernels that write what is sent where others can read it."""
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
    if not isinstance(call.kernel, WarmingKernel) or not any(i in sent for i in call.outputs):
        return call
    return replace(call, kernel=SendBufferKernel(call.kernel))


class SendBufferKernel:
    """A kernel whose results are sent."""

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
