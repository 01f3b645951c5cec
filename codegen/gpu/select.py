"""Which kernel runs a node: the tables of templates, and of ops that have state.

A node's template gives, for the shapes of its inputs, the candidate routines, their sizes, and the outputs that they write (`bind`).
Everything that depends only on the node is checked when the template is made. A node without a template runs on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...graph.core.dtypes import FLOATS
from ...graph.core.gpu_models import MATRIX_OPS
from ...graph.core.graph import Node
from ...graph.resources.resource_manager import Context
from ..fusion.epilogue import Edge, EpilogueKernel, operands_of
from ..fusion.optimizer_loops import update_of
from ..ir.fused_kernel import KernelSizes
from ..ir.nodes import PRODUCTS
from ..ir.program import Kernel
from ..ir.tile_loops import TileLoops
from .bind.attention import ATTENTION_MAKERS
from .bind.conv import IMAGE_MAKERS, convolution_with_edge
from .bind.copy import COPY_MAKERS
from .bind.gemm import product_template
from .bind.rows import ROW_MAKERS
from .bind.template import Choice, Template
from .collectives import collective_kernel
from .context import GpuContext
from .ir import Target
from .optimizer import OptimizerUpdate
from .residency import HostKernel
from .sparse import sparse_kernel
from .variables import AssignKernel

Shape = tuple[int, ...]
_ASSIGNS = frozenset(("Assign", "AssignVariableOp"))

_MAKERS: dict[str, Callable[..., Template]] = {
    **ATTENTION_MAKERS,
    **COPY_MAKERS,
    **IMAGE_MAKERS,
    **ROW_MAKERS,
}


def template_of(
    node: Node, target: Target, edges: Sequence[TileLoops | None] = (), tf32: bool = False
) -> Template | None:
    """The template for a node; None when there is none.

    `edges`: elementwise work on the operands, if any, and on the result (`codegen/fusion/epilogue.py`). What it reads beside the tiles
    comes behind the inputs of a launch; of what it writes, the template's choice tells nothing. `tf32`: products of float32 may be made
    from 10 bits of each factor's fraction.
    """
    make = _MAKERS.get(node.type)
    try:
        if node.type in PRODUCTS:
            return product_template(node, target, edges or (None, None, None), tf32=tf32)
        if any(edges):
            return convolution_with_edge(node, edges[-1], tf32)
        if make is None:
            return None
        return make(node, tf32=tf32) if node.type in MATRIX_OPS else make(node)
    except (ValueError, KeyError):  # not these types, or attributes
        return None


def with_edges(group: EpilogueKernel, target: Target, tf32: bool) -> Template | None:
    """The template of a product or convolution with its prologues and epilogue as one kernel; None when there is none.

    The parts together determine a run. A prologue checks that the sizes are as fusion assumed. The anchor's template gives the shape of
    the result, the reshape the shape for the epilogue, and the epilogue the shapes of the outputs. If one of them refuses, each part runs
    by itself, so that errors name the right node.
    """
    anchor = template_of(group.anchor, target, group.tile_loops, tf32)
    if anchor is None:
        return None

    def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        operands, beside = group.parts_of_inputs(shapes)
        looked, new_shape, told = group.parts_of_shapes(others)
        for edge, tile, *rest in zip(group.edges[:2], operands, beside, told, strict=False):
            if edge is not None and _sized(edge, tile, *rest) is None:
                return None
        try:
            choice = anchor.choose(operands, looked)
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
        outputs: Sequence[tuple[Shape, np.dtype[Any]]] = [(shape, dtype)]
        behind = group.edges[2]
        if behind is not None:
            sized = _sized(behind, shape, beside[2], told[2])
            if sized is None:
                return None
            outputs = sized.outputs
        return Choice(choice.candidates, choice.sizes, outputs)

    return Template(len(group.inputs), choose)


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


def state_kernel(gpu: GpuContext, node: Node, context: Context, fallback: HostKernel) -> Kernel | None:
    """The kernel of a node that changes variables, makes a stream of random numbers, or meets others; None: it has none for GPUs."""
    found = collective_kernel(gpu, node, context)
    if found is not None:
        return found
    if node.type in _ASSIGNS:
        return AssignKernel(gpu, node, context, fallback)
    rows = sparse_kernel(gpu, node, fallback)
    if rows is not None:
        return rows
    if node.type == "RandomStream":  # in the GPU's memory: a captured graph that takes it is one for all draws
        return lambda *waited: tuple([gpu.device.from_host(x, node.name) for x in fallback.kernel(*waited)])
    updated = update_of(node)
    if updated is None:
        return None
    loops, places, gradient = updated
    dtype = node.inputs[gradient].dtype.base
    return OptimizerUpdate(gpu, node, places, gradient, loops, fallback) if dtype in FLOATS else None


def likely_source(group: EpilogueKernel, target: Target, tf32: bool) -> str:
    """The likely kernel's text, for sizes as far as they are known (others are taken to be 1024)."""
    template = template_of(group.anchor, target, group.tile_loops, tf32)
    if template is None:
        return f"no kernel for {group.anchor.type} of these types: its parts run one by one"
    shapes = [tuple(1024 if d is None else d for d in t.dims or ()) for t in operands_of(group.anchor)[0]]
    looked = [tuple(1024 if d is None else d for d in group.anchor.outputs[0].dims or ())] * len(
        operands_of(group.anchor)[1]
    )
    choice = template.choose(shapes, looked)
    if choice is None:
        return "sizes that are not known yet decide"
    return "\n\n".join(launch.kernel.text for launch in choice.candidates[0].launches)
