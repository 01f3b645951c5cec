"""Ops that the compiler makes of attention which was spelled out."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from op_table import FLOATS, OpCase, ScriptCase, real
from scipy import special

from dovetail.graph.core.build import apply, placeholder


def _attention(q: Any, k: Any, v: Any, mask: Any = 0.0) -> Any:
    return np.einsum("...nm,...me->...ne", special.softmax(0.5 * np.einsum("...nd,...md->...nm", q, k) + mask, -1), v)


def _probabilities(q: Any, k: Any, mask: Any = 0.0) -> tuple[Any, Any]:
    scores = 0.5 * np.einsum("...nd,...md->...nm", q, k) + mask
    return special.softmax(scores, -1), np.asarray(special.logsumexp(scores, -1) / np.log(2.0), np.float32)


def _with_sums(q: Any, k: Any, v: Any, mask: Any = 0.0) -> list[Any]:
    return [_attention(q, k, v, mask), _probabilities(q, k, mask)[1]]


def _attention_grad(q: Any, k: Any, v: Any, result: Any, sums: Any, grad: Any, mask: Any = 0.0) -> list[Any]:
    """Written out by index: the derivative of each score, then of what it is made from."""
    p, _ = _probabilities(q, k, mask)
    of_p = np.einsum("...ne,...me->...nm", grad, v)
    of_scores = 0.5 * p * (of_p - np.einsum("...nm,...nm->...n", p, of_p)[..., None])
    return [
        np.einsum("...nm,...md->...nd", of_scores, k),
        np.einsum("...nm,...nd->...md", of_scores, q),
        np.einsum("...nm,...ne->...me", p, grad),
    ]


def _build(op: str, **attrs: Any) -> Any:
    return lambda *inputs: apply(op, inputs, attrs)


def _build_all(op: str, **attrs: Any) -> Any:
    return lambda *inputs: list(apply(op, inputs, attrs).op.outputs)


def _limits() -> None:
    x = placeholder("float32", [2, 3])
    with pytest.raises(TypeError, match="scale must be a float"):
        apply("Attention", (x, x, x), {"scale": None})
    with pytest.raises(ValueError, match="not 2 inputs"):
        apply("Attention", (x, x), {"scale": 1.0})
    with pytest.raises(ValueError, match="not 3"):
        apply("AttentionGrad", (x, x, x), {"scale": 1.0})
    with pytest.raises(ValueError, match="do not fit"):
        apply("Attention", (x, x, placeholder("float32", [4, 3])), {"scale": 1.0})


attention = partial(_build, "Attention", scale=0.5)
q, k, v = real(2, 3, 4), real(2, 5, 4, seed=1), real(2, 5, 6, seed=2)
with_sums, attention_grad = (partial(_build_all, op, scale=0.5) for op in ("AttentionWithSums", "AttentionGrad"))
given = [q, k, v, real(2, 3, 6, seed=3), np.zeros((2, 3), np.float32), real(2, 3, 6, seed=4)]

CASES = [
    OpCase("Attention", attention(), [q, k, v], _attention, FLOATS, rtol=1e-4),
    OpCase("Attention", attention(), [q, k, v, real(3, 5)], _attention, FLOATS, rtol=1e-4, label="mask"),
    OpCase("AttentionWithSums", with_sums(), [q, k, v], _with_sums, FLOATS, rtol=1e-4),
    OpCase("AttentionWithSums", with_sums(), [q, k, v, real(3, 5)], _with_sums, FLOATS, rtol=1e-4, label="mask"),
    OpCase("AttentionGrad", attention_grad(), given, _attention_grad, FLOATS, rtol=1e-3),
    OpCase(
        "AttentionGrad", attention_grad(), [*given, real(2, 3, 5)], _attention_grad, FLOATS, rtol=1e-3, label="mask"
    ),
    ScriptCase((), _limits, "limits of composites"),
]
