"""The CPU backend: fused kernels compiled by Numba, hand-written kernels for single ops, and NumPy for everything else.

A kernel starts on NumPy and is compiled in the background (`tiering`), or before its first run with `compile_first`.
"""

from __future__ import annotations

from ...graph.core.graph import Node
from ...graph.core.settings import setting
from ...graph.resources.resource_manager import Context
from ..backend import ContextOf
from ..ir.fused_kernel import FusedKernel
from ..ir.partition import PartitionGraph
from ..ir.program import Kernel
from ..reference import NumpyBackend
from ..target import cores
from .dispatch import kernel_for
from .kernels.fused import CpuFusedKernel, RegionOnlyKernel, may_be_region_only

FEW_STEPS = 20_000  # up to this many nodes, small tensors are fused, too: the search takes some 50 µs a node


class NumbaBackend(NumpyBackend):
    """NumPy for single nodes, compiled loops for fused ones.

    Args:
        fuse_small: fuse what is small in programs of any size.
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
        self._has_region_only = False

    def fuses_small(self, graph: PartitionGraph) -> bool:
        """Whether to fuse tensors too small to gain, and in regions single nodes, too."""
        small = self.fuse_small or len(graph.steps) <= FEW_STEPS
        self._has_region_only = small and self.has_regions
        return small

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> CpuFusedKernel:
        """A kernel that starts on NumPy and becomes compiled."""
        return CpuFusedKernel(
            group, context_of, threads=self.threads, compile_first=self.compile_first, check=self.check
        )

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """A kernel that becomes compiled where the op has one, otherwise the op's reference."""
        reference = NumpyBackend.kernel(self, node, context)
        made = kernel_for(node, reference, threads=self.threads, compile_first=self.compile_first, check=self.check)
        if made is not None:
            return made
        if self._has_region_only and may_be_region_only(node):
            return RegionOnlyKernel(
                node, reference, threads=self.threads, compile_first=self.compile_first, check=self.check
            )
        return reference

    @property
    def has_regions(self) -> bool:
        """Whether calls become native regions."""
        return not self.check and bool(setting("DOVETAIL_NATIVE_REGIONS"))
