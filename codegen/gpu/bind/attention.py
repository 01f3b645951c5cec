"""Templates of attention: alone, and in programs that are trained (`codegen/passes/attention_fusion.py`), with and without a mask.

Operands are stacks of any number of axes; to the kernels the last of these are heads and all others a batch. A mask is broadcast
along axes of size 1; it may lack leading ones. Where it is broadcast along some axes of the batch and not along others, or along
the keys, the node runs on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ....graph.core.graph import Node
from ..templates.attention import attention, attention_sizes
from .template import Choice, Template

Shape = tuple[int, ...]

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
        sums = (tuple(q[:-1]), np.dtype(np.float32))
        return Choice(routines, sizes, [(q, dtype.np), sums], results=1 + (node.type == "AttentionWithSums"))

    return Template(len(node.inputs), choose)


ATTENTION_MAKERS = dict.fromkeys(("Attention", "AttentionWithSums", "AttentionGrad"), _attention)
