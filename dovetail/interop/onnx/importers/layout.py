"""Ops that change the layout of tensors (shapes, axes, concatenation, splits, padding), and ops that create values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.constant_value import static_dims, static_value
from ....graph.core.dtypes import float32, int16, int32, int64
from ....graph.core.graph import Tensor
from ....graph.core.shape import is_static, merge
from ....graph.ops.array.concat_stack import concat, split
from ....graph.ops.array.creation import fill, zeros_like
from ....graph.ops.array.diagonal import eye
from ....graph.ops.array.gather import gather
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.padding import pad, tile
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.sequences import reverse_sequence
from ....graph.ops.array.shapes import broadcast_to, expand_dims, reshape, shape, size, squeeze, transpose
from ....graph.ops.math.arithmetic import maximum, minimum
from ....graph.ops.math.broadcasting import broadcast_dynamic_shape
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater, greater_equal, where_v2
from ....graph.ops.math.reduce import reduce_prod
from ....graph.ops.random.random import random_normal, random_uniform
from ..messages import element_type
from ..registry import Call, UnsupportedError, imports, imports_by, int64s, normalize_axis

imports_by(
    Concat=lambda call, *xs: concat(list(xs), call.attr("axis")),
    ConstantOfShape=lambda call, dims: fill(dims, constant(call.attr("value", np.zeros(1, np.float32)).reshape(()))),
    ReverseSequence=lambda call, x, lengths: reverse_sequence(
        x, lengths, seq_axis=call.attr("time_axis", 0), batch_axis=call.attr("batch_axis", 1)
    ),
    Size=lambda call, x: size(x, out_type=int64),
    Tile=lambda call, x, repeats: tile(x, repeats),
    Transpose=lambda call, x: transpose(x, call.attr("perm")),  # without `perm`, the axes in reverse order
)


@imports("Range")
def range__(call: Call, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    """Imports a range. If the step leads away from the limit, the range is empty; the graph's own op would raise an error."""
    dtype = start.dtype.base
    first, end, step = (cast(reshape(t, []), int32 if dtype is int16 else dtype) for t in (start, limit, delta))
    made: Tensor = cast(
        range_(first, where_v2(greater(step, 0), maximum(end, first), minimum(end, first)), step), dtype
    )
    return made


@imports("Reshape")
def reshape_(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    """Imports a reshape. A size of 0 copies the input's size, unless `allowzero` makes it literal. A size of -1 is inferred."""
    value = static_value(sizes)
    if call.attr("allowzero", 0) or (value is not None and (value != 0).all()):
        return reshape(x, sizes)
    count = sizes.dims[0] if sizes.dims else None
    if x.dims is None or count is None:
        raise UnsupportedError("the rank is known only when the graph runs")
    if value is not None:
        own = [x.dims[i] if v == 0 else int(v) for i, v in enumerate(value)]
        if None not in own or own.count(None) + own.count(-1) == 1:
            return reshape(x, int64s([-1 if n is None else n for n in own]))
    there = shape(x, out_type=int64)
    there = there[:count] if count <= len(x.dims) else concat([there, int64s([0] * (count - len(x.dims)))], 0)
    result = reshape(x, where_v2(equal(sizes, int64s(0)), there, sizes))
    result.set_shape(merge(result.dims, tuple(None if n == 0 else n for n in static_dims(sizes) or (None,) * count)))
    return result


def flat(x: Tensor, axis: int) -> Tensor:
    """Reshapes x to a matrix. The axes before `axis` become the rows, and the others the columns."""
    assert x.dims is not None
    before, after = x.dims[:axis], x.dims[axis:]
    if is_static(after) and math.prod(after):  # type: ignore[arg-type]
        return reshape(x, int64s([-1, math.prod(after)]))
    if is_static(before) and math.prod(before):  # type: ignore[arg-type]
        return reshape(x, int64s([math.prod(before), -1]))
    sizes = shape(x, out_type=int64)
    return reshape(x, concat([reduce_prod(s, keepdims=True) for s in (sizes[:axis], sizes[axis:])], 0))


@imports("Flatten")
def flatten(call: Call, x: Tensor) -> Tensor:
    rank, axis = len(call.dims(x)), call.attr("axis", 1)
    return flat(x, axis if axis == rank else normalize_axis(axis, rank))


@imports("Squeeze", static=(1,))
def squeeze_(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Imports the removal of axes of size 1: the given ones, or all."""
    along = call.ints("axes", axes)
    return identity(x) if along == [] else squeeze(x, along)


@imports("Unsqueeze", static=(1,))
def unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Imports the insertion of axes of size 1 at given positions in the result."""
    along = call.ints("axes", axes) or []
    rank = len(along) + (len(call.dims(x)) if len(along) > 1 or min(along, default=0) < 0 else 0)
    if len(along) == 1:
        return expand_dims(x, along[0])
    for axis in sorted(normalize_axis(a, rank) for a in along):
        x = expand_dims(x, axis)
    return x


@imports("Split", static=(1,))
def split_(call: Call, x: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
    """Imports a split into parts of given sizes, or into one part per output, of which the last one may be smaller."""
    parts = call.ints("split", sizes)
    axis = call.attr("axis", 0)
    if parts is None:
        count, whole = len(call.wanted), call.dims(x)[axis]
        if whole is None:
            return split(x, count, axis)
        one = -(-whole // count)
        parts = [min(one, max(0, whole - one * i)) for i in range(count)]
    return split(x, parts, axis)


@imports("Expand")
def expand(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    """Imports a broadcast of the input and a shape against each other."""
    wanted = static_value(sizes)
    if wanted is not None and x.dims is not None:
        rank = max(len(x.dims), len(wanted))
        own = (*(1,) * (rank - len(x.dims)), *x.dims)
        other = [1] * (rank - len(wanted)) + [int(n) for n in wanted]
        if all(n is not None or m == 1 for n, m in zip(own, other, strict=True)):
            if all(n is None or m == 1 for n, m in zip(own, other, strict=True)):
                return identity(x) if rank == len(x.dims) else _new_axes(x, rank - len(x.dims))
            if is_static(own):
                return broadcast_to(x, np.broadcast_shapes(own, tuple(other)))  # type: ignore[arg-type]
    return broadcast_to(x, broadcast_dynamic_shape(shape(x, out_type=int64), sizes))


def _new_axes(x: Tensor, count: int) -> Tensor:
    for _ in range(count):
        x = expand_dims(x, 0)
    return x


@imports("Pad", static=(1, 3))
def pad_(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    """Imports padding. A negative amount removes elements."""
    rank = len(call.dims(x))
    given = call.ints("pads", pads) or []
    along = call.ints("axes", axes)
    where = list(range(rank)) if along is None else [normalize_axis(a, rank) for a in along]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        before[axis], after[axis] = given[i], given[i + len(where)]
    if any(n < 0 for n in (*before, *after)):
        x = x[tuple(slice(max(0, -b), -max(0, -a) or None) for b, a in zip(before, after, strict=True))]
        before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    mode = call.choice("mode", "constant", "reflect", "edge", "wrap")
    around = np.array([before, after], np.int32).T
    if mode == "constant":
        fill: Any = reshape(value, []) if value is not None else call.attr("value", 0.0)
        if not isinstance(fill, Tensor):
            fill = constant(np.array(fill).astype(x.dtype.base.np))
        return pad(x, around, constant_values=fill)
    if mode == "reflect" and all(n is None or n > max(p) for n, p in zip(call.dims(x), around, strict=True)):
        return pad(x, around, "REFLECT")
    for axis in (i for i in range(rank) if around[i].any()):
        size = call.dims(x)[axis]
        if size is None:
            raise UnsupportedError(f"padding by {mode} along axis {axis}, whose size is known only when the graph runs")
        # The standard and NumPy use the same names for the modes.
        places = np.pad(np.arange(size), (before[axis], after[axis]), mode=mode)
        x = gather(x, constant(places.astype(np.int32)), axis=axis)
    return x


@imports("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    """Imports a rearrangement of channels into blocks of pixels."""
    n, c, h, w = _sizes(call, x)
    b, depth = call.attr("blocksize"), call.choice("mode", "DCR", "CRD") == "DCR"
    parts = [n, b, b, _over(c, b * b), h, w] if depth else [n, _over(c, b * b), b, b, h, w]
    apart = transpose(_shaped(x, parts), [0, 3, 4, 1, 5, 2] if depth else [0, 1, 4, 2, 5, 3])
    return _shaped(apart, [n, _over(c, b * b), h * b, w * b])


@imports("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    """Imports a rearrangement of blocks of pixels into channels."""
    n, c, h, w = _sizes(call, x)
    b = call.attr("blocksize")
    order = [0, 3, 5, 1, 2, 4] if call.choice("mode", "DCR", "CRD") == "DCR" else [0, 1, 3, 5, 2, 4]
    apart = transpose(_shaped(x, [n, c, _over(h, b), b, _over(w, b), b]), order)
    return _shaped(apart, [n, c * b * b, _over(h, b), _over(w, b)])


def _sizes(call: Call, x: Tensor) -> list[Any]:
    """Returns the sizes of x. Unknown sizes are tensors."""
    dims = call.dims(x)
    there = shape(x) if not is_static(dims) else None
    return [n if n is not None or there is None else there[i] for i, n in enumerate(dims)]


def _over(size: Any, by: int) -> Any:
    return size // by


def _shaped(x: Tensor, sizes: list[Any]) -> Tensor:
    return reshape(x, [n if isinstance(n, (Tensor, int)) else int(n) for n in sizes])


@imports("Trilu", static=(1,))
def trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    """Imports the upper or the lower triangle, with zeros elsewhere."""
    sizes = shape(x)
    rank = len(call.dims(x))
    rows, columns = range_(sizes[rank - 2]), range_(sizes[rank - 1])
    away = expand_dims(columns, 0) - expand_dims(rows, 1)
    start = 0 if k is None else cast(reshape(k, []), int32)
    inside = greater_equal(away, start) if call.attr("upper", 1) else greater_equal(start, away)
    return where_v2(inside, x, zeros_like(x))


_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


@imports("Constant")
def constant_(call: Call) -> Tensor:
    """Imports a constant: a tensor, a number, a string, or a list of these."""
    value = call.attr("value")
    for name, kind in _VALUES.items():
        if name in call.attrs:
            value = np.array(call.attr(name), kind)
    for name in ("value_string", "value_strings"):
        if name in call.attrs:
            given = call.attr(name)
            return constant(given.encode() if isinstance(given, str) else [v.encode() for v in given])
    if value is None:
        raise UnsupportedError("a constant that is not a tensor")
    return constant(value)


@imports("Shape")
def shape_(call: Call, x: Tensor) -> Tensor:
    """Imports the sizes from axis `start` to axis `end`."""
    sizes = shape(x, out_type=int64)
    start, end = call.attr("start", 0), call.attr("end")
    if start == 0 and end is None:
        return sizes
    rank = len(call.dims(x))
    first, behind, _ = slice(start, end).indices(rank)
    return sizes[first : max(first, behind)]


@imports("EyeLike")
def eye_like(call: Call, x: Tensor) -> Tensor:
    """Imports a matrix with ones on a diagonal."""
    dtype = element_type(call.attr("dtype")) if "dtype" in call.attrs else x.dtype.base
    rows, columns = call.dims(x)
    k = call.attr("k", 0)
    if rows is None or columns is None:
        if k:
            raise UnsupportedError("another diagonal than the main one, for a matrix of unknown size")
        sizes = shape(x)
        made: Tensor = cast(eye(sizes[0], sizes[1]), dtype)
        return made
    return constant(np.eye(rows, columns, k, dtype.np))


@imports("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
def random(call: Call, like: Tensor | None = None) -> Tensor:
    """Imports random numbers. Other libraries draw other numbers from the same seed."""
    seed = call.attr("seed")
    dims = shape(like) if like is not None else call.attr("shape")
    dtype = (
        element_type(call.attr("dtype")) if "dtype" in call.attrs else like.dtype.base if like is not None else float32
    )
    seed = None if seed is None else int(seed)
    if call.op.startswith("RandomNormal"):
        return random_normal(dims, call.attr("mean", 0.0), call.attr("scale", 1.0), dtype, seed)
    return random_uniform(dims, call.attr("low", 0.0), call.attr("high", 1.0), dtype, seed)
