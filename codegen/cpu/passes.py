"""Program passes of the CPU backend. `codegen/pipeline.py` has their order.

products into updates  the gradient of a dense layer's weights is made where the optimizer uses it (`kernels.gemm_update`)
native regions         runs of calls become one call of compiled code (`regions`)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ...graph.core.shape import element_count
from ..ir.program import Await, Begin, Call, Instruction, Loop, Predicated, Program, Recv, Send, Wait
from .kernels.fused import CpuFusedKernel, RegionOnlyKernel
from .kernels.gemm import ProductKernel
from .kernels.gemm_update import SMALLEST, ProductUpdate
from .kernels.optimizer import UpdateKernel
from .regions.formation import with_native_regions
from .regions.region import NativeRegion
from .tiering import TieredKernel


def fuse_products_into_updates(program: Program, threads: int, compile_first: bool = False) -> Program:
    """Fuse a product into the update of a variable that is its only user (`ProductUpdate`).

    `compile_first`: compile them now.
    """
    steps: list[Instruction | None] = list(program.instructions)
    if not any(isinstance(s, Call) and isinstance(s.kernel, UpdateKernel) for s in steps if s is not None):
        return program
    users: dict[int, int] = {}
    makers: dict[int, int] = {}
    fences = 0
    fences_before = []
    for i, step in enumerate(program.instructions):
        fences_before.append(fences)
        fences += isinstance(
            step, Recv | Loop | Wait | Begin | Await
        )  # a product is not put off until another task, or step, has answered
        for slot in _read(step):
            users[slot] = users.get(slot, 0) + 1
        if type(step) is Call and isinstance(step.kernel, ProductKernel) and step.kernel.node.type == "MatMul":
            makers[step.outputs[0]] = i
    fetched = {slot for _, slot in program.fetches}
    for i, step in enumerate(program.instructions):
        if type(step) is not Call or not isinstance(step.kernel, UpdateKernel):
            continue
        at = step.kernel.places + step.kernel.gradient
        slot = step.inputs[at]
        made = makers.get(slot)
        if made is None or users[slot] != 1 or slot in fetched or fences_before[made] != fences_before[i]:
            continue
        product = program.instructions[made]
        assert isinstance(product, Call)
        assert isinstance(product.kernel, ProductKernel)
        if (element_count(product.kernel.node.outputs[0].dims) or SMALLEST) < SMALLEST:
            continue
        joined = ProductUpdate(product.kernel, step.kernel, threads)
        if compile_first:
            joined.compile()
        steps[made] = None
        steps[i] = replace(
            step,
            kernel=joined,
            inputs=(*step.inputs[:at], *product.inputs, *step.inputs[at + 1 :]),
            frees=(*(s for s in step.frees if s != slot), *_kept(program.instructions[made:i], product.inputs)),
            nodes=(product.node, step.node),
        )
    return replace(program, instructions=tuple(s for s in steps if s is not None))


def _kept(steps: Iterable[Instruction], needed: Sequence[int]) -> list[int]:
    """Let these steps keep the slots that are needed after them; gives those that another step must free."""
    kept: dict[int, None] = {}
    for step in steps:
        target = step.call if isinstance(step, Predicated) else step
        if isinstance(target, Call | Send | Loop):
            mine = [s for s in target.frees if s in needed]
            if mine:
                kept.update(dict.fromkeys(mine))
                target.frees = tuple(s for s in target.frees if s not in mine)
    return list(kept)


def _read(step: Instruction) -> Iterable[int]:
    """The slots that an instruction reads, once per operand; of a loop, all that it accesses."""
    if isinstance(step, Call):
        return step.inputs
    if isinstance(step, Send):
        return (step.slot,)
    if isinstance(step, Predicated):
        return (*step.checks, *step.call.inputs)
    if isinstance(step, Loop):
        inner = [s for part in (step.head, step.body) for x in part for s in _read(x)]
        return (*inner, step.test, *(s for s, _ in step.starts), *(s for s, _ in step.nexts))
    return ()


def _calls(instructions: Iterable[Instruction]) -> Iterable[Call]:
    """All calls, in loops and under predicates too."""
    for step in instructions:
        if isinstance(step, Loop):
            yield from _calls((*step.head, *step.body))
        else:
            call = step.call if isinstance(step, Predicated) else step
            if isinstance(call, Call):
                yield call


def form_native_regions(program: Program, compile_first: bool = False) -> Program:
    """Join calls to native regions. A kernel that pays in a region only, and is part of none, becomes the reference again."""
    program = with_native_regions(program, compile_first)
    for call in _calls(program.instructions):
        if isinstance(call.kernel, RegionOnlyKernel) and call.kernel.kernel is None:
            call.kernel = call.kernel.reference
    return program


def own_kernels(instructions: Iterable[Instruction]) -> Iterator[TieredKernel]:
    """The compiled kernels that are not made by fusion, in the order in which they run, those inside regions too."""
    for call in _calls(instructions):
        kernel = call.kernel
        if isinstance(kernel, NativeRegion):
            yield from own_kernels(kernel.calls)
        elif isinstance(kernel, TieredKernel) and not isinstance(kernel, CpuFusedKernel):
            yield kernel
