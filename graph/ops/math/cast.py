"""Casts between element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, graph_of
from ...core.dtypes import FLOAT8, NUMBERS, DType, as_dtype, bfloat16, bool_, float32, float64, int32, int64
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define
from ...core.scalar_math import numpy_math
from ...tensors.indexed_slices import map_values
from .common import allowed

_CASTABLE = (*NUMBERS, bool_, *FLOAT8)


def _cast_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    allowed(x.dtype.base, _CASTABLE)
    target = attrs.get("DstT")
    if not isinstance(target, DType):
        raise ValueError(f"attribute DstT must be an element type, not {target!r}")
    return [(allowed(target, _CASTABLE), x.dims)]


def _cast_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    (x,) = node.inputs
    return [cast(grad, x.dtype.base) if x.dtype.is_floating and node.outputs[0].dtype.is_floating else None]


define(
    "Cast",
    infer=_cast_rule,
    reference=lambda x, *, DstT: numpy_math.cast(x, DstT),
    scalar=lambda m, x, *, DstT: m.cast(x, DstT),
    gradient=_cast_gradient,
)


def cast(x: TensorLike, dtype: Any, name: str | None = None) -> Any:
    """x with another element type; x itself when it has that type.

    From floating types to integers the fraction is cut off; to bool, anything but zero is true. A value that
    the new type cannot hold gives an unspecified one (see `saturate_cast`). IndexedSlices keep their places.

    `float8_e4m3fn` and `float8_e5m2` are for storing: numbers are cast to them, and cast back before anything is computed. On GPUs from
    compute capability 8.9 on, a matrix product of two operands that are cast from them to half precision is one of float8.

    >>> cast([1.8, -1.8], "int32")   # [1, -1]
    """
    target = as_dtype(dtype).base
    if not isinstance(x, Tensor):
        if hasattr(x, "indices") and hasattr(x, "values"):
            return map_values(lambda values: cast(values, target, name), x)
        with graph_of(x).op_scope(name or "Cast") as scope:
            x = convert(x, name="x")
            return x if x.dtype.base is target else apply("Cast", (x,), {"DstT": target}, scope)
    return x if x.dtype.base is target else apply("Cast", (x,), {"DstT": target}, name)


def saturate_cast(value: TensorLike, dtype: Any, name: str | None = None) -> Tensor:
    """`cast`, with values beyond the new type's limits set to the limits first."""
    from .clip import clip_by_value

    target = as_dtype(dtype).base
    x = convert(value, name="value")
    old = x.dtype.base
    if old is target or target.is_bool or old.is_bool:
        return cast(x, target, name)  # type: ignore[no-any-return]
    with x.graph.op_scope(name or "saturate_cast") as scope:
        low, high = (_representable(old, limit) for limit in (target.min, target.max))
        own_low, own_high = (_representable(old, limit) for limit in (old.min, old.max))
        if low > own_low or high < own_high:
            wide = np.float64 if old.is_floating else old.np
            smallest, largest = np.array([max(low, own_low), min(high, own_high)], wide).astype(old.np)
            x = clip_by_value(x, smallest, largest)
        return apply("Cast", (x,), {"DstT": target}, scope)


def _representable(dtype: DType, limit: Any) -> Any:
    """The value of `dtype` next to `limit`, towards zero: float32 has no 2**31 - 1, only 2**31."""
    if not dtype.is_floating:
        return int(limit)
    # Whole numbers of Python compare exactly; int() of a bfloat16 scalar goes wrong beyond 64 bits, so by way
    # of float.
    exact = int(limit) if isinstance(limit, int | np.integer) else int(float(limit))
    largest = float(dtype.max)
    if abs(exact) >= int(largest):
        return largest if exact > 0 else -largest
    value = np.full((), float(exact), np.float64).astype(dtype.np)
    if abs(int(float(value))) > abs(exact):
        value = (value.view(f"u{dtype.size}") - 1).view(dtype.np)  # the bits of a float count up with its size
    return float(value)


def to_float(x: TensorLike, name: str = "ToFloat") -> Any:
    """`cast` to float32."""
    return cast(x, float32, name)


def to_double(x: TensorLike, name: str = "ToDouble") -> Any:
    """`cast` to float64."""
    return cast(x, float64, name)


def to_int32(x: TensorLike, name: str = "ToInt32") -> Any:
    """`cast` to int32."""
    return cast(x, int32, name)


def to_int64(x: TensorLike, name: str = "ToInt64") -> Any:
    """`cast` to int64."""
    return cast(x, int64, name)


def to_bfloat16(x: TensorLike, name: str = "ToBFloat16") -> Any:
    """`cast` to bfloat16."""
    return cast(x, bfloat16, name)
