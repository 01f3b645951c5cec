"""Functions of one number that LLVM can vectorise, which fused Numba kernels call instead of the C library.

A loop that calls libm's `expf` runs one element at a time. The functions here are straight arithmetic without a branch, a table or a
call: choices are selects, powers of two are made from bits. Inlined into a loop they run 4 to 16 elements at a time. Names end in the
width of the type: `exp32` takes and gives float32.

Largest errors, in units in the last place of the result (tests/codegen/vecmath/test_vecmath.py measures them against exact values,
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

Those with an error of 1 in float32 and more in float64 are computed in float64 for both; so are, mostly, those that only float32 has.

`exp_log`, `trig`, `hyperbolic` and `special` have the functions above; `memory` has arguments of kernels, loads and stores of elements,
float16 and bfloat16 as bits; `intrinsics` has LLVM's, and sums in any order. Only `codegen/cpu` imports this package; GPU kernels have its
functions translated.

Sources: argument reduction after Cody and Waite, "Software Manual for the Elementary Functions" (1980); log and log1p follow
Ng's fdlibm (Sun, 1993); float32 erf is N. Juffa's pair of polynomials (public domain); the coefficients of exp, and of erf
in float64, are Chebyshev fits made with mpmath (with their errors in comments).

Only here may products and sums be contracted to fused multiply-adds, which change the last bit, within the errors above. The arithmetic
that a user wrote is compiled as it was written.
"""

from __future__ import annotations

from .exp_log import exp32, exp64, exp_below32, expm132, expm164, log1p32, log1p64, log32, log64, pow32
from .hyperbolic import (
    acosh32,
    acosh64,
    asinh32,
    asinh64,
    atanh32,
    atanh64,
    cosh32,
    cosh64,
    sinh32,
    sinh64,
    tanh32,
    tanh64,
)
from .intrinsics import (
    accumulate,
    accumulate_product,
    ceil,
    fabs,
    floor,
    fmaximum,
    fminimum,
    fused,
    inner,
    larger,
    launched,
    rint,
    select,
    sqrt,
    stay_apart,
    trunc,
    wide_vectors,
)
from .memory import (
    from_bfloat16,
    from_float16,
    load,
    some_words,
    store,
    to_bfloat16,
    to_float16,
    towards_odd,
    vector,
    word,
)
from .special import erf32, erf64, erfc32, lgamma32
from .trig import acos32, acos64, asin32, asin64, atan32, atan64, cos32, cosine_of_turn64, sin32, sine_of_turn64, tan32
