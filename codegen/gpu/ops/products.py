"""Templates of matrix products; and of attention, alone and in programs that are trained (`codegen/passes/attention_fusion.py`).

Operands of attention are stacks of any number of axes; to the kernels the last of these are heads and all others a batch. A mask is
broadcast along axes of size 1; it may lack leading ones. Where it is broadcast along some axes of the batch and not along others, or
along the keys, the node runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ....graph.core.dtypes import FLOAT8
from ....graph.core.graph import Node
from ...ir.loop_nest import TileLoops, plain
from ...ir.nodes import transposed
from ...target import Target
from ..ir import Choice, Count, Routine, Scratch, Shape, Template
from ..templates.attention import attention, attention_sizes
from ..templates.gemm import added, matmul, product_sizes

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

    def routines(known: Mapping[str, int]) -> Sequence[Routine]:
        return matmul(
            a, b, target=target, transpose_a=transpose_a, transpose_b=transpose_b, batched=batched,
            prologue_a=before[0], prologue_b=before[1], epilogue=behind, tf32=tf32, known=known,
        )[:_MOST_CANDIDATES]  # fmt: skip

    def choose(shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
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


# --- attention -------------------------------------------------------------------------------------------------------


LARGEST_HEAD = 256


def _sizes(q: Shape, k: Shape, v: Shape, mask: Shape | None) -> dict[str, int] | None:
    """The sizes of a launch; None when the kernels are not for these shapes."""
    if len(q) < 3 or q[:-2] != k[:-2] or k != v or q[-1] != k[-1] or not 0 < q[-1] <= LARGEST_HEAD or 0 in q or 0 in k:
        return None
    batch, four = math.prod(q[:-3]), None
    if mask is not None:
        if len(mask) > len(q):
            return None
        mask = (1,) * (len(q) - len(mask)) + mask
        if mask[:-3] != q[:-3] and any(m != 1 for m in mask[:-3]):
            return None
        four = (math.prod(mask[:-3]), *mask[-3:])
    return attention_sizes((batch, *q[-3:]), (batch, *k[-3:]), four)


def _attention(node: Node, *, tf32: bool = False) -> Template:
    """`Attention`; `AttentionWithSums`, which keeps what the other throws away; and `AttentionGrad`, in the order of its inputs."""
    backward = node.type == "AttentionGrad"
    dtype, scale, first = node.outputs[0].dtype.base, float(node.attrs["scale"]), 6 if backward else 3
    mask = node.inputs[first].dtype.base if len(node.inputs) > first else None
    attention(dtype, 64, scale, backward=backward, mask=mask)  # ValueError for a type that no kernel has

    def choose(shapes: Sequence[Shape], others: Sequence[object]) -> Choice | None:
        q, k, v = shapes[:3]
        sizes = _sizes(q, k, v, shapes[first] if mask is not None else None)
        # Behind them the gradient has the result, the sums and the result's gradient.
        if sizes is None or (backward and tuple(shapes[3:6]) != (q, q[:-1], q)):
            return None
        routines = attention(dtype, q[-1], scale, backward=backward, mask=mask, tf32=tf32, known=sizes)
        if backward:
            return Choice(routines, sizes, [(shape, dtype.np) for shape in (q, k, v)])
        if node.type == "Attention":  # the sums are of no use
            sums = Scratch("out1", "fp32", (Count(("batch", "heads", "queries")),))
            return Choice([replace(r, scratch=(*r.scratch, sums)) for r in routines], sizes, [(q, dtype.np)])
        return Choice(routines, sizes, [(q, dtype.np), (tuple(q[:-1]), np.dtype(np.float32))])

    return Template(len(node.inputs), choose)


ATTENTION_MAKERS = dict.fromkeys(("Attention", "AttentionWithSums", "AttentionGrad"), _attention)
