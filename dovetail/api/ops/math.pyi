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
    accumulate_n as accumulate_n, add as add, add_n as add_n, divide as divide, floordiv as floordiv, multiply_no_nan as
    multiply_no_nan, power as pow, scalar_mul as scalar_mul, truediv as truediv,
)
from dovetail.graph.ops.math.compare import logical_xor as logical_xor
from dovetail.graph.ops.math.elementwise import atan2 as atan2, polygamma as polygamma, round as round
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
from dovetail.graph.core.build import TensorLike
from dovetail.graph.core.graph import Tensor
def abs(x: TensorLike, name: str | None = None) -> Tensor:
    """The absolute value (TensorFlow's `abs`)."""

def acos(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [0, pi] whose cosine is x; NaN outside [-1, 1]."""

def acosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1."""

def asin(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in [-pi/2, pi/2] whose sine is x; NaN outside [-1, 1]."""

def asinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic sine."""

def atan(x: TensorLike, name: str | None = None) -> Tensor:
    """The angle in (-pi/2, pi/2) whose tangent is x."""

def atanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside [-1, 1]."""

def ceil(x: TensorLike, name: str | None = None) -> Tensor:
    """The smallest integer not below x, as a float."""

def cos(x: TensorLike, name: str | None = None) -> Tensor:
    """The cosine; x in radians."""

def cosh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic cosine."""

def digamma(x: TensorLike, name: str | None = None) -> Tensor:
    """The derivative of `lgamma`."""

def divide_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where y is 0."""

def equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x == y. (The operator `==` on tensors compares the tensors themselves, as in TensorFlow 1.)"""

def erf(x: TensorLike, name: str | None = None) -> Tensor:
    """The error function: 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

def erfc(x: TensorLike, name: str | None = None) -> Tensor:
    """1 - erf(x), accurate for large x."""

def exp(x: TensorLike, name: str | None = None) -> Tensor:
    """e ** x."""

def expm1(x: TensorLike, name: str | None = None) -> Tensor:
    """exp(x) - 1, accurate near 0."""

def floor(x: TensorLike, name: str | None = None) -> Tensor:
    """The largest integer not above x, as a float."""

def floormod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The remainder of a division that rounds down: it has the sign of y (Python's `%`)."""

def greater(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x > y."""

def greater_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x >= y."""

def is_finite(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is neither infinite nor NaN."""

def is_inf(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is infinite."""

def is_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """Bool: whether x is NaN."""

def less(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x < y."""

def less_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x <= y."""

def lgamma(x: TensorLike, name: str | None = None) -> Tensor:
    """log(|gamma(x)|)."""

def log(x: TensorLike, name: str | None = None) -> Tensor:
    """The natural logarithm; NaN below zero."""

def log1p(x: TensorLike, name: str | None = None) -> Tensor:
    """log(1 + x), accurate near 0."""

def logical_and(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x and y, of bools."""

def logical_not(x: TensorLike, name: str | None = None) -> Tensor:
    """not x, of bools."""

def logical_or(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x or y, of bools."""

def maximum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The larger of x and y. NaN if either is NaN. The gradient goes to x where they are equal."""

def minimum(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The smaller of x and y. NaN if either is NaN. The gradient goes to x where they are equal."""

def mod(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """The remainder of a division that rounds down: it has the sign of y (Python's `%`)."""

def multiply(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, element by element."""

def negative(x: TensorLike, name: str | None = None) -> Tensor:
    """-x."""

def not_equal(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """Bool: x != y."""

def reciprocal(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x."""

def reduce_all(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """Bool: whether all elements are true, over axes (see `reduce_sum`)."""

def reduce_any(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """Bool: whether any element is true, over axes (see `reduce_sum`)."""

def reduce_max(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """The largest element over axes (see `reduce_sum`). NaN if one is NaN. Equal elements share the gradient."""

def reduce_mean(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """The mean over axes (see `reduce_sum`). NaN of no elements. The mean of integers is rounded towards zero."""

def reduce_min(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """The smallest element over axes (see `reduce_sum`). NaN if one is NaN. Equal elements share the gradient."""

def reduce_prod(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """The product over axes (see `reduce_sum`)."""

def reduce_sum(input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None, reduction_indices: Any = None, keep_dims: bool | None = None) -> Tensor:
    """The sum over axes.

    Args:
        input_tensor: of any numeric type. The result has the same type.
        axis: an axis, a list of axes, or an int tensor of them. Negative ones count from the end. None means all. [] means none.
        keepdims: keep the reduced axes with size 1.
        name: name of the node.
        reduction_indices: old name of `axis`.
        keep_dims: old name of `keepdims`.

    >>> reduce_sum([[1, 1, 1], [1, 1, 1]], axis=0)   # [2, 2, 2]"""

def rint(x: TensorLike, name: str | None = None) -> Tensor:
    """The nearest integer, as a float. Halves round to even."""

def rsqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / sqrt(x)."""

def sigmoid(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / (1 + exp(-x))."""

def sign(x: TensorLike, name: str | None = None) -> Tensor:
    """-1, 0 or 1 (NaN for NaN)."""

def sin(x: TensorLike, name: str | None = None) -> Tensor:
    """The sine; x in radians."""

def sinh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic sine."""

def sqrt(x: TensorLike, name: str | None = None) -> Tensor:
    """The square root; NaN below zero."""

def square(x: TensorLike, name: str | None = None) -> Tensor:
    """x * x."""

def squared_difference(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """(x - y) * (x - y)."""

def subtract(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x - y."""

def tan(x: TensorLike, name: str | None = None) -> Tensor:
    """The tangent; x in radians."""

def tanh(x: TensorLike, name: str | None = None) -> Tensor:
    """The hyperbolic tangent."""

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
