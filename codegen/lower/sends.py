"""Sends to other tasks: kernels that write results directly into shared-memory send buffers, and which send is the last before a pause.

A kernel takes the memory of its result from the buffer pool, and sending copies it into memory that both processes can read. With
`use_send_buffers` such a kernel takes memory of the second kind at once. A result in a send buffer is read-only: the receiver may keep
it. A client that fetches it gets a copy.

The worker may send several tensors for one task together (`runtime/worker/step_scheduler.py`). `find_last_sends` tells it after which
send no other one follows before the program may pause, so that it sends at once what it has.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...graph.core.opdef import Trait, registered
from ..ir.program import Await, Call, Instruction, Loop, PooledKernel, Predicated, Program, Recv, Send, Wait, calls_of


def use_send_buffers(program: Program) -> Program:
    """Let kernels write their results into send buffers where these are sent."""
    for call in calls_of(program.instructions):
        sent = [i for i, slot in enumerate(call.outputs) if slot in program.sent]
        if sent and isinstance(call.kernel, PooledKernel):
            call.kernel.send(sent)
    return program


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
