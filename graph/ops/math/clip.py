"""Clipping of values and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import DType, as_dtype
from ...core.graph import Tensor
from ...core.shape import merge
from ...tensors.indexed_slices import IndexedSlices, map_values
from .arithmetic import add, add_n, divide, maximum, minimum, multiply, sqrt, subtract
from .cast import cast
from .compare import greater, where_v2
from .reduce import reduce_sum


def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Any:
    """t, with values below the minimum raised to it and above the maximum lowered to it.

    The limits broadcast to t's shape. IndexedSlices are clipped row by row.

    Raises:
        ValueError: a limit's shape is larger than t's.
    """
    if isinstance(t, IndexedSlices):
        return map_values(lambda values: clip_by_value(values, clip_value_min, clip_value_max, name), t)
    values = convert(t, name="t")
    with values.graph.op_scope(name or "clip_by_value") as scope:
        below = minimum(values, clip_value_max)
        merge(values.dims, below.dims)
        result = maximum(below, clip_value_min, name=scope)
        merge(values.dims, result.dims)
        return result


def clip_by_norm(t: TensorLike, clip_norm: TensorLike, axes: Any = None, name: str | None = None) -> Any:
    """t, scaled down so that its L2 norm is at most `clip_norm`; unchanged when it is already.

    Args:
        t: tensor or IndexedSlices.
        clip_norm: a number or scalar tensor above 0.
        axes: axes over which norms are taken; None: all, giving one norm for the tensor.

    Raises:
        ValueError: `clip_norm` has a larger shape than t.
    """
    if isinstance(t, IndexedSlices):
        return map_values(lambda values: clip_by_norm(values, clip_norm, axes, name), t)
    values = convert(t, name="t")
    with values.graph.op_scope(name or "clip_by_norm") as scope:
        squares = reduce_sum(multiply(values, values), axes, keepdims=True)
        # sqrt has no finite slope at 0: take the root of 1 there, so that the gradient is 0 and not NaN.
        positive = greater(squares, 0)
        norm = where_v2(positive, sqrt(where_v2(positive, squares, 1)), squares)
        scaled = multiply(values, clip_norm)
        merge(values.dims, scaled.dims)  # a limit of a larger shape fits no norm
        return divide(scaled, maximum(norm, clip_norm), name=scope)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The L2 norm of all tensors taken together: the root of the sum of all squares. None entries are ignored.

    Raises:
        TypeError: not a list. ValueError: all entries are None.
    """
    if not isinstance(t_list, (list, tuple)):
        raise TypeError(f"t_list must be a list of tensors, not {t_list!r}")
    parts = [convert(t.values if isinstance(t, IndexedSlices) else t) for t in t_list if t is not None]
    if not parts:
        raise ValueError("global_norm needs at least one tensor")
    graph = parts[0].graph
    with graph.op_scope(name or "global_norm") as scope:
        halves = []
        for p in parts:
            with graph.colocate_with(p):  # a tensor's own norm is taken where the tensor is; only scalars travel
                halves.append(multiply(reduce_sum(multiply(p, p)), 0.5))
        return sqrt(multiply(add_n(halves), 2.0), name=scope)


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: TensorLike, use_norm: TensorLike = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """Scale all tensors by one factor, so that their global norm is at most `clip_norm`.

    If the global norm is not finite, all results are NaN, so that trouble shows.

    Returns:
        (tensors, global norm): a list as `t_list`, None entries included; the norm before clipping.
    """
    if not isinstance(t_list, (list, tuple)):
        raise TypeError(f"t_list must be a list of tensors, not {t_list!r}")
    norm = global_norm(t_list, name) if use_norm is None else convert(use_norm, name="use_norm")
    with norm.graph.op_scope(name or "clip_by_global_norm"):
        limit = convert(clip_norm, dtype=norm.dtype.base, name="clip_norm")
        scale = divide(limit, maximum(norm, limit))
        # limit / inf is 0, which would hide the trouble; inf - inf is NaN, and any finite norm adds 0.
        scale = add(scale, subtract(norm, norm))
        out: list[Any] = []
        for t in t_list:
            if t is None:
                out.append(None)
                continue
            with norm.graph.colocate_with(t.values if isinstance(t, IndexedSlices) else t):
                out.append(map_values(lambda values: multiply(values, scale), t))
    return out, norm


def saturate_cast(value: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """`cast`, with values beyond the new type's limits set to the limits first."""
    target = as_dtype(dtype).base
    x = convert(value, name="value")
    old = x.dtype.base
    if old is target or target.is_bool or old.is_bool:
        return cast(x, target, name)  # type: ignore[no-any-return]
    with x.graph.op_scope(name or "saturate_cast") as scope:
        low, high = (_representable(old, limit) for limit in (target.min, target.max))
        own_low, own_high = (_representable(old, limit) for limit in (old.min, old.max))
        # An integer has no infinity: float16's lies beyond its limits, though its largest number does not.
        if low > own_low or high < own_high or (old.is_floating and not target.is_floating):
            wide = np.float64 if old.is_floating else old.np
            smallest, largest = np.array([max(low, own_low), min(high, own_high)], wide).astype(old.np)
            x = clip_by_value(x, smallest, largest)
        return apply("Cast", (x,), {"DstT": target}, scope)


def _representable(dtype: DType, limit: Any) -> Any:
    """The value of `dtype` next to `limit`, towards zero: float32 has no 2**31 - 1, only 2**31."""
    # Whole numbers of Python compare exactly; int() of a bfloat16 scalar goes wrong beyond 64 bits, so by way
    # of float.
    exact = int(limit) if isinstance(limit, int | np.integer) else int(float(limit))
    if not dtype.is_floating:
        return exact
    largest = float(dtype.max)
    if abs(exact) >= int(largest):
        return largest if exact > 0 else -largest
    value = np.full((), float(exact), np.float64).astype(dtype.np)
    if abs(int(float(value))) > abs(exact):
        value = (value.view(f"u{dtype.size}") - 1).view(dtype.np)  # the bits of a float count up with its size
    return float(value)
