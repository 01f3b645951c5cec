"""Prologue and epilogue fusion: elementwise kernels fused into a product or convolution. A dense layer becomes one kernel.

A matrix product or a convolution runs as a template (`triton_templates`). A template can compute on tiles while they are in
registers: on its operands' tiles after the load, and on its result's tile before the store. After fusion, some kernels do only
such work. This pass fuses them into the product, the *anchor*:

    the epilogue     the kernel that takes its result: bias, activation, residual, casts. A reshape may lie between. If later
                     steps also take the (reshaped) result, it becomes one more output
    the prologues    the kernels that make an operand with no other consumer, if its elements are cheap to compute repeatedly:
                     many programs load each tile of an operand

The fused kernel runs at the position of its last part. Values do not change, so a product may be computed later. But no step is
moved across a receive, which might block it, or into or out of a loop. Reductions stay separate kernels: no tile has whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...graph.core.dtypes import FLOAT8, bfloat16, float16, float32
from ...graph.core.graph import Node, Tensor
from ..ir.fused_kernel import FusedKernel, inputs_of
from ..ir.loop_nest import COSTLY, LoopNest, Store, Value
from ..ir.partition import BeginLoop, EndLoop, LeaveUnless, PartitionGraph, PartitionStep, RecvTensor
from ..ir.tile_loops import TileLoops

ANCHORS = {"MatMul": (2, 2), "BatchMatMulV2": (3, 2), "Conv2D": (4, 0), "Conv2DBackpropInput": (4, 0)}
"""Ops that others are joined to: axes of their template, and how many of the inputs may have work before them."""

FLOATS = (float32, float16, bfloat16)  # what anchors compute
STORED = (*FLOATS, *FLOAT8)  # what their operands are made from
MOST_BEFORE = 12  # values of a prologue kernel, which is computed again for each tile
_FENCES = (RecvTensor, BeginLoop, EndLoop, LeaveUnless)


@dataclass(frozen=True, slots=True)
class EpilogueKernel(FusedKernel):
    """An anchor with its prologues and epilogue as one kernel. `loops` and axes are those of the epilogue, else of a prologue.

    `inputs` are the anchor's (for an operand with a prologue: the prologue's tile input), then the further inputs of the kernels:
    first prologue, second prologue, epilogue. `shapes` are the anchor's inputs of which only the values are needed, the shape of
    the reshape, and the `shapes` of the kernels, in that order.

    Attributes:
        anchor: the product or convolution.
        before: for each operand, its prologue kernel, or None.
        reshape: the reshape between the result and the epilogue.
        behind: the epilogue kernel.
        edges: the template's work on tiles: a prologue per operand, and the epilogue.
    """

    anchor: Node = None  # type: ignore[assignment]
    before: tuple[FusedKernel | None, ...] = ()
    reshape: Node | None = None
    behind: FusedKernel | None = None
    edges: tuple[TileLoops | None, ...] = ()

    @property
    def kernels(self) -> list[FusedKernel]:
        """The kernels at its edges, in the order of `inputs`."""
        return [k for k in (*self.before, self.behind) if k is not None]

    def text(self) -> str:
        """What it computes: the work at each edge in loop IR, where input 0 is the tile."""
        count = ANCHORS[self.anchor.type][1]
        places = [f"before operand {i} of" for i in range(count)] + ["behind"]
        return "\n".join(f"{at} {self.anchor.type}: {e.loops}" for at, e in zip(places, self.edges, strict=True) if e)


def fuse_epilogues(
    unit: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]
) -> tuple[PartitionStep | FusedKernel, ...]:
    """Fuse prologue and epilogue kernels into the products of a unit's steps after fusion.

    Guarantees: as `fuse`.
    """
    if not any(isinstance(s, Node) and s.type in ANCHORS for s in steps):
        return tuple(steps)
    return _Joining(unit, steps).result()


class _Joining:
    def __init__(self, unit: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]) -> None:
        self.steps: list[PartitionStep | FusedKernel | None] = list(steps)
        self.fed = {t for _, t in unit.feeds}
        self.fetched = {t for _, t in unit.fetches}
        self.maker: dict[Tensor, int] = {}
        self.takers: dict[Tensor, list[int]] = {}
        self.fences = [0]  # before each step, the number of steps that nothing moves across
        for i, step in enumerate(steps):
            self.fences.append(self.fences[-1] + isinstance(step, _FENCES))
            if isinstance(step, FusedKernel):
                self.maker.update(dict.fromkeys(step.outputs, i))
            for t in dict.fromkeys(inputs_of(step)):
                self.takers.setdefault(t, []).append(i)

    def result(self) -> tuple[PartitionStep | FusedKernel, ...]:
        for i, step in enumerate(self.steps):
            if isinstance(step, Node) and step.type in ANCHORS and self.is_plain(step):
                self.join(i, step)
        return tuple(s for s in self.steps if s is not None)

    def is_plain(self, node: Node) -> bool:
        """Whether an anchor may be moved, and its template supports its types."""
        if any(t.dtype.is_ref for t in node.inputs) or node.outputs[0] in self.fed:
            return False
        return node.outputs[0].dtype in FLOATS

    def join(self, at: int, anchor: Node) -> None:
        """Fuse an anchor with its edges, at the position of the last of them."""
        behind, reshape, there = self.kernel_behind(at, anchor)
        before = [self.kernel_before(at, anchor, i) for i in range(ANCHORS[anchor.type][1])]
        if behind is None and not any(before):
            return
        joined = _joined(anchor, [None if b is None else b[1:] for b in before], reshape, behind)
        for place in (at, *(b[0] for b in before if b is not None)):
            self.steps[place] = None
        if reshape is not None:
            self.steps[self.steps.index(reshape)] = None
        self.steps[there] = joined

    def near(self, one: int, other: int) -> bool:
        """Whether a step may be moved from one position to another."""
        return self.fences[one] == self.fences[other]

    # --- behind ----------------------------------------------------------------------------------------------------

    def kernel_behind(self, at: int, anchor: Node) -> tuple[tuple[FusedKernel, TileLoops] | None, Node | None, int]:
        """The epilogue kernel, the reshape before it, and the kernel's position."""
        none = None, None, at
        tile, reshape = anchor.outputs[0], None
        takers = self.takers.get(tile, [])
        first = self.steps[takers[0]] if takers else None
        if isinstance(first, Node) and first.type == "Reshape" and first.inputs[0] is tile:
            # another shape of the same rows
            out = first.outputs[0]
            alone = len(takers) == 1 and tile not in self.fetched and out not in self.fed
            if not alone or anchor.type != "MatMul" or not _same_columns(tile, out):
                return none
            tile, reshape, takers = out, first, self.takers.get(out, [])
        if not takers:
            return none
        there = takers[0]
        kernel = self.steps[there]
        others = len(takers) > 1 or tile in self.fetched
        if not isinstance(kernel, FusedKernel) or isinstance(kernel, EpilogueKernel) or not self.near(at, there):
            return none
        if kernel.is_guarded:
            return none
        edge = edge_behind(kernel, tile, ANCHORS[anchor.type][0])
        if edge is None:
            return none
        if others and tile not in kernel.outputs:
            kernel, edge = _with_tile(kernel, edge, tile)
        return (kernel, edge), reshape, there

    # --- before ----------------------------------------------------------------------------------------------------

    def kernel_before(self, at: int, anchor: Node, which: int) -> tuple[int, FusedKernel, TileLoops] | None:
        """The position of the kernel that makes an operand, and the kernel."""
        operand = anchor.inputs[which]
        place = self.maker.get(operand)
        kernel = None if place is None else self.steps[place]
        if place is None or not isinstance(kernel, FusedKernel) or isinstance(kernel, EpilogueKernel):
            return None
        alone = kernel.outputs == (operand,) and self.takers[operand] == [at] and anchor.inputs.count(operand) == 1
        if not alone or operand in self.fetched or kernel.is_guarded or not self.near(place, at):
            return None
        name = ("transpose_a", "adj_x") if which == 0 else ("transpose_b", "adj_y")
        edge = edge_before(kernel, ANCHORS[anchor.type][0], any(anchor.attrs.get(n) for n in name))
        return None if edge is None else (place, *edge)


def _same_columns(before: Tensor, after: Tensor) -> bool:
    """Whether a reshape keeps the last axis, and there are axes before it."""
    old, new = before.dims, after.dims
    return bool(old and new) and len(new) >= 2 and old[-1] is not None and old[-1] == new[-1]  # type: ignore[index,arg-type]


# --- kernels as edges ------------------------------------------------------------------------------------------------


def edge_behind(kernel: FusedKernel, tile: Tensor, rank: int) -> TileLoops | None:
    """A kernel as the epilogue of a template whose result has `rank` axes; None when it cannot be one.

    The kernel's space has exactly the axes of the tile. Of the axes that the template collapses into one (those of a stack, or
    the rows of a reshaped matrix) every tensor has all or none.
    """
    if any(kernel.reduced) or tile not in kernel.inputs:
        return None
    position = kernel.inputs.index(tile)
    count = len(kernel.sizes)
    if kernel.input_axes[position] != tuple(range(count)) or count < rank:
        return None
    many = count - rank + 1  # the first axes of the space, which the template collapses into one
    return _edge(kernel, position, [max(axis - many + 1, 0) for axis in range(count)])


def edge_before(kernel: FusedKernel, rank: int, is_transposed: bool) -> tuple[FusedKernel, TileLoops] | None:
    """A kernel as a prologue on an operand, and the kernel with its tile as the first input; None when it cannot be or does not pay.

    One input has all axes, and at most twice the bytes of the output. The kernel computes nothing costly. Each other input has at
    most one axis, so it does not depend on the operand's memory layout.
    """
    count, loops = len(kernel.sizes), kernel.loops
    everything = tuple(range(count))
    full = [i for i, axes in enumerate(kernel.input_axes) if axes == everything]
    others = [axes for i, axes in enumerate(kernel.input_axes) if i not in full]
    if any(kernel.reduced) or len(full) != 1 or count < rank or kernel.output_axes[0] != everything:
        return None
    if any(sum(a is not None for a in axes) > 1 for axes in others):
        return None
    made, taken = kernel.outputs[0].dtype, kernel.inputs[full[0]].dtype
    if made not in FLOATS or taken not in STORED or taken.size > 2 * made.size:
        return None
    if len(loops.values) > MOST_BEFORE or any(v.op in COSTLY or v.op == "random" for v in loops.values):
        return None
    many = count - rank + 1
    to = [max(axis - many + 1, 0) for axis in everything]
    if is_transposed:
        to[-2:] = reversed(to[-2:])
    edge = _edge(kernel, full[0], to)
    return None if edge is None else (kernel, edge)


def _edge(kernel: FusedKernel, position: int, to: Sequence[int]) -> TileLoops | None:
    """The loops with the input in this position as the tile; `to`: the template's axis of each axis of the space."""
    axes = []
    for part in kernel.parts:
        mapped = {to[a] for a in part}
        if sum(to.count(m) for m in mapped) != len(part):
            return None  # some tensor has only part of the axes that the template collapses into one
        axes.append(tuple(sorted(mapped)))

    def number(v: Value) -> Value:
        if v.op != "load":
            return v
        return replace(v, data=0 if v.data == position else v.data + 1 if v.data < position else v.data)

    loops = LoopNest(kernel.loops.reduced, tuple(number(v) for v in kernel.loops.values), kernel.loops.stores)
    try:
        return TileLoops(loops, tuple(axes))
    except ValueError:
        return None


def _with_tile(kernel: FusedKernel, edge: TileLoops, tile: Tensor) -> tuple[FusedKernel, TileLoops]:
    """With the tile itself as one more output, for its other consumers."""
    number = next(i for i, v in enumerate(edge.loops.values) if v.op == "load" and v.data == 0)
    store = Store(number, tuple(range(len(edge.loops.reduced))))
    everything = tuple(range(len(kernel.sizes)))
    kernel = replace(
        kernel,
        outputs=(*kernel.outputs, tile),
        output_axes=(*kernel.output_axes, everything),
        loops=replace(kernel.loops, stores=(*kernel.loops.stores, store)),
    )
    return kernel, TileLoops(replace(edge.loops, stores=(*edge.loops.stores, store)), edge.axes)


def tile_of(kernel: FusedKernel, edge: TileLoops) -> int:
    """The position of the input that is the tile."""
    own = [v for v in kernel.loops.values if v.op == "load"]
    renamed = [v for v in edge.loops.values if v.op == "load"]
    return next(int(a.data) for a, b in zip(own, renamed, strict=True) if b.data == 0)


def _beside(kernel: FusedKernel, edge: TileLoops) -> list[Tensor]:
    """The inputs of a kernel other than its tile."""
    tile = tile_of(kernel, edge)
    return [t for i, t in enumerate(kernel.inputs) if i != tile]


def _joined(
    anchor: Node,
    before: Sequence[Sequence[Any] | None],
    reshape: Node | None,
    behind: tuple[FusedKernel, TileLoops] | None,
) -> EpilogueKernel:
    """Everything as one step."""
    loaded, looked = operands_of(anchor)
    inputs: list[Tensor] = list(loaded)
    beside: list[Tensor] = []
    nodes: list[Node] = []
    shapes: list[Tensor] = list(looked)
    if reshape is not None:
        shapes.append(reshape.inputs[1])
    for i, made in enumerate(before):
        if made is not None:
            kernel, edge = made
            inputs[i] = kernel.inputs[tile_of(kernel, edge)]
            beside += _beside(kernel, edge)
            nodes += kernel.nodes
            shapes += kernel.shapes
    nodes += [anchor, *([reshape] if reshape else [])]
    outputs = anchor.outputs
    if behind is not None:
        beside += _beside(*behind)
        nodes += behind[0].nodes
        shapes += behind[0].shapes
        outputs = behind[0].outputs
    base = behind[0] if behind is not None else next(b for b in before if b is not None)[0]
    told = {f.name: getattr(base, f.name) for f in fields(FusedKernel)}
    told |= {"nodes": tuple(nodes), "inputs": (*inputs, *beside), "shapes": tuple(shapes), "outputs": outputs}
    kernels = tuple(None if b is None else b[0] for b in before)
    edges = (*(None if b is None else b[1] for b in before), None if behind is None else behind[1])
    return EpilogueKernel(
        **told,
        anchor=anchor,
        before=kernels,
        reshape=reshape,
        behind=None if behind is None else behind[0],
        edges=edges,
    )


def operands_of(anchor: Node) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """An anchor's inputs that its template loads, in its order, and those of which it needs only the values on the host."""
    if anchor.type == "Conv2DBackpropInput":
        sizes, filters, gradient = anchor.inputs
        return (filters, gradient), (sizes,)
    return anchor.inputs, ()


def given_to(kernel: FusedKernel, edge: TileLoops, tile: Any, beside: Sequence[Any]) -> list[Any]:
    """A kernel's inputs in its own order, from those of the template."""
    rest = list(beside)
    rest.insert(tile_of(kernel, edge), tile)
    return rest
