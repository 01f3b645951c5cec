"""The loops of convolutions as implicit GEMM (Chetlur et al., "cuDNN: Efficient Primitives for Deep Learning", 2014).

A convolution is a matrix product of pixels of the result and channels, summed over the taps and channels that a window sees; the
matrix of windows ("im2col") is never written. A unit of work is a *box* of pixels (some images, rows and columns) and some panels of
channels. The taps are packed in panels, STEPS steps at a time, which stay in the first cache while all tiles of the box go over them
(`table_tile`); the part of the image that the windows see stays in the second cache. Where windows reach beyond the
image, that part is copied, with zeros around it. Each sum is added in one order, whatever the boxes and threads are.

`overlay` is the gradient by the image where it has few channels: one product of pixels and all taps, whose parts are added up (col2im).

See `emit.instantiate` for how this text becomes a kernel.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.kernels.gemm_source import NR32, NR64, lay_out_panels, next_unit, tiles, wait
from dovetail.codegen.cpu.kernels.microkernel import MR, as_written, half_table_tile, table_tile
from dovetail.codegen.cpu.native.machine import count_up
from dovetail.codegen.cpu.work_ranges import FINISHED, LINE

STEPS = 256  # steps of the sum per panel: a panel of that size stays in the L1 cache
CHUNK = 96  # pixels of the result whose parts `overlay` adds up at a time


@njit(error_model="numpy", inline="always")
def lay_out_taps(w, panel, w_jumps, taps, part, first, steps, columns, lanes):
    """So many steps, from `first` on, of a panel. taps: how many rows, columns and channels a filter has."""
    broad, done = lanes if 2 * columns > lanes else lanes // 2, 0
    while done < steps:
        tap, channel = (first + done) // taps[2], (first + done) % taps[2]
        count = min(steps - done, taps[2] - channel)
        of = w_jumps[0] + tap // taps[1] * w_jumps[1] + tap % taps[1] * w_jumps[2] + channel * w_jumps[3]
        of += part * lanes * w_jumps[4]
        lay_out_panels(w, panel, done * broad, of, (w_jumps[3], w_jumps[4]), columns, count, lanes)
        done += count


@njit(error_model="numpy")
def copy_seen(x, slab, image, seen, first, window):
    """What the windows of a box see, with zeros where that is beyond the image; seen: its images, rows and columns."""
    height, width, inner = image
    line = seen[2] * inner
    left = min(seen[2], max(0, -first[2]))
    stop = max(left, min(seen[2], width - first[2]))
    for i in range(seen[0] * seen[1]):
        to, row = i * line, first[1] + i % seen[1]
        if row < 0 or row >= height:
            for j in range(to, to + line):
                m.store(slab, 1, j, x.dtype.type(0))
            continue
        of = (((first[0] + i // seen[1]) * height + row) * width + first[2]) * inner
        for j in range(left * inner):
            m.store(slab, 1, to + j, x.dtype.type(0))
        for j in range(left * inner, stop * inner):
            m.store(slab, 1, to + j, m.load(x, 0, of + j))
        for j in range(stop * inner, line):
            m.store(slab, 1, to + j, x.dtype.type(0))


def convolve(x, w, y, room, counters, image, result, window, w_jumps, y_jumps, box, thread, units):
    """y[n, r, c, :] = sum over taps of x[...] * w: units that no thread has taken, as in `gemm_source.multiply`.

    room: packing buffers of all threads. image: (rows, columns, channels) of x. result: (images, rows, columns, channels) of what
    is computed. window: taps, strides, dilations and padding before, for rows and then for columns. w_jumps: where the first tap
    is, and how far it is to the next row, column, channel of x, channel of y. y_jumps: where the first pixel goes, and how far it is to
    the next image, row, column. box: (images, rows, columns, panels) of a unit.
    """
    height, width, inner = image
    images, rows, columns, channels = result
    high, wide, down, along, apart, beside, top, left = window
    lanes = NR32 if x.itemsize == 4 else NR64
    mine = room.size // (counters.size // LINE - 1)
    panel = room[thread * mine : thread * mine + STEPS * lanes]
    slab = room[thread * mine + STEPS * lanes : (thread + 1) * mine]
    tall, broad = (box[1] - 1) * down + (high - 1) * apart + 1, (box[2] - 1) * along + (wide - 1) * beside + 1
    is_inside = (
        top <= 0 and left <= 0
        and (rows - 1) * down - top + (high - 1) * apart < height
        and (columns - 1) * along - left + (wide - 1) * beside < width
    )  # fmt: skip
    seen, row = as_written(x) if is_inside else slab, (width if is_inside else broad) * inner
    per_image = (height if is_inside else tall) * row
    every = high * wide * inner
    moves = np.empty(every, np.intp)
    for k in range(every):
        moves[k] = k // (wide * inner) * apart * row + k // inner % wide * beside * inner + k % inner
    # Equally spaced taps are packed as those of a single one.
    taps = (high, wide, inner)
    if w_jumps[2] == inner * w_jumps[3] and w_jumps[1] == wide * w_jumps[2]:
        taps = (1, 1, every)
    times = (every + STEPS - 1) // STEPS
    most = (every + times - 1) // times
    panels = (channels + lanes - 1) // lanes
    groups = (panels + box[3] - 1) // box[3]
    across, down_boxes = (columns + box[2] - 1) // box[2], (rows + box[1] - 1) // box[1]
    sources = np.empty(box[0] * box[1] * box[2], np.intp)
    targets = np.empty(box[0] * box[1] * box[2], np.intp)
    count, has = 0, -1
    while True:
        work = next_unit(counters, thread, units)
        if work < 0:
            break
        block, group = work // groups, work % groups
        if block != has:
            has = block
            n0, r0, c0 = (
                block // (across * down_boxes) * box[0],
                block // across % down_boxes * box[1],
                block % across * box[2],
            )
            n1, r1, c1 = min(images, n0 + box[0]), min(rows, r0 + box[1]), min(columns, c0 + box[2])
            first = (n0, r0 * down - top, c0 * along - left)
            begin = 0
            if is_inside:
                begin = first[0] * per_image + first[1] * row + first[2] * inner
            else:
                copy_seen(x, slab, image, (n1 - n0, tall, broad), first, window)
            count = 0
            for n in range(n1 - n0):
                for r in range(r1 - r0):
                    of = begin + n * per_image + r * down * row
                    to = y_jumps[0] + (n0 + n) * y_jumps[1] + (r0 + r) * y_jumps[2] + c0 * y_jumps[3]
                    for c in range(c1 - c0):
                        sources[count + c] = of + c * along * inner
                        targets[count + c] = to + c * y_jumps[3]
                    count += c1 - c0
        for part in range(group * box[3], min(panels, (group + 1) * box[3])):
            own = min(lanes, channels - part * lanes)
            for k in range(0, every, most):
                steps = min(most, every - k)
                lay_out_taps(w, panel, w_jumps, taps, part, k, steps, own, lanes)
                at, to = moves[k : k + steps], part * lanes
                if 2 * own > lanes:
                    for i in range(0, count, MR):
                        table_tile(
                            seen, sources, at, panel, 0, y, to, targets, i, min(MR, count - i), own, steps, k > 0
                        )
                else:
                    for i in range(0, count, MR):
                        half_table_tile(
                            seen, sources, at, panel, 0, y, to, targets, i, min(MR, count - i), own, steps, k > 0
                        )
        count_up(counters, FINISHED, 1)
    if thread == 0:
        wait(counters, units)


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
    panels, sums = np.empty(inner * (held + lanes), x.dtype), np.empty(MR * lanes, x.dtype)
    parts = np.empty(CHUNK * held, x.dtype)
    lay_out_panels(w, panels, 0, 0, (1, inner), held, inner, lanes)
    for n in range(lo, hi):
        for i in range(n * height * width * channels, (n + 1) * height * width * channels):
            m.store(x, 1, i, x.dtype.type(0))
        for first in range(0, rows * columns, CHUNK):
            count, of = min(CHUNK, rows * columns - first), (n * rows * columns + first) * inner
            tiles(y, of, inner, inner, 1, count, held, inner, panels, 0, lanes, parts, 0, held, False, sums)
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
