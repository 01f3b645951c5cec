"""Places: the affine index maps of ops that only move elements.

Transposes, slices, paddings and concatenations compute nothing. Each element of the output is an element of an input, with another index.
The index along a dimension of the input is begin + step * the index along a dimension of the output: a *place*. An op states its places in
its definition (`OpDef.places`). Generated code reads the inputs at these places, so that no copy is made:

    x[:, 2:]                 places 0 + i, 2 + j
    transpose(x)             places 0 + j, 0 + i
    pad(x, [[1, 0], [0, 0]]) places -1 + i, 0 + j, masked: what lies outside of x is the constant
    concat([x, y], 0)        masked places of x and y; what lies outside of x is taken from y
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .graph import Node


@dataclass(frozen=True, slots=True)
class Place:
    """The index of an element along one dimension of an input: begin + step * its index along a dimension of the output.

    Attributes:
        axis: the dimension of the output. None means that the index is `begin`.
        begin: the index of the first element.
        step: the distance between neighbouring elements.
        is_whole: whether the map is the identity, and both dimensions have the same size.
        is_masked: whether the index may be outside the input.
    """

    axis: int | None
    begin: int = 0
    step: int = 1
    is_whole: bool = True
    is_masked: bool = False


Places: TypeAlias = "tuple[Place, ...]"
"""The places in an input, one per dimension."""


def checked_places(node: Node, input: int, places: Iterable[Place]) -> Places | None:
    """The places in an input of a node. None if they depend on unknown sizes.

    The second input of a concatenation, after an input of 3 rows: `checked_places(node, 1, [Place(0, -3, 1, False, True), Place(1)])`.

    Args:
        node: a node with known ranks.
        input: the position of the input.
        places: a place per dimension. Those that are not `is_whole` become so if the static sizes show it.
    """
    made, out = node.outputs[0].dims or (), []
    for p, size in zip(places, node.inputs[input].dims or (), strict=True):
        count = 1 if p.axis is None else made[p.axis]
        if not p.is_whole and (size is None or count is None):
            return None
        out.append(Place(p.axis) if p.is_whole or (p.begin, p.step, count) == (0, 1, size) else p)
    return tuple(out)
