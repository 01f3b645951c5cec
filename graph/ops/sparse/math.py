"""Arithmetic with sparse tensors: sums, extremes, products with dense tensors, softmax, embedding lookups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.build import TensorLike, convert
from ...core.dtypes import int32, int64
from ...core.graph import Tensor
from ...core.operators import operators
from ...core.shape import is_static
from ...tensors.sparse_tensor import SparseTensor
from ..array.concat_stack import concat
from ..array.creation import ones_like, zeros_like
from ..array.dynamic_partition import unique
from ..array.embedding import embedding_lookup
from ..array.gather import gather, gather_densely, gather_nd
from ..array.identity_and_placeholders import Assert, with_dependencies
from ..array.scatter import tensor_scatter_nd_add
from ..array.segments import (
    segment_mean,
    segment_sum,
    unsorted_segment_max,
    unsorted_segment_mean,
    unsorted_segment_sum,
)
from ..array.shapes import expand_dims, reshape, shape, transpose
from ..math.arithmetic import absolute, div_no_nan, divide, maximum, minimum, multiply, rsqrt, sqrt, subtract
from ..math.cast import cast
from ..math.compare import equal, greater, greater_equal, less, logical_and, logical_or, where
from ..math.elementwise import exp
from ..math.reduce import reduce_all, reduce_prod
from ..math.static_operands import index_operand, normal_axis, op_scope
from .arrange import (
    columns,
    coordinates_at,
    from_dense,
    known_rank,
    places_of,
    sparse,
    sparse_fill_empty_rows,
    sparse_reorder,
    sparse_reshape,
    sparse_retain,
)

COMBINERS = ("mean", "sqrtn", "sum")


# --- element by element -----------------------------------------------------------------------------------------------


def with_dense(sp: SparseTensor, dense: TensorLike, f: Callable[[Tensor, Tensor], Tensor]) -> SparseTensor:
    """`f` of each element and the element at its index in a dense tensor, which is broadcast to the sparse one's shape.

    Raises:
        ValueError: the dense one has more axes.
    """
    other = convert(dense, sp.dtype.base)
    rank = known_rank(sp, "arithmetic with a dense tensor")
    if other.dims is None or len(other.dims) > rank:
        raise ValueError(f"The dense operand must have a known rank of at most {rank}, its shape is {other.dims}")
    axes = len(other.dims)
    if not axes:
        return SparseTensor(sp.indices, f(sp.values, other), sp.dense_shape)
    inner, whole = sp.shape.dims_tuple, shape(other, out_type=int64)
    fitting = inner is not None and all(
        d is not None and d in (1, s) for d, s in zip(other.dims, inner[rank - axes :], strict=True)
    )
    if not fitting:
        fits = reduce_all(logical_or(equal(whole, 1), equal(whole, sp.dense_shape[rank - axes :])))
        problem = "SparseDenseBinaryOp broadcasts dense to sparse only; got incompatible shapes:"
        other = with_dependencies([Assert(fits, [problem, sp.dense_shape, whole])], other)
    at = minimum(sp.indices[:, rank - axes :], subtract(shape(other, out_type=int64), 1))  # of size 1: the only one
    return SparseTensor(sp.indices, f(sp.values, gather_nd(other, at)), sp.dense_shape)


def sparse_add(a: Any, b: Any, threshold: TensorLike = None, thresh: TensorLike = None) -> Any:
    """The sum of two sparse tensors, as a sparse one; or of a sparse and a dense one, as a dense one.

    Args:
        a: of one shape and type; at least one is sparse.
        b: of one shape and type; at least one is sparse.
        threshold (`thresh`): sums of two elements with a smaller absolute value are left out.

    Raises:
        TypeError: both are dense.
    """
    is_sparse = [hasattr(x, "dense_shape") for x in (a, b)]
    if not any(is_sparse):
        raise TypeError("At least one input should be SparseTensor; do you mean to use dt.math.add()?")
    if not all(is_sparse):
        mine, other = (sparse(a), b) if is_sparse[0] else (sparse(b), a)
        return tensor_scatter_nd_add(convert(other, mine.dtype.base), mine.indices, mine.values)
    least = threshold if threshold is not None else thresh
    a, b = sparse(a), sparse(b)
    total = _combined(a, b, unsorted_segment_sum)
    if least is None:
        return total
    alone = (
        SparseTensor(a.indices, ones_like(a.values), a.dense_shape),
        SparseTensor(b.indices, ones_like(b.values), b.dense_shape),
    )
    is_large = greater_equal(absolute(total.values), convert(least, total.dtype.base))
    return sparse_retain(total, logical_or(is_large, less(_combined(*alone, unsorted_segment_sum).values, 2)))


def sparse_maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The larger of two elements; where only one tensor has an element, the other counts as 0."""
    return _against(sparse(sp_a), sparse(sp_b), maximum, name or "SparseSparseMaximum")


def sparse_minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The smaller of two elements; where only one tensor has an element, the other counts as 0."""
    return _against(sparse(sp_a), sparse(sp_b), minimum, name or "SparseSparseMinimum")


def _against(a: SparseTensor, b: SparseTensor, f: Callable[[Tensor, Tensor], Tensor], name: str) -> SparseTensor:
    with op_scope(None, name, a.values):
        mine = _combined(a, SparseTensor(b.indices, zeros_like(b.values), b.dense_shape), unsorted_segment_sum)
        theirs = _combined(SparseTensor(a.indices, zeros_like(a.values), a.dense_shape), b, unsorted_segment_sum)
        return SparseTensor(mine.indices, f(mine.values, theirs.values), mine.dense_shape)


def _combined(a: SparseTensor, b: SparseTensor, combine: Callable[[Tensor, Tensor, Tensor], Tensor]) -> SparseTensor:
    """The union of the indices of two tensors, sorted, with the elements at each index combined."""
    with op_scope(None, "SparseAdd", a.values):
        a = _of_one_shape(a, b)
        both = sparse_reorder(
            SparseTensor(concat([a.indices, b.indices], 0), concat([a.values, b.values], 0), a.dense_shape)
        )
        places, which = unique(places_of(both.indices, both.dense_shape))
        values = combine(both.values, which, shape(places)[0])
        return SparseTensor(coordinates_at(places, both.dense_shape), values, both.dense_shape)


def _of_one_shape(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """`a`, checked to have the shape of `b`."""
    mine, theirs = a.shape.dims_tuple, b.shape.dims_tuple
    if mine is not None and theirs is not None and len(mine) != len(theirs):
        raise ValueError(f"Operands do not have the same ranks: {a.shape} and {b.shape}")
    if is_static(mine) and mine == theirs:
        return a
    same = reduce_all(equal(a.dense_shape, b.dense_shape))
    check = Assert(same, ["Operands' shapes do not match:", a.dense_shape, b.dense_shape])
    return SparseTensor(a.indices, a.values, with_dependencies([check], a.dense_shape))


# --- along axes -------------------------------------------------------------------------------------------------------


def _axes(sp: SparseTensor, axis: Any) -> tuple[list[int], list[int]]:
    """(axes that go, axes that stay)."""
    rank = known_rank(sp, "a reduction")
    given = range(rank) if axis is None else axis if isinstance(axis, (list, tuple)) else [axis]
    gone = [normal_axis(int(a), rank) for a in given]
    return gone, [a for a in range(rank) if a not in gone]


def _reduced(
    sp_input: Any, axis: Any, keepdims: bool, name: str, combine: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    sp = sparse(sp_input)
    with op_scope(None, name, sp.values):
        gone, kept = _axes(sp, axis)
        sizes = gather(sp.dense_shape, convert(kept, int64))
        places = places_of(columns(sp.indices, kept), sizes)
        totals = combine(sp.values, places, reduce_prod(sizes))
        if keepdims:
            is_kept = [a in kept for a in range(len(gone) + len(kept))]
            return reshape(totals, where(is_kept, sp.dense_shape, ones_like(sp.dense_shape)))
        return reshape(totals, sizes)


def sparse_reduce_sum(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """Sums along axes, as a dense tensor. Arguments as for `reduce_sum`."""
    axis = axis if axis is not None else reduction_axes
    return _reduced(sp_input, axis, keepdims or bool(keep_dims), name or "SparseReduceSum", unsorted_segment_sum)


def sparse_reduce_max(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """The largest elements along axes, as a dense tensor; 0 where there is none. What is absent does not count."""

    def largest(values: Tensor, places: Tensor, count: Tensor) -> Tensor:
        there = unsorted_segment_sum(ones_like(places), places, count)
        found = unsorted_segment_max(values, places, count)
        return where(greater(there, 0), found, zeros_like(found))

    axis = axis if axis is not None else reduction_axes
    return _reduced(sp_input, axis, keepdims or bool(keep_dims), name or "SparseReduceMax", largest)


def sparse_reduce_sum_sparse(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """As `sparse_reduce_sum`, as a sparse tensor without the sums that are 0."""
    return from_dense(sparse_reduce_sum(sp_input, axis, keepdims, reduction_axes, keep_dims))


def sparse_reduce_max_sparse(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """As `sparse_reduce_max`, as a sparse tensor without the extremes that are 0."""
    return from_dense(sparse_reduce_max(sp_input, axis, keepdims, reduction_axes, keep_dims))


def sparse_softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The softmax along the last axis, of the elements that are there."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseSoftmax", sp.values):
        rank = known_rank(sp, "sparse_softmax")
        rows = places_of(sp.indices[:, : rank - 1], sp.dense_shape[: rank - 1])
        count = reduce_prod(sp.dense_shape[: rank - 1])
        top = gather(unsorted_segment_max(sp.values, rows, count), rows)
        parts = exp(subtract(sp.values, top))
        return SparseTensor(
            sp.indices, divide(parts, gather(unsorted_segment_sum(parts, rows, count), rows)), sp.dense_shape
        )


# --- products ---------------------------------------------------------------------------------------------------------


def sparse_tensor_dense_matmul(
    sp_a: SparseTensor, b: TensorLike, adjoint_a: bool = False, adjoint_b: bool = False, name: str | None = None
) -> Tensor:
    """A sparse matrix times a dense one: only the rows of `b` that a column of `a` has an element for are read.

    Args:
        sp_a: `[m, k]`, `[k, m]` with `adjoint_a`.
        b: `[k, n]`, `[n, k]` with `adjoint_b`.

    Returns:
        `[m, n]`.

    >>> sparse_tensor_dense_matmul(SparseTensor([[0, 1]], [2.0], [1, 2]), [[1.0], [3.0]])   # evaluates to [[6.0]]
    """
    sp = sparse(sp_a)
    with op_scope(name, "SparseTensorDenseMatMul", sp.values, b):
        dense = convert(b, sp.dtype.base)
        if adjoint_b:
            dense = transpose(dense)
        row, column = (1, 0) if adjoint_a else (0, 1)
        dense = _rows_for(dense, sp, column)
        parts = multiply(gather_densely(dense, sp.indices[:, column]), expand_dims(sp.values, 1))
        rows = sp.indices[:, row]
        check = Assert(reduce_all(greater_equal(rows, 0)), ["An index of the sparse matrix is negative:", rows])
        product = unsorted_segment_sum(parts, with_dependencies([check], rows), sp.dense_shape[row])
        product.set_shape([sp.shape[row], None if dense.dims is None else dense.dims[1]])
        return product


def _rows_for(dense: Tensor, sp: SparseTensor, axis: int) -> Tensor:
    """`dense`, checked to have one row for each number along an axis of a sparse matrix."""
    rows, size = dense.dims[0] if dense.dims else None, sp.shape[axis].value
    if rows is not None and size is not None:
        if rows != size:
            raise ValueError(
                f"Dimensions must be equal, but are {size} and {rows}: the inner sizes of a matrix product"
            )
        return dense
    found, wanted = shape(dense, out_type=int64)[0], sp.dense_shape[axis]
    check = Assert(
        equal(found, wanted), ["Cannot multiply A and B because inner dimension does not match:", wanted, "vs.", found]
    )
    return with_dependencies([check], dense)  # type: ignore[no-any-return]


# --- rows that belong together ----------------------------------------------------------------------------------------


def _ids(segment_ids: TensorLike, num_segments: TensorLike | None) -> Tensor:
    """Segment ids, checked to be sorted and not negative if there is a number of segments; else `segment_sum` checks them."""
    ids = index_operand(segment_ids, "segment_ids")
    if num_segments is None:
        return ids
    fits = logical_and(reduce_all(greater_equal(ids[1:], ids[:-1])), reduce_all(greater_equal(ids[:1], 0)))
    check = Assert(fits, ["segment_ids must be sorted and not negative:", ids])
    checked: Tensor = with_dependencies([check], ids)
    return checked


def _sums(rows: Tensor, segment_ids: TensorLike, num_segments: TensorLike | None) -> Tensor:
    if num_segments is None:
        return segment_sum(rows, segment_ids)
    return unsorted_segment_sum(rows, segment_ids, num_segments)


def sparse_segment_sum(
    data: TensorLike, indices: TensorLike, segment_ids: TensorLike, name: str | None = None,
    num_segments: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """Sums of rows of `data`, picked by `indices`, by segment: `segment_sum(gather(data, indices), segment_ids)`.

    Args:
        num_segments: how many there are; segments without rows are 0. None: as many as the last of `segment_ids` says.
    """
    with op_scope(name, "SparseSegmentSum", data):
        return _sums(gather_densely(data, indices), _ids(segment_ids, num_segments), num_segments)


def sparse_segment_mean(
    data: TensorLike, indices: TensorLike, segment_ids: TensorLike, name: str | None = None,
    num_segments: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """As `sparse_segment_sum`, means."""
    with op_scope(name, "SparseSegmentMean", data):
        rows, ids = gather_densely(data, indices), _ids(segment_ids, num_segments)
        return segment_mean(rows, ids) if num_segments is None else unsorted_segment_mean(rows, ids, num_segments)


def sparse_segment_sqrt_n(
    data: TensorLike, indices: TensorLike, segment_ids: TensorLike, name: str | None = None,
    num_segments: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """As `sparse_segment_sum`, divided by the root of how many rows a segment has."""
    with op_scope(name, "SparseSegmentSqrtN", data):
        ids = _ids(segment_ids, num_segments)
        total = _sums(gather_densely(data, indices), ids, num_segments)
        count = _sums(ones_like(cast(ids, total.dtype.base)), ids, num_segments)
        return multiply(total, _beside(rsqrt(maximum(count, 1)), total))


def _beside(weights: Tensor, rows: Tensor) -> Tensor:
    """A number per row, with trailing axes of size 1."""
    if rows.dims is None:
        raise ValueError("the rows must have a known rank")
    return reshape(weights, [-1] + [1] * (len(rows.dims) - 1))


# --- embeddings -------------------------------------------------------------------------------------------------------


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """Rows of a table, gathered by the ids of each example and combined to one row per example.

    Each distinct id is gathered once, so no row is sent twice.

    Args:
        params: the table, or its shards: as for `embedding_lookup`.
        sp_ids: int32 or int64, `[examples, at most so many ids]`; the last example has at least one id, others without ids get zeros.
        sp_weights: a weight of each id, with the same indices; None: 1.
        partition_strategy: as for `embedding_lookup`.
        max_norm: as for `embedding_lookup`.
        combiner: "sum", "mean" (of weighted rows by the sum of weights) or "sqrtn" (by the root of the sum of their squares);
            default "mean".

    Returns:
        `[examples, ...]`, where `params` is `[rows, ...]`.

    Raises:
        TypeError: no sparse tensors.
        ValueError: an unknown combiner.
    """
    combiner = combiner or "mean"
    if combiner not in COMBINERS:
        raise ValueError("combiner must be one of 'mean', 'sqrtn' or 'sum'")
    ids = sparse(sp_ids)
    weights = None if sp_weights is None else sparse(sp_weights)
    with op_scope(name, "embedding_lookup_sparse", ids.values):
        example = cast(ids.indices[:, 0], int32)
        distinct, which = unique(ids.values)
        table = embedding_lookup(params, distinct, partition_strategy, max_norm=max_norm)
        rows = gather(table, which)
        if weights is None:
            total = segment_sum(rows, example)
            if combiner == "sum":
                return total
            factors = segment_sum(ones_like(cast(example, rows.dtype.base)), example)
        else:
            scale = cast(weights.values, rows.dtype.base)
            total = segment_sum(multiply(rows, _beside(scale, rows)), example)
            if combiner == "sum":
                return total
            factors = segment_sum(scale if combiner == "mean" else multiply(scale, scale), example)
        return div_no_nan(total, _beside(factors if combiner == "mean" else sqrt(factors), total))


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """As `embedding_lookup_sparse`, for data as they come: negative ids, and weights that are not positive, count as absent.

    An example without ids gets the row `default_id`, or zeros without one. The ids may have more than two axes; the
    result has all of them but the last.
    """
    ids = sparse(sparse_ids)
    with op_scope(name, "safe_embedding_lookup_sparse", ids.values):
        rank = known_rank(ids, "safe_embedding_lookup_sparse")
        outer = ids.dense_shape[: rank - 1]
        flat = convert([-1, 1], int64) * 0 + concat([reshape(reduce_prod(outer), [1]), ids.dense_shape[rank - 1 :]], 0)
        ids = sparse_reshape(ids, flat)
        weights = None if sparse_weights is None else sparse_reshape(sparse(sparse_weights), flat)
        valid = greater_equal(ids.values, 0)
        if weights is not None and combiner != "sum":
            valid = logical_and(valid, greater(weights.values, 0))
        ids = sparse_retain(ids, valid)
        weights = None if weights is None else sparse_retain(weights, valid)
        ids, was_empty = sparse_fill_empty_rows(ids, default_id or 0)
        if weights is not None:
            weights = sparse_fill_empty_rows(weights, 1.0).sp_output
        found = embedding_lookup_sparse(
            embedding_weights, ids, weights, partition_strategy, combiner=combiner, max_norm=max_norm
        )
        if default_id is None:
            found = where(was_empty, zeros_like(found), found)
        return reshape(found, concat([outer, shape(found, out_type=int64)[1:]], 0))


operators["sparse_mul"] = lambda sp, dense: with_dense(sp, dense, multiply)
operators["sparse_truediv"] = lambda sp, dense: with_dense(sp, dense, divide)
