"""Lowers a fusion group to loop IR: its nodes, one after the other, over the axes of their common iteration space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from ...graph.core.dtypes import DType, float32, int64
from ...graph.core.graph import Node, Tensor
from ...graph.core.places import Places
from ...graph.ops.nn.conv_geometry import layout
from ..ir.fused_kernel import Assumption, FusedKernel
from ..ir.index_maps import RANDOM_OPS, AxisMap, IndexMaps, ShapeAssumption, index_maps_of
from ..ir.loop_nest import ADD, LoopNestBuilder, NotFusibleError
from ..ir.windows import WINDOW_OPS, SlidingWindow
from .op_rules import constant_of, rule_of
from .tracer import Symbol, SymbolicLoops, SymbolicMath
from .window_loops import WINDOW_LOOPS, WindowLoops


def write_kernel(
    nodes: Sequence[Node],
    outputs: Sequence[Tensor],
    axes_of: Mapping[Tensor, AxisMap],
    reduced: tuple[bool, ...],
    sizes: tuple[int | None, ...],
    patterns: Mapping[Node, IndexMaps] | None = None,
) -> FusedKernel:
    """Lower nodes to one kernel.

    Args:
        nodes: the nodes, in topological order.
        outputs: the tensors that the kernel stores.
        axes_of: the space's axis of each dimension of each tensor of the nodes; None: of size 1.
        reduced, sizes: of each axis of the space.
        patterns: the nodes' index maps, where they are known.

    Raises:
        NotFusibleError: these nodes together have no loop nest.
    """
    writer = _Writer(axes_of, reduced, patterns or {})
    for node in nodes:
        writer.node(node)
    for t in outputs:
        writer.output(t, alone=len(outputs) == 1)
    return writer.kernel(nodes, outputs, sizes)


def kernel_of(group: FusedKernel, nodes: Sequence[Node], output: Tensor) -> FusedKernel:
    """The kernel of a prefix of a group's nodes with one output, to find a node with a wrong result."""
    return write_kernel([n for n in nodes if n.type != "Shape"], [output], group.axes_of, group.reduced, group.sizes)


def write_alone(node: Node, pattern: IndexMaps) -> LoopNestBuilder:
    """Lower a single node, to find out whether it has a loop nest before it joins others."""
    tensors = zip((*node.inputs, *node.outputs), (*pattern.inputs, *pattern.outputs), strict=True)
    axes_of = {t: labels for t, labels in tensors if labels is not None}
    reduced = tuple(i in pattern.reduced for i in range(max(pattern.space, default=-1) + 1))
    writer = _Writer(axes_of, reduced, {node: pattern})
    writer.node(node)
    return writer.builder


def image_axes(image: Tensor) -> AxisMap:
    """The dimensions of an image, or of a result like one, that are not of size 1."""
    return tuple(None if d == 1 else i for i, d in enumerate(image.dims or ()))


def leaves_of(
    image: Tensor, makers: Mapping[Tensor, Node], pattern_of: Callable[[Node], IndexMaps]
) -> Iterator[tuple[Tensor, AxisMap]]:
    """What an image is computed from, and which of its dimensions each of theirs is.

    Args:
        makers: the tensors that are computed, and their nodes. pattern_of: gives the index maps of these nodes.
    """
    todo = [(image, image_axes(image))]
    while todo:
        t, axes = todo.pop()
        if t not in makers:
            yield t, axes
            continue
        pattern = pattern_of(makers[t])
        axis = dict(zip(pattern.outputs[0], axes, strict=True))
        for x, labels in pattern.data_of(makers[t]):
            todo.append((x, tuple(None if label is None else axis[label] for label in labels)))


class _Writer:
    """A partly lowered kernel.

    Attributes:
        values: each tensor loaded or computed -> its value's number.
        others: inputs of the nodes that hold no data, such as shapes.
        tables: (gathered table, axes of its rows), or (tensor, its places) for a moved read -> the input's number.
        moves: the places of the inputs that are read at other places, by the inputs' numbers.
        windows: what inputs are read through.
        at_taps: the tensors that are computed at each tap of a window, and their nodes.
        rows: for a table with scattered adds: the value with the row index, the input of that value, and the number of rows.
        run: the nodes, and the shapes that other steps need and the kernel knows.
    """

    def __init__(
        self, axes_of: Mapping[Tensor, AxisMap], reduced: tuple[bool, ...], patterns: Mapping[Node, IndexMaps]
    ) -> None:
        self.axes_of = axes_of
        self.patterns = patterns
        self.reduced = reduced
        self.builder = LoopNestBuilder(reduced)
        self.values: dict[Tensor, int] = {}
        self.inputs: list[Tensor] = []
        self.input_axes: list[AxisMap] = []
        self.others: list[Tensor] = []
        self.assumed: list[tuple[ShapeAssumption, AxisMap]] = []
        self.ranges: list[tuple[int, int]] = []
        self.tables: dict[tuple[Tensor, AxisMap | Places], int] = {}
        self.moves: dict[int, Places] = {}
        self.windows: list[SlidingWindow] = []
        self.at_taps: dict[Tensor, Node] = {}
        self.lookups: list[tuple[int, int]] = []
        self.rows: dict[Tensor, tuple[int, int, Tensor]] = {}
        self.run: dict[Node, None] = {}

    def node(self, node: Node) -> None:
        pattern, builder = self.pattern(node), self.builder
        if node.outputs[0] not in self.axes_of:
            self.run[node], self.at_taps[node.outputs[0]] = None, node
            return
        for a in pattern.assumed:
            self.assume(a, self.axes_in_space(a.labels, node, pattern))
        self.run[node] = None
        operands = self.operands(node, pattern)
        for axis in self.axes_in_space(pattern.positions, node, pattern):
            for i in pattern.checked:
                assert axis is not None
                self.ranges.append((self.loaded(self.values[node.inputs[i]]), axis))
            operands.append(builder.constant(0, int64) if axis is None else builder.position(axis, int64))
        if pattern.row is not None:
            operands.append(self.looked_up(node, operands[0], self.axes_in_space(pattern.row, node, pattern)))
        if pattern.moved:
            operands = [self.moved(node, pattern, operands)]
        if pattern.window is not None:
            operands = [self.seen_through(node, pattern.window, pattern)]
        if pattern.drawn is not None:
            (key, draw), dtype = operands, node.outputs[0].dtype
            drawn = dtype if dtype.size >= 4 else float32
            axes = _in_order(self.axes_in_space(pattern.drawn, node, pattern))
            operands.append(builder.random(RANDOM_OPS[node.type][0], drawn, key, draw, axes))
        if pattern.scattered:
            _, rows, count = node.inputs
            along = [x for x in self.axes_of[rows] if x is not None]
            placed = self.loaded(operands[1])
            if along != list(range(len(along))):
                raise NotFusibleError("its axes are in another order")
            self.rows[node.outputs[0]] = operands[1], placed, count
        made = rule_of(node, pattern.is_view)(node, *[Symbol(builder, number) for number in operands])
        values = made if isinstance(made, tuple) else (made,)
        self.values.update(zip(node.outputs, [v.number for v in values], strict=True))

    def pattern(self, node: Node) -> IndexMaps:
        return self.patterns.get(node) or index_maps_of(node)

    def axes_in_space(self, labels: AxisMap, node: Node, pattern: IndexMaps) -> AxisMap:
        """A node's labels mapped to axes of the space."""
        axis: dict[int | None, int | None] = {}
        if pattern.window is not None:  # labels that no tensor has
            axis = dict(zip(sorted(pattern.reduced), (a for a, r in enumerate(self.reduced) if r), strict=False))
        for t, own in zip((*node.inputs, *node.outputs), (*pattern.inputs, *pattern.outputs), strict=True):
            if own is not None:
                axis.update(zip(own, self.axes_of[t], strict=True))
        return tuple(None if x is None else axis[x] for x in labels)

    def assume(self, what: ShapeAssumption, lies: AxisMap) -> None:
        """Record a node's assumptions about the value of a shape, unless the kernel knows it."""
        maker = what.tensor.op
        if what.over is None and maker.type == "Shape":
            (of,) = maker.inputs
            if self.axes_of.get(of) == lies and of in self.values:
                self.run[maker] = None  # for the references: the kernel knows that it holds
                return
        if maker.type != "Const":
            self.assumed.append((what, lies))

    def operands(self, node: Node, pattern: IndexMaps) -> list[int]:
        """The values of a node's inputs that hold data."""
        out = []
        for i, (t, own) in enumerate(zip(node.inputs, pattern.inputs, strict=True)):
            if own is not None:
                out.append(self.value(t))
            elif pattern.window is not None:
                self.others += [t] * (WINDOW_OPS[node.type].inputs[i] == "sizes")
            elif i >= len(pattern.moved) and (i or pattern.row is None):  # not the gathered table
                self.others.append(t)
        return out

    def value(self, tensor: Tensor) -> int:
        """A tensor's value; loads it if no earlier node has computed it."""
        if tensor not in self.values:
            constant, dtype = constant_of(tensor), tensor.dtype.base
            if constant is not None:
                self.values[tensor] = self.builder.constant(constant, dtype)
            else:
                axes = self.axes_of[tensor]
                self.values[tensor] = self.builder.load(len(self.inputs), dtype, [x for x in axes if x is not None])
                self.inputs.append(tensor)
                self.input_axes.append(axes)
        return self.values[tensor]

    def loaded(self, value: int) -> int:
        """The position of the input that holds a value, which the launcher will check."""
        number = self.builder.load_of(value)
        if number is None:
            raise NotFusibleError("its indices are made in the same kernel")
        return number

    def looked_up(self, node: Node, place: int, row: AxisMap) -> int:
        places, along = self.loaded(place), _in_order(row)
        table = self.table(node.inputs[0], row, row)
        self.lookups.append((table, places))
        return self.builder.gather(table, node.outputs[0].dtype, place, along)

    def moved(self, node: Node, pattern: IndexMaps, filler: Sequence[int]) -> int:
        """The element of a node that moves elements: from the first input that has one there, else the `filler`, or 0."""
        loops = SymbolicLoops(self.builder)
        value = Symbol(self.builder, filler[0]) if filler else None
        for tensor, own in reversed([*zip(node.inputs, pattern.moved, strict=False)]):
            axes = self.axes_in_space(tuple(p.axis for p in own), node, pattern)
            places = tuple(replace(p, axis=axis) for p, axis in zip(own, axes, strict=True))
            number = self.table(tensor, places, tuple(p.axis if p.is_whole else None for p in places))
            self.moves[number] = places
            row, along, inside = _row_at(loops, number, places)
            value, other = loops.gather(number, tensor.dtype.base, row, along), value
            if inside is not None and other is not None:
                value = SymbolicMath.where(inside, value, other)
        assert value is not None
        return value.number

    def seen_through(self, node: Node, labels: AxisMap, pattern: IndexMaps) -> int:
        """The element of a node over windows."""
        op, axes = WINDOW_OPS[node.type], self.axes_in_space(labels, node, pattern)
        (window, multiplier), data_format = op.window(node), layout(node.attrs)
        tables, read = {}, []
        inputs = [i for i, what in enumerate(op.inputs) if what not in ("", "sizes")]
        for i in inputs:
            for t, own in leaves_of(node.inputs[i], self.at_taps, self.pattern):
                if node.inputs[i] not in self.at_taps or own == image_axes(node.inputs[i]) and constant_of(t) is None:
                    tables[i, t] = self.table(t, ())
                    read.append((op.inputs[i], tables[i, t]))
        over = "result" if op.gives == "filter" else op.gives
        found = SlidingWindow(window, data_format, multiplier, tuple(read), over, axes[:4])
        if found not in self.windows:
            self.windows.append(found)
        number, data = self.windows.index(found), node.inputs[inputs[-1]].dtype.base

        def element(i: int, dtype: DType, row: Symbol, along: Sequence[int], t: Tensor | None = None) -> Symbol:
            """Of an input, or of what it is computed from, the element in this row of the table that images are."""
            t = node.inputs[i] if t is None else t
            maker = self.at_taps.get(t)
            if maker is not None:
                data = self.pattern(maker).data_of(maker)
                values = [element(i, dtype, row, along, x) for x, _ in data]
                made = rule_of(maker, self.pattern(maker).is_view)(maker, *values)
                assert isinstance(made, Symbol)
                return made
            if (i, t) not in tables:
                return Symbol(self.builder, self.value(t))
            return loops.gather(tables[i, t], t.dtype.base, row, along)

        computed = {i for i in inputs if node.inputs[i] in self.at_taps}
        loops = WindowLoops(self.builder, window, data_format, axes, element, computed, number, multiplier)
        return WINDOW_LOOPS[node.type](loops, data).number

    def table(self, tensor: Tensor, places: AxisMap | Places, axes: AxisMap = ()) -> int:
        """The number of an input that is read at other places than the current one; these `axes` of it lie as they are."""
        number = self.tables.setdefault((tensor, places), len(self.inputs))
        if number == len(self.inputs):
            self.inputs.append(tensor)
            self.input_axes.append(axes)
        return number

    def output(self, tensor: Tensor, *, alone: bool) -> None:
        """Store a tensor. `alone`: nothing else is stored."""
        if tensor in self.at_taps:
            raise NotFusibleError("it is computed at the taps of a window only")
        axes = _in_order(self.axes_of[tensor])
        if tensor not in self.rows:
            self.builder.store(self.values[tensor], axes)
        elif alone:
            self.builder.store(self.values[tensor], axes, self.rows[tensor][0], ADD)
        else:
            raise NotFusibleError("its sums have other consumers")

    def kernel(self, nodes: Sequence[Node], outputs: Sequence[Tensor], sizes: tuple[int | None, ...]) -> FusedKernel:
        loops, parts = self.builder.finish()
        looked_at = {a.tensor for a, _ in self.assumed} | {count for *_, count in self.rows.values()}
        shapes = tuple(
            t for t in dict.fromkeys(self.others) if t in looked_at or not (t.op.type == "Const" or t.op in self.run)
        )
        assumed = dict.fromkeys(Assumption(shapes.index(a.tensor), axes, a.over) for a, axes in self.assumed)
        taken = (t for n in nodes for t in (*n.inputs, *n.outputs))
        return FusedKernel(
            nodes=tuple(self.run),
            inputs=tuple(self.inputs),
            shapes=shapes,
            outputs=tuple(outputs),
            loops=loops,
            parts=parts,
            input_axes=tuple(self.input_axes),
            output_axes=tuple(self.axes_of[t] for t in outputs),
            axes_of={t: self.axes_of[t] for t in taken if t in self.axes_of},
            reduced=self.reduced,
            sizes=sizes,
            assumed=tuple(assumed),
            ranges=tuple(dict.fromkeys(self.ranges)),
            moves=tuple(self.moves.items()),
            windows=tuple(self.windows),
            lookups=tuple(dict.fromkeys(self.lookups)),
            tables=tuple(
                (outputs.index(t), placed, shapes.index(count))
                for t, (_, placed, count) in self.rows.items()
                if t in outputs
            ),
        )


def _row_at(loops: SymbolicLoops, number: int, places: Places) -> tuple[Symbol, list[int], Symbol | None]:
    """The places in input `number` as a row of a table, -1 for none; the axes along which rows lie; whether there is such a row.

    The last dimensions, as far as they lie in the order of memory, are rows; the others are one row number.
    """
    along: list[int] = []
    first = [*enumerate(places)]
    while first and (p := first[-1][1]).is_whole and (p.axis is None or p.axis < min(along, default=p.axis + 1)):
        along += [] if p.axis is None else [p.axis]
        first.pop()
    row, inside = loops.constant(0, int64), None
    for d, p in first:
        at = loops.constant(0, int64) if p.axis is None else loops.position(p.axis)
        size = loops.size(f"extent{number}_{d}")
        if not p.is_whole:
            at = (at if p.step == 1 else at * p.step) + loops.size(f"begin{number}_{d}")
        if p.is_masked:
            here = (at >= 0) & (at < size)
            inside = here if inside is None else inside & here
        row = row * size + at if d else at
    return row if inside is None else SymbolicMath.where(inside, row, -1), along, inside


def _in_order(axes: AxisMap) -> list[int]:
    """The axes of the space among these. NotFusibleError: they are in another order than there."""
    found = [x for x in axes if x is not None]
    if found != sorted(found):
        raise NotFusibleError("its axes are in another order")
    return found
