"""The provenance of a placement: what each decision depends on, as plain data that can be saved and explained later.

Few demands stand behind many nodes: a million nodes ask for some thousands of devices. So each distinct demand
is kept once, and nodes refer to it by number. A demand lists the devices that meet its request; about all others of the cluster
there is one thing to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .colocation import Groups, Note

Ints = npt.NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Demand:
    """What one group or node demands, and what that means for each device of the cluster.

    Attributes:
        required: the merged request; '' when it asks for nothing.
        candidates: numbers of the devices that meet it, best first.
        refused: devices that match the request and are no candidates: the reason, and their numbers.
        given_up: what soft placement gave up to have candidates, in words; '' when nothing.
    """

    required: str
    candidates: tuple[int, ...]
    refused: tuple[tuple[str, tuple[int, ...]], ...]
    given_up: str

    @property
    def otherwise(self) -> str:
        """The reason against all devices that are neither candidates nor in `refused`."""
        return f"'{self.required}' is required"

    def against(self, devices: int) -> dict[int, str]:
        """Device -> the first reason against it, for each of so many devices that is no candidate."""
        listed = {d: reason for reason, some in self.refused for d in some}
        chosen = frozenset(self.candidates)
        return {d: listed.get(d, self.otherwise) for d in range(devices) if d not in chosen}


@dataclass(frozen=True)  # no slots: the cached look-up tables live in the instance
class Reasons:
    """The demands behind a placement, the groups, and what was overruled.

    Attributes:
        demands: the distinct ones.
        demand_of: per node (by index) the number of its group's demand; -1 for a node that was not placed.
        groups: node index -> lowest index of its group, for nodes that share their group with another.
        notes: requests that were overruled while groups were formed.
    """

    demands: Sequence[Demand]
    demand_of: Ints
    groups: Mapping[int, int]
    notes: tuple[Note, ...]

    @cached_property
    def _members(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node, root in self.groups.items():
            found.setdefault(root, []).append(node)
        return found

    def root(self, node: int) -> int:
        """The lowest index of a node's group."""
        return self.groups.get(node, node)

    def members(self, node: int) -> list[int]:
        """The nodes of a node's group, in order."""
        return self._members.get(self.root(node), [node])

    def demand(self, node: int) -> Demand:
        """What a node's group demands."""
        return self.demands[int(self.demand_of[node])]

    @cached_property
    def _notes(self) -> dict[int, list[Note]]:
        found: dict[int, list[Note]] = {}
        for note in self.notes:
            found.setdefault(self.root(note.node), []).append(note)
        return found

    def notes_of(self, node: int) -> list[Note]:
        """What was overruled in a node's group."""
        return self._notes.get(self.root(node), [])


def reasons_of(groups: Groups) -> Reasons:
    """The reasons that the placer's own tables hold."""
    number = np.array(groups.number, np.int32)
    roots: dict[int, int] = {i: groups.find(i) for i in groups.shared}
    for i, root in roots.items():
        number[i] = groups.number[root]
    used = np.unique(number[number >= 0])
    renumbered = np.full(int(used.max(initial=-1)) + 2, -1, np.int32)  # the last entry stands for -1
    demands: dict[Demand, int] = {}  # constraints that differ may demand the same
    for c in used.tolist():
        renumbered[c] = demands.setdefault(_demand(groups, c), len(demands))
    return Reasons(tuple(demands), renumbered[number], roots, tuple(groups.notes))


def _demand(groups: Groups, number: int) -> Demand:
    constraints = groups.constraints
    found = constraints.candidates(number)
    refused = tuple((reason, tuple(devices)) for reason, devices in constraints.refused(number).items())
    return Demand(str(constraints[number].requested), found.devices, refused, found.given_up)
