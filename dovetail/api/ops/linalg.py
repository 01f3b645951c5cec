"""`dt.linalg`: products, transposes and diagonals of matrices."""

from ...graph.ops.array.diagonal import (
    diag as tensor_diag,
    diag_part as tensor_diag_part,
    eye,
    matrix_band_part as band_part,
    matrix_diag as diag,
    matrix_diag_part as diag_part,
    matrix_set_diag as set_diag,
    trace,
)
from ...graph.ops.linalg.einsum import einsum, tensordot
from ...graph.ops.linalg.linalg import matmul, matrix_transpose, matrix_transpose as transpose, matvec
from ...graph.ops.linalg.matrix_functions import adjoint, cross, logdet, matrix_rank, pinv, qr, slogdet, svd
from ...graph.ops.linalg.solving import (
    cholesky,
    cholesky_solve,
    matrix_determinant as det,
    matrix_inverse as inv,
    matrix_solve as solve,
    matrix_triangular_solve as triangular_solve,
)
from ...graph.ops.math.clip import global_norm
from ...graph.ops.math.statistics import norm
from ...graph.ops.nn.normalization import l2_normalize
from ...public_paths import exported as _exported

__all__ = _exported(globals())
