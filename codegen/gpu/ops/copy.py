"""Templates of nodes that move elements: slices, splits, concatenation, padding, tiling, rolling, transposes, and their gradients.

The op's own NumPy reference locates a slice: applied to a dummy array of the same size that is never read, it returns a view with
the slice's address and strides. The gradients of slices, and padding, write to such a view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.graph import Node
from ....graph.core.opdef import opdef
from ....graph.ops.array.padding import MIRROR_OFFSETS
from ..ir import Choice, Shape, Template, triton_type
from ..templates.strided_copy import Move, moves

Part: TypeAlias = "tuple[int, int, int, int]"
"""A range along an axis of an output: its size, its start and direction (1 or -1) in the input, its start in the output."""
_MOST_BYTES = 1 << 36  # of the dummy array: it only takes address space, no page is touched

_MOST_BOXES = 32  # of one output: each is a launch


def _dense(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous array, in elements."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def _views(node_type: str, attrs: dict[str, Any], shape: Shape, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """(offset, shape, strides) of each view that an op's reference makes of an array; None if it makes no views."""
    if math.prod(shape) > _MOST_BYTES:
        return None
    whole = np.empty(shape, np.int8)
    try:
        result = opdef(node_type).reference(*before, whole, *after, **attrs)
    except Exception:
        return None  # the reference on the host raises the error
    out = []
    for view in result if isinstance(result, (tuple, list)) else (result,):
        if view.size and not np.may_share_memory(view, whole):
            return None
        out.append((view.ctypes.data - whole.ctypes.data if view.size else 0, view.shape, view.strides))
    return out


@dataclass(frozen=True, slots=True)
class Boxes:
    """The copies of a node: shapes of its outputs, boxes to move, and how many elements of output 0 are cleared first."""

    outputs: Sequence[Shape]
    moves: Sequence[Move]
    filled: int = 0


Rule: TypeAlias = "Callable[[Node, Sequence[Shape], Sequence[Any]], Boxes | None]"
"""(node, shapes of the inputs that are loaded, values of the others) -> the copies; None: the reference runs."""


def _boxes(rule: Rule, loaded: int = 1, order: tuple[int, ...] | None = None) -> Callable[[Node], Template]:
    """A maker for ops that move boxes. `loaded`: how many inputs are; -1: all; -2: all but the last. `order`: see `Template`."""

    def maker(node: Node) -> Template:
        count = loaded % (len(node.inputs) + 1)
        dtype = node.inputs[order[0] if order else 0].dtype.base
        triton_type(dtype.name)  # KeyError for what kernels cannot have
        if count > _MOST_BOXES:
            raise ValueError("each array is a launch")

        def choose(shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            found = rule(node, shapes, others)
            if found is None or not found.moves:
                return None
            made = [(shape, dtype.np) for shape in found.outputs]
            ways, sizes = moves(dtype, found.moves, found.filled)
            return Choice(ways, sizes, made)

        return Template(count, choose, order)

    return maker


def _taken(position: int, looked: tuple[int, ...]) -> Callable[[Node], Template]:
    """A maker for ops with outputs that are views of one input, at this position. Of the others only the values are used."""

    def rule(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
        if 0 in shapes[0]:
            return None
        given = zip(looked, others, strict=True)
        values = [np.asarray(o[0] if node.inputs[i].dims == () else o, np.int64) for i, o in given]
        before = [v for i, v in zip(looked, values, strict=True) if i < position]
        after = [v for i, v in zip(looked, values, strict=True) if i > position]
        views = _views(node.type, node.opdef.kernel_attrs(node.attrs), shapes[0], before, after)
        if views is None or len(views) != len(node.outputs):
            return None
        found = [
            Move(0, number, tuple(zip(shape, strides, _dense(shape), strict=True)), begin)
            for number, (begin, shape, strides) in enumerate(views)
            if 0 not in shape
        ]
        return Boxes([shape for _, shape, _ in views], found)

    return _boxes(rule, 1, (position, *looked))


def _slice_gradient(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    shape = tuple(others[0])
    if 0 in shape or 0 in shapes[0]:
        return None
    attrs = node.opdef.kernel_attrs(node.attrs)
    views = _views("StridedSlice", attrs, shape, (), [np.asarray(o, np.int64) for o in others[1:]])
    if views is None or views[0][1] != shapes[0]:
        return None
    begin, size, strides = views[0]
    box = Move(0, 0, tuple(zip(size, _dense(size), strides, strict=True)), 0, begin)
    return Boxes([shape], [box], math.prod(shape))


def _margins(node: Node, shape: Shape, flat: Sequence[int]) -> list[tuple[int, int]] | None:
    """How much a padding adds before and behind each axis; None where its numbers may be no such pairs."""
    pairs = (node.inputs[1].dims or ())[-1:] == (2,)
    return list(zip(flat[::2], flat[1::2], strict=True)) if pairs and len(flat) == 2 * len(shape) else None


def _pad(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    (shape,), (flat,) = shapes, others
    margins = _margins(node, shape, flat)
    if margins is None or 0 in shape or min(flat, default=0) < 0:
        return None
    made = tuple(d + before + after for d, (before, after) in zip(shape, margins, strict=True))
    there = _dense(made)
    end = sum(before * t for (before, _), t in zip(margins, there, strict=True))
    return Boxes([made], [Move(0, 0, tuple(zip(shape, _dense(shape), there, strict=True)), 0, end)], math.prod(made))


def _pieces(shape: Shape, made: Shape, parts: Sequence[Sequence[Part]]) -> Boxes | None:
    """Boxes for all combinations of an output's parts along each axis; None where these are too many."""
    if math.prod(map(len, parts)) > _MOST_BOXES or 0 in made or 0 in shape:
        return None
    near, there = _dense(shape), _dense(made)
    boxes = []
    for combined in itertools.product(*parts):
        axes = tuple((size, step * s, t) for (size, _, step, _), s, t in zip(combined, near, there, strict=True))
        begin = sum(first * s for (_, first, _, _), s in zip(combined, near, strict=True))
        end = sum(place * t for (_, _, _, place), t in zip(combined, there, strict=True))
        boxes.append(Move(0, 0, axes, begin, end))
    return Boxes([made], boxes)


def _roll(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    (shape,), (shifts, axes) = shapes, others
    rank = len(shape)
    if 0 in shape or len(shifts) != len(axes) or any(not -rank <= a < rank for a in axes):
        return None
    moved = [0] * rank
    for shift, axis in zip(shifts, axes, strict=True):
        moved[axis] = (moved[axis] + shift) % shape[axis]
    parts = [[(d - m, 0, 1, m), *([(m, d - m, 1, 0)] if m else [])] for d, m in zip(shape, moved, strict=True)]
    return _pieces(shape, shape, parts)


def _mirror_pad(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    (shape,), (flat,) = shapes, others
    margins = _margins(node, shape, flat)
    if margins is None:
        return None
    offset = MIRROR_OFFSETS[str(node.attrs["mode"])]
    made, parts = [], []
    for d, (before, after) in zip(shape, margins, strict=True):
        if not 0 <= min(before, after) <= max(before, after) <= d - offset:
            return None
        made.append(before + d + after)
        each = [(before, offset + before - 1, -1, 0), (d, 0, 1, before), (after, d - offset - 1, -1, before + d)]
        parts.append([part for part in each if part[0]])
    return _pieces(shape, tuple(made), parts)


def _tile(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    (shape,), (times,) = shapes, others
    if len(times) != len(shape) or 0 in shape or min(times, default=1) <= 0:
        return None
    made = tuple(n * d for n, d in zip(times, shape, strict=True))
    axes: list[tuple[int, int, int]] = []
    for n, d, near, far in zip(times, shape, _dense(shape), _dense(made), strict=True):
        axes += [(n, 0, d * far), (d, near, far)]  # copies lie a whole axis apart, and come from one place
    return Boxes([made], [Move(0, 0, tuple(axes))])


def _joined(node: Node, shapes: Sequence[Shape], others: Sequence[Any]) -> Boxes | None:
    """ConcatV2, or Pack."""
    pack = node.type == "Pack"
    axis = int(node.attrs["axis"]) if pack else others[0][0]
    rank = len(shapes[0]) + pack
    if not -rank <= axis < rank:
        return None
    axis %= rank
    parts = [(*s[:axis], 1, *s[axis:]) for s in shapes] if pack else list(shapes)
    if any(p[:axis] + p[axis + 1 :] != parts[0][:axis] + parts[0][axis + 1 :] for p in parts):
        return None
    made = (*parts[0][:axis], sum(p[axis] for p in parts), *parts[0][axis + 1 :])
    if 0 in made:
        return None
    there, boxes, at = _dense(made), [], 0
    for number, part in enumerate(parts):
        if part[axis]:
            boxes.append(Move(number, 0, tuple(zip(part, _dense(part), there, strict=True)), 0, at * there[axis]))
        at += part[axis]
    return Boxes([made], boxes)


COPY_MAKERS: dict[str, Callable[[Node], Template]] = {
    "Slice": _taken(0, (1, 2)),
    "StridedSlice": _taken(0, (1, 2, 3)),
    "StridedSliceGrad": _boxes(_slice_gradient, 1, (4, 0, 1, 2, 3)),
    "Split": _taken(1, (0,)),
    "SplitV": _taken(0, (1, 2)),
    "Unpack": _taken(0, ()),
    "ReverseV2": _taken(0, (1,)),
    "ConcatV2": _boxes(_joined, -2),
    "Pack": _boxes(_joined, -1),
    "Pad": _boxes(_pad),
    "MirrorPad": _boxes(_mirror_pad),
    "Roll": _boxes(_roll),
    "Tile": _boxes(_tile),
    "Transpose": _taken(0, (1,)),
}
