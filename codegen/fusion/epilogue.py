"""Prologue and epilogue fusion: elementwise kernels fused into a product or convolution. A dense layer becomes one kernel.

A matrix product or a convolution runs as a template (`gpu/templates`). A template can compute on tiles while they are in registers: on
operands after the load, and on the result before the store. After fusion, some kernels do only such work. This pass fuses them into
the product, the *anchor*:

    the epilogue     the kernel that takes its result: bias, activation, residual, casts. A reshape may lie between. If later
                     steps also take the (reshaped) result, it becomes one more output
    the prologues    the kernels that make an operand with no other consumer, if its elements are cheap to compute repeatedly:
                     many programs load each tile of an operand

The fused kernel runs at the position of its last part. Values do not change, so a product may be computed later. But no step is
moved across a receive, which might block it, or into or out of a loop. Reductions stay separate kernels: no tile has whole rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ...graph.core.dtypes import FLOAT8, bfloat16, float16, float32
from ...graph.core.graph import Node, Tensor
from ..ir.fused_kernel import FusedKernel, KernelSizes, inputs_of
from ..ir.loop_nest import COSTLY, LoopNest, Store, TileLoops, Value
from ..ir.nodes import transposed
from ..ir.partition import BeginLoop, EndLoop, LeaveUnless, PartitionGraph, PartitionStep, RecvTensor

ANCHORS = {"MatMul": (2, 2), "BatchMatMulV2": (3, 2), "Conv2D": (4, 0), "Conv2DBackpropInput": (4, 0)}
"""The ops that get prologues and epilogues: the number of their template's axes, and of the inputs that may have a prologue."""

FLOATS = (float32, float16, bfloat16)  # of anchors
STORED = (*FLOATS, *FLOAT8)  # of the inputs of their prologues
MOST_BEFORE = 12  # values of a prologue, which is recomputed for each tile
_FENCES = (RecvTensor, BeginLoop, EndLoop, LeaveUnless)


@dataclass(frozen=True, slots=True)
class Edge:
    """A kernel that is fused into an anchor: a prologue, or the epilogue.

    Attributes:
        kernel: the work, on whole arrays.
        loops: the same on tiles of the template.
        tile: which of the kernel's inputs is the tile.
    """

    kernel: FusedKernel
    loops: TileLoops
    tile: int

    @property
    def extra(self) -> tuple[Tensor, ...]:
        """The kernel's inputs other than its tile."""
        return self.kernel.inputs[: self.tile] + self.kernel.inputs[self.tile + 1 :]

    def sized(self, tile: Any, beside: Sequence[Any], told: Sequence[Any]) -> KernelSizes | None:
        """The kernel's sizes for these shapes, and values of its `shapes`; None when they are not as fusion assumed."""
        return self.kernel.sized([*beside[: self.tile], tile, *beside[self.tile :]], told)


@dataclass(frozen=True, slots=True)
class EpilogueKernel(FusedKernel):
    """An anchor with its prologues and epilogue as one kernel. `loops` and axes are those of the epilogue, else of a prologue.

    `inputs` are the anchor's (for an operand with a prologue: the prologue's tile input), then the further inputs of the edges.
    `shapes` are the anchor's inputs of which only the values are needed, the shape of the reshape, and the `shapes` of the edges, in
    that order.

    Attributes:
        anchor: the product or convolution.
        edges: the work before its first operand, before its second one, and behind it.
        reshape: the reshape between the result and the epilogue.
    """

    anchor: Node = None  # type: ignore[assignment]
    edges: tuple[Edge | None, ...] = (None, None, None)
    reshape: Node | None = None

    @property
    def tile_loops(self) -> list[TileLoops | None]:
        """The template's work on tiles, at each edge."""
        return [None if e is None else e.loops for e in self.edges]

    def parts_of_inputs(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Sequence[Any]]]:
        """Splits the kernel's `inputs` into the anchor's operands and the extra inputs of each edge."""
        operands = len(operands_of(self.anchor)[0])
        extra = [0 if e is None else len(e.extra) for e in self.edges]
        return list(inputs[:operands]), _split(inputs[operands:], extra)

    def parts_of_shapes(self, shapes: Sequence[Any]) -> tuple[Sequence[Any], Any, list[Sequence[Any]]]:
        """Splits the kernel's `shapes` into the anchor's values, the shape of the reshape, and the `shapes` of each edge."""
        looked = len(operands_of(self.anchor)[1])
        first = looked + (self.reshape is not None)
        rest = _split(shapes[first:], [0 if e is None else len(e.kernel.shapes) for e in self.edges])
        return shapes[:looked], shapes[looked] if first > looked else None, rest

    def text(self) -> str:
        """What it computes: the work at each edge in loop IR, where input 0 is the tile."""
        places = ("before operand 0 of", "before operand 1 of", "behind")
        found = zip(places, self.edges, strict=True)
        return "\n".join(f"{at} {self.anchor.type}: {e.loops.loops}" for at, e in found if e)


def _split(values: Sequence[Any], lengths: Iterable[int]) -> list[Sequence[Any]]:
    left = iter(values)
    return [list(itertools.islice(left, n)) for n in lengths]


def fuse_epilogues(
    partition: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]
) -> tuple[PartitionStep | FusedKernel, ...]:
    """Fuse prologue and epilogue kernels into the products of a partition's steps after fusion.

    Guarantees: as `fuse`.
    """
    if not any(isinstance(s, Node) and s.type in ANCHORS for s in steps):
        return tuple(steps)
    return _EpilogueFusion(partition, steps).result()


class _EpilogueFusion:
    def __init__(self, partition: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]) -> None:
        self.steps: list[PartitionStep | FusedKernel | None] = list(steps)
        self.fed = {t for _, t in partition.feeds}
        self.fetched = {t for _, t in partition.fetches}
        self.maker: dict[Tensor, int] = {}
        self.consumers: dict[Tensor, list[int]] = {}
        self.fences = [0]  # before each step, the number of steps that nothing moves across
        for i, step in enumerate(steps):
            self.fences.append(self.fences[-1] + isinstance(step, _FENCES))
            if isinstance(step, FusedKernel):
                self.maker.update(dict.fromkeys(step.outputs, i))
            for t in dict.fromkeys(inputs_of(step)):
                self.consumers.setdefault(t, []).append(i)

    def result(self) -> tuple[PartitionStep | FusedKernel, ...]:
        for i, step in enumerate(self.steps):
            if isinstance(step, Node) and step.type in ANCHORS and self.is_plain(step):
                self.join(i, step)
        return tuple(s for s in self.steps if s is not None)

    def is_plain(self, node: Node) -> bool:
        """Whether an anchor may be moved, and its template supports its types."""
        (out,) = node.outputs
        return out.dtype in FLOATS and out not in self.fed and not any(t.dtype.is_ref for t in node.inputs)

    def join(self, at: int, anchor: Node) -> None:
        """Fuse an anchor with its edges, at the position of the last of them."""
        before = [self.prologue_of(at, anchor, i) for i in range(ANCHORS[anchor.type][1])]
        behind = self.epilogue_of(at, anchor)
        if behind is None and not any(before):
            return
        edge, reshape, there = behind or (None, None, at)
        edges = [None if b is None else b[1] for b in before] or [None, None]
        joined = _epilogue_kernel(anchor, (*edges, edge), reshape)
        for place in (at, *(b[0] for b in before if b is not None)):
            self.steps[place] = None
        if reshape is not None:
            self.steps[self.steps.index(reshape)] = None
        self.steps[there] = joined

    # --- behind ----------------------------------------------------------------------------------------------------

    def epilogue_of(self, at: int, anchor: Node) -> tuple[Edge, Node | None, int] | None:
        """The epilogue kernel, the reshape before it, and the kernel's position."""
        tile, reshape = anchor.outputs[0], None
        consumers = self.consumers.get(tile, [])
        first = self.steps[consumers[0]] if consumers else None
        if isinstance(first, Node) and first.type == "Reshape" and first.inputs[0] is tile:
            # another shape of the same rows
            out = first.outputs[0]
            alone = len(consumers) == 1 and tile not in self.fetched and out not in self.fed
            if not alone or anchor.type != "MatMul" or not _same_columns(tile, out):
                return None
            tile, reshape, consumers = out, first, self.consumers.get(out, [])
        kernel = self.kernel(consumers[0], at) if consumers else None
        edge = None if kernel is None else epilogue_edge(kernel, tile, ANCHORS[anchor.type][0])
        if kernel is None or edge is None:
            return None
        if (len(consumers) > 1 or tile in self.fetched) and tile not in kernel.outputs:
            edge = _with_tile(edge, tile)
        return edge, reshape, consumers[0]

    def kernel(self, place: int, at: int) -> FusedKernel | None:
        """The kernel in a place, if it may be moved to another."""
        kernel = self.steps[place]
        if not isinstance(kernel, FusedKernel) or isinstance(kernel, EpilogueKernel) or kernel.is_predicated:
            return None
        return kernel if self.fences[place] == self.fences[at] else None

    # --- before ----------------------------------------------------------------------------------------------------

    def prologue_of(self, at: int, anchor: Node, which: int) -> tuple[int, Edge] | None:
        """The position of the kernel that makes an operand, and the kernel."""
        operand = anchor.inputs[which]
        place = self.maker.get(operand)
        kernel = None if place is None else self.kernel(place, at)
        if place is None or kernel is None or operand in self.fetched:
            return None
        if kernel.outputs != (operand,) or self.consumers[operand] != [at] or anchor.inputs.count(operand) != 1:
            return None
        edge = prologue_edge(kernel, ANCHORS[anchor.type][0], transposed(anchor)[which])
        return None if edge is None else (place, edge)


def _same_columns(before: Tensor, after: Tensor) -> bool:
    """Whether a reshape keeps the last axis, and there are axes before it."""
    old, new = before.dims, after.dims
    return bool(old and new) and len(new) >= 2 and old[-1] is not None and old[-1] == new[-1]  # type: ignore[index,arg-type]


# --- kernels as edges ------------------------------------------------------------------------------------------------


def epilogue_edge(kernel: FusedKernel, tile: Tensor, rank: int) -> Edge | None:
    """A kernel as the epilogue of a template whose result has `rank` axes; None when it cannot be one.

    The kernel's space has exactly the axes of the tile. Of the axes that the template collapses into one (those of a stack, or
    the rows of a reshaped matrix) every tensor has all or none.
    """
    position = kernel.inputs.index(tile) if tile in kernel.inputs else None
    if position is None or kernel.input_axes[position] != tuple(range(len(kernel.sizes))):
        return None
    return _edge(kernel, position, rank)


def prologue_edge(kernel: FusedKernel, rank: int, is_transposed: bool) -> Edge | None:
    """A kernel as a prologue on an operand; None when it cannot be or does not pay.

    One input has all axes, and at most twice the bytes of the output. The kernel computes nothing costly. Each other input has at
    most one axis, so it does not depend on the operand's memory layout.
    """
    loops, everything = kernel.loops, tuple(range(len(kernel.sizes)))
    full = [i for i, axes in enumerate(kernel.input_axes) if axes == everything]
    others = [axes for i, axes in enumerate(kernel.input_axes) if i not in full]
    if len(full) != 1 or kernel.output_axes[0] != everything:
        return None
    if any(sum(a is not None for a in axes) > 1 for axes in others):
        return None
    made, taken = kernel.outputs[0].dtype, kernel.inputs[full[0]].dtype
    if made not in FLOATS or taken not in STORED or taken.size > 2 * made.size:
        return None
    if len(loops.values) > MOST_BEFORE or any(v.op in COSTLY or v.op == "random" for v in loops.values):
        return None
    return _edge(kernel, full[0], rank, is_transposed)


def _edge(kernel: FusedKernel, position: int, rank: int, is_transposed: bool = False) -> Edge | None:
    """The kernel with the input in this position as the tile of a template of `rank` axes; `is_transposed`: it lies transposed."""
    count = len(kernel.sizes)
    if any(kernel.reduced) or count < rank:
        return None
    # The template's axis of each axis of the space: the template collapses the first ones into one.
    to = [max(axis - (count - rank), 0) for axis in range(count)]
    if is_transposed:
        to[-2:] = reversed(to[-2:])
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
        return Edge(kernel, TileLoops(loops, tuple(axes)), position)
    except ValueError:
        return None


def _with_tile(edge: Edge, tile: Tensor) -> Edge:
    """The edge with the tile itself as one more output, for its other consumers."""
    kernel, loops = edge.kernel, edge.loops.loops
    number = next(i for i, v in enumerate(loops.values) if v.op == "load" and v.data == 0)
    store = Store(number, tuple(range(len(loops.reduced))))
    kernel = replace(
        kernel,
        outputs=(*kernel.outputs, tile),
        output_axes=(*kernel.output_axes, tuple(range(len(kernel.sizes)))),
        loops=replace(kernel.loops, stores=(*kernel.loops.stores, store)),
    )
    return Edge(kernel, replace(edge.loops, loops=replace(loops, stores=(*loops.stores, store))), edge.tile)


def _epilogue_kernel(anchor: Node, edges: tuple[Edge | None, ...], reshape: Node | None) -> EpilogueKernel:
    (*before, behind), found = edges, [e for e in edges if e is not None]
    loaded, looked = operands_of(anchor)
    inputs = [t if e is None else e.kernel.inputs[e.tile] for t, e in zip(loaded, before, strict=True)]
    nodes = [*(n for e in before if e for n in e.kernel.nodes), anchor, *([reshape] if reshape else [])]
    base = (behind or found[0]).kernel
    told = {f.name: getattr(base, f.name) for f in fields(FusedKernel)}
    told |= {
        "nodes": (*nodes, *(behind.kernel.nodes if behind else ())),
        "inputs": (*inputs, *(t for e in found for t in e.extra)),
        "shapes": (*looked, *(reshape.inputs[1:] if reshape else ()), *(t for e in found for t in e.kernel.shapes)),
        "outputs": behind.kernel.outputs if behind else anchor.outputs,
    }
    return EpilogueKernel(**told, anchor=anchor, edges=edges, reshape=reshape)


def operands_of(anchor: Node) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """An anchor's inputs that its template loads, in its order, and those of which it needs only the values on the host."""
    if anchor.type == "Conv2DBackpropInput":
        sizes, filters, gradient = anchor.inputs
        return (filters, gradient), (sizes,)
    return anchor.inputs, ()
