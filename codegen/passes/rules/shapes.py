"""Rules for shape queries and broadcasts, which are frequent in gradients. All of them are exact.

With a batch size that is known only at run time, a training step queries shapes to find out whether an operand was broadcast, and to
broadcast a mean's gradient. If symbolic sizes are known to be equal (`codegen/ir/symbolic_shape.py`), the queries disappear as with a
known batch size:

    Sum(g, BroadcastGradientArgs(shape(x), shape(y)))     a sum over known axes, or g itself
    Reshape(g, shape(x))                                  g, where it has that very shape
    Size(x) // Size(mean(x, -1))                          the size of the last axis

The remaining shape queries are built from sizes of tensors that exist anyway, such as placeholders, so that no tensor stays in memory
only for its shape. So of the gradient of `reduce_mean(f(x))` only a broadcast and a division remain, which cost nothing in the kernel that
takes them; the divisor is a number that the host computes from sizes.
"""

from __future__ import annotations

import numpy as np

from ....graph.core.graph import Tensor
from ...ir.symbolic_shape import Product, Size, product
from .dsl import Match, Rule


def _of_input(m: Match) -> Tensor | None:
    """The shape or size of a tensor, from the axes that its sizes are made of."""
    tensor: Tensor = m["y"]
    sizes = m.sizes.dims(tensor)
    shape = None if sizes is None else _shape(m, tensor)
    if shape is None or sizes is None or m.root.type == "Shape":
        return shape
    if shape.op.type == "Shape":
        return m.make("Size", shape.op.inputs, m.root.attrs)
    count = product(sizes)
    return _number(m, count) if _is_small(count) else None


def _shape(m: Match, tensor: Tensor) -> Tensor | None:
    """The shape of a tensor from those of others; None if these are not known."""
    sizes = m.sizes.dims(tensor)
    assert sizes is not None
    known = m.sizes.vectors.get((m.root.outputs[0].dtype, sizes))
    if known is not None:
        return known
    sources = dict.fromkeys(m.sizes.axes[axis][0] for s in sizes if isinstance(s, Product) for axis in s.axes)
    if tensor in sources:
        return _broadcast_shape(m, tensor)
    source = next((t for t in sources if m.sizes.dims(t) == sizes), m.sizes.source_of(sizes))
    if source is not None:
        return None if source is tensor else _shape_of(m, source)
    return m.make("Pack", [_number(m, s) for s in sizes], {"axis": 0})


def _shape_of(m: Match, tensor: Tensor) -> Tensor:
    shape = _shape(m, tensor)
    return m.make("Shape", (tensor,), {"out_type": m.root.outputs[0].dtype}) if shape is None else shape


def _broadcast_shape(m: Match, tensor: Tensor) -> Tensor | None:
    """Shape(x + y) from those of x and y, which broadcast in a way known only at run time. If they do not fit, it fails for x + y."""
    node = m.producer_of(tensor)
    large = [] if node is None or node.opdef.scalar is None else [t for t in node.inputs if t.dims != ()]
    if len(large) < 2 or node is None or node.type == "BiasAdd" or any(t.dims is None for t in large):
        return None
    shape = _shape_of(m, large[0])
    for t in large[1:]:
        shape = m.make("BroadcastArgs", (shape, _shape_of(m, t)), {}, node)
    return shape


def _is_small(size: Size) -> bool:
    """Whether the constant part of a size fits every type that sizes have."""
    return abs(size if isinstance(size, int) else size.factor) < 1 << 31


def _number(m: Match, size: Size) -> Tensor:
    dtype = m.root.outputs[0].dtype
    if isinstance(size, int):
        return m.constant(np.array(size, dtype.np))
    found = None if size.factor == 1 else m.constant(np.array(size.factor, dtype.np))
    for axis in size.axes:
        source, place = m.sizes.axes[axis]
        shape = _shape_of(m, source)
        along = m.make("GatherV2", (shape, m.constant(np.int32(place)), m.constant(np.int32(0))), {"batch_dims": 0})
        found = along if found is None else m.make("Mul", (found, along), {})
    assert found is not None
    return found


def _known_axes(m: Match) -> Tensor | None:
    """The axes along which an operand was broadcast, if sizes show it."""
    which = m.root.inputs[1].value_index
    mine, theirs = (m.sizes.value(m["ab"[i]]) for i in (which, 1 - which))
    if mine is None or theirs is None or mine.ndim != 1 or theirs.ndim != 1:
        return None
    rank = max(len(mine), len(theirs))
    own, other = ((1,) * (rank - len(v)) + tuple(v) for v in (mine, theirs))
    axes = [*range(rank - len(mine))]
    for i in range(len(axes), rank):
        if own[i] is None or own[i] != other[i] and 1 not in (own[i], other[i]):
            return None
        if own[i] == 1 and other[i] != 1:
            axes.append(i)
    x: Tensor = m["x"]
    if not axes:
        return x
    return m.make("Sum", (x, m.constant(np.array(axes, np.int32))), m.root.attrs)


def _has_that_shape(m: Match) -> Tensor | None:
    """The reshaped tensor, if it always has the requested sizes already."""
    x: Tensor = m["x"]
    if m.root.type == "Reshape":
        wanted = m.sizes.reshaped(m.root, surely=True)
    else:
        value = m.sizes.value(m["s"])
        wanted = None if value is None else tuple(value)
    return x if wanted is not None and wanted == m.sizes.dims(x) else None


def _known_sizes(m: Match) -> Tensor | None:
    """A value computed from sizes, as numbers or sizes of tensors that exist anyway, in one step."""
    tensor = m.root.outputs[0]
    value = m.sizes.value_of(m.root, tensor)
    if value is None or None in value or not all(map(_is_small, value.flat)):
        return None
    if all(isinstance(s, int) for s in value.flat):
        return m.constant(value.astype(tensor.dtype.np))
    if not value.shape:
        return _number(m, value.item()) if m.root.type == "FloorDiv" else None
    known = m.sizes.vectors.get((tensor.dtype, tuple(value)))
    return m.make("Pack", [_number(m, s) for s in value], {"axis": 0}) if known is None else known


shape_rules = (
    Rule("integer divided by one", "FloorDiv(x, 1)", "x", integer=True),
    Rule("shape of what it is made from", "{Shape(y), Size(y)}", _of_input),
    Rule("sum over known axes", "Sum(x, BroadcastGradientArgs(a, b), keep_dims=False)", _known_axes),
    Rule("reshape to the shape it has", "{Reshape(x, s), BroadcastTo(x, s)}", _has_that_shape),
    Rule("arithmetic on sizes", "{a * b, a + b, FloorDiv(a, b)}", _known_sizes, integer=True),
)
