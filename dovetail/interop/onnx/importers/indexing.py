"""Ops that read or change elements by index: slices, gathers, scatters, conditions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.constant_value import static_value
from ....graph.core.dtypes import bool_, int32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.concat_stack import stack
from ....graph.ops.array.gather import gather, gather_nd, one_hot
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.scatter import (
    tensor_scatter_nd_add,
    tensor_scatter_nd_max,
    tensor_scatter_nd_min,
    tensor_scatter_nd_update,
)
from ....graph.ops.array.shapes import broadcast_to, expand_dims, reshape, shape, squeeze, transpose
from ....graph.ops.math.arithmetic import add
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import less, where, where_v2
from ..registry import Call, UnsupportedError, imports, normalize_axis


def nonnegative_indices(x: Tensor, places: Tensor, axis: int) -> Tensor:
    """Converts negative indices along an axis to indices from the front."""
    known = static_value(places)
    if known is not None and (known >= 0).all():
        return places
    size = x.dims[axis] if x.dims is not None else None
    if known is not None and size is not None:
        return constant(np.where(known < 0, known + size, known).astype(known.dtype))
    whole = cast(shape(x)[axis], places.dtype.base) if size is None else size
    return where_v2(less(places, 0), add(places, whole), places)


@imports("Slice", static=(1, 2, 3, 4))
def slice_(
    call: Call, x: Tensor, starts: Tensor | None = None, ends: Tensor | None = None, axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Imports slices along some axes. The limits may be known only when the graph runs."""
    rank = len(call.dims(x))
    along = call.ints("axes", axes)
    count = starts.dims[0] if starts is not None and starts.dims else len(call.attr("starts", ()))
    if along is None:
        if count is None:
            raise UnsupportedError("the number of slices is known only when the graph runs")
        along = list(range(count))
    strides = call.ints("steps", steps) or [1] * len(along)
    key: list[Any] = [slice(None)] * rank
    for i, (axis, step) in enumerate(zip(along, strides, strict=True)):
        first, behind = _limit(call, "starts", starts, i), _limit(call, "ends", ends, i)
        size = x.dims[normalize_axis(axis, rank)] if x.dims else None
        key[normalize_axis(axis, rank)] = slice(_clamped(first), _end(behind, size, step), step)
    return x[tuple(key)]


# The limits of a slice are int32. In the standard, the largest int64 means "to the end".
_FAR = 2**31 - 1


def _limit(call: Call, name: str, tensor: Tensor | None, i: int) -> Any:
    """Returns one limit of a slice: a number, or a tensor."""
    if tensor is None:
        return int(call.attr(name)[i])
    value = static_value(tensor)
    return int(value.ravel()[i]) if value is not None else tensor[i]


def _clamped(limit: Any) -> Any:
    return limit if isinstance(limit, Tensor) else max(-_FAR, min(_FAR, limit))


def _end(limit: Any, size: int | None, step: int) -> Any:
    """Returns the end of a slice. With a negative step, an end before the first element becomes None."""
    if not isinstance(limit, Tensor) and step < 0 and (limit <= -_FAR or (size is not None and limit < -size)):
        return None
    return _clamped(limit)


@imports("Gather")
def gather_(call: Call, x: Tensor, places: Tensor) -> Tensor:
    """Imports a gather along an axis. Indices may be negative."""
    axis = normalize_axis(call.attr("axis", 0), len(call.dims(x)))
    return gather(x, nonnegative_indices(x, places, axis), axis=axis)


@imports("GatherND")
def gather_nd_(call: Call, x: Tensor, places: Tensor) -> Tensor:
    """Imports a gather of elements or slices by coordinates."""
    batch = call.attr("batch_dims", 0)
    return gather_nd(x, _nonnegative_coordinates(call, x, places, batch), batch_dims=batch)


def _nonnegative_coordinates(call: Call, x: Tensor, places: Tensor, batch: int = 0) -> Tensor:
    known = static_value(places)
    if known is not None and (known >= 0).all():
        return places
    known_depth = call.dims(places)[-1]
    depth: Any = known_depth if known_depth is not None else shape(places)[-1]
    sizes = shape(x, out_type=int64)[batch : batch + depth]
    return where_v2(less(places, 0), add(places, sizes), places)


def _elements(call: Call, x: Tensor, places: Tensor) -> Tensor:
    """Returns the coordinates of the elements that indices along one axis select."""
    rank = len(call.dims(x))
    axis = normalize_axis(call.attr("axis", 0), rank)
    sizes = shape(places)
    own = nonnegative_indices(x, places, axis)
    grid: list[Tensor] = []
    for i in range(rank):
        if i == axis:
            grid.append(cast(own, int64))
            continue
        line = reshape(cast(range_(sizes[i]), int64), [-1 if j == i else 1 for j in range(rank)])
        grid.append(broadcast_to(line, sizes))
    return stack(grid, axis=rank)


@imports("GatherElements")
def gather_elements(call: Call, x: Tensor, places: Tensor) -> Tensor:
    """Imports a gather of one element per index."""
    made = gather_nd(x, _elements(call, x, places))
    made.set_shape(places.dims)
    return made


_SCATTERS: dict[str, Any] = {
    "none": tensor_scatter_nd_update,
    "add": tensor_scatter_nd_add,
    "max": tensor_scatter_nd_max,
    "min": tensor_scatter_nd_min,
}


def _scatter(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    made: Tensor = _SCATTERS[call.choice("reduction", *_SCATTERS)](x, places, updates)
    return made


@imports("Scatter", "ScatterElements")
def scatter_elements(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """Imports an update of one element per index."""
    return _scatter(call, x, _elements(call, x, places), updates)


@imports("ScatterND")
def scatter_nd(call: Call, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """Imports an update of elements or slices at given coordinates."""
    return _scatter(call, x, _nonnegative_coordinates(call, x, places), updates)


@imports("OneHot")
def one_hot_(call: Call, places: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    """Imports one-hot encoding. `values` holds the `off` and the `on` value. Negative indices count from the end."""
    many = cast(reshape(depth, []), int32)
    whole = cast(many, int64)
    at = cast(places, int64)
    at = where_v2(less(at, 0), add(at, whole), at)
    return one_hot(at, many, values[1], values[0], axis=call.attr("axis", -1))


@imports("NonZero")
def non_zero(call: Call, x: Tensor) -> Tensor:
    """Imports the coordinates of the elements that are not 0, one element per column."""
    if call.dims(x) == ():
        x = expand_dims(x, 0)
        return transpose(where(cast(x, bool_)))[:0]
    return transpose(where(cast(x, bool_)))


@imports("Compress")
def compress(call: Call, x: Tensor, condition: Tensor) -> Tensor:
    """Imports a selection of slices by a condition, which may be shorter than the axis."""
    axis = call.attr("axis")
    places = squeeze(where(condition), [1])
    return (
        gather(reshape(x, [-1]), places)
        if axis is None
        else gather(x, places, axis=normalize_axis(axis, len(call.dims(x))))
    )
