"""Values that a kernel computes again rather than reads.

A gradient needs what its forward pass had between two operations: that of a GELU takes five tensors which the GELU itself kept in
registers. To write them to memory and read them again takes longer than the arithmetic. So where a group reads several large tensors
of another one, and these follow element by element from fewer ones, it gets copies of the nodes between (Chen et al., "Training deep
nets with sublinear memory cost", 2016, do so to save memory). The bits are the same, since the operations are.

How much may be computed for a byte depends on the device (`operations_per_byte`): a core of a CPU does an operation or two in the time
that a byte takes, a GPU ten or twenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import size
from ..ir.partition import node_of
from .grouping import BATCH, MOST_NODES, Walk
from .merge import Axes, Axis, FusionGroup
from .op_rules import constant_of

SMALLEST = 1 << 14  # elements of a tensor: smaller ones stay in the caches


@dataclass(slots=True)
class Rematerialized:
    """What groups compute again.

    Attributes:
        nodes: of each group, the nodes of others that it has copies of; they stand before its own.
        lent: what such copies take from outside.
    """

    nodes: dict[FusionGroup, set[Node]] = field(default_factory=dict)
    lent: set[Tensor] = field(default_factory=set)
    _before: dict[FusionGroup, tuple[list[Node], dict[Tensor, Axes]]] = field(default_factory=dict)

    def of(self, group: FusionGroup | None) -> set[Node]:
        """The nodes that a group has copies of."""
        return self.nodes.get(group, set()) if group is not None else set()

    def add(self, group: FusionGroup, copies: _Copies, place: dict[Node, int]) -> None:
        """Put copies into a group, before its own nodes and in the order of the unit."""
        self._before.setdefault(group, ([*group.nodes], {**group.dims}))
        held = self.nodes.setdefault(group, set())
        own = [n for n in group.nodes if n not in held and n not in copies.nodes]
        held.update(copies.nodes)
        group.nodes = [*sorted(held, key=place.__getitem__), *own]
        for t, axes in copies.axes.items():
            group.dims.setdefault(t, axes)
        self.lent.update(copies.taken)

    def undo(self) -> None:
        """Take all copies out again."""
        for group, (nodes, dims) in self._before.items():
            group.nodes, group.dims = nodes, dims
        self.nodes, self.lent, self._before = {}, set(), {}


@dataclass(frozen=True, slots=True)
class _Copies:
    """Nodes to be copied into a group, what it takes for them that it did not take before, and the axes of all their tensors."""

    nodes: list[Node]
    taken: list[Tensor]
    axes: dict[Tensor, Axes]


def rematerialize(walk: Walk, operations_per_byte: float) -> Rematerialized:
    """Put copies of nodes into the groups of a walk, where that saves more of the memory's time than it costs.

    Args:
        walk: the groups.
        operations_per_byte: how many operations take as long as to read or write one byte.
    """
    again = Rematerialized()
    place = {n: i for i, n in enumerate(map(node_of, walk.unit.steps)) if n is not None}
    for group in walk.groups:
        for maker in _makers(walk, group):
            copies = _copies(walk, maker, group, operations_per_byte)
            if copies is not None:
                again.add(group, copies, place)
    return again


def _makers(walk: Walk, group: FusionGroup) -> list[FusionGroup]:
    """The groups from which a group takes."""
    found = dict.fromkeys(walk.group_of.get(t) for n in group.nodes for t in n.inputs)
    return [
        g
        for g in found
        if g is not None and g is not group and not g.scatters and g in walk.groups and g.sources == group.sources
    ]


def _copies(walk: Walk, maker: FusionGroup, group: FusionGroup, operations_per_byte: float) -> _Copies | None:
    """What of `maker` a group should have copies of."""
    own = {n for n in maker.nodes if _is_pointwise(walk, n)} - _random(walk, maker)
    # Views that stand by themselves may be in both; what is small costs nothing to read.
    read = [t for t in group.dims if t.op in own and t.op not in group.nodes and _elements(t) >= SMALLEST]
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
        return None  # a variable is read where its turn comes
    axis_of = _axes(maker, group, read)
    axes: dict[Tensor, Axes] = {}
    for t in dict.fromkeys(t for n in inside for t in (*_data(walk, n), *n.outputs)):
        if t in maker.dims:
            if not all(a is None or a in axis_of for a in maker.dims[t]):
                return None
            axes[t] = tuple(None if a is None else axis_of[a] for a in maker.dims[t])
    return _Copies([n for n in maker.nodes if n in inside], taken, axes)


def _is_pointwise(walk: Walk, node: Node) -> bool:
    """Whether a node makes each element of one tensor from elements in the same place, and looks at nothing else."""
    pattern = walk.patterns[node]
    if pattern.reduced or pattern.position is not None or pattern.row is not None or len(node.outputs) != 1:
        return False
    return all(
        labels is not None or t.op.type == "Const" for t, labels in zip(node.inputs, pattern.inputs, strict=True)
    )


def _random(walk: Walk, maker: FusionGroup) -> set[Node]:
    """The nodes that draw, or look at nothing but what others of them give: a mask is read in less time than it is made."""
    out: set[Node] = set()
    made: set[Tensor] = set()
    for node in maker.nodes:
        taken = [t for t in _data(walk, node) if constant_of(t) is None]
        if walk.patterns[node].drawn is not None or taken and made.issuperset(taken):
            out.add(node)
            made.update(node.outputs)
    return out


def _elements(tensor: Tensor) -> int:
    """Number of elements, an unknown size counting as that of a batch."""
    return math.prod(BATCH if d is None else d for d in tensor.dims or ())


def _bytes(tensor: Tensor) -> int:
    return _elements(tensor) * tensor.dtype.size


def _operations(node: Node) -> float:
    """Those of a node; its cost is told with unknown sizes as 1."""
    made = node.outputs[0]
    return node.opdef.cost_of(node).flops * _elements(made) / max(size(made), 1)


def _data(walk: Walk, node: Node) -> list[Tensor]:
    """A node's inputs that hold data."""
    return [t for t, _ in walk.patterns[node].data_of(node)]


def _axes(maker: FusionGroup, group: FusionGroup, shared: Sequence[Tensor]) -> dict[Axis, Axis]:
    """Which axes of the reader those of the maker are, by what both have."""
    out: dict[Axis, Axis] = {}
    for t in shared:
        for theirs, mine in zip(maker.dims[t], group.dims[t], strict=True):
            if theirs is not None and mine is not None:
                out.setdefault(theirs, mine)
    return out
