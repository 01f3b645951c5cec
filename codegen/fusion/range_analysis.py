"""Facts about value ranges along a row, which save instructions in a kernel.

A softmax, in all its forms, subtracts the maximum of a row before it takes exponentials, and divides by their sum. So the arguments
of its exponentials are at most 0. And the maximum may ignore NaN: a NaN element stays NaN after the subtraction and makes the sum
NaN, and so every value computed from the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.loop_nest import LoopNest, Value

_SPREAD_NAN = frozenset(
    ("neg", "abs", "sqrt", "exp", "expm1", "log", "log1p", "tanh", "erf", "add", "sub", "mul", "div")
)
"""Operations whose result is NaN if an operand is."""
_SPREAD_NAN_ALONG = frozenset(("sum", "prod"))
"""Reductions whose result is NaN if an element is, in every implementation."""


def is_below_zero(loops: LoopNest, number: int) -> bool:
    """Whether a value is at most 0 or NaN, because it is an element minus the maximum of its row."""
    v = loops.values[number]
    return v.op == "sub" and _reduces(loops, v.args[1], "max", v.args[0])


def is_part(loops: LoopNest, v: Value) -> bool:
    """Whether a quotient is an exponential over its row's sum, as in a softmax: from 0 to 1, with one divisor per row."""
    part, total = v.args
    return loops.values[part].op == "exp" and _reduces(loops, total, "sum", part)


def _reduces(loops: LoopNest, number: int, kind: str, what: int) -> bool:
    v = loops.values[number]
    return v.op == "reduce" and v.data == kind and v.args[0] == what


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


# --- online reductions -----------------------------------------------------------------------------------------------
# A softmax takes the maximum and then a sum of exp(x - maximum); a variance takes a mean and then a sum of squares of x - mean. As
# written, each needs its own pass over the data. But the running sum can be corrected whenever the running maximum or mean moves, so
# one pass gives both (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Welford, "Note on a method for
# calculating corrected sums of squares and products", 1962). This module finds the pairs. They matter only where data is read more
# than once: for rows that do not fit into one tile.


SOFTMAX, VARIANCE = "softmax", "variance"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two reductions that one pass can compute.

    Attributes:
        kind: SOFTMAX or VARIANCE.
        first: the maximum, or the sum that the mean is made from.
        second: the sum of exponentials, or of squares.
        of: the operand of the reductions.
        mean: for VARIANCE, the mean, the only value that needs the sum.
    """

    kind: str
    first: int
    second: int
    of: int
    mean: int = -1


def pairs_of(loops: LoopNest, *, whole: bool = True) -> dict[int, Pair]:
    """The pairs, by their first reductions.

    `whole`: the loops are complete, not a part of others that only stores reductions. Then a store of a sum counts as a user of it.
    """
    values = loops.values
    out: dict[int, Pair] = {}
    for second, v in enumerate(values):
        if v.op != "reduce" or v.data != "sum" or not v.dtype.is_floating:
            continue
        argument = values[v.args[0]]
        pair = None
        if argument.op == "exp" and values[argument.args[0]].op == "sub":
            of, first = values[argument.args[0]].args
            if _reduces(loops, first, "max", of):
                pair = Pair(SOFTMAX, first, second, of)
        elif argument.op == "mul" and argument.args[0] == argument.args[1] and values[argument.args[0]].op == "sub":
            of, mean = values[argument.args[0]].args
            if values[mean].op == "div":
                first, count = values[mean].args
                is_mean = _reduces(loops, first, "sum", of) and values[count].op == "count"
                users = [i for i, user in enumerate(values) if first in user.args]
                is_stored = whole and any(s.value == first for s in loops.stores)
                if is_mean and users == [mean] and not is_stored:
                    pair = Pair(VARIANCE, first, second, of, mean)
        if pair is not None and pair.first not in out and values[pair.first].axes == v.axes:
            out[pair.first] = pair
    return out
