"""Functions of one element: exponentials, logarithms, trigonometric, hyperbolic and special functions, rounding.

All take floating types and keep the element type. `round` returns integers unchanged.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.build import Grads, TensorLike, apply, convert
from ...core.dtypes import FLOATS, bool_
from ...core.graph import Node, Tensor
from .arithmetic import add, multiply, negative, reciprocal, rsqrt, square, subtract
from .broadcasting import unbroadcast
from .common import binary, define_elementwise, unary

_TRANSCENDENTAL = 10.0  # flops that one exp, log or sin counts as


def _define(name: str, scalar: Any, gradient: Any, flops: float = _TRANSCENDENTAL) -> None:
    define_elementwise(name, scalar, FLOATS, gradient=gradient, flops=flops)


# --- exponentials and logarithms ----------------------------------------------------------------------------

_define("Exp", lambda m, x: m.exp(x), lambda node, grad: [multiply(grad, node.outputs[0])])
_define("Expm1", lambda m, x: m.expm1(x), lambda node, grad: [multiply(grad, exp(node.inputs[0]))])
_define("Log", lambda m, x: m.log(x), lambda node, grad: [multiply(grad, reciprocal(node.inputs[0]))])
_define("Log1p", lambda m, x: m.log1p(x), lambda node, grad: [multiply(grad, reciprocal(add(1, node.inputs[0])))])


def exp(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x."""
    return unary("Exp", x, name)


def expm1(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(x) - 1, accurate near 0."""
    return unary("Expm1", x, name)


def log(x: TensorLike, name: str | None = None) -> Tensor:
    """The natural logarithm; NaN below zero."""
    return unary("Log", x, name)


def log1p(x: TensorLike, name: str | None = None) -> Tensor:
    """log(1 + x), accurate near 0."""
    return unary("Log1p", x, name)


# --- trigonometric ------------------------------------------------------------------------------------------

_define("Sin", lambda m, x: m.sin(x), lambda node, grad: [multiply(grad, cos(node.inputs[0]))])
_define("Cos", lambda m, x: m.cos(x), lambda node, grad: [negative(multiply(grad, sin(node.inputs[0])))])
_define("Tan", lambda m, x: m.tan(x), lambda node, grad: [multiply(grad, add(1, square(node.outputs[0])))])
_define("Asin", lambda m, x: m.asin(x), lambda node, grad: [multiply(grad, _asin_derivative(node.inputs[0]))])
_define("Acos", lambda m, x: m.acos(x), lambda node, grad: [negative(multiply(grad, _asin_derivative(node.inputs[0])))])
_define(
    "Atan",
    lambda m, x: m.atan(x),
    lambda node, grad: [multiply(grad, reciprocal(add(1, square(node.inputs[0]))))],
)


def _asin_derivative(x: Tensor) -> Tensor:
    return rsqrt(subtract(1, square(x)))


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


def sin(x: TensorLike, name: str | None = None) -> Tensor:
    """The sine; x in radians."""
    return unary("Sin", x, name)


def cos(x: TensorLike, name: str | None = None) -> Tensor:
    """The cosine; x in radians."""
    return unary("Cos", x, name)


def tan(x: TensorLike, name: str | None = None) -> Tensor:
    """The tangent; x in radians."""
    return unary("Tan", x, name)


def asin(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""
    return unary("Asin", x, name)


def acos(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""
    return unary("Acos", x, name)


def atan(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""
    return unary("Atan", x, name)


def atan2(y: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The angle of the point (x, y), in [-pi, pi]."""
    return binary("Atan2", y, x, name or "Atan2")


# --- hyperbolic ---------------------------------------------------------------------------------------------

_define("Sinh", lambda m, x: m.sinh(x), lambda node, grad: [multiply(grad, cosh(node.inputs[0]))])
_define("Cosh", lambda m, x: m.cosh(x), lambda node, grad: [multiply(grad, sinh(node.inputs[0]))])
_define("Tanh", lambda m, x: m.tanh(x), lambda node, grad: [multiply(grad, subtract(1, square(node.outputs[0])))])
_define(
    "Asinh",
    lambda m, x: m.asinh(x),
    lambda node, grad: [multiply(grad, rsqrt(add(1, square(node.inputs[0]))))],
)
_define("Acosh", lambda m, x: m.acosh(x), lambda node, grad: [multiply(grad, reciprocal(sinh(node.outputs[0])))])
_define(
    "Atanh",
    lambda m, x: m.atanh(x),
    lambda node, grad: [multiply(grad, reciprocal(subtract(1, square(node.inputs[0]))))],
)


def sinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic sine."""
    return unary("Sinh", x, name)


def cosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic cosine."""
    return unary("Cosh", x, name)


def tanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic tangent."""
    return unary("Tanh", x, name)


def asinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic sine."""
    return unary("Asinh", x, name)


def acosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""
    return unary("Acosh", x, name)


def atanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""
    return unary("Atanh", x, name)


# --- the logistic function and special functions ------------------------------------------------------------


def _gaussian_gradient(factor: float) -> Any:
    def gradient(node: Node, grad: Tensor) -> Grads:
        return [multiply(grad, multiply(factor, exp(negative(square(node.inputs[0])))))]

    return gradient


_TWO_OVER_ROOT_PI = 2 / math.sqrt(math.pi)

_define(
    "Sigmoid",
    lambda m, x: 1 / (1 + m.exp(-x)),
    lambda node, grad: _sigmoid_gradient(node, grad),
    _TRANSCENDENTAL + 2,
)
_define("Erf", lambda m, x: m.erf(x), _gaussian_gradient(_TWO_OVER_ROOT_PI), 2 * _TRANSCENDENTAL)
_define("Erfc", lambda m, x: m.erfc(x), _gaussian_gradient(-_TWO_OVER_ROOT_PI), 2 * _TRANSCENDENTAL)
_define(
    "Lgamma",
    lambda m, x: m.lgamma(x),
    lambda node, grad: [multiply(grad, digamma(node.inputs[0]))],
    3 * _TRANSCENDENTAL,
)
_define(
    "Digamma",
    lambda m, x: m.where((x <= 0) & (x == m.floor(x)), float("nan"), m.digamma(x)),  # at its poles, as TensorFlow
    lambda node, grad: [multiply(grad, polygamma(1, node.inputs[0]))],
    3 * _TRANSCENDENTAL,
)


def _sigmoid_gradient(node: Node, grad: Tensor) -> Grads:
    y = node.outputs[0]
    return [multiply(grad, multiply(y, subtract(1, y)))]


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


def sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / (1 + exp(-x))."""
    return unary("Sigmoid", x, name)


def erf(x: TensorLike, name: str | None = None) -> Tensor:
    """The error function: 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    return unary("Erf", x, name)


def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """1 - erf(x), accurate for large x."""
    return unary("Erfc", x, name)


def lgamma(x: TensorLike, name: str | None = None) -> Tensor:
    """log(|gamma(x)|)."""
    return unary("Lgamma", x, name)


def digamma(x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of `lgamma`."""
    return unary("Digamma", x, name)


def polygamma(a: TensorLike, x: TensorLike, name: str | None = None) -> Tensor:
    """The a-th derivative of `digamma`. NaN unless a is an integer of 0 or more."""
    return binary("Polygamma", a, x, name or "Polygamma")


# --- rounding -----------------------------------------------------------------------------------------------

define_elementwise("Floor", lambda m, x: m.floor(x), FLOATS)
define_elementwise("Ceil", lambda m, x: m.ceil(x), FLOATS)
define_elementwise("Rint", lambda m, x: m.round(x), FLOATS)
define_elementwise("Round", lambda m, x: m.round(x), FLOATS)
define_elementwise("Trunc", lambda m, x: m.trunc(x), FLOATS)


def floor(x: TensorLike, name: str | None = None) -> Tensor:
    """The largest integer not above x, as a float."""
    return unary("Floor", x, name)


def ceil(x: TensorLike, name: str | None = None) -> Tensor:
    """The smallest integer not below x, as a float."""
    return unary("Ceil", x, name)


def round(x: TensorLike, name: str | None = None) -> Tensor:  # TensorFlow's name
    """The nearest integer, as a float. Halves round to even. Integer tensors are returned as they are."""
    tensor = convert(x, name="x")
    return tensor if tensor.dtype.is_integer else apply("Round", (tensor,), None, name)


def rint(x: TensorLike, name: str | None = None) -> Tensor:
    """The nearest integer, as a float. Halves round to even."""
    return unary("Rint", x, name)


def trunc(x: TensorLike, name: str | None = None) -> Tensor:
    """x rounded towards zero."""
    return unary("Trunc", x, name)


# --- classification -----------------------------------------------------------------------------------------

define_elementwise("IsNan", lambda m, x: m.isnan(x), FLOATS, result=bool_)
define_elementwise("IsInf", lambda m, x: m.isinf(x), FLOATS, result=bool_)
define_elementwise("IsFinite", lambda m, x: m.isfinite(x), FLOATS, result=bool_)


def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is NaN."""
    return unary("IsNan", x, name)


def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is infinite."""
    return unary("IsInf", x, name)


def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is neither infinite nor NaN."""
    return unary("IsFinite", x, name)
