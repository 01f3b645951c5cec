"""Algebraic identities.

Rules without `fast` are exact for every value, including NaN, infinities and both zeros. So `x + 0` is not `x` (-0 + 0 is 0), but
`x - 0` is. Integers, which wrap around, may be reassociated; floats may not.
"""

from __future__ import annotations

import math

import numpy as np

from ....graph.core.graph import Tensor
from ....graph.core.shape import is_static
from .dsl import Match, Rule


def _condition_fits(m: Match) -> bool:
    """The condition cannot broadcast the result to a larger shape than the selected operand."""
    c, x = m["c"].dims, m["x"].dims
    return c == () or (is_static(c) and c == x)


def _power_of_two(m: Match) -> Tensor | None:
    """x / c = x * (1 / c), exactly, where both are powers of two."""
    c = m.value("c")
    if c is None or c.size != 1 or c.dtype.kind != "f":
        return None
    mantissa, exponent = math.frexp(float(c.reshape(())))
    if abs(mantissa) != 0.5 or abs(exponent) > 100:  # 1 / c is a normal float32, too
        return None
    return m.make("Mul", (m["x"], m.constant(np.ones((), c.dtype) / c)), {})


def _reciprocal(m: Match) -> Tensor | None:
    """x / c = x * (1 / c): one more rounding."""
    c = m.value("c")
    if c is None or c.dtype.kind != "f" or not np.all(np.isfinite(1 / c)):
        return None
    return m.make("Mul", (m["x"], m.constant(np.ones((), c.dtype) / c)), {})


def _together(op: str, outer: str = "") -> Rule:
    """(x + c) + d = x + (c + d), where c and d are constants of one element, or c has d's shape."""
    sign = {"AddV2": "+", "Mul": "*"}[op]

    def make(m: Match) -> Tensor | None:
        c, d = m.value("c"), m.value("d")
        if c is None or d is None or not (c.ndim == 0 or d.ndim == 0 or c.shape == d.shape):
            return None
        with np.errstate(all="ignore"):
            both = c + d if op == "AddV2" else c * d
        return m.make(op, (m["x"], m.constant(both.astype(c.dtype))), {})

    pattern = f"(x {sign} (c := Const())) {sign} (d := Const())"
    if outer:
        return Rule(f"constants {outer} together", pattern, make, fast=True)
    return Rule(f"integer constants {sign} together", pattern, make, integer=True)


algebra_rules = (
    Rule("times one", "x * 1", "x"),
    Rule("divided by one", "x / 1", "x"),
    Rule("minus zero", "x - 0", "x"),
    Rule("plus minus zero", "x + -0.0", "x"),
    Rule("integer plus zero", "x + 0", "x", integer=True),
    Rule("integer times zero", "x * 0", "ZerosLike(x)", integer=True),
    Rule("integer minus itself", "x - x", "ZerosLike(x)", integer=True),
    Rule("to the power one", "x ** 1", "x"),
    Rule("double negation", "-(-x)", "x"),
    Rule("plus a negative", "x + -y", "x - y"),
    Rule("minus a negative", "x - -y", "x + y"),
    Rule("product of negatives", "-x * -y", "x * y"),
    Rule("quotient of negatives", "-x / -y", "x / y"),
    Rule("square of a negative", "Square(-x)", "Square(x)"),
    Rule("square of an absolute value", "Square(Abs(x))", "Square(x)"),
    Rule("absolute value of a negative", "Abs(-x)", "Abs(x)"),
    Rule("absolute value twice", "Abs(Abs(x))", "Abs(x)"),
    Rule("relu twice", "Relu(Relu(x))", "Relu(x)"),
    Rule("not not", "LogicalNot(LogicalNot(x))", "x"),
    Rule("maximum with itself", "Maximum(x, x)", "x"),
    Rule("minimum with itself", "Minimum(x, x)", "x"),
    Rule("and with itself", "LogicalAnd(x, x)", "x"),
    Rule("or with itself", "LogicalOr(x, x)", "x"),
    Rule("choice between equals", "SelectV2(c, x, x)", "x", _condition_fits),
    Rule("divided by a power of two", "x / (c := Const())", _power_of_two),
    _together("AddV2"),
    _together("Mul"),
    Rule("plus zero", "x + 0", "x", fast=True),
    Rule("divided by a constant", "x / (c := Const())", _reciprocal, fast=True),
    Rule("to the power two", "x ** 2", "Square(x)", fast=True),
    Rule("to the power a half", "x ** 0.5", "Sqrt(x)", fast=True),
    Rule("to the power minus one", "x ** -1", "Reciprocal(x)", fast=True),
    Rule("one over a root", "{1 / Sqrt(x), Reciprocal(Sqrt(x))}", "Rsqrt(x)", fast=True),
    Rule("logarithm of an exponential", "Log(Exp(x))", "x", fast=True),
    Rule("logarithm of a softmax", "Log(Softmax(x))", "LogSoftmax(x)", fast=True),
    _together("AddV2", "added"),
    _together("Mul", "multiplied"),
)
