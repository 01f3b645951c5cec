"""What compiled matrix products do, as functions that Numba compiles; see `image_loops` for how this text is used.

A unit of work is a block of the product: some rows, and all columns of a few panels. INNER steps of the summed axis are done at a
time, so that what is read again and again stays in the caches (Goto and van de Geijn, 2008). What is laid out for a unit, panels of
the second factor and rows of the first, stays laid out for the next ones that need it, as far as the second cache holds it: each
thread has its own places for that. The numbers are added in one order, whoever computes them.

Each thread has a part of the units, which lie beside each other, and takes those of others only when its own are done: what it
wrote, or read, in the kernel before is still in its core's caches.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

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
from dovetail.codegen.threads import FINISHED, LINE

INNER = 256  # steps at a time: a panel of so many stays in the first cache
GROUPS = 4  # of rows that are interleaved at a time: more would lie in the same places of the first cache
LOOKS = 20_000  # at how many units are finished, some 50 microseconds: a unit takes about as long
NR32, NR64 = NR["float32"], NR["float64"]


@njit(error_model="numpy")
def lay_out_rows(x, block, begin, at, jumps, high, steps):
    """Rows that are contiguous across the summed axis: MR of them interleaved, one group after the other, from `begin` on."""
    whole = high // MR
    for first in range(0, whole, GROUPS):
        groups = min(GROUPS, whole - first)
        for k in range(steps):
            of, to = at + first * MR + k * jumps[1], begin + (first * steps + k) * MR
            for _ in range(groups):
                move_rows(block, to, x, of)
                of, to = of + MR, to + MR * steps
    for k in range(steps):
        for j in range(high - whole * MR):
            m.store(block, 0, begin + (whole * steps + k) * MR + j, m.load(x, 1, at + whole * MR + j + k * jumps[1]))


@njit(error_model="numpy")
def lay_out_panels(x, panel, begin, at, jumps, columns, steps, lanes):
    """Panels of the second factor, one after the other, from `begin` on. jumps: to the next step, to the next column."""
    whole = columns // lanes
    if jumps[1] == 1:
        for k in range(steps):
            of, to = at + k * jumps[0], begin + k * lanes
            for _ in range(whole):
                move_columns(panel, to, x, of)
                of, to = of + lanes, to + lanes * steps
    else:
        squares = steps // SQUARE * SQUARE
        for p in range(whole):
            for j in range(0, lanes, SQUARE):
                of, to = at + (p * lanes + j) * jumps[1], begin + p * lanes * steps + j
                for k in range(0, squares, SQUARE):
                    transpose(panel, to + k * lanes, lanes, x, of + k, jumps[1])
                for k in range(squares, steps):
                    for i in range(SQUARE):
                        m.store(panel, 0, to + k * lanes + i, m.load(x, 1, of + i * jumps[1] + k * jumps[0]))
    rest = columns - whole * lanes
    if rest > 0:
        wide = lanes if 2 * rest > lanes else lanes // 2
        of, to = at + whole * lanes * jumps[1], begin + whole * lanes * steps
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
def tiles(x, at, tile_jump, row_jump, jump, high, columns, steps, panels, panel, lanes, out, to, out_jump, more, sums):
    """A block of a product from what is laid out: `high` rows of the first factor, and the panels of so many columns.

    Rows of the first factor are `row_jump` apart, tiles of them MR * `tile_jump`, and steps `jump`. The block begins at `to`, with rows
    `out_jump` apart; `more`: it is added to what is there.
    """
    for j in range(0, columns, lanes):
        own, begin = min(lanes, columns - j), panel + j * steps
        for i in range(0, high, MR):
            few, start, place = min(MR, high - i), at + i * tile_jump, to + i * out_jump + j
            if own == lanes:
                tile(x, start, row_jump, jump, few, steps, panels, begin, out, place, out_jump, more)
            else:
                wide = lanes if 2 * own > lanes else lanes // 2
                narrow(
                    x,
                    start,
                    row_jump,
                    jump,
                    few,
                    steps,
                    panels,
                    begin,
                    wide,
                    lanes,
                    own,
                    out,
                    place,
                    out_jump,
                    more,
                    sums,
                )


@njit(error_model="numpy")
def place_of(matrix, counts, jumps):
    """Where a matrix begins: `counts` and `jumps` of the axes of the stack."""
    return (
        matrix // (counts[1] * counts[2]) * jumps[0]
        + matrix // counts[2] % counts[1] * jumps[1]
        + matrix % counts[2] * jumps[2]
    )


@njit(error_model="numpy")
def next_unit(counters, who, units):
    """A unit that nobody has taken, or -1: of this thread's own part the next one, then the last ones of others."""
    threads = counters.size // LINE - 1
    for i in range(threads):
        owner = (who + i) % threads
        first, last = units * owner // threads, units * (owner + 1) // threads
        taken = count_up(counters, (owner + 1) * LINE, 1 if i == 0 else 1 << 32)
        front, back = taken & 0xFFFFFFFF, taken >> 32
        if front + back < last - first:
            return first + front if i == 0 else last - 1 - back
    return -1


@njit(error_model="numpy")
def wait(counters, units):
    """Look for a while whether all units are finished."""
    looks = 0
    while looks < LOOKS and count_now(counters, FINISHED) < units:
        looks += 1


def multiply(a, b, c, room, laid, counters, sizes, counts, a_jumps, b_jumps, unit, who, units):
    """The units of all products, shared with all who call this with the same counters; `who`: which of them this is.

    The caller, whose number is 0, looks for a while whether the others have finished theirs, which spares it being put to sleep and
    woken. Helpers leave at once: as long as they hold the arrays, a result cannot be overwritten by what follows.

    room: memory to lay out in, for all threads; laid: what each has there, -1 for nothing. sizes: (rows, inner, columns). counts: of the
    stack's three axes. a_jumps, b_jumps: to the next matrix along each of these, then to the next row and column. unit: (rows, panels) of
    a unit, and how many pieces of each factor stay laid out; a piece is what a unit needs for its steps at a time.
    """
    rows, inner, columns = sizes
    tall, wide = unit[0], unit[1] * (NR32 if a.itemsize == 4 else NR64)
    lanes = NR32 if a.itemsize == 4 else NR64
    down, across = (rows + tall - 1) // tall, (columns + wide - 1) // wide
    times = max(1, (inner + INNER - 1) // INNER)
    most = max(1, (inner + times - 1) // times)  # as many steps each time
    group = max(1, min(across, unit[3] // times))  # so many units beside each other have their panels laid out
    direct = a_jumps[4] == 1
    mine = room.size // (counters.size // LINE - 1)
    panels = room[who * mine : who * mine + unit[3] * most * wide]
    block = room[who * mine + panels.size : (who + 1) * mine - MR * lanes]
    sums = room[(who + 1) * mine - MR * lanes : (who + 1) * mine]
    has_rows = laid[who * (unit[2] + unit[3]) :][: unit[2]]
    has_panels = laid[who * (unit[2] + unit[3]) :][unit[2] : unit[2] + unit[3]]
    while True:
        work = next_unit(counters, who, units)
        if work < 0:
            break
        matrix, within = work // (down * across), work % (down * across)
        first = within // (down * group) * group
        beside = min(group, across - first)
        within -= first * down
        row, part = within // beside, first + within % beside
        top, left = row * tall, part * wide
        of, at = place_of(matrix, counts, a_jumps), place_of(matrix, counts, b_jumps)
        high, width = min(tall, rows - top), min(wide, columns - left)
        begin = (matrix * rows + top) * columns
        for time in range(times):
            k0 = time * most
            steps, more = min(most, inner - k0), k0 > 0
            name = (matrix * across + part) * times + time
            slot = name % unit[3]
            panel = slot * most * wide
            if has_panels[slot] != name:
                has_panels[slot] = name
                lay_out_panels(
                    b,
                    panels,
                    panel,
                    at + k0 * b_jumps[3] + left * b_jumps[4],
                    (b_jumps[3], b_jumps[4]),
                    width,
                    steps,
                    lanes,
                )
            start = of + top * a_jumps[3] + k0 * a_jumps[4]
            if not direct:
                name = (matrix * down + row) * times + time
                slot = name % unit[2]
                start = slot * most * tall
                if has_rows[slot] != name:
                    has_rows[slot] = name
                    lay_out_rows(
                        a, block, start, of + top * a_jumps[3] + k0 * a_jumps[4], (a_jumps[3], a_jumps[4]), high, steps
                    )
            to = begin + left
            if direct:
                tiles(
                    a,
                    start,
                    a_jumps[3],
                    a_jumps[3],
                    1,
                    high,
                    width,
                    steps,
                    panels,
                    panel,
                    lanes,
                    c,
                    to,
                    columns,
                    more,
                    sums,
                )
            else:
                tiles(block, start, steps, 1, MR, high, width, steps, panels, panel, lanes, c, to, columns, more, sums)
        count_up(counters, FINISHED, 1)
    if who == 0:
        wait(counters, units)
