"""The loops of matrix products and convolutions: blocked and packed GEMM (Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008), and implicit GEMM (Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014).

A convolution is a matrix product of pixels of the result and channels, summed over the taps and channels that a window sees; the
matrix of windows ("im2col") is never written. A product of matrices is the case of one tap: its rows are pixels, the summed axis is the
channels of the image. A unit of work is a *box* of pixels (some images, rows and columns) and some panels of channels. The taps are
packed in panels, PANEL_STEPS steps at a time, while all tiles of the box go over them (`table_tile`); the part of the image that the
windows see stays in the second cache. Where windows reach beyond the image, that part is copied, with zeros around it. Where the summed
axis is not contiguous (a transposed factor), it is packed, too. Each sum is one chain in one order, whatever the boxes and threads are.

The gradient by the filter is the same contraction, with images and channels of the image in each other's place: its rows are taps and
channels of the image, and the pixels of all images are summed. What a box sees is copied in groups of MR channels, some rows at a time.

`overlay` is the gradient by the image where it has few channels: one product of pixels and all taps, whose parts are added up (col2im).

Each thread has a contiguous part of the units, and steals from others when its own are done: the data that it wrote or read in the
previous kernel is still in its core's caches. See `emit.instantiate` for how this text becomes a kernel.
"""

import numpy as np

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.kernels import microkernel as tile
from dovetail.codegen.cpu.native.machine import take
from dovetail.codegen.cpu.work_parts import LINE
from dovetail.codegen.target import FAR_BYTES, INTERLEAVED_GROUPS, L2_BYTES, PANEL_STEPS, SMALL_MATRIX_BYTES

CHUNK = 96  # pixels of the result whose parts `overlay` adds up at a time
MR, NR32, NR64 = tile.MR, tile.NR["float32"], tile.NR["float64"]


@m.inner(error_model="numpy")
def next_unit(counters, thread, units):
    """The next unit to work on, or -1: the next one of this thread's part, then the last ones of other parts (work stealing)."""
    threads = counters.size // LINE
    for i in range(threads):
        owner = (thread + i) % threads
        first, last = units * owner // threads, units * (owner + 1) // threads
        unit = take(counters, owner * LINE, i == 0, last - first)
        if unit >= 0:
            return first + unit
    return -1


# --- packing -----------------------------------------------------------------------------------------------------------


@m.inner(error_model="numpy")
def lay_out_rows(x, block, at, jump, high, steps, apart):
    """Pack rows that are contiguous across the summed axis: MR of them interleaved, groups of these `apart`. jump: to the next step."""
    whole = high // MR
    for first in range(0, whole, INTERLEAVED_GROUPS):
        groups = min(INTERLEAVED_GROUPS, whole - first)
        for k in range(steps):
            of, to = at + first * MR + k * jump, first * apart + k * MR
            for _ in range(groups):
                tile.move_rows(block, to, x, of)
                of, to = of + MR, to + apart
    for k in range(steps):
        for j in range(high - whole * MR):
            m.store(block, 0, whole * apart + k * MR + j, m.load(x, 1, at + whole * MR + j + k * jump))


@m.inner(error_model="numpy")
def lay_out_panels(x, panel, at, jumps, columns, begin, steps, every, lanes):
    """Pack steps, from step `begin` on, of panels of the second factor that have `every` steps. jumps: to the next step, column."""
    whole, apart = columns // lanes, lanes * every
    if jumps[1] == 1:
        for k in range(steps):
            of, to = at + k * jumps[0], (begin + k) * lanes
            for _ in range(whole):
                tile.move_columns(panel, to, x, of)
                of, to = of + lanes, to + apart
    else:
        squares = steps // tile.SQUARE * tile.SQUARE
        for p in range(whole):
            for j in range(0, lanes, tile.SQUARE):
                of, to = at + (p * lanes + j) * jumps[1], p * apart + begin * lanes + j
                for k in range(0, squares, tile.SQUARE):
                    tile.transpose(panel, to + k * lanes, lanes, x, of + k, jumps[1])
                for k in range(squares, steps):
                    for i in range(tile.SQUARE):
                        m.store(panel, 0, to + k * lanes + i, m.load(x, 1, of + i * jumps[1] + k * jumps[0]))
    rest = columns - whole * lanes
    if rest > 0:
        wide = lanes if 2 * rest > lanes else lanes // 2
        of, to = at + whole * lanes * jumps[1], whole * apart + begin * wide
        for k in range(steps):
            for j in range(rest):
                m.store(panel, 0, to + k * wide + j, m.load(x, 1, of + j * jumps[1] + k * jumps[0]))
            for j in range(rest, wide):
                m.store(panel, 0, to + k * wide + j, x.dtype.type(0))


@m.inner(error_model="numpy", inline="always")
def lay_out_taps(w, panels, at, w_jumps, taps, first, steps, columns, lanes):
    """So many steps, from `first` on, of panels. taps: how many rows, columns and channels a filter has; `at`: its first number."""
    done = 0
    while done < steps:
        tap, channel = (first + done) // taps[2], (first + done) % taps[2]
        count = min(steps - done, taps[2] - channel)
        of = at + tap // taps[1] * w_jumps[1] + tap % taps[1] * w_jumps[2] + channel * w_jumps[3]
        lay_out_panels(w, panels, of, (w_jumps[3], w_jumps[4]), columns, done, count, steps, lanes)
        done += count


@m.inner(error_model="numpy")
def copy_line(x, slab, to, at, jump, begin, end, columns, group, number):
    """`number` channels of each column of a line, `group` apart; those from `begin` to `end` are the image's, others are zeros."""
    for i in range(begin * group):
        m.store(slab, 1, to + i, x.dtype.type(0))
    if number == MR:
        for c in range(begin, end):
            tile.move_rows(slab, to + c * MR, x, at + c * jump)
    elif number == jump:
        for i in range(begin * group, end * group):
            m.store(slab, 1, to + i, m.load(x, 0, at + i))
    else:
        for c in range(begin, end):
            for i in range(number):
                m.store(slab, 1, to + c * group + i, m.load(x, 0, at + c * jump + i))
    for i in range(end * group, columns * group):
        m.store(slab, 1, to + i, x.dtype.type(0))


@m.inner(error_model="numpy")
def copy_seen(x, slab, begins, image, jumps, first, seen, channels, pixels):
    """What the windows of a box see, in groups of channels: `[group, image, row, column, channel]`, with zeros beyond the image.

    begins: where the first image does. jumps: to the next image, row, column of x. first: image, row, column of the first pixel seen.
    seen: how many of each. channels: the first, how many, and those of a group. pixels: of a group.
    """
    begin = min(seen[2], max(0, -first[2]))
    end = max(begin, min(seen[2], image[1] - first[2]))
    for g in range(0, channels[1], channels[2]):
        number = min(channels[2], channels[1] - g)
        for i in range(seen[0] * seen[1]):
            row = first[1] + i % seen[1]
            at = begins + (first[0] + i // seen[1]) * jumps[0] + row * jumps[1] + first[2] * jumps[2] + channels[0] + g
            stop = end if row >= 0 and row < image[0] else begin
            to = g * pixels + i * seen[2] * channels[2]
            copy_line(x, slab, to, at, jumps[2], begin, stop, seen[2], channels[2], number)


# --- matrix-vector products (GEMV) -------------------------------------------------------------------------------------
# Each element of the matrix is read once, in place: a tile of several rows would pack the matrix, and compute rows that do not exist.


@m.inner(error_model="numpy")
def row_by_matrix(x, at, jump, b, source, row_jump, columns, steps, out, to):
    """out[to + j] = sum over k < steps of x[at + k * jump] * b[source + k * row_jump + j], for j < columns: each sum is one chain."""
    m.wide_vectors()
    m.stay_apart()
    for j in range(columns):
        m.store(out, 0, to + j, out.dtype.type(0))
    whole = steps // 4 * 4
    for k in range(0, whole, 4):
        of, row = at + k * jump, source + k * row_jump
        x0, x1 = m.load(x, 1, of), m.load(x, 1, of + jump)
        x2, x3 = m.load(x, 1, of + 2 * jump), m.load(x, 1, of + 3 * jump)
        for j in range(columns):
            total = m.fused(x0, m.load(b, 2, row + j), m.load(out, 0, to + j))
            total = m.fused(x1, m.load(b, 2, row + row_jump + j), total)
            total = m.fused(x2, m.load(b, 2, row + 2 * row_jump + j), total)
            total = m.fused(x3, m.load(b, 2, row + 3 * row_jump + j), total)
            m.store(out, 0, to + j, total)
    for k in range(whole, steps):
        of, row = at + k * jump, source + k * row_jump
        for j in range(columns):
            m.store(out, 0, to + j, m.fused(m.load(x, 1, of), m.load(b, 2, row + j), m.load(out, 0, to + j)))


@m.inner(error_model="numpy")
def matrix_by_column(a, at, row_jump, rows, steps, x, source, out, to):
    """out[to + i] = sum over k < steps of a[at + i * row_jump + k] * x[source + k], for i < rows: four sums at a time, of vectors."""
    m.wide_vectors()
    m.stay_apart()
    zero = out.dtype.type(0)
    whole = rows // 4 * 4
    for i in range(0, whole, 4):
        row = at + i * row_jump
        t0, t1, t2, t3 = zero, zero, zero, zero
        for k in range(steps):
            factor = m.load(x, 2, source + k)
            t0 = m.accumulate(t0, m.load(a, 1, row + k) * factor)
            t1 = m.accumulate(t1, m.load(a, 1, row + row_jump + k) * factor)
            t2 = m.accumulate(t2, m.load(a, 1, row + 2 * row_jump + k) * factor)
            t3 = m.accumulate(t3, m.load(a, 1, row + 3 * row_jump + k) * factor)
        m.store(out, 0, to + i, t0)
        m.store(out, 0, to + i + 1, t1)
        m.store(out, 0, to + i + 2, t2)
        m.store(out, 0, to + i + 3, t3)
    for i in range(whole, rows):
        total = zero
        for k in range(steps):
            total = m.accumulate(total, m.load(a, 1, at + i * row_jump + k) * m.load(x, 2, source + k))
        m.store(out, 0, to + i, total)


# --- contractions ------------------------------------------------------------------------------------------------------


@m.inner(error_model="numpy")
def tiles(x, rows, steps, panels, begin, gaps, width, out, to, places, count, more, is_far):
    """out[to + places[i] + j] (+)= sum over k of x[rows[i] + steps[k]] * panels[k, j], for i < count and j < width.

    begin, gaps: where the panels begin, and how far it is to the next step of a panel, and to the next panel.

    A panel stays in the L1 cache while all pixels go over it. Pixels that are fetched from afar (`is_far`) stay there instead while all
    panels go over them: so they are fetched evenly, not all of them for the first panel.
    """
    lanes = NR32 if x.itemsize == 4 else NR64
    across, down = (width + lanes - 1) // lanes, (count + MR - 1) // MR
    for a in range(down if is_far else across):
        for b in range(across if is_far else down):
            i, j = (a * MR, b) if is_far else (b * MR, a)
            high, own, at = min(MR, count - i), min(lanes, width - j * lanes), begin + j * gaps[1]
            goal = to + j * lanes
            if 2 * own > lanes:
                tile.table_tile(x, rows, steps, panels, at, gaps[0], out, goal, places, i, high, own, steps.size, more)
            else:
                tile.half_table_tile(
                    x, rows, steps, panels, at, lanes // 2, out, goal, places, i, high, own, steps.size, more
                )


@m.inner(error_model="numpy")
def place_of(matrix, counts, jumps):
    """Where a matrix begins: `counts` and `jumps` of the axes of the stack."""
    rest = matrix // counts[2]
    return rest // counts[1] * jumps[0] + rest % counts[1] * jumps[1] + matrix % counts[2] * jumps[2]


def contract(
    x, w, y, room, counters, units,
    image, result, sums, held, window, x_jumps, w_jumps, y_jumps, box, counts, x_stack, w_stack, thread, end,
):  # fmt: skip
    """y[n, r, c, :] = sum of x[...] * w: units, shared with all threads that call this with the same counters, until none is left.

    room: packing buffers of all threads. image: (rows, columns, channels) of x. result: (images, rows, columns, channels) of what
    is computed. sums: how many steps there are along three summed axes: rows and columns of taps, and channels of x. window: strides,
    dilations and padding before, for rows and then for columns. x_jumps: to the next image, row, column, channel. w_jumps: where
    the first step is, and how far it is to the next along each summed axis, and to the next channel of y. y_jumps: where the first
    pixel goes, and how far it is to the next image, row, column. box: (images, rows, columns, panels) of a unit. counts: of three
    axes of a stack of such contractions; x_stack, w_stack: to the next one along each. Their results are contiguous.

    held: (0, 0); or this is the gradient by the filter: images and channels of x change places. So `result` is (channels of x, rows
    and columns of taps, channels), and `sums` are images, rows and columns, of which so many images and rows at a time.
    """
    work = next_unit(counters, thread, units)
    if work < 0:
        return  # other threads were quicker
    height, width, inner = image
    images, rows, columns, channels = result
    down, along, apart, beside, top, left = window
    lanes = NR32 if x.itemsize == 4 else NR64
    by_filter, is_packed = held[0] > 0, x_jumps[3] != 1
    is_matrix = not by_filter and sums[0] * sums[1] == 1
    some = held if by_filter else (sums[0], sums[1])  # steps of the first two summed axes at a time
    high, wide = (some[1], sums[2]) if by_filter else some
    every = some[0] * some[1] * sums[2]
    times = (every + PANEL_STEPS - 1) // PANEL_STEPS
    most = (every + times - 1) // times
    mine = room.size // (counters.size // LINE)
    panels = room[thread * mine : thread * mine + box[3] * most * lanes]
    slab = room[thread * mine + panels.size : (thread + 1) * mine]
    tall, broad = (box[1] - 1) * down + (high - 1) * apart + 1, (box[2] - 1) * along + (wide - 1) * beside + 1
    bottom, right = (rows - 1) * down - top + (high - 1) * apart, (columns - 1) * along - left + (wide - 1) * beside
    is_inside = not by_filter and top <= 0 and left <= 0 and bottom < height and right < width
    per_image, row, column, step = x_jumps
    group, bunch = (min(MR, box[0]), min(MR, box[0])) if by_filter else (inner, 1)
    pixels = (some[0] if by_filter else box[0]) * tall * broad
    if not is_inside:
        per_image, row, column = tall * broad * group, broad * group, group
    far = pixels * group if by_filter else per_image  # to the next bunch of the result's first axis
    seen = slab if is_packed or not is_inside else x
    moves = np.empty(most if is_matrix else every, np.intp)
    if is_matrix:
        for k in range(most):
            moves[k] = k * (MR if is_packed else step)
    else:
        count, along_rows, along_columns = 0, apart * row, beside * column
        to_next = (per_image, along_rows, along_columns) if by_filter else (along_rows, along_columns, step)
        for a in range(some[0]):
            for b in range(some[1]):
                for c in range(sums[2]):
                    moves[count] = a * to_next[0] + b * to_next[1] + c * to_next[2]
                    count += 1
    # Equally spaced steps are packed as those of a single axis.
    taps = sums
    if w_jumps[2] == sums[2] * w_jumps[3] and w_jumps[1] == sums[1] * w_jumps[2]:
        taps = (1, 1, sums[0] * sums[1] * sums[2])
    groups = ((channels + lanes - 1) // lanes + box[3] - 1) // box[3]
    across, down_boxes = (columns + box[2] - 1) // box[2], (rows + box[1] - 1) // box[1]
    blocks = across * down_boxes * ((images + box[0] - 1) // box[0])
    sources = np.empty(box[0] * box[1] * box[2], np.intp)
    targets = np.empty(box[0] * box[1] * box[2], np.intp)
    bands = (sums[1] + some[1] - 1) // some[1]
    is_far = is_matrix and sources.size * most * x.itemsize > FAR_BYTES  # taps would read them again
    # A small matrix is not packed; nor is one that one tile of pixels goes over, unless it comes from memory, which is fast along rows.
    is_small = inner * channels * w.itemsize <= SMALL_MATRIX_BYTES
    in_place = (
        is_matrix and w_jumps[4] == 1 and (is_small or sources.size <= MR and w.size * w.itemsize <= L2_BYTES // 2)
    )
    is_one_panel = every == sums[0] * sums[1] * sums[2] and times == 1  # then panels hold all taps of some channels
    count, has, packed, held_taps = 0, -1, -1, -1
    while work >= 0:
        place, part = work // groups, work % groups
        matrix, block = place // blocks, place % blocks
        first, of_x = part * box[3] * lanes, place_of(matrix, counts, x_stack)
        own, of_w = min(box[3] * lanes, channels - first), place_of(matrix, counts, w_stack) + w_jumps[0]
        to = matrix * images * rows * columns * channels
        line = block // across
        n0, r0, c0 = line // down_boxes * box[0], line % down_boxes * box[1], block % across * box[2]
        n1, r1, c1 = min(images, n0 + box[0]), min(rows, r0 + box[1]), min(columns, c0 + box[2])
        begin = 0
        if is_inside:
            begin = of_x + n0 * per_image + (r0 * down - top) * row + (c0 * along - left) * column
        if is_matrix and is_inside and images * rows == 1:
            goal = to + y_jumps[0] + first
            if columns == 1 and w_jumps[4] == 1:
                row_by_matrix(x, begin, step, w, of_w + first, w_jumps[3], own, inner, y, goal)
                work = next_unit(counters, thread, units)
                continue
            if channels == 1 and step == 1 and w_jumps[3] == 1 and y_jumps[3] == 1:
                matrix_by_column(x, begin, along * column, c1 - c0, inner, w, of_w, y, goal + c0)
                work = next_unit(counters, thread, units)
                continue
        if place != has:
            has, count = place, 0
            for g in range(0, n1 - n0, bunch):
                for r in range(r1 - r0):
                    for c in range(c1 - c0):
                        of = begin + g // bunch * far + r * down * row + c * along * column
                        goal = to + y_jumps[0] + (r0 + r) * y_jumps[2] + (c0 + c) * y_jumps[3]
                        for n in range(g, min(n1 - n0, g + bunch)):
                            sources[count] = count // MR * most * MR + count % MR if is_packed else of + n - g
                            targets[count] = goal + (n0 + n) * y_jumps[1]
                            count += 1
        for band in range(bands * ((sums[0] + some[0] - 1) // some[0])):
            a, b = band // bands * some[0], band % bands * some[1]
            deep, lines = min(some[0], sums[0] - a), min(some[1], sums[1] - b)
            if not is_inside and packed != place * sums[0] * bands + band:
                packed = place * sums[0] * bands + band
                r, c = r0 * down - top, c0 * along - left
                if by_filter:
                    corner, extent, taken = (a, r + b * apart, c), (deep, tall, broad), (n0, n1 - n0, group)
                else:
                    corner, extent, taken = (n0, r, c), (n1 - n0, tall, broad), (0, inner, inner)
                copy_seen(x, slab, of_x, image, x_jumps, corner, extent, taken, pixels)
            length = deep * lines * sums[2]
            for k in range(0, length, most):
                steps = min(most, length - k)
                if is_packed and packed != place * times + k // most:
                    packed = place * times + k // most
                    lay_out_rows(x, slab, begin + k * step, step, count, steps, most * MR)
                at, of = (a * sums[1] + b) * sums[2] + k, of_w + first * w_jumps[4]
                shift, begins = (0 if is_packed else k * step, 0) if is_matrix else (0, k)
                first_factor, some_moves, whole = seen[shift:], moves[begins : begins + steps], 0
                if in_place:  # but for a panel that is not whole
                    whole = own // lanes * lanes
                    tiles(
                        first_factor, sources, some_moves, w, of + k * w_jumps[3], (w_jumps[3], lanes), whole, y, first,
                        targets, count, at > 0, is_far,
                    )  # fmt: skip
                of += whole * w_jumps[4]
                if whole < own and of != held_taps:
                    lay_out_taps(w, panels, of, w_jumps, taps, at, steps, own - whole, lanes)
                    held_taps = of if is_one_panel else -1
                tiles(
                    first_factor, sources, some_moves, panels, 0, (lanes, steps * lanes), own - whole, y, first + whole,
                    targets, count, at > 0, is_far,
                )  # fmt: skip
        work = next_unit(counters, thread, units)


def overlay(y, w, x, size, result, window, dilations, lo, hi):
    """Each pixel of x gets the sum of what the windows that see it hold for it, for images lo to hi.

    What a window holds is a product: its pixel of y times the taps w, `[taps and channels of x, channels of y]`. size: (rows, columns,
    channels) of x. result: the same of y. window: taps, strides and padding before, for rows and then for columns.
    """
    height, width, channels = size
    rows, columns, inner = result
    high, wide, down, along, top, left = window
    taps = wide * channels
    held, lanes = high * taps, NR32 if x.itemsize == 4 else NR64
    panels, parts = np.empty(inner * (held + lanes), x.dtype), np.empty(CHUNK * held, x.dtype)
    pixels = np.arange(CHUNK)
    lay_out_panels(w, panels, 0, (1, inner), held, 0, inner, inner, lanes)
    for n in range(lo, hi):
        for i in range(n * height * width * channels, (n + 1) * height * width * channels):
            m.store(x, 1, i, x.dtype.type(0))
        for first in range(0, rows * columns, CHUNK):
            count, of = min(CHUNK, rows * columns - first), (n * rows * columns + first) * inner
            tiles(
                y[of:], pixels * inner, np.arange(inner), panels, 0, (lanes, inner * lanes), held, parts, 0,
                pixels * held, count, False, False,
            )  # fmt: skip
            for i in range(count):
                r, c = (first + i) // columns, (first + i) % columns
                for a in range(high):
                    line = r * down + a * dilations[0] - top
                    if line < 0 or line >= height:
                        continue
                    at, to = i * held + a * taps, (n * height + line) * width * channels
                    if dilations[1] == 1:  # neighbouring pixels, with their channels, are contiguous
                        b1, b2 = max(0, left - c * along), min(wide, width + left - c * along)
                        put = to + (c * along - left) * channels
                        for j in range(b1 * channels, b2 * channels):
                            m.store(x, 1, put + j, m.load(x, 1, put + j) + m.load(parts, 0, at + j))
                        continue
                    for b in range(wide):
                        column = c * along + b * dilations[1] - left
                        if column >= 0 and column < width:
                            for j in range(channels):
                                x[to + column * channels + j] += parts[at + b * channels + j]
