"""Binds matrix products to the GEMM template."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8
from ....graph.core.graph import Node
from ...ir.nodes import transposed
from ...ir.tile_loops import TileLoops, plain
from ..ir import Routine, Target
from ..templates.gemm import added, matmul, product_sizes
from .template import Choice, Template

_MOST_CANDIDATES = 6  # of one template: each is compiled once per machine, which takes up to a second


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


def product_template(
    node: Node, target: Target, edges: Sequence[TileLoops | None] = (None, None, None), *, tf32: bool = False
) -> Template:
    """The template of MatMul or BatchMatMul, with elementwise work before its operands and behind it."""
    dtype, batched = node.outputs[0].dtype.base, node.type != "MatMul"
    if any(t.dtype.base is not dtype for t in node.inputs):
        raise ValueError("one type only")
    transpose_a, transpose_b = transposed(node)
    before, behind = list(edges[:2]), edges[2] or plain(dtype, 3 if batched else 2, computed=added(dtype))
    a, b = (t.dtype.base if e is None else e.loops.loads[0].dtype for t, e in zip(node.inputs, before, strict=True))
    narrow_a, narrow_b = map(narrowed, before)
    if target.has_float8 and dtype.size == 2 and narrow_a is not None and narrow_b is not None:
        before = [*narrow_a, *narrow_b]
    found: dict[Any, Sequence[Routine]] = {}

    def routines(known: Mapping[str, int]) -> Sequence[Routine]:
        """Ways to cut the product, for sizes of which these facts hold."""
        key = tuple(sorted(known.items()))
        if key not in found:
            found[key] = matmul(
                a, b, target=target, transpose_a=transpose_a, transpose_b=transpose_b, batched=batched,
                prologue_a=before[0], prologue_b=before[1], epilogue=behind, tf32=tf32, known=known,
            )[:_MOST_CANDIDATES]  # fmt: skip
        return found[key]

    def choose(shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        """Tiles for these sizes."""
        stacks = [s[:-2] for s in shapes]
        counts = [math.prod(s) for s in stacks]
        if stacks[0] != stacks[1] and (1 not in counts or any(edges[:2])):
            # stacks that are broadcast along some axes only; work before an operand looks at the whole stack
            return None
        flat = [(count, *s[-2:]) for count, s in zip(counts, shapes, strict=True)] if batched else shapes
        sizes = product_sizes(flat[0], flat[1], transpose_a, transpose_b)
        known = {n: sizes[n] for n in ("m", "n", "k", "batch")}
        if not all(known.values()):
            return None
        shape = (*np.broadcast_shapes(*stacks), sizes["m"], sizes["n"])
        return Choice(routines(known), sizes, [(shape, dtype.np)])

    routines({})  # ValueError for a type that no kernel multiplies
    return Template(2, choose)
