"""How a master reaches the workers of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...placer.cluster.spec import Cluster
from ..config import ConfigProto
from ..shared_memory.remote_variables import VariableName
from ..worker.registration import Registration
from ..worker.worker import Worker


class WorkerClients:
    """The workers of a cluster of one task, which are called directly; `cluster_workers.py` extends it to more tasks.

    Args:
        worker: the task's own worker, with its devices.
    """

    def __init__(self, worker: Worker, incarnation: int) -> None:
        self._worker = worker
        self._incarnation = incarnation

    def devices(
        self, config: ConfigProto, tell: Callable[[Sequence[str]], None] | None = None,
        forsaken: Callable[[], bool] | None = None,
    ) -> Cluster:  # fmt: skip
        """All devices of the tasks that the session may use; waits up to `config.wait_for_cluster_s` for tasks that have not started.

        While it waits, it calls `tell` with the missing tasks now and then, and `forsaken` to find out whether the client has gone.

        Raises:
            CancelledError: the client has gone. UnavailableError: tasks are missing.
        """
        return Cluster(self._worker.devices, self._worker.task)

    def register(self, registrations: Mapping[str, Registration]) -> dict[str, int]:
        """Register the tasks' parts of a signature with all tasks at once. Returns the incarnations of the tasks' processes."""
        for registration in registrations.values():
            self._worker.register(registration)
        return dict.fromkeys(registrations, self._incarnation)

    def sees(self, task: str, owner: str, peer_timeout_s: float) -> bool:
        """Whether `task` can read variables in the memory of `owner`, another task."""
        return False

    def post(
        self, task: str, session: str, seed: int, isolated: bool, names: Sequence[VariableName], peer_timeout_s: float,
        changed: bool = False,
    ) -> tuple[int, Sequence[Sequence[int] | None]]:  # fmt: skip
        """Make a task publish variables of a session, named by container and name, for others to read, or to update if `changed`.

        Returns the incarnation of its process, and the address of each variable's record; None: others cannot reach it.
        """
        return self._incarnation, self._worker.post(session, seed, isolated, names, changed)

    def release(self, task: str, programs: Sequence[str]) -> None:
        """Release programs; a task that cannot be reached is no error."""
        self._worker.release(programs)

    def close_session(self, task: str, session: str) -> None:
        """Forget a session; a task that cannot be reached is no error: it has nothing to forget, or forgets when it restarts."""
        self._worker.close_session(session)

    def reset(self, task: str, containers: Sequence[str], sessions: Sequence[str], peer_timeout_s: float) -> None:
        """Clear containers and forget sessions."""
        self._worker.reset(containers, sessions)
