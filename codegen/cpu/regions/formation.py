"""Region formation: runs of a program's launches on a CPU become one call of compiled code.

Consecutive calls that are kernels, views, or small computations on shapes form a native region (`region`). docs/concepts/kernels-cpu.md
says why. No visible effect is reordered, and no send is put off; reads of variables, and other calls that may run earlier, go before a
region.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....graph.core.dtypes import resource
from ....graph.core.settings import setting
from ....graph.core.shape import element_count
from ...fusion.fuse import fuse
from ...fusion.op_rules import has_rule
from ...ir.fused_kernel import FusedKernel
from ...ir.nodes import HANDLES
from ...ir.partition import PartitionGraph
from ...ir.program import REFERENCE, Call, Instruction, Loop, Program, Region, Work, calls_of
from ...lower.lower import let_go
from ..kernels.families import LOOPS, is_native
from ..kernels.optimizer import dense_update
from .region import OF_KNOWN, SHAPE_OPS, VIEWS

logger = logging.getLogger(__name__)

FEWEST = 2  # launches that are worth a region
LARGEST = 1 << 20  # bytes of a variable that is updated together with others, some 50 microseconds

_READS = frozenset(("Read", "ReadVariableOp", "StackPopV2", "TensorArrayReadV3", "TensorArrayGradV3"))
"""Ops that only read, or read what belongs to this step."""


def form_native_regions(program: Program, lone: bool = False) -> Program:
    """Replace runs of launches by native regions, inside loops too.

    `lone`: a single elementwise operation or sum, such as an addition of biases between two products, may become part of one. NumPy does
    it in about the time of one launch, so by itself it has no kernel. Inside a region a launch costs next to nothing, and without a kernel
    the operation would end the region.
    """
    kernels = sum(isinstance(c.work, Work) and c.work.family != REFERENCE for c in calls_of(program.instructions))
    if kernels < FEWEST:
        return program
    constants = program.constants
    gathered = tuple(_gathered(program.instructions, constants, lone))
    if setting("DOVETAIL_LOG_REWRITES"):
        found = [f"{call.op} up to {call.node}" for call in calls_of(gathered) if isinstance(call.work, Region)]
        if found:
            logger.warning("regions on %s: %s", program.device, ", ".join(found))
    return replace(program, instructions=gathered)


def _gathered(instructions: Iterable[Instruction], constants: Mapping[int, Any], lone: bool) -> list[Instruction]:
    window = _Window(constants, lone)
    for step in instructions:
        if isinstance(step, Loop):
            window = window.close()
            window.out.append(step.with_parts(lambda part: _gathered(part, constants, lone)))
        elif not window.takes(step):
            if window.steps:
                window = window.close()
                if window.takes(step):
                    continue
            window.out.append(step)
    return window.close().out


@dataclass(slots=True)
class _Window:
    """A window of instructions that become a region of kernels, then the updates: each large one, then the small ones together.

    Other calls that can run before the kernels move before them.
    """

    constants: Mapping[int, Any]
    lone: bool
    out: list[Instruction] = field(default_factory=list)
    steps: list[Call] = field(default_factory=list)  # all, in their original order
    before: list[Call] = field(default_factory=list)
    kernels: list[Call] = field(default_factory=list)
    updates: list[Call] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # slots that kernels write
    updated: set[int] = field(default_factory=set)  # slots that updates write
    alone: dict[Call, Call] = field(default_factory=dict)  # calls of single nodes, and what they are in a region
    known: set[int] = field(default_factory=set)  # slots whose values follow from shapes alone

    def takes(self, step: Instruction) -> bool:
        """Take an instruction into the window, if that is possible."""
        if type(step) is not Call or self.updated and self.updated.intersection(step.inputs):
            return False
        if _update_bytes(step) is not None:
            self.updates.append(step)
            self.updated.update(step.outputs)
        elif self.can_record(step):
            if self.updates and variables_of(step):
                return False
            self.kernels.append(step)
            self.made.update(step.outputs)
        elif (self.kernels or self.updates) and self.can_be_first(step):
            self.before.append(step)
        else:
            return False
        self.steps.append(step)
        return True

    def can_record(self, call: Call) -> bool:
        """Whether a plan can have this call. Outputs that follow from shapes are added to `known`."""
        if call.op in SHAPE_OPS or call.op in OF_KNOWN and self.are_known(call):
            self.known.update(call.outputs)
            return True
        return _is_launching(call) or call.op in VIEWS or self.gets_kernel(call)

    def are_known(self, call: Call) -> bool:
        """Whether the values of all inputs of a call are known. A plain loop: it runs for each of 100,000 additions."""
        for i in call.inputs:  # noqa: SIM110
            if i not in self.known and i not in self.constants:
                return False
        return True

    def gets_kernel(self, call: Call) -> bool:
        """Whether a call of a single node has a kernel inside a region."""
        found = alone(call) if self.lone else None
        if found is not None:
            self.alone[call] = found
        return found is not None

    def can_be_first(self, call: Call) -> bool:
        """Whether a call may run before those of the window."""
        looks = call.op in _READS or bool(variables_of(call))
        may_move = call.op in HANDLES or looks and not self.updates
        return may_move and not self.made.intersection(call.inputs)

    def close(self) -> _Window:
        """Append the window's instructions to `out`; returns an empty window, the next one."""
        launching = sum(_is_launching(c) for c in self.kernels if not self.known.issuperset(c.outputs))
        if launching < FEWEST and len(self.updates) < FEWEST:
            self.out += self.steps
        else:
            large = [c for c in self.updates if (_update_bytes(c) or 0) > LARGEST]
            small = [c for c in self.updates if c not in large]
            order: list[Call] = [*self.before, *self.kernels, *large, *small]
            if order != self.steps:
                _let_go(order)
            kernels = self.joined(self.kernels, launching, "kernels")
            self.out += [*self.before, *kernels, *large, *self.joined(small, len(small), "updates")]
        return _Window(self.constants, self.lone, self.out)

    def joined(self, calls: Sequence[Call], launching: int, what: str) -> Sequence[Call]:
        """Replace several calls by one region, if there are enough launches."""
        if launching < FEWEST:
            return list(calls)
        taken = [replace(self.alone[c], frees=c.frees) if c in self.alone else c for c in calls]
        run = Region.of(taken, self.constants, launching)
        return [run.as_call(run, f"Region of {launching} {what}")]


# --- what calls are ----------------------------------------------------------------------------------------------------


def _is_launching(call: Call) -> bool:
    """Whether a call launches a kernel that plans can have, as far as can be known without shapes."""
    return isinstance(call.work, Work) and is_native(call.work)


def variables_of(call: Call) -> list[int]:
    """Which inputs of a call are variables, whose values its kernel looks up."""
    fused = call.work.step if isinstance(call.work, Work) else None
    return [i for i, t in enumerate(fused.inputs) if t.dtype is resource] if isinstance(fused, FusedKernel) else []


def _update_bytes(call: Call) -> int | None:
    """Bytes of the variable that a call updates, where an unknown number of elements counts as one; None: it is no update for plans."""
    work = call.work
    found = dense_update(work.nodes[0]) if isinstance(work, Work) and work.family == "updates" else None
    if found is None or not isinstance(work, Work):
        return None
    array = work.nodes[0].inputs[found[2]]
    return found[1] * (element_count(array.dims) or 1) * array.dtype.size


def alone(call: Call) -> Call | None:
    """A call of one node without a kernel as it is in a region, where floating-point numbers that are computed element by element, or
    summed along axes, have one. None: it has none there, either."""
    if not isinstance(call.work, Work) or call.work.family != REFERENCE:
        return None
    (node,) = call.work.nodes
    if node.opdef.is_stateful or len(node.outputs) != 1 or not has_rule(node):
        return None
    (output,), data = node.outputs, (*node.outputs, *node.inputs)
    if not output.dtype.is_floating or any(t.dtype.is_ref for t in data) or all(t.dims == () for t in data):
        return None
    kernels = fuse(PartitionGraph("", (node,), (), ((output.name, output),)), small=True, lone=True).kernels
    if not kernels:
        return None
    inputs = tuple([call.inputs[node.inputs.index(t)] for t in (*kernels[0].inputs, *kernels[0].shapes)])
    return replace(call, work=Work(kernels[0], LOOPS), inputs=inputs)


def _let_go(order: Sequence[Call]) -> None:
    """Free each slot with its last user in the new order."""
    freed = {i for step in order for i in step.frees}
    for step in order:
        step.frees = ()
    let_go(order, bytearray(max(freed, default=0) + 1), freed)
