"""Matrix products: MatMul for matrices, BatchMatMulV2 for stacks of matrices. Transposes of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import NUMBERS, Array, widened
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, define, size as static_size, typed_attr
from ...core.operators import operators
from ...core.shape import broadcast, text
from ..array.concat_stack import concat
from ..array.ranges import range as range_
from ..array.shapes import expand_dims, rank, squeeze, transpose
from ..math.broadcasting import unbroadcast
from ..math.common import allowed, same_type
from ..math.static_operands import known_rank, move_cost, need_rank, need_rank_at_least, op_scope

# --- two matrices -------------------------------------------------------------------------------------------


def _mat_mul_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    a, b = inputs
    dtype = allowed(same_type(inputs), NUMBERS)
    need_rank(a.dims, 2, "a")
    need_rank(b.dims, 2, "b")
    return [(dtype, _product_sizes(a, b, attrs, ("transpose_a", "transpose_b")))]


def _product_sizes(a: Tensor, b: Tensor, attrs: Attrs, flips: tuple[str, str]) -> tuple[int | None, int | None]:
    """The rows and columns of the product of two matrices. `flips` are the attributes that tell whether each is transposed."""
    flip_a, flip_b = typed_attr(attrs, flips[0], bool), typed_attr(attrs, flips[1], bool)
    rows, inner_a = (None, None) if a.dims is None else a.dims[-2:]
    inner_b, columns = (None, None) if b.dims is None else b.dims[-2:]
    if flip_a:
        rows, inner_a = inner_a, rows
    if flip_b:
        inner_b, columns = columns, inner_b
    if inner_a is not None and inner_b is not None and inner_a != inner_b:
        first, second = (f"{'transposed ' if flip else ''}{text(t.dims)}" for t, flip in ((a, flip_a), (b, flip_b)))
        raise ValueError(f"matrix sizes do not match: {first} times {second} needs {inner_a} to equal {inner_b}")
    return rows, columns


def _mat_mul(a: Array, b: Array, *, transpose_a: bool, transpose_b: bool) -> Array:
    return _product(a.T if transpose_a else a, b.T if transpose_b else b)


def _product(a: Array, b: Array) -> Array:
    """The product over the last two dimensions."""
    if min(a.ndim, b.ndim) < 2:  # np.matmul accepts vectors
        raise invalid(f"Matrices have two or more dimensions, not {text(a.shape)} times {text(b.shape)}")
    try:
        return np.asarray(np.matmul(widened(a), widened(b)), a.dtype)
    except ValueError:
        raise ValueError(f"Matrix sizes do not match: {text(a.shape)} times {text(b.shape)}") from None


def _product_cost(node: Node) -> Cost:
    """2 m n k flops for each pair of matrices, m x k and k x n."""
    a = node.inputs[0]
    flip = node.attrs.get("transpose_a", node.attrs.get("adj_x", False))
    inner = 1 if a.dims is None else a.dims[-2 if flip else -1] or 1
    return Cost(2.0 * static_size(node.outputs[0]) * inner, move_cost(node).bytes)


def _mat_mul_gradient(node: Node, grad: Any) -> Sequence[Any]:
    return _product_gradient(matmul, node, grad, ("transpose_a", "transpose_b"))


def _product_gradient(product: Callable[..., Tensor], node: Node, grad: Any, flips: tuple[str, str]) -> list[Tensor]:
    """dA = G Bᵗ and dB = Aᵗ G, where A and B are the operands after transposition. A transposed operand gets the transposed gradient."""
    (a, b), (flip_a, flip_b) = node.inputs, (node.attrs[name] for name in flips)
    return [
        product(b, grad, flip_b, True) if flip_a else product(grad, b, False, not flip_b),
        product(grad, a, True, flip_a) if flip_b else product(a, grad, not flip_a, False),
    ]


define("MatMul", _mat_mul_rule, _mat_mul, gradient=_mat_mul_gradient, cost=_product_cost)


# --- stacks of matrices -------------------------------------------------------------------------------------


def _batch_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    a, b = inputs
    dtype = allowed(same_type(inputs), NUMBERS)
    need_rank_at_least(a.dims, 2, "a")
    need_rank_at_least(b.dims, 2, "b")
    sizes = _product_sizes(a, b, attrs, ("adj_x", "adj_y"))
    batch = None if a.dims is None or b.dims is None else broadcast(a.dims[:-2], b.dims[:-2])
    return [(dtype, None if batch is None else (*batch, *sizes))]


def _batch_mat_mul(a: Array, b: Array, *, adj_x: bool, adj_y: bool) -> Array:
    return _product(np.swapaxes(a, -1, -2) if adj_x else a, np.swapaxes(b, -1, -2) if adj_y else b)


def _batch_gradient(node: Node, grad: Any) -> Sequence[Any]:
    grads = _product_gradient(_batch, node, convert(grad), ("adj_x", "adj_y"))
    # Only the batch dimensions may have been broadcast.
    return [unbroadcast(t, g, g, None)[0] for t, g in zip(node.inputs, grads, strict=True)]


define("BatchMatMulV2", _batch_rule, _batch_mat_mul, gradient=_batch_gradient, cost=_product_cost)


def _batch(a: Tensor, b: Tensor, adj_x: bool, adj_y: bool, name: str | None = None) -> Tensor:
    return apply("BatchMatMulV2", (a, b), {"adj_x": bool(adj_x), "adj_y": bool(adj_y)}, name)


def matmul(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The matrix product over the last two dimensions. The leading dimensions are batches, which broadcast.

    Args:
        a: numbers, of rank 2 or more.
        b: numbers of the same type, of rank 2 or more.
        transpose_a: transpose the last two dimensions of `a`.
        transpose_b: transpose the last two dimensions of `b`.
        adjoint_a: the same as `transpose_a`, since types are real.
        adjoint_b: the same as `transpose_b`, since types are real.
        a_is_sparse: accepted without effect.
        b_is_sparse: accepted without effect.
        name: name of the node.

    Raises:
        ValueError: the sizes do not fit, or both transpose and adjoint are set for one operand.

    >>> matmul([[1, 2]], [[3], [4]])   # evaluates to [[11]]
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise ValueError("Only one of transpose and adjoint can be asked of one operand")
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return _matmul(a, b, transpose_a or adjoint_a, transpose_b or adjoint_b, name or "MatMul")
    with op_scope(name, "MatMul", a, b) as scope:
        if isinstance(b, Tensor) and not isinstance(a, Tensor):
            second = b
            first = convert(a, name="a", prefer=second.dtype.base)
        else:
            first = convert(a, name="a")
            second = convert(b, name="b", prefer=first.dtype.base)
        return _matmul(first, second, transpose_a or adjoint_a, transpose_b or adjoint_b, scope)


def _matmul(a: Tensor, b: Tensor, flip_a: bool, flip_b: bool, name: str) -> Tensor:
    if (a.dims is None or len(a.dims) > 2) or (b.dims is None or len(b.dims) > 2):
        return _batch(a, b, flip_a, flip_b, name)
    return apply("MatMul", (a, b), {"transpose_a": bool(flip_a), "transpose_b": bool(flip_b)}, name)


operators["matmul"] = matmul


def matvec(
    a: TensorLike,
    b: TensorLike,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product of a matrix and a vector: (..., m, n) times (..., n) gives (..., m). Arguments as for `matmul`."""
    with op_scope(name, "MatVec", a, b):
        first = convert(a, name="a")
        column = expand_dims(convert(b, name="b", prefer=first.dtype.base), -1)
        return squeeze(matmul(first, column, transpose_a, adjoint_a=adjoint_a), axis=-1)


def matrix_transpose(a: TensorLike, name: str | None = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """Transpose the last two dimensions: (..., m, n) gives (..., n, m)."""
    with op_scope(name, "matrix_transpose", a):
        x = convert(a, name="a")
        need_rank_at_least(x.dims, 2, f"{x!r}")
        count = known_rank((x,))
        if count is not None:
            return transpose(x, [*range(count - 2), count - 1, count - 2], conjugate=conjugate)
        last = rank(x) - 1
        return transpose(x, concat([range_(last - 1), [last, last - 1]], 0), conjugate=conjugate)
