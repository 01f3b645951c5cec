"""Sums and products in any order.

A sum is vectorised by adding in another order. Only this one addition allows that; the rest of a kernel keeps its order.
"""

# mypy: ignore-errors
# The functions below are compiled by Numba: their types are Numba's to infer, per call.

from __future__ import annotations

from .intrinsics import inner


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate(total, x):
    """total + x, in any order."""
    return total + x


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate_product(total, x):
    """total * x, in any order."""
    return total * x
