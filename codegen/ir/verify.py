"""The verifier: what holds of a partition and of a program between any two passes. DOVETAIL_VERIFY_PASSES=1 turns it on, as tests do.

    steps      each tensor is taken after the step that makes it, and is made by one step only (a loop may receive it twice); feeds and
               fetches exist
    program    each slot is taken after it was filled and before it was freed, and is freed once

A loop is checked as if it ran once. Channels and control edges are the partitioner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...graph.core.graph import Tensor
from .fused_kernel import FusedKernel, inputs_of, outputs_of
from .partition import BeginLoop, PartitionGraph, PartitionStep, RecvTensor
from .program import Await, Begin, Call, Instruction, Loop, Predicated, Program, Send, slots_read, slots_set


class BrokenPassError(Exception):
    """A pass left a partition or a program that is not well formed. It is a bug of the pass, never the user's."""


def verify_steps(graph: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]) -> None:
    """Check a partition's steps. BrokenPassError: the message names the step and the tensor."""
    makers: dict[Tensor, object] = {}
    for step in steps:
        for t in _made(step):
            if t in makers and not isinstance(step, RecvTensor) and not isinstance(makers[t], RecvTensor):
                raise BrokenPassError(f"{t.name} is made by two steps")
            makers[t] = step
    there = {t for _, t in graph.feeds}
    for step in steps:
        for t in inputs_of(step):
            if t in makers and t not in there:
                raise BrokenPassError(f"{step} takes {t.name}, which a later step makes")
        there.update(_made(step))
    for name, t in graph.fetches:
        if t not in there:
            raise BrokenPassError(f"no step makes {name}, which is fetched")


def _made(step: PartitionStep | FusedKernel) -> Iterable[Tensor]:
    return [merge.outputs[0] for merge in step.merges] if isinstance(step, BeginLoop) else outputs_of(step)


def verify_program(program: Program) -> None:
    """Check a program. BrokenPassError: the message names the instruction and the slot."""
    slots = _Slots({i for i, value in enumerate(program.slots) if value is not None} | {s for _, s in program.feeds})
    slots.run(program.instructions)
    for name, slot in program.fetches:
        slots.take(f"fetch {name}", slot)


class _Slots:
    """The slots that hold something, while instructions are gone through."""

    def __init__(self, filled: set[int]) -> None:
        self.filled = filled

    def take(self, what: str, *slots: int) -> None:
        """Slots that `what` takes; -1 is none."""
        for slot in slots:
            if slot >= 0 and slot not in self.filled:
                raise BrokenPassError(f"{what} takes slot {slot}, which is empty there")

    def free(self, what: str, slots: Iterable[int]) -> None:
        for slot in slots:
            self.take(f"{what}, which frees,", slot)
            self.filled.discard(slot)

    def run(self, instructions: Iterable[Instruction]) -> None:
        for step in instructions:
            if isinstance(step, Loop):
                self.loop(step)
                continue
            call = step.call if isinstance(step, Predicated) else step
            what = f"send on channel {call.channel}" if isinstance(call, Send) else ""
            what = f"{call.op} '{call.node}'" if isinstance(call, Call) else what
            self.take(what, *slots_read(step))
            self.filled.update(slots_set(step))
            if isinstance(call, Call | Send) and not isinstance(step, (Begin, Await)):
                self.free(what, call.frees)

    def loop(self, step: Loop) -> None:
        """Go through a loop, whose body runs once; it ends behind the head."""
        what = f"loop '{step.name}'"
        self.take(what, *(start for start, _ in step.starts))
        self.filled.update((*(slot for _, slot in step.starts), *step.counts))
        self.run(step.head)
        self.take(what, step.test)
        at_end = set(self.filled)
        self.run(step.body)
        self.take(what, *(following for following, _ in step.nexts))
        self.filled = at_end - {*step.frees}
