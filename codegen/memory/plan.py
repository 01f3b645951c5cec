"""Memory plan of a device's part of a step: lifetimes of tensors, peak memory, and the offsets of tensors in an arena.

A tensor lives from the step that makes it to its last use, feeds from the start, fetches to the end. A view uses the memory of its base.
Constants, variables and reads of variables are not counted. An update of a variable needs memory for a new value if a part of the step
still needs the old one (`graph/resources/variable.py`), or if the op does not write in place.

The *peak* is the most bytes alive at once. An *arena* is one block of memory with an offset for each tensor, such that no two live
tensors overlap. Tensors are placed from the largest to the smallest, each in the tightest gap that is free during its life
(Pisarchyk and Lee, "Efficient memory management for deep neural net inference", 2020, greedy by size).

Native regions run in an arena. Programs do not (docs/concepts/kernels-cpu.md says why): their memory returns to the pool with its last
reference (`graph/resources/buffer_pool.py`). Slots are freed after their last use, so a program's maximum is the peak, as a test measures.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...graph.core.dtypes import resource
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import Cost, nbytes
from ...graph.core.shape import is_static
from ..ir.fused_kernel import FusedKernel, inputs_of, nodes_of, outputs_of
from ..ir.index_maps import VIEWS
from ..ir.partition import PartitionStep, node_of
from ..target import CACHE_LINE_BYTES

_SAME_MEMORY = VIEWS | {"Transpose", "Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond"}


class TensorSizes(Protocol):
    """The sizes of values and the costs of nodes, from a plan or, as here, from the graph. An unknown size counts as 1."""

    def of(self, tensor: Tensor, /) -> Tensor:
        return tensor

    def bytes(self, tensor: Tensor, /) -> int:
        return nbytes(tensor)

    def is_known(self, tensor: Tensor, /) -> bool:
        return is_static(tensor.dims)

    def cost(self, node: Node, /) -> Cost:
        return node.opdef.cost_of(node)


class GraphSizes(TensorSizes):
    """The static sizes of the graph."""


GRAPH_SIZES = GraphSizes()


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of memory that is alive from one step to another, both included."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Lifetime(Piece):
    """A tensor's memory."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Arena:
    """The arena of steps that run as one, allocated when the first step starts.

    Attributes:
        nodes: names of the nodes that they run.
        leaving: names of the tensors outside the arena, because other steps take them.
        bytes: size of the arena, for the tensors that stay inside.
    """

    nodes: frozenset[str]
    leaving: frozenset[str]
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan of a list of steps.

    Attributes:
        lifetimes: of all tensors, in the order in which they are made.
        peak_bytes: the most bytes alive at once, with the new values of updated variables; unknown sizes count as 1.
        at: index of the step with the peak.
        exact: whether all sizes are known before the graph runs.
        nodes: names of the nodes of each step.
        extra: bytes that each step needs in addition to tensors.
        arenas: of steps that run as one, from the first step to the last.
    """

    lifetimes: tuple[Lifetime, ...]
    peak_bytes: int
    at: int
    exact: bool
    nodes: tuple[tuple[str, ...], ...] = ()
    extra: tuple[int, ...] = ()
    arenas: tuple[Piece, ...] = ()

    def with_arenas(self, arenas: Iterable[Arena]) -> MemoryPlan:
        """The plan if some steps run as one.

        Tensors that stay inside lie in the steps' arena. Their outputs live from the first step on, their inputs to the last step.
        """
        lives, pieces = list(self.lifetimes), list(self.arenas)
        for arena in arenas:
            mine = [i for i, names in enumerate(self.nodes) if not arena.nodes.isdisjoint(names)]
            if not mine:
                continue
            begin, end = mine[0], mine[-1]
            moved = []
            for x in lives:
                if x.tensor.op.name in arena.nodes and begin <= x.first <= end:
                    if x.tensor.name in arena.leaving:
                        moved.append(replace(x, first=begin))
                elif x.first <= begin <= x.last < end:
                    moved.append(replace(x, last=end))
                else:
                    moved.append(x)
            lives = moved
            pieces.append(Piece(arena.bytes, begin, end))
        peak, at = _peak((*lives, *pieces), self.extra)
        return replace(self, lifetimes=tuple(lives), peak_bytes=peak, at=at, arenas=tuple(pieces))

    def largest(self, count: int = 5) -> list[Lifetime]:
        """The largest tensors that are alive at the peak."""
        alive = [x for x in self.lifetimes if x.first <= self.at <= x.last]
        return sorted(alive, key=lambda x: -x.bytes)[:count]


def plan_memory(
    steps: Sequence[PartitionStep | FusedKernel],
    feeds: Iterable[Tensor] = (),
    fetches: Iterable[Tensor] = (),
    *,
    writes_in_place: Callable[[Node], bool],
    sizes: TensorSizes = GRAPH_SIZES,
) -> MemoryPlan:
    """The memory plan of a partition's steps after fusion.

    Args:
        steps: in order.
        feeds, fetches: tensors that the client feeds and fetches.
        writes_in_place: whether an update of a variable writes in place if the old value is not needed any more.
        sizes: of the tensors.

    Steps inside a loop are counted once: each iteration uses the memory of the one before.
    """
    base: dict[Tensor, Tensor] = {}  # views -> what they are views of
    first: dict[Tensor, int] = dict.fromkeys(feeds, 0)
    last: dict[Tensor, int] = dict.fromkeys(first, 0)
    extra = [0] * len(steps)
    read: dict[Tensor, tuple[Node, int]] = {}  # a variable's value -> the variable, and when it was read
    needed: dict[Tensor, int] = {}  # the same -> when it was last used
    for i, step in enumerate(steps):
        for t in inputs_of(step):
            held = base.get(t, t)
            if held in first:
                last[held] = i
            if held in read:
                needed[held] = i
        node = node_of(step)
        is_constant = node is not None and node.type == "Const"
        for t in outputs_of(step):
            if node is not None and (node.type == "ReadVariableOp" or (_is_view(node) and node.inputs[0].dtype.is_ref)):
                read[t] = (_variable(node.inputs[0]), i)
            elif node is not None and _is_view(node):
                base[t] = base.get(node.inputs[0], node.inputs[0])
            elif not (is_constant or t.dtype.is_ref or t.dtype is resource or t in first):
                first[t] = last[t] = i
    for t in fetches:
        held = base.get(t, t)
        if held in first:
            last[held] = len(steps) - 1
        if held in read:
            needed[held] = len(steps)
    holds: dict[Node, list[tuple[int, int]]] = {}  # variable -> the step ranges in which its value is referenced
    for t, (variable, at_) in read.items():
        holds.setdefault(variable, []).append((at_, needed.get(t, at_)))
    for i, step in enumerate(steps):
        node = node_of(step)
        if node is not None and node.opdef.is_stateful:
            needed_still = {v for v, times in holds.items() if any(a <= i < b for a, b in times)}
            extra[i] = _updated(node, needed_still, writes_in_place(node))
    lives = tuple(Lifetime(sizes.bytes(t), first[t], last[t], t) for t in first)
    peak, at = _peak(lives, extra)
    exact = all(map(sizes.is_known, first))
    names = tuple(tuple(n.name for n in nodes_of(step)) for step in steps)
    return MemoryPlan(lives, peak, at, exact, names, tuple(extra))


def _is_view(node: Node) -> bool:
    return node.type in _SAME_MEMORY and bool(node.inputs)


def _variable(place: Tensor) -> Node:
    """The variable node of a reference tensor. Assignments pass the reference on."""
    while place.op.inputs and 0 in place.op.opdef.ref_inputs:
        place = place.op.inputs[0]
    return place.op


def _updated(node: Node, held: Container[Node], in_place: bool) -> int:
    """Bytes of the new values that a stateful node makes for variables. `held`: variables whose old value is still needed."""
    total = 0
    for i, t in enumerate(node.inputs):
        if in_place and _variable(t) not in held:
            continue
        is_handle = t.dtype is resource and t.op.type == "VarHandleOp" and node.type != "ReadVariableOp"
        if is_handle or t.dtype.is_ref and i in node.opdef.ref_inputs:
            total += value_bytes(t)
    return total


def value_bytes(tensor: Tensor, sizes: TensorSizes = GRAPH_SIZES) -> int:
    """Bytes of a tensor, or of the variable that it refers to."""
    if tensor.dtype is resource and tensor.op.type == "VarHandleOp":
        elements = math.prod(1 if d is None else int(d) for d in tensor.op.attrs["shape"] or ())
        return elements * int(tensor.op.attrs["dtype"].size)
    return sizes.bytes(tensor)


def _peak(lives: Sequence[Piece], extra: Sequence[int]) -> tuple[int, int]:
    """The most bytes alive at once, and the step. `extra`: bytes that each step needs in addition to tensors."""
    change = [0] * (len(extra) + 1)
    for x in lives:
        change[x.first] += x.bytes
        change[x.last + 1] -= x.bytes
    most = now = at = 0
    for i, more in enumerate(extra):
        now += change[i]
        if now + more > most:
            most, at = now + more, i
    return most, at


def places(lives: Sequence[Piece]) -> tuple[tuple[int, ...], int]:
    """Arena offsets such that no two live blocks overlap, and the size of the arena."""
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int]] = []  # offset, end, number; by offset
    total = 0
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].bytes, lives[i].first)):
        x = lives[i]
        size = -(-x.bytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES
        best, tightest, free = -1, None, 0
        for start, end, other in placed:
            y = lives[other]
            if y.last < x.first or x.last < y.first:
                continue
            gap = start - free
            if gap >= size and (tightest is None or gap < tightest):
                best, tightest = free, gap
            free = max(free, end)
        offsets[i] = best if best >= 0 else free
        bisect.insort(placed, (offsets[i], offsets[i] + size, i))
        total = max(total, offsets[i] + size)
    return tuple(offsets), total
