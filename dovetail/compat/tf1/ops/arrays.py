"""Rearranging arrays: rolled, repeated over a grid, out of batches, compared by counts."""

from __future__ import annotations

import sys
from builtins import range as py_range
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ....graph.core.argument_names import explain_members
from ....graph.core.build import TensorLike, apply, convert, make
from ....graph.core.dtypes import Array, as_dtype, float64, int32
from ....graph.core.errors import invalid
from ....graph.core.graph import Tensor
from ....graph.core.opdef import Attrs, Output, define
from ....graph.core.shape import TensorShape, as_dims, broadcast, compatible, is_static, text
from ....graph.ops.array.concat_stack import convert_alike, stack
from ....graph.ops.array.creation import ones_like, zeros_like
from ....graph.ops.array.dynamic_partition import unique_rule, uniques
from ....graph.ops.array.gather import gather
from ....graph.ops.array.identity_and_placeholders import Assert, identity, with_dependencies
from ....graph.ops.array.scatter import scatter_into
from ....graph.ops.array.segments import unsorted_segment_sum
from ....graph.ops.array.shapes import broadcast_to, reshape, shape, size
from ....graph.ops.array.slicing import MASKS
from ....graph.ops.array.space_depth import batch_to_space_nd, four_axes
from ....graph.ops.math.arithmetic import (
    add,
    divide,
    floormod,
    maximum,
    minimum,
    multiply,
    negative,
    rsqrt,
    subtract,
    truediv,
)
from ....graph.ops.math.cast import cast
from ....graph.ops.math.clip import clip_by_value
from ....graph.ops.math.compare import less, logical_not
from ....graph.ops.math.elementwise import floor, is_nan
from ....graph.ops.math.reduce import reduce_any, reduce_sum
from ....graph.ops.math.static_operands import (
    dims_of,
    index_operand,
    index_type_attr,
    move_cost,
    need_index,
    need_rank,
    need_rank_at_least,
    normal_axis,
    op_scope,
    static_ints,
)
from ....graph.ops.strings.split_join import split_strings
from ....graph.tensors.sparse_tensor import SparseTensor


def _roll_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, shift, axis = inputs
    need_rank_at_least(x.dims, 1, "input")
    for t, what in ((shift, "shift"), (axis, "axis")):
        need_index(t, what)
        if t.dims is not None and len(t.dims) > 1:
            raise ValueError(f"{what} must be a number or a vector, not of shape {text(t.dims)}")
    if not compatible(shift.dims, axis.dims):
        raise ValueError(f"shift and axis must have the same shape, not {text(shift.dims)} and {text(axis.dims)}")
    axes = static_ints(axis)
    if axes is not None and x.dims is not None:
        for a in axes:
            normal_axis(a, len(x.dims))
    return [(x.dtype.base, x.dims)]


def _roll(x: Array, shift: Array, axis: Array) -> Array:
    shifts, axes = dims_of(shift), dims_of(axis)
    if len(shifts) != len(axes):
        raise invalid(f"shift has {len(shifts)} numbers, axis {len(axes)}")
    if any(not -x.ndim <= a < x.ndim for a in axes):
        raise invalid(f"axis {axes} does not exist in shape {text(x.shape)}")
    return np.roll(x, shifts, axes)


define(
    "Roll",
    _roll_rule,
    _roll,
    gradient=lambda node, grad: [roll(grad, negative(node.inputs[1]), node.inputs[2]), None, None],
    cost=move_cost,
)


def roll(input: TensorLike, shift: TensorLike, axis: TensorLike, name: str | None = None) -> Tensor:
    """Elements moved along an axis; what leaves at one end comes in at the other.

    Args:
        shift: how far, towards larger indices: a number, or one for each of `axis`.
        axis: the axis, or a list; shifts along an axis that occurs twice add up.

    >>> roll([0, 1, 2, 3, 4], 2, 0)   # [3, 4, 0, 1, 2]
    """
    with op_scope(name, "roll", input, shift, axis) as scope:
        operands = (convert(input, name="input"), index_operand(shift, "shift"), index_operand(axis, "axis"))
        return apply("Roll", operands, None, scope)


def meshgrid(*args: TensorLike, indexing: str = "xy", name: str | None = "meshgrid") -> list[Tensor]:
    """Coordinates of all points of a grid: one tensor for each axis, each of the grid's shape.

    Args:
        args: the coordinates along each axis, one vector each.
        indexing: "xy": the grid's shape is (len(y), len(x), ...), as pictures have it; "ij": (len(x), len(y),
            ...), as matrices have it.

    Raises:
        ValueError: another `indexing`.

    >>> x, y = meshgrid([1, 2, 3], [4, 5])   # x = [[1, 2, 3], [1, 2, 3]], y = [[4, 4, 4], [5, 5, 5]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"Argument `indexing` parameter must be either 'xy' or 'ij', got '{indexing}'")
    with op_scope(name, "meshgrid", *args):
        axes = [reshape(convert(a, name=f"axis_{i}"), [-1]) for i, a in enumerate(args)]
        if not axes:
            return []
        order = list(py_range(len(axes)))
        if indexing == "xy" and len(axes) > 1:
            order[:2] = 1, 0
        if all(a.dims is not None and a.dims[0] is not None for a in axes):
            wanted: Any = [(axes[i].dims or ())[0] for i in order]
        else:
            wanted = stack([size(axes[i]) for i in order])
        return [
            broadcast_to(reshape(a, [-1 if order[j] == i else 1 for j in py_range(len(axes))]), wanted)
            for i, a in enumerate(axes)
        ]


def batch_to_space(input: TensorLike, crops: Any, block_size: int, name: str | None = None) -> Tensor:
    """`batch_to_space_nd` of the two axes of an image, [batch, height, width, channels]."""
    return batch_to_space_nd(four_axes(input), [block_size, block_size], crops, name or "BatchToSpace")


def required_space_to_batch_paddings(
    input_shape: TensorLike, block_shape: TensorLike, base_paddings: TensorLike = None, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """The least paddings with which blocks divide axes, and the crops that undo what was added.

    Args:
        input_shape: sizes of the axes, `[n]`. block_shape: those of blocks, `[n]`.
        base_paddings: what is padded in any case, `[n, 2]`; None: nothing.

    Returns:
        (paddings, crops), each `[n, 2]`: for `space_to_batch_nd` and `batch_to_space_nd`.
    """
    with op_scope(name, "required_space_to_batch_paddings", input_shape, block_shape):
        sizes = cast(index_operand(input_shape, "input_shape"), int32)
        blocks = cast(index_operand(block_shape, "block_shape"), int32)
        pads = stack([zeros_like(sizes)] * 2, 1) if base_paddings is None else cast(convert(base_paddings), int32)
        begin, end = pads[:, 0], pads[:, 1]
        whole = add(add(sizes, begin), end)
        more = floormod(subtract(blocks, floormod(whole, blocks)), blocks)
        return stack([begin, add(end, more)], 1), stack([zeros_like(more), more], 1)


def parallel_stack(values: Sequence[TensorLike], name: str | None = "parallel_stack") -> Tensor:
    """`stack` along a new first axis, of values whose shapes are known when the graph is built.

    Raises:
        ValueError: a shape is not known.
    """
    with op_scope(name, "parallel_stack", *values):
        parts = convert_alike(list(values), "values")
        for t in parts:
            if not is_static(t.dims):
                raise ValueError(f"parallel_stack needs to know the shapes of its values, not {t!r}; use stack")
        return stack(parts)


def batch_gather(params: TensorLike, indices: TensorLike, name: str | None = None) -> Tensor:
    """Slices of `params` picked within each batch: `gather` whose batches are all axes of `indices` but the last.

    Raises:
        ValueError: the rank of `indices` is not known.

    >>> batch_gather([[1, 2], [3, 4]], [[1], [0]])   # evaluates to [[2], [3]]
    """
    with op_scope(name, "BatchGather", params, indices):
        at = index_operand(indices, "indices")
        if at.dims is None:
            raise ValueError("batch_gather does not allow indices with unknown shape.")
        return gather(params, at, batch_dims=len(at.dims) - 1)


def tensor_scatter_nd_sub(
    tensor: TensorLike, indices: TensorLike, updates: TensorLike, name: str | None = None
) -> Tensor:
    """`tensor` with slices subtracted at coordinates; repeated ones add up."""
    return scatter_into("TensorScatterSub", tensor, indices, updates, name)


def shape_n(input: Sequence[TensorLike], out_type: Any = int32, name: str | None = None) -> list[Tensor]:
    """The shapes of several tensors."""
    return [shape(x, name, out_type) for x in input]


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> TensorShape:
    """The TensorShape that two static shapes broadcast to; ValueError when they do not fit."""
    return TensorShape(broadcast(as_dims(shape_x), as_dims(shape_y)))


def strided_slice(
    input_: TensorLike,
    begin: TensorLike,
    end: TensorLike,
    strides: TensorLike = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    name: str | None = None,
) -> Tensor:
    """The op behind `t[...]`, for programs that have its encoding.

    Args:
        begin, end, strides: vectors of int32 or int64, one number for each spec; strides default to 1.
        begin_mask, end_mask: bit `i` set: spec `i` starts or ends where the dimension does.
        ellipsis_mask: bit `i` set: spec `i` covers all dimensions that the other specs do not.
        new_axis_mask: bit `i` set: spec `i` inserts a dimension of size 1.
        shrink_axis_mask: bit `i` set: spec `i` takes the one index `begin[i]` and drops the dimension.
    """
    masks = dict(zip(MASKS, (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask), strict=True))
    with op_scope(name, "StridedSlice", input_, begin, end, strides) as scope:
        x = convert(input_, name="input")
        first, last = index_operand(begin, "begin"), index_operand(end, "end")
        if strides is None:
            step = ones_like(first)
        else:
            step = index_operand(strides, "strides")
        return apply("StridedSlice", (x, first, last, step), masks, scope)


def histogram_fixed_width_bins(
    values: TensorLike, value_range: TensorLike, nbins: TensorLike = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """The bin of each value.

    Args:
        values: numbers of any shape. value_range: `[low, high]`, of their type: what lies outside is in the first or last bin.
        nbins: how many bins of equal width there are. dtype: int32 or int64.

    Returns:
        numbers of bins, in the shape of `values`.

    Raises:
        InvalidArgumentError: in a step: a value is NaN, or `low` is not below `high`.

    >>> histogram_fixed_width_bins([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], 5)   # evaluates to [0, 0, 1, 2, 4, 4]
    """
    with op_scope(name, "histogram_fixed_width_bins", values, value_range, nbins) as scope:
        given, ends, count = _histogram_operands(values, value_range, nbins)
        share = truediv(subtract(given, ends[0]), subtract(ends[1], ends[0]))
        at = floor(multiply(cast(count, share.dtype.base), share))
        limit = cast(subtract(count, 1), share.dtype.base)
        found: Tensor = cast(clip_by_value(at, 0.0, limit), as_dtype(dtype), name=scope)
        return found


def _histogram_operands(
    values: TensorLike, value_range: TensorLike, nbins: TensorLike
) -> tuple[Tensor, Tensor, Tensor]:
    """The values, checked, the two ends, and the number of bins."""
    given = convert(values, name="values")
    ends = convert(value_range, given.dtype.base, name="value_range")
    need_rank(ends.dims, 1, "value_range")
    if not compatible(ends.dims, (2,)):
        raise ValueError(f"value_range: Dimension must be 2 but is {ends.shape[0]}")
    checks = [
        Assert(less(ends[0], ends[1]), ["value_range must satisfy value_range[0] < value_range[1], but is", ends])
    ]
    if given.dtype.base.is_floating:
        checks.append(Assert(logical_not(reduce_any(is_nan(given))), ["Histogram values must not contain NaN"]))
    return with_dependencies(checks, given), ends, convert(nbins, name="nbins")


def histogram_fixed_width(
    values: TensorLike, value_range: TensorLike, nbins: TensorLike = 100, dtype: Any = int32, name: str | None = None
) -> Tensor:
    """How many values each bin has: a vector of `nbins` numbers. Arguments as of `histogram_fixed_width_bins`.

    As in TensorFlow, widths are computed in float64 here and not there: a value at an edge may be counted in another bin.

    >>> histogram_fixed_width([-1.0, 0.0, 1.5, 2.0, 5.0, 15.0], [0.0, 5.0], 5)   # evaluates to [2, 1, 1, 0, 2]
    """
    with op_scope(name, "histogram_fixed_width", values, value_range, nbins):
        given, ends, count = _histogram_operands(values, value_range, nbins)
        width = truediv(cast(subtract(ends[1], ends[0]), float64), cast(count, float64))
        at = truediv(cast(subtract(maximum(given, ends[0]), ends[0]), float64), width)
        bins = reshape(cast(minimum(at, cast(subtract(count, 1), float64)), int32), [-1])
        return unsorted_segment_sum(cast(ones_like(bins), as_dtype(dtype)), bins, nbins)


def clip_by_average_norm(t: TensorLike, clip_norm: TensorLike, name: str | None = None) -> Tensor:
    """`t` scaled down so that its L2 norm per element, `norm(t) / size(t)`, is at most `clip_norm`."""
    values = convert(t, name="t")
    with values.graph.op_scope(name or "clip_by_average_norm") as scope:
        count = cast(size(values), values.dtype.base)
        inverse = multiply(rsqrt(reduce_sum(multiply(values, values))), count)
        limit = convert(clip_norm, values.dtype.base, name="clip_norm")
        return multiply(multiply(values, limit), minimum(inverse, divide(1.0, limit)), name=scope)


def guarantee_const(input: TensorLike, name: str | None = None) -> Any:
    """`identity`. What TensorFlow may conclude from the promise that the value stays the same, is not concluded here."""
    return identity(input, name or "GuaranteeConst")


def string_split(
    source: TensorLike = None,
    sep: TensorLike = None,
    skip_empty: bool = True,
    delimiter: TensorLike = None,
    name: str | None = None,
    result_type: str = "SparseTensor",
) -> SparseTensor:
    """Each text of a vector split into words: a `SparseTensor`, one row per text.

    Args:
        sep (`delimiter`): a scalar, each of whose characters ends a word; None: a blank; "": each byte is a word.
        skip_empty: leave out empty words. result_type: only "SparseTensor".

    >>> string_split(["hello world", "a b c"]).values   # evaluates to [b"hello", b"world", b"a", b"b", b"c"]
    """
    ends = sep if sep is not None else delimiter
    return split_strings(source, " " if ends is None else ends, skip_empty, False, -1, name, result_type)


class UniqueWithCounts(NamedTuple):
    """`Unique`, and how often each value occurs."""

    y: Tensor
    idx: Tensor
    count: Tensor  # type: ignore[assignment]  # TensorFlow's name; it hides tuple.count


define(
    "UniqueWithCounts",
    lambda inputs, attrs: [*unique_rule(inputs, attrs), (index_type_attr(attrs, "out_idx"), (None,))],
    uniques,
    device_types=("CPU",),
)


def unique_with_counts(x: TensorLike, out_idx: Any = int32, name: str | None = None) -> UniqueWithCounts:
    """`unique`, and how often each value occurs."""
    with op_scope(name, "UniqueWithCounts", x) as scope:
        return UniqueWithCounts(
            *make("UniqueWithCounts", (convert(x, name="x"),), {"out_idx": as_dtype(out_idx)}, scope).outputs
        )


explain_members(sys.modules[__name__])
