"""The families of kernels on CPUs: which nodes each takes, and how it makes their kernels.

A node that none takes (other element types, sizes too small to pay) runs its reference on NumPy. That of `TopKV2` would sort whole rows;
`topk_source` keeps the k largest in order while it scans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import Array, DType, float32, float64, int32, int64
from ....graph.core.graph import Node
from ...fusion.optimizer_loops import ACCUMULATES
from ...ir.nodes import PRODUCTS
from ...ir.program import REFERENCE, Kernel, Work
from ...options import is_enabled
from ...target import NS_PER_COMPARED, NS_PER_FOUND
from ..emit.instantiate import text_of
from ..native.planner import Planner
from ..work_parts import parts_of
from . import conv, copy, gemm, optimizer
from .node import NodeKernel

MOST_K = 256  # the largest k of top-k: each insertion moves some of the numbers found so far

LOOPS = "fused loops"
"""The family of fused kernels."""

Takes: TypeAlias = Callable[[Node], bool]
Maker: TypeAlias = Callable[[Node, Kernel, int, bool], Kernel]


def _of(*types: DType) -> Takes:
    """Nodes whose first output is of one of these types."""
    return lambda node: node.outputs[0].dtype.base in types


def _single(make: Callable[[Node, int], tuple[str, Callable[..., Any]]]) -> Maker:
    """A maker from a function of a node and threads, which gives the source text and the call of a `NodeKernel`."""
    return lambda node, reference, threads, check: NodeKernel(node, reference, *make(node, threads), check=check)


def top_kernel(node: Node, threads: int) -> tuple[str, Callable[..., tuple[Array, Array] | None]]:
    """The source text for a `TopKV2`, and the `call` of its `NodeKernel`. The reference does the work if k is too large."""

    def top(function: Any, planner: Planner, x: Array, k: Array) -> tuple[Array, Array] | None:
        count, length = int(planner.known(k)), x.shape[-1]
        if not 0 < count <= min(length, MOST_K) or not x.size:
            return None
        rows, shape = x.size // length, (*x.shape[:-1], count)
        values, places = planner.empty(shape, x.dtype), planner.empty(shape, np.dtype(np.int32))
        time = x.size * NS_PER_COMPARED + rows * count * NS_PER_FOUND
        arrays = planner.ordered(x).reshape(-1), values.reshape(-1), places.reshape(-1)
        planner.share(function, (*arrays, (length, count)), rows, parts_of(rows, time, threads), threads)
        return values, places

    return text_of("kernels/topk_source", {"top": ("aap", (2,))}, node.outputs[0].dtype.name), top


_FLOATS = _of(float32, float64)

FAMILIES: dict[str, tuple[Collection[str], Takes, Maker]] = {
    "copies": (copy.OPS, lambda node: True, copy.copy_kernel),
    "matrix products": (PRODUCTS, _FLOATS, gemm.ProductKernel),
    "convolutions": (conv.OPS, _FLOATS, _single(conv.conv_kernel)),
    "top k": (("TopKV2",), _of(float32, float64, int32, int64), _single(top_kernel)),
    "updates": (ACCUMULATES, optimizer.takes_update, optimizer.update_kernel),
}
"""The families of hand-written kernels: their ops (of updates also all with "Apply" in their names); which nodes of these they take; and
`maker(node, reference, threads, check)`, which gives a node's kernel."""

_FAMILY_OF = {op: name for name, (ops, *_) in FAMILIES.items() for op in ops}


def family_of(node: Node) -> str:
    """The family that a node belongs to."""
    op = node.opdef.name
    name = "updates" if "Apply" in op else _FAMILY_OF.get(op)
    return name if name is not None and is_enabled(name) and FAMILIES[name][1](node) else REFERENCE


def is_native(work: Work) -> bool:
    """Whether the kernel of a work records its launches into native plans; those of updates do so as updates only."""
    family = work.family
    return family == LOOPS or family in FAMILIES and family != "updates" and work.nodes[0].type != "Reshape"
