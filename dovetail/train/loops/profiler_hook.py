"""The hook that traces a step now and then."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from ...runtime.config import RunOptions
from .basic_session_run_hooks import SecondOrStepTimer, needed_step
from .session_run_hook import SessionRunArgs, SessionRunContext, SessionRunHook, SessionRunValues

logger = logging.getLogger(__name__)


class ProfilerHook(SessionRunHook):
    """Traces a step every so often: when each kernel ran and each value travelled, in all tasks that took part.

    Each trace is a file `timeline-STEP.json`, which Perfetto and chrome://tracing show. The first step is never traced: it compiles.

    Args:
        save_steps, save_secs: how often; exactly one of them.
        output_dir: the folder; made if it is not there.
        show_dataflow, show_memory: accepted; what was not measured is not shown.

    >>> hooks = [ProfilerHook(save_steps=1000, output_dir="/tmp/traces")]
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._folder = Path(output_dir)

    def begin(self) -> None:
        self._next: int | None = None  # what the global step will be after the next step
        self._lag = 0  # how many steps the fetched global step lags: 1 if it is read before the update
        self._due = False
        self._step = needed_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        self._due = self._next is not None and self._timer.should_trigger_for_step(self._next)
        options = RunOptions(trace_level=RunOptions.FULL_TRACE) if self._due else None
        return SessionRunArgs(self._step, options=options)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        step = int(run_values.results)
        if self._next is None:
            self._lag = min(max(int(run_context.session.run(self._step)) - step, 0), 1)
            self._timer.update_last_triggered_step(step + self._lag - 1)
        step += self._lag
        if self._due:
            step = int(run_context.session.run(self._step))
            self._timer.update_last_triggered_step(step)
            self._save(run_values.run_metadata.trace, step)
        self._next = step + 1

    def _save(self, trace: Any, step: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"timeline-{step}.json"
        trace.save(path)
        logger.info("Saved the trace of step %d into %s.", step, path)


__all__ = ["ProfilerHook"]
