"""New tensors: fills, ranges, the identity matrix."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert, to_array
from ...core.constant_value import static_dims, static_value
from ...core.dtypes import FLOATS, DType, as_dtype, bfloat16, float16, float32, float64, int32, int64, string
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define
from ...core.shape import TensorShape, as_dims, is_static
from ..math.common import allowed, same_type
from ..math.static_operands import (
    Array,
    dims_of,
    index_operand,
    invalid,
    need_index,
    need_rank,
    op_scope,
    static_int,
    static_ints,
    write_cost,
)
from .shapes import reshape, shape

_SMALL = 1000  # TensorFlow's bound: fewer elements become a Const, more a Fill, so that graphs stay small

# --- one value everywhere -----------------------------------------------------------------------------------


def _fill_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    wanted, value = inputs
    need_index(wanted, "dims")
    need_rank(wanted.dims, 1, "dims")
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


def _fill_gradient(node: Node, grad: Any) -> Sequence[Any]:
    from ..math.reduce import reduce_sum

    return [None, reduce_sum(grad)]


define("Fill", infer=_fill_rule, reference=_fill, gradient=_fill_gradient, cost=write_cost)


def fill(dims: TensorLike, value: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of shape `dims` that holds the scalar `value` everywhere."""
    with op_scope(name, "Fill", dims, value) as scope:
        return apply("Fill", (index_operand(dims, "dims"), convert(value, name="value")), None, scope)


def zeros(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of zeros (False for bool, empty text for string).

    A Const when it is small and its shape is known.
    """
    return _filled(shape, 0, as_dtype(dtype).base, name, "zeros")


def ones(shape: Any, dtype: Any = float32, name: str | None = None) -> Tensor:
    """A tensor of ones (True for bool). A Const when it is small and its shape is known."""
    return _filled(shape, 1, as_dtype(dtype).base, name, "ones")


def _filled(wanted: Any, value: int, dtype: DType, name: str | None, default: str) -> Tensor:
    if dtype is string and value:
        raise TypeError("There is no text that stands for one")
    scalar: Any = b"" if dtype is string else np.array(value).astype(dtype.np)
    with op_scope(name, default, wanted) as scope:
        if not isinstance(wanted, Tensor) and not _has_tensor(wanted):
            dims = as_dims(wanted.tolist() if isinstance(wanted, np.ndarray) else wanted)
            if not is_static(dims):
                raise ValueError(
                    f"{default} needs a complete shape, not {TensorShape(dims)}; use dt.shape(tensor) or "
                    f"dt.{default}_like"
                )
            known = [d for d in dims or () if d is not None]
            if math.prod(known) < _SMALL:
                return constant(np.full(known, scalar, dtype.np), dtype, name=scope)
            sizes = constant(np.array(known, np.int32 if max(known) < 2**31 else np.int64), name="shape_as_tensor")
        else:
            sizes = index_operand(wanted, "packed")
            if sizes.dims == ():
                sizes = reshape(sizes, [-1])
        return fill(sizes, constant(scalar, dtype, name="Const"), scope)


def _has_tensor(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) or hasattr(v, "_as_tensor") for v in value)


def _like_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    return [(x.dtype.base, x.dims)]


def _zeros_like(x: Array) -> Array:
    return np.full(np.shape(x), b"", object) if x.dtype == object else np.zeros(np.shape(x), x.dtype)


# No gradient: the values of the input do not matter.
define("ZerosLike", infer=_like_rule, reference=_zeros_like, cost=write_cost)
define("OnesLike", infer=_like_rule, reference=lambda x: np.ones(np.shape(x), x.dtype), cost=write_cost)


def zeros_like(tensor: TensorLike, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Zeros of the same shape, and the same type unless `dtype` says another.

    A Const when small and the shape is known.
    """
    with op_scope(name, "zeros_like", tensor) as scope:
        x = convert(tensor, name="tensor")
        wanted = x.dtype.base if dtype is None else as_dtype(dtype).base
        if optimize and is_static(x.dims):
            return zeros(x.dims, wanted, scope)
        if wanted is x.dtype.base:
            return apply("ZerosLike", (x,), None, scope)
        return zeros(shape(x), wanted, scope)


def ones_like(tensor: TensorLike, dtype: Any = None, name: str | None = None, optimize: bool = True) -> Tensor:
    """Ones of the same shape, and the same type unless `dtype` says another.

    A Const when small and the shape is known.
    """
    with op_scope(name, "ones_like", tensor) as scope:
        x = convert(tensor, name="tensor")
        wanted = x.dtype.base if dtype is None else as_dtype(dtype).base
        if optimize and is_static(x.dims):
            return ones(x.dims, wanted, scope)
        if wanted is x.dtype.base:
            return apply("OnesLike", (x,), None, scope)
        return ones(shape(x), wanted, scope)


# --- counting -----------------------------------------------------------------------------------------------

_RANGE_TYPES = (int32, int64, float32, float64)  # the order in which one type gives way to the next
_COUNTABLE = (*_RANGE_TYPES, float16, bfloat16)


def _range_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    start, limit, delta = inputs
    dtype = allowed(same_type(inputs), _COUNTABLE)
    for t, what in ((start, "start"), (limit, "limit"), (delta, "delta")):
        need_rank(t.dims, 0, what)
    first, last, step = (static_value(t) for t in inputs)
    if step is not None and step == 0:
        raise ValueError("delta must not be zero")
    if first is None or last is None or step is None:
        return [(dtype, (None,))]
    return [(dtype, (_range_length(first, last, step),))]


def _range_length(start: Any, limit: Any, delta: Any) -> int:
    """Number of elements; ValueError when the limit lies on the other side."""
    if (delta > 0 and start > limit) or (delta < 0 and start < limit):
        raise ValueError(f"from {start} the limit {limit} cannot be reached in steps of {delta}")
    if np.asarray(start).dtype.kind in "iu":
        return len(builtins.range(int(start), int(limit), int(delta)))
    return max(0, math.ceil((float(limit) - float(start)) / float(delta)))


def _range(start: Array, limit: Array, delta: Array) -> Array:
    if delta == 0:
        raise invalid("delta must not be zero")
    try:
        count = _range_length(start, limit, delta)
    except ValueError as e:
        raise invalid(f"Cannot count: {e}") from None
    dtype = np.asarray(start).dtype
    if dtype.kind in "iu":
        return np.arange(int(start), int(start) + count * int(delta), int(delta)).astype(dtype)
    # Each element from its own position: repeated addition would drift.
    return (np.arange(count, dtype=np.float64) * float(delta) + float(start)).astype(dtype)


define("Range", infer=_range_rule, reference=_range, cost=write_cost)


def range(
    start: TensorLike,
    limit: TensorLike = None,
    delta: TensorLike = 1,
    dtype: Any = None,
    name: str | None = "range",
) -> Tensor:
    """`start`, `start + delta`, ... as long as they are before `limit`. `range(n)` counts from 0 to n-1.

    The element type is `dtype`, or the widest of the operands' in the order int32, int64, float32, float64.

    Raises:
        ValueError: `delta` is zero, or `limit` lies on the other side (InvalidArgumentError when only the
            running graph can know).
    """
    if limit is None:
        start, limit = 0, start
    with op_scope(name, "range", start, limit, delta) as scope:
        wanted = as_dtype(dtype).base if dtype is not None else _range_type(start, limit, delta)
        operands = [_as_type(v, wanted, n) for v, n in ((start, "start"), (limit, "limit"), (delta, "delta"))]
        return apply("Range", operands, None, scope)


def _range_type(*values: TensorLike) -> DType:
    """The type that all operands can become: the latest in the row of types."""
    found = []
    for v in values:
        dtype = v.dtype.base if isinstance(v, Tensor) or hasattr(v, "_as_tensor") else as_dtype(to_array(v).dtype)
        if dtype not in _COUNTABLE:
            raise TypeError(f"range counts in {', '.join(t.name for t in _COUNTABLE)}, not in {dtype.name}")
        found.append(dtype)
    narrow = [t for t in found if t not in _RANGE_TYPES]
    return narrow[0] if narrow else max(found, key=_RANGE_TYPES.index)


def _as_type(value: TensorLike, dtype: DType, name: str) -> Tensor:
    """A number or tensor as a tensor of `dtype`, cast if need be."""
    if isinstance(value, Tensor) or hasattr(value, "_as_tensor"):
        tensor = convert(value)
        if tensor.dtype.base is dtype:
            return tensor
        from ..math.cast import cast

        converted: Tensor = cast(tensor, dtype)
        return converted
    return constant(to_array(value).astype(dtype.np), dtype, name=name)


def _linspace_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    start, stop, num = inputs
    dtype = allowed(same_type((start, stop)), FLOATS)
    need_index(num, "num")
    for t, what in ((start, "start"), (stop, "stop"), (num, "num")):
        need_rank(t.dims, 0, what)
    count = static_int(num)
    if count is not None and count < 1:
        raise ValueError(f"num must be at least 1, not {count}")
    return [(dtype, (count,))]


def _linspace(start: Array, stop: Array, num: Array) -> Array:
    if num < 1:
        raise invalid(f"num must be at least 1, not {int(num)}")
    return np.linspace(float(start), float(stop), int(num)).astype(np.asarray(start).dtype)


def _linspace_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Element i is start + (stop - start) * share[i], and share runs from 0 to 1.
    from ..math.reduce import reduce_sum

    dtype = node.outputs[0].dtype.base
    share = linspace(constant(0, dtype), constant(1, dtype), node.inputs[2])
    to_stop = reduce_sum(grad * share)
    return [reduce_sum(grad) - to_stop, to_stop, None]


define("LinSpace", infer=_linspace_rule, reference=_linspace, gradient=_linspace_gradient, cost=write_cost)


def linspace(start: TensorLike, stop: TensorLike, num: TensorLike, name: str | None = None) -> Tensor:
    """`num` floats at equal distances from `start` to `stop`, both included."""
    with op_scope(name, "LinSpace", start, stop, num) as scope:
        if isinstance(stop, Tensor) and not isinstance(start, Tensor):
            last = stop
            first = convert(start, name="start", prefer=last.dtype.base)
        else:
            own = isinstance(start, (np.ndarray, np.generic)) and as_dtype(start.dtype).is_floating
            first = convert(start, name="start", prefer=None if own else float32)
            last = convert(stop, name="stop", prefer=first.dtype.base)
        return apply("LinSpace", (first, last, index_operand(num, "num")), None, scope)


def eye(
    num_rows: TensorLike,
    num_columns: TensorLike = None,
    batch_shape: Any = None,
    dtype: Any = float32,
    name: str | None = None,
) -> Tensor:
    """The identity matrix, or a batch of them; square unless `num_columns` is given.

    Shape `batch_shape + [rows, columns]`; `batch_shape` may be a tensor.
    """
    from ..math.cast import cast
    from .concat_stack import concat
    from .diagonal import matrix_band_part

    with op_scope(name, "eye", num_rows, num_columns) as scope:
        columns = num_rows if num_columns is None else num_columns
        wanted = as_dtype(dtype).base
        batch = [] if batch_shape is None else batch_shape
        if not any(isinstance(v, Tensor) or _has_tensor(v) for v in (num_rows, columns, batch)):
            dims = (*(as_dims(batch) or ()), int(num_rows), int(columns))
            if math.prod(d or 0 for d in dims) < _SMALL:
                return constant(np.broadcast_to(np.eye(*dims[-2:]), dims), wanted, name=scope)  # type: ignore[arg-type]
            return matrix_band_part(ones(dims, wanted), 0, 0, scope)
        sizes = index_operand([num_rows, columns], "sizes")
        sizes.set_shape([2])
        whole = concat([cast(index_operand(batch, "batch_shape"), int32), cast(sizes, int32)], 0)
        return matrix_band_part(ones(whole, wanted), 0, 0, scope)
