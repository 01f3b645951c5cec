"""What all clusters have in common that this process started: their tasks, targets and devices, and an end."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Self

from ...placer.cluster.spec import ClusterSpec, DeviceInfo, masters_job
from ..rpc.pending_call import ConnectionPool, call
from ..transport.keys import Keys
from ..wire.messages import Message
from ..worker.registration import device_from_fields

ANSWER_S = 5.0  # timeout for an answer; a running task answers at once


class RunningCluster:
    """The base of `LocalCluster`, `RayCluster` and their like, which start the tasks and override `close`.

    Attributes:
        cluster_spec: the jobs, and the addresses of their tasks.
        keys: the keys of this process for connections to the tasks; None: there are none.
    """

    cluster_spec: ClusterSpec
    keys: Keys | None = None

    @property
    def tasks(self) -> list[tuple[str, int]]:
        """(job, index) of all tasks."""
        return [(job, i) for job in self.cluster_spec.jobs for i in self.cluster_spec.task_indices(job)]

    def target(self, job: str | None = None, task_index: int = 0) -> str:
        """The session target of a task: `zmq://host:port`.

        Args:
            job: the task's job; None: `chief`, `master` or `worker`, else the first by name.
            task_index: which of the job's tasks.
        """
        job = masters_job(self.cluster_spec.jobs) if job is None else job
        return f"zmq://{self.cluster_spec.task_address(job, task_index)}"

    def list_devices(self) -> list[DeviceInfo]:
        """The devices of all tasks, those of the first task of `chief`, `master` or `worker` first, else by task.

        Raises:
            UnavailableError: a task does not answer.
        """
        found: list[DeviceInfo] = []
        pool = ConnectionPool(self.keys)
        with contextlib.closing(pool), pool.borrow() as connections:
            for number, (job, i) in enumerate(self.tasks):
                address = self.cluster_spec.task_address(job, i)
                asked = Message("status", {"request": number})
                reply = call(connections, address, f"/job:{job}/task:{i}", asked, "devices", ANSWER_S, ANSWER_S)
                found += [device_from_fields(d) for d in reply.fields["devices"]]
        first = masters_job(self.cluster_spec.jobs)
        return sorted(found, key=lambda d: (d.name.job != first, d.name))

    def close(self) -> None:
        """End all tasks. Closing twice does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
