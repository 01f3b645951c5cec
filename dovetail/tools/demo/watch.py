"""Watching the cluster while it trains: its processes from outside, its parameters through a session.

Workers report their progress as small values, each a JSON line if it comes from another process.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any, TypeAlias

import dovetail as tf

from .data import Digits
from .model import Replica

EVALUATE_EVERY_S = 0.25
JOIN_S = 1.0  # timeout in seconds: a thread whose step waits for a dead task ends with this process


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Processes:
    """The processes of the cluster: their output becomes reports, and an early end does not go unseen."""

    def __init__(self, cluster: tf.LocalCluster, reports: queue.Queue[Report]) -> None:
        self._cluster = cluster
        for job, i in cluster.tasks:
            pipe = cluster.process(job, i).stdout
            threading.Thread(target=_read, args=(pipe, f"/job:{job}/task:{i}", reports), daemon=True).start()

    def ended(self) -> list[tuple[str, str]]:
        """The tasks whose processes have ended, each with its exit status. None should end while the demo runs."""
        codes = [(job, i, self._cluster.process(job, i).poll()) for job, i in self._cluster.tasks]
        return [(f"/job:{job}/task:{i}", _ended(code)) for job, i, code in codes if code is not None]


def _read(pipe: Any, task: str, reports: queue.Queue[Report]) -> None:
    with pipe:
        for line in pipe:
            reports.put(from_line(line.decode(errors="replace").rstrip(), task))


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class Evaluator:
    """A further client of the cluster: tries the parameters on the held-out digits while they are trained.

    Nothing depends on its results; they are only displayed.
    """

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
        """Accuracy on all held-out digits, and the prediction for each."""
        accuracy, predictions = self._call(self._digits.test_images, self._digits.test_labels)
        return float(accuracy), predictions

    def start(self) -> None:
        """Evaluate repeatedly. The variables must be initialised. A second start has no effect."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Begin no further evaluation."""
        self._stop.set()

    def join(self) -> None:
        """Wait a moment for the evaluation that may be under way. It ends soon when the session is closed."""
        if self._thread.ident is not None:
            self._thread.join(timeout=JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            try:
                accuracy, predictions = self.evaluate()
            except Exception:  # a task is gone, or the session was closed; `run` notices either by itself
                return
            self._reports.put(Evaluated(accuracy, predictions))


@dataclass(frozen=True, slots=True)
class Progress:
    """A worker has trained for a while. Loss and rate (steps per second) are means over that while."""

    worker: int
    steps: int
    global_step: int
    loss: float
    rate: float


@dataclass(frozen=True, slots=True)
class Finished:
    """A worker has stopped training, because enough steps were made."""

    worker: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A worker failed."""

    worker: int
    message: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The parameters of this moment were tried on the digits that are never trained on."""

    accuracy: float
    predictions: Any  # int64, one per test digit


@dataclass(frozen=True, slots=True)
class Said:
    """A line of a process's output that is no report: a warning, part of a traceback."""

    task: str
    line: str


Report: TypeAlias = Progress | Finished | Failed | Evaluated | Said

_TRAVELLING: dict[str, type[Progress] | type[Finished] | type[Failed]] = {
    cls.__name__: cls for cls in (Progress, Finished, Failed)
}


def to_line(report: Progress | Finished | Failed) -> str:
    """A report as a line of JSON."""
    return json.dumps({"report": type(report).__name__, **dataclasses.asdict(report)})


def from_line(line: str, task: str) -> Report:
    """The report in a line that `task` wrote; `Said` when it is another line."""
    try:
        fields = json.loads(line)
        return _TRAVELLING[fields.pop("report")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return Said(task, line)


def end_with_parent() -> None:
    """Let this process end when its standard input closes: the process that started it has ended then."""

    def wait() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
