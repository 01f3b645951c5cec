"""A session in this process: one task, no sockets, no threads."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ..codegen.options import KernelOptions
from ..codegen.unit import Unit
from ..graph.errors import InternalError, OpError
from ..graph.graph import Graph
from ..graph.settings import setting
from ..placer.cluster import Cluster, local_devices
from ..placer.plan import Plan
from .config import ConfigProto
from .master import Master, Part
from .worker import Worker

LOCAL_TASK = "/job:localhost/replica:0/task:0"


def in_process(graph: Graph, config: ConfigProto) -> InProcess:
    """The target of a session without servers: one task, no sockets, no threads."""
    devices = local_devices(LOCAL_TASK, config.device_count, setting("DOVETAIL_EMULATE_GPUS"))
    worker = Worker(LOCAL_TASK, devices, default_container="localhost")
    master = Master(LOCAL_TASK, _OwnWorker(worker))
    return InProcess(master, worker, graph, config)


class _OwnWorker:
    """`Peers` of a master that has only its own worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def devices(self, config: ConfigProto) -> Cluster:
        return Cluster(self._worker.devices, self._worker.task)

    def register(
        self,
        task: str,
        program: str,
        session: str,
        units: Sequence[Unit],
        seed: int,
        isolated: bool,
        kernels: KernelOptions,
    ) -> int:
        self._worker.register(program, session, units, seed=seed, isolated=isolated, kernels=kernels)
        return self._worker.devices[0].incarnation

    def release(self, task: str, programs: Sequence[str]) -> None:
        self._worker.release(programs)

    def close_session(self, task: str, session: str) -> None:
        self._worker.close_session(session)

    def reset(self, task: str, containers: Sequence[str]) -> None:
        self._worker.reset(containers)


class InProcess:
    """A session in this process: one task, `/job:localhost`, whose worker runs in the caller's thread."""

    def __init__(self, master: Master, worker: Worker, graph: Graph, config: ConfigProto) -> None:
        self._master = master
        self._worker = worker
        self._session = master.create_session(config, graph)
        self._numbers = itertools.count(1)
        self.devices = self._session.cluster.devices

    def extend(self, graph: Graph) -> None:
        """Nothing to do: the master sees the user's own graph."""

    def prepare(
        self, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str], warm: bool = False
    ) -> list[Part]:
        """As `Target.prepare`."""
        return self._master.prepare(self._session.handle, fetches, targets, feeds, warm)

    def plan(
        self, graph: Graph, fetches: Sequence[str], targets: Sequence[str], feeds: Sequence[str], program: str
    ) -> Plan:
        """As `Target.plan`."""
        return self._master.plan(self._session.handle, fetches, targets, feeds, program)

    def run(self, parts: Sequence[Part], feeds: Mapping[str, Any], timeout_s: float | None) -> dict[str, Any]:
        """As `Target.run`. The worker has no pool, so the step has ended when `start` returns."""
        outcome: list[Mapping[str, Any] | OpError] = []
        values: dict[str, Any] = {}
        for part in parts:
            number = next(self._numbers)
            self._worker.start(number, part.program, feeds, outcome.append)
            if not outcome:
                waits = "; ".join(self._worker.waits_for(number))
                self._worker.abort(number, "The step cannot go on")
                raise InternalError(None, None, f"The step cannot go on: {waits}")
            result = outcome.pop()
            if isinstance(result, OpError):
                raise result
            values.update(result)
        return values

    def close(self) -> None:
        """As `Target.close`."""
        self._master.close_session(self._session.handle)
        self._worker.close()
