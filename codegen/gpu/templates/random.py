"""Random numbers that fused kernels do not make: integers, and normal numbers of other types than float32.

A launch gives the key and the draw of a `Stream` as numbers of 64 bits, `key` (its first word in the lower half) and `draw`, and the
count of elements, `n`. Integers are those of the CPU, bit for bit. Normal numbers are computed in float64 and rounded once, as
there, and differ only where two functions' `log` or `cos` decide a tie of that rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....graph.core.dtypes import FLOATS, DType, float64, int32, int64, uint32, uint64
from ..ir import Count, Grid, Routine
from .text import address, lines, make_launch

_BLOCK = 1024  # elements of a block
_NUMBERS = {"key": "u64", "draw": "u64", "n": "i64"}

_WORDS = "block = tl.program_id(0).to(tl.int64) * (BLOCK // {per}) + tl.arange(0, BLOCK // {per})"
_LONG = (_WORDS.format(per=2), "a, b = long_words(block, key, draw)")
_STEP = f"tl.full((), {2.0**-53!r}, tl.float64)"


def normal(dtype: DType) -> Routine:
    """`out0`: n standard normal numbers.

    Raises:
        ValueError: not a floating type of 16 to 64 bits.
    """
    if dtype not in FLOATS:
        raise ValueError(f"random floats have 16 to 64 bits, not the type {dtype.name}")
    if dtype is float64:
        body = lines(*_LONG, f"x, y = box_muller(fraction64(a), fraction64(b), {_STEP})", "x = tl.interleave(x, y)")
    else:
        body = lines(
            _WORDS.format(per=4),
            "w0, w1, w2, w3 = philox(block, key, draw)",
            "xa, ya = wide_normal_pair(w0, w1)",
            "xb, yb = wide_normal_pair(w2, w3)",
            "x = tl.interleave(tl.interleave(xa, xb), tl.interleave(ya, yb))",
        )
    return _routine("normal", body, dtype)


def integers(dtype: DType) -> Routine:
    """`out0`: n integers in [low, low + span). A launch also gives `low` (as 64 bits, wrapped around) and `span` (below 2**64).

    Raises:
        ValueError: the type has not 32 or 64 bits.
    """
    if dtype not in (int32, int64, uint32, uint64):
        raise ValueError(f"random integers have 32 or 64 bits, not the type {dtype.name}")
    body = lines(*_LONG, "x = tl.umulhi(tl.interleave(a, b), tl.zeros([BLOCK], tl.uint64) + span) + low")
    return _routine("integers", body, dtype, {"low": "u64", "span": "u64"})


def _routine(name: str, body: str, dtype: DType, more: Mapping[str, str] | None = None) -> Routine:
    body = lines(
        body,
        "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        f"tl.store(out0 + i, x.to(tl.{dtype.name}), mask=i < n)",
    )
    numbers, grid = {**_NUMBERS, **(more or {})}, Grid((Count(("n",), _BLOCK),))
    return Routine((make_launch(name, body, {"out0": address(dtype)}, numbers, {"BLOCK": _BLOCK}, grid),))
