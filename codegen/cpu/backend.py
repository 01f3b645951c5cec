"""The CPU backend: fused kernels compiled by Numba, hand-written kernels for single ops, and NumPy for everything else.

A kernel starts on NumPy and is compiled in the background (`jit`), or before its first run with `compile_first`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph.core.graph import Node
from ...graph.core.settings import setting
from ..backend import ContextOf, DimsOf
from ..compilation import Compilation
from ..fusion.fuse import fuse
from ..ir.fused_kernel import FusedKernel
from ..ir.partition import PartitionGraph
from ..ir.program import REFERENCE, BoundWork, Kernel, Region, Work
from ..passes.sums_of_products import merge_summed_products
from ..reference import NumpyBackend, reference_of
from ..target import OPERATIONS_PER_BYTE, cores
from .jit import TieredKernel
from .kernels.families import FAMILIES, LOOPS, family_of
from .kernels.fused import CpuFusedKernel
from .kernels.gemm import ProductKernel
from .kernels.node import NodeKernel, PlannedKernel
from .regions.formation import form_native_regions
from .regions.region import NativeRegion
from .schedule import scheduled

FEW_STEPS = 20_000  # up to this many nodes, small tensors are fused, too: the search takes some 50 µs a node


class NumbaBackend(NumpyBackend):
    """NumPy for single nodes, compiled loops for fused ones.

    Args:
        fuse_small: fuse small tensors in programs of any size.
        compile_first: compile a kernel before it runs for the first time.
        threads: how many threads one kernel may use; 0: one per core that this process may use.
        check: compare every kernel with the references, at every run.
    """

    name = "numba"

    def __init__(
        self, *, fuse_small: bool = False, compile_first: bool = False, threads: int = 0, check: bool = False
    ) -> None:
        self.fuse_small = fuse_small
        self.compile_first = compile_first
        self.threads = threads or cores()
        self.check = check

    def fuses_small(self, graph: PartitionGraph) -> bool:
        """Whether to fuse tensors too small to gain, and in regions single nodes, too."""
        return self.fuse_small or len(graph.steps) <= FEW_STEPS

    def choose(self, step: Node | FusedKernel) -> Work:
        """As `Backend.choose`: fused kernels are `LOOPS`, nodes without a compiled kernel `REFERENCE`."""
        return Work(step, family_of(step) if isinstance(step, Node) else LOOPS)

    def bind(self, work: BoundWork, context_of: ContextOf, sent: Sequence[int] = ()) -> Kernel:
        """As `Backend.bind`. A compiled kernel starts on NumPy."""
        if isinstance(work, Work) and isinstance(work.step, Node) and work.family == REFERENCE:
            return reference_of(work.step, context_of)
        made = NativeRegion(work, self.compile_first) if isinstance(work, Region) else self._compiled(work, context_of)
        if sent and isinstance(made, (PlannedKernel, NativeRegion)):
            made.plans.sent = sent
        return made

    def _compiled(self, work: BoundWork, context_of: ContextOf) -> Kernel:
        assert isinstance(work, Work)
        step, threads, check = work.step, self.threads, self.check
        if isinstance(step, FusedKernel):
            made: Kernel = CpuFusedKernel(step, context_of, threads=threads, check=check)
        else:
            made = FAMILIES[work.family][2](step, reference_of(step, context_of), threads, check)
        if self.compile_first and isinstance(made, TieredKernel):
            made.compile()
        return made

    def schedules(self, work: Work, dims_of: DimsOf) -> Sequence[object]:
        """As `Backend.schedules`: of fused loops, products and convolutions."""
        step = work.step
        if isinstance(step, FusedKernel):
            return () if step.schedule is None else (step.schedule,)
        kernel = work.family in FAMILIES and FAMILIES[work.family][2](step, _unused, self.threads, False)
        if self.has_regions and isinstance(kernel, ProductKernel):
            kernel.enter_region()
        return kernel.schedules(dims_of) if isinstance(kernel, NodeKernel) else ()

    @property
    def has_regions(self) -> bool:
        """Whether calls become native regions."""
        return not self.check and bool(setting("DOVETAIL_NATIVE_REGIONS"))


def _unused(*inputs: Any) -> Any:
    raise AssertionError("a kernel is run that is only asked for its schedules")


# --- passes of `codegen/pipeline.py` that only CPUs have ------------------------------------------------------


def join_products(c: Compilation) -> None:
    """Makes one product of products that are added. Needs and leaves nodes."""
    if c.backend.options.rewrite:
        c.graph = merge_summed_products(c.graph)


def fuse_nodes(c: Compilation) -> None:
    """Fusion. Each kernel may have its own copy of arithmetic on scalars.

    Needs the final graph: counter-based random numbers, and no products of narrow floats. Leaves `fusion`, whose kernels have no schedule.
    """
    c.fusion = fuse(
        c.graph, small=_backend(c).fuses_small(c.graph), operations_per_byte=OPERATIONS_PER_BYTE, copies_scalars=True
    )


def schedule_loops(c: Compilation) -> None:
    """Chooses the schedules of fused kernels. Needs and leaves `fusion`, unless fusion is turned off; all its kernels have schedules."""
    if c.fusion is not None and c.fusion.steps is not c.graph.steps:  # else there are no kernels
        c.fusion = c.fusion.with_steps(tuple(scheduled(s) if isinstance(s, FusedKernel) else s for s in c.fusion.steps))


def form_regions(c: Compilation) -> None:
    """Joins runs of calls to native regions. Needs and leaves a program whose dead slots are freed."""
    backend = _backend(c)
    if backend.has_regions:
        c.program = form_native_regions(c.lowered, backend.fuses_small(c.graph))


def _backend(c: Compilation) -> NumbaBackend:
    assert isinstance(c.backend, NumbaBackend)
    return c.backend
