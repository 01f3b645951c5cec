"""The CUDA backend: fused nodes become Triton kernels, products and similar ops templates, and all other nodes run on the host.

Which kernel runs what (`residency.py` decides which values live in GPU memory):

    a fused group, and each node alone that has a loop nest     Triton kernels made from loops, the fastest of a few candidates
    matrix products, convolutions, attention, pooling...         templates (`select`), the fastest of a few candidates
    variables and optimisers' updates                            in GPU memory, in place if the old value has no other references
    views, shapes, control flow                                  no kernel: they only use shapes, or pass values on
    everything else                                              its NumPy reference, on the host: the inputs are copied there. Such
                                                                 steps have `(on the host)` behind their name in the program
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ...graph.core.graph import Node
from ...graph.core.opdef import Trait
from ...graph.core.settings import setting
from ...graph.core.shape import element_count
from ...graph.resources.resource_manager import Context
from ..backend import ContextOf
from ..fusion.epilogue import EpilogueKernel
from ..ir.fused_kernel import FusedKernel
from ..ir.nodes import PASSED_ON
from ..ir.program import Kernel
from ..lower.region import Steps
from ..reference import NumpyBackend
from .context import GpuContext
from .driver.device import Device
from .driver.ipc import Lends
from .ir import Target
from .kernels import FusedGpuKernel, GpuKernel
from .residency import HostKernel, ShapeKernel, SmallHostKernel, lives_on_device
from .select import state_kernel, template_of, with_edges

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
        peers: names of the devices of this task that are GPUs, too: what is sent to them stays in GPU memory.
        lends: which GPUs of other tasks read this one's memory; None: none.
        check: compare every kernel with the references, at every run.
        tf32: products of float32 may be made from 10 bits of each factor's fraction.
        tunes: of several kernels the fastest may be taken, as it is measured (DOVETAIL_AUTOTUNE).
    """

    name = "cuda"
    rewrites = NumpyBackend.rewrites

    def __init__(
        self,
        device: Device,
        *,
        peers: frozenset[str] = frozenset(),
        check: bool = False,
        lends: Lends | None = None,
        tf32: bool = False,
        tunes: bool = True,
    ) -> None:
        self.gpu = GpuContext(device, check, tf32, tunes and bool(setting("DOVETAIL_AUTOTUNE")))
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
        if not any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors):
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
        if context is None and not any(lives_on_device(t.dtype.base, element_count(t.dims)) for t in tensors):
            return SmallHostKernel(plain)
        if context is not None:
            return state_kernel(self.gpu, node, context, HostKernel(plain)) or HostKernel(plain)
        template = template_of(node, self.gpu.device.target, tf32=self.gpu.tf32)
        host = HostKernel(plain)
        return host if template is None else GpuKernel(self.gpu, node.name, node.inputs, template, host)


def absent_gpu_backend(target: Target, tf32: bool) -> CudaBackend:
    """A backend for a GPU that is not present: its kernels can be inspected, but not run. `tf32`: as of `CudaBackend`."""
    nowhere: Any = SimpleNamespace(target=target)
    return CudaBackend(nowhere, tf32=tf32, tunes=False)
