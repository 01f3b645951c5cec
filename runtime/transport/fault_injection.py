"""Connection faults for tests: lost messages, late messages, and a process that exits at a chosen message.

`graph/core/fault_injection.py` has the syntax. A lost message leaves no trace: the connection stays up, as if the network had failed
and recovered unnoticed. That is worse than a real failure. Late messages of one peer stay in order, and do not delay those of
others.
"""

from __future__ import annotations

import heapq
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from ...graph.core.fault_injection import faults
from ...graph.core.settings import setting
from .access_control import end_connection, peer_of


class LinkFaults:
    """The faults of one endpoint or connection. Any thread may call `passes` and `carry`."""

    def __init__(self) -> None:
        self._carried = itertools.count(1)
        self._came: dict[str, int] = {}
        self._lock = threading.Condition()
        self._free: dict[Hashable, float] = {}  # link -> time when its messages have arrived
        self._delayed: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._carrier: threading.Thread | None = None

    def passes(self, address: str | None = None) -> bool:
        """Whether a message arrives. `address`: its destination, if that is a server."""
        if self.cuts(address):
            return False
        every = faults().get("lose")
        return every is None or next(self._carried) % int(every) != 0

    def cuts(self, address: str | None = None) -> bool:
        """Whether all messages are lost, or all to the server at `address`."""
        cut = faults().get("cut")
        return cut is not None and cut in ("all", address)

    def carry(
        self, link: Hashable, frames: Sequence[Any], arrive: Callable[[], object], address: str | None = None
    ) -> None:
        """Call `arrive` when the message has passed the link: now, later, or never."""
        if not self.passes(address):
            return
        active = faults()
        delay, rate = float(active.get("delay", 0)) / 1e3, float(active.get("rate", 0)) * (1 << 20)
        with self._lock:
            now = time.monotonic()
            free = max(now, self._free.get(link, now)) + (sum(map(len, frames)) / rate if rate else 0.0)
            self._free[link] = free
            if delay or rate or self._delayed:
                heapq.heappush(self._delayed, (free + delay, next(self._order), arrive))
                if self._carrier is None:
                    self._carrier = threading.Thread(target=self._deliver, name="dovetail-faults", daemon=True)
                    self._carrier.start()
                self._lock.notify()
                return
            self._free.clear()
        arrive()

    def _deliver(self) -> None:
        while True:
            with self._lock:
                while not self._delayed or self._delayed[0][0] > time.monotonic():
                    self._lock.wait(self._delayed[0][0] - time.monotonic() if self._delayed else None)
                _, _, arrive = heapq.heappop(self._delayed)
                arrive()  # under the lock, to keep the order; it only queues

    def arrived(self, kind: str) -> None:
        """Count a received message of this kind. The process exits if it is the chosen one."""
        count = self._came[kind] = self._came.get(kind, 0) + 1
        for fault, number in (("kill", signal.SIGKILL), ("freeze", signal.SIGSTOP)):
            if faults().get(fault) == f"{kind}:{count}":
                os.kill(os.getpid(), number)


def break_connections() -> None:
    """Break the TCP connections of this process. Otherwise ZeroMQ's heartbeats would pass a network that is to be cut."""
    for file in Path("/proc/self/fd").iterdir():
        descriptor = int(file.name)
        end = peer_of(descriptor)
        if isinstance(end, tuple):  # no Unix socket
            end_connection(descriptor, end)


def link_faults() -> LinkFaults | None:
    """Faults for a new endpoint or connection; None outside tests.

    Raises:
        ValueError: the setting is malformed.
    """
    if not setting("DOVETAIL_FAULTS") or set(faults()) <= {"save"}:
        return None
    return LinkFaults()
