"""Fusion: replaces groups of nodes in a partition's steps by kernels.

`grouping` finds the nodes that can be one kernel. This module lowers the groups that pay to loop IR (`to_loops`) and puts each
kernel at the position of its last node. It also chooses a kernel's outputs (the tensors with consumers outside) and the views that stay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...graph.core.dtypes import DType
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import size
from ..ir.fused_kernel import FusedKernel
from ..ir.index_maps import EXTREMES, LAST_AXIS, LOOKUPS
from ..ir.loop_nest import SUPPORTED, NotFusibleError
from ..ir.partition import PartitionGraph, PartitionStep, node_of
from ..target import LONE_ELEMENTS, SMALL_ELEMENTS
from .grouping import BATCH, Walk
from .merge import FusionGroup
from .rematerialize import Rematerialized, rematerialize
from .to_loops import write_kernel
from .window_producers import absorb_producers

MOST_ARRAYS = 40  # inputs and outputs of one kernel; more of them seldom belong to one loop, and they slow the call


@dataclass(frozen=True, slots=True)
class Fusion:
    """The result of fusion: the steps, and why nodes are not fused.

    Attributes:
        steps: the partition's steps, with `FusedKernel` among them.
        reasons: node name -> why it is in no kernel. Nodes without a reason of their own are left out.
    """

    steps: tuple[PartitionStep | FusedKernel, ...]
    reasons: dict[str, str]

    @property
    def kernels(self) -> list[FusedKernel]:
        """The kernels, in the order in which they run."""
        return [s for s in self.steps if isinstance(s, FusedKernel)]

    def with_steps(self, steps: tuple[PartitionStep | FusedKernel, ...]) -> Fusion:
        """A copy with these steps, and only the reasons of nodes that are in none of their kernels."""
        inside = {n.name for s in steps if isinstance(s, FusedKernel) for n in s.nodes}
        return Fusion(steps, {name: why for name, why in self.reasons.items() if name not in inside})

    def __str__(self) -> str:
        lines = []
        for i, kernel in enumerate(self.kernels):
            lines.append(f"kernel {i}: {', '.join(n.name for n in kernel.nodes)}")
            lines += [f"  {line}" for line in str(kernel.loops).splitlines()]
            lines += [] if kernel.schedule is None else [f"  {kernel.schedule}"]
        return "\n".join(lines + [f"not fused: {name}: {why}" for name, why in self.reasons.items()])


class _Result:
    """Makes the kernels of the groups that a walk has formed."""

    def __init__(self, walk: Walk, lone: bool, again: Rematerialized) -> None:
        self.walk = walk
        self.again = again
        self.lone = lone
        self.partition = walk.partition
        self.views = walk.views
        self.reasons = walk.reasons
        self.home: dict[Node, FusionGroup] = {}

    @cached_property
    def place(self) -> dict[Node | None, int]:
        return {node_of(step): i for i, step in enumerate(self.partition.steps)}

    def result(self) -> Fusion:
        """The kernels of the groups that pay, at the positions of their last nodes."""
        kernels: dict[Node, FusedKernel] = {}
        gone: set[Node] = set()
        self.home = {n: g for g in self.walk.groups for n in self.own(g)}
        for group in self.walk.groups:
            own = self.own(group)
            try:
                self.check_worth(group, own)
                kernel = self.kernel(group, set(group.nodes))
            except NotFusibleError as e:
                if group in self.again.nodes:  # its nodes need tensors that no kernel would write
                    self.again.undo()
                    return self.result()
                self.reasons.update({n.name: str(e) for n in own})
                continue
            kernels[max(own, key=self.place.__getitem__)] = kernel
            gone.update(own)
        self.drop_unused(kernels.values(), gone)
        steps: list[PartitionStep | FusedKernel] = []
        for step in self.partition.steps:
            node = node_of(step)
            if node in kernels:
                steps.append(kernels[node])
            elif node not in gone:
                steps.append(step)
        return Fusion(tuple(steps), self.reasons)

    def own(self, group: FusionGroup) -> list[Node]:
        """The nodes of a group that are neither views nor copies. Other steps may take their outputs."""
        copies = self.again.of(group)
        return [n for n in group.nodes if n not in self.views and n not in copies]

    def drop_unused(self, kernels: Iterable[FusedKernel], gone: set[Node]) -> None:
        """Drop the views that only kernels with copies of them take, the last ones first, then the shapes that only kernels take."""
        found = {n: n.type == "Shape" for k in kernels for n in k.nodes if n in self.views or n.type == "Shape"}
        # A kernel with a lookup takes the table from outside, even if other kernels have a copy.
        taken = {t.op for k in kernels for t in (*k.inputs, *k.shapes)}
        for node in sorted(found.keys() - taken, key=lambda n: (found[n], -self.place.get(n, 0))):
            if all(t in gone for t in self.walk.consumers.get(node.outputs[0], ())):
                gone.add(node)

    def check_worth(self, group: FusionGroup, own: Sequence[Node]) -> None:
        copied = sum(self.walk.patterns[n].is_masked for n in group.nodes)
        is_alone = len(own) + copied < 2 and not self.lone and not self.is_worth_alone(own[0])
        only_rows = all(n.type in LOOKUPS or self.walk.patterns[n].is_view for n in own)  # NumPy copies rows as fast
        if is_alone or only_rows:
            raise NotFusibleError("nothing to fuse it with")
        tensors = (t for n in own for t in (*(n.inputs[1:] if n.type in LOOKUPS else n.inputs), *n.outputs))
        biggest = max(size(t) for t in tensors if t.dims is not None)
        unknown = any(t.dims is None or None in t.dims for n in own for t in n.outputs)
        drawn = any(self.walk.patterns[n].drawn is not None for n in own)
        slides = any(self.walk.patterns[n].window is not None for n in own)
        if not self.walk.small and biggest < SMALL_ELEMENTS and not (unknown or drawn or slides):
            raise NotFusibleError("it is too small to gain")

    def is_worth_alone(self, node: Node) -> bool:
        """Whether the group is large, or NumPy is slow on it, needs several passes or reads memory in strides."""
        pattern = self.walk.patterns[node]
        elements = math.prod(BATCH if d is None else d for d in pattern.sizes.values())
        quick = node not in self.walk.selecting and pattern.scanned is None
        if elements >= (LONE_ELEMENTS if quick else SMALL_ELEMENTS):
            return True
        if pattern.drawn is not None or pattern.scattered or pattern.window is not None:
            return True  # NumPy's philox takes a hundred times as long, and windows are copied there
        across = node.type in EXTREMES and pattern.positions != (max(pattern.sizes),)
        return across or node.type in LAST_AXIS or node.type == "OneHot"

    def kernel(self, group: FusionGroup, members: set[Node]) -> FusedKernel:
        number = {axis: i for i, axis in enumerate(group.space)}
        outputs = [
            t for n in self.own(group) for t in n.outputs
            if t in self.again.lent or any(self.is_outside(c, t, members) for c in self.walk.consumers.get(t, ()))
        ]  # fmt: skip
        if not outputs:  # nodes that run for their own sake, as targets of a step do
            outputs = list(max(self.own(group), key=self.place.__getitem__).outputs)
        axes_of = {t: tuple(None if a is None else number[a] for a in axes) for t, axes in group.dims.items()}
        reduced = tuple(a in group.reduced for a in group.space)
        sizes = tuple(a.size for a in group.space)
        kernel = write_kernel(group.nodes, outputs, axes_of, reduced, sizes, self.walk.patterns)
        if group.sources:
            kernel = self.predicated(kernel)
        if len(kernel.inputs) + len(outputs) > MOST_ARRAYS:
            raise NotFusibleError("too many tensors")
        seen = {x for axes in kernel.input_axes for x in axes}
        seen |= {x for a in kernel.assumed if a.over is None for x in a.axes}
        seen |= {x for w in kernel.windows for x in w.axes}
        if any(i not in seen and d is None for i, d in enumerate(sizes)):
            raise NotFusibleError("a size is unknown")
        return kernel

    def is_outside(self, consumer: object, tensor: Tensor, members: set[Node]) -> bool:
        """Whether a tensor of the group with these nodes has an outside consumer without a copy of its own."""
        if consumer in members and consumer not in self.views:
            return False
        return not (isinstance(consumer, Node) and tensor.op in self.again.of(self.home.get(consumer)))

    def predicated(self, kernel: FusedKernel) -> FusedKernel:
        """The kernel with the tensors that show whether its nodes are dead."""
        made = {t for n in kernel.nodes for t in n.outputs}
        taken = dict.fromkeys(t for n in kernel.nodes for t in n.inputs if t not in made)
        # A plain constant is always there, and may have been folded away together with its slot.
        checks = tuple(t for t in taken if t.op.type != "Const" or t.op in self.walk.predicates)
        after = dict.fromkeys(a for n in kernel.nodes for a in self.walk.predicates.get(n, ()))
        return replace(kernel, checks=checks, after=tuple(after), is_predicated=True)


def fuse(
    partition: PartitionGraph,
    *,
    small: bool = False,
    lone: bool = False,
    types: Sequence[DType] = SUPPORTED,
    operations_per_byte: float = 0.0,
    copies_scalars: bool = False,
    longest_scan: int = 0,
    has_epilogues: bool = False,
) -> Fusion:
    """Decide which nodes become one kernel.

    Args:
        partition: what one device runs.
        small: also fuse groups that are too small to gain.
        lone: also make a kernel of a single node that fuses with nothing.
        types: the element types that kernels support.
        operations_per_byte: operations that take as long as reading one byte, to compute values again; 0: they are not.
        copies_scalars: let each kernel have its own copy of arithmetic on scalars. Scalars with other consumers also stay as nodes.
        longest_scan: the longest axis of a running sum; 0: any length.
        has_epilogues: whether products and convolutions take arithmetic on their results afterwards.

    Guarantees: every value is made before its consumers run. Sends, receives, stateful nodes and all other steps keep their
    order. A fused node's value exists outside its kernel only if a step there takes it.
    """
    walk = Walk(partition, small=small, types=types, copies_scalars=copies_scalars, longest_scan=longest_scan)
    walk.walk()
    if not walk.groups:
        return Fusion(partition.steps, walk.reasons)
    if operations_per_byte:
        absorb_producers(walk, operations_per_byte, has_epilogues)
    copies = rematerialize(walk, operations_per_byte) if operations_per_byte else Rematerialized()
    return _Result(walk, lone, copies).result()
