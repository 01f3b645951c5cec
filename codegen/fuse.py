"""Fusion: which nodes of a unit become one kernel.

One walk over the unit's steps. A *group* is a kernel in the making: nodes whose values lie in one space of axes (`loops`). Each
node that has a loop form joins the open groups that make or already read what it takes, if all of its axes can be told to be
axes of theirs; else it opens a group. So chains grow downwards, reductions swallow what feeds them and what uses them, and
nodes that read the same tensor come together side by side.

A kernel runs in the place of its *last* node. That is right exactly if nobody outside needs one of its results before: so a
group is closed as soon as any other step takes a tensor of it. Sends, receives and nodes with state are never moved and keep
their order, so what was said of the global order (no two devices wait for each other) stays true. Two groups cannot wait for
each other either: whoever takes from a group has closed it.

Views (reshapes that only add or drop axes of size 1, broadcasts, identities) cost nothing inside a kernel, so each group that
wants one gets its own copy of it, and the node itself goes when nobody else is left.

What sizes are equal is partly only known when the graph runs. Where a static size is unknown, fusion assumes that no
broadcasting happens along it; the kernel's launcher compares the real shapes with that, and runs the nodes one by one on NumPy
when they differ.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ..graph.node import Node, Tensor
from ..graph.opdef import size
from ..graph.shape import Dims, element_count
from ..graph.static_value import static_value
from .loops import Loops, LoopsBuilder
from .trace import NotFusibleError, check_types, number_of, rule_of
from .unit import BeginLoop, EndLoop, LeaveUnless, RecvTensor, RunGuarded, SendTensor, Unit, UnitStep

MOST_ARRAYS = 40  # inputs and outputs of one kernel; more are seldom of one loop, and calling it would take long
MOST_NODES = 200
LATEST = 16  # how many open groups are asked whether they read what a node reads
SMALL = 4096  # elements below which NumPy's few calls are as quick as a kernel's one
_VIEWS = frozenset(("Identity", "StopGradient", "PreventGradient", "ExpandDims", "Squeeze", "Reshape", "BroadcastTo"))
_REDUCTIONS = frozenset(("Sum", "Mean", "Prod", "Max", "Min", "Any", "All"))
_LAST_AXIS = frozenset(("Softmax", "LogSoftmax", "SoftmaxCrossEntropyWithLogits"))

Labels: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True, slots=True)
class FusedNodes:
    """Nodes that one kernel runs: a step of a unit.

    Attributes:
        nodes: in an order in which they can run one by one.
        inputs: tensors that come from outside; the kernel's inputs, in order.
        shapes: tensors that the nodes take besides, which the kernel does not look at (the target of a broadcast).
        outputs: tensors that somebody outside takes.
        loops: what the kernel computes.
        parts: for each axis of `loops`, the axes of the space before neighbours were joined.
        input_axes: for each input, the space's axis of each of its dimensions; None: of size 1.
        output_axes: the same for the outputs.
        axes_of: the same for every tensor of the nodes.
        reduced: for each axis of the space, whether it is reduced.
        sizes: static size of each axis of the space.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Tensor, ...]
    shapes: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    loops: Loops
    parts: tuple[tuple[int, ...], ...]
    input_axes: tuple[Labels, ...]
    output_axes: tuple[Labels, ...]
    axes_of: Mapping[Tensor, Labels]
    reduced: tuple[bool, ...]
    sizes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Fusion:
    """What fusion made of a unit's steps, and why nodes are where they are.

    Attributes:
        steps: the unit's steps, with `FusedNodes` among them.
        reasons: node name -> why it is in no kernel (nodes that have none of their own are left out).
    """

    steps: tuple[UnitStep | FusedNodes, ...]
    reasons: dict[str, str]

    @property
    def kernels(self) -> list[FusedNodes]:
        """The kernels, in the order in which they run."""
        return [s for s in self.steps if isinstance(s, FusedNodes)]

    def __str__(self) -> str:
        lines = []
        for i, kernel in enumerate(self.kernels):
            lines.append(f"kernel {i}: {', '.join(n.name for n in kernel.nodes)}")
            lines += [f"  {line}" for line in str(kernel.loops).splitlines()]
        return "\n".join(lines + [f"not fused: {name}: {why}" for name, why in self.reasons.items()])


# --- axes of one node ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pattern:
    """A node's own axes, as labels.

    Attributes:
        inputs: for each input, a label per dimension (None: size 1); None for an input that holds no data (axes, a shape).
        outputs: the same for each output.
        reduced: labels that are reduced.
        sizes: static size of each label.
    """

    inputs: tuple[Labels | None, ...]
    outputs: tuple[Labels, ...]
    reduced: frozenset[int]
    sizes: dict[int, int | None]

    @property
    def space(self) -> frozenset[int]:
        """All labels."""
        return frozenset(self.sizes)


def pattern_of(node: Node) -> Pattern:
    """A node's axes.

    Raises:
        NotFusibleError: they are not known before the graph runs.
    """
    for t in (*node.inputs, *node.outputs):
        if t.dims is None:
            raise NotFusibleError(f"the rank of {t.name} is not known")
        if 0 in t.dims:
            raise NotFusibleError("it has no elements")
    if node.type in _REDUCTIONS or node.type in _LAST_AXIS or node.type in ("L2Loss", "BiasAddGrad"):
        return _reduction_pattern(node)
    if node.type in ("Reshape", "ExpandDims", "Squeeze"):
        return _reshape_pattern(node)
    return _elementwise_pattern(node)


def _elementwise_pattern(node: Node) -> Pattern:
    dims = node.outputs[0].dims or ()
    labels = tuple(None if d == 1 else i for i, d in enumerate(dims))
    inputs: list[Labels | None] = []
    for i, t in enumerate(node.inputs):
        if node.type == "BroadcastTo" and i == 1:
            inputs.append(None)
            continue
        own = t.dims or ()
        at = len(dims) - len(own)
        if node.type == "Select" and i == 0 and len(own) != len(dims):
            raise NotFusibleError("its condition chooses rows")
        if node.type == "BiasAdd" and i == 1 and node.attrs["data_format"] == "NCHW":
            at = 1
        inputs.append(tuple(None if d == 1 else labels[at + j] for j, d in enumerate(own)))
        if any(d != 1 and labels[at + j] is None for j, d in enumerate(own)):
            raise NotFusibleError("a size is not known")
    return Pattern(tuple(inputs), (labels,), frozenset(), {i: dims[i] for i in labels if i is not None})


def _reduction_pattern(node: Node) -> Pattern:
    dims = node.inputs[0].dims or ()
    labels = tuple(None if d == 1 else i for i, d in enumerate(dims))
    keep = bool(node.attrs.get("keep_dims", False))
    if node.type in _REDUCTIONS:
        axes = static_value(node.inputs[1])
        if axes is None:
            raise NotFusibleError("its axes are not known before the graph runs")
        over = {int(a) % max(len(dims), 1) for a in np.asarray(axes).ravel()}
    elif node.type == "L2Loss":
        over = set(range(len(dims)))
    elif node.type == "BiasAddGrad":
        over = set(range(len(dims))) - {1 if node.attrs["data_format"] == "NCHW" else len(dims) - 1}
    else:
        over = {len(dims) - 1}
    reduced = frozenset(i for i in over if labels[i] is not None)
    if not reduced:
        raise NotFusibleError("it reduces axes of size 1 only")
    kept = tuple(None if i in over else x for i, x in enumerate(labels) if keep or i not in over)
    inputs: tuple[Labels | None, ...] = (labels, *(None for _ in node.inputs[1:]))
    outputs: tuple[Labels, ...] = (kept,)
    if node.type in ("Softmax", "LogSoftmax"):
        outputs = (labels,)
    elif node.type == "SoftmaxCrossEntropyWithLogits":
        if node.inputs[1].dims != dims:
            raise NotFusibleError("the shapes of logits and labels are not known to be equal")
        inputs, outputs = (labels, labels), (kept, labels)
    return Pattern(inputs, outputs, reduced, {i: dims[i] for i in labels if i is not None})


def _reshape_pattern(node: Node) -> Pattern:
    before, after = node.inputs[0].dims or (), node.outputs[0].dims or ()
    old, new = [d for d in before if d != 1], [d for d in after if d != 1]
    if len(old) != len(new) or any(a != b for a, b in zip(old, new, strict=True)) or old.count(None) > 1:
        raise NotFusibleError("it changes more than axes of size 1")

    def numbered(dims: Iterable[int | None]) -> Labels:
        labels = iter(range(len(old)))
        return tuple(None if d == 1 else next(labels) for d in dims)

    return Pattern(
        (numbered(before), *(None for _ in node.inputs[1:])), (numbered(after),), frozenset(), dict(enumerate(old))
    )


# --- groups ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Axis:
    """An axis of a group's space."""

    size: int | None


Axes: TypeAlias = "tuple[_Axis | None, ...]"


@dataclass(eq=False, slots=True)
class _Group:
    """A kernel in the making."""

    space: list[_Axis]
    reduced: set[_Axis]
    nodes: list[Node] = field(default_factory=list)
    dims: dict[Tensor, Axes] = field(default_factory=dict)  # of what it makes and what it reads
    made: set[Tensor] = field(default_factory=set)

    @property
    def kept(self) -> list[_Axis]:
        return [a for a in self.space if a not in self.reduced]


@dataclass(frozen=True, slots=True)
class _Join:
    """How groups, and a node, become one.

    Attributes:
        main: the group that takes the others in. rest: the others.
        same: axes of the others -> the axes of the main group that they are.
        reduced: what is reduced then.
        mapping: the node's labels -> axes of the main group.
    """

    main: _Group
    rest: list[_Group]
    same: dict[_Axis, _Axis]
    reduced: set[_Axis]
    mapping: dict[int, _Axis]


class _Fuser:
    """The walk."""

    def __init__(self, unit: Unit, *, small: bool) -> None:
        self.unit = unit
        self.small = small
        self.fed = {t for _, t in unit.feeds}
        self.open: dict[_Group, None] = {}  # in order
        self.group_of: dict[Tensor, _Group] = {}  # tensors that a group makes
        self.patterns: dict[Node, Pattern] = {}
        self.views: set[Node] = set()  # that stand by themselves
        self.at_hand: set[Node] = set()  # those of them that may be copied here
        self.reasons: dict[str, str] = {}
        self.groups: dict[_Group, None] = {}
        self.passed: list[Node] = []  # too small to look at
        self.small_dims: dict[Dims, bool] = {}

    def walk(self) -> None:
        """Form the groups."""
        for step in self.unit.steps:
            if isinstance(step, Node):
                self.node(step)
            elif isinstance(step, SendTensor):
                self.taken(_taken_by(step))
            elif not isinstance(step, RecvTensor):
                # A loop begins, tests or ends, or a node may be dead: nothing moves across.
                self.open.clear()
                self.at_hand.clear()

    def node(self, node: Node) -> None:
        if node.type in ("Const", "Placeholder"):
            return
        if not self.small and self.is_small(node):
            self.passed.append(node)
            if self.open:
                self.taken(node.inputs)
            return
        try:
            if any(t in self.fed for t in node.outputs):
                raise NotFusibleError("a value is fed for it")
            rule_of(node)
            pattern = self.patterns[node] = pattern_of(node)
            check_types(self.data_only(node, pattern))
            self.trial(node, pattern)
        except NotFusibleError as e:
            self.reasons[node.name] = str(e)
            self.patterns.pop(node, None)
            self.taken(node.inputs)
            return
        if not self.joined(node, pattern):
            self.taken(node.inputs)
            if node.type in _VIEWS:
                self.views.add(node)
                self.at_hand.add(node)
            else:
                self.start(node, pattern)

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
    def trial(node: Node, pattern: Pattern) -> None:
        """Write the node in loop IR, alone, so that one that cannot be written is known now."""
        builder = LoopsBuilder([i in pattern.reduced for i in range(max(pattern.space, default=-1) + 1)])
        rule_of(node)(builder, node, _loaded(builder, node, pattern))

    # --- who takes what --------------------------------------------------------------------------------------------

    def taken(self, tensors: Iterable[Tensor]) -> None:
        """Somebody else takes these: the groups that make them can't move any further."""
        for t in tensors:
            group = self.group_of.get(t)
            if group is not None and group in self.open:
                del self.open[group]

    def known(self, group: _Group, tensor: Tensor) -> Axes | None:
        """A tensor's axes in a group, if it makes or reads it, or would through views."""
        found = group.dims.get(tensor)
        if found is not None or tensor.op not in self.at_hand:
            return found
        pattern = self.patterns[tensor.op]
        base = self.known(group, tensor.op.inputs[0])
        labels = pattern.inputs[0]
        if base is None or labels is None:
            return None
        axis_of = {label: axis for label, axis in zip(labels, base, strict=True) if label is not None}
        if any(label is not None and label not in axis_of for label in pattern.outputs[0]):
            return None  # a broadcast along an axis that only the reader knows
        return tuple(None if label is None else axis_of[label] for label in pattern.outputs[0])

    # --- joining ---------------------------------------------------------------------------------------------------

    def joined(self, node: Node, pattern: Pattern) -> bool:
        """Put the node into an open group, if there is one that it fits into."""
        data = [(t, labels) for t, labels in zip(node.inputs, pattern.inputs, strict=True) if labels is not None]
        makers = [g for g in dict.fromkeys(self.group_of.get(t) for t, _ in data) if g is not None and g in self.open]
        latest = list(itertools.islice(reversed(self.open), LATEST))
        readers = [g for g in latest if g not in makers and any(self.known(g, t) is not None for t, _ in data)]
        if node.type in _VIEWS and not makers:
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

    def merged(self, groups: Sequence[_Group], data: Sequence[tuple[Tensor, Labels]], pattern: Pattern) -> _Join | None:
        """The groups as one, and the node's labels as axes of it; None when they don't fit. Changes nothing."""
        main, *rest = sorted(groups, key=lambda g: len(g.space), reverse=True)
        same: dict[_Axis, _Axis] = {}  # axes of the other groups -> axes of the main one
        mapping: dict[int, _Axis] = {}
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
        return _Join(main, rest, same, reduced, mapping)

    @staticmethod
    def guess(group: _Group, pattern: Pattern, mapping: dict[int, _Axis]) -> None:
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
        main.reduced = join.reduced
        for group in join.rest:
            del self.open[group], self.groups[group]
            inside = set(main.nodes)
            main.nodes += [n for n in group.nodes if n not in inside]
            main.made |= group.made
            for t, axes in group.dims.items():
                main.dims.setdefault(t, tuple(None if a is None else join.same[a] for a in axes))
            for t in group.made:
                self.group_of[t] = main

    def start(self, node: Node, pattern: Pattern) -> None:
        """A new group of one node."""
        axes = {label: _Axis(pattern.sizes[label]) for label in sorted(pattern.space)}
        group = _Group([axes[label] for label in sorted(axes)], {axes[label] for label in pattern.reduced})
        self.open[group] = self.groups[group] = None
        self.add(group, node, pattern, axes)

    def add(self, group: _Group, node: Node, pattern: Pattern, mapping: dict[int, _Axis]) -> None:
        for t, labels in zip(node.inputs, pattern.inputs, strict=True):
            if labels is not None:
                self.read(group, t, tuple(None if x is None else mapping[x] for x in labels))
        group.nodes.append(node)
        for t, labels in zip(node.outputs, pattern.outputs, strict=True):
            group.dims[t] = tuple(None if x is None else mapping[x] for x in labels)
            group.made.add(t)
            self.group_of[t] = group
        for label, axis in mapping.items():
            if axis.size is None:
                axis.size = pattern.sizes[label]

    def read(self, group: _Group, tensor: Tensor, axes: Axes) -> None:
        """Let a group read a tensor; of a view, it reads what is viewed and gets a copy of the view."""
        if tensor in group.dims:
            return
        view = tensor.op
        if view in self.at_hand:
            pattern = self.patterns[view]
            labels = pattern.inputs[0]
            assert labels is not None
            axis_of = {label: axis for label, axis in zip(pattern.outputs[0], axes, strict=True) if label is not None}
            self.read(group, view.inputs[0], tuple(None if x is None else axis_of[x] for x in labels))
            group.nodes.append(view)
        elif tensor in self.group_of:
            self.taken([tensor])
        group.dims[tensor] = axes

    # --- the result ------------------------------------------------------------------------------------------------

    def result(self) -> Fusion:
        """The groups that are worth it, in the places of their last nodes."""
        if not self.groups:
            return self.fusion(self.unit.steps)
        takers = self.takers()
        kernels: dict[Node, FusedNodes] = {}
        gone: set[Node] = set()
        place = {n: i for i, n in enumerate(s for s in self.unit.steps if isinstance(s, Node))}
        for group in self.groups:
            members = set(group.nodes)
            own = [n for n in group.nodes if n not in self.views]
            try:
                self.check_worth(group, own)
                kernel = self.kernel(group, takers, members)
            except NotFusibleError as e:
                self.reasons.update({n.name: str(e) for n in own})
                continue
            kernels[max(own, key=lambda n: place[n])] = kernel
            gone.update(own)
        inside = {view for k in kernels.values() for view in k.nodes if view in self.views}
        gone.update(v for v in self.dropped(inside, takers, gone))
        steps: list[UnitStep | FusedNodes] = []
        for step in self.unit.steps:
            if isinstance(step, Node):
                if step in kernels:
                    steps.append(kernels[step])
                    continue
                if step in gone:
                    continue
            steps.append(step)
        return self.fusion(tuple(steps))

    def fusion(self, steps: tuple[UnitStep | FusedNodes, ...]) -> Fusion:
        return Fusion(steps, self.reasons | dict.fromkeys((n.name for n in self.passed), "it is too small to gain"))

    def takers(self) -> dict[Tensor, list[object]]:
        """For each tensor, who takes it: nodes, and None for the world outside."""
        out: dict[Tensor, list[object]] = {}
        for step in self.unit.steps:
            for t in _taken_by(step):
                out.setdefault(t, []).append(step if isinstance(step, Node) else None)
        for _, t in self.unit.fetches:
            out.setdefault(t, []).append(None)
        return out

    def dropped(self, inside: set[Node], takers: dict[Tensor, list[object]], gone: set[Node]) -> list[Node]:
        """Views of which kernels have copies and that nobody else takes."""
        out: list[Node] = []
        left = set(gone)
        for view in sorted(inside, key=lambda n: n.index, reverse=True):
            if all(t is not None and t in left for t in takers.get(view.outputs[0], ())):
                out.append(view)
                left.add(view)
        return out

    def check_worth(self, group: _Group, own: Sequence[Node]) -> None:
        if len(own) < 2 and own[0].type not in _LAST_AXIS:
            raise NotFusibleError("nothing to fuse it with")
        biggest = max(size(t) for n in own for t in (*n.inputs, *n.outputs) if t.dims is not None)
        unknown = any(t.dims is None or None in t.dims for n in own for t in n.outputs)
        if not self.small and biggest < SMALL and not unknown:
            raise NotFusibleError("it is too small to gain")

    def kernel(self, group: _Group, takers: dict[Tensor, list[object]], members: set[Node]) -> FusedNodes:
        """The kernel of a finished group."""
        number = {axis: i for i, axis in enumerate(group.space)}
        outputs = [
            t for n in group.nodes if n not in self.views for t in n.outputs
            if any(taker not in members or taker in self.views for taker in takers.get(t, ()))
        ]  # fmt: skip
        if not outputs:
            raise NotFusibleError("nobody takes its results")
        axes_of = {t: tuple(None if a is None else number[a] for a in axes) for t, axes in group.dims.items()}
        reduced = tuple(a in group.reduced for a in group.space)
        sizes = tuple(a.size for a in group.space)
        kernel = _kernel(group.nodes, outputs, axes_of, reduced, sizes)
        if len(kernel.inputs) + len(outputs) > MOST_ARRAYS:
            raise NotFusibleError("too many tensors")
        seen = {x for axes in kernel.input_axes for x in axes}
        if any(i not in seen and d is None for i, d in enumerate(sizes)):
            raise NotFusibleError("a size is known to nobody")
        return kernel


def _kernel(
    nodes: Sequence[Node],
    outputs: Sequence[Tensor],
    axes_of: Mapping[Tensor, Labels],
    reduced: tuple[bool, ...],
    sizes: tuple[int | None, ...],
) -> FusedNodes:
    """Write nodes as one kernel that gives `outputs`."""
    builder = LoopsBuilder(reduced)
    values: dict[Tensor, int] = {}
    inputs: list[Tensor] = []
    others: list[Tensor] = []
    for node in nodes:
        operands = []
        for t, own in zip(node.inputs, pattern_of(node).inputs, strict=True):
            if own is None:
                others.append(t)
                continue
            if t not in values:
                constant = _number(t)
                if constant is not None:
                    values[t] = builder.constant(constant, t.dtype.base)
                else:
                    values[t] = builder.load(len(inputs), t.dtype.base, [x for x in axes_of[t] if x is not None])
                    inputs.append(t)
            operands.append(values[t])
        for t, value in zip(node.outputs, rule_of(node)(builder, node, operands), strict=True):
            values[t] = value
    for t in outputs:
        axes = [x for x in axes_of[t] if x is not None]
        if axes != sorted(axes):
            raise NotFusibleError("its axes are in another order")
        builder.store(values[t], axes)
    loops, parts = builder.finish()
    ignored = tuple(t for t in dict.fromkeys(others) if t.op.type != "Const" and t not in inputs)
    return FusedNodes(
        tuple(nodes), tuple(inputs), ignored, tuple(outputs), loops, parts, tuple(axes_of[t] for t in inputs),
        tuple(axes_of[t] for t in outputs), {t: axes_of[t] for n in nodes for t in (*n.inputs, *n.outputs) if t in axes_of},
        reduced, sizes,
    )  # fmt: skip


def kernel_of(group: FusedNodes, nodes: Sequence[Node], output: Tensor) -> FusedNodes:
    """The kernel of the first few of a group's nodes, giving one tensor: to find out which node is wrong."""
    return _kernel(nodes, [output], group.axes_of, group.reduced, group.sizes)


def _taken_by(step: UnitStep) -> Iterable[Tensor]:
    """The tensors that a step takes."""
    if isinstance(step, Node):
        return step.inputs
    if isinstance(step, SendTensor):
        return () if step.tensor is None else (step.tensor,)
    if isinstance(step, RunGuarded):
        return step.node.inputs
    if isinstance(step, BeginLoop):
        return [merge.inputs[0] for merge in step.merges]
    if isinstance(step, LeaveUnless):
        return (step.condition,)
    return step.nexts if isinstance(step, EndLoop) else ()


def _number(tensor: Tensor) -> bool | int | float | None:
    """The number that a tensor always is, if it is a constant of one element."""
    return number_of(tensor.op.attrs["value"]) if tensor.op.type == "Const" else None


def _loaded(builder: LoopsBuilder, node: Node, pattern: Pattern) -> list[int]:
    """Values of a node's inputs when it stands alone."""
    out = []
    for i, (t, labels) in enumerate(zip(node.inputs, pattern.inputs, strict=True)):
        if labels is not None:
            number = _number(t)
            axes = [x for x in labels if x is not None]
            out.append(
                builder.load(i, t.dtype.base, axes) if number is None else builder.constant(number, t.dtype.base)
            )
    return out


def fuse(unit: Unit, *, small: bool = False) -> Fusion:
    """Decide which nodes become one kernel.

    Args:
        unit: what one device runs.
        small: fuse what is too small to gain, too.

    Guarantees: every node's value is made before anybody takes it; sends, receives, stateful nodes and all other steps keep
    their order; a fused node's value exists outside its kernel only if somebody there takes it.
    """
    fuser = _Fuser(unit, small=small)
    fuser.walk()
    return fuser.result()


__all__ = ["FusedNodes", "Fusion", "Pattern", "fuse", "kernel_of", "pattern_of"]
