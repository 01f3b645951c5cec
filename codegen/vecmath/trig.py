"""Angles of sides, and sines, cosines and tangents of angles."""

from __future__ import annotations

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
    in_float64,
    of_bits32,
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
def _arc64(a):
    """asin(a) for 0 <= a <= 1 / 2 (fdlibm); beyond 1 / 2 asin(sqrt((1 - a) / 2)), NaN beyond 1."""
    far = a > f64(0.5)
    t = select(far, f64(0.5) * (f64(1.0) - a), a * a)
    s = select(far, sqrt(t), a)
    p = t * polynomial(t, 3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
                       2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01)  # fmt: skip
    q = polynomial(t, 7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e00,
                   -2.40339491173441421878e00)  # fmt: skip
    return s + s * (p / (f64(1.0) + t * q))


@vectorisable
def asin64(x):
    """The angle whose sine is x."""
    a = fabs(x)
    r = _arc64(a)
    far = f64(1.57079632679489655800e00) - (r + r - f64(6.12323399573676603587e-17))
    return copysign(select(a > f64(0.5), far, r), x)


@vectorisable
def acos64(x):
    """The angle whose cosine is x."""
    a = fabs(x)
    r = _arc64(a)
    left = f64(3.14159265358979311600e00) - (r + r - f64(1.22464679914735317720e-16))
    near = f64(1.57079632679489655800e00) - (copysign(r, x) - f64(6.12323399573676603587e-17))
    return select(a > f64(0.5), select(x < f64(0.0), left, r + r), near)


asin32, acos32 = map(in_float64, (asin64, acos64))


@vectorisable
def _angle64(t, inverse):
    """atan(t) for t >= 0, as precise as a float32; fitted to 1.7e-9. `inverse`: that of t, as precise."""
    far = t > f64(1.0)
    u = select(far, inverse * (f64(2.0) - t * inverse), t)
    z = u * u
    p = polynomial(z, 0.0014886919393047596, -0.0091446297605923953, 0.026305001110062377, -0.048960514027090666,
                   0.070319142500299659, -0.089318267773813144, 0.11088261628735159, -0.1428400379473353,
                   0.19999949321141887, -0.33333333081073254)  # fmt: skip
    v = u + u * (z * p)
    return select(far, f64(1.5707963267948966) - v, v)


@vectorisable
def atan32(x):
    """The angle whose tangent is x."""
    t = fabs(x)
    t = select(t > f32(1.8446744073709552e19), f32(1.8446744073709552e19), t)  # pi / 2 from there on
    return copysign(f32(_angle64(f64(t), f64(f32(1.0) / t))), x)


# --- angles of any size ----------------------------------------------------------------------------------------------
# Of float32. x times 2 / pi says how many quarters of a turn there are in x, and what is left. Beyond 2**50, x is a whole number of
# steps of 2**27 (2**53 beyond 2**76, 2**79 beyond 2**102), and of a step times 2 / pi whole turns are left out (Payne and Hanek, "Radian
# reduction for trigonometric functions", 1983). What remains is kept in three parts, each divided by the step. Products with the first
# two are exact, and so is their sum less whole quarters: 26 bits are right even of the angle that is closest to a quarter.


@vectorisable
def _part64(x, first, second, third, fourth):
    """x times that of four numbers which belongs to the size of x."""
    a = fabs(x)
    zero = of_bits64(bits64(f64(x)) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f32(1.125899906842624e15), zero + first, zero + second)
    c = select(a < f32(7.555786372591432e22), c, zero + third)
    return f64(x) * select(a < f32(5.070602400912918e30), c, zero + fourth)


@vectorisable
def _high64(x):
    """The first part of the number of quarters."""
    return _part64(x, 0.6366197690367699, -4.11976913694545e-09, -1.5037965609664283e-16, -5.434184086300878e-25)


@vectorisable
def _middle64(x):
    """The second part."""
    return _part64(x, 3.3308114044672266e-09, 1.6153798424311264e-17, 2.8376219159698826e-25, -2.1442872036020916e-33)


@vectorisable
def _shifted64(x):
    """The number of quarters, up to whole turns, as the last bits of a number: the nearest one, or for large x one nearly as near."""
    return (_high64(x) + _middle64(x)) + f64(6755399441055744.0)


@vectorisable
def _quarter32(x):
    """The number of quarters, up to whole turns."""
    return i32(bits64(_shifted64(x)) & i64(3))


@vectorisable
def _beyond64(x):
    """The remainder, an angle from -0.98 to 0.98, for small x from -pi / 4 to pi / 4."""
    low = _part64(x, 7.166494911215068e-17, -5.434184107743751e-25, 1.018166438749971e-32, -5.297650908280439e-41)
    r = ((_high64(x) - (_shifted64(x) - f64(6755399441055744.0))) + _middle64(x)) + low
    return r * f64(1.5707963267948966)


@vectorisable
def _sine_of_quarter32(y, n):
    """sin(y + n pi / 2) for |y| <= 0.98; sine and cosine are fitted to 2e-10."""
    a = f32(y)
    rest = f32(y - f64(a))
    z = a * a
    p = polynomial(z, 2.70801697912e-6, -0.0001983841325, 0.00833332785211, -0.166666666502)
    q = polynomial(z, -2.71592143317e-7, 2.47992030381e-5, -0.00138888843133, 0.0416666666529)
    w = f32(1.0) - f32(0.5) * z
    sine = a + (a * z * p + rest * w)
    cosine = w + (((f32(1.0) - w) - f32(0.5) * z) + (z * z * q - a * rest))
    value = select((n & i32(1)) != i32(0), cosine, sine)
    return of_bits32(i32(bits32(value) ^ i32(i32(n & i32(2)) << i32(30))))


@vectorisable
def sin32(x):
    """The sine."""
    return select(x == f32(0.0), x, _sine_of_quarter32(_beyond64(x), _quarter32(x)))


@vectorisable
def cos32(x):
    """The cosine."""
    return _sine_of_quarter32(_beyond64(x), i32(_quarter32(x) + i32(1)))


@vectorisable
def _tangent64(y, n):
    """tan(y + n pi / 2)."""
    odd = (n & i32(1)) != i32(0)
    s = small_sine64(y)
    c = small_cosine64(y)
    return select(odd, -c, s) / select(odd, s, c)


@vectorisable
def tan32(x):
    """The tangent."""
    return select(x == f32(0.0), x, f32(_tangent64(_beyond64(x), _quarter32(x))))


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
