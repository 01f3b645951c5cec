"""Saves read large variables chunk by chunk, so that steps go on changing them in place meanwhile.

A read gives a reference to a variable's array, and the next update must copy what others refer to: for a checkpoint, all that is
saved. Where nothing but a save uses what a read gives, the read becomes one of a `ChunkedSnapshot`
(`graph/resources/chunked_snapshot.py`), which `SaveV2` takes, too. Its values are of the same moment.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ...graph.resources.variable import VariableState, read_together_in_chunks
from ..ir.program import Builtin, Call, Program, slots_used

_READ = Builtin(VariableState.read_in_chunks)
_IN_CHUNKS = {"Read": _READ, "ReadVariableOp": _READ, "ReadTogether": Builtin(read_together_in_chunks)}


def read_saved_in_chunks(program: Program) -> Program:
    """Let reads give snapshots in chunks where only saves use what they give. No slots have been freed yet."""
    instructions = program.instructions
    saves = [step for step in instructions if type(step) is Call and step.op == "SaveV2"]
    if not saves:
        return program
    seen = Counter(slot for _, slot in program.fetches)
    for step in instructions:
        seen.update(slots_used(step))
    source = {slot: step for step in instructions if type(step) is Call for slot in step.outputs}
    lent: set[int] = set()  # slots that are used by a save alone
    for save in saves:
        for slot in save.inputs[1:]:
            while seen[slot] == 2:  # where it is made, and where it is used
                lent.add(slot)
                made = source.get(slot)
                if made is None or made.op != "Identity":
                    break
                slot = made.inputs[0]
    read = (
        replace(step, work=_IN_CHUNKS[step.op], op=f"{step.op}InChunks")
        if type(step) is Call and step.op in _IN_CHUNKS and lent.issuperset(step.outputs)
        else step
        for step in instructions
    )
    return replace(program, instructions=tuple(read))
