"""The loops of matrix products: blocked and packed GEMM (Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008).

A unit of work is a block of the product: some rows, and all columns of a few panels. INNER steps of the summed axis are done at a
time, so that what is read again stays in the caches. What a thread packed for a unit of work serves the next one, too, if that needs
the same. Each sum is one chain along the summed axis, whichever thread computes it, so results do not depend on the number of threads.

Each thread has a contiguous part of the units, and steals from others when its own are done: the data that it wrote or read in the
previous kernel is still in its core's caches.

See `emit.instantiate` for how this text becomes a kernel.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.kernels.gemv_source import matrix_by_column, row_by_matrix
from dovetail.codegen.cpu.kernels.microkernel import (
    MR,
    NR,
    SQUARE,
    first_tile,
    half_tile,
    move_columns,
    move_rows,
    tile,
    tile_ahead,
    transpose,
)  # fmt: skip
from dovetail.codegen.cpu.native.machine import count_now, count_up
from dovetail.codegen.cpu.work_ranges import FINISHED, LINE

INNER = 256  # steps at a time: a panel of that many stays in the L1 cache
LONG = 1024  # of a product that is turned: it reads its large factor row by row, and has few panels, which stay in the second cache
GROUPS = 4  # of rows that are interleaved at a time: more would conflict in the same sets of the L1 cache
LOOKS = 20_000  # at how many units are finished, some 50 microseconds: a unit takes about as long
NR32, NR64 = NR["float32"], NR["float64"]


@njit(error_model="numpy")
def lay_out_rows(x, block, at, jumps, high, steps):
    """Pack rows that are contiguous across the summed axis: MR of them interleaved, one group after the other."""
    whole = high // MR
    for first in range(0, whole, GROUPS):
        groups = min(GROUPS, whole - first)
        for k in range(steps):
            of, to = at + first * MR + k * jumps[1], (first * steps + k) * MR
            for _ in range(groups):
                move_rows(block, to, x, of)
                of, to = of + MR, to + MR * steps
    for k in range(steps):
        for j in range(high - whole * MR):
            m.store(block, 0, (whole * steps + k) * MR + j, m.load(x, 1, at + whole * MR + j + k * jumps[1]))


@njit(error_model="numpy")
def lay_out_panels(x, panel, begin, at, jumps, columns, steps, lanes):
    """Pack panels of the second factor, one after the other, from `begin` on. jumps: to the next step, to the next column."""
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
    if more:
        for i in range(high):
            for j in range(columns):
                m.store(sums, 1, i * wide + j, m.load(out, 0, to + i * out_jump + j))
    if wide == lanes:
        tile(x, at, row_jump, jump, high, steps, panel, begin, sums, 0, lanes, more)
    else:
        half_tile(x, at, row_jump, jump, high, steps, panel, begin, sums, 0, wide, more)
    for i in range(high):
        for j in range(columns):
            m.store(out, 0, to + i * out_jump + j, m.load(sums, 1, i * wide + j))


@njit(error_model="numpy")
def tiles(x, at, tile_jump, row_jump, jump, high, columns, steps, panels, panel, lanes, out, to, out_jump, more, sums):
    """A block of a product from packed factors: `high` rows of the first factor, and the panels of that many columns.

    Rows of the first factor are `row_jump` apart, tiles of them MR * `tile_jump`, and steps `jump`. The block begins at `to`, with rows
    `out_jump` apart; `more`: it is added to what is there.
    """
    for j in range(0, columns, lanes):
        own, begin = min(lanes, columns - j), panel + j * steps
        for i in range(0, high, MR):
            few, start, place = min(MR, high - i), at + i * tile_jump, to + i * out_jump + j
            left = x, start, row_jump, jump, few, steps, panels, begin
            if own == lanes:
                tile(*left, out, place, out_jump, more)
            else:
                wide = lanes if 2 * own > lanes else lanes // 2
                narrow(*left, wide, lanes, own, out, place, out_jump, more, sums)


@njit(error_model="numpy")
def first_tiles(
    x, at, tile_jump, row_jump, jump, high, columns, steps, b, source, jumps, next, panels, lanes, out, to, out_jump, more, sums
):  # fmt: skip
    """`tiles` of panels that are not packed yet: columns of `b` from `source` on, which are contiguous.

    The first tile of each whole panel packs it. The others prefetch the panel that follows, or, after the last one, the panel at
    `next`. Otherwise each short piece of a row of a large matrix would be a cache miss.
    """
    tall = (high + MR - 1) // MR
    share = (steps + max(1, tall - 1) - 1) // max(1, tall - 1)  # rows of a panel that a tile asks for
    for j in range(0, columns, lanes):
        begin = j * steps
        if columns - j < lanes:
            lay_out_panels(b, panels, begin, source + j, jumps, columns - j, steps, lanes)
            rest = at, tile_jump, row_jump, jump, high, columns - j, steps
            tiles(x, *rest, panels, begin, lanes, out, to + j, out_jump, more, sums)
            break
        following = source + j + lanes if j + lanes < columns else next
        for i in range(0, high, MR):
            few, start, place = min(MR, high - i), at + i * tile_jump, to + i * out_jump + j
            left = x, start, row_jump, jump, few, steps
            if i == 0:
                first_tile(*left, b, source + j, jumps[0], panels, begin, out, place, out_jump, more)
            else:
                asked = (i // MR - 1) * share
                rows = max(0, min(share, steps - asked))
                ahead = following + asked * jumps[0]
                tile_ahead(*left, panels, begin, b, ahead, jumps[0], rows, out, place, out_jump, more)


@njit(error_model="numpy")
def turn(x, of, x_jump, high, columns, out, to, out_jump):
    """out[to + j * out_jump + i] = x[of + i * x_jump + j] for i < high and j < columns."""
    down, across = high // SQUARE * SQUARE, columns // SQUARE * SQUARE
    for j in range(0, across, SQUARE):
        for i in range(0, down, SQUARE):
            transpose(out, to + j * out_jump + i, out_jump, x, of + i * x_jump + j, x_jump)
    for j in range(columns):
        for i in range(down if j < across else 0, high):
            m.store(out, 0, to + j * out_jump + i, m.load(x, 1, of + i * x_jump + j))


@njit(error_model="numpy")
def place_of(matrix, counts, jumps):
    """Where a matrix begins: `counts` and `jumps` of the axes of the stack."""
    return (
        matrix // (counts[1] * counts[2]) * jumps[0]
        + matrix // counts[2] % counts[1] * jumps[1]
        + matrix % counts[2] * jumps[2]
    )


@njit(error_model="numpy")
def next_unit(counters, thread, units):
    """The next unit to work on, or -1: the next one of this thread's part, then the last ones of other parts (work stealing)."""
    threads = counters.size // LINE - 1
    for i in range(threads):
        owner = (thread + i) % threads
        first, last = units * owner // threads, units * (owner + 1) // threads
        taken = count_up(counters, (owner + 1) * LINE, 1 if i == 0 else 1 << 32)
        front, back = taken & 0xFFFFFFFF, taken >> 32
        if front + back < last - first:
            return first + front if i == 0 else last - 1 - back
    return -1


@njit(error_model="numpy")
def wait(counters, units):
    """Spin for a while until all units are finished."""
    looks = 0
    while looks < LOOKS and count_now(counters, FINISHED) < units:
        looks += 1


def multiply(a, b, c, room, counters, sizes, counts, a_jumps, b_jumps, unit, thread, units):
    """The units of all products, shared with all threads that call this with the same counters; `thread`: the number of this one.

    The caller, thread 0, spins for a while until the others have finished, which avoids a sleep and a wake-up. Helpers leave at
    once: while they hold the arrays, the following kernels cannot overwrite a result.

    room: packing buffers of all threads. sizes: (rows, inner, columns). counts: of the stack's three axes. a_jumps, b_jumps: to the next
    matrix along each of these, then to the next row and column. unit: (rows, panels) of a unit, steps at a time, and 1 where the
    product is written transposed.
    """
    rows, inner, columns = sizes
    tall, wide = unit[0], unit[1] * (NR32 if a.itemsize == 4 else NR64)
    lanes = NR32 if a.itemsize == 4 else NR64
    down, across = (rows + tall - 1) // tall, (columns + wide - 1) // wide
    most, is_turned = unit[2], unit[3] > 0
    times = max(1, (inner + most - 1) // most)
    direct, lies_in_rows = a_jumps[4] == 1, b_jumps[4] == 1
    mine = room.size // (counters.size // LINE - 1)
    aside = room[thread * mine : thread * mine + (tall * wide if is_turned else 0)]
    panels = room[thread * mine + aside.size : thread * mine + aside.size + most * wide]
    block = room[thread * mine + aside.size + panels.size : (thread + 1) * mine - MR * lanes]
    sums = room[(thread + 1) * mine - MR * lanes : (thread + 1) * mine]
    out, out_jump = (aside, wide) if is_turned else (c, columns)
    packed_rows, packed_panels = -1, -1  # what `block` and `panels` hold
    while True:
        work = next_unit(counters, thread, units)
        if work < 0:
            break
        matrix, within = work // (down * across), work % (down * across)
        row, part = within % down, within // down
        top, left = row * tall, part * wide
        of, at = place_of(matrix, counts, a_jumps), place_of(matrix, counts, b_jumps)
        high, width = min(tall, rows - top), min(wide, columns - left)
        begin_of_matrix = matrix * rows * columns
        begin = begin_of_matrix + top * columns
        if columns == 1 and direct and b_jumps[3] == 1:
            matrix_by_column(a, of + top * a_jumps[3], a_jumps[3], high, inner, b, at, c, begin_of_matrix + top)
            count_up(counters, FINISHED, 1)
            continue
        if rows == 1 and lies_in_rows:
            row_by_matrix(a, of, a_jumps[4], b, at + left, b_jumps[3], width, inner, c, begin_of_matrix + left)
            count_up(counters, FINISHED, 1)
            continue
        for time in range(times):
            k0 = time * most
            steps, more = min(most, inner - k0), k0 > 0
            name = (matrix * across + part) * times + time
            is_new = packed_panels != name
            packed_panels = name
            source = at + k0 * b_jumps[3] + left * b_jumps[4]
            if is_new and not lies_in_rows:
                lay_out_panels(b, panels, 0, source, (b_jumps[3], b_jumps[4]), width, steps, lanes)
            start = of + top * a_jumps[3] + k0 * a_jumps[4]
            if not direct:
                name = (matrix * down + row) * times + time
                if packed_rows != name:
                    packed_rows = name
                    lay_out_rows(a, block, start, (a_jumps[3], a_jumps[4]), high, steps)
                start = 0
            to = 0 if is_turned else begin + left
            if direct:
                rest = start, a_jumps[3], a_jumps[3], 1, high, width, steps
            else:
                rest = start, steps, 1, MR, high, width, steps
            factor = a if direct else block
            if is_new and lies_in_rows:
                next = source + most * b_jumps[3] if time + 1 < times else at + left + wide
                jumps = b_jumps[3], b_jumps[4]
                first_tiles(factor, *rest, b, source, jumps, next, panels, lanes, out, to, out_jump, more, sums)
            else:
                tiles(factor, *rest, panels, 0, lanes, out, to, out_jump, more, sums)
        if is_turned:
            turn(aside, 0, wide, high, width, c, begin_of_matrix + left * rows + top, rows)
        count_up(counters, FINISHED, 1)
    if thread == 0:
        wait(counters, units)
