"""`dt.linalg`: products, transposes and diagonals of matrices."""

from .graph.ops.clip import (
    global_norm,
)
from .graph.ops.creation import (
    eye,
)
from .graph.ops.statistics import (
    norm,
)

__all__ = [
    "eye",
    "global_norm",
    "norm",
]
