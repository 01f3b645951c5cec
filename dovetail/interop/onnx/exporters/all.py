"""Loads every family, so that all exporters are registered."""

from . import elementwise, indexing, layers, layout, reductions

__all__ = ["elementwise", "indexing", "layers", "layout", "reductions"]
