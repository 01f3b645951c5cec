"""Linear systems: inverse, determinant, solutions, Cholesky factors.

All take stacks of matrices, `[..., n, n]`. The gradients follow from the defining equation: A X = B gives dA X + A dX = dB. So if G is the
gradient of X, the gradient of B is A^-T G, and that of A is -(A^-T G) X^T. A singular matrix fails the step with InvalidArgumentError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, convert
from ...core.dtypes import Array, float32, float64
from ...core.errors import invalid
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size, typed_attr
from ...core.shape import Dims, compatible, merge, text
from ..array.diagonal import matrix_band_part, matrix_diag_part, matrix_set_diag
from ..array.shapes import expand_dims
from ..math.arithmetic import add, multiply, negative
from ..math.common import allowed, same_type
from ..math.static_operands import apply_op, need_rank_at_least, op_scope
from .linalg import matmul, matrix_transpose

# --- shapes, costs, errors ----------------------------------------------------------------------------------


def square_dims(x: Tensor) -> Dims:
    """The static shape of a stack of square matrices. ValueError if they cannot be square."""
    allowed(x.dtype.base, (float32, float64))
    need_rank_at_least(x.dims, 2, "the matrix")
    if x.dims is None:
        return None
    if not compatible(x.dims[-2:-1], x.dims[-1:]):
        raise ValueError(f"the matrices must be square, not {text(x.dims[-2:])}")
    side = merge(x.dims[-2:-1], x.dims[-1:]) or ()
    return (*x.dims[:-2], *side, *side)


def need_square(x: Array) -> None:
    """InvalidArgumentError unless an array holds square matrices."""
    if x.ndim < 2 or x.shape[-2] != x.shape[-1]:
        raise invalid(f"Input matrices must be square, not {text(x.shape[-2:])}")


def cubic_cost(thirds: float) -> Callable[[Node], Cost]:
    """A cost of n^3 * thirds / 3 flops per n x n matrix, and of 2 n^2 flops per column of a right-hand side."""

    def cost(node: Node) -> Cost:
        dims = node.inputs[0].dims or (1, 1)
        n = dims[-1] or 1
        count = size(node.inputs[0]) / (n * n)
        columns = size(node.inputs[1]) / n if len(node.inputs) > 1 else 0.0
        return default_cost(node)._replace(flops=count * thirds * n**3 / 3 + 2.0 * n * n * columns)

    return cost


def _solved(f: Callable[..., Any], *operands: Array) -> Array:
    try:
        return np.asarray(f(*operands), operands[0].dtype)
    except np.linalg.LinAlgError:
        raise invalid("Input is not invertible.") from None


# --- inverse and determinant --------------------------------------------------------------------------------


def _square_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    return [(x.dtype.base, square_dims(x))]


def _inverse_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "adjoint", bool)
    return _square_rule(inputs, attrs)


def _inverse(x: Array, *, adjoint: bool) -> Array:
    need_square(x)
    return _solved(np.linalg.inv, np.swapaxes(x, -1, -2) if adjoint else x)


def _inverse_gradient(node: Node, grad: Any) -> Sequence[Any]:
    inverse, adjoint = node.outputs[0], node.attrs["adjoint"]
    inner = matmul(convert(grad), inverse, adjoint_a=adjoint, adjoint_b=not adjoint)
    return [negative(matmul(inverse, inner, adjoint_a=not adjoint))]


def _determinant_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dims = square_dims(x)
    return [(x.dtype.base, None if dims is None else dims[:-2])]


def _determinant(x: Array) -> Array:
    need_square(x)
    return np.asarray(np.linalg.det(x), x.dtype)


def _determinant_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Jacobi's formula: d det(A) = det(A) tr(A^-1 dA)
    weight = expand_dims(expand_dims(multiply(convert(grad), node.outputs[0]), -1), -1)
    return [multiply(weight, matrix_inverse(node.inputs[0], adjoint=True))]


define("MatrixInverse", _inverse_rule, _inverse, gradient=_inverse_gradient, cost=cubic_cost(6))
define("MatrixDeterminant", _determinant_rule, _determinant, gradient=_determinant_gradient, cost=cubic_cost(2))


def matrix_inverse(input: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """The inverse of each matrix.

    Args:
        input: float32 or float64 `[..., n, n]`.
        adjoint: invert the transposes.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, a matrix has no inverse.
    """
    return apply_op("MatrixInverse", name, {"adjoint": bool(adjoint)}, input=input)


def matrix_determinant(input: TensorLike, name: str | None = None) -> Tensor:
    """The determinant of each matrix: `[..., n, n]` gives `[...]`.

    The gradient needs the inverse. A step that computes it fails with InvalidArgumentError if a determinant is 0.
    """
    return apply_op("MatrixDeterminant", name, input=input)


# --- solutions ----------------------------------------------------------------------------------------------


def _solve_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    a, b = inputs
    dtype = same_type(inputs)
    typed_attr(attrs, "adjoint", bool)
    dims = square_dims(a)
    need_rank_at_least(b.dims, 2, "the right side")
    if dims is None or b.dims is None:
        return [(dtype, b.dims)]
    if not compatible(dims[:-1], b.dims[:-1]):
        raise ValueError(
            f"the right side must have shape {text((*dims[:-1], None))} for matrices {text(dims)}, not {text(b.dims)}"
        )
    return [(dtype, (*(merge(dims[:-1], b.dims[:-1]) or ()), b.dims[-1]))]


def _solve(a: Array, b: Array, *, adjoint: bool) -> Array:
    need_square(a)
    if a.shape[:-1] != b.shape[:-1]:
        raise invalid(f"A right side of shape {text(b.shape)} does not fit matrices of shape {text(a.shape)}")
    return _solved(np.linalg.solve, np.swapaxes(a, -1, -2) if adjoint else a, b)


def _triangular_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    typed_attr(attrs, "lower", bool)
    return _solve_rule(inputs, attrs)


def _triangular_solve(a: Array, b: Array, *, lower: bool, adjoint: bool) -> Array:
    # NumPy has no triangular solver. The general one computes the same.
    return _solve(np.tril(a) if lower else np.triu(a), b, adjoint=adjoint)


def _gradient_of_matrix(node: Node, grad_b: Tensor) -> Tensor:
    x = node.outputs[0]
    if node.attrs["adjoint"]:
        return negative(matmul(x, grad_b, adjoint_b=True))
    return negative(matmul(grad_b, x, adjoint_b=True))


def _solve_gradient(node: Node, grad: Any) -> Sequence[Any]:
    grad_b = matrix_solve(node.inputs[0], convert(grad), adjoint=not node.attrs["adjoint"])
    return [_gradient_of_matrix(node, grad_b), grad_b]


def _triangular_gradient(node: Node, grad: Any) -> Sequence[Any]:
    lower, adjoint = node.attrs["lower"], node.attrs["adjoint"]
    grad_b = matrix_triangular_solve(node.inputs[0], convert(grad), lower, not adjoint)
    whole = _gradient_of_matrix(node, grad_b)
    return [matrix_band_part(whole, -1, 0) if lower else matrix_band_part(whole, 0, -1), grad_b]


define("MatrixSolve", _solve_rule, _solve, gradient=_solve_gradient, cost=cubic_cost(2))
define("MatrixTriangularSolve", _triangular_rule, _triangular_solve, gradient=_triangular_gradient, cost=cubic_cost(0))


def matrix_solve(matrix: TensorLike, rhs: TensorLike, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Solve linear systems: the X for which `matrix X = rhs`.

    Args:
        matrix: float32 or float64 `[..., n, n]`.
        rhs: right-hand sides `[..., n, k]` of the same type, with the same leading sizes.
        adjoint: solve `matrix^T X = rhs` instead.
        name: name of the node.

    Returns:
        `[..., n, k]`.

    Raises:
        InvalidArgumentError: in a step, a matrix has no inverse.
    """
    return _apply_solve("MatrixSolve", matrix, rhs, {"adjoint": bool(adjoint)}, name)


def matrix_triangular_solve(
    matrix: TensorLike, rhs: TensorLike, lower: bool = True, adjoint: bool = False, name: str | None = None
) -> Tensor:
    """`matrix_solve` for triangular matrices. Only the lower triangle of `matrix` is read, or the upper one if `lower` is False."""
    attrs = {"lower": bool(lower), "adjoint": bool(adjoint)}
    return _apply_solve("MatrixTriangularSolve", matrix, rhs, attrs, name)


def _apply_solve(op: str, matrix: TensorLike, rhs: TensorLike, attrs: dict[str, Any], name: str | None) -> Tensor:
    with op_scope(name, op, matrix, rhs) as scope:
        a = convert(matrix, name="matrix")
        return apply(op, (a, convert(rhs, name="rhs", prefer=a.dtype.base)), attrs, scope)


# --- Cholesky -----------------------------------------------------------------------------------------------


def _cholesky(x: Array) -> Array:
    need_square(x)
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        raise invalid(
            "Cholesky decomposition was not successful. The input must be symmetric and positive definite."
        ) from None


def _cholesky_gradient(node: Node, grad: Any) -> Sequence[Any]:
    # Murray, 2016 (arXiv:1602.07527), section 3: S = L^-T phi(L^T G) L^-1, symmetrized. phi keeps the lower triangle and halves the
    # diagonal.
    factor = node.outputs[0]
    middle = matmul(factor, convert(grad), adjoint_a=True)
    middle = matrix_set_diag(middle, multiply(0.5, matrix_diag_part(middle)))
    left = matrix_triangular_solve(factor, matrix_band_part(middle, -1, 0), adjoint=True)
    half = matrix_triangular_solve(factor, matrix_transpose(left), adjoint=True)
    return [multiply(0.5, add(half, matrix_transpose(half)))]


define("Cholesky", _square_rule, _cholesky, gradient=_cholesky_gradient, cost=cubic_cost(1))


def cholesky(input: TensorLike, name: str | None = None) -> Tensor:
    """Cholesky factors: the lower triangular L for which `L L^T = input`.

    Args:
        input: symmetric positive definite matrices `[..., n, n]`. Only the lower triangle is read.
        name: name of the node.

    Raises:
        InvalidArgumentError: in a step, a matrix is not positive definite.
    """
    return apply_op("Cholesky", name, input=input)


def cholesky_solve(chol: TensorLike, rhs: TensorLike, name: str | None = None) -> Tensor:
    """The X for which `A X = rhs`, given `chol = cholesky(A)`. Shapes as for `matrix_solve`."""
    with op_scope(name, "cholesky_solve", chol, rhs):
        factor = convert(chol, name="chol")
        return matrix_triangular_solve(factor, matrix_triangular_solve(factor, rhs), adjoint=True)
