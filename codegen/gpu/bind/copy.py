"""Templates of nodes that split and combine arrays: slices, splits, concatenation, padding, tiling, rolling, and their gradients.

The op's own NumPy reference locates a slice: applied to a dummy array of the same size that is never read, it returns a view with
the slice's address and strides. The gradients of slices, and padding, write to such a view.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....graph.core.dtypes import DType
from ....graph.core.graph import Node
from ....graph.core.opdef import opdef
from ....graph.ops.array.padding import MIRROR_OFFSETS
from ..driver.device import Device
from ..ir import Target, triton_type
from ..templates.strided_copy import Move, moves
from ..templates.transpose import transposition, transposition_sizes
from .template import Choice, Template, copied

Shape = tuple[int, ...]
Part: TypeAlias = "tuple[int, int, int, int]"
"""A range along an axis of an output: its size, where it begins in the input and its direction there, where it begins."""
_MOST_BYTES = 1 << 36  # of the dummy array: it only takes address space, no page is touched

_MOST_BOXES = 32  # of one output: each is a launch


def _dense(shape: Sequence[int]) -> list[int]:
    """How far apart neighbours along each axis are in a contiguous array."""
    return [math.prod(shape[a + 1 :]) for a in range(len(shape))]


def _views(node_type: str, attrs: dict[str, Any], shape: Shape, before: Sequence[Any], after: Sequence[Any]) -> Any:
    """(offset, shape, strides) of each view that an op's reference makes of an array; None if it makes no views."""
    if math.prod(shape) > _MOST_BYTES:
        return None
    whole = np.empty(shape, np.int8)
    try:
        result = opdef(node_type).reference(*before, whole, *after, **attrs)
    except Exception:
        return None  # the reference on the host says what is wrong
    out = []
    for view in result if isinstance(result, (tuple, list)) else (result,):
        if view.size and not np.may_share_memory(view, whole):
            return None
        out.append((view.ctypes.data - whole.ctypes.data if view.size else 0, view.shape, view.strides))
    return out


def _taken(position: int, looked: tuple[int, ...]) -> Callable[[Node, Target], Template]:
    """A maker for ops with outputs that are views of one input, at this position. Of the others only the values are used."""

    def maker(node: Node, target: Target) -> Template:
        dtype = node.inputs[position].dtype.base
        triton_type(dtype.name)  # KeyError for what kernels cannot have
        attrs = node.opdef.kernel_attrs(node.attrs)
        scalars = [node.inputs[i].dims == () for i in looked]

        def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            if 0 in shapes[0]:
                return None
            values = [np.asarray(o[0] if one else o, np.int64) for o, one in zip(others, scalars, strict=True)]
            before = [v for i, v in zip(looked, values, strict=True) if i < position]
            after = [v for i, v in zip(looked, values, strict=True) if i > position]
            views = _views(node.type, attrs, shapes[0], before, after)
            if views is None or len(views) != len(node.outputs):
                return None
            boxes = [
                Move(0, number, tuple(zip(shape, strides, _dense(shape), strict=True)), begin)
                for number, (begin, shape, strides) in enumerate(views)
                if 0 not in shape
            ]
            if not boxes:
                return None
            routine, sizes = moves(dtype, boxes)
            return Choice([routine], sizes, [(shape, dtype.np) for _, shape, _ in views])

        return Template(1, choose, (position, *looked))

    return maker


def _slice_gradient(node: Node, target: Target) -> Template:
    dtype = node.inputs[4].dtype.base
    triton_type(dtype.name)
    attrs = node.opdef.kernel_attrs(node.attrs)

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        shape = tuple(others[0])
        if 0 in shape or 0 in shapes[0]:
            return None
        views = _views("StridedSlice", attrs, shape, (), [np.asarray(o, np.int64) for o in others[1:]])
        if views is None or views[0][1] != shapes[0]:
            return None
        begin, size, strides = views[0]
        box = Move(0, 0, tuple(zip(size, _dense(size), strides, strict=True)), 0, begin)
        routine, sizes = moves(dtype, [box], math.prod(shape))
        return Choice([routine], sizes, [(shape, dtype.np)])

    return Template(1, choose, (4, 0, 1, 2, 3))


def _pad(node: Node, target: Target) -> Template:
    dtype = node.inputs[0].dtype.base
    triton_type(dtype.name)

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        (shape,), (flat,) = shapes, others
        if len(flat) != 2 * len(shape) or 0 in shape or min(flat, default=0) < 0:
            return None
        made = tuple(d + flat[2 * a] + flat[2 * a + 1] for a, d in enumerate(shape))
        there = _dense(made)
        end = sum(flat[2 * a] * t for a, t in enumerate(there))
        routine, sizes = moves(
            dtype, [Move(0, 0, tuple(zip(shape, _dense(shape), there, strict=True)), 0, end)], math.prod(made)
        )
        return Choice([routine], sizes, [(made, dtype.np)])

    return Template(1, choose)


def _pieces(dtype: DType, shape: Shape, made: Shape, parts: Sequence[Sequence[Part]]) -> Choice | None:
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
    routine, sizes = moves(dtype, boxes)
    return Choice([routine], sizes, [(made, dtype.np)])


def _roll(node: Node, target: Target) -> Template:
    dtype = node.inputs[0].dtype.base
    triton_type(dtype.name)

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        (shape,), (shifts, axes) = shapes, others
        rank = len(shape)
        if 0 in shape or len(shifts) != len(axes) or any(not -rank <= a < rank for a in axes):
            return None
        moved = [0] * rank
        for shift, axis in zip(shifts, axes, strict=True):
            moved[axis] = (moved[axis] + shift) % shape[axis]
        parts = [[(d - m, 0, 1, m), *([(m, d - m, 1, 0)] if m else [])] for d, m in zip(shape, moved, strict=True)]
        return _pieces(dtype, shape, shape, parts)

    return Template(1, choose)


def _mirror_pad(node: Node, target: Target) -> Template:
    dtype = node.inputs[0].dtype.base
    triton_type(dtype.name)
    offset = MIRROR_OFFSETS[str(node.attrs["mode"])]

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        (shape,), (flat,) = shapes, others
        if len(flat) != 2 * len(shape):
            return None
        made, parts = [], []
        for d, before, after in zip(shape, flat[::2], flat[1::2], strict=True):
            if not 0 <= min(before, after) <= max(before, after) <= d - offset:
                return None
            made.append(before + d + after)
            each = [(before, offset + before - 1, -1, 0), (d, 0, 1, before), (after, d - offset - 1, -1, before + d)]
            parts.append([part for part in each if part[0]])
        return _pieces(dtype, shape, tuple(made), parts)

    return Template(1, choose)


def _tile(node: Node, target: Target) -> Template:
    dtype = node.inputs[0].dtype.base
    triton_type(dtype.name)

    def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
        (shape,), (times,) = shapes, others
        if len(times) != len(shape) or 0 in shape or min(times, default=1) <= 0:
            return None
        made = tuple(n * d for n, d in zip(times, shape, strict=True))
        axes: list[tuple[int, int, int]] = []
        for n, d, near, far in zip(times, shape, _dense(shape), _dense(made), strict=True):
            axes += [(n, 0, d * far), (d, near, far)]  # copies lie a whole axis apart, and come from one place
        routine, sizes = moves(dtype, [Move(0, 0, tuple(axes))])
        return Choice([routine], sizes, [(made, dtype.np)])

    return Template(1, choose)


def _joined(pack: bool) -> Callable[[Node, Target], Template]:
    """A maker for ConcatV2, or Pack."""

    def maker(node: Node, target: Target) -> Template:
        dtype = node.outputs[0].dtype.base
        triton_type(dtype.name)
        count = len(node.inputs) - (0 if pack else 1)
        if count > 32:
            raise ValueError("each array is a launch")

        def choose(device: Device, shapes: Sequence[Shape], others: Sequence[Any]) -> Choice | None:
            axis = int(node.attrs["axis"]) if pack else others[0][0]
            rank = len(shapes[0]) + (1 if pack else 0)
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
                    axes = tuple(zip(part, _dense(part), there, strict=True))
                    boxes.append(Move(number, 0, axes, 0, at * there[axis]))
                at += part[axis]
            routine, sizes = moves(dtype, boxes)
            return Choice([routine], sizes, [(made, dtype.np)])

        return Template(count, choose)

    return maker


def _transpose(node: Node, target: Target) -> Template:
    dtype = node.inputs[0].dtype.base
    triton_type(dtype.name)  # KeyError for what kernels cannot have

    def choose(device: Device, shapes: Sequence[tuple[int, ...]], others: Sequence[Any]) -> Choice | None:
        (shape,), (order,) = shapes, others
        rank = len(shape)
        if sorted(a % rank if rank else a for a in order) != list(range(rank)) or 0 in shape:
            return None
        order = [a % rank for a in order]
        sizes = transposition_sizes(shape, order)
        if any(n >= 1 << 31 for n in sizes.values()):
            return None
        made = [(tuple(shape[a] for a in order), dtype.np)]
        if not sizes:
            return Choice([copied(device, math.prod(shape) * dtype.size)], {}, made)
        return Choice(transposition(dtype, sizes), sizes, made)

    return Template(1, choose)


COPY_MAKERS: dict[str, Callable[[Node, Target], Template]] = {
    "Slice": _taken(0, (1, 2)),
    "StridedSlice": _taken(0, (1, 2, 3)),
    "StridedSliceGrad": _slice_gradient,
    "Split": _taken(1, (0,)),
    "SplitV": _taken(0, (1, 2)),
    "Unpack": _taken(0, ()),
    "ReverseV2": _taken(0, (1,)),
    "ConcatV2": _joined(False),
    "Pack": _joined(True),
    "Pad": _pad,
    "MirrorPad": _mirror_pad,
    "Roll": _roll,
    "Tile": _tile,
    "Transpose": _transpose,
}
