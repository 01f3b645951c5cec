"""Watches the cluster during the training: its processes, the progress reports of workers, and the accuracy.

A report from another process is a line of JSON on its standard output.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias

import dovetail as tf

from ...runtime.rpc.pending_call import how_it_ended
from .data import Digits
from .model import Replica

EVALUATE_EVERY_S = 0.25
# Seconds to wait for a thread. A thread whose step waits for a dead task ends with this process.
JOIN_S = 1.0


class DemoError(Exception):
    """The demo failed. The message is the reason."""


class Processes:
    """The processes of the cluster. Threads convert their output to reports."""

    def __init__(self, cluster: tf.LocalCluster, reports: queue.Queue[Report]) -> None:
        self._cluster = cluster
        for job, i in cluster.tasks:
            pipe = cluster.process(job, i).stdout
            threading.Thread(target=_read, args=(pipe, f"/job:{job}/task:{i}", reports), daemon=True).start()

    def ended(self) -> list[tuple[str, str]]:
        """Returns the tasks whose processes have ended, with the exit status as text. None should end while the demo runs."""
        codes = [(job, i, self._cluster.process(job, i).poll()) for job, i in self._cluster.tasks]
        return [(f"/job:{job}/task:{i}", how_it_ended(code)) for job, i, code in codes if code is not None]


def _read(pipe: Any, task: str, reports: queue.Queue[Report]) -> None:
    with pipe:
        for line in pipe:
            reports.put(from_line(line.decode(errors="replace").rstrip(), task))


class Evaluator:
    """Another client of the cluster, which evaluates the parameters on the test digits during the training, for the display."""

    def __init__(
        self,
        session: tf.Session,
        replica: Replica,
        digits: Digits,
        reports: queue.Queue[Report],
        every_s: float = EVALUATE_EVERY_S,
    ) -> None:
        fetches, feeds = [replica.accuracy, replica.predictions], [replica.images, replica.labels]
        self._call = session.make_callable(fetches, feeds)
        self._digits, self._reports, self._every_s = digits, reports, every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def evaluate(self) -> tuple[float, Any]:
        """Returns the accuracy on all test digits, and the prediction for each."""
        accuracy, predictions = self._call(self._digits.test_images, self._digits.test_labels)
        return float(accuracy), predictions

    def start(self) -> None:
        """Starts to evaluate repeatedly. The variables must be initialized. A second call does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Starts no further evaluation."""
        self._stop.set()

    def join(self) -> None:
        """Waits for a running evaluation, at most `JOIN_S` seconds. It ends soon after the session is closed."""
        if self._thread.ident is not None:
            self._thread.join(timeout=JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                accuracy, predictions = self.evaluate()
            except Exception:  # a task was lost, or the session was closed; `run` detects both itself
                return
            self._reports.put(Evaluated(accuracy, predictions))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a worker. Loss and rate (steps per second) are means since the last report."""

    worker: int
    steps: int
    global_step: int
    loss: float
    rate: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has finished training."""

    worker: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed."""

    worker: int
    message: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The current parameters were evaluated on the test digits."""

    accuracy: float
    predictions: Any  # int64, one per test digit


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a process's output that is not a report, such as a warning or a part of a traceback."""

    task: str
    line: str


Report: TypeAlias = Progress | Finished | Failed | Evaluated | Said

_SENT_AS_JSON: dict[str, type[Progress] | type[Finished] | type[Failed]] = {
    cls.__name__: cls for cls in (Progress, Finished, Failed)
}


def to_line(report: Progress | Finished | Failed) -> str:
    """Returns a report as a line of JSON."""
    return json.dumps({"report": type(report).__name__, **dataclasses.asdict(report)})


def from_line(line: str, task: str) -> Report:
    """Parses the report in a line that `task` wrote. Returns `Said` for another line."""
    try:
        fields = json.loads(line)
        return _SENT_AS_JSON[fields.pop("report")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Said(task, line)


def end_with_parent() -> None:
    """Ends this process when its standard input closes, because its parent has then ended."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
