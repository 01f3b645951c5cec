"""Which compiled kernel an op has on CPUs: one table from op names to makers of kernels.

A maker gives None for nodes that it does not take: other element types, sizes too small to pay. Those run their reference on NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

from ...graph.core.graph import Node
from ..fusion.optimizer_loops import ACCUMULATES
from ..ir.nodes import PRODUCTS
from ..ir.program import Kernel
from ..options import is_enabled
from .kernels import conv, copy, gemm, rows, windows
from .kernels.node import NodeKernel
from .kernels.optimizer import sparse_update_kernel, update_kernel
from .tiering import TieredKernel

Maker: TypeAlias = Callable[[Node, Kernel, int, bool], Kernel | None]
"""`maker(node, reference, threads, check)`: a node's kernel, or None."""


def kernel_for(node: Node, reference: Kernel, *, threads: int, compile_first: bool, check: bool) -> Kernel | None:
    """The kernel of a node: compiled, or its reference where its maker does not take it; None where the op has no maker.

    Args:
        node: the node that the kernel runs. reference: the op's reference, context and attributes bound.
        threads: the most threads that it may use. compile_first: compile it now. check: compare with the reference at every run.
    """
    op = node.opdef.name
    family = "updates" if "Apply" in op else _FAMILY_OF.get(op)
    if family is None or not is_enabled(family):
        return None
    _, maker = FAMILIES[family]
    kernel = maker(node, reference, threads, check)
    if compile_first and isinstance(kernel, TieredKernel):
        kernel.compile()
    return reference if kernel is None else kernel


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
