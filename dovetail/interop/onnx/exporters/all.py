"""Loads every family, so that all exporters are registered."""

from . import arranging, elementwise, layers, picking, reductions

__all__ = ["arranging", "elementwise", "layers", "picking", "reductions"]
