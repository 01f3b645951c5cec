"""What compiled random numbers are, as functions that Numba compiles; see `image_loops` for how this text is used.

The words are those of `graph.philox`, and so are the numbers made of them. All functions end with the range of blocks (of four
words each) that one call makes.
"""

# mypy: ignore-errors
# Numba infers the types of what is compiled.

import numpy as np
from numba import njit, types  # noqa: F401 (what is added to this text uses them)

from dovetail.codegen import vecmath as m

u64, f32, f64 = np.uint64, np.float32, np.float64
M0, M1, W0, W1 = u64(0xD2511F53), u64(0xCD9E8D57), u64(0x9E3779B9), u64(0xBB67AE85)
LOW, HALF = u64(0xFFFFFFFF), u64(32)


@njit(forceinline=True, no_cpython_wrapper=True)
def words(block, draw_low, draw_high, k0, k1):
    """Four words of 32 bits: Philox4x32-10."""
    c0, c1, c2, c3 = block & LOW, block >> HALF, draw_low, draw_high
    for _ in range(10):
        p0, p1 = c0 * M0, c2 * M1
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ k0, p1 & LOW, (p0 >> HALF) ^ c3 ^ k1, p0 & LOW
        k0, k1 = (k0 + W0) & LOW, (k1 + W1) & LOW
    return c0, c1, c2, c3


def uniform(out, key0, key1, draw_low, draw_high, lo, hi):
    """Multiples of 2**-24 (float64: of 2**-53) in [0, 1)."""
    d0, d1, k0, k1 = u64(draw_low), u64(draw_high), u64(key0), u64(key1)
    number = out.dtype.type
    if out.itemsize == 4:
        scale, shift, whole = number(2.0**-24), u64(8), min(hi, out.size // 4)
        for block in range(lo, whole):
            a, b, c, d = words(u64(block), d0, d1, k0, k1)
            m.store(out, 0, 4 * block, number(np.int32(a >> shift)) * scale)
            m.store(out, 0, 4 * block + 1, number(np.int32(b >> shift)) * scale)
            m.store(out, 0, 4 * block + 2, number(np.int32(c >> shift)) * scale)
            m.store(out, 0, 4 * block + 3, number(np.int32(d >> shift)) * scale)
        for block in range(max(lo, whole), hi):
            last = words(u64(block), d0, d1, k0, k1)
            for i in range(out.size - 4 * block):
                out[4 * block + i] = number(np.int32(last[i] >> shift)) * scale
    else:
        scale, shift, whole = number(2.0**-53), u64(11), min(hi, out.size // 2)
        for block in range(lo, whole):
            a, b, c, d = words(u64(block), d0, d1, k0, k1)
            m.store(out, 0, 2 * block, number(np.int64(((a << HALF) | b) >> shift)) * scale)
            m.store(out, 0, 2 * block + 1, number(np.int64(((c << HALF) | d) >> shift)) * scale)
        for block in range(max(lo, whole), hi):
            a, b, c, d = words(u64(block), d0, d1, k0, k1)
            out[2 * block] = number(np.int64(((a << HALF) | b) >> shift)) * scale


@njit(forceinline=True, no_cpython_wrapper=True)
def radius(word):
    """The distance from zero of two normal numbers (Box and Muller, 1958)."""
    return m.sqrt(f64(-2.0) * m.log64(f64(np.int64(word)) * f64(2.0**-32) + f64(2.0**-32)))


@njit(forceinline=True, no_cpython_wrapper=True)
def angle(word):
    """Their angle."""
    return f64(2.0 * np.pi) * (f64(np.int64(word)) * f64(2.0**-32))


def normal(out, key0, key1, draw_low, draw_high, lo, hi):
    """Standard normal numbers of float32, rounded once from float64."""
    d0, d1, k0, k1 = u64(draw_low), u64(draw_high), u64(key0), u64(key1)
    whole = min(hi, out.size // 4)
    for block in range(lo, whole):
        a, b, c, d = words(u64(block), d0, d1, k0, k1)
        r, s, x, y = radius(a), radius(c), angle(b), angle(d)
        m.store(out, 0, 4 * block, f32(r * m.cosine_of_turn64(x)))
        m.store(out, 0, 4 * block + 1, f32(r * m.sine_of_turn64(x)))
        m.store(out, 0, 4 * block + 2, f32(s * m.cosine_of_turn64(y)))
        m.store(out, 0, 4 * block + 3, f32(s * m.sine_of_turn64(y)))
    for block in range(max(lo, whole), hi):
        a, b, c, d = words(u64(block), d0, d1, k0, k1)
        r, s, x, y = radius(a), radius(c), angle(b), angle(d)
        last = (
            f32(r * m.cosine_of_turn64(x)), f32(r * m.sine_of_turn64(x)),
            f32(s * m.cosine_of_turn64(y)), f32(s * m.sine_of_turn64(y)),
        )  # fmt: skip
        for i in range(out.size - 4 * block):
            out[4 * block + i] = last[i]
