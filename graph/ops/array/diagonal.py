"""Diagonals of tensors (diag, diag_part) and of stacks of matrices (matrix_diag), bands, traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.build import TensorLike, apply, constant, convert
from ...core.dtypes import NUMBERS, Array, as_dtype, bool_, float32, int32
from ...core.errors import invalid
from ...core.graph import Tensor
from ...core.opdef import Attrs, Output, define
from ...core.shape import Dims, as_dims, compatible, merge, text
from ..math.cast import cast
from ..math.common import allowed, same_type
from ..math.reduce import reduce_sum
from ..math.static_operands import (
    Index,
    apply_op,
    index_operand,
    move_cost,
    need_index,
    need_rank_at_least,
    op_scope,
    pick_cost,
)
from .concat_stack import concat
from .creation import SMALL, has_tensor, ones, zeros_like

_TYPES = (*NUMBERS, bool_)

# --- one tensor ---------------------------------------------------------------------------------------------


def _diag_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, _TYPES)
    need_rank_at_least(x.dims, 1, "diagonal")
    return [(dtype, None if x.dims is None else (*x.dims, *x.dims))]


def _diag(x: Array) -> Array:
    return np.diagflat(x).reshape(x.shape * 2).astype(x.dtype, copy=False)


def _diag_part_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, _TYPES)
    if x.dims is None:
        return [(dtype, None)]
    half = len(x.dims) // 2
    if not half or len(x.dims) % 2 or not compatible(x.dims[:half], x.dims[half:]):
        raise ValueError(f"the shape must be of the form [*dims, *dims], not {text(x.dims)}")
    return [(dtype, merge(x.dims[:half], x.dims[half:]))]


def _diag_part(x: Array) -> Array:
    half = x.ndim // 2
    if not half or x.ndim % 2 or x.shape[:half] != x.shape[half:]:
        raise invalid(f"The shape must be of the form [*dims, *dims], not {text(x.shape)}")
    count = int(np.prod(x.shape[:half]))
    return np.diagonal(x.reshape(count, count)).reshape(x.shape[:half])


define("Diag", _diag_rule, _diag, gradient=lambda node, grad: [diag_part(grad)], cost=move_cost)
define("DiagPart", _diag_part_rule, _diag_part, gradient=lambda node, grad: [diag(grad)], cost=pick_cost)


def diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """A tensor of shape `[*dims, *dims]` with a diagonal of shape `dims` and zeros elsewhere: `out[*i, *i] = diagonal[*i]`."""
    return apply_op("Diag", name, diagonal=diagonal)


def diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """The diagonal of a tensor of shape `[*dims, *dims]`; the inverse of `diag`."""
    return apply_op("DiagPart", name, input=input)


# --- each matrix --------------------------------------------------------------------------------------------


def _matrix_diag_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, _TYPES)
    need_rank_at_least(x.dims, 1, "diagonal")
    return [(dtype, None if x.dims is None else (*x.dims, x.dims[-1]))]


def _matrix_diag(x: Array) -> Array:
    size = x.shape[-1]
    out = np.zeros((*x.shape, size), x.dtype)
    at = np.arange(size)
    out[..., at, at] = x
    return out


def _diagonal_dims(dims: Dims) -> Dims:
    """The shape of the main diagonals of matrices of this shape."""
    if dims is None:
        return None
    rows, columns = dims[-2:]
    length = 0 if 0 in (rows, columns) else None if rows is None or columns is None else min(rows, columns)
    return (*dims[:-2], length)


def _matrix_diag_part_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, _TYPES)
    need_rank_at_least(x.dims, 2, "input")
    return [(dtype, _diagonal_dims(x.dims))]


def _matrix_set_diag_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, diagonal = inputs
    dtype = allowed(same_type(inputs), _TYPES)
    need_rank_at_least(x.dims, 2, "input")
    need_rank_at_least(diagonal.dims, 1, "diagonal")
    wanted = _diagonal_dims(x.dims)
    if not compatible(wanted, diagonal.dims):
        raise ValueError(f"the diagonals of {text(x.dims)} have shape {text(wanted)}, not {text(diagonal.dims)}")
    if diagonal.dims is None:
        return [(dtype, x.dims)]
    return [(dtype, merge(x.dims, (*diagonal.dims[:-1], None, None)))]


def _matrix_set_diag(x: Array, diagonal: Array) -> Array:
    length = min(x.shape[-2:])
    if diagonal.shape != (*x.shape[:-2], length):
        raise invalid(
            f"The diagonals of {text(x.shape)} have shape {text((*x.shape[:-2], length))}, not {text(diagonal.shape)}"
        )
    out = x.copy()
    at = np.arange(length)
    out[..., at, at] = diagonal
    return out


define(
    "MatrixDiag", _matrix_diag_rule, _matrix_diag, gradient=lambda node, grad: [matrix_diag_part(grad)], cost=move_cost
)
define(
    "MatrixDiagPart",
    _matrix_diag_part_rule,
    lambda x: np.diagonal(x, axis1=-2, axis2=-1),
    gradient=lambda node, grad: [matrix_set_diag(zeros_like(node.inputs[0]), grad)],
    cost=pick_cost,
)
define(
    "MatrixSetDiag",
    _matrix_set_diag_rule,
    _matrix_set_diag,
    gradient=lambda node, grad: [matrix_set_diag(grad, zeros_like(node.inputs[1])), matrix_diag_part(grad)],
    cost=move_cost,
)


def matrix_diag(diagonal: TensorLike, name: str | None = None) -> Tensor:
    """Square matrices with these main diagonals and zeros elsewhere: (..., n) gives (..., n, n)."""
    return apply_op("MatrixDiag", name, diagonal=diagonal)


def matrix_diag_part(input: TensorLike, name: str | None = None) -> Tensor:
    """The main diagonals of matrices: (..., m, n) gives (..., min(m, n))."""
    return apply_op("MatrixDiagPart", name, input=input)


def matrix_set_diag(input: TensorLike, diagonal: TensorLike, name: str | None = None) -> Tensor:
    """Matrices (..., m, n) with their main diagonals replaced by `diagonal`, (..., min(m, n))."""
    with op_scope(name, "MatrixSetDiag", input, diagonal) as scope:
        x = convert(input, name="input")
        return apply("MatrixSetDiag", (x, convert(diagonal, name="diagonal", prefer=x.dtype.base)), None, scope)


def _band_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    x, lower, upper = inputs
    dtype = allowed(x.dtype.base, _TYPES)
    same_type((lower, upper))
    for t, what in ((lower, "num_lower"), (upper, "num_upper")):
        need_index(t, what, 0)
    need_rank_at_least(x.dims, 2, "input")
    return [(dtype, x.dims)]


def _band(x: Array, lower: Array, upper: Array) -> Array:
    rows, columns = x.shape[-2:]
    row, column = np.arange(rows)[:, None], np.arange(columns, dtype=np.int32)
    first = np.zeros_like(row) if lower < 0 else row - lower
    last = np.full_like(row, columns) if upper < 0 else row + upper
    inside = (column >= first.astype(np.int32)) & (column <= last.astype(np.int32))
    return np.where(inside, x, np.zeros((), x.dtype))


define(
    "MatrixBandPart",
    _band_rule,
    _band,
    gradient=lambda node, grad: [matrix_band_part(grad, *node.inputs[1:]), None, None],
    cost=move_cost,
)


def matrix_band_part(
    input: TensorLike, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """Matrices with zeros outside a band around the main diagonal.

    Args:
        input: matrices (..., m, n).
        num_lower: the number of diagonals kept below the main one. Negative: all.
        num_upper: the number of diagonals kept above it. Negative: all.
        name: name of the node.

    >>> matrix_band_part(x, -1, 0)   # the lower triangle
    """
    return apply_op("MatrixBandPart", name, input=input, num_lower=Index(num_lower), num_upper=Index(num_upper))


def trace(x: TensorLike, name: str | None = None) -> Tensor:
    """The sum of each matrix's main diagonal: (..., m, n) gives (...)."""
    with op_scope(name, "Trace", x) as scope:
        return reduce_sum(matrix_diag_part(convert(x, name="x")), [-1], name=scope)


# --- the identity matrix -----------------------------------------------------------------------------------------


def eye(
    num_rows: TensorLike,
    num_columns: TensorLike = None,
    batch_shape: Any = None,
    dtype: Any = float32,
    name: str | None = None,
) -> Tensor:
    """The identity matrix, or a batch of identity matrices, of shape `batch_shape + [num_rows, num_columns]`.

    Args:
        num_rows: number of rows.
        num_columns: number of columns. None means `num_rows`.
        batch_shape: a list or tensor of sizes. None means a single matrix.
        dtype: element type.
        name: name of the node.
    """
    with op_scope(name, "eye", num_rows, num_columns) as scope:
        columns = num_rows if num_columns is None else num_columns
        wanted = as_dtype(dtype).base
        batch = [] if batch_shape is None else batch_shape
        if not any(isinstance(v, Tensor) or has_tensor(v) for v in (num_rows, columns, batch)):
            dims = (*(as_dims(batch) or ()), int(num_rows), int(columns))
            if math.prod(d or 0 for d in dims) < SMALL:
                return constant(np.broadcast_to(np.eye(*dims[-2:]), dims), wanted, name=scope)  # type: ignore[arg-type]
            return matrix_band_part(ones(dims, wanted), 0, 0, scope)
        sizes = index_operand([num_rows, columns], "sizes")
        sizes.set_shape([2])
        whole = concat([cast(index_operand(batch, "batch_shape"), int32), cast(sizes, int32)], 0)
        return matrix_band_part(ones(whole, wanted), 0, 0, scope)
