"""QR and singular value decomposition, rank, pseudo-inverse, log-determinants, cross products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.build import TensorLike, convert
from ...core.dtypes import Array, float32, float64, int32
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size, typed_attr
from ..array.concat_stack import stack
from ..array.creation import zeros_like
from ..array.diagonal import eye, matrix_diag, matrix_diag_part
from ..array.shapes import expand_dims, shape, size_of
from ..math.arithmetic import add, divide, maximum, multiply, subtract
from ..math.cast import cast
from ..math.common import allowed
from ..math.compare import greater, where_v2
from ..math.elementwise import log
from ..math.reduce import reduce_max, reduce_sum
from ..math.static_operands import apply_op, need_rank_at_least, op_scope
from .linalg import matmul, matrix_transpose
from .solving import cholesky, cubic_cost, matrix_inverse, need_square, square_dims


class QR(NamedTuple):
    """The result of `qr`."""

    q: Tensor
    r: Tensor


def _qr_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, (float32, float64))
    need_rank_at_least(x.dims, 2, "the matrix")
    full = typed_attr(attrs, "full_matrices", bool)
    if x.dims is None:
        return [(dtype, None), (dtype, None)]
    *batch, rows, columns = x.dims
    inner = rows if full else None if rows is None or columns is None else min(rows, columns)
    return [(dtype, (*batch, rows, inner)), (dtype, (*batch, inner, columns))]


def _qr(x: Array, *, full_matrices: bool) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x, "complete" if full_matrices else "reduced")
    return q, r


def _qr_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    raise NotImplementedError(f"The gradient of Qr '{node.name}' (created at {node.source}) is not available")


def _qr_cost(node: Node) -> Cost:
    """Householder's method: 2 m n^2 - 2/3 n^3 flops, and as many again to form q."""
    dims = node.inputs[0].dims or (1, 1)
    m, n = (d or 1 for d in dims[-2:])
    small, large = min(m, n), max(m, n)
    matrices = size(node.inputs[0]) / (m * n)
    return default_cost(node)._replace(flops=4.0 * matrices * small * small * (large - small / 3))


define("Qr", _qr_rule, _qr, gradient=_qr_gradient, cost=_qr_cost)


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> QR:
    """QR decomposition: each matrix as q r, where q has orthonormal columns and r is upper triangular. It has no gradient.

    Args:
        input: matrices, float32 or float64 `[..., m, n]`.
        full_matrices: whether q is `[..., m, m]` and r `[..., m, n]`. Otherwise they are `[..., m, k]` and `[..., k, n]`, k = min(m, n).
        name: name of the node.

    Returns:
        (q, r). The signs of r's diagonal are unspecified.
    """
    return QR(*apply_op("Qr", name, {"full_matrices": bool(full_matrices)}, input=input).op.outputs)


def adjoint(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The adjoint of each matrix: its transpose, since types are real."""
    with op_scope(name, "adjoint", matrix):
        return matrix_transpose(convert(matrix, name="matrix"), conjugate=True)


def cross(a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """The cross products of vectors `[..., 3]`.

    >>> cross([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])   # evaluates to [0, 0, 1]
    """
    with op_scope(name, "Cross", a, b):
        x = convert(a, name="a")
        y = convert(b, x.dtype.base, name="b")
        for t in (x, y):
            need_rank_at_least(t.dims, 1, "a cross product's operand")
            if t.dims is not None and t.dims[-1] not in (3, None):
                raise ValueError(f"Cross-products are only defined for vectors of 3 numbers, not for shape {t.shape}")
        x0, x1, x2 = (x[..., i] for i in range(3))
        y0, y1, y2 = (y[..., i] for i in range(3))
        return stack([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], axis=-1)


# --- determinants -----------------------------------------------------------------------------------------------------
class LogMatrixDeterminant(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    log_abs_determinant: Tensor


def _slogdet_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dims = square_dims(x)
    return [(x.dtype.base, None if dims is None else dims[:-2])] * 2


def _slogdet(x: Array) -> tuple[Array, Array]:
    need_square(x)
    sign, log_abs = np.linalg.slogdet(x)
    return np.asarray(sign, x.dtype), np.asarray(log_abs, x.dtype)


def _slogdet_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    if grads[1] is None:
        return [None]
    weight = expand_dims(expand_dims(convert(grads[1]), -1), -1)
    return [multiply(weight, matrix_inverse(node.inputs[0], adjoint=True))]


define("LogMatrixDeterminant", _slogdet_rule, _slogdet, gradient=_slogdet_gradient, cost=cubic_cost(3))


def slogdet(input: TensorLike, name: str | None = None) -> LogMatrixDeterminant:
    """The sign of the determinants of matrices `[..., n, n]`, and the logarithm of their absolute values."""
    return LogMatrixDeterminant(*apply_op("LogMatrixDeterminant", name, input=input).op.outputs)


def logdet(matrix: TensorLike, name: str | None = None) -> Tensor:
    """The logarithm of the determinants of symmetric positive definite matrices `[..., n, n]`."""
    with op_scope(name, "logdet", matrix):
        return multiply(2.0, reduce_sum(log(matrix_diag_part(cholesky(matrix))), -1))


# --- singular values --------------------------------------------------------------------------------------------------
def _svd_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, (float32, float64))
    need_rank_at_least(x.dims, 2, "input")
    for name in ("compute_uv", "full_matrices"):
        typed_attr(attrs, name, bool)
    if x.dims is None:
        return [(dtype, None)] * 3
    *outer, m, n = x.dims
    k = None if m is None or n is None else min(m, n)
    if not attrs["compute_uv"]:
        return [(dtype, (*outer, k)), (dtype, (0,)), (dtype, (0,))]
    full = attrs["full_matrices"]
    return [(dtype, (*outer, k)), (dtype, (*outer, m, m if full else k)), (dtype, (*outer, n, n if full else k))]


def _svd(x: Array, *, compute_uv: bool, full_matrices: bool) -> tuple[Array, Array, Array]:
    if x.ndim < 2:
        raise invalid(f"Input must be matrices, not of shape {list(x.shape)}")
    if not compute_uv:
        nothing = np.zeros(0, x.dtype)
        return np.linalg.svd(x, compute_uv=False).astype(x.dtype), nothing, nothing
    u, s, vt = np.linalg.svd(x, full_matrices=full_matrices)
    return s.astype(x.dtype), u.astype(x.dtype), np.swapaxes(vt, -1, -2).astype(x.dtype)


def _svd_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    # Townsend, "Differentiating the singular value decomposition", 2016.
    x = node.inputs[0]
    grad_s, grad_u, grad_v = grads
    if not node.attrs["compute_uv"]:
        _, u, v = svd(x)
        return [matmul(multiply(u, expand_dims(convert(grad_s), -2)), v, adjoint_b=True)]
    if node.attrs["full_matrices"]:
        raise LookupError(f"Svd '{node.name}' (created at {node.source}) has no gradient with full_matrices=True")
    s, u, v = node.outputs
    across = expand_dims(s, -2)
    squares = multiply(s, s)
    gaps = subtract(expand_dims(squares, -2), expand_dims(squares, -1))
    same = eye(size_of(s, -1), dtype=s.dtype.base)
    far = divide(subtract(1.0, same), add(gaps, same))
    inner = zeros_like(matmul(u, u, adjoint_a=True)) if grad_s is None else matrix_diag(convert(grad_s))
    found = None
    if grad_u is not None:
        gu = convert(grad_u)
        turned = matmul(u, gu, adjoint_a=True)
        j = multiply(far, turned)
        inner = add(inner, multiply(add(j, matrix_transpose(j)), across))
        outside = divide(subtract(gu, matmul(u, turned)), across)
        found = matmul(outside, v, adjoint_b=True)
    if grad_v is not None:
        gv = convert(grad_v)
        turned = matmul(v, gv, adjoint_a=True)
        k = multiply(far, turned)
        inner = add(inner, multiply(expand_dims(s, -1), add(k, matrix_transpose(k))))
        outside = divide(subtract(gv, matmul(v, turned)), across)
        part = matmul(u, outside, adjoint_b=True)
        found = part if found is None else add(found, part)
    total = matmul(matmul(u, inner), v, adjoint_b=True)
    return [total if found is None else add(total, found)]


define("Svd", _svd_rule, _svd, gradient=_svd_gradient, cost=cubic_cost(3))


def svd(tensor: TensorLike, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None) -> Any:
    """Singular value decomposition: each matrix as `u * diag(s) * transpose(v)`.

    Args:
        tensor: matrices, float32 or float64 `[..., m, n]`.
        full_matrices: whether u is `[..., m, m]` and v `[..., n, n]`. Otherwise they are `[..., m, k]` and `[..., n, k]`, k = min(m, n).
        compute_uv: whether to compute u and v.
        name: name of the node.

    Returns:
        (s, u, v), or only s without `compute_uv`. s holds the singular values `[..., k]` in descending order.

    >>> s, u, v = svd([[3.0, 0.0], [0.0, 4.0]])   # s evaluates to [4, 3]
    """
    attrs = {"compute_uv": bool(compute_uv), "full_matrices": bool(full_matrices)}
    s, u, v = apply_op("Svd", name, attrs, tensor=tensor).op.outputs
    return (s, u, v) if compute_uv else s


def _small(x: Tensor, factor: float) -> Any:
    """`factor * max(m, n) * eps` of matrices `[..., m, n]`, where eps is the machine epsilon of their type."""
    each = factor * float(np.finfo(x.dtype.np).eps)
    if x.dims is None or None in x.dims[-2:]:
        return multiply(cast(reduce_max(shape(x)[-2:]), x.dtype.base), each)
    return each * max(d for d in x.dims[-2:] if d is not None)


def matrix_rank(a: TensorLike, tol: TensorLike = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The rank of matrices `[..., m, n]`, int32 `[...]`: the number of singular values above a tolerance.

    Args:
        a: the matrices.
        tol: the tolerance. None means max(m, n) times the largest singular value times the machine epsilon.
        validate_args: accepted without effect.
        name: name scope of the nodes.
    """
    with op_scope(name, "matrix_rank", a):
        x = convert(a, name="a")
        s = svd(x, compute_uv=False)
        if tol is None:
            tol = multiply(reduce_max(s, -1, keepdims=True), _small(x, 1.0))
        else:
            tol = expand_dims(convert(tol, x.dtype.base), -1)
        return reduce_sum(cast(greater(s, tol), int32), -1)


def pinv(a: TensorLike, rcond: TensorLike = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The Moore-Penrose pseudo-inverse of each matrix: `[..., m, n]` gives `[..., n, m]`.

    Args:
        a: the matrices.
        rcond: singular values of at most `rcond` times the largest count as 0. None means 10 * max(m, n) times the machine epsilon.
        validate_args: accepted without effect.
        name: name scope of the nodes.
    """
    with op_scope(name, "pinv", a):
        x = convert(a, name="a")
        allowed(x.dtype.base, (float32, float64))
        need_rank_at_least(x.dims, 2, "a")
        share = expand_dims(convert(_small(x, 10.0) if rcond is None else rcond, x.dtype.base), -1)
        s, u, v = svd(x)
        cutoff = multiply(share, reduce_max(s, -1, keepdims=True))
        kept = greater(s, cutoff)
        inverse = where_v2(kept, divide(1.0, where_v2(kept, s, maximum(s, 1.0))), zeros_like(s))
        return matmul(multiply(v, expand_dims(inverse, -2)), u, adjoint_b=True)
