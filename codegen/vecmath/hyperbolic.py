"""Hyperbolic functions and their inverses, which are made of exponentials and logarithms."""

from __future__ import annotations

import numpy as np

from .exp_log import exp64, expm164, log1p64, log64, mild_expm132
from .intrinsics import copysign, f32, f64, fabs, in_float64, quotient32, select, sqrt, vectorisable


@vectorisable
def tanh32(x):
    """The hyperbolic tangent: t / (t + 2) with t = expm1(2 |x|)."""
    a = fabs(x)
    t = mild_expm132(f32(2.0) * select(a > f32(10.0), f32(10.0), a))  # 1 from 9.01 on
    return copysign(quotient32(t, t + f32(2.0)), x)


@vectorisable
def tanh64(x):
    """The hyperbolic tangent: t / (t + 2) with t = expm1(2 |x|)."""
    a = fabs(x)
    t = expm164(f64(2.0) * select(a > f64(22.0), f64(22.0), a))
    return copysign(t / (t + f64(2.0)), x)


@vectorisable
def sinh64(x):
    """The hyperbolic sine: (t + t / (t + 1)) / 2 with t = expm1(|x|)."""
    a = fabs(x)
    t = expm164(select(a > f64(709.0), f64(709.0), a))
    w = exp64(f64(0.5) * a)  # e ** a is too large before half of it is
    return copysign(select(a > f64(709.0), f64(0.5) * w * w, f64(0.5) * (t + t / (t + f64(1.0)))), x)


@vectorisable
def cosh64(x):
    """The hyperbolic cosine: (e + 1 / e) / 2 with e = exp(|x|)."""
    a = fabs(x)
    e = exp64(select(a > f64(709.0), f64(709.0), a))
    w = exp64(f64(0.5) * a)
    return select(a > f64(709.0), f64(0.5) * w * w, f64(0.5) * e + f64(0.5) / e)


@vectorisable
def asinh64(x):
    """The inverse of sinh: log1p(a + a**2 / (1 + sqrt(1 + a**2))) with a = |x|."""
    a = fabs(x)
    b = select(a > f64(268435456.0), f64(1.0), a)  # 2**28: the root is a itself from there on
    near = log1p64(b + b * b / (f64(1.0) + sqrt(f64(1.0) + b * b)))
    return copysign(select(a > f64(268435456.0), log64(a) + f64(0.6931471805599453), near), x)


@vectorisable
def acosh64(x):
    """The inverse of cosh: log1p(t + sqrt(2 t + t**2)) with t = x - 1; NaN below 1."""
    t = select(x > f64(268435456.0), f64(1.0), x - f64(1.0))
    near = log1p64(t + sqrt(f64(2.0) * t + t * t))
    y = select(x > f64(268435456.0), log64(x) + f64(0.6931471805599453), near)
    return select(x < f64(1.0), f64(np.nan), y)


@vectorisable
def atanh64(x):
    """The inverse of tanh: log1p(2 a / (1 - a)) / 2 with a = |x|; NaN beyond 1."""
    a = fabs(x)
    return copysign(f64(0.5) * log1p64((a + a) / (f64(1.0) - a)), x)


sinh32, cosh32, asinh32, acosh32, atanh32 = map(in_float64, (sinh64, cosh64, asinh64, acosh64, atanh64))
