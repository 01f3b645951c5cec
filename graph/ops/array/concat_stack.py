"""Concatenation and splitting: concat, split, stack, unstack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert, make, shortened
from ...core.dtypes import Array, DType
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.hooks import hooks
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.places import Place, Places, checked_places
from ...core.shape import Dims, compatible, merge, text
from ..math.cast import cast
from ..math.common import same_type
from ..math.static_operands import (
    AS_LIST,
    dims_of,
    index_operand,
    known_rank,
    move_cost,
    need_index,
    need_rank,
    no_cost,
    normal_axis,
    op_scope,
    static_int,
    static_ints,
)
from .creation import zeros_like
from .identity_and_placeholders import identity
from .shapes import reshape, shape

# --- concat -------------------------------------------------------------------------------------------------


def _concat_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    *values, axis_input = inputs
    if not values:
        raise ValueError("concat needs at least one value")
    dtype = same_type(values)
    need_index(axis_input, "axis")
    rank = known_rank(values)
    axis = static_int(axis_input)
    if rank is None:
        return [(dtype, None)]
    if rank == 0:
        raise ValueError("scalars cannot be concatenated; use dt.stack")
    if axis is None:
        for t in values:
            need_rank(t.dims, rank, f"{t.name}")
        return [(dtype, (None,) * rank)]
    at = normal_axis(axis, rank)
    joined: Dims = (None,) * rank
    total: int | None = 0
    for t in values:
        if t.dims is None:
            total = None
            continue
        rest = (*t.dims[:at], None, *t.dims[at + 1 :])
        if len(t.dims) != rank or not compatible(joined, rest):
            first = values[0]
            raise ValueError(
                f"along axis {at} all other sizes must agree, "
                f"but {first.name} has {text(first.dims)} and {t.name} has {text(t.dims)}"
            )
        joined = merge(joined, rest)
        total = None if total is None or t.dims[at] is None else total + (t.dims[at] or 0)
    assert joined is not None
    return [(dtype, (*joined[:at], total, *joined[at + 1 :]))]


def _concat(*operands: Array) -> Array:
    *values, axis = operands
    try:
        return np.concatenate(values, int(np.reshape(axis, ())))
    except ValueError:  # also AxisError
        shapes = ", ".join(text(v.shape) for v in values)
        raise invalid(f"Cannot concatenate shapes {shapes} along axis {int(axis)}") from None


def _concat_gradient(node: Node, grad: Any) -> Sequence[Any]:
    *values, axis_input = node.inputs
    if len(values) == 1:
        return [grad, None]
    axis = static_int(axis_input)
    sizes = [t.dims[axis] if axis is not None and t.dims is not None else None for t in values]
    known = [s for s in sizes if s is not None]
    if len(known) == len(sizes):
        return [*split(grad, known, axis), None]
    at = axis if axis is not None else reshape(axis_input, [])
    counts = stack([shape(t)[at] for t in values])
    return [*split(grad, reshape(counts, [-1]), axis_input, num=len(values)), None]


def _concat_places(node: Node) -> Sequence[Places | None] | None:
    *values, axis_input = node.inputs
    axis, rank, begin = static_int(axis_input), len(node.outputs[0].dims or ()), 0
    if axis is None:
        return None
    at, found = axis % rank, []
    for i, t in enumerate(values):
        found.append(checked_places(node, i, [Place(d, begin * (d == at), 1, d != at, True) for d in range(rank)]))
        begin -= (t.dims or ())[at] or 0
    return found


define("ConcatV2", _concat_rule, _concat, gradient=_concat_gradient, places=_concat_places, cost=move_cost)


def concat(values: Any, axis: TensorLike, name: str | None = "concat") -> Tensor:
    """Concatenate tensors along an existing axis.

    Args:
        values: a list of tensors of one type. Their shapes agree except along `axis`.
        axis: an int. Negative counts from the end.
        name: name of the node.

    Raises:
        ValueError: the shapes do not agree, or there is no such axis.
        TypeError: the types differ, or `axis` is not a number.

    >>> concat([[[1, 2]], [[3, 4]]], 0).shape
    TensorShape([2, 2])
    """
    if not isinstance(values, (list, tuple)):
        values = [values]
    with op_scope(name, "concat", values, axis) as scope:
        if (isinstance(axis, Tensor) and axis.dims) or isinstance(axis, list | tuple):
            raise TypeError(
                f"concat: the axis must be a number, not {shortened(axis)}. Several tensors are one list: dt.{AS_LIST['concat']}"
            )
        operands = convert_alike(values, "values")
        if len(operands) == 1:
            same: Tensor = identity(operands[0], scope)
            return same
        return apply("ConcatV2", (*operands, index_operand(axis, "axis")), None, scope)


def convert_alike(values: Sequence[TensorLike], name: str, dtype: DType | None = None) -> list[Tensor]:
    """Convert values to tensors of one type: `dtype`, or that of the first tensor (also in nested lists), or that of the first value.

    A value that cannot be converted keeps its own type. The op that takes the values then raises.
    """
    like = dtype or _first_type(values)
    out: list[Tensor] = []
    for i, value in enumerate(values):
        label = f"{name}_{i}" if len(values) > 1 else name
        if isinstance(value, Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)) and _first_type(value) is not None:
            out.append(packed(value, like, label))
        else:
            out.append(convert(value, name=label, prefer=like))
        like = like or out[-1].dtype.base
    return out


def _first_type(values: Any) -> DType | None:
    for v in values:
        if isinstance(v, Tensor):
            return v.dtype.base
        if isinstance(v, (list, tuple)):
            found = _first_type(v)
            if found is not None:
                return found
        elif hasattr(v, "_as_tensor"):
            dtype: DType = v.dtype.base
            return dtype
    return None


# --- split --------------------------------------------------------------------------------------------------


def _num_split(attrs: Attrs) -> int:
    num = typed_attr(attrs, "num_split", int)
    if num < 1:
        raise ValueError(f"the number of pieces must be at least 1, not {num}")
    return num


def _unknown_pieces(x: Tensor, num: int) -> Sequence[Output]:
    """The outputs of a split whose axis or input rank is unknown."""
    return [(x.dtype.base, None if x.dims is None else (None,) * len(x.dims))] * num


def _split_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    axis_input, x = inputs
    need_index(axis_input, "axis")
    num = _num_split(attrs)
    axis = static_int(axis_input)
    if x.dims is None or axis is None:
        return _unknown_pieces(x, num)
    at = normal_axis(axis, len(x.dims))
    whole = x.dims[at]
    if whole is not None and whole % num:
        raise ValueError(f"size {whole} of dimension {at} cannot be split into {num} equal pieces")
    return [(x.dtype.base, (*x.dims[:at], None if whole is None else whole // num, *x.dims[at + 1 :]))] * num


def _split(axis: Array, x: Array, *, num_split: int) -> Any:
    at = int(axis.item())
    if not -x.ndim <= at < x.ndim or x.shape[at] % num_split:
        last = (
            "; a data set leaves out a last batch that is smaller by batch(size, drop_remainder=True)"
            if at == 0
            else ""
        )
        raise invalid(f"Cannot split shape {text(x.shape)} into {num_split} equal pieces along axis {at}{last}")
    size = x.shape[at] // num_split
    pieces = _pieces(x, [size] * num_split, at % x.ndim)
    return pieces[0] if num_split == 1 else pieces


def _pieces(x: Array, sizes: Sequence[int], axis: int) -> tuple[Array, ...]:
    """Views of consecutive pieces of these sizes along an axis. `np.split` takes five times as long."""
    before, first, pieces = (slice(None),) * axis, 0, []
    for size in sizes:
        pieces.append(x[(*before, slice(first, first + size))])
        first += size
    return tuple(pieces)


def _split_v_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, sizes_input, axis_input = inputs
    need_index(sizes_input, "size_splits", 1)
    need_index(axis_input, "axis")
    num = _num_split(attrs)
    if sizes_input.dims is not None and sizes_input.dims[0] not in (num, None):
        raise ValueError(f"size_splits has {sizes_input.dims[0]} sizes for {num} pieces")
    axis, sizes = static_int(axis_input), static_ints(sizes_input)
    if x.dims is None or axis is None:
        return _unknown_pieces(x, num)
    at = normal_axis(axis, len(x.dims))
    known: Sequence[int | None] = (None,) * num if sizes is None else _complete_sizes(sizes, x.dims[at])
    return [(x.dtype.base, (*x.dims[:at], s, *x.dims[at + 1 :])) for s in known]


def _complete_sizes(sizes: list[int], whole: int | None) -> list[int | None]:
    """The sizes of the pieces, with -1 replaced by what remains. ValueError unless they add up to `whole`."""
    if min(sizes, default=0) < -1 or sizes.count(-1) > 1:
        raise ValueError(f"size_splits {sizes} must hold sizes, and -1 at most once")
    if whole is None:
        return [None if s == -1 else s for s in sizes]
    rest = whole - sum(s for s in sizes if s != -1)
    if rest < 0 or (rest and -1 not in sizes):
        raise ValueError(f"size_splits {sizes} do not add up to the size {whole} of the dimension")
    return [rest if s == -1 else s for s in sizes]


def _split_v(x: Array, sizes: Array, axis: Array, *, num_split: int) -> Any:
    at = normal_axis(int(np.reshape(axis, ())), x.ndim)
    try:
        known = _complete_sizes(dims_of(sizes), x.shape[at])
    except ValueError as e:
        raise invalid(f"Cannot split shape {text(x.shape)} along axis {at}: {e}") from None
    pieces = _pieces(x, [s or 0 for s in known], at)
    return pieces[0] if num_split == 1 else pieces


def filled_grads(node: Node, grads: Sequence[Any]) -> list[Any]:
    """The gradients of all outputs, with zeros in place of None."""
    return [zeros_like(t) if g is None else g for t, g in zip(node.outputs, grads, strict=True)]


define(
    "Split",
    _split_rule,
    _split,
    gradient=lambda node, *grads: [None, concat(filled_grads(node, grads), node.inputs[0])],
    cost=no_cost,
)
define(
    "SplitV",
    _split_v_rule,
    _split_v,
    gradient=lambda node, *grads: [concat(filled_grads(node, grads), node.inputs[2]), None, None],
    cost=no_cost,
)


def split(
    value: TensorLike,
    num_or_size_splits: Any,
    axis: TensorLike = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Tensor]:
    """Split a tensor along an axis.

    Args:
        value: the tensor.
        num_or_size_splits: an int for that many equal pieces, or a vector of their sizes, one of which may be -1 (what remains).
        axis: the axis, an int or a scalar tensor.
        num: the number of sizes, if the vector's length is unknown.
        name: name of the node.

    Raises:
        ValueError: the pieces do not add up to the size of the axis.

    >>> a, b = split([1, 2, 3], [1, 2])   # evaluate to [1] and [2, 3]
    """
    if isinstance(num_or_size_splits, (int, np.integer)):
        with op_scope(name, "split", value, axis) as scope:
            operands = (index_operand(axis, "split_dim"), convert(value, name="value"))
            return list(make("Split", operands, {"num_split": int(num_or_size_splits)}, scope).outputs)
    with op_scope(name, "split", value, num_or_size_splits, axis) as scope:
        sizes = index_operand(num_or_size_splits, "size_splits")
        if num is None:
            if not sizes.dims or sizes.dims[0] is None:
                raise ValueError(f"Cannot tell how many pieces {sizes!r} asks for; pass num=")
            num = sizes.dims[0]
        tensors = (convert(value, name="value"), sizes, index_operand(axis, "split_dim"))
        return list(make("SplitV", tensors, {"num_split": num}, scope).outputs)


# --- stack --------------------------------------------------------------------------------------------------


def _pack_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    if not inputs:
        raise ValueError("stack needs at least one value")
    dtype = same_type(inputs)
    axis = typed_attr(attrs, "axis", int)
    dims: Dims = None
    for t in inputs:
        if not compatible(dims, t.dims):
            raise ValueError(
                f"all shapes must agree, but {inputs[0].name} has {text(inputs[0].dims)} and {t.name} has "
                f"{text(t.dims)}"
            )
        dims = merge(dims, t.dims)
    if dims is None:
        return [(dtype, None)]
    at = normal_axis(axis, len(dims) + 1)
    return [(dtype, (*dims[:at], len(inputs), *dims[at:]))]


def _pack(*values: Array, axis: int) -> Array:
    try:
        return np.stack(values, axis)
    except ValueError:
        shapes = ", ".join(text(np.shape(v)) for v in values)
        raise invalid(f"Cannot stack shapes {shapes}: all must agree") from None


define(
    "Pack",
    _pack_rule,
    _pack,
    gradient=lambda node, grad: unstack(grad, len(node.inputs), node.attrs["axis"]),
    cost=move_cost,
)


def packed(values: Sequence[TensorLike], dtype: DType | None, name: str, casts: bool | None = None) -> Tensor:
    """Stack nested lists into one tensor along new first axes.

    Args:
        values: numbers, tensors, and lists of them. Without a tensor, the result is a Const.
        dtype: element type. None means that of the first tensor.
        name: name of the node. Element `i` becomes the Const `name/i` if it is not a tensor, as in TensorFlow.
        casts: whether tensors of other numeric types are cast, unless that would lose fractions. None means True if `dtype` is given.
    """
    casts = dtype is not None if casts is None else casts
    like = dtype or _first_type(values)
    if _first_type(values) is None:
        return convert(list(values), like, name=name)
    with op_scope(None, name, *values) as scope:
        elements = []
        for i, v in enumerate(values):
            if isinstance(v, (list, tuple)):
                elements.append(packed(v, like, str(i), casts))
            else:
                to_cast = casts and isinstance(v, Tensor) and like is not None and _keeps_fractions(v.dtype.base, like)
                elements.append(cast(v, like) if to_cast else convert(v, like, name=str(i)))
        return apply("Pack", elements, {"axis": 0}, scope)


def _keeps_fractions(dtype: DType, wanted: DType) -> bool:
    """Whether both types are numeric and a cast from `dtype` to `wanted` keeps fractions."""
    return dtype.is_integer and (wanted.is_integer or wanted.is_floating) or dtype.is_floating and wanted.is_floating


def stack(values: Any, axis: int = 0, name: str | None = "stack") -> Tensor:
    """Join tensors of one shape along a new axis. Values without a tensor among them become one Const.

    Args:
        values: a list of tensors of one shape and type.
        axis: the position of the new axis. Negative counts from the end.
        name: name of the node.

    Raises:
        ValueError: the shapes differ, or the list is empty.

    >>> stack([[1, 2], [3, 4]], axis=1)   # evaluates to [[1, 3], [2, 4]]
    """
    if isinstance(axis, Tensor):
        raise TypeError(
            f"stack: the axis must be a number, not {axis!r}. Several tensors are one list: dt.{AS_LIST['stack']}"
        )
    if isinstance(values, (list, tuple)):
        if not values:
            raise ValueError("stack needs at least one value")
        if axis == 0:
            return packed(values, None, name or "stack")
    with op_scope(name, "stack", *values) as scope:
        return apply("Pack", convert_alike(list(values), "values"), {"axis": int(axis)}, scope)


def _unpack_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    num, axis = typed_attr(attrs, "num", int), typed_attr(attrs, "axis", int)
    if num < 0:
        raise ValueError(f"num must not be negative: {num}")
    if x.dims is None:
        return [(x.dtype.base, None)] * num
    at = normal_axis(axis, len(x.dims))
    if x.dims[at] not in (num, None):
        raise ValueError(f"dimension {at} has size {x.dims[at]}, not {num}")
    return [(x.dtype.base, x.dims[:at] + x.dims[at + 1 :])] * num


def _unpack(x: Array, *, num: int, axis: int) -> Any:
    if not -x.ndim <= axis < x.ndim or x.shape[axis] != num:
        raise invalid(f"Cannot unstack shape {text(x.shape)} along axis {axis} into {num} tensors")
    moved = np.moveaxis(x, axis, 0)
    # The ellipsis makes an element of an object array an array, too.
    pieces = tuple(moved[i, ...] for i in range(num)) if x.dtype == object else tuple(moved)
    return pieces[0] if num == 1 else pieces


define(
    "Unpack",
    _unpack_rule,
    _unpack,
    gradient=lambda node, *grads: [stack(filled_grads(node, grads), node.attrs["axis"])],
    cost=no_cost,
)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str | None = "unstack") -> list[Tensor]:
    """The slices of a tensor along an axis, without that axis.

    Args:
        value: the tensor.
        num: the size of the axis. None means the static one.
        axis: an int. Negative counts from the end.
        name: name of the node.

    Raises:
        ValueError: `num` is not the size of the axis, or neither is known.
    """
    with op_scope(name, "unstack", value) as scope:
        x = convert(value, name="value")
        if num is None:
            if x.dims is not None:
                num = x.dims[normal_axis(axis, len(x.dims))]
            if num is None:
                raise ValueError(f"Cannot tell how many tensors {x!r} holds along axis {axis}; pass num=")
        return list(make("Unpack", (x,), {"num": int(num), "axis": int(axis)}, scope).outputs)


hooks.pack_list = packed
