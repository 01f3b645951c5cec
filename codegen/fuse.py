"""Fusion: a unit's steps with kernels among them.

`groups` finds the nodes that can be one kernel; here the groups that are worth it are written in loop IR (`loops`) and put into
the places of their last nodes. Decided here are also a kernel's outputs (what somebody outside takes), and which views are left.

What sizes are equal is partly only known when the graph runs. Where a static size is unknown, fusion assumes that no
broadcasting happens along it (`axes`); the kernel's launcher compares the real shapes with that, by way of `sizes_of`, and runs
the nodes one by one on NumPy when they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..graph.dtypes import int64
from ..graph.node import Node, Tensor
from ..graph.opdef import size
from .axes import EXTREMES, LAST_AXIS, LOOKUPS, Assumed, Labels, Pattern, pattern_of
from .drawing import with_streams
from .fusible import NotFusibleError
from .groups import SMALL, Group, Walk, constant_of, drawn_number
from .loops import ADD, Loops, LoopsBuilder
from .recompute import Again, computed_again
from .trace import rule_of
from .unit import RunGuarded, Unit, UnitStep

ALONE = (
    1 << 16
)  # elements from which one operation is a kernel: its result lies in kept memory, and threads share the work
"""One that chooses is from SMALL: NumPy takes 4 ns for each element of a `where`, which jumps, and a kernel 0.1 ns."""
BATCH = 64  # what a size that only the running graph knows counts as
MOST_ARRAYS = 40  # inputs and outputs of one kernel; more are seldom of one loop, and calling it would take long


@dataclass(frozen=True, slots=True)
class Assumption:
    """What a kernel takes for granted of the value of one of its `shapes`.

    Attributes:
        position: which of them; a vector of integers.
        axes: the space's axis of each dimension of a tensor; None: of size 1.
        over: None: the vector holds that tensor's sizes. Else it holds dimensions of that tensor, and all that are not among
            these have size 1.
    """

    position: int
    axes: Labels
    over: frozenset[int] | None

    def holds(self, value: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether it is so, for axes of these sizes."""
        dims = [1 if a is None else sizes[a] for a in self.axes]
        if self.over is None:
            return len(value) == len(dims) and all(v in (d, -1) for v, d in zip(value, dims, strict=True))
        return all(0 <= v < len(dims) and (v in self.over or dims[v] == 1) for v in value)


@dataclass(frozen=True, slots=True)
class FusedNodes:
    """Nodes that one kernel runs: a step of a unit.

    Attributes:
        nodes: in an order in which they can run one by one; among them, shapes that others need and the kernel knows.
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
        assumed: what must hold of the values of `shapes`.
        ranges: (input, axis): its numbers must be positions along that axis.
        lookups: (input, input): a table, or a variable's handle, and what holds numbers of its rows. Of the table's dimensions
            `input_axes` leaves the first one out.
        checks: tensors that decide, with what is in `after`, whether the nodes are dead: all of them are, or none.
        after: nodes, and numbers of channels, that the nodes wait for and that may be dead.
        is_guarded: whether the nodes may be dead.
        tables: (output, input, shape): the output is a table, the input says into which of its rows something is added, and the value
            of that one of the `shapes` is how many rows it has. Such an output is the only one.
        overwrites: (input, output): the output may lie where the input was, which dies with the kernel (`overwriting`).
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
    assumed: tuple[Assumption, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()
    checks: tuple[Tensor, ...] = ()
    after: tuple[Node | int, ...] = ()
    is_guarded: bool = False
    overwrites: tuple[tuple[int, int], ...] = ()
    lookups: tuple[tuple[int, int], ...] = ()
    tables: tuple[tuple[int, int, int], ...] = ()

    def sizes_for(self, shapes: Sequence[tuple[int, ...]], values: Sequence[Sequence[int]]) -> list[int] | None:
        """Sizes of the space's axes for inputs of these shapes; None when they are not as fusion assumed.

        `values`: what the vectors hold that `assumed` speaks of, in that order.
        """
        sizes = list(self.sizes)
        seen = [False] * len(sizes)
        tables = {table for table, _ in self.lookups}
        for i, (shape, axes) in enumerate(zip(shapes, self.input_axes, strict=True)):
            if i in tables:
                shape = shape[1:]
            if len(shape) != len(axes):
                return None
            for d, axis in zip(shape, axes, strict=True):
                if axis is None:
                    if d != 1:
                        return None
                elif sizes[axis] is None or not seen[axis] and sizes[axis] == d:
                    sizes[axis] = d
                    seen[axis] = True
                elif sizes[axis] != d:
                    return None
        if None in sizes:
            self._sized_by(values, sizes)
        if None in sizes:
            return None
        known: list[int] = sizes  # type: ignore[assignment]
        if not all(a.holds(value, known) for a, value in zip(self.assumed, values, strict=True)):
            return None
        return known

    def _sized_by(self, values: Sequence[Sequence[int]], sizes: list[int | None]) -> None:
        """Put in sizes that only shapes which were given tell."""
        for a, value in zip(self.assumed, values, strict=True):
            if a.over is None and len(value) == len(a.axes):
                for axis, size in zip(a.axes, value, strict=True):
                    if axis is not None and sizes[axis] is None and size >= 0:
                        sizes[axis] = size


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


class _Result:
    """The kernels of the groups that a walk has formed."""

    def __init__(self, walk: Walk, lone: bool, again: Again) -> None:
        self.walk = walk
        self.again = again
        self.lone = lone
        self.unit = walk.unit
        self.views = walk.views
        self.reasons = walk.reasons
        self.home: dict[Node, Group] = {}

    def result(self) -> Fusion:
        """The groups that are worth it, in the places of their last nodes."""
        if not self.walk.groups:
            return self.fusion(self.unit.steps)
        takers = self.walk.takers
        kernels: dict[Node, FusedNodes] = {}
        gone: set[Node] = set()
        place = {_node_of(step): i for i, step in enumerate(self.unit.steps)}
        self.home = {n: g for g in self.walk.groups for n in self.own(g)}
        for group in self.walk.groups:
            own = self.own(group)
            try:
                self.check_worth(group, own)
                kernel = self.kernel(group, takers, set(group.nodes))
            except NotFusibleError as e:
                if group in self.again.nodes:  # its nodes need what nobody would write
                    self.again.undo()
                    return self.result()
                self.reasons.update({n.name: str(e) for n in own})
                continue
            kernels[max((n for n in own if n not in group.lifted), key=lambda n: place[n])] = kernel
            gone.update(own)
        inside = {view for k in kernels.values() for view in k.nodes if view in self.views}
        # A kernel that looks something up takes it from outside, whoever else has a copy.
        inside -= {t.op for k in kernels.values() for t in (*k.inputs, *k.shapes)}
        gone.update(self.dropped(sorted(inside, key=place.__getitem__), takers, gone))
        gone.update(self.unasked(kernels.values(), takers, gone))
        steps: list[UnitStep | FusedNodes] = []
        for step in self.unit.steps:
            node = _node_of(step)
            if node in kernels:
                steps.append(kernels[node])
            elif node not in gone:
                steps.append(step)
        return self.fusion(tuple(steps))

    def own(self, group: Group) -> list[Node]:
        """The nodes that a group runs for everybody."""
        copies = self.again.of(group)
        return [n for n in group.nodes if n not in self.views and n not in copies]

    def fusion(self, steps: tuple[UnitStep | FusedNodes, ...]) -> Fusion:
        return Fusion(
            steps, self.reasons | dict.fromkeys((n.name for n in self.walk.passed), "it is too small to gain")
        )

    def dropped(self, inside: Sequence[Node], takers: dict[Tensor, list[object]], gone: set[Node]) -> list[Node]:
        """Of views, in the order of the unit, of which kernels have copies: those that nobody else takes."""
        out: list[Node] = []
        left = set(gone)
        for view in reversed(inside):
            if all(t is not None and t in left for t in takers.get(view.outputs[0], ())):
                out.append(view)
                left.add(view)
        return out

    def unasked(self, kernels: Iterable[FusedNodes], takers: dict[Tensor, list[object]], gone: set[Node]) -> set[Node]:
        """Shapes that only kernels take which know them."""
        found = {n for k in kernels for n in k.nodes if n.type == "Shape"}
        found -= {t.op for k in kernels for t in (*k.inputs, *k.shapes)}
        return {n for n in found if all(isinstance(t, Node) and t in gone for t in takers.get(n.outputs[0], ()))}

    def check_worth(self, group: Group, own: Sequence[Node]) -> None:
        if len(own) < 2 and not self.lone and not self.is_worth_alone(own[0]):
            raise NotFusibleError("nothing to fuse it with")
        if all(n.type in LOOKUPS or self.walk.patterns[n].is_view for n in own):
            raise NotFusibleError("nothing to fuse it with")  # NumPy copies rows as fast
        tensors = (t for n in own for t in (*(n.inputs[1:] if n.type in LOOKUPS else n.inputs), *n.outputs))
        biggest = max(size(t) for t in tensors if t.dims is not None)
        unknown = any(t.dims is None or None in t.dims for n in own for t in n.outputs)
        drawn = any(self.walk.patterns[n].drawn is not None for n in own)
        if not self.walk.small and biggest < SMALL and not (unknown or drawn):
            raise NotFusibleError("it is too small to gain")

    def is_worth_alone(self, node: Node) -> bool:
        """Whether it is large, NumPy takes long or several passes for it, or goes along memory in strides."""
        pattern = self.walk.patterns[node]
        elements = math.prod(BATCH if d is None else d for d in pattern.sizes.values())
        quick = node not in self.walk.choosing and pattern.scanned is None
        if elements >= (ALONE if quick else SMALL):
            return True
        if pattern.drawn is not None or pattern.scattered:
            return True  # NumPy's philox takes a hundred times as long
        across = node.type in EXTREMES and pattern.position != max(pattern.sizes)
        return across or node.type in LAST_AXIS or node.type == "OneHot"

    def kernel(self, group: Group, takers: dict[Tensor, list[object]], members: set[Node]) -> FusedNodes:
        """The kernel of a finished group."""
        number = {axis: i for i, axis in enumerate(group.space)}
        outputs = [
            t for n in self.own(group) for t in n.outputs
            if t in self.again.lent or any(self.is_outside(taker, t, members) for taker in takers.get(t, ()))
        ]  # fmt: skip
        if not outputs:
            raise NotFusibleError("nobody takes its results")
        axes_of = {t: tuple(None if a is None else number[a] for a in axes) for t, axes in group.dims.items()}
        reduced = tuple(a in group.reduced for a in group.space)
        sizes = tuple(a.size for a in group.space)
        kernel = _kernel(group.nodes, outputs, axes_of, reduced, sizes)
        if group.sources:
            kernel = self.guarded(kernel)
        if len(kernel.inputs) + len(outputs) > MOST_ARRAYS:
            raise NotFusibleError("too many tensors")
        seen = {x for axes in kernel.input_axes for x in axes}
        seen |= {x for a in kernel.assumed if a.over is None for x in a.axes}
        if any(i not in seen and d is None for i, d in enumerate(sizes)):
            raise NotFusibleError("a size is known to nobody")
        return kernel

    def is_outside(self, taker: object, tensor: Tensor, members: set[Node]) -> bool:
        """Whether somebody takes a tensor from the group with these nodes, and has no copy of its own."""
        if taker in members and taker not in self.views:
            return False
        return not (isinstance(taker, Node) and tensor.op in self.again.of(self.home.get(taker)))

    def guarded(self, kernel: FusedNodes) -> FusedNodes:
        """The kernel with what tells whether its nodes are dead."""
        made = {t for n in kernel.nodes for t in n.outputs}
        taken = dict.fromkeys(t for n in kernel.nodes for t in n.inputs if t not in made)
        # A plain constant is always there, and may have been folded away together with its slot.
        checks = tuple(t for t in taken if t.op.type != "Const" or t.op in self.walk.guarded)
        after = dict.fromkeys(a for n in kernel.nodes for a in self.walk.guarded.get(n, ()))
        return replace(kernel, checks=checks, after=tuple(after), is_guarded=True)


def _node_of(step: UnitStep) -> Node | None:
    """The node that a step runs, if it runs one."""
    return step if isinstance(step, Node) else step.node if isinstance(step, RunGuarded) else None


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
    input_axes: list[Labels] = []
    others: list[Tensor] = []
    assumed: list[tuple[Assumed, Labels]] = []
    ranges: list[tuple[int, int]] = []
    tables: dict[tuple[Tensor, Labels], int] = {}  # and the axes of a row -> number of the input
    lookups: list[tuple[int, int]] = []
    rows: dict[
        Tensor, tuple[int, int, Tensor]
    ] = {}  # table -> the value with its rows' numbers, the input, and how many there are
    run: dict[Node, None] = {}
    for node in nodes:
        operands = []
        pattern = pattern_of(node)
        for a in pattern.assumed:
            lies, maker = _in_space(a.labels, node, pattern, axes_of), a.tensor.op
            if (
                a.over is None
                and maker.type == "Shape"
                and axes_of.get(maker.inputs[0]) == lies
                and maker.inputs[0] in values
            ):
                run[maker] = None  # for the references: the kernel knows that it is so
            elif not _is_constant(a.tensor):
                assumed.append((a, lies))
        run[node] = None
        for i, (t, own) in enumerate(zip(node.inputs, pattern.inputs, strict=True)):
            if own is None:
                if i or pattern.row is None:
                    others.append(t)
                continue
            if t not in values:
                constant = constant_of(t)
                if constant is not None:
                    values[t] = builder.constant(constant, t.dtype.base)
                else:
                    values[t] = builder.load(len(inputs), t.dtype.base, [x for x in axes_of[t] if x is not None])
                    inputs.append(t)
                    input_axes.append(axes_of[t])
            operands.append(values[t])
        if pattern.position is not None:
            (axis,) = _in_space((pattern.position,), node, pattern, axes_of)
            assert axis is not None
            for i in pattern.checked:
                loaded = builder.load_of(values[node.inputs[i]])
                if loaded is None:
                    raise NotFusibleError("what it checks is made in the kernel")
                ranges.append((loaded, axis))
            operands.append(builder.position(axis, int64))
        if pattern.row is not None:
            row = _in_space(pattern.row, node, pattern, axes_of)
            along = [x for x in row if x is not None]
            places = builder.load_of(operands[0])
            if places is None:
                raise NotFusibleError("what it checks is made in the kernel")
            if along != sorted(along):
                raise NotFusibleError("its axes are in another order")
            table = tables.setdefault((node.inputs[0], row), len(inputs))
            if table == len(inputs):
                inputs.append(node.inputs[0])
                input_axes.append(row)
            lookups.append((table, places))
            operands.append(builder.gather(table, node.outputs[0].dtype, operands[0], along))
        if pattern.drawn is not None:
            along = [x for x in _in_space(pattern.drawn, node, pattern, axes_of) if x is not None]
            operands.append(drawn_number(builder, node, operands, along))
        if pattern.scattered:
            rows[node.outputs[0]] = (*_placed(builder, operands[1], axes_of[node.inputs[1]]), node.inputs[2])
        for t, value in zip(node.outputs, rule_of(node, pattern.is_view)(builder, node, operands), strict=True):
            values[t] = value
    for t in outputs:
        axes = [x for x in axes_of[t] if x is not None]
        if axes != sorted(axes):
            raise NotFusibleError("its axes are in another order")
        if t in rows and len(outputs) > 1:
            raise NotFusibleError("others take what it adds up")
        builder.store(values[t], axes, *((rows[t][0], ADD) if t in rows else ()))
    loops, parts = builder.finish()
    looked_at = {a.tensor for a, _ in assumed} | {count for *_, count in rows.values()}
    ignored = tuple(t for t in dict.fromkeys(others) if t in looked_at or not (_is_constant(t) or t.op in run))
    facts = dict.fromkeys(Assumption(ignored.index(a.tensor), axes, a.over) for a, axes in assumed)
    return FusedNodes(
        tuple(run), tuple(inputs), ignored, tuple(outputs), loops, parts, tuple(input_axes),
        tuple(axes_of[t] for t in outputs), {t: axes_of[t] for n in nodes for t in (*n.inputs, *n.outputs) if t in axes_of},
        reduced, sizes, tuple(facts), tuple(dict.fromkeys(ranges)), lookups=tuple(dict.fromkeys(lookups)),
        tables=tuple((outputs.index(t), placed, ignored.index(count)) for t, (_, placed, count) in rows.items() if t in outputs),
    )  # fmt: skip


def _placed(builder: LoopsBuilder, number: int, lies: Labels) -> tuple[int, int]:
    """The value that says into which rows of a table something goes, and the input that it comes from."""
    placed = builder.load_of(number)
    if placed is None:
        raise NotFusibleError("what it checks is made in the kernel")
    along = [x for x in lies if x is not None]
    if along != list(range(len(along))):
        raise NotFusibleError("its axes are in another order")
    return number, placed


def _is_constant(tensor: Tensor) -> bool:
    return tensor.op.type == "Const"


def _in_space(labels: Labels, node: Node, pattern: Pattern, axes_of: Mapping[Tensor, Labels]) -> Labels:
    """A node's labels as axes of the space that it lies in."""
    axis: dict[int | None, int | None] = {}
    for t, own in (*zip(node.inputs, pattern.inputs, strict=True), *zip(node.outputs, pattern.outputs, strict=True)):
        if own is not None:
            axis.update(zip(own, axes_of[t], strict=True))
    return tuple(None if x is None else axis[x] for x in labels)


def kernel_of(group: FusedNodes, nodes: Sequence[Node], output: Tensor) -> FusedNodes:
    """The kernel of the first few of a group's nodes, giving one tensor: to find out which node is wrong."""
    return _kernel([n for n in nodes if n.type != "Shape"], [output], group.axes_of, group.reduced, group.sizes)


def fuse(
    unit: Unit,
    *,
    small: bool = False,
    lone: bool = False,
    positions: bool = True,
    again: bool = False,
    longest_scan: int = 0,
) -> Fusion:
    """Decide which nodes become one kernel.

    Args:
        unit: what one device runs.
        small: fuse what is too small to gain, too.
        lone: make a kernel of a node, too, that nothing can be fused with.
        positions: whether kernels can ask where an element is along an axis, and look rows up.
        again: let kernels compute again what takes longer to read.
        longest_scan: how long the axis of running sums may be; 0: of any length.

    Guarantees: every node's value is made before anybody takes it; sends, receives, stateful nodes and all other steps keep
    their order; a fused node's value exists outside its kernel only if somebody there takes it.
    """
    walk = Walk(with_streams(unit), small=small, positions=positions, numbers=again, longest_scan=longest_scan)
    walk.walk()
    return _Result(walk, lone, computed_again(walk) if again else Again()).result()
