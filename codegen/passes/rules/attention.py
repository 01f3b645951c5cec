"""Recognises attention that is written out, in programs without gradients: where its probabilities have another consumer, it stays.

The result is that of the formula up to rounding. `passes/attention_fusion.py` is for programs with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ....graph.core.graph import Tensor
from ....graph.ops.nn import attention as _attention_ops  # noqa: F401  the op that the rule makes
from .dsl import Match, Rule


def scaled(pattern: str, name: str) -> str:
    """A pattern, or its match times or divided by a number: `factor` gives that."""
    return f"{{{pattern} * {name}, {pattern} / {name}_under, {pattern}}}"


def factor(names: Mapping[str, Any], name: str, value_of: Callable[[str], Any]) -> float | None:
    """The number that a match of `scaled` was multiplied by: 1 if it was not; None if it is not known, or no finite number.

    `value_of`: the value of the tensor of a name; None: it is not known.
    """
    under = f"{name}_under" in names
    if not under and name not in names:
        return 1.0
    array = value_of(f"{name}_under" if under else name)
    value = float(array.reshape(())) if array is not None and array.size == 1 else np.nan
    if not np.isfinite(value) or (under and value == 0):
        return None
    return 1.0 / value if under else value


SCORES = scaled("BatchMatMulV2(q, k, adj_x=False, adj_y=True)", "scale")


def _attention(m: Match) -> Tensor | None:
    """softmax(q kᵗ scale + mask) v, over stacks of matrices of one static rank."""
    q, k, v = m["q"], m["k"], m["v"]
    if not (q.dims and k.dims and v.dims) or not len(q.dims) == len(k.dims) == len(v.dims) >= 3:
        return None
    if q.dims[:-2] != k.dims[:-2] or k.dims[:-2] != v.dims[:-2]:
        return None
    scale = factor(m.found.names, "scale", m.value)
    if scale is None:
        return None
    inputs = (q, k, v, m["mask"]) if "mask" in m else (q, k, v)
    return m.make("Attention", inputs, {"scale": scale})


attention_rules = (
    Rule(
        "attention",
        f"BatchMatMulV2(Softmax({{{SCORES}, {SCORES} + mask}}), v, adj_x=False, adj_y=False)",
        _attention,
    ),
)
