"""What compiled matrix products do, as functions that Numba compiles; see `image_loops` for how this text is used.

The second factor is laid out in panels first (`pack`), so that a tile reads it from front to back. Then each unit of work makes a
block of the product, ROW_BLOCK rows high: INNER_BLOCK steps of the summed axis at a time, so that what is read again and again
stays in the caches (Goto and van de Geijn, 2008). A product of no more rows than one block uses each panel once, and makes it there
and then (`multiply_low`). The numbers are added in one order, whoever computes them.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.tile import ROWS, move, tile, tile_at

ROW_BLOCK, INNER_BLOCK, STRETCH = 96, 256, 64
APART = (
    INNER_BLOCK + 16
)  # from row to row of a block: a power of two would put all rows into the same few lines of the cache


@njit(error_model="numpy")
def even(inner):
    """Steps of the summed axis that are done at a time: as many each time."""
    times = max(1, (inner + INNER_BLOCK - 1) // INNER_BLOCK)
    return max(1, (inner + times - 1) // times)


@njit(error_model="numpy")
def lay_out(a, block, at, jumps, high, steps):
    """A block of the first factor, row by row."""
    if jumps[1] == 1:
        for k in range(steps):
            for i in range(high):
                m.store(block, 0, i * APART + k, m.load(a, 1, at + i + k * jumps[2]))
    elif jumps[2] == 1:
        for i in range(high):
            for k in range(steps):
                m.store(block, 0, i * APART + k, m.load(a, 1, at + i * jumps[1] + k))
    else:
        for k1 in range(0, steps, STRETCH):
            for i in range(high):
                for k in range(k1, min(k1 + STRETCH, steps)):
                    m.store(block, 0, i * APART + k, m.load(a, 1, at + i * jumps[1] + k * jumps[2]))


def pack(b, panel, lanes, sizes, jumps, lo, hi):
    """Panels lo to hi of all matrices. sizes: (inner, columns). jumps: in b, to the next matrix, row, column."""
    inner, columns = sizes
    count = (columns + lanes - 1) // lanes
    if jumps[2] == 1:  # row by row, as b lies: panels of the range are written side by side
        i = lo
        while i < hi:
            first = i % count
            whole = min(hi - i, columns // lanes - first)  # panels of one matrix that have all their columns
            if whole > 0:
                begin = i // count * jumps[0] + first * lanes
                for k in range(inner):
                    at, to = begin + k * jumps[1], (i * inner + k) * lanes
                    for _ in range(whole):
                        move(panel, to, b, at)
                        at, to = at + lanes, to + inner * lanes
                i += whole
            else:
                for k in range(inner):
                    at = i // count * jumps[0] + first * lanes + k * jumps[1]
                    for j in range(columns - first * lanes):
                        panel[(i * inner + k) * lanes + j] = b[at + j]
                i += 1
    else:
        for i in range(lo, hi):
            at = i // count * jumps[0] + i % count * lanes * jumps[2]
            for k0 in range(0, inner, STRETCH):  # so that what is written stays in the nearest cache
                for j in range(min(lanes, columns - i % count * lanes)):
                    to, of = (i * inner + k0) * lanes + j, at + j * jumps[2] + k0 * jumps[1]
                    for k in range(min(STRETCH, inner - k0)):
                        m.store(panel, 0, to + k * lanes, m.load(b, 1, of + k * jumps[1]))
    for i in range(lo, hi):
        for j in range(columns - i % count * lanes, lanes):
            for k in range(inner):
                panel[(i * inner + k) * lanes + j] = 0


def multiply(a, panel, c, lanes, sizes, jumps, group, lo, hi):
    """Blocks lo to hi of all products. sizes: (rows, inner, columns). jumps: in a, to the next matrix, row, column.

    group: (panels in a block,).
    """
    rows, inner, columns = sizes
    count, most = (columns + lanes - 1) // lanes, even(inner)
    down, across = (rows + ROW_BLOCK - 1) // ROW_BLOCK, (count + group[0] - 1) // group[0]
    sums, block = np.empty(ROWS * lanes, a.dtype), np.empty(ROW_BLOCK * APART, a.dtype)
    for unit in range(lo, hi):
        matrix = unit // (down * across)
        top = unit // across % down * ROW_BLOCK
        high = min(ROW_BLOCK, rows - top)
        first = unit % across * group[0]
        for k0 in range(0, inner, most):
            steps = min(most, inner - k0)
            at = matrix * jumps[0] + top * jumps[1] + k0 * jumps[2]
            lay_out(a, block, at, jumps, high, steps)
            for p in range(first, min(first + group[0], count)):
                width = min(lanes, columns - p * lanes)
                begin = ((matrix * count + p) * inner + k0) * lanes
                for i in range(0, high, ROWS):
                    last = high - 1  # rows that are too many are computed and dropped
                    offsets = (
                        i * APART, min(i + 1, last) * APART, min(i + 2, last) * APART,
                        min(i + 3, last) * APART, min(i + 4, last) * APART, min(i + 5, last) * APART,
                    )  # fmt: skip
                    if width == lanes:
                        to = (matrix * rows + top + i) * columns + p * lanes
                        places = (
                            to, to + min(1, last - i) * columns, to + min(2, last - i) * columns,
                            to + min(3, last - i) * columns, to + min(4, last - i) * columns, to + min(5, last - i) * columns,
                        )  # fmt: skip
                        tile_at(block, offsets, steps, panel, begin, c, places, k0 > 0)
                        continue
                    tile(block, offsets, (1, 1, steps), (0, 0, 1), panel, begin, sums)
                    for row in range(min(ROWS, high - i)):
                        to = ((matrix * rows) + top + i + row) * columns + p * lanes
                        if k0 == 0:
                            for j in range(width):
                                m.store(c, 0, to + j, m.load(sums, 1, row * lanes + j))
                        else:
                            for j in range(width):
                                m.store(c, 0, to + j, m.load(c, 0, to + j) + m.load(sums, 1, row * lanes + j))


def multiply_low(a, b, c, lanes, sizes, jumps, b_jumps, group, lo, hi):
    """The same for products of one block of rows: each panel is made where it is used, once, and never leaves the cache.

    b_jumps: in b, to the next matrix, row, column.
    """
    rows, inner, columns = sizes
    count, most = (columns + lanes - 1) // lanes, even(inner)
    across = (count + group[0] - 1) // group[0]
    sums, block = np.empty(ROWS * lanes, a.dtype), np.empty(ROW_BLOCK * APART, a.dtype)
    panel = np.zeros(INNER_BLOCK * lanes, a.dtype)
    for unit in range(lo, hi):
        matrix, first = unit // across, unit % across * group[0]
        for k0 in range(0, inner, most):
            steps = min(most, inner - k0)
            at = matrix * jumps[0] + k0 * jumps[2]
            lay_out(a, block, at, jumps, rows, steps)
            for p in range(first, min(first + group[0], count)):
                width = min(lanes, columns - p * lanes)
                of = matrix * b_jumps[0] + k0 * b_jumps[1] + p * lanes * b_jumps[2]
                if b_jumps[2] == 1 and width == lanes:
                    for k in range(steps):
                        move(panel, k * lanes, b, of + k * b_jumps[1])
                else:  # columns that are missing hold what was there: their sums are dropped
                    for k1 in range(0, steps, STRETCH):
                        for j in range(width):
                            for k in range(k1, min(k1 + STRETCH, steps)):
                                m.store(panel, 0, k * lanes + j, m.load(b, 1, of + k * b_jumps[1] + j * b_jumps[2]))
                for i in range(0, rows, ROWS):
                    last = rows - 1
                    offsets = (
                        i * APART, min(i + 1, last) * APART, min(i + 2, last) * APART,
                        min(i + 3, last) * APART, min(i + 4, last) * APART, min(i + 5, last) * APART,
                    )  # fmt: skip
                    if width == lanes:
                        to = (matrix * rows + i) * columns + p * lanes
                        places = (
                            to, to + min(1, last - i) * columns, to + min(2, last - i) * columns,
                            to + min(3, last - i) * columns, to + min(4, last - i) * columns, to + min(5, last - i) * columns,
                        )  # fmt: skip
                        tile_at(block, offsets, steps, panel, 0, c, places, k0 > 0)
                        continue
                    tile(block, offsets, (1, 1, steps), (0, 0, 1), panel, 0, sums)
                    for row in range(min(ROWS, rows - i)):
                        to = (matrix * rows + i + row) * columns + p * lanes
                        if k0 == 0:
                            for j in range(width):
                                m.store(c, 0, to + j, m.load(sums, 1, row * lanes + j))
                        else:
                            for j in range(width):
                                m.store(c, 0, to + j, m.load(c, 0, to + j) + m.load(sums, 1, row * lanes + j))
