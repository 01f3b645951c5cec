"""Connection faults for tests: lost messages, late messages, and a process that exits at a chosen message.

`graph/core/fault_injection.py` has the syntax. A lost message leaves no trace: the connection stays up, as if the network had failed
and recovered unnoticed. That is worse than a real failure. Late messages of one peer stay in order, and do not delay those of
others.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...graph.core.fault_injection import faults
from ...graph.core.settings import setting
from .access_control import end_connection, peer_of


class LinkFaults:
    """The faults of one endpoint or connection. Any thread may call `passes` and `carry`."""

    def __init__(self) -> None:
        self._carried = itertools.count(1)
        self._came: dict[str, int] = {}
        self._lock = threading.Lock()
        self._free: dict[Hashable, float] = {}  # link -> time when its messages have passed it
        self._carriers: dict[Hashable, ThreadPoolExecutor] = {}  # link -> a thread that keeps its messages in order

    def passes(self, address: str | None = None) -> bool:
        """Whether a message arrives. `address`: its destination, if that is a server."""
        if self.cuts(address):
            return False
        active = faults()
        every = active.get("lose")
        return every is None or next(self._carried) % int(every) != 0

    def cuts(self, address: str | None = None) -> bool:
        """Whether all messages are lost, or all to the server at `address`."""
        cut = faults().get("cut")
        return cut is not None and cut in ("all", address)

    def carry(
        self, link: Hashable, frames: Sequence[Any], arrive: Callable[[], object], address: str | None = None
    ) -> None:
        """Call `arrive` when the message has passed the link, on a thread of the link; never if it is lost."""
        if not self.passes(address):
            return
        active = faults()
        delay, rate = float(active.get("delay", 0)) / 1e3, float(active.get("rate", 0)) * (1 << 20)

        def carried() -> None:
            time.sleep(max(0.0, free + delay - time.monotonic()))
            arrive()

        with self._lock:
            now = time.monotonic()
            free = max(now, self._free.get(link, now)) + (sum(map(len, frames)) / rate if rate else 0.0)
            self._free[link] = free
            if link not in self._carriers:
                self._carriers[link] = ThreadPoolExecutor(1, "dovetail-faults")
            self._carriers[link].submit(carried)

    def arrived(self, kind: str) -> None:
        """Count a received message of this kind. The process exits if it is the chosen one."""
        active = faults()
        count = self._came[kind] = self._came.get(kind, 0) + 1
        if active.get("kill") == f"{kind}:{count}":
            os.kill(os.getpid(), signal.SIGKILL)
        if active.get("freeze") == f"{kind}:{count}":
            os.kill(os.getpid(), signal.SIGSTOP)


def break_connections() -> None:
    """Break the TCP connections of this process. Otherwise ZeroMQ's heartbeats would pass a network that is to be cut."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (numbers)
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
