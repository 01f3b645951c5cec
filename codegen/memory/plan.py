"""How much memory a device's part of a step needs: lifetimes of tensors, the peak, and the arena that would do.

A tensor lives from the step that makes it to the last one that takes it; what is fed, or fetched, lives from the start, or to the
end; a view lives in what it is a view of. Constants and variables outlive steps and are not counted, nor is what reads a variable.
A kernel's result that takes the place of an input (`overwriting`) begins where that ends.
What changes a variable needs room for the new value beside the old one where it makes a new one: when a part of the step
still needs the old one (`graph.state.changing`), or the op is not one that writes where the value is. The *peak* is the most that
is alive at once. The *arena* is one piece of memory with a place for each tensor, such that no two that live at the same time
overlap: tensors take places from the largest to the smallest, each the tightest gap that is free during its life (Pisarchyk and
Lee, "Efficient memory management for deep neural net inference", 2020, greedy by size).

Programs do not run in such an arena. What they make outlives a step too easily (what is fetched, sent, or stored into a variable
is handed on without a copy), so memory is given out when it is needed and comes back when the last holder lets go
(`graph/resources/buffer_pool.py`). That comes near the least that is possible: slots are let go after their last use, so what a
program holds is what is alive, and what it takes at most is the peak, as a test measures.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...graph.core.dtypes import resource
from ...graph.core.graph import Node, Tensor
from ...graph.core.opdef import nbytes
from ..ir.fused_kernel import FusedKernel, inputs_of, outputs_of
from ..ir.partition import PartitionStep, node_of

ALIGNMENT = 64  # bytes of a cache line, and what vector loads like
_SAME_MEMORY = frozenset(
    ("Identity", "StopGradient", "PreventGradient", "Reshape", "ExpandDims", "Squeeze", "Transpose", "BroadcastTo",
     "Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond")
)  # fmt: skip


class Living(Protocol):
    """Something that needs so many bytes from one step to another one, both included."""

    @property
    def bytes(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of memory that is needed from one step to another one."""

    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor's memory: how much, and from which step to which one, both included."""

    tensor: Tensor
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Arena:
    """The memory of steps that run as one, which all is taken when the first begins.

    Attributes:
        nodes: names of what they run.
        leaving: names of the tensors that have memory of their own, since others take them.
        bytes: for what stays inside.
    """

    nodes: frozenset[str]
    leaving: frozenset[str]
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a list of steps needs.

    Attributes:
        lifetimes: of all tensors, in the order in which they are made.
        offsets: the place of each in the arena, in the same order.
        peak_bytes: the most that is alive at once, with the new values of what is updated then; unknown sizes count as 1.
        at: number of the step where that is.
        arena_bytes: size of the arena.
        exact: whether all sizes are known before the graph runs.
        nodes: names of the nodes of each step.
        beside: bytes that each step needs besides tensors.
        arenas: of steps that run as one: from the first to the last of them.
    """

    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[int, ...]
    peak_bytes: int
    at: int
    arena_bytes: int
    exact: bool
    nodes: tuple[tuple[str, ...], ...] = ()
    beside: tuple[int, ...] = ()
    arenas: tuple[Piece, ...] = ()

    def with_arenas(self, arenas: Iterable[Arena]) -> MemoryPlan:
        """The plan where some steps run as one.

        What stays inside has a place in their arena. What leaves them is there from their begin, and what they take to their end.
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
        peak, at = _peak((*lives, *pieces), self.beside)
        offsets, size = places(lives)
        return replace(
            self,
            lifetimes=tuple(lives),
            offsets=offsets,
            peak_bytes=peak,
            at=at,
            arena_bytes=size,
            arenas=tuple(pieces),
        )

    def largest(self, count: int = 5) -> list[Lifetime]:
        """The largest tensors that are alive at the peak."""
        alive = [x for x in self.lifetimes if x.first <= self.at <= x.last]
        return sorted(alive, key=lambda x: -x.bytes)[:count]


def plan_memory(
    steps: Sequence[PartitionStep | FusedKernel],
    feeds: Iterable[Tensor] = (),
    fetches: Iterable[Tensor] = (),
    unmade: Container[Tensor] = (),
    *,
    writes_in_place: Callable[[Node], bool],
) -> MemoryPlan:
    """The memory plan of a partition's steps after fusion.

    Args:
        steps: in order.
        feeds, fetches: tensors that the client gives, and gets.
        unmade: tensors that are never in memory as a whole.
        writes_in_place: whether an update of a variable writes where the value is, unless somebody still needs that.

    Steps inside a loop are counted once: each iteration uses the memory of the one before.
    """
    base: dict[Tensor, Tensor] = {}  # views -> what they are views of
    first: dict[Tensor, int] = dict.fromkeys(feeds, 0)
    last: dict[Tensor, int] = dict.fromkeys(first, 0)
    beside = [0] * len(steps)
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
        for t in outputs_of(step):
            if node is not None and (node.type == "ReadVariableOp" or (_is_view(node) and node.inputs[0].dtype.is_ref)):
                read[t] = (_variable(node.inputs[0]), i)
            elif node is not None and _is_view(node):
                base[t] = base.get(node.inputs[0], node.inputs[0])
            elif (
                not t.dtype.is_ref
                and t.dtype is not resource
                and t not in first
                and t not in unmade
                and (node is None or node.type != "Const")
            ):
                first[t] = last[t] = i
    for i, step in enumerate(steps):
        if isinstance(step, FusedKernel):
            for k, _ in step.overwrites:
                last[step.inputs[k]] = i - 1  # from here on it is the result's memory
    for t in fetches:
        held = base.get(t, t)
        if held in first:
            last[held] = len(steps) - 1
        if held in read:
            needed[held] = len(steps)
    holds: dict[Node, list[tuple[int, int]]] = {}  # variable -> from when to when somebody has its value
    for t, (variable, at_) in read.items():
        holds.setdefault(variable, []).append((at_, needed.get(t, at_)))
    for i, step in enumerate(steps):
        node = node_of(step)
        if node is not None and node.opdef.is_stateful:
            needed_still = {v for v, times in holds.items() if any(a <= i < b for a, b in times)}
            beside[i] = _updated(node, needed_still, writes_in_place(node))
    lives = tuple(Lifetime(t, nbytes(t), first[t], last[t]) for t in first)
    peak, at = _peak(lives, beside)
    offsets, size = places(lives)
    exact = all(t.dims is not None and None not in t.dims for t in first)
    return MemoryPlan(lives, offsets, peak, at, size, exact, tuple(map(_names_of, steps)), tuple(beside))


def _names_of(step: PartitionStep | FusedKernel) -> tuple[str, ...]:
    if isinstance(step, FusedKernel):
        return tuple([n.name for n in step.nodes])
    node = node_of(step)
    return () if node is None else (node.name,)


def _is_view(node: Node) -> bool:
    return node.type in _SAME_MEMORY and bool(node.inputs)


def _variable(place: Tensor) -> Node:
    """The node of the variable whose place this is: an assignment hands it on."""
    while place.op.inputs and 0 in place.op.opdef.ref_inputs:
        place = place.op.inputs[0]
    return place.op


def _updated(node: Node, held: Container[Node], in_place: bool) -> int:
    """Bytes of the new values that a node with state makes for the variables whose places it takes; `held`: those still needed."""
    total = 0
    for i, t in enumerate(node.inputs):
        if in_place and _variable(t) not in held:
            continue
        if t.dtype.is_ref and i in node.opdef.ref_inputs:
            total += nbytes(t)
        elif t.dtype is resource and t.op.type == "VarHandleOp" and node.type != "ReadVariableOp":
            dims = t.op.attrs["shape"]
            total += math.prod(1 if d is None else d for d in dims or ()) * t.op.attrs["dtype"].size
    return total


def _peak(lives: Sequence[Living], beside: Sequence[int]) -> tuple[int, int]:
    """The most bytes alive at once, and where. `beside`: what each step needs besides tensors."""
    change = [0] * (len(beside) + 1)
    for x in lives:
        change[x.first] += x.bytes
        change[x.last + 1] -= x.bytes
    most = now = at = 0
    for i, more in enumerate(beside):
        now += change[i]
        if now + more > most:
            most, at = now + more, i
    return most, at


def places(lives: Sequence[Living]) -> tuple[tuple[int, ...], int]:
    """Where each lies in an arena such that no two that live at the same time overlap, and the size of the arena."""
    offsets = [0] * len(lives)
    placed: list[tuple[int, int, int]] = []  # offset, end, number; by offset
    total = 0
    for i in sorted(range(len(lives)), key=lambda i: (-lives[i].bytes, lives[i].first)):
        x = lives[i]
        size = -(-x.bytes // ALIGNMENT) * ALIGNMENT
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
