"""Fingerprints of strings: 64-bit hashes that are the same on all machines and in all releases.

This is `Fingerprint64` of Google's FarmHash (Geoff Pike, 2014, https://github.com/google/farmhash). TensorFlow's hash buckets use it, so
that the rows of a model's tables are the same in both.

The functions here take one string, or several of one length: then text[i] is a vector of their bytes at i, and their numbers are vectors,
too (`hashes`). A string takes microseconds, but one of a vector a hundredth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final, TypeAlias

import numpy as np

from .dtypes import Array

_MASK: Final = (1 << 64) - 1
_K0: Final = 0xC3A5C85C97CB3127
_K1: Final = 0xB492B66FBE98F273
_K2: Final = 0x9AE16A3B2F90404F
_CAT: Final = 0xC6A4A7935BD1E995

_SEVERAL: Final = 16  # strings of one length from which on vectors take less time

Text: TypeAlias = "bytes | Array"
"""A string; or several of one length, as an array of uint64 whose rows are their bytes at one place."""
Number: TypeAlias = Any
"""An int, or a vector of uint64, whose arithmetic goes around at 2**64."""
_Pair: TypeAlias = "tuple[Number, Number]"


def hashes(texts: Sequence[bytes], hashed: Callable[[Any], Number]) -> Array:
    """The hashes of strings (uint64), by a function of this module."""
    out, lengths = np.empty(len(texts), np.uint64), np.array([len(text) for text in texts])
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        some = [texts[i] for i in places.tolist()]
        if len(some) < _SEVERAL:
            out[places] = [hashed(text) for text in some]
        else:
            rows = np.frombuffer(b"".join(some), np.uint8).reshape(len(some), length)
            out[places] = hashed(rows.T.astype(np.uint64))
    return out


def fingerprint(text: Text) -> Number:
    """The fingerprint of a string, in [0, 2 ** 64).

    >>> hex(fingerprint(b"hello"))
    '0xb48be5a931380ce8'
    """
    size = len(text)
    if size <= 16:
        return _to_16(text, size)
    if size <= 32:
        return _to_32(text, size)
    return _to_64(text, size) if size <= 64 else _long(text, size)


def joined(first: int, second: int) -> Number:
    """Combine two fingerprints into one. The result depends on their order."""
    found = first ^ _CAT ^ (_shift_mix(second * _CAT & _MASK) * _CAT & _MASK)
    found = _shift_mix(found * _CAT & _MASK) * _CAT & _MASK
    return _shift_mix(found)


def _whole(part: Text) -> Number:
    """The number whose bytes these are, the lowest first."""
    if isinstance(part, bytes):
        return int.from_bytes(part, "little")
    return reduce(or_, (row << 8 * i for i, row in enumerate(part)))


def _word(text: Text, at: int) -> Number:
    return _whole(text[at : at + 8])


def _rotated(x: Number, by: int) -> Number:
    return (x >> by | x << (64 - by)) & _MASK


def _shift_mix(x: Number) -> Number:
    return x ^ (x >> 47)


def _pair(u: Number, v: Number, factor: Number) -> Number:
    a = _shift_mix((u ^ v) * factor & _MASK)
    return _shift_mix((v ^ a) * factor & _MASK) * factor & _MASK


def _to_16(s: Text, n: int) -> Number:
    factor = _K2 + 2 * n
    if n >= 8:
        a, b = (_word(s, 0) + _K2) & _MASK, _word(s, n - 8)
        c = (_rotated(b, 37) * factor + a) & _MASK
        return _pair(c, (_rotated(a, 25) + b) * factor & _MASK, factor)
    if n >= 4:
        a, b = _whole(s[:4]), _whole(s[-4:])
        return _pair(n + (a << 3), b, factor)
    if n > 0:
        y, z = s[0] + (s[n >> 1] << 8), n + (s[-1] << 2)
        return _shift_mix((y * _K2 & _MASK) ^ (z * _K0 & _MASK)) * _K2 & _MASK
    return _K2


def _to_32(s: Text, n: int) -> Number:
    factor = _K2 + 2 * n
    a, b = _word(s, 0) * _K1 & _MASK, _word(s, 8)
    c, d = _word(s, n - 8) * factor & _MASK, _word(s, n - 16) * _K2 & _MASK
    first = (_rotated((a + b) & _MASK, 43) + _rotated(c, 30) + d) & _MASK
    return _pair(first, (a + _rotated((b + _K2) & _MASK, 18) + c) & _MASK, factor)


def _to_64(s: Text, n: int) -> Number:
    factor = _K2 + 2 * n
    a, b = _word(s, 0) * _K2 & _MASK, _word(s, 8)
    c, d = _word(s, n - 8) * factor & _MASK, _word(s, n - 16) * _K2 & _MASK
    y = (_rotated((a + b) & _MASK, 43) + _rotated(c, 30) + d) & _MASK
    z = _pair(y, (a + _rotated((b + _K2) & _MASK, 18) + c) & _MASK, factor)
    e, f = _word(s, 16) * factor & _MASK, _word(s, 24)
    g = (y + _word(s, n - 32)) * factor & _MASK
    h = (z + _word(s, n - 24)) * factor & _MASK
    first = (_rotated((e + f) & _MASK, 43) + _rotated(g, 30) + h) & _MASK
    return _pair(first, (e + _rotated((f + a) & _MASK, 18) + g) & _MASK, factor)


def _weak(s: Text, at: int, a: Number, b: Number) -> _Pair:
    w, x, y, z = (_word(s, at + 8 * i) for i in range(4))
    a = (a + w) & _MASK
    b = _rotated((b + a + z) & _MASK, 21)
    c = a
    a = (a + x + y) & _MASK
    return (a + z) & _MASK, (b + _rotated(a, 44) + c) & _MASK


def _long(s: Text, n: int) -> Number:
    x = 81
    y = (x * _K1 + 113) & _MASK
    z = _shift_mix((y * _K2 + 113) & _MASK) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    x = ((x * _K2 & _MASK) + _word(s, 0)) & _MASK
    end = (n - 1) // 64 * 64
    at = 0
    while at != end:
        x, y, z, v, w = _round(s, at, x, y, z, v, w, _K1, 1)
        at += 64
    factor = (_K1 + ((z & 0xFF) << 1)) & _MASK
    w0 = (w[0] + ((n - 1) & 63)) & _MASK
    v0 = (v[0] + w0) & _MASK
    v, w = (v0, v[1]), ((w0 + v0) & _MASK, w[1])
    x, y, z, v, w = _round(s, n - 64, x, y, z, v, w, factor, 9)
    first = (_pair(v[0], w[0], factor) + _shift_mix(y) * _K0 + z) & _MASK
    return _pair(first, (_pair(v[1], w[1], factor) + x) & _MASK, factor)


def _round(
    s: Text, at: int, x: Number, y: Number, z: Number, v: _Pair, w: _Pair, factor: Number, times: int
) -> tuple[Number, Number, Number, _Pair, _Pair]:
    x = _rotated((x + y + v[0] + _word(s, at + 8)) & _MASK, 37) * factor & _MASK
    y = _rotated((y + v[1] + _word(s, at + 48)) & _MASK, 42) * factor & _MASK
    x ^= w[1] * times & _MASK
    y = (y + v[0] * times + _word(s, at + 40)) & _MASK
    z = _rotated((z + w[0]) & _MASK, 33) * factor & _MASK
    v = _weak(s, at, v[1] * factor & _MASK, (x + w[0]) & _MASK)
    w = _weak(s, at + 32, (z + w[1]) & _MASK, (y + _word(s, at + 16)) & _MASK)
    return z, y, x, v, w


# --- older and keyed hashes ---------------------------------------------------------------------------------------------


def hash64(text: Text) -> Number:
    """TensorFlow's `Hash64`, a MurmurHash64A, which its older hash buckets use.

    >>> hash64(b"a")
    2996632905371535868
    """
    size = len(text)
    found = (0xDECAFCAFFE ^ size * _CAT) & _MASK
    for at in range(0, size - size % 8, 8):
        word = _word(text, at) * _CAT & _MASK
        found = ((found ^ _shift_mix(word) * _CAT & _MASK) * _CAT) & _MASK
    if size % 8:
        found = (found ^ _whole(text[size - size % 8 :])) * _CAT & _MASK
    return _shift_mix(_shift_mix(found) * _CAT & _MASK)


def keyed_hash(text: Text, key: _Pair) -> Number:
    """SipHash-2-4 (Aumasson and Bernstein, 2012). The key is two 64-bit numbers. Without it, the hash cannot be predicted."""
    first, second = key
    a, b = first ^ 0x736F6D6570736575, second ^ 0x646F72616E646F6D
    c, d = first ^ 0x6C7967656E657261, second ^ 0x7465646279746573
    size = len(text)
    for at in range(0, size + 1, 8):  # the last word may have no byte of the text, and ends with its size
        word = _word(text, at) if at < size else 0
        if at + 8 > size:
            word = word | (size & 0xFF) << 56
        a, b, c, d = _sip_round(*_sip_round(a, b, c, d ^ word))
        a ^= word
    c ^= 0xFF
    for _ in range(4):
        a, b, c, d = _sip_round(a, b, c, d)
    return a ^ b ^ c ^ d


def _sip_round(a: Number, b: Number, c: Number, d: Number) -> tuple[Number, Number, Number, Number]:
    a, c = (a + b) & _MASK, (c + d) & _MASK
    b, d = _rotated(b, 51) ^ a, _rotated(d, 48) ^ c
    a, c = (_rotated(a, 32) + d) & _MASK, (c + b) & _MASK
    b, d = _rotated(b, 47) ^ c, _rotated(d, 43) ^ a
    return a, b, _rotated(c, 32), d
