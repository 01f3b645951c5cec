"""Rematerialization: a kernel recomputes cheap values instead of reading them.

A gradient needs intermediate values of its forward pass: that of a GELU takes five tensors which the GELU itself kept in registers.
Writing them to memory and reading them back takes longer than the arithmetic. So if a group reads several large tensors of another
group, and these are elementwise functions of fewer tensors, it gets copies of the nodes between (Chen et al., "Training deep nets
with sublinear memory cost", 2016, do so to save memory). The operations are the same, so the results are bit-identical.

How much arithmetic pays for one byte depends on the device (`operations_per_byte`): in the time of one byte a CPU core does one or two
operations, a GPU ten or twenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import size
from ..ir.partition import node_of
from ..target import CACHED_ELEMENTS
from .grouping import BATCH, MOST_NODES, Walk
from .merge import Axes, Axis, FusionGroup
from .op_rules import constant_of


@dataclass(slots=True)
class Rematerialized:
    """The nodes that groups recompute.

    Attributes:
        nodes: for each group, the nodes of other groups that it has copies of. They precede its own nodes.
        lent: the tensors that such copies take from outside.
    """

    nodes: dict[FusionGroup, set[Node]] = field(default_factory=dict)
    lent: set[Tensor] = field(default_factory=set)
    _before: dict[FusionGroup, tuple[list[Node], dict[Tensor, Axes]]] = field(default_factory=dict)

    def of(self, group: FusionGroup | None) -> set[Node]:
        """The nodes that a group has copies of."""
        return self.nodes.get(group, set()) if group is not None else set()

    def add(self, group: FusionGroup, copies: _Copies, place: dict[Node, int]) -> None:
        """Put copies into a group, before its own nodes and in the order of the partition."""
        self._before.setdefault(group, ([*group.nodes], {**group.dims}))
        held = self.nodes.setdefault(group, set())
        own = [n for n in group.nodes if n not in held and n not in copies.nodes]
        held.update(copies.nodes)
        group.nodes = [*sorted(held, key=place.__getitem__), *own]
        for t, axes in copies.axes.items():
            group.dims.setdefault(t, axes)
        self.lent.update(copies.taken)

    def undo(self) -> None:
        """Remove all copies."""
        for group, (nodes, dims) in self._before.items():
            group.nodes, group.dims = nodes, dims
        self.nodes, self.lent, self._before = {}, set(), {}


@dataclass(frozen=True, slots=True)
class _Copies:
    """Nodes to copy into a group, the inputs that it did not take before, and the axes of all their tensors."""

    nodes: list[Node]
    taken: list[Tensor]
    axes: dict[Tensor, Axes]


def rematerialize(walk: Walk, operations_per_byte: float) -> Rematerialized:
    """Put copies of nodes into the groups of a walk, where that saves more memory time than the arithmetic costs.

    Args:
        walk: the groups.
        operations_per_byte: operations that take as long as reading or writing one byte.
    """
    again = Rematerialized()
    place = {n: i for i, n in enumerate(map(node_of, walk.partition.steps)) if n is not None}
    for group in walk.groups:
        for maker in dict.fromkeys(walk.maker_of(t, group) for n in group.nodes for t in n.inputs):
            copies = _copies(walk, maker, group, operations_per_byte) if maker and not maker.scatters else None
            if maker and copies is not None:
                again.add(group, copies, place)
    return again


def _copies(walk: Walk, maker: FusionGroup, group: FusionGroup, operations_per_byte: float) -> _Copies | None:
    """The nodes of `maker` that a group should have copies of."""
    own = {n for n in maker.nodes if _is_pointwise(walk, n)} - _random(walk, maker)
    # Views that stay nodes may be in both groups. Small tensors cost nothing to read.
    read = [t for t in group.dims if t.op in own and t.op not in group.nodes and _elements(t) >= CACHED_ELEMENTS]
    if len(read) < 2:
        return None
    inside: set[Node] = set()
    leaves: dict[Tensor, None] = {}
    todo = [t.op for t in read]
    while todo:
        node = todo.pop()
        if node in inside:
            continue
        inside.add(node)
        for t in _data(walk, node):
            if t.op in own and (t not in group.dims or t in read):
                todo.append(t.op)
            elif constant_of(t) is None:
                leaves[t] = None
    taken = [t for t in leaves if t not in group.dims]
    saved = sum(map(_bytes, read)) - sum(map(_bytes, taken))
    work = sum(_operations(n) for n in inside if not walk.patterns[n].is_view)
    if len(inside) + len(group.nodes) > MOST_NODES:
        return None
    if saved <= 0 or 2 * saved * operations_per_byte < work:  # a tensor is written and read
        return None
    if any(t.dtype.is_ref for t in leaves):
        return None  # reads of variables keep their order
    axis_of = _axes(maker, group, read)
    axes: dict[Tensor, Axes] = {}
    for t in dict.fromkeys(t for n in inside for t in (*_data(walk, n), *n.outputs)):
        if t in maker.dims:
            if not all(a is None or a in axis_of for a in maker.dims[t]):
                return None
            axes[t] = tuple(None if a is None else axis_of[a] for a in maker.dims[t])
    return _Copies([n for n in maker.nodes if n in inside], taken, axes)


def _is_pointwise(walk: Walk, node: Node) -> bool:
    """Whether a node computes each element of its one output only from the elements at the same position."""
    pattern = walk.patterns[node]
    if pattern.reduced or pattern.positions or pattern.row is not None or len(node.outputs) != 1:
        return False
    inputs = zip(node.inputs, pattern.inputs, strict=True)
    return all(labels is not None or t.op.type == "Const" for t, labels in inputs)


def _random(walk: Walk, maker: FusionGroup) -> set[Node]:
    """The nodes that draw random numbers or depend only on such nodes: reading a mask is faster than drawing it again."""
    out: set[Node] = set()
    made: set[Tensor] = set()
    for node in maker.nodes:
        taken = [t for t in _data(walk, node) if constant_of(t) is None]
        if walk.patterns[node].drawn is not None or taken and made.issuperset(taken):
            out.add(node)
            made.update(node.outputs)
    return out


def _elements(tensor: Tensor) -> int:
    """The number of elements; an unknown size counts as a batch size."""
    return math.prod(BATCH if d is None else d for d in tensor.dims or ())


def _bytes(tensor: Tensor) -> int:
    return _elements(tensor) * tensor.dtype.size


def _operations(node: Node) -> float:
    """The operations of a node; its cost is evaluated with unknown sizes as 1."""
    made = node.outputs[0]
    return node.opdef.cost_of(node).flops * _elements(made) / max(size(made), 1)


def _data(walk: Walk, node: Node) -> list[Tensor]:
    return [t for t, _ in walk.patterns[node].data_of(node)]


def _axes(maker: FusionGroup, group: FusionGroup, shared: Sequence[Tensor]) -> dict[Axis, Axis]:
    """The maker's axes mapped to the reader's, by the tensors that both have."""
    out: dict[Axis, Axis] = {}
    for t in shared:
        for theirs, mine in zip(maker.dims[t], group.dims[t], strict=True):
            if theirs is not None and mine is not None:
                out.setdefault(theirs, mine)
    return out
