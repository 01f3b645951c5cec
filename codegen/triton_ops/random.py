"""Random numbers: the very bits of `graph.philox`, made where they are needed.

A launch gives the key and the draw of a `Stream` as numbers: `key0`, `key1` (32 bits each), `draw` (64 bits), and the count of
elements, `n`. Each thread scrambles counters of its own; one counter gives four words. Uniform numbers and integers are those of
the CPU, bit for bit. Normal ones are computed in float64 and rounded once, as there, and differ only where two libraries'
`log` or `cos` decide a tie of that rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...graph.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint32, uint64
from ..gpu_kernel import Count, Grid, Routine
from .common import address, make

_BLOCK = 1024  # elements of a block
_PRECISION = {float16: 11, bfloat16: 8, float32: 24, float64: 53}  # bits of a significand
_NUMBERS = {"key0": "u32", "key1": "u32", "draw": "u64", "n": "i64"}

_PHILOX = """@triton.jit
def high(a, factor):
    return ((a.to(tl.uint64) * factor) >> 32).to(tl.uint32)


@triton.jit
def low(a, factor):
    return ((a.to(tl.uint64) * factor) & 0xFFFFFFFF).to(tl.uint32)


@triton.jit
def philox(block, draw, key0, key1):
    c0 = (block & 0xFFFFFFFF).to(tl.uint32)
    c1 = (block >> 32).to(tl.uint32)
    c2 = tl.zeros_like(c0) + (draw & 0xFFFFFFFF).to(tl.uint32)
    c3 = tl.zeros_like(c0) + (draw >> 32).to(tl.uint32)
    k0 = tl.zeros_like(c0) + key0
    k1 = tl.zeros_like(c0) + key1
    for _ in tl.static_range(10):
        a, b = c0, c2
        c0 = high(b, 0xCD9E8D57) ^ c1 ^ k0
        c1 = low(b, 0xCD9E8D57)
        c2 = high(a, 0xD2511F53) ^ c3 ^ k1
        c3 = low(a, 0xD2511F53)
        k0 = k0 + tl.full((), 0x9E3779B9, tl.uint32)
        k1 = k1 + tl.full((), 0xBB67AE85, tl.uint32)
    return c0, c1, c2, c3


"""
_WORDS = """    block = tl.program_id(0).to(tl.int64) * (BLOCK // {per}) + tl.arange(0, BLOCK // {per})
    w0, w1, w2, w3 = philox(block, draw, key0, key1)
"""
_LONG = """    a = (w0.to(tl.uint64) << 32) | w1.to(tl.uint64)
    b = (w2.to(tl.uint64) << 32) | w3.to(tl.uint64)
"""
_AT = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
"""


def uniform(dtype: DType) -> Routine:
    """`out0`: n floats in [0, 1).

    Raises:
        ValueError: not a floating type of 16 to 64 bits.
    """
    bits = _bits(dtype)
    if dtype is float64:
        body = _WORDS.format(per=2) + _LONG + _AT
        body += f"    x = (tl.interleave(a, b) >> {64 - bits}).to(tl.float64) * {2.0**-bits!r}\n"
    else:
        body = _WORDS.format(per=4) + _AT
        body += "    words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))\n"
        body += f"    x = (words >> {32 - bits}).to(tl.float32) * {2.0**-bits!r}\n"
    return _routine("uniform", body, dtype)


def normal(dtype: DType) -> Routine:
    """`out0`: n standard normal numbers.

    Raises:
        ValueError: not a floating type of 16 to 64 bits.
    """
    _bits(dtype)
    if dtype is float64:
        body = _WORDS.format(per=2) + _LONG + _AT
        body += f"    u = (a >> 11).to(tl.float64) * {2.0**-53!r}\n    v = (b >> 11).to(tl.float64) * {2.0**-53!r}\n"
        body += _pair("u", "v", 2.0**-53, "") + "    x = tl.interleave(x, y)\n"
    else:
        body = _WORDS.format(per=4) + _AT
        for i in range(4):
            body += f"    u{i} = w{i}.to(tl.float64) * {2.0**-32!r}\n"
        body += _pair("u0", "u1", 2.0**-32, "a") + _pair("u2", "u3", 2.0**-32, "b")
        body += "    x = tl.interleave(tl.interleave(xa, xb), tl.interleave(ya, yb))\n"
    return _routine("normal", body, dtype)


def integers(dtype: DType) -> Routine:
    """`out0`: n integers in [low, low + span). A launch also gives `low` (as 64 bits, wrapped around) and `span` (below 2**64).

    Raises:
        ValueError: the type has not 32 or 64 bits.
    """
    if dtype not in (int32, int64, uint32, uint64):
        raise ValueError(f"random integers have 32 or 64 bits, not the type {dtype.name}")
    body = _WORDS.format(per=2) + _LONG + _AT
    body += "    x = tl.umulhi(tl.interleave(a, b), tl.zeros([BLOCK], tl.uint64) + span) + low\n"
    return _routine("integers", body, dtype, {"low": "u64", "span": "u64"})


def _bits(dtype: DType) -> int:
    if dtype not in _PRECISION:
        raise ValueError(f"random floats have 16 to 64 bits, not the type {dtype.name}")
    return _PRECISION[dtype]


def _pair(u: str, v: str, step: float, name: str) -> str:
    """Two normal numbers from two uniform ones (Box and Muller, 1958)."""
    return (
        f"    radius{name} = tl.sqrt(-2.0 * tl.log({u} + tl.full((), {step!r}, tl.float64)))\n"
        f"    angle{name} = {v} * tl.full((), 6.283185307179586, tl.float64)\n"
        f"    x{name} = radius{name} * tl.cos(angle{name})\n"
        f"    y{name} = radius{name} * tl.sin(angle{name})\n"
    )


def _routine(name: str, body: str, dtype: DType, more: Mapping[str, str] | None = None) -> Routine:
    body += f"    tl.store(out0 + i, x.to(tl.{dtype.name}), mask=i < n)\n"
    numbers = {**_NUMBERS, **(more or {})}
    launch = make(
        name, body, {"out0": address(dtype)}, numbers, {"BLOCK": _BLOCK}, Grid((Count(("n",), _BLOCK),)), own=_PHILOX
    )
    return Routine((launch,))
