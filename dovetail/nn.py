"""`dt.nn`: what neural networks are made of."""

from .graph.ops.math import (
    sigmoid,
    tanh,
)
from .graph.ops.sorting import (
    in_top_k,
    top_k,
)

__all__ = [
    "in_top_k",
    "sigmoid",
    "tanh",
    "top_k",
]
