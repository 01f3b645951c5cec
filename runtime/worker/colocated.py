"""The servers of this process: a session in the same process hands them its steps without a message.

Between-graph replication uses it: the client of each worker runs in the process of the worker's server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # distribution strategies ask for these servers, and need no ZeroMQ
    from .worker import Worker


_servers: dict[str, tuple[Any, Worker]] = {}  # address -> a `Server`, which is in a higher layer, and its worker
os.register_at_fork(after_in_child=_servers.clear)  # a forked child has none of them


def add_server(address: str, server: Any, worker: Worker) -> None:
    _servers[address] = server, worker


def remove_server(address: str) -> None:
    """Remove the server at `address`, which has stopped listening."""
    _servers.pop(address, None)


def colocated_servers() -> list[Any]:
    return [server for server, _ in list(_servers.values())]


def colocated_task(address: str) -> str | None:
    """The task of the server that listens at `address`, if it belongs to this process."""
    found = _servers.get(address)
    return None if found is None else found[1].task


def find_colocated(address: str, incarnation: int) -> Worker | None:
    """The worker of the server that listens at `address`, if it belongs to this process and has this incarnation."""
    found = _servers.get(address)
    return found[1] if found is not None and found[1].incarnation == incarnation else None
