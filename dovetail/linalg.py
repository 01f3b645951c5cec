"""`dt.linalg`: products, transposes and diagonals of matrices."""

from .graph.ops.clip import (
    global_norm,
)
from .graph.ops.creation import (
    eye,
)
from .graph.ops.diagonal import (
    diag as tensor_diag,
    diag_part as tensor_diag_part,
    matrix_band_part as band_part,
    matrix_diag as diag,
    matrix_diag_part as diag_part,
    trace,
)
from .graph.ops.einsum import (
    einsum,
    tensordot,
)
from .graph.ops.linalg import (
    matmul,
    matrix_transpose,
)
from .graph.ops.normalization import (
    l2_normalize,
)
from .graph.ops.statistics import (
    norm,
)

__all__ = [
    "band_part",
    "diag",
    "diag_part",
    "einsum",
    "eye",
    "global_norm",
    "l2_normalize",
    "matmul",
    "matrix_transpose",
    "norm",
    "tensor_diag",
    "tensor_diag_part",
    "tensordot",
    "trace",
]
