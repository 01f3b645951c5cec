"""The error function, and the gamma function."""

from __future__ import annotations

import numpy as np

from .exp_log import exp32, exp64, log64
from .intrinsics import copysign, f32, f64, fabs, polynomial, rint, select, vectorisable
from .trig import small_cosine64, small_sine64

# --- the error function ----------------------------------------------------------------------------------------------


@vectorisable
def erf32(x):
    """The error function."""
    t = fabs(x)
    s = x * x
    p = polynomial(s, -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)
    near = p * x + x
    b = select(t > f32(4.0), f32(4.0), t)  # 1 from 3.92 on
    q = f32(-1.72853470e-5) * b + f32(3.83197126e-4)
    q = q * (b * b) + (f32(-3.88396438e-3) * b + f32(2.42546219e-2))
    q = q * b + f32(-1.06777877e-1)
    q = q * b + f32(-6.34846687e-1)
    q = q * b + f32(-1.28717512e-1)
    far = copysign(f32(1.0) - exp32(q * b - b), x)
    return select(t > f32(0.927734375), far, near)


@vectorisable
def erf64(x):
    """The error function."""
    t = fabs(x)
    s = x * x
    # erf(x) / x - 1 in x**2 on [0, 1]; fitted to 7.4e-18
    p = polynomial(s, -7.7958988270021422416e-10, 1.3720064546777685604e-8, -1.6208483801871705902e-7,
                   1.644742470331736241e-6, -0.000014924736907419660338, 0.00012055294904839707917,
                   -0.00085483259753896920806, 0.0052239776071164227321, -0.02686617064323777036,
                   0.11283791670945006266, -0.37612638903183540438, 0.12837916709551256654)  # fmt: skip
    near = p * x + x
    b = select(t > f64(6.0), f64(6.0), t)  # 1 from 5.93 on
    # -log(erfc(x)) / x - 1 - x on [0.99, 6]; fitted to 2.1e-16
    q = polynomial(b, 6.0707194563659277223e-18, -5.1938324193174272708e-16, 2.1122079183675948427e-14,
                   -5.4332879128214301304e-13, 9.9232799275072464966e-12, -1.3691237118123422302e-10,
                   1.4820414048361458622e-9, -1.2899259906677758838e-8, 9.172673951204480011e-8,
                   -5.3798882854447798922e-7, 2.6113657009940175913e-6, -0.000010447328429503090896,
                   0.000033893684821510686007, -0.000085421278905812032188, 0.00014708725172721372737,
                   -0.000073928569344569336382, -0.00049241166401493811132, 0.0016197799433163777267,
                   -0.0001625528175307756709, -0.019149840096447227219, 0.1027795346019183973,
                   -0.36338164060203961198, 0.12837930324929543841)  # fmt: skip
    far = copysign(f64(1.0) - exp64(-(b * (f64(1.0) + b) + q * b)), x)
    return select(t > f64(1.0), far, near)


# --- results much larger or smaller than 1 ---------------------------------------------------------------------------
# Of float32, in float64: for float64 they would need logarithms of twice its precision.


@vectorisable
def _erfc64(a):
    """1 - erf(a) for a >= 0, as precise as a float32: t exp(p(t) - a**2) with t = 2 / (2 + a); p fitted to 2.2e-11."""
    b = select(a > f64(10.3), f64(10.3), a)  # 0 from 10.06 on
    t = f64(2.0) / (f64(2.0) + b)
    p = polynomial(t, -0.17945632516545361981, 1.4321239442695137955, -5.007984852073125364, 9.9581727053351401046,
                   -12.196647297392770038, 9.3480525746578037852, -4.5225312659425971481, 1.5805451494366666562,
                   -0.39779688199158963844, -0.12841124532696183195, -0.076234693625020245433,
                   0.080272825229136408547, 0.37543931368559019164, 0.99996713927525559925, -1.2655110903929156611)  # fmt: skip
    return t * exp64(p - b * b)


@vectorisable
def erfc32(x):
    """1 - erf(x), accurate where that is small."""
    y = _erfc64(f64(fabs(x)))
    return f32(select(x < f32(0.0), f64(2.0) - y, y))


@vectorisable
def _log_gamma64(x):
    """The logarithm of gamma(x) for x >= 1/2: Stirling's series from 8 on, below by way of x (x + 1) ... (x + 7)."""
    small = x < f64(8.0)
    p = x * (x + f64(1.0)) * (x + f64(2.0)) * (x + f64(3.0))
    p = p * (x + f64(4.0)) * (x + f64(5.0)) * (x + f64(6.0)) * (x + f64(7.0))
    y = select(small, x + f64(8.0), x)
    w = f64(1.0) / y
    z = w * w
    s = polynomial(z, -0.029550653594771243, 0.00641025641025641, -0.0019175269175269176, 0.0008417508417508417,
                   -0.0005952380952380953, 0.0007936507936507937, -0.002777777777777778, 0.08333333333333333)  # fmt: skip
    log_of = log64(y)
    far = (y * (log_of - f64(1.0)) - f64(0.5) * log_of) + (f64(0.9189385332046727) + w * s)
    return far - select(small, log64(p), f64(0.0))


@vectorisable
def _log_any_gamma64(a):
    """The logarithm of |gamma(a)|; below 1/2 by Euler's reflection: log(pi / |sin(pi a)|) less that of 1 - a."""
    low = a < f64(0.5)
    f = fabs(a - rint(a))
    half = f > f64(0.25)
    y = f64(3.141592653589793) * select(half, f64(0.5) - f, f)
    sine = select(half, small_cosine64(y), small_sine64(y))
    upper = _log_gamma64(select(low, f64(1.0) - a, a))
    value = select(low, f64(1.1447298858494002) - log64(sine) - upper, upper)
    return select(fabs(value) < f64(1e-14), f64(0.0), value)  # at 1 and 2; nowhere else is a float32 so close to a root


@vectorisable
def lgamma32(x):
    """The logarithm of |gamma(x)|; infinite for both infinities, as in C."""
    return select(fabs(x) == f32(np.inf), fabs(x), f32(_log_any_gamma64(f64(x))))
