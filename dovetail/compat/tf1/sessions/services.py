"""The threads of a `Supervisor`: each does one thing every so many seconds."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np

from ....train.global_step import global_step
from ....train.loops.coordinator import Coordinator, LooperThread

logger = logging.getLogger(__name__)


def session_log(writer: Any, status: str, **more: Any) -> None:
    """Write into an event file that a session began or ended, or a checkpoint was saved."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    log = SessionLog(status=SessionLog.SessionStatus.Value(status), **more)
    writer.add_event(Event(session_log=log, wall_time=time.time()))


class SummaryService(LooperThread):
    """Writes summaries.

    Args:
        coord: says when to stop. every_s: how often, in seconds. session: where. summary: the summaries as one string tensor.
        step: the global step or None. writer: a `FileWriter`.
    """

    def __init__(self, coord: Coordinator, every_s: float, session: Any, summary: Any, step: Any, writer: Any) -> None:
        super().__init__(coord, every_s)
        self._session, self._writer = session, writer
        self._fetches = [summary] if step is None else [summary, step]

    def run_loop(self) -> None:
        summary, *step = self._session.run(self._fetches)
        self._writer.add_summary(summary, np.asarray(step[0]).item() if step else None)


class StepCounterService(LooperThread):
    """Tells how many steps a second are done: in the log, and as summary `global_step/sec`.

    Args:
        coord, every_s, session, step, writer: as of `SummaryService`.
    """

    def __init__(self, coord: Coordinator, every_s: float, session: Any, step: Any, writer: Any) -> None:
        super().__init__(coord, every_s)
        self._session, self._step, self._writer = session, step, writer
        self._tag = f"{step.op.name}/sec"

    def start_loop(self) -> None:
        self._at, self._before = time.monotonic(), global_step(self._session, self._step)

    def run_loop(self) -> None:
        now, step = time.monotonic(), global_step(self._session, self._step)
        passed = now - self._at
        rate = (step - self._before) / passed if passed > 0 else float("inf")
        self._at, self._before = now, step
        logger.info("%s: %g", self._tag, rate)
        from ....interop.tensorboard.writer import scalar_summary

        self._writer.add_summary(scalar_summary(self._tag, rate), step)


class CheckpointService(LooperThread):
    """Saves checkpoints.

    Args:
        coord, every_s, session, step: as of `SummaryService`. saver: a `Saver`. path: the name that the step's number follows.
        writer: gets an event for each checkpoint; None: none is written.
    """

    def __init__(
        self, coord: Coordinator, every_s: float, session: Any, saver: Any, path: str, step: Any, writer: Any
    ) -> None:
        super().__init__(coord, every_s)
        self._session, self._saver, self._path, self._step, self._writer = session, saver, path, step, writer

    def run_loop(self) -> None:
        logger.info("Saving checkpoint to path %s", self._path)
        self._saver.save(self._session, self._path, global_step=self._step)
        if self._writer is not None and self._step is not None:
            session_log(self._writer, "CHECKPOINT", checkpoint_path=self._path)
