"""Groups: which nodes of a unit come together in one kernel.

One walk over the unit's steps. A *group* is a kernel in the making: nodes whose values lie in one space of axes (`loops`). Each
node that has a loop form joins the open groups that make or already read what it takes, if all of its axes can be told to be
axes of theirs; else it opens a group. So chains grow downwards, reductions swallow what feeds them and what uses them, and
nodes that read the same tensor come together side by side.

A kernel runs in the place of its *last* node. That is right exactly if nobody outside needs one of its results before: so a
group is closed as soon as any other step takes a tensor of it. Sends, receives and nodes with state are never moved and keep
their order, so what was said of the global order (no two devices wait for each other) stays true. Two groups cannot wait for
each other either: whoever takes from a group has closed it.

A reduction of what a closed group has in hand is lifted into it all the same (the gradient of a bias, from what the product before
it took): it is made earlier, and what it reduces need not be read once more. Nothing else is: what is large would lie in memory for longer.

What reads rows of a variable runs with its kernel, before anything else that takes the variable's handle.

A receive closes all groups: what can be computed before is not to wait for another task.

Where control flow is, a group stays on one side: its nodes are all in one loop body, and all dead or alive together (`guards`).

Views (reshapes that only add or drop axes of size 1, broadcasts, identities) cost nothing inside a kernel, so each group that
wants one gets its own copy of it, and the node itself goes when nobody else is left. So does arithmetic on single numbers, where
kernels may compute things again (`numbers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from ..graph.dtypes import float32, int64, resource
from ..graph.node import Node, Tensor
from ..graph.shape import Dims, element_count
from .axes import LOOKUPS, Labels, Pattern, pattern_of
from .drawing import DRAWN
from .fusible import NotFusibleError, check_types
from .guards import NONE, Guards, Sources, asked_for
from .loops import LoopsBuilder
from .trace import number_of, rule_of
from .unit import AwaitNode, RecvTensor, RunGuarded, SendTensor, Unit, taken_by

MOST_NODES = 200
_READS = LOOKUPS | {"ReadVariableOp", "VarIsInitializedOp"}  # what leaves the variable whose handle it takes as it is
_CHOICES = frozenset(["select"])
LATEST = 16  # how many open groups are asked whether they read what a node reads
SMALL = 4096  # elements below which NumPy's few calls are as quick as a kernel's one


def has_only_small(unit: Unit) -> bool:
    """Whether nothing that the unit computes is worth a kernel, because all its tensors are small: the quick answer."""
    tensors = [t for _, t in unit.feeds]
    for step in unit.steps:
        if isinstance(step, Node):
            tensors += step.outputs
        elif isinstance(step, RecvTensor):
            tensors += () if step.tensor is None else (step.tensor,)
        elif isinstance(step, RunGuarded):
            tensors += step.node.outputs
        elif not isinstance(step, SendTensor | AwaitNode):
            return False  # a loop
    return all((count := element_count(dims)) is not None and count < SMALL for dims in {t.dims for t in tensors})


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of a group's space."""

    size: int | None


Axes: TypeAlias = "tuple[Axis | None, ...]"


@dataclass(eq=False, slots=True)
class Group:
    """A kernel in the making."""

    space: list[Axis]
    reduced: set[Axis]
    sources: Sources = NONE  # why all of it may be dead
    nodes: list[Node] = field(default_factory=list)
    dims: dict[Tensor, Axes] = field(default_factory=dict)  # of what it makes and what it reads
    made: set[Tensor] = field(default_factory=set)
    reads_state: bool = False  # rows of a variable
    part: int = 0  # of the unit, between marks of control flow
    lifted: set[Node] = field(default_factory=set)  # nodes that run earlier than where they stood
    scanned: bool | None = None  # whether running sums in it go from the end
    scatters: bool = False  # its only result is a table, into whose rows it adds

    @property
    def kept(self) -> list[Axis]:
        return [a for a in self.space if a not in self.reduced]


@dataclass(frozen=True, slots=True)
class _Join:
    """How groups, and a node, become one.

    Attributes:
        main: the group that takes the others in. rest: the others.
        same: axes of the others -> the axes of the main group that they are.
        reduced: what is reduced then.
        scanned: whether running sums go from the end then.
        mapping: the node's labels -> axes of the main group.
    """

    main: Group
    rest: list[Group]
    same: dict[Axis, Axis]
    reduced: set[Axis]
    scanned: bool | None
    mapping: dict[int, Axis]


class Walk:
    """The walk over a unit.

    Attributes:
        groups: those that were formed, in order; some are not worth a kernel.
        patterns: of the nodes in them, and of views.
        views: views, and arithmetic on numbers, that stand by themselves, and of which groups may have copies.
        reasons: node name -> why it is in no group.
        choosing: nodes that choose between two values for each element.
        passed: nodes that were too small to look at.
        guarded: what the nodes that may be dead wait for.
    """

    def __init__(
        self,
        unit: Unit,
        *,
        small: bool,
        positions: bool = True,
        numbers: bool = False,
        longest_scan: int = 0,
    ) -> None:
        self.unit = unit
        self.positions = positions
        self.numbers = numbers
        self.longest_scan = longest_scan
        self.small = small
        self.fed = {t for _, t in unit.feeds}
        self.open: dict[Group, None] = {}  # in order
        self.group_of: dict[Tensor, Group] = {}  # tensors that a group makes
        self.patterns: dict[Node, Pattern] = {}
        self.views: set[Node] = set()  # that stand by themselves
        self.reading: set[Group] = set()  # open ones that read rows of variables
        self.at_hand: set[Node] = set()  # those of them that may be copied here
        self.reasons: dict[str, str] = {}
        self.groups: dict[Group, None] = {}
        self.choosing: set[Node] = set()
        self.part = 0
        self.passed: list[Node] = []
        self.small_dims: dict[Dims, bool] = {}
        self.guards = Guards()
        self.guarded: dict[Node, tuple[Node | int, ...]] = {}
        self.asked = asked_for(unit)

    def walk(self) -> None:
        """Form the groups."""
        for step in self.unit.steps:
            sources = self.guards.see(step)
            if isinstance(step, Node):
                self.node(step, sources)
            elif isinstance(step, RunGuarded):
                self.guarded[step.node] = step.after
                self.node(step.node, sources)
            elif isinstance(step, SendTensor):
                self.taken(taken_by(step))
            elif not isinstance(step, AwaitNode):
                # A kernel runs in the place of its last node: what joined it behind a receive would make the others wait for
                # another task, with nothing done meanwhile.
                self.open.clear()
                if not isinstance(step, RecvTensor):  # a loop begins, tests or ends: nothing moves across
                    self.at_hand.clear()
                    self.part += 1

    def node(self, node: Node, sources: Sources) -> None:
        if node.type in ("Const", "Placeholder"):
            return
        if self.reading and node.type not in _READS and any(t.dtype is resource for t in node.inputs):
            for group in self.reading:
                self.open.pop(group, None)
            self.reading.clear()
        if not self.small and node.type not in DRAWN and self.is_small(node):
            self.passed.append(node)
            if self.open:
                self.taken(node.inputs)
            return
        try:
            if any(t in self.fed for t in node.outputs):
                raise NotFusibleError("a value is fed for it")
            if node in self.asked:
                raise NotFusibleError("it tells others whether its branch is taken")
            rule_of(node)
            pattern = self.patterns[node] = pattern_of(node)
            check_types(self.data_only(node, pattern))
            special = pattern.position is not None or pattern.row is not None or pattern.scattered
            if special and not self.positions:
                raise NotFusibleError(f"{node.type} has a template of its own")
            if pattern.scanned is not None and self.longest_scan:
                self.check_length(node, pattern)
            if self.trial(node, pattern).operations & _CHOICES:
                self.choosing.add(node)
            self.taken([node.inputs[i] for i in pattern.before])
            self.taken([t for t, labels in zip(node.inputs, pattern.inputs, strict=True) if labels is None])
        except NotFusibleError as e:
            self.reasons[node.name] = str(e)
            self.patterns.pop(node, None)
            self.taken(node.inputs)
            return
        if pattern.scattered:
            self.scattered(node, pattern, sources)
        elif not (self.joined(node, pattern, sources) or self.lifted(node, pattern, sources)):
            self.taken(node.inputs)
            if pattern.is_view or self.is_number(node, pattern):
                self.views.add(node)
                self.at_hand.add(node)
            else:
                self.start(node, pattern, sources)

    def scattered(self, node: Node, pattern: Pattern, sources: Sources) -> None:
        """Put a sum over segments behind what makes its rows, if nobody else takes anything of that; or by itself. Nothing follows it."""
        rows = node.inputs[0]
        group = self.group_of.get(rows)
        if group is not None and group in self.open and group.sources == sources and not group.reduced:
            inside = {*group.nodes, node}
            alone = all(taker in inside for t in group.made for taker in self.takers.get(t, ()))
            labels = [(t, own) for t, own in zip(node.inputs, pattern.inputs, strict=True) if own is not None]
            join = self.merged([group], labels, pattern) if alone and len(group.nodes) < MOST_NODES else None
            if join is not None:
                self.add(group, node, pattern, join.mapping)
                self.close_scatter(group)
                return
        self.taken(node.inputs)
        self.start(node, pattern, sources)
        self.close_scatter(next(reversed(self.groups)))

    def close_scatter(self, group: Group) -> None:
        """Let nothing more come into a group."""
        group.scatters = True
        self.open.pop(group, None)

    @cached_property
    def takers(self) -> dict[Tensor, list[object]]:
        """For each tensor who takes it: nodes, and steps that are none; None for a fetch."""
        out: dict[Tensor, list[object]] = {}
        for step in self.unit.steps:
            node = step.node if isinstance(step, RunGuarded) else step
            for t in taken_by(step):
                out.setdefault(t, []).append(node)
        for _, t in self.unit.fetches:
            out.setdefault(t, []).append(None)
        return out

    def check_length(self, node: Node, pattern: Pattern) -> None:
        """Leave long running sums to a template that cuts them into pieces."""
        (along,) = pattern.reduced
        size = pattern.sizes[along]
        if size is None or size > self.longest_scan:
            raise NotFusibleError("its axis is long, or of a size that is not known: a template cuts that into pieces")

    def is_number(self, node: Node, pattern: Pattern) -> bool:
        """Whether it makes one number from others, which each group may compute for itself."""
        return self.numbers and not pattern.space and not node.opdef.is_stateful and None not in pattern.inputs

    def is_small(self, node: Node) -> bool:
        """Whether it is small, and takes nothing from a group that is not: the quick way past most nodes of most graphs."""
        small, group_of = self.small_dims, self.group_of
        for t in (*node.outputs, *node.inputs):
            dims = t.dims
            known = small.get(dims)
            if known is None:
                count = element_count(dims)
                known = small[dims] = count is not None and count < SMALL
            if not known or t in group_of:
                return False
        return True

    @staticmethod
    def data_only(node: Node, pattern: Pattern) -> Node:
        """A stand-in with the inputs that hold data, for checking types."""
        stand_in = Node()
        stand_in.opdef = node.opdef
        stand_in.inputs = tuple(t for t, labels in zip(node.inputs, pattern.inputs, strict=True) if labels is not None)
        stand_in.outputs = node.outputs
        return stand_in

    @staticmethod
    def trial(node: Node, pattern: Pattern) -> LoopsBuilder:
        """Write the node in loop IR, alone, so that one that cannot be written is known now."""
        builder = LoopsBuilder([i in pattern.reduced for i in range(max(pattern.space, default=-1) + 1)])
        operands = loaded(builder, node, pattern)
        if pattern.position is not None:
            operands.append(builder.position(pattern.position, int64))
        if pattern.row is not None:
            row = [x for x in pattern.row if x is not None]
            operands.append(builder.gather(0, node.outputs[0].dtype, operands[0], row))
        if pattern.drawn is not None:
            operands.append(drawn_number(builder, node, operands, [x for x in pattern.drawn if x is not None]))
        rule_of(node, pattern.is_view)(builder, node, operands)
        return builder

    # --- who takes what --------------------------------------------------------------------------------------------

    def taken(self, tensors: Iterable[Tensor]) -> None:
        """Somebody else takes these: the groups that make them can't move any further."""
        for t in tensors:
            group = self.group_of.get(t)
            if group is not None and group in self.open:
                del self.open[group]

    def known(self, group: Group, tensor: Tensor) -> Axes | None:
        """A tensor's axes in a group, if it makes or reads it, or would through views."""
        found = group.dims.get(tensor)
        if found is not None or tensor.op not in self.at_hand:
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

    def joined(self, node: Node, pattern: Pattern, sources: Sources) -> bool:
        """Put the node into an open group, if there is one that it fits into."""
        data = [(t, labels) for t, labels in zip(node.inputs, pattern.inputs, strict=True) if labels is not None]
        makers = [
            g
            for g in dict.fromkeys(self.group_of.get(t) for t, _ in data)
            if g is not None and g in self.open and g.sources == sources
        ]
        latest = list(itertools.islice(reversed(self.open), LATEST))
        latest = [g for g in latest if g.sources == sources and g not in makers]
        readers = [g for g in latest if any(self.known(g, t) is not None for t, _ in data)]
        if pattern.is_view and not makers:
            return False
        for groups in ([*makers], *([g] for g in makers), *([g] for g in readers)):
            if not groups or sum(len(g.nodes) for g in groups) >= MOST_NODES:
                continue
            merged = self.merged(groups, data, pattern)
            if merged is None:
                continue
            for g in makers:
                if g not in groups:
                    del self.open[g]
            self.unite(merged)
            self.add(merged.main, node, pattern, merged.mapping)
            return True
        return False

    def lifted(self, node: Node, pattern: Pattern, sources: Sources) -> bool:
        """Put a reduction into a closed group that makes what it reduces, and has all it takes, if there is one."""
        if not pattern.reduced or pattern.scanned is not None or pattern.before or node.opdef.is_stateful:
            return False
        given = list(zip(node.inputs, pattern.inputs, strict=True))
        if any(labels is None and t.op.type != "Const" for t, labels in given):
            return False
        data = [(t, labels) for t, labels in given if labels is not None]
        for group in dict.fromkeys(self.group_of.get(t) for t, _ in data):
            if group is None or group in self.open or group.part != self.part or group.sources != sources:
                continue
            if group.reads_state or group.scatters or len(group.nodes) >= MOST_NODES:
                continue
            if not all(t in group.dims or t.op.type == "Const" for t, _ in data):
                continue
            merged = self.merged([group], data, pattern)
            if merged is not None:
                self.unite(merged)
                group.lifted.add(node)
                self.add(group, node, pattern, merged.mapping)
                return True
        return False

    def merged(self, groups: Sequence[Group], data: Sequence[tuple[Tensor, Labels]], pattern: Pattern) -> _Join | None:
        """The groups as one, and the node's labels as axes of it; None when they don't fit. Changes nothing."""
        main, *rest = sorted(groups, key=lambda g: len(g.space), reverse=True)
        same: dict[Axis, Axis] = {}  # axes of the other groups -> axes of the main one
        mapping: dict[int, Axis] = {}
        for group in (main, *rest):
            if group is not main:
                for t in group.dims.keys() & main.dims.keys():  # what both read tells which axes are one
                    if len(group.dims[t]) != len(main.dims[t]):
                        return None
                    for mine, theirs in zip(main.dims[t], group.dims[t], strict=True):
                        if mine is None or theirs is None:
                            if mine is not theirs:
                                return None
                        elif same.setdefault(theirs, mine) is not mine:
                            return None
            for t, labels in data:
                axes = self.known(group, t)
                if axes is None:
                    continue
                for label, axis in zip(labels, axes, strict=True):
                    if (label is None) != (axis is None):
                        return None
                    if label is None or axis is None:
                        continue
                    if group is not main:
                        there = mapping.get(label)
                        if there is not None and same.setdefault(axis, there) is not there:
                            return None
                        axis = same.get(axis)
                        if axis is None:
                            return None
                    if mapping.setdefault(label, axis) is not axis:
                        return None
        self.guess(main, pattern, mapping)
        if mapping.keys() != pattern.space or len(set(mapping.values())) != len(mapping):
            return None
        for label, axis in mapping.items():
            if None not in (pattern.sizes[label], axis.size) and pattern.sizes[label] != axis.size:
                return None
        everything, reduced = set(main.space), set(main.reduced)
        for group in rest:
            if not all(a in same for a in group.space):
                return None
            also = {same[a] for a in group.reduced}
            if reduced and also and reduced != also:
                return None
            reduced |= also
        over, own = {mapping[label] for label in pattern.reduced}, set(mapping.values())
        if over and (reduced and over != reduced or own != everything):
            return None
        reduced |= over
        # Everything lies in the whole space, or in its kept axes; what reduces, in the whole.
        levels = [own, *({same[a] for a in group.space} for group in rest)]
        if any(level not in (everything, everything - reduced) for level in levels):
            return None
        if any(group.reduced and {same[a] for a in group.space} != everything for group in rest):
            return None
        ways = {way for way in (pattern.scanned, *(g.scanned for g in groups)) if way is not None}
        if len(ways) > 1 or ways and len(reduced) > 1:
            return None
        return _Join(main, rest, same, reduced, ways.pop() if ways else None, mapping)

    @staticmethod
    def guess(group: Group, pattern: Pattern, mapping: dict[int, Axis]) -> None:
        """A label unknown to the group is the axis in its place in the group's space, if that has the very size."""
        if len(pattern.space) != len(group.space):
            return
        taken = set(mapping.values())
        for label, axis in zip(sorted(pattern.space), group.space, strict=True):
            if (
                label not in mapping
                and axis not in taken
                and axis.size is not None
                and axis.size == pattern.sizes[label]
            ):
                mapping[label] = axis

    def unite(self, join: _Join) -> None:
        """Make the groups of a join one."""
        main = join.main
        main.reduced, main.scanned = join.reduced, join.scanned
        for group in join.rest:
            del self.open[group], self.groups[group]
            inside = set(main.nodes)
            main.nodes += [n for n in group.nodes if n not in inside]
            main.made |= group.made
            main.reads_state |= group.reads_state
            for t, axes in group.dims.items():
                main.dims.setdefault(t, tuple(None if a is None else join.same[a] for a in axes))
            for t in group.made:
                self.group_of[t] = main

    def start(self, node: Node, pattern: Pattern, sources: Sources) -> None:
        """A new group of one node."""
        axes = {label: Axis(pattern.sizes[label]) for label in sorted(pattern.space)}
        group = Group(
            [axes[label] for label in sorted(axes)], {axes[label] for label in pattern.reduced}, sources, part=self.part,
            scanned=pattern.scanned,
        )  # fmt: skip
        self.open[group] = self.groups[group] = None
        self.add(group, node, pattern, axes)

    def add(self, group: Group, node: Node, pattern: Pattern, mapping: dict[int, Axis]) -> None:
        for t, labels in zip(node.inputs, pattern.inputs, strict=True):
            if labels is not None:
                self.read(group, t, tuple(None if x is None else mapping[x] for x in labels))
        group.nodes.append(node)
        if node.opdef.is_stateful:
            group.reads_state = True
        if group.reads_state:
            self.reading.add(group)
        for t, labels in zip(node.outputs, pattern.outputs, strict=True):
            group.dims[t] = tuple(None if x is None else mapping[x] for x in labels)
            group.made.add(t)
            self.group_of[t] = group
        for label, axis in mapping.items():
            if axis.size is None:
                axis.size = pattern.sizes[label]

    def read(self, group: Group, tensor: Tensor, axes: Axes) -> None:
        """Let a group read a tensor; of a view, it reads what is viewed and gets a copy of the view."""
        if tensor in group.dims:
            return
        view = tensor.op
        if view in self.at_hand:
            pattern = self.patterns[view]
            axis_of = {label: axis for label, axis in zip(pattern.outputs[0], axes, strict=True) if label is not None}
            for t, labels in zip(view.inputs, pattern.inputs, strict=True):
                if labels is not None:
                    self.read(group, t, tuple(None if x is None else axis_of[x] for x in labels))
            group.nodes.append(view)
        elif tensor in self.group_of:
            self.taken([tensor])
        group.dims[tensor] = axes


def constant_of(tensor: Tensor) -> bool | int | float | None:
    """The number that a tensor always is, if it is a constant of one element."""
    return number_of(tensor.op.attrs["value"]) if tensor.op.type == "Const" else None


def loaded(builder: LoopsBuilder, node: Node, pattern: Pattern) -> list[int]:
    """Values of a node's inputs when it stands alone."""
    out = []
    for i, (t, labels) in enumerate(zip(node.inputs, pattern.inputs, strict=True)):
        if labels is not None:
            number = constant_of(t)
            axes = [x for x in labels if x is not None]
            out.append(
                builder.load(i, t.dtype.base, axes) if number is None else builder.constant(number, t.dtype.base)
            )
    return out


def drawn_number(builder: LoopsBuilder, node: Node, stream: Sequence[int], axes: Sequence[int]) -> int:
    """The number that a node draws for an element, in float32 where its own type is narrower."""
    if list(axes) != sorted(axes):
        raise NotFusibleError("its axes are in another order")
    dtype = node.outputs[0].dtype
    key, draw = stream
    return builder.random(DRAWN[node.type][0], dtype if dtype.size >= 4 else float32, key, draw, axes)
