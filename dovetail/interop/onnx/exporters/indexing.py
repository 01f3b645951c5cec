"""Ops that read or change elements by index."""

from __future__ import annotations

import numpy as np

from ....graph.core.graph import Node, Tensor
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_by

_FAR = int(np.iinfo(np.int64).max)

exports_by(
    GatherNd=lambda w, node: w.emit("GatherND", w.input(node, 0), w.sizes(node.inputs[1])),
    ResourceGather=lambda w, node: w.emit("Gather", w.input(node, 0), w.input(node, 1), axis=0),
    Where=lambda w, node: w.transpose_name(w.emit("NonZero", w.input(node, 0)), [1, 0]),
)


@exports("Slice")
def slice_(w: Writer, node: Node) -> Names:
    """Exports a slice of `size` elements from `begin`; a size of -1 means all remaining elements."""
    begin, size = node.inputs[1], w.static(node.inputs[2], "the size")
    axes = w.int64s(range(size.size))
    first = w.value(begin)
    if first is not None:
        last = [_FAR if n < 0 else int(b + n) for b, n in zip(first, size, strict=True)]
        return w.emit("Slice", w.input(node, 0), w.int64s(first), w.int64s(last), axes)
    far = w.array(size < 0)
    ends = w.emit("Where", far, w.int64s([_FAR] * size.size), w.emit("Add", w.sizes(begin), w.int64s(size)))
    return w.emit("Slice", w.input(node, 0), w.sizes(begin), ends, axes)


@exports("StridedSlice")
def strided_slice(w: Writer, node: Node) -> Names:
    """Exports NumPy's indexing: slices, followed by the removal and insertion of axes."""
    x, begin, end, strides = node.inputs
    steps = w.static(strides, "the strides")
    mask = {n: int(node.attrs[f"{n}_mask"]) for n in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    rank, own = w.rank(x), [i for i in range(len(steps)) if not (mask["new_axis"] | mask["ellipsis"]) >> i & 1]
    cut: list[tuple[int, int]] = []  # (entry of the index, axis of x)
    gone: list[int] = []
    new: list[int] = []
    axis = out = 0
    for i in range(len(steps)):
        if mask["ellipsis"] >> i & 1:
            skipped = rank - len(own)
            axis, out = axis + skipped, out + skipped
        elif mask["new_axis"] >> i & 1:
            new.append(out)
            out += 1
        else:
            cut.append((i, axis))
            if mask["shrink_axis"] >> i & 1:
                gone.append(axis)
            else:
                out += 1
            axis += 1
    name = w.name(x)
    whole = (1 << len(steps)) - 1
    free = mask["begin"] & mask["end"] & ~mask["shrink_axis"] & whole
    used = [(i, a) for i, a in cut if not (free >> i & 1 and steps[i] == 1)]
    if used:
        at = [i for i, _ in used]
        starts = _limits(w, begin, at, [_open(mask, "begin", i, steps[i]) for i in at])
        ends = _limits(w, end, at, [_open(mask, "end", i, steps[i]) for i in at], begin if gone else None, mask)
        numbers = w.int64s([a for _, a in used]), w.int64s([steps[i] for i in at])
        name = w.emit("Slice", name, starts, ends, *numbers)
    if gone:
        name = w.emit("Squeeze", name, w.int64s(gone))
    return w.emit("Unsqueeze", name, w.int64s(new)) if new else name if used or gone else w.emit("Identity", name)


def _open(mask: dict[str, int], which: str, i: int, step: int) -> int | None:
    """Returns the limit for a slice that has none, or None if the slice has a limit."""
    if not mask[which] >> i & 1 or mask["shrink_axis"] >> i & 1:
        return None
    first = which == "begin"
    return (0 if step > 0 else -1) if first else (_FAR if step > 0 else -_FAR)


def _limits(
    w: Writer, vector: Tensor, at: list[int], opened: list[int | None], begin: Tensor | None = None,
    mask: dict[str, int] | None = None,
) -> str:  # fmt: skip
    """Returns the limits of the slices. An index `i` becomes the slice that ends at `i + 1`."""
    single = [bool(mask and mask["shrink_axis"] >> i & 1) for i in at]
    value = w.value(vector if begin is None else begin) if any(single) else w.value(vector)
    known = w.value(vector)
    if known is not None and (not any(single) or value is not None):
        return w.int64s([
            o if o is not None else (_behind(int(value[i])) if s and value is not None else int(known[i]))
            for i, o, s in zip(at, opened, single, strict=True)
        ])  # fmt: skip
    picked = w.emit("Gather", w.sizes(vector), w.int64s(at))
    if any(single) and begin is not None:
        first = w.emit("Gather", w.sizes(begin), w.int64s(at))
        last = w.emit("Equal", first, w.int64s([-1]))
        behind = w.emit("Where", last, w.int64s([_FAR]), w.emit("Add", first, w.int64s([1])))
        picked = w.emit("Where", w.array(np.array(single)), behind, picked)
    fixed = np.array([o is not None for o in opened])
    if fixed.any():
        picked = w.emit("Where", w.array(fixed), w.int64s([o or 0 for o in opened]), picked)
    return picked


def _behind(place: int) -> int:
    """Returns the end of a slice of one element."""
    return _FAR if place == -1 else place + 1


@exports("GatherV2")
def gather(w: Writer, node: Node) -> Names:
    if node.attrs["batch_dims"]:
        raise UnsupportedError("batch_dims")
    (axis,) = w.ints(node, 2, "the axis")
    return w.emit("Gather", w.input(node, 0), w.input(node, 1), axis=axis)


@exports("OneHot")
def one_hot(w: Writer, node: Node) -> Names:
    """Exports one-hot encoding. An out-of-range index gives only `off`. In ONNX, a negative index would count from the end."""
    places, depth, on, off = node.inputs
    many = w.sizes(depth)
    at = w.sizes(places)
    inside = w.emit("Where", w.emit("Less", at, w.int64s(0)), many, at)
    values = w.emit("Concat", *(w.emit("Reshape", w.name(v), w.int64s([1])) for v in (off, on)), axis=0)
    if w.rank(places):
        return w.emit("OneHot", inside, many, values, axis=int(node.attrs["axis"]))
    row = w.emit("OneHot", w.emit("Reshape", inside, w.int64s([1])), many, values)  # ONNX allows no scalar index
    return w.emit("Squeeze", row, w.int64s([0]))


_SCATTERS = {
    "TensorScatterUpdate": "none", "TensorScatterAdd": "add", "TensorScatterMax": "max", "TensorScatterMin": "min",
}  # fmt: skip


@exports(*_SCATTERS)
def scatter(w: Writer, node: Node) -> Names:
    """Exports an update of elements or slices at given coordinates."""
    x, places, updates = node.inputs
    return w.emit("ScatterND", w.name(x), w.sizes(places), w.name(updates), reduction=_SCATTERS[node.type])


@exports("ScatterNd")
def scatter_nd(w: Writer, node: Node) -> Names:
    """Exports a sum of elements or slices into zeros."""
    places, updates, sizes = node.inputs
    zeros = w.emit("Expand", w.constant_like(0, updates), w.sizes(sizes))
    return w.emit("ScatterND", zeros, w.sizes(places), w.name(updates), reduction="add")
