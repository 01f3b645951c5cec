"""Reductions, running sums, softmax and matrix products."""

from __future__ import annotations

from typing import Any

from ....graph.core.dtypes import int32, int64
from ....graph.core.graph import Tensor
from ....graph.ops.array.gather import gather, one_hot, reverse
from ....graph.ops.array.shapes import expand_dims, reshape, shape, squeeze, transpose
from ....graph.ops.array.sorting import argsort, top_k
from ....graph.ops.linalg.einsum import einsum
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import absolute, add, multiply, sqrt, square, subtract
from ....graph.ops.math.cast import cast
from ....graph.ops.math.elementwise import log
from ....graph.ops.math.reduce import (
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from ....graph.ops.math.scan import argmax, argmin, cumprod, cumsum
from ....graph.ops.math.statistics import reduce_logsumexp
from ....graph.ops.nn.softmax import log_softmax, softmax
from ..registry import Call, UnsupportedError, imports, imports_by, normalize_axis
from .layout import flat

imports_by(
    CumProd=lambda call, x, axis: _running(call, cumprod, x, axis),
    CumSum=lambda call, x, axis: _running(call, cumsum, x, axis),
    Einsum=lambda call, *xs: einsum(call.attr("equation").replace(" ", ""), *xs),
    MatMul=lambda call, a, b: product(call, a, b),
)


def _running(call: Call, function: Any, x: Tensor, axis: Tensor) -> Tensor:
    found: Tensor = function(x, reshape(axis, []), bool(call.attr("exclusive", 0)), bool(call.attr("reverse", 0)))
    return found


_REDUCTIONS: dict[str, Any] = {
    "ReduceSum": reduce_sum,
    "ReduceMean": reduce_mean,
    "ReduceProd": reduce_prod,
    "ReduceL1": lambda x, axes, keep: reduce_sum(absolute(x), axes, keep),
    "ReduceL2": lambda x, axes, keep: _root(reduce_sum(square(x), axes, keep)),
    "ReduceLogSum": lambda x, axes, keep: log(reduce_sum(x, axes, keep)),
    "ReduceLogSumExp": reduce_logsumexp,
    "ReduceSumSquare": lambda x, axes, keep: reduce_sum(square(x), axes, keep),
    "ReduceMax": lambda x, axes, keep: (reduce_any if x.dtype.base.is_bool else reduce_max)(x, axes, keep),
    "ReduceMin": lambda x, axes, keep: (reduce_all if x.dtype.base.is_bool else reduce_min)(x, axes, keep),
}


def _root(x: Tensor) -> Tensor:
    if x.dtype.base.is_floating:
        return sqrt(x)
    rooted: Tensor = cast(sqrt(cast(x, "float64")), x.dtype.base)
    return rooted


@imports(*_REDUCTIONS, static=(1,))
def reduction(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    """Imports a reduction. The axes are an input, or an attribute in older models. Without axes, it is over all axes."""
    along = call.ints("axes", axes)
    keep = bool(call.attr("keepdims", 1))
    if not along:
        none: list[int] = []
        along = none if call.attr("noop_with_empty_axes", 0) else None
    made: Tensor = _REDUCTIONS[call.op](x, along, keep)
    return made


@imports("ArgMax", "ArgMin")
def arg_extreme(call: Call, x: Tensor) -> Tensor:
    """Imports the index of the first, or of the last, maximum or minimum."""
    axis = normalize_axis(call.attr("axis", 0), len(call.dims(x)))
    function = argmax if call.op == "ArgMax" else argmin
    if call.attr("select_last_index", 0):
        found = function(reverse(x, [axis]), axis, output_type=int64)
        found = subtract(cast(shape(x)[axis] - 1, int64), found)
    else:
        found = function(x, axis, output_type=int64)
    return expand_dims(found, axis) if call.attr("keepdims", 1) else found


@imports("TopK")
def topk(call: Call, x: Tensor, k: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Imports the largest or the smallest elements along an axis, and their indices."""
    rank = len(call.dims(x))
    axis = normalize_axis(call.attr("axis", -1), rank)
    count: Any = int(call.attr("k")) if k is None else cast(reshape(k, []), int32)
    swap = [*(i for i in range(rank) if i != axis), axis]
    back = [swap.index(i) for i in range(rank)]
    last = x if axis == rank - 1 else transpose(x, swap)
    if call.attr("largest", 1):
        values, places = top_k(last, count)
    else:
        places = argsort(last, stable=True)[..., :count]
        values = gather(last, places, axis=rank - 1, batch_dims=rank - 1)
    made = [values, cast(places, int64)]
    first, second = made if axis == rank - 1 else [transpose(m, back) for m in made]
    return first, second


@imports("Softmax", "LogSoftmax", "Hardmax")
def softmax_(call: Call, x: Tensor) -> Tensor:
    """Imports softmax along one axis or, before opset 13, over all axes from `axis` on."""
    function: Any = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": _hardmax}[call.op]
    if call.opset >= 13:
        return function(x, call.attr("axis", -1))  # type: ignore[no-any-return]
    rank = len(call.dims(x))
    axis = normalize_axis(call.attr("axis", 1), rank) if rank else 0
    if axis == rank - 1:
        return function(x, -1)  # type: ignore[no-any-return]
    return reshape(function(flat(x, axis), -1), shape(x))


def _hardmax(x: Tensor, axis: int) -> Tensor:
    if x.dims is None:
        raise UnsupportedError("the rank of the input is not known")
    axis = normalize_axis(axis, len(x.dims))
    depth = x.dims[axis] if x.dims[axis] is not None else shape(x)[axis]
    return one_hot(argmax(x, axis), depth, axis=axis, dtype=x.dtype.base)


def product(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Imports NumPy's `matmul`. Vectors are rows or columns, and leading axes are broadcast."""
    left, right = len(call.dims(a, "the left factor")), len(call.dims(b, "the right factor"))
    made = matmul(expand_dims(a, 0) if left == 1 else a, expand_dims(b, 1) if right == 1 else b)
    gone = [axis for axis, rank in ((-2, left), (-1, right)) if rank == 1]
    return squeeze(made, gone) if gone else made


@imports("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """Imports `alpha * a @ b + beta * c`."""
    made = matmul(a, b, transpose_a=bool(call.attr("transA", 0)), transpose_b=bool(call.attr("transB", 0)))
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if alpha != 1.0:
        made = multiply(made, _typed_number(made, alpha))
    if c is None:
        return made
    return add(made, c if beta == 1.0 else multiply(c, _typed_number(made, beta)))


def _typed_number(x: Tensor, number: float) -> float | int:
    return int(number) if x.dtype.base.is_integer else number


@imports("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """Imports a product of integers minus their zero points, with an int32 result."""
    left, right = cast(a, int32), cast(b, int32)
    if a_zero is not None:
        zero = cast(a_zero, int32)
        left = subtract(left, expand_dims(zero, -1) if a_zero.dims is not None and len(a_zero.dims) == 1 else zero)
    if b_zero is not None:
        right = subtract(right, cast(b_zero, int32))
    return product(call, left, right)
