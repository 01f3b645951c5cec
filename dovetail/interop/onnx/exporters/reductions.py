"""Reductions, running sums, softmax and matrix products."""

from __future__ import annotations

from ....graph.core.dtypes import bool_, int32, int64
from ....graph.core.graph import Node
from ..registry import UnsupportedError
from ..writing import Names, Writer, exports, exports_by

_REDUCTIONS = {"Sum": "ReduceSum", "Mean": "ReduceMean", "Max": "ReduceMax", "Min": "ReduceMin", "Prod": "ReduceProd"}

exports_by(
    LogSoftmax=lambda w, node: w.emit("LogSoftmax", w.input(node, 0), axis=-1),
    Softmax=lambda w, node: w.emit("Softmax", w.input(node, 0), axis=-1),
)


@exports(*_REDUCTIONS)
def reduction(w: Writer, node: Node) -> Names:
    """Exports a reduction over some axes. Over no axes it is the identity."""
    axes = w.int64s(w.ints(node, 1, "the axes"))
    return w.emit(
        _REDUCTIONS[node.type], w.input(node, 0), axes, keepdims=int(node.attrs["keep_dims"]), noop_with_empty_axes=1
    )


@exports("All", "Any")
def logic(w: Writer, node: Node) -> Names:
    """Exports `all` as the minimum of 0 and 1, and `any` as their sum. The maximum over an empty axis would be -2^31, not 0."""
    numbers = w.cast(w.input(node, 0), int32)
    op = "ReduceMin" if node.type == "All" else "ReduceSum"
    axes = w.int64s(w.ints(node, 1, "the axes"))
    return w.cast(w.emit(op, numbers, axes, keepdims=int(node.attrs["keep_dims"]), noop_with_empty_axes=1), bool_)


@exports("ArgMax", "ArgMin")
def arg_extreme(w: Writer, node: Node) -> Names:
    """Exports the index of the first maximum or minimum."""
    (axis,) = w.ints(node, 1, "the axis")
    found = w.emit(node.type, w.input(node, 0), axis=axis, keepdims=0)
    return found if node.outputs[0].dtype.base is int64 else w.cast(found, node.outputs[0].dtype.base)


@exports("Cumsum")
def cumsum(w: Writer, node: Node) -> Names:
    how = {name: int(node.attrs[name]) for name in ("exclusive", "reverse")}
    return w.emit("CumSum", w.input(node, 0), w.sizes(node.inputs[1]), **how)


@exports("TopKV2")
def top_k(w: Writer, node: Node) -> Names:
    """Exports the largest elements and their indices."""
    k = w.emit("Reshape", w.sizes(node.inputs[1]), w.int64s([1]))
    values, places = w.emit_many(2, "TopK", w.input(node, 0), k)
    return [values, w.cast(places, node.outputs[1].dtype.base)]


@exports("MatMul")
def matmul(w: Writer, node: Node) -> Names:
    """Exports a product of matrices, which may be transposed."""
    a, b = bool(node.attrs["transpose_a"]), bool(node.attrs["transpose_b"])
    left, right = (w.transpose(t, [1, 0]) if turn else w.name(t) for t, turn in zip(node.inputs, (a, b), strict=True))
    return w.emit("MatMul", left, right)


@exports("BatchMatMulV2")
def batch_matmul(w: Writer, node: Node) -> Names:
    """Exports a batched product of matrices, which may be transposed."""
    turned = []
    for t, attr in zip(node.inputs, ("adj_x", "adj_y"), strict=True):
        rank = w.rank(t)
        order = [*range(rank - 2), rank - 1, rank - 2]
        turned.append(w.transpose(t, order) if node.attrs[attr] else w.name(t))
    return w.emit("MatMul", *turned)


@exports("Einsum")
def einsum(w: Writer, node: Node) -> Names:
    inputs, _, result = node.attrs["equation"].partition("->")
    if "..." in inputs or len(set(result)) < len(result):
        raise UnsupportedError(f"the equation {node.attrs['equation']}")
    return w.emit("Einsum", *(w.name(t) for t in node.inputs), equation=node.attrs["equation"])
