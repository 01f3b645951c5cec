"""Sends to other tasks: kernels that write results directly into shared-memory send buffers, and which send is the last before a pause.

A kernel takes the memory of its result from the buffer pool, and sending copies it into memory that both processes can read. Of a slot
that `use_send_buffers` marks, the kernel takes memory of the second kind at once. A result in a send buffer is read-only: the receiver may
keep it. A client that fetches it gets a copy.

The worker may send several tensors for one task together (`runtime/worker/step_scheduler.py`). `find_last_sends` tells it after which
send no other one follows before the program may pause, so that it sends at once what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...graph.core.opdef import Trait
from ..ir.program import Await, Call, Instruction, Loop, Predicated, Program, Recv, Send, Wait, Work, flattened


def use_send_buffers(program: Program) -> Program:
    """Mark the slots that are sent to other tasks, so that kernels write them into send buffers."""
    task = program.device.partition("/device:")[0]
    sends = [step for step in flattened(program.instructions) if isinstance(step, Send)]
    return replace(program, sent=frozenset(s.slot for s in sends if s.slot >= 0 and s.task != task))


def find_last_sends(program: Program) -> Program:
    """Set `more` of each send to another task."""
    _find_last(program.instructions, program.device.partition("/device:")[0])
    return program


def _find_last(instructions: Sequence[Instruction], own: str) -> None:
    followed: set[str] = set()  # tasks for which a tensor follows before a pause
    for step in reversed(instructions):
        if isinstance(step, Send):
            task = step.task
            if task != own:
                step.more = task in followed
                followed.add(task)
        elif isinstance(step, Loop):
            _find_last(step.head, own)
            _find_last(step.body, own)
            followed.clear()
        elif isinstance(step, (Recv, Wait, Await)) or followed and _may_last(step):
            followed.clear()


def _may_last(step: Instruction) -> bool:
    """Whether an instruction may take any time, such as a Python function."""
    call = step.call if isinstance(step, Predicated) else step
    work = call.work if isinstance(call, Call) else None
    return isinstance(work, Work) and any(Trait.UNBOUNDED in n.opdef.traits for n in work.nodes)
