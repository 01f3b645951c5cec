"""The state of a running cluster: the metrics that each task reports, and the tasks that do not answer.

The address of one task is enough: a task knows the whole cluster. A query costs a task one message and has no side effects.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from typing import Any

from ...graph.core.errors import UnavailableError
from ..rpc.pending_call import call
from ..transport.client import Connections
from ..transport.keys import client_keys
from ..wire.messages import Message
from ..wire.schema import WireError

ANSWER_S = 2.0  # timeout for an answer; a live task answers at once


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


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a task between two queries, per second: steps, and bytes sent, by receiving task."""

    steps: float
    bytes_to: dict[str, float]


def rates(before: TaskStatus | None, now: TaskStatus) -> Rates | None:
    """The rates between two queries; None: they cannot be compared, as after a restart."""
    if before is None or before.figures is None or now.figures is None or now.at <= before.at:
        return None
    if before.figures["incarnation"] != now.figures["incarnation"]:
        return None
    seconds = now.at - before.at
    sent = {link["to"]: link["bytes"] for link in before.figures["links"]}
    return Rates(
        (now.figures["steps_started"] - before.figures["steps_started"]) / seconds,
        {link["to"]: (link["bytes"] - sent.get(link["to"], 0)) / seconds for link in now.figures["links"]},
    )


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
        self._requests = itertools.count(1)
        self._connections = Connections(client_keys(keys))
        try:
            asked = Message("stats", {"request": next(self._requests)})
            name = f"the server at {address}"
            try:
                reply = call(self._connections, address, name, asked, "figures", ANSWER_S, ANSWER_S * 2)
            except UnavailableError:
                raise UnavailableError.of(
                    f"No server answers at {address}, within {ANSWER_S:.0f} s: it is dead, stopped, cut off or not started. "
                    "Try the address of another task.",
                ) from None
        except BaseException:
            self._connections.close()
            raise
        figures = reply.fields["figures"]
        self._addresses: dict[str, str] = {**figures["cluster"], figures["task"]: address}

    def look(self) -> list[TaskStatus]:
        """Query all tasks. The status of a task that does not answer in time has no figures."""
        asked: dict[int, str] = {}
        for task, address in self._addresses.items():
            request = next(self._requests)
            asked[request] = task
            try:
                self._connections.send(address, Message("stats", {"request": request}))
            except OSError:  # it cannot be reached
                self._connections.forget(address)
        found: dict[str, TaskStatus] = {}
        deadline = time.monotonic() + ANSWER_S
        while len(found) < len(self._addresses) and time.monotonic() < deadline:
            try:
                arrived = self._connections.poll(max(0.0, deadline - time.monotonic()))
            except WireError:  # that task has another version
                continue
            for address, message in arrived:
                task = asked.get(message.fields.get("request", 0), "")
                if message.kind == "figures" and self._addresses.get(task) == address:
                    found[task] = TaskStatus(task, address, message.fields["figures"], time.monotonic())
        for task, address in self._addresses.items():
            if task not in found:
                self._connections.forget(address)  # the next query connects again
        now = time.monotonic()
        return [
            found.get(task) or TaskStatus(task, address, None, now) for task, address in sorted(self._addresses.items())
        ]

    def why_silent(self, address: str) -> str | None:
        """An explanation why a task does not answer, if keys are the reason."""
        return self._connections.why_silent(address)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()

    def __enter__(self) -> ClusterMonitor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
