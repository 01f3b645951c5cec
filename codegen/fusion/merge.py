"""Groups: kernels in the making, and whether several of them, and a node, can be one.

A group is a set of nodes whose values lie in one space of axes (`loops`). A node knows its own axes only by labels (`axes`): what it
shares with a group (a tensor that the group makes or reads) tells which axis each label is. Groups that share tensors become one in
the same way. They fit if every label finds an axis, no two find the same, no size contradicts, and everything lies either in the whole
space or in its kept axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...graph.core.graph import Node, Tensor
from ..ir.index_maps import AxisMap, IndexMaps
from ..ir.predicates import NONE, Predicate
from ..ir.symbolic_shape import Size


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of a group's space.

    Attributes:
        size: its static size.
        unknown: where that is not known, the sizes that tensors of the group have along it (`sizes`). A kernel runs only where they
            are equal.
    """

    size: int | None
    unknown: frozenset[Size] = frozenset()


Axes: TypeAlias = "tuple[Axis | None, ...]"


@dataclass(eq=False, slots=True)
class FusionGroup:
    """A kernel in the making."""

    space: list[Axis]
    reduced: set[Axis]
    sources: Predicate = NONE  # why all of it may be dead
    nodes: list[Node] = field(default_factory=list)
    dims: dict[Tensor, Axes] = field(default_factory=dict)  # of what it makes and what it reads
    made: set[Tensor] = field(default_factory=set)
    reads_state: bool = False  # rows of a variable
    part: int = 0  # of the unit, between marks of control flow
    lifted: set[Node] = field(default_factory=set)  # nodes that run earlier than where they stood
    scanned: bool | None = None  # whether running sums in it go from the end
    scatters: bool = False  # its only result is a table, into whose rows it adds
    depth: dict[Tensor, int] = field(
        default_factory=dict
    )  # of what it makes: how many values are made one from the other

    @property
    def kept(self) -> list[Axis]:
        return [a for a in self.space if a not in self.reduced]


@dataclass(frozen=True, slots=True)
class Join:
    """How groups, and a node, become one.

    Attributes:
        main: the group that takes the others in. rest: the others.
        same: axes of the others -> the axes of the main group that they are.
        reduced: what is reduced then.
        scanned: whether running sums go from the end then.
        mapping: the node's labels -> axes of the main group.
    """

    main: FusionGroup
    rest: list[FusionGroup]
    same: dict[Axis, Axis]
    reduced: set[Axis]
    scanned: bool | None
    mapping: dict[int, Axis]


def merged(
    groups: Sequence[FusionGroup],
    data: Sequence[tuple[Tensor, AxisMap]],
    pattern: IndexMaps,
    known: Callable[[FusionGroup, Tensor], Axes | None],
) -> Join | None:
    """The groups and a node as one; None when they don't fit. Changes nothing.

    Args:
        groups: those that are to become one. data: the node's inputs that hold data, with their labels. pattern: the node's.
        known: a tensor's axes in a group; None where the group does not know it.
    """
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
            axes = known(group, t)
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
    _guess(main, pattern, mapping)
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
    return Join(main, rest, same, reduced, ways.pop() if ways else None, mapping)


def _guess(group: FusionGroup, pattern: IndexMaps, mapping: dict[int, Axis]) -> None:
    """A label unknown to the group is the axis in its place in the group's space, if that is known to have the very size."""
    if len(pattern.space) != len(group.space):
        return
    taken = set(mapping.values())
    for label, axis in zip(sorted(pattern.space), group.space, strict=True):
        if label in mapping or axis in taken:
            continue
        size = pattern.sizes[label]
        if axis.size == size if size is not None else axis.unknown & pattern.unknown.get(label, frozenset()):
            mapping[label] = axis
