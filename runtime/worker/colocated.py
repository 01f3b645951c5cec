"""The servers of this process: a session in the same process hands them its steps without a message.

Between-graph replication uses it: the client of each worker runs in the process of the worker's server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol
from weakref import ref

from ...graph.core.interpreter_state import process_id

if TYPE_CHECKING:  # distribution strategies ask for these servers, and need no ZeroMQ
    from .worker import Worker


class ColocatedServer(Protocol):
    """What this module needs of a server, which is in a higher layer."""

    task: str
    incarnation: int


_servers: dict[str, tuple[int, ref[ColocatedServer], ref[Worker]]] = {}  # by address; the first: the process


def add_server(address: str, server: ColocatedServer, worker: Worker) -> None:
    """Register `server`, which listens at `address`, and its worker. A forked child does not have it."""
    _servers[address] = process_id(), ref(server), ref(worker)


def remove_server(address: str) -> None:
    """Remove the server at `address`, which has stopped listening."""
    if address in _servers and _servers[address][0] == process_id():
        del _servers[address]


def colocated_servers() -> list[ColocatedServer]:
    """The servers of this process that listen."""
    found = [server() for process, server, _ in list(_servers.values()) if process == process_id()]
    return [s for s in found if s is not None]


def colocated_task(address: str) -> str | None:
    """The task of the server that listens at `address`, if it belongs to this process."""
    process, server, _ = _servers.get(address, (0, None, None))
    found = server() if server is not None and process == process_id() else None
    return None if found is None else found.task


def find_colocated(address: str, incarnation: int) -> Worker | None:
    """The worker of the server that listens at `address`, if it belongs to this process and has this incarnation."""
    found = _servers.get(address)
    if found is None or found[0] != process_id():
        return None
    server = found[1]()
    return found[2]() if server is not None and server.incarnation == incarnation else None
