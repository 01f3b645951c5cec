"""Rows for matrix products, einsum and diagonals."""

from __future__ import annotations

import numpy as np
from op_table import FLOATS, INTEGERS, OpCase, ScriptCase, index, real, whole
from reference_interpreter import Interpreter

from dovetail.graph.core.build import placeholder
from dovetail.graph.core.opdef import Cost
from dovetail.graph.ops.array import diagonal as d
from dovetail.graph.ops.linalg import linalg as m
from dovetail.graph.ops.linalg.einsum import einsum, tensordot

A, B = real(3, 4, seed=1), real(4, 2, seed=2)


def _mat_mul(flip_a, flip_b, **more):
    return OpCase(
        "MatMul",
        lambda x, y: m.matmul(x, y, transpose_a=flip_a, transpose_b=flip_b),
        [A.T if flip_a else A, B.T if flip_b else B],
        lambda x, y: (x.T if flip_a else x) @ (y.T if flip_b else y),
        grad=True,
        unknown=("dims",),  # without ranks it is a BatchMatMulV2
        label=f"{'t' if flip_a else 'n'}{'t' if flip_b else 'n'}",
        **more,
    )


def _batch(label, x_shape, y_shape, flip_x=False, flip_y=False, **more):
    def t(v):
        return np.swapaxes(v, -1, -2)

    return OpCase(
        "BatchMatMulV2",
        lambda x, y: m.matmul(x, y, adjoint_a=flip_x, adjoint_b=flip_y),
        [real(*x_shape, seed=1), real(*y_shape, seed=2)],
        lambda x, y: (t(x) if flip_x else x) @ (t(y) if flip_y else y),
        grad=True,
        label=label,
        **more,
    )


def _names_and_cost():
    x, y = placeholder("float32", [3, 4], name="x"), placeholder("float32", [4, 5], name="y")
    product = m.matmul(x, y)
    assert product.op.name == "MatMul" and product.dims == (3, 5)
    assert (x @ y).op.name == "MatMul_1"
    assert product.op.opdef.cost_of(product.op) == Cost(2 * 3 * 4 * 5, 4 * (12 + 20 + 15))
    with_array = m.matmul(x, np.ones((4, 2), np.float32), name="dense")
    assert with_array.op.inputs[1].op.name == "dense/b"
    same = einsum("ij,jk->ik", x, y)
    assert same.op.opdef.cost_of(same.op) == product.op.opdef.cost_of(product.op)
    numbers = Interpreter(x.graph).run([product, same], {x: np.ones((3, 4)), y: np.ones((4, 5))})
    np.testing.assert_array_equal(numbers, np.full((2, 3, 5), 4))


PRODUCTS = [
    ScriptCase(("MatMul",), _names_and_cost),
    _mat_mul(False, False, dtypes=FLOATS),
    _mat_mul(True, False),
    _mat_mul(False, True),
    _mat_mul(True, True),
    OpCase(
        "MatMul",
        m.matmul,
        [whole(2, 3, low=0), whole(3, 2, low=0)],
        lambda x, y: x @ y,
        INTEGERS,
        unknown=("dims",),
        label="integers",
    ),
    OpCase(
        "MatMul",
        m.matmul,
        [real(2, 0), real(0, 3)],
        lambda x, y: x @ y,
        grad=True,
        unknown=("dims",),
        label="empty",
    ),
    _batch("same", (2, 3, 4), (2, 4, 2), dtypes=FLOATS),
    _batch("adjoint-x", (2, 4, 3), (2, 4, 2), True),
    _batch("adjoint-y", (2, 3, 4), (2, 2, 4), False, True),
    _batch("adjoint-both", (2, 4, 3), (2, 2, 4), True, True),
    _batch("broadcast", (2, 1, 3, 4), (5, 4, 2)),
    _batch("matrix-by-stack", (3, 4), (2, 4, 2)),
    _batch("stack-by-matrix", (2, 3, 4), (4, 2)),
    _batch("ones", (1, 3, 4), (2, 4, 1)),
    OpCase(
        "BatchMatMulV2",
        lambda x, y: x @ y,
        [real(2, 2, 2), real(2, 2, 2, seed=1)],
        lambda x, y: x @ y,
        grad=True,
        label="operator",
    ),
    OpCase(
        "MatMul",
        m.matvec,
        [A, real(4)],
        lambda x, v: x @ v,
        ("float32", "bfloat16"),
        True,
        unknown=("dims",),
        label="matvec",
    ),
    OpCase(
        "BatchMatMulV2",
        lambda x, v: m.matvec(x, v, transpose_a=True),
        [real(2, 3, 4), real(2, 3)],
        lambda x, v: np.einsum("bij,bi->bj", x, v),
        grad=True,
        label="matvec",
    ),
    OpCase(
        "Transpose",
        m.matrix_transpose,
        [real(2, 3, 4)],
        lambda x: x.swapaxes(1, 2),
        ("float32", "bool"),
        True,
        label="matrix",
    ),
]


# --- einsum -------------------------------------------------------------------------------------------------


def _einsum(equation, *shapes, oracle=None, **more):
    """A row whose oracle is NumPy's own einsum."""
    return OpCase(
        "Einsum",
        lambda *x: einsum(equation, *x),
        [real(*s, seed=i) for i, s in enumerate(shapes)],
        oracle or (lambda *x: np.einsum(equation, *x)),
        grad=True,
        label=equation.replace(" ", ""),
        **more,
    )


def _on_diagonal(x):
    out = np.zeros((3, 3), x.dtype)
    np.fill_diagonal(out, x)
    return out


def _chain_takes_the_cheap_way():
    x, y, z = (placeholder("float32", s) for s in ([100, 2], [2, 100], [100, 1]))
    out = einsum("ij,jk,kl->il", x, y, z)
    assert out.dims == (100, 1)
    first = next(n for n in x.graph.nodes if n.type == "Einsum")
    assert first.inputs == (y, z)  # (y z) first costs 200 products, (x y) first 20000


EINSUM = [
    ScriptCase(("Einsum",), _chain_takes_the_cheap_way, label="einsum-chain"),
    _einsum("ij,jk->ik", (2, 3), (3, 4), dtypes=(*FLOATS, "int32")),
    _einsum("ij,jk", (2, 3), (3, 4)),
    _einsum("ba,cb", (2, 3), (4, 2)),
    _einsum("i,j->ij", (2,), (3,)),
    _einsum("i,i->", (3,), (3,)),
    _einsum("ij->ji", (2, 3), dtypes=("float32", "bfloat16", "int8")),
    _einsum("ij->i", (2, 3)),
    _einsum("ij->", (2, 3)),
    _einsum("ii->i", (3, 3)),
    _einsum("ii->", (3, 3)),
    _einsum("iji->j", (2, 3, 2)),
    _einsum("i->ii", (3,), oracle=_on_diagonal),
    _einsum("iij,jk->ik", (2, 2, 3), (3, 4)),
    _einsum("bij,bjk->bik", (2, 3, 4), (2, 4, 2)),
    _einsum("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 2, 4)),
    _einsum("ij,kl->ijkl", (2, 3), (1, 2)),
    _einsum("ijk,kl->il", (2, 3, 4), (4, 2)),
    _einsum("ij,j->ij", (2, 3), (3,)),
    _einsum(" a b , b -> a ", (2, 3), (3,)),
    _einsum("ij,jk,kl->il", (2, 3), (3, 4), (4, 2)),
    _einsum("i,i,i->i", (3,), (3,), (3,)),
    _einsum("ij,ij,j->", (2, 3), (2, 3), (3,)),
    _einsum("...ij,...jk->...ik", (2, 2, 3), (2, 3, 4)),
    _einsum("...ij,jk->...ik", (2, 1, 2, 3), (3, 4)),
    _einsum("...a,...b->...ab", (2, 1, 3), (4, 2)),
    _einsum("a...,b...->ab...", (2, 3), (4, 1)),
    _einsum("...->...", (2, 3)),
    _einsum("i...->i", (2, 3, 2), oracle=lambda x: x.sum((1, 2))),
    _einsum("...i,...i->", (2, 3), (3,), oracle=lambda x, y: (x * y).sum()),
    OpCase(
        "Einsum",
        lambda x, y: tensordot(x, y, 1),
        [real(2, 3, 4), real(4, 2)],
        lambda x, y: np.tensordot(x, y, 1),
        ("float32", "bfloat16"),
        True,
        unknown=("dims",),
        label="tensordot",
    ),
    OpCase(
        "Einsum",
        lambda x, y: tensordot(x, y, 0),
        [real(2), real(3)],
        lambda x, y: np.tensordot(x, y, 0),
        grad=True,
        unknown=("dims",),
        label="tensordot-0",
    ),
    OpCase(
        "Einsum",
        lambda x, y: tensordot(x, y, [[0, -1], [1, 0]]),
        [real(2, 3, 4), real(4, 2, 5)],
        lambda x, y: np.tensordot(x, y, [[0, 2], [1, 0]]),
        grad=True,
        unknown=("dims",),
        label="tensordot-pairs",
    ),
]


# --- diagonals ----------------------------------------------------------------------------------------------


def _stacked_diag(x):
    return np.stack([np.diag(row) for row in x.reshape(-1, x.shape[-1])]).reshape(*x.shape, x.shape[-1])


def _set_diag(x, v):
    x = x.copy()
    for i in range(min(x.shape[-2:])):
        x[..., i, i] = v[..., i]
    return x


DIAGONALS = [
    OpCase("Diag", d.diag, [real(3)], np.diag, ("float32", "bfloat16", "int8"), True),
    OpCase(
        "Diag",
        d.diag,
        [real(2, 3)],
        lambda x: np.diag(x.ravel()).reshape(2, 3, 2, 3),
        grad=True,
        label="matrix",
    ),
    OpCase("DiagPart", d.diag_part, [real(3, 3)], np.diag, ("float32", "bfloat16", "bool"), True),
    OpCase(
        "DiagPart",
        d.diag_part,
        [real(2, 3, 2, 3)],
        lambda x: np.diag(x.reshape(6, 6)).reshape(2, 3),
        grad=True,
        label="matrix",
    ),
    OpCase("MatrixDiag", d.matrix_diag, [real(2, 3)], _stacked_diag, ("float32", "bfloat16", "int32"), True),
    OpCase(
        "MatrixDiagPart",
        d.matrix_diag_part,
        [real(2, 3, 4)],
        lambda x: np.diagonal(x, axis1=1, axis2=2),
        ("float32", "float16"),
        True,
    ),
    OpCase(
        "MatrixSetDiag",
        d.matrix_set_diag,
        [real(2, 4, 3), real(2, 3)],
        _set_diag,
        ("float32", "bfloat16", "int64"),
        True,
    ),
    OpCase(
        "MatrixBandPart",
        lambda x: d.matrix_band_part(x, 1, 0),
        [real(2, 4, 3)],
        lambda x: np.tril(np.triu(x, -1)),
        ("float32", "bfloat16", "bool"),
        True,
    ),
    OpCase(
        "MatrixBandPart",
        lambda x: d.matrix_band_part(x, -1, 1),
        [real(3, 4)],
        lambda x: np.tril(x, 1),
        grad=True,
        label="lower",
    ),
    OpCase(
        "MatrixBandPart",
        d.matrix_band_part,
        [real(3, 4), index(0), index(-1)],
        lambda x, i, j: np.triu(x),
        grad=True,
        label="computed",
    ),
    OpCase(
        "Sum",
        d.trace,
        [real(2, 3, 3)],
        lambda x: np.trace(x, axis1=1, axis2=2),
        ("float32", "bfloat16"),
        True,
        label="trace",
    ),
]

CASES = [*PRODUCTS, *EINSUM, *DIAGONALS]
