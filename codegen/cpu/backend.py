"""The CPU backend: fused kernels compiled by Numba, hand-written kernels for single ops, and NumPy for everything else.

A kernel starts on NumPy and is compiled in the background (`tiering`), or before its first run with `compile_first`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from ...graph.core.graph import Node
from ...graph.core.settings import setting
from ...graph.resources.resource_manager import Context
from ..backend import ContextOf
from ..fusion.optimizer_loops import ACCUMULATES
from ..ir.fused_kernel import FusedKernel
from ..ir.nodes import PRODUCTS
from ..ir.partition import PartitionGraph
from ..ir.program import Kernel
from ..options import is_enabled
from ..reference import NumpyBackend
from ..target import cores
from .kernels import conv, copy, gemm, rows, windows
from .kernels.fused import CpuFusedKernel, RegionOnlyKernel, may_be_region_only
from .kernels.node import NodeKernel
from .kernels.optimizer import sparse_update_kernel, update_kernel
from .tiering import TieredKernel

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
        self._options: dict[str, Any] = {"threads": self.threads, "compile_first": compile_first, "check": check}
        self._has_region_only = False

    def fuses_small(self, graph: PartitionGraph) -> bool:
        """Whether to fuse tensors too small to gain, and in regions single nodes, too."""
        small = self.fuse_small or len(graph.steps) <= FEW_STEPS
        self._has_region_only = small and self.has_regions
        return small

    def fused(self, group: FusedKernel, context_of: ContextOf | None = None) -> CpuFusedKernel:
        """A kernel that starts on NumPy and becomes compiled."""
        return CpuFusedKernel(group, context_of, **self._options)

    def kernel(self, node: Node, context: Context | None) -> Kernel:
        """A kernel that becomes compiled where the op has one, otherwise the op's reference."""
        reference = NumpyBackend.kernel(self, node, context)
        op = node.opdef.name
        family = "updates" if "Apply" in op else _FAMILY_OF.get(op)
        if family is not None and is_enabled(family):
            made = FAMILIES[family][1](node, reference, self.threads, self.check)
            if self.compile_first and isinstance(made, TieredKernel):
                made.compile()
            return reference if made is None else made
        if self._has_region_only and may_be_region_only(node):
            return RegionOnlyKernel(node, reference, **self._options)
        return reference

    @property
    def has_regions(self) -> bool:
        """Whether calls become native regions."""
        return not self.check and bool(setting("DOVETAIL_NATIVE_REGIONS"))


# --- hand-written kernels --------------------------------------------------------------------------------------------
# One table from op names to makers of kernels. A maker gives None for nodes that it does not take: other element types, sizes too
# small to pay. Those run their reference on NumPy.


Maker: TypeAlias = Callable[[Node, Kernel, int, bool], Kernel | None]
"""`maker(node, reference, threads, check)`: a node's kernel, or None."""


def _copy(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
    return copy.copy_kernel(node, reference)


def _update(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
    kernel = update_kernel(node, reference, threads, check)
    return sparse_update_kernel(node, reference, threads, check) if kernel is None else kernel


def _single(make: Callable[[Node, int], tuple[str, Callable[..., Any]] | None]) -> Maker:
    """A maker from a function of a node and threads, which gives the source text and the call of a `NodeKernel`."""

    def maker(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
        found = make(node, threads)
        return None if found is None else NodeKernel(node, reference, *found, check=check)

    return maker


_windows = _single(windows.window_kernel)

FAMILIES: dict[str, tuple[Collection[str], Maker]] = {
    "copies": (copy.OPS, _copy),
    "matrix products": (PRODUCTS, gemm.product_kernel),
    "convolutions": (conv.OPS, _single(conv.conv_kernel)),
    "depthwise convolutions": (windows.DEPTHWISE, _windows),
    "pooling": (windows.POOLING, _windows),
    "top k": (rows.TOP, _single(rows.top_kernel)),
    "updates": (ACCUMULATES, _update),
}
"""The families of hand-written kernels: their ops (of updates also all with "Apply" in their names), and their maker."""

_FAMILY_OF = {op: name for name, (ops, _) in FAMILIES.items() for op in ops}
