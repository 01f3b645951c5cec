"""Rows for inverses, determinants, solutions of linear equations, and Cholesky factors."""

from __future__ import annotations

import numpy as np
import pytest
from op_table import OpCase, ScriptCase, real
from reference_interpreter import Interpreter

from dovetail.graph.core.build import placeholder
from dovetail.graph.core.errors import InvalidArgumentError
from dovetail.graph.core.opdef import Cost
from dovetail.graph.ops.linalg import solving as s
from dovetail.graph.ops.linalg.linalg import matmul
from dovetail.graph.ops.math.arithmetic import add

BOTH = ("float32", "float64")
ONE, STACK = real(3, 3, seed=1) + 4 * np.eye(3), real(2, 3, 3, seed=2) + 4 * np.eye(3)
NARROW, WIDE = real(3, 1, seed=3), real(2, 3, 2, seed=4)


def t(x):
    return np.swapaxes(x, -1, -2)


def _positive(x):
    """A positive definite matrix from any: what one entry changes stays symmetric, as Cholesky needs."""
    return add(matmul(x, x, transpose_b=True), np.eye(3).astype(x.dtype.np))


def _np_positive(x):
    return x @ t(x) + np.eye(3, dtype=x.dtype)


def _errors():
    x = placeholder("float32", [None, None])
    b = placeholder("float32", [None, None])
    run = Interpreter(x.graph).run
    singular = np.ones((2, 2), np.float32)
    for op in (s.matrix_inverse(x), s.matrix_solve(x, b), s.matrix_triangular_solve(x, b)):
        with pytest.raises(InvalidArgumentError, match="not invertible"):
            run(op, {x: singular * np.float32([[0], [1]]), b: singular})
    with pytest.raises(InvalidArgumentError, match="not invertible"):
        run(s.matrix_inverse(x), {x: singular})
    with pytest.raises(InvalidArgumentError, match="Cholesky decomposition was not successful"):
        run(s.cholesky(x), {x: -singular})
    for op in (s.matrix_inverse(x), s.matrix_determinant(x), s.cholesky(x), s.matrix_solve(x, b)):
        with pytest.raises(InvalidArgumentError, match=r"must be square, not \(2, 3\)"):
            run(op, {x: np.ones((2, 3), np.float32), b: singular})
    with pytest.raises(InvalidArgumentError, match="does not fit matrices of shape"):
        run(s.matrix_solve(x, b), {x: np.eye(3, dtype=np.float32), b: singular})
    with pytest.raises(ValueError, match=r"must be square, not \(2, 3\)"):
        s.matrix_inverse(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match="at least rank 2"):
        s.cholesky([1.0])
    with pytest.raises(ValueError, match=r"must have shape \(3, \?\) for matrices \(3, 3\), not \(2, 2\)"):
        s.matrix_solve(np.eye(3, dtype=np.float32), singular)
    with pytest.raises(TypeError, match="int32 is not supported"):
        s.matrix_determinant([[1, 2], [3, 4]])


def _only_one_triangle_is_read():
    x = placeholder("float64", [3, 3])
    b = placeholder("float64", [3, 1])
    run = Interpreter(x.graph).run
    spd = _np_positive(ONE)
    junk = np.triu(np.full((3, 3), 7.0), 1)
    np.testing.assert_allclose(run(s.cholesky(x), {x: np.tril(spd) + junk}), np.linalg.cholesky(spd))
    lower = run(s.matrix_triangular_solve(x, b), {x: np.tril(ONE) + junk, b: NARROW})
    np.testing.assert_allclose(np.tril(ONE) @ lower, NARROW)
    upper = run(s.matrix_triangular_solve(x, b, lower=False), {x: np.triu(ONE) + t(junk), b: NARROW})
    np.testing.assert_allclose(np.triu(ONE) @ upper, NARROW)


def _costs():
    x, b = placeholder("float32", [2, 3, 3]), placeholder("float32", [2, 3, 4])
    moved = 4 * (2 * 9 + 2 * 12 + 2 * 12)
    solve = s.matrix_solve(x, b).op
    assert solve.opdef.cost_of(solve) == Cost(2 * 2 * 27 / 3 + 2 * 9 * 8, moved)
    inverse = s.matrix_inverse(x).op
    assert inverse.opdef.cost_of(inverse).flops == 2 * 2 * 27


def _solutions(adjoint, matrix, rhs, label):
    return [
        OpCase(
            "MatrixSolve",
            lambda a, b: s.matrix_solve(a, b, adjoint=adjoint),
            [matrix, rhs],
            lambda a, b: np.linalg.solve(t(a) if adjoint else a, b),
            BOTH,
            True,
            label=label,
        ),
        *(
            OpCase(
                "MatrixTriangularSolve",
                lambda a, b, lower=lower: s.matrix_triangular_solve(a, b, lower, adjoint),
                [matrix, rhs],
                lambda a, b, cut=cut: np.linalg.solve(t(cut(a)) if adjoint else cut(a), b),
                BOTH,
                True,
                label=f"{label} {'lower' if lower else 'upper'}",
            )
            for lower, cut in ((True, np.tril), (False, np.triu))
        ),
    ]


CASES = [
    *(
        OpCase(
            "MatrixInverse",
            lambda x, adjoint=adjoint: s.matrix_inverse(x, adjoint=adjoint),
            [x],
            lambda x, adjoint=adjoint: np.linalg.inv(t(x) if adjoint else x),
            BOTH,
            True,
            label=f"{x.ndim} {'adjoint' if adjoint else ''}",
        )
        for x in (ONE, STACK)
        for adjoint in (False, True)
    ),
    *(
        OpCase("MatrixDeterminant", s.matrix_determinant, [x], np.linalg.det, BOTH, True, label=str(x.ndim))
        for x in (ONE, STACK)
    ),
    *_solutions(False, ONE, NARROW, "one"),
    *_solutions(True, ONE, NARROW, "one adjoint"),
    *_solutions(False, STACK, WIDE, "stack"),
    *_solutions(True, STACK, WIDE, "stack adjoint"),
    *(
        OpCase(
            "Cholesky",
            lambda x: s.cholesky(_positive(x)),
            [x],
            lambda x: np.linalg.cholesky(_np_positive(x)),
            BOTH,
            True,
            label=str(x.ndim),
        )
        for x in (real(3, 3), real(2, 3, 3))
    ),
    OpCase(
        "Cholesky",
        lambda x, b: s.cholesky_solve(s.cholesky(_positive(x)), b),
        [real(3, 3), NARROW],
        lambda x, b: np.linalg.solve(_np_positive(x), b),
        BOTH,
        True,
        rtol=2e-4,
        label="solve",
    ),
    ScriptCase(("MatrixInverse", "MatrixSolve", "Cholesky"), _errors, "solving errors"),
    ScriptCase(("Cholesky", "MatrixTriangularSolve"), _only_one_triangle_is_read, "solving triangles"),
    ScriptCase(("MatrixSolve",), _costs, "solving costs"),
]
