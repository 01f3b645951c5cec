"""Forms fusion groups: a greedy walk that decides which nodes of a partition share a kernel.

The walk visits each step once. A node that has a loop nest joins the open groups that make or read its inputs, if all of its axes
map to axes of theirs (`merge`). Else it opens a group. So chains fuse vertically, reductions fuse with their producers and
consumers, and nodes that read the same tensor fuse horizontally.

A kernel runs at the position of its *last* node. That is correct exactly if no other step needs one of its results earlier. So a group is
closed as soon as any other step takes a tensor of it. Sends, receives and stateful nodes are never moved and keep their order, so the
global order still excludes deadlocks between devices. Two groups cannot wait for each other: a step that takes a tensor of a group has
closed it. A read of rows of a variable runs with its kernel, before any other step that takes the variable's handle. A receive closes all
groups: work that is ready before it must not wait for another task. A group does not cross control flow: its nodes are all in one loop
body, and all dead or alive together (`ir/partition.py`).

An op over windows reads its images where its windows lie, so it starts a group: its images are made before. Arithmetic on its result joins
the group. Reductions do not. Arithmetic before it may join afterwards (`window_producers`).

Views (reshapes that only add or drop axes of size 1, broadcasts, identities) cost nothing inside a kernel. So each group that takes one
gets its own copy, and the node is dropped when it has no other consumer. With `copies_scalars`, so does arithmetic on scalars.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property

from ...graph.core.dtypes import DType, resource
from ...graph.core.graph import Node, Tensor
from ...graph.core.shape import Dims, element_count
from ..ir.index_maps import LOOKUPS, RANDOM_OPS, IndexMaps, index_maps_of
from ..ir.loop_nest import SUPPORTED, NotFusibleError
from ..ir.partition import (
    AwaitNode,
    BeginLoop,
    PartitionGraph,
    Predicate,
    Predicates,
    RecvTensor,
    RunPredicated,
    SendTensor,
    inputs_of_step,
    node_of,
)
from ..ir.symbolic_shape import CONTROL_FLOW_OPS, SymbolicShapes
from ..ir.windows import WINDOW_OPS
from ..target import SMALL_ELEMENTS
from .merge import Axes, Axis, Depth, FusionGroup, Join, merged
from .op_rules import has_rule, rule_of
from .to_loops import write_alone

MOST_NODES = 200
_TOO_SMALL = "it is too small to gain"
# Ops that take a variable's handle and do not change the variable.
_READS = LOOKUPS | {"ReadVariableOp", "VarIsInitializedOp"}
DEEPEST = 120  # the longest chain of values in a kernel: code generation recurses as deep
# The most reductions of a kernel one after the other. Each goes over its elements anew, and computes what is before it again.
MOST_PASSES = 4
LATEST = 16  # how many open groups are searched for a common input with a node
BATCH = 64  # the estimate of a size that is known only at run time


class Walk:
    """The walk over a partition.

    Attributes:
        groups: the groups formed, in order; some are not worth a kernel.
        patterns: the index maps of the nodes in groups, and of views.
        views: views, and arithmetic on scalars, that stay nodes and of which groups may have copies.
        reasons: node name -> why it is in no group.
        selecting: nodes that select between two values for each element.
        predicates: the predicates of nodes that may be dead.
    """

    def __init__(
        self,
        partition: PartitionGraph,
        *,
        small: bool,
        types: Sequence[DType] = SUPPORTED,
        copies_scalars: bool = False,
        longest_scan: int = 0,
    ) -> None:
        self.partition = partition
        self.types = types
        self.copies_scalars = copies_scalars
        self.longest_scan = longest_scan
        self.small = small
        self.fed = {t for _, t in partition.feeds}
        self.open: dict[FusionGroup, None] = {}  # in order
        self.group_of: dict[Tensor, FusionGroup] = {}  # tensors that a group makes
        self.patterns: dict[Node, IndexMaps] = {}
        self.views: set[Node] = set()  # that stay nodes
        self.reading: set[FusionGroup] = set()  # open ones that read rows of variables
        self.copyable: set[Node] = set()  # those of them that may be copied here
        self.reasons: dict[str, str] = {}
        self.groups: dict[FusionGroup, None] = {}
        self.selecting: set[Node] = set()
        self.depth: dict[Node, Depth] = {}
        self.small_dims: dict[Dims, bool] = {}
        self.guards = Predicates()
        self.predicates: dict[Node, tuple[Node | int, ...]] = {}
        self.needed_tokens = partition.needed_tokens
        self.makers: dict[Tensor, Node] = {}  # the makers of tensors whose symbolic shape says more than the static one
        self.sizes = SymbolicShapes(self.makers)

    def walk(self) -> None:
        """Form the groups."""
        if not self.small and self.has_only_small():
            self.reasons.update(dict.fromkeys([n.name for n in self.partition.nodes], _TOO_SMALL))
            return
        for step in self.partition.steps:
            sources = self.guards.visit(step)
            if isinstance(step, Node):
                self.node(step, sources)
            elif isinstance(step, RunPredicated):
                self.predicates[step.node] = step.after
                self.node(step.node, sources)
            elif isinstance(step, SendTensor):
                self.close_makers(inputs_of_step(step))
            elif not isinstance(step, AwaitNode):
                # A kernel runs at the position of its last node. If a node after a receive joined, the others would wait for
                # another task while this one is idle.
                self.open.clear()
                if not isinstance(step, RecvTensor):  # a loop starts, tests or ends: nothing moves across
                    self.copyable.clear()

    def node(self, node: Node, sources: Predicate) -> None:
        self.note_sizes(node)
        if node.type in ("Const", "Placeholder"):
            return
        if self.reading and node.type not in _READS and any(t.dtype is resource for t in node.inputs):
            for group in self.reading:
                self.open.pop(group, None)
            self.reading.clear()
        if not self.small and node.type not in RANDOM_OPS and node.type not in WINDOW_OPS and self.is_small(node):
            self.reasons[node.name] = _TOO_SMALL
            if self.open:
                self.close_makers(node.inputs)
            return
        try:
            if any(t in self.fed for t in node.outputs):
                raise NotFusibleError("its value is fed")
            if node in self.needed_tokens:
                raise NotFusibleError("other steps need to know whether it is dead")
            rule_of(node)
            pattern = self.patterns[node] = index_maps_of(node).with_sizes(node, self.sizes)
            for t in (*(t for t, _ in pattern.data_of(node)), *node.outputs):
                if t.dtype not in self.types:
                    is_place = t.dtype.is_ref
                    why = "it takes a reference to a variable" if is_place else f"{t.dtype.name} stays with NumPy"
                    raise NotFusibleError(why)
            if pattern.is_masked and not all(map(has_rule, self.consumers.get(node.outputs[0], ()))):
                raise NotFusibleError("a consumer outside kernels needs its result")
            if self.longest_scan and pattern.scanned is not None:
                (size,) = [pattern.sizes[along] for along in pattern.reduced]
                if size is None or size > self.longest_scan:
                    raise NotFusibleError("its axis is long or of unknown size: a kernel of its own splits it")
            alone = write_alone(node, pattern)
            if "select" in alone.operations:
                self.selecting.add(node)
            if alone.depth > DEEPEST:
                raise NotFusibleError("its chain of operations is too long")
            self.depth[node] = alone.depth, int(bool(pattern.reduced))
            self.close_makers([node.inputs[i] for i in pattern.before])
            self.close_makers([t for t, labels in zip(node.inputs, pattern.inputs, strict=True) if labels is None])
        except NotFusibleError as e:
            self.reasons[node.name] = str(e)
            self.patterns.pop(node, None)
            self.close_makers(node.inputs)
            return
        if pattern.scattered:
            self.scattered(node, pattern, sources)
        elif not self.joined(node, pattern, sources):
            self.close_makers(node.inputs)
            if pattern.is_view or self.is_scalar_arithmetic(node, pattern):
                self.views.add(node)
                self.copyable.add(node)
            else:
                self.start(node, pattern, sources)

    def note_sizes(self, node: Node) -> None:
        """Record the symbolic sizes of a node's outputs."""
        if node.opdef.name not in CONTROL_FLOW_OPS and (not self.fed or self.fed.isdisjoint(node.outputs)):
            if not node.opdef.is_stateful:
                self.makers.update(dict.fromkeys(node.outputs, node))
            self.sizes.see(node)

    def scattered(self, node: Node, pattern: IndexMaps, sources: Predicate) -> None:
        """Put a segment sum into the group that makes its rows, if that has no other consumer; else into a new group. Closes the group."""
        group = self.group_of.get(node.inputs[0])
        join: Join | None = None
        if group is not None and group in self.open and group.sources == sources:
            inside = {*group.nodes, node}
            is_only_use = all(t in inside for made in group.made for t in self.consumers.get(made, ()))
            if is_only_use and not group.reduced and not group.slides and len(group.nodes) < MOST_NODES:
                join = merged([group], pattern.data_of(node), pattern, self.known)
        if group is not None and join is not None:
            self.add(group, node, pattern, join.mapping)
        else:
            self.close_makers(node.inputs)
            group = self.start(node, pattern, sources)
        group.scatters = True
        self.open.pop(group, None)

    @cached_property
    def consumers(self) -> dict[Tensor, list[object]]:
        """The consumers of each tensor: nodes, steps that are not nodes, and None for a fetch."""
        out: dict[Tensor, list[object]] = {}
        for step in self.partition.steps:
            for t in inputs_of_step(step):
                out.setdefault(t, []).append(node_of(step) or step)
        for _, t in self.partition.fetches:
            out.setdefault(t, []).append(None)
        return out

    def is_scalar_arithmetic(self, node: Node, pattern: IndexMaps) -> bool:
        """Whether it computes a scalar from scalars, which each group may compute for itself."""
        return self.copies_scalars and not pattern.space and not node.opdef.is_stateful and None not in pattern.inputs

    def has_only_small(self) -> bool:
        """Whether no kernel can gain, because all tensors are small. The walk would take half of the compilation of such a partition."""
        partition = self.partition
        if not partition.ops.isdisjoint((*RANDOM_OPS, *WINDOW_OPS)) or BeginLoop in partition.kinds:
            return False
        shapes = {t.dims for node in partition.nodes for t in node.outputs}
        shapes.update(t.dims for _, t in partition.feeds)
        shapes.update(s.tensor.dims for s in partition.steps if type(s) is RecvTensor and s.tensor is not None)
        return all(map(self.is_small_shape, shapes))

    def is_small(self, node: Node) -> bool:
        """Whether a node is small and takes nothing from a group. A fast check that skips most nodes of most graphs."""
        tensors = (*node.outputs, *node.inputs)
        return all(self.is_small_shape(t.dims) and t not in self.group_of for t in tensors)

    def is_small_shape(self, dims: Dims) -> bool:
        """Whether a tensor has so few elements that no kernel gains. False for unknown sizes."""
        known = self.small_dims.get(dims)
        if known is None:
            count = element_count(dims)
            known = self.small_dims[dims] = count is not None and count < SMALL_ELEMENTS
        return known

    # --- consumers -------------------------------------------------------------------------------------------------

    def close_makers(self, tensors: Iterable[Tensor]) -> None:
        """Close the groups that make these tensors, because another step takes them."""
        for t in tensors:
            group = self.group_of.get(t)
            if group is not None and group in self.open:
                del self.open[group]

    def maker_of(self, tensor: Tensor, group: FusionGroup) -> FusionGroup | None:
        """The group that makes a tensor; None if that is this one, or no group, or may be dead where this one is not."""
        maker = self.group_of.get(tensor)
        return maker if maker is not group and maker in self.groups and maker.sources == group.sources else None

    def known(self, group: FusionGroup, tensor: Tensor) -> Axes | None:
        """A tensor's axes in a group that makes or reads it, directly or through views."""
        found = group.dims.get(tensor)
        if found is not None or tensor.op not in self.copyable:
            return found
        pattern = self.patterns[tensor.op]
        if not pattern.is_view:
            return None
        base = self.known(group, tensor.op.inputs[0])
        labels = pattern.inputs[0]
        if base is None or labels is None:
            return None
        axis_of = {label: axis for label, axis in zip(labels, base, strict=True) if label is not None}
        if any(label is not None and label not in axis_of for label in pattern.outputs[0]):
            return None  # a broadcast along an axis that only the reader knows
        return tuple(None if label is None else axis_of[label] for label in pattern.outputs[0])

    # --- joining ---------------------------------------------------------------------------------------------------

    def joined(self, node: Node, pattern: IndexMaps, sources: Predicate) -> bool:
        """Put the node into an open group that it fits, if there is one."""
        data = pattern.data_of(node)
        found = dict.fromkeys(self.group_of.get(t) for t, _ in data)
        makers = [g for g in found if g is not None and g in self.open and g.sources == sources]
        latest = list(itertools.islice(reversed(self.open), LATEST))
        latest = [g for g in latest if g.sources == sources and g not in makers]
        readers = [g for g in latest if any(self.known(g, t) is not None for t, _ in data)]
        if pattern.is_view and not makers:
            return False
        for groups in ([*makers], *([g] for g in makers), *([g] for g in readers)):
            if not groups or sum(len(g.nodes) for g in groups) >= MOST_NODES:
                continue
            values, passes = self.depths(groups, node)
            if values > DEEPEST or passes > MOST_PASSES:
                continue
            if any(g.slides for g in groups) and (pattern.reduced or any(g.reduced and not g.slides for g in groups)):
                continue  # a reduction goes over its operand in an order of its own, and maybe several times
            join = merged(groups, data, pattern, self.known)
            if join is None:
                continue
            for g in makers:
                if g not in groups:
                    del self.open[g]
            self.unite(join)
            self.add(join.main, node, pattern, join.mapping)
            return True
        return False

    def depths(self, groups: Iterable[FusionGroup], node: Node) -> Depth:
        """The longest chains from the inputs of groups up to a node."""
        before = [g.depth[t] for g in groups for t in node.inputs if t in g.depth]
        values, passes = self.depth[node]
        return values + max((v for v, _ in before), default=0), passes + max((p for _, p in before), default=0)

    def unite(self, join: Join) -> None:
        """Merge the groups of a join."""
        main = join.main
        main.reduced, main.scanned = join.reduced, join.scanned
        for group in join.rest:
            del self.open[group], self.groups[group]
            inside = set(main.nodes)
            main.nodes += [n for n in group.nodes if n not in inside]
            main.made |= group.made
            main.depth |= group.depth
            main.reads_state |= group.reads_state
            main.slides |= group.slides
            for t, axes in group.dims.items():
                main.dims.setdefault(t, tuple(None if a is None else join.same[a] for a in axes))
            for t in group.made:
                self.group_of[t] = main

    def start(self, node: Node, pattern: IndexMaps, sources: Predicate) -> FusionGroup:
        """A new group of one node."""
        # What is unknown comes with the node.
        axes = {label: Axis(pattern.sizes[label]) for label in sorted(pattern.space)}
        group = FusionGroup(
            [axes[label] for label in sorted(axes)], {axes[label] for label in pattern.reduced}, sources,
            scanned=pattern.scanned, slides=pattern.window is not None,
        )  # fmt: skip
        self.open[group] = self.groups[group] = None
        self.add(group, node, pattern, axes)
        return group

    def add(self, group: FusionGroup, node: Node, pattern: IndexMaps, mapping: dict[int, Axis]) -> None:
        for t, labels in pattern.data_of(node):
            self.read(group, t, tuple(None if x is None else mapping[x] for x in labels))
        group.nodes.append(node)
        if node.opdef.is_stateful:
            group.reads_state = True
        if group.reads_state:
            self.reading.add(group)
        depth = self.depths([group], node)
        for t, labels in zip(node.outputs, pattern.outputs, strict=True):
            group.depth[t] = depth
            group.dims[t] = tuple(None if x is None else mapping[x] for x in labels)
            group.made.add(t)
            self.group_of[t] = group
        for label, axis in mapping.items():
            if axis.size is None:
                axis.size = pattern.sizes[label]
            if label in pattern.unknown:
                axis.unknown |= pattern.unknown[label]

    def read(self, group: FusionGroup, tensor: Tensor, axes: Axes) -> None:
        """Let a group read a tensor. For a view, it reads the viewed tensor and gets a copy of the view."""
        if tensor in group.dims:
            return
        view = tensor.op
        if view in self.copyable:
            pattern = self.patterns[view]
            axis_of = {label: axis for label, axis in zip(pattern.outputs[0], axes, strict=True) if label is not None}
            for t, labels in pattern.data_of(view):
                self.read(group, t, tuple(None if x is None else axis_of[x] for x in labels))
            group.nodes.append(view)
            group.depth[tensor] = self.depths([group], view)
        elif tensor in self.group_of:
            self.close_makers([tensor])
        group.dims[tensor] = axes
