"""A master's state of a session, and the description of one task's part of a step for a client."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from ...graph.core.graph import Graph
from ...placer.cluster.spec import Cluster
from ...placer.pipeline import Kept
from ...placer.plan import Plan
from ...placer.rules.placement import Placement
from ...placer.search.problem import Solution
from ..config import ConfigProto

Signature: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""What identifies a kind of step: the names of the tensors to return, of the nodes to run, and of the tensors that are fed."""


@dataclass(frozen=True, slots=True)
class TaskPart:
    """The client's description of one task's part of a run signature.

    Attributes:
        task: `/job:ps/replica:0/task:0`.
        incarnation: incarnation of the task's process when the part was registered.
        feeds: names of the values that are fed to it.
        fetches: names of the values that it returns, in order.
    """

    task: str
    incarnation: int
    program: str
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]

    def to_fields(self, address: str) -> dict[str, Any]:
        """The fields of the part in a `prepared` message, with the address of its task."""
        return {**asdict(self), "address": address}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TaskPart:
        """The inverse of `to_fields`."""
        feeds, fetches = tuple(fields["feeds"]), tuple(fields["fetches"])
        return cls(fields["task"], fields["incarnation"], fields["program"], feeds, fetches)


@dataclass(slots=True)
class MasterSession:
    """The master's state of one session."""

    handle: str
    config: ConfigProto
    cluster: Cluster
    graph: Graph
    seed: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    client: str = ""  # the name of the process that opened it
    placement: Placement | None = None  # of the whole graph
    solution: Solution | None = None  # of the search that found it
    # Devices of stateful nodes, if only the nodes that a run needs are placed.
    assigned: dict[str, str] = field(default_factory=dict)
    programs: dict[str, set[str]] = field(default_factory=dict)  # task -> handles registered there
    plans: dict[str, Plan] = field(default_factory=dict)  # handle -> its plan
    # (owner, reader) -> whether the reader can read the owner's memory.
    reachable: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def places_pruned(self) -> bool:
        """Whether only the nodes that a run needs are placed (`GraphOptions.place_pruned_graph`)."""
        return self.config.graph_options.place_pruned_graph

    @property
    def kept_placement(self) -> Kept:
        """What earlier steps have decided. The whole graph is placed again when it has grown; stateful nodes keep their devices."""
        if self.places_pruned:
            return Kept(assigned=self.assigned, pruned=True)
        before = self.placement
        if before is None:
            return Kept(later_steps=True)
        if len(before) == self.graph.version:
            return Kept(before, self.solution)
        return Kept(assigned={n.name: before.device_of(n) for n in before if n.opdef.is_stateful}, later_steps=True)
