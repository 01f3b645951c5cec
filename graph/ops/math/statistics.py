"""Functions composed of reductions: logsumexp, variance, norms, counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, convert, graph_of
from ...core.dtypes import as_dtype, float64, int64
from ...core.graph import Tensor
from ..array.identity_and_placeholders import stop_gradient
from ..array.shapes import reshape, shape, squeeze
from .arithmetic import absolute, add, multiply, power, sqrt, square, subtract
from .cast import cast
from .compare import not_equal, where_v2
from .elementwise import exp, is_finite, log
from .reduce import reduce_max, reduce_mean, reduce_sum
from .static_operands import one_of


def reduce_logsumexp(
    input_tensor: TensorLike,
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """log(sum(exp(x))) over axes, computed without overflow. Arguments as for `reduce_sum`."""
    axis = one_of(axis, reduction_indices, "axis", "reduction_indices")
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    with graph_of(input_tensor).op_scope(name or "ReduceLogSumExp") as scope:
        x = convert(input_tensor, name="input_tensor")
        largest = reduce_max(x, axis, keepdims=True)
        # The offset cancels out. An infinite one would give inf - inf.
        offset = stop_gradient(where_v2(is_finite(largest), largest, 0))
        total = log(reduce_sum(exp(subtract(x, offset)), axis, keepdims=keep))
        if not keep:
            offset = reshape(offset, shape(total))
        return add(total, offset, name=scope)


def reduce_variance(
    input_tensor: TensorLike, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The population variance over axes, the mean of (x - mean(x)) ** 2 (`tf.math.reduce_variance`). Arguments as for `reduce_sum`.

    Raises:
        TypeError: the input is not of a floating type.
    """
    with graph_of(input_tensor).op_scope(name or "reduce_variance"):
        x = convert(input_tensor)
        if not x.dtype.is_floating:
            raise TypeError(f"Input must be of floating type, not {x.dtype.name}; use dt.cast")
        return reduce_mean(square(subtract(x, reduce_mean(x, axis, keepdims=True))), axis, keepdims=keepdims)


def reduce_std(input_tensor: TensorLike, axis: Any = None, keepdims: bool = False, name: str | None = None) -> Tensor:
    """The square root of `reduce_variance` (`tf.math.reduce_std`)."""
    with graph_of(input_tensor).op_scope(name or "reduce_std"):
        return sqrt(reduce_variance(input_tensor, axis, keepdims))


def reduce_euclidean_norm(
    input_tensor: TensorLike, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """The square root of the sum of squares over axes (`tf.math.reduce_euclidean_norm`). For integers it is truncated."""
    with graph_of(input_tensor).op_scope(name or "EuclideanNorm") as scope:
        x = convert(input_tensor)
        if x.dtype.is_integer:
            total = reduce_sum(square(cast(x, float64)), axis, keepdims=keepdims)
            found: Tensor = cast(sqrt(total), x.dtype.base, name=scope)
            return found
        return sqrt(reduce_sum(square(x), axis, keepdims=keepdims), name=scope)


def count_nonzero(
    input_tensor: TensorLike = None,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = int64,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
    input: TensorLike = None,
) -> Tensor:
    """The number of elements that are not 0, or of strings that are not empty, over axes. Arguments as for `reduce_sum`."""
    values = one_of(input, input_tensor, "input", "input_tensor")
    axis = one_of(axis, reduction_indices, "axis", "reduction_indices")
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    with graph_of(values).op_scope(name or "count_nonzero"):
        x = convert(values, name="input")
        nothing: Any = b"" if x.dtype.base == as_dtype("string") else np.zeros((), x.dtype.base.np)
        return cast(reduce_sum(cast(not_equal(x, nothing), int64), axis, keepdims=keep), dtype)  # type: ignore[no-any-return]


def norm(
    tensor: TensorLike,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """The norm of vectors or matrices.

    Args:
        tensor: of floating type.
        ord: `"euclidean"` (also `"fro"` for matrices), 1, `np.inf`, or for vectors any number above 0.
        axis: an int for vectors along that axis, a pair of ints for matrices, or None for the whole tensor as one vector.
        keepdims: keep the reduced axes with size 1.
        name: name scope of the nodes.
        keep_dims: old name of `keepdims`.

    Raises:
        ValueError: `ord` is not supported, or `axis` is not of these forms.

    >>> norm([3.0, 4.0])   # evaluates to 5.0
    """
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    is_matrix = isinstance(axis, (list, tuple)) and len(axis) == 2
    axes = list(axis) if isinstance(axis, (list, tuple)) else [] if axis is None else [axis]
    wrong = not all(isinstance(a, (int, np.integer)) for a in axes) or len(set(axes)) < len(axes)
    if wrong or len(axes) > 2 or axis in ([], ()):
        raise ValueError(f"'axis' must be None, an integer, or a tuple of 2 unique integers, not {axis!r}")
    if is_matrix:
        if ord not in ("euclidean", "fro", 1, np.inf):
            raise ValueError(f"'ord' must be a supported matrix norm in ['euclidean', 'fro', 1, inf], got {ord!r}")
    elif ord != "euclidean" and not (isinstance(ord, (int, float, np.number)) and ord > 0):
        raise ValueError(
            f"'ord' must be a supported vector norm in ['euclidean', 1, 2, inf] or a number above 0, got {ord!r}"
        )
    with graph_of(tensor).op_scope(name or "norm"):
        x = convert(tensor)
        return _matrix_norm(x, ord, axis, keep) if is_matrix else _vector_norm(x, ord, axis, keep)


def _vector_norm(x: Tensor, ord: Any, axis: Any, keep: bool) -> Tensor:
    if ord in ("euclidean", 2):
        return sqrt(reduce_sum(multiply(x, x), axis, keepdims=keep))
    size = absolute(x)
    if ord == math.inf:
        return reduce_max(size, axis, keepdims=keep)
    if ord == 1:
        return reduce_sum(size, axis, keepdims=keep)
    return power(reduce_sum(power(size, float(ord)), axis, keepdims=keep), 1.0 / float(ord))


def _matrix_norm(x: Tensor, ord: Any, axes: Sequence[int], keep: bool) -> Tensor:
    if ord in ("euclidean", "fro"):
        return sqrt(reduce_sum(multiply(x, x), list(axes), keepdims=keep))
    # 1: the largest sum of a column; inf: the largest sum of a row.
    summed, kept = (axes[0], axes[1]) if ord == 1 else (axes[1], axes[0])
    sums = reduce_sum(absolute(x), summed, keepdims=True)
    largest = reduce_max(sums, kept, keepdims=True)
    if keep:
        return largest
    return squeeze(largest, list(axes))
