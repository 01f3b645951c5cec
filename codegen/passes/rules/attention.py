"""Recognises attention that is written out, in programs without gradients: where its probabilities have another consumer, it stays.

The result is that of the formula up to rounding. `passes/attention_fusion.py` is for programs with gradients.
"""

from __future__ import annotations

import numpy as np

from ....graph.core.graph import Tensor
from ....graph.ops.nn import attention as _attention_ops  # noqa: F401  the op that the rule makes
from .dsl import Match, Rule


def _attention(m: Match) -> Tensor | None:
    """softmax(q kᵗ scale + mask) v, over stacks of matrices of one static rank."""
    q, k, v = m["q"], m["k"], m["v"]
    if not (q.dims and k.dims and v.dims) or not len(q.dims) == len(k.dims) == len(v.dims) >= 3:
        return None
    if q.dims[:-2] != k.dims[:-2] or k.dims[:-2] != v.dims[:-2]:
        return None
    scale = m.number("scale") if "scale" in m else m.number("under") if "under" in m else 1.0
    if scale is None or not np.isfinite(scale) or ("under" in m and scale == 0):
        return None
    inputs = (q, k, v, m["mask"]) if "mask" in m else (q, k, v)
    return m.make("Attention", inputs, {"scale": 1.0 / scale if "under" in m else scale})


_SCORES = "BatchMatMulV2(q, k, adj_x=False, adj_y=True)"
_SCALED = f"{{{_SCORES} * scale, {_SCORES} / under, {_SCORES}}}"

attention_rules = (
    Rule(
        "attention",
        f"BatchMatMulV2(Softmax({{{_SCALED}, {_SCALED} + mask}}), v, adj_x=False, adj_y=False)",
        _attention,
    ),
)
