"""Facts about value ranges along a row, which save instructions in a kernel.

A softmax, in all its forms, subtracts the maximum of a row before it takes exponentials, and divides by their sum. So the arguments
of its exponentials are at most 0. And the maximum may ignore NaN: a NaN element stays NaN after the subtraction and makes the sum
NaN, and so every value computed from the sum.

Short rows: a vector along one would be shorter than the machine's vectors. Then it is better to vectorize across rows: a vector of
several rows' first elements, then one of their second elements, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.loop_nest import COSTLY, LoopNest, Value

_SHORT = 32  # elements of a row: two vectors of 64 bytes. Elements of several rows are not contiguous and are gathered one by one

_SPREAD_NAN = frozenset(
    ("neg", "abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "erf", "add", "sub", "mul", "div")
)
"""Operations whose result is NaN when one of what they take is."""
_SPREAD_NAN_ALONG = frozenset(("sum", "prod"))
"""Reductions of which that is true, whatever is done for speed."""


def is_below_zero(loops: LoopNest, number: int) -> bool:
    """Whether a value is at most 0 or NaN, because it is an element minus the maximum of its row."""
    v = loops.values[number]
    return v.op == "sub" and _is_largest_of(loops, v.args[1], v.args[0])


def is_part(loops: LoopNest, v: Value) -> bool:
    """Whether a quotient is an exponential over its row's sum, as in a softmax: from 0 to 1, with one divisor per row."""
    part, total = (loops.values[a] for a in v.args)
    return part.op == "exp" and total.op == "reduce" and total.data == "sum" and total.args[0] == v.args[0]


def _is_largest_of(loops: LoopNest, number: int, what: int) -> bool:
    v = loops.values[number]
    return v.op == "reduce" and v.data == "max" and v.args[0] == what


def passes_over_nan(loops: LoopNest, number: int) -> bool:
    """Whether a maximum along rows may ignore NaN, because every value computed from it is NaN in such a row anyway."""
    most = loops.values[number]
    if most.op != "reduce" or most.data != "max" or not most.dtype.is_floating:
        return False
    made: set[int] = {number}  # of the maximum
    here: set[int] = {most.args[0]}  # NaN where an element of the row is
    everywhere: set[int] = set()  # NaN in the whole row
    for i, v in enumerate(loops.values):
        if made & set(v.args):
            made.add(i)
        if v.op in _SPREAD_NAN or _is_cast(loops, v):
            if everywhere & set(v.args):
                everywhere.add(i)
            if here & set(v.args):
                here.add(i)
        elif v.op == "reduce" and v.data in _SPREAD_NAN_ALONG and (here | everywhere) & set(v.args):
            everywhere.add(i)
    return all(s.value in everywhere for s in loops.stores if s.value in made)


def _is_cast(loops: LoopNest, v: Value) -> bool:
    return v.op == "cast" and v.dtype.is_floating and loops.values[v.args[0]].dtype.is_floating


def has_short_rows(loops: LoopNest, sizes: Sequence[int | None]) -> bool:
    """Whether the loops reduce rows that are known to be short, after an axis that may be long.

    `sizes`: the static sizes of the axes.
    """
    kept, reduced = loops.kept_axes, loops.reduced_axes
    if not kept or not reduced or kept[-1] > reduced[-1]:
        return False
    row, several = ([sizes[a] for a in axes] for axes in (reduced, kept[-1:]))
    if None in row or math.prod(n or 1 for n in row) > _SHORT or several[0] is not None and several[0] < _SHORT:
        return False
    stages, values = loops.stages(), loops.values
    if max(stages) < 2 and not any(v.op in COSTLY and loops.is_full(i) for i, v in enumerate(values)):
        return False  # a single sum is as fast along the row
    # Random numbers and running sums are computed along rows.
    return not any(v.op in ("random", "scan") for v in values) and all(s.row is None for s in loops.stores)
