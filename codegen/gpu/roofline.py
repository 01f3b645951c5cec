"""What a GPU's program launches, and what its kernels take by their binaries and the maker's figures. No GPU is needed.

The least time is the roofline of `graph/core/gpu_models.py`. How near a kernel comes to it depends on how many threads a multiprocessor
has at a time, its occupancy: registers, shared memory and the size of a block limit them, and a compiled kernel says what it takes of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ...graph.core.gpu_models import BLOCK_RESERVED, REGISTER_UNIT, REGISTERS, SCHEDULERS, GpuModel
from ...graph.core.graph import Tensor
from ..fusion.optimizer_loops import update_of
from ..ir.fused_kernel import FusedKernel
from ..ir.program import Call, CallWork, Instruction, Program, Updates, Work, calls_of
from ..memory.plan import TensorSizes
from ..target import WARP, Target
from .families import GATHERS, LOOPS, UPDATES
from .horizontal_fusion import updates_choice
from .ir import Choice, CompiledLaunch, Routine, Shape, Template
from .kernels import loops_template
from .toolchain.compile import compile_kernel, compile_together
from .variables import gather_template, update_choice

ShapeOf: TypeAlias = Callable[[Tensor], Shape | None]


def blocks_at_a_time(model: GpuModel, threads: int, registers: int, shared_bytes: int) -> int:
    """The resident blocks of a multiprocessor, for blocks of so many threads with so many registers each and so much shared memory.

    >>> from dovetail.graph.core.gpu_models import DEFAULT_GPU
    >>> [blocks_at_a_time(DEFAULT_GPU, *block) for block in ((256, 255, 0), (256, 32, 0), (128, 32, 100_000))]
    [1, 8, 2]
    """
    warps = -(-threads // WARP)
    of_thread = -(-max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // SCHEDULERS // (of_thread * WARP) * SCHEDULERS // warps
    by_shared = model.shared_bytes // (shared_bytes + BLOCK_RESERVED)
    return min(model.blocks, model.warps // warps, by_registers, by_shared)


def compiled_launches(
    instructions: Sequence[Instruction], sizes: TensorSizes, model: GpuModel
) -> Iterator[tuple[Call, tuple[CompiledLaunch, ...]]]:
    """What the calls of a program launch, compiled for a GPU, in the order in which they run.

    Calls whose sizes are not known, and those that launch nothing or depend on values of the step, are left out.

    Raises:
        FailedPreconditionError: Triton is not installed.
    """
    target = Target(model.architecture)
    found = list(_planned(instructions, sizes))
    compile_together([launch.kernel for _, choice in found for launch in choice.candidates[0].launches], target)
    for call, choice in found:
        launches = []
        for launch in choice.candidates[0].launches:
            b = compile_kernel(launch.kernel, target)
            blocks = math.prod(launch.grid.of(choice.sizes))
            threads = blocks_at_a_time(model, b.threads, b.registers, b.shared_bytes) * b.threads
            facts = b.entry, blocks, b.threads, b.registers, b.spills, b.shared_bytes
            launches.append(CompiledLaunch(*facts, threads / (WARP * model.warps)))
        yield call, tuple(launches)


def compile_candidates(instructions: Sequence[Instruction], sizes: TensorSizes, target: Target) -> int:
    """Compile all candidates of a program's kernels whose sizes are known, side by side on all cores; how many kernels these are."""
    planned = _planned(instructions, sizes)
    kernels = {launch.kernel for _, choice in planned for way in choice.candidates for launch in way.launches}
    compile_together(kernels, target)
    return len(kernels)


def likely_routines(program: Program, sizes: TensorSizes) -> dict[str, Routine]:
    """What the calls of a program likely launch, by the name of each one's last node. Unknown sizes count as 1024."""
    return {call.node: choice.candidates[0] for call, choice in _planned(program.instructions, sizes, program.tensors)}


def _planned(
    instructions: Sequence[Instruction], sizes: TensorSizes, tensors: Mapping[int, Tensor] | None = None
) -> Iterator[tuple[Call, Choice]]:
    """The calls of a program that launch kernels whose sizes are known, and what there is to launch.

    With `tensors`, those in each slot, unknown sizes count as 1024, and unknown shapes that are operands as those of the results.
    """

    def dims(tensor: Tensor) -> tuple[int, ...] | None:
        found = sizes.of(tensor).dims
        if found is None or (tensors is None and None in found):
            return None
        return tuple(1024 if d is None else d for d in found)

    def value(tensor: Tensor) -> tuple[int, ...] | None:
        if tensor.op.type == "Const":
            return tuple(np.ravel(tensor.op.attrs["value"]).tolist())
        if tensor.op.type == "Shape":
            return dims(tensor.op.inputs[0])
        result = (tensors or {}).get(call.outputs[0])
        return None if result is None else dims(result)

    for call in calls_of(instructions):
        try:
            choice = choice_of(call.work, dims, value)
        except (ValueError, IndexError):
            if tensors is None:
                raise
            continue  # sizes that are not known do not fit one another
        if choice is not None:
            yield call, choice


def choice_of(work: CallWork | None, dims: ShapeOf, value: ShapeOf) -> Choice | None:
    """The routines for a work; None: it launches nothing, or they depend on the step.

    `dims`, `value`: give the shape of a tensor, and the value of one that is a shape or an axis; None if it is not known.
    """
    if isinstance(work, Updates):
        updates = [(update_of(node), node) for each in work.works for node in each.nodes]
        shapes = [dims(node.inputs[update[2]]) for update, node in updates if update is not None]
        lengths = [math.prod(shape) for shape in shapes if shape is not None]
        loops = updates[0][0]
        return updates_choice(loops[0], lengths) if loops is not None and len(lengths) == len(updates) else None
    if not isinstance(work, Work):
        return None
    step, template = work.step, work.template
    if isinstance(step, FusedKernel):
        tensors: Sequence[Tensor] = (*step.inputs, *step.shapes)
        template = loops_template(step) if work.family == LOOPS else template
    else:
        tensors = step.inputs
        template = gather_template(step) if work.family == GATHERS else template
        update = update_of(step) if work.family == UPDATES else None
        if update is not None:
            gradient = tensors[update[2]]
            shape = dims(gradient)
            return None if shape is None else update_choice(*update[:2], gradient.dtype.base, [shape], ())
    if not isinstance(template, Template):
        return None
    order = template.order or range(len(tensors))
    shapes = [dims(tensors[i]) for i in order[: template.inputs]]
    others = [value(tensors[i]) for i in order[template.inputs :]]
    if not shapes or None in shapes or None in others:
        return None
    return template.choose([s for s in shapes if s is not None], others)
