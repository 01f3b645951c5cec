"""Recognises spelled-out functions that have an op of their own.

Each is replaced only if its parts have no other consumers (a gradient of the parts is one), and only by an op that the device's
backend recognises as faster than the parts. The op computes the same formula in its own order: the last bits may differ, and the op
may not overflow where a naive spelling does.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.core.graph import Tensor
from ....graph.ops.math import fused_ops as _composites  # noqa: F401  the ops that these rules make
from .dsl import Match, Rule

_CUBE = "{x * (x * x), x ** 3, x * Square(x)}"
_ROOT = math.sqrt(2 / math.pi)
_TANH = (
    f"Tanh({{{_ROOT!r} * (x + 0.044715 * {_CUBE}), (x * {_ROOT!r}) * (1 + 0.044715 * {{Square(x), x * x, x ** 2}})}})"
)
_ERF = f"Erf({{x * {math.sqrt(0.5)!r}, x / {math.sqrt(2.0)!r}}})"


def _gelu(step: str) -> str:
    return f"{{(0.5 * x) * (1 + {step}), x * (0.5 * (1 + {step})), 0.5 * (x * (1 + {step}))}}"


def over_last_axis(m: Match) -> bool:
    """`axis` is exactly the last axis of x."""
    axes, dims = m.value("axis"), m["x"].dims
    if axes is None or not dims or axes.size != 1:
        return False
    return int(axes.reshape(())) in (-1, len(dims) - 1)


def _layer_norm(m: Match) -> Tensor | None:
    epsilon = m.number("epsilon")
    if epsilon is None or not over_last_axis(m):
        return None
    return m.make("LayerNorm", (m["x"],), {"epsilon": epsilon})


def _affine(m: Match) -> Tensor | None:
    """Layer normalization with gain and bias, if both are vectors of the last axis' size."""
    dims = m["x"].dims
    if not dims or not (m["gain"].dims == m["bias"].dims == (dims[-1],)) or dims[-1] is None:
        return None
    attrs = {"epsilon": m["epsilon"]}
    if not isinstance(attrs["epsilon"], float):
        epsilon = m.number("epsilon")
        if epsilon is None or not over_last_axis(m):
            return None
        attrs = {"epsilon": epsilon}
    return m.make("LayerNorm", (m["x"], m["gain"], m["bias"]), attrs)


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


_MEAN = "(m := Mean(x, axis, keep_dims=True))"
_VARIANCE = "Mean({SquaredDifference(x, m), Square(x - m), (x - m) * (x - m)}, axis, keep_dims=True)"
_FACTOR = f"{{Rsqrt({_VARIANCE} + epsilon), 1 / Sqrt({_VARIANCE} + epsilon)}}"
_SCORES = "BatchMatMulV2(q, k, adj_x=False, adj_y=True)"
_SCALED = f"{{{_SCORES} * scale, {_SCORES} / under, {_SCORES}}}"

function_rules = (
    Rule("sigmoid", "{1 / (1 + Exp(-x)), Reciprocal(1 + Exp(-x))}", "Sigmoid(x)"),
    Rule(
        "softmax",
        "(e := Exp(x - Max(x, axis, keep_dims=True))) / Sum(e, axis, keep_dims=True)",
        "Softmax(x)",
        over_last_axis,
    ),
    Rule(
        "log-softmax",
        "(s := x - Max(x, axis, keep_dims=True)) - Log(Sum(Exp(s), axis, keep_dims=True))",
        "LogSoftmax(x)",
        over_last_axis,
    ),
    Rule(
        "softmax without a maximum",
        "(e := Exp(x)) / Sum(e, axis, keep_dims=True)",
        "Softmax(x)",
        over_last_axis,
        fast=True,
    ),
    Rule("gelu by tanh", _gelu(_TANH), "Gelu(x, approximate=True)"),
    Rule("gelu by erf", _gelu(_ERF), "Gelu(x, approximate=False)"),
    Rule("silu", "x * Sigmoid(x)", "Silu(x)"),
    Rule(
        "layer norm",
        f"{{(x - {_MEAN}) * {_FACTOR}, (x - {_MEAN}) / Sqrt({_VARIANCE} + epsilon)}}",
        _layer_norm,
        gives="LayerNorm",
    ),
    Rule("layer norm, factored", f"x * (f := {_FACTOR}) - {_MEAN} * f", _layer_norm, gives="LayerNorm"),
    Rule(
        "layer norm, factored, with gain and bias",
        f"x * (f := {_FACTOR} * gain) + (bias - {_MEAN} * f)",
        _affine,
    ),
    Rule("gain and bias of a layer norm", "LayerNorm(x, epsilon=epsilon) * gain + bias", _affine),
    Rule(
        "attention",
        f"BatchMatMulV2(Softmax({{{_SCALED}, {_SCALED} + mask}}), v, adj_x=False, adj_y=False)",
        _attention,
    ),
)
