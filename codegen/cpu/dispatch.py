"""Which compiled kernel an op has on CPUs: one table from op names to makers of kernels.

A maker gives None for nodes that it does not take: other element types, sizes too small to pay. Those run their reference on NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeAlias

from ...graph.core.graph import Node
from ..fusion.optimizer_loops import ACCUMULATES
from ..ir.program import Kernel
from .kernels import attention, copy, gemm, image, rows
from .kernels.gemm_narrow import NarrowProduct, is_narrow_product
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
    maker = _maker_of(node.opdef.name)
    if maker is None:
        return None
    kernel = maker(node, reference, threads, check)
    if compile_first and isinstance(kernel, TieredKernel):
        kernel.compile()
    return reference if kernel is None else kernel


@cache
def _maker_of(op: str) -> Maker | None:
    return _update if "Apply" in op or op in ACCUMULATES else _MAKERS.get(op)


def _copy(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
    return copy.copy_kernel(node, reference, threads)


def _update(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
    kernel = update_kernel(node, reference, threads, check)
    return sparse_update_kernel(node, reference, threads, check) if kernel is None else kernel


def _product(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
    if is_narrow_product(node):
        return NarrowProduct(node, reference, threads, check)
    return gemm.product_kernel(node, reference, threads, check)


def _single(make: Callable[[Node, int], tuple[str, Callable[..., Any]] | None], known: Mapping[str, int]) -> Maker:
    """A maker from a function of a node and threads, which gives the source text and the call of a `NodeKernel`."""

    def maker(node: Node, reference: Kernel, threads: int, check: bool) -> Kernel | None:
        found = make(node, threads)
        if found is None:
            return None
        return NodeKernel(node, reference, *found, check=check, known_input=known.get(node.type, -1))

    return maker


_MAKERS: dict[str, Maker] = {
    **dict.fromkeys(copy.OPS, _copy),
    **dict.fromkeys(gemm.OPS, _product),
    **dict.fromkeys(image.OPS, _single(image.image_kernel, image.KNOWN_INPUTS)),
    **dict.fromkeys(rows.SUMS, _single(rows.row_kernel, rows.KNOWN_INPUTS)),
    **dict.fromkeys(rows.TOP, _single(rows.top_kernel, rows.KNOWN_INPUTS)),
    **dict.fromkeys(attention.OPS, _single(attention.attention_kernel, {})),
}
