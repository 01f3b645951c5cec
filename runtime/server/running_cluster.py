"""Running clusters: the base of those that this process starts, and the state of all tasks of any, seen from outside.

The address of one task is enough to see a cluster's state: a task knows the whole cluster. A query costs a task one message and has no
side effects.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ...graph.core.errors import UnavailableError
from ...placer.cluster.spec import ClusterSpec, DeviceInfo, masters_job, task_addresses
from ..rpc.pending_call import Inquiry, call, call_all, child_processes
from ..timeouts import AGAIN_S, ANSWER_S, STATUS_S
from ..transport.client import Connections
from ..transport.keys import Keys, client_keys
from ..wire.messages import Message
from ..worker.registration import device_from_fields

LOOK_S = 0.05  # between the answer of a task that is waited for and the next question to it


class RunningCluster:
    """Base of `LocalCluster`, `RayCluster` and `SlurmCluster`, which start the tasks and override `close`.

    Attributes:
        cluster_spec: the jobs, and the addresses of their tasks.
        keys: the keys of this process for connections to the tasks; None: no keys.
    """

    cluster_spec: ClusterSpec
    keys: Keys | None = None

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """(job, index) of each task."""
        return list(task_addresses(self.cluster_spec))

    def target(self, job: str | None = None, task_index: int = 0) -> str:
        """The session target of a task: `zmq://host:port`.

        Args:
            job: the task's job; None: `chief`, `master` or `worker`, else the first job by name.
            task_index: index of the task in its job.
        """
        job = masters_job(self.cluster_spec.jobs) if job is None else job
        return f"zmq://{self.cluster_spec.task_address(job, task_index)}"

    def list_devices(self) -> list[DeviceInfo]:
        """The devices of all tasks, those of the first task of `chief`, `master` or `worker` first, else by task.

        Raises:
            UnavailableError: a task does not answer.
        """
        asked = {
            address: (f"/job:{job}/task:{i}", Message("status"))
            for (job, i), address in task_addresses(self.cluster_spec).items()
        }
        with Connections(self.keys) as connections:
            replies = call_all(connections, asked, ANSWER_S, ANSWER_S)
        found = [device_from_fields(d) for reply in replies.values() for d in reply.fields["devices"]]
        first = masters_job(self.cluster_spec.jobs)
        return sorted(found, key=lambda d: (d.name.job != first, d.name))

    def environment(self) -> dict[str, str]:
        """The environment variables for a client of this cluster: `TARGET`, `TF_CONFIG`, `DOVETAIL_KEYS`."""
        keys = {} if self.keys is None else {"DOVETAIL_KEYS": str(self.keys.folder)}
        return {"TARGET": self.target(), "TF_CONFIG": json.dumps({"cluster": self.cluster_spec.as_dict()}), **keys}

    def wait_until_up(self, timeout_s: float = 30.0) -> None:
        """Wait until each task answers. A task whose program has already finished counts as up.

        With `ps_replicas=2`, wait also until each parameter server's variables have a copy in the next server.

        Args:
            timeout_s: seconds to wait.

        Raises:
            UnavailableError: a task has ended, or does not answer in time.
        """
        tasks = {address: task for task, address in task_addresses(self.cluster_spec).items()}
        deadline = time.monotonic() + timeout_s
        figures: dict[str, Mapping[str, Any]] = {}  # of the tasks that have answered, by address
        with Connections(self.keys) as connections:
            inquiry = Inquiry(connections, tasks, "stats")
            while waiting := inquiry.waiting:
                for address, reply in inquiry.look(LOOK_S).items():
                    figures[address] = reply.fields["figures"]
                    waiting[address] = time.monotonic() + LOOK_S  # it may not have answered as it should
                incarnations = {found.get("incarnation") for found in figures.values()}
                # Its backup may have been started again, which it may not know yet.
                for address, found in figures.items():
                    if found.get("replicated_by") in (None, *incarnations):
                        waiting.pop(address, None)
                for address in self._finished({a: tasks[a] for a in waiting}):
                    del waiting[address]
                if waiting and time.monotonic() > deadline:
                    names = ", ".join(f"/job:{job}/task:{i} at {a}" for a in waiting for job, i in [tasks[a]])
                    unsure = any(child_processes.get(a, lambda: "unknown")() for a in waiting)
                    raise UnavailableError.of(
                        f"No answer within {timeout_s:.0f} s from {names}. {'If they' if unsure else 'They'} run: the machine may be "
                        "busy. Give them more time (start_timeout_s), or look at their output."
                    )

    def _finished(self, waiting: Mapping[str, tuple[str, int]]) -> Collection[str]:
        """Which of the tasks that are waited for have finished. UnavailableError: one has failed."""
        return ()

    def close(self) -> None:
        """End all tasks. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The state of one task at one moment.

    Attributes:
        task: `/job:ps/replica:0/task:0`.
        address: `host:port`.
        figures: its metrics (`Server.figures`); None: it does not answer.
        at: the time of the query, in seconds of a monotonic clock of this process.
    """

    task: str
    address: str
    figures: dict[str, Any] | None
    at: float


class ClusterMonitor:
    """Queries all tasks of a running cluster.

    Args:
        address: `host:port` of any of its tasks.
        keys: folder of keys; None: the folder in DOVETAIL_KEYS, or no keys.

    Raises:
        UnavailableError: the task does not answer. PermissionDeniedError: it does not accept the key of this process.

    >>> with ClusterMonitor("localhost:2222") as monitor:    # doctest: +SKIP
    ...     print([view.task for view in monitor.look()])
    ['/job:ps/replica:0/task:0', '/job:worker/replica:0/task:0']
    """

    def __init__(self, address: str, keys: str | None = None) -> None:
        self._connections = Connections(client_keys(keys))
        try:
            reply = call(self._connections, address, Message("stats"), STATUS_S, STATUS_S * 2)
        except BaseException as e:
            self._connections.close()
            if not isinstance(e, UnavailableError):
                raise
            raise UnavailableError.of(
                f"No server answers at {address}, within {STATUS_S:.0f} s: it is dead, stopped, cut off or not started. "
                "Try the address of another task.",
            ) from None
        figures = reply.fields["figures"]
        self._addresses: dict[str, str] = {**figures["cluster"], figures["task"]: address}

    def look(self) -> list[TaskStatus]:
        """Query all tasks. The status of a task that does not answer in time has no figures."""
        inquiry = Inquiry(self._connections, self._addresses.values(), "stats")
        found: dict[str, tuple[dict[str, Any] | None, float]] = {}
        deadline = time.monotonic() + STATUS_S
        while inquiry.waiting and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(UnavailableError):  # a task has another version
                for address, message in inquiry.look(min(left, AGAIN_S)).items():
                    found[address] = message.fields["figures"], time.monotonic()
                    del inquiry.waiting[address]
        for address in inquiry.waiting:
            self._connections.forget(address)  # the next query connects again
        silent = None, time.monotonic()
        return [TaskStatus(task, at, *found.get(at, silent)) for task, at in sorted(self._addresses.items())]

    def close(self) -> None:
        self._connections.close()

    def __enter__(self) -> ClusterMonitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
