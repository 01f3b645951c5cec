"""Ops that change the layout of tensors, and ops that create values."""

from __future__ import annotations

import numpy as np

from ....graph.core.dtypes import int64
from ....graph.core.graph import Node, Tensor
from ....graph.core.shape import is_static
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_by

exports_by(
    BroadcastTo=lambda w, node: w.emit("Expand", w.input(node, 0), w.sizes(node.inputs[1])),
    ExpandDims=lambda w, node: w.emit("Unsqueeze", w.input(node, 0), w.int64s(w.ints(node, 1, "the axis"))),
    Fill=lambda w, node: w.emit("Expand", w.input(node, 1), w.sizes(node.inputs[0])),
    OnesLike=lambda w, node: w.emit("Expand", w.constant_like(1, node.outputs[0]), w.emit("Shape", w.input(node, 0))),
    Range=lambda w, node: w.emit("Range", *(w.name(t) for t in node.inputs)),
    Rank=lambda w, node: w.array(np.int32(w.rank(node.inputs[0]))),
    Tile=lambda w, node: w.emit("Tile", w.input(node, 0), w.sizes(node.inputs[1])),
    ZerosLike=lambda w, node: w.emit("Expand", w.constant_like(0, node.outputs[0]), w.emit("Shape", w.input(node, 0))),
)


@exports("Reshape")
def reshape(w: Writer, node: Node) -> Names:
    """Exports a reshape, in which a size of 0 is literal."""
    return w.emit("Reshape", w.input(node, 0), w.sizes(node.inputs[1]), allowzero=1 if _has_zero(w, node) else 0)


def _has_zero(w: Writer, node: Node) -> bool:
    """Whether a size may be a literal 0. The standard rejects 0 together with -1."""
    value = w.value(node.inputs[1])
    return value is None and not _may_infer(node.inputs[1]) or value is not None and bool((value == 0).any())


def _may_infer(sizes: Tensor) -> bool:
    """Whether sizes that are packed from constants and other values contain -1."""
    return any(t.op.type == "Const" and (t.op.attrs["value"] < 0).any() for t in sizes.op.inputs)


@exports("Transpose")
def transpose(w: Writer, node: Node) -> Names:
    """Exports a transpose. The order of the axes must be known."""
    order = w.ints(node, 1, "the order of the axes")
    return w.emit("Transpose", w.input(node, 0), perm=order) if order else w.emit("Identity", w.input(node, 0))


@exports("Squeeze")
def squeeze(w: Writer, node: Node) -> Names:
    axes = node.attrs["squeeze_dims"]
    return w.emit("Squeeze", w.input(node, 0), *([w.int64s(axes)] if axes else []))


@exports("ConcatV2")
def concat(w: Writer, node: Node) -> Names:
    (axis,) = w.ints(node, len(node.inputs) - 1, "the axis")
    return w.emit("Concat", *(w.name(t) for t in node.inputs[:-1]), axis=axis)


@exports("Pack")
def pack(w: Writer, node: Node) -> Names:
    """Exports a stack of tensors along a new axis."""
    rank = w.rank(node.outputs[0])
    axis = w.int64s([node.attrs["axis"] % rank])
    return w.emit(
        "Concat", *(w.emit("Unsqueeze", w.name(t), axis) for t in node.inputs), axis=node.attrs["axis"] % rank
    )


@exports("Unpack")
def unpack(w: Writer, node: Node) -> Names:
    """Exports a split into slices without the split axis."""
    axis = node.attrs["axis"]
    return [
        w.emit("Gather", w.input(node, 0), w.array(np.int64(i)), axis=axis % w.rank(node.inputs[0]))
        for i in range(len(node.outputs))
    ]


@exports("Split", "SplitV")
def split(w: Writer, node: Node) -> Names:
    x = node.inputs[1 if node.type == "Split" else 0]
    (axis,) = w.ints(node, 0 if node.type == "Split" else 2, "the axis")
    count = len(node.outputs)
    if count == 1:
        return w.emit("Identity", w.name(x))
    if node.type == "Split":
        return w.emit_many(count, "Split", w.name(x), axis=axis, num_outputs=count)
    sizes = [t.dims[axis] if t.dims is not None else None for t in node.outputs]
    if None in sizes:
        sizes = [int(n) for n in w.static(node.inputs[1], "the parts' sizes")]
        if -1 in sizes:
            raise UnsupportedError("the size of a part is known only when the graph runs")
    return w.emit_many(count, "Split", w.name(x), w.int64s(sizes), axis=axis)


@exports("Pad", "PadV2", "MirrorPad")
def pad(w: Writer, node: Node) -> Names:
    """Exports padding with a constant, or with a reflection that excludes the edge."""
    around = w.static(node.inputs[1], "the padding")
    if not around.size:
        return w.emit("Identity", w.input(node, 0))  # ONNX Runtime does not pad scalars
    pads = w.int64s(around.T.ravel())
    if node.type != "MirrorPad":
        return w.emit("Pad", w.input(node, 0), pads, *([w.input(node, 2)] if node.type == "PadV2" else []))
    if node.attrs["mode"] != "REFLECT":
        raise UnsupportedError(f"mode {node.attrs['mode']}; ONNX has REFLECT")
    return w.emit("Pad", w.input(node, 0), pads, mode="reflect")


@exports("Shape")
def shape(w: Writer, node: Node) -> Names:
    """Exports the shape, cast from int64 to the node's type."""
    x, dtype = node.inputs[0], node.outputs[0].dtype.base
    if is_static(x.dims):
        return w.array(np.array(x.dims, dtype.np))
    found = w.emit("Shape", w.name(x))
    return found if dtype is int64 else w.cast(found, dtype)


@exports("Size")
def size(w: Writer, node: Node) -> Names:
    found, dtype = w.emit("Size", w.input(node, 0)), node.outputs[0].dtype.base
    return found if dtype is int64 else w.cast(found, dtype)


@exports("ReverseV2")
def reverse(w: Writer, node: Node) -> Names:
    """Exports a reversal as slices with a negative step."""
    axes = w.ints(node, 1, "the axes")
    n = len(axes)
    if not n:
        return w.emit("Identity", w.input(node, 0))  # ONNX Runtime does not slice scalars
    ends = [-1] * n, [np.iinfo(np.int64).min] * n, axes, [-1] * n
    return w.emit("Slice", w.input(node, 0), *map(w.int64s, ends))


@exports("MatrixBandPart")
def band_part(w: Writer, node: Node) -> Names:
    """Exports one triangle, or the intersection of two."""
    (below,), (above,) = w.ints(node, 1, "the band"), w.ints(node, 2, "the band")
    made = w.input(node, 0)
    if above >= 0:
        made = w.emit("Trilu", made, w.array(np.int64(above)), upper=0)
    return w.emit("Trilu", made, w.array(np.int64(-below)), upper=1) if below >= 0 else made
