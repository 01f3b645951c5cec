"""Launcher of a matrix product or convolution with its prologues and epilogue as one kernel (`codegen/fusion/epilogue.py` fuses them).

The parts together determine a run. A prologue checks that the sizes are as fusion assumed. The template gives the shape of the
result, the reshape the shape for the epilogue, and the epilogue the shapes of the outputs. If one of them refuses, each part runs by
itself, so that errors name the right node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..backend import Backend
from ..fusion.epilogue import Edge, EpilogueKernel
from ..ir.fused_kernel import KernelSizes
from ..lower.region import Steps
from .bind.template import Choice, Template
from .context import GpuContext
from .kernels import GpuKernel

Shape = tuple[int, ...]


class EpilogueTemplateKernel(GpuKernel):
    """A template with its prologues and epilogue."""

    def __init__(self, gpu: GpuContext, group: EpilogueKernel, template: Template, apart: Steps) -> None:
        constants = [i for i, t in enumerate(group.inputs) if t.op.type == "Const"]
        super().__init__(gpu, group.nodes[-1].name, len(group.inputs), constants, apart)
        self.group = group
        self.template = template
        self.operands = group.inputs, group.shapes
        self._has_others = bool(group.shapes)

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """The template's candidates, with outputs as the kernel behind it has them."""
        group = self.group
        operands, beside = group.parts_of_inputs(shapes)
        looked, new_shape, told = group.parts_of_shapes(others)
        for edge, tile, *rest in zip(group.edges[:2], operands, beside, told, strict=False):
            if edge is not None and _sized(edge, tile, *rest) is None:
                return None
        try:
            choice = self.template.choose(self.device, operands, looked)
        except ValueError:
            return None  # the parts say what is wrong
        if choice is None:
            return None
        ((shape, dtype),) = choice.outputs
        if group.reshape is not None:
            other = reshaped(shape, new_shape)
            if other is None:
                return None
            shape = other
        outputs: list[tuple[Shape, np.dtype[Any]]] = [(shape, dtype)]
        behind = group.edges[2]
        if behind is not None:
            sized = _sized(behind, shape, beside[2], told[2])
            if sized is None:
                return None
            outputs = list(sized.outputs)
        return Choice(choice.candidates, choice.sizes, outputs)


def _sized(edge: Edge, tile: Shape, beside: Sequence[Shape], told: Sequence[Any]) -> KernelSizes | None:
    """Sizes of a kernel's axes and outputs; None when they are not as fusion assumed."""
    return edge.kernel.sized(edge.given(tile, beside), told)


def reshaped(shape: Shape, new_shape: Sequence[int]) -> Shape | None:
    """A shape after a reshape that leaves the last axis as it is; None when it does not."""
    nothing = np.lib.stride_tricks.as_strided(np.zeros((), np.int8), shape, (0,) * len(shape))
    try:
        made: Shape = nothing.reshape(tuple(new_shape)).shape
    except ValueError:
        return None
    return made if made[-1:] == shape[-1:] else None


def unfused(backend: Backend, group: EpilogueKernel) -> Steps:
    """The parts of a joined step, one after the other."""
    *before, behind = [None if e is None else e.kernel for e in group.edges]
    steps = [step for step in (*before, group.anchor, group.reshape, behind) if step is not None]
    return Steps(backend, steps, (*group.inputs, *group.shapes), group.outputs)
