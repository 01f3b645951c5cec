"""What a task says about itself: figures that people and monitors look at, and steps that make no progress.

Nothing here is done for each step but counting what is sent. Everything else is looked at from outside, once a second or when asked.

    figures    a dictionary of plain values; the answer to a `stats` message, and the source of the metrics
    stall      a step that is alive, but waits for the same things for `DOVETAIL_STALL_S`
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MOST_STEPS = 50  # running steps that are listed, the oldest
MOST_WAITS = 20  # things that are listed for each
WAIT_CHARS = 400  # of each, where it travels


class Traffic:
    """What a task has sent to which other one, and received. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, list[int]] = {}
        self._received = [0, 0]

    def sent(self, task: str, size: int) -> None:
        """One message with tensors of so many bytes has gone to a task."""
        with self._lock:
            link = self._sent.get(task) or self._sent.setdefault(task, [0, 0])
            link[0] += 1
            link[1] += size

    def received(self, size: int) -> None:
        """One has come."""
        with self._lock:
            self._received[0] += 1
            self._received[1] += size

    def figures(self) -> dict[str, Any]:
        """Messages and bytes, by link and in all."""
        with self._lock:
            links = [{"to": task, "messages": m, "bytes": b} for task, (m, b) in sorted(self._sent.items())]
            return {"links": links, "received_messages": self._received[0], "received_bytes": self._received[1]}


@dataclass(slots=True)
class _Seen:
    first: float
    waits: tuple[str, ...]
    since: float  # when it was first seen to wait for these
    told: bool = False


class Watchdog:
    """Notices steps that are alive and make no progress. Events in, reports out: it is told what runs, and what time it is.

    Args:
        stall_s: how long a step may wait for the same things; 0: for ever.

    >>> dog = Watchdog(10.0)
    >>> dog.look(0.0, [7], lambda step: ["a queue"])
    []
    >>> dog.look(1.0, [7], lambda step: ["a queue"])
    []
    >>> dog.look(12.0, [7], lambda step: ["a queue"])
    [(7, 11.0, ('a queue',))]
    """

    def __init__(self, stall_s: float) -> None:
        self._stall_s = stall_s
        self._seen: dict[int, _Seen] = {}

    def look(
        self, now: float, running: Iterable[int], waits_for: Callable[[int], Iterable[str]]
    ) -> list[tuple[int, float, tuple[str, ...]]]:
        """The steps that have come to a halt since the last look: number, seconds, what they wait for here.

        A step that was not there at the last look is only noted: most have ended by the next one.
        """
        before, self._seen = self._seen, {}
        stalled = []
        for step in running:
            seen = before.get(step)
            if seen is None:
                self._seen[step] = _Seen(now, (), now)
                continue
            self._seen[step] = seen
            waits = tuple(waits_for(step))
            if waits != seen.waits:
                seen.waits, seen.since, seen.told = waits, now, False
            elif waits and self._stall_s and now - seen.since >= self._stall_s and not seen.told:
                seen.told = True
                stalled.append((step, now - seen.since, waits))
        return stalled

    def figures(self, now: float) -> list[dict[str, Any]]:
        """The running steps that it has seen, the oldest first."""
        oldest = sorted(self._seen.items(), key=lambda item: item[1].first)[:MOST_STEPS]
        return [
            {
                "step": step,
                "age_s": now - seen.first,
                "waits": list(seen.waits[:MOST_WAITS]),
                "waiting_s": now - seen.since if seen.waits else 0.0,
            }
            for step, seen in oldest
        ]


def memory_in_use() -> int:
    """Bytes of memory that this process has; 0 where that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  (once a second; a Path is not needed)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# --- metrics -----------------------------------------------------------------------------------------------------------

# name of the metric, its type, its help text, its key in the figures
_METRICS = (
    ("up_seconds", "gauge", "how long the task has been running", "up_s"),
    ("memory_bytes", "gauge", "memory of the task's process", "memory"),
    ("sessions", "gauge", "sessions that are open at this task's master", "sessions"),
    ("steps_running", "gauge", "steps that run here", "steps_running"),
    ("steps_started", "counter", "steps that this task took part in", "steps_started"),
    ("steps_failed", "counter", "steps that ended with an error", "steps_failed"),
    ("steps_stalled", "counter", "steps that were reported to make no progress", "steps_stalled"),
    ("received_bytes", "counter", "bytes of tensors that came from other tasks", "received_bytes"),
    ("received_messages", "counter", "messages with these tensors", "received_messages"),
    ("refused", "counter", "connections that were refused", "refused"),
)
_LINK_METRICS = (
    ("sent_bytes", "bytes of tensors sent to a task", "bytes"),
    ("sent_messages", "messages with these tensors", "messages"),
)


class MetricsServer:
    """Serves a task's figures at `http://ADDRESS/metrics` for Prometheus.

    Args:
        address: `host:port`, or a port of localhost; port 0 picks a free one.
        figures: gives the figures of the moment. It is called in a thread of the server's.

    Raises:
        OSError: the address is taken, or not of this machine. ValueError: it is no address.
    """

    def __init__(self, address: str, figures: Callable[[], Mapping[str, Any]]) -> None:
        # Imported here: only tasks that serve metrics load prometheus_client.
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
        from prometheus_client.registry import Collector

        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise ValueError(f"{address!r} is no address for metrics: write a port of localhost, or host:port")

        class Figures(Collector):
            def collect(self) -> Iterable[Metric]:
                now = figures()
                task = [str(now["job"]), str(now["task_index"])]
                families = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
                for name, kind, meaning, key in _METRICS:
                    if key in now:
                        family = families[kind](f"dovetail_{name}", meaning, labels=["job", "task"])
                        family.add_metric(task, now[key])
                        yield family
                for name, meaning, key in _LINK_METRICS:
                    sent = CounterMetricFamily(f"dovetail_{name}", meaning, labels=["job", "task", "to"])
                    for link in now.get("links", ()):
                        sent.add_metric([*task, link["to"]], link[key])
                    yield sent

        registry = CollectorRegistry()
        registry.register(Figures())
        self._server, self._thread = start_http_server(int(port), host or "127.0.0.1", registry)
        self.address = f"{host or '127.0.0.1'}:{self._server.server_address[1]}"

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
