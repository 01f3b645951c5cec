"""Kernels that write where an input was, which nobody needs any more.

A result that takes the place of an input needs no memory of its own, and no cache lines beside those that the input is in. What a
unit's steps tell beforehand is which inputs die with a kernel (`reuse_inputs_in_place`); whether an array is really held by nobody else
(a user who fetched it, a message on its way, a variable, a list of a loop, a view) shows when the kernel runs (`is_held_once`).

An input is overwritten by an output when

    the kernel is pointwise: what reduces reads its inputs more than once
    both have the same axes and element type
    a kernel made the input, in the same part of a loop, and only kernels take it, this one as the last
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ...graph.core.graph import Node, Tensor
from ...graph.resources.buffer_pool import LARGE, buffers
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
    """A unit's steps with the kernels told which of their inputs they may overwrite."""
    kept = {t for _, t in (*unit.feeds, *unit.fetches)}
    made: dict[Tensor, int] = {}  # by kernels -> the part of a loop that it was made in
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
    """(input, output) of each output that can lie where a dying input was."""
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
    """The arguments of a kernel that overwrites: inputs that are, first, then the others; the outputs in the same way."""

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
    """The loops of a group as a CPU runs them, how many outputs overwrite inputs (the first ones), and whether its rows are short."""
    if not group.overwrites:
        return group.loops, 0, has_short_rows(group.loops, group.joined_sizes())
    order = order_of(len(group.inputs), len(group.outputs), group.overwrites)
    return reordered(group.loops, order), len(group.overwrites), False


# --- who holds an array ----------------------------------------------------------------------------------------------


def is_held_once(inputs: tuple[Any, ...], i: int) -> bool:
    """Whether nobody holds an argument of a kernel, or its memory, but the program that calls the kernel.

    To be called with the tuple of all arguments, by the kernel itself: references are counted.
    """
    x = inputs[i]
    references = sys.getrefcount(x)
    alone, piece_alone = _counts()
    if references != alone or type(x) is not np.ndarray or not x.flags.carray:
        return False
    return x.base is None or buffers.is_own(x.base) and sys.getrefcount(x.base) == piece_alone


class _Probe:
    """Stands for a kernel: counts references as `is_held_once` does."""

    def __call__(self, *inputs: Any) -> tuple[int, int]:
        return self.count(inputs, 0)

    def count(self, inputs: tuple[Any, ...], i: int) -> tuple[int, int]:
        x = inputs[i]
        references = sys.getrefcount(x)
        return references, sys.getrefcount(x.base)


@cache
def _counts() -> tuple[int, int]:
    """How many references there are to an array, and to the piece of memory that it lies in, which only a program holds.

    Counted once, in a call as `runtime.step` makes it: versions of Python differ in what holds a reference during a call.
    """
    kernel, which = _Probe(), (0,)
    slots: list[Any] = [buffers.empty((LARGE,), np.dtype(np.uint8))]
    return kernel(*[slots[i] for i in which])
