"""Rules about transposes and casts. All of them are exact: the neighbours that these move past are elementwise, or only move elements.

The first rules remove transposes, or merge them into a neighbour. The others move them:

A transpose of `f(transpose(x) + b)` that undoes the inner one leaves `f(x + b')`, where b' is b in the other order of axes. So
does a matrix product, which takes a factor either way. The rules start at the outer end, a transpose or a product, and follow its
elementwise producers up to tensors that exist in the other order at no cost (`_Turning`). All of these nodes are rebuilt on tensors in
the other order, so their outputs must have no other consumers. Inputs of the inner transposes may have any.

A cast moves to where fewer bytes are moved: one to a wider type after an op that moves elements, one to a narrower type before it. It
moves only if it fuses with no kernel at its old position, or fuses with one at its new position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from ....graph.core.graph import Node, Tensor
from ....graph.core.opdef import size
from ....graph.core.shape import is_static
from ...ir.nodes import PRODUCTS
from .dsl import Match, Rule

_MOST_NODES = 64  # searched behind one transpose or product
_LARGEST = 1 << 16  # bytes of a constant that is written down in another order


def _permutation(m: Match, tensor: Tensor) -> list[int] | None:
    """The axis order in a constant tensor, counted from the front; None if it is not a constant."""
    value = m.value(tensor)
    return None if value is None else [int(i) % max(len(value), 1) for i in value]


def _moves_nothing(m: Match) -> Tensor | None:
    p = _permutation(m, m["p"])
    return m["x"] if p == list(range(len(p or ()))) else None


def _transposed_twice(m: Match) -> Tensor | None:
    p, q = _permutation(m, m["p"]), _permutation(m, m["q"])
    if p is None or q is None or len(p) != len(q):
        return None
    order = np.array([p[i] for i in q], m.value(m["q"]).dtype)
    return m.make("Transpose", (m["x"], m.constant(order)), {})


def _into_product(op: str, flags: tuple[str, str], which: int) -> Rule:
    """MatMul(Transpose(x), y) = MatMul(x, y, transpose_a=True).

    The transpose breaks up x's rows. If it moves other axes too, another transpose remains, which moves whole rows of memory. Heads of
    attention are often transposed twice for a product, in one order for good.
    """

    def make(m: Match) -> Tensor | None:
        p = _permutation(m, m["p"])
        if p is None or len(p) < 2 or p[-2] != len(p) - 1:
            return None
        order = [*p[:-2], p[-1], p[-2]]
        x = m["x"]
        if order != [*range(len(p))]:
            x = m.make("Transpose", (x, m.constant(np.array(order, m.value(m["p"]).dtype))), {})
        attrs = {flags[0]: m["a"], flags[1]: m["b"]}
        attrs[flags[which]] = not attrs[flags[which]]
        return m.make(op, (m["y"], x) if which else (x, m["y"]), attrs)

    operands = "y, Transpose(x, p)" if which else "Transpose(x, p), y"
    return Rule(f"transpose into {op}", f"{op}({operands}, {flags[0]}=a, {flags[1]}=b)", make)


def _rows_out_of_product(m: Match) -> Tensor | None:
    """Transpose(a b, p) = Transpose(bᵗ aᵗ, q), where p breaks up the product's rows and q does not; the product has no other consumer."""
    p = _permutation(m, m["p"])
    if p is None or len(p) < 3 or p[-1] != len(p) - 2 or m.uses(m["product"]) != 1:
        return None
    product = m.make("BatchMatMulV2", (m["y"], m["x"]), {"adj_x": not m["b"], "adj_y": not m["a"]}, m["product"].op)
    exchanged = {len(p) - 1: len(p) - 2, len(p) - 2: len(p) - 1}
    order = np.array([exchanged.get(axis, axis) for axis in p], m.value(m["p"]).dtype)
    return m.make("Transpose", (product, m.constant(order)), {})


arranging_rules = (
    Rule("identity", "{Identity(x), StopGradient(x), PreventGradient(x)}", "x"),
    Rule("transpose that moves nothing", "Transpose(x, (p := Const()))", _moves_nothing),
    Rule("transpose twice", "Transpose(Transpose(x, p), q)", _transposed_twice),
    *(_into_product(op, flags, which) for op, flags in PRODUCTS.items() for which in (0, 1)),
)


# --- motion ------------------------------------------------------------------------------------------------------------


def _undone(m: Match) -> Tensor | None:
    """Transpose(f(Transpose(x, p)), q) = f(x) where q undoes p."""
    order = _permutation(m, m["q"]) if _is_computed(m, m["y"]) else None
    return None if order is None else _Turning(m, order).turned(m["y"])


def _behind_arithmetic_into_product(op: str, flags: tuple[str, str], which: int) -> Rule:
    """MatMul(f(Transpose(x)), y) = MatMul(f(x), y, transpose_a=True)."""

    def make(m: Match) -> Tensor | None:
        factor = m.root.inputs[which]
        if factor.dims is None or len(factor.dims) < 2 or m.uses(factor) > 1 or not _is_computed(m, factor):
            return None
        last = len(factor.dims) - 1
        turned = _Turning(m, [*range(last - 1), last, last - 1], only_if_removed=True).turned(factor)
        if turned is None:
            return None
        attrs = {**m.root.attrs, flags[which]: not m.root.attrs[flags[which]]}
        inputs = (turned, m.root.inputs[1]) if which == 0 else (m.root.inputs[0], turned)
        return m.make(op, inputs, attrs)

    return Rule(f"transpose behind arithmetic into {op}", f"{op}(x, y)", make, beside="Transpose")


class _Turning:
    """A tensor with its axes in another order, if no element has to be moved for that.

    `only_if_removed`: only if the transposes that it is made from are not needed any more.
    """

    def __init__(self, m: Match, order: Sequence[int], *, only_if_removed: bool = False) -> None:
        self.m = m
        self.order = order
        self.only_if_removed = only_if_removed
        self.seen = 0
        self.turned_nodes: dict[Tensor, Node] = {}  # what is made again, inputs first, each with its node
        self.sources: dict[Tensor, Tensor] = {}  # transposed tensors -> their sources

    def turned(self, tensor: Tensor) -> Tensor | None:
        """The tensor in the other order; None if that would move elements."""
        if not self.can_turn(tensor) or not self.turned_nodes or not self.sources or not self.is_private(tensor):
            return None
        done: dict[Tensor, Tensor] = {}
        for old, node in self.turned_nodes.items():
            inputs = [done[t] if t in done else self.leaf(t) for t in node.inputs]
            done[old] = self.m.make(node.type, inputs, node.attrs, node)
        return done[tensor]

    def can_turn(self, tensor: Tensor) -> bool:
        """Whether the tensor can be had in the other order. Records the nodes to rebuild."""
        if tensor in self.turned_nodes or tensor in self.sources or _lies_along_one_axis(tensor, len(self.order)):
            return True
        node = self.m.producer_of(tensor)
        self.seen += 1
        if node is None or self.seen > _MOST_NODES or tensor.dims is None:
            return False
        if node.opdef.name == "Const":
            return len(tensor.dims) <= len(self.order) and node.attrs["value"].nbytes <= _LARGEST
        if len(tensor.dims) != len(self.order):
            return False
        if node.opdef.name == "Transpose":
            inner = _permutation(self.m, node.inputs[1])
            if inner is None or [inner[i] for i in self.order] != list(range(len(inner))):
                return False
            self.sources[tensor] = node.inputs[0]
            return True
        if node.opdef.scalar is None or len(node.outputs) != 1 or not all(map(self.can_turn, node.inputs)):
            return False
        self.turned_nodes[tensor] = node
        return True

    def is_private(self, tensor: Tensor) -> bool:
        """Whether the rebuilt nodes have no consumers but one another and the root."""
        inside = Counter([t for n in self.turned_nodes.values() for t in n.inputs])
        inside.update(t for t in self.m.root.inputs if t is tensor)
        needed = [*self.turned_nodes, *self.sources] if self.only_if_removed else list(self.turned_nodes)
        return self.m.root.inputs.count(tensor) == 1 and all(self.m.uses(t) <= inside[t] for t in needed)

    def leaf(self, tensor: Tensor) -> Tensor:
        """A tensor that is not rebuilt, in the other order."""
        m, dims = self.m, tensor.dims
        if tensor in self.sources:
            return self.sources[tensor]
        assert dims is not None
        if not dims:
            return tensor
        rank, value = len(self.order), m.value(tensor)
        if value is not None:
            wide = value.reshape((1,) * (rank - value.ndim) + value.shape)
            return m.constant(np.ascontiguousarray(wide.transpose(self.order)))
        padded = (1,) * (rank - len(dims)) + tuple(-1 if d is None else d for d in dims)
        shape = [padded[i] for i in self.order]
        return m.make("Reshape", (tensor, m.constant(np.array(shape, np.int32))), {})


def _lies_along_one_axis(tensor: Tensor, rank: int) -> bool:
    """Whether a tensor lies in memory the same way in any order of axes: it is a number, or a vector."""
    dims = tensor.dims
    return dims == () or (dims is not None and len(dims) <= rank and sum(1 for d in dims if d != 1) <= 1)


# --- casts -------------------------------------------------------------------------------------------------------------


def _widened_later(m: Match) -> Tensor | None:
    """Transpose(Cast(x), p) = Cast(Transpose(x, p)) where the cast is to a wider type, and all that is taken is what it makes."""
    moved = m.root.inputs[:1] if m.root.type != "ConcatV2" else m.root.inputs[:-1]
    casts = [m.producer_of(t) for t in moved]
    narrow: list[Tensor] = []
    for tensor, cast in zip(moved, casts, strict=True):
        if cast is None or cast.opdef.name != "Cast" or m.uses(tensor) > moved.count(tensor):
            return None
        narrow.append(cast.inputs[0])
    source, target = narrow[0].dtype.base, m.root.outputs[0].dtype
    if source.size >= target.size or any(t.dtype.base is not source or _is_computed(m, t) for t in narrow):
        return None
    after, before = m.root.outputs[0], narrow[0]
    is_known = is_static(after.dims) and is_static(before.dims)
    if m.root.type == "GatherV2" and not (is_known and size(after) <= size(before)):
        return None
    inner = m.make(m.root.type, (*narrow, *m.root.inputs[len(moved) :]), m.root.attrs)
    first = casts[0]
    assert first is not None
    return m.make(first.type, (inner,), first.attrs, first)


def _narrowed_sooner(m: Match) -> Tensor | None:
    """Cast(Transpose(y, p)) = Transpose(Cast(y), p) where the cast is to a narrower type, and can be computed with y."""
    y, moved = m["y"], m["moved"]
    if m["d"].size >= y.dtype.base.size or not _is_computed(m, y) or m.uses(y) > 1 or m.uses(moved) > 1:
        return None
    cast = m.make("Cast", (y,), m.root.attrs)
    return m.make(moved.op.type, (cast, *moved.op.inputs[1:]), moved.op.attrs, moved.op)


def _is_computed(m: Match, tensor: Tensor) -> bool:
    """Whether an elementwise node makes a tensor: it and a cast of its result are one kernel."""
    node = m.producer_of(tensor)
    return node is not None and node.opdef.scalar is not None


_CAST = "Cast(x, DstT=d)"

moving_rules = (
    Rule("transpose undone behind arithmetic", "Transpose(y, q)", _undone),
    Rule(
        "transpose by rows behind BatchMatMulV2",
        "Transpose((product := BatchMatMulV2(x, y, adj_x=a, adj_y=b)), p)",
        _rows_out_of_product,
    ),
    *(_behind_arithmetic_into_product(op, flags, which) for op, flags in PRODUCTS.items() for which in (0, 1)),
    Rule(
        "wider later",
        f"{{Transpose({_CAST}, p), Slice({_CAST}, b, s), StridedSlice({_CAST}, b, e, s), GatherV2({_CAST}, i, a),"
        f" ConcatV2({_CAST}, a), ConcatV2({_CAST}, y, a), ConcatV2({_CAST}, y, z, a), ConcatV2({_CAST}, y, z, w, a)}}",
        _widened_later,
    ),
    Rule(
        "narrower sooner",
        "Cast((moved := {Transpose(y, p), Reshape(y, s), ExpandDims(y, s), Squeeze(y)}), DstT=d)",
        _narrowed_sooner,
    ),
)
"""For a walk that counts how often a tensor is taken."""
