"""Metrics of a task, for people and monitors, and the watchdog for steps without progress.

A step only counts what it sends. Everything else is sampled from outside, once a second or on request.

    figures    a dictionary of plain values: the reply to a `stats` message, and the source of the metrics
    stall      a live step that waits for the same things for `DOVETAIL_STALL_S`
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...graph.resources.queue import Queue

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
MOST_STEPS = 50  # oldest running steps in the figures
MOST_WAITS = 20  # waits per step in the figures
LAST_STEPS = 1000  # steps that percentiles are of
WAIT_CHARS = 400  # characters per wait in a message


class Traffic:
    """Counts what a task sends to each other task, and receives. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, list[int]] = {}
        self._received = [0, 0]

    def sent(self, task: str, size: int) -> None:
        """Count one message to a task, with tensors of `size` bytes."""
        with self._lock:
            link = self._sent.get(task) or self._sent.setdefault(task, [0, 0])
            link[0] += 1
            link[1] += size

    def received(self, size: int) -> None:
        with self._lock:
            self._received[0] += 1
            self._received[1] += size

    def figures(self) -> dict[str, Any]:
        """Messages and bytes, per link and in total."""
        with self._lock:
            links = [{"to": task, "messages": m, "bytes": b} for task, (m, b) in sorted(self._sent.items())]
            return {"links": links, "received_messages": self._received[0], "received_bytes": self._received[1]}


@dataclass(slots=True)
class _Seen:
    first: float
    waits: tuple[str, ...]
    since: float  # when it was first seen with these waits
    is_reported: bool = False


class Watchdog:
    """Detects live steps without progress. Pure: the caller passes the running steps and the time.

    Args:
        stall_s: how long a step may wait for the same things; 0: forever.

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
        """The steps that have stalled since the last look: number, seconds, what they wait for here.

        A step that was not there at the last look is only recorded: most have ended by the next look.
        """
        before, self._seen = self._seen, {}
        stalled = []
        for step in running:
            seen = self._seen[step] = before.get(step) or _Seen(now, (), now)
            if step not in before:
                continue
            waits = tuple(waits_for(step))
            if waits != seen.waits:
                seen.waits, seen.since, seen.is_reported = waits, now, False
            elif waits and self._stall_s and now - seen.since >= self._stall_s and not seen.is_reported:
                seen.is_reported = True
                stalled.append((step, now - seen.since, waits))
        return stalled

    def figures(self, now: float) -> list[dict[str, Any]]:
        """The running steps that the watchdog has seen, the oldest first."""
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


def percentiles(taken: deque[float]) -> dict[str, float]:
    """Seconds of the last steps at the 50th, 90th and 99th percentile; {} before the first step. Another thread may add some."""
    last = sorted(taken.copy())
    return {f"p{p}": last[min(len(last) - 1, len(last) * p // 100)] for p in (50, 90, 99)} if last else {}


class Load:
    """The processor cores that this process keeps busy, between looks at its clock."""

    def __init__(self) -> None:
        self._seen = time.monotonic(), time.process_time()
        self.cores = 0.0

    def look(self) -> None:
        """Take the mean since the last look."""
        now, worked = time.monotonic(), time.process_time()
        self.cores = (worked - self._seen[1]) / max(now - self._seen[0], 1e-9)
        self._seen = now, worked


def queue_depths(resources: Iterable[tuple[str, str, Any]]) -> list[dict[str, Any]]:
    """The queues of a task: name, elements, capacity (0: no limit), and the steps' requests that wait."""
    found = [r for _, _, r in resources if isinstance(r, Queue)]
    return [
        {"name": q.name, "elements": len(q), "capacity": max(0, q.kind.capacity), "waiting": q.waiting}
        for q in found[:MOST_STEPS]
    ]


def memory_in_use() -> int:
    """Bytes of memory that this process uses; 0 where that is not known."""
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123  (called once a second; a Path is not needed)
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


# --- metrics -----------------------------------------------------------------------------------------------------------

# name of the metric, its type, its help text, its key in the figures
_METRICS = (
    ("up_seconds", "gauge", "how long the task has been running", "up_s"),
    ("memory_bytes", "gauge", "memory of the task's process", "memory"),
    ("load_cores", "gauge", "processor cores that the task kept busy over the last second", "load"),
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
    """Serves a task's metrics at `http://ADDRESS/metrics` for Prometheus, and its health at `/live` and `/ready`.

    The two answer 200, or 503 with the reason: `live` fails where a restart is the only help, `ready` while the task takes no sessions.

    Args:
        address: `host:port`, or a port of localhost; port 0 picks a free one.
        figures: returns the current figures. It is called on a thread of the server.
        health: path -> returns what is wrong, empty where nothing is. Called as `figures`.

    Raises:
        OSError: the address is in use, or not of this machine. ValueError: it is malformed.
    """

    def __init__(
        self, address: str, figures: Callable[[], Mapping[str, Any]],
        health: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:  # fmt: skip
        # Imported here: only tasks that serve metrics load prometheus_client.
        from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server
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
        self._metrics, self._health = make_wsgi_app(registry), health or {}
        self._server.set_app(self._application)
        self.address = f"{host or '127.0.0.1'}:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _application(self, environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """Answer (WSGI) the paths of the health, and leave the others to the metrics."""
        check = self._health.get(environment["PATH_INFO"])
        if check is None:
            return self._metrics(environment, start_response)
        wrong = check()
        text = f"{wrong or 'ok'}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
        start_response("503 Service Unavailable" if wrong else "200 OK", headers)
        return [text]
