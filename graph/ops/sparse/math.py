"""Arithmetic with sparse tensors: sums, maxima, products with dense tensors, softmax, embedding lookups."""

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
    from_dense,
    known_rank,
    ravel_indices,
    sparse,
    sparse_fill_empty_rows,
    sparse_reorder,
    sparse_reshape,
    sparse_retain,
    unravel_indices,
)

COMBINERS = ("mean", "sqrtn", "sum")


# --- element by element -----------------------------------------------------------------------------------------------


def with_dense(sp: SparseTensor, dense: TensorLike, f: Callable[[Tensor, Tensor], Tensor]) -> SparseTensor:
    """Apply `f` to each element of a sparse tensor and the element of a dense tensor at the same coordinates.

    The dense tensor broadcasts to the dense shape.

    Raises:
        ValueError: the dense tensor has more axes, or its rank is unknown.
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
    at = minimum(sp.indices[:, rank - axes :], subtract(shape(other, out_type=int64), 1))  # 0 along axes of size 1
    return SparseTensor(sp.indices, f(sp.values, gather_nd(other, at)), sp.dense_shape)


def sparse_add(a: Any, b: Any, threshold: TensorLike = None, thresh: TensorLike = None) -> Any:
    """The sum of two sparse tensors, or of a sparse and a dense tensor.

    Args:
        a: a sparse or dense tensor.
        b: another one of the same shape and type. At least one must be sparse.
        threshold: sums of two elements with a smaller absolute value are omitted. None means that none are omitted.
        thresh: old name of `threshold`.

    Returns:
        A sparse tensor if both operands are sparse, or else a dense one.

    Raises:
        TypeError: both operands are dense.
    """
    is_sparse = [hasattr(x, "dense_shape") for x in (a, b)]
    if not any(is_sparse):
        raise TypeError("At least one input should be SparseTensor; do you mean to use dt.math.add()?")
    if not all(is_sparse):
        mine, other = (sparse(a), b) if is_sparse[0] else (sparse(b), a)
        return tensor_scatter_nd_add(convert(other, mine.dtype.base), mine.indices, mine.values)
    least = threshold if threshold is not None else thresh
    a, b = sparse(a), sparse(b)
    total = _sum(a, b)
    if least is None:
        return total
    ones = [SparseTensor(x.indices, ones_like(x.values), x.dense_shape) for x in (a, b)]
    is_large = greater_equal(absolute(total.values), convert(least, total.dtype.base))
    return sparse_retain(total, logical_or(is_large, less(_sum(*ones).values, 2)))


def sparse_maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The element-wise maximum of two sparse tensors. A missing element counts as 0 if the other tensor has one."""
    return _elementwise(sparse(sp_a), sparse(sp_b), maximum, name or "SparseSparseMaximum")


def sparse_minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The element-wise minimum of two sparse tensors. A missing element counts as 0 if the other tensor has one."""
    return _elementwise(sparse(sp_a), sparse(sp_b), minimum, name or "SparseSparseMinimum")


def _elementwise(a: SparseTensor, b: SparseTensor, f: Callable[[Tensor, Tensor], Tensor], name: str) -> SparseTensor:
    """`f` of the elements at each coordinate of two sparse tensors, over the union of their coordinates."""
    with op_scope(None, name, a.values):
        of_a = _sum(a, SparseTensor(b.indices, zeros_like(b.values), b.dense_shape))
        of_b = _sum(SparseTensor(a.indices, zeros_like(a.values), a.dense_shape), b)
        return SparseTensor(of_a.indices, f(of_a.values, of_b.values), of_a.dense_shape)


def _sum(a: SparseTensor, b: SparseTensor) -> SparseTensor:
    """The sum of two sparse tensors, over the union of their coordinates, in row-major order."""
    with op_scope(None, "SparseAdd", a.values):
        a = _of_one_shape(a, b)
        both = sparse_reorder(
            SparseTensor(concat([a.indices, b.indices], 0), concat([a.values, b.values], 0), a.dense_shape)
        )
        flat, which = unique(ravel_indices(both.indices, both.dense_shape))
        values = unsorted_segment_sum(both.values, which, shape(flat)[0])
        return SparseTensor(unravel_indices(flat, both.dense_shape), values, both.dense_shape)


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


# --- reductions -------------------------------------------------------------------------------------------------------


def _reduced(
    sp_input: Any, axis: Any, keepdims: bool, name: str, combine: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Tensor:
    sp = sparse(sp_input)
    with op_scope(None, name, sp.values):
        rank = known_rank(sp, "a reduction")
        given = range(rank) if axis is None else axis if isinstance(axis, (list, tuple)) else [axis]
        reduced = [normal_axis(int(a), rank) for a in given]
        kept = [a for a in range(rank) if a not in reduced]
        sizes = gather(sp.dense_shape, convert(kept, int64))
        flat = ravel_indices(columns(sp.indices, kept), sizes)
        totals = combine(sp.values, flat, reduce_prod(sizes))
        if keepdims:
            is_kept = [a in kept for a in range(rank)]
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
    """The sum over axes, as a dense tensor. Arguments as for `reduce_sum`."""
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
    """The maximum over axes, as a dense tensor. Missing elements are ignored. The maximum of no elements is 0."""

    def largest(values: Tensor, ids: Tensor, count: Tensor) -> Tensor:
        sizes = unsorted_segment_sum(ones_like(ids), ids, count)
        found = unsorted_segment_max(values, ids, count)
        return where(greater(sizes, 0), found, zeros_like(found))

    axis = axis if axis is not None else reduction_axes
    return _reduced(sp_input, axis, keepdims or bool(keep_dims), name or "SparseReduceMax", largest)


def sparse_reduce_sum_sparse(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """`sparse_reduce_sum` as a sparse tensor, without sums that are 0."""
    return from_dense(sparse_reduce_sum(sp_input, axis, keepdims, reduction_axes, keep_dims))


def sparse_reduce_max_sparse(
    sp_input: SparseTensor,
    axis: Any = None,
    keepdims: bool = False,
    reduction_axes: Any = None,
    keep_dims: bool | None = None,
) -> SparseTensor:
    """`sparse_reduce_max` as a sparse tensor, without maxima that are 0."""
    return from_dense(sparse_reduce_max(sp_input, axis, keepdims, reduction_axes, keep_dims))


def sparse_softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """The softmax along the last axis. Missing elements are ignored."""
    sp = sparse(sp_input)
    with op_scope(name, "SparseSoftmax", sp.values):
        rank = known_rank(sp, "sparse_softmax")
        rows = ravel_indices(sp.indices[:, : rank - 1], sp.dense_shape[: rank - 1])
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
    """The product of a sparse and a dense matrix. It reads only the rows of `b` whose column of `sp_a` has elements.

    Args:
        sp_a: `[m, k]`, or `[k, m]` with `adjoint_a`.
        b: `[k, n]`, or `[n, k]` with `adjoint_b`.
        adjoint_a: transpose `sp_a`.
        adjoint_b: transpose `b`.
        name: name scope of the nodes.

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
    """`dense`, checked to have as many rows as a sparse matrix has along an axis."""
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


# --- segments of gathered rows ----------------------------------------------------------------------------------------


def _ids(segment_ids: TensorLike, num_segments: TensorLike | None) -> Tensor:
    """Segment ids, checked to be sorted and not negative. Without a number of segments, `segment_sum` checks them."""
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
    """`segment_sum(gather(data, indices), segment_ids)`.

    Args:
        data: numbers, `[rows, ...]`.
        indices: row numbers, an int32 or int64 vector.
        segment_ids: the segment of each gathered row, a sorted vector.
        name: name scope of the nodes.
        num_segments: the number of segments. Segments without rows are 0. None means the last id plus 1.
    """
    with op_scope(name, "SparseSegmentSum", data):
        return _sums(gather_densely(data, indices), _ids(segment_ids, num_segments), num_segments)


def sparse_segment_mean(
    data: TensorLike, indices: TensorLike, segment_ids: TensorLike, name: str | None = None,
    num_segments: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """`segment_mean(gather(data, indices), segment_ids)`. Arguments as for `sparse_segment_sum`."""
    with op_scope(name, "SparseSegmentMean", data):
        rows, ids = gather_densely(data, indices), _ids(segment_ids, num_segments)
        return segment_mean(rows, ids) if num_segments is None else unsorted_segment_mean(rows, ids, num_segments)


def sparse_segment_sqrt_n(
    data: TensorLike, indices: TensorLike, segment_ids: TensorLike, name: str | None = None,
    num_segments: TensorLike | None = None,
) -> Tensor:  # fmt: skip
    """`sparse_segment_sum`, divided by the square root of the number of rows of each segment."""
    with op_scope(name, "SparseSegmentSqrtN", data):
        ids = _ids(segment_ids, num_segments)
        total = _sums(gather_densely(data, indices), ids, num_segments)
        count = _sums(ones_like(cast(ids, total.dtype.base)), ids, num_segments)
        return multiply(total, _per_row(rsqrt(maximum(count, 1)), total))


def _per_row(weights: Tensor, rows: Tensor) -> Tensor:
    """A vector with one number per row, reshaped so that it broadcasts against the rows."""
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
    """Look up the embeddings of each example's ids, and combine them to one row per example.

    Each distinct id is gathered once, so no row is sent twice.

    Args:
        params: the table `[rows, ...]`, or its shards, as for `embedding_lookup`.
        sp_ids: the ids of each example, int32 or int64 `[examples, ids per example]`. The last example must have an id. Other examples
            without ids get zeros.
        sp_weights: the weight of each id, with the same coordinates. None means 1.
        partition_strategy: as for `embedding_lookup`.
        name: name scope of the nodes.
        combiner: "sum" for the weighted sum, "mean" to divide it by the sum of the weights, or "sqrtn" to divide it by the square root of
            the sum of their squares. None means "mean".
        max_norm: as for `embedding_lookup`.

    Returns:
        `[examples, ...]`.

    Raises:
        TypeError: `sp_ids` or `sp_weights` is not sparse.
        ValueError: the combiner is unknown.
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
            total = segment_sum(multiply(rows, _per_row(scale, rows)), example)
            if combiner == "sum":
                return total
            factors = segment_sum(scale if combiner == "mean" else multiply(scale, scale), example)
        return div_no_nan(total, _per_row(factors if combiner == "mean" else sqrt(factors), total))


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
    """`embedding_lookup_sparse` for unchecked data. Negative ids, and ids with weights that are not positive, are ignored.

    Examples without ids get the row `default_id`, or zeros if it is None. The ids may have more than two axes. The last one holds the ids
    of an example, and the others are the first axes of the result. Other arguments as for `embedding_lookup_sparse`.
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
