"""How a master reaches the workers of its cluster: it calls that of its own task directly, and sends messages to the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import thread as pools
from typing import Any

from ...graph.core.device import is_compatible, parse_strict
from ...graph.core.errors import CancelledError, DeadlineExceededError, UnavailableError, invalid
from ...placer.cluster.spec import Cluster, DeviceInfo
from ..config import ConfigProto
from ..rpc.dispatch import Responder
from ..rpc.pending_call import ConnectionPool, Inquiry, call_all
from ..timeouts import CONTROL_TIMEOUT_S
from ..transport.keys import Keys
from ..wire.messages import Message
from ..worker.registration import Registration, device_from_fields
from ..worker.worker import Worker

logger = logging.getLogger(__name__)

TELL_MISSING_S = 2.0  # interval of the reports of missing tasks while a session is created


class Workers:
    """The workers of a cluster.

    Args:
        worker: of the master's own task.
        responder: of its server, with the addresses of the others; None: the own task alone, as in a session without servers.
    """

    def __init__(self, worker: Worker, responder: Responder | None = None, keys: Keys | None = None) -> None:
        self._worker = worker
        self._responder = responder
        self._connections = ConnectionPool(keys)
        self._closed = False

    def devices(
        self, config: ConfigProto, on_missing: Callable[[Sequence[str]], None] | None = None,
        is_abandoned: Callable[[], bool] | None = None,
    ) -> Cluster:  # fmt: skip
        """All devices of the tasks that the session may use; waits up to `config.wait_for_cluster_s` for tasks that have not started.

        While it waits, it calls `on_missing` with the missing tasks now and then. `is_abandoned`: whether the client has gone.

        Raises:
            CancelledError: the client has gone. UnavailableError: tasks are missing.
        """
        mine = self._worker.task
        if self._responder is None:
            return Cluster(self._worker.devices, mine)
        filters = [parse_strict(f) for f in config.device_filters]
        others = {
            address: task
            for task, address in self._responder.addresses.items()
            if task != mine and (not filters or any(is_compatible(f, parse_strict(task)) for f in filters))
        }
        found: list[DeviceInfo] = list(self._worker.devices)
        began = reported = time.monotonic()
        with self._connections.borrow() as connections:
            inquiry = Inquiry(connections, others, "status")
            while inquiry.waiting:
                for address, reply in inquiry.look(0.1).items():
                    devices = [device_from_fields(d) for d in reply.fields["devices"]]
                    if any(d.name.task_name != others[address] for d in devices):
                        raise invalid(
                            f"The server at {address} says that it is {devices[0].name.task_name}, not {others[address]}: "
                            "the cluster specs differ"
                        )
                    found.extend(devices)
                    del inquiry.waiting[address]
                missing = [f"{others[a]} at {a}" for a in inquiry.waiting]
                if not missing:
                    break
                if self._closed or pools._shutdown:  # this process is ending: it joins the threads of its pools
                    raise CancelledError.of(f"{mine} was stopped while it waited for its cluster")
                now, names = time.monotonic(), ", ".join(missing)
                if is_abandoned is not None and is_abandoned():
                    text = (
                        f"The client that asked for a session has gone: {mine} waited {now - began:.0f} s for {names}"
                    )
                    logger.warning("%s", text)
                    raise CancelledError.of(text)
                if now - began > config.wait_for_cluster_s:
                    locked = next(filter(None, map(connections.why_silent, inquiry.waiting)), None)
                    raise UnavailableError.of(
                        f"Waited {now - began:.0f} s for {names}: "
                        + (
                            locked
                            or "not started, or cannot be reached. Start it, leave it out with device_filters, or wait longer with "
                            "ConfigProto(wait_for_cluster_s=...)."
                        )
                    )
                if now - reported > TELL_MISSING_S:
                    reported = now
                    logger.warning("CreateSession still waiting for response from worker: %s", names)
                    if on_missing is not None:
                        on_missing(missing)
        return Cluster(tuple(found), mine).filtered(config.device_filters)

    def register(self, registrations: Mapping[str, Registration], patience_s: float) -> dict[str, int]:
        """Register the tasks' parts of a signature, and return the incarnations of the tasks' processes."""
        mine = self._worker.task
        messages = {
            task: Message("register", {"new": new} if task == mine else new.to_fields())
            for task, new in registrations.items()
        }
        replies = self.call_all(messages, patience_s)
        return {task: reply.fields["incarnation"] for task, reply in replies.items()}

    def close_session(self, task: str, session: str) -> None:
        """Forget a session; a task that cannot be reached is no error: it has nothing to forget, or forgets when it restarts."""
        if task == self._worker.task:
            self._worker.close_session(session)
        elif self._responder is not None:
            self._responder.notify(task, Message("forget_session", {"session": session}))

    def call(self, task: str, kind: str, patience_s: float, **fields: Any) -> dict[str, Any]:
        """Have a task do what a message of this kind asks for, and return the fields of its reply."""
        return self.call_all({task: Message(kind, fields)}, patience_s)[task].fields

    def call_all(
        self, messages: Mapping[str, Message], patience_s: float, limit_s: float | None = CONTROL_TIMEOUT_S
    ) -> dict[str, Message]:
        """Have tasks do at once what their messages ask for: the reply of each. One that is silent for `patience_s` counts as dead.

        The master's own task gets no message: its worker has a method for each kind, and does its part while the others work.
        """
        own, replies = messages.get(self._worker.task), dict[str, Message]()
        at = {} if self._responder is None else self._responder.addresses
        others = {at[task]: (task, message) for task, message in messages.items() if message is not own}

        def meanwhile() -> None:
            if own is not None:
                replies[self._worker.task] = Message(own.kind, getattr(self._worker, own.kind)(**own.fields))

        if not others:
            meanwhile()
            return replies
        with self._connections.borrow() as connections:
            try:
                found = call_all(connections, others, patience_s, limit_s, meanwhile=meanwhile)
            except DeadlineExceededError as e:
                raise UnavailableError.of(e.message) from None
        return replies | {others[address][0]: reply for address, reply in found.items()}

    def close(self) -> None:
        """Close the connections, and stop waiting for tasks that have not started."""
        self._closed = True
        self._connections.close()
