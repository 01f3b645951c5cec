"""The servers of this process: a session in the same process hands them its steps without a message.

Between-graph replication uses it: the client of each worker runs in the process of the worker's server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol
from weakref import ref

if TYPE_CHECKING:  # distribution strategies ask for these servers, and need no ZeroMQ
    from .worker import Worker


class ColocatedServer(Protocol):
    """What this module needs of a server, which is in a higher layer."""

    task: str
    incarnation: int
    _worker: Worker


# By address. A WeakValueDictionary takes several times as long to look into.
_servers: dict[str, ref[ColocatedServer]] = {}
os.register_at_fork(after_in_child=_servers.clear)  # a forked child has none of them


def add_server(address: str, server: ColocatedServer) -> None:
    _servers[address] = ref(server)


def remove_server(address: str) -> None:
    """Remove the server at `address`, which has stopped listening."""
    _servers.pop(address, None)


def colocated_servers() -> list[ColocatedServer]:
    return [found for server in list(_servers.values()) if (found := server()) is not None]


def _at(address: str) -> ColocatedServer | None:
    found = _servers.get(address)
    return None if found is None else found()


def colocated_task(address: str) -> str | None:
    """The task of the server that listens at `address`, if it belongs to this process."""
    server = _at(address)
    return None if server is None else server.task


def find_colocated(address: str, incarnation: int) -> Worker | None:
    """The worker of the server that listens at `address`, if it belongs to this process and has this incarnation."""
    server = _at(address)
    return server._worker if server is not None and server.incarnation == incarnation else None
