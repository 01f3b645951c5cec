"""Places: where an op that only moves elements takes them from.

Transposes, slices, paddings and concatenations compute nothing: each element of the output is an element of an input, at another place.
Along a dimension of an input, the place is begin + step * the position along a dimension of the output. An op states its places in its
definition (`OpDef.places`). A code generator reads the inputs there, instead of a copy:

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
    """Where an element is along one dimension of an input: at begin + step * position.

    Attributes:
        axis: the dimension of the output along which the position is; None: the position is 0.
        begin, step: numbers of elements.
        is_whole: the place is the position, and both dimensions are equally long.
        is_masked: the place may lie outside of the input.
    """

    axis: int | None
    begin: int = 0
    step: int = 1
    is_whole: bool = True
    is_masked: bool = False


Places: TypeAlias = "tuple[Place, ...]"
"""The places in an input, one for each of its dimensions."""


def checked_places(node: Node, input: int, places: Iterable[Place]) -> Places | None:
    """The places in an input of a node; None if they depend on sizes that are not known.

    A concatenation's second input, behind one of 3 rows: `checked_places(node, 1, [Place(0, -3, 1, False, True), Place(1)])`.

    Args:
        node: a node with known ranks.
        input: the input's position.
        places: one for each dimension. Those `is_whole` are not moved, whatever their sizes; others become whole if their sizes show it.
    """
    made, out = node.outputs[0].dims or (), []
    for p, size in zip(places, node.inputs[input].dims or (), strict=True):
        count = 1 if p.axis is None else made[p.axis]
        if not p.is_whole and (size is None or count is None):
            return None
        out.append(Place(p.axis) if p.is_whole or (p.begin, p.step, count) == (0, 1, size) else p)
    return tuple(out)
