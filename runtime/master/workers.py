"""How a master reaches the workers of its cluster: it calls that of its own task directly, and sends messages to the others."""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ...graph.core.device import is_compatible, parse_strict
from ...graph.core.errors import CancelledError, DeadlineExceededError, UnavailableError, invalid
from ...placer.cluster.spec import Cluster, ClusterSpec, DeviceInfo, addresses_of
from ..config import ConfigProto
from ..rpc.pending_call import ConnectionPool, call_all
from ..shared_memory.remote_variables import VariableName
from ..transport.endpoint import Endpoint
from ..transport.keys import Keys
from ..wire.messages import Message
from ..worker.registration import Registration, device_from_fields
from ..worker.worker import Worker

logger = logging.getLogger(__name__)

CONTROL_TIMEOUT_S = 60.0  # for one call between servers, such as registering a large part
TELL_MISSING_S = 2.0  # interval of the reports of missing tasks while a session is created


@functools.cache
def _process_ends() -> threading.Event:
    """An event that is set when this process is ending, before it joins its threads.

    `atexit` handlers run after that, too late for a waiting thread; `concurrent.futures` uses the same hook.
    """
    event = threading.Event()
    threading._register_atexit(event.set)  # type: ignore[attr-defined]
    return event


class Workers:
    """The workers of a cluster.

    Args:
        worker, incarnation: of the master's own task.
        spec: the cluster; None: the own task alone, as in a session without servers.
        endpoint: the server's endpoint; None while it has none.
    """

    def __init__(
        self, worker: Worker, incarnation: int, spec: ClusterSpec | None = None, keys: Keys | None = None,
        endpoint: Callable[[], Endpoint | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._worker = worker
        self._incarnation = incarnation
        self._endpoint = endpoint
        self._connections = ConnectionPool(keys)
        self._requests = itertools.count(1)
        self._closed = False
        self._addresses = {} if spec is None else addresses_of(spec)

    def set_cluster(self, spec: ClusterSpec) -> None:
        """Take another cluster from now on."""
        self._addresses = addresses_of(spec)

    def address(self, task: str) -> str:
        """The address at which a task listens."""
        if task == self._worker.task:
            endpoint = self._endpoint()
            if endpoint is not None:
                return endpoint.address  # the port may have been chosen by the system
        return self._addresses[task]

    def tasks(self) -> Collection[str]:
        """The tasks of the cluster."""
        return self._addresses.keys()

    def knows(self, task: str) -> bool:
        """Whether `task` is a task of the cluster."""
        return task in self._addresses

    def devices(
        self, config: ConfigProto, tell: Callable[[Sequence[str]], None] | None = None,
        forsaken: Callable[[], bool] | None = None,
    ) -> Cluster:  # fmt: skip
        """All devices of the tasks that the session may use; waits up to `config.wait_for_cluster_s` for tasks that have not started.

        It asks all tasks that the filters admit, again and again. While it waits, it calls `tell` with the missing tasks now and then,
        and `forsaken` to find out whether the client has gone.

        Raises:
            CancelledError: the client has gone. UnavailableError: tasks are missing.
        """
        if not self._addresses:
            return Cluster(self._worker.devices, self._worker.task)
        filters = [parse_strict(f) for f in config.device_filters]
        absent = {
            task: address
            for task, address in self._addresses.items()
            if task != self._worker.task and (not filters or any(is_compatible(f, parse_strict(task)) for f in filters))
        }
        found: list[DeviceInfo] = list(self._worker.devices)
        began = time.monotonic()
        told = began
        process_ends = _process_ends()
        with self._connections.borrow() as connections:
            asked_at = -1.0
            while absent:
                if self._closed or process_ends.is_set():
                    raise CancelledError.of(f"{self._worker.task} was stopped while it waited for its cluster")
                now = time.monotonic()
                if forsaken is not None and forsaken():
                    names = ", ".join(f"{t} at {a}" for t, a in absent.items())
                    waited = f"{self._worker.task} waited {now - began:.0f} s for {names}"
                    text = f"The client that asked for a session has gone: {waited}"
                    logger.warning("%s", text)
                    raise CancelledError.of(text)
                if now - asked_at > 0.5:
                    asked_at = now
                    for task, address in absent.items():
                        try:
                            connections.send(address, Message("status", {"request": next(self._requests)}))
                        except OSError as e:
                            connections.forget(address)
                            logger.info("%s at %s: %s", task, address, e)
                for address, reply in connections.poll(0.1):
                    answering = [t for t, a in absent.items() if a == address]
                    if reply.kind == "devices" and answering:
                        (task,) = answering
                        devices = [device_from_fields(d) for d in reply.fields["devices"]]
                        if any(d.name.task_name != task for d in devices):
                            raise invalid(
                                f"The server at {address} says that it is {devices[0].name.task_name}, not {task}: "
                                "the cluster specs differ"
                            )
                        found.extend(devices)
                        del absent[task]
                names = ", ".join(f"{t} at {a}" for t, a in absent.items())
                now = time.monotonic()
                if absent and now - began > config.wait_for_cluster_s:
                    locked = next(filter(None, map(connections.why_silent, absent.values())), None)
                    raise UnavailableError.of(
                        f"Waited {now - began:.0f} s for {names}: "
                        + (
                            locked
                            or "not started, or cannot be reached. Start it, leave it out with device_filters, or wait longer with "
                            "ConfigProto(wait_for_cluster_s=...)."
                        )
                    )
                if absent and now - told > TELL_MISSING_S:
                    told = now
                    logger.warning("CreateSession still waiting for response from worker: %s", names)
                    if tell is not None:
                        tell([f"{t} at {a}" for t, a in absent.items()])
        return Cluster(tuple(found), self._worker.task).filtered(config.device_filters)

    def register(self, registrations: Mapping[str, Registration]) -> dict[str, int]:
        """Register the tasks' parts of a signature: the other tasks compile their parts while this one compiles its own.

        Returns the incarnations of the tasks' processes.
        """
        mine = registrations.get(self._worker.task)
        others = {task: new.to_fields() for task, new in registrations.items() if new is not mine}

        def own() -> None:
            if mine is not None:
                self._worker.register(mine)

        found = dict.fromkeys(registrations, self._incarnation)
        if others:
            patience = next(iter(registrations.values())).peer_timeout_s
            for task, reply in self._call_all(others, "register", "registered", patience, own).items():
                found[task] = reply.fields["incarnation"]
        else:
            own()
        return found

    def sees(self, task: str, owner: str, peer_timeout_s: float) -> bool:
        """Whether `task` can read variables in the memory of `owner`, another task."""
        direct, mine = self._worker.direct, self._worker.task
        if owner == mine:
            page = direct.page()
        else:
            page = self._call(owner, "expose_memory", {}, "memory_exposed", peer_timeout_s).fields["page"]
        if page is None or task == mine:
            return page is not None and direct.sees(page)
        return bool(self._call(task, "map_memory", {"page": page}, "memory_mapped", peer_timeout_s).fields["readable"])

    def post(
        self, task: str, session: str, seed: int, isolated: bool, names: Sequence[VariableName], peer_timeout_s: float,
        changed: bool = False,
    ) -> tuple[int, Sequence[Sequence[int] | None]]:  # fmt: skip
        """Make a task publish variables of a session, named by container and name, for others to read, or to update if `changed`.

        Returns the incarnation of its process, and the address of each variable's record; None: others cannot reach it.
        """
        if task == self._worker.task:
            return self._incarnation, self._worker.post(session, seed, isolated, names, changed)
        fields = {"session": session, "seed": seed, "isolated": isolated, "names": names, "changed": changed}
        reply = self._call(task, "publish", fields, "published", peer_timeout_s).fields
        return reply["incarnation"], reply["places"]

    def close_session(self, task: str, session: str) -> None:
        """Forget a session; a task that cannot be reached is no error: it has nothing to forget, or forgets when it restarts."""
        if task == self._worker.task:
            self._worker.close_session(session)
        else:
            self._tell(task, Message("forget_session", {"session": session}))

    def reset(self, task: str, containers: Sequence[str], sessions: Sequence[str], peer_timeout_s: float) -> None:
        """Clear containers and forget sessions."""
        if task == self._worker.task:
            self._worker.reset(containers, sessions)
        else:
            fields = {"containers": list(containers), "sessions": list(sessions)}
            self._call(task, "reset_containers", fields, "closed", peer_timeout_s)

    def _tell(self, task: str, message: Message) -> None:
        endpoint = self._endpoint()
        if endpoint is not None:
            endpoint.send(self._addresses[task], message)

    def _call(self, task: str, kind: str, fields: dict[str, Any], answer: str, patience: float) -> Message:
        return self._call_all({task: fields}, kind, answer, patience)[task]

    def _call_all(
        self, fields: Mapping[str, dict[str, Any]], kind: str, answer: str, patience: float,
        meanwhile: Callable[[], None] | None = None,
    ) -> dict[str, Message]:  # fmt: skip
        """Call several tasks at once."""
        request, at = next(self._requests), self._addresses
        requests = {at[task]: (task, Message(kind, {"request": request, **more})) for task, more in fields.items()}
        with self._connections.borrow() as connections:
            try:
                replies = call_all(connections, requests, answer, patience, CONTROL_TIMEOUT_S, meanwhile=meanwhile)
            except DeadlineExceededError as e:
                raise UnavailableError.of(e.message) from None
        return {task: replies[at[task]] for task in fields}

    def close(self) -> None:
        """Close the connections, and stop waiting for tasks that have not started."""
        self._closed = True
        self._connections.close()
