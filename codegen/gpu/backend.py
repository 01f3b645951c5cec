"""The CUDA backend: fused nodes become Triton kernels, products and similar ops templates, and all other nodes run on the host.

Which kernel runs what (`residency.py` decides which values live in GPU memory):

    a fused group, and each node alone that has a loop nest     Triton kernels made from loops, the fastest of a few candidates
    matrix products, convolutions, attention, pooling...         templates (`template_of`), the fastest of a few candidates
    variables and optimisers' updates                            in GPU memory, in place if the old value has no other references
    views, shapes, control flow                                  no kernel: they only use shapes, or pass values on
    everything else                                              its NumPy reference, on the host: the inputs are copied there. Such
                                                                 steps have `(on the host)` behind their name in the program
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...graph.core.dtypes import FLOATS
from ...graph.core.gpu_models import MATRIX_OPS
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Trait
from ...graph.core.settings import setting
from ...graph.core.shape import element_count
from ...graph.resources.resource_manager import Context
from ..backend import ContextOf
from ..fusion.epilogue import Edge, EpilogueKernel
from ..fusion.optimizer_loops import update_of
from ..ir.fused_kernel import FusedKernel, KernelSizes
from ..ir.loop_nest import TileLoops
from ..ir.nodes import PASSED_ON, PRODUCTS
from ..ir.program import Kernel
from ..lower.region import Steps
from ..options import KernelOptions
from ..reference import NumpyBackend
from .bind.conv import IMAGE_MAKERS, convolutions
from .bind.copy import COPY_MAKERS
from .bind.products import ATTENTION_MAKERS, product_template
from .bind.rows import ROW_MAKERS
from .collectives import collective_kernel
from .driver.device import Device
from .driver.ipc import Lends
from .ir import Choice, Shape, Target, Template
from .kernels import FusedGpuKernel, GpuContext, GpuKernel
from .residency import HostKernel, ShapeKernel, SmallHostKernel, lives_on_device
from .variables import AssignKernel, OptimizerUpdate, sparse_kernel

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
            return convolutions("result" if node.type == "Conv2D" else "image", edges[-1])(node, tf32=tf32)
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


def _may_live_on_device(tensors: Sequence[Tensor]) -> bool:
    """Whether some of them do: a kernel of others runs on the host."""
    return any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors)


_VIEWS = frozenset(("Reshape", "ExpandDims", "Squeeze"))
_OF_SHAPES = frozenset(("BroadcastArgs", "BroadcastGradientArgs"))  # their operands are shapes, of any length
_PASSING = PASSED_ON | {
    "Switch", "RefSwitch", "Merge", "Enter", "RefEnter", "Exit", "NextIteration", "LoopCond", "ReadVariableOp", "IsVariableInitialized",
    "VarIsInitializedOp", "InitializedValue", "IdentityN",
}  # fmt: skip
"""Ops that hand values on without looking into them: their references do for arrays of any kind."""


class CudaBackend:
    """Kernels for one GPU.

    Args:
        device: the GPU.
        options: the compile options.
        peers: names of the devices of this task that are GPUs, too: what is sent to them stays in GPU memory.
        lends: which GPUs of other tasks read this one's memory; None: none.
    """

    name = "cuda"

    def __init__(
        self,
        device: Device,
        options: KernelOptions,
        *,
        peers: frozenset[str] = frozenset(),
        lends: Lends | None = None,
    ) -> None:
        self.options, check = options, options.check >= 2  # results to compare are computed exactly
        tunes = not options.deterministic and bool(setting("DOVETAIL_AUTOTUNE"))
        self.gpu = GpuContext(device, check, options.tf32 and not check, tunes)
        self.peers = peers
        self.lends = lends
        self._host = NumpyBackend()

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> Kernel:
        """A kernel made from the group's loops, or a template with prologues and epilogue."""
        if isinstance(group, EpilogueKernel):
            *before, behind = [None if e is None else e.kernel for e in group.edges]
            steps = [step for step in (*before, group.anchor, group.reshape, behind) if step is not None]
            given = (*group.inputs, *group.shapes)
            apart = Steps(self, steps, given, group.outputs)
            template = with_edges(group, self.gpu.device.target, self.gpu.tf32)
            return apart if template is None else GpuKernel(self.gpu, group.nodes[-1].name, given, template, apart)
        tensors = (*group.inputs, *group.outputs)
        if not _may_live_on_device(tensors):
            return SmallHostKernel(self._host.fused(group, context_of))
        return FusedGpuKernel(self.gpu, group, context_of)

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """The kernel of a node that is not fused."""
        plain = self._host.kernel(node, context)
        if context is not None and Trait.STATE_HANDLE in node.opdef.traits:
            self.gpu.variables[node.name] = context.container, str(node.attrs.get("shared_name") or node.name)
        if node.type in _PASSING or Trait.STATE_HANDLE in node.opdef.traits or not node.inputs:
            return plain
        if Trait.METADATA in node.opdef.traits:
            return ShapeKernel(plain, node)
        if node.type in _VIEWS:
            return ShapeKernel(plain, node, is_view=True)
        if node.type in _OF_SHAPES:
            return SmallHostKernel(plain)
        tensors = (*node.inputs, *node.outputs)
        if context is None and not _may_live_on_device(tensors):
            return SmallHostKernel(plain)
        if context is not None:
            return state_kernel(self.gpu, node, context, HostKernel(plain)) or HostKernel(plain)
        template = template_of(node, self.gpu.device.target, tf32=self.gpu.tf32)
        host = HostKernel(plain)
        return host if template is None else GpuKernel(self.gpu, node.name, node.inputs, template, host)


def absent_gpu_backend(target: Target, options: KernelOptions) -> CudaBackend:
    """A backend for a GPU that is not present: its kernels can be inspected, but not run."""
    nowhere: Any = SimpleNamespace(target=target)
    return CudaBackend(nowhere, replace(options, check=0))
