"""Random numbers for kernels on CPUs: the words of `graph.philox`, and the very numbers that are made of them there.

A kernel takes them in pieces. One counter gives four words, and neighbouring elements take neighbouring ones, so a stretch of
elements along the last axis is made at once, as vectors, into memory of the kernel's own that stays in the first cache:

    at = uniform32(numbers, first, count, key, draw)    the numbers of elements first to first + count; that of the first one is in
                                                        numbers[at], because whole counters are made
    uniform32_at(i, key, draw)                          the number of one element, for what varies along no inner loop
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

from __future__ import annotations

import numpy as np
from numba import njit

from . import vecmath as m

u64, i64, f32, f64 = np.uint64, np.int64, np.float32, np.float64
M0, M1, W0, W1 = u64(0xD2511F53), u64(0xCD9E8D57), u64(0x9E3779B9), u64(0xBB67AE85)
LOW, HALF = u64(0xFFFFFFFF), u64(32)

MARGIN = 8
"""Elements that a piece needs beyond its count: whole counters at both ends."""

_inlined = njit(forceinline=True, no_cpython_wrapper=True, error_model="numpy")
_apart = njit(no_cpython_wrapper=True, error_model="numpy", nogil=True)


@_inlined
def words(block, draw, key):
    """Four words of 32 bits: Philox4x32-10."""
    c0, c1, c2, c3 = block & LOW, block >> HALF, draw & LOW, draw >> HALF
    k0, k1 = key & LOW, key >> HALF
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


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
def uniform32(out, first, count, key, draw):
    """Uniform numbers of float32."""
    m.stay_apart()
    m.wide_vectors()
    start = first >> 2
    for k in range((first + count + 3 >> 2) - start):
        a, b, c, d = words(u64(start + k), draw, key)
        m.store(out, 0, 4 * k, _fraction32(a))
        m.store(out, 0, 4 * k + 1, _fraction32(b))
        m.store(out, 0, 4 * k + 2, _fraction32(c))
        m.store(out, 0, 4 * k + 3, _fraction32(d))
    return first & 3


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


@_inlined
def _word_of(i, draw, key):
    """Word i of a stream."""
    a, b, c, d = words(u64(i >> 2), draw, key)
    return m.select(i & 2 == 0, m.select(i & 1 == 0, a, b), m.select(i & 1 == 0, c, d))


@_inlined
def uniform32_at(i, key, draw):
    """A uniform number of float32."""
    return _fraction32(_word_of(i, draw, key))


@_inlined
def uniform64_at(i, key, draw):
    """A uniform number of float64."""
    return _fraction64(_word_of(2 * i, draw, key), _word_of(2 * i + 1, draw, key))


# --- normal ----------------------------------------------------------------------------------------------------------


@_inlined
def _radius(word):
    """The distance from zero of two normal numbers (Box and Muller, 1958)."""
    return m.sqrt(f64(-2.0) * m.log64(f64(i64(word)) * f64(2.0**-32) + f64(2.0**-32)))


@_inlined
def _angle(word):
    """Their angle."""
    return f64(2.0 * np.pi) * (f64(i64(word)) * f64(2.0**-32))


@_apart
def normal32(out, first, count, key, draw):
    """Standard normal numbers of float32, rounded once from float64."""
    m.stay_apart()
    m.wide_vectors()
    start = first >> 2
    for k in range((first + count + 3 >> 2) - start):
        a, b, c, d = words(u64(start + k), draw, key)
        r, s, x, y = _radius(a), _radius(c), _angle(b), _angle(d)
        m.store(out, 0, 4 * k, f32(r * m.cosine_of_turn64(x)))
        m.store(out, 0, 4 * k + 1, f32(r * m.sine_of_turn64(x)))
        m.store(out, 0, 4 * k + 2, f32(s * m.cosine_of_turn64(y)))
        m.store(out, 0, 4 * k + 3, f32(s * m.sine_of_turn64(y)))
    return first & 3


@_inlined
def normal32_at(i, key, draw):
    """A standard normal number of float32."""
    first = i - (i & 1)
    r, x = _radius(_word_of(first, draw, key)), _angle(_word_of(first + 1, draw, key))
    return f32(r * m.select(i & 1 == 0, m.cosine_of_turn64(x), m.sine_of_turn64(x)))
