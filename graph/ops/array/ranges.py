"""Numbers at equal distances: `range` and `linspace`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert, to_array
from ...core.constant_value import static_value
from ...core.dtypes import FLOATS, Array, DType, as_dtype, bfloat16, float16, float32, float64, int32, int64
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define
from ..math.cast import cast
from ..math.common import allowed, same_type
from ..math.static_operands import index_operand, need_index, need_rank, op_scope, static_int, write_cost

_RANGE_TYPES = (int32, int64, float32, float64)  # from the narrowest to the widest
_COUNTABLE = (*_RANGE_TYPES, float16, bfloat16)
_MOST = 2**59  # elements; `np.arange` overflows beyond, and gives none


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
    """Number of elements. ValueError if steps of `delta` lead away from the limit."""
    if (delta > 0 and start > limit) or (delta < 0 and start < limit):
        raise ValueError(f"from {start} the limit {limit} cannot be reached in steps of {delta}")
    if np.asarray(start).dtype.kind in "iu":
        return -((int(start) - int(limit)) // int(delta))
    # Divide in the operands' own type, as in TensorFlow: only then is 0.3 / 0.1 equal to 3 in float32.
    return int(np.ceil((limit - start) / delta))


def _range(start: Array, limit: Array, delta: Array) -> Array:
    if delta == 0:
        raise invalid("delta must not be zero")
    try:
        count = _range_length(start, limit, delta)
    except ValueError as e:
        raise invalid(f"Cannot count: {e}") from None
    if count > _MOST:
        raise MemoryError(f"a range of {count} elements does not fit into memory")
    dtype = np.asarray(start).dtype
    if dtype.kind in "iu":
        # NumPy refuses a second number that does not fit, even where there is none.
        kind = dtype if count > 1 else np.dtype(np.int64)
        return np.arange(int(start), int(start) + count * int(delta), int(delta), dtype=kind).astype(dtype, copy=False)
    # Multiply rather than add repeatedly, which would accumulate rounding errors.
    return (np.arange(count, dtype=np.float64) * float(delta) + float(start)).astype(dtype)


define("Range", _range_rule, _range, cost=write_cost)


def range(
    start: TensorLike,
    limit: TensorLike = None,
    delta: TensorLike = 1,
    dtype: Any = None,
    name: str | None = "range",
) -> Tensor:
    """The numbers `start`, `start + delta`, ... up to `limit`, which is not included. `range(n)` counts from 0 to n - 1.

    Args:
        start: the first number.
        limit: where the numbers end. None means `start`, and the numbers begin at 0.
        delta: the difference between neighbouring numbers.
        dtype: element type. None means the widest type of the operands, in the order int32, int64, float32, float64.
        name: name of the node.

    Raises:
        ValueError: `delta` is zero, or its sign leads away from `limit`. InvalidArgumentError if only the step knows.

    >>> range(3, 18, 3)   # evaluates to [3, 6, 9, 12, 15]
    """
    if limit is None:
        start, limit = 0, start
    with op_scope(name, "range", start, limit, delta) as scope:
        wanted = as_dtype(dtype).base if dtype is not None else _range_type(start, limit, delta)
        operands = [_as_type(v, wanted, n) for v, n in ((start, "start"), (limit, "limit"), (delta, "delta"))]
        return apply("Range", operands, None, scope)


def _range_type(*values: TensorLike) -> DType:
    """The widest of the operands' types, or the first half-precision type among them."""
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


define("LinSpace", _linspace_rule, _linspace, cost=write_cost)


def linspace(start: TensorLike, stop: TensorLike, num: TensorLike, name: str | None = None) -> Tensor:
    """`num` evenly spaced floats from `start` to `stop`, both included."""
    with op_scope(name, "LinSpace", start, stop, num) as scope:
        if isinstance(stop, Tensor) and not isinstance(start, Tensor):
            last = stop
            first = convert(start, name="start", prefer=last.dtype.base)
        else:
            own = isinstance(start, (np.ndarray, np.generic)) and as_dtype(start.dtype).is_floating
            first = convert(start, name="start", prefer=None if own else float32)
            last = convert(stop, name="stop", prefer=first.dtype.base)
        return apply("LinSpace", (first, last, index_operand(num, "num")), None, scope)
