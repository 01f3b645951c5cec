"""Functions that count, and products that are 0 where a factor is: made of other ops."""

from __future__ import annotations

from typing import Any

from ..build import TensorLike, convert
from ..default_graph import get_default_graph
from ..dtypes import as_dtype, float32, int32, int64
from ..node import Tensor
from .arithmetic import add, div_no_nan, maximum, multiply, truediv
from .cast import cast
from .compare import equal, greater_equal, where_v2
from .creation import ones_like, zeros_like
from .joining import stack
from .math import log
from .passing import Assert, with_dependencies
from .reduce import reduce_all, reduce_max, reduce_mean
from .scattering import scatter_nd
from .segments import unsorted_segment_sum
from .shapes import reshape


def zero_fraction(value: TensorLike, name: str | None = None, dtype: Any = float32) -> Tensor:
    """The share of elements that are 0, from 0 to 1: a float32 scalar."""
    with get_default_graph().name_scope(name or "zero_fraction"):
        found = convert(value, name="value")
        zeros = equal(found, convert(0, dtype=found.dtype.base))
        return reduce_mean(cast(zeros, float32))


def confusion_matrix(
    labels: TensorLike,
    predictions: TensorLike,
    num_classes: TensorLike | None = None,
    dtype: Any = int32,
    name: str | None = None,
    weights: TensorLike | None = None,
) -> Tensor:
    """How often each label was taken for each class: rows are labels, columns predictions.

    Args:
        labels, predictions: classes from 0 on, vectors of one size. num_classes: how many; None: as many as are seen.
        dtype: of the result. weights: how much each pair counts.

    Returns:
        [num_classes, num_classes].
    """
    with get_default_graph().name_scope(name or "confusion_matrix"):
        truth, said = (cast(reshape(convert(x), [-1]), int64) for x in (labels, predictions))
        if num_classes is None:
            size = add(maximum(reduce_max(said), reduce_max(truth)), 1)
        else:
            size = cast(convert(num_classes), int64)
        kind = as_dtype(dtype)
        each = cast(ones_like(said), kind) if weights is None else cast(reshape(convert(weights), [-1]), kind)
        return scatter_nd(stack([truth, said], 1), each, stack([size, size]))


def bincount(
    arr: TensorLike,
    weights: TensorLike | None = None,
    minlength: TensorLike | None = None,
    maxlength: TensorLike | None = None,
    dtype: Any = int32,
) -> Tensor:
    """How often each number from 0 on is in an array.

    Args:
        arr: whole numbers, not negative, of any shape. weights: how much each counts, of the same shape.
        minlength, maxlength: how many counts there are at least, and at most: numbers beyond are left out.
        dtype: of the result, without weights.

    Returns:
        a vector as long as the greatest number and 1.
    """
    with get_default_graph().name_scope("bincount"):
        values = cast(reshape(convert(arr), [-1]), int32)
        check = Assert(reduce_all(greater_equal(values, 0)), ["Input arr must be non-negative, it is", values])
        values = with_dependencies([check], values)
        length = add(reduce_max(values), 1)
        length = maximum(length, 0)  # the greatest of no numbers is the least there is, and one more is still negative
        if minlength is not None:
            length = maximum(length, cast(convert(minlength), int32))
        if weights is None:
            each = cast(ones_like(values), as_dtype(dtype))
        else:
            each = reshape(convert(weights), [-1])
        found = unsorted_segment_sum(each, values, length)
        return found if maxlength is None else found[: cast(convert(maxlength), int32)]


def xlogy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * log(y), and 0 where x is 0."""
    with get_default_graph().name_scope(name or "xlogy"):
        a = convert(x)
        b = convert(y, dtype=a.dtype.base)
        return where_v2(_zero(a), zeros_like(a), multiply(a, log(_safe(a, b))))


def xdivy(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x / y, and 0 where x is 0."""
    with get_default_graph().name_scope(name or "xdivy"):
        a = convert(x)
        b = convert(y, dtype=a.dtype.base)
        return where_v2(_zero(a), zeros_like(a), truediv(a, _safe(a, b)))


def multiply_no_nan(x: TensorLike, y: TensorLike, name: str | None = None) -> Tensor:
    """x * y, and 0 where y is 0, even if x is infinite or NaN."""
    with get_default_graph().name_scope(name or "multiply_no_nan"):
        a = convert(x)
        b = convert(y, dtype=a.dtype.base)
        return multiply(where_v2(_zero(b), zeros_like(a), a), b)


def reciprocal_no_nan(x: TensorLike, name: str | None = None) -> Tensor:
    """1 / x, and 0 where x is 0."""
    with get_default_graph().name_scope(name or "reciprocal_no_nan"):
        a = convert(x)
        return div_no_nan(ones_like(a), a)


def _safe(x: Tensor, y: Tensor) -> Tensor:
    """y, and 1 where x is 0."""
    return where_v2(_zero(x), ones_like(y), y)


def _zero(x: Tensor) -> Tensor:
    return equal(x, convert(0, dtype=x.dtype.base))


__all__ = [
    "bincount",
    "confusion_matrix",
    "multiply_no_nan",
    "reciprocal_no_nan",
    "xdivy",
    "xlogy",
    "zero_fraction",
]
