"""The provenance of a placement: the data behind each decision, which can be saved and explained later.

Many nodes share few demands: a million nodes request some thousands of devices. So each distinct demand is stored once, and nodes refer to
it by number. A demand lists the devices that match its request; all other devices are excluded for the same reason.
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
    """The constraint of a colocation group, and its effect on each device of the cluster.

    Attributes:
        required: the merged request; '' if there is none.
        candidates: numbers of the devices that satisfy it, best first.
        refused: (reason, device numbers) of devices that match the request but are excluded.
        dropped: the fields that soft placement dropped to have candidates, as text; '' if none.
    """

    required: str
    candidates: tuple[int, ...]
    refused: tuple[tuple[str, tuple[int, ...]], ...]
    dropped: str

    @property
    def otherwise(self) -> str:
        """The reason that excludes all devices that are neither candidates nor in `refused`."""
        return f"'{self.required}' is required"

    def against(self, devices: int) -> dict[int, str]:
        """Excluded device -> the first reason, for a cluster of so many devices."""
        listed = {d: reason for reason, devices in self.refused for d in devices}
        candidates = frozenset(self.candidates)
        return {d: listed.get(d, self.otherwise) for d in range(devices) if d not in candidates}


@dataclass(frozen=True)  # no slots: the cached look-up tables live in the instance
class Reasons:
    """The demands behind a placement, the colocation groups, and the relaxed requests.

    Attributes:
        demands: the distinct demands.
        demand_of: per node (by index) the number of its group's demand; -1 for a node that was not placed.
        groups: node index -> lowest index of its group, for nodes that share their group with another.
        notes: requests that were relaxed while groups were formed.
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
        """The demand of a node's group."""
        return self.demands[int(self.demand_of[node])]

    @cached_property
    def _notes(self) -> dict[int, list[Note]]:
        found: dict[int, list[Note]] = {}
        for note in self.notes:
            found.setdefault(self.root(note.node), []).append(note)
        return found

    def notes_of(self, node: int) -> list[Note]:
        """The relaxed requests of a node's group."""
        return self._notes.get(self.root(node), [])


def reasons_of(groups: Groups) -> Reasons:
    """The provenance, from the placer's tables."""
    number = np.array(groups.number, np.int32)
    roots: dict[int, int] = {i: groups.find(i) for i in groups.shared}
    for i, root in roots.items():
        number[i] = groups.number[root]
    used = np.unique(number[number >= 0])
    renumbered = np.full(int(used.max(initial=-1)) + 2, -1, np.int32)  # the last entry stands for -1
    demands: dict[Demand, int] = {}  # different constraints may give equal demands
    for c in used.tolist():
        renumbered[c] = demands.setdefault(_demand(groups, c), len(demands))
    return Reasons(tuple(demands), renumbered[number], roots, tuple(groups.notes))


def _demand(groups: Groups, number: int) -> Demand:
    constraints = groups.constraints
    found = constraints.candidates(number)
    refused = tuple((reason, tuple(devices)) for reason, devices in constraints.refused(number).items())
    return Demand(str(constraints[number].requested), found.devices, refused, found.dropped)
