"""Algebraic identities that spare a costly function.

They change rounding, or the handling of NaN and infinity, and so run only under `fast_math`; the first power is exact. Identities of cheap
arithmetic, such as `x * 1` or `-(-x)`, are no rules: inside a kernel they cost nothing (docs/concepts/kernels-cpu.md, "Ablation").
"""

from __future__ import annotations

from .dsl import Rule

algebra_rules = (
    Rule("to the power one", "x ** 1", "x"),
    Rule("to the power a half", "x ** 0.5", "Sqrt(x)", fast=True),
    Rule("to the power minus one", "x ** -1", "Reciprocal(x)", fast=True),
    Rule("logarithm of an exponential", "Log(Exp(x))", "x", fast=True),
    Rule("logarithm of a softmax", "Log(Softmax(x))", "LogSoftmax(x)", fast=True),
)
