"""Casts between element types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.build import TensorLike, apply, convert, graph_of
from ...core.dtypes import FLOAT8, NUMBERS, DType, as_dtype, bool_, float32
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.operators import operators
from ...core.scalar_math import numpy_math
from ...tensors.indexed_slices import map_values
from .common import allowed

_CASTABLE = (*NUMBERS, bool_, *FLOAT8)


def _cast_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    allowed(x.dtype.base, _CASTABLE)
    return [(allowed(typed_attr(attrs, "DstT", DType), _CASTABLE), x.dims)]


def _cast_gradient(node: Node, grad: Tensor) -> list[Tensor | None]:
    (x,) = node.inputs
    return [cast(grad, x.dtype.base) if x.dtype.is_floating and node.outputs[0].dtype.is_floating else None]


define(
    "Cast",
    _cast_rule,
    lambda x, *, DstT: numpy_math.cast(x, DstT),
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


def to_float(x: TensorLike, name: str = "ToFloat") -> Any:
    """`cast` to float32."""
    return cast(x, float32, name)


operators["cast"] = cast
