"""Transposition: the same elements with the axes in another order.

Axes that stay neighbours are one, and axes of size 1 are none, so most transpositions have two to four axes. A program moves a tile
between two of them: the last axis of the result, along which it writes, and the one that lies last in the input, along which it
reads. (Where these are the same, the tile's other side is the axis before.) So both sides of memory are gone along without gaps;
Triton exchanges the elements between threads on the way.

Launch names: `in0`, `out0`; `o0`... sizes of the result's axes, `s0`... how far apart neighbours along them are in the input,
`t0`... in the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ....graph.core.dtypes import DType
from ..ir import Count, Grid, Launch, Parameter, Routine, triton_type
from .text import lines, make_kernel

# Of the axis that is written along, and the other; warps.
_TILES = (
    (32, 64, 4),
    (64, 64, 8),
    (32, 32, 4),
    (16, 256, 8),
)


def transposition_sizes(shape: Sequence[int], order: Sequence[int]) -> dict[str, int]:
    """Sizes and strides by name, after joining; empty when nothing has to be moved.

    >>> transposition_sizes((5, 2, 3), (2, 0, 1))
    {'o0': 3, 'o1': 10, 's0': 1, 's1': 3, 't0': 10, 't1': 1}
    >>> transposition_sizes((5, 1, 3), (1, 0, 2))
    {}
    """
    strides = [math.prod(shape[a + 1 :]) for a in range(len(shape))]
    joined: list[tuple[int, int]] = []  # size and stride in the input
    for axis in order:
        size, stride = shape[axis], strides[axis]
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    if len(joined) < 2:
        return {}
    sizes = [size for size, _ in joined]
    out = {f"o{i}": size for i, size in enumerate(sizes)}
    out |= {f"s{i}": stride for i, (_, stride) in enumerate(joined)}
    return out | {f"t{i}": math.prod(sizes[i + 1 :]) for i in range(len(sizes))}


def transposition(dtype: DType, sizes: Mapping[str, int]) -> list[Routine]:
    """Ways to move the elements, for sizes of `transposition_sizes`."""
    rank = len(sizes) // 3
    last = rank - 1
    read = next(i for i in range(rank) if sizes[f"s{i}"] == 1)
    across = read if read != last else last - 1
    return [_routine(dtype, sizes, rank, last, across, tile) for tile in _TILES]


def _routine(
    dtype: DType, sizes: Mapping[str, int], rank: int, along: int, across: int, tile: tuple[int, int, int]
) -> Routine:
    """Tiles of the result's axes `along` (the last) and `across`."""
    wide, high, warps = tile
    others = [i for i in range(rank) if i not in (along, across)]

    def stride(kind: str, axis: int) -> str:
        return "" if sizes[f"{kind}{axis}"] == 1 else f" * {kind}{axis}"

    body = lines(
        f"wide = tl.cdiv(o{along}, WIDE)",
        f"high = tl.cdiv(o{across}, HIGH)",
        "number = tl.program_id(0)",
        f"i = (number % wide * WIDE + tl.arange(0, WIDE))[None, :].to(tl.int64)  # along o{along}",
        f"j = (number // wide % high * HIGH + tl.arange(0, HIGH))[:, None].to(tl.int64)  # along o{across}",
        ["rest = (number // (wide * high)).to(tl.int64)"] if others else [],
        f"source = in0 + i{stride('s', along)} + j{stride('s', across)}",
        f"target = out0 + i{stride('t', along)} + j{stride('t', across)}",
        [
            line
            for a in reversed(others)
            for line in (f"source += rest % o{a} * s{a}", f"target += rest % o{a} * t{a}", f"rest //= o{a}")
        ],
        f"inside = (i < o{along}) & (j < o{across})",
        "tl.store(target, tl.load(source, inside), inside)",
    )
    names = [f"{kind}{i}" for kind in "ost" for i in range(rank)]
    used = [n for n in names if n[0] == "o" or sizes[n] != 1]
    parameters = (
        *(Parameter(n, "*" + triton_type(dtype.name), True) for n in ("in0", "out0")),
        *(Parameter(n, "i32" if n[0] == "o" else "i64", sizes[n] % 16 == 0) for n in used),
    )
    kernel = make_kernel("transpose", parameters, (("WIDE", wide), ("HIGH", high)), body, num_warps=warps, num_stages=1)
    blocks = (Count((f"o{along}",), wide), Count((f"o{across}",), high), Count(tuple(f"o{i}" for i in others)))
    return Routine((Launch(kernel, Grid(blocks)),))
