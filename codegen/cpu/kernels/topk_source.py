"""The loop of top-k: a short sorted list of the largest numbers so far, into which larger ones are inserted.

A number enters the list if it is larger than the least in it: seldom, after the first ones. So numbers are compared BLOCK at a
time, in vectors, and only a block with such a number is scanned one by one.

See `emit.instantiate` for how this text becomes a kernel.
"""

import numpy as np  # noqa: F401 (the text names types by it)
from numba import types

from dovetail.codegen import vecmath as m

BLOCK = 64


@m.inner(error_model="numpy")
def is_before(x, y):
    """Whether x comes before y: it is larger. NaN is larger than all numbers."""
    return x > y or (x != x and y == y)


@m.inner(error_model="numpy")
def join(x, place, values, places, first, count):
    """Insert a number into a sorted list, after equal ones; the last one is dropped."""
    at = first + count - 1
    while at > first and is_before(x, m.load(values, 1, at - 1)):
        m.store(values, 1, at, m.load(values, 1, at - 1))
        m.store(places, 2, at, m.load(places, 2, at - 1))
        at -= 1
    m.store(values, 1, at, x)
    m.store(places, 2, at, types.int32(place))


def top(x, values, places, sizes, lo, hi):
    """The k largest numbers of rows lo to hi in descending order, and their positions. Of equal numbers the first comes first.

    sizes: (numbers of a row, k).
    """
    m.wide_vectors()
    length, count = sizes
    for row in range(lo, hi):
        begin, first = row * length, row * count
        for i in range(count):
            join(m.load(x, 0, begin + i), i, values, places, first, i + 1)
        for at in range(count, length, BLOCK):
            end = min(at + BLOCK, length)
            least = m.load(values, 1, first + count - 1)
            found = types.int32(0)
            for i in range(at, end):
                found |= types.int32(not (m.load(x, 0, begin + i) <= least))
            if found:
                for i in range(at, end):
                    number = m.load(x, 0, begin + i)
                    if is_before(number, m.load(values, 1, first + count - 1)):
                        join(number, i, values, places, first, count)
