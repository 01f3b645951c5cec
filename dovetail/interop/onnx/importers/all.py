"""Loads every family, so that all importers are registered."""

from . import (
    arranging,
    convolutions,
    creation,
    elementwise,
    flow,
    normalizations,
    picking,
    pools,
    products,
    quantizing,
    recurrent,
    reductions,
    resizing,
)

__all__ = [
    "arranging", "convolutions", "creation", "elementwise", "flow", "normalizations", "picking", "pools", "products",
    "quantizing", "recurrent", "reductions", "resizing",
]  # fmt: skip
