"""Random numbers for CPU kernels, equal to those of `graph/core/philox.py`.

A kernel takes them in pieces. One counter gives four words, and neighbouring elements take neighbouring ones, so a block of
elements along the last axis is made at once, as vectors, into memory of the kernel's own that stays in the first cache:

    at = uniform32(numbers, first, count, key, draw)    the numbers of elements first to first + count; that of the first one is in
                                                        numbers[at], because whole counters are made
"""

from __future__ import annotations

import numpy as np

from ....graph.core import philox
from ... import vecmath as m

u64, i64, f32, f64 = np.uint64, np.int64, np.float32, np.float64
LOW, HALF = u64(0xFFFFFFFF), u64(32)

# Elements that a piece needs beyond its count: whole counters at both ends.
MARGIN = 8

_inlined = m.inner(forceinline=True, error_model="numpy")
_apart = m.inner(error_model="numpy", nogil=True)
_scrambled = _inlined(philox.scrambled)


@_inlined
def words(block, draw, key):
    """Four words of 32 bits: Philox4x32-10."""
    return _scrambled(block & LOW, block >> HALF, draw & LOW, draw >> HALF, key & LOW, key >> HALF)


# --- uniform ---------------------------------------------------------------------------------------------------------


@_inlined
def _fraction32(word):
    """A multiple of 2**-24 in [0, 1)."""
    return f32(np.int32(word >> u64(8))) * f32(2.0**-24)


@_inlined
def _fraction64(high, low):
    """A multiple of 2**-53 in [0, 1)."""
    return f64(i64(((high << HALF) | low) >> u64(11))) * f64(2.0**-53)


@_apart
def uniform64(out, first, count, key, draw):
    """Uniform numbers of float64."""
    m.stay_apart()
    m.wide_vectors()
    start = first >> 1
    for k in range((first + count + 1 >> 1) - start):
        a, b, c, d = words(u64(start + k), draw, key)
        m.store(out, 0, 2 * k, _fraction64(a, b))
        m.store(out, 0, 2 * k + 1, _fraction64(c, d))
    return first & 1


# --- normal ----------------------------------------------------------------------------------------------------------


@_inlined
def _normal_pair(word, other):
    """Two standard normal numbers of float32, rounded once from float64 (Box and Muller, 1958)."""
    radius = m.sqrt(f64(-2.0) * m.log64(f64(i64(word)) * f64(2.0**-32) + f64(2.0**-32)))
    angle = f64(2.0 * np.pi) * (f64(i64(other)) * f64(2.0**-32))
    return f32(radius * m.cosine_of_turn64(angle)), f32(radius * m.sine_of_turn64(angle))


def _of_four_words(numbers):
    """A function that makes `numbers` of float32 of the four words of each counter."""

    @_apart
    def piece(out, first, count, key, draw):
        m.stay_apart()
        m.wide_vectors()
        start = first >> 2
        for k in range((first + count + 3 >> 2) - start):
            a, b, c, d = numbers(*words(u64(start + k), draw, key))
            m.store(out, 0, 4 * k, a)
            m.store(out, 0, 4 * k + 1, b)
            m.store(out, 0, 4 * k + 2, c)
            m.store(out, 0, 4 * k + 3, d)
        return first & 3

    return piece


@_of_four_words
@_inlined
def uniform32(a, b, c, d):
    """Uniform numbers of float32."""
    return _fraction32(a), _fraction32(b), _fraction32(c), _fraction32(d)


@_of_four_words
@_inlined
def normal32(a, b, c, d):
    """Standard normal numbers of float32."""
    first, second = _normal_pair(a, b), _normal_pair(c, d)
    return first[0], first[1], second[0], second[1]
