"""What compiled matrix products do, as functions that Numba compiles; see `image_loops` for how this text is used.

A unit of work is a block of the product: all columns of a few panels, and many rows. INNER steps of the summed axis are done at a
time, so that what is read again and again stays in the caches (Goto and van de Geijn, 2008): the panels of the second factor are
laid out for these steps, then HIGH rows of the first factor at a time go over them. The numbers are added in one order, whoever
computes them.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.matrix_tile import (
    MR,
    NR,
    SQUARE,
    count_now,
    count_up,
    half_tile,
    move_columns,
    move_rows,
    tile,
    transpose,
)  # fmt: skip
from dovetail.codegen.threads import FINISHED, TAKEN

HIGH, INNER = 96, 256  # rows (a multiple of all MR) and steps: together they fit into the second cache
LOOKS = 20_000  # at how many units are finished, some 50 microseconds: a unit takes about as long
NR32, NR64 = NR["float32"], NR["float64"]


@njit(error_model="numpy")
def lay_out_rows(x, block, at, jumps, high, steps):
    """Rows that are contiguous across the summed axis: MR of them interleaved, one group after the other."""
    whole = high // MR
    for k in range(steps):
        of, to = at + k * jumps[1], k * MR
        for _ in range(whole):
            move_rows(block, to, x, of)
            of, to = of + MR, to + MR * steps
    for k in range(steps):
        for j in range(high - whole * MR):
            m.store(block, 0, (whole * steps + k) * MR + j, m.load(x, 1, at + whole * MR + j + k * jumps[1]))


@njit(error_model="numpy")
def lay_out_panels(x, panel, at, jumps, columns, steps, lanes):
    """Panels of the second factor, one after the other. jumps: to the next step, to the next column."""
    whole = columns // lanes
    if jumps[1] == 1:
        for k in range(steps):
            of, to = at + k * jumps[0], k * lanes
            for _ in range(whole):
                move_columns(panel, to, x, of)
                of, to = of + lanes, to + lanes * steps
    else:
        squares = steps // SQUARE * SQUARE
        for p in range(whole):
            for j in range(0, lanes, SQUARE):
                of, to = at + (p * lanes + j) * jumps[1], p * lanes * steps + j
                for k in range(0, squares, SQUARE):
                    transpose(panel, to + k * lanes, lanes, x, of + k, jumps[1])
                for k in range(squares, steps):
                    for i in range(SQUARE):
                        m.store(panel, 0, to + k * lanes + i, m.load(x, 1, of + i * jumps[1] + k * jumps[0]))
    rest = columns - whole * lanes
    if rest > 0:
        wide = lanes if 2 * rest > lanes else lanes // 2
        of, to = at + whole * lanes * jumps[1], whole * lanes * steps
        for k in range(steps):
            for j in range(rest):
                m.store(panel, 0, to + k * wide + j, m.load(x, 1, of + j * jumps[1] + k * jumps[0]))
            for j in range(rest, wide):
                m.store(panel, 0, to + k * wide + j, x.dtype.type(0))


@njit(error_model="numpy")
def narrow(x, at, row_jump, jump, high, steps, panel, begin, wide, lanes, columns, out, to, out_jump, more, sums):
    """A tile with fewer columns than its panel: by way of `sums`."""
    if wide == lanes:
        tile(x, at, row_jump, jump, high, steps, panel, begin, sums, 0, lanes, False)
    else:
        half_tile(x, at, row_jump, jump, high, steps, panel, begin, sums, 0, wide, False)
    for i in range(high):
        for j in range(columns):
            value = m.load(sums, 1, i * wide + j)
            if more:
                value += m.load(out, 0, to + i * out_jump + j)
            m.store(out, 0, to + i * out_jump + j, value)


@njit(error_model="numpy")
def place_of(matrix, counts, jumps):
    """Where a matrix begins: `counts` and `jumps` of the axes of the stack."""
    return (
        matrix // (counts[1] * counts[2]) * jumps[0]
        + matrix // counts[2] % counts[1] * jumps[1]
        + matrix % counts[2] * jumps[2]
    )


@njit(error_model="numpy")
def wait(counters, units):
    """Look for a while whether all units are finished."""
    looks = 0
    while looks < LOOKS and count_now(counters, FINISHED) < units:
        looks += 1


def multiply(a, b, c, counters, sizes, counts, a_jumps, b_jumps, unit, lo, hi):
    """Units lo to hi of all products, shared with all who call this with the same counters.

    Who finds none left looks for a while whether the others have finished theirs, which spares it being put to sleep and woken.

    sizes: (rows, inner, columns). counts: of the stack's three axes. a_jumps, b_jumps: to the next matrix along each of these, then
    to the next row and column. unit: (rows, panels) of a unit of work.
    """
    rows, inner, columns = sizes
    lanes = NR32 if a.itemsize == 4 else NR64
    down, wide = (rows + unit[0] - 1) // unit[0], unit[1] * lanes
    across = (columns + wide - 1) // wide
    times = max(1, (inner + INNER - 1) // INNER)
    most = max(1, (inner + times - 1) // times)  # as many steps each time
    direct = a_jumps[4] == 1
    panel, sums = np.empty(most * wide, a.dtype), np.empty(MR * lanes, a.dtype)
    block = np.empty(0 if direct else HIGH * most, a.dtype)
    while True:
        work = lo + count_up(counters, TAKEN)
        if work >= hi:
            break
        matrix, top, left = work // (down * across), work // across % down * unit[0], work % across * wide
        of, at = place_of(matrix, counts, a_jumps), place_of(matrix, counts, b_jumps)
        high, width = min(unit[0], rows - top), min(wide, columns - left)
        begin = (matrix * rows + top) * columns + left
        for k0 in range(0, max(inner, 1), most):
            steps, more = min(most, inner - k0), k0 > 0
            lay_out_panels(
                b, panel, at + k0 * b_jumps[3] + left * b_jumps[4], (b_jumps[3], b_jumps[4]), width, steps, lanes
            )
            for i0 in range(0, high, HIGH):
                some = min(HIGH, high - i0)
                start = of + (top + i0) * a_jumps[3] + k0 * a_jumps[4]
                if not direct:
                    lay_out_rows(a, block, start, (a_jumps[3], a_jumps[4]), some, steps)
                for j in range(0, width, lanes):
                    own = min(lanes, width - j)
                    for i in range(0, some, MR):
                        few, to = min(MR, some - i), begin + (i0 + i) * columns + j
                        if direct:
                            if own == lanes:
                                tile(
                                    a,
                                    start + i * a_jumps[3],
                                    a_jumps[3],
                                    1,
                                    few,
                                    steps,
                                    panel,
                                    j * steps,
                                    c,
                                    to,
                                    columns,
                                    more,
                                )
                            else:
                                half = lanes if 2 * own > lanes else lanes // 2
                                narrow(
                                    a, start + i * a_jumps[3], a_jumps[3], 1, few, steps, panel, j * steps, half, lanes, own, c,
                                    to, columns, more, sums,
                                )  # fmt: skip
                        elif own == lanes:
                            tile(block, i * steps, 1, MR, few, steps, panel, j * steps, c, to, columns, more)
                        else:
                            half = lanes if 2 * own > lanes else lanes // 2
                            narrow(
                                block,
                                i * steps,
                                1,
                                MR,
                                few,
                                steps,
                                panel,
                                j * steps,
                                half,
                                lanes,
                                own,
                                c,
                                to,
                                columns,
                                more,
                                sums,
                            )
        count_up(counters, FINISHED)
    wait(counters, hi - lo)
