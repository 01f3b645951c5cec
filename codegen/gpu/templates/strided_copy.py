"""Boxes of elements moved from one array into another: slices and their gradients, pieces, joined arrays, padding.

A `Move` is a box: so many elements along each axis, from a place and at distances in the input to a place and at distances in the
output. Distances may be negative (an axis that is turned around) or 0 (a repeated one). Axes of a box that lie behind one another in
both arrays are joined, so most boxes have one or two.

Launch names of move j: `o{j}_0`... its sizes, `s{j}_0`... distances in the input, `t{j}_0`... in the output, `f{j}`, `g{j}` where it
begins in them. `n` counts the elements of an output that is filled with zeros beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ....graph.core.dtypes import DType
from ..ir import Count, Grid, Launch, Parameter, Routine, triton_type
from .text import lines, make_kernel

_BLOCK = 1024


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


def moves(dtype: DType, boxes: Sequence[Move], filled: int = 0) -> tuple[Routine, dict[str, int]]:
    """Kernels that move boxes, and the sizes that they take.

    Args:
        dtype: of all elements.
        boxes: none of them empty.
        filled: elements of output 0 that become 0 first; 0: it is covered by boxes.
    """
    pointer = "*" + triton_type(dtype.name)
    launches, sizes = [], {}
    if filled:
        body = lines(
            "i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
            "tl.store(out0 + i, tl.zeros([BLOCK], out0.dtype.element_ty), i < n)",
        )
        kernel = make_kernel(
            "clear", (Parameter("out0", pointer, True), Parameter("n", "i64")), (("BLOCK", _BLOCK),), body
        )
        launches.append(Launch(kernel, Grid((Count(("n",), _BLOCK),))))
        sizes["n"] = filled
    for number, box in enumerate(boxes):
        launch, own = _move(pointer, box.joined(), number)
        launches.append(launch)
        sizes |= own
    return Routine(tuple(launches)), sizes


def _move(pointer: str, box: Move, j: int) -> tuple[Launch, dict[str, int]]:
    rank = len(box.axes)
    named = [(f"o{j}_{a}", f"s{j}_{a}", f"t{j}_{a}") for a in range(rank)]
    sizes = {
        name: value
        for names, values in zip(named, box.axes, strict=True)
        for name, value in zip(names, values, strict=True)
    }
    sizes |= {f"f{j}": box.begin, f"g{j}": box.end}
    steps: list[str] = []
    for a in range(rank - 1, -1, -1):
        o, s, t = named[a]
        place = "rest" if a == 0 else f"rest % {o}"
        steps += [
            f"source += {place}" + ("" if sizes[s] == 1 else f" * {s}"),
            f"target += {place}" + ("" if sizes[t] == 1 else f" * {t}"),
            *([f"rest //= {o}"] if a else []),
        ]
    arrays = (f"in{box.source}", f"out{box.target}")
    counted = [o for o, _, _ in named]
    used = [n for names in named for n in names if n[0] == "o" or sizes[n] != 1] + [f"f{j}", f"g{j}"]
    whole = "i32" if math.prod(size for size, _, _ in box.axes) + _BLOCK < 2**31 else "i64"
    first = "i = tl.program_id(0) * BLOCK" if whole == "i32" else "i = tl.program_id(0).to(tl.int64) * BLOCK"
    body = lines(
        f"{first} + tl.arange(0, BLOCK)",
        f"inside = i < {' * '.join(counted)}",
        "rest = i",
        f"source = {arrays[0]} + f{j}",
        f"target = {arrays[1]} + g{j}",
        steps,
        "tl.store(target, tl.load(source, inside), inside)",
    )
    parameters = (
        *(Parameter(a, pointer, True) for a in arrays),
        *(Parameter(n, whole if n[0] == "o" else "i64") for n in used),
    )
    kernel = make_kernel("move", parameters, (("BLOCK", _BLOCK),), body)
    return Launch(kernel, Grid((Count(tuple(counted), _BLOCK),))), sizes
