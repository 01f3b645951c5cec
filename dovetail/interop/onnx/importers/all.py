"""Loads every family, so that all importers are registered."""

from . import (
    control_flow,
    convolutions,
    creation,
    elementwise,
    indexing,
    layout,
    matmul,
    normalizations,
    pooling,
    quantization,
    recurrent,
    reductions,
    resize,
)

__all__ = [
    "control_flow", "convolutions", "creation", "elementwise", "indexing", "layout", "matmul", "normalizations", "pooling",
    "quantization", "recurrent", "reductions", "resize",
]  # fmt: skip
