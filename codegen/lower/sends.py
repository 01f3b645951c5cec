"""Sends to other tasks: kernels that write results directly into shared-memory send buffers, and which send is the last before a pause.

A kernel takes the memory of its result from the buffer pool, and sending copies it into memory that both processes can read. With
`use_send_buffers` such a kernel runs with the pool's `sending` set, so that it gets memory of the second kind at once. A result in a
send buffer is read-only: the receiver may keep it. A client that fetches it gets a copy.

The worker may send several tensors for one task together (`runtime/worker/step_scheduler.py`). `find_last_sends` tells it after which
send no other one follows before the program may pause, so that it sends at once what it has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...graph.core.opdef import Trait, registered
from ...graph.resources.buffer_pool import sending
from ...graph.resources.shared_storage import is_shared
from ..ir.program import Await, Call, Instruction, Kernel, Loop, PooledKernel, Predicated, Program, Recv, Send, Wait


def use_send_buffers(program: Program) -> Program:
    """The program in which kernels write their results into send buffers where these are sent."""
    if not program.sent:
        return program
    return replace(program, instructions=tuple(_placed(program.instructions, program.sent)))


def _placed(instructions: Iterable[Instruction], sent: Collection[int]) -> Iterable[Instruction]:
    for step in instructions:
        if isinstance(step, Loop):
            yield step.with_parts(lambda part: _placed(part, sent))
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


def find_last_sends(program: Program) -> Program:
    """Set `more` of each send."""
    _find_last(program.instructions, program.is_bounded)
    return program


def _find_last(instructions: Sequence[Instruction], is_bounded: bool) -> None:
    followed: set[str] = set()  # tasks for which a tensor follows before a pause
    for step in reversed(instructions):
        if isinstance(step, Send):
            task = step.task
            step.more = task in followed
            followed.add(task)
        elif isinstance(step, Loop):
            _find_last(step.head, is_bounded)
            _find_last(step.body, is_bounded)
            followed.clear()
        elif isinstance(step, (Recv, Wait, Await)) or not is_bounded and _may_last(step):
            followed.clear()


def _may_last(step: Instruction) -> bool:
    """Whether an instruction may take any time, such as a Python function."""
    call = step.call if isinstance(step, Predicated) else step
    definition = registered().get(call.op) if isinstance(call, Call) else None
    return definition is not None and Trait.UNBOUNDED in definition.traits
