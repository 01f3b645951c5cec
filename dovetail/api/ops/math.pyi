"""Types of `dovetail.math`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.graph.ops.array.segments import (
    segment_max as segment_max, segment_mean as segment_mean, segment_min as segment_min, segment_prod as segment_prod, segment_sum as
    segment_sum, unsorted_segment_max as unsorted_segment_max, unsorted_segment_mean as unsorted_segment_mean, unsorted_segment_min as
    unsorted_segment_min, unsorted_segment_prod as unsorted_segment_prod, unsorted_segment_sqrt_n as unsorted_segment_sqrt_n,
    unsorted_segment_sum as unsorted_segment_sum,
)
from dovetail.graph.ops.array.shapes import invert_permutation as invert_permutation
from dovetail.graph.ops.array.sorting import in_top_k as in_top_k, top_k as top_k
from dovetail.graph.ops.math.arithmetic import (
    absolute as abs, accumulate_n as accumulate_n, add as add, add_n as add_n, divide as divide, div_no_nan as divide_no_nan, floordiv
    as floordiv, floormod as floormod, maximum as maximum, minimum as minimum, floormod as mod, multiply as multiply, multiply_no_nan as
    multiply_no_nan, negative as negative, power as pow, reciprocal as reciprocal, rsqrt as rsqrt, scalar_mul as scalar_mul, sign as
    sign, sqrt as sqrt, square as square, squared_difference as squared_difference, subtract as subtract, truediv as truediv,
)
from dovetail.graph.ops.math.compare import (
    equal as equal, greater as greater, greater_equal as greater_equal, less as less, less_equal as less_equal, logical_and as
    logical_and, logical_not as logical_not, logical_or as logical_or, logical_xor as logical_xor, not_equal as not_equal,
)
from dovetail.graph.ops.math.elementwise import (
    acos as acos, acosh as acosh, asin as asin, asinh as asinh, atan as atan, atan2 as atan2, atanh as atanh, ceil as ceil, cos as cos,
    cosh as cosh, digamma as digamma, erf as erf, erfc as erfc, exp as exp, expm1 as expm1, floor as floor, is_finite as is_finite,
    is_inf as is_inf, is_nan as is_nan, lgamma as lgamma, log as log, log1p as log1p, polygamma as polygamma, rint as rint, round as
    round, sigmoid as sigmoid, sin as sin, sinh as sinh, tan as tan, tanh as tanh,
)
from dovetail.graph.ops.math.reduce import (
    reduce_all as reduce_all, reduce_any as reduce_any, reduce_max as reduce_max, reduce_mean as reduce_mean, reduce_min as reduce_min,
    reduce_prod as reduce_prod, reduce_sum as reduce_sum,
)
from dovetail.graph.ops.math.scan import argmax as argmax, argmin as argmin, cumprod as cumprod, cumsum as cumsum
from dovetail.graph.ops.math.special_functions import (
    bessel_i0 as bessel_i0, bessel_i0e as bessel_i0e, bessel_i1 as bessel_i1, bessel_i1e as bessel_i1e, bincount as bincount,
    confusion_matrix as confusion_matrix, lbeta as lbeta, polyval as polyval, reciprocal_no_nan as reciprocal_no_nan, xdivy as xdivy,
    xlogy as xlogy, zero_fraction as zero_fraction,
)
from dovetail.graph.ops.math.statistics import (
    count_nonzero as count_nonzero, reduce_euclidean_norm as reduce_euclidean_norm, reduce_logsumexp as reduce_logsumexp, reduce_std as
    reduce_std, reduce_variance as reduce_variance,
)
from dovetail.graph.ops.nn.activations import log_sigmoid as log_sigmoid, softplus as softplus, softsign as softsign
from dovetail.graph.ops.nn.normalization import l2_normalize as l2_normalize
from dovetail.graph.ops.nn.softmax import log_softmax as log_softmax, softmax as softmax
__all__ = [
    "abs", "accumulate_n", "acos", "acosh", "add", "add_n", "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh", "bessel_i0",
    "bessel_i0e", "bessel_i1", "bessel_i1e", "bincount", "ceil", "confusion_matrix", "cos", "cosh", "count_nonzero", "cumprod",
    "cumsum", "digamma", "divide", "divide_no_nan", "equal", "erf", "erfc", "exp", "expm1", "floor", "floordiv", "floormod", "greater",
    "greater_equal", "in_top_k", "invert_permutation", "is_finite", "is_inf", "is_nan", "l2_normalize", "lbeta", "less", "less_equal",
    "lgamma", "log", "log1p", "log_sigmoid", "log_softmax", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum",
    "minimum", "mod", "multiply", "multiply_no_nan", "negative", "not_equal", "polygamma", "polyval", "pow", "reciprocal",
    "reciprocal_no_nan", "reduce_all", "reduce_any", "reduce_euclidean_norm", "reduce_logsumexp", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_prod", "reduce_std", "reduce_sum", "reduce_variance", "rint", "round", "rsqrt", "scalar_mul", "segment_max",
    "segment_mean", "segment_min", "segment_prod", "segment_sum", "sigmoid", "sign", "sin", "sinh", "softmax", "softplus", "softsign",
    "sqrt", "square", "squared_difference", "subtract", "tan", "tanh", "top_k", "truediv", "unsorted_segment_max",
    "unsorted_segment_mean", "unsorted_segment_min", "unsorted_segment_prod", "unsorted_segment_sqrt_n", "unsorted_segment_sum",
    "xdivy", "xlogy", "zero_fraction",
]
