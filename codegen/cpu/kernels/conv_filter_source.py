"""The loops of a convolution's gradient by its filter, as implicit GEMM summed over pixels.

One row for each tap and channel of the image, one column for each channel of the result; the pixels of the result are summed. Neither the
first factor ("im2col") nor a padded image is written. A *box*, some 200 neighbouring pixels of the result, is done at a time: what its
windows see of the image is packed with zeros around it, in groups of MR channels, and its pixels of the result's gradient are
packed in panels. Both stay in the caches while all taps go over them; a tap only shifts the image.

A unit of work is some boxes, a range of the image's channels and a range of the result's. Where several units compute the same piece of
the filter, each writes its part, and the last one adds the parts in their order. So the bits depend on shapes alone.

See `emit.instantiate` for how this text becomes a kernel.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.cpu.kernels.contraction_source import NR32, NR64, lay_out_panels, next_unit, tiles, wait
from dovetail.codegen.cpu.kernels.microkernel import MR, as_written, move_rows
from dovetail.codegen.cpu.native.machine import count_up
from dovetail.codegen.cpu.work_ranges import FINISHED, LINE


@njit(error_model="numpy")
def lay_out_line(x, slab, to, at, jump, begin, end, columns, group, number):
    """A line of the slab, `number` channels of each column; those from `begin` to `end` are the image's, others are zeros."""
    for i in range(begin * group):
        m.store(slab, 0, to + i, x.dtype.type(0))
    if number == MR:
        for c in range(begin, end):
            move_rows(slab, to + c * MR, x, at + c * jump)
    elif number == jump:
        for i in range(begin * group, end * group):
            m.store(slab, 0, to + i, m.load(x, 1, at + i))
    else:
        for c in range(begin, end):
            for i in range(number):
                m.store(slab, 0, to + c * group + i, m.load(x, 1, at + c * jump + i))
    for i in range(end * group, columns * group):
        m.store(slab, 0, to + i, x.dtype.type(0))


@njit(error_model="numpy")
def lay_out_image(x, slab, sizes, jumps, first, channels, shape, group):
    """What the windows of a box see, in groups of channels: `[group, image, row, column, channel]`.

    sizes: (height, width) of the image. first: image, row and column of the slab's first pixel, which may lie in the padding. channels:
    first, and how many. shape: (images, rows, columns) of the slab, rows per image and columns per row in memory, pixels in all.
    """
    images, rows, columns, tall, wide, pixels = shape
    begin = min(columns, max(0, -first[2]))
    end = max(begin, min(columns, sizes[1] - first[2]))
    for i in range(images):
        for r in range(rows):
            line = first[1] + r
            inside = line >= 0 and line < sizes[0]
            at = (first[0] + i) * jumps[0] + line * jumps[1] + first[2] * jumps[2] + channels[0]
            for g in range(0, channels[1], group):
                to = g * pixels + (i * tall + r) * wide * group
                number = min(group, channels[1] - g)
                lay_out_line(x, slab, to, at + g, jumps[2], begin, end if inside else begin, columns, group, number)


@njit(error_model="numpy")
def add_parts(parts, w, places, kinds, width, chunks):
    """A piece of the filter from what the chunks give to it."""
    for k in range(kinds):
        at = places[k]
        for j in range(width):
            m.store(w, 0, at + j, m.load(parts, 1, at + j))
        for chunk in range(1, chunks):
            of = chunk * w.size + at
            for j in range(width):
                m.store(w, 0, at + j, m.load(w, 0, at + j) + m.load(parts, 1, of + j))


def convolve_filter(
    x, y, w, parts, room, done, counters, sizes, jumps, result, window, shape, counts, cuts, thread, units
):
    """w[tap, c, :] = sum over pixels of x[...] * y[pixel, :], in units of work as for `contract`.

    w: the filter's gradient. parts: each chunk's contribution to it, if there are several chunks. room: packing buffers of
    all threads. done: of each piece of the filter, how many chunks are finished. sizes: (height, width, channels) of x. jumps: from
    one image, row, column of x to the next. result: (images, rows, columns, channels) of y. window: taps, strides, dilations and
    padding before, for rows and then for columns. shape: (images, rows, columns) of a box at most, and (rows, columns) that it sees
    of an image. counts: boxes along images, rows, columns. cuts: (chunks of boxes, channels of x in a unit, channels of y in a unit).
    """
    high, wide, down, along, below, beside, top, left = window
    across, deep = (result[3] + cuts[2] - 1) // cuts[2], (sizes[2] + cuts[1] - 1) // cuts[1]
    boxes, pixels = counts[0] * counts[1] * counts[2], shape[0] * shape[3] * shape[4]
    lanes = NR32 if x.itemsize == 4 else NR64
    mine = room.size // (counters.size // LINE - 1) // lanes * lanes
    slab = room[thread * mine : thread * mine + (pixels * cuts[1] + lanes - 1) // lanes * lanes]
    direct = result[3] == lanes or 2 * result[3] == lanes  # one panel, read in place
    panel = as_written(y) if direct else room[thread * mine + slab.size : (thread + 1) * mine]
    most = high * wide * cuts[1]
    rows, places = np.empty(most, np.intp), np.empty(most, np.intp)
    steps = np.empty(shape[0] * shape[1] * shape[2], np.intp)
    while True:
        unit = next_unit(counters, thread, units)
        if unit < 0:
            break
        chunk, piece = unit // (deep * across), unit % (deep * across)
        channel, first = piece // across * cuts[1], piece % across * cuts[2]
        few, width = min(cuts[1], sizes[2] - channel), min(cuts[2], result[3] - first)
        kinds, group = high * wide * few, min(MR, few)
        for k in range(kinds):
            tap, c = k // few, k % few
            pixel = tap // wide * below * shape[4] + tap % wide * beside
            rows[k] = c // group * group * pixels + pixel * group + c % group
            places[k] = (tap * sizes[2] + channel + c) * result[3] + first
        out, begin = (w, 0) if cuts[0] == 1 else (parts, chunk * w.size)
        start = boxes * chunk // cuts[0]
        for box in range(start, boxes * (chunk + 1) // cuts[0]):
            n = box // (counts[1] * counts[2]) * shape[0]
            r, c = box // counts[2] % counts[1] * shape[1], box % counts[2] * shape[2]
            images, tall, broad = (
                min(shape[0], result[0] - n),
                min(shape[1], result[1] - r),
                min(shape[2], result[2] - c),
            )
            seen = (tall - 1) * down + (high - 1) * below + 1, (broad - 1) * along + (wide - 1) * beside + 1
            corner, extent = (n, r * down - top, c * along - left), (images, *seen, shape[3], shape[4], pixels)
            lay_out_image(x, slab, sizes, jumps, corner, (channel, few), extent, group)
            count = 0
            for i in range(images):
                for a in range(tall):
                    of = ((i * shape[3] + a * down) * shape[4]) * group
                    for b in range(broad):
                        steps[count] = of + b * along * group
                        count += 1
            of = ((n * result[1] + r) * result[2] + c) * result[3] + first
            if not direct:
                lay_out_panels(y, panel, of, (result[3], 1), width, 0, count, count, lanes)
            tiles(
                slab,
                rows,
                steps[:count],
                panel[of:] if direct else panel,
                width,
                out,
                begin,
                places,
                kinds,
                box > start,
            )
        if cuts[0] > 1 and count_up(done, piece, 1) == cuts[0] - 1:
            add_parts(parts, w, places, kinds, width, cuts[0])
        count_up(counters, FINISHED, 1)
    if thread == 0:
        wait(counters, units)
