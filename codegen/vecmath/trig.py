"""Angles of sides, and sines, cosines and tangents of angles."""

from __future__ import annotations

from .intrinsics import (
    bits64,
    copysign,
    f32,
    f64,
    fabs,
    floor,
    i64,
    in_float64,
    of_bits64,
    polynomial,
    rint,
    select,
    sqrt,
    vectorisable,
)

# --- angles of sides -------------------------------------------------------------------------------------------------


@vectorisable
def _atan_tail64(z):
    """1 - atan(x) / x in z = x**2 for |x| < 7 / 16 (fdlibm)."""
    w = z * z
    odd = polynomial(w, 1.62858201153657823623e-02, 4.97687799461593236017e-02, 6.66107313738753120669e-02,
                     9.09088713343650356196e-02, 1.42857142725034663711e-01, 3.33333333333329318027e-01)  # fmt: skip
    even = polynomial(w, -3.65315727442169155270e-02, -5.83357013379057348645e-02, -7.69187620504482999495e-02,
                      -1.11111104054623557880e-01, -1.99999999998764832476e-01)  # fmt: skip
    return z * odd + w * even


@vectorisable
def atan64(x):
    """The angle whose tangent is x: that of one of four points, and the angle between."""
    a = fabs(x)
    first = a > f64(0.4375)
    second = a > f64(0.6875)
    third = a > f64(1.1875)
    fourth = a > f64(2.4375)
    above = select(fourth, f64(-1.0), select(third, a - f64(1.5), select(second, a - f64(1.0), a + a - f64(1.0))))
    below = select(fourth, a, select(third, f64(1.0) + f64(1.5) * a, select(second, f64(1.0) + a, f64(2.0) + a)))
    u = select(first, above / below, a)
    zero = of_bits64(bits64(a) & i64(0))  # so that the angles have a type wherever this is translated to
    high = select(third, zero + f64(9.82793723247329054082e-01), zero + f64(7.85398163397448278999e-01))
    high = select(second, high, zero + f64(4.63647609000806093515e-01))
    high = select(fourth, zero + f64(1.57079632679489655800e00), high)
    low = select(third, zero + f64(1.39033110312309984516e-17), zero + f64(3.06161699786838301793e-17))
    low = select(second, low, zero + f64(2.26987774529616870924e-17))
    low = select(fourth, zero + f64(6.12323399573676603587e-17), low)
    tail = u * _atan_tail64(u * u)
    return copysign(select(first, high - ((tail - low) - u), u - tail), x)


@vectorisable
def _asin_tail64(t):
    """asin(x) / x - 1 in t = x**2 for |x| <= 1 / 2 (fdlibm)."""
    p = t * polynomial(t, 3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
                       2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01)  # fmt: skip
    q = polynomial(t, 7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00,
                   -2.40339491173441421878e00)  # fmt: skip
    return p / (f64(1.0) + t * q)


@vectorisable
def asin64(x):
    """The angle whose sine is x: pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) beyond 1 / 2; NaN beyond 1."""
    a = fabs(x)
    far = a > f64(0.5)
    t = select(far, f64(0.5) * (f64(1.0) - a), a * a)
    s = select(far, sqrt(t), a)
    r = s + s * _asin_tail64(t)
    return copysign(select(far, f64(1.57079632679489655800e00) - (r + r - f64(6.12323399573676603587e-17)), r), x)


@vectorisable
def acos64(x):
    """The angle whose cosine is x: 2 asin(sqrt((1 - x) / 2)) beyond 1 / 2; NaN beyond 1."""
    a = fabs(x)
    far = a > f64(0.5)
    t = select(far, f64(0.5) * (f64(1.0) - a), a * a)
    s = select(far, sqrt(t), x)
    r = s + s * _asin_tail64(t)
    left = f64(3.14159265358979311600e00) - (r + r - f64(1.22464679914735317720e-16))
    near = f64(1.57079632679489655800e00) - (r - f64(6.12323399573676603587e-17))
    return select(far, select(x < f64(0.0), left, r + r), near)


atan32, asin32, acos32 = map(in_float64, (atan64, asin64, acos64))


# --- angles of any size ----------------------------------------------------------------------------------------------
# Of float32, computed in float64. a times 2 / pi says how many quarters of a turn there are in a, and what is left. 2 / pi is kept
# in pieces of 24 bits, so that each product with a float32 is exact; pieces that make whole turns are skipped, five are used, and
# that leaves 40 right bits even of the angle that is closest to a quarter (Payne and Hanek, "Radian reduction for trigonometric
# functions", 1983). Beyond 2**49, 2**73, 2**97 and 2**121 one more piece makes whole turns only.


@vectorisable
def _piece64(a, first, second, third, fourth, fifth):
    """a times that of five pieces in a row of 2 / pi which matters for it."""
    zero = of_bits64(bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + first, zero + second)
    c = select(a < f64(9.444732965739290e21), c, zero + third)
    c = select(a < f64(1.5845632502852868e29), c, zero + fourth)
    return a * select(a < f64(2.6584559915698317e36), c, zero + fifth)


@vectorisable
def _piece_c64(a):
    """The third piece that matters."""
    return _piece64(a, 2.937095214933759e-16, 3.2543794001732456e-23, 1.2089613708828537e-29, 5.667556795740071e-37,
                    2.6204031112097215e-44)  # fmt: skip


@vectorisable
def _quarters_high64(a):
    """The first two pieces, less whole turns: exact."""
    p = _piece64(a, 0.6366197466850281, 2.5682552973194106e-08, 2.937095214933759e-16, 3.2543794001732456e-23,
                 1.2089613708828537e-29)  # fmt: skip
    q = _piece64(a, 2.5682552973194106e-08, 2.937095214933759e-16, 3.2543794001732456e-23, 1.2089613708828537e-29,
                 5.667556795740071e-37)  # fmt: skip
    return (p - f64(4.0) * floor(f64(0.25) * p)) + (q - f64(4.0) * floor(f64(0.25) * q))


@vectorisable
def _quarters64(a):
    """The nearest number of quarters of a turn, up to whole turns."""
    return rint(_quarters_high64(a) + _piece_c64(a))


@vectorisable
def _beyond64(a):
    """The remainder, an angle from -pi / 4 to pi / 4."""
    d = _piece64(a, 3.2543794001732456e-23, 1.2089613708828537e-29, 5.667556795740071e-37, 2.6204031112097215e-44,
                 7.053957680880629e-52)  # fmt: skip
    e = _piece64(a, 1.2089613708828537e-29, 5.667556795740071e-37, 2.6204031112097215e-44, 7.053957680880629e-52,
                 1.582624282116559e-58)  # fmt: skip
    r = ((_quarters_high64(a) - _quarters64(a)) + _piece_c64(a)) + (d + e)
    return r * f64(1.5707963267948966)


@vectorisable
def small_sine64(y):
    """sin(y) for |y| <= pi / 4 (fdlibm)."""
    z = y * y
    p = polynomial(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                   -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01)  # fmt: skip
    return y + y * (z * p)


@vectorisable
def small_cosine64(y):
    """cos(y) for |y| <= pi / 4 (fdlibm)."""
    z = y * y
    p = polynomial(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                   2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02)  # fmt: skip
    w = f64(1.0) - f64(0.5) * z
    return w + (((f64(1.0) - w) - f64(0.5) * z) + z * (z * p))


@vectorisable
def _of_quarter64(y, n):
    """sin(y + n pi / 2) for a whole n."""
    half = f64(0.5) * n
    value = select(half != floor(half), small_cosine64(y), small_sine64(y))
    turns = f64(0.5) * floor(half)
    return select(turns != floor(turns), -value, value)


@vectorisable
def sin32(x):
    """The sine."""
    a = f64(fabs(x))
    y = f32(_of_quarter64(_beyond64(a), _quarters64(a)))
    return select(x == f32(0.0), x, select(x < f32(0.0), -y, y))


@vectorisable
def cos32(x):
    """The cosine."""
    a = f64(fabs(x))
    return f32(_of_quarter64(_beyond64(a), _quarters64(a) + f64(1.0)))


@vectorisable
def _tangent64(a):
    """tan(a) for a that is a float32, and not negative."""
    y = _beyond64(a)
    half = f64(0.5) * _quarters64(a)
    odd = half != floor(half)
    s = small_sine64(y)
    c = small_cosine64(y)
    return select(odd, -c, s) / select(odd, s, c)


@vectorisable
def tan32(x):
    """The tangent."""
    t = f32(_tangent64(f64(fabs(x))))
    return select(x == f32(0.0), x, select(x < f32(0.0), -t, t))


# Of float64: the angles of normal random numbers, from 0 to 2 pi, which are rounded to float32 only once multiplied.


@vectorisable
def _beyond_quarters64(x, n):
    """x - n pi / 2 for n up to 4, whose product with the first part of pi / 2 is exact."""
    return (x - n * f64(1.57079632673412561417e00)) - n * f64(6.07710050650619224932e-11)


@vectorisable
def sine_of_turn64(x):
    """sin(x) for 0 <= x <= 2 pi."""
    n = rint(x * f64(0.6366197723675814))
    return _of_quarter64(_beyond_quarters64(x, n), n)


@vectorisable
def cosine_of_turn64(x):
    """cos(x) for 0 <= x <= 2 pi."""
    n = rint(x * f64(0.6366197723675814))
    return _of_quarter64(_beyond_quarters64(x, n), n + f64(1.0))
