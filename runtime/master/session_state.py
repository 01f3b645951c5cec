"""A master's state of a session, its interface to the workers, and the description of one task's part of a step for a client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...graph.core.graph import Graph
from ...placer.cluster.spec import Cluster
from ...placer.plan import Plan
from ...placer.rules.placement import Placement
from ..config import ConfigProto
from ..worker.registration import Registration

__all__ = ["MasterSession", "TaskPart", "WorkerClients"]


class WorkerClients(Protocol):
    """How a master reaches the workers of a cluster, including that of its own task."""

    def devices(
        self,
        config: ConfigProto,
        tell: Callable[[Sequence[str]], None] | None = None,
        forsaken: Callable[[], bool] | None = None,
    ) -> Cluster:
        """All devices of the tasks that the session may use; waits up to `config.wait_for_cluster_s` for tasks that have not started.

        While it waits, it calls `tell` with the missing tasks now and then, and `forsaken` to find out whether the client has gone.

        Raises:
            CancelledError: the client has gone. UnavailableError: tasks are missing.
        """
        ...

    def register(self, task: str, registration: Registration) -> int:
        """Register one task's part of a signature, and return the incarnation of the task's process."""
        ...

    def sees(self, task: str, owner: str, peer_timeout_s: float) -> bool:
        """Whether `task` can read variables in the memory of `owner`."""
        ...

    def post(
        self,
        task: str,
        session: str,
        seed: int,
        isolated: bool,
        names: Sequence[Sequence[str]],
        peer_timeout_s: float,
        changed: bool = False,
    ) -> tuple[int, Sequence[Sequence[int] | None]]:
        """Make a task publish variables of a session, named by container and name, for others to read, or to update if `changed`.

        Returns the incarnation of its process, and the address of each variable's record; None: others cannot reach it.
        Accumulators that are to be updated are named as `shared_memory.remote_variables.accumulator_name` does.
        """
        ...

    def release(self, task: str, programs: Sequence[str]) -> None:
        """Release programs; a task that cannot be reached is no error."""
        ...

    def close_session(self, task: str, session: str) -> None:
        """Forget a session; a task that cannot be reached is no error."""
        ...

    def reset(self, task: str, containers: Sequence[str], sessions: Sequence[str], peer_timeout_s: float) -> None:
        """Clear containers and forget sessions."""
        ...


@dataclass(frozen=True, slots=True)
class TaskPart:
    """The client's description of one task's part of a run signature.

    Attributes:
        task: `/job:ps/replica:0/task:0`.
        incarnation: incarnation of the task's process when the part was registered.
        program: handle of the registered program.
        feeds: names of the values that are fed to it.
        fetches: names of the values that it returns, in order.
        reports: whether it reports the end of its part (`lowering.py`, completion elision).
        data_triggered: whether the tensors that it receives start it (`lowering.py`).
    """

    task: str
    incarnation: int
    program: str
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    reports: bool = True
    data_triggered: bool = False

    def to_fields(self, address: str) -> dict[str, Any]:
        """The fields of the part in a `prepared` message, with the address of its task."""
        return {
            "task": self.task, "address": address, "incarnation": self.incarnation, "program": self.program,
            "feeds": list(self.feeds), "fetches": list(self.fetches), "reports": self.reports, "carried": self.data_triggered,
        }  # fmt: skip

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TaskPart:
        """The inverse of `to_fields`."""
        return cls(
            fields["task"], fields["incarnation"], fields["program"], tuple(fields["feeds"]), tuple(fields["fetches"]),
            fields["reports"], fields["carried"],
        )  # fmt: skip


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
    is_local: bool = False  # whether client and master share the process, and so the graph
    placement: Placement | None = None  # of the whole graph
    kept: dict[str, str] = field(
        default_factory=dict
    )  # devices of stateful nodes, if only the nodes that a run needs are placed
    programs: dict[str, set[str]] = field(default_factory=dict)  # task -> handles registered there
    plans: dict[str, Plan] = field(default_factory=dict)  # handle -> its plan
    near: dict[tuple[str, str], bool] = field(
        default_factory=dict
    )  # (owner, reader) -> whether the reader can read the owner's memory

    @property
    def places_pruned(self) -> bool:
        """Whether only the nodes that a run needs are placed (`GraphOptions.place_pruned_graph`)."""
        return self.is_local and self.config.graph_options.place_pruned_graph
