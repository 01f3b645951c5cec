"""Fusion groups, and whether several groups and a node fit in one iteration space.

A group is a set of nodes whose values lie in one iteration space (`ir/loop_nest.py`). A node names its own axes by labels
(`ir/index_maps.py`). A tensor that node and group share maps each label to an axis of the group. Tensors that groups share map their
axes in the same way. They fit if every label maps to an axis of its own, sizes agree, and every value lies in the whole space or in its
kept (not reduced) axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...graph.core.graph import Node, Tensor
from ..ir.index_maps import AxisMap, IndexMaps
from ..ir.partition import NONE, Predicate
from ..ir.symbolic_shape import Size

Depth = tuple[int, int]
"""The longest chain of values up to a tensor in a kernel, and of reductions."""


@dataclass(eq=False, slots=True)
class Axis:
    """An axis of a group's iteration space.

    Attributes:
        size: its static size.
        unknown: if `size` is not known: the symbolic sizes of the group's tensors along it. A kernel runs only if they are equal.
    """

    size: int | None
    unknown: frozenset[Size] = frozenset()


Axes: TypeAlias = "tuple[Axis | None, ...]"


@dataclass(eq=False, slots=True)
class FusionGroup:
    """A fusion group: nodes that become one kernel."""

    space: list[Axis]
    reduced: set[Axis]
    sources: Predicate = NONE  # the predicate under which all of it is dead
    nodes: list[Node] = field(default_factory=list)
    dims: dict[Tensor, Axes] = field(default_factory=dict)  # of the tensors that it makes or reads
    made: set[Tensor] = field(default_factory=set)
    reads_state: bool = False  # it reads rows of a variable
    scanned: bool | None = None  # whether its running sums start at the end
    slides: bool = False  # it has windows over images
    scatters: bool = False  # its only result is a table to whose rows it adds
    depth: dict[Tensor, Depth] = field(default_factory=dict)  # of the tensors that it makes


@dataclass(frozen=True, slots=True)
class Join:
    """How groups, and a node, merge.

    Attributes:
        main: the group that takes in the others.
        rest: the others.
        same: axes of the others -> axes of the main group.
        reduced: the reduced axes after the merge.
        scanned: whether running sums start at the end after the merge.
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
    """How the groups and a node merge; None when they do not fit. Changes nothing.

    Args:
        groups: the groups to merge.
        data: the node's inputs that hold data, with their labels.
        pattern: the node's index maps.
        known: gives a tensor's axes in a group; None if the group does not know it.
    """
    main, *rest = sorted(groups, key=lambda g: len(g.space), reverse=True)
    same: dict[Axis, Axis] = {}  # axes of the other groups -> axes of the main one
    mapping: dict[int, Axis] = {}
    for group in (main, *rest):
        if group is not main:
            for t in group.dims.keys() & main.dims.keys():  # a tensor in both groups shows which axes are the same
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
    # Each value lies in the whole space or in its kept axes; the operand of a reduction lies in the whole space.
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
    """Maps a label unknown to the group to the axis at its position in the group's space, if their sizes are known to be equal."""
    if len(pattern.space) != len(group.space):
        return
    taken = set(mapping.values())
    for label, axis in zip(sorted(pattern.space), group.space, strict=True):
        if label in mapping or axis in taken:
            continue
        size = pattern.sizes[label]
        if axis.size == size if size is not None else axis.unknown & pattern.unknown.get(label, frozenset()):
            mapping[label] = axis
