"""Binds matrix products to the GEMM template, with cuBLASLt's products as further candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8, DType
from ....graph.core.graph import Node
from ....graph.core.settings import setting
from ...ir.tile_loops import TileLoops, plain
from ..driver.cublaslt import Product, library_products
from ..driver.device import Device
from ..ir import Routine, Target
from ..templates.gemm import added, matmul, product_sizes
from .template import Choice, Template

_MOST_CANDIDATES = 6  # of one template: each is compiled once per machine, which takes up to a second


@dataclass(slots=True)
class _Product:
    """MatMul and BatchMatMul."""

    node: Node
    target: Target
    transpose_a: bool
    transpose_b: bool
    batched: bool
    edges: Sequence[TileLoops | None] = (None, None, None)
    tf32: bool = False
    found: dict[Any, Sequence[Routine]] = field(default_factory=dict)

    @property
    def stored(self) -> list[DType]:
        """Types of the operands in memory."""
        given = zip(self.node.inputs, self.edges[:2], strict=True)
        return [t.dtype.base if e is None else e.loops.loads[0].dtype for t, e in given]

    @property
    def rounding(self) -> TileLoops:
        """The result in the node's type."""
        dtype = self.node.outputs[0].dtype.base
        return plain(dtype, 3 if self.batched else 2, computed=added(dtype))

    def routines(self, known: Mapping[str, int]) -> Sequence[Routine]:
        """Ways to cut the product, for sizes of which these facts hold."""
        key = tuple(sorted(known.items()))
        if key not in self.found:
            a, b = self.stored
            before_a, before_b, behind = self.edges
            if self.target.has_float8 and self.node.outputs[0].dtype.base.size == 2:
                narrow_a, narrow_b = narrowed(before_a), narrowed(before_b)
                if narrow_a is not None and narrow_b is not None:
                    (before_a,), (before_b,) = narrow_a, narrow_b
            self.found[key] = matmul(
                a, b, target=self.target, transpose_a=self.transpose_a, transpose_b=self.transpose_b, batched=self.batched,
                prologue_a=before_a, prologue_b=before_b, epilogue=behind or self.rounding, tf32=self.tf32, known=known,
            )[:_MOST_CANDIDATES]  # fmt: skip
        return self.found[key]

    def choose(self, device: Device, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """Tiles for these sizes."""
        a, b = (s[:-2] for s in shapes)
        counts = math.prod(a), math.prod(b)
        if a != b and (1 not in counts or any(self.edges[:2])):
            return (
                None  # stacks that are broadcast along some axes only; work before an operand looks at the whole stack
            )
        stack = np.broadcast_shapes(a, b)
        flat = [(count, *s[-2:]) for count, s in zip(counts, shapes, strict=True)] if self.batched else shapes
        sizes = product_sizes(flat[0], flat[1], self.transpose_a, self.transpose_b)
        if not all(sizes[n] for n in ("m", "n", "k", "batch")):
            return None
        known = {n: sizes[n] for n in ("m", "n", "k", "batch")}
        dtype = self.node.outputs[0].dtype.base
        candidates: list[Routine | Callable[[Sequence[int]], None]] = list(self.routines(known))
        if not any(self.edges) and isinstance(device, Device) and setting("DOVETAIL_AUTOTUNE"):
            candidates += library_products(device, library_product(self.node, sizes, self.tf32))
        return Choice(candidates, sizes, [((*stack, sizes["m"], sizes["n"]), dtype.np)])


def _transposed(node: Node) -> tuple[bool, bool]:
    """Whether each operand of a product lies transposed."""
    names = (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))
    a, b = (any(bool(node.attrs.get(name)) for name in pair) for pair in names)
    return a, b


def library_product(node: Node, sizes: Mapping[str, int], tf32: bool) -> Product:
    """A product as NVIDIA's library is asked for it, in the node's type."""
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    dtype = node.outputs[0].dtype.base
    return Product((dtype, dtype), dtype, (m, n, k, batch), _transposed(node), (sizes["a_step"], sizes["b_step"]), tf32)


def narrowed(edge: TileLoops | None) -> tuple[TileLoops | None] | None:
    """The work before an operand that ends with a float8 made wider, without that last step; None in it: there is no other step.

    None: it does not end so.
    """
    if edge is None or len(edge.loops.stores) != 1:
        return None
    (store,) = edge.loops.stores
    last = edge.loops.values[store.value]
    if last.op != "cast" or edge.loops.values[last.args[0]].dtype not in FLOAT8:
        return None
    if edge.loops.values[last.args[0]].op == "load":
        return (None,)
    return (TileLoops(replace(edge.loops, stores=(replace(store, value=last.args[0]),)), edge.axes),)


PRODUCTS = frozenset(("MatMul", "BatchMatMulV2"))


def product_template(
    node: Node, target: Target, edges: Sequence[TileLoops | None] = (None, None, None), *, tf32: bool = False
) -> Template:
    a, b = node.inputs
    if a.dtype.base is not b.dtype.base or node.outputs[0].dtype.base is not a.dtype.base:
        raise ValueError("one type only")
    product = _Product(
        node,
        target,
        *_transposed(node),
        node.type != "MatMul",
        edges,
        tf32,
    )
    product.routines({})  # ValueError for a type that no kernel multiplies
    return Template(2, product.choose)
