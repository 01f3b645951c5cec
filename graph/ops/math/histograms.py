"""Counting values in bins of equal width."""

from __future__ import annotations

from typing import Any

from ...core.build import TensorLike, convert
from ...core.dtypes import as_dtype, int32
from ...core.graph import Tensor
from ...core.shape import compatible
from ..array.creation import ones_like
from ..array.segments import unsorted_segment_sum
from ..array.shapes import reshape
from .arithmetic import multiply, subtract, truediv
from .cast import cast
from .clip import clip_by_value
from .elementwise import floor
from .static_operands import need_rank, op_scope


def histogram_fixed_width_bins(
    values: TensorLike, value_range: TensorLike, nbins: TensorLike = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """The bin of each value.

    Args:
        values: numbers of any shape. value_range: `[low, high]`, of their type: what lies outside is in the first or last bin.
        nbins: how many bins of equal width there are. dtype: int32 or int64.

    Returns:
        numbers of bins, in the shape of `values`.

    >>> histogram_fixed_width_bins([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], 5)   # evaluates to [0, 0, 1, 2, 4, 4]
    """
    with op_scope(name, "histogram_fixed_width_bins", values, value_range, nbins) as scope:
        given = convert(values, name="values")
        ends = convert(value_range, given.dtype.base, name="value_range")
        need_rank(ends.dims, 1, "value_range")
        if not compatible(ends.dims, (2,)):
            raise ValueError(f"value_range: Dimension must be 2 but is {ends.shape[0]}")
        share = truediv(subtract(given, ends[0]), subtract(ends[1], ends[0]))
        count = convert(nbins, name="nbins")
        at = floor(multiply(cast(count, share.dtype.base), share))
        limit = cast(subtract(count, 1), share.dtype.base)
        found: Tensor = cast(clip_by_value(at, 0.0, limit), as_dtype(dtype), name=scope)
        return found


def histogram_fixed_width(
    values: TensorLike, value_range: TensorLike, nbins: TensorLike = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """How many values each bin has: a vector of `nbins` numbers. Arguments as of `histogram_fixed_width_bins`.

    >>> histogram_fixed_width([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], 5)   # evaluates to [2, 1, 1, 0, 2]
    """
    with op_scope(name, "histogram_fixed_width", values, value_range, nbins):
        bins = reshape(histogram_fixed_width_bins(values, value_range, nbins), [-1])
        return unsorted_segment_sum(cast(ones_like(bins), as_dtype(dtype)), bins, nbins)


__all__ = ["histogram_fixed_width", "histogram_fixed_width_bins"]
