"""Ops that move elements: shapes, axes, joining and cutting, padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....graph.core.build import constant
from ....graph.core.constant_value import static_dims, static_value
from ....graph.core.dtypes import int32, int64
from ....graph.core.graph import Tensor
from ....graph.core.shape import is_static, merge
from ....graph.ops.array.concat_stack import concat, split
from ....graph.ops.array.creation import zeros_like
from ....graph.ops.array.gather import gather
from ....graph.ops.array.identity_and_placeholders import identity
from ....graph.ops.array.padding import pad, tile
from ....graph.ops.array.ranges import range as range_
from ....graph.ops.array.roll_repeat_meshgrid import reverse_sequence
from ....graph.ops.array.shapes import broadcast_to, expand_dims, reshape, shape, squeeze, transpose
from ....graph.ops.math.broadcasting import broadcast_dynamic_shape
from ....graph.ops.math.cast import cast
from ....graph.ops.math.compare import equal, greater_equal, where_v2
from ....graph.ops.math.reduce import reduce_prod
from ..registry import Call, UnsupportedError, imports, int64s, positive


@imports("Reshape")
def reshape_(call: Call, x: Tensor, sizes: Tensor) -> Tensor:
    """0 copies the input's size, unless `allowzero` makes it literal; -1 is inferred."""
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
    """A matrix: the axes before `axis` are its rows, the others its columns."""
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
    """A matrix."""
    rank, axis = len(call.dims(x)), call.attr("axis", 1)
    return flat(x, axis if axis == rank else positive(axis, rank))


@imports("Transpose")
def transpose_(call: Call, x: Tensor) -> Tensor:
    """Without `perm`, the axes in reverse order."""
    return transpose(x, call.attr("perm"))


@imports("Squeeze", static=(1,))
def squeeze_(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Axes of size 1 go: those named, or all."""
    along = call.numbers("axes", axes)
    return identity(x) if along == [] else squeeze(x, along)


@imports("Unsqueeze", static=(1,))
def unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """New axes of size 1, counted in the result."""
    along = call.numbers("axes", axes) or []
    rank = len(along) + (len(call.dims(x)) if len(along) > 1 or min(along, default=0) < 0 else 0)
    if len(along) == 1:
        return expand_dims(x, along[0])
    for axis in sorted(positive(a, rank) for a in along):
        x = expand_dims(x, axis)
    return x


@imports("Concat")
def concat_(call: Call, *xs: Tensor) -> Tensor:
    """Along an axis."""
    return concat(list(xs), call.attr("axis"))


@imports("Split", static=(1,))
def split_(call: Call, x: Tensor, sizes: Tensor | None = None) -> list[Tensor]:
    """Splits into parts of given sizes, or into one part per output; then the last one may be smaller."""
    parts = call.numbers("split", sizes)
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
    """Broadcast against a shape: each may be the larger one."""
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


@imports("Tile")
def tile_(call: Call, x: Tensor, repeats: Tensor) -> Tensor:
    """Repeated along each axis."""
    return tile(x, repeats)


@imports("Pad", static=(1, 3))
def pad_(
    call: Call, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    """More elements around, or, where the number is negative, fewer."""
    rank = len(call.dims(x))
    given = call.numbers("pads", pads) or []
    along = call.numbers("axes", axes)
    where = list(range(rank)) if along is None else [positive(a, rank) for a in along]
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(where):
        before[axis], after[axis] = given[i], given[i + len(where)]
    if any(n < 0 for n in (*before, *after)):
        x = x[tuple(slice(max(0, -b), -max(0, -a) or None) for b, a in zip(before, after, strict=True))]
        before, after = [max(0, n) for n in before], [max(0, n) for n in after]
    mode = call.only("mode", "constant", "reflect", "edge", "wrap")
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
        # NumPy's own names for the modes are the standard's.
        places = np.pad(np.arange(size), (before[axis], after[axis]), mode=mode)
        x = gather(x, constant(places.astype(np.int32)), axis=axis)
    return x


@imports("DepthToSpace")
def depth_to_space(call: Call, x: Tensor) -> Tensor:
    """Channels become pixels."""
    n, c, h, w = _sizes(call, x)
    b, depth = call.attr("blocksize"), call.only("mode", "DCR", "CRD") == "DCR"
    parts = [n, b, b, _over(c, b * b), h, w] if depth else [n, _over(c, b * b), b, b, h, w]
    apart = transpose(_shaped(x, parts), [0, 3, 4, 1, 5, 2] if depth else [0, 1, 4, 2, 5, 3])
    return _shaped(apart, [n, _over(c, b * b), h * b, w * b])


@imports("SpaceToDepth")
def space_to_depth(call: Call, x: Tensor) -> Tensor:
    """Pixels become channels."""
    n, c, h, w = _sizes(call, x)
    b = call.attr("blocksize")
    order = [0, 3, 5, 1, 2, 4] if call.only("mode", "DCR", "CRD") == "DCR" else [0, 1, 3, 5, 2, 4]
    apart = transpose(_shaped(x, [n, c, _over(h, b), b, _over(w, b), b]), order)
    return _shaped(apart, [n, c * b * b, _over(h, b), _over(w, b)])


def _sizes(call: Call, x: Tensor) -> list[Any]:
    """The sizes of x: numbers where they are known, else tensors."""
    dims = call.dims(x)
    there = shape(x) if not is_static(dims) else None
    return [n if n is not None or there is None else there[i] for i, n in enumerate(dims)]


def _over(size: Any, by: int) -> Any:
    return size // by


def _shaped(x: Tensor, sizes: list[Any]) -> Tensor:
    return reshape(x, [n if isinstance(n, (Tensor, int)) else int(n) for n in sizes])


@imports("ReverseSequence")
def reverse_sequence_(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    """Each sequence of a batch turned round."""
    return reverse_sequence(x, lengths, seq_axis=call.attr("time_axis", 0), batch_axis=call.attr("batch_axis", 1))


@imports("Trilu", static=(1,))
def trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    """The upper or the lower triangle; zeros elsewhere."""
    sizes = shape(x)
    rank = len(call.dims(x))
    rows, columns = range_(sizes[rank - 2]), range_(sizes[rank - 1])
    away = expand_dims(columns, 0) - expand_dims(rows, 1)
    start = 0 if k is None else cast(reshape(k, []), int32)
    inside = greater_equal(away, start) if call.attr("upper", 1) else greater_equal(start, away)
    return where_v2(inside, x, zeros_like(x))
