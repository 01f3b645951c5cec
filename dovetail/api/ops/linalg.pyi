"""Types of `dovetail.linalg`. Made by `python docs/stubs.py`; do not edit."""

# ruff: noqa
from typing import Any
from dovetail.graph.ops.array.diagonal import (
    matrix_band_part as band_part, matrix_diag as diag, matrix_diag_part as diag_part, eye as eye, matrix_set_diag as set_diag, diag as
    tensor_diag, diag_part as tensor_diag_part, trace as trace,
)
from dovetail.graph.ops.linalg.einsum import einsum as einsum, tensordot as tensordot
from dovetail.graph.ops.linalg.linalg import (
    matmul as matmul, matrix_transpose as matrix_transpose, matvec as matvec, matrix_transpose as transpose,
)
from dovetail.graph.ops.linalg.matrix_functions import (
    adjoint as adjoint, cross as cross, logdet as logdet, matrix_rank as matrix_rank, pinv as pinv, qr as qr, slogdet as slogdet, svd as
    svd,
)
from dovetail.graph.ops.linalg.solving import (
    cholesky as cholesky, cholesky_solve as cholesky_solve, matrix_determinant as det, matrix_inverse as inv, matrix_solve as solve,
    matrix_triangular_solve as triangular_solve,
)
from dovetail.graph.ops.math.clip import global_norm as global_norm
from dovetail.graph.ops.math.statistics import norm as norm
from dovetail.graph.ops.nn.normalization import l2_normalize as l2_normalize
__all__ = [
    "adjoint", "band_part", "cholesky", "cholesky_solve", "cross", "det", "diag", "diag_part", "einsum", "eye", "global_norm", "inv",
    "l2_normalize", "logdet", "matmul", "matrix_rank", "matrix_transpose", "matvec", "norm", "pinv", "qr", "set_diag", "slogdet",
    "solve", "svd", "tensor_diag", "tensor_diag_part", "tensordot", "trace", "transpose", "triangular_solve",
]
