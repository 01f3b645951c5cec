"""What a kernel can know of values along a row, and so do with fewer instructions.

A softmax, in all its forms, subtracts the largest number of a row before it takes exponentials, and divides by their sum. So its
exponentials are those of numbers that are not above 0. And the largest number may pass over NaN: what is NaN is so again after the
subtraction, makes the sum NaN, and with it all that is made of the sum.

And whether rows are short: a vector along one would be shorter than a vector of the machine, so it is better to have one of several
rows' first elements, then one of their second ones, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir.loop_nest import COSTLY, LoopNest, Value

_SHORT = (
    32  # elements of a row: two vectors of 64 bytes. Elements of several rows are apart, and are collected one by one
)

_SPREAD_NAN = frozenset(
    ("neg", "abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "erf", "add", "sub", "mul", "div")
)
"""Operations whose result is NaN when one of what they take is."""
_SPREAD_NAN_ALONG = frozenset(("sum", "prod"))
"""Reductions of which that is true, whatever is done for speed."""


def is_below_zero(loops: LoopNest, number: int) -> bool:
    """Whether a value is never above 0 (or is NaN), because it is a number less the largest of those beside it."""
    v = loops.values[number]
    return v.op == "sub" and _is_largest_of(loops, v.args[1], v.args[0])


def is_part(loops: LoopNest, v: Value) -> bool:
    """Whether a quotient is that of an exponential and the sum of these along rows, as in a softmax: from 0 to 1, one divisor."""
    part, total = (loops.values[a] for a in v.args)
    return part.op == "exp" and total.op == "reduce" and total.data == "sum" and total.args[0] == v.args[0]


def _is_largest_of(loops: LoopNest, number: int, what: int) -> bool:
    v = loops.values[number]
    return v.op == "reduce" and v.data == "max" and v.args[0] == what


def passes_over_nan(loops: LoopNest, number: int) -> bool:
    """Whether a maximum along rows may leave out NaN, because all that is made of it is NaN in such a row anyhow."""
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
    """Whether what is reduced are rows that are known to be short, behind an axis that may be long.

    `sizes`: static ones of the axes.
    """
    kept, reduced = loops.kept_axes, loops.reduced_axes
    if not kept or not reduced or kept[-1] > reduced[-1]:
        return False
    row, several = ([sizes[a] for a in axes] for axes in (reduced, kept[-1:]))
    if None in row or math.prod(n or 1 for n in row) > _SHORT or several[0] is not None and several[0] < _SHORT:
        return False
    stages, values = loops.stages(), loops.values
    if max(stages) < 2 and not any(v.op in COSTLY and loops.is_full(i) for i, v in enumerate(values)):
        return False  # one sum is made as fast along the row
    # Random numbers and running sums are made along rows.
    return not any(v.op in ("random", "scan") for v in values) and all(s.row is None for s in loops.stores)
