"""Boxes of elements moved from one array into another: slices and their gradients, pieces, joined arrays, padding, transposes.

A `Move` is a box: so many elements along each axis, from a place and at distances in the input to a place and at distances in the
output. Distances may be negative (an axis that is turned around) or 0 (a repeated one). Axes of a box that lie behind one another in
both arrays are joined, so most boxes have one to four.

A program moves a tile between two axes: the last one, along which it writes, and that along which the input lies without gaps. (Where
these are the same, the tile's other side is the axis before.) Triton exchanges the elements between threads on the way. Boxes of one axis,
and those whose tiles would be mostly empty, are moved by blocks of elements in the output's order.

Launch names of move j: `o{j}_0`... its sizes, `s{j}_0`... distances in the input, `t{j}_0`... in the output, `f{j}`, `g{j}` where it
begins in them. `n` counts the elements of an output that is filled with zeros beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType
from ...fusion.table_loops import filled as filled_with
from ...ir.schedule import GpuSchedule
from ..emit.expr import Names
from ..emit.launches import launches
from ..ir import Count, Grid, Launch, Parameter, Routine, triton_type
from ..schedule import FLAT_COPY, copy_schedules
from .text import Constants, lines, make_launch


@dataclass(frozen=True, slots=True)
class Move:
    """One box. Distances and places are in elements.

    Attributes:
        source, target: which input, which output.
        axes: (size, distance in the input, distance in the output) of each axis, the last one innermost.
        begin, end: where it begins in the input, and in the output.
    """

    source: int
    target: int
    axes: tuple[tuple[int, int, int], ...]
    begin: int = 0
    end: int = 0

    def joined(self) -> Move:
        """The same box with as few axes as can be, one at least."""
        out: list[tuple[int, int, int]] = []
        for size, s, t in self.axes:
            if size == 1:
                continue
            if out and out[-1][1] == size * s and out[-1][2] == size * t:
                out[-1] = (out[-1][0] * size, s, t)
            else:
                out.append((size, s, t))
        return Move(self.source, self.target, tuple(out) or ((1, 1, 1),), self.begin, self.end)


def moves(dtype: DType, boxes: Sequence[Move], filled: int = 0) -> tuple[list[Routine], dict[str, int]]:
    """Candidates that move boxes, the likely best one first, and the sizes of their launches.

    Args:
        dtype: of all elements.
        boxes: none of them empty.
        filled: elements of output 0 that become 0 first; 0: it is covered by boxes.
    """
    pointer, joined = "*" + triton_type(dtype.name), [box.joined() for box in boxes]
    first, sizes = [], {}
    if filled:
        first.append(launches(filled_with(dtype), Names((), ("out0",), ("n",)), [filled])[0])
        sizes["n"] = filled
    for j, box in enumerate(joined):
        for a, axis in enumerate(box.axes):
            sizes |= {f"{name}{j}_{a}": value for name, value in zip("ost", axis, strict=True)}
        sizes |= {f"f{j}": box.begin, f"g{j}": box.end}
    ways = copy_schedules([box.axes[a][0] for box in joined if len(box.axes) > 1 for a in _sides(box)])
    made = [(*first, *(_move(pointer, box, j, sizes, way) for j, box in enumerate(joined))) for way in ways]
    return [Routine(launches) for launches in dict.fromkeys(made)], sizes


def _sides(box: Move) -> tuple[int, int]:
    """The axes of a tile: that along which it is written, and the other."""
    last = len(box.axes) - 1
    return last, next((a for a in range(last) if abs(box.axes[a][1]) == 1), last - 1)


def _move(pointer: str, box: Move, j: int, sizes: Mapping[str, int], way: GpuSchedule) -> Launch:
    rank = len(box.axes)
    way = way if rank > 1 else FLAT_COPY
    wide, high = way.columns, way.rows
    counted = [f"o{j}_{a}" for a in range(rank)]
    whole = "i32" if math.prod(size for size, _, _ in box.axes) + wide < 2**31 else "i64"

    def step(name: str, a: int, place: str) -> str:
        return place if sizes[f"{name}{j}_{a}"] == 1 else f"{place} * {name}{j}_{a}"

    source, target = f"in{box.source} + f{j}", f"out{box.target} + g{j}"
    if high > 1:
        along, across = _sides(box)
        others = [a for a in range(rank) if a not in (along, across)]
        constants: Constants = (("WIDE", wide), ("HIGH", high))
        rest = Count(tuple(counted[a] for a in others))
        grid = Grid((Count((counted[along],), wide), Count((counted[across],), high), rest))
        begin = [
            f"wide = tl.cdiv({counted[along]}, WIDE)",
            f"high = tl.cdiv({counted[across]}, HIGH)",
            "number = tl.program_id(0)",
            f"i = (number % wide * WIDE + tl.arange(0, WIDE))[None, :].to(tl.int64)  # along {counted[along]}",
            f"j = (number // wide % high * HIGH + tl.arange(0, HIGH))[:, None].to(tl.int64)  # along {counted[across]}",
            *(["rest = (number // (wide * high)).to(tl.int64)"] if others else []),
            f"source = {source} + {step('s', along, 'i')} + {step('s', across, 'j')}",
            f"target = {target} + {step('t', along, 'i')} + {step('t', across, 'j')}",
            f"inside = (i < {counted[along]}) & (j < {counted[across]})",
        ]
    else:
        others, constants, grid = list(range(rank)), (("BLOCK", wide),), Grid((Count(tuple(counted), wide),))
        first = "tl.program_id(0)" if whole == "i32" else "tl.program_id(0).to(tl.int64)"
        begin = [
            f"i = {first} * BLOCK + tl.arange(0, BLOCK)",
            f"inside = i < {' * '.join(counted)}",
            "rest = i",
            f"source = {source}",
            f"target = {target}",
        ]
    peeled = []
    for a in reversed(others):
        place = "rest" if a == others[0] else f"rest % {counted[a]}"
        peeled += [f"source += {step('s', a, place)}", f"target += {step('t', a, place)}"]
        peeled += [f"rest //= {counted[a]}"] if a != others[0] else []
    body = lines(begin, peeled, "tl.store(target, tl.load(source, inside), inside)")
    used = [*counted, *(n for name in "st" for a in range(rank) if sizes[n := f"{name}{j}_{a}"] != 1), f"f{j}", f"g{j}"]
    parameters = (
        *(Parameter(name, pointer, True) for name in (f"in{box.source}", f"out{box.target}")),
        *(Parameter(n, whole if n[0] == "o" else "i64", sizes[n] % 16 == 0) for n in used),
    )
    return make_launch("move", body, parameters, constants, grid, way)
