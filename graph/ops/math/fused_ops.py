"""Ops that no program writes: the compiler makes them of formulas that were spelled out (`codegen/passes/rules/idioms.py`).

Each computes the formula that it replaces. They are made after gradients were built, so they have none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.dtypes import FLOATS, Array
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size, typed_attr
from ...core.scalar_math import reference_of
from ...core.shape import compatible, text
from ..linalg.linalg import wide
from .common import allowed, define_elementwise, same_type, unary_rule
from .static_operands import need_rank_at_least

# --- elementwise --------------------------------------------------------------------------------------------


def _gelu(m: Any, x: Any, *, approximate: bool) -> Any:
    """x * P(X <= x), in the order of operations of `nn.gelu`."""
    if approximate:
        step = m.tanh((x + 0.044715 * (x * (x * x))) * math.sqrt(2 / math.pi))
    else:
        step = m.erf(x * math.sqrt(0.5))
    return (0.5 * x) * (1 + step)


def _gelu_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "approximate", bool)
    return unary_rule(FLOATS)(inputs, attrs)


define("Gelu", _gelu_rule, reference_of(_gelu), scalar=_gelu, cost=lambda node: default_cost(node, 20))
define_elementwise("Silu", lambda m, x: x * (1 / (1 + m.exp(-x))), FLOATS, flops=13)


# --- layer normalisation ------------------------------------------------------------------------------------


def _epsilon(attrs: Attrs, name: str = "epsilon") -> None:
    typed_attr(attrs, name, float)


def _layer_norm_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """x, or x with gain and bias of the size of its last axis."""
    if len(inputs) not in (1, 3):
        raise ValueError(f"takes x, or x, gain and bias, not {len(inputs)} inputs")
    _epsilon(attrs)
    x = inputs[0]
    need_rank_at_least(x.dims, 1, "x")
    for t in inputs[1:]:
        if not compatible(t.dims, None if x.dims is None else x.dims[-1:]):
            raise ValueError(f"gain and bias must fit the last axis of {text(x.dims)}, not be {text(t.dims)}")
    return [(allowed(same_type(inputs), FLOATS), x.dims)]


def _layer_norm(x: Array, gain: Array | None = None, bias: Array | None = None, *, epsilon: float) -> Array:
    values = wide(x)
    centred = values - values.mean(-1, keepdims=True)
    variance = np.square(centred).mean(-1, keepdims=True)
    centred *= 1 / np.sqrt(variance + np.asarray(epsilon, values.dtype))
    if gain is not None and bias is not None:
        centred *= gain
        centred += bias
    return np.asarray(centred, x.dtype)


define("LayerNorm", _layer_norm_rule, _layer_norm, cost=lambda node: default_cost(node, 8))


# --- attention ----------------------------------------------------------------------------------------------


def _attention_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    """Queries [..., n, d], keys [..., m, d], values [..., m, e], and maybe a mask that is added to the scores."""
    if len(inputs) not in (3, 4):
        raise ValueError(f"takes queries, keys, values, and maybe a mask, not {len(inputs)} inputs")
    _epsilon(attrs, "scale")
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
    """softmax(q kᵗ scale + mask) v, one matrix of scores at a time: all of them need not be in memory together."""
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    batch = q.shape[:-2]
    masks = None if mask is None else np.broadcast_to(mask, (*batch, q.shape[-2], k.shape[-2]))
    for at in np.ndindex(batch):
        scores = wide(q[at]) @ wide(k[at]).T
        scores *= np.asarray(scale, scores.dtype)
        if masks is not None:
            scores += masks[at]
        scores -= scores.max(-1, keepdims=True, initial=-np.inf)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        out[at] = scores @ wide(v[at])
    return out


def _attention_cost(node: Node) -> Cost:
    """Two products, and some 16 operations for each score."""
    q, k, v = node.inputs[:3]
    keys = 1 if k.dims is None else k.dims[-2] or 1
    width = 1 if v.dims is None else v.dims[-1] or 1
    rows = size(node.outputs[0]) / width
    return Cost(2.0 * size(q) * keys + rows * keys * (16.0 + 2.0 * width), default_cost(node).bytes)


define("Attention", _attention_rule, _attention, cost=_attention_cost)
