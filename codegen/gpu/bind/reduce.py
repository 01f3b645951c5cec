"""Reductions over axes that only the running graph knows: the sum over what a broadcast repeated, most often over nothing.

Where the axes are known before, a reduction is a kernel made from loops, with others in it (`codegen/fusion/fuse.py`). Here the loops
are written when the axes are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....graph.core.dtypes import DType
from ....graph.core.graph import Node
from ...fusion.legality import SUPPORTED
from ...ir.loop_nest import LoopNestBuilder
from ..driver.device import Device
from ..emit.schedules import routines, size_names, specialise
from ..ir import Target
from ..kernels import Choice
from ..select import Template, copied

_KINDS = {"Sum": "sum", "Max": "max", "Min": "min", "Prod": "prod", "Mean": "sum"}


def _reduction(node: Node, target: Target) -> Template:
    dtype, kind, keep = node.inputs[0].dtype.base, _KINDS[node.type], bool(node.attrs.get("keep_dims", False))
    if dtype not in SUPPORTED or (node.type == "Mean" and not dtype.is_floating):
        raise ValueError("not this type")

    def choose(device: Device, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        (shape,), (axes,) = shapes, others
        rank = len(shape)
        if 0 in shape or any(not -rank <= a < rank for a in axes):
            return None
        over = {a % rank for a in axes}
        made = tuple(1 if i in over else n for i, n in enumerate(shape) if keep or i not in over)
        if all(shape[a] == 1 for a in over):
            return Choice([copied(device, math.prod(shape) * dtype.size)], {}, [(made, dtype.np)])
        return reduced(dtype, kind, node.type == "Mean", shape, over, made)

    return Template(1, choose)


def reduced(
    dtype: DType, kind: str, is_mean: bool, shape: tuple[int, ...], over: set[int], made: tuple[int, ...]
) -> Choice:
    """Loops over all axes, some of them reduced."""
    builder = LoopNestBuilder([i in over for i in range(len(shape))])
    total = builder.reduce(kind, builder.load(0, dtype, range(len(shape))))
    if is_mean:
        total = builder.apply("div", total, builder.count(dtype))
    builder.store(total, [i for i in range(len(shape)) if i not in over])
    loops, parts = builder.finish()
    joined = [math.prod(shape[a] for a in part) for part in parts]
    names = dict(zip(size_names(loops), joined, strict=True))
    return Choice(routines(loops, specialise(loops, joined)), names, [(made, dtype.np)])


REDUCTION_MAKERS = dict.fromkeys(_KINDS, _reduction)
