"""Special functions: Bessel functions, the beta function of several arguments, polynomials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..build import TensorLike, convert
from ..dtypes import FLOATS
from ..node import Node, Tensor
from .arithmetic import absolute, add, divide, multiply, sign, subtract
from .common import define_elementwise, unary
from .compare import equal, where_v2
from .creation import ones_like, zeros_like
from .math import exp, lgamma
from .operands import op_scope
from .reduce import reduce_sum


def _scaled_bessel(name: str) -> Callable[[Any], Any]:
    def reference(x: Any) -> Any:
        import scipy.special  # a heavy library

        wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
        return np.asarray(getattr(scipy.special, name)(wide)).astype(x.dtype, copy=False)

    return reference


def _bessel_i0e_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    x, y = node.inputs[0], node.outputs[0]
    return [multiply(grad, subtract(bessel_i1e(x), multiply(sign(x), y)))]


def _bessel_i1e_gradient(node: Node, grad: Tensor) -> list[Tensor]:
    x, y = node.inputs[0], node.outputs[0]
    at_zero = equal(x, zeros_like(x))
    safe = where_v2(at_zero, ones_like(x), x)
    slope = subtract(bessel_i0e(safe), multiply(y, add(sign(safe), divide(1.0, safe))))
    return [multiply(grad, where_v2(at_zero, multiply(ones_like(x), 0.5), slope))]


define_elementwise(
    "BesselI0e", None, FLOATS, gradient=_bessel_i0e_gradient, flops=30.0, reference=_scaled_bessel("i0e")
)
define_elementwise(
    "BesselI1e", None, FLOATS, gradient=_bessel_i1e_gradient, flops=30.0, reference=_scaled_bessel("i1e")
)


def bessel_i0e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) * I0(x), the modified Bessel function of order 0."""
    return unary("BesselI0e", x, name)


def bessel_i1e(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(-|x|) * I1(x), the modified Bessel function of order 1."""
    return unary("BesselI1e", x, name)


def bessel_i0(x: TensorLike, name: str | None = None) -> Tensor:
    """I0(x), the modified Bessel function of order 0. Large numbers overflow: see `bessel_i0e`."""
    with op_scope(name, "bessel_i0", x) as scope:
        given = convert(x, name="x")
        return multiply(exp(absolute(given)), bessel_i0e(given), name=scope)


def bessel_i1(x: TensorLike, name: str | None = None) -> Tensor:
    """I1(x), the modified Bessel function of order 1. Large numbers overflow: see `bessel_i1e`."""
    with op_scope(name, "bessel_i1", x) as scope:
        given = convert(x, name="x")
        return multiply(exp(absolute(given)), bessel_i1e(given), name=scope)


def lbeta(x: TensorLike, name: str | None = None) -> Tensor:
    """The logarithm of |Beta| of the numbers along the last axis: sum(lgamma(x)) - lgamma(sum(x)).

    >>> lbeta([1.0, 2.0])   # evaluates to log(1/2)
    """
    with op_scope(name, "lbeta", x) as scope:
        given = convert(x, name="x")
        return subtract(reduce_sum(lgamma(given), -1), lgamma(reduce_sum(given, -1)), name=scope)


def polyval(coeffs: Sequence[TensorLike], x: TensorLike, name: str | None = None) -> Tensor:
    """A polynomial at `x`, by Horner's rule: of coefficients a, b, c it is (a * x + b) * x + c.

    Raises:
        ValueError: `coeffs` is no list.

    >>> polyval([1.0, 0.0, -1.0], 3.0)   # evaluates to 8.0
    """
    if not isinstance(coeffs, (list, tuple)):
        raise ValueError(
            f"Argument coeffs must be list type found {type(coeffs).__name__}: the coefficients, highest power first"
        )
    with op_scope(name, "polyval", x, *coeffs):
        at = convert(x, name="x")
        if not coeffs:
            return zeros_like(at)
        found = convert(coeffs[0], at.dtype.base)
        for c in coeffs[1:]:
            found = add(convert(c, at.dtype.base), multiply(found, at))
        return found


__all__ = ["bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "lbeta", "polyval"]
