"""What compiled convolutions and poolings do, as functions that Numba compiles.

The text of this file is the head of such a kernel's source; `image_kernels` adds which function with which types. Images lie as
`[batch, rows, columns, channels]`, flat, and wide enough that every window fits (`image_kernels` adds the padding). All functions
end with the range of work that one call does, so that threads can share it: an element of the result is always made by one
call, in one order, however many there are.

A convolution is made of tiles (`tile`): ROWS pixels of the result times LANES channels, the taps and input channels being summed.
Its gradient by the filter is in `image_filter_loops`.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m
from dovetail.codegen.matrix_loops import NR32, NR64, lay_out_panels, tiles
from dovetail.codegen.matrix_tile import MR
from dovetail.codegen.tile import ROWS, tile

CHUNK = 96  # pixels of the result that share a panel while it is in the cache: a whole number of tiles


def convolve(x, panel, y, lanes, result, x_jumps, y_jumps, steps, strides, begin, lo, hi):
    """y[n, r, c, :] = sum over taps of x[...] * w, for chunks of pixels lo to hi.

    result: (rows, columns, channels, pixels in all). x_jumps: from one image, row, column of the result to the next, in x;
    y_jumps: the same in y. steps, strides: the loops over taps and channels. begin: where the first pixel's window begins in x,
    and where it goes in y.
    """
    rows, columns, channels, pixels = result
    total = steps[0] * steps[1] * steps[2]
    sums = np.empty(ROWS * lanes, x.dtype)
    sources, targets = np.empty(CHUNK, np.intp), np.empty(CHUNK, np.intp)
    for chunk in range(lo, hi):
        first = chunk * CHUNK
        count = min(CHUNK, pixels - first)
        n, r, c = first // (rows * columns), first // columns % rows, first % columns
        for i in range(count):
            sources[i] = begin[0] + n * x_jumps[0] + r * x_jumps[1] + c * x_jumps[2]
            targets[i] = begin[1] + n * y_jumps[0] + r * y_jumps[1] + c * y_jumps[2]
            c += 1
            if c == columns:
                r, c = r + 1, 0
            if r == rows:
                n, r = n + 1, 0
        for i in range(count, CHUNK):
            sources[i] = sources[count - 1]  # what is too much in the last tile is computed and dropped
        for part in range((channels + lanes - 1) // lanes):
            width = min(lanes, channels - part * lanes)
            for i in range(0, count, ROWS):
                offsets = (sources[i], sources[i + 1], sources[i + 2], sources[i + 3], sources[i + 4], sources[i + 5])
                tile(x, offsets, steps, strides, panel, part * total * lanes, sums)
                for row in range(min(ROWS, count - i)):
                    at = targets[i + row] + part * lanes
                    for j in range(width):
                        y[at + j] = sums[row * lanes + j]


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
                    if dilations[1] == 1:  # pixels beside each other, and their channels, are one stretch of memory
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


# --- each channel by itself ------------------------------------------------------------------------------------------


def depthwise(x, w, y, result, x_jumps, y_jumps, taps, strides, begin, lo, hi):
    """y[n, r, c, j] = sum over taps of x[...] * w[tap, j], for rows of images lo to hi.

    result: (rows, columns, channels) of y. taps: rows, columns. strides: from one row, column of taps to the next, in x. The
    others are as for `convolve`.
    """
    rows, columns, channels = result
    for unit in range(lo, hi):
        to = begin[1] + unit // rows * y_jumps[0] + unit % rows * y_jumps[1]
        of = begin[0] + unit // rows * x_jumps[0] + unit % rows * x_jumps[1]
        for c in range(columns):
            for j in range(channels):
                m.store(y, 2, to + c * y_jumps[2] + j, x.dtype.type(0))
        for a in range(taps[0]):
            for b in range(taps[1]):
                first, tap = of + a * strides[0] + b * strides[1], (a * taps[1] + b) * channels
                for c in range(columns):
                    at, put = first + c * x_jumps[2], to + c * y_jumps[2]
                    for j in range(channels):
                        seen = m.load(x, 0, at + j) * m.load(w, 1, tap + j)
                        m.store(y, 2, put + j, m.load(y, 2, put + j) + seen)


def depthwise_filter(x, y, w, taps, result, x_jumps, strides, lo, hi):
    """w[tap, j] = sum over pixels of x[...] * y[pixel, j], for taps lo to hi.

    taps: rows, columns, channels. result: (images, rows, columns) of y.
    """
    channels = taps[2]
    images, rows, columns = result
    sums = np.empty(channels, x.dtype)
    for tap in range(lo, hi):
        for j in range(channels):
            m.store(w, 2, tap * channels + j, x.dtype.type(0))
        for line in range(images * rows):  # each row's sum first: small numbers with small ones
            of = line // rows * x_jumps[0] + line % rows * x_jumps[1]
            of += tap // taps[1] * strides[0] + tap % taps[1] * strides[1]
            for j in range(channels):
                m.store(sums, 3, j, x.dtype.type(0))
            for c in range(columns):
                at, by = of + c * x_jumps[2], (line * columns + c) * channels
                for j in range(channels):
                    m.store(sums, 3, j, m.load(sums, 3, j) + m.load(x, 0, at + j) * m.load(y, 1, by + j))
            for j in range(channels):
                m.store(w, 2, tap * channels + j, m.load(w, 2, tap * channels + j) + m.load(sums, 3, j))


# --- pooling ---------------------------------------------------------------------------------------------------------
# size: (rows, columns, channels) of the image. result: (rows, columns) of the pooled one. window: its taps, strides and padding
# before, for rows and then for columns. The work is counted in images.


def max_pool(x, y, size, result, window, lo, hi):
    """The largest pixel in each window; NaN when one is."""
    height, width, channels = size
    high, wide, down, along, top, left = window
    for n in range(lo, hi):
        for r in range(result[0]):
            for c in range(result[1]):
                to = ((n * result[0] + r) * result[1] + c) * channels
                for j in range(channels):
                    m.store(y, 1, to + j, x.dtype.type(-np.inf))
                for a in range(max(0, r * down - top), min(height, r * down - top + high)):
                    for b in range(max(0, c * along - left), min(width, c * along - left + wide)):
                        at = ((n * height + a) * width + b) * channels
                        for j in range(channels):
                            m.store(y, 1, to + j, m.fmaximum(m.load(y, 1, to + j), m.load(x, 0, at + j)))


def max_pool_grad(x, grad, out, size, result, window, lo, hi):
    """Each window's gradient goes to its first largest pixel."""
    height, width, channels = size
    high, wide, down, along, top, left = window
    best, rest = np.empty(channels, x.dtype), np.empty(channels, x.dtype)
    low, zero = x.dtype.type(-np.inf), x.dtype.type(0)
    for n in range(lo, hi):
        for i in range(n * height * width * channels, (n + 1) * height * width * channels):
            m.store(out, 2, i, zero)
        for r in range(result[0]):
            for c in range(result[1]):
                a0, b0 = r * down - top, c * along - left
                a1, a2 = max(0, a0), min(height, a0 + high)
                b1, b2 = max(0, b0), min(width, b0 + wide)
                of = ((n * result[0] + r) * result[1] + c) * channels
                for j in range(channels):
                    m.store(best, 3, j, low)
                for a in range(a1, a2):
                    for b in range(b1, b2):
                        at = ((n * height + a) * width + b) * channels
                        for j in range(channels):
                            m.store(best, 3, j, m.fmaximum(m.load(best, 3, j), m.load(x, 0, at + j)))
                # Padding is as low as can be: where nothing is higher and it comes first, the gradient is its.
                outside = a0 < 0 or b0 < 0
                for j in range(channels):
                    lost = outside & (m.load(best, 3, j) == low)
                    m.store(rest, 4, j, m.select(lost, zero, m.load(grad, 1, of + j)))
                for a in range(a1, a2):
                    for b in range(b1, b2):
                        at = ((n * height + a) * width + b) * channels
                        for j in range(channels):
                            v, g = m.load(x, 0, at + j), m.load(rest, 4, j)
                            found = (v == m.load(best, 3, j)) | (v != v)
                            m.store(out, 2, at + j, m.load(out, 2, at + j) + m.select(found, g, zero))
                            m.store(rest, 4, j, m.select(found, zero, g))


def avg_pool(x, y, size, result, window, lo, hi):
    """The mean of the pixels in each window; padding does not count."""
    height, width, channels = size
    high, wide, down, along, top, left = window
    for n in range(lo, hi):
        for r in range(result[0]):
            for c in range(result[1]):
                to = ((n * result[0] + r) * result[1] + c) * channels
                a0, a1 = max(0, r * down - top), min(height, r * down - top + high)
                b0, b1 = max(0, c * along - left), min(width, c * along - left + wide)
                for j in range(channels):
                    m.store(y, 1, to + j, x.dtype.type(0))
                for a in range(a0, a1):
                    for b in range(b0, b1):
                        at = ((n * height + a) * width + b) * channels
                        for j in range(channels):
                            m.store(y, 1, to + j, m.load(y, 1, to + j) + m.load(x, 0, at + j))
                count = x.dtype.type((a1 - a0) * (b1 - b0))
                for j in range(channels):
                    m.store(y, 1, to + j, m.load(y, 1, to + j) / count)


def avg_pool_grad(grad, out, size, result, window, lo, hi):
    """Each window's gradient is shared by its pixels."""
    height, width, channels = size
    high, wide, down, along, top, left = window
    for n in range(lo, hi):
        for i in range(n * height * width * channels, (n + 1) * height * width * channels):
            out[i] = 0
        for r in range(result[0]):
            for c in range(result[1]):
                of = ((n * result[0] + r) * result[1] + c) * channels
                a0, a1 = max(0, r * down - top), min(height, r * down - top + high)
                b0, b1 = max(0, c * along - left), min(width, c * along - left + wide)
                count = grad.dtype.type((a1 - a0) * (b1 - b0))
                for a in range(a0, a1):
                    for b in range(b0, b1):
                        at = ((n * height + a) * width + b) * channels
                        for j in range(channels):
                            m.store(out, 1, at + j, m.load(out, 1, at + j) + m.load(grad, 0, of + j) / count)
