"""Random numbers from a counter: Philox4x32-10 and the distributions made from it.

A sequential generator advances its state, so the value of an element depends on everything drawn before it.
A counter-based one is a function: `philox(counter, key)` scrambles a 128-bit counter under a 64-bit key
into four 32-bit words that pass for random (Salmon, Moraes, Dror, Shaw: "Parallel Random Numbers: As Easy as
1, 2, 3", SC 2011). Element number i of draw number n under a key is therefore the same on every device, in
every order, however a tensor is partitioned. So a seed gives the same numbers under any placement.

A `Stream` is one draw: a key and the upper half of the counter. The lower half counts blocks of four words,
so a draw may hold 2**66 words, and a key has 2**64 draws. What each distribution takes from the stream is
part of its meaning, because compiled kernels must make the same numbers:

    uniform, normal of 32 bits and less   element i: word i
    uniform, normal of 64 bits, integers  element i: words 2i (upper half) and 2i + 1 (lower half)

Uniform numbers are exact in their element type. The others are computed in float64 and rounded once, so that
differences in the last bit of `log` or `cos` between libraries do not show in float32.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import Array

# The paper's multipliers, and the Weyl sequence that the key walks: the golden ratio and sqrt(3) - 1, scaled
# to 32 bits.
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_PRECISION = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # bits of a significand
_CHUNK = 1 << 14  # blocks scrambled at a time: the working arrays stay in the second-level cache


def philox(counter: Array, key: tuple[int, int]) -> Array:
    """Philox4x32-10.

    Args:
        counter: uint32 [..., 4], lowest word first.
        key: two 32-bit words, lowest first.

    Returns:
        uint32 [..., 4].

    >>> [hex(w) for w in philox(np.zeros(4, np.uint32), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    words = scrambled(c0, c1, c2, c3, np.uint64(key[0]), np.uint64(key[1]))
    return np.stack(words, axis=-1).astype(np.uint32)


def scrambled(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """The four random words of a counter of four words and a key of two. Each word is a uint64, which can hold a product of two words.

    NumPy runs it on arrays. Compiled kernels run it on single numbers (`codegen/cpu/emit/philox.py`).
    """
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (p1 >> _32) ^ c1 ^ k0, p1 & _LOW, (p0 >> _32) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@dataclass(frozen=True, slots=True)
class Stream:
    """The random words of one draw.

    Attributes:
        key: two 32-bit words, derived from seeds.
        draw: the upper 64 bits of the counter: the number of the draw under this key.
    """

    key: tuple[int, int]
    draw: int = 0

    def words(self, count: int) -> Array:
        """The first `count` words, uint32."""
        blocks = -(-count // 4)
        out = np.empty((blocks, 4), np.uint32)
        for start in range(0, blocks, _CHUNK):
            index = np.arange(start, min(start + _CHUNK, blocks), dtype=np.uint64)
            counter = np.empty((len(index), 4), np.uint32)
            counter[:, 0] = index & _LOW
            counter[:, 1] = index >> _32
            counter[:, 2] = self.draw & 0xFFFFFFFF
            counter[:, 3] = (self.draw >> 32) & 0xFFFFFFFF
            out[start : start + len(index)] = philox(counter, self.key)
        return out.reshape(-1)[:count]

    def long_words(self, count: int) -> Array:
        """The first `count` pairs of words, uint64."""
        pairs = self.words(2 * count).reshape(count, 2).astype(np.uint64)
        return (pairs[:, 0] << _32) | pairs[:, 1]

    def uniform(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Floats in [0, 1): every multiple of 2**-p is equally likely, p the precision of the element type in bits."""
        count = math.prod(shape)
        bits = _PRECISION[dtype.name]
        if dtype.itemsize == 8:
            top = (self.long_words(count) >> np.uint64(64 - bits)).astype(np.float64)
        else:
            top = (self.words(count) >> np.uint32(32 - bits)).astype(np.float32)
        return (top * top.dtype.type(2.0**-bits)).astype(dtype, copy=False).reshape(shape)

    def integers(self, shape: tuple[int, ...], low: int, high: int, dtype: np.dtype[Any]) -> Array:
        """Integers in [low, high): the upper half of (64 random bits) x (high - low).

        No value is more likely than another by more than (high - low) / 2**64.
        """
        span = high - low
        words = self.long_words(math.prod(shape))
        if span < 1 << 64:
            words = _upper_half(words, span)
        # Two's complement wraps: the sum is right although the offset may not fit into a signed word.
        return (words + np.uint64(low % (1 << 64))).astype(dtype).reshape(shape)

    def normal(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Standard normal numbers, two from two uniform ones (Box and Muller, 1958).

        |x| stays below 6.7 (8.6 for float64), the limit that 32 (53) random bits give.
        """
        count = math.prod(shape)
        pairs = -(-count // 2)
        if dtype.itemsize == 8:
            u = (self.long_words(2 * pairs) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            step = 2.0**-53
        else:
            u = self.words(2 * pairs).astype(np.float64) * 2.0**-32
            step = 2.0**-32
        radius = np.sqrt(-2.0 * np.log(u[0::2] + step))  # the step keeps log away from 0
        angle = (2.0 * np.pi) * u[1::2]
        out = np.empty(2 * pairs, np.float64)
        np.multiply(radius, np.cos(angle), out=out[0::2])
        np.multiply(radius, np.sin(angle), out=out[1::2])
        return out[:count].astype(dtype).reshape(shape)

    def truncated_normal(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Standard normal numbers given that |x| < 2, through the inverse of their distribution function.

        TensorFlow draws until a number falls inside. The inverse takes exactly one draw per element, so no
        element has to wait for another.
        """
        from scipy.special import erfinv

        count = math.prod(shape)
        # Midpoints of the 2**k cells of [0, 1): symmetric, and never an end of the interval.
        if dtype.itemsize == 8:
            u = ((self.long_words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        else:
            u = (self.words(count).astype(np.float64) + 0.5) * 2.0**-32
        inside = math.erf(math.sqrt(2.0))  # P(|x| < 2)
        x = math.sqrt(2.0) * erfinv((2.0 * u - 1.0) * inside)
        return np.asarray(x).astype(dtype).reshape(shape)

    def permutation(self, count: int) -> Array:
        """The numbers 0 .. count-1 (int64) in random order: sorted by 64 random bits each, ties (rare) in order."""
        return np.argsort(self.long_words(count), kind="stable")


def _upper_half(words: Array, factor: int) -> Array:
    """The upper 64 bits of uint64 words times a factor below 2**64, from products of 32-bit halves."""
    a1, a0 = words >> _32, words & _LOW
    b1, b0 = np.uint64(factor >> 32), np.uint64(factor & 0xFFFFFFFF)
    middle = a1 * b0 + ((a0 * b0) >> _32)
    return np.asarray(a1 * b1 + (middle >> _32) + (((middle & _LOW) + a0 * b1) >> _32))


def key_from(seed: int, name: str) -> tuple[int, int]:
    """A key for a node that has no seed: 64 bits of a hash of the session's seed and the node's name."""
    seed_bytes = (seed % (1 << 64)).to_bytes(8, "little")
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=seed_bytes).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
