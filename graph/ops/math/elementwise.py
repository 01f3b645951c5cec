"""Functions of one element: exponentials, logarithms, trigonometric, hyperbolic and special functions, rounding.

All take floating types and keep the element type. `round` returns integers unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...core.build import Grads, TensorLike, apply, convert
from ...core.dtypes import FLOATS, bool_
from ...core.graph import Node, Tensor
from .arithmetic import add, multiply, negative, reciprocal, rsqrt, square, subtract
from .broadcasting import unbroadcast
from .common import UnaryFunction, binary, define_elementwise, define_unary

_TRANSCENDENTAL = 10.0  # flops that one exp, log or sin counts as


def _define(
    op: str, text: str, scalar: Any, derivative: Callable[[Tensor, Tensor], Tensor], flops: float = _TRANSCENDENTAL
) -> UnaryFunction:
    """Define a function. `derivative(x, y)` is that at x, where the function is y."""

    def gradient(node: Node, grad: Tensor) -> Grads:
        return [multiply(grad, derivative(node.inputs[0], node.outputs[0]))]

    return define_unary(op, text, scalar, FLOATS, gradient=gradient, flops=flops)


# --- exponentials and logarithms ----------------------------------------------------------------------------

exp = _define("Exp", "e ** x.", lambda m, x: m.exp(x), lambda x, y: y)
expm1 = _define("Expm1", "exp(x) - 1, accurate near 0.", lambda m, x: m.expm1(x), lambda x, y: exp(x))
log = _define("Log", "The natural logarithm; NaN below zero.", lambda m, x: m.log(x), lambda x, y: reciprocal(x))
log1p = _define("Log1p", "log(1 + x), accurate near 0.", lambda m, x: m.log1p(x), lambda x, y: reciprocal(add(1, x)))

# --- trigonometric ------------------------------------------------------------------------------------------

sin = _define("Sin", "The sine; x in radians.", lambda m, x: m.sin(x), lambda x, y: cos(x))
cos: UnaryFunction = define_unary(
    "Cos", "The cosine; x in radians.", lambda m, x: m.cos(x), FLOATS, flops=_TRANSCENDENTAL,
    gradient=lambda node, grad: [negative(multiply(grad, sin(node.inputs[0])))],
)  # fmt: skip
tan = _define("Tan", "The tangent; x in radians.", lambda m, x: m.tan(x), lambda x, y: add(1, square(y)))


def _asin_derivative(x: Tensor) -> Tensor:
    return rsqrt(subtract(1, square(x)))


asin = _define(
    "Asin", "The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1].", lambda m, x: m.asin(x),
    lambda x, y: _asin_derivative(x),
)  # fmt: skip
acos = define_unary(
    "Acos", "The angle in [0, pi] whose cosine is x; NaN outside [-1, 1].", lambda m, x: m.acos(x), FLOATS,
    flops=_TRANSCENDENTAL, gradient=lambda node, grad: [negative(multiply(grad, _asin_derivative(node.inputs[0])))],
)  # fmt: skip
atan = _define(
    "Atan", "The angle in (-pi/2, pi/2) whose tangent is x.", lambda m, x: m.atan(x),
    lambda x, y: reciprocal(add(1, square(x))),
)  # fmt: skip


def _atan2_gradient(node: Node, grad: Tensor) -> Any:
    y, x = node.inputs
    scaled = multiply(grad, reciprocal(add(square(x), square(y))))
    return unbroadcast(y, x, multiply(x, scaled), negative(multiply(y, scaled)))


define_elementwise(
    "Atan2",
    lambda m, y, x: m.atan2(y, x),
    FLOATS,
    arity=2,
    gradient=_atan2_gradient,
    flops=2 * _TRANSCENDENTAL,
)


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The angle of the point (x, y), in [-pi, pi]."""
    return binary("Atan2", y, x, name or "Atan2")


# --- hyperbolic ---------------------------------------------------------------------------------------------

sinh = _define("Sinh", "The hyperbolic sine.", lambda m, x: m.sinh(x), lambda x, y: cosh(x))
cosh: UnaryFunction = _define("Cosh", "The hyperbolic cosine.", lambda m, x: m.cosh(x), lambda x, y: sinh(x))
tanh = _define("Tanh", "The hyperbolic tangent.", lambda m, x: m.tanh(x), lambda x, y: subtract(1, square(y)))
asinh = _define("Asinh", "The inverse hyperbolic sine.", lambda m, x: m.asinh(x), lambda x, y: rsqrt(add(1, square(x))))
acosh = _define(
    "Acosh", "The inverse hyperbolic cosine; NaN below 1.", lambda m, x: m.acosh(x), lambda x, y: reciprocal(sinh(y))
)
atanh = _define(
    "Atanh", "The inverse hyperbolic tangent; NaN outside [-1, 1].", lambda m, x: m.atanh(x),
    lambda x, y: reciprocal(subtract(1, square(x))),
)  # fmt: skip

# --- the logistic function and special functions ------------------------------------------------------------


def _gaussian(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: multiply(factor, exp(negative(square(x))))


_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)

sigmoid = _define(
    "Sigmoid", "1 / (1 + exp(-x)).", lambda m, x: 1 / (1 + m.exp(-x)), lambda x, y: multiply(y, subtract(1, y)),
    _TRANSCENDENTAL + 2,
)  # fmt: skip
erf = _define(
    "Erf", "The error function: 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x.", lambda m, x: m.erf(x),
    _gaussian(_TWO_OVER_ROOT_PI), 2 * _TRANSCENDENTAL,
)  # fmt: skip
erfc = _define(
    "Erfc", "1 - erf(x), accurate for large x.", lambda m, x: m.erfc(x), _gaussian(-_TWO_OVER_ROOT_PI),
    2 * _TRANSCENDENTAL,
)  # fmt: skip
lgamma = _define("Lgamma", "log(|gamma(x)|).", lambda m, x: m.lgamma(x), lambda x, y: digamma(x), 3 * _TRANSCENDENTAL)
digamma: UnaryFunction = _define(
    "Digamma",
    "The derivative of `lgamma`.",
    lambda m, x: m.where((x <= 0) & (x == m.floor(x)), float("nan"), m.digamma(x)),  # at its poles, as TensorFlow
    lambda x, y: polygamma(1, x),
    3 * _TRANSCENDENTAL,
)


def _polygamma_reference(a: Any, x: Any) -> Any:
    import scipy.special

    wide: Any = np.float64 if x.dtype == np.float64 else np.float32
    n: Any = np.asarray(a).astype(wide)
    x_wide: Any = np.asarray(x).astype(wide)
    # scipy's polygamma takes integers only; psi^(n)(x) = (-1)^(n+1) n! zeta(n+1, x) for n >= 1.
    higher = np.where(n % 2 == 1, 1, -1).astype(wide) * scipy.special.gamma(n + 1) * scipy.special.zeta(n + 1, x_wide)
    result = np.where(n == 0, scipy.special.psi(x_wide), np.where((n > 0) & (n == np.floor(n)), higher, np.nan))
    return result.astype(x.dtype)


def _polygamma_gradient(node: Node, grad: Tensor) -> Any:
    a, x = node.inputs  # it is not differentiable with respect to the order a
    return unbroadcast(a, x, None, multiply(grad, polygamma(add(a, 1), x)))


define_elementwise(
    "Polygamma",
    None,
    FLOATS,
    arity=2,
    reference=_polygamma_reference,
    gradient=_polygamma_gradient,
    flops=5 * _TRANSCENDENTAL,
)


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The a-th derivative of `digamma`. NaN unless a is an integer of 0 or more."""
    return binary("Polygamma", a, x, name or "Polygamma")


# --- rounding -----------------------------------------------------------------------------------------------

floor = define_unary("Floor", "The largest integer not above x, as a float.", lambda m, x: m.floor(x), FLOATS)
ceil = define_unary("Ceil", "The smallest integer not below x, as a float.", lambda m, x: m.ceil(x), FLOATS)
rint = define_unary("Rint", "The nearest integer, as a float. Halves round to even.", lambda m, x: m.round(x), FLOATS)
trunc = define_unary("Trunc", "x rounded towards zero.", lambda m, x: m.trunc(x), FLOATS)
define_elementwise("Round", lambda m, x: m.round(x), FLOATS)


def round(x: TensorLike, name: str | None = None) -> Tensor:  # TensorFlow's name
    """The nearest integer, as a float. Halves round to even. Integer tensors are returned as they are."""
    tensor = convert(x, name="x")
    return tensor if tensor.dtype.is_integer else apply("Round", (tensor,), None, name)


# --- classification -----------------------------------------------------------------------------------------

_define_test = partial(define_unary, types=FLOATS, result=bool_)
is_nan = _define_test("IsNan", "Bool: whether x is NaN.", lambda m, x: m.isnan(x))
is_inf = _define_test("IsInf", "Bool: whether x is infinite.", lambda m, x: m.isinf(x))
is_finite = _define_test("IsFinite", "Bool: whether x is neither infinite nor NaN.", lambda m, x: m.isfinite(x))
