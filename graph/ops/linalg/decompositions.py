"""Decompositions of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...core.build import TensorLike, convert, make
from ...core.dtypes import float32, float64
from ...core.graph import Node, Tensor
from ...core.opdef import Attrs, Cost, Output, default_cost, define, size
from ..math.common import allowed
from ..math.static_operands import need_rank_at_least, op_scope

Array: TypeAlias = np.ndarray[Any, Any]


class QR(NamedTuple):
    """What `qr` returns."""

    q: Tensor
    r: Tensor


def _qr_rule(inputs: Sequence[Tensor], attrs: Attrs) -> Sequence[Output]:
    (x,) = inputs
    dtype = allowed(x.dtype.base, (float32, float64))
    need_rank_at_least(x.dims, 2, "the matrix")
    full = attrs.get("full_matrices")
    if not isinstance(full, bool):
        raise TypeError(f"attr full_matrices must be a bool, not {full!r}")
    if x.dims is None:
        return [(dtype, None), (dtype, None)]
    *batch, rows, columns = x.dims
    inner = rows if full else None if rows is None or columns is None else min(rows, columns)
    return [(dtype, (*batch, rows, inner)), (dtype, (*batch, inner, columns))]


def _qr(x: Array, *, full_matrices: bool) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x, "complete" if full_matrices else "reduced")
    return q, r


def _qr_gradient(node: Node, *grads: Any) -> Sequence[Any]:
    raise NotImplementedError(f"The gradient of Qr '{node.name}' (made at {node.source}) is not available")


def _qr_cost(node: Node) -> Cost:
    """Householder's method: 2 m n^2 - 2/3 n^3, and as much again to form q."""
    dims = node.inputs[0].dims or (1, 1)
    m, n = (d or 1 for d in dims[-2:])
    small, large = min(m, n), max(m, n)
    matrices = size(node.inputs[0]) / (m * n)
    return default_cost(node)._replace(flops=4.0 * matrices * small * small * (large - small / 3))


define("Qr", infer=_qr_rule, reference=_qr, gradient=_qr_gradient, cost=_qr_cost)


def qr(input: TensorLike, full_matrices: bool = False, name: str | None = None) -> QR:
    """Matrices as products of one with orthonormal columns and an upper triangular one.

    Args:
        input: `[..., m, n]`, float32 or float64.
        full_matrices: give q as `[..., m, m]` and r as `[..., m, n]`; otherwise both are cut to min(m, n).

    Returns:
        (q, r). The signs of r's diagonal are not fixed. There is no gradient.
    """
    with op_scope(name, "Qr", input) as scope:
        matrix = convert(input, name="input")
        return QR(*make("Qr", (matrix,), {"full_matrices": bool(full_matrices)}, scope).outputs)
