"""Online reductions: two reductions in one pass, where the second needs the first only for accuracy.

A softmax takes the maximum and then a sum of exp(x - maximum); a variance takes a mean and then a sum of squares of x - mean. As
written, each needs its own pass over the data. But the running sum can be corrected whenever the running maximum or mean moves, so
one pass gives both (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Welford, "Note on a method for
calculating corrected sums of squares and products", 1962). This module finds the pairs. They matter only where data is read more
than once: for rows that do not fit into one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.loop_nest import LoopNest

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
            if values[first].op == "reduce" and values[first].data == "max" and values[first].args == (of,):
                pair = Pair(SOFTMAX, first, second, of)
        elif argument.op == "mul" and argument.args[0] == argument.args[1] and values[argument.args[0]].op == "sub":
            of, mean = values[argument.args[0]].args
            if values[mean].op == "div":
                first, count = values[mean].args
                is_sum = values[first].op == "reduce" and values[first].data == "sum" and values[first].args == (of,)
                if is_sum and values[count].op == "count" and _users(loops, first, whole) == [mean]:
                    pair = Pair(VARIANCE, first, second, of, mean)
        if pair is not None and pair.first not in out and values[pair.first].axes == v.axes:
            out[pair.first] = pair
    return out


def _users(loops: LoopNest, number: int, whole: bool) -> list[int]:
    """The values that are made from a value; -1 for an output."""
    users = [i for i, v in enumerate(loops.values) if number in v.args]
    return users + [-1 for s in loops.stores if whole and s.value == number]
