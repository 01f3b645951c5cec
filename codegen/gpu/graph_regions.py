"""Pass: runs of launches that become one CUDA graph each, started by one call.

A launch costs the host microseconds: allocating results, looking up the launch for the shapes, calling the driver. A training step of a
small model is mostly that. So calls that follow one another and run on the GPU alone become a `GraphRegion`, which captures them as a
graph when they repeat (`graph_replay.py`).

Looking up a variable's handle is no work for the GPU. It stays before the region and happens in every step. A value from the host that
only one region reads is copied to the device by that region. A value of the region that only the host reads starts its copy there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..ir.nodes import HANDLES, PASSED_ON
from ..ir.program import Call, Instruction, Loop, Program, flattened, slots_read
from ..lower.region import constants_of, region_of
from .driver.device import Device
from .graph_replay import GraphRegion
from .kernels import GpuKernel
from .residency import ShapeKernel, SmallHostKernel
from .transfers import TO_DEVICE, to_host
from .variables import AssignKernel

FEWEST = 4  # launching calls that are worth a graph: it costs two launches or so itself, and a copy for what comes in or goes out

_KINDS = (GpuKernel, ShapeKernel, SmallHostKernel)
_WITHOUT_WORK = PASSED_ON | {"Read", "ReadVariableOp", "NoOp"}
_TAKEN = _WITHOUT_WORK | HANDLES | {TO_DEVICE}


def with_graph_regions(program: Program, device: Device) -> Program:
    """The program with a region in the place of each run of launches, inside loops too."""
    readers = Counter(slot for step in flattened(program.instructions) for slot in slots_read(step))
    gathering = _Gathering(device, constants_of(program.slots), readers, set())
    gathering.readers.update(slot for _, slot in program.fetches)
    gathering.leaving.update(s.inputs[0] for s in program.instructions if isinstance(s, Call) and s.kernel is to_host)
    return replace(program, instructions=tuple(gathering.gathered(program.instructions)))


def _is_taken(call: Call) -> bool:
    """Whether a call may be part of a region."""
    kernel = call.kernel
    return isinstance(kernel, _KINDS) or call.op in _TAKEN or (isinstance(kernel, AssignKernel) and kernel.is_in_place)


def _may_wait(run: Sequence[Call], call: Call) -> bool:
    """Whether a call may move before a run: so far the run only looks up variables and copies values that the call does not touch."""
    return all(c.op in HANDLES or c.op == TO_DEVICE for c in run) and not any(
        set(c.outputs).intersection((*call.inputs, *call.outputs, *call.frees)) for c in run
    )


def _is_array(slot: int, calls: Sequence[Call], outputs: Sequence[int]) -> bool:
    """Whether a slot's value may be in GPU memory however small it is: all calls read it on the device."""
    if slot in outputs:
        return False
    for call in calls:
        for position in [i for i, s in enumerate(call.inputs) if s == slot]:
            kernel = call.kernel
            if isinstance(kernel, GpuKernel):
                if not kernel.takes_array(position):
                    return False
            elif isinstance(kernel, ShapeKernel) and position == 0 and not kernel.is_view:
                continue
            elif (isinstance(kernel, ShapeKernel) and position == 0) or call.op in _WITHOUT_WORK:
                if not all(_is_array(s, calls, outputs) for s in call.outputs):
                    return False
            else:
                return False
    return True


@dataclass(slots=True)
class _Gathering:
    """Collects runs of calls, and replaces them by regions.

    Attributes:
        readers: how often each slot is read. leaving: slots that are copied to the host.
    """

    device: Device
    constants: dict[int, Any]
    readers: Counter[int]
    leaving: set[int]

    def gathered(self, instructions: Iterable[Instruction]) -> list[Instruction]:
        """The instructions, with regions in them."""
        out: list[Instruction] = []
        run: list[Call] = []
        for step in instructions:
            if isinstance(step, Call) and _is_taken(step):
                run.append(step)
                continue
            if isinstance(step, Call) and _may_wait(run, step):
                out.append(step)
                continue
            out += self.joined(run)
            run.clear()
            if isinstance(step, Loop):
                step = step.with_parts(self.gathered)
            out.append(step)
        return out + self.joined(run)

    def joined(self, run: list[Call]) -> list[Call]:
        """What replaces a run: a region, preceded by the calls that stay outside; or the run itself where it is too short."""
        handles = [c for c in run if c.op in HANDLES]
        count = sum(isinstance(c.kernel, GpuKernel) for c in run)
        if count < FEWEST or any(c.frees for c in handles):
            return list(run)
        rest = [c for c in run if c.op not in HANDLES and c.op != TO_DEVICE]
        joined = region_of(rest, self.constants)
        fed, before = [], handles
        for call in run:
            if call.op != TO_DEVICE:
                continue
            slot = call.inputs[0]
            times = sum(c.inputs.count(slot) for c in rest)
            if slot in joined.given and self.readers[slot] == times + 1:  # and its own
                fed.append(joined.given.index(slot))
            else:
                before.append(call)
        away = [
            i for i, slot in enumerate(joined.outputs)
            if slot in self.leaving and self.readers[slot] == sum(c.inputs.count(slot) for c in rest) + 1
        ]  # fmt: skip
        arrays = [i for i, slot in enumerate(joined.given) if _is_array(slot, rest, joined.outputs)]
        region = GraphRegion(self.device, joined, fed, arrays, away)
        return [*before, joined.as_call(region, f"CUDA graph of {count} kernels")]
