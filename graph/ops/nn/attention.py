"""Fused attention and its gradient. The compiler makes these ops of attention that a program writes with matrix products and a softmax.

`Attention` replaces attention without a gradient, if the matrix of probabilities has no other consumer. `AttentionWithSums` also returns
`sums`: for each query, log2 of the sum of the exponentials of its scores. `AttentionGrad` recomputes the probabilities from them, so the
matrix is never stored (Dao et al., FlashAttention, 2022).

The gradients of operands that broadcast are not summed, as for `BatchMatMulV2`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import FLOATS, Array, float32, widened
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, opdef, size, typed_attr
from ...core.shape import compatible, text
from ..math.common import allowed, same_type
from ..math.static_operands import need_rank_at_least


def _attention_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """Queries [..., n, d], keys [..., m, d], values [..., m, e], and optionally a mask that is added to the scores."""
    if len(inputs) not in (3, 4):
        raise ValueError(f"takes queries, keys, values and optionally a mask, not {len(inputs)} inputs")
    typed_attr(attrs, "scale", float)
    q, k, v = inputs[:3]
    dtype = allowed(same_type(inputs), FLOATS)
    for t, name in ((q, "queries"), (k, "keys"), (v, "values")):
        need_rank_at_least(t.dims, 2, name)
    if q.dims is None or k.dims is None or v.dims is None:
        return [(dtype, None)]
    fit = compatible(q.dims[:-2], k.dims[:-2]) and compatible(k.dims[:-2], v.dims[:-2])
    if not (fit and compatible(q.dims[-1:], k.dims[-1:]) and compatible(k.dims[-2:-1], v.dims[-2:-1])):
        raise ValueError(f"queries {text(q.dims)}, keys {text(k.dims)} and values {text(v.dims)} do not fit")
    return [(dtype, (*q.dims[:-1], v.dims[-1]))]


def _attention(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float) -> Array:
    """softmax(q kᵗ scale + mask) v. Only one matrix of scores is in memory at a time."""
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    batch = q.shape[:-2]
    masks = None if mask is None else np.broadcast_to(mask, (*batch, q.shape[-2], k.shape[-2]))
    for at in np.ndindex(batch):
        scores = widened(q[at]) @ widened(k[at]).T
        scores *= np.asarray(scale, scores.dtype)
        if masks is not None:
            scores += masks[at]
        scores -= scores.max(-1, keepdims=True, initial=-np.inf)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        out[at] = scores @ widened(v[at])
    return out


def _attention_cost(node: Node) -> Cost:
    """Two matrix products, and about 16 operations per score."""
    q, k, v = node.inputs[:3]
    keys = 1 if k.dims is None else k.dims[-2] or 1
    width = 1 if v.dims is None else v.dims[-1] or 1
    rows = size(node.outputs[0]) / width
    return Cost(2.0 * size(q) * keys + rows * keys * (16.0 + 2.0 * width), default_cost(node).bytes)


define("Attention", _attention_rule, _attention, cost=_attention_cost)


def _forward_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """The output of `Attention`, and a number per query."""
    ((dtype, dims),) = _attention_rule(inputs, attrs)
    return [(dtype, dims), (float32, None if dims is None else dims[:-1])]


def _scores(q: Array, k: Array, mask: Array | None, scale: float) -> Array:
    scores: Array = widened(q) @ np.swapaxes(widened(k), -1, -2)
    scores = scores * np.asarray(scale, scores.dtype)
    return scores if mask is None else scores + mask


def _forward(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float) -> tuple[Array, Array]:
    scores = _scores(q, k, mask, scale)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - largest)
    total = e.sum(-1, keepdims=True)
    sums = ((largest + np.log(total)) * math.log2(math.e))[..., 0]
    return np.asarray((e / total) @ widened(v), q.dtype), np.asarray(sums, np.float32)


def _gradient_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """Queries, keys, values, the result, its sums, the result's gradient, and optionally a mask -> gradients of the first three."""
    if len(inputs) not in (6, 7):
        raise ValueError(
            f"takes attention's three operands, its two results, a gradient and optionally a mask, not {len(inputs)} inputs"
        )
    q, k, v, result, sums, grad = inputs[:6]
    allowed(sums.dtype.base, (float32,))
    dtype = allowed(same_type((q, k, v, result, grad, *inputs[6:])), FLOATS)
    ((_, dims),) = _attention_rule((q, k, v, *inputs[6:]), attrs)
    if dims is None or k.dims is None or v.dims is None or q.dims is None:
        return [(dtype, None)] * 3
    return [(dtype, (*dims[:-2], *t.dims[-2:])) for t in (q, k, v) if t.dims is not None]


def _gradient(
    q: Array, k: Array, v: Array, result: Array, sums: Array, grad: Array, mask: Array | None = None, *, scale: float
) -> tuple[Array, Array, Array]:
    scores = widened(q) @ np.swapaxes(widened(k), -1, -2)
    masked = _scores(q, k, mask, scale)
    e = np.exp(masked - masked.max(-1, keepdims=True, initial=-np.inf))
    p = e / e.sum(-1, keepdims=True)
    of_p = _unrepeated(widened(grad) @ np.swapaxes(widened(v), -1, -2), p.shape)
    of_scores = _unrepeated((of_p - (of_p * p).sum(-1, keepdims=True)) * p, scores.shape)
    of_scores = of_scores * np.asarray(scale, of_scores.dtype)
    made = of_scores @ widened(k), np.swapaxes(of_scores, -1, -2) @ widened(q), np.swapaxes(p, -1, -2) @ widened(grad)
    dq, dk, dv = (np.asarray(x, q.dtype) for x in made)
    return dq, dk, dv


def _unrepeated(x: Array, shape: tuple[int, ...]) -> Any:
    """The sum of an array over the axes along which `shape` was broadcast to its shape."""
    over = tuple(range(x.ndim - len(shape)))
    x = x.sum(over) if over else x
    repeated = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(repeated, keepdims=True) if repeated else x


def _cost(products: float) -> Any:
    """A cost of `products` matrix products of the size of q kᵗ."""

    def cost(node: Node) -> Cost:
        forward = opdef("Attention").cost_of(node).flops
        return Cost(forward * products / 2, default_cost(node).bytes)

    return cost


define("AttentionWithSums", _forward_rule, _forward, cost=_cost(2))
define("AttentionGrad", _gradient_rule, _gradient, cost=_cost(5))
