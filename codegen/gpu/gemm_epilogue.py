"""Launcher of a matrix product or convolution with its prologues and epilogue as one kernel (`codegen/fusion/epilogue.py` fuses them).

The parts together determine a run. A prologue checks that the sizes are as fusion assumed. The template gives the shape of the
result, the reshape the shape for the epilogue, and the epilogue the shapes of the outputs. If one of them refuses, each part runs by
itself, so that errors name the right node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...graph.core.graph import Node
from ..backend import Backend, NodeError
from ..fusion.epilogue import EpilogueKernel, given_to, operands_of
from ..ir.fused_kernel import FusedKernel
from ..ir.program import Kernel
from ..ir.tile_loops import TileLoops
from .bind.gemm import PRODUCTS, library_product
from .bind.template import Choice, Template
from .context import GpuContext
from .kernels import GpuKernel
from .library_gemm import library_gemms

Shape = tuple[int, ...]


class _Parts:
    """Which of a joined step's inputs belong to which part."""

    def __init__(self, group: EpilogueKernel) -> None:
        self.group = group
        loaded, looked = operands_of(group.anchor)
        self.operands, self.looked = len(loaded), len(looked)
        pairs = zip(
            (*group.before, *([None] * (2 - len(group.before))), group.behind), _three(group.edges), strict=True
        )
        self.parts: list[tuple[FusedKernel, TileLoops] | None] = [
            None if k is None or e is None else (k, e) for k, e in pairs
        ]

    def beside(self, inputs: Sequence[Any]) -> list[Sequence[Any]]:
        """The inputs of each prologue and of the epilogue, without the tile."""
        return _cut(inputs[self.operands :], [0 if p is None else len(p[0].inputs) - 1 for p in self.parts])

    def values(self, shapes: Sequence[Any]) -> tuple[Sequence[Any], Any, list[Sequence[Any]]]:
        """What the anchor looks at, the shape of the reshape, and the `shapes` of each kernel."""
        first = self.looked + (self.group.reshape is not None)
        new_shape = shapes[self.looked] if self.group.reshape is not None else None
        rest = _cut(shapes[first:], [0 if p is None else len(p[0].shapes) for p in self.parts])
        return shapes[: self.looked], new_shape, rest


def _three(edges: Sequence[TileLoops | None]) -> Sequence[TileLoops | None]:
    return (*edges[:-1], *([None] * (3 - len(edges))), edges[-1])


def _cut(values: Sequence[Any], lengths: Sequence[int]) -> list[Sequence[Any]]:
    out, at = [], 0
    for n in lengths:
        out.append(values[at : at + n])
        at += n
    return out


class EpilogueTemplateKernel(GpuKernel):
    """A template with its prologues and epilogue."""

    def __init__(self, gpu: GpuContext, group: EpilogueKernel, template: Template, apart: UnfusedParts) -> None:
        constants = [i for i, t in enumerate(group.inputs) if t.op.type == "Const"]
        super().__init__(gpu, group.nodes[-1].name, len(group.inputs), constants, apart)
        self.group = group
        self.template = template
        self._parts = _Parts(group)
        self.operands = group.inputs, group.shapes
        self._has_others = bool(group.shapes)

    def choose(self, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        """The template's candidates, with outputs as the kernel behind it has them."""
        parts, group = self._parts, self.group
        operands = list(shapes[: parts.operands])
        beside = parts.beside(shapes)
        looked, new_shape, values = parts.values(others)
        for part, own, tile, told in zip(parts.parts[:2], beside, operands, values, strict=False):
            if part is not None and _sizes(part, tile, own, told) is None:
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
        if parts.parts[2] is not None:
            sizes = _sizes(parts.parts[2], shape, beside[2], values[2])
            if sizes is None:
                return None
            behind = parts.parts[2][0]
            outputs = [
                (tuple(1 if a is None else sizes[a] for a in axes), t.dtype.base.np)
                for t, axes in zip(behind.outputs, behind.output_axes, strict=True)
            ]
        candidates = list(choice.candidates)
        if group.anchor.type in PRODUCTS and self.gpu.tunes:
            product = library_product(group.anchor, choice.sizes, self.gpu.tf32)
            with suppress(ValueError):  # the parts say what is wrong
                candidates += library_gemms(self.gpu, group, product, operands, shape, beside, values)
        return Choice(candidates, choice.sizes, outputs)


def _sizes(
    part: tuple[FusedKernel, TileLoops], tile: Shape, beside: Sequence[Shape], told: Sequence[Any]
) -> list[int] | None:
    """Sizes of a kernel's axes; None when they are not as fusion assumed."""
    kernel, edge = part
    return kernel.sizes_for(given_to(kernel, edge, tile, beside), [told[a.position] for a in kernel.assumed])


def reshaped(shape: Shape, new_shape: Sequence[int]) -> Shape | None:
    """A shape after a reshape that leaves the last axis as it is; None when it does not."""
    nothing = np.lib.stride_tricks.as_strided(np.zeros((), np.int8), shape, (0,) * len(shape))
    try:
        made: Shape = nothing.reshape(tuple(new_shape)).shape
    except ValueError:
        return None
    return made if made[-1:] == shape[-1:] else None


class UnfusedParts:
    """The parts of a joined step, one after the other."""

    def __init__(self, backend: Backend, group: EpilogueKernel) -> None:
        self.backend = backend
        self.group = group
        self._parts = _Parts(group)
        self._made: tuple[list[Kernel | None], Kernel, Kernel | None] | None = None

    def __call__(self, *inputs: Any) -> Any:
        group, parts = self.group, self._parts
        if self._made is None:
            fused = [None if p is None else self.backend.fused(p[0]) for p in parts.parts]
            reshape = None if group.reshape is None else self.backend.kernel(group.reshape, None)
            self._made = fused, self.backend.kernel(group.anchor, None), reshape
        kernels, anchor, reshape = self._made
        count = len(group.inputs)
        operands, beside = list(inputs[: parts.operands]), parts.beside(inputs[:count])
        looked, new_shape, values = parts.values(inputs[count:])
        for i, (part, kernel) in enumerate(zip(parts.parts[:2], kernels, strict=False)):
            if part is not None and kernel is not None:
                operands[i] = kernel(*given_to(*part, operands[i], beside[i]), *values[i])
        product = _named(group.anchor, anchor, (*looked, *operands))
        tile = product
        if reshape is not None and group.reshape is not None:
            tile = _named(group.reshape, reshape, (product, new_shape))
        behind, kernel = parts.parts[2], kernels[2]
        if behind is None or kernel is None:
            return tile
        return kernel(*given_to(*behind, tile, beside[2]), *values[2])


def _named(node: Node, kernel: Callable[..., Any], inputs: Sequence[Any]) -> Any:
    """A node's result; an error tells which node it is."""
    try:
        return kernel(*inputs)
    except NodeError:
        raise
    except Exception as e:
        raise NodeError(node) from e
