"""Watching the cluster while it trains: its processes from outside, its parameters through a session."""

from __future__ import annotations

import queue
import signal
import threading
from typing import Any

import dovetail as tf

from .data import Digits
from .model import Replica
from .reports import Evaluated, Report, from_line

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
