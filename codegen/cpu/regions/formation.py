"""Region formation: runs of a program's launches on a CPU become one call of compiled code.

A small kernel takes a few microseconds, and Python between two kernels takes as long again or longer: it looks up the shapes of the
inputs, allocates the results, and Numba inspects each argument. So consecutive calls that are kernels, views, or small
computations on shapes form a native region (`region`), which runs by a plan from the third run with the same shapes on:

    allocate what leaves the region,    one call, which runs all launches from a table (`native.table`)

The bits are those of the calls one by one. A number that is out of range ends a run before any effect of it can be seen; the calls then
run one by one, which raises the error and says where. Shapes that no plan can be made for, and traced steps, run one by one.

No visible effect is reordered. Reads of variables, and other calls that may run earlier, go before a region. Sends go after it
if they wait for another tensor to be coalesced with, or would hardly be issued any earlier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ....graph.core.graph import Tensor
from ....graph.core.opdef import opdef
from ....graph.core.settings import setting
from ...ir.nodes import HANDLES
from ...ir.program import Call, Instruction, Loop, MemoryNeeds, Program, Send, calls_of
from ...lower.region import constants_of, region_of
from ..kernels.fused import CpuFusedKernel, RegionOnlyKernel
from ..tiering import TieredKernel
from .region import (
    SHAPE_OPS,
    NativeRegion,
    can_record,
    is_large_update,
    is_launching,
    is_update,
    kernel_of,
    planned_regions,
    regions_of,
    variables_of,
    work_of,
)

logger = logging.getLogger(__name__)

FEWEST = 2  # launches that are worth a region

LONGEST = 0.05  # fraction of a send's work by which more work may delay it

_READS = frozenset(("Read", "ReadVariableOp", "StackPopV2", "TensorArrayReadV3", "TensorArrayGradV3"))
"""Ops that only read, or read what belongs to this step."""
_SMALL = SHAPE_OPS | {
    "AddV2",
    "BroadcastArgs",
    "BroadcastGradientArgs",
    "Greater",
    "Identity",
    "Less",
    "LogicalAnd",
    "NoOp",
    "Sub",
}
"""Ops that mostly compute counters and shapes outside kernels: to run them earlier keeps no memory for longer."""
_NOT_OPS = frozenset(("Fused", "Copy"))  # of calls that have no node of their own: they only compute


def form_native_regions(program: Program, at_once: bool = False) -> Program:
    """Replace runs of launches by native regions, inside loops too.

    A kernel that pays in a region only, and is part of none, becomes the reference again.
    `at_once`: what a region's plan needs is compiled when it is made, and waited for.
    """
    program = _with_regions(program, at_once)
    for call in calls_of(program.instructions):
        if isinstance(call.kernel, RegionOnlyKernel) and call.kernel.kernel is None:
            call.kernel = call.kernel.reference
    return program


def own_kernels(instructions: Iterable[Instruction]) -> Iterator[TieredKernel]:
    """The compiled kernels that are not made by fusion, in the order in which they run, those inside regions too."""
    for call in calls_of(instructions):
        kernel = call.kernel
        if isinstance(kernel, NativeRegion):
            yield from own_kernels(kernel.calls)
        elif isinstance(kernel, TieredKernel) and not isinstance(kernel, CpuFusedKernel):
            yield kernel


def _with_regions(program: Program, at_once: bool) -> Program:
    constants = constants_of(program.slots)
    gathered = tuple(_gathered(program.instructions, constants, at_once))
    made = replace(program, instructions=gathered, memory=_with_arenas(program.memory, gathered, program.tensors))
    if setting("DOVETAIL_LOG_REWRITES"):
        found = [f"{call.op} up to {call.node}" for call in regions_of(made.instructions)]
        if found:
            logger.warning("regions on %s: %s", program.device, ", ".join(found))
    return made


def _with_arenas(
    memory: Callable[[], MemoryNeeds] | None, instructions: Sequence[Instruction], tensors: Mapping[int, Tensor] | None
) -> Callable[[], MemoryNeeds] | None:
    """The memory needs of a program, with the arenas of its regions."""
    if memory is None or tensors is None:
        return memory
    return lambda: memory().with_arenas(
        [arena for _, arena in planned_regions(instructions, tensors) if arena is not None]
    )


def _gathered(instructions: Iterable[Instruction], constants: Mapping[int, Any], at_once: bool) -> list[Instruction]:
    window = _Window(constants, at_once)
    for step in instructions:
        if isinstance(step, Loop):
            window = window.close()
            window.out.append(step.with_parts(lambda part: _gathered(part, constants, at_once)))
        elif not window.takes(step):
            if window.steps:
                window = window.close()
                if window.takes(step):
                    continue
            window.out.append(step)
    window.close()
    return window.out


@dataclass(slots=True)
class _Window:
    """A window of instructions that become a region of kernels, then the updates: each large one, then the small ones together.

    Other calls that can run before the kernels move before them; calls and sends that can run after them move after them.
    """

    constants: Mapping[int, Any]
    at_once: bool
    out: list[Instruction] = field(default_factory=list)
    steps: list[Call | Send] = field(default_factory=list)  # all, in the order in which they stood
    before: list[Call] = field(default_factory=list)
    kernels: list[Call] = field(default_factory=list)
    behind: list[Call | Send] = field(default_factory=list)
    updates: list[Call] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # by kernels
    later: set[int] = field(default_factory=set)  # made after them
    updated: set[int] = field(default_factory=set)  # made by updates
    known: set[int] = field(default_factory=set)  # by kernels, of shapes alone
    sends: bool = False  # whether another task waits for a send after the kernels
    work: float = 0.0  # of kernels that make the sent tensors, as far as sizes are known
    put_off: float = 0.0  # of other kernels that delay the sends

    def takes(self, step: Instruction) -> bool:
        """Take an instruction into the window, if that is possible."""
        if type(step) is Send:
            if not self.kernels or step.slot in self.updated or step.slot < 0 and self.updates:
                return False
            self.sends = True
            self.behind.append(step)
        elif type(step) is not Call or self.updated and self.updated.intersection(step.inputs):
            return False
        elif is_update(step):
            self.updates.append(step)
            self.updated.update(step.outputs)
        elif not (self.later and self.later.intersection(step.inputs)) and can_record(step, self.known, self.constants):
            if self.updates and variables_of(step) or not self.has_time_for(step):
                return False
            self.kernels.append(step)
            self.made.update(step.outputs)
        elif (self.kernels or self.updates) and self.can_be_first(step):
            self.before.append(step)
        elif self.kernels and _only_computes(step) and not is_launching(step):  # a kernel may begin the next region
            self.behind.append(step)
            self.later.update(step.outputs)
        else:
            return False
        self.steps.append(step)
        return True

    def has_time_for(self, kernel: Call) -> bool:
        """Whether a send that another task waits for may be delayed by one more kernel, which is short compared with the work before."""
        work = work_of(kernel)
        if not self.sends:
            self.work += work
            return True
        self.put_off += work
        return self.put_off <= LONGEST * self.work

    def can_be_first(self, call: Call) -> bool:
        """Whether a call may run before those of the window."""
        if self.made.intersection(call.inputs) or self.later.intersection(call.inputs):
            return False
        looks = call.op in _READS or bool(variables_of(call))
        return call.op in HANDLES or call.op in _SMALL or looks and not self.updates

    def close(self) -> _Window:
        """Append the window to the emitted instructions; gives the next one, which is empty."""
        launching = sum(is_launching(c) for c in self.kernels if not self.known.issuperset(c.outputs))
        if launching < FEWEST and len(self.updates) < FEWEST:
            self.out += self.steps
        else:
            large = [c for c in self.updates if is_large_update(c)]
            small = [c for c in self.updates if not is_large_update(c)]
            order = [*self.before, *self.kernels, *self.behind, *large, *small]
            if order != self.steps:
                _let_go(order)
            self.out += self.before
            self.out += self.joined(self.kernels, launching, "kernels")
            self.out += self.behind
            self.out += large
            self.out += self.joined(small, len(small), "updates")
        return _Window(self.constants, self.at_once, self.out)

    def joined(self, calls: Sequence[Call], launching: int, what: str) -> Sequence[Call]:
        """Replace several calls by one region, if there are enough launches."""
        if launching < FEWEST:
            return list(calls)
        for kernel in filter(None, map(kernel_of, calls)):
            kernel.enter_region()
        run = region_of(calls, self.constants)
        return [run.as_call(NativeRegion(run, launching, self.at_once), f"Region of {launching} {what}")]


def _only_computes(call: Call) -> bool:
    """Whether a call is pure: it computes values from values."""
    if call.op in _NOT_OPS:
        return not variables_of(call)
    try:
        found = opdef(call.op)
    except KeyError:
        return False
    return not (found.is_stateful or found.is_blocking or found.ref_inputs)


def _let_go(order: Sequence[Call | Send]) -> None:
    """Free each slot with its last user in the new order."""
    freed = {i for step in order for i in step.frees}
    for step in reversed(order):
        used = (step.slot,) if isinstance(step, Send) else (*step.inputs, *step.outputs)
        mine = tuple([i for i in dict.fromkeys(used) if i in freed])
        freed.difference_update(mine)
        if set(mine) != set(step.frees):
            step.frees = mine
