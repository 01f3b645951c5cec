"""New tensors filled with one value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert
from ...core.constant_value import static_dims
from ...core.dtypes import Array, as_dtype, float32, string
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define
from ...core.shape import TensorShape, as_dims, is_static
from ..math.static_operands import (
    Index,
    apply_op,
    dims_of,
    index_operand,
    need_index,
    need_rank,
    op_scope,
    same_rule,
    static_ints,
    write_cost,
)
from .shapes import reshape, shape

SMALL = 1000  # TensorFlow's bound: fewer elements become a Const, more a Fill, so that graphs stay small


def _fill_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    wanted, value = inputs
    need_index(wanted, "dims", 1)
    need_rank(value.dims, 0, "value")
    sizes = static_ints(wanted)
    if sizes is not None and min(sizes, default=0) < 0:
        raise ValueError(f"dims must not be negative: {sizes}")
    return [(value.dtype.base, static_dims(wanted))]


def _fill(wanted: Array, value: Array) -> Array:
    sizes = dims_of(wanted)
    if min(sizes, default=0) < 0:
        raise invalid(f"Cannot fill a tensor of shape {sizes}: a size is negative")
    out = np.empty(sizes, np.asarray(value).dtype)
    out[...] = value
    return out


define("Fill", _fill_rule, _fill, cost=write_cost)


def fill(dims: TensorLike, value: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` that holds the scalar `value` everywhere."""
    return apply_op("Fill", name, dims=Index(dims), value=value)


def zeros(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (False for bool, empty strings for string). A Const if it is small and its shape is known."""
    return _filled(shape, 0, dtype, name, "zeros")


def ones(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of ones (True for bool). A Const if it is small and its shape is known."""
    return _filled(shape, 1, dtype, name, "ones")


def _filled(wanted: Any, value: int, dtype_like: Any, name: str | None, default: str) -> Tensor:
    # as_dtype takes ints, TensorFlow's numbers of types, so zeros(2, 3) would be understood as a dtype.
    if isinstance(wanted, int) and isinstance(dtype_like, int):
        raise TypeError(
            f"{default}: {dtype_like} is no dtype. The shape is one argument: dt.{default}([{wanted}, {dtype_like}])"
        )
    dtype = as_dtype(dtype_like).base
    if dtype is string and value:
        raise TypeError("ones has no value for dtype string")
    scalar: Any = b"" if dtype is string else np.array(value).astype(dtype.np)
    with op_scope(name, default, wanted) as scope:
        if not isinstance(wanted, Tensor) and not has_tensor(wanted):
            dims = as_dims(wanted.tolist() if isinstance(wanted, np.ndarray) else wanted)
            if not is_static(dims):
                raise ValueError(
                    f"{default} needs a complete shape, not {TensorShape(dims)}; use dt.shape(tensor) or "
                    f"dt.{default}_like"
                )
            known = [d for d in dims or () if d is not None]
            if math.prod(known) < SMALL:
                return constant(np.full(known, scalar, dtype.np), dtype, name=scope)
            sizes = constant(np.array(known, np.int32 if max(known) < 2**31 else np.int64), name="shape_as_tensor")
        else:
            sizes = index_operand(wanted, "packed")
            if sizes.dims == ():
                sizes = reshape(sizes, [-1])
        return fill(sizes, constant(scalar, dtype, name="Const"), scope)


def has_tensor(value: Any) -> bool:
    """Whether a value is a list or tuple with a tensor or variable in it."""
    return isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) or hasattr(v, "_as_tensor") for v in value)


# Neither has a gradient: they do not depend on the values of the input.
define(
    "ZerosLike", same_rule, lambda x: np.full(np.shape(x), b"" if x.dtype == object else 0, x.dtype), cost=write_cost
)
define("OnesLike", same_rule, lambda x: np.ones(np.shape(x), x.dtype), cost=write_cost)


def zeros_like(tensor: TensorLike, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """A tensor of zeros of the same shape as `tensor`.

    Args:
        tensor: a tensor.
        dtype: element type. None means that of `tensor`.
        name: name of the node.
        optimize: return a Const if the result is small and its shape is known.
    """
    return _like("ZerosLike", zeros, tensor, dtype, name, optimize)


def ones_like(tensor: TensorLike, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """A tensor of ones of the same shape as `tensor`. Arguments as for `zeros_like`."""
    return _like("OnesLike", ones, tensor, dtype, name, optimize)


def _like(
    op: str, filled: Callable[..., Tensor], tensor: TensorLike, dtype: Any, name: str | None, optimize: bool
) -> Tensor:
    with op_scope(name, f"{filled.__name__}_like", tensor) as scope:
        x = convert(tensor, name="tensor")
        wanted = x.dtype.base if dtype is None else as_dtype(dtype).base
        if optimize and is_static(x.dims):
            return filled(x.dims, wanted, scope)
        if wanted is x.dtype.base:
            return apply(op, (x,), None, scope)
        return filled(shape(x), wanted, scope)
