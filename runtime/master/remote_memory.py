"""What the tasks of a session reach of each other's memory: the answers that a plan of a running cluster is made with.

The placer determines which reads, updates and additions of a step could be one-sided (`placer/partition/one_sided_access.py`). This module
asks the tasks whether one reaches the memory of the other (once in a session), and at which addresses the variables are published
(`shared_memory/remote_variables.py` answers). Other variables are sent, or updated by their own task.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...placer.partition.one_sided_access import SharedNode
from ...placer.partition.one_sided_reads import Place
from ..shared_memory.remote_variables import name_of
from .session_state import MasterSession
from .worker_clients import WorkerClients


class FoundAccess:
    """Asks a session's tasks, for one plan: a `MemoryAccess` of the placer.

    Attributes:
        published: the incarnation of the owner's process and the address of the record, for each place that is published.
    """

    found = True

    def __init__(self, workers: WorkerClients, session: MasterSession) -> None:
        self._workers, self._session = workers, session
        self._asked: dict[tuple[Place, bool], bool] = {}  # (place, writable) -> whether it is published so
        self.published: dict[Place, tuple[int, tuple[int, ...]]] = {}

    def reaches(self, task: str, owner: str) -> bool:
        """Whether a task can read the memory of another one; remembered for the session."""
        reachable, pair = self._session.reachable, (owner, task)
        if pair not in reachable:
            reachable[pair] = self._workers.sees(task, owner, self._session.config.peer_timeout_s)
        return reachable[pair]

    def publishes(self, owner: str, wanted: Sequence[SharedNode], writable: bool) -> Sequence[bool]:
        """Whether the owner publishes each of these, for changes by others if `writable`."""
        new = {place: node for node, place in wanted if (place, writable) not in self._asked}
        if new:
            session = self._session
            names = [name_of(node, *place[1:]) for place, node in new.items()]
            incarnation, addresses = self._workers.post(
                owner, session.handle, session.seed, session.config.isolate_session_state, names,
                session.config.peer_timeout_s, writable,
            )  # fmt: skip
            for place, address in zip(new, addresses, strict=True):
                self._asked[place, writable] = address is not None
                if address is not None:
                    self.published[place] = incarnation, tuple(address)
        return [self._asked[place, writable] for _, place in wanted]
