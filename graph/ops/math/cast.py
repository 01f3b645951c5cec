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
    """x converted to another element type. x itself if it has that type.

    A cast from a floating type to an integer truncates. A cast to bool gives True for anything but zero. A value out of the new type's
    range gives an unspecified result (see `saturate_cast`). Of `IndexedSlices` the values are cast.

    `float8_e4m3fn` and `float8_e5m2` are storage types: no op computes in them. On GPUs of compute capability 8.9 or more, a matrix
    product whose operands are both cast from them to half precision runs in float8.

    Args:
        x: a tensor, `IndexedSlices`, or a `SparseTensor`.
        dtype: the new element type.
        name: name of the node.

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
