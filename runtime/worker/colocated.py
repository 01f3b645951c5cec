"""The servers of this process: a session in the same process hands them its steps without a message.

Between-graph replication uses it: the client of each worker runs in the process of the worker's server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from weakref import ref

from ...graph.core.errors import OpError
from ...graph.core.interpreter_state import process_id
from ..observability.step_notes import Recorder


class CallerThread:
    """A client's thread that waits for its step. Meanwhile it runs programs of the step, which saves waking another thread.

    Args:
        wake: wakes the thread.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._work: Callable[[], None] | None = None
        self._is_busy = False

    def take(self, work: Callable[[], None]) -> bool:
        """Have the thread do some work; False if it is busy."""
        with self._lock:
            if self._is_busy:
                return False
            self._is_busy = True
        self._work = work
        self.notify()
        return True

    def notify(self) -> None:
        """Wake the thread, unless it is the calling one."""
        if threading.get_ident() != self._thread:
            self._wake()

    def work(self) -> bool:
        """Do the work that was taken; False if there is none. The client's thread calls it."""
        work, self._work = self._work, None
        if work is None:
            return False
        try:
            work()
        finally:
            self._is_busy = False
        return True


class ColocatedServer(Protocol):
    """The interface that a session uses of a server in its own process. `Server` implements it, in a higher layer."""

    task: str
    incarnation: int

    def start_step(
        self,
        step: int,
        program: str,
        feeds: Mapping[str, Any],
        finish: Callable[[Mapping[str, Any] | OpError], None],
        *,
        caller_thread: CallerThread | None,
        recorder: Recorder | None = None,
    ) -> None:
        """Run this task's part of a step; see `Worker.start`."""
        ...

    def abort_step(self, step: int, reason: str) -> None:
        """End a step."""
        ...

    def waits_of(self, step: int) -> list[str]:
        """What this task's part of a step waits for, in words."""
        ...


_servers: dict[str, tuple[int, ref[ColocatedServer]]] = {}  # by address: the process that it runs in, and the server


def add_server(address: str, server: ColocatedServer) -> None:
    """Register `server`, which listens at `address`. A forked child does not have it."""
    _servers[address] = process_id(), ref(server)


def remove_server(address: str) -> None:
    """Remove the server at `address`, which has stopped listening."""
    if _servers.get(address, (0,))[0] == process_id():
        del _servers[address]


def colocated_servers() -> list[ColocatedServer]:
    """The servers of this process that listen."""
    found = [server() for process, server in list(_servers.values()) if process == process_id()]
    return [s for s in found if s is not None]


def colocated_tasks() -> list[str]:
    """The tasks of the servers of this process."""
    return [s.task for s in colocated_servers()]


def find_colocated(address: str, incarnation: int) -> ColocatedServer | None:
    """The server that listens at `address`, if it belongs to this process and has this incarnation."""
    found = _servers.get(address)
    if found is None or found[0] != process_id():
        return None
    server = found[1]()
    return server if server is not None and server.incarnation == incarnation else None
