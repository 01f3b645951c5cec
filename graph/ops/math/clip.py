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
    """min(max(t, clip_value_min), clip_value_max), element by element.

    Args:
        t: a tensor or `IndexedSlices`, whose values are clipped.
        clip_value_min: the lower limit, which broadcasts to t's shape.
        clip_value_max: the upper limit, which broadcasts to t's shape.
        name: name of the result's node.

    Raises:
        ValueError: a limit does not broadcast to t's shape.

    >>> clip_by_value([-2.0, 0.5, 3.0], -1.0, 1.0)   # evaluates to [-1, 0.5, 1]
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
    """t scaled down so that its L2 norm is at most `clip_norm`. A smaller norm leaves t unchanged.

    Args:
        t: a tensor or `IndexedSlices`.
        clip_norm: a number or scalar tensor above 0.
        axes: the axes over which norms are computed. None means all, one norm for the tensor.

    Raises:
        ValueError: `clip_norm` does not broadcast to t's shape.
    """
    if isinstance(t, IndexedSlices):
        return map_values(lambda values: clip_by_norm(values, clip_norm, axes, name), t)
    values = convert(t, name="t")
    with values.graph.op_scope(name or "clip_by_norm") as scope:
        squares = reduce_sum(multiply(values, values), axes, keepdims=True)
        # The derivative of sqrt is infinite at 0. The root of 1 is taken there, so that the gradient is 0 and not NaN.
        positive = greater(squares, 0)
        norm = where_v2(positive, sqrt(where_v2(positive, squares, 1)), squares)
        scaled = multiply(values, clip_norm)
        merge(values.dims, scaled.dims)  # raises ValueError if clip_norm has made the shape larger
        return divide(scaled, maximum(norm, clip_norm), name=scope)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """The L2 norm of all elements of several tensors: the square root of the sum of their squares.

    Args:
        t_list: tensors or `IndexedSlices`. None entries are ignored.
        name: name scope of the nodes.

    Raises:
        TypeError: `t_list` is not a list.
        ValueError: all entries are None.
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
            with graph.colocate_with(p):  # each device computes the norms of its tensors, and sends only scalars
                halves.append(multiply(reduce_sum(multiply(p, p)), 0.5))
        return sqrt(multiply(add_n(halves), 2.0), name=scope)


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: TensorLike, use_norm: TensorLike = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """Scale all tensors by the same factor, so that their global norm is at most `clip_norm`.

    If the global norm is not finite, all results are NaN.

    Args:
        t_list: tensors or `IndexedSlices`. None entries stay None.
        clip_norm: the largest global norm, a scalar.
        use_norm: the global norm, if it is known. None means `global_norm(t_list)`.
        name: name scope of the nodes.

    Returns:
        (tensors, norm): the scaled tensors, in the order of `t_list`, and the global norm before clipping.

    >>> gradients, norm = clip_by_global_norm(gradients, 5.0)
    """
    if not isinstance(t_list, (list, tuple)):
        raise TypeError(f"t_list must be a list of tensors, not {t_list!r}")
    norm = global_norm(t_list, name) if use_norm is None else convert(use_norm, name="use_norm")
    with norm.graph.op_scope(name or "clip_by_global_norm"):
        limit = convert(clip_norm, dtype=norm.dtype.base, name="clip_norm")
        scale = divide(limit, maximum(norm, limit))
        # limit / inf would be 0. norm - norm is NaN for an infinite norm, and 0 for a finite one.
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
    """`cast` that clips values to the new type's range first."""
    target = as_dtype(dtype).base
    x = convert(value, name="value")
    old = x.dtype.base
    if old is target or target.is_bool or old.is_bool:
        return cast(x, target, name)  # type: ignore[no-any-return]
    with x.graph.op_scope(name or "saturate_cast") as scope:
        low, high = (_representable(old, limit) for limit in (target.min, target.max))
        own_low, own_high = (_representable(old, limit) for limit in (old.min, old.max))
        # Infinities are clipped, too, when an integer type results, even one whose range includes all finite values.
        if low > own_low or high < own_high or (old.is_floating and not target.is_floating):
            wide = np.float64 if old.is_floating else old.np
            smallest, largest = np.array([max(low, own_low), min(high, own_high)], wide).astype(old.np)
            x = clip_by_value(x, smallest, largest)
        return apply("Cast", (x,), {"DstT": target}, scope)


def _representable(dtype: DType, limit: Any) -> Any:
    """`limit` rounded towards zero to a value of `dtype`. float32, for example, has no 2**31 - 1."""
    # Python's ints compare exactly. int() of a bfloat16 scalar is wrong beyond 64 bits, so it is converted to float first.
    exact = int(limit) if isinstance(limit, int | np.integer) else int(float(limit))
    if not dtype.is_floating:
        return exact
    largest = float(dtype.max)
    if abs(exact) >= int(largest):
        return largest if exact > 0 else -largest
    value = np.full((), float(exact), np.float64).astype(dtype.np)
    if abs(int(float(value))) > abs(exact):
        value = (value.view(f"u{dtype.size}") - 1).view(dtype.np)  # the next smaller magnitude: its bits are one less
    return float(value)
