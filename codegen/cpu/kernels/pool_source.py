"""The loops of poolings and of depthwise convolutions: one pass over the windows, with channels side by side in vectors.

Images lie as `[batch, rows, columns, channels]`, flat; those of convolutions are padded so that every window fits (`image` adds the
padding). Each function ends with the range of work that one call does, so that threads can share it. One call computes an element of
the result, in one order, so results do not depend on the number of threads.

See `emit.instantiate` for how this text becomes a kernel. Convolutions over all channels are in `conv_source` and `conv_filter_source`.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m

# --- each channel by itself ------------------------------------------------------------------------------------------


def depthwise(x, w, y, result, x_jumps, y_jumps, taps, strides, begin, lo, hi):
    """y[n, r, c, j] = sum over taps of x[...] * w[tap, j], for rows of images lo to hi.

    result: (rows, columns, channels) of y. x_jumps: from one image, row, column of the result to the next, in x; y_jumps: the same in
    y. taps: rows, columns. strides: from one row, column of taps to the next, in x. begin: where the first pixel's window begins in
    x, and where it goes in y.
    """
    m.wide_vectors()
    rows, columns, channels = result
    for unit in range(lo, hi):
        to = begin[1] + unit // rows * y_jumps[0] + unit % rows * y_jumps[1]
        of = begin[0] + unit // rows * x_jumps[0] + unit % rows * x_jumps[1]
        for c in range(columns):
            put, first = to + c * y_jumps[2], of + c * x_jumps[2]
            for j in range(channels):
                m.store(y, 2, put + j, m.load(x, 0, first + j) * m.load(w, 1, j))
            for a in range(taps[0]):
                for b in range(taps[1]):
                    at, tap = first + a * strides[0] + b * strides[1], (a * taps[1] + b) * channels
                    if a + b > 0:
                        for j in range(channels):
                            total = m.fused(m.load(x, 0, at + j), m.load(w, 1, tap + j), m.load(y, 2, put + j))
                            m.store(y, 2, put + j, total)


def depthwise_filter(x, y, w, taps, result, x_jumps, strides, lo, hi):
    """w[tap, j] = sum over pixels of x[...] * y[pixel, j], for units lo to hi: some channels of a row of taps each.

    taps: rows, columns, channels. result: (images, rows, columns) of y, channels of a unit.
    """
    m.wide_vectors()
    channels = taps[2]
    images, rows, columns, some = result
    blocks = (channels + some - 1) // some
    sums = np.empty(some, x.dtype)
    for unit in range(lo, hi):
        a, begin = unit // blocks, unit % blocks * some
        end = min(begin + some, channels)
        first = a * taps[1] * channels
        for b in range(taps[1]):
            for j in range(begin, end):
                m.store(w, 2, first + b * channels + j, x.dtype.type(0))
        for line in range(images * rows):  # each row's sum first: small numbers with small ones
            of, by = line // rows * x_jumps[0] + line % rows * x_jumps[1] + a * strides[0], line * columns * channels
            for b in range(taps[1]):
                at, to = of + b * strides[1], first + b * channels
                for j in range(end - begin):
                    m.store(sums, 3, j, x.dtype.type(0))
                for c in range(columns):
                    left, right = at + c * x_jumps[2] + begin, by + c * channels + begin
                    for j in range(end - begin):
                        m.store(sums, 3, j, m.fused(m.load(x, 0, left + j), m.load(y, 1, right + j), m.load(sums, 3, j)))
                for j in range(begin, end):
                    m.store(w, 2, to + j, m.load(w, 2, to + j) + m.load(sums, 3, j - begin))


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
                # Padding is the lowest value: where no pixel is higher and the padding comes first, it gets the gradient.
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
