"""In-place reuse: a kernel writes its output into the memory of an input that dies with it.

Such an output needs no memory and no cache lines of its own. Liveness over the steps of a partition shows which inputs die with a
kernel. Whether the array has other references shows only at run time (`memory/donation.py`).

An output may reuse an input where

    the kernel is pointwise: a reduction reads its inputs more than once
    both have the same axes and element type
    a kernel made the input, in the same part of a loop, and only kernels take it, this one last
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...graph.core.graph import Node, Tensor
from ..ir.fused_kernel import FusedKernel, inputs_of
from ..ir.loop_nest import READS, LoopNest
from ..ir.partition import BeginLoop, EndLoop, LeaveUnless, PartitionGraph, PartitionStep, RunPredicated
from .range_analysis import has_short_rows

Pairs = tuple[tuple[int, int], ...]

_PRODUCTS = frozenset(("MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"))
"""Nodes whose results are always new, and that keep nothing."""


def reuse_inputs_in_place(
    unit: PartitionGraph, steps: Sequence[PartitionStep | FusedKernel]
) -> tuple[PartitionStep | FusedKernel, ...]:
    """The steps with the `overwrites` of each kernel: the inputs whose memory its outputs may reuse."""
    kept = {t for _, t in (*unit.feeds, *unit.fetches)}
    made: dict[Tensor, int] = {}  # made by kernels -> the part of a loop with the kernel
    last: dict[Tensor, int] = {}
    part = 0
    for i, step in enumerate(steps):
        if isinstance(step, BeginLoop | LeaveUnless | EndLoop):
            part += 1
        node = step.node if isinstance(step, RunPredicated) else step
        makes = isinstance(step, FusedKernel) or isinstance(node, Node) and node.type in _PRODUCTS
        taken = inputs_of(step)
        for t in taken:
            if makes:
                last[t] = i
            else:
                kept.add(t)
        if makes:
            assert isinstance(node, FusedKernel | Node)
            made.update(dict.fromkeys(node.outputs, part))
    out = list(steps)
    part = 0
    for i, step in enumerate(steps):
        if isinstance(step, BeginLoop | LeaveUnless | EndLoop):
            part += 1
        elif isinstance(step, FusedKernel) and not any(step.loops.reduced):
            taken = (*step.inputs, *step.shapes)
            dying = [
                j
                for j, t in enumerate(step.inputs)
                if made.get(t) == part and last[t] == i and t not in kept and taken.count(t) == 1
            ]
            pairs = _pairs(step, dying) if dying else ()
            if pairs:
                out[i] = replace(step, overwrites=pairs)
    return tuple(out)


def _pairs(group: FusedKernel, dying: Iterable[int]) -> Pairs:
    """(input, output) of each output that can reuse the memory of a dying input."""
    pairs: list[tuple[int, int]] = []
    free = set(range(len(group.outputs)))
    for i in dying:
        loads = [v for v in group.loops.values if v.op == "load" and v.data == i]
        for j in sorted(free):
            if len(loads) != 1 or any(i in pair for pair in group.lookups) or group.tables:
                continue
            alike = group.input_axes[i] == group.output_axes[j] and group.loops.stores[j].axes == loads[0].axes
            if alike and group.inputs[i].dtype.base is group.outputs[j].dtype.base:
                pairs.append((i, j))
                free.remove(j)
                break
    return tuple(pairs)


@dataclass(frozen=True, slots=True)
class Order:
    """The arguments of a kernel with in-place reuse: overwritten inputs first, then the others; outputs in the same way."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def order_of(inputs: int, outputs: int, pairs: Pairs) -> Order:
    """The order for a kernel with so many inputs and outputs."""
    first, where = [i for i, _ in pairs], [j for _, j in pairs]
    rest = (i for i in range(inputs) if i not in first)
    return Order((*first, *rest), (*where, *(j for j in range(outputs) if j not in where)))


def reordered(loops: LoopNest, order: Order) -> LoopNest:
    """The same kernel with its arguments in this order."""
    at = {old: new for new, old in enumerate(order.inputs)}
    values = tuple(replace(v, data=at[v.data]) if v.op in READS else v for v in loops.values)
    return LoopNest(loops.reduced, values, tuple(loops.stores[j] for j in order.outputs))


def as_run(group: FusedKernel) -> tuple[LoopNest, int, bool]:
    """The loops of a group as a CPU runs them, the number of (leading) outputs that overwrite inputs, and whether its rows are short."""
    if not group.overwrites:
        return group.loops, 0, has_short_rows(group.loops, group.joined_sizes())
    order = order_of(len(group.inputs), len(group.outputs), group.overwrites)
    return reordered(group.loops, order), len(group.overwrites), False
