"""Functions of one number that LLVM can vectorise: what fused Numba kernels call instead of the C library.

A loop that calls libm's `expf` runs one element at a time. The functions here are straight arithmetic without a branch, a
table or a call: choices are selects, powers of two are made from bits. Inlined into a loop they run 4 to 16 elements at a
time, whatever the machine. Names end in the width of the type: `exp32` takes and gives float32.

Largest errors, in units in the last place of the result (tests/codegen/test_vecmath.py measures them against exact values,
over all magnitudes; NaN gives NaN, and infinities, zeros and denormals give what NumPy gives):

    ============  =======  =======
    function      float32  float64
    ============  =======  =======
    exp             1        1
    expm1           2        2
    log             1        1
    log1p           2        2
    tanh            3        3
    erf             2        2
    sinh, cosh      1        3
    asinh, acosh    1        4
    atanh           1        4
    atan            1        1
    asin            1        3
    acos            1        2
    sin, cos, tan   1
    pow             1
    erfc            1
    lgamma          2
    ============  =======  =======

Those with an error of 1 in float32 and more in float64 are computed in float64 for both; so are those that only float32 has.

Sources: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); log and log1p follow
Ng's fdlibm (Sun, 1993); float32 erf is N. Juffa's pair of polynomials (public domain); the coefficients of exp, and of erf
in float64, are Chebyshev fits made with mpmath (their errors stand beside them).

Products and sums may be contracted to fused multiply-adds here, and only here: a contraction changes the last bit, which is
within the errors above, while the arithmetic that a user wrote is compiled as it was written.
"""

# mypy: ignore-errors
# The functions below are compiled by Numba: their types are Numba's to infer, per call.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

f32, f64, i32, i64 = np.float32, np.float64, np.int32, np.int64


# --- what the machine has, by LLVM's names ---------------------------------------------------------------------------


def _llvm(name: str, operands: int) -> Any:
    """A function of floating numbers that LLVM knows itself, and so vectorises."""

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        number = args[0].type
        function_type = ir.FunctionType(number, [number] * operands)
        return builder.call(builder.module.declare_intrinsic(name, [number], function_type), args)

    if operands == 1:

        def typing(typing_context: Any, x: Any) -> Any:
            return (x(x), emit) if isinstance(x, types.Float) else None

        return intrinsic(typing)

    def typing2(typing_context: Any, x: Any, y: Any) -> Any:
        return (x(x, x), emit) if isinstance(x, types.Float) and x == y else None

    return intrinsic(typing2)


floor, ceil, rint, trunc = (_llvm(f"llvm.{n}", 1) for n in ("floor", "ceil", "rint", "trunc"))
fabs, sqrt = _llvm("llvm.fabs", 1), _llvm("llvm.sqrt", 1)
copysign = _llvm("llvm.copysign", 2)
fmaximum, fminimum = _llvm("llvm.maximum", 2), _llvm("llvm.minimum", 2)  # NaN when either is NaN
larger = _llvm("llvm.maxnum", 2)  # the other one when one is NaN: a third of the instructions


WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512f", False))
"""Whether vectors of 64 bytes are there. What is compiled is kept per kind of processor, so this may be a constant in it."""


@intrinsic
def wide_vectors(typing_context):
    """Let the function that calls this use the widest vectors there are: LLVM takes half of them where the widest are of 64 bytes.

    It does so for the sake of processors that lower their clock for wide vectors. What is compiled here runs for long in one go.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        if WIDE:  # llvmlite only knows attributes by themselves, and this one has a value
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def stay_apart(typing_context):
    """Keep the function that calls this from being put into its callers: what is said of its arrays' memory holds in it alone."""

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), emit


@intrinsic
def select(typing_context, condition, a, b):
    """`a if condition else b`, without a branch: both are computed."""
    if not (isinstance(condition, types.Boolean) and a == b):
        return None

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        return builder.select(*args)

    return a(condition, a, a), emit


def _bitcast(source: Any, target: Any) -> Any:
    def typing(typing_context: Any, x: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
            return builder.bitcast(args[0], context.get_value_type(target))

        return (target(source), emit) if x == source else None

    return intrinsic(typing)


_bits32, _float32 = _bitcast(types.float32, types.int32), _bitcast(types.int32, types.float32)
_bits64, _float64 = _bitcast(types.float64, types.int64), _bitcast(types.int64, types.float64)


# --- elements of arrays ----------------------------------------------------------------------------------------------
# Inputs and outputs of a kernel never overlap, but LLVM cannot know it, and beyond a few arrays it gives up checking and does
# not vectorise. So each access says which array it belongs to (alias.scope) and which ones it cannot touch (noalias).
# Nor is there Numba's wrap-around of negative indices. `number` is the array's place among the kernel's arrays.

_MOST_ARRAYS = 64


def _element(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return cgutils.gep(builder, data, index)


def _mark(builder: Any, instruction: Any, number: int) -> None:
    module = builder.module
    domain = module.add_metadata(["dovetail"])
    scopes = [module.add_metadata([f"array {i}", domain]) for i in range(_MOST_ARRAYS)]
    instruction.set_metadata("alias.scope", module.add_metadata([scopes[number]]))
    instruction.set_metadata("noalias", module.add_metadata([s for i, s in enumerate(scopes) if i != number]))


@intrinsic
def load(typing_context, array, number, index):
    """Element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    if not isinstance(number, types.IntegerLiteral):
        raise _need_literal()

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        value = builder.load(_element(context, builder, array, args[0], args[2]))
        _mark(builder, value, number.literal_value)
        return context.data_model_manager[array.dtype].from_data(builder, value)

    return array.dtype(array, number, types.intp), emit


@intrinsic
def store(typing_context, array, number, index, value):
    """Put a value into element `index` of a contiguous vector that is the kernel's array `number` (a literal)."""
    if not isinstance(number, types.IntegerLiteral):
        raise _need_literal()

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        data = context.data_model_manager[array.dtype].as_data(builder, args[3])
        _mark(builder, builder.store(data, _element(context, builder, array, args[0], args[2])), number.literal_value)
        return context.get_dummy_value()

    return types.void(array, number, types.intp, array.dtype), emit


@intrinsic
def fetch(typing_context, array, index):
    """Ask for the line of memory that element `index` of a contiguous vector lies in to be in the first cache."""

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(_element(context, builder, array, args[0], args[1]), byte)
        builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


def _need_literal() -> Exception:
    from numba.core.errors import RequireLiteralValue

    return RequireLiteralValue("the array's number must be a literal")


# --- narrow floats ---------------------------------------------------------------------------------------------------
# They are kept as their 16 bits and computed in float32. To float32 every number is exact; back, ties go to the even one. Only
# arithmetic that all machines have is used (F. Giesen, "Half to float done quic" and "Float to half", public domain).


@njit(forceinline=True, no_cpython_wrapper=True)
def from_bfloat16(x):
    """The float32 whose upper half these bits are."""
    return _float32(i32(i32(x) << i32(16)))


@njit(forceinline=True, no_cpython_wrapper=True)
def to_bfloat16(x):
    """The bits of the nearest bfloat16."""
    bits = _bits32(x)
    rounded = i32(i32(bits + i32(0x7FFF)) + i32(i32(bits >> i32(16)) & i32(1)))
    return np.uint16(i32(select(x != x, i32(0x7FC00000), rounded) >> i32(16)) & i32(0xFFFF))


@njit(forceinline=True, no_cpython_wrapper=True)
def from_float16(x):
    """The float32 that is the float16 of these bits."""
    bits = i32(x)
    magnitude = i32(i32(bits & i32(0x7FFF)) << i32(13))
    number = _bits32(
        _float32(magnitude) * f32(2.0**112)
    )  # the exponents' biases are that far apart; denormals come right
    number = select(magnitude >= i32(0x0F800000), i32(magnitude | i32(0x7F800000)), number)  # infinities and NaN
    return _float32(i32(number | i32(i32(bits & i32(0x8000)) << i32(16))))


@njit(forceinline=True, no_cpython_wrapper=True)
def towards_odd(x):
    """A float64 as one of the two float32 next to it, the odd one: rounded once more, it becomes what x itself would."""
    near = f32(x)
    bits = _bits32(near)
    bits = select(fabs(f64(near)) > fabs(x), i32(bits - i32(1)), bits)
    return _float32(select(f64(near) == x, bits, i32(bits | i32(1))))


@njit(forceinline=True, no_cpython_wrapper=True)
def to_float16(x):
    """The bits of the nearest float16."""
    bits = _bits32(x)
    magnitude = i32(bits & i32(0x7FFFFFFF))
    odd = i32(i32(magnitude >> i32(13)) & i32(1))
    normal = i32(i32(i32(magnitude - i32(0x38000000)) + i32(0x0FFF)) + odd) >> i32(13)
    small = i32(_bits32(_float32(magnitude) + f32(0.5)) - i32(0x3F000000))  # 0.5 has the float16's smallest step
    made = select(magnitude < i32(0x38800000), small, i32(normal))
    made = select(magnitude >= i32(0x47800000), i32(0x7C00), made)
    made = select(magnitude > i32(0x7F800000), i32(0x7E00), made)
    return np.uint16(i32(made | i32(i32(bits >> i32(16)) & i32(0x8000))))


# --- sums ------------------------------------------------------------------------------------------------------------
# A sum is vectorised by adding in another order. Only this one addition allows that; the rest of a kernel keeps its order.


@njit(fastmath={"reassoc", "nsz"}, forceinline=True, no_cpython_wrapper=True)
def accumulate(total, x):
    """total + x, in any order."""
    return total + x


@njit(fastmath={"reassoc", "nsz"}, forceinline=True, no_cpython_wrapper=True)
def accumulate_product(total, x):
    """total * x, in any order."""
    return total * x


# --- quotients -------------------------------------------------------------------------------------------------------


@intrinsic
def fused(typing_context, x, y, z):
    """x * y + z, rounded once."""

    def emit(context: Any, builder: Any, signature: Any, args: Sequence[Any]) -> Any:
        return builder.fma(*args)

    return (x(x, x, x), emit) if isinstance(x, types.Float) and x == y == z else None


def _part_of(number: Any, least: float, most: float) -> Any:
    def part_of(x, total):
        if number(least) < total and total < number(most):
            inverse = number(1) / total
            quotient = x * inverse
            quotient = fused(fused(-quotient, total, x), inverse, quotient)
            return fused(fused(-quotient, total, x), inverse, quotient)
        return x / total

    def divided(x, total):
        return x / total

    made = part_of if CAN_FUSE else divided
    return njit(forceinline=True, no_cpython_wrapper=True, error_model="numpy")(made)


_features = llvmlite.binding.get_host_cpu_features()
CAN_FUSE = bool(_features.get("fma", False) or _features.get("neon", False))

part_of32, part_of64 = _part_of(f32, 2.0**-60, 2.0**60), _part_of(f64, 2.0**-500, 2.0**500)
"""x / total, for many x from 0 to one total.

A division of a vector takes 16 cycles. A loop with one divisor divides once, and corrects each product with the inverse by its rest,
twice: the result is the one that a division rounds to (Markstein, "Computation of elementary functions on the IBM RISC System/6000
processor", 1990), but for the last bit of results below the smallest normal number. Totals that are 0, infinite or nearly so divide.
"""


# --- exponentials ----------------------------------------------------------------------------------------------------


def _vectorisable(function: Callable[..., Any]) -> Any:
    return njit(fastmath={"contract"}, forceinline=True, no_cpython_wrapper=True, error_model="numpy")(function)


# Adding 1.5 * 2**23 (2**52) leaves a number's nearest whole number in the low bits of the sum.
_SHIFT32, _SHIFT64 = f32(12582912.0), f64(6755399441055744.0)
_ONE_BITS32 = i32(0x3F800000)
_SHIFT32_BITS, _SHIFT64_BITS = i32(0x4B400000), i64(0x4338000000000000)
_RAISED32 = f32(12582912.0 + 64.0)  # the same for a number that is larger by 64
_LOG2E32, _LOG2E64 = f32(1.4426950408889634), f64(1.4426950408889634)
# ln 2 in two parts; the first has trailing zeros, so that its products with small whole numbers are exact.
_LN2_HI32, _LN2_LO32 = f32(0.693145751953125), f32(1.42860682030941723212e-6)
_LN2_HI64, _LN2_LO64 = f64(6.93147180369123816490e-01), f64(1.90821492927058770002e-10)


@_vectorisable
def _exp_tail32(r):
    """(exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2; fitted to 3.1e-9 of exp(r)."""
    p = f32(0.0013814540176801306)
    p = p * r + f32(0.0083687451089425907)
    p = p * r + f32(0.041668390783547913)
    p = p * r + f32(0.1666652039904253)
    return p * r + f32(0.4999999343212929)


@_vectorisable
def _exp_tail64(r):
    """(exp(r) - 1 - r) / r**2 for |r| <= ln(2) / 2; fitted to 1.5e-18."""
    p = f64(2.0914755325893202191e-9)
    p = p * r + f64(2.5105312729622101775e-8)
    p = p * r + f64(2.7557273478718580474e-7)
    p = p * r + f64(2.7557255170000887438e-6)
    p = p * r + f64(0.0000248015873256774619)
    p = p * r + f64(0.00019841269875002278793)
    p = p * r + f64(0.0013888888888883711167)
    p = p * r + f64(0.0083333333333260831202)
    p = p * r + f64(0.041666666666666669783)
    p = p * r + f64(0.1666666666666667103)
    return p * r + f64(0.5)


@_vectorisable
def exp32(x):
    """e ** x."""
    # Beyond these all results are 0 or inf. Written so that a NaN stays: every comparison with it is false.
    v = select(x < f32(-105.0), f32(-105.0), x)
    v = select(v > f32(89.0), f32(89.0), v)
    shifted = v * _LOG2E32 + _SHIFT32
    n = shifted - _SHIFT32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = (_exp_tail32(r) * r + f32(1.0)) * r + f32(1.0)
    k = i32(_bits32(shifted) - _SHIFT32_BITS)
    # 2**k in two factors: it may be below the smallest normal number, or above the largest.
    half = i32(k >> i32(1))
    rest = i32(k - half)
    return p * _float32(i32((half + i32(127)) << i32(23))) * _float32(i32((rest + i32(127)) << i32(23)))


@_vectorisable
def exp_below32(x):
    """e ** x for x that is not above 0, in two thirds of the time."""
    v = select(x < f32(-105.0), f32(-105.0), x)
    shifted = v * _LOG2E32 + _RAISED32
    n = shifted - _RAISED32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = (_exp_tail32(r) * r + f32(1.0)) * r + f32(1.0)
    raised = _float32(i32((_bits32(shifted) << i32(23)) + _ONE_BITS32))  # 2**(n + 64), a normal number for every n
    return p * raised * f32(2.0**-64)


@_vectorisable
def exp64(x):
    """e ** x."""
    v = select(x < f64(-746.0), f64(-746.0), x)
    v = select(v > f64(710.0), f64(710.0), v)
    shifted = v * _LOG2E64 + _SHIFT64
    n = shifted - _SHIFT64
    r = (v - n * _LN2_HI64) - n * _LN2_LO64
    p = r * r * _exp_tail64(r) + r + f64(1.0)
    k = _bits64(shifted) - _SHIFT64_BITS
    half = k >> i64(1)
    rest = k - half
    return p * _float64((half + i64(1023)) << i64(52)) * _float64((rest + i64(1023)) << i64(52))


@_vectorisable
def expm132(x):
    """e ** x - 1, accurate near 0."""
    v = select(x < f32(-18.0), f32(-18.0), x)  # -1 from there on
    v = select(v > f32(89.0), f32(89.0), v)
    shifted = v * _LOG2E32 + _SHIFT32
    n = shifted - _SHIFT32
    r = (v - n * _LN2_HI32) - n * _LN2_LO32
    p = r * r * _exp_tail32(r) + r
    # 2**k p + (2**k - 1), by way of half of it, because 2**128 is too large.
    h = _float32(i32((_bits32(shifted) - _SHIFT32_BITS + i32(126)) << i32(23)))
    y = f32(2.0) * (h * p + (h - f32(0.5)))
    return select(fabs(x) < f32(5.9604645e-08), x, y)  # 2**-24: half of a denormal number would be lost, and -0.0


@_vectorisable
def expm164(x):
    """e ** x - 1, accurate near 0."""
    v = select(x < f64(-40.0), f64(-40.0), x)
    v = select(v > f64(710.0), f64(710.0), v)
    shifted = v * _LOG2E64 + _SHIFT64
    n = shifted - _SHIFT64
    r = (v - n * _LN2_HI64) - n * _LN2_LO64
    p = r * r * _exp_tail64(r) + r
    h = _float64((_bits64(shifted) - _SHIFT64_BITS + i64(1022)) << i64(52))
    y = f64(2.0) * (h * p + (h - f64(0.5)))
    return select(fabs(x) < f64(1.1102230246251565e-16), x, y)  # 2**-53


@_vectorisable
def tanh32(x):
    """The hyperbolic tangent: t / (t + 2) with t = expm1(2 |x|)."""
    a = fabs(x)
    t = expm132(f32(2.0) * select(a > f32(10.0), f32(10.0), a))  # 1 from 9.01 on
    return copysign(t / (t + f32(2.0)), x)


@_vectorisable
def tanh64(x):
    """The hyperbolic tangent: t / (t + 2) with t = expm1(2 |x|)."""
    a = fabs(x)
    t = expm164(f64(2.0) * select(a > f64(22.0), f64(22.0), a))
    return copysign(t / (t + f64(2.0)), x)


# --- logarithms ------------------------------------------------------------------------------------------------------

_SQRT_HALF_BITS32, _MANTISSA32 = i32(0x3F3504F3), i32(0x007FFFFF)
_SQRT_HALF_BITS64, _ONE_BITS64, _MANTISSA64 = i64(0x3FE6A09E667F3BCD), i64(0x3FF0000000000000), i64(0x000FFFFFFFFFFFFF)


@_vectorisable
def _log_tail32(s):
    """(log(1+s) - log(1-s)) / s - 2 for |s| < 0.1716 (fdlibm, error 2**-34.24)."""
    z = s * s
    w = z * z
    return z * (f32(0.66666662693) + w * f32(0.28498786688)) + w * (f32(0.40000972152) + w * f32(0.24279078841))


@_vectorisable
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


@_vectorisable
def log32(x):
    """The natural logarithm; -inf at 0, NaN below."""
    tiny = x < f32(1.1754943508222875e-38)
    u = select(tiny, x * f32(33554432.0), x)  # 2**25, so that denormals become normal
    bits = i32(_bits32(u) + (_ONE_BITS32 - _SQRT_HALF_BITS32))
    k = f32(i32((bits >> i32(23)) - i32(127))) - select(tiny, f32(25.0), f32(0.0))
    f = _float32(i32((bits & _MANTISSA32) + _SQRT_HALF_BITS32)) - f32(1.0)  # sqrt(1/2) - 1 to sqrt(2) - 1
    s = f / (f32(2.0) + f)
    half = f32(0.5) * f * f
    y = k * _LN2_HI32 - ((half - (s * (half + _log_tail32(s)) + k * _LN2_LO32)) - f)
    y = select(x < f32(np.inf), y, x)  # inf and NaN
    y = select(x == f32(0.0), f32(-np.inf), y)
    return select(x < f32(0.0), f32(np.nan), y)


@_vectorisable
def log64(x):
    """The natural logarithm; -inf at 0, NaN below."""
    tiny = x < f64(2.2250738585072014e-308)
    u = select(tiny, x * f64(18014398509481984.0), x)  # 2**54
    bits = _bits64(u) + (_ONE_BITS64 - _SQRT_HALF_BITS64)
    k = f64((bits >> i64(52)) - i64(1023)) - select(tiny, f64(54.0), f64(0.0))
    f = _float64((bits & _MANTISSA64) + _SQRT_HALF_BITS64) - f64(1.0)
    s = f / (f64(2.0) + f)
    half = f64(0.5) * f * f
    y = k * _LN2_HI64 - ((half - (s * (half + _log_tail64(s)) + k * _LN2_LO64)) - f)
    y = select(x < f64(np.inf), y, x)
    y = select(x == f64(0.0), f64(-np.inf), y)
    return select(x < f64(0.0), f64(np.nan), y)


@_vectorisable
def log1p32(x):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""
    u = f32(1.0) + x
    bits = i32(_bits32(u) + (_ONE_BITS32 - _SQRT_HALF_BITS32))
    n = i32((bits >> i32(23)) - i32(127))
    m = _float32(i32((bits & _MANTISSA32) + _SQRT_HALF_BITS32)) - f32(1.0)
    # What 1 + x lost in rounding, as a part of u.
    lost = select(n >= i32(2), f32(1.0) - (u - x), x - (u - f32(1.0))) / u
    small = n == i32(0)
    f = select(small, x, m)
    c = select(small | (n >= i32(25)), f32(0.0), lost)
    k = f32(n)
    s = f / (f32(2.0) + f)
    half = f32(0.5) * f * f
    y = k * _LN2_HI32 - ((half - (s * (half + _log_tail32(s)) + (k * _LN2_LO32 + c))) - f)
    y = select(x < f32(np.inf), y, x)
    y = select(x == f32(-1.0), f32(-np.inf), y)
    y = select(fabs(x) < f32(5.9604645e-08), x, y)  # 2**-24: log1p(x) is x there, and -0.0 stays
    return select(x < f32(-1.0), f32(np.nan), y)


@_vectorisable
def log1p64(x):
    """log(1 + x), accurate near 0; -inf at -1, NaN below."""
    u = f64(1.0) + x
    bits = _bits64(u) + (_ONE_BITS64 - _SQRT_HALF_BITS64)
    n = (bits >> i64(52)) - i64(1023)
    m = _float64((bits & _MANTISSA64) + _SQRT_HALF_BITS64) - f64(1.0)
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


# --- the error function ----------------------------------------------------------------------------------------------


@_vectorisable
def erf32(x):
    """The error function."""
    t = fabs(x)
    s = x * x
    p = f32(-5.96761703e-4)
    p = p * s + f32(4.99119423e-3)
    p = p * s + f32(-2.67681349e-2)
    p = p * s + f32(1.12819925e-1)
    p = p * s + f32(-3.76125336e-1)
    p = p * s + f32(1.28379166e-1)
    near = p * x + x
    b = select(t > f32(4.0), f32(4.0), t)  # 1 from 3.92 on
    q = f32(-1.72853470e-5) * b + f32(3.83197126e-4)
    q = q * (b * b) + (f32(-3.88396438e-3) * b + f32(2.42546219e-2))
    q = q * b + f32(-1.06777877e-1)
    q = q * b + f32(-6.34846687e-1)
    q = q * b + f32(-1.28717512e-1)
    far = copysign(f32(1.0) - exp32(q * b - b), x)
    return select(t > f32(0.927734375), far, near)


@_vectorisable
def erf64(x):
    """The error function."""
    t = fabs(x)
    s = x * x
    p = f64(-7.7958988270021422416e-10)  # erf(x) / x - 1 in x**2 on [0, 1]; fitted to 7.4e-18
    p = p * s + f64(1.3720064546777685604e-8)
    p = p * s + f64(-1.6208483801871705902e-7)
    p = p * s + f64(1.644742470331736241e-6)
    p = p * s + f64(-0.000014924736907419660338)
    p = p * s + f64(0.00012055294904839707917)
    p = p * s + f64(-0.00085483259753896920806)
    p = p * s + f64(0.0052239776071164227321)
    p = p * s + f64(-0.02686617064323777036)
    p = p * s + f64(0.11283791670945006266)
    p = p * s + f64(-0.37612638903183540438)
    p = p * s + f64(0.12837916709551256654)
    near = p * x + x
    b = select(t > f64(6.0), f64(6.0), t)  # 1 from 5.93 on
    q = f64(6.0707194563659277223e-18)  # -log(erfc(x)) / x - 1 - x on [0.99, 6]; fitted to 2.1e-16
    q = q * b + f64(-5.1938324193174272708e-16)
    q = q * b + f64(2.1122079183675948427e-14)
    q = q * b + f64(-5.4332879128214301304e-13)
    q = q * b + f64(9.9232799275072464966e-12)
    q = q * b + f64(-1.3691237118123422302e-10)
    q = q * b + f64(1.4820414048361458622e-9)
    q = q * b + f64(-1.2899259906677758838e-8)
    q = q * b + f64(9.172673951204480011e-8)
    q = q * b + f64(-5.3798882854447798922e-7)
    q = q * b + f64(2.6113657009940175913e-6)
    q = q * b + f64(-0.000010447328429503090896)
    q = q * b + f64(0.000033893684821510686007)
    q = q * b + f64(-0.000085421278905812032188)
    q = q * b + f64(0.00014708725172721372737)
    q = q * b + f64(-0.000073928569344569336382)
    q = q * b + f64(-0.00049241166401493811132)
    q = q * b + f64(0.0016197799433163777267)
    q = q * b + f64(-0.0001625528175307756709)
    q = q * b + f64(-0.019149840096447227219)
    q = q * b + f64(0.1027795346019183973)
    q = q * b + f64(-0.36338164060203961198)
    q = q * b + f64(0.12837930324929543841)
    far = copysign(f64(1.0) - exp64(-(b * (f64(1.0) + b) + q * b)), x)
    return select(t > f64(1.0), far, near)


# --- what is made of exponentials and logarithms ---------------------------------------------------------------------


@_vectorisable
def sinh64(x):
    """The hyperbolic sine: (t + t / (t + 1)) / 2 with t = expm1(|x|)."""
    a = fabs(x)
    t = expm164(select(a > f64(709.0), f64(709.0), a))
    w = exp64(f64(0.5) * a)  # e ** a is too large before half of it is
    return copysign(select(a > f64(709.0), f64(0.5) * w * w, f64(0.5) * (t + t / (t + f64(1.0)))), x)


@_vectorisable
def cosh64(x):
    """The hyperbolic cosine: (e + 1 / e) / 2 with e = exp(|x|)."""
    a = fabs(x)
    e = exp64(select(a > f64(709.0), f64(709.0), a))
    w = exp64(f64(0.5) * a)
    return select(a > f64(709.0), f64(0.5) * w * w, f64(0.5) * e + f64(0.5) / e)


@_vectorisable
def asinh64(x):
    """The inverse of sinh: log1p(a + a**2 / (1 + sqrt(1 + a**2))) with a = |x|."""
    a = fabs(x)
    b = select(a > f64(268435456.0), f64(1.0), a)  # 2**28: the root is a itself from there on
    near = log1p64(b + b * b / (f64(1.0) + sqrt(f64(1.0) + b * b)))
    return copysign(select(a > f64(268435456.0), log64(a) + f64(0.6931471805599453), near), x)


@_vectorisable
def acosh64(x):
    """The inverse of cosh: log1p(t + sqrt(2 t + t**2)) with t = x - 1; NaN below 1."""
    t = select(x > f64(268435456.0), f64(1.0), x - f64(1.0))
    near = log1p64(t + sqrt(f64(2.0) * t + t * t))
    y = select(x > f64(268435456.0), log64(x) + f64(0.6931471805599453), near)
    return select(x < f64(1.0), f64(np.nan), y)


@_vectorisable
def atanh64(x):
    """The inverse of tanh: log1p(2 a / (1 - a)) / 2 with a = |x|; NaN beyond 1."""
    a = fabs(x)
    return copysign(f64(0.5) * log1p64((a + a) / (f64(1.0) - a)), x)


@_vectorisable
def sinh32(x):
    """The hyperbolic sine."""
    return f32(sinh64(f64(x)))


@_vectorisable
def cosh32(x):
    """The hyperbolic cosine."""
    return f32(cosh64(f64(x)))


@_vectorisable
def asinh32(x):
    """The inverse of sinh."""
    return f32(asinh64(f64(x)))


@_vectorisable
def acosh32(x):
    """The inverse of cosh."""
    return f32(acosh64(f64(x)))


@_vectorisable
def atanh32(x):
    """The inverse of tanh."""
    return f32(atanh64(f64(x)))


# --- angles ----------------------------------------------------------------------------------------------------------


@_vectorisable
def _atan_tail64(z):
    """1 - atan(x) / x in z = x**2 for |x| < 7 / 16 (fdlibm)."""
    w = z * z
    odd = f64(4.97687799461593236017e-02) + w * f64(1.62858201153657823623e-02)
    odd = f64(6.66107313738753120669e-02) + w * odd
    odd = f64(9.09088713343650656196e-02) + w * odd
    odd = f64(1.42857142725034663711e-01) + w * odd
    odd = f64(3.33333333333329318027e-01) + w * odd
    even = f64(-5.83357013379057348645e-02) + w * f64(-3.65315727442169155270e-02)
    even = f64(-7.69187620504482999495e-02) + w * even
    even = f64(-1.11111104054623557880e-01) + w * even
    even = f64(-1.99999999998764832476e-01) + w * even
    return z * odd + w * even


@_vectorisable
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
    zero = _float64(_bits64(a) & i64(0))  # so that the angles have a type wherever this is translated to
    high = select(third, zero + f64(9.82793723247329054082e-01), zero + f64(7.85398163397448278999e-01))
    high = select(second, high, zero + f64(4.63647609000806093515e-01))
    high = select(fourth, zero + f64(1.57079632679489655800e00), high)
    low = select(third, zero + f64(1.39033110312309984516e-17), zero + f64(3.06161699786838301793e-17))
    low = select(second, low, zero + f64(2.26987774529616870924e-17))
    low = select(fourth, zero + f64(6.12323399573676603587e-17), low)
    tail = u * _atan_tail64(u * u)
    return copysign(select(first, high - ((tail - low) - u), u - tail), x)


@_vectorisable
def _asin_tail64(t):
    """asin(x) / x - 1 in t = x**2 for |x| <= 1 / 2 (fdlibm)."""
    p = f64(7.91534994289814532176e-04) + t * f64(3.47933107596021167570e-05)
    p = f64(-4.00555345006794114027e-02) + t * p
    p = f64(2.01212532134862925881e-01) + t * p
    p = f64(-3.25565818622400915405e-01) + t * p
    p = t * (f64(1.66666666666666657415e-01) + t * p)
    q = f64(-6.88283971605453293030e-01) + t * f64(7.70381505559019352791e-02)
    q = f64(2.02094576023350569471e00) + t * q
    q = f64(-2.40339491173441421878e00) + t * q
    return p / (f64(1.0) + t * q)


@_vectorisable
def asin64(x):
    """The angle whose sine is x: pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) beyond 1 / 2; NaN beyond 1."""
    a = fabs(x)
    far = a > f64(0.5)
    t = select(far, f64(0.5) * (f64(1.0) - a), a * a)
    s = select(far, sqrt(t), a)
    r = s + s * _asin_tail64(t)
    return copysign(select(far, f64(1.57079632679489655800e00) - (r + r - f64(6.12323399573676603587e-17)), r), x)


@_vectorisable
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


@_vectorisable
def atan32(x):
    """The angle whose tangent is x."""
    return f32(atan64(f64(x)))


@_vectorisable
def asin32(x):
    """The angle whose sine is x."""
    return f32(asin64(f64(x)))


@_vectorisable
def acos32(x):
    """The angle whose cosine is x."""
    return f32(acos64(f64(x)))


# --- angles of any size ----------------------------------------------------------------------------------------------
# Of float32, computed in float64. a times 2 / pi says how many quarters of a turn there are in a, and what is left. 2 / pi is kept
# in pieces of 24 bits, so that each product with a float32 is exact; pieces that make whole turns are skipped, five are used, and
# that leaves 40 right bits even of the angle that is closest to a quarter (Payne and Hanek, "Radian reduction for trigonometric
# functions", 1983). Beyond 2**49, 2**73, 2**97 and 2**121 one more piece makes whole turns only.


@_vectorisable
def _piece_a64(a):
    """a times the first piece of 2 / pi that matters."""
    zero = _float64(_bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + f64(0.6366197466850281), zero + f64(2.5682552973194106e-08))
    c = select(a < f64(9.444732965739290e21), c, zero + f64(2.937095214933759e-16))
    c = select(a < f64(1.5845632502852868e29), c, zero + f64(3.2543794001732456e-23))
    return a * select(a < f64(2.6584559915698317e36), c, zero + f64(1.2089613708828537e-29))


@_vectorisable
def _piece_b64(a):
    """a times the second."""
    zero = _float64(_bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + f64(2.5682552973194106e-08), zero + f64(2.937095214933759e-16))
    c = select(a < f64(9.444732965739290e21), c, zero + f64(3.2543794001732456e-23))
    c = select(a < f64(1.5845632502852868e29), c, zero + f64(1.2089613708828537e-29))
    return a * select(a < f64(2.6584559915698317e36), c, zero + f64(5.667556795740071e-37))


@_vectorisable
def _piece_c64(a):
    """a times the third."""
    zero = _float64(_bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + f64(2.937095214933759e-16), zero + f64(3.2543794001732456e-23))
    c = select(a < f64(9.444732965739290e21), c, zero + f64(1.2089613708828537e-29))
    c = select(a < f64(1.5845632502852868e29), c, zero + f64(5.667556795740071e-37))
    return a * select(a < f64(2.6584559915698317e36), c, zero + f64(2.6204031112097215e-44))


@_vectorisable
def _piece_d64(a):
    """a times the fourth."""
    zero = _float64(_bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + f64(3.2543794001732456e-23), zero + f64(1.2089613708828537e-29))
    c = select(a < f64(9.444732965739290e21), c, zero + f64(5.667556795740071e-37))
    c = select(a < f64(1.5845632502852868e29), c, zero + f64(2.6204031112097215e-44))
    return a * select(a < f64(2.6584559915698317e36), c, zero + f64(7.053957680880629e-52))


@_vectorisable
def _piece_e64(a):
    """a times the fifth."""
    zero = _float64(_bits64(a) & i64(0))  # so that the numbers have a type wherever this is translated to
    c = select(a < f64(562949953421312.0), zero + f64(1.2089613708828537e-29), zero + f64(5.667556795740071e-37))
    c = select(a < f64(9.444732965739290e21), c, zero + f64(2.6204031112097215e-44))
    c = select(a < f64(1.5845632502852868e29), c, zero + f64(7.053957680880629e-52))
    return a * select(a < f64(2.6584559915698317e36), c, zero + f64(1.582624282116559e-58))


@_vectorisable
def _quarters_high64(a):
    """The first two pieces, less whole turns: exact."""
    p = _piece_a64(a)
    q = _piece_b64(a)
    return (p - f64(4.0) * floor(f64(0.25) * p)) + (q - f64(4.0) * floor(f64(0.25) * q))


@_vectorisable
def _quarters64(a):
    """The nearest number of quarters of a turn, up to whole turns."""
    return rint(_quarters_high64(a) + _piece_c64(a))


@_vectorisable
def _beyond64(a):
    """What is left beside them, as an angle from -pi / 4 to pi / 4."""
    r = ((_quarters_high64(a) - _quarters64(a)) + _piece_c64(a)) + (_piece_d64(a) + _piece_e64(a))
    return r * f64(1.5707963267948966)


@_vectorisable
def _sine64(y):
    """sin(y) for |y| <= pi / 4, to 1e-11."""
    z = y * y
    p = f64(-2.505210838544172e-08) * z + f64(2.7557319223985893e-06)
    p = p * z + f64(-1.984126984126984e-04)
    p = p * z + f64(8.333333333333333e-03)
    p = p * z + f64(-0.16666666666666666)
    return y + y * (z * p)


@_vectorisable
def _cosine64(y):
    """cos(y) for |y| <= pi / 4, to 1e-12."""
    z = y * y
    p = f64(2.08767569878681e-09) * z + f64(-2.755731922398589e-07)
    p = p * z + f64(2.48015873015873e-05)
    p = p * z + f64(-1.388888888888889e-03)
    p = p * z + f64(4.1666666666666664e-02)
    p = p * z + f64(-0.5)
    return f64(1.0) + z * p


@_vectorisable
def _of_quarter64(y, n):
    """sin(y + n pi / 2) for a whole n."""
    half = f64(0.5) * n
    value = select(half != floor(half), _cosine64(y), _sine64(y))
    turns = f64(0.5) * floor(half)
    return select(turns != floor(turns), -value, value)


@_vectorisable
def sin32(x):
    """The sine."""
    a = f64(fabs(x))
    y = f32(_of_quarter64(_beyond64(a), _quarters64(a)))
    return select(x == f32(0.0), x, select(x < f32(0.0), -y, y))


@_vectorisable
def cos32(x):
    """The cosine."""
    a = f64(fabs(x))
    return f32(_of_quarter64(_beyond64(a), _quarters64(a) + f64(1.0)))


@_vectorisable
def _tangent64(a):
    """tan(a) for a that is a float32, and not negative."""
    y = _beyond64(a)
    half = f64(0.5) * _quarters64(a)
    odd = half != floor(half)
    s = _sine64(y)
    c = _cosine64(y)
    return select(odd, -c, s) / select(odd, s, c)


@_vectorisable
def tan32(x):
    """The tangent."""
    t = f32(_tangent64(f64(fabs(x))))
    return select(x == f32(0.0), x, select(x < f32(0.0), -t, t))


# Of float64: the angles of normal random numbers, from 0 to 2 pi, which are rounded to float32 only once multiplied (fdlibm).


@_vectorisable
def _beyond_quarters64(x, n):
    """x - n pi / 2 for n up to 4, whose product with the first part of pi / 2 is exact."""
    return (x - n * f64(1.57079632673412561417e00)) - n * f64(6.07710050650619224932e-11)


@_vectorisable
def _exact_sine64(y):
    """sin(y) for |y| <= pi / 4."""
    z = y * y
    p = f64(1.58969099521155010221e-10) * z + f64(-2.50507602534068634195e-08)
    p = p * z + f64(2.75573137070700676789e-06)
    p = p * z + f64(-1.98412698298579493134e-04)
    p = p * z + f64(8.33333333332248946124e-03)
    p = p * z + f64(-1.66666666666666324348e-01)
    return y + y * (z * p)


@_vectorisable
def _exact_cosine64(y):
    """cos(y) for |y| <= pi / 4."""
    z = y * y
    p = f64(-1.13596475577881948265e-11) * z + f64(2.08757232129817482790e-09)
    p = p * z + f64(-2.75573143513906633035e-07)
    p = p * z + f64(2.48015872894767294178e-05)
    p = p * z + f64(-1.38888888888741095749e-03)
    p = p * z + f64(4.16666666666666019037e-02)
    w = f64(1.0) - f64(0.5) * z
    return w + (((f64(1.0) - w) - f64(0.5) * z) + z * (z * p))


@_vectorisable
def _of_exact_quarter64(y, n):
    """sin(y + n pi / 2) for a whole n."""
    half = f64(0.5) * n
    value = select(half != floor(half), _exact_cosine64(y), _exact_sine64(y))
    turns = f64(0.5) * floor(half)
    return select(turns != floor(turns), -value, value)


@_vectorisable
def sine_of_turn64(x):
    """sin(x) for 0 <= x <= 2 pi."""
    n = rint(x * f64(0.6366197723675814))
    return _of_exact_quarter64(_beyond_quarters64(x, n), n)


@_vectorisable
def cosine_of_turn64(x):
    """cos(x) for 0 <= x <= 2 pi."""
    n = rint(x * f64(0.6366197723675814))
    return _of_exact_quarter64(_beyond_quarters64(x, n), n + f64(1.0))


# --- powers, and functions around the gamma function -----------------------------------------------------------------
# Of float32, in float64 too: for float64 they would need logarithms of twice its precision.


@_vectorisable
def _power64(a, b):
    """a ** b for a that is not negative."""
    size = exp64(b * log64(a))
    return select((a == f64(1.0)) & (fabs(b) == f64(np.inf)), f64(1.0), size)


@_vectorisable
def pow32(x, y):
    """x ** y as C has it: of negative numbers for whole y only; 1 where y is 0 or x is 1, whatever the other is."""
    value = f32(_power64(f64(fabs(x)), f64(y)))
    half = f32(0.5) * y
    whole = y == floor(y)
    value = select(whole & (half != floor(half)), copysign(value, x), value)
    value = select((x < f32(0.0)) & (fabs(x) < f32(np.inf)) & (y != floor(y)), f32(np.nan), value)
    return select((y == f32(0.0)) | (x == f32(1.0)), f32(1.0), value)


@_vectorisable
def _erfc64(a):
    """1 - erf(a) for a >= 0, as precise as a float32: t exp(p(t) - a**2) with t = 2 / (2 + a); p fitted to 2.2e-11."""
    b = select(a > f64(10.3), f64(10.3), a)  # 0 from 10.06 on
    t = f64(2.0) / (f64(2.0) + b)
    p = f64(-0.17945632516545361981) * t + f64(1.4321239442695137955)
    p = p * t + f64(-5.007984852073125364)
    p = p * t + f64(9.9581727053351401046)
    p = p * t + f64(-12.196647297392770038)
    p = p * t + f64(9.3480525746578037852)
    p = p * t + f64(-4.5225312659425971481)
    p = p * t + f64(1.5805451494366666562)
    p = p * t + f64(-0.39779688199158963844)
    p = p * t + f64(-0.12841124532696183195)
    p = p * t + f64(-0.076234693625020245433)
    p = p * t + f64(0.080272825229136408547)
    p = p * t + f64(0.37543931368559019164)
    p = p * t + f64(0.99996713927525559925)
    p = p * t + f64(-1.2655110903929156611)
    return t * exp64(p - b * b)


@_vectorisable
def erfc32(x):
    """1 - erf(x), accurate where that is small."""
    y = _erfc64(f64(fabs(x)))
    return f32(select(x < f32(0.0), f64(2.0) - y, y))


@_vectorisable
def _log_gamma64(x):
    """The logarithm of gamma(x) for x >= 1/2: Stirling's series from 8 on, below by way of x (x + 1) ... (x + 7)."""
    small = x < f64(8.0)
    p = x * (x + f64(1.0)) * (x + f64(2.0)) * (x + f64(3.0))
    p = p * (x + f64(4.0)) * (x + f64(5.0)) * (x + f64(6.0)) * (x + f64(7.0))
    y = select(small, x + f64(8.0), x)
    w = f64(1.0) / y
    z = w * w
    s = f64(-0.029550653594771243) * z + f64(0.00641025641025641)
    s = s * z + f64(-0.0019175269175269176)
    s = s * z + f64(0.0008417508417508417)
    s = s * z + f64(-0.0005952380952380953)
    s = s * z + f64(0.0007936507936507937)
    s = s * z + f64(-0.002777777777777778)
    s = s * z + f64(0.08333333333333333)
    log_of = log64(y)
    far = (y * (log_of - f64(1.0)) - f64(0.5) * log_of) + (f64(0.9189385332046727) + w * s)
    return far - select(small, log64(p), f64(0.0))


@_vectorisable
def _log_any_gamma64(a):
    """The logarithm of |gamma(a)|; below 1/2 by Euler's reflection: log(pi / |sin(pi a)|) less that of 1 - a."""
    low = a < f64(0.5)
    f = fabs(a - rint(a))
    half = f > f64(0.25)
    y = f64(3.141592653589793) * select(half, f64(0.5) - f, f)
    sine = select(half, _cosine64(y), _sine64(y))
    upper = _log_gamma64(select(low, f64(1.0) - a, a))
    value = select(low, f64(1.1447298858494002) - log64(sine) - upper, upper)
    return select(fabs(value) < f64(1e-14), f64(0.0), value)  # at 1 and 2; nowhere else is a float32 so close to a root


@_vectorisable
def lgamma32(x):
    """The logarithm of |gamma(x)|."""
    return select(fabs(x) == f32(np.inf), x, f32(_log_any_gamma64(f64(x))))  # as SciPy has it
