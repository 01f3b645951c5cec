"""Templates of nodes that put slices at coordinates, into zeros or into a tensor, and of the one that picks them: scatter_nd and kin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....graph.core.graph import Node
from ...fusion.table_loops import MOST_COORDINATES
from ..driver.device import Device
from ..ir import triton_type
from ..templates.tables import check_scatter, gather_nd, launch_sizes, scatter
from .template import Choice, Template

Shape = tuple[int, ...]
MOST_UPDATES = 1 << 31  # which of them owns a row is counted in 32 bits


def slices_of(dims: Shape, coordinates: Shape) -> dict[str, int] | None:
    """The sizes of a launch that goes to coordinates of this shape in an array; None where no kernel does."""
    if not coordinates or not 1 <= (depth := coordinates[-1]) <= min(len(dims), MOST_COORDINATES):
        return None
    count = math.prod(coordinates[:-1])
    if 0 in dims or not 0 < count < MOST_UPDATES:
        return None
    return launch_sizes(math.prod(dims[:depth]), math.prod(dims[depth:]), count, dims[:depth])


def fits(dims: Shape, coordinates: Shape, updates: Shape) -> bool:
    """Whether updates have one slice for each coordinate."""
    return updates == (*coordinates[:-1], *dims[coordinates[-1] :])


def _scatter(node: Node) -> Template:
    """`ScatterNd`, into zeros, and `TensorScatterAdd` and kin, into a copy."""
    into_zeros = node.type == "ScatterNd"
    kind = "add" if into_zeros else node.type.removeprefix("TensorScatter").lower()
    begin, names = ("cleared", ("in0", "in1")) if into_zeros else ("copied", ("in1", "in2"))
    dtype, index = node.outputs[0].dtype.base, node.inputs[0 if into_zeros else 1].dtype.base
    check_scatter(kind, dtype)

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        dims, at, updates = (tuple(others[0]), *shapes) if into_zeros else shapes
        sizes = slices_of(dims, at)
        if sizes is None or not fits(dims, at, updates):
            return None
        ways = scatter(kind, dtype, index, sizes, at[-1], begin=begin, names=names)
        return Choice(ways, sizes, [(dims, dtype.np)])

    return Template(2 if into_zeros else 3, choose)


def _gather_nd(node: Node) -> Template:
    dtype, index = (t.dtype.base for t in node.inputs[:2])
    triton_type(dtype.name)  # KeyError for a type that kernels cannot have

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        dims, at = shapes
        sizes = slices_of(dims, at)
        if sizes is None:
            return None
        return Choice(gather_nd(dtype, index, at[-1], sizes), sizes, [((*at[:-1], *dims[at[-1] :]), dtype.np)])

    return Template(2, choose)


SCATTER_MAKERS: dict[str, Callable[[Node], Template]] = {
    "ScatterNd": _scatter,
    "GatherNd": _gather_nd,
    **dict.fromkeys((f"TensorScatter{kind}" for kind in ("Update", "Add", "Sub", "Min", "Max")), _scatter),
}
