"""The CUDA backend: fused nodes become Triton kernels, products and similar ops templates, and all other nodes run on the host.

`families.py` decides which kernel runs what, `residency.py` which values live in GPU memory. A node on the host gets copies of its
inputs; its call has `(on the host)` behind its name in the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from ...graph.core.dtypes import FLOAT8
from ...graph.core.graph import Node
from ...graph.core.settings import setting
from ..backend import ContextOf, DimsOf
from ..compilation import Compilation
from ..fusion.epilogue import EpilogueKernel, fuse_epilogues as with_epilogues
from ..fusion.fuse import fuse
from ..ir.fused_kernel import FusedKernel
from ..ir.loop_nest import SUPPORTED
from ..ir.program import REFERENCE, BoundWork, CapturedRegion, Kernel, Updates, Work
from ..options import KernelOptions
from ..passes.attention_fusion import fuse_attention as with_attention
from ..reference import Steps, reference_of, references_of
from ..target import GPU_LONGEST_ROW, GPU_OPERATIONS_PER_BYTE, Target
from . import families
from .collectives import CollectiveKernel
from .driver.device import Device
from .driver.ipc import Lends
from .graph_regions import GraphRegion, with_graph_regions
from .horizontal_fusion import MultiTensorUpdate, fuse_updates
from .kernels import FusedGpuKernel, GpuContext, GpuKernel
from .residency import HostKernel, ShapeKernel
from .transfers import insert_transfers
from .variables import AssignKernel, GatherKernel, OptimizerUpdate, VariableUpdate


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
        self, device: Device, options: KernelOptions, *, peers: frozenset[str] = frozenset(), lends: Lends | None = None
    ) -> None:
        self.options, check = options, options.check >= 2  # results to compare are computed exactly
        tunes = not options.deterministic and bool(setting("DOVETAIL_AUTOTUNE"))
        self.gpu = GpuContext(device, check, options.tf32 and not check, tunes)
        self.peers = peers
        self.lends = lends

    def choose(self, step: Node | FusedKernel) -> Work:
        """As `Backend.choose`."""
        return families.choose(step, self.gpu.device.target, self.gpu.tf32)

    def bind(self, work: BoundWork, context_of: ContextOf, sent: Sequence[int] = ()) -> Kernel:
        """As `Backend.bind`. What is sent is copied from GPU memory."""
        if isinstance(work, CapturedRegion):
            return GraphRegion(self.gpu.device, work)
        if isinstance(work, Updates):
            return MultiTensorUpdate(self.gpu, [self._update(w, context_of) for w in work.works])
        assert isinstance(work, Work)
        if isinstance(work.step, Node):
            return self._of_node(work, work.step, context_of)
        return self._of_fused(work, work.step, context_of)

    def schedules(self, work: Work, dims_of: DimsOf) -> Sequence[object]:
        """As `Backend.schedules`: none. A kernel's schedule is chosen, and logged, when it first runs."""
        return ()

    def _of_fused(self, work: Work, group: FusedKernel, context_of: ContextOf) -> Kernel:
        """A kernel made from the group's loops, or a template with prologues and epilogue."""
        if work.family == families.HOST_VALUES:
            return HostKernel(references_of(group, context_of))
        if not isinstance(group, EpilogueKernel):
            return FusedGpuKernel(self.gpu, group, context_of)
        *before, behind = [None if e is None else e.kernel for e in group.edges]
        steps = [step for step in (*before, group.anchor, group.reshape, behind) if step is not None]
        given = (*group.inputs, *group.shapes)
        parts = Steps(self, steps, given, group.outputs)
        if work.family == families.PARTS:
            return parts
        return GpuKernel(self.gpu, group.nodes[-1].name, given, work.template, parts)

    def _of_node(self, work: Work, node: Node, context_of: ContextOf) -> Kernel:
        gpu, plain = self.gpu, reference_of(node, context_of)
        host = HostKernel(plain)
        match work.family:
            case families.SHAPES | families.VIEWS:
                return ShapeKernel(plain, node, is_view=work.family == families.VIEWS)
            case families.TEMPLATES:
                return GpuKernel(gpu, node.name, node.inputs, work.template, host)
            case families.UPDATES:
                return self._update(work, context_of)
            case families.ROWS:
                return VariableUpdate(gpu, node, work.template, host)
            case families.GATHERS:
                return GatherKernel(gpu, node, host)
            case families.ASSIGNMENTS | families.ASSIGNMENTS_IN_PLACE:
                return AssignKernel(gpu, node, context_of(node), host)
            case families.COLLECTIVES:
                return CollectiveKernel(gpu.device, node, context_of(node))
            case families.RANDOM_STREAMS:  # in the GPU's memory: a captured graph that takes it is one for all draws
                return lambda *waited: tuple([gpu.device.from_host(x, node.name) for x in plain(*waited)])
        return plain if work.family == REFERENCE else host

    def _update(self, work: Work, context_of: ContextOf) -> OptimizerUpdate:
        (node,) = work.nodes
        return OptimizerUpdate(self.gpu, node, HostKernel(reference_of(node, context_of)))


def absent_gpu_backend(target: Target, options: KernelOptions) -> CudaBackend:
    """A backend for a GPU that is not present: its kernels can be inspected, but not run."""
    nowhere: Any = SimpleNamespace(target=target)
    return CudaBackend(nowhere, replace(options, check=0))


# --- passes of `codegen/pipeline.py` that only GPUs have ------------------------------------------------------


def fuse_attention(c: Compilation) -> None:
    """Joins the products and the softmax of attention to one node. Needs and leaves nodes; they are rewritten, but not fused."""
    if c.backend.options.rewrite:
        c.graph, fired = with_attention(c.graph)
        c.fired += fired


def fuse_nodes(c: Compilation) -> None:
    """Fusion, also of single nodes. Arithmetic on scalars stays in kernels, since the host would have to wait for the GPU.

    Needs the final graph, with counter-based random numbers. Leaves `fusion`.
    """
    types = SUPPORTED + FLOAT8 * _backend(c).gpu.device.target.has_float8
    c.fusion = fuse(
        c.graph,
        small=True,
        lone=True,
        types=types,
        operations_per_byte=GPU_OPERATIONS_PER_BYTE,
        longest_scan=GPU_LONGEST_ROW,
        has_epilogues=True,
    )


def fuse_epilogues(c: Compilation) -> None:
    """Joins products and convolutions with the kernels before and behind them. Needs and leaves `fusion`."""
    c.fusion = c.fused.with_steps(with_epilogues(c.graph, c.fused.steps))


def add_transfers(c: Compilation) -> None:
    """Inserts copies between host and device. Needs and leaves a program none of whose slots are freed."""
    backend = _backend(c)
    c.program = insert_transfers(c.lowered, backend.gpu.device, backend.peers, backend.lends)


def join_updates(c: Compilation) -> None:
    """Makes one launch of many small updates, unless kernels are compared. Needs and leaves a program none of whose slots are freed."""
    if not _backend(c).gpu.check:
        c.program = fuse_updates(c.lowered, c.context_of)


def form_regions(c: Compilation) -> None:
    """Joins runs of launches to CUDA graphs, unless kernels are compared. Needs and leaves a program whose dead slots are freed."""
    if setting("DOVETAIL_CUDA_GRAPHS") and not _backend(c).gpu.check:
        c.program = with_graph_regions(c.lowered)


def _backend(c: Compilation) -> CudaBackend:
    assert isinstance(c.backend, CudaBackend)
    return c.backend
