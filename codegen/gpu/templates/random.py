"""Random numbers that fused kernels do not make: integers, and normal numbers of other types than float32.

A launch gives the key and the draw of a `Stream` as numbers of 64 bits, `key` (its first word in the lower half) and `draw`, and the
count of elements, `n`. Integers are those of the CPU, bit for bit. Normal numbers are computed in float64 and rounded once, as
there, and differ only where two libraries' `log` or `cos` decide a tie of that rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint32, uint64
from ..ir import Count, Grid, Routine
from .text import address, make_launch

_BLOCK = 1024  # elements of a block
_FLOATS = (float16, bfloat16, float32, float64)
_NUMBERS = {"key": "u64", "draw": "u64", "n": "i64"}

_WORDS = """    block = tl.program_id(0).to(tl.int64) * (BLOCK // {per}) + tl.arange(0, BLOCK // {per})
    w0, w1, w2, w3 = philox(block, key, draw)
"""
_LONG = """    a = (w0.to(tl.uint64) << 32) | w1.to(tl.uint64)
    b = (w2.to(tl.uint64) << 32) | w3.to(tl.uint64)
"""
_AT = """    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
"""


def normal(dtype: DType) -> Routine:
    """`out0`: n standard normal numbers.

    Raises:
        ValueError: not a floating type of 16 to 64 bits.
    """
    if dtype not in _FLOATS:
        raise ValueError(f"random floats have 16 to 64 bits, not the type {dtype.name}")
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
    launch = make_launch(
        name,
        body,
        {"out0": address(dtype)},
        numbers,
        {"BLOCK": _BLOCK},
        Grid((Count(("n",), _BLOCK),)),
    )
    return Routine((launch,))
