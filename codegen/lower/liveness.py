"""Liveness: each slot of a program is let go after its last use, so that memory returns as early as it can."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.program import Instruction, Loop, Predicated, Program, Read, Recv, flattened, slots_set, slots_used


def free_dead_slots(program: Program) -> Program:
    """Write into a program's instructions which slots each lets go: all but the constants and the fetches."""
    constants = bytearray([v is not None for v in program.slots])
    _let_go(program.instructions, _marked(constants + b"\1", (slot for _, slot in program.fetches)))
    return program


def _let_go(instructions: Iterable[Instruction], used: bytearray, only: set[int] | None = None) -> None:
    """Free each slot at the instruction that uses it last (or makes it, if it has no use).

    `used`: whether each slot is used afterwards; this marks those that go here. Its last entry is for slot -1, which is none, and
    is set. `only`: the slots that may go at all (None: all).
    """
    for step in reversed(list(instructions)):
        if isinstance(step, Recv | Read):
            continue
        if isinstance(step, Loop):
            _let_go_inside(step, used)
        frees = []
        for slot in slots_used(step):
            if not used[slot] and (only is None or slot in only):
                used[slot] = True
                frees.append(slot)
        if frees:
            (step.call if isinstance(step, Predicated) else step).frees = tuple(frees)


def _marked(used: bytearray, slots: Iterable[int]) -> bytearray:
    """A copy in which these slots are used, too."""
    used = used.copy()
    for slot in slots:
        used[slot] = True
    return used


def _let_go_inside(loop: Loop, used_after: bytearray) -> None:
    """Let slots go inside a loop: what one iteration makes, and what its body is the last to need.

    A loop variable may go in the body, since the next iteration sets it anew; after the last, when Exits take it, the body
    has not run. What the head makes may go in the head only if neither body nor Exits need it.
    """
    nexts = {s for s, _ in loop.nexts}
    of_head, of_body = (
        {slot for step in flattened(part) for slot in slots_set(step)} for part in (loop.head, loop.body)
    )
    variables = {s for _, s in loop.starts}
    needed_again = nexts | {loop.test}
    _let_go(loop.body, _marked(bytearray(len(used_after)), {*needed_again, -1}), of_head | of_body | variables)
    needed_later = needed_again.union(*map(slots_used, loop.body))
    _let_go(loop.head, _marked(used_after, needed_later), of_head)
    loop.lost = tuple(sorted(nexts & (of_head | of_body)))
