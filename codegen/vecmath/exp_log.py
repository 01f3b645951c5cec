"""Exponentials, logarithms and powers."""

from __future__ import annotations

import numpy as np

from .intrinsics import (
    bits32,
    bits64,
    copysign,
    f32,
    f64,
    fabs,
    floor,
    i32,
    i64,
    of_bits32,
    of_bits64,
    polynomial,
    quotient32,
    select,
    vectorisable,
)

# --- exponentials ----------------------------------------------------------------------------------------------------

# Adding 1.5 * 2**23 (2**52) leaves a number's nearest whole number in the low bits of the sum.
_SHIFT32, _SHIFT64 = f32(12582912.0), f64(6755399441055744.0)
_ONE_BITS32 = i32(0x3F800000)
_SHIFT32_BITS, _SHIFT64_BITS = i32(0x4B400000), i64(0x4338000000000000)
_RAISED32 = f32(12582976.0)  # the same for a number that is larger by 64
_LOG2E32, _LOG2E64 = f32(1.4426950408889634), f64(1.4426950408889634)
# ln 2 in two parts; the first has trailing zeros, so that its products with small whole numbers are exact.
_LN2_HI32, _LN2_LO32 = f32(0.693145751953125), f32(1.42860682030941723212e-6)
_LN2_HI64, _LN2_LO64 = f64(6.93147180369123816490e-01), f64(1.90821492927058770002e-10)


@vectorisable
def _exp_tail32(r):
    """(exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2; fitted to 3.1e-9 of exp(r)."""
    return polynomial(r, 0.0013814540176801306, 0.0083687451089425907, 0.041668390783547913, 0.1666652039904253,
                      0.4999999343212929)  # fmt: skip


@vectorisable
def _exp_tail64(r):
    """(exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2; fitted to 1.5e-18."""
    return polynomial(r, 2.0914755325893202191e-9, 2.5105312729622101775e-8, 2.7557273478718580474e-7,
                      2.7557255170000887438e-6, 0.0000248015873256774619, 0.00019841269875002278793,
                      0.0013888888888883711167, 0.0083333333333260831202, 0.041666666666666669783,
                      0.1666666666666667103, 0.5)  # fmt: skip


@vectorisable
def exp32(x):
    """e ** x."""
    # Beyond these results are inf or 0, by a product with 0: one that underflows takes long. A NaN stays: comparisons with it are false.
    v = select(x < f32(-105.0), f32(-105.0), x)
    v = select(v > f32(89.0), f32(89.0), v)
    shifted = v * _LOG2E32 + _SHIFT32
    n = shifted - _SHIFT32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = (_exp_tail32(r) * r + f32(1.0)) * r + f32(1.0)
    k = i32(bits32(shifted) - _SHIFT32_BITS)
    # 2**k in two factors: it may be below the smallest normal number, or above the largest.
    half = i32(k >> i32(1))
    last = select(x < f32(-105.0), f32(0.0), of_bits32(i32((i32(k - half) + i32(127)) << i32(23))))
    return p * of_bits32(i32((half + i32(127)) << i32(23))) * last


@vectorisable
def exp_below32(x):
    """e ** x for x that is not above 0, in two thirds of the time."""
    v = select(x < f32(-105.0), f32(-105.0), x)
    shifted = v * _LOG2E32 + _RAISED32
    n = shifted - _RAISED32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = (_exp_tail32(r) * r + f32(1.0)) * r + f32(1.0)
    raised = of_bits32(i32((bits32(shifted) << i32(23)) + _ONE_BITS32))  # 2**(n + 64), a normal number for every n
    return p * raised * select(x < f32(-105.0), f32(0.0), f32(5.421010862427522e-20))  # 2**-64


@vectorisable
def exp64(x):
    """e ** x."""
    v = select(x < f64(-746.0), f64(-746.0), x)
    v = select(v > f64(710.0), f64(710.0), v)
    shifted = v * _LOG2E64 + _SHIFT64
    n = shifted - _SHIFT64
    r = (v - n * _LN2_HI64) - n * _LN2_LO64
    p = r * r * _exp_tail64(r) + r + f64(1.0)
    k = bits64(shifted) - _SHIFT64_BITS
    half = k >> i64(1)
    last = select(x < f64(-746.0), f64(0.0), of_bits64((k - half + i64(1023)) << i64(52)))
    return p * of_bits64((half + i64(1023)) << i64(52)) * last


@vectorisable
def expm132(x):
    """e ** x - 1, accurate near 0."""
    v = select(x < f32(-18.0), f32(-18.0), x)  # -1 from there on
    v = select(v > f32(89.0), f32(89.0), v)
    shifted = v * _LOG2E32 + _SHIFT32
    n = shifted - _SHIFT32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = r * r * _exp_tail32(r) + r
    # 2**k p + (2**k - 1), by way of half of it, because 2**128 is too large.
    h = of_bits32(i32((bits32(shifted) - _SHIFT32_BITS + i32(126)) << i32(23)))
    y = f32(2.0) * (h * p + (h - f32(0.5)))
    return select(fabs(x) < f32(5.9604645e-08), x, y)  # 2**-24: half of a denormal number would be lost, and -0.0


@vectorisable
def mild_expm132(x):
    """e ** x - 1 for x from 0 to 20, in two thirds of the time."""
    shifted = x * _LOG2E32 + _SHIFT32
    n = shifted - _SHIFT32
    r = (x - n * _LN2_HI32) - n * _LN2_LO32
    p = r * r * _exp_tail32(r) + r
    scale = of_bits32(i32((bits32(shifted) << i32(23)) + _ONE_BITS32))
    return scale * p + (scale - f32(1.0))


@vectorisable
def expm164(x):
    """e ** x - 1, accurate near 0."""
    v = select(x < f64(-40.0), f64(-40.0), x)
    v = select(v > f64(710.0), f64(710.0), v)
    shifted = v * _LOG2E64 + _SHIFT64
    n = shifted - _SHIFT64
    r = (v - n * _LN2_HI64) - n * _LN2_LO64
    p = r * r * _exp_tail64(r) + r
    h = of_bits64((bits64(shifted) - _SHIFT64_BITS + i64(1022)) << i64(52))
    y = f64(2.0) * (h * p + (h - f64(0.5)))
    return select(fabs(x) < f64(1.1102230246251565e-16), x, y)  # 2**-53


# --- logarithms ------------------------------------------------------------------------------------------------------

_SQRT_HALF_BITS32, _MANTISSA32 = i32(0x3F3504F3), i32(0x007FFFFF)
_SQRT_HALF_BITS64, _ONE_BITS64, _MANTISSA64 = i64(0x3FE6A09E667F3BCD), i64(0x3FF0000000000000), i64(0x000FFFFFFFFFFFFF)


@vectorisable
def _log_tail32(s):
    """(log(1+s) - log(1-s)) / s - 2 for |s| < 0.1716 (fdlibm, error 2**-34.24)."""
    z = s * s
    w = z * z
    return z * (f32(0.66666662693) + w * f32(0.28498786688)) + w * (f32(0.40000972152) + w * f32(0.24279078841))


@vectorisable
def _log_tail64(s):
    """(log(1+s) - log(1-s)) / s - 2 for |s| < 0.1716 (fdlibm, error 2**-58.45)."""
    z = s * s
    w = z * z
    odd = w * (f64(3.999999999940941908e-01) + w * (f64(2.222219843214978396e-01) + w * f64(1.531383769920937332e-01)))
    even = z * (
        f64(6.666666666666735130e-01)
        + w * (f64(2.857142874366239149e-01) + w * (f64(1.818357216161805012e-01) + w * f64(1.479819860511658591e-01)))
    )
    return odd + even


@vectorisable
def log32(x):
    """The natural logarithm; -inf at 0, NaN below."""
    tiny = x < f32(1.1754943508222875e-38)
    u = select(tiny, x * f32(33554432.0), x)  # 2**25, so that denormals become normal
    bits = i32(bits32(u) + (_ONE_BITS32 - _SQRT_HALF_BITS32))
    k = f32(i32((bits >> i32(23)) - i32(127))) - select(tiny, f32(25.0), f32(0.0))
    f = of_bits32(i32((bits & _MANTISSA32) + _SQRT_HALF_BITS32)) - f32(1.0)  # sqrt(1/2) - 1 to sqrt(2) - 1
    s = quotient32(f, f32(2.0) + f)
    half = f32(0.5) * f * f
    y = k * _LN2_HI32 - ((half - (s * (half + _log_tail32(s)) + k * _LN2_LO32)) - f)
    y = select(x < f32(np.inf), y, x)  # inf and NaN
    y = select(x == f32(0.0), f32(-np.inf), y)
    return select(x < f32(0.0), f32(np.nan), y)


@vectorisable
def log64(x):
    """The natural logarithm; -inf at 0, NaN below."""
    tiny = x < f64(2.2250738585072014e-308)
    u = select(tiny, x * f64(18014398509481984.0), x)  # 2**54
    bits = bits64(u) + (_ONE_BITS64 - _SQRT_HALF_BITS64)
    k = f64((bits >> i64(52)) - i64(1023)) - select(tiny, f64(54.0), f64(0.0))
    f = of_bits64((bits & _MANTISSA64) + _SQRT_HALF_BITS64) - f64(1.0)
    s = f / (f64(2.0) + f)
    half = f64(0.5) * f * f
    y = k * _LN2_HI64 - ((half - (s * (half + _log_tail64(s)) + k * _LN2_LO64)) - f)
    y = select(x < f64(np.inf), y, x)
    y = select(x == f64(0.0), f64(-np.inf), y)
    return select(x < f64(0.0), f64(np.nan), y)


@vectorisable
def log1p32(x):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""
    u = f32(1.0) + x
    bits = i32(bits32(u) + (_ONE_BITS32 - _SQRT_HALF_BITS32))
    n = i32((bits >> i32(23)) - i32(127))
    m = of_bits32(i32((bits & _MANTISSA32) + _SQRT_HALF_BITS32)) - f32(1.0)
    # What 1 + x lost in rounding, as a part of u.
    lost = select(n >= i32(2), f32(1.0) - (u - x), x - (u - f32(1.0))) / u
    small = n == i32(0)
    f = select(small, x, m)
    c = select(small | (n >= i32(25)), f32(0.0), lost)
    k = f32(n)
    s = quotient32(f, f32(2.0) + f)
    half = f32(0.5) * f * f
    y = k * _LN2_HI32 - ((half - (s * (half + _log_tail32(s)) + (k * _LN2_LO32 + c))) - f)
    y = select(x < f32(np.inf), y, x)
    y = select(x == f32(-1.0), f32(-np.inf), y)
    y = select(fabs(x) < f32(5.9604645e-08), x, y)  # 2**-24: log1p(x) is x there, and -0.0 stays
    return select(x < f32(-1.0), f32(np.nan), y)


@vectorisable
def log1p64(x):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""
    u = f64(1.0) + x
    bits = bits64(u) + (_ONE_BITS64 - _SQRT_HALF_BITS64)
    n = (bits >> i64(52)) - i64(1023)
    m = of_bits64((bits & _MANTISSA64) + _SQRT_HALF_BITS64) - f64(1.0)
    lost = select(n >= i64(2), f64(1.0) - (u - x), x - (u - f64(1.0))) / u
    small = n == i64(0)
    f = select(small, x, m)
    c = select(small | (n >= i64(54)), f64(0.0), lost)
    k = f64(n)
    s = f / (f64(2.0) + f)
    half = f64(0.5) * f * f
    y = k * _LN2_HI64 - ((half - (s * (half + _log_tail64(s)) + (k * _LN2_LO64 + c))) - f)
    y = select(x < f64(np.inf), y, x)
    y = select(x == f64(-1.0), f64(-np.inf), y)
    y = select(fabs(x) < f64(1.1102230246251565e-16), x, y)  # 2**-53
    return select(x < f64(-1.0), f64(np.nan), y)


# --- powers ----------------------------------------------------------------------------------------------------------
# Of float32, in float64: for float64 they would need logarithms of twice its precision.


@vectorisable
def _power64(a, b):
    """a ** b for a that is not negative."""
    size = exp64(b * log64(a))
    return select((a == f64(1.0)) & (fabs(b) == f64(np.inf)), f64(1.0), size)


@vectorisable
def pow32(x, y):
    """x ** y as C has it: of negative numbers for whole y only; 1 where y is 0 or x is 1, whatever the other is."""
    value = f32(_power64(f64(fabs(x)), f64(y)))
    half = f32(0.5) * y
    whole = y == floor(y)
    value = select(whole & (half != floor(half)), copysign(value, x), value)
    value = select((x < f32(0.0)) & (fabs(x) < f32(np.inf)) & (y != floor(y)), f32(np.nan), value)
    return select((y == f32(0.0)) | (x == f32(1.0)), f32(1.0), value)
