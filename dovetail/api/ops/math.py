"""`dt.math`: arithmetic, functions, comparisons and reductions."""

from ...graph.ops.array.segments import (
    segment_max,
    segment_mean,
    segment_min,
    segment_prod,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_min,
    unsorted_segment_prod,
    unsorted_segment_sqrt_n,
    unsorted_segment_sum,
)
from ...graph.ops.array.shapes import invert_permutation
from ...graph.ops.array.sorting import in_top_k, top_k
from ...graph.ops.math.arithmetic import (
    absolute as abs,
    accumulate_n,
    add,
    add_n,
    div_no_nan as divide_no_nan,
    divide,
    floordiv,
    floormod,
    floormod as mod,
    maximum,
    minimum,
    multiply,
    multiply_no_nan,
    negative,
    power as pow,
    reciprocal,
    rsqrt,
    scalar_mul,
    sign,
    sqrt,
    square,
    squared_difference,
    subtract,
    truediv,
)
from ...graph.ops.math.compare import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from ...graph.ops.math.elementwise import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    ceil,
    cos,
    cosh,
    digamma,
    erf,
    erfc,
    exp,
    expm1,
    floor,
    is_finite,
    is_inf,
    is_nan,
    lgamma,
    log,
    log1p,
    polygamma,
    rint,
    round,
    sigmoid,
    sin,
    sinh,
    tan,
    tanh,
)
from ...graph.ops.math.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from ...graph.ops.math.scan import argmax, argmin, cumprod, cumsum
from ...graph.ops.math.special_functions import (
    bessel_i0,
    bessel_i0e,
    bessel_i1,
    bessel_i1e,
    bincount,
    confusion_matrix,
    lbeta,
    polyval,
    reciprocal_no_nan,
    xdivy,
    xlogy,
    zero_fraction,
)
from ...graph.ops.math.statistics import (
    count_nonzero,
    reduce_euclidean_norm,
    reduce_logsumexp,
    reduce_std,
    reduce_variance,
)
from ...graph.ops.nn.activations import log_sigmoid, softplus, softsign
from ...graph.ops.nn.normalization import l2_normalize
from ...graph.ops.nn.softmax import log_softmax, softmax
from ...public_paths import exported as _exported

__all__ = _exported(globals())
