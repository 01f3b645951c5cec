"""Sparse tensors: construction, order, slices, concatenation, filling, conversion.

The *flat index* of an element is its index in the dense tensor in row-major order, one integer instead of coordinates. Elements are sorted
and compared by their flat indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.argument_names import explains_arguments
from ...core.build import TensorLike, apply, convert, placeholder
from ...core.constant_value import static_dims
from ...core.dtypes import Array, bool_, int64
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Output, define, typed_attr
from ...core.shape import Dims, as_dims, element_count, is_static, merge, text
from ...tensors.indexed_slices import IndexedSlices
from ...tensors.sparse_tensor import SparseTensor
from ..array.concat_stack import concat, stack
from ..array.creation import fill, ones_like, zeros, zeros_like
from ..array.dynamic_partition import boolean_mask
from ..array.gather import gather, gather_densely, gather_nd
from ..array.identity_and_placeholders import Assert, placeholder_with_default
from ..array.ranges import range as range_
from ..array.segments import unsorted_segment_sum
from ..array.shapes import expand_dims, reshape, shape, size
from ..array.sorting import argsort
from ..math.arithmetic import add, floordiv, floormod, maximum, minimum, multiply, subtract
from ..math.cast import cast
from ..math.common import same_type
from ..math.compare import equal, greater, greater_equal, less, logical_and, logical_not, not_equal, where
from ..math.reduce import reduce_all, reduce_max, reduce_prod, reduce_sum
from ..math.scan import cumprod
from ..math.static_operands import (
    dims_of,
    index_operand,
    move_cost,
    need_index,
    need_rank,
    normal_axis,
    op_scope,
    static_int,
    static_ints,
)


class FilledRows(NamedTuple):
    """The result of `sparse_fill_empty_rows`: the tensor, and a mask of the rows that were empty, bool `[rows]`."""

    sp_output: SparseTensor
    empty_row_indicator: Tensor


# --- flat indices ----------------------------------------------------------------------------------------------------


def strides_of(dense_shape: Tensor) -> Tensor:
    """The difference between the flat indices of neighbouring elements, along each axis."""
    return cumprod(dense_shape, axis=0, exclusive=True, reverse=True)


def ravel_indices(indices: Tensor, dense_shape: Tensor) -> Tensor:
    """The flat indices of coordinates, int64 `[n]`."""
    flat = reduce_sum(multiply(indices, strides_of(dense_shape)), axis=1)
    flat.set_shape(None if indices.dims is None else indices.dims[:1])
    flat.set_shape([None])
    return flat


def unravel_indices(flat: Tensor, dense_shape: Tensor) -> Tensor:
    """The coordinates of flat indices, int64 `[n, rank]`."""
    return floormod(floordiv(expand_dims(flat, 1), strides_of(dense_shape)), dense_shape)


def known_rank(sp: SparseTensor, what: str) -> int:
    """The rank of a sparse tensor. ValueError if it is unknown."""
    if sp.rank is None:
        raise ValueError(
            f"{what} needs to know the rank of the sparse tensor: give its indices a static shape, [None, rank]"
        )
    return sp.rank


def columns(indices: Tensor, axes: Sequence[int]) -> Tensor:
    """The coordinates of each element along some axes, `[n, len(axes)]`."""
    return gather(indices, convert(list(axes), int64), axis=1)


def sparse(value: Any) -> SparseTensor:
    """A `SparseTensor`, or a value of one converted to it. TypeError for anything else."""
    if not isinstance(value, SparseTensor) and not hasattr(value, "dense_shape"):
        raise TypeError(f"Input must be a SparseTensor, not {value!r}")
    return SparseTensor.from_value(value)


# --- conversion ------------------------------------------------------------------------------------------------------


def sparse_tensor_to_dense(
    sp_input: SparseTensor, default_value: TensorLike = None, validate_indices: bool = True, name: str | None = None
) -> Tensor:
    """The dense tensor of a sparse one. Arguments as for `sparse_to_dense`. The default value is 0 or the empty string.

    >>> sparse_tensor_to_dense(SparseTensor([[0, 1]], [5], [2, 2]))   # evaluates to [[0, 5], [0, 0]]
    """
    sp = sparse(sp_input)
    default = default_value if default_value is not None else zeros((), sp.dtype.base)
    return sparse_to_dense(
        sp.indices, sp.dense_shape, sp.values, default, validate_indices, name or "SparseTensorToDense"
    )


def from_dense(tensor: TensorLike, name: str | None = None) -> SparseTensor:
    """The elements of a tensor that are not zero."""
    with op_scope(name, "dense_to_sparse", tensor):
        x = convert(tensor)
        whole, elements = shape(x, out_type=int64), reshape(x, [-1])
        flat = reshape(where(not_equal(elements, zeros_like(elements))), [-1])
        return SparseTensor(unravel_indices(flat, whole), gather(elements, flat), whole)


def sparse_to_indicator(sp_input: SparseTensor, vocab_size: TensorLike, name: str | None = None) -> Tensor:
    """Which ids occur in each row: for ids, int32 or int64 `[D0, ..., Dn]`, a bool tensor `[D0, ..., Dn-1, vocab_size]`."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseToIndicator", sp.values) as scope:
        merged = sparse_merge(sp, SparseTensor(sp.indices, ones_like(sp.values, bool_), sp.dense_shape), vocab_size)
        return sparse_to_dense(
            merged.indices, merged.dense_shape, merged.values, False, validate_indices=False, name=scope
        )


def sparse_merge(
    sp_ids: Any, sp_values: SparseTensor, vocab_size: Any, name: str | None = None, already_sorted: bool = False
) -> SparseTensor:
    """Values by id: replace the last coordinate of each element by the id at the same index of another sparse tensor.

    Args:
        sp_ids: a sparse tensor of ids, or a list of them. With a list, the last coordinate is replaced by several.
        sp_values: the values.
        vocab_size: the number of ids, a list if `sp_ids` is one.
        name: name scope of the nodes.
        already_sorted: whether the result is in row-major order without sorting.

    Raises:
        TypeError: only one of `sp_ids` and `vocab_size` is a list.
        ValueError: the lists differ in length.
    """
    several = isinstance(sp_ids, (list, tuple)) and not hasattr(sp_ids, "dense_shape")
    if several != isinstance(vocab_size, (list, tuple)):
        raise TypeError(f"sp_ids and vocab_size must both be lists, or none of them: {sp_ids!r}, {vocab_size!r}")
    ids, sizes = [sparse(i) for i in (sp_ids if several else [sp_ids])], list(vocab_size) if several else [vocab_size]
    if len(ids) != len(sizes):
        raise ValueError(f"sp_ids and vocab_size have to have equal lengths, not {len(ids)} and {len(sizes)}")
    values = sparse(sp_values)
    with op_scope(name, "SparseMerge", values.values):
        at = concat([ids[0].indices[:, :-1], *(expand_dims(cast(i.values, int64), 1) for i in ids)], 1)
        ends = [reshape(cast(convert(n), int64), [1]) for n in sizes]
        merged = SparseTensor(at, values.values, concat([ids[0].dense_shape[:-1], *ends], 0))
        return merged if already_sorted else sparse_reorder(merged)


def sparse_eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = "float32", name: str | None = None
) -> SparseTensor:
    """The identity matrix as a sparse tensor. It is square unless `num_columns` is given."""
    across = num_rows if num_columns is None else num_columns
    with op_scope(name, "eye"):
        sizes = [cast(convert(n), int64) for n in (num_rows, across)]
        diagonal = range_(minimum(*sizes))
        ones = fill(shape(diagonal), cast(convert(1), dtype))
        return SparseTensor(stack([diagonal, diagonal], 1), ones, stack(sizes))


# --- order and shape -------------------------------------------------------------------------------------------------


def sparse_reorder(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The same tensor with its elements in row-major order. Elements with equal coordinates keep their order."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseReorder", sp.values):
        order = argsort(ravel_indices(sp.indices, sp.dense_shape), stable=True)
        return SparseTensor(gather(sp.indices, order), gather_densely(sp.values, order), sp.dense_shape)


def sparse_reshape(sp_input: SparseTensor, shape: TensorLike, name: str | None = None) -> SparseTensor:
    """The same elements in the same order, in another shape. One size may be -1, and is inferred."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseReshape", sp.values):
        wanted = cast(convert(shape), int64)
        before = sp.shape.dims_tuple
        if is_static(before) and (static_ints(wanted) or []).count(-1) > 1:
            raise ValueError(f"At most one dimension can be inferred (-1). Found: {static_ints(wanted)}")
        known = _reshaped_dims(before, static_dims(wanted))
        unknown = equal(wanted, -1)
        rest = floordiv(reduce_prod(sp.dense_shape), maximum(reduce_prod(where(unknown, ones_like(wanted), wanted)), 1))
        whole = where(unknown, ones_like(wanted) * rest, wanted)
        whole.set_shape([None])
        problem = [
            "Input to reshape is a sparse tensor of shape",
            sp.dense_shape,
            "which does not fit the requested",
            wanted,
        ]
        fits = Assert(equal(reduce_prod(whole), reduce_prod(sp.dense_shape)), problem)
        with whole.graph.control_dependencies([fits]):
            flat = ravel_indices(sp.indices, sp.dense_shape)
        if is_static(known):
            whole = convert(np.array(known, np.int64))
        return SparseTensor(unravel_indices(flat, whole), sp.values, whole)


def _reshaped_dims(before: Dims, wanted: Dims) -> Dims:
    """The static shape after a reshape. ValueError if the number of elements differs."""
    count = element_count(before)
    if count is None or wanted is None:
        return wanted
    known = math.prod(d for d in wanted if d is not None)
    missing = wanted.count(None)
    if (not missing and known != count) or (missing == 1 and known and count % known):
        raise ValueError(f"Cannot reshape a sparse tensor with {count} elements to shape {text(wanted)}")
    return tuple(count // known if d is None else d for d in wanted) if missing == 1 and known else wanted


def sparse_transpose(
    sp_input: SparseTensor, perm: Sequence[int] | None = None, name: str | None = None
) -> SparseTensor:
    """Permute the axes. A `perm` of None reverses them."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseTranspose", sp.values):
        rank = known_rank(sp, "sparse_transpose")
        order = list(range(rank))[::-1] if perm is None else [normal_axis(int(a), rank) for a in perm]
        if sorted(order) != list(range(rank)):
            raise ValueError(f"perm must name each of {rank} axes once: {perm}")
        return sparse_reorder(SparseTensor(columns(sp.indices, order), sp.values, gather(sp.dense_shape, order)))


def sparse_expand_dims(sp_input: SparseTensor, axis: TensorLike = -1, name: str | None = None) -> SparseTensor:
    """Insert an axis of size 1 before `axis`. -1 inserts it at the end."""
    sp = sparse(sp_input)
    with op_scope(name, "expand_dims", sp.values):
        given = convert(axis, name="axis")
        known = static_int(given)
        if known is not None and sp.rank is not None:
            at: Any = normal_axis(known, sp.rank + 1)
        else:
            at = where(less(given, 0), given + size(sp.dense_shape) + 1, given)
        indices = concat([sp.indices[:, :at], zeros_like(sp.indices[:, :1]), sp.indices[:, at:]], 1)
        return SparseTensor(indices, sp.values, concat([sp.dense_shape[:at], [1], sp.dense_shape[at:]], 0))


def sparse_reset_shape(sp_input: SparseTensor, new_shape: TensorLike = None) -> SparseTensor:
    """The same elements with another dense shape: `new_shape`, which must not be smaller, or the smallest one that contains them."""
    sp = sparse(sp_input)
    with op_scope(None, "SparseResetShape", sp.values):
        if new_shape is None:
            return SparseTensor(sp.indices, sp.values, maximum(reduce_max(sp.indices, axis=0) + 1, 0))
        wanted = cast(convert(new_shape), int64)
        sizes, before = static_dims(wanted) or (), sp.shape.dims_tuple or ()
        if any(a is not None and b is not None and a < b for a, b in zip(sizes, before, strict=False)):
            raise ValueError(f"new_shape {text(sizes)} should have dimension sizes >= sp_input.shape {text(before)}")
        room = Assert(
            reduce_all(greater_equal(wanted, sp.dense_shape)), ["new_shape", wanted, "is smaller than", sp.dense_shape]
        )
        with wanted.graph.control_dependencies([room]):
            return SparseTensor(sp.indices, sp.values, add(wanted, 0))


# --- selection and concatenation --------------------------------------------------------------------------------------


@explains_arguments
def sparse_retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """The elements for which a bool vector is true."""
    sp = sparse(sp_input)
    with op_scope(None, "SparseRetain", sp.values):
        retained = convert(to_retain, bool_)
        merge(retained.dims, sp.values.dims)
        kept = reshape(where(retained), [-1])
        return SparseTensor(gather(sp.indices, kept), gather(sp.values, kept), sp.dense_shape)


def sparse_slice(sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None) -> SparseTensor:
    """The block of shape `size` from `start` on, clipped to the tensor's shape."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseSlice", sp.values):
        first, length = cast(convert(start), int64), cast(convert(size), int64)
        inside = logical_and(greater_equal(sp.indices, first), less(sp.indices, add(first, length)))
        kept = reshape(where(reduce_all(inside, axis=1)), [-1])
        whole = maximum(minimum(length, subtract(sp.dense_shape, first)), 0)
        return SparseTensor(subtract(gather(sp.indices, kept), first), gather_densely(sp.values, kept), whole)


def sparse_split(
    keyword_required: Any = None,
    sp_input: Any = None,
    num_split: int | None = None,
    axis: int | None = None,
    name: str | None = None,
) -> list[SparseTensor]:
    """Split a sparse tensor along an axis into `num_split` parts. If the size is not a multiple, the first parts are larger by 1."""
    sp, count = sparse(sp_input if sp_input is not None else keyword_required), num_split
    if count is None or axis is None or count < 1:
        raise ValueError("sparse_split needs num_split, at least 1, and axis")
    with op_scope(name, "SparseSplit", sp.values):
        rank = known_rank(sp, "sparse_split")
        at = normal_axis(axis, rank)
        length = sp.dense_shape[at]
        least, more = floordiv(length, count), floormod(length, count)
        parts = []
        for i in range(count):
            begin = add(multiply(least, i), minimum(more, i))
            count_i = add(least, cast(less(convert(i, int64), more), int64))
            start = stack([begin if a == at else convert(0, int64) for a in range(rank)])
            sizes = stack([count_i if a == at else sp.dense_shape[a] for a in range(rank)])
            parts.append(sparse_slice(sp, start, sizes))
        return parts


def sparse_concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    name: str | None = None,
    expand_nonconcat_dim: bool = False,
    concat_dim: int | None = None,
) -> SparseTensor:
    """Concatenate sparse tensors along an axis.

    Args:
        axis: the axis.
        sp_inputs: sparse tensors of the same rank, whose shapes agree except along the axis.
        name: name scope of the nodes.
        expand_nonconcat_dim: let the other sizes differ. The largest is used.
        concat_dim: old name of `axis`.
    """
    parts = [sparse(sp) for sp in sp_inputs]
    if len(parts) == 1:
        return parts[0]
    with op_scope(name, "SparseConcat", parts[0].values):
        rank = known_rank(next((p for p in parts if p.rank is not None), parts[0]), "sparse_concat")
        at = normal_axis(axis if concat_dim is None else concat_dim, rank)
        shapes = stack([p.dense_shape for p in parts])
        others = [a for a in range(rank) if a != at]
        checks = []
        if not expand_nonconcat_dim and others:
            same = columns(shapes, others)
            checks = [
                Assert(
                    reduce_all(equal(same, same[:1])),
                    ["shapes differ along other axes than the concatenated one:", shapes],
                )
            ]
        along = [a == at for a in range(rank)]
        offset = convert([0] * rank, int64)
        moved = []
        with shapes.graph.control_dependencies(checks):
            for p in parts:
                moved.append(add(p.indices, offset))
                offset = add(offset, where(along, p.dense_shape, zeros_like(p.dense_shape)))
        whole = where(along, reduce_sum(shapes, axis=0), reduce_max(shapes, axis=0))
        values, indices = concat([p.values for p in parts], 0), concat(moved, 0)
        values.set_shape([None])
        indices.set_shape([None, rank])
        return sparse_reorder(SparseTensor(indices, values, whole))


def sparse_fill_empty_rows(sp_input: SparseTensor, default_value: TensorLike, name: str | None = None) -> FilledRows:
    """Add an element with a default value at the first column of each row that has no elements.

    >>> filled, was_empty = sparse_fill_empty_rows(SparseTensor([[1, 0]], [7], [3, 2]), 0)
    """
    sp = sparse(sp_input)
    with op_scope(name, "SparseFillEmptyRows", sp.values):
        rows = sp.dense_shape[0]
        count = unsorted_segment_sum(ones_like(sp.indices[:, 0]), sp.indices[:, 0], rows)
        is_empty = equal(count, 0)
        empty = where(is_empty)
        beside = zeros([shape(empty)[0], shape(sp.indices)[1] - 1], int64)
        filler = fill(shape(empty)[:1], convert(default_value, sp.dtype.base))
        indices = concat([sp.indices, concat([empty, beside], 1)], 0)
        filled = SparseTensor(indices, concat([sp.values, filler], 0), sp.dense_shape)
        return FilledRows(sparse_reorder(filled), is_empty)


def sparse_mask(a: Any, mask_indices: TensorLike, name: str | None = None) -> Any:
    """`IndexedSlices` without the rows whose indices are in `mask_indices`."""
    with op_scope(name, "sparse_mask", a.values):
        unwanted = cast(convert(mask_indices), a.indices.dtype.base)
        hit = reduce_sum(cast(equal(expand_dims(a.indices, 1), expand_dims(unwanted, 0)), int64), axis=1)
        kept = logical_not(greater(hit, 0))
        return IndexedSlices(boolean_mask(a.values, kept), boolean_mask(a.indices, kept), a.dense_shape)


def sparse_placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> SparseTensor:
    """A `SparseTensor` that must be fed in every step that needs it.

    It is fed with a `SparseTensorValue` or a tuple of its three parts.

    Args:
        dtype: element type.
        shape: the dense shape, which is not fed if it is complete. None means that it is fed.
        name: prefix of the placeholders' names, `name/indices`, `name/values` and `name/shape`.

    >>> x = sparse_placeholder(dt.float32)
    >>> session.run(sparse_reduce_sum(x), {x: SparseTensorValue([[3, 2, 0]], [1.5], [7, 9, 2])})
    """
    under = f"{name}/" if name else ""
    dims = as_dims(shape)
    rank = None if dims is None else len(dims)
    if dims is not None and not is_static(dims):
        sizes = np.array([-1 if d is None else d for d in dims], np.int64)
        whole = placeholder_with_default(sizes, [rank], name=f"{under}shape" if under else None)
    elif dims is not None:
        whole = convert(np.array(dims, np.int64), name=f"{under}shape" if under else None)
    else:
        whole = placeholder(int64, [None], name=f"{under}shape" if under else None)
    return SparseTensor(
        indices=placeholder(int64, [None, rank], name=f"{under}indices" if under else None),
        values=placeholder(dtype, [None], name=f"{under}values" if under else None),
        dense_shape=whole,
    )


# --- SparseToDense ----------------------------------------------------------------------------------------------------


def _rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    indices, whole, values, default = inputs
    need_index(indices, "sparse_indices")
    same_type((indices, whole))
    need_rank(whole.dims, 1, "output_shape")
    typed_attr(attrs, "validate_indices", bool)
    return [(same_type((values, default)), static_dims(whole))]


def _sparse_to_dense(indices: Array, whole: Array, values: Array, default: Array, *, validate_indices: bool) -> Array:
    if indices.ndim > 2:
        raise invalid(f"sparse_indices should be a scalar, vector, or matrix, got shape {list(indices.shape)}")
    at = indices if indices.ndim == 2 else indices.reshape(-1, 1)
    count, rank = at.shape
    if rank != len(whole):
        raise invalid(f"output_shape has incorrect number of elements: {len(whole)} should be: {rank}")
    if values.shape not in ((), (count,)):
        raise invalid(f"sparse_values has incorrect shape {list(values.shape)}, should be [] or [{count}]")
    if default.ndim:
        raise invalid("default_value should be a scalar")
    outside = np.flatnonzero(((at < 0) | (at >= whole)).any(axis=1))
    if outside.size:
        first = outside[0]
        raise invalid(f"indices[{first}] = {at[first].tolist()} is out of bounds: need 0 <= index < {whole.tolist()}")
    strides = np.append(np.cumprod(whole[:0:-1], dtype=np.int64)[::-1], 1)[:rank]
    flat = at @ strides if rank else np.zeros(count, np.int64)
    if validate_indices:
        steps = np.diff(flat)
        wrong = np.flatnonzero(steps <= 0)
        if wrong.size:
            first = wrong[0] + 1
            problem = (
                "out of order. Many sparse ops require sorted indices: use sparse_reorder"
                if steps[wrong[0]]
                else "repeated"
            )
            raise invalid(f"indices[{first}] = {at[first].tolist()} is {problem}")
    out = np.full(dims_of(whole), default, values.dtype)
    out.reshape(-1)[flat] = values
    return out


def _gradient(node: Node, grad: Any) -> Sequence[Any]:
    indices, whole, values, _ = node.inputs
    if values.dims is None:
        raise ValueError("The gradient of SparseToDense needs to know the rank of sparse_values; use set_shape")
    at = reshape(indices, stack([-1, size(whole)]))
    taken = gather_nd(grad, at)
    inside = reduce_sum(taken)
    return [None, None, taken if values.dims else inside, reduce_sum(grad) - inside]


define("SparseToDense", _rule, _sparse_to_dense, gradient=_gradient, cost=move_cost)


def sparse_to_dense(
    sparse_indices: TensorLike,
    output_shape: TensorLike,
    sparse_values: TensorLike,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A dense tensor with given elements, and a default value elsewhere.

    Args:
        sparse_indices: the coordinates of the elements: `[n, rank]`, or for a vector `[n]` or a scalar.
        output_shape: shape of the result.
        sparse_values: the elements, `[n]` or a scalar.
        default_value: the value of the other elements, a scalar. Required for strings.
        validate_indices: check in each step that the coordinates are in order and distinct. Without the check, the last of several elements
            with equal coordinates is used.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, coordinates are out of order, repeated or out of bounds, or the shapes do not fit.

    >>> sparse_to_dense([[0, 1], [1, 2]], [2, 3], [5, 6])   # evaluates to [[0, 5, 0], [0, 0, 6]]
    """
    with op_scope(name, "SparseToDense", sparse_indices, output_shape, sparse_values) as scope:
        at = index_operand(sparse_indices, "sparse_indices")
        whole = cast(index_operand(output_shape, "output_shape"), at.dtype.base)
        values = convert(sparse_values, name="sparse_values")
        default = convert(default_value, values.dtype.base, name="default_value")
        return apply("SparseToDense", (at, whole, values, default), {"validate_indices": bool(validate_indices)}, scope)
