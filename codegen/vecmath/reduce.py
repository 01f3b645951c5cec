"""Sums and products in any order, and quotients of many numbers and one."""

# mypy: ignore-errors
# The functions below are compiled by Numba: their types are Numba's to infer, per call.

from __future__ import annotations

from typing import Any

from .intrinsics import CAN_FUSE, f32, f64, fused, inner

# --- sums ------------------------------------------------------------------------------------------------------------
# A sum is vectorised by adding in another order. Only this one addition allows that; the rest of a kernel keeps its order.


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate(total, x):
    """total + x, in any order."""
    return total + x


@inner(fastmath={"reassoc", "nsz"}, forceinline=True)
def accumulate_product(total, x):
    """total * x, in any order."""
    return total * x


# --- quotients -------------------------------------------------------------------------------------------------------


def _part_of(number: Any, least: float, most: float) -> Any:
    def part_of(x, total):
        if number(least) < total and total < number(most):
            inverse = number(1) / total
            quotient = x * inverse
            quotient = fused(fused(-quotient, total, x), inverse, quotient)
            return fused(fused(-quotient, total, x), inverse, quotient)
        return x / total

    def divided(x, total):
        return x / total

    made = part_of if CAN_FUSE else divided
    return inner(forceinline=True, error_model="numpy")(made)


part_of32, part_of64 = _part_of(f32, 2.0**-60, 2.0**60), _part_of(f64, 2.0**-500, 2.0**500)
"""x / total, for many x from 0 to one total.

A division of a vector takes 16 cycles. A loop with one divisor divides once, and corrects each product with the inverse by its rest,
twice: the result is the one that a division rounds to (Markstein, "Computation of elementary functions on the IBM RISC System/6000
processor", 1990), but for the last bit of results below the smallest normal number. Totals that are 0, infinite or nearly so divide.
"""
