"""The math namespace of scalar bodies, for NumPy.

An elementwise op is written once, as a body for one element over a namespace `m`: `lambda m, x: 1 / (1 + m.exp(-x))`. Given
`numpy_math` the body works on whole arrays and is the op's reference; the code generators give it namespaces that make
source text for compiled kernels instead. So a body uses Python's arithmetic and comparison operators, `m.<function>`, and no
`if`: choices are `m.where(condition, a, b)`. Plain Python numbers in a body take the operands' type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np


def special(name: str) -> Callable[[Any], Any]:
    """A function of scipy.special that keeps the element type, and computes half precision in float32."""

    def function(x: Any) -> Any:
        import scipy.special  # a heavy library

        x = np.asarray(x)
        wide = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
        return np.asarray(getattr(scipy.special, name)(wide)).astype(x.dtype, copy=False)

    function.__name__ = name
    return function


def _like(x: Any, value: Any) -> Any:
    """A Python number as a scalar of the operand's type, so that `where(c, 1.0, 0.0)` does not become float64."""
    return value if isinstance(value, (np.ndarray, np.generic)) else np.asarray(value, dtype=x.dtype)


class NumpyMath:
    """Functions that a scalar body may call, on arrays. All keep the operands' element type."""

    exp, expm1, log, log1p, sqrt = np.exp, np.expm1, np.log, np.log1p, np.sqrt
    sin, cos, tan, asin, acos, atan, atan2 = np.sin, np.cos, np.tan, np.arcsin, np.arccos, np.arctan, np.arctan2
    sinh, cosh, tanh, asinh, acosh, atanh = np.sinh, np.cosh, np.tanh, np.arcsinh, np.arccosh, np.arctanh
    floor, ceil, round, trunc, sign, abs = np.floor, np.ceil, np.rint, np.trunc, np.sign, np.abs
    isnan, isinf, isfinite = np.isnan, np.isinf, np.isfinite
    logical_and, logical_or, logical_xor, logical_not = np.logical_and, np.logical_or, np.logical_xor, np.logical_not
    erf, erfc = staticmethod(special("erf")), staticmethod(special("erfc"))
    digamma = staticmethod(special("psi"))

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        """`a` where the condition holds, else `b`. One of them must be an array."""
        like = a if isinstance(a, (np.ndarray, np.generic)) else b
        if not isinstance(like, (np.ndarray, np.generic)):
            raise TypeError(
                "where() of two Python numbers has no element type: write one of them as m.full_like(x, number)"
            )
        return np.where(condition, _like(like, a), _like(like, b))

    @staticmethod
    def full_like(x: Any, value: Any) -> Any:
        """A number of x's element type."""
        return np.full(np.shape(x), value, np.asarray(x).dtype)

    @staticmethod
    def cast(x: Any, dtype: Any) -> Any:
        """x converted to another element type (a `DType`). Fractions are truncated, and anything but zero is true."""
        return np.asarray(x).astype(dtype.np)

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        """The smaller; NaN when either is NaN."""
        return np.minimum(a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        """The larger; NaN when either is NaN."""
        return np.maximum(a, b)

    @staticmethod
    def lgamma(x: Any) -> Any:
        """log(|gamma(x)|). Infinite for both infinities, as in C."""
        return special("gammaln")(np.where(np.isinf(x), np.abs(x), x))

    @staticmethod
    def rsqrt(x: Any) -> Any:
        """1 / sqrt(x)."""
        return 1 / np.sqrt(x)

    @staticmethod
    def pow(a: Any, b: Any) -> Any:
        """a ** b."""
        return np.power(a, b)


numpy_math = NumpyMath()


_NARROW = frozenset({np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)})


def reference_of(scalar: Callable[..., Any]) -> Callable[..., Any]:
    """The NumPy reference of a scalar body. float16 and bfloat16 are computed in float32 and rounded once, as compiled kernels do."""

    def reference(*inputs: Any, **attrs: Any) -> Any:
        for x in inputs:
            if x.itemsize == 2 and x.dtype in _NARROW:
                wide = [y.astype(np.float32) if y.dtype in _NARROW else y for y in inputs]
                result = scalar(numpy_math, *wide, **attrs)
                return result.astype(x.dtype) if result.dtype == np.float32 else result
        return scalar(numpy_math, *inputs, **attrs)

    return reference
