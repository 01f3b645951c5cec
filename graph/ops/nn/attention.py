"""Attention with its gradient, which the GPU compiler makes of attention that is spelled out in a training program.

`Attention` alone (`fused_ops.py`) is for programs without gradients, where the matrix of probabilities has no other consumer. The
forward op here also gives `sums`, one number for each query: log2 of the sum of the exponentials of its scores. The gradient
recomputes the probabilities from it, so the matrix is never stored (Dao et al., FlashAttention, 2022).

The gradients are those of the parts: over a broadcast stack they are not summed, as a matrix product's are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import FLOATS, Array, float32
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, opdef
from ..linalg.linalg import wide
from ..math.common import allowed, same_type


def _parts(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """What `Attention` infers for queries, keys, values and maybe a mask."""
    return opdef("Attention").infer(inputs, attrs)


def _forward_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """As `Attention`, and a number for each query."""
    ((dtype, dims),) = _parts(inputs, attrs)
    return [(dtype, dims), (float32, None if dims is None else dims[:-1])]


def _scores(q: Array, k: Array, mask: Array | None, scale: float) -> Array:
    scores: Array = wide(q) @ np.swapaxes(wide(k), -1, -2)
    scores = scores * np.asarray(scale, scores.dtype)
    return scores if mask is None else scores + mask


def _forward(q: Array, k: Array, v: Array, mask: Array | None = None, *, scale: float) -> tuple[Array, Array]:
    scores = _scores(q, k, mask, scale)
    largest = scores.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(scores - largest)
    total = e.sum(-1, keepdims=True)
    sums = ((largest + np.log(total)) * math.log2(math.e))[..., 0]
    return np.asarray((e / total) @ wide(v), q.dtype), np.asarray(sums, np.float32)


def _gradient_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """Queries, keys, values, the result, its sums, the result's gradient, and maybe a mask -> gradients of the first three."""
    if len(inputs) not in (6, 7):
        raise ValueError(
            f"takes attention's three operands, its two results, a gradient and maybe a mask, not {len(inputs)}"
        )
    q, k, v, result, sums, grad = inputs[:6]
    allowed(sums.dtype.base, (float32,))
    dtype = allowed(same_type((q, k, v, result, grad, *inputs[6:])), FLOATS)
    ((_, dims),) = _parts((q, k, v, *inputs[6:]), attrs)
    if dims is None or k.dims is None or v.dims is None or q.dims is None:
        return [(dtype, None)] * 3
    return [(dtype, (*dims[:-2], *t.dims[-2:])) for t in (q, k, v) if t.dims is not None]


def _gradient(
    q: Array, k: Array, v: Array, result: Array, sums: Array, grad: Array, mask: Array | None = None, *, scale: float
) -> tuple[Array, Array, Array]:
    scores = wide(q) @ np.swapaxes(wide(k), -1, -2)
    masked = _scores(q, k, mask, scale)
    e = np.exp(masked - masked.max(-1, keepdims=True, initial=-np.inf))
    p = e / e.sum(-1, keepdims=True)
    of_p = _unrepeated(wide(grad) @ np.swapaxes(wide(v), -1, -2), p.shape)
    of_scores = _unrepeated((of_p - (of_p * p).sum(-1, keepdims=True)) * p, scores.shape)
    of_scores = of_scores * np.asarray(scale, of_scores.dtype)
    made = of_scores @ wide(k), np.swapaxes(of_scores, -1, -2) @ wide(q), np.swapaxes(p, -1, -2) @ wide(grad)
    dq, dk, dv = (np.asarray(x, q.dtype) for x in made)
    return dq, dk, dv


def _unrepeated(x: Array, shape: tuple[int, ...]) -> Any:
    """The sum of an array over the axes along which `shape` was repeated."""
    over = tuple(range(x.ndim - len(shape)))
    x = x.sum(over) if over else x
    repeated = tuple(i for i, (have, want) in enumerate(zip(x.shape, shape, strict=True)) if have != want)
    return x.sum(repeated, keepdims=True) if repeated else x


def _cost(products: float) -> Any:
    """So many products of the size of the scores' each."""

    def cost(node: Node) -> Cost:
        forward = opdef("Attention").cost_of(node).flops
        return Cost(forward * products / 2, default_cost(node).bytes)

    return cost


define("AttentionWithSums", _forward_rule, _forward, cost=_cost(2))
define("AttentionGrad", _gradient_rule, _gradient, cost=_cost(5))
