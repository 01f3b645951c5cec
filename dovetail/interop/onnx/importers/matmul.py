"""Products of matrices."""

from __future__ import annotations

from ....graph.core.dtypes import int32
from ....graph.core.graph import Tensor
from ....graph.ops.array.shapes import expand_dims, squeeze
from ....graph.ops.linalg.einsum import einsum
from ....graph.ops.linalg.linalg import matmul
from ....graph.ops.math.arithmetic import add, multiply, subtract
from ....graph.ops.math.cast import cast
from ..registry import Call, imports


def product(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """NumPy's `matmul`: vectors are rows or columns, leading axes broadcast."""
    left, right = len(call.dims(a, "the left factor")), len(call.dims(b, "the right factor"))
    made = matmul(expand_dims(a, 0) if left == 1 else a, expand_dims(b, 1) if right == 1 else b)
    gone = [axis for axis, rank in ((-2, left), (-1, right)) if rank == 1]
    return squeeze(made, gone) if gone else made


@imports("MatMul")
def matmul_(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices, or of stacks of them."""
    return product(call, a, b)


@imports("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    """alpha * a @ b + beta * c."""
    made = matmul(a, b, transpose_a=bool(call.attr("transA", 0)), transpose_b=bool(call.attr("transB", 0)))
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if alpha != 1.0:
        made = multiply(made, _like(made, alpha))
    if c is None:
        return made
    return add(made, c if beta == 1.0 else multiply(c, _like(made, beta)))


def _like(x: Tensor, number: float) -> float | int:
    return int(number) if x.dtype.base.is_integer else number


@imports("Einsum")
def einsum_(call: Call, *xs: Tensor) -> Tensor:
    """By letters."""
    return einsum(call.attr("equation").replace(" ", ""), *xs)


@imports("MatMulInteger")
def matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    """A product of small integers around their zero points; int32 comes out."""
    left, right = cast(a, int32), cast(b, int32)
    if a_zero is not None:
        zero = cast(a_zero, int32)
        left = subtract(left, expand_dims(zero, -1) if a_zero.dims is not None and len(a_zero.dims) == 1 else zero)
    if b_zero is not None:
        right = subtract(right, cast(b_zero, int32))
    return product(call, left, right)
