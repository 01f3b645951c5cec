"""Reductions over axes: sum, mean, product, maximum, minimum, any, all.

The axes are an input of the node, as in TensorFlow, because the graph may compute them. Mostly they are a Const. Sums of float16 and
bfloat16 are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...core.build import TensorLike, apply, constant, convert
from ...core.constant_value import static_value
from ...core.dtypes import NUMBERS, DType, as_dtype, bool_, widened
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.operators import operators
from ...core.shape import Dims, text
from ..array.ranges import range as range_
from ..array.shapes import rank
from .common import allowed, input_cost, named
from .static_operands import index_operand, need_index, normal_axis, one_of

# --- rules --------------------------------------------------------------------------------------------------


def normal_axes(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes as sorted non-negative ints. ValueError if one is out of range or occurs twice."""
    wanted = np.asarray(axes).ravel().tolist()
    out = {normal_axis(a, rank) for a in wanted}
    if len(out) < len(wanted):
        raise ValueError(f"an axis occurs twice in {wanted}")
    return tuple(sorted(out))


def reduced_dims(dims: Dims, axes: Tensor, keep: bool) -> Dims:
    """The static shape of a reduction's result. `keep` keeps the reduced axes with size 1."""
    known = static_value(axes)
    if dims is None:
        return None
    if known is None:
        return (None,) * len(dims) if keep else None
    over = normal_axes(known, len(dims))
    if keep:
        return tuple(1 if i in over else d for i, d in enumerate(dims))
    return tuple(d for i, d in enumerate(dims) if i not in over)


def _reduction_rule(types: tuple[DType, ...]) -> Callable[[Sequence[Tensor], Attrs], Sequence[Output]]:
    def infer(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
        x, axes = inputs
        dtype = allowed(x.dtype.base, types)
        need_index(axes, "axes")
        if axes.dims is not None and len(axes.dims) > 1:
            raise ValueError(f"axes must be a scalar or a vector, not of shape {text(axes.dims)}")
        return [(dtype, reduced_dims(x.dims, axes, typed_attr(attrs, "keep_dims", bool)))]

    return infer


def _reduction(function: Callable[..., Any], accumulate_wide: bool = False) -> Callable[..., Any]:
    """The reference of a reduction, by a NumPy function. `accumulate_wide` computes narrow floats in float32."""

    def reference(x: Any, axes: Any, *, keep_dims: bool) -> Any:
        over = normal_axes(axes, np.ndim(x))
        work = widened(x) if accumulate_wide else x
        found = function(work, axis=over, keepdims=keep_dims)
        return found if work is x else found.astype(x.dtype)

    return reference


def _sum(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    add: Any = np.add  # as np.sum, and twice as fast on small arrays
    return add.reduce(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _prod(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    return np.prod(x, axis=axis, keepdims=keepdims, dtype=x.dtype)


def _mean(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    count = math.prod(x.shape[a] for a in axis)
    if x.dtype.kind == "f":
        return np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype) / x.dtype.type(count)  # without elements: 0 / 0
    if count == 0:
        raise invalid("The mean of no integers does not exist")
    # The sum may overflow the type, though the mean does not.
    total = np.sum(x, axis=axis, keepdims=keepdims, dtype=np.uint64 if x.dtype.kind == "u" else np.int64)
    towards_zero = (total < 0) & (total % count != 0)
    return (total // count + towards_zero).astype(x.dtype)


def _extreme(function: Any, empty: Callable[[Any], Any]) -> Callable[..., Any]:
    """`np.max` or `np.min`. Of no elements it is `empty(dtype)`: the least value of the type for max, the greatest for min."""

    def extreme(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if x.size:
            return function(x, axis=axis, keepdims=keepdims)
        shape = [1 if i in axis else d for i, d in enumerate(x.shape) if keepdims or i not in axis]
        return np.full(shape, empty(as_dtype(x.dtype)), x.dtype)

    return extreme


# --- the ops ------------------------------------------------------------------------------------------------


def _reduce(
    op: str,
    x: TensorLike,
    axis: Any,
    keepdims: bool | None,
    name: str | None,
    reduction_indices: Any,
    keep_dims: bool | None,
) -> Tensor:
    axis = one_of(axis, reduction_indices, "axis", "reduction_indices")
    keep = bool(one_of(keepdims, keep_dims, "keepdims", "keep_dims"))
    tensor = (
        x if isinstance(x, Tensor) else convert(x, name="input_tensor", prefer=bool_ if op in ("Any", "All") else None)
    )
    if axis is None:  # TensorFlow names this Const next to the node, not under it
        if tensor.dims is None:
            axes = range_(0, rank(tensor))
        else:
            with tensor.graph.as_default():
                axes = constant(np.arange(len(tensor.dims), dtype=np.int32))
        result = apply(op, (tensor, axes), {"keep_dims": keep}, name)
        if not keep:
            result.dims = ()  # a scalar, even if the input's rank is unknown
        return result
    if isinstance(axis, Tensor):
        return apply(op, (tensor, axis), {"keep_dims": keep}, name)
    with tensor.graph.op_scope(name or op) as scope:
        return apply(op, (tensor, index_operand(axis, "reduction_indices")), {"keep_dims": keep}, scope)


class ReductionFunction(Protocol):
    """The public function of a reduction."""

    def __call__(
        self, input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None,
        reduction_indices: Any = None, keep_dims: bool | None = None,
    ) -> Tensor: ...  # fmt: skip


def _define(op: str, text: str, types: tuple[DType, ...], reference: Callable[..., Any]) -> ReductionFunction:
    """Define a reduction, and make its public function, with this docstring."""
    define(op, _reduction_rule(types), reference, cost=input_cost(1.0))

    def function(
        input_tensor: TensorLike, axis: Any = None, keepdims: bool | None = None, name: str | None = None,
        reduction_indices: Any = None, keep_dims: bool | None = None,
    ) -> Tensor:  # fmt: skip
        return _reduce(op, input_tensor, axis, keepdims, name, reduction_indices, keep_dims)

    return named(function, op, f"reduce_{op.lower()}", text)


reduce_sum = _define(
    "Sum",
    """The sum over axes.

    Args:
        input_tensor: of any numeric type. The result has the same type.
        axis: an axis, a list of axes, or an int tensor of them. Negative ones count from the end. None means all. [] means none.
        keepdims: keep the reduced axes with size 1.
        name: name of the node.
        reduction_indices: old name of `axis`.
        keep_dims: old name of `keepdims`.

    >>> reduce_sum([[1, 1, 1], [1, 1, 1]], axis=0)   # [2, 2, 2]
    """,
    NUMBERS,
    _reduction(_sum, True),
)
reduce_mean = _define(
    "Mean",
    "The mean over axes (see `reduce_sum`). NaN of no elements. The mean of integers is rounded towards zero.",
    NUMBERS,
    _reduction(_mean, True),
)
reduce_prod = _define("Prod", "The product over axes (see `reduce_sum`).", NUMBERS, _reduction(_prod, True))
reduce_max = _define(
    "Max",
    "The largest element over axes (see `reduce_sum`). NaN if one is NaN. Equal elements share the gradient.",
    NUMBERS,
    _reduction(_extreme(np.max, lambda dtype: -np.inf if dtype.is_floating else dtype.min)),
)
reduce_min = _define(
    "Min",
    "The smallest element over axes (see `reduce_sum`). NaN if one is NaN. Equal elements share the gradient.",
    NUMBERS,
    _reduction(_extreme(np.min, lambda dtype: np.inf if dtype.is_floating else dtype.max)),
)
reduce_any = _define(
    "Any", "Bool: whether any element is true, over axes (see `reduce_sum`).", (bool_,), _reduction(np.any)
)
reduce_all = _define(
    "All", "Bool: whether all elements are true, over axes (see `reduce_sum`).", (bool_,), _reduction(np.all)
)

operators.update({"sum": reduce_sum, "mean": reduce_mean, "max": reduce_max, "min": reduce_min})
